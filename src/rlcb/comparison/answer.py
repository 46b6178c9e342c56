"""The answer of a comparison: a sentence that a person can act on, with its uncertainty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlcb.comparison import rounds
from rlcb.comparison.analysis import Comparison, GameResult, Pair
from rlcb.comparison.findings import (
    Estimates,
    Ranking,
    effort,
    episodes_of,
    estimates_of,
    evaluated_on,
    missing_seeds,
    planned_over_games,
    rank_in_game,
    rank_over_games,
    scores_of,
    seeds_text,
)
from rlcb.comparison.format import interval_words, listed, p_text, value_text, window_text
from rlcb.comparison.groups import machine_of
from rlcb.comparison.metrics import BY_KEY, TIME_AXES, Metric, score_metric
from rlcb.comparison.sequential_test import Decision
from rlcb.comparison.statistics import Welch, detectable_difference
from rlcb.comparison.warnings import OF_TRAINING, cautions
from rlcb.text import counted


class Answer(NamedTuple):
    """The answer for one game, or over all games. Differences are the leader's mean minus the rival's."""

    sentence: str
    place: str
    """The game, or the games over which scores were averaged."""
    metric: str | None = None
    leader: str | None = None
    """The group with the highest mean."""
    best: bool = False
    """Whether the leader is shown to be better than every other group with a value."""
    rival: str | None = None
    """The next group; if the leader is not the best, the next group from which it cannot be distinguished."""
    difference: float | None = None
    ci95: tuple[float, float] | None = None
    p_holm: float | None = None
    detectable: float | None = None
    """The smallest true difference from the rival that these seeds detect four times out of five."""


class _Case(NamedTuple):
    """What an answer is made from: a ranking with its numbers, and the words around them."""

    games: tuple[str, ...]
    metric: Metric
    ranking: Ranking
    estimates: Estimates
    planned: Mapping[str, int]
    pairs: Sequence[Pair]
    returned: str
    """What a group did, with `{}` for the value: `returned {} on unseen levels of starpilot`."""
    what: str
    """Where groups are compared: `on unseen levels of starpilot`."""
    basis: str
    """The episodes of each seed."""
    effort: str
    """The budget of the runs; empty if they had different ones."""


def answers(comparison: Comparison) -> list[Answer]:
    """Return the answer over all games if their scores can be averaged, else the answer of each game.

    They rest on the evaluations on unseen levels if at least two groups have them, or else on the training
    return at equal wall clock.
    """
    case = None if comparison.options.decisions else _over_games(comparison)
    if case is not None:
        return [_answer(case, comparison)]
    return [answer_in(game, comparison) for game in comparison.games]


def answer(comparison: Comparison) -> str:
    """Return the answer of a comparison as one sentence or a few."""
    return " ".join(each.sentence for each in answers(comparison))


def answer_in(game: GameResult, comparison: Comparison) -> Answer:
    """Return the answer of one game."""
    case = _evaluation_case(game)
    decision = game.decision(comparison.options)
    if decision is not None and case is not None:
        return _settled(case, decision, comparison)
    if case is None or (case.ranking.runner_up is None and len(game.groups) > 1):
        training = _training_case(game)
        case = training if training is not None else case
    if case is None:
        return Answer(f"No return can be compared on {game.game}.", game.game)
    return _answer(case, comparison)


def _settled(case: _Case, decision: Decision, comparison: Comparison) -> Answer:
    """Return the answer of the sequential test of a study that added seeds in rounds."""
    means = {label: each.mean for label, each in case.estimates.items() if each is not None}
    choose = f"choose it for runs of {case.effort}" if case.effort else ""
    text = rounds.sentence(
        decision, means, case.what, f"{counted(decision.rounds, 'seed')}, {case.basis}", choose
    )
    first, rival = decision.open[0], decision.lead.second if decision.lead is not None else None
    caution = missing_seeds(case.estimates, case.planned)
    said = " ".join(filter(None, [text, caution, _to_read(case, rival, comparison)]))
    facts = (said, listed(case.games), case.metric.key, first, decision.winner is not None, rival)
    if decision.lead is None:
        return Answer(*facts)
    return Answer(*facts, decision.lead.difference, decision.lead.interval)


def _case_of(game: GameResult, key: str, ranking: Ranking, **words: str) -> _Case:
    """Return the case of a metric in a game; `words` are the fields of _Case after its numbers."""
    pairs = [pair for pair in game.pairs if pair.metric == key]
    return _Case((game.game,), BY_KEY[key], ranking, estimates_of(game, key), game.planned, pairs, **words)


def _evaluation_case(game: GameResult) -> _Case | None:
    metric = game.evaluated
    ranking = rank_in_game(game, metric) if metric is not None else None
    if metric is None or ranking is None:
        return None
    on = evaluated_on(game)
    where = f"in the evaluation on {game.game}" if on == "evaluation" else f"on {on} of {game.game}"
    text, equal = effort(game)
    return _case_of(
        game,
        metric,
        ranking,
        returned=f"returned {{}} {where}",
        what=where,
        basis=f"{episodes_of(game)} a seed",
        effort=text if equal else "",
    )


def _training_case(game: GameResult) -> _Case | None:
    time_axis, key = TIME_AXES[1], "return_at_wall_clock"
    ranking, window = rank_in_game(game, key), game.windows[time_axis.key]
    if ranking is None or window is None:
        return None
    at = window_text(time_axis, window.end)
    where = f"in training on {game.game}"
    return _case_of(
        game,
        key,
        ranking,
        returned=f"returned {{}} {where} after {at}",
        what=where,
        basis="unseen levels were not evaluated",
        effort=at,
    )


def _over_games(comparison: Comparison) -> _Case | None:
    across = comparison.across
    if across is None or len(across.games) < 2:
        return None
    labels = {key: len(across.scores[key]) for key in ("test_return", "return_at_wall_clock")}
    key = "test_return" if labels["test_return"] > 1 else "return_at_wall_clock"
    ranking = rank_over_games(comparison, key)
    if ranking is None:
        return None
    where = f"{'on unseen levels' if key == 'test_return' else 'in training'} of {listed(across.games)}"
    pairs = [pair for pair in across.pairs if pair.metric == key]
    games = [game for game in comparison.games if game.game in across.games]
    efforts = {effort(game) for game in games}
    text = efforts.pop()[0] if len(efforts) == 1 and all(equal for _, equal in efforts) else ""
    episodes = {episodes_of(game) for game in games}
    basis = f"{episodes.pop()} a seed" if key == "test_return" and len(episodes) == 1 else "over all games"
    return _Case(
        tuple(across.games),
        score_metric(key),
        ranking,
        scores_of(comparison, key),
        planned_over_games(comparison),
        pairs,
        returned=f"had a normalised score of {{}} {where}",
        what=where,
        basis=basis,
        effort=text,
    )


def _answer(case: _Case, comparison: Comparison) -> Answer:
    ranking, means = case.ranking, {k: each.mean for k, each in case.estimates.items() if each is not None}
    rival = _rival(ranking, means)
    pair = next((p for p in case.pairs if {p.first, p.second} == {ranking.leader, rival}), None)
    test = None if pair is None or pair.welch is None else _oriented(pair, ranking.leader)
    if rival is None:
        text = _alone(case)
    elif math.isclose(means[rival], means[ranking.leader]):
        text = f"No winner {case.what}: {ranking.leader} and {rival} have the same mean"
    elif test is None:
        text = _untested(case, rival, means)
    else:
        text = (
            _won(case, rival, test, comparison) if ranking.won else _undecided(case, rival, test, pair, means)
        )
    caution = missing_seeds(case.estimates, case.planned)
    sentence = " ".join(filter(None, [f"{text}.", caution, _to_read(case, rival, comparison)]))
    return Answer(
        *(sentence, listed(case.games), case.metric.key, ranking.leader, ranking.won, rival),
        None if rival is None else means[ranking.leader] - means[rival],
        None if test is None else (test.low, test.high),
        None if pair is None else pair.p_adjusted,
        None if test is None else _detectable(test, case.pairs),
    )


def _rival(ranking: Ranking, means: Mapping[str, float]) -> str | None:
    """Return the group to compare the leader with: the best one that it does not exceed, or else the next."""
    doubtful = [*ranking.open, *ranking.untested]
    return max(doubtful, key=lambda label: means[label]) if doubtful else ranking.runner_up


def _oriented(pair: Pair, leader: str) -> Welch:
    """Return the test of a pair as leader minus rival."""
    assert pair.welch is not None
    test = pair.welch
    if pair.first == leader:
        return test
    return test._replace(difference=-test.difference, low=-test.high, high=-test.low, t=-test.t)


def _detectable(test: Welch, pairs: Sequence[Pair]) -> float:
    tested = sum(pair.welch is not None for pair in pairs)
    return detectable_difference(test.error, test.degrees, tested)


def _value(case: _Case, value: float) -> str:
    return value_text(case.metric, value)


def _seeds(case: _Case, *labels: str) -> str:
    counts = [each.n for label in labels if (each := case.estimates[label]) is not None]
    return seeds_text(counts, over_games=len(case.games) > 1)


def _alone(case: _Case) -> str:
    leader = case.ranking.leader
    found = case.estimates[leader]
    assert found is not None
    interval = interval_words(case.metric, found.low, found.high)
    basis = "; ".join(filter(None, [interval, f"{_seeds(case, leader)}, {case.basis}"]))
    others = f"; {listed(case.ranking.missing)} has no value" if case.ranking.missing else ""
    returned = case.returned.format(_value(case, found.mean))
    return f"{leader} {returned} ({basis}), with nothing to compare{others}"


def _untested(case: _Case, rival: str, means: Mapping[str, float]) -> str:
    leader = case.ranking.leader
    value, margin = (_value(case, each) for each in (means[leader], means[leader] - means[rival]))
    few = min(each.n for label in (leader, rival) if (each := case.estimates[label]) is not None) < 2
    reason = "one seed shows no difference: run at least three" if few else "their seeds do not vary"
    return (
        f"{leader} {case.returned.format(value)}, {margin} more than {rival} ({_seeds(case, leader, rival)}, "
        f"{case.basis}), but is not shown to be better, because {reason}"
    )


def _won(case: _Case, rival: str, test: Welch, comparison: Comparison) -> str:
    leader = case.ranking.leader
    found = case.estimates[leader]
    assert found is not None
    next_best = f"the next best, {rival}" if len(case.ranking.beaten) > 1 else rival
    interval = interval_words(case.metric, test.low, test.high)
    machines = {machine_of(run) for result in comparison.results for run in result.group.runs}
    here = "this machine" if len(machines) == 1 else f"these {len(machines)} machines"
    choose = f"choose it for runs of {case.effort} on {here}"
    if not case.effort:
        choose = "but the runs had different budgets, so this is no fair comparison"
    return (
        f"{leader} {case.returned.format(_value(case, found.mean))}, {_value(case, test.difference)} more "
        f"than {next_best} ({interval}; {_seeds(case, leader, rival)}, {case.basis}): {choose}"
    )


def _undecided(case: _Case, rival: str, test: Welch, pair: Pair | None, means: Mapping[str, float]) -> str:
    leader, tested = case.ranking.leader, sum(each.welch is not None for each in case.pairs)
    interval = interval_words(case.metric, test.low, test.high)
    if test.low > 0 and pair is not None:
        interval += f" by itself, but {p_text(pair.p_adjusted)} adjusted for {counted(tested, 'test')}"
    beaten = [label for label, _ in case.ranking.beaten]
    but = f" {leader} is better than {listed(beaten)}." if beaten else ""
    doubtful = [leader, *case.ranking.open, *case.ranking.untested]
    choose = "either" if len(doubtful) == 2 else f"any of {listed(doubtful)}"
    group = "group" if len({label.split()[0] for label in means}) < len(means) else "algorithm"
    return (
        f"No {group} is shown to be best {case.what}. {leader} ({_value(case, means[leader])}) is "
        f"{_value(case, test.difference)} ahead of {rival} ({_value(case, means[rival])}), {interval}; "
        f"{_seeds(case, leader, rival)} can show differences of "
        f"{_value(case, _detectable(test, case.pairs))} or more.{but} Choose {choose}, or add seeds"
    )


def _to_read(case: _Case, rival: str | None, comparison: Comparison) -> str:
    """Return the advice to read the warnings about the leader and its rival; empty if there are none."""
    unseen = case.metric.key != "return_at_wall_clock"
    about = [
        each
        for each in cautions(comparison)
        if each.group in (case.ranking.leader, rival)
        and each.game in case.games
        and each.kind not in (*(OF_TRAINING if unseen else ()), "lost")  # lost seeds are named already
    ]
    names = list(dict.fromkeys(each.group for each in about))
    return f"First read what the warnings say about {listed(names)}." if names else ""
