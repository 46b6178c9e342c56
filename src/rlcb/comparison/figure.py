"""Draw the picture of a comparison: two large panels of returns, three small ones, findings and notes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult
from rlcb.comparison.curves import SMOOTH_SHARE, Panel, common_seeds, smoothed
from rlcb.comparison.fairness import Difference
from rlcb.comparison.findings import Finding, findings
from rlcb.comparison.groups import machine_of
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
from rlcb.comparison.procgen_scores import NORMALISATION, REFERENCE_CITATION, REFERENCE_NOTE
from rlcb.comparison.reference import Reference, references
from rlcb.plots.style import GREY, STYLE
from rlcb.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Keys and time axes of the panels in reading order: LARGE ones in the upper row, SMALL ones below.
RETURNS = (("return", "wall_clock"), ("return", "timesteps"))
SMALL = (("fps", "wall_clock"), ("timesteps", "wall_clock"), ("policy_loss", "timesteps"))
LARGE = 2
FIRST = 0.58  # width of the first panel as a share of the upper row
# Inches: width of the picture, height of its two rows, room for tick labels, between rows and for a legend.
WIDTH, ROWS, TICKS, BETWEEN, LEGEND = 14.0, (3.9, 2.3), 0.8, 1.0, 2.4
TITLE, CLAIM, FOOT = 19.0, 12.5, 10.5  # font sizes in points
LEADING = 1.55  # line height over the font size
LETTER = 0.52  # average width of a character over the font size, with a margin
MAX_CLAIMS = 5
MAX_UNEQUAL = 150  # characters for the differences between runs
NAMED = 5  # differences of one aspect that are named; more are counted


def draw_game(comparison: Comparison, game: GameResult, panels: Sequence[Panel]) -> Figure:
    """Draw the picture of one game. `panels` are all panels of the game."""
    large = [
        panel._replace(title=f"{panel.title} over {_clock_name(panel)}") for panel in _pick(panels, RETURNS)
    ]
    chosen = [*large, *_pick(panels, SMALL)]
    reference = next((each for each in references(comparison) if each.game == game.game), None)
    start = f"{game.game}, "
    said = [each for each in findings(comparison) if each.place.startswith(start)]
    said = [each._replace(place=each.place.removeprefix(start)) for each in said]
    return _draw(comparison, game.groups, chosen, f"Comparison on {game.game}", said, reference)


def draw_games(comparison: Comparison, panels: dict[str, list[Panel]]) -> Figure:
    """Draw the picture of several games: normalised scores, and speed and loss in the first game.

    `panels` holds the panels of each game by its env id and those of the scores under "". Without scores the
    returns in the first two games take their place; raw returns are never averaged over games.
    """
    first = comparison.games[0]
    large = [
        panel._replace(title=f"Normalised score over {_clock_name(panel)}") for panel in panels[""][::-1]
    ]  # wall clock first
    if not large:
        for game in comparison.games[:LARGE]:
            (panel,) = _pick(panels[game.env], RETURNS[:1])
            large.append(panel._replace(title=f"{panel.title}: {game.game}"))
    small = [
        panel._replace(title=f"{panel.title}: {first.game}") for panel in _pick(panels[first.env], SMALL)
    ]
    chosen = [*large, *small]
    names = [game.game for game in comparison.games]
    names = names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"]
    said = findings(comparison)
    said = [each for each in said if each.place.startswith("Over ")] or said
    title = f"Comparison on {len(comparison.games)} games: {', '.join(names)}"
    return _draw(comparison, comparison.results, chosen, title, said, None)


def _pick(panels: Sequence[Panel], wanted: Sequence[tuple[str, str]]) -> list[Panel]:
    """Return the panels with these keys and clocks, in this order."""
    by_key = {(panel.key, panel.time_axis.key): panel for panel in panels}
    return [by_key[each] for each in wanted]


def _clock_name(panel: Panel) -> str:
    return panel.time_axis.key.replace("_", " ")


def _draw(
    comparison: Comparison,
    results: Sequence[GroupResult],
    panels: Sequence[Panel],
    title: str,
    said: Sequence[Finding],
    reference: Reference | None,
) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    panels = [smoothed(panel) for panel in panels]
    look = _look(comparison, results, panels[:1])
    words = [line for text in claims(said, _room(CLAIM)) for line in textwrap.wrap(text, _room(CLAIM))]
    foot = [
        line for text in footer(comparison, panels, reference) for line in textwrap.wrap(text, _room(FOOT))
    ]
    claim, line = CLAIM * LEADING / 72, FOOT * LEADING / 72
    head, bottom = 1.6 + claim * len(words), 0.85 + line * len(foot)
    height = head + sum(ROWS) + BETWEEN + bottom
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height))
        for index, (panel, frame) in enumerate(zip(panels, _frames(panels, look, head, height))):
            with_reference = (panel.key, panel.time_axis.key) == ("return", "timesteps")
            published = reference.figures if reference and with_reference else None
            draw_panel(figure.add_axes(frame), panel, look, published, names=index == 0)
        left = TICKS / WIDTH
        figure.text(left, 1 - 0.45 / height, title, fontsize=TITLE, fontweight="bold", va="center")
        figure.text(left, 1 - 0.82 / height, _facts(results, look), fontsize=CLAIM, color=GREY, va="center")
        for index, text in enumerate(words):
            figure.text(left, 1 - (1.15 + claim * index) / height, text, fontsize=CLAIM, va="center")
        for index, text in enumerate(foot):
            y = line * (len(foot) - index - 0.3) / height
            figure.text(left, y, text, fontsize=FOOT, color=GREY, va="center")
        if len(look.styles) > MAX_LABELS:
            _legend(figure, results, look)
    return figure


def _look(comparison: Comparison, results: Sequence[GroupResult], panels: Sequence[Panel]) -> Look:
    seeds = common_seeds(results)
    names = [[end_name(curve, seeds) for curve in panel.curves if curve.band.n.any()] for panel in panels]
    width = max((name_width(each, ROWS[0] * 72 / NAME_HEIGHT) for each in names), default=0)
    return Look({label: style_of(index) for index, label in enumerate(comparison.labels)}, seeds, width)


def _room(size: float) -> int:
    """Return the number of characters of this font size in a line of the picture."""
    return int((WIDTH - TICKS - 0.3) * 72 / (LETTER * size))


def _beside(panels: Sequence[Panel], look: Look) -> float:
    """Return the width of the names beside a panel, in inches."""
    names = [end_name(curve, look.seeds) for panel in panels for curve in panel.curves if curve.band.n.any()]
    longest = max((len(line) for name in names for line in textwrap.wrap(name, look.name_width)), default=0)
    return 0.25 + longest * CHARACTER * NAME_SIZE / 72


def _frames(
    panels: Sequence[Panel], look: Look, head: float, height: float
) -> list[tuple[float, float, float, float]]:
    """Return left, bottom, width and height of every panel, as shares of the picture."""
    legend = len(look.styles) > MAX_LABELS
    room = WIDTH - (LEGEND if legend else 0.2)
    beside = 0.2 if legend else _beside(panels[:1], look)
    frames = []
    for row, gaps, widths in ((0, (beside, 0.1), (FIRST, 1 - FIRST)), (1, (0.2, 0.2, 0.1), (1 / 3,) * 3)):
        free, left = room - len(widths) * TICKS - sum(gaps), TICKS
        bottom = 1 - (head + sum(ROWS[: row + 1]) + row * BETWEEN) / height
        for share, gap in zip(widths, gaps):
            frames.append((left / WIDTH, bottom, free * share / WIDTH, ROWS[row] / height))
            left += free * share + gap + TICKS
    return frames


def _facts(results: Sequence[GroupResult], look: Look) -> str:
    machines = list(dict.fromkeys(machine_of(run) for result in results for run in result.group.runs))
    seeds = f"n={counted(look.seeds, 'seed')} each · " if look.seeds else ""
    return seeds + (machines[0] if len(machines) == 1 else f"{len(machines)} machines")


def claims(said: Sequence[Finding], room: int) -> list[str]:
    """Return findings as sentences: complete if they fit into a line, else the claim only."""
    shown = []
    for each in said[:MAX_CLAIMS]:
        text = str(each) if len(str(each)) <= room else f"{each.place}: {each.claim}."
        shown.append(text[0].upper() + text[1:])
    more = len(said) - len(shown)
    return [*shown, *([f"... and {more} more in the report."] if more else [])]


def footer(comparison: Comparison, panels: Sequence[Panel], reference: Reference | None) -> list[str]:
    """Return the notes below the panels: meaning of the lines, sources and differences between the runs."""
    found = [_lines(panels)]
    if any(panel.key == "score" for panel in panels):
        found.append(f"Normalised score: (return - min) / (max - min), ranges of {NORMALISATION}.")
    if reference is not None:
        differing = [
            f"{text.partition(': ')[0]} in {counted(text.count('(published '), 'setting')}"
            for text in reference.differing
        ]
        unlike = f" Not as published: {'; '.join(differing)} (listed in the report)." if differing else ""
        found.append(f"Grey: {REFERENCE_NOTE}. {REFERENCE_CITATION}.{unlike}")
    return [*found, f"Not equal between these runs: {unequal(comparison.fairness)}"]


def _lines(panels: Sequence[Panel]) -> str:
    """Explain thick and dashed lines and bands."""
    curves = [curve for panel in panels for curve in panel.curves if curve.band.n.any()]
    parts = [f"Line: mean over seeds, noisy figures smoothed over {SMOOTH_SHARE:.0%} of the axis"]
    if any(curve.band.n.max() > 1 for curve in curves):
        parts.append("band: 95 % bootstrap interval of the mean")
    if any((curve.band.n > 0).sum() > (curve.band.n == curve.band.n.max()).sum() for curve in curves):
        parts.append("thin and dashed: fewer seeds are left")
    return f"{'; '.join(parts)}."


def unequal(differences: Sequence[Difference], room: int = MAX_UNEQUAL) -> str:
    """Name every aspect, with its differences as long as all of them fit into `room` characters."""
    aspects: dict[str, list[str]] = {}
    for each in differences:
        aspects.setdefault(each.aspect, []).append(each.text)
    if not aspects:
        return "nothing found."
    parts = [f"{aspect} ({_in_short(texts)})" for aspect, texts in aspects.items()]
    kept = list(parts)
    while len(kept) > 1 and len("; ".join(kept)) > room:
        kept.pop()
    return f"{'; '.join([*kept, *list(aspects)[len(kept) :]])}. Details in the report."


def _in_short(texts: Sequence[str]) -> str:
    """Return a single short difference in full; otherwise the names of the settings, or how texts start."""
    if len(texts) == 1 and len(texts[0]) <= 80:
        return texts[0]
    heads = list(dict.fromkeys(map(_head, texts)))
    more = len(heads) - NAMED
    return ", ".join(heads[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _head(text: str) -> str:
    named = re.match(r"([\w. ]{1,40}): ", text)
    return named[1] if named else textwrap.shorten(text, 70, placeholder=" ...")


def _legend(figure: Figure, results: Sequence[GroupResult], look: Look) -> None:
    from matplotlib.lines import Line2D

    sizes = {result.group.label: len(result.group.runs) for result in results}
    lines = []
    for label, style in look.styles.items():
        n = "" if look.seeds or label not in sizes else f" (n={sizes[label]})"
        lines.append(Line2D([], [], linewidth=2.2, label=textwrap.fill(label + n, 26), **style))
    place = 1 - (LEGEND - 0.1) / WIDTH
    figure.legend(handles=lines, loc="center left", bbox_to_anchor=(place, 0.5), frameon=False, fontsize=9.5)
