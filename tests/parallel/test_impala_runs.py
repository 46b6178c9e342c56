"""Whole runs of parallel IMPALA: what they compute, and how they end."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlcb.cli.evaluate import main as evaluate
from rlcb.cli.train import main
from tests import runs
from tests.impala_runs import (
    PER_UPDATE,
    POLE,
    SCRIPT,
    STEP,
    of_env,
    require_equal_runs,
    require_exact_counts,
)
from tests.runs import left_in_shared_memory


@pytest.fixture(scope="module")
def sequential(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequential") / "run"
    assert main("impala", "sequential", False, [*map(str, POLE), "--output-dir", str(folder)]) == 0
    return folder


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("actors", "learners", "buffer"), [(1, 1, "auto"), (2, 2, "auto"), (2, 2, "mmap"), (4, 1, "auto")]
)
def test_without_lag_a_parallel_run_is_the_sequential_run(
    sequential: Path, tmp_path: Path, actors: int, learners: int, buffer: str
) -> None:
    """Two learners sum through shared memory, or over gloo if their memory is on disk."""
    folder = tmp_path / "run"
    result = runs.call(
        SCRIPT, *POLE, "--set", f"impala.num_actors={actors}", "--set", f"impala.num_learners={learners}",
        "--set", "impala.max_policy_lag=0", "--set", "impala.check_unwritten=true", "--output-dir", folder,
        "--set", f"parallel.buffer={buffer}",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    require_equal_runs(folder, sequential)


@pytest.mark.timeout(300)
def test_a_checkpoint_of_actors_and_learners_can_be_evaluated_and_names_what_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = runs.call(
        SCRIPT, *STEP, *of_env(free=False), "--total-timesteps", 16 * 225, "--learning-rate", 1e-2,
        "--gamma", 0.9, "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    # the reward of the last step of an unroll, and nothing else, says which action is right
    assert runs.record(folder)["performance"]["final_reward"] > 0.9
    assert runs.record(folder)["total_episodes"] == 900
    checkpoint = folder / "checkpoints" / "impala_parallel_final.pt"
    output = tmp_path / "result.json"
    flags = ("--checkpoint", checkpoint, "--algorithm", "impala", "--num-episodes", 5, "--output", output)
    assert evaluate([*map(str, flags), "--deterministic", "--num-threads", "1"]) == 0
    text = json.dumps(json.loads(output.read_text()))
    assert '"algorithm": "impala"' in text


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("max_policy_lag", "slow"), [(1, "actor-1"), (4, "actor-0")])
def test_whole_runs_with_a_slow_actor_keep_the_bound_and_the_counts(
    tmp_path: Path, max_policy_lag: int, slow: str
) -> None:
    folder = tmp_path / "run"
    result = runs.call(
        SCRIPT, *STEP, *of_env(slow=slow, delay=0.002), "--total-timesteps", 60 * PER_UPDATE,
        "--set", f"impala.max_policy_lag={max_policy_lag}", "--set", "impala.check_unwritten=true",
        "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    require_exact_counts(folder, 60 * PER_UPDATE)
    for row in runs.rows(folder):
        assert 0 <= row["impala/policy_lag_mean"] <= row["impala/policy_lag_max"] <= max_policy_lag
        assert 0 <= row["impala/rho_clipped_fraction"] <= 1
        assert row["impala/actor_restarts"] == 0
    waits = [
        sum(row[f"profile/{who}_wait_seconds"] for row in runs.rows(folder)) for who in ("actor", "learner")
    ]
    assert min(waits) > 0
    assert runs.processes_of(folder) == []


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("raise", "actor 1: environment 2 raised at step 1 of update 1: ValueError: the world ended"),
        ("exit", "actor 1 ended with exit code 7"),
        ("kill", "actor 1 was killed by SIGKILL"),
        pytest.param(
            "hang",
            "actor 1: made no progress for 6 s (parallel.timeout_seconds)",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_actor_that_fails_is_replaced_with_a_warning_and_nothing_is_lost(
    tmp_path: Path, kind: str, message: str
) -> None:
    before, folder, marker = runs.shared_files(), tmp_path / "run", tmp_path / "failed"
    result = runs.call(
        SCRIPT, *STEP, *of_env(fault=kind, process="actor-1", at=6, marker=str(marker)),
        "--total-timesteps", 40 * PER_UPDATE, "--set", "impala.check_unwritten=true",
        "--set", f"parallel.timeout_seconds={6 if kind == 'hang' else 60}", "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert marker.exists()
    assert f"{message}; replaced by a new one (1 of 3: impala.max_actor_restarts)" in result.stderr
    assert "Traceback" not in result.stderr
    require_exact_counts(folder, 40 * PER_UPDATE)
    rows = runs.rows(folder)
    restarts = [row["impala/actor_restarts"] for row in rows]
    assert restarts == sorted(restarts)
    assert restarts[-1] == 1
    for row in rows:
        assert row["impala/policy_lag_max"] <= 2
        for key in (key for key in row if key.startswith("profile/")):
            assert row[key] >= 0, key  # a new actor's time begins at nothing, not below
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "restarts"), [("raise", 1), ("exit", 0)])
def test_more_deaths_than_allowed_end_the_run_with_the_actors_own_error(
    tmp_path: Path, kind: str, restarts: int
) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    result = runs.call(
        SCRIPT, *STEP, *of_env(fault=kind, process="actor-1", at=61), "--total-timesteps", 1e7,
        "--set", f"impala.max_actor_restarts={restarts}", "--output-dir", folder,
    )  # fmt: skip
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert ("actor 1: environment 2 raised" if kind == "raise" else "actor 1 ended with exit code 7") in last
    assert ("impala.max_actor_restarts" in last) == (restarts > 0)
    assert result.stderr.count("replaced by a new one") == restarts
    record = runs.record(folder)
    assert record["status"] == "failed"
    assert record["total_timesteps"] == runs.rows(folder)[-1]["timesteps"]
    assert None not in (record["start_time"], record["time_breakdown"])
    assert record["workers"]
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()


def children(process: Any) -> tuple[list[psutil.Process], list[psutil.Process]]:
    """The learners and the actors of a run, which are nicer, in the order in which they were started."""
    found = sorted(runs.worker_origin(process.pid).children(), key=lambda child: child.create_time())
    own = os.nice(0)
    return [each for each in found if each.nice() == own], [each for each in found if each.nice() > own]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("learners", "victim"), [(1, 0), (2, 1)])
def test_a_learner_that_dies_ends_the_run(tmp_path: Path, learners: int, victim: int) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    process = runs.start(
        SCRIPT, *STEP, "--set", f"impala.num_learners={learners}", *of_env(slow="all", delay=0.002),
        "--total-timesteps", 1e7, "--output-dir", folder, env={**os.environ, "RUN": str(folder)},
    )  # fmt: skip
    runs.wait_for_rows(folder, 3)
    found, actors = children(process)
    assert (len(found), len(actors)) == (learners, 2)
    found[victim].kill()
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert f"learner {victim} was killed by SIGKILL" in errors.splitlines()[-1]
    assert "replaced" not in errors
    assert runs.record(folder)["status"] == "failed"
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("learners", "number"), [(1, signal.SIGINT), (2, signal.SIGTERM)])
def test_a_signal_ends_the_run_safely_and_the_same_command_resumes_it(
    tmp_path: Path, learners: int, number: signal.Signals
) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    flags = (*STEP, "--set", f"impala.num_learners={learners}", *of_env(slow="all", delay=0.002))
    process = runs.start(SCRIPT, *flags, "--total-timesteps", 1e7, "--output-dir", folder)
    runs.wait_for_rows(folder, 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 128 + number, errors
    record = runs.record(folder)
    assert record["status"] == "interrupted"
    assert record["total_timesteps"] == runs.rows(folder)[-1]["timesteps"]
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()

    more = record["total_timesteps"] + 20 * PER_UPDATE
    result = runs.call(SCRIPT, "--resume", "--total-timesteps", more, "--output-dir", folder)
    assert result.returncode == 0, result.stderr
    require_exact_counts(folder, more)


@pytest.mark.timeout(300)
def test_actors_and_learners_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    before, folder = runs.shared_files(), tmp_path / "run"
    process = runs.start(
        SCRIPT, *STEP, *of_env(slow="all", delay=0.002), "--total-timesteps", 1e7,
        "--output-dir", folder, env={**os.environ, "RUN": str(folder)},
    )  # fmt: skip
    runs.wait_for_rows(folder, 1)
    assert len(runs.processes_of(folder)) >= 4
    process.kill()
    process.wait()
    deadline = time.monotonic() + 20
    while runs.processes_of(folder) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert runs.processes_of(folder) == []
    assert left_in_shared_memory(before) == set()
