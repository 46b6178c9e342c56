"""The HTML page of a comparison: one file that needs no network. Jinja2 fills templates/comparison.html."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from rlcb.comparison.analysis import Comparison, GameResult
from rlcb.comparison.answer import answer
from rlcb.comparison.curves import SMOOTH_SHARE, Panel, common_seeds, curve_data, rounded, smoothed
from rlcb.comparison.fairness import HARDWARE, SOFTWARE, show, total_threads
from rlcb.comparison.findings import effort, evaluated_on, findings
from rlcb.comparison.forest import ForestRow, extent, forest_rows
from rlcb.comparison.format import round_ticks, window_text
from rlcb.comparison.groups import machine_of, variant_settings
from rlcb.comparison.methods import methods
from rlcb.comparison.metrics import TIME_AXES
from rlcb.comparison.reference import Reference, published_words, reference_table, references
from rlcb.comparison.runs import Run
from rlcb.comparison.scaling import scaling_tables
from rlcb.comparison.scores import improvement_note, improvement_rows, profile_panel, profile_table
from rlcb.comparison.tables import (
    Table,
    across_table,
    is_number_column,
    overview_table,
    pairs_table,
    phase_shares,
    phases_table,
    results_table,
    runs_table,
)
from rlcb.comparison.warnings import warning_texts
from rlcb.files import strict_json
from rlcb.text import counted, tick_text

TEMPLATES = Path(__file__).resolve().parent / "templates"
TICKS = 5  # approximate number of ticks on the axis of returns
MARKS = "dot: mean, bar: 95 % interval, rings: seeds"
SCRIPTS = ("comparison.js", "comparison_controls.js")  # one script in the page, in this order


def templates(labels: Sequence[str]) -> Environment:
    """Return the templates with autoescape; `labels` are the groups in the order of their colours."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals.update(labels=list(labels), number_columns=_number_columns)
    return environment


def _number_columns(table: Table) -> list[bool]:
    return [is_number_column(table, index) for index in range(len(table.header))]


def page(comparison: Comparison, panels: dict[str, list[Panel]]) -> str:
    """Return the page as HTML.

    `panels` holds the panels of each game by its env id and those of the normalised scores under "".
    """
    charts: list[dict[str, Any]] = []  # what the page's script draws
    published = {each.game: each for each in references(comparison)}
    games = [_game(game, panels[game.env], charts, published.get(game.game)) for game in comparison.games]
    several = comparison.across is not None and len(comparison.across.games) > 1
    score_charts = [_chart(panel, charts) for panel in panels[""]] if several else []
    scores, tests = across_table(comparison), _tests(comparison)
    spread = _spread(comparison, charts)
    differing, equal = settings_rows(comparison)
    sections = [game["title"] for game in games]
    scaling = scaling_tables(comparison)
    sections += ["Normalised scores"] if scores else []
    sections += ["Performance profiles"] if spread else []
    sections += ["Scaling over nodes"] if scaling else []
    sections += ["Published PPO"] if published else []
    sections += ["Tests", "Hardware and settings", "Runs", "Methods"]
    data = {"labels": comparison.labels, "seeds": common_seeds(comparison.results), "panels": charts}
    return (
        templates(comparison.labels)
        .get_template("comparison.html")
        .render(
            title="Comparison on " + ", ".join(game.game for game in comparison.games),
            style=Markup((TEMPLATES / "comparison.css").read_text(encoding="utf-8")),
            script=Markup("".join((TEMPLATES / name).read_text(encoding="utf-8") for name in SCRIPTS)),
            data=_embedded(json.dumps(strict_json(data), separators=(",", ":"))),
            facts=_facts(comparison),
            findings=findings(comparison),
            answer=answer(comparison),
            warnings=warning_texts(comparison),
            fairness=comparison.fairness,
            sections=sections,
            games=games,
            scaling=scaling,
            scores=scores,
            score_charts=score_charts,
            spread=spread,
            published=[(game, reference_table(each)) for game, each in published.items()],
            tests=tests,
            differing=differing,
            equal=equal,
            runs=runs_table(comparison),
            skipped=[f"{lost.path}: {lost.reason}" for lost in comparison.skipped],
            methods=methods(comparison),
        )
    )


def _embedded(text: str) -> Markup:
    """Escape JSON so that it cannot end the script element around it."""
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


def _facts(comparison: Comparison) -> list[str]:
    """Return the line under the title: how many runs and groups, which machine, and the date."""
    runs = [run for result in comparison.results for run in result.group.runs]
    machines = list(dict.fromkeys(map(machine_of, runs)))
    planned = sum(result.group.planned for result in comparison.results)
    planned += sum(len(group.lost) for group in comparison.lost)
    return [
        counted(len(runs), "run") if planned == len(runs) else f"{len(runs)} of {planned} runs",
        counted(len(comparison.labels), "group"),
        machines[0] if len(machines) == 1 else f"{len(machines)} different machines",
        datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    ]


def _game(
    game: GameResult,
    panels: Sequence[Panel],
    charts: list[dict[str, Any]],
    reference: Reference | None,
) -> dict[str, Any]:
    """Return what the section of one game shows, returns over wall clock first.

    Adds the data of its charts to `charts`.
    """
    shares = {result.group.label: found for result in game.groups if (found := phase_shares(result))}
    seeds = None if any(result.group.lost for result in game.groups) else common_seeds(game.groups)
    mean = "mean over seeds" if seeds is None else f"mean of n={counted(seeds, 'seed')}"
    return {
        "title": game.game,
        "overview": overview_table(game),
        "forests": forests(game),
        "explanation": f"Line: {mean}, noisy metrics smoothed over {SMOOTH_SHARE:.0%} of the axis, up to "
        "the end of the first seed; thin lines: seeds; band: 95 % bootstrap interval of the mean.",
        "charts": [_chart(panel, charts, reference) for panel in (panels[1], panels[0], *panels[2:])],
        "results": results_table(game),
        "phases": phases_table(game),
        "shares": shares,
    }


def _spread(comparison: Comparison, charts: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return what the section of performance profiles shows; None without scores."""
    panel, table, rows = profile_panel(comparison), profile_table(comparison), improvement_rows(comparison)
    if panel is None or table is None:
        return None
    chart = _chart(panel, charts)
    chart["title"] = panel.title
    title = f"Probability of improvement: {panel.title.partition(': ')[2]}"
    improvement = forest(
        title, f"{panel.unit}; dot: estimate, bar: 95 % interval", rows, "P(X > Y)", (-0.04, 1.04)
    )
    return {"chart": chart, "table": table, "improvement": improvement, "note": improvement_note(rows)}


def _chart(panel: Panel, charts: list[dict[str, Any]], reference: Reference | None = None) -> dict[str, Any]:
    """Return the caption of a chart. Adds its data to `charts`."""
    data = curve_data(smoothed(panel), runs=panel.key == "return")
    time_axis = panel.time_axis.key.replace("_", " ")
    caption: dict[str, Any] = {
        "index": len(charts),
        "title": f"{panel.title} over {time_axis}",
        "unit": panel.unit,
    }
    if reference is not None and (panel.key, panel.time_axis.key) == ("return", "timesteps"):
        data["reference"] = _published_lines(reference, float(panel.grid[-1]))
        caption["unit"] += f", {published_words(reference.figures, float(panel.grid[-1]))}"
    charts.append(data)
    return caption


def _published_lines(reference: Reference, end: float) -> list[dict[str, Any]]:
    """Return the published points up to `end` timesteps and the next one, which leads out of the plot."""
    figures = reference.figures
    kept = slice(int((figures.timesteps <= end).sum()) + 1)
    lines = (
        ("published PPO, training levels", figures.train_mean, figures.train_std),
        ("published PPO, all levels", figures.test_mean, figures.test_std),
    )
    return [
        {
            "name": name,
            "x": rounded(figures.timesteps[kept]),
            "mean": rounded(mean[kept]),
            "std": rounded(std[kept]),
        }
        for name, mean, std in lines
    ]


def forests(game: GameResult) -> list[dict[str, Any]]:
    """Return the forest plots of a game: evaluations, and training at equal wall clock and timesteps."""
    found = []
    if game.evaluated is not None:
        title = f"Return: {evaluated_on(game)}"
        found.append(forest(title, f"after {effort(game)[0]}; {MARKS}", forest_rows(game, game.evaluated)))
    for time_axis in reversed(TIME_AXES):
        window = game.windows[time_axis.key]
        if window is not None:
            rows = forest_rows(game, f"return_at_{time_axis.key}")
            point = f"{window_text(time_axis, window.end)}; {MARKS}"
            found.append(forest(f"Training return at {time_axis.title}", point, rows))
    return found


def forest(
    title: str,
    point: str,
    content: list[ForestRow],
    unit: str = "raw return",
    ends: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """Return a forest plot as places along the axis in percent; `ends` are those of the axis."""
    low, high = ends or extent(content)

    def place(value: float) -> str:
        return f"{100 * (value - low) / (high - low):.2f}%"

    rows: list[dict[str, Any]] = []
    for label, seeds, each, text in content:
        row: dict[str, Any] = {"label": label, "text": text, "interval": None, "mean": None}
        row["seeds"] = list(map(place, seeds))
        if each is not None:
            row["mean"] = place(each.mean)
            if each.low is not None and each.high is not None:
                row["interval"] = place(each.low), place(each.high)
        rows.append(row)
    ticks = round_ticks(low, high, TICKS if ends is None else 3)
    return {
        "title": title,
        "point": point,
        "rows": rows,
        "ticks": [(place(tick), tick_text(tick, np.array(ticks))) for tick in ticks],
        "unit": unit,
    }


def _tests(comparison: Comparison) -> list[Table]:
    """Return the tables of tests that have a row: one for each game, and one over all games."""
    tests = [pairs_table(game.pairs, f"On {game.game}", comparison.baseline) for game in comparison.games]
    if comparison.across is not None and len(comparison.across.games) > 1:
        title = "Over games, normalised scores"
        tests.append(pairs_table(comparison.across.pairs, title, comparison.baseline))
    return [table for table in tests if table.rows]


Rows = list[tuple[str, list[str]]]


def settings_rows(comparison: Comparison) -> tuple[Rows, Rows]:
    """Return hardware, software and settings as (name, text of each group): differing ones, equal ones."""

    def fact(section: str, key: str) -> Callable[[Run], Any]:
        return lambda run: (run.record.get(section) or {}).get(key)

    def setting(key: str) -> Callable[[Run], Any]:
        return lambda run: settings[run].get(key)

    facts = {key: fact("hardware", key) for key in HARDWARE}
    facts |= {"threads in all": total_threads, "load_average at the end": fact("hardware", "load_average")}
    facts |= {key: fact("software", key) for key in SOFTWARE}
    groups: dict[str, list[Run]] = {label: [] for label in comparison.labels}
    for result in comparison.results:
        groups[result.group.label] += result.group.runs
    settings = {run: variant_settings(run) for runs in groups.values() for run in runs}
    facts |= {key: setting(key) for each in settings.values() for key in each}
    differing: Rows = []
    equal: Rows = []
    for name, value in facts.items():
        cells = [" / ".join(dict.fromkeys(show(value(run)) for run in runs)) for runs in groups.values()]
        (differing if len(set(cells)) > 1 or " / " in cells[0] else equal).append((name, cells))
    return differing, equal
