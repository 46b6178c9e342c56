"""The settings of a distributed run that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcb.cli import train_distributed
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, dump_config


def resolve(algorithm: str, *flags: object) -> Config:
    arguments = train_distributed.make_parser(algorithm).parse_args([str(flag) for flag in flags])
    data = train_distributed.settings(arguments, algorithm)
    data["cluster"] = {**(data.get("cluster") or {}), "num_nodes": 1}
    if algorithm != "impala":
        data["cluster"]["num_workers"] = 1
    return build_config(data)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "impala"])
@pytest.mark.parametrize("timesteps", ["1000000", "null"])
def test_a_resumed_run_keeps_its_limits(tmp_path: Path, algorithm: str, timesteps: str) -> None:
    limits = ("--duration", 8, "--set", f"training.total_timesteps={timesteps}")
    before = resolve(algorithm, *limits)
    assert before.training.duration_hours == 8
    (tmp_path / "config.yaml").write_text(dump_config(before), encoding="utf-8")
    resume = ("--resume", "--output-dir", tmp_path)
    assert resolve(algorithm, *resume) == before
    longer = resolve(algorithm, *resume, "--duration", 9).training
    assert (longer.duration_hours, longer.total_timesteps) == (9, before.training.total_timesteps)


def test_a_new_run_is_not_timed_unless_told() -> None:
    assert resolve("ppo").training.duration_hours is None
