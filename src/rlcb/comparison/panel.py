"""Draw one panel of a comparison's picture: curves with intervals, names at their ends, published curves."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlcb.comparison.curves import GroupCurve, Panel
from rlcb.comparison.procgen_scores import Published
from rlcb.plots.style import GREY
from rlcb.text import count_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinguishable with any colour vision, and dark enough for text on white (after Okabe and Ito, and Paul
# Tol). Further groups repeat the colours with other dashes.
COLOURS = ("#0072B2", "#D55E00", "#007A5E", "#A0457F", "#8A6D00", "#5F6469", "#6B3E12", "#7A3E9D")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
MAX_LABELS = 8  # with more groups, a legend replaces the names at the ends of the lines
EARLY, END = 0.8, 0.97  # shares of the axis: lines ending before EARLY are named there, before END get a dot
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
    """Return the label of a group, with n if its line ends with fewer seeds or if n differs from `seeds`."""
    n = curve.band.n
    most, last = int(n.max()), int(n[np.flatnonzero(n)[-1]])
    if last < most:
        return f"{curve.label} (n={last}\u00a0of\u00a0{most})"
    return curve.label if most == seeds else f"{curve.label} (n={most})"


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
            _draw_curve(ax, panel, curve, look.styles[curve.label], names)
            x, y = float(panel.grid[shown[-1]]), float(curve.band.mean[shown[-1]])
            ends.append(End(x, y, end_name(curve, look.seeds), look.styles[curve.label]["color"]))
    if not ends:
        ax.text(0.5, 0.5, "nothing recorded", transform=ax.transAxes, ha="center", color=GREY, style="italic")
    _dress(ax, panel)
    if reference is not None:
        _draw_reference(ax, panel, reference)
    if names and len(look.styles) <= MAX_LABELS:
        ax.set_ylim(ax.get_ylim())  # names are placed for these limits
        limit = EARLY * float(panel.grid[-1])
        _name_early(ax, [end for end in ends if end.x < limit])
        _name_at_edge(ax, [end for end in ends if end.x >= limit], look.name_width)


def _draw_curve(ax: Axes, panel: Panel, curve: GroupCurve, style: dict[str, Any], names: bool) -> None:
    colour, n, mean = style["color"], curve.band.n, curve.band.mean
    if n.max() > 1:
        ax.fill_between(panel.grid, curve.band.low, curve.band.high, color=colour, alpha=0.15, linewidth=0)
    whole = np.where(n == n.max(), mean, np.nan)
    ax.plot(panel.grid, mean, color=colour, linewidth=1.0, linestyle=(0, (2, 2)), zorder=3)
    ax.plot(panel.grid, whole, linewidth=2.4, zorder=3, **style)
    for at in np.flatnonzero(np.diff(n) < 0):
        if names and n[at + 1] > 0:
            where, words = (float(panel.grid[at]), float(mean[at])), f"n={n[at + 1]}"
            place: dict[str, Any] = {"xytext": (2, 4), "textcoords": "offset points", "fontsize": 9}
            ax.annotate(words, where, color=colour, path_effects=_halo(), zorder=5, **place)
    shown = np.flatnonzero(np.isfinite(mean))
    if shown.size == 1:
        ax.plot(panel.grid[shown], mean[shown], "o", color=colour)


def _halo() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=4, foreground="white")]


def _draw_reference(ax: Axes, panel: Panel, reference: Published) -> None:
    """Draw the published curves up to the end of the runs, or a note if they start later."""
    end, (low, high) = float(panel.grid[-1]), ax.get_ylim()
    x = reference.timesteps
    kept = np.flatnonzero(x <= end)
    if not kept.size:
        words = f"published PPO begins at {count_text(x[0])} timesteps: {reference.train_mean[0]:.2f}"
        ax.text(0.02, 0.02, words, transform=ax.transAxes, fontsize=9.5, color=GREY, backgroundcolor="white")
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
    _name_reference(ax, reference, int(kept[-1]))


def _name_reference(ax: Axes, reference: Published, last: int) -> None:
    """Label the two published curves at their last visible points, the higher one above, the lower below."""
    x = float(reference.timesteps[last])
    lines = [
        (float(reference.train_mean[last]), float(reference.train_std[last]), "training levels"),
        (float(reference.test_mean[last]), float(reference.test_std[last]), "all levels"),
    ]
    left = x > 0.5 * ax.get_xlim()[1]
    style: dict[str, Any] = {"textcoords": "offset points", "color": GREY, "fontsize": 9.5, "style": "italic"}
    for sign, (mean, std, name) in zip((1, -1), sorted(lines, reverse=True)):
        ax.annotate(
            f"published PPO, {name}",
            (x, mean if sign > 0 else mean - std),
            (-6 if left else 6, 5 * sign),
            ha="right" if left else "left",
            va="bottom" if sign > 0 else "top",
            path_effects=_halo(),
            zorder=4,
            **style,
        )


def _dress(ax: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_xlim(0, float(panel.grid[-1]))
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.set_xlabel(
        panel.time_axis.unit
        if panel.time_axis.key == "timesteps"
        else f"{panel.time_axis.unit} of wall clock"
    )
    formatter = FuncFormatter(lambda value, _: count_text(value))
    if panel.time_axis.key == "timesteps":
        ax.xaxis.set_major_formatter(formatter)
    if panel.key in ("timesteps", "fps"):
        ax.yaxis.set_major_formatter(formatter)
        ax.set_ylim(bottom=0)


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


def _name_early(ax: Axes, ends: Sequence[End]) -> None:
    """Draw a dot and a name at the end of each line; without room on the right, above it on the left."""
    width, height = _points(ax)
    share, placed = NAME_HEIGHT / height, []
    for end, start in _ordered(ax, ends):
        right = (8 + len(end.name) * CHARACTER * NAME_SIZE) / width + end.x / ax.get_xlim()[1] <= 1
        placed.append((start if right else start + share, right, end))
    placed.sort(key=lambda each: each[0])
    places = spread([start for start, *_ in placed], [share] * len(placed))
    for (_, right, end), place in zip(placed, places):
        ax.plot([end.x], [end.y], "o", color=end.colour, markersize=5, zorder=4)
        style: dict[str, Any] = {"color": end.colour, "fontsize": NAME_SIZE, "va": "center", "zorder": 5}
        style |= {"ha": "left", "xytext": (8, 0)} if right else {"ha": "right", "xytext": (0, 0)}
        style |= {"xycoords": ax.get_xaxis_transform(), "textcoords": "offset points"}
        ax.annotate(end.name, (end.x, place), path_effects=_halo(), **style)


def _name_at_edge(ax: Axes, ends: Sequence[End], width: int) -> None:
    """Write the names beside the panel, with grey leader lines outside the panel."""
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
