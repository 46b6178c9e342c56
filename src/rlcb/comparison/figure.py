"""Draw the picture of a comparison for a slide: the answer, returns, speed, unseen levels and notes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult
from rlcb.comparison.answer import answer, answer_in
from rlcb.comparison.curves import SMOOTH_SHARE, Panel, common_seeds, smoothed
from rlcb.comparison.fairness import Difference
from rlcb.comparison.findings import Finding, effort, evaluated_on, findings
from rlcb.comparison.forest import ForestRow, forest_rows, score_rows
from rlcb.comparison.groups import machine_of
from rlcb.comparison.panel import (
    CHARACTER,
    FOREST_SIZE,
    MAX_LABELS,
    NAME_HEIGHT,
    NAME_SIZE,
    Look,
    draw_forest,
    draw_panel,
    end_name,
    name_width,
    style_of,
)
from rlcb.comparison.procgen_scores import NORMALISATION, REFERENCE_CITATION, REFERENCE_NOTE
from rlcb.comparison.reference import Reference, published_words, references
from rlcb.plots.style import GREY, STYLE
from rlcb.text import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Keys and time axes of the panels: two of returns in the upper row, speed at the left of the lower row.
RETURNS, SPEED = (("return", "wall_clock"), ("return", "timesteps")), (("fps", "wall_clock"),)
FIRST = 0.54  # width of the left panels as a share of both
# Inches: width of the picture, heights of its rows (the lower one at least), room for tick labels, between
# rows, for a legend, and for each group of a forest plot.
WIDTH, UPPER, LOWER, TICKS, BETWEEN, LEGEND, GROUP = 14.0, 3.9, 2.3, 0.8, 1.0, 2.4, 0.42
TITLE, ANSWER, CLAIM, FOOT = 19.0, 13.5, 12.0, 10.5  # font sizes in points
LEADING = 1.55  # line height over the font size
LETTER, BOLD = 0.54, 0.6  # average width of a character over the font size, with a margin; of a bold one
MAX_CLAIMS = 5
MAX_UNEQUAL = 150  # characters for the differences between runs
NAMED = 5  # differences of one aspect that are named; more are counted


def draw_game(comparison: Comparison, game: GameResult, panels: Sequence[Panel]) -> Figure:
    """Draw the picture of one game. `panels` are all panels of the game."""
    large = [
        panel._replace(title=f"{panel.title} over {_clock_name(panel)}") for panel in _pick(panels, RETURNS)
    ]
    chosen = [*large, *_pick(panels, SPEED)]
    reference = next((each for each in references(comparison) if each.game == game.game), None)
    start = f"{game.game}, "
    said = [each for each in findings(comparison) if each.place.startswith(start)]
    said = [each._replace(place=each.place.removeprefix(start)) for each in said]
    rows = forest_rows(game, game.evaluated) if game.evaluated else []
    forest = Forest(f"Return: {evaluated_on(game)}", f"after {effort(game)[0]}" if rows else "", rows)
    words = Words(f"Comparison on {game.game}", answer_in(game, comparison).sentence, said[1:])
    return _draw(comparison, game.groups, chosen, forest, words, reference)


def draw_games(comparison: Comparison, panels: dict[str, list[Panel]]) -> Figure:
    """Draw the picture of several games: normalised scores, and the speed in the first game.

    `panels` holds the panels of each game by its env id and those of the scores under "". Without scores of
    several games the returns in the first two games take their place; raw returns are never averaged.
    """
    first, across = comparison.games[0], comparison.across
    scored = across is not None and len(across.games) > 1
    large = [
        panel._replace(title=f"Normalised score over {_clock_name(panel)}")
        for panel in panels[""][::-1]  # wall clock first
        if scored
    ]
    if not large:
        for game in comparison.games[: len(RETURNS)]:
            (panel,) = _pick(panels[game.env], RETURNS[:1])
            large.append(panel._replace(title=f"{panel.title}: {game.game}"))
    (speed,) = _pick(panels[first.env], SPEED)
    chosen = [*large, speed._replace(title=f"{speed.title}: {first.game}")]
    names = [game.game for game in comparison.games]
    names = names if len(names) < 5 else [*names[:3], f"{len(names) - 3} more"]
    said = findings(comparison)
    said = [each for each in said if each.place.startswith("Over ")][1:] or said
    title = f"Comparison on {len(comparison.games)} games: {', '.join(names)}"
    if scored and across is not None and across.scores["test_return"]:
        forest = Forest("Normalised score: unseen levels", "", score_rows(comparison, "test_return"))
    else:
        rows = forest_rows(first, first.evaluated) if first.evaluated else []
        forest = Forest(f"Return: {evaluated_on(first)}, {first.game}", "", rows)
    words = Words(title, answer(comparison), said)
    return _draw(comparison, comparison.results, chosen, forest, words, None)


class Words(NamedTuple):
    """The text above the panels. The first finding is left out, because the answer says the same."""

    title: str
    answer: str
    findings: Sequence[Finding]


class Forest(NamedTuple):
    """The content of a forest plot; without rows it says how to evaluate."""

    title: str
    unit: str
    rows: list[ForestRow]


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
    forest: Forest,
    said: Words,
    reference: Reference | None,
) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    panels = [smoothed(panel) for panel in panels]
    look = _look(comparison, results, panels[:1])
    answered = textwrap.wrap(said.answer, _room(ANSWER, BOLD))
    words = [
        line for text in claims(said.findings, _room(CLAIM)) for line in textwrap.wrap(text, _room(CLAIM))
    ]
    foot = [
        line for text in footer(comparison, panels, reference) for line in textwrap.wrap(text, _room(FOOT))
    ]
    large, claim, line = (size * LEADING / 72 for size in (ANSWER, CLAIM, FOOT))
    said_at = 1.3 + large * len(answered)  # inches from the top to the first finding
    head, bottom = said_at + claim * len(words) + 0.45, 0.85 + line * len(foot)
    lower = max(LOWER, GROUP * len(forest.rows))
    height = head + UPPER + BETWEEN + lower + bottom
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, height))

        def write(inches: float, text: str, size: float, **style: Any) -> None:
            figure.text(TICKS / WIDTH, 1 - inches / height, text, fontsize=size, va="center", **style)

        *frames, last = _frames(panels, forest, look, (head, lower, height))
        for index, (panel, frame) in enumerate(zip(panels, frames)):
            with_reference = (panel.key, panel.time_axis.key) == ("return", "timesteps")
            published = reference.figures if reference and with_reference else None
            draw_panel(figure.add_axes(frame), panel, look, published, names=index == 0)
        draw_forest(figure.add_axes(last), forest.rows, look, forest.title, forest.unit)
        write(0.45, said.title, TITLE, fontweight="bold")
        write(0.82, _facts(results, look), CLAIM, color=GREY)
        for index, text in enumerate(answered):
            write(1.2 + large * index, text, ANSWER, fontweight="bold")
        for index, text in enumerate(words):
            write(said_at + claim * index, text, CLAIM)
        for index, text in enumerate(foot):
            write(height - line * (len(foot) - index - 0.3), text, FOOT, color=GREY)
        if len(look.styles) > MAX_LABELS:
            _legend(figure, results, look)
    return figure


def _look(comparison: Comparison, results: Sequence[GroupResult], panels: Sequence[Panel]) -> Look:
    seeds = common_seeds(results)
    names = [[end_name(curve, seeds) for curve in panel.curves if curve.band.n.any()] for panel in panels]
    width = max((name_width(each, UPPER * 72 / NAME_HEIGHT) for each in names), default=0)
    return Look({label: style_of(index) for index, label in enumerate(comparison.labels)}, seeds, width)


def _room(size: float, letter: float = LETTER) -> int:
    """Return the number of characters of this font size in a line of the picture."""
    return int((WIDTH - TICKS - 0.3) * 72 / (letter * size))


def _beside(panels: Sequence[Panel], forest: Forest, look: Look) -> float:
    """Return the width of the names between the left and the right panels, in inches."""
    names = [end_name(curve, look.seeds) for panel in panels for curve in panel.curves if curve.band.n.any()]
    names = [] if len(look.styles) > MAX_LABELS else names
    lines = [line for name in names for line in textwrap.wrap(name, look.name_width)]
    above = 0.25 + max((len(line) for line in lines), default=0) * CHARACTER * NAME_SIZE / 72
    wide = max((max(len(row.label), len(row.text)) for row in forest.rows), default=0)
    return max(above, 0.3 + wide * CHARACTER * FOREST_SIZE / 72 - TICKS)


def _frames(
    panels: Sequence[Panel], forest: Forest, look: Look, heights: tuple[float, float, float]
) -> list[tuple[float, float, float, float]]:
    """Return left, bottom, width and height of the four panels, row by row, as shares of the picture.

    `heights` are those of the text above, of the lower row and of the picture, in inches.
    """
    head, lower, height = heights
    room = WIDTH - (LEGEND if len(look.styles) > MAX_LABELS else 0.2)
    beside = _beside(panels[:1], forest, look)
    free = room - 2 * TICKS - beside - 0.1
    left = [TICKS, TICKS + FIRST * free + beside + TICKS]
    frames = []
    for below, tall in ((head + UPPER, UPPER), (head + UPPER + BETWEEN + lower, lower)):
        for start, share in zip(left, (FIRST, 1 - FIRST)):
            frames.append((start / WIDTH, 1 - below / height, free * share / WIDTH, tall / height))
    return frames


def _facts(results: Sequence[GroupResult], look: Look) -> str:
    machines = list(dict.fromkeys(machine_of(run) for result in results for run in result.group.runs))
    lost = any(result.group.lost for result in results)
    seeds = f"n={counted(look.seeds, 'seed')}{' planned' * lost} each · " if look.seeds else ""
    return seeds + (machines[0] if len(machines) == 1 else f"{len(machines)} machines")


def claims(said: Sequence[Finding], room: int) -> list[str]:
    """Return findings as sentences: complete if they fit into a line, else claim and caution only."""
    shown = []
    for each in said[:MAX_CLAIMS]:
        text = str(each)
        if len(text) > room:
            caution = f" {each.caution.partition(':')[0]}." if each.caution else ""
            text = f"{each.place}: {each.claim}.{caution}"
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
        end = max(float(panel.grid[-1]) for panel in panels if panel.time_axis.key == "timesteps")
        words = published_words(reference.figures, end)
        found.append(f"{words[0].upper()}{words[1:]}. {REFERENCE_NOTE}. {REFERENCE_CITATION}.{unlike}")
    return [*found, f"Not equal between these runs: {unequal(comparison.fairness)}"]


def _lines(panels: Sequence[Panel]) -> str:
    """Explain thick and thin lines and bands."""
    curves = [curve for panel in panels for curve in panel.curves if curve.band.n.any()]
    parts = [
        "Line: mean over seeds, to the end of the first one; noisy figures smoothed over "
        f"{SMOOTH_SHARE:.0%} of the axis"
    ]
    if any(curve.band.n.max() > 1 for curve in curves):
        parts.append("band: 95 % bootstrap interval of the mean")
    if any(len(curve.runs) > 1 for curve in curves):
        parts.append("thin lines: seeds")
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
    planned = {result.group.label: result.group.planned for result in results}
    lines = []
    for label, style in look.styles.items():
        n = "" if look.seeds or label not in sizes else f" (n={sizes[label]})"
        n = f" ({sizes[label]} of {planned[label]})" if sizes.get(label, 0) < planned.get(label, 0) else n
        lines.append(Line2D([], [], linewidth=2.2, label=textwrap.fill(label + n, 26), **style))
    place = 1 - (LEGEND - 0.1) / WIDTH
    figure.legend(handles=lines, loc="center left", bbox_to_anchor=(place, 0.5), frameon=False, fontsize=9.5)
