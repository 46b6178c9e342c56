"""The tuner with a made-up training program: equal effort, pruning, failures, and stopping and continuing."""

from __future__ import annotations

import csv
import json
import signal
import statistics
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml

from rlcb.config.yaml_file import build_config, read_config_files
from rlcb.errors import Interrupted, RunError
from rlcb.paths import default_config_path
from rlcb.tuning import tuner
from rlcb.tuning.score import BUDGET_PARTS
from rlcb.tuning.search import STARTUP_TRIALS, WARMUP_PARTS, TrialResult
from tests.tuning_scene import STEPS, Scene, scene

__all__ = ["scene"]


def score(quality: float) -> float:
    """The score of a made-up run: 50 episodes in a part, so 100 in the window of two parts; starpilot."""
    return (2 * STEPS * quality / 100 - 2.5) / (64 - 2.5)


def stored(scene: Scene, algorithm: str) -> list[Any]:
    """The trials of an algorithm, read from the file by Optuna alone."""
    storage = f"sqlite:///{scene.root / 'optuna.db'}"
    return optuna.load_study(study_name=algorithm, storage=storage).trials


def of(results: list[TrialResult], algorithm: str) -> list[TrialResult]:
    return [result for result in results if result.algorithm == algorithm]


def test_every_algorithm_gets_the_same_number_of_trials_with_the_same_budget_in_turn(scene: Scene) -> None:
    scene.run()
    assert scene.calls == [(name, trial, False) for trial in range(3) for name in ("ppo", "a2c")]
    for algorithm in ("ppo", "a2c"):
        trials = stored(scene, algorithm)
        assert [trial.state.name for trial in trials] == ["COMPLETE"] * 3
        assert [trial.value for trial in trials] == pytest.approx([score(0.1)] * 3)
        assert [run["seconds"] for trial in trials for run in trial.user_attrs["runs"].values()] == [2880] * 3
        for trial in trials:
            assert sorted(trial.intermediate_values) == list(range(BUDGET_PARTS))


def test_the_first_trial_trains_with_the_default_settings_and_later_ones_with_their_own(scene: Scene) -> None:
    results = scene.run().results()
    for result in of(results, "a2c"):
        place = scene.folder.trial_folder("a2c", result.number) / "starpilot_seed1"
        trained = build_config(yaml.safe_load((place / "config.yaml").read_text()), "test")
        base = read_config_files([default_config_path("a2c", "sequential")], "a2c", "sequential")
        default = build_config(base, "test").training
        if result.number == 0:
            assert (
                trained.training.model_copy(
                    update={
                        "seed": default.seed,
                        "total_timesteps": default.total_timesteps,
                        "duration_hours": None,
                    }
                )
                == default
            )
        else:
            assert trained.training.learning_rate == result.settings["training.learning_rate"]
            assert trained.training.learning_rate != default.learning_rate
        assert trained.env.id == "procgen-starpilot-v0"
        assert trained.training.duration_hours == 0.8
        assert trained.training.total_timesteps is None


def test_the_first_trial_has_default_settings_also_where_no_parameter_stands_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("when: {ppo: {training: {ent_coef: 0.0, batch_size: 1000}}}\n")
    given = {"algorithms": ["ppo"], "trials": 1, "config": {"ppo": str(file)}}
    (result,) = Scene(tmp_path / "t", monkeypatch, **given).run().results()
    assert (result.settings["training.ent_coef"], result.settings["training.batch_size"]) == (0.0, 1000)


def test_algorithms_draw_the_same_random_numbers_where_they_have_the_same_range(scene: Scene) -> None:
    ppo, a2c = (of(scene.run().results(), name) for name in ("ppo", "a2c"))
    for one, other in zip(ppo[1:], a2c[1:], strict=True):
        assert one.settings["training.learning_rate"] == other.settings["training.learning_rate"]
    assert ppo[1].settings["training.learning_rate"] != ppo[2].settings["training.learning_rate"]


def test_the_best_settings_are_written_as_an_overlay_that_config_takes(scene: Scene) -> None:
    scene.quality = lambda algorithm, trial, config: 0.1 + 0.05 * (trial == 2)
    results = scene.run().results()
    for algorithm in ("ppo", "a2c"):
        best = of(results, algorithm)[2]
        assert best.score == pytest.approx(score(0.15))
        files = [default_config_path(algorithm, "sequential"), scene.root / f"{algorithm}.yaml"]
        for paths in (files, files[1:]):
            config = build_config(read_config_files(paths, algorithm, "sequential"), "test")
            assert config.training.learning_rate == best.settings["training.learning_rate"]
            assert config.training.n_steps == best.settings["training.n_steps"]
    summary = json.loads((scene.root / "tuning.json").read_text())
    assert summary["algorithms"]["ppo"]["best_trial"] == 3
    assert summary["algorithms"]["ppo"]["default_score"] == pytest.approx(score(0.1))
    assert summary["algorithms"]["ppo"]["best_score"] == pytest.approx(score(0.15))
    assert summary["algorithms"]["ppo"]["seconds"] == 3 * 2880
    with (scene.root / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["algorithm"], row["trial"]) for row in rows[:3]] == [
        ("ppo", "1"),
        ("ppo", "2"),
        ("ppo", "3"),
    ]
    assert float(rows[2]["score"]) == pytest.approx(score(0.15))
    assert (
        float(rows[2]["training.learning_rate"]) == of(results, "ppo")[2].settings["training.learning_rate"]
    )


def test_the_default_wins_if_nothing_is_better(scene: Scene) -> None:
    scene.quality = lambda algorithm, trial, config: 0.3 - 0.1 * trial
    scene.run()
    summary = json.loads((scene.root / "tuning.json").read_text())["algorithms"]
    assert {each["best_trial"] for each in summary.values()} == {1}


def test_a_failed_trial_is_recorded_with_its_reason_counts_as_a_trial_and_stops_nothing(scene: Scene) -> None:
    scene.failing = {("ppo", 0), ("a2c", 1)}
    results = scene.run().results()
    assert [result.state for result in of(results, "ppo")] == ["failed", "complete", "complete"]
    assert [result.state for result in of(results, "a2c")] == ["complete", "failed", "complete"]
    assert of(results, "a2c")[1].reason == "starpilot_seed1: the world ended"
    assert [trial.state.name for trial in stored(scene, "a2c")] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert "starpilot_seed1: the world ended" in (scene.root / "trials.csv").read_text()
    summary = json.loads((scene.root / "tuning.json").read_text())["algorithms"]
    assert summary["ppo"]["default_score"] is None
    assert summary["a2c"]["trials"] == {"complete": 2, "pruned": 0, "failed": 1, "running": 0}


def test_a_trial_below_the_median_is_told_to_stop_and_ends_as_pruned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = STARTUP_TRIALS + 3
    scene = Scene(tmp_path / "t", monkeypatch, algorithms=["a2c"], trials=trials)
    qualities = [0.1, 0.2, 0.3, 0.4, 0.5, 0.25, 0.6, 0.05]
    scene.quality = lambda algorithm, trial, config: qualities[trial]
    results = scene.run().results()
    expected = ["complete"] * STARTUP_TRIALS
    for trial in range(STARTUP_TRIALS, trials):  # the median is over all earlier trials that got as far
        expected.append("pruned" if qualities[trial] < statistics.median(qualities[:trial]) else "complete")
    assert [result.state for result in results] == expected
    assert expected.count("pruned") == 2
    for result in results:
        parts = BUDGET_PARTS if result.state == "complete" else WARMUP_PARTS
        place = scene.folder.trial_folder("a2c", result.number) / "starpilot_seed1"
        assert scene.parts[place] == parts
        assert result.seconds == parts * 360
    assert results[5].score == pytest.approx(score(0.25))  # of its last part
    assert json.loads((scene.root / "tuning.json").read_text())["algorithms"]["a2c"]["best_trial"] == 7


@pytest.mark.parametrize("pruner", ["none", "halving"])
def test_other_pruners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pruner: str) -> None:
    scene = Scene(tmp_path / "t", monkeypatch, algorithms=["a2c"], trials=9, pruner=pruner)
    scene.quality = lambda algorithm, trial, config: 0.9 - 0.1 * trial
    states = [result.state for result in scene.run().results()]
    assert states[0] == "complete"
    assert states.count("pruned") == (0 if pruner == "none" else 8)


def test_a_stopped_tuning_continues_with_the_same_trial_and_chooses_what_it_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Scene(tmp_path / "whole", monkeypatch, sampler="tpe", trials=7)
    whole.quality = lambda algorithm, trial, config: config["training"]["learning_rate"] * 100
    expected = [(each.algorithm, each.number, each.settings, each.score) for each in whole.run().results()]

    scene = Scene(tmp_path / "parts", monkeypatch, sampler="tpe", trials=7)
    scene.quality = whole.quality
    scene.stop_during = ("a2c", 5, 1)
    with pytest.raises(Interrupted) as interruption:
        scene.run()
    assert interruption.value.signal_number == signal.SIGINT
    assert stored(scene, "a2c")[5].state.name == "RUNNING"
    assert len(stored(scene, "ppo")) == 6
    before, scene.stop_during = len(scene.calls), None
    scene.open()
    results = scene.run().results()
    assert scene.calls[before] == ("a2c", 5, True)
    assert scene.calls[before + 1 :] == [("ppo", 6, False), ("a2c", 6, False)]
    found = [(each.algorithm, each.number, each.settings, each.score) for each in results]
    assert found == expected
    assert {result.state for result in results} <= {"complete", "pruned"}


def test_nothing_is_trained_again_in_a_finished_tuning_and_more_trials_extend_it(scene: Scene) -> None:
    scene.run()
    scene.calls.clear()
    scene.open()
    scene.run()
    assert scene.calls == []
    scene.given["trials"] = 4
    scene.open()
    scene.run()
    assert scene.calls == [("ppo", 3, False), ("a2c", 3, False)]


def test_a_trial_averages_its_runs_on_one_scale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(
        tmp_path / "t", monkeypatch, algorithms=["a2c"], trials=1, envs=["starpilot", "coinrun"], seeds=[1, 2]
    )
    games = {"procgen-starpilot-v0": 0.6, "procgen-coinrun-v0": 0.4}
    scene.quality = lambda algorithm, trial, config: (
        games[config["env"]["id"]] + config["training"]["seed"] / 10
    )
    (result,) = scene.run().results()
    returns = {name: 2 * STEPS * q / 100 for name, q in (("s1", 0.7), ("c1", 0.5), ("s2", 0.8), ("c2", 0.6))}
    scores = {name: (v - 2.5) / 61.5 if name[0] == "s" else (v - 5) / 5 for name, v in returns.items()}
    assert result.score == pytest.approx(statistics.fmean(scores.values()))
    assert list(result.runs) == ["starpilot_seed1", "coinrun_seed1", "starpilot_seed2", "coinrun_seed2"]
    assert result.runs["coinrun_seed2"]["return"] == pytest.approx(returns["c2"])
    (trial,) = stored(scene, "a2c")
    assert len(trial.intermediate_values) == 4 * BUDGET_PARTS
    after_two = [scores["s1"], scores["c1"]]
    assert trial.intermediate_values[2 * BUDGET_PARTS - 1] == pytest.approx(statistics.fmean(after_two))


def test_a_run_that_another_process_stops_is_neither_pruned_nor_failed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scene.run_logged

    def stopped(*arguments: Any) -> int:
        code = real(*arguments)
        (arguments[1].parent / "benchmark_metrics.json").write_text('{"status": "interrupted"}')
        return code

    monkeypatch.setattr(tuner, "run_logged", stopped)
    with pytest.raises(RunError, match="was stopped by another process"):
        scene.run()
    assert stored(scene, "ppo")[0].state.name == "RUNNING"


def test_a_run_that_a_signal_killed_fails_with_its_name(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuner, "run_logged", lambda *arguments: -9)
    results = scene.run().results()
    assert {result.reason for result in results} == {"starpilot_seed1: killed by signal 9 (SIGKILL)"}
