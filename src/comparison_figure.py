"""The plot of a comparison: rewards over timesteps, FPS over time, policy loss, timesteps over wall clock."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from src.comparison import Comparison, GameResult
from src.comparison_curves import GroupCurve, Panel
from src.comparison_reference import references
from src.comparison_verdicts import headline
from src.figures import GREY, STYLE, count_text
from src.procgen_scores import Published

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Readers with any colour vision can tell these apart; all are dark enough for text on white (Okabe and Ito's,
# Paul Tol's). Beyond them colours come again with other dashes.
COLOURS = ("#0072B2", "#D55E00", "#007A5E", "#A0457F", "#8A6D00", "#5F6469", "#6B3E12", "#7A3E9D")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)))
SHOWN = ("return", "fps", "policy_loss", "timesteps")  # in reading order
MAX_LABELS = 8  # groups named at the ends of their lines; more get a legend


def style_of(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": DASHES[index // len(COLOURS) % len(DASHES)],
    }


def draw_game(comparison: Comparison, game: GameResult, panels: Sequence[Panel]) -> Figure:
    """The four panels of one game."""
    chosen = [next(panel for panel in panels if panel.key == key) for key in SHOWN]
    reference = next((each.figures for each in references(comparison) if each.game == game.game), None)
    words = [line for line in headline(comparison) if line.startswith(f"{game.game}, equal")]
    return _draw(comparison, chosen, f"Comparison on {game.game}", words, reference)


def draw_games(comparison: Comparison, panels: dict[str, list[Panel]]) -> Figure:
    """Several games: normalised scores over both clocks, never a mean of raw returns; speed by game."""
    scores = panels[""]
    first = comparison.games[0]
    chosen = [
        *scores,
        *(next(panel for panel in panels[first.env] if panel.key == key) for key in ("fps", "timesteps")),
    ]
    if not scores:
        own = [next(p for p in panels[game.env] if p.key == "return") for game in comparison.games[:2]]
        own = [p._replace(title=f"{p.title}: {game.game}") for p, game in zip(own, comparison.games)]
        chosen = [*own, *chosen]
    chosen[2:] = [panel._replace(title=f"{panel.title}: {first.game}") for panel in chosen[2:]]
    names = ", ".join(game.game for game in comparison.games)
    words = [line for line in headline(comparison) if line.startswith("Over ")]
    return _draw(comparison, chosen, f"Comparison on {len(comparison.games)} games: {names}", words, None)


def _draw(
    comparison: Comparison,
    panels: Sequence[Panel],
    title: str,
    words: Sequence[str],
    reference: Published | None,
) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    colours = {label: style_of(index) for index, label in enumerate(comparison.labels)}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14, 10))
        said = [line for sentence in words for line in textwrap.wrap(sentence, 150)][:6]
        foot = _footer(comparison)
        top, bottom = 0.885 - 0.021 * len(said), 0.085 + 0.016 * len(foot)
        figure.subplots_adjust(left=0.06, right=0.87, bottom=bottom, top=top, wspace=0.52, hspace=0.42)
        for place, panel in enumerate(panels[:4], 1):
            ax = figure.add_subplot(2, 2, place)
            draw_panel(ax, panel, colours, reference if panel.key == "return" else None)
        figure.text(0.06, 0.965, title, fontsize=18, fontweight="bold", va="center")
        for line, text in enumerate(said):
            figure.text(0.06, 0.932 - 0.021 * line, text, fontsize=10.5, va="center")
        for line, text in enumerate(foot):
            y = 0.016 * (len(foot) - line)
            figure.text(0.06, y, text, fontsize=8.5, color=GREY, va="center")
        if len(comparison.labels) > MAX_LABELS:
            _legend(figure, colours)
    return figure


def _footer(comparison: Comparison) -> list[str]:
    """What the lines are, and what was not equal: in the picture too, which travels alone."""
    bands = (
        "Line: mean over n seeds, dashed thinner where fewer are left; band: 95 % bootstrap interval of it."
    )
    aspects: dict[str, int] = {}
    for each in comparison.fairness:
        aspects[each.aspect] = aspects.get(each.aspect, 0) + 1
    short = [
        f"{each.aspect} ({each.text})" if aspects[each.aspect] == 1 and len(each.text) < 60 else each.aspect
        for each in comparison.fairness
    ]
    unequal = "; ".join(dict.fromkeys(short)) or "nothing found"
    return [
        bands,
        *textwrap.wrap(f"Not equal between these runs: {unequal}. Details in the report.", 175)[:4],
    ]


def draw_panel(
    ax: Axes, panel: Panel, colours: dict[str, dict[str, Any]], reference: Published | None = None
) -> None:
    """One panel with its lines, bands, and each group's name and n behind the end of its line."""
    title = ax.set_title(panel.title, loc="left", pad=10)
    ax.annotate(
        panel.unit, (1, 0), (8, 0), xycoords=title, textcoords="offset points", va="bottom", color=GREY
    )
    ends = []
    for curve in panel.curves:
        end = _draw_curve(ax, panel, curve, colours[curve.label])
        if end is not None:
            ends.append((*end, curve.label, colours[curve.label]["color"], int(curve.band.n.max())))
    if not ends:
        ax.text(0.5, 0.5, "nothing recorded", transform=ax.transAxes, ha="center", color=GREY, style="italic")
    _dress(ax, panel)
    if reference is not None:
        _draw_reference(ax, panel, reference)
    if len(colours) <= MAX_LABELS:
        _label_ends(ax, ends)


def _draw_curve(
    ax: Axes, panel: Panel, curve: GroupCurve, style: dict[str, Any]
) -> tuple[float, float] | None:
    """Draw a group; returns where its line ends."""
    shown = np.flatnonzero(np.isfinite(curve.band.mean))
    if not shown.size:
        return None
    n, mean = curve.band.n, curve.band.mean
    for run in curve.runs if len(curve.runs) > 1 and panel.key == "return" else []:
        ax.plot(panel.grid, run, color=style["color"], linewidth=0.6, alpha=0.35)
    ax.fill_between(
        panel.grid, curve.band.low, curve.band.high, color=style["color"], alpha=0.15, linewidth=0
    )
    whole = np.where(n == n.max(), mean, np.nan)
    ax.plot(panel.grid, mean, color=style["color"], linewidth=1.0, linestyle=(0, (2, 2)))
    ax.plot(panel.grid, whole, linewidth=2.2, **style)
    for at in np.flatnonzero(np.diff(n) < 0):
        if n[at + 1] > 0:
            where = (panel.grid[at], mean[at])
            ax.annotate(
                f"n={n[at + 1]}", where, (2, 4), textcoords="offset points", fontsize=8, color=style["color"]
            )
    if shown.size == 1:
        ax.plot(panel.grid[shown], mean[shown], "o", color=style["color"])
    return float(panel.grid[shown[-1]]), float(mean[shown[-1]])


def _draw_reference(ax: Axes, panel: Panel, reference: Published) -> None:
    """The published figures up to the end of the runs; a note where they begin later."""
    from matplotlib.axes import Axes as AxesType

    assert isinstance(ax, AxesType)
    end, (low, high) = float(panel.grid[-1]), ax.get_ylim()
    x = reference.timesteps
    kept = np.flatnonzero(x <= end)
    if not kept.size:
        words = f"published PPO begins at {count_text(x[0])} timesteps: {reference.train_mean[0]:.2f}"
        ax.text(0.02, 0.02, words, transform=ax.transAxes, fontsize=8.5, color=GREY, backgroundcolor="white")
        return
    upto = min(kept[-1] + 2, len(x))  # the next point leads the line out of the panel
    for mean, std, marker, name in (
        (reference.train_mean, reference.train_std, "o", "training levels"),
        (reference.test_mean, reference.test_std, "s", "all levels"),
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
            label=f"published PPO, {name} (n=3, ± std)",
        )
    inside = (
        reference.train_mean[kept] + reference.train_std[kept],
        reference.test_mean[kept] - reference.test_std[kept],
    )
    ax.set_ylim(min(low, float(inside[1].min())), max(high, float(inside[0].max())))
    ax.legend(loc="lower right", fontsize=8.5, frameon=False, labelcolor=GREY)


def _dress(ax: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    ax.set_xlim(0, float(panel.grid[-1]))
    ax.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    ax.set_xlabel(panel.clock.unit if panel.clock.key == "timesteps" else f"{panel.clock.unit} of wall clock")
    formatter = FuncFormatter(lambda value, _: count_text(value))
    if panel.clock.key == "timesteps":
        ax.xaxis.set_major_formatter(formatter)
    if panel.key in ("timesteps", "fps"):
        ax.yaxis.set_major_formatter(formatter)
        ax.set_ylim(bottom=0)


def _label_ends(ax: Axes, ends: Sequence[tuple[float, float, str, str, int]]) -> None:
    """Names at the right edge, moved apart where lines end close to each other."""
    if not ends:
        return
    low, high = ax.get_ylim()
    ordered = sorted(ends, key=lambda end: end[1])
    texts = [textwrap.wrap(f"{label} (n={n})", 20) for _, _, label, _, n in ordered]
    heights = [0.062 * len(lines) for lines in texts]  # of a name, as a share of the panel
    places = [(y - low) / (high - low) for _, y, *_ in ordered]
    for _ in range(200):
        for i in range(len(places) - 1):
            need = (heights[i] + heights[i + 1]) / 2 - (places[i + 1] - places[i])
            if need > 0:
                places[i] -= need / 2
                places[i + 1] += need / 2
        places = [min(max(place, h / 2), 1.02 - h / 2) for place, h in zip(places, heights)]
    right = ax.get_xlim()[1]
    for (x, y, _, colour, _), lines, place in zip(ordered, texts, places):
        arrow = {
            "arrowstyle": "-",
            "color": colour,
            "linewidth": 0.6,
            "alpha": 0.7,
            "shrinkA": 1,
            "shrinkB": 0,
        }
        style: dict[str, Any] = {"color": colour, "fontsize": 9.5, "va": "center", "annotation_clip": False}
        place_text = (1.025, place)
        ax.annotate(
            "\n".join(lines), (x, y), place_text, textcoords="axes fraction", arrowprops=arrow, **style
        )
    ax.set_xlim(right=right)


def _legend(figure: Figure, colours: dict[str, dict[str, Any]]) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], linewidth=2.2, label=textwrap.fill(label, 24), **style)
        for label, style in colours.items()
    ]
    figure.subplots_adjust(right=0.82, wspace=0.22)
    figure.legend(handles=lines, loc="center left", bbox_to_anchor=(0.83, 0.5), frameon=False, fontsize=9)
