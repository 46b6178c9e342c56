"""Exports: the exported policy is the checkpoint's, and the card says what the run's files say."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import rlcb
from rlcb.cli.evaluate import main as evaluate
from rlcb.cli.export import main as export
from tests import runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rlcb.Run:
    """A short run."""
    return rlcb.train(
        "a2c",
        "sequential",
        env="CartPole-v1",
        output_dir=tmp_path_factory.mktemp("export") / "run",
        n_steps=8,
        num_envs=2,
        total_timesteps=64,
        seed=1,
    )


@pytest.fixture(scope="module")
def exported(run: rlcb.Run) -> Path:
    assert evaluate([str(run.folder), "--num-episodes", "4"]) == 0
    folder = run.folder.parent / "exported"
    assert export([str(run.folder), "--output", str(folder)]) == 0
    return folder


def card(folder: Path) -> tuple[dict[str, Any], str]:
    _, front, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), text


def test_the_exported_policy_is_the_checkpoints_bit_for_bit(run: rlcb.Run, exported: Path) -> None:
    saved = torch.load(run.checkpoint, weights_only=True)["learner"]["model"]
    weights = load_file(exported / "model.safetensors")
    assert saved.keys() == weights.keys()
    assert all(torch.equal(saved[name], weights[name]) for name in saved)
    observations = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    before, after = rlcb.load(run), rlcb.load(exported)
    with torch.inference_mode():
        outputs = [each.model(torch.from_numpy(observations)) for each in (before, after)]
    assert all(torch.equal(first, second) for first, second in zip(*outputs))
    assert after.predict(observations).tolist() == before.predict(observations).tolist()


def test_the_card_has_the_numbers_of_the_evaluation(run: rlcb.Run, exported: Path) -> None:
    (path,) = run.folder.glob("evaluation/*.json")
    measured = json.loads(path.read_text())["splits"]["full"]
    front, text = card(exported)
    assert front["library_name"] == "rl-cluster-benchmark"
    assert {"reinforcement-learning", "a2c", "CartPole-v1"} <= set(front["tags"])
    (result,) = front["model-index"][0]["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"]["type"] == "CartPole-v1"
    value = float(np.mean(measured["rewards"]))
    assert result["metrics"][0]["value"] == pytest.approx(value, abs=1e-4)
    low, high = measured["ci95_mean_reward"]
    assert f"| all levels | {value:.2f} | {low:.2f} to {high:.2f} | 4 |" in text
    assert "did not complete" not in text
    assert json.loads((exported / "metrics.json").read_text()) == run.record
    assert (exported / "config.yaml").read_text() == (run.folder / "config.yaml").read_text()


def test_the_hub_accepts_the_card(exported: Path) -> None:
    if importlib.util.find_spec("huggingface_hub") is None:
        pytest.skip('huggingface_hub is not installed: pip install ".[track]"')
    from huggingface_hub import ModelCard

    data = ModelCard.load(exported / "README.md").data
    assert data.library_name == "rl-cluster-benchmark"
    (result,) = data.eval_results
    assert (result.metric_type, result.task_type) == ("mean_reward", "reinforcement-learning")


def test_a_run_without_evaluation_and_an_interrupted_run_say_so(run: rlcb.Run, tmp_path: Path) -> None:
    shutil.copytree(run.folder, tmp_path / "run", ignore=shutil.ignore_patterns("evaluation", "export"))
    record = tmp_path / "run" / "benchmark_metrics.json"
    record.write_text(json.dumps({**run.record, "status": "interrupted"}))
    (tmp_path / "run/checkpoints/a2c_sequential_final.pt").rename(
        tmp_path / "run/checkpoints/a2c_sequential_step_64.pt"
    )
    assert export([str(tmp_path / "run")]) == 0
    front, text = card(tmp_path / "run" / "export")
    assert "model-index" not in front
    assert "has not been evaluated" in text and "(status: interrupted)" in text
    assert rlcb.load(tmp_path / "run" / "export").predict(np.zeros(4, np.float32)) in (0, 1)


def test_wrong_input_is_one_line(
    run: rlcb.Run, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (
        ([str(tmp_path)], "holds no run"),
        ([str(run.folder), "--output", str(exported)], "is not empty; give another folder"),
    ):
        assert export(words) == 2
        assert expected in capsys.readouterr().err
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(rlcb.UsageError, match="damaged"):
        rlcb.load(tmp_path)
    assert runs.record(run.folder)["status"] == "completed"
