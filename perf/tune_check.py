"""Test whether profile_cpu.py recommends the fastest setup, by real runs with it and with other setups.

    venv/bin/python -m perf.tune_check                  # both networks: more than an hour on two cores
    venv/bin/python -m perf.tune_check --quick --networks nature --cases impala_parallel

The bars: at least 0.95 of the best setup with as many environments as the recommendation has, and, since it
keeps those of the configuration unless others bring more than a tenth, 0.90 of the best of all. A profile is
measured as profile_cpu.py does, and the recommendation is the one that it prints. Then every setup runs
twice: workers x threads of PPO, actors x learners of IMPALA (numbers of them in powers of two, and the
cores), with every microbatch and the environments of the recommendation, and with its microbatch and the
environments of the configuration and twice as many. Those that once came within 20 % of the best, and the
recommendation, run on in turn; only these later rounds count, so that no setup is best because it was lucky
once.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from functools import partial
from typing import Any

from perf.measure import RESULTS, interleave, save, table
from rlcb import cpu
from rlcb.cli.command import exit_code
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, read_config_file, set_value
from rlcb.machine.limits import samples_per_pass, samples_per_process
from rlcb.machine.profile import Profile, Setup
from rlcb.paths import default_config_path
from rlcb.processes.machine_lock import Lock, machine_lock_path
from rlcb.processes.signals import StopSignal
from rlcb.profiling.advice import ENVS_TOLERANCE, describe_setup, recommend, with_envs
from rlcb.profiling.measure import EFFORTS, MachineMeasurement, counts_up_to
from rlcb.profiling.short_runs import short_run

CASES = ("ppo_sequential", "ppo_parallel", "impala_parallel")
NETWORKS = ("impala", "nature")
MICROBATCHES = (32, 64, 128, 256)
FIRST_ROUNDS = 2
NEAR = 0.8  # of the best: what a setup has to reach once in the first rounds to run on; noise is below 10 %
BAR = 0.95
ENVS_BAR = 1 - ENVS_TOLERANCE  # of the best with any number of environments
BUSY = "measurements at once would slow each other down"


def configured(case: str, network: str) -> Config:
    """Return the configuration of config/<case>.yaml with a network."""
    algorithm, mode = case.split("_")
    path = default_config_path(algorithm, mode)
    data = read_config_file(path)
    set_value(data, "model.architecture", network, "--networks")
    return build_config(data, str(path))


def setups(config: Config, recommended: Setup, cores: int) -> list[Setup]:
    """The setups that are held against the recommendation, itself among them; of those that are the same
    program one. Their runs are as long as the recommendation's."""
    found = {program(config, recommended): recommended}
    for num_envs in sorted({config.env.num_envs, 2 * config.env.num_envs, recommended.num_envs}):
        sizes = MICROBATCHES if num_envs == recommended.num_envs else (recommended.microbatch_size,)
        for values, size in itertools.product(divisions(config, cores), sizes):
            if num_envs % math.lcm(values["processes"], config.env.group_size or 1) == 0:
                values = {**values, "num_envs": num_envs, "microbatch_size": size}
                setup = recommended.model_copy(update=values)
                found.setdefault(program(config, setup), setup)
    return list(found.values())


def divisions(config: Config, cores: int) -> list[dict[str, int]]:
    """Return the ways to divide the cores among processes."""
    if config.has_actors:
        pairs = itertools.product(sorted({*counts_up_to(cores), 2 * cores}), counts_up_to(cores))
        return [{"processes": actors, "learners": learners} for actors, learners in pairs]
    return [
        {"processes": workers, "threads": threads}
        for threads in counts_up_to(cores)
        for workers in (counts_up_to(cores // threads) if config.mode == "parallel" else (1,))
    ]


def program(config: Config, setup: Setup) -> tuple[int | None, ...]:
    """Return what distinguishes the runs of two setups.

    All microbatches that are larger than the samples of a process are the same.
    """
    share = samples_per_process(with_envs(config, setup.num_envs), setup.learners or setup.processes)
    samples = samples_per_pass(config, setup.microbatch_size, share)
    return setup.processes, setup.learners, setup.threads, setup.num_envs, samples


def rate(config: Config, setup: Setup, seconds: float, stop: StopSignal) -> float:
    return short_run(config, setup, seconds, stop, lambda: None).fps


def check(
    case: str, config: Config, profile: Profile, seconds: float, rounds: int, stop: StopSignal
) -> tuple[str, dict[str, Any]]:
    """Return the text and data of one case."""
    recommended = recommend(profile, config)
    found = {describe_setup(each, config): each for each in setups(config, recommended, profile.cores)}
    own = describe_setup(recommended, config)
    runs = {name: partial(rate, config, setup, seconds, stop) for name, setup in found.items()}
    print(f"{case}: {len(runs)} setups, {FIRST_ROUNDS} rounds", flush=True)
    first = interleave(runs, FIRST_ROUNDS)
    least = NEAR * max(first.median(name) for name in runs)
    near = {name: run for name, run in runs.items() if name == own or max(first.rates[name]) >= least}
    print(f"{case}: the {len(near)} near the best", flush=True)
    later = interleave(near, rounds)
    alike = [name for name in near if found[name].num_envs == recommended.num_envs]
    best, best_of_all = max(alike, key=later.median), max(near, key=later.median)
    share, whole = later.ratio(own, best), later.ratio(own, best_of_all)
    dropped = sorted((name for name in runs if name not in near), key=lambda name: -first.median(name))
    lines = [
        f"### {case}, {profile.network.name} network",
        "",
        table(later, own, "timesteps/s", "the recommendation"),
        "",
        f"- recommended: {own}, predicted {recommended.predicted_fps:,.0f} timesteps/s",
        f"- it reaches {share:.2f} of the best with as many environments, {best}: {verdict(share, BAR)}",
        f"- it reaches {whole:.2f} of the best of all, {best_of_all}: {verdict(whole, ENVS_BAR)}",
    ]
    if dropped:
        parts = "; ".join(f"{name}: {first.median(name):,.0f}" for name in dropped)
        lines.append(f"- slower in the first rounds, timesteps/s: {parts}")
    data: dict[str, Any] = {"recommended": own, "first": first.rates, "rates": later.rates}
    data |= {"best": best, "share": share, "best_of_all": best_of_all, "share_of_all": whole}
    return "\n".join(lines), data | {"passed": share >= BAR and whole >= ENVS_BAR}


def verdict(share: float, bar: float) -> str:
    return f"{'passed' if share >= bar else 'FAILED'} (at least {bar:g})"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--rounds", type=int, default=3, help="of the setups near the best")
    parser.add_argument("--seconds", type=float, default=3.0, help="of training in each run")
    parser.add_argument("--quick", action="store_true", help="1 round of 2 seconds")
    arguments = parser.parse_args()
    seconds, rounds = (2.0, 1) if arguments.quick else (arguments.seconds, arguments.rounds)
    failed = False
    lock = Lock(machine_lock_path(), BUSY, "check of recommendations")
    lock.acquire(RESULTS)
    try:
        with StopSignal(forwards=True) as stop:
            for network in arguments.networks:
                name = f"tune_check_{network}"
                if set(arguments.cases) != set(CASES):
                    name += "_" + "_".join(arguments.cases)
                name += "_quick" if arguments.quick else ""
                failed |= check_network(name, network, arguments.cases, seconds, rounds, stop)
    finally:
        lock.release()
    return int(failed)


def check_network(
    name: str, network: str, cases: list[str], seconds: float, rounds: int, stop: StopSignal
) -> bool:
    """Check a network's cases and save them under a name; returns whether one failed."""
    configs = {case: configured(case, network) for case in cases}
    config = next(iter(configs.values()))
    print(f"{network}: measuring the machine", flush=True)
    machine = MachineMeasurement(config, [config.env], EFFORTS["normal"], stop.check)
    machine.measure(lambda share, text: None)
    machine.measure_parts(counts_up_to(cpu.usable_cores()), lambda share, text: None)
    profile = machine.profile(None)
    title = (
        f"Recommendations of profile_cpu.py against other setups, coinrun, {network} network, "
        f"{cpu.usable_cores()} cores, {rounds} round(s) of {seconds:g} s in turn"
    )
    texts, data = [title], {}
    for case, each in configs.items():
        text, data[case] = check(case, each, profile, seconds, rounds, stop)
        texts.append(text)
        save(name, "\n\n".join(texts), {"cases": data})
    return not all(each["passed"] for each in data.values())


if __name__ == "__main__":
    sys.exit(exit_code(main))
