"""The published learning curves of PPO beside the compared runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult
from rlcb.comparison.fairness import show
from rlcb.comparison.format import MISSING, spread_text
from rlcb.comparison.groups import Group
from rlcb.comparison.metrics import BY_KEY, TIME_AXES, return_curve
from rlcb.comparison.procgen_scores import (
    REFERENCE_CITATION,
    REFERENCE_NOTE,
    REFERENCE_RUNS,
    REFERENCE_SETTINGS,
    Published,
    published,
)
from rlcb.comparison.statistics import IntervalEstimate, estimate, on_grid
from rlcb.comparison.tables import Table
from rlcb.text import count_text


@dataclass
class Reference:
    """What was published for a game, and the groups' training returns at the same timesteps."""

    game: str
    figures: Published
    groups: dict[str, list[IntervalEstimate | None]]
    """By label, one for each published timestep."""
    differing: list[str]
    """Settings in which the groups differ from the published runs."""


def references(comparison: Comparison) -> list[Reference]:
    """One for each game that has published figures; empty unless they were asked for."""
    if not comparison.options.reference:
        return []
    found = [_reference(game, comparison) for game in comparison.games]
    return [each for each in found if each is not None]


def without_reference(comparison: Comparison) -> list[str]:
    """Games for which figures were asked for but none are published."""
    known = {each.game for each in references(comparison)}
    return [game.game for game in comparison.games if game.game not in known]


def _reference(game: GameResult, comparison: Comparison) -> Reference | None:
    # Hard-mode runs are not comparable with the published easy ones, so they do not count.
    modes = [result.group.runs[0].setting("env.distribution_mode") for result in game.groups]
    figures = next((each for mode in modes if (each := published(game.env, mode)) is not None), None)
    if figures is None:
        return None
    groups = {}
    for result, mode in zip(game.groups, modes):
        if mode != "easy":
            continue
        curves = [return_curve(run, TIME_AXES[0]) for run in result.group.runs]
        table = np.array([on_grid(x, y, figures.timesteps) for x, y in curves])  # (runs, 8)
        name = f"{result.group.name} | reference"
        groups[result.group.label] = [estimate(at, comparison.options.bootstrap, name) for at in table.T]
    differing = [_differing(result.group) for result in game.groups]
    return Reference(game.game, figures, groups, [each for each in differing if each])


def _differing(group: Group) -> str:
    """`PPO parallel: env.num_envs 128 (published 64), ..., not recorded: precision`."""
    run, parts, unknown = group.runs[0], [], []
    for key, value in REFERENCE_SETTINGS.items():
        section, _, name = key.rpartition(".")
        ours = run.algorithm if key == "algorithm" else run.setting(key)
        if ours == "auto" and key == "model.architecture":  # the IMPALA network, for images
            ours = "impala"
        if ours is None and name not in (run.setting(section) or {}):
            unknown.append(name)
        elif ours != value:
            parts.append(f"{name} {show(ours)} (published {show(value)})")
    parts += [f"not recorded: {', '.join(unknown)}"] if unknown else []
    return f"{group.label}: {', '.join(parts)}" if parts else ""


def reference_table(reference: Reference) -> Table:
    """Published figures and ours, at the published timesteps that some run reached, and at the next one."""
    header = ["Timesteps", "Published, training levels", "Published, all levels", *reference.groups]
    note = (
        f"{REFERENCE_NOTE}; ours: mean of the last 100 training episodes. {REFERENCE_CITATION}. "
        f"Settings that differ: {'; '.join(reference.differing) or 'none of those recorded'}; the published "
        "runs used a GPU, which their wall clock would show, so they are laid under timesteps only."
    )
    table = Table(f"Published PPO: {reference.game}", header, note=note)
    for index, timesteps in enumerate(reference.figures.timesteps):
        ours = [found[index] for found in reference.groups.values()]
        cells = [spread_text(BY_KEY["final_reward"], each) if each else MISSING for each in ours]
        seeds = [f" (n={each.n})" if each else "" for each in ours]
        train = f"{reference.figures.train_mean[index]:.2f} ± {reference.figures.train_std[index]:.2f}"
        test = f"{reference.figures.test_mean[index]:.2f} ± {reference.figures.test_std[index]:.2f}"
        of = f" (n={REFERENCE_RUNS})"
        table.rows.append(
            [count_text(timesteps), train + of, test + of, *(c + n for c, n in zip(cells, seeds))]
        )
        if all(each is None for each in ours) and index:
            break
    return table
