"""What slow links do to learning: PPO on several nodes that sum or average over links of a given rate.

    venv/bin/python -m perf.cluster_learning --folder benchmarks/links

As root, with iproute2: nodes are network namespaces of this machine with one rank each. There are four
stages; --only names those to run:

  speed   timesteps per second of each way over each link: short runs in alternating rounds. Nothing else
          should run on the machine.
  curves  whole runs of each way without a link, for the return over timesteps. Nothing is timed, so other
          work does not matter.
  check   whole runs over a link, to compare them with what speed and curves predict.
  report  the return over wall clock: the curve over timesteps, divided by the speed over the link. Table,
          picture and numbers go to perf/results/cluster_learning.*

Everything that is measured stays in --folder. The same command resumes where it was ended. Ways:

  plain     one all-reduce for each minibatch
  bf16      cluster.compression=bf16 cluster.overlap=true
  powersgd  cluster.compression=powersgd
  every1    cluster.average_every=1: nodes learn by themselves, and average after each update
  every4    cluster.average_every=4
  auto      cluster.average_every=auto: the number of updates is chosen for the link
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.cluster_learning import report
from perf.cluster_learning.runs import curve_of, measure_speed, whole_run
from perf.cluster_learning.ways import UPDATE, WAYS, Way, average_every, settings_of
from perf.cluster_scaling.link import RATES, require_namespaces
from perf.training_runs import is_complete
from rlcb.files import write_json

STAGES = ("speed", "curves", "check", "report")
FEWEST = 2  # ranks; of ways that learn alike on any number of ranks


@dataclass(frozen=True)
class Plan:
    """What the command was asked for."""

    folder: Path
    env: str
    ways: Sequence[str]
    ranks: Sequence[int]
    links: Sequence[str]
    rounds: int
    seeds: Sequence[int]
    updates: int

    @property
    def speed_file(self) -> Path:
        return self.folder / "speed.json"

    def speeds(self) -> dict[str, list[dict[str, Any]]]:
        """Return the measured speeds by "<ranks> <link> <way>"."""
        if not self.speed_file.exists():
            return {}
        found: dict[str, list[dict[str, Any]]] = json.loads(self.speed_file.read_text())
        return found

    def run_folder(self, way: str, ranks: int, seed: int, link: str = "") -> Path:
        return self.folder / "runs" / "_".join(filter(None, (way, f"{ranks}ranks", link, f"seed{seed}")))


def measure_speeds(plan: Plan) -> None:
    """Measure until each way has as many rounds as asked for over each link; keep every result at once."""
    for number in range(plan.rounds):
        for ranks in plan.ranks:
            for link in plan.links:
                for way in plan.ways:
                    found, key = plan.speeds(), f"{ranks} {link} {way}"
                    if len(found.get(key, [])) > number:
                        continue
                    speed = measure_speed(WAYS[way], plan.env, ranks, link)
                    found.setdefault(key, []).append(speed)
                    plan.folder.mkdir(parents=True, exist_ok=True)
                    write_json(plan.speed_file, found)
                    print(
                        f"round {number + 1}/{plan.rounds}  {key:<22} {speed['fps']:8,.1f} timesteps/s",
                        flush=True,
                    )


def chosen_every(plan: Plan, ranks: int, link: str) -> int | None:
    """Return the number of updates that `auto` chose over a link, the median of rounds; None before that was
    measured."""
    found = plan.speeds().get(f"{ranks} {link} auto", [])
    return None if not found else int(statistics.median_low(each["every"] for each in found))


def curve_place(plan: Plan, name: str, ranks: int, link: str) -> tuple[str, int, tuple[str, ...]] | None:
    """Return the name, ranks and settings of the runs that give the curve of a way over a link; None if
    `auto` has not chosen yet."""
    way: Way = WAYS[name]
    if way.every is None:
        return name, ranks if way.needs_ranks else FEWEST, settings_of(way)
    every = chosen_every(plan, ranks, link) if way.every == "auto" else way.every
    return None if every is None else (f"every{every}", ranks, average_every(every))


def make_curves(plan: Plan) -> None:
    """Make the whole runs without a link that are not there yet."""
    places = [
        curve_place(plan, way, ranks, link)
        for way in plan.ways
        for ranks in plan.ranks
        for link in plan.links
    ]
    for seed in plan.seeds:
        for place in dict.fromkeys(places):
            if place is None:
                continue
            name, ranks, settings = place
            folder = plan.run_folder(name, ranks, seed)
            whole_run(folder, plan.env, ranks, seed, plan.updates, settings)
            print(f"{folder.name:<28} return {curve_of(folder)['returns'][-1]}", flush=True)
    if None in places:
        print("average_every=auto: its curves need the stage speed first")


def check_composition(plan: Plan, ways: Sequence[str]) -> None:
    """Make whole runs over a link: the first link and number of ranks of the plan, the first seed."""
    ranks, link, seed = plan.ranks[0], plan.links[0], plan.seeds[0]
    for way in ways:
        folder = plan.run_folder(way, ranks, seed, link)
        whole_run(folder, plan.env, ranks, seed, plan.updates, settings_of(WAYS[way]), link)
        print(f"{folder.name:<28} {curve_of(folder)['seconds'][-1]:.0f} s", flush=True)


def collect(plan: Plan, checked: Sequence[str]) -> dict[str, Any]:
    """Return everything that was measured, as the report takes it."""
    cells: list[dict[str, Any]] = []
    for ranks in plan.ranks:
        for link in plan.links:
            for way in plan.ways:
                place = curve_place(plan, way, ranks, link)
                cells.append(
                    {
                        "ranks": ranks,
                        "link": link,
                        "way": way,
                        "speeds": plan.speeds().get(f"{ranks} {link} {way}", []),
                        "curves": [] if place is None else curves(plan, *place[:2]),
                    }
                )
    return {
        "env": plan.env,
        "timesteps": plan.updates * UPDATE,
        "cells": cells,
        "checks": [check for way in checked for check in checks_of(plan, way)],
    }


def curves(plan: Plan, name: str, ranks: int) -> list[dict[str, Any]]:
    """Return the curves of the complete runs of all seeds."""
    folders = [plan.run_folder(name, ranks, seed) for seed in plan.seeds]
    return [curve_of(folder) for folder in folders if is_complete(folder)]


def checks_of(plan: Plan, way: str) -> list[dict[str, Any]]:
    """Return the run of a way over a link and the one without, if both are complete."""
    ranks, link, seed = plan.ranks[0], plan.links[0], plan.seeds[0]
    place = curve_place(plan, way, ranks, link)
    if place is None:
        return []
    folders = plan.run_folder(way, ranks, seed, link), plan.run_folder(place[0], place[1], seed)
    if not all(map(is_complete, folders)):
        return []
    real, alone = map(curve_of, folders)
    return [{"way": way, "ranks": ranks, "link": link, "real": real, "without_link": alone}]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=Path("benchmarks/cluster_learning"))
    parser.add_argument("--only", nargs="+", choices=STAGES, default=STAGES)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=tuple(WAYS))
    parser.add_argument(
        "--ranks", nargs="+", type=int, default=[2, 4], help="numbers of nodes, one rank each"
    )
    parser.add_argument(
        "--links", nargs="+", choices=RATES, default=["100mbit", "10mbit"], help="as tc writes them"
    )
    parser.add_argument("--rounds", type=int, default=2, help="of the stage speed")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="of the stage curves")
    parser.add_argument("--timesteps", type=int, default=100_000, help="of each run of the stage curves")
    parser.add_argument("--env", default="starpilot")
    parser.add_argument(
        "--check-ways", nargs="+", choices=WAYS, default=["plain", "every4"], help="of the stage check"
    )
    options = parser.parse_args()
    updates = -(-options.timesteps // UPDATE)
    plan = Plan(
        options.folder,
        options.env,
        options.ways,
        options.ranks,
        options.links,
        options.rounds,
        options.seeds,
        updates,
    )
    if {"speed", "check"} & set(options.only):
        require_namespaces()
    if "speed" in options.only:
        measure_speeds(plan)
    if "curves" in options.only:
        make_curves(plan)
    if "check" in options.only:
        check_composition(plan, options.check_ways)
    if "report" in options.only:
        report.write(collect(plan, options.check_ways))


if __name__ == "__main__":
    main()
