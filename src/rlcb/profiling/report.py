"""The text of a profile, which profile_cpu.py prints and writes beside the JSON file."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping

from rlcb.config.config import Config
from rlcb.machine.limits import NotMeasured, describe_model, seconds_by_size, thread_counts
from rlcb.machine.profile import NetworkSpeed, Profile, Result
from rlcb.profiling.advice import AlgorithmMode, describe_setup
from rlcb.text import WIDTH, counted

NAME = 15  # columns of a row's name
WORTH_WHILE = 0.05  # smallest gain for which another precision is recommended


def describe_profile(profile: Profile, configs: Mapping[AlgorithmMode, Config]) -> str:
    """Return the whole text; `configs` has the configuration of each result's algorithm and mode."""
    parts = [
        heading("KNOW YOUR MACHINE"),
        *facts(profile),
        "",
        *network_table(profile, "forward"),
        "",
        *network_table(profile, "forward_backward"),
        "",
        *([*network_table(profile, "act_and_learn"), ""] if profile.act_and_learn else []),
        *([row("kernels", text)] if (text := kernels(profile)) else []),
        row("precision", precisions(profile)),
        *reductions(profile),
        "",
        heading("WHAT EACH ALGORITHM CAN REACH, timesteps per second"),
        *limit_table(profile),
        "",
        heading("WHAT HOLDS IT UP"),
        *(line for result in profile.results for line in wrapped(title(result), result.bottleneck)),
        "",
        heading("RECOMMENDED"),
        *(
            line
            for result in profile.results
            for line in wrapped(title(result), recommended(result, configs[result.algorithm, result.mode]))
        ),
        "=" * WIDTH,
    ]
    return "\n".join(parts)


def heading(text: str) -> str:
    """Return a heading between two rules."""
    return f"{'=' * WIDTH}\n{text}\n{'=' * WIDTH}"


def row(name: str, text: str) -> str:
    """Return a name and its text, wrapped in a column of its own."""
    lines = textwrap.wrap(text, 100 - NAME) or [""]
    return "\n".join(f"{name if index == 0 else '':<{NAME}}{line}" for index, line in enumerate(lines))


def wrapped(name: str, text: str) -> Iterator[str]:
    """Yield a name and, indented below it, its text."""
    yield f"{name}:"
    yield textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="    ")


def title(result: Result) -> str:
    """`PPO parallel`."""
    return f"{result.algorithm.upper()} {result.mode}"


def facts(profile: Profile) -> Iterator[str]:
    """Yield the rows on the machine, the network, the environments and the start-up time."""
    machine, network, startup = profile.machine, profile.network, profile.startup
    flags = f"; {', '.join(machine.flags)}" if machine.flags else ""
    yield row(
        "machine",
        f"{machine.cpu_model}, {counted(machine.usable_cores, 'usable core')}, "
        f"{machine.ram_gb:.0f} GB{flags}",
    )
    if profile.cpu_percent_of_others is not None:
        yield row("others", f"used {profile.cpu_percent_of_others:.0f} % of the cores before")
    bf16 = ""
    if machine.peak_flops_bfloat16 is not None:
        bf16 = f" ({machine.peak_flops_bfloat16 / 1e9:,.0f} in bfloat16)"
    yield row(
        "a busy core",
        f"{machine.peak_flops / 1e9:,.0f} GFLOP/s{bf16} in its best matrix product or convolution; copies "
        f"{machine.memory_bandwidth / 1e9:,.1f} GB/s in memory, {machine.cache_bandwidth / 1e9:,.0f} GB/s in "
        "its cache",
    )
    yield row(
        "network",
        f"{describe_model(profile)}; for a sample {network.forward_flops / 1e6:,.1f} "
        f"MFLOP forward, {network.forward_backward_flops / 1e6:,.1f} forward and backward",
    )
    for index, text in enumerate(environment_lines(profile)):
        yield row("environments" if index == 0 else "", text)
    total = startup.imports + startup.environments + startup.network
    yield row(
        "start-up",
        f"{total:.1f} s for a process, all cores at once: imports {startup.imports:.1f} s, environments "
        f"{startup.environments:.1f} s, network {startup.network:.1f} s",
    )


def environment_lines(profile: Profile) -> Iterator[str]:
    """Yield a line per environment: its steps per second on one core, on all cores, and in one process."""
    for name in dict.fromkeys(each.key for each in profile.environments):
        mine = [each for each in profile.environments if each.key == name]
        same = {each.threads: each for each in mine}
        one = 1 / same[1].seconds
        parts = [f"{one:,.0f} steps/s per core, {one * profile.cores:,.0f} in all"]
        if (wide := same.get(profile.cores)) is not None and profile.cores > 1:
            parts.append(f"{1 / wide.seconds:,.0f} of one process with {profile.cores} threads")
        mode = f" ({name[1]})" if name[0].startswith("procgen-") else ""
        options = "" if name[2] == "{}" else f" {name[2]}"
        yield f"{name[0]}{mode}{options}: {'; '.join(parts)}"


def network_table(profile: Profile, name: str) -> Iterator[str]:
    """Yield the table of one pass: samples per second of all processes, by threads and samples in a pass."""
    speeds: tuple[NetworkSpeed, ...] = getattr(profile, name)
    what = {
        "forward": "forward (acting)",
        "forward_backward": "forward and backward (learning)",
        "act_and_learn": "both in one (acting and learning of A2C and A3C)",
    }[name]
    sizes = sorted({each.size for each in speeds if each.layout == "channels_last"})
    yield f"Samples per second of the whole machine, {what}, by samples at once"
    yield f"{'processes x threads':<22}" + "".join(f"{size:>10,}" for size in sizes)
    for threads in thread_counts(profile):
        seconds, count = seconds_by_size(speeds, threads, profile.precision), profile.cores // threads
        cells = "".join(f"{count / seconds[size]:>10,.0f}" if size in seconds else " " * 10 for size in sizes)
        yield f"{f'{count} x {threads}':<22}{cells}"


def ratio(profile: Profile, name: str, precision: str, layout: str) -> float | None:
    """Return how many times as fast a pass is in another precision or layout, with one thread.

    `name` is forward or forward_backward. None if this precision or layout was not measured.
    """
    speeds: tuple[NetworkSpeed, ...] = getattr(profile, name)
    try:
        other = seconds_by_size(speeds, 1, precision, layout)
    except NotMeasured:
        return None
    size = max(other)
    return seconds_by_size(speeds, 1, profile.precision)[size] / other[size]


def kernels(profile: Profile) -> str:
    """Return the text that compares native kernels with PyTorch's; empty for a network without images."""
    forward = ratio(profile, "forward", profile.precision, "torch")
    both = ratio(profile, "forward_backward", profile.precision, "torch")
    if forward is None or both is None:
        return ""
    if profile.network.kernels == "torch":
        return "torch: native ones are not used here (hardware.kernels)"
    text = (
        f"native ones, which runs use, are {1 / forward:.2f} times as fast as PyTorch's forward, "
        f"{1 / both:.2f} times forward and backward"
    )
    return text if both < 1 else f"{text}: --set hardware.kernels=torch makes use of PyTorch's"


def precisions(profile: Profile) -> str:
    """Return the text that compares float32 with bfloat16, for the numbers of epochs of the results."""
    if profile.machine.peak_flops_bfloat16 is None:
        return f"{profile.precision}; this CPU has no instructions for bfloat16"
    other = "bfloat16" if profile.precision == "float32" else "float32"
    forward = ratio(profile, "forward", other, "channels_last")
    both = ratio(profile, "forward_backward", other, "channels_last")
    if forward is None or both is None:
        return f"{profile.precision}; {other} was not measured"
    text = (
        f"{other} is {forward:.2f} times as fast as {profile.precision} forward, {both:.2f} times forward "
        "and backward"
    )
    epochs = sorted({result.epochs for result in profile.results} or {1})
    faster = [each for each in epochs if gain(profile, forward, both, each) >= 1 + WORTH_WHILE]
    if not faster:
        return f"{text}: not worth while here"
    where = "here and in training scripts"
    if faster != epochs:
        where = f"where a rollout is learned from {' or '.join(map(str, faster))} times, as in PPO"
    return f"{text}: --set model.precision={other} makes use of it, {where}"


def gain(profile: Profile, forward: float, both: float, epochs: int) -> float:
    """Return the speed-up of a whole timestep, including the environment.

    The forward pass is `forward` times as fast, the forward and backward pass `both` times.
    """
    env = next((each.seconds for each in profile.environments if each.threads == 1), 0.0)
    act, learn = (
        min(seconds_by_size(speeds, 1, profile.precision).values())
        for speeds in (profile.forward, profile.forward_backward)
    )
    return (env + act + epochs * learn) / (env + act / forward + epochs * learn / both)


def reductions(profile: Profile) -> Iterator[str]:
    """Yield the rows with the times of all-reduces."""
    for index, each in enumerate(profile.reduce):
        size = f"{each.bytes / 1e6:.1f} MB" if each.bytes >= 1e5 else f"{each.bytes / 1e3:.0f} kB"
        text = f"{size} over {each.processes} processes: {1e3 * each.seconds:.2f} ms"
        yield row("all-reduce" if index == 0 else "", text)


def limit_table(profile: Profile) -> Iterator[str]:
    """Yield the table of limits and reached speeds, and its explanation."""
    yield f"{'':<20}{'limit':>10}{'reached':>10}{'share':>8}{'all cores':>12}{'share':>8}"
    for result in profile.results:
        reached = result.reached
        fps = "-" if reached is None else f"{reached.fps:,.0f}"
        share = "-" if result.share is None else f"{result.share:.0%}"
        whole = "-"
        if result.share is not None:
            whole = f"{result.share * result.limit_fps / result.machine_limit_fps:.0%}"
        yield (
            f"{title(result):<20}{result.limit_fps:>10,.0f}{fps:>10}{share:>8}"
            f"{result.machine_limit_fps:>12,.0f}{whole:>8}"
        )
    yield ""
    yield textwrap.fill(
        "limit: cores / (environment + forward + epochs x forward and backward), each measured right before "
        "and after the run. A2C and A3C need no separate forward pass where they learn from the activations "
        "cached while acting. A sequential run is limited by its one process and its threads. all cores: the "
        "limit with one thread on each core, which a sequential run cannot reach. reached: a short run of "
        "the real script with the setup and the sizes below.",
        100,
    )


def recommended(result: Result, config: Config) -> str:
    """Return the text of one recommendation."""
    text = f"{describe_setup(result.setup, config)}; predicted {result.setup.predicted_fps:,.0f} FPS"
    if result.reached is not None:
        text += f"; reached with {describe_short_run(result, config)}"
    before, now = config.env.num_envs, result.setup.num_envs
    if now == before:
        return text
    return (
        f"{text}. The configuration has {before} environments; {now} are more than 10 % faster or divide "
        "evenly among the processes. This changes the size of a rollout, and so the learning"
    )


def describe_short_run(result: Result, config: Config) -> str:
    """`rollouts of 32 x 64 steps, minibatches of 2,048`, without the minibatches if there are none.

    The run's setup follows if it is not the recommended one: the second measurement may change the
    recommendation after the run.
    """
    reached = result.reached
    assert reached is not None
    text = f"rollouts of {reached.setup.num_envs} x {reached.n_steps} steps"
    if reached.batch_size is not None:
        text += f", minibatches of {reached.batch_size:,}"
    now, before = (describe_setup(each, config) for each in (result.setup, reached.setup))
    return text if now == before else f"{text} and {before}"
