"""Damaged or edited files in a run's folder never lose the run and never change it silently."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcb.config.config import Config
from rlcb.errors import UsageError
from rlcb.training import run_folder
from rlcb.training.metrics_writer import MetricsWriter, keep_rows, read_rows
from rlcb.training.run_folder import RunFolder, config_of_run
from tests import runs

OLD_RUN = runs.PROJECT / "tests/data/old_runs/ppo_sequential"
ROWS = "logs/PPO_Sequential/metrics.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished run of 1,024 timesteps of CartPole."""
    return Path(shutil.copytree(OLD_RUN, tmp_path / "run"))


def resume(folder: Path) -> Any:
    return runs.call("train_ppo_sequential.py", "--resume", "--output-dir", folder, "--total-timesteps", 1152)


def edit(folder: Path, section: str, key: str, value: object) -> None:
    path = folder / "config.yaml"
    settings = yaml.safe_load(path.read_text())
    settings[section][key] = value
    path.write_text(yaml.safe_dump(settings))


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("training", "gamma", 0.9),
        ("training", "n_steps", 8),
        ("training", "optimizer", "rmsprop"),
        ("model", "mlp_sizes", [16]),
    ],
)
def test_an_edited_configuration_is_refused_with_both_values(
    folder: Path, section: str, key: str, value: object
) -> None:
    before = yaml.safe_load((folder / "config.yaml").read_text())[section][key]
    record = (folder / "benchmark_metrics.json").read_bytes()
    edit(folder, section, key, value)
    done = resume(folder)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if "error" in line]
    both = [repr(tuple(each) if isinstance(each, list) else each) for each in (before, value)]
    assert f"{section}.{key} = " in line
    assert all(each in line or each.replace("(", "[").replace(",)", "]") in line for each in both)
    assert "Traceback" not in done.stderr
    assert (folder / "benchmark_metrics.json").read_bytes() == record


@pytest.mark.parametrize("content", ["", "env: {id: CartPole-v1}\n"])
def test_an_empty_configuration_does_not_start_another_run(folder: Path, content: str) -> None:
    (folder / "config.yaml").write_text(content)
    done = resume(folder)
    assert done.returncode == 2
    assert "config.yaml is empty or damaged" in done.stderr
    assert (folder / "benchmark_metrics.json").exists()


def test_a_full_disk_at_the_start_leaves_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(run_folder, "write_atomically", full)
    with pytest.raises(UsageError, match="No space left on device"):
        RunFolder(tmp_path / "run", Config()).claim(Config(), overwrite=False)
    assert not (tmp_path / "run" / "config.yaml").exists()
    with pytest.raises(UsageError, match="holds no run"):
        config_of_run(tmp_path / "run")


@pytest.mark.parametrize("damage", [b"\0" * 300, b"\xff\xfe garbage", b"{}", b'{"update": "x"}', b"[1]"])
def test_every_kind_of_damaged_line_is_set_aside(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    row = b'{"update": %d, "timesteps": 64}'
    path.write_bytes(b"\n".join((row % 1, damage, row % 2, b"")))
    assert [each["update"] for each in keep_rows(path, 5)] == [1, 2]
    assert len(path.with_name("metrics.damaged.jsonl").read_bytes().splitlines()) == 1


def test_a_run_with_a_damaged_line_of_metrics_resumes(folder: Path) -> None:
    path, damage = folder / ROWS, b"\0" * 300
    lines = path.read_bytes().splitlines()
    sound = len(lines) - 1
    lines[2] = damage
    path.write_bytes(b"\n".join(lines) + b"\n")
    done = resume(folder)
    assert done.returncode == 0, done.stderr
    assert "had 1 damaged line, now in metrics.damaged.jsonl" in done.stderr
    assert len(path.with_name("metrics.damaged.jsonl").read_bytes().splitlines()) == 1
    rows = read_rows(path)
    assert len(rows) == sound + 2  # two more updates of 64 timesteps
    assert [row["update"] for row in rows] == [1, 2, *range(4, sound + 4)]
    record = json.loads((folder / "benchmark_metrics.json").read_text())
    assert (record["status"], record["total_timesteps"]) == ("completed", 1152)


def test_an_incomplete_last_line_does_not_count_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 1, "timesteps": 64}\n{"update": 2, "timest')
    assert keep_rows(path, 5) == [{"update": 1, "timesteps": 64}]
    assert not path.with_name("metrics.damaged.jsonl").exists()


def test_damaged_lines_of_several_resumes_are_all_kept(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for line in ("first", "second"):
        path.write_text(f'{line}\n{{"update": 1, "timesteps": 64}}\n')
        MetricsWriter(tmp_path, tensorboard=False, resume_update=1).close()
    assert path.with_name("metrics.damaged.jsonl").read_text() == "first\nsecond\n"
