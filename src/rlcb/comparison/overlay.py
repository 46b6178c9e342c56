"""Draw training curves of several runs in one picture: a line for each group, thin lines for its seeds."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rlcb.comparison.curves import (
    TIMESTEPS,
    WALL_CLOCK,
    Panel,
    group_panel,
    sample_fps,
    sample_return,
    sampler_of,
    smoothed,
)
from rlcb.comparison.format import listed
from rlcb.comparison.groups import Group, algorithm_name, parts_of
from rlcb.comparison.panel import (
    CHARACTER,
    MAX_LABELS,
    NAME_HEIGHT,
    NAME_SIZE,
    Look,
    draw_panel,
    end_name,
    name_width,
    style_of,
)
from rlcb.comparison.statistics import Bootstrap, Values
from rlcb.plots.style import GREY, STYLE
from rlcb.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 14.0, 8.4  # of the picture, in inches
LEFT, RIGHT, GAP = 0.95, 0.45, 0.9  # margins, and room for tick labels between panels
UPPER, LOWER = (3.95, 3.1), (0.95, 1.85)  # distance from the bottom and height of both rows of panels
FIRST = 0.58  # width of the panel of returns as a share of the upper row


class Names(NamedTuple):
    """The shortest names that tell groups apart, and what they have in common."""

    each: list[str]
    common: str


def short_names(groups: Sequence[Group]) -> Names:
    """Return names of algorithm, mode, settings and game, without the parts that all groups share."""
    games = {id(group): part.name for part in parts_of(groups) for group in part.groups}
    parts = []
    for group in groups:
        base = f"{algorithm_name(group.algorithm)} {group.mode}"
        settings = group.label.removeprefix(base).removeprefix(",").strip()
        parts.append((algorithm_name(group.algorithm), group.mode, settings, games[id(group)]))
    shared = [len(set(column)) == 1 and len(groups) > 1 for column in zip(*parts)]
    shared = shared if len(groups) > 1 else [False, False, False, True]
    names = [_joined([part for part, same in zip(each, shared) if not same]) for each in parts]
    return Names(names, _joined([part for part, same in zip(parts[0], shared) if same]))


def _joined(parts: Sequence[str]) -> str:
    """Join names with spaces, settings and games with commas: `PPO parallel, 64 envs, coinrun`."""
    words = [part for part in parts if part]
    kinds = [part for part in words if part.isupper() or part in ("sequential", "parallel", "distributed")]
    return ", ".join(filter(None, [" ".join(kinds), *(part for part in words if part not in kinds)]))


def draw_runs(groups: Sequence[Group], x: str = "timesteps") -> Figure:
    """Draw five panels: episode return (the widest, with the names), FPS, losses and entropy.

    `x` is timesteps or hours (of wall clock). FPS is always over wall clock.
    """
    import matplotlib
    from matplotlib.figure import Figure

    names = short_names(groups)
    shown = [replace(group, label=name) for group, name in zip(groups, names.each)]
    panels = _panels(shown, x)
    sizes = {len(group.runs) for group in groups}
    seeds = sizes.pop() if len(sizes) == 1 else None
    ends = [end_name(curve, seeds) for curve in panels[0].curves]
    width = name_width(ends, UPPER[1] * 72 / NAME_HEIGHT)
    look = Look({group.label: style_of(index) for index, group in enumerate(shown)}, seeds, width)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT))
        for index, (panel, frame) in enumerate(zip(panels, _frames(ends, look))):
            draw_panel(figure.add_axes(frame), panel, look, names=index == 0)
        _write(figure, groups, names, seeds)
        if len(groups) > MAX_LABELS:
            _legend(figure, look)
    return figure


def _panels(groups: Sequence[Group], x: str) -> list[Panel]:
    """Return the panels with smoothed curves, without intervals."""
    axis, bootstrap = (TIMESTEPS if x == "timesteps" else WALL_CLOCK), Bootstrap(samples=1)
    over = f"over {axis.key.replace('_', ' ')}"
    rows = (
        ("return", f"Episode return {over}", "raw return", axis, sample_return),
        ("fps", "FPS over wall clock", "timesteps per second", WALL_CLOCK, sample_fps),
        ("policy_loss", "Policy loss", "mean per sample", axis, sampler_of("train/policy_loss")),
        ("value_loss", "Value loss", "mean per sample", axis, sampler_of("train/value_loss")),
        ("entropy", "Policy entropy", "nats", axis, sampler_of("train/entropy")),
    )
    panels = []
    for row in rows:
        panel = smoothed(group_panel(groups, *row, bootstrap))
        bare = [
            each._replace(band=each.band._replace(low=_nan(each.band.low), high=_nan(each.band.high)))
            for each in panel.curves
        ]
        panels.append(panel._replace(curves=bare))
    return panels


def _nan(values: Values) -> Values:
    return np.full_like(values, np.nan)


def _frames(ends: Sequence[str], look: Look) -> list[tuple[float, float, float, float]]:
    """Return left, bottom, width and height of the panels as shares of the picture."""
    lines = [line for name in ends for line in textwrap.wrap(name, look.name_width)]
    beside = 0.35 + max(map(len, lines), default=0) * CHARACTER * NAME_SIZE / 72
    beside = beside if len(look.styles) <= MAX_LABELS else 0.0
    free = WIDTH - LEFT - RIGHT
    upper = free - beside - GAP
    row = [(LEFT, FIRST * upper), (LEFT + FIRST * upper + beside + GAP, (1 - FIRST) * upper)]
    third = (free - 2 * GAP) / 3
    below = [(LEFT + index * (third + GAP), third) for index in range(3)]
    placed = [(*each, *UPPER) for each in row] + [(*each, *LOWER) for each in below]
    return [(x / WIDTH, y / HEIGHT, wide / WIDTH, tall / HEIGHT) for x, wide, y, tall in placed]


def _write(figure: Figure, groups: Sequence[Group], names: Names, seeds: int | None) -> None:
    """Write the title, the number of runs, and what the lines mean."""
    left = LEFT / WIDTH
    count = sum(len(group.runs) for group in groups)
    known = list(dict.fromkeys(str(run.seed) for group in groups for run in group.runs))
    facts = [counted(count, "run")]
    facts += [counted(len(groups), "group")] if 1 < len(groups) < count else []
    facts += [f"n={counted(seeds, 'seed')} each"] if seeds and seeds > 1 and len(groups) > 1 else []
    facts += [f"seed{'s' * (len(known) > 1)} {listed(known)}"]
    title = f"Training curves: {names.common}" if names.common else "Training curves"
    figure.text(left, 1 - 0.38 / HEIGHT, title, fontsize=19, fontweight="bold", va="center")
    figure.text(left, 1 - 0.74 / HEIGHT, " · ".join(facts), fontsize=12, color=GREY, va="center")
    note = "Return: mean of the last 100 episodes. Curves are smoothed over 5% of the axis"
    if seeds is None or seeds > 1:
        note += "; thin lines: seeds, thick lines: their mean, to the end of the first one"
    if len({group.env for group in groups}) > 1:
        note += "; raw returns of different games have different scales"
    figure.text(left, 0.2 / HEIGHT, f"{note}.", fontsize=10, color=GREY, va="center")


def _legend(figure: Figure, look: Look) -> None:
    """Write the names under the title, if they are too many for the ends of the lines."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], linewidth=2.2, label=label, **style) for label, style in look.styles.items()]
    figure.legend(handles=lines, loc="upper right", ncols=3, frameon=False, fontsize=8.5)
