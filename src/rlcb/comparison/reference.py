"""Compare the runs with the published learning curves of PPO."""

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
    """The published results of a game, and the groups' training returns at the same timesteps."""

    game: str
    figures: Published
    groups: dict[str, list[IntervalEstimate | None]]
    """By label, one for each published timestep."""
    differing: list[str]
    """Settings in which the groups differ from the published runs."""


def references(comparison: Comparison) -> list[Reference]:
    """Return the reference of each game with published results; empty without the option `reference`."""
    if not comparison.options.reference:
        return []
    found = [_reference(game, comparison) for game in comparison.games]
    return [each for each in found if each is not None]


def without_reference(comparison: Comparison) -> list[str]:
    """Return the games without published results, if references were requested."""
    known = {each.game for each in references(comparison)}
    return [game.game for game in comparison.games if game.game not in known]


def _reference(game: GameResult, comparison: Comparison) -> Reference | None:
    # The published runs use easy mode, so runs in other modes are left out.
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
    """Describe how a group's settings differ from the published runs; empty if they do not differ.

    Example: `PPO parallel: num_envs 128 (published 64), not recorded: precision`.
    """
    run, parts, unknown = group.runs[0], [], []
    for key, value in REFERENCE_SETTINGS.items():
        section, _, name = key.rpartition(".")
        measured = run.algorithm if key == "algorithm" else run.setting(key)
        if measured == "auto" and key == "model.architecture":  # IMPALA-CNN for images
            measured = "impala"
        if measured is None and name not in (run.setting(section) or {}):
            unknown.append(name)
        elif measured != value:
            parts.append(f"{name} {show(measured)} (published {show(value)})")
    parts += [f"not recorded: {', '.join(unknown)}"] if unknown else []
    return f"{group.label}: {', '.join(parts)}" if parts else ""


def published_words(figures: Published, end: float) -> str:
    """Say how a plot that ends at `end` timesteps shows the published results, or that they begin later."""
    if figures.timesteps[0] > end:
        first = count_text(figures.timesteps[0])
        return f"published PPO begins at {first} timesteps: {figures.train_mean[0]:.2f}"
    return "published PPO in grey: circles on the training levels, squares on all levels"


def reference_table(reference: Reference) -> Table:
    """Return the table of published and measured returns, up to one published timestep after the last run."""
    header = ["Timesteps", "Published, training levels", "Published, all levels", *reference.groups]
    note = (
        f"{REFERENCE_NOTE}; these runs: mean of the last 100 training episodes. {REFERENCE_CITATION}. "
        f"Settings that differ: {'; '.join(reference.differing) or 'none of those recorded'}; the published "
        "runs used a GPU, so they are shown over timesteps only, not over wall clock."
    )
    table = Table(f"Published PPO: {reference.game}", header, note=note)
    for index, timesteps in enumerate(reference.figures.timesteps):
        measured = [found[index] for found in reference.groups.values()]
        cells = [spread_text(BY_KEY["final_reward"], each) if each else MISSING for each in measured]
        seeds = [f" (n={each.n})" if each else "" for each in measured]
        train = f"{reference.figures.train_mean[index]:.2f} ± {reference.figures.train_std[index]:.2f}"
        test = f"{reference.figures.test_mean[index]:.2f} ± {reference.figures.test_std[index]:.2f}"
        runs = f" (n={REFERENCE_RUNS})"
        table.rows.append(
            [count_text(timesteps), train + runs, test + runs, *(c + n for c, n in zip(cells, seeds))]
        )
        if all(each is None for each in measured) and index:
            break
    return table
