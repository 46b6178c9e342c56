"""How the speed of distributed runs grows with the number of nodes: strong and weak scaling from real runs.

Strong scaling compares runs of the same size on more nodes, weak scaling runs that grow with their nodes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult
from rlcb.comparison.format import MISSING, value_text, with_interval
from rlcb.comparison.groups import NODES, variant_settings
from rlcb.comparison.metrics import BY_KEY
from rlcb.comparison.tables import Table, phase_shares

SIZES = ("env.num_envs", "training.batch_size")
"""Settings that weak scaling multiplies by the number of nodes."""
SYNC = "sync"


class Scaling(NamedTuple):
    """Groups that differ in their number of nodes only, the fewest nodes first."""

    kind: str
    """strong or weak."""
    groups: tuple[GroupResult, ...]


def nodes_of(result: GroupResult) -> int:
    """Return the number of nodes of a group of distributed runs."""
    return int(result.group.runs[0].setting(NODES) or 1)


def scalings(game: GameResult) -> list[Scaling]:
    """Return the groups of a game that belong together because only their number of nodes differs."""
    found: dict[tuple[str, str], list[GroupResult]] = {}
    for result in game.groups:
        if result.group.mode == "distributed":
            settings = variant_settings(result.group.runs[0])
            nodes = nodes_of(result)
            for kind, share in (("strong", 1), ("weak", nodes)):
                found.setdefault((kind, _rest(settings, share)), []).append(result)
    sets = [Scaling(kind, tuple(sorted(groups, key=nodes_of))) for (kind, _), groups in found.items()]
    return [each for each in sets if len({*map(nodes_of, each.groups)}) == len(each.groups) > 1]


def _rest(settings: dict[str, Any], share: int) -> str:
    """Return all settings but the number of nodes as text, sizes divided by `share`."""
    rest = {key: value for key, value in settings.items() if key != NODES}
    for key in SIZES:
        if isinstance(rest.get(key), int):
            rest[key] /= share
    return json.dumps(sorted(rest.items()), default=str)


def scaling_tables(comparison: Comparison) -> list[Table]:
    """Return a table for each set of groups that differ in their number of nodes only."""
    return [_table(game, each) for game in comparison.games for each in scalings(game)]


def _table(game: GameResult, scaling: Scaling) -> Table:
    first = scaling.groups[0]
    algorithm = first.group.algorithm.upper()
    header = ["Nodes", "Processes", "Environments", "FPS [95 %]", "Speedup", "Efficiency", "Sync", "Seeds"]
    table = Table(f"{scaling.kind.capitalize()} scaling: {algorithm}, {game.game}", header)
    table.note = (
        "mean over seeds; speedup: timesteps per second relative to the first row; efficiency: speedup "
        "divided by the growth in nodes; sync: share of the time spent in sums over processes"
    )
    table.aligned = True
    table.rows = [_row(result, first) for result in scaling.groups]
    return table


def _row(result: GroupResult, first: GroupResult) -> list[str]:
    metric = BY_KEY["average_fps"]
    fps, base = result.estimates[metric.key], first.estimates[metric.key]
    cells = [MISSING] * 3
    if fps is not None:
        cells[0] = with_interval(metric, fps)
        if base is not None and base.mean > 0:
            speedup = fps.mean / base.mean
            growth = nodes_of(result) / nodes_of(first)
            cells[1:] = [value_text(BY_KEY["speedup"], speedup) + "×", f"{speedup / growth:.0%}"]
    shares = phase_shares(result) or {}
    sync = f"{shares[SYNC]:.1%}" if SYNC in shares else MISSING
    processes = _each(result, lambda run: len(run.record.get("workers") or []))
    envs = _each(result, lambda run: run.setting("env.num_envs"))
    seeds = f"{len(result.group.runs)} of {result.group.planned}"
    return [str(nodes_of(result)), processes, envs, *cells, sync, seeds]


def _each(result: GroupResult, value: Any) -> str:
    """Return the values of a group's runs as text, each once."""
    found: Sequence[Any] = [value(run) for run in result.group.runs]
    return ", ".join(dict.fromkeys(map(str, found)))
