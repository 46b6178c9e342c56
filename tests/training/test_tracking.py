"""Tracking: the trackers get what the run's files hold, and nothing that they do harms the run."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import rlcb
from rlcb.cli.benchmark import main as benchmark
from rlcb.cli.evaluate import main as evaluate
from rlcb.training import tracking
from tests import runs, tracked_data

SMALL: dict[str, Any] = {"n_steps": 16, "num_envs": 2, "batch_size": 16, "total_timesteps": 128, "seed": 1}
READ = {"wandb": tracked_data.wandb_data, "trackio": tracked_data.trackio_data}
WHY = 'not installed: pip install ".[track]"'


def train(folder: Path, track: str, mode: str = "sequential", **options: Any) -> rlcb.Run:
    settings = {"model.mlp_sizes": [8], **options.pop("settings", {})}
    options = {**SMALL, **options, "track": track}
    return rlcb.train("ppo", mode, env="CartPole-v1", output_dir=folder, settings=settings, **options)


def tracker_processes() -> list[psutil.Process]:
    """The tracker processes of this process, and what they have started."""
    children = psutil.Process().children(recursive=True)
    return [each for each in children if "tracker_process" in str(each.cmdline()) or "wandb" in each.name()]


def rows_on_disk(run: rlcb.Run) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if value is not None} for row in runs.rows(run.folder)]


@pytest.fixture(scope="module", params=["wandb", "trackio"])
def tracked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tracked run that was resumed and evaluated, with the real packages and without a network."""
    if importlib.util.find_spec(request.param) is None:
        pytest.skip(f"{request.param} is {WHY}")
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_PROJECT", "TRACKIO_PROJECT"):
            patch.delenv(name, raising=False)
        patch.setenv("NETRC", str(folder / "no_netrc"))
        patch.setenv("TRACKIO_DIR", str(folder / "database"))
        if request.param == "trackio":
            utils = importlib.import_module("trackio.utils")
            storage = importlib.import_module("trackio.sqlite_storage")
            for module in (utils, storage):
                patch.setattr(module, "TRACKIO_DIR", folder / "database")
        first = train(folder / "run", request.param).record
        run = train(folder / "run", request.param, total_timesteps=192, resume=True)
        assert evaluate([str(run.folder), "--num-episodes", "3"]) == 0
        yield run, first, READ[request.param](run.folder)


def test_the_tracker_has_the_rows_of_the_file(tracked: Any) -> None:
    run, _, data = tracked
    assert [row["timesteps"] for row in data["rows"]] == [32, 64, 96, 128, 160, 192]
    assert data["rows"] == rows_on_disk(run)


def test_the_tracker_has_configuration_final_metrics_and_evaluation(tracked: Any) -> None:
    run, _, data = tracked
    assert data["config"]["training"] == run.record["config"]["training"]
    summary = data["summary"]
    assert summary["final/timesteps"] == 192
    assert summary["final/final_reward"] == run.record["performance"]["final_reward"]
    (path,) = run.folder.glob("evaluation/*.json")
    (split,) = json.loads(path.read_text())["splits"].values()
    assert summary["evaluation/full/mean_reward"] == split["mean_reward"]
    assert summary["evaluation/full/ci95_low"] == split["ci95_mean_reward"][0]
    assert summary["evaluation/full/episodes"] == 3


def test_a_resumed_run_is_one_tracked_run_with_short_names(tracked: Any) -> None:
    run, first, data = tracked
    facts = run.record["tracking"]
    assert facts["id"] == first["tracking"]["id"]
    assert (facts["rows"], facts["status"], facts["problem"]) == (6, "finished", None)
    assert first["tracking"]["rows"] == 4
    assert data["name"] == f"ppo-sequential-CartPole-v1-s1-{facts['id'][:4]}"
    assert data["group"] == "ppo-sequential-CartPole-v1"
    assert sorted(data["tags"]) == ["CartPole-v1", "ppo", "sequential"]
    if facts["tracker"] == "wandb":
        assert {each.run_id for each in data["runs"]} == {facts["id"]}
    else:
        assert data["runs"] == [data["name"]]


def test_without_a_key_wandb_is_offline_and_asks_nothing(tracked: Any) -> None:
    run, _, _ = tracked
    if run.record["tracking"]["tracker"] == "wandb":
        assert run.record["tracking"]["place"].startswith("offline in ")
    assert "(1)" not in (run.folder / "tracking" / "output.log").read_text()


def test_nothing_is_left_running(tracked: Any) -> None:
    run, _, _ = tracked
    assert tracker_processes() == [] and runs.processes_of(run.folder) == []


@pytest.mark.parametrize(
    ("trouble", "problem"),
    [
        ("raise init", "ValueError: no init today"),
        ("raise log", "ValueError: no log today"),
        ("raise finish", "ValueError: no finish today"),
        ("hang init", "its start took longer than 1 s"),
        ("hang log", "a row took longer than 1 s"),
        ("hang finish", "its end took longer than 1 s"),
        ("die log", "its process ended with exit code 7"),
    ],
)
def test_a_run_survives_its_tracker(
    trouble: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tracked_data.stand_in_for_wandb(tmp_path, monkeypatch, trouble)
    run = train(tmp_path / "run", "wandb", settings={"logging.track_timeout_seconds": 1})
    assert run.record["status"] == "completed"
    assert run.record["tracking"]["status"] == "failed"
    assert run.record["tracking"]["problem"] == problem
    warnings = [each.getMessage() for each in caplog.records if "tracking" in each.getMessage()]
    assert len(warnings) == 1 and problem in warnings[0]
    assert tracker_processes() == []


def test_a_new_run_in_the_same_folder_is_another_tracked_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tracked_data.stand_in_for_wandb(tmp_path, monkeypatch)
    first = train(tmp_path / "run", "wandb").record["tracking"]
    second = train(tmp_path / "run", "wandb", overwrite=True).record["tracking"]
    assert first["id"] != second["id"]
    assert second["rows"] == 4
    starts = tracked_data.stood_in(path, "init")
    assert [each["id"] for each in starts] == [first["id"], second["id"]]
    assert starts[0]["mode"] == "offline" and starts[0]["resume"] is None


def test_an_api_key_means_online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tracked_data.stand_in_for_wandb(tmp_path, monkeypatch)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_PROJECT", "my-project")
    train(tmp_path / "run", "wandb")
    train(tmp_path / "run", "wandb", total_timesteps=160, resume=True)
    starts = tracked_data.stood_in(path, "init")
    assert [each["mode"] for each in starts] == ["online", "online"]
    assert [each["resume"] for each in starts] == [None, "allow"]
    assert starts[1]["project"] == "my-project"


def test_a_missing_package_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(rlcb.UsageError) as error:
        train(tmp_path / "run", "trackio")
    assert str(error.value) == '--track trackio: trackio is not installed: pip install ".[track]"'
    assert not (tmp_path / "run").exists()


def test_an_unknown_tracker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rlcb.UsageError, match=r"logging\.track = 'mlflow'"):
        train(tmp_path / "run", "mlflow")


@contextlib.contextmanager
def parallel_run(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a long tracked run with workers, in a process group of its own, which is killed at the end."""
    words = "--algorithm a2c --mode parallel --env CartPole-v1 --duration 0.1 --n-steps 16 --num-envs 2"
    limits = ("--num-workers", 2, "--track", "wandb", "--set", "model.mlp_sizes=[8]")
    process = runs.start(f"train.py {words}", *limits, "--output-dir", folder, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for(count: int, path: Path) -> None:
    runs.wait_until(lambda: len(tracked_data.stood_in(path, "row")) >= count, what="no rows were tracked")


def test_a_signal_to_the_whole_group_ends_the_tracking_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tracked_data.stand_in_for_wandb(tmp_path, monkeypatch)
    with parallel_run(tmp_path / "run") as process:
        wait_for(3, path)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    record = runs.record(tmp_path / "run")
    assert (record["status"], record["tracking"]["status"]) == ("interrupted", "finished")
    tracked = tracked_data.stood_in(path, "row")
    assert len(tracked) == record["tracking"]["rows"]
    written = [row["timesteps"] for row in runs.rows(tmp_path / "run")]
    assert [row["timesteps"] for row in tracked][: len(written)] == written
    assert tracked_data.stood_in(path, "summary")[0]["final/status"] == "interrupted"
    assert tracked_data.stood_in(path, "finish") == [1]
    assert runs.processes_of(tmp_path / "run") == []


def test_the_tracker_process_ends_after_a_run_that_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tracked_data.stand_in_for_wandb(tmp_path, monkeypatch)
    with parallel_run(tmp_path / "run") as process:
        wait_for(1, path)
        process.kill()
        runs.wait_until(lambda: tracked_data.stood_in(path, "finish") == [1], 20, "the tracking did not end")
    state = tracking.read_state(tmp_path / "run")
    assert state["status"] == "finished" and state["rows"] >= 1


def test_a_row_is_logged_once_although_the_file_was_replaced(tmp_path: Path) -> None:
    from rlcb.training.tracker_process import Rows

    path = tmp_path / "metrics.jsonl"
    rows = Rows(path, 10)
    assert list(rows.new()) == []
    lines = [
        json.dumps({"timesteps": n, "update": n // 10, "nothing": None}) + "\n" for n in (10, 20, 30, 40)
    ]
    path.write_text(lines[0] + lines[1] + lines[2][:5])
    assert list(rows.new()) == [{"timesteps": 20, "update": 2}]
    path.write_text("".join(lines[:3]))
    assert [row["timesteps"] for row in rows.new()] == [30]
    path.write_text(lines[0])  # the run was resumed from an older checkpoint
    assert list(rows.new()) == []
    path.write_text("".join(lines))
    assert [row["timesteps"] for row in rows.new()] == [40]


def test_the_tracker_process_loads_no_torch() -> None:
    words = "import sys, rlcb.training.tracker_process; print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(runs.PROJECT / "src")}
    found = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, env=environment)
    assert found.stdout.strip() == "False"


@pytest.mark.slow
def test_a_study_tracks_its_runs_as_a_group_with_the_picture_of_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tracked_data.stand_in_for_wandb(tmp_path, monkeypatch)
    sizes = ("env.num_envs=2", "training.n_steps=16", "model.mlp_sizes=[8]", "ppo:training.batch_size=16")
    settings = [word for size in sizes for word in ("--set", size)]
    matrix = ("--algorithms", "ppo", "a2c", "--modes", "sequential", "--envs", "CartPole-v1", "--seeds", "3")
    budget = ("--total-timesteps", "64", "--evaluate-episodes", "2", "--track", "wandb")
    root = tmp_path / "my_study"
    assert benchmark([*matrix, *budget, *settings, "--output-dir", str(root)]) == 0
    started = tracked_data.stood_in(file, "init")
    assert {each["group"] for each in started} == {"my_study"}
    names = {each["name"] for each in started}
    assert any(name.startswith("my_study-comparison") for name in names) and len(names) == 3
    pictures = [row["comparison"] for row in tracked_data.stood_in(file, "row") if "comparison" in row]
    assert pictures == [(root / "comparison.png").stat().st_size]
    assert any(facts.get("comparison/runs") == 2 for facts in tracked_data.stood_in(file, "summary"))
    evaluated = [f for f in tracked_data.stood_in(file, "summary") if "evaluation/full/mean_reward" in f]
    assert len(evaluated) == 2
