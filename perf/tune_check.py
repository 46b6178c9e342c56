"""Whether profile_cpu.py recommends what is fastest: its recommendation against every setup, by real runs.

    venv/bin/python -m perf.tune_check                       # both networks, some 20 minutes on two cores
    venv/bin/python -m perf.tune_check --quick --networks nature --cases impala_parallel

The bar: at least 0.95 of the best setup. A profile is measured as profile_cpu.py does. Then every setup runs
once: workers x threads x microbatch of PPO, actors x learners of IMPALA, with the environments of the
configuration. Those that came within 15 % of the best, and the recommendation, run on in turn; only these
later rounds count, so that no setup is best because it was lucky once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

from perf.measure import interleave, save, table
from src import cpu_utils
from src.config import Config
from src.config_file import build_config, read_config_file, set_value
from src.profiling import Profile, Setup
from src.profiling_advice import describe_setup, recommend
from src.profiling_steps import EFFORTS, counts_up_to, measure_machine
from src.profiling_trials import run_script, short_run
from src.project import default_config_path
from src.study_process import Stop

CASES = ("ppo_sequential", "ppo_parallel", "impala_parallel")
NETWORKS = ("impala", "nature")
MICROBATCHES = (64, 128, 256)
NEAR = 0.85  # of the best of the first round: setups that run on
BAR = 0.95


def configured(case: str, network: str) -> Config:
    """The configuration of config/<case>.yaml with a network."""
    algorithm, mode = case.split("_")
    path = default_config_path(algorithm, mode)
    data = read_config_file(path)
    set_value(data, "model.architecture", network, "--networks")
    return build_config(data, str(path))


def setups(config: Config, recommended: Setup, cores: int) -> Iterator[Setup]:
    """Every setup that a run could have. Their runs are as long as the recommendation's."""

    def other(**values: Any) -> Setup:
        return recommended.model_copy(update=values)

    if config.has_actors:
        for actors in sorted({*counts_up_to(cores), 2 * cores}):
            for learners in counts_up_to(cores):
                if config.env.num_envs % actors == 0:
                    yield other(processes=actors, learners=learners)
        return
    for threads in counts_up_to(cores):
        for workers in counts_up_to(cores // threads) if config.mode == "parallel" else (1,):
            for microbatch in MICROBATCHES:
                if config.env.num_envs % workers == 0:
                    yield other(processes=workers, threads=threads, microbatch_size=microbatch)


def rate(config: Config, setup: Setup, seconds: float, stop: Stop) -> float:
    return run_script(short_run(config, setup, seconds), stop, lambda: None).fps


def check(
    case: str, config: Config, profile: Profile, seconds: float, rounds: int, stop: Stop
) -> tuple[str, dict[str, Any]]:
    """Text and data of one case."""
    recommended = recommend(profile, config, keep_envs=True)
    found = {describe_setup(each, config): each for each in setups(config, recommended, profile.cores)}
    own = describe_setup(recommended, config)
    found[own] = recommended
    runs = {name: partial(rate, config, setup, seconds, stop) for name, setup in found.items()}
    print(f"{case}: {len(runs)} setups once", flush=True)
    first = interleave(runs, 1)
    least = NEAR * max(first.median(name) for name in runs)
    near = {name: run for name, run in runs.items() if name == own or first.median(name) >= least}
    print(f"{case}: the {len(near)} near the best", flush=True)
    later = interleave(near, rounds)
    best = max(near, key=later.median)
    share = later.ratio(own, best)
    dropped = sorted((name for name in runs if name not in near), key=lambda name: -first.median(name))
    lines = [
        f"### {case}, {profile.network.name} network",
        "",
        table(later, own, "timesteps/s", "the recommendation"),
        "",
        f"- recommended: {own}, predicted {recommended.predicted_fps:,.0f} timesteps/s",
        f"- it reaches {share:.2f} of the best, {best}: {'passed' if share >= BAR else 'FAILED'} "
        f"(at least {BAR})",
    ]
    if dropped:
        parts = "; ".join(f"{name}: {first.median(name):,.0f}" for name in dropped)
        lines.append(f"- slower in the first round, timesteps/s: {parts}")
    data = {"recommended": own, "best": best, "share": share, "first": first.rates, "rates": later.rates}
    return "\n".join(lines), data


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=3, help="of the setups near the best")
    parser.add_argument("--seconds", type=float, default=5.0, help="of training in each run")
    parser.add_argument("--quick", action="store_true", help="1 round of 2 seconds")
    arguments = parser.parse_args()
    seconds, rounds = (2.0, 1) if arguments.quick else (arguments.seconds, arguments.rounds)
    failed = False
    with Stop() as stop:
        for network in arguments.networks:
            name = f"tune_check_{network}"
            if set(arguments.cases) != set(CASES):
                name += "_" + "_".join(arguments.cases)
            name += "_quick" if arguments.quick else ""
            failed |= check_network(name, network, arguments.cases, seconds, rounds, stop)
    return int(failed)


def check_network(name: str, network: str, cases: list[str], seconds: float, rounds: int, stop: Stop) -> bool:
    """Check a network's cases and save them under a name; returns whether one failed."""
    configs = {case: configured(case, network) for case in cases}
    config = next(iter(configs.values()))
    print(f"{network}: measuring the machine", flush=True)
    profile = measure_machine(
        config, [config.env], EFFORTS["normal"], stop.check, lambda share, text: None, None
    )
    texts, data = [], {}
    for case, each in configs.items():
        text, data[case] = check(case, each, profile, seconds, rounds, stop)
        texts.append(text)
    title = (
        f"Recommendations of profile_cpu.py against every setup, coinrun, {network} network, "
        f"{cpu_utils.usable_cores()} cores, {rounds} round(s) of {seconds:g} s in turn"
    )
    save(name, "\n\n".join([title, *texts]), {"cases": data})
    return any(each["share"] < BAR for each in data.values())


if __name__ == "__main__":
    sys.exit(main())
