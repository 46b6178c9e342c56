"""From a profile to what it says of each algorithm and mode: limit, share, bottleneck, recommendation."""

from __future__ import annotations

from src.config import Config
from src.profiling import Profile, Reached, Result
from src.profiling_advice import bottleneck, recommend, with_envs
from src.profiling_limits import best_times, limit, machine_limit


def result_of(profile: Profile, config: Config, reached: Reached | None) -> Result:
    """What a profile says of config's algorithm and mode; `reached` is what a short run came to, if there was
    one. Raises UsageError if no setup is possible."""
    setup = recommend(profile, config)
    ran = setup if reached is None else reached.setup
    sized = with_envs(config, ran.num_envs)
    threads = ran.threads if config.mode == "sequential" else 1
    most, times = limit(profile, sized, threads), best_times(profile, sized, threads)
    share = None if reached is None else reached.fps / most
    epochs = config.training.n_epochs
    return Result(
        algorithm=config.algorithm,
        mode=config.mode,
        epochs=epochs,
        threads=threads,
        limit_fps=most,
        machine_limit_fps=machine_limit(profile, sized),
        parts=times.parts,
        setup=setup,
        reached=reached,
        share=share,
        bottleneck=bottleneck(times, epochs, share, {} if reached is None else reached.shares),
    )
