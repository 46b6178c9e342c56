"""The answer: a sentence to act on, whose numbers equal independent calculations."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from rlcb.comparison.answer import answer, answers
from rlcb.comparison.exports import json_data
from rlcb.comparison.findings import findings
from rlcb.comparison.lost import LostRun
from rlcb.comparison.text_report import terminal
from rlcb.files import strict_json
from tests.comparison_run_folders import RunSet, evaluation, line

SEQUENTIAL, PARALLEL = "PPO sequential", "PPO parallel"


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path / "runs")


def add(study: RunSet, returns: dict[str, list[float]], training: float = 5.0, **changes: object) -> None:
    """Runs of ten minutes whose training return is `training` and whose return on unseen levels is given."""
    for mode, each in returns.items():
        for seed, unseen in enumerate(each):
            path = study.add(line(training, training, 6000, 600), mode=mode, seed=seed, **changes)
            evaluation(path, training, unseen)


def flat(text: str) -> str:
    return " ".join(text.split())


class TestSentence:
    def test_a_winner_has_margin_interval_basis_and_advice(self, study: RunSet) -> None:
        better, worse = [9.0, 9.1, 9.2], [6.5, 6.8, 7.1]
        add(study, {"sequential": worse, "parallel": better})
        interval = stats.ttest_ind(better, worse, equal_var=False).confidence_interval(0.95)
        assert answer(study.compare()) == (
            "PPO parallel returned 9.10 on unseen levels of coinrun, 2.30 more than PPO sequential "
            f"(95 % interval {interval.low:.2f} to {interval.high:.2f}; 3 seeds each, 100 episodes a seed): "
            "choose it for runs of 10.0 minutes on this machine."
        )

    def test_without_a_winner_it_says_what_can_be_shown(self, study: RunSet) -> None:
        first, second = [5.0, 7.0, 9.0], [6.0, 8.0, 9.4]
        add(study, {"sequential": first, "parallel": second})
        test = stats.ttest_ind(second, first, equal_var=False)
        interval = test.confidence_interval(0.95)
        # The smallest difference that the test detects with a probability of 0.8: found by bisection.
        error = math.sqrt(np.var(first, ddof=1) / 3 + np.var(second, ddof=1) / 3)
        low, high = 0.0, 100.0
        for _ in range(60):
            middle = (low + high) / 2
            power = stats.nct.sf(stats.t.ppf(0.975, test.df), test.df, middle / error)
            low, high = (middle, high) if power < 0.8 else (low, middle)
        assert answer(study.compare()) == (
            "No group is shown to be best on unseen levels of coinrun. PPO parallel (7.80) is 0.80 ahead of "
            f"PPO sequential (7.00), 95 % interval {interval.low:.2f} to {interval.high:.2f}; 3 seeds each "
            f"can show differences of {high:.2f} or more. Choose either, or add seeds."
        )

    def test_an_interval_without_zero_is_no_winner_among_many_tests(self, study: RunSet) -> None:
        # The test against the second group has p = 0.03; as one of three tests 0.09.
        first, second, third = [5.6, 6.6, 7.2], [3.6, 4.0, 5.0], [1.0, 1.4, 5.0]
        add(study, {"parallel": first, "sequential": second, "distributed": third})
        alone = stats.ttest_ind(first, second, equal_var=False)
        assert alone.pvalue < 0.05 and alone.confidence_interval(0.95).low > 0
        (found,) = answers(study.compare())
        assert found.leader == PARALLEL and found.rival == SEQUENTIAL and not found.best
        assert found.p_holm == pytest.approx(3 * alone.pvalue)
        assert f"by itself, but p = {3 * alone.pvalue:.3f} adjusted for 3 tests" in found.sentence
        assert "Choose any of PPO parallel, PPO sequential and PPO distributed, or add" in found.sentence

    def test_one_seed_shows_nothing(self, study: RunSet) -> None:
        add(study, {"sequential": [5.0], "parallel": [9.0]})
        assert answer(study.compare()) == (
            "PPO parallel returned 9.00 on unseen levels of coinrun, 4.00 more than PPO sequential (1 seed "
            "each, 100 episodes a seed), but is not shown to be better, because one seed shows no "
            "difference: run at least three."
        )

    def test_a_single_group(self, study: RunSet) -> None:
        add(study, {"sequential": [5.0, 6.0, 7.0]})
        text = answer(study.compare())
        assert text.startswith("PPO sequential returned 6.00 on unseen levels of coinrun (95 % interval 5.")
        assert text.endswith("3 seeds, 100 episodes a seed), with nothing to compare.")

    def test_equal_means(self, study: RunSet) -> None:
        add(study, {"sequential": [5.0, 7.0], "parallel": [6.0, 6.0]})
        assert answer(study.compare()).startswith(
            "No winner on unseen levels of coinrun: PPO sequential and "
        )

    def test_without_evaluations_it_uses_training_returns_and_says_so(self, study: RunSet) -> None:
        study.add_ends({"sequential": [5.0, 5.1, 5.2], "parallel": [9.0, 9.1, 9.2]})
        comparison = study.compare()
        assert "PPO parallel returned 9.10 in training on coinrun after 1.7 minutes, 4.00 more" in answer(
            comparison
        )
        assert "3 seeds each, unseen levels were not evaluated): choose it" in answer(comparison)
        assert findings(comparison)[0].place == "coinrun, training at equal wall clock (1.7 minutes)"
        text = flat(terminal(comparison))
        assert (
            "No run was evaluated on coinrun" in text
            and "--evaluate-episodes" in text
            and "evaluate_universal.py" in text
        )

    def test_different_budgets_are_no_reason_to_choose(self, study: RunSet) -> None:
        for mode, seconds, unseen in (("sequential", 600, 5.0), ("parallel", 1200, 9.0)):
            for seed in range(3):
                path = study.add(line(5, 5, 10 * seconds, seconds), mode=mode, seed=seed)
                evaluation(path, 5, unseen + seed / 10)
        assert "but the runs had different budgets, so this is no fair comparison." in answer(study.compare())
        assert (
            findings(study.compare())[0].place == "coinrun, unseen levels after 10.0 minutes to 20.0 minutes"
        )

    def test_equal_timesteps_are_a_budget_too(self, study: RunSet) -> None:
        for mode, seconds, unseen in (("sequential", 600, 5.0), ("parallel", 300, 9.0)):
            for seed in range(3):
                path = study.add(line(5, 5, 500_000, seconds), mode=mode, seed=seed)
                evaluation(path, 5, unseen + seed / 10)
        assert answer(study.compare()).endswith("choose it for runs of 500k timesteps on this machine.")

    def test_over_games_it_rests_on_scores(self, study: RunSet) -> None:
        for env in ("procgen-coinrun-v0", "procgen-maze-v0"):  # both have a range of 5
            add(study, {"sequential": [6.0, 6.1], "parallel": [8.0, 8.1]}, env=env)
        (found,) = answers(study.compare())
        assert found.place == "coinrun and maze" and found.leader == PARALLEL and found.best
        assert found.difference == pytest.approx(2 / 5)
        assert found.sentence.startswith(
            "PPO parallel had a normalised score of 0.610 on unseen levels of coinrun and maze, 0.400 more "
        )

    def test_games_without_scores_have_an_answer_each(self, study: RunSet) -> None:
        for env in ("CartPole-v1", "Acrobot-v1"):
            study.add_ends({"sequential": [5.0, 5.1], "parallel": [9.0, 9.1]}, env=env)
        assert [each.place for each in answers(study.compare())] == ["CartPole-v1", "Acrobot-v1"]


def test_lost_seeds_and_warnings_stand_in_the_answer(study: RunSet) -> None:
    add(study, {"sequential": [5.0, 5.1, 5.2], "parallel": [9.0, 9.1, 9.2]})
    lost = LostRun(study.root / "x", "failed", "ppo", "parallel", "procgen-coinrun-v0", 7)
    comparison = study.compare(lost=[lost])
    assert "Lost seeds bias this: PPO parallel has 3 of 4." in answer(comparison)
    study.add(line(5, 5, 6000, 600, **{"train/entropy": 0.01}), mode="parallel", seed=9)
    evaluation(study.paths[-1], 5, 9.0)
    assert answer(study.compare()).endswith("First read what the warnings say about PPO parallel.")


def test_it_stands_on_top_of_the_text_and_in_the_json(study: RunSet) -> None:
    add(study, {"sequential": [6.5, 6.8, 7.1], "parallel": [9.0, 9.1, 9.2]})
    comparison = study.compare()
    assert flat("\n".join(terminal(comparison).splitlines()[3:6])) in answer(comparison)
    data = json.loads(json.dumps(strict_json(json_data(comparison, {}))))
    assert data["answer"] == answer(comparison)
    (found,) = data["answers"]
    assert found["leader"] == PARALLEL and found["best"] and found["rival"] == SEQUENTIAL
    assert found["difference"] == pytest.approx(2.3) and found["ci95"][0] > 0
    assert data["findings"][0]["place"] == "coinrun, unseen levels after 10.0 minutes"
