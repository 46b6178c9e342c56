"""The functions for Python programs: rlcb.train, rlcb.load and rlcb.compare."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rlcb
from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.rl.models import make_model
from tests import runs


def train(folder: Path, algorithm: str = "ppo", mode: str = "sequential", **options: Any) -> rlcb.Run:
    given: dict[str, Any] = {"n_steps": 16, "num_envs": 2, "total_timesteps": 64, "seed": 1}
    if algorithm == "ppo":
        given["batch_size"] = 16
    settings = {"model.mlp_sizes": [8], **options.pop("settings", {})}
    return rlcb.train(
        algorithm, mode, env="CartPole-v1", output_dir=folder, settings=settings, **given | options
    )


def program(text: str, folder: Path, **options: Any) -> subprocess.Popen[str]:
    """Start a script of its own in `folder`."""
    (folder / "script.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(runs.PROJECT / "src")}
    return subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> rlcb.Run:
    return train(tmp_path_factory.mktemp("api") / "run", settings={"training.clip_range": 0.1})


def test_importing_the_package_loads_nothing_else() -> None:
    words = "import sys; before = set(sys.modules); import rlcb; print(sorted(set(sys.modules) - before))"
    found = subprocess.run(
        [sys.executable, "-c", words],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(runs.PROJECT / "src")},
    )
    assert found.stdout.strip() == "['rlcb']"
    with pytest.raises(AttributeError, match="no attribute 'trane'"):
        rlcb.trane  # noqa: B018


def test_a_run_gives_its_record_its_metrics_and_its_checkpoint(run: rlcb.Run) -> None:
    assert run.record["status"] == "completed"
    assert run.record["total_timesteps"] == 64
    assert run.record["config"]["training"]["clip_range"] == 0.1
    assert run.record["config"]["training"]["duration_hours"] is None
    assert run.rows["timesteps"].tolist() == [32, 64]
    assert run.rows["update"].tolist() == [1, 2]
    assert run.checkpoint == run.folder / "checkpoints" / "ppo_sequential_final.pt"
    assert rlcb.Run(run.folder).checkpoint == run.checkpoint


def test_training_leaves_the_numbers_of_threads_as_they_were(tmp_path: Path) -> None:
    before = os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()
    train(tmp_path / "run", num_threads=2)
    assert (os.environ.get("OMP_NUM_THREADS"), torch.get_num_threads()) == before


def test_a_parallel_run_resumes(tmp_path: Path) -> None:
    train(tmp_path / "run", "a2c", "parallel", num_workers=2)
    run = train(tmp_path / "run", "a2c", "parallel", num_workers=2, total_timesteps=96, resume=True)
    assert run.record["status"] == "completed"
    assert run.rows["timesteps"].tolist() == [32, 64, 96]


def test_a_run_without_a_folder_gets_one_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    run = rlcb.train(
        "a2c",
        "parallel",
        env="CartPole-v1",
        n_steps=8,
        num_envs=2,
        num_workers=2,
        total_timesteps=16,
        settings={"model.mlp_sizes": [8]},
    )
    assert [run.folder.resolve()] == list((tmp_path / "runs").resolve().iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"algorithm": "dqn"}, "invalid choice: 'dqn'"),
        ({"algorithm": "a3c", "mode": "sequential"}, "one sequential A3C worker is A2C"),
        ({"mode": "distributed"}, "on each node"),
        ({"gama": 0.9}, "--gama=0.9"),
        ({"help": True}, "help"),
        ({"seed": -1}, "training.seed = -1"),
        ({"settings": {"training.gama": 0.9}}, "training.gama = 0.9: unknown key"),
        ({"settings": {"training.gamma": object()}}, "training.gamma"),
        ({"config": "missing.yaml"}, "cannot read config missing.yaml"),
        ({"env": "NoSuchEnv-v0"}, "NoSuchEnv"),
    ],
)
def test_wrong_input_is_a_usage_error(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"mode": "sequential", "env": "CartPole-v1", "output_dir": tmp_path / "run"}
    with pytest.raises(rlcb.UsageError) as error:
        rlcb.train(**given | options)
    assert words in str(error.value)
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_run_is_refused(run: rlcb.Run) -> None:
    with pytest.raises(rlcb.UsageError, match="already holds a run"):
        train(run.folder)


def test_other_threads_are_refused(tmp_path: Path) -> None:
    errors: list[BaseException] = []

    def call() -> None:
        try:
            train(tmp_path / "run")
        except rlcb.UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)
    assert "main thread" in str(errors[0])


def test_a_policy_takes_one_observation_or_many(run: rlcb.Run) -> None:
    policy = rlcb.load(run)
    observations = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    actions = policy.predict(observations)
    with torch.inference_mode():
        logits = policy.model(torch.from_numpy(observations))[0].numpy()
    assert actions.tolist() == logits.argmax(1).tolist()
    assert policy.predict(observations[0]) == actions[0]
    assert policy.predict(observations[0].astype(float).tolist()) == actions[0]
    sampled = policy.predict(observations, deterministic=False, rng=np.random.default_rng(1))
    assert set(sampled.tolist()) == {0, 1}
    for path in (run.folder, str(run.checkpoint)):
        assert rlcb.load(path).predict(observations).tolist() == actions.tolist()
    with pytest.raises(rlcb.UsageError, match="shape"):
        policy.predict(np.zeros(3))
    with pytest.raises(rlcb.UsageError, match="no checkpoint"):
        rlcb.load(run.folder / "missing.pt")


def test_runs_are_compared(run: rlcb.Run, tmp_path: Path) -> None:
    other = train(tmp_path / "other", "a2c")
    found = rlcb.compare([run, other.folder])
    assert [each.place.split(" (")[0] for each in found] == [
        "CartPole-v1, training at equal wall clock",
        "CartPole-v1, training at equal timesteps",
        "CartPole-v1, speed",
    ]
    equal = "PPO sequential (21.50, n=1) and A2C sequential (21.50, n=1) have the same mean return"
    assert equal in str(found[1])
    with pytest.raises(rlcb.UsageError):
        rlcb.compare([tmp_path / "nothing"])


def test_a_comparison_has_a_tidy_table(run: rlcb.Run, tmp_path: Path) -> None:
    others = [
        train(tmp_path / f"ppo{seed}", seed=seed, settings={"training.clip_range": 0.1}) for seed in (2, 3)
    ]
    found = rlcb.compare([run, *others])
    rows = {row["metric"]: row for row in found.table}
    assert list(rows["final_reward"]) == ["game", "group", "metric", "unit", "mean", "low", "high", "n"]
    values = [each.record["performance"]["final_reward"] for each in (run, *others)]
    assert rows["final_reward"]["mean"] == pytest.approx(np.mean(values), rel=1e-12)
    assert rows["final_reward"]["n"] == 3
    assert rows["final_reward"]["low"] <= np.mean(values) <= rows["final_reward"]["high"]
    assert list(found) == found.findings and found[0] is found.findings[0]
    title, *lines = repr(found).splitlines()[len(found) + 1 :]
    assert title.split()[:2] == ["game", "group"] and title.endswith("n")
    assert lines[0].startswith("CartPole-v1  PPO sequential")
    html = found._repr_html_()
    assert html.count("<tr>") == 2 and "<td>PPO sequential" in html


def test_a_run_says_what_it_is(run: rlcb.Run, tmp_path: Path) -> None:
    reward = run.record["performance"]["final_reward"]
    assert repr(run) == (
        f"<Run {run.folder}: ppo sequential on CartPole-v1, completed after 64 timesteps, "
        f"return {reward:.2f}>"
    )
    assert "no record yet" in repr(rlcb.Run(tmp_path))


def test_images_may_have_their_channels_first_or_last() -> None:
    spaces = Spaces((64, 48, 3), "uint8", 5)
    policy = rlcb.Policy(make_model(ModelConfig(architecture="nature"), spaces, 1, "torch"))
    images = np.random.default_rng(0).integers(0, 256, (20, 64, 48, 3), dtype=np.uint8)
    with torch.inference_mode():
        expected = policy.model(torch.from_numpy(images))[0].argmax(1).tolist()
    assert policy.predict(images).tolist() == expected
    assert policy.predict(np.moveaxis(images, -1, 1)).tolist() == expected
    assert policy.predict(np.moveaxis(images[3], -1, 0)) == policy.predict(images[3]) == expected[3]
    with pytest.raises(rlcb.UsageError, match="shape"):
        policy.predict(images.transpose(0, 2, 1, 3))
    with pytest.raises(rlcb.UsageError, match="dtype float64: the environment has uint8"):
        policy.predict(images / 255)


SCRIPT = """
import torch
import rlcb

print("the script runs", flush=True)
torch.ones(64, 64) @ torch.ones(64, 64)
run = rlcb.train(
    {algorithm!r}, env="CartPole-v1", output_dir="run", {options},
    settings={{"model.mlp_sizes": [8], **{settings}}},
)
print(run.record["status"], run.record["total_timesteps"], flush=True)
"""


@pytest.mark.parametrize(
    ("algorithm", "options", "settings"),
    [
        ("ppo", "batch_size=16, num_workers=2", {}),
        ("impala", "batch_size=32, num_actors=2", {"impala.num_learners": 1}),
    ],
)
def test_a_script_without_a_guard_runs_once(
    algorithm: str, options: str, settings: dict[str, int], tmp_path: Path
) -> None:
    options += ", n_steps=16, num_envs=2, total_timesteps=64"
    process = program(SCRIPT.format(algorithm=algorithm, options=options, settings=settings), tmp_path)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert output.count("the script runs") == 1
    assert output.strip().splitlines()[-1] == "completed 64"
    assert "Traceback" not in errors


def test_an_interrupted_run_returns(tmp_path: Path) -> None:
    options = "n_steps=16, num_envs=2, batch_size=16, duration=1, num_workers=2"
    process = program(SCRIPT.format(algorithm="ppo", options=options, settings={}), tmp_path)
    try:
        runs.wait_for_rows(tmp_path / "run", 1)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert output.strip().splitlines()[-1].startswith("interrupted ")
    policy = rlcb.load(tmp_path / "run")
    assert policy.predict(np.zeros(4, np.float32)) in (0, 1)
