"""Warnings stand beside the findings in every output, and only where something is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlcb.cli.compare import main
from rlcb.comparison.analysis import Comparison
from rlcb.comparison.statistics import Sample, difference_p
from rlcb.comparison.warnings import COLLAPSED, cautions, finished_share
from tests.comparison_run_folders import RunSet, episodes, evaluation, line, row

GENERAL = {"one_seed", "few_seeds", "not_evaluated"}


@pytest.fixture
def study(tmp_path: Path) -> RunSet:
    return RunSet(tmp_path / "runs")


def kinds(comparison: Comparison) -> dict[str, str]:
    """The text of each kind of warning about a group."""
    return {each.kind: str(each) for each in cautions(comparison) if each.kind not in GENERAL}


def add_stuck_run(study: RunSet) -> Path:
    """IMPALA on coinrun as it was found once: a training return of 4.18 from early, short episodes, no
    episode that finished later, an entropy of 0.18, and an evaluation that always ran to the limit."""
    rows = []
    for i in range(1, 41):
        finished = min(i, 12)  # 36 short episodes an update, then none
        changes = {
            "rollout/episodes": 36 * finished,
            "rollout/ep_length_mean": 110.0,
            "rollout/ep_reward_std": 4.95,
        }
        rows.append(row(4096 * i, 1.5 * i, 4.18, **changes, **{"train/entropy": max(0.18, 2.6 - 0.1 * i)}))
    path = study.add(rows, "impala", mode="parallel", settings={"training.ent_coef": 0.001})
    split = episodes([0.0] * 50, [1000] * 50)
    evaluation(path, 0, 0, splits={"train": split, "test": split}, episodes_per_split=50, num_actions=15)
    return path


class TestStuckPolicy:
    def test_every_warning_is_given(self, study: RunSet) -> None:
        add_stuck_run(study)
        found = kinds(study.compare())
        assert set(found) == {"disagree", "entropy", "step_limit", "unfinished_episodes"}
        # 100 episodes with a standard deviation of 4.95: Student's 97.5 % of 99 degrees of freedom.
        half = stats.t.ppf(0.975, 99) * 4.95 / 10
        interval = f"4.18 [{4.18 - half:.2f}, {4.18 + half:.2f}] and 0.00 [0.00, 0.00] with seed 1"
        assert interval in found["disagree"] and found["disagree"].startswith("IMPALA parallel, coinrun: ")
        assert f"0.18 nats with seed 1, {0.18 / math.log(15):.0%} of the highest" in found["entropy"]
        assert "100 of 100 at 1,000 steps with seed 1" in found["step_limit"]
        assert "0% of its timesteps with seed 1" in found["unfinished_episodes"]

    def test_they_stand_in_the_text_the_page_and_the_json(
        self, study: RunSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        add_stuck_run(study)
        healthy = study.add(line(4, 6, 160_000, 60))
        evaluation(healthy, 6, 6)
        assert (
            main(
                ["--runs", str(study.root), "--output", str(tmp_path / "c.png"), "--bootstrap-samples", "100"]
            )
            == 0
        )
        printed = " ".join(capsys.readouterr().out.split())
        written = [(tmp_path / f"c{end}").read_text() for end in (".html", ".md", "_report.txt")]
        data = json.loads((tmp_path / "c.json").read_text())
        assert {each["group"] for each in data["warnings"] if each["kind"] not in GENERAL} == {
            "IMPALA parallel"
        }
        for text in (printed, *(" ".join(each.split()) for each in written)):
            for part in (
                "same levels disagree",
                "policy collapsed",
                "ran to the step limit",
                "make up a small part",
            ):
                assert part in text, part


class TestDisagreement:
    def add(
        self, study: RunSet, training: float, evaluated: float, spread: float = 4.0, **changes: Any
    ) -> Comparison:
        path = study.add(line(training, training, 6000, 600, **{"rollout/ep_reward_std": spread}))
        evaluation(path, evaluated, 5.0, **changes)
        return study.compare()

    # Both means are of 100 episodes with a standard deviation of 4: the difference has an error of 0.57.
    @pytest.mark.parametrize(("evaluated", "differ"), [(6.0, False), (7.0, False), (7.3, True), (4.7, True)])
    def test_by_hand(self, study: RunSet, evaluated: float, differ: bool) -> None:
        assert ("disagree" in kinds(self.add(study, 6.0, evaluated))) == differ
        assert differ == (2 * stats.t.sf(abs(evaluated - 6) / (4 * math.sqrt(2 / 100)), 198) < 0.05)

    def test_many_runs_are_adjusted(self, study: RunSet) -> None:
        for seed in range(10):
            path = study.add(line(6, 6, 6000, 600), seed=seed)
            evaluation(path, 7.3 if seed == 3 else 6.0, 5.0)
        assert "disagree" not in kinds(study.compare())  # p = 0.02 in one of ten runs

    def test_deterministic_and_older_evaluations_are_not_compared(self, study: RunSet) -> None:
        assert "disagree" not in kinds(self.add(study, 6.0, 9.0, deterministic=True))
        study.paths = []
        study.root /= "older"
        assert "disagree" not in kinds(self.add(study, 6.0, 9.0, timesteps=3000))

    def test_p_equals_scipys(self) -> None:
        random = np.random.default_rng(1)
        first, second = random.normal(5, 2, 30), random.normal(6, 4, 12)
        samples = [Sample(float(x.mean()), float(x.std(ddof=1)), len(x)) for x in (first, second)]
        assert difference_p(*samples) == pytest.approx(stats.ttest_ind(first, second, equal_var=False).pvalue)
        assert samples[0].interval == pytest.approx(
            stats.t.interval(0.95, 29, first.mean(), stats.sem(first))
        )


class TestEntropy:
    def test_threshold(self, study: RunSet) -> None:
        limit = COLLAPSED * math.log(15)
        study.add(line(4, 6, 6000, 600, **{"train/entropy": limit + 0.01}))
        assert "entropy" not in kinds(study.compare())
        study.add(line(4, 6, 6000, 600, **{"train/entropy": limit - 0.01}), seed=2)
        assert "seed 2" in kinds(study.compare())["entropy"]

    def test_number_of_actions_of_other_environments(self, study: RunSet) -> None:
        rows = [
            row(100 * i, 10.0 * i, 9.0, **{"train/entropy": math.log(2) if i == 1 else 0.08})
            for i in range(1, 9)
        ]
        study.add(rows, env="CartPole-v1")
        assert "entropy" not in kinds(study.compare())  # 0.08 is above a tenth of log(2)
        evaluation(study.paths[0], 9, 9, num_actions=15)
        assert "entropy" in kinds(study.compare())

    def test_what_the_guide_says_of_it(self) -> None:
        share = 0.96
        entropy = -share * math.log(share) - 0.04 * math.log(0.04 / 14)
        assert entropy / math.log(15) == pytest.approx(COLLAPSED, abs=0.002)


class TestStepLimit:
    def limited(self, study: RunSet, rewards: list[float], lengths: list[int], training: float) -> bool:
        path = study.add(line(training, training, 6000, 600), env="CartPole-v1")
        evaluation(path, 0, 0, splits={"full": episodes(rewards, lengths)})
        return "step_limit" in kinds(study.compare())

    def test_survival_is_success(self, study: RunSet) -> None:
        assert not self.limited(study, [500.0] * 50, [500] * 50, 480.0)

    def test_survivors_below_the_others_are_stuck(self, study: RunSet) -> None:
        assert self.limited(study, [3.0] * 30 + [8.0] * 20, [500] * 30 + [200] * 20, 3.0)

    def test_half_of_the_episodes_is_not_most(self, study: RunSet) -> None:
        assert not self.limited(study, [0.0] * 25 + [8.0] * 25, [500] * 25 + [200] * 25, 4.0)

    def test_penalties_until_the_limit(self, study: RunSet) -> None:
        assert self.limited(study, [-200.0] * 20, [200] * 20, -200.0)


class TestEpisodes:
    def test_share_of_finished_episodes_by_hand(self, study: RunSet) -> None:
        # The last third begins at 600 timesteps; 3 episodes of 100 finish in the 300 timesteps after it.
        counts = {300: 100, 600: 101, 750: 102, 900: 104}
        rows = [
            row(t, t / 10, 5.0, **{"rollout/episodes": n, "rollout/ep_length_mean": 100.0})
            for t, n in counts.items()
        ]
        (result,) = [group for game in self.compared(study, rows).games for group in game.groups]
        assert finished_share(result.group.runs[0]) == pytest.approx(1.0)

    def compared(self, study: RunSet, rows: list[dict[str, Any]]) -> Comparison:
        study.add(rows)
        return study.compare()

    def test_few_episodes_are_counted_where_returns_are_compared(self, study: RunSet) -> None:
        rows = [row(100 * i, 10.0 * i, 5.0, **{"rollout/episodes": 3 * i}) for i in range(1, 11)]
        assert "30 at equal timesteps with seed 1" in kinds(self.compared(study, rows))["few_episodes"]

    def test_nothing_is_wrong_with_many_finished_episodes(self, study: RunSet) -> None:
        assert kinds(self.compared(study, line(4, 6, 160_000, 600))) == {}
