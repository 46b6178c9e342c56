"""comparison.html: a comparison as one page that needs no network."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult
from rlcb.comparison.curves import SMOOTH_SHARE, Panel, common_seeds, smoothed
from rlcb.comparison.exports import curve_data, short
from rlcb.comparison.fairness import HARDWARE, SOFTWARE, show, total_threads
from rlcb.comparison.findings import findings
from rlcb.comparison.format import window_text, with_interval
from rlcb.comparison.groups import machine_of, settings_of
from rlcb.comparison.methods import methods
from rlcb.comparison.metrics import BY_KEY, CLOCKS
from rlcb.comparison.panel import MAX_LABELS
from rlcb.comparison.reference import reference_table, references
from rlcb.comparison.runs import Run
from rlcb.comparison.statistics import Estimate, Values
from rlcb.comparison.tables import (
    Table,
    across_table,
    is_number_column,
    pairs_table,
    phase_shares,
    phases_table,
    results_table,
    runs_table,
)
from rlcb.comparison.text_report import notices
from rlcb.files import strict_json
from rlcb.text import counted, tick_text

TEMPLATES = Path(__file__).resolve().parent / "templates"
SCRIPTS = ("comparison.js", "comparison_controls.js")  # one script in the page, in this order
ZOOM_HINT = "Drag across a plot to zoom, double-click to see all of it; point at it to read values."
BUTTONS = (
    '<span class="tools"><button type="button" data-zoom="in" aria-label="zoom in">+</button>'
    '<button type="button" data-zoom="out" aria-label="zoom out">−</button>'
    '<button type="button" data-zoom="all">all</button></span>'
)


def page(comparison: Comparison, panels: dict[str, list[Panel]]) -> str:
    """The whole page; `panels` has those of each game by its env id, and those over games under ``."""
    drawn: list[dict[str, Any]] = []
    games = [
        (game.game, _game_section(comparison, game, panels[game.env], drawn)) for game in comparison.games
    ]
    sections = [*games, *_across_section(comparison, panels[""], drawn), *_closing_sections(comparison)]
    body = "".join(
        f'<section id="s{number}"><h2>{html.escape(title)}</h2>{content}</section>'
        for number, (title, content) in enumerate(sections)
    )
    links = "".join(f'<a href="#s{n}">{html.escape(title)}</a>' for n, (title, _) in enumerate(sections))
    content = {"labels": comparison.labels, "seeds": common_seeds(comparison.results), "panels": drawn}
    data = json.dumps(strict_json(content), separators=(",", ":"))
    title = html.escape("Comparison on " + ", ".join(game.game for game in comparison.games))
    style = (TEMPLATES / "comparison.css").read_text(encoding="utf-8")
    script = "".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"<header><h1>{title}</h1>{_facts(comparison)}</header>\n{_summary(comparison)}"
        f'<nav aria-label="sections">{links}</nav>\n{body}\n'
        "<noscript><p>The curves are drawn by a script in this page; the picture beside it shows them too."
        "</p></noscript>"
        f'</main>\n<script id="data" type="application/json">{_embedded(data)}</script>\n'
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )


def _embedded(text: str) -> str:
    """JSON that cannot end the script element around it."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _facts(comparison: Comparison) -> str:
    runs = [run for result in comparison.results for run in result.group.runs]
    machines = list(dict.fromkeys(map(machine_of, runs)))
    today = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    facts = [
        counted(len(runs), "run"),
        counted(len(comparison.labels), "group"),
        machines[0] if len(machines) == 1 else f"{len(machines)} different machines",
        today,
    ]
    return f'<p class="facts">{html.escape(" · ".join(facts))}</p>'


def _summary(comparison: Comparison) -> str:
    said = "".join(
        f"<li><span>{html.escape(each.place)}</span>"
        f"<b>{html.escape(each.claim[0].upper() + each.claim[1:])}.</b> {html.escape(each.detail)}</li>"
        for each in findings(comparison)
    )
    cautions = "".join(f"<p>{html.escape(line)}</p>" for line in notices(comparison))
    unequal = [f"<b>{html.escape(each.aspect)}</b>: {html.escape(each.text)}" for each in comparison.fairness]
    aside = f"<aside>{cautions}</aside>" if cautions else ""
    found = points(unequal) if unequal else "<p>No difference was found but the one being compared.</p>"
    return (
        f'<ul class="headline">{said}</ul>{aside}'
        f"<details{' open' if len(unequal) <= 6 else ''}><summary>Not equal between these runs "
        f"({len(unequal)})</summary>{found}</details>\n"
    )


def _legend(comparison: Comparison, named: bool = False) -> str:
    """Buttons that show and hide groups; without names where the charts below name each line, which they do
    if there are few groups and the window is wide."""
    short = "" if named or len(comparison.labels) > MAX_LABELS else " short"
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-label="{html.escape(label)}" '
        f'title="show or hide {html.escape(label)}">{swatch(index)}<span>{html.escape(label)}</span></button>'
        for index, label in enumerate(comparison.labels)
    )
    return f'<div class="legend{short}" role="group" aria-label="groups to show">{buttons}</div>'


def _figure(panel: Panel, drawn: list[dict[str, Any]], reference: list[dict[str, Any]] | None = None) -> str:
    clock = "over timesteps" if panel.clock.key == "timesteps" else "over wall clock"
    data = curve_data(smoothed(panel), runs=panel.key == "return")
    drawn.append({**data, **({"reference": reference} if reference else {})})
    more = ", published PPO in grey" if reference else ""
    return (
        f'<figure data-panel="{len(drawn) - 1}"><figcaption>{html.escape(panel.title)} {clock} '
        f"<small>{html.escape(panel.unit)}{more}</small>{BUTTONS}</figcaption></figure>"
    )


def _reference_lines(comparison: Comparison, game: GameResult, panel: Panel) -> list[dict[str, Any]] | None:
    """Published points up to the end of the runs and one beyond, which leads the line out of the plot."""
    found = next((each.figures for each in references(comparison) if each.game == game.game), None)
    if found is None or panel.key != "return" or panel.clock.key != "timesteps":
        return None
    count = min(len(found.timesteps), int((found.timesteps <= panel.grid[-1]).sum()) + 1)
    lines = (
        ("published PPO, training levels", found.train_mean, found.train_std),
        ("published PPO, all levels", found.test_mean, found.test_std),
    )
    return [
        {
            "name": name,
            "x": short(found.timesteps[:count]),
            "mean": short(mean[:count]),
            "std": short(std[:count]),
        }
        for name, mean, std in lines
    ]


def _game_section(
    comparison: Comparison, game: GameResult, panels: Sequence[Panel], drawn: list[dict[str, Any]]
) -> str:
    shown = [_figure(panel, drawn, _reference_lines(comparison, game, panel)) for panel in panels]
    phases = phases_table(game)
    time = (
        f"<h3>Where the time went</h3>{bars(game, comparison.labels)}"
        f"<details><summary>As a table</summary>{table_html(phases, comparison.labels)}</details>"
        if phases is not None
        else ""
    )
    return (
        f"{forest(game, comparison.labels)}"
        f'<h3>Learning and speed</h3><p class="note">{_explained(game)} {ZOOM_HINT}</p>'
        f'{_legend(comparison)}<div class="charts">{"".join(shown[:4])}</div>'
        f"<h3>All figures</h3>{table_html(results_table(game), comparison.labels)}"
        f"{time}<h3>Policy loss, memory and CPU</h3>{_legend(comparison, named=True)}"
        f'<div class="charts three">{"".join(shown[4:])}</div>'
    )


def _explained(game: GameResult) -> str:
    """What lines and bands are, and n once for all where it is the same for all."""
    seeds = common_seeds(game.groups)
    mean = "mean over seeds" if seeds is None else f"mean of n={counted(seeds, 'seed')}"
    return (
        f"Line: {mean}, noisy figures smoothed over {SMOOTH_SHARE:.0%} of the axis; thin lines: seeds; band: "
        "95 % bootstrap interval of the mean; thin and dashed where fewer seeds are left."
    )


def _across_section(
    comparison: Comparison, panels: Sequence[Panel], drawn: list[dict[str, Any]]
) -> list[tuple[str, str]]:
    table = across_table(comparison)
    if table is None:
        return []
    figures = "".join(_figure(panel, drawn) for panel in panels) if len(comparison.games) > 1 else ""
    plots = f'{_legend(comparison)}<div class="charts">{figures}</div>' if figures else ""
    return [
        (
            "Normalised scores",
            f"<p>{html.escape(table.title)}.</p>{plots}{table_html(table, comparison.labels)}",
        )
    ]


def _closing_sections(comparison: Comparison) -> list[tuple[str, str]]:
    sections = []
    labels = comparison.labels
    published = "".join(
        f"<h3>{html.escape(each.game)}</h3>{table_html(reference_table(each), labels)}"
        for each in references(comparison)
    )
    if published:
        sections.append(("Published PPO", published))
    tests = [pairs_table(game.pairs, f"On {game.game}", comparison.baseline) for game in comparison.games]
    if comparison.across is not None and len(comparison.across.games) > 1:
        tests.append(
            pairs_table(comparison.across.pairs, "Over games, normalised scores", comparison.baseline)
        )
    shown = "".join(f"<h3>{html.escape(t.title)}</h3>{table_html(t, labels)}" for t in tests if t.rows)
    sections.append(("Tests", shown or "<p>No group has two seeds to be tested with another that has.</p>"))
    sections.append(("Hardware and settings", settings_table(comparison)))
    left_out = [f"{html.escape(str(path))}: {html.escape(reason)}" for path, reason in comparison.skipped]
    skipped = f"<h3>Left out</h3>{points(left_out)}" if left_out else ""
    sections.append(("Runs", table_html(runs_table(comparison), labels) + skipped))
    sections.append(
        ("How the figures were made", points([html.escape(line) for line in methods(comparison)]))
    )
    return sections


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
