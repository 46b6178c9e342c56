"""Output that cannot be written ends no program: readers that are gone, full disks, narrow encodings."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import runs

SMALL = (
    *("--env", "CartPole-v1", "--num-envs", 4, "--n-steps", 8, "--batch-size", 32, "--num-threads", 1),
    *("--total-timesteps", 128, "--set", "model.mlp_sizes=[8]", "--set", "logging.tensorboard=false"),
)
OLD_RUN = runs.PROJECT / "tests/data/old_runs/ppo_sequential"


@contextmanager
def lost_reader() -> Iterator[int]:
    """A pipe whose reader is gone before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextmanager
def full_disk() -> Iterator[int]:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def finish(script: str, *words: object, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(runs.command(script, *words), cwd=runs.PROJECT, timeout=90, check=False, **options)


@pytest.mark.parametrize("lost", [lost_reader, full_disk])
@pytest.mark.parametrize("script", ["train_ppo_sequential.py", "train_ppo_parallel.py"])
def test_training_goes_on_without_its_console(tmp_path: Path, script: str, lost: Any) -> None:
    workers = () if "sequential" in script else ("--num-workers", 2)
    with lost() as descriptor:
        done = finish(
            script, *SMALL, *workers, "--output-dir", tmp_path / "run", stdout=descriptor, stderr=descriptor
        )
    record = json.loads((tmp_path / "run/benchmark_metrics.json").read_text())
    assert (done.returncode, record["status"]) == (0, "completed")
    assert record["total_timesteps"] >= 128


@pytest.mark.parametrize("encoding", ["ascii", "koi8-r"])
def test_a_narrow_encoding_loses_characters_and_nothing_else(tmp_path: Path, encoding: str) -> None:
    done = finish(
        "train_ppo_sequential.py", *SMALL, "--output-dir", tmp_path / "run",
        capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "TRAINING SUMMARY" in done.stdout.decode(encoding)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("compare_results.py", ("--runs", OLD_RUN, "--output", "{folder}/comparison.png")),
        (
            "evaluate.py",
            ("--checkpoint", OLD_RUN / "checkpoints/ppo_sequential_final.pt", "--num-episodes", 2,
             "--output", "{folder}/evaluation.json"),
        ),
    ],
)  # fmt: skip
def test_programs_end_quietly_when_their_reader_is_gone(
    tmp_path: Path, script: str, words: tuple[object, ...]
) -> None:
    flags = [str(word).format(folder=tmp_path) for word in words]
    with lost_reader() as descriptor:
        done = finish(script, *flags, stdout=descriptor, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr and b"BrokenPipe" not in done.stderr
    assert list(tmp_path.glob("*"))  # the results are there all the same
