"""Draw one panel of a comparison's picture: curves with intervals, names at their ends, published curves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlcb.comparison.curves import GroupCurve, Panel
from rlcb.comparison.forest import ForestRow, extent
from rlcb.comparison.format import round_ticks
from rlcb.comparison.procgen_scores import Published
from rlcb.plots.style import GREY
from rlcb.text import count_text, tick_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinguishable with any colour vision, and dark enough for text on white (after Okabe and Ito, and Paul
# Tol). Further groups repeat the colours with other dashes.
COLOURS = ("#0072B2", "#D55E00", "#007A5E", "#A0457F", "#8A6D00", "#5F6469", "#6B3E12", "#7A3E9D")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
MAX_LABELS = 8  # with more groups, a legend replaces the names at the ends of the lines
END = 0.97  # share of the axis: lines that end before it get a dot
FOREST_SIZE = 10.5  # font size of the groups and numbers beside a forest plot, in points
NOT_EVALUATED = "not evaluated; see\nrun_benchmark.py --evaluate-episodes 100\nevaluate_universal.py RUN"
NAME_SIZE, NAME_HEIGHT = 12.0, 14.5  # font size and line height of names, in points
CHARACTER = 0.56  # average width of a character over the font size, with a margin
NAME_WIDTHS = (16, 22, 30)  # line lengths of names in characters; the shortest that fits is used


class Look(NamedTuple):
    """The look that all panels of a picture share."""

    styles: Mapping[str, dict[str, Any]]
    """Colour and dashes by group."""
    seeds: int | None
    """Number of seeds per group; None if the groups have different numbers."""
    name_width: int


class End(NamedTuple):
    """The end of a line in data units, with the name and colour of its label."""

    x: float
    y: float
    name: str
    colour: str


def style_of(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def end_name(curve: GroupCurve, seeds: int | None) -> str:
    """Return the label of a group, with `2 of 4` if seeds are lost, or with n if groups differ in it."""
    n = int(curve.band.n.max())
    if n < curve.planned:
        return f"{curve.label} ({n}\u00a0of\u00a0{curve.planned})"
    return curve.label if n == seeds else f"{curve.label} (n={n})"


def name_width(names: Iterable[str], lines: float) -> int:
    """Return the number of characters per line with which all names fit into this number of lines."""
    names = list(names)
    for width in NAME_WIDTHS:
        if sum(len(textwrap.wrap(name, width)) + 0.25 for name in names) <= lines:
            return width
    return NAME_WIDTHS[-1]


def draw_panel(
    ax: Axes, panel: Panel, look: Look, reference: Published | None = None, names: bool = True
) -> None:
    """Draw one panel: lines, intervals, seeds and, with `names`, each group's name at the end of its line."""
    title = ax.set_title(panel.title, loc="left", pad=10)
    ax.annotate(
        panel.unit, (1, 0), (8, 0), xycoords=title, textcoords="offset points", va="bottom", color=GREY
    )
    ends = []
    for curve in panel.curves:
        shown = np.flatnonzero(np.isfinite(curve.band.mean))
        if shown.size:
            _draw_curve(ax, panel, curve, look.styles[curve.label])
            x, y = float(panel.grid[shown[-1]]), float(curve.band.mean[shown[-1]])
            ends.append(End(x, y, end_name(curve, look.seeds), look.styles[curve.label]["color"]))
    if not ends:
        ax.text(0.5, 0.5, "nothing recorded", transform=ax.transAxes, ha="center", color=GREY, style="italic")
    _dress(ax, panel)
    if reference is not None:
        _draw_reference(ax, panel, reference)
    if names and len(look.styles) <= MAX_LABELS:
        ax.set_ylim(ax.get_ylim())  # names are placed for these limits
        _name_lines(ax, ends, look.name_width)


def _draw_curve(ax: Axes, panel: Panel, curve: GroupCurve, style: dict[str, Any]) -> None:
    """Draw the mean of a group with its interval, and a thin line for each seed."""
    colour, mean = style["color"], curve.band.mean
    if curve.band.n.max() > 1:
        ax.fill_between(panel.grid, curve.band.low, curve.band.high, color=colour, alpha=0.15, linewidth=0)
    if len(curve.runs) > 1:
        for run in curve.runs:
            ax.plot(panel.grid, run, color=colour, linewidth=0.7, alpha=0.4, zorder=2)
    ax.plot(panel.grid, mean, linewidth=2.4, zorder=3, **style)
    shown = np.flatnonzero(np.isfinite(mean))
    if shown.size == 1:
        ax.plot(panel.grid[shown], mean[shown], "o", color=colour)


def _draw_reference(ax: Axes, panel: Panel, reference: Published) -> None:
    """Draw the published curves up to the end of the runs; nothing if they start later."""
    end, (low, high) = float(panel.grid[-1]), ax.get_ylim()
    x = reference.timesteps
    kept = np.flatnonzero(x <= end)
    if not kept.size:
        return
    upto = min(kept[-1] + 2, len(x))  # the next point leads the line out of the panel
    for mean, std, marker in (
        (reference.train_mean, reference.train_std, "o"),
        (reference.test_mean, reference.test_std, "s"),
    ):
        ax.errorbar(
            x[:upto],
            mean[:upto],
            std[:upto],
            color="#888888",
            linewidth=1,
            marker=marker,
            markersize=4,
            linestyle=(0, (1, 2)),
            capsize=2,
            zorder=1.5,
        )
    top = float((reference.train_mean + reference.train_std)[kept].max())
    bottom = float((reference.test_mean - reference.test_std)[kept].min())
    ax.set_ylim(min(low, bottom), max(high, top))


def _dress(ax: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_xlim(0, float(panel.grid[-1]))
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.set_xlabel(panel.axis)
    formatter = FuncFormatter(lambda value, _: count_text(value))
    if panel.time_axis.key == "timesteps":
        ax.xaxis.set_major_formatter(formatter)
    if panel.key in ("timesteps", "fps"):
        ax.yaxis.set_major_formatter(formatter)
        ax.set_ylim(0, 1.06 * max(ax.dataLim.y1, 1e-9))


def spread(places: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Move labels apart until none overlaps another, and return their new centres.

    `places` are rising centres and `heights` the label heights, both as shares of the panel's height. Labels
    stay within the panel if they fit into it.
    """
    moved = list(places)
    for _ in range(300):
        for i in range(len(moved) - 1):
            need = (heights[i] + heights[i + 1]) / 2 - (moved[i + 1] - moved[i])
            if need > 0:
                moved[i] -= need / 2
                moved[i + 1] += need / 2
        moved = [min(max(place, height / 2), 1 - height / 2) for place, height in zip(moved, heights)]
    return moved


def _ordered(ax: Axes, ends: Sequence[End]) -> list[tuple[End, float]]:
    """Return the ends from lowest to highest, each with its height as a share of the panel's height."""
    low, high = ax.get_ylim()
    return [(end, (end.y - low) / (high - low)) for end in sorted(ends, key=lambda end: end.y)]


def _points(ax: Axes) -> tuple[float, float]:
    """Return width and height of a panel in points."""
    return ax.bbox.width * 72 / ax.figure.dpi, ax.bbox.height * 72 / ax.figure.dpi


def _name_lines(ax: Axes, ends: Sequence[End], width: int) -> None:
    """Write the names beside the panel, where they cover no line, with grey leader lines outside the panel.

    A line that ends within the panel gets a dot at its end.
    """
    from matplotlib.lines import Line2D

    share = NAME_HEIGHT / _points(ax)[1]
    ordered = _ordered(ax, ends)
    texts = [textwrap.wrap(end.name, width) for end, _ in ordered]
    places = spread([start for _, start in ordered], [share * (len(lines) + 0.2) for lines in texts])
    for (end, start), lines, place in zip(ordered, texts, places):
        leader = Line2D([1.004, 1.022], [start, place], color="#999999", linewidth=0.8)
        leader.set(transform=ax.transAxes, clip_on=False)
        ax.add_artist(leader)
        if end.x < END * ax.get_xlim()[1]:
            ax.plot([end.x], [end.y], "o", color=end.colour, markersize=5, zorder=4)
        style: dict[str, Any] = {"color": end.colour, "fontsize": NAME_SIZE, "va": "center"}
        ax.text(1.028, place, "\n".join(lines), transform=ax.transAxes, linespacing=1.05, **style)


def draw_forest(ax: Axes, rows: Sequence[ForestRow], look: Look, title: str, unit: str) -> None:
    """Draw mean, 95 % interval and seeds of each group, with the group and its numbers beside the panel."""
    heading = ax.set_title(title, loc="left", pad=10)
    ax.annotate(unit, (1, 0), (8, 0), xycoords=heading, textcoords="offset points", va="bottom", color=GREY)
    ax.set_yticks(range(len(rows)), [f"{row.label}\n{row.text}" for row in rows])
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    low, high = extent(rows)
    ax.set_xlim(low, high)
    ticks = np.array(round_ticks(low, high) if rows else [])
    ax.set_xticks(ticks, [tick_text(tick, ticks) for tick in ticks])
    ax.tick_params(axis="y", length=0)
    for index, (row, name) in enumerate(zip(rows, ax.get_yticklabels())):
        colour = look.styles[row.label]["color"] if row.label in look.styles else GREY
        name.set(color=colour, fontsize=FOREST_SIZE, linespacing=1.1)
        ax.plot(row.seeds, [index] * len(row.seeds), "o", markerfacecolor="none", color=colour, markersize=4)
        if row.found is not None:
            if row.found.low is not None and row.found.high is not None:
                ax.plot([row.found.low, row.found.high], [index] * 2, color=colour, linewidth=5, alpha=0.4)
            ax.plot([row.found.mean], [index], "o", color=colour, markersize=9)
    if not rows:
        ax.text(0.5, 0.5, NOT_EVALUATED, transform=ax.transAxes, ha="center", va="center", color=GREY)
