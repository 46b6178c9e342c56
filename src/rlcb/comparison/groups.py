"""Group runs that differ only in their seed, and give each group a label."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rlcb.comparison.lost import LostRun
from rlcb.comparison.runs import Run, dig
from rlcb.config.algorithms import ALGORITHMS, MODES
from rlcb.config.games import procgen_game
from rlcb.config.settings import AtariOptions
from rlcb.errors import UsageError
from rlcb.text import counted

# Settings that do not define a variant: the seed, the game (a variant may play several), the folders of the
# files, the tracker, and the participating nodes.
APART = (
    "training.seed",
    "env.id",
    "logging.checkpoint_dir",
    "logging.log_dir",
    "logging.track",
    "logging.track_project",
    "logging.track_timeout_seconds",
    "parallel.buffer_dir",
    "cluster.master_addr",
    "cluster.master_port",
    "cluster.network_interface",
    "impala.actor_port",
    "impala.max_remote_actors",
    "impala.compress_unrolls",
)
NODES = "cluster.num_nodes"
CHOSEN = "auto"  # what the program chose for one run by a measurement, as the number of IMPALA's actors
JOINED = "hardware.joined_hosts"
"""The number of other hosts whose actors took part in a run; no setting, but it defines a variant as well."""
# Settings that older runs did not record, with the value that these runs had.
NOT_RECORDED = {
    "env.wrappers": "[]",
    "env.preprocessing": True,
    "cluster.elastic": False,
    "cluster.powersgd_rank": None,
}
# Atari's defaults define no variant, since a variant may play Atari and other games.
ATARI_DEFAULTS = {f"env.atari.{key}": value for key, value in AtariOptions().model_dump().items()}
MAX_NAMED = 3  # largest number of settings in a label
# The text of a setting in a label; other settings show the last part of their key.
PHRASES = {
    NODES: "{} nodes",
    JOINED: "",  # `_phrase` has its own words
    "cluster.elastic": "",
    "env.num_envs": "{} envs",
    "env.num_levels": "{} levels",
    "env.distribution_mode": "{}",
    "model.architecture": "{} network",
    "parallel.num_workers": "{} workers",
    "impala.num_actors": "{} actors",
    "impala.num_learners": "{} learners",
    "cluster.num_workers": "{} workers a node",
    "cluster.node_workers": "{} workers by node",
    "training.duration_hours": "{} h",
    "training.total_timesteps": "{} timesteps",
    "training.learning_rate": "rate {}",
    "hardware.num_threads": "{} threads",
    "machine": "{}",
    "software": "{}",
}


@dataclass(frozen=True)
class Group:
    """Runs of one variant (algorithm, mode and all settings but the game) in one game."""

    label: str
    """The label of the variant, which is equal in every game."""
    env: str
    runs: tuple[Run, ...]
    lost: tuple[LostRun, ...] = ()
    """Further runs of the group that left no usable results."""

    @property
    def planned(self) -> int:
        """The number of seeds that the group should have, with the lost ones."""
        return len(self.runs) + len(self.lost)

    @property
    def game(self) -> str:
        return game_name(self.env)

    @property
    def algorithm(self) -> str:
        return self.runs[0].algorithm

    @property
    def mode(self) -> str:
        return self.runs[0].mode

    @property
    def distribution_mode(self) -> str:
        """The distribution mode of a Procgen game; empty for other environments."""
        mode = self.runs[0].setting("env.distribution_mode")
        return str(mode or "unknown mode") if procgen_game(self.env) else ""

    @property
    def name(self) -> str:
        """Label and environment; the name seeds the bootstrap of the group's intervals."""
        return f"{self.label} | {self.env}"


class LostGroup(NamedTuple):
    """A variant in one game of which no run left usable results."""

    label: str
    env: str
    lost: tuple[LostRun, ...]


class Part(NamedTuple):
    """Groups whose returns can be compared: all groups of one game in one distribution mode."""

    key: str
    """The environment id. If a game was played in several modes, all modes but one (easy, if it was played)
    are appended to the id."""
    name: str
    """The game, with its mode if it was played in several modes."""
    groups: list[Group]


def game_name(env: str) -> str:
    """Return the short name of a Procgen game (`coinrun`), or the id of any other environment."""
    return procgen_game(env) or env


def parts_of(groups: Sequence[Group]) -> list[Part]:
    """Split groups into parts, in the order of the groups, easy before the other modes of a game."""
    parts = []
    for env in dict.fromkeys(group.env for group in groups):
        same = [group for group in groups if group.env == env]
        modes = dict.fromkeys(group.distribution_mode for group in same)
        for index, mode in enumerate(sorted(modes, key=lambda mode: mode != "easy")):
            members = [group for group in same if group.distribution_mode == mode]
            name = f"{game_name(env)} {mode}" if len(modes) > 1 else game_name(env)
            parts.append(Part(f"{env} {mode}" if index else env, name, members))
    return parts


def algorithm_name(algorithm: str) -> str:
    return algorithm.upper()


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of every setting. Lists become text, so that all values can be compared."""
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            plain = isinstance(value, (str, int, float, type(None)))
            yield prefix + key, value if plain else json.dumps(value, sort_keys=True)


def variant_settings(run: Run) -> dict[str, Any]:
    """Return the settings that define the variant of a run, by dotted key, and JOINED if others joined it.

    Numbers of processes that a measurement before the run chose are CHOSEN, for another seed may get others.
    """
    settings, joined = _variant(run.record["config"], run.algorithm, run.mode), joined_hosts(run)
    settings |= {f"impala.{key}": CHOSEN for key in chosen_settings(run)}
    return {**settings, JOINED: joined} if joined else settings


def chosen_settings(run: Run) -> list[str]:
    """Return the settings of a run of IMPALA that a measurement before the run chose."""
    return list(dig(run.record, "impala.calibration.chosen") or ())


def joined_hosts(run: Run) -> int:
    """Return the number of other hosts whose actors took part in a run of IMPALA."""
    found = run.number("impala.remote.other_hosts")
    return int(found) if math.isfinite(found) else 0


def _variant(config: Mapping[str, Any], algorithm: str, mode: str) -> dict[str, Any]:
    kept = {
        key: value
        for key, value in flat(config)
        if key not in (*APART, "env.atari") and (key, value) not in ATARI_DEFAULTS.items()
    }
    return {**NOT_RECORDED, **kept, "algorithm": algorithm, "mode": mode}


def machine_of(run: Run) -> str:
    hardware = run.record.get("hardware") or {}
    return f"{hardware.get('cpu_model', 'unknown CPU')}, {hardware.get('usable_cores', '?')} cores"


def software_of(run: Run) -> str:
    software = run.record.get("software") or {}
    return f"code {software.get('git_commit')}, torch {software.get('torch')}"


def _order(place: int, run: Run) -> tuple[Any, ...]:
    """Sort key of a run: position on the command line, then algorithm, mode, seed and path."""

    def rank(names: Sequence[str], name: str) -> int:
        return names.index(name) if name in names else len(names)

    seed = -1 if run.seed is None else run.seed
    return place, rank(tuple(ALGORITHMS), run.algorithm), rank(MODES, run.mode), seed, str(run.path)


def group_runs(runs: Sequence[tuple[int, Run]]) -> list[Group]:
    """Group runs with equal configurations. `runs` holds (position on the command line, run).

    If a group would hold a seed twice, it is split by machine, then by software, if these differ. Groups are
    in the order of the command line.
    """
    variants: dict[str, list[Run]] = {}
    for _, run in sorted(runs, key=lambda pair: _order(*pair)):
        variants.setdefault(json.dumps(sorted(variant_settings(run).items()), default=str), []).append(run)
    parts = [part for same in variants.values() for part in _disambiguate(same)]
    labels = _labels([settings for settings, _ in parts])
    groups: dict[tuple[str, str], list[Run]] = {}
    for label, (_, members) in zip(labels, parts):
        for run in members:
            groups.setdefault((label, run.env), []).append(run)
    return [Group(label, env, tuple(members)) for (label, env), members in groups.items()]


def with_lost(groups: Sequence[Group], lost: Sequence[LostRun]) -> tuple[list[Group], list[LostGroup]]:
    """Add lost runs to their groups; return the groups, and the groups that lost all of their runs.

    A lost run belongs to the group of its algorithm, mode and game with its settings, or with a run in the
    same folder. A run whose seed the group has from another run is not lost. Runs whose folder does not tell
    what they are belong to no group.
    """
    added: dict[int, dict[int | None, LostRun]] = {}
    whole: dict[tuple[str, str], dict[int | None, LostRun]] = {}
    for run in lost:
        if run.algorithm is None or run.mode is None or run.env is None:
            continue
        index = _group_of(run, groups)
        if index is None:
            label = f"{algorithm_name(run.algorithm)} {run.mode}"
            label += f", {_phrase(NODES, run.nodes)}" if run.nodes is not None else ""
            if any(group.label == label for group in groups if group.env == run.env):
                label += ", other settings"
            whole.setdefault((label, run.env), {})[run.seed] = run
        elif all(run.seed != other.seed for other in groups[index].runs):
            added.setdefault(index, {})[run.seed] = run
    kept = [replace(g, lost=tuple(added.get(index, {}).values())) for index, g in enumerate(groups)]
    return kept, [LostGroup(label, env, tuple(runs.values())) for (label, env), runs in whole.items()]


def _group_of(run: LostRun, groups: Sequence[Group]) -> int | None:
    """Return the index of the group that a lost run belongs to; None if there is none."""
    alike = [
        i
        for i, g in enumerate(groups)
        if (g.algorithm, g.mode, g.env) == (run.algorithm, run.mode, run.env)
        and run.nodes in (None, g.runs[0].setting(NODES))
    ]
    beside = [
        i for i in alike if any(r.path.resolve().parent == run.path.resolve().parent for r in groups[i].runs)
    ]
    if run.config is None:
        found = beside or (alike if len(alike) == 1 else [])
    else:
        settings = _variant(run.config, str(run.algorithm), str(run.mode))
        found = [i for i in alike if variant_settings(groups[i].runs[0]) == settings]
        found = found or (beside if len(beside) == 1 else [])
    return found[0] if found else None


def _disambiguate(runs: list[Run]) -> list[tuple[dict[str, Any], list[Run]]]:
    """Split runs of one configuration that repeat a seed by machine, then by software; return (settings,
    runs) of each part."""
    settings = variant_settings(runs[0])
    for name, facet in (("machine", machine_of), ("software", software_of)):
        seeds = [(run.env, run.seed) for run in runs]
        values = list(dict.fromkeys(map(facet, runs)))
        if len(set(seeds)) < len(seeds) and len(values) > 1:
            parts = [(value, [run for run in runs if facet(run) == value]) for value in values]
            return [
                ({**found, name: value}, members)
                for value, part in parts
                for found, members in _disambiguate(part)
            ]
    return [(settings, runs)]


def _labels(variants: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a label for each variant: `PPO sequential`, plus the differing settings if several variants have
    this algorithm and mode."""
    bases = [f"{algorithm_name(each['algorithm'])} {each['mode']}" for each in variants]
    labels: list[str] = []
    for base, variant in zip(bases, variants):
        alike = [other for name, other in zip(bases, variants) if name == base]
        keys = dict.fromkeys([*PHRASES, *(key for each in alike for key in each)])
        differing = [key for key in keys if len({str(each.get(key)) for each in alike}) > 1]
        differing = [key for key in differing if not _implied(key, differing, alike)]
        words = [_phrase(key, variant.get(key)) for key in differing[:MAX_NAMED]]
        label = ", ".join([base, *words])
        repeated = sum(each == label or each.startswith(f"{label} #") for each in labels)
        labels.append(f"{label} #{repeated + 1}" if repeated else label)
    return labels


def _implied(key: str, differing: Sequence[str], variants: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether an earlier differing setting already separates the variants in the same way."""

    def classes(name: str) -> list[int]:
        seen = [str(each.get(name)) for each in variants]
        return [seen.index(value) for value in seen]

    earlier = differing[: differing.index(key)]
    return any(classes(key) == classes(other) for other in earlier)


def _phrase(key: str, value: Any) -> str:
    if key == NODES and value == 1:
        return "1 node"
    if key == JOINED:
        return counted(value or 0, "joined host")
    if key == "cluster.elastic":
        return "elastic" if value else "not elastic"
    text = f"{value:g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    if value is None:
        return f"no {key.split('.')[-1]}"
    return PHRASES.get(key, key.split(".")[-1] + " {}").format(text)


def find_baseline(groups: Sequence[Group], wanted: str | None) -> str:
    """Return the label of the baseline: the first group, or the group that `wanted` matches.

    Raises UsageError if `wanted` matches no group or several groups.
    """
    labels = list(dict.fromkeys(group.label for group in groups))
    if wanted is None:
        return labels[0]

    def plain(text: str) -> str:
        return " ".join(re.split(r"[\s_,/-]+", text.lower())).strip()

    here = Path(wanted).resolve()
    found = [group.label for group in groups if any(run.path.resolve() == here for run in group.runs)]
    for match in (str.__eq__, str.startswith, str.__contains__):
        found = found or [label for label in labels if match(plain(label), plain(wanted))]
    found = list(dict.fromkeys(found))
    if len(found) != 1:
        problem = "names no group" if not found else "names several groups"
        raise UsageError(f"--baseline {wanted}: {problem}; there are: {'; '.join(found or labels)}")
    return found[0]
