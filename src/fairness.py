"""What makes a comparison unfair: every difference between runs that is not the one being compared."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from src.comparison_groups import APART, Group, game_name, settings_of
from src.comparison_runs import Run, as_number, dig

TOLERANCE = 0.05  # durations closer than this, as a share of the longest, are equal
STUDY_LOG = "study_log.jsonl"  # what run_benchmark.py notes beside the runs of a study
BUSY_PERCENT = 10.0  # of the cores, used by other programs: figures of runs vary by about as much anyway
BUSY = 0.5  # load per core beyond a run's own threads from which on a machine was busy
HARDWARE = ("cpu_model", "physical_cores", "usable_cores", "ram_gb")
SOFTWARE = ("python", "torch", "numpy", "procgen", "gymnasium", "git_commit")
BUDGET = ("training.duration_hours", "training.total_timesteps")
SECTIONS = {
    "env.": "levels",
    "model.": "network",
    "training.": "hyperparameters",
    "impala.": "hyperparameters",
}


class Difference(NamedTuple):
    """One thing that was not equal, in a sentence."""

    aspect: str
    text: str


def differences(groups: Sequence[Group], skipped: Sequence[tuple[Any, str]] = ()) -> list[Difference]:
    """All differences between the runs of these groups; `skipped` has (path, reason) of the runs left out."""
    checks: tuple[Callable[[Sequence[Group]], Iterator[Difference]], ...] = (
        _games,
        _settings,
        _hardware,
        _duration,
        _load,
        _overlap,
        _software,
        _seeds,
        _evaluations,
        _marked,
    )
    found = [difference for check in checks for difference in check(groups)]
    left_out = [f"{path}: {reason}" for path, reason in skipped]
    return found + ([Difference("runs left out", "; ".join(left_out))] if left_out else [])


def show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else "none" if value is None else str(value)


def by_value(groups: Sequence[Group], of: Callable[[Run], Any]) -> dict[str, list[str]]:
    """Each value that some run has, with the labels of the groups that have it."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for value in dict.fromkeys(show(of(run)) for run in group.runs):
            labels = found.setdefault(value, [])
            if group.label not in labels:
                labels.append(group.label)
    return found


def _sentence(name: str, found: dict[str, list[str]]) -> str:
    """`num_envs: 128 in PPO parallel; 64 in the others`, the value that most groups have last."""
    *few, (common, holders) = sorted(found.items(), key=lambda item: len(item[1]))
    parts = [f"{value} in {', '.join(labels)}" for value, labels in few]
    mixed = {label for _, labels in few for label in labels} & set(holders)
    whose = "the others" if len(holders) > 2 and not mixed else ", ".join(holders)
    return f"{name}: {'; '.join([*parts, f'{common} in {whose}'])}"


def _games(groups: Sequence[Group]) -> Iterator[Difference]:
    games = list(dict.fromkeys(group.game for group in groups))
    if len(games) < 2:
        return
    yield Difference(
        "game",
        f"{len(games)} games ({', '.join(games)}): raw returns are compared within a game only",
    )
    played: dict[str, list[str]] = {}
    for group in groups:
        played.setdefault(group.label, []).append(group.game)
    if len({frozenset(each) for each in played.values()}) > 1:
        sets = "; ".join(f"{label}: {', '.join(each)}" for label, each in played.items())
        yield Difference("game", f"not every group played every game ({sets})")


def _settings(groups: Sequence[Group]) -> Iterator[Difference]:
    """Levels, network, environments and hyperparameters, in that order."""
    configs = {id(run): settings_of(run) for group in groups for run in group.runs}
    keys = dict.fromkeys(key for config in configs.values() for key in config if key not in APART)
    impala = [group for group in groups if group.algorithm == "impala"]
    found: dict[str, list[str]] = {}
    for key in keys:
        section = next((name for start, name in SECTIONS.items() if key.startswith(start)), None)
        section = "total environments" if key == "env.num_envs" else section
        section = "budget" if key in BUDGET else section
        concerned = impala if key.startswith("impala.") else groups
        values = by_value(concerned, lambda run, key=key: configs[id(run)].get(key))  # type: ignore[misc]
        if section is not None and len(values) > 1:
            found.setdefault(section, []).append(_sentence(key.split(".", 1)[1], values))
    for section in dict.fromkeys(["levels", "network", "total environments", "hyperparameters", "budget"]):
        for text in found.get(section, []):
            yield Difference(section, text)


def _hardware(groups: Sequence[Group]) -> Iterator[Difference]:
    def value_of(key: str) -> Callable[[Run], Any]:
        # Two machines of one kind report memory that differs in its last digits.
        return lambda run: round(run.number("hardware.ram_gb")) if known(run, key) else "not recorded"

    def known(run: Run, key: str) -> bool:
        return not math.isnan(run.number(f"hardware.{key}"))

    for key in HARDWARE:
        of = value_of(key) if key == "ram_gb" else lambda run, key=key: _fact(run, f"hardware.{key}")
        values = by_value(groups, of)
        if len(values) > 1:
            yield Difference("hardware", _sentence(key, values))
    values = by_value(groups, total_threads)
    if len(values) > 1:
        yield Difference("hardware", _sentence("threads in all", values))


def _fact(run: Run, key: str) -> Any:
    value = dig(run.record, key)
    return "not recorded" if value is None else value


def total_threads(run: Run) -> Any:
    """Threads of all processes of a run."""
    threads = dig(run.record, "hardware.threads")
    if isinstance(threads, dict):
        threads = list(threads.values())
    numbers = [as_number(each) for each in threads] if isinstance(threads, list) else []
    total = math.fsum(numbers)
    return int(total) if numbers and math.isfinite(total) else "not recorded"


def _duration(groups: Sequence[Group]) -> Iterator[Difference]:
    """Wall clock that was really used: groups differ, or seeds of a group."""
    hours = [(group.label, run.number("duration_hours")) for group in groups for run in group.runs]
    known = [value for _, value in hours if math.isfinite(value)]
    if not known or max(known) - min(known) <= TOLERANCE * max(known):
        return
    spans: dict[str, list[float]] = {}
    for label, value in hours:
        spans.setdefault(label, []).append(value)
    yield Difference("duration", "hours: " + "; ".join(f"{k} {_span(v)}" for k, v in spans.items()))


def _span(values: Iterable[float]) -> str:
    shown = sorted(value for value in values if math.isfinite(value))
    if not shown:
        return "not recorded"
    low, high = f"{shown[0]:.3g}", f"{shown[-1]:.3g}"
    return low if low == high else f"{low} to {high}"


def _study_starts(log: Path) -> dict[str, float]:
    """Share of the cores, in percent, that other programs used before each run of a study began."""
    found = {}
    try:
        for line in log.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            share = as_number(dig(row, "load.cpu_percent"))
            if isinstance(row, dict) and isinstance(row.get("run"), str) and math.isfinite(share):
                found[row["run"]] = share
    except (OSError, ValueError):
        pass  # no study, or a log that was cut: what was read before counts
    return found


def used_by_others(run: Run) -> float:
    """Percent of the cores in use before a run began; NaN where no study measured it."""
    path = run.path.resolve()
    return _study_starts(path.parent / STUDY_LOG).get(path.name, math.nan)


def _load(groups: Sequence[Group]) -> Iterator[Difference]:
    """A machine that did other things: before a run, or at its end more than its own threads make."""
    busy, ends = [], []
    for run in (run for group in groups for run in group.runs):
        cores, end = run.number("hardware.usable_cores"), run.number("hardware.load_average")
        own = as_number(total_threads(run))
        ends += [end] if math.isfinite(end) else []
        if used_by_others(run) >= BUSY_PERCENT:
            busy.append(f"{run.path.name} ({used_by_others(run):.0f} % of the cores before it began)")
        elif end > own + BUSY * cores:
            busy.append(f"{run.path.name} ({end:.2f} at its end with {own:.0f} threads of its own)")
    if busy:
        yield Difference("load", f"the machine was busy with other work during {'; '.join(busy)}")
    sizes = [run.number("hardware.usable_cores") for group in groups for run in group.runs]
    least = min((each for each in sizes if math.isfinite(each)), default=1.0)
    if ends and max(ends) - min(ends) > BUSY * least:
        spans = {g.label: _span(r.number("hardware.load_average") for r in g.runs) for g in groups}
        listed = "; ".join(f"{label} {span}" for label, span in spans.items())
        yield Difference("load", f"load average at the end: {listed}")


def _overlap(groups: Sequence[Group]) -> Iterator[Difference]:
    """Runs at the same time: on one machine they slow each other; a record does not say on which it was."""
    spans = []
    for run in (run for group in groups for run in group.runs):
        try:
            begun = datetime.fromisoformat(str(run.record.get("start_time"))).timestamp()
            ended = datetime.fromisoformat(str(run.record.get("end_time"))).timestamp()
            spans.append((begun, ended, run.path.name))
        except ValueError:
            continue
    spans.sort()
    pairs = [
        f"{first[2]} and {second[2]}"
        for first, second in pairwise(spans)
        if second[0] < first[1] - 1  # times are whole seconds
    ]
    if pairs:
        more = f" and {len(pairs) - 3} more pairs" if len(pairs) > 3 else ""
        text = (
            f"runs overlapped in time, and slowed each other if they shared a machine: {'; '.join(pairs[:3])}"
        )
        yield Difference("load", text + more)


def _software(groups: Sequence[Group]) -> Iterator[Difference]:
    for key in (*SOFTWARE, "platform"):
        section = "hardware" if key == "platform" else "software"
        values = by_value(groups, lambda run, at=f"{section}.{key}": _fact(run, at))  # type: ignore[misc]
        if len(values) > 1:
            yield Difference("software", _sentence(key, values))


def _seeds(groups: Sequence[Group]) -> Iterator[Difference]:
    for env in dict.fromkeys(group.env for group in groups):
        same = [group for group in groups if group.env == env]
        seeds = {group.label: sorted(str(run.seed) for run in group.runs) for group in same}
        if len({tuple(sorted(set(each))) for each in seeds.values()}) > 1:
            listed = "; ".join(f"{label}: {', '.join(each)}" for label, each in seeds.items())
            yield Difference("seeds", f"not the same in every group of {game_name(env)} ({listed})")
        for label, each in seeds.items():
            twice = sorted({seed for seed in each if each.count(seed) > 1})
            if twice:
                text = f"{label} on {game_name(env)} has seed {', '.join(twice)} more than once"
                yield Difference("seeds", f"{text}: these runs are not independent")


def _evaluations(groups: Sequence[Group]) -> Iterator[Difference]:
    runs = [run for group in groups for run in group.runs]
    if all(run.evaluation is None for run in runs):
        return
    missing = [run.path.name for run in runs if run.evaluation is None]
    if missing:
        yield Difference("evaluation", f"not every run was evaluated (missing: {', '.join(missing)})")
    evaluated = [Group(g.label, g.env, tuple(r for r in g.runs if r.evaluation is not None)) for g in groups]
    for key in ("episodes_per_split", "deterministic", "seed", "max_episode_steps"):
        values = by_value(evaluated, lambda run, key=key: dig(run.evaluation, key))  # type: ignore[misc]
        if len(values) > 1:
            yield Difference("evaluation", _sentence(key, values))


def _marked(groups: Sequence[Group]) -> Iterator[Difference]:
    for run in (run for group in groups for run in group.runs):
        if run.notes:
            yield Difference("runs marked", f"{run.path.name}: {', '.join(run.notes)}")
