"""comparison.html: a comparison as one page that needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from src.comparison import Comparison, GameResult
from src.comparison_curves import SMOOTH_SHARE, Panel, common_seeds, smoothed
from src.comparison_data import curve_data, short
from src.comparison_groups import machine_of
from src.comparison_methods import methods
from src.comparison_page_parts import bars, forest, points, settings_table, swatch, table_html
from src.comparison_panel import MAX_LABELS
from src.comparison_reference import reference_table, references
from src.comparison_tables import across_table, pairs_table, phases_table, results_table, runs_table
from src.comparison_text import notices
from src.comparison_verdicts import findings
from src.files import strict_json
from src.terminal import counted

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
