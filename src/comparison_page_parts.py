"""Parts of the page that need no script: tables, intervals as dots and bars, stacked bars, settings."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from src.comparison import Comparison, GameResult
from src.comparison_format import window_text, with_interval
from src.comparison_groups import settings_of
from src.comparison_metrics import BY_KEY, CLOCKS
from src.comparison_runs import Run
from src.comparison_tables import Table, is_number_column, phase_shares
from src.fairness import HARDWARE, SOFTWARE, show, total_threads
from src.number_text import tick_text
from src.statistics import Estimate, Values

PHASE_COLOURS = 7
GROUP_COLOURS, PATTERNS = 8, 3  # of lines and swatches: beyond so many groups colours come again, dashed
TICKS = 5  # about so many on the axis of returns


def swatch(index: int) -> str:
    """A group's colour, and its dashes where colours come again."""
    pattern = index // GROUP_COLOURS % PATTERNS
    kind = f"swatch d{pattern}" if pattern else "swatch"
    return f'<span class="{kind}" style="--c:var(--c{index % GROUP_COLOURS})"></span>'


def points(items: Sequence[str]) -> str:
    """A list of texts that are HTML already."""
    return f'<ul class="points">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def _cell(text: str) -> str:
    first, *more = text.split("\n")
    return html.escape(first) + "".join(f"<small>{html.escape(line)}</small>" for line in more)


def _head(text: str, labels: Sequence[str]) -> str:
    return (swatch(labels.index(text)) if text in labels else "") + html.escape(text)


def table_html(table: Table, labels: Sequence[str]) -> str:
    """A table that scrolls sideways by itself; its first column stays in view."""
    numbers = [is_number_column(table, index) for index in range(len(table.header))]
    classes = [' class="num"' if number else "" for number in numbers]
    head = "".join(
        f'<th scope="col"{kind}>{_head(text, labels)}</th>' for text, kind in zip(table.header, classes)
    )
    rows = []
    for row in table.rows:
        cells = "".join(f"<td{kind}>{_cell(text)}</td>" for text, kind in zip(row[1:], classes[1:]))
        name = swatch(labels.index(row[0])) + html.escape(row[0]) if row[0] in labels else _cell(row[0])
        rows.append(f'<tr><th scope="row">{name}</th>{cells}</tr>')
    note = f'<p class="note">{html.escape(table.note)}</p>' if table.note else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(table.title)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{note}"
    )


def forest(game: GameResult, labels: Sequence[str]) -> str:
    """Return of every group at equal wall clock and at equal timesteps: mean, interval and single seeds."""
    figures = []
    for clock in reversed(CLOCKS):
        window = game.windows[clock.key]
        if window is None:
            continue
        figures.append(
            f"<figure><figcaption>Return at {clock.title} <small>{window_text(clock, window.end)}; "
            "dot: mean, bar: 95 % interval, rings: seeds</small></figcaption>"
            f'<div class="forest">{_forest_rows(game, f"return_at_{clock.key}", labels)}</div></figure>'
        )
    return f'<div class="charts forests">{"".join(figures)}</div>'


def round_ticks(low: float, high: float, count: int = TICKS) -> list[float]:
    """Up to `count` + 1 values between two others, at steps of 1, 2 or 5 times a power of ten."""
    least = (high - low) / count
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * index for index in range(first, last + 1)]


def _forest_rows(game: GameResult, metric: str, labels: Sequence[str]) -> str:
    found = [(result, result.estimates[metric]) for result in game.groups]
    reach = [result.values[metric][np.isfinite(result.values[metric])] for result in game.groups]
    reach += [np.array([each.low, each.high]) for _, each in found if each and each.low is not None]
    low, high = float(np.min(np.concatenate(reach))), float(np.max(np.concatenate(reach)))
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    low, high = low - pad, high + pad

    def at(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    ticks = round_ticks(low, high)
    grid = "".join(f'<s style="left:{at(tick)}"></s>' for tick in ticks)
    rows = ""
    for result, each in found:
        index, name = labels.index(result.group.label), html.escape(result.group.label)
        marks, text = grid, "n/a"
        if each is not None:
            marks += _forest_marks(each, result.values[metric], at)
            of = "" if each.n == len(result.group.runs) else f" of {len(result.group.runs)}"
            text = f"{html.escape(with_interval(BY_KEY[metric], each))}, n={each.n}{of}"
        track = f'<span class="track" style="--c:var(--c{index % GROUP_COLOURS})">{marks}</span>'
        rows += f'<div class="row"><span>{swatch(index)}{name}</span>{track}<span>{text}</span></div>'
    values = np.array(ticks)
    texts = "".join(f'<span style="left:{at(tick)}">{tick_text(tick, values)}</span>' for tick in ticks)
    unit = html.escape(BY_KEY[metric].unit)
    axis = f'<span></span><span class="ticks">{texts}</span><span>{unit}</span>'
    return f'{rows}<div class="row axis">{axis}</div>'


def _forest_marks(each: Estimate, values: Values, at: Callable[[float], str]) -> str:
    """Rings for seeds, a bar for the interval, a dot for the mean."""
    marks = "".join(f'<u style="left:{at(value)}"></u>' for value in values if math.isfinite(value))
    if each.low is not None and each.high is not None:
        marks += f'<i style="left:{at(each.low)};right:calc(100% - {at(each.high)})"></i>'
    return f'{marks}<b style="left:{at(each.mean)}"></b>'


def bars(game: GameResult, labels: Sequence[str]) -> str:
    """Time by phase: one stacked bar for each group."""
    found = {result.group.label: shares for result in game.groups if (shares := phase_shares(result))}
    names = list(dict.fromkeys(name for shares in found.values() for name in shares))
    keys = "".join(
        f'<span><span class="swatch" style="--c:var(--p{index % PHASE_COLOURS})"></span>'
        f"{html.escape(name)}</span>"
        for index, name in enumerate(names)
    )
    rows = ""
    for label, shares in found.items():
        parts = ""
        for index, name in enumerate(names):
            share = shares.get(name, 0.0)
            if share <= 0:
                continue
            place = index % PHASE_COLOURS
            style = f"flex:{share:.4f} 0 0;--c:var(--p{place});--i:var(--p{place}-ink)"
            word = f"{share:.0%}" if share >= 0.07 else ""  # narrower ones have no room on a phone
            parts += f'<span style="{style}" title="{html.escape(name)} {share:.1%}">{word}</span>'
        spoken = ", ".join(f"{name} {share:.0%}" for name, share in shares.items() if share >= 0.005)
        rows += (
            f"<span>{swatch(labels.index(label))}{html.escape(label)}</span>"
            f'<span class="bar" role="img" aria-label="{html.escape(spoken)}">{parts}</span>'
        )
    return f'<div class="keys">{keys}</div><div class="bars">{rows}</div>'


def _described(comparison: Comparison) -> list[tuple[str, Callable[[Run], Any]]]:
    """Everything about hardware, software and settings, by name."""

    def fact(section: str, key: str) -> Callable[[Run], Any]:
        return lambda run: (run.record.get(section) or {}).get(key)

    rows: list[tuple[str, Callable[[Run], Any]]] = [(key, fact("hardware", key)) for key in HARDWARE]
    rows += [("threads in all", total_threads), ("load_average at the end", fact("hardware", "load_average"))]
    rows += [(key, fact("software", key)) for key in SOFTWARE]
    settings = {id(run): settings_of(run) for result in comparison.results for run in result.group.runs}
    keys = dict.fromkeys(key for each in settings.values() for key in each)

    def setting(key: str) -> Callable[[Run], Any]:
        return lambda run: settings[id(run)].get(key)

    return [*rows, *((key, setting(key)) for key in keys)]


def settings_table(comparison: Comparison) -> str:
    """Hardware, software and settings of each group: what differs first and marked, the rest folded away."""
    labels = comparison.labels
    head = "".join(f'<th scope="col">{swatch(i)}{html.escape(label)}</th>' for i, label in enumerate(labels))
    runs = {
        label: [
            run for result in comparison.results if result.group.label == label for run in result.group.runs
        ]
        for label in labels
    }
    differing, equal = "", ""
    for name, of in _described(comparison):
        cells = [" / ".join(dict.fromkeys(show(of(run)) for run in runs[label])) for label in labels]
        differs = len(set(cells)) > 1 or " / " in cells[0]
        kind = ' class="differs"' if differs else ""
        texts = "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        row = f'<tr{kind}><th scope="row">{html.escape(name)}</th>{texts}</tr>'
        if differs:
            differing += row
        else:
            equal += row

    def table(body: str, title: str) -> str:
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table><thead><tr><th></th>'
            f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    first = table(differing, "what differs") if differing else "<p>Nothing differs.</p>"
    rest = f"<details><summary>Equal in all groups</summary>{table(equal, 'what is equal')}</details>"
    return (
        f'<p class="note">Marked with ≠: not the same in all groups, or in all runs of one.</p>{first}{rest}'
    )
