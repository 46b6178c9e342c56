"""Write the summary `BENCHMARK RESULTS - [machine]`, a text of 80 columns for posting results."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult, Pair
from rlcb.comparison.answer import answer
from rlcb.comparison.fairness import by_value, show
from rlcb.comparison.findings import Ranking, headline, rank_in_game, rank_over_games
from rlcb.comparison.format import (
    MISSING,
    interval_text,
    p_text,
    reached_text,
    spread_text,
    value_text,
    window_text,
)
from rlcb.comparison.groups import machine_of
from rlcb.comparison.methods import methods
from rlcb.comparison.metrics import BY_KEY, NORMALISED, TESTED, TO_THRESHOLD, Metric, score_metric
from rlcb.comparison.runs import Run
from rlcb.comparison.tables import threshold_name
from rlcb.comparison.text_report import WIDTH, bullets, unfairness
from rlcb.comparison.warnings import warning_texts
from rlcb.text import counted

NAME_WIDTH = 44  # width of the column of names
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
    "timesteps_to_threshold",
    "hours_to_threshold",
    "train_return",
    "test_return",
    "full_return",
    "generalisation_gap",
    "peak_memory_gb",
    "average_cpu_percent",
    "others_cpu_percent",
)
MARGINS = (
    "A margin is the difference of two means, with the 95 % interval of Welch's test of these two groups "
    "alone; who wins is decided by p, which is adjusted for all groups."
)


def summary(comparison: Comparison) -> str:
    """Return the summary as text with 80 columns."""
    runs = [run for result in comparison.results for run in result.group.runs]
    machines = list(dict.fromkeys(map(machine_of, runs)))
    name = machines[0] if len(machines) == 1 else f"{len(machines)} machines"
    lines = ["=" * WIDTH, f"BENCHMARK RESULTS - [{name}]", "=" * WIDTH]
    lines += ["", *_section("MACHINE", _machine(runs))]
    lines += ["", *_section("SETTINGS", _settings(comparison))]
    for game in comparison.games:
        lines += ["", *_section(f"RUNS: {game.game}", _runs(game))]
        lines += ["", *_section(f"WINNERS: {game.game}", _winners(game))]
    if comparison.across is not None and len(comparison.across.games) > 1:
        title = f"WINNERS OVER {len(comparison.across.games)} GAMES: mean of normalised scores"
        lines += ["", *_section(title, _winners_over_games(comparison))]
    lines += ["", *_section("NOT EQUAL BETWEEN THESE RUNS", bullets(unfairness(comparison)))]
    said = [answer(comparison), *headline(comparison), *warning_texts(comparison)]
    lines += ["", *_section("CONCLUSION", bullets(said))]
    lines += ["", *_section("HOW THE FIGURES WERE MADE", bullets([*methods(comparison), MARGINS]))]
    return "\n".join(lines)


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [title, "-" * len(title), *lines]


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
        runs = result.group.runs
        seeds = [f"{run.seed}" if run.completed else f"{run.seed} ({run.status})" for run in runs]
        seeds += [f"{run.seed} (lost)" for run in result.group.lost]
        yield f"{result.group.label}  (n={len(runs)}, seeds {', '.join(seeds)})"
        for key in RUN_FIGURES:
            name, mean, each = (
                _time_to_threshold(result, key) if key in TO_THRESHOLD else _figure(result, key)
            )
            if mean:
                yield from _field(name, each if len(runs) == 1 else f"{mean}; runs: {each}", indent=2)
    for group in game.lost:
        yield f"{group.label}  (n=0, all of {counted(len(group.lost), 'seed')} lost)"


def _figure(result: GroupResult, key: str) -> tuple[str, str, str]:
    """Return name, mean and single values of a metric; empty texts if the group has no value."""
    metric, found = BY_KEY[key], result.estimates[key]
    if found is None:
        return "", "", ""
    each = ", ".join(value_text(metric, float(value)) for value in result.values[key])
    n = f"(n={found.n} of {result.group.planned})" if found.n != result.group.planned else ""
    parts = [spread_text(metric, found), n, interval_text(metric, found) if metric.better else ""]
    name = f"{metric.title} ({metric.unit})" if metric.unit else metric.title
    return name, " ".join(filter(None, parts)), each


def _time_to_threshold(result: GroupResult, key: str) -> tuple[str, str, str]:
    """Return name, median and single values of a time to the threshold; empty texts without a threshold."""
    time_axis = TO_THRESHOLD[key]
    found = result.reached.get(time_axis.key)
    if found is None:
        return "", "", ""
    each = [
        window_text(time_axis, v / time_axis.scale) if math.isfinite(v) else MISSING
        for v in result.values[key].tolist()
    ]
    return threshold_name(BY_KEY[key], found), reached_text(time_axis, found), ", ".join(each)


def _winners(game: GameResult) -> Iterator[str]:
    """Yield for each tested metric the leader, its margin, and whether the test confirms the margin."""
    for key in TESTED:
        ranking = rank_in_game(game, key)
        if ranking is None or len(game.groups) < 2:
            continue
        pairs = [pair for pair in game.pairs if pair.metric == key]
        yield from _field(BY_KEY[key].title, winner_text(ranking, pairs, BY_KEY[key]))


def _winners_over_games(comparison: Comparison) -> Iterator[str]:
    assert comparison.across is not None
    for key in NORMALISED:
        ranking = rank_over_games(comparison, key)
        if ranking is None or len(comparison.labels) < 2:
            continue
        pairs = [pair for pair in comparison.across.pairs if pair.metric == key]
        metric = score_metric(key)
        yield from _field(metric.title, winner_text(ranking, pairs, metric))


def winner_text(ranking: Ranking, pairs: Sequence[Pair], metric: Metric) -> str:
    """Describe the winner in one metric, with the margin; `pairs` are the tests of this metric."""
    lacking = "did not reach it with every seed" if metric.key in TO_THRESHOLD else "no value"
    others = f"; {lacking}: {', '.join(ranking.missing)}" if ranking.missing else ""
    if ranking.runner_up is None:
        return f"no winner: {ranking.leader} is the only group{others}"
    if ranking.tied:
        return f"no winner: {', '.join([ranking.leader, *ranking.tied])} are equal{others}"
    margin = [value_text(metric, ranking.margin), margin_interval(ranking, pairs, metric), metric.unit]
    ahead = f"ahead of {ranking.runner_up} by {' '.join(filter(None, margin))}"
    if ranking.won:
        against = "the others" if ranking.missing else "every other group"
        p = p_text(max(p for _, p in ranking.beaten))
        return f"{ranking.leader}, {ahead} ({p} against {against}){others}"
    doubt = []
    if ranking.open:
        doubt.append(f"not distinguishable from {', '.join(ranking.open)}")
    if ranking.untested:
        doubt.append(
            f"no test against {', '.join(ranking.untested)} (a test needs two seeds each and some variance)"
        )
    return f"no winner shown: {ranking.leader} is {ahead}, but {'; '.join(doubt)}{others}"


def margin_interval(ranking: Ranking, pairs: Sequence[Pair], metric: Metric) -> str:
    """Return Welch's 95 % interval of the leader's margin over the runner-up; empty without a test."""
    both = {ranking.leader, ranking.runner_up}
    test = next(
        (pair for pair in pairs if {pair.first, pair.second} == both and pair.welch is not None), None
    )
    if test is None or test.welch is None:
        return ""
    ends = [test.welch.low, test.welch.high]
    if (test.first == ranking.leader) != (
        metric.better > 0
    ):  # the sign of the test is opposite to that of the margin
        ends = [-end for end in reversed(ends)]
    return f"[{value_text(metric, ends[0])}, {value_text(metric, ends[1])}]"
