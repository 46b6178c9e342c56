"""Find what makes a comparison unfair: differences between runs that are not the compared ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from rlcb.comparison.folders import Logged, logged
from rlcb.comparison.groups import (
    APART,
    ATARI_DEFAULTS,
    Group,
    chosen_settings,
    game_name,
    parts_of,
    variant_settings,
)
from rlcb.comparison.lost import LostRun
from rlcb.comparison.runs import Run, as_number, dig
from rlcb.processes.machine_load import BUSY_PERCENT
from rlcb.text import counted

TOLERANCE = 0.05  # durations that differ by less than this share of the longest count as equal
HARDWARE = ("cpu_model", "physical_cores", "usable_cores", "ram_gb")
SOFTWARE = ("python", "torch", "numpy", "procgen", "gymnasium", "git_commit")
BUDGET = ("training.duration_hours", "training.total_timesteps")
SECTIONS = {
    "env.wrappers": "environment",
    "env.preprocessing": "environment",
    "env.atari.": "environment",
    "env.kwargs": "environment",
    "env.": "levels",
    "model.": "network",
    "training.": "hyperparameters",
    "impala.": "hyperparameters",
    "parallel.num_workers": "hyperparameters",
    "cluster.num_nodes": "hardware",
    "hardware.joined_hosts": "hardware",
    "cluster.elastic": "hardware",
    "cluster.compression": "hyperparameters",
    "cluster.powersgd_rank": "hyperparameters",
    "cluster.overlap": "hyperparameters",
    "cluster.average_every": "hyperparameters",
}
# Settings that change the learning of one algorithm only (each A3C worker learns by itself).
OF_ALGORITHM = {"impala.": "impala", "parallel.num_workers": "a3c"}
# Values of settings that are not among the settings of a variant: older runs did not record them.
WITHOUT = {
    "cluster.num_nodes": 1,
    "hardware.joined_hosts": 0,
    "cluster.compression": "none",
    "cluster.overlap": False,
    **ATARI_DEFAULTS,
}


class Difference(NamedTuple):
    """One difference between runs: its aspect, such as `network`, and a sentence about it."""

    aspect: str
    text: str


def differences(groups: Sequence[Group], skipped: Sequence[LostRun] = ()) -> list[Difference]:
    """Return all differences between the runs of the groups; `skipped` are the runs that were left out."""
    checks: tuple[Callable[[Sequence[Group]], Iterator[Difference]], ...] = (
        _games,
        _settings,
        _hardware,
        _duration,
        _load,
        _software,
        _seeds,
        _evaluations,
        _marked,
    )
    found = [difference for check in checks for difference in check(groups)]
    reasons: dict[str, list[str]] = {}
    for lost in skipped:
        reasons.setdefault(lost.reason, []).append(str(lost.path))
    left_out = [f"{', '.join(paths)}: {reason}" for reason, paths in reasons.items()]
    return found + ([Difference("runs left out", "; ".join(left_out))] if left_out else [])


def show(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if type(value) is int else "none" if value is None else str(value)


def by_value(groups: Sequence[Group], of: Callable[[Run], Any]) -> dict[str, list[str]]:
    """Map each value, as text, to the labels of the groups that have a run with it."""
    found: dict[str, list[str]] = {}
    for group in groups:
        for value in dict.fromkeys(show(of(run)) for run in group.runs):
            labels = found.setdefault(value, [])
            if group.label not in labels:
                labels.append(group.label)
    return found


def _sentence(name: str, found: dict[str, list[str]]) -> str:
    """Describe a difference, most frequent value last: `num_envs: 128 in PPO parallel; 64 in the others`."""
    *few, (common, holders) = sorted(found.items(), key=lambda item: len(item[1]))
    parts = [f"{value} in {', '.join(labels)}" for value, labels in few]
    mixed = {label for _, labels in few for label in labels} & set(holders)
    whose = "the others" if len(holders) > 2 and not mixed else ", ".join(holders)
    return f"{name}: {'; '.join([*parts, f'{common} in {whose}'])}"


def _games(groups: Sequence[Group]) -> Iterator[Difference]:
    games = list(dict.fromkeys(group.game for group in groups))
    if len(games) > 1:
        listed = f"{len(games)} games ({', '.join(games)})"
        yield Difference("game", f"{listed}: raw returns are compared within a game only")
    for game in games:
        modes = [part.name for part in parts_of([group for group in groups if group.game == game])]
        if len(modes) > 1:
            listed = " and ".join(modes)
            yield Difference("game", f"{listed} are different tasks: their returns are not compared")
    played: dict[str, list[str]] = {}
    for group in groups:
        played.setdefault(group.label, []).append(group.game)
    if len({frozenset(each) for each in played.values()}) > 1:
        sets = "; ".join(f"{label}: {', '.join(each)}" for label, each in played.items())
        yield Difference("game", f"not every group played every game ({sets})")


def _settings(groups: Sequence[Group]) -> Iterator[Difference]:
    """Find differing settings: levels, network, environments, hyperparameters, budget, hardware."""
    configs = {id(run): variant_settings(run) for group in groups for run in group.runs}
    keys = dict.fromkeys(key for config in configs.values() for key in config if key not in APART)
    found: dict[str, list[str]] = {}
    for key in keys:
        start = next((start for start in SECTIONS if key.startswith(start)), None)
        if start is None:
            continue
        section, algorithm = SECTIONS[start], OF_ALGORITHM.get(start)
        section = "total environments" if key == "env.num_envs" else section
        section = "budget" if key in BUDGET else section
        concerned = [group for group in groups if algorithm in (None, group.algorithm)]

        def value(run: Run, key: str = key) -> Any:
            setting = configs[id(run)].get(key)
            return WITHOUT.get(key) if setting is None else setting

        values = by_value(concerned, value)
        if len(values) > 1:
            found.setdefault(section, []).append(_sentence(key.split(".", 1)[1], values))
    found.setdefault("hyperparameters", []).extend(_chosen(groups))
    for section in (
        "environment",
        "levels",
        "network",
        "total environments",
        "hyperparameters",
        "budget",
        "hardware",
    ):
        for text in found.get(section, []):
            yield Difference(section, text)


def _chosen(groups: Sequence[Group]) -> Iterator[str]:
    """Describe the settings for which the measurements before the runs of a group chose several values."""
    for group in groups:
        values: dict[str, list[str]] = {}
        for run in group.runs:
            for key in chosen_settings(run):
                values.setdefault(key, []).append(str(run.setting(f"impala.{key}")))
        for key, each in values.items():
            if len(set(each)) > 1:
                yield f"{key}: {', '.join(each)} in {group.label}, chosen by a measurement before each run"


def _hardware(groups: Sequence[Group]) -> Iterator[Difference]:
    def value_of(key: str) -> Callable[[Run], Any]:
        # Equal machines report memory sizes that differ in the last digits.
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
    values = by_value(
        groups, lambda run: dig(run.record, "hardware.kernels") or "torch"
    )  # old runs had no others
    if len(values) > 1:
        yield Difference("hardware", _sentence("kernels", values))


def _fact(run: Run, key: str) -> Any:
    value = dig(run.record, key)
    return "not recorded" if value is None else value


def total_threads(run: Run) -> Any:
    """Return the number of threads of all processes of a run, or `not recorded`."""
    return int(run.threads) if math.isfinite(run.threads) else "not recorded"


def _duration(groups: Sequence[Group]) -> Iterator[Difference]:
    """Find differences in the used wall-clock time, between groups or between seeds of a group."""
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


def _load(groups: Sequence[Group]) -> Iterator[Difference]:
    """Find other load on the machines."""
    for text in load_texts([run for group in groups for run in group.runs]):
        yield Difference("load", text)


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
    logs = logged(run for group in groups for run in group.runs)
    restarted = [run.path.name for run, log in logs.items() if log.restarted]
    if restarted:
        text = f"restarted after completion, so their first results are gone: {', '.join(restarted)}"
        yield Difference("runs marked", text)


OTHERS_PERCENT = 5.0  # CPU use of other programs during a run, in % of the run's CPUs, that is reported
BUSY = 0.5  # load per core, beyond the run's own threads, from which a machine counts as busy
NAMED_PAIRS = 3  # overlapping pairs that are named; more are counted


def load_texts(runs: Sequence[Run]) -> Iterator[str]:
    """Describe machines that were busy with other programs, and runs that ran at the same time."""
    logs = logged(runs)
    busy = [f"{run.path.name} ({how})" for run in runs if (how := _busy(run, logs[run]))]
    if busy:
        yield f"the machine was busy with other work during {'; '.join(busy)}"
    pairs = overlaps(runs, logs)
    if pairs:
        certain = all(None not in (logs[first].host, logs[second].host) for first, second in pairs)
        unsure = ", and slowed each other if they shared a machine"
        how = " on one machine, and slowed each other" if certain else unsure
        named = "; ".join(
            f"{first.path.name} and {second.path.name}" for first, second in pairs[:NAMED_PAIRS]
        )
        more = len(pairs) - NAMED_PAIRS
        rest = f" and {counted(more, 'more pair')}" if more > 0 else ""
        yield f"runs overlapped in time{how}: {named}{rest}"


def _busy(run: Run, log: Logged) -> str:
    """Describe the load by other programs; empty if it was low.

    Uses the load during the run if the record has it, or else the load before the start that a study logged,
    or else the load average at the end minus the run's own threads.
    """
    others = run.number("resource_usage.others_cpu_percent")
    if math.isfinite(others):
        return f"{others:.0f} % of the CPUs during the run" if others >= OTHERS_PERCENT else ""
    if log.others_percent >= BUSY_PERCENT:
        return f"{log.others_percent:.0f} % of the cores before the start"
    nodes = as_number(run.setting("cluster.num_nodes"))
    own = run.threads / (nodes if nodes > 1 else 1)  # on the node that measured the load
    end = run.number("hardware.load_average")
    if end - own > BUSY * run.number("hardware.usable_cores"):
        return f"load {end:.2f} at the end, with {own:.0f} threads of the run"
    return ""


def overlaps(runs: Sequence[Run], logs: Mapping[Run, Logged]) -> list[tuple[Run, Run]]:
    """Return the pairs of runs that ran at the same time and may have shared a machine, earlier run first.

    Runs do not count if a study logged different machines for them.
    """
    spans = []
    for run in runs:
        try:
            start = datetime.fromisoformat(str(run.record.get("start_time"))).timestamp()
            end = datetime.fromisoformat(str(run.record.get("end_time"))).timestamp()
        except ValueError:
            continue  # the run has no record
        spans.append((start, end, run))
    spans.sort(key=lambda span: span[:2])
    pairs: list[tuple[Run, Run]] = []
    active: list[tuple[float, Run]] = []
    for start, end, run in spans:
        active = [(ends, other) for ends, other in active if start < ends - 1]  # times are whole seconds
        pairs += [(other, run) for _, other in active if _may_share(other, run, logs)]
        active.append((end, run))
    return pairs


def _may_share(first: Run, second: Run, logs: Mapping[Run, Logged]) -> bool:
    hosts = {logs[each].host for each in (first, second)}
    models = {str(dig(each.record, "hardware.cpu_model")) for each in (first, second)}
    return len(models) == 1 and (None in hosts or len(hosts) == 1)
