"""The filled sheet `BENCHMARK RESULTS - [machine]`: what one posts of a benchmark on one's machine."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from src.comparison import Comparison, GameResult
from src.comparison_format import MISSING, interval_text, p_text, spread_text, value_text
from src.comparison_groups import machine_of
from src.comparison_methods import methods
from src.comparison_metrics import BY_KEY
from src.comparison_runs import Run
from src.comparison_text import WIDTH, notices, unfairness
from src.comparison_verdicts import Verdict, game_verdict, headline
from src.fairness import by_value, show

NAME_WIDTH = 44  # of the names on the left
SETTINGS = (
    ("Environments in all", "env.num_envs"),
    ("Levels", "env.num_levels"),
    ("Distribution mode", "env.distribution_mode"),
    ("Network", "model.architecture"),
    ("Rollout steps", "training.n_steps"),
    ("Minibatch", "training.batch_size"),
    ("Epochs", "training.n_epochs"),
    ("Learning rate", "training.learning_rate"),
    ("Duration (h)", "training.duration_hours"),
    ("Timesteps", "training.total_timesteps"),
    ("Workers", "parallel.num_workers"),
    ("Actors", "impala.num_actors"),
)
RUN_FIGURES = (
    "duration_hours",
    "timesteps",
    "updates",
    "average_fps",
    "final_fps",
    "timesteps_per_hour",
    "initial_reward",
    "final_reward",
    "best_reward",
    "train_return",
    "test_return",
    "generalisation_gap",
    "peak_memory_gb",
    "average_cpu_percent",
)
CONTESTED = (
    "return_at_wall_clock",
    "return_at_timesteps",
    "area_wall_clock",
    "area_timesteps",
    "final_reward",
    "test_return",
    "average_fps",
    "peak_memory_gb",
)


def sheet(comparison: Comparison) -> str:
    """The whole sheet, 80 columns."""
    runs = [run for result in comparison.results for run in result.group.runs]
    machines = list(dict.fromkeys(map(machine_of, runs)))
    name = machines[0] if len(machines) == 1 else f"{len(machines)} machines"
    lines = ["=" * WIDTH, f"BENCHMARK RESULTS - [{name}]", "=" * WIDTH]
    lines += ["", *_section("MACHINE", _machine(runs))]
    lines += ["", *_section("SETTINGS", _settings(comparison))]
    for game in comparison.games:
        lines += ["", *_section(f"RUNS: {game.game}", _runs(game))]
        lines += ["", *_section(f"WINNERS: {game.game}", _winners(game))]
    lines += ["", *_section("NOT EQUAL BETWEEN THESE RUNS", _points(unfairness(comparison)))]
    lines += ["", *_section("CONCLUSION", _points([*headline(comparison), *notices(comparison)]))]
    lines += ["", *_section("HOW THE FIGURES WERE MADE", _points(methods(comparison)))]
    return "\n".join(lines)


def _section(title: str, lines: Iterator[str]) -> list[str]:
    return [title, "-" * len(title), *lines]


def _points(items: list[str]) -> Iterator[str]:
    for item in items:
        yield from textwrap.wrap(
            item, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )


def _field(name: str, value: str, indent: int = 0) -> Iterator[str]:
    head = f"{' ' * indent}{name}: ".ljust(NAME_WIDTH)
    below = " " * NAME_WIDTH
    yield from textwrap.wrap(
        value or MISSING, WIDTH, initial_indent=head, subsequent_indent=below, break_on_hyphens=False
    )


def _values(runs: list[Run], section: str, key: str) -> str:
    found = dict.fromkeys(show((run.record.get(section) or {}).get(key)) for run in runs)
    return " / ".join(found)


def _machine(runs: list[Run]) -> Iterator[str]:
    hardware = {
        "CPU": "cpu_model",
        "Physical cores": "physical_cores",
        "Usable cores": "usable_cores",
        "Memory (GB)": "ram_gb",
        "System": "platform",
        "Load at the end of runs": "load_average",
    }
    for name, key in hardware.items():
        yield from _field(name, _values(runs, "hardware", key))
    for name in ("python", "torch", "numpy", "procgen", "git_commit"):
        yield from _field(
            {"git_commit": "Code"}.get(name, name.capitalize()), _values(runs, "software", name)
        )


def _settings(comparison: Comparison) -> Iterator[str]:
    groups = [result.group for result in comparison.results]
    yield from _field("Games", ", ".join(game.game for game in comparison.games))
    yield from _field("Baseline", comparison.baseline)
    for name, key in SETTINGS:
        values = by_value(groups, lambda run, key=key: run.setting(key))  # type: ignore[misc]
        if set(values) == {"none"}:
            continue
        texts = [value if len(values) == 1 else f"{value} ({', '.join(at)})" for value, at in values.items()]
        yield from _field(name, "; ".join(texts))


def _runs(game: GameResult) -> Iterator[str]:
    for result in game.groups:
        group = result.group
        seeds = ", ".join(str(run.seed) for run in group.runs)
        yield f"{group.label}  (n={len(group.runs)}, seeds {seeds})"
        for key in RUN_FIGURES:
            found = result.estimates.get(key)
            if found is None:
                continue
            metric = BY_KEY[key]
            each = ", ".join(value_text(metric, float(value)) for value in result.values[key])
            interval = interval_text(metric, found) if metric.better else ""
            mean = f"{spread_text(metric, found)} {interval}".strip()
            name = f"{metric.title} ({metric.unit})" if metric.unit else metric.title
            yield from _field(name, each if len(group.runs) == 1 else f"{mean}; runs: {each}", indent=2)


def _winners(game: GameResult) -> Iterator[str]:
    """For each contested figure who is ahead, by how much, and whether a test bears it out."""
    for key in CONTESTED:
        judged = game_verdict(game, key)
        if judged is not None and judged.runner_up is not None:
            yield from _field(BY_KEY[key].title, winner_text(judged, game))


def winner_text(judged: Verdict, game: GameResult) -> str:
    metric: Any = BY_KEY[judged.metric]
    unit = f" {metric.unit}" if metric.unit else ""
    if judged.tied:
        return f"no winner: {', '.join([judged.leader, *judged.tied])} are equal"
    ahead = f"ahead of {judged.runner_up} by {value_text(metric, judged.margin)}{unit}"
    if judged.won:
        return (
            f"{judged.leader}, {ahead} ({p_text(max(p for _, p in judged.beaten))} against every other group)"
        )
    doubt = []
    if judged.open:
        doubt.append(f"not distinguishable from {', '.join(judged.open)}")
    if judged.untested:
        doubt.append(f"no test against {', '.join(judged.untested)}")
    return f"no winner shown: {judged.leader} is {ahead}, but {'; '.join(doubt)}"
