"""What runs say of the share of this machine's limit that they reached."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlcb import cpu
from rlcb.cli.train import main
from rlcb.machine.efficiency import efficiency_of
from rlcb.machine.profile import FOLDER_VARIABLE, Profile, profiles_folder, write_profile
from rlcb.training.console import print_summary
from tests import runs
from tests.profiles import configured, passes, profile


@pytest.fixture(autouse=True)
def _machine_of_two_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "profiles"))


def test_efficiency_is_the_speed_over_the_limit_of_the_runs_own_mode_and_threads() -> None:
    path = write_profile(profile(), profiles_folder())
    found = efficiency_of(configured(), 161.29, 2)
    own = 1 / (0.08e-3 + 0.22e-3 + 4 * 0.7e-3)
    whole = 2 / (0.1e-3 + 0.3e-3 + 4 * 1.0e-3)
    assert found == {
        "efficiency": {
            "share": round(161.29 / own, 4),
            "limit_fps": round(own, 2),
            "machine_limit_fps": round(whole, 2),
            "profile": str(path),
            "measured_at": "2030-01-02T03:04:05+00:00",
            "git_commit": "0123456789ab",
        },
        "efficiency_note": None,
    }
    parallel = configured(mode="parallel")
    assert efficiency_of(parallel, 161.29, 1)["efficiency"]["share"] == round(161.29 / whole, 4)


def test_without_a_profile_there_is_no_efficiency_and_no_note() -> None:
    assert efficiency_of(configured(), 100.0, 2) == {"efficiency": None, "efficiency_note": None}


def test_the_note_says_what_a_profile_has_not_measured() -> None:
    write_profile(profile(), profiles_folder())
    assert "3 threads" in efficiency_of(configured(), 100.0, 3)["efficiency_note"]
    plain = configured(env={"procgen": {"use_backgrounds": False}})
    note = efficiency_of(plain, 100.0, 2)["efficiency_note"]
    assert note.endswith(
        'has measured procgen-coinrun-v0 easy, not procgen-coinrun-v0 easy {"use_backgrounds": false}'
    )
    maze = configured(env={"id": "maze"})
    assert "not procgen-maze-v0 easy" in efficiency_of(maze, 100.0, 2)["efficiency_note"]
    assert efficiency_of(configured(), None, None)["efficiency"] is None
    cut = configured(training={"target_kl": 0.1})
    found = efficiency_of(cut, 100.0, 2)
    assert found["efficiency"] is not None
    assert "target_kl" in found["efficiency_note"]


def test_a_truncated_profile_does_not_prevent_the_record() -> None:
    """It knows the passes of two threads, which the run has, and not those that the whole machine makes."""
    cut = profile(
        forward=passes("float32", {2: {32: 0.22}}), forward_backward=passes("float32", {2: {128: 0.7}})
    )
    write_profile(cut, profiles_folder())
    found = efficiency_of(configured(), 100.0, 2)
    assert found["efficiency"] is None
    assert "has no measurement with 1 threads" in found["efficiency_note"]


def train(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    """A short real run on CartPole; returns its record and what it printed."""
    flags = [
        *("--env", "CartPole-v1", "--num-envs", "4", "--n-steps", "16", "--num-threads", "1"),
        *("--total-timesteps", "128", "--set", "logging.tensorboard=false", "--output-dir", str(folder)),
    ]
    assert main("a2c", "sequential", False, flags) == 0
    return runs.record(folder), capsys.readouterr().out


def cartpole_profile() -> Profile:
    environment = profile().environments[0]
    return profile(
        host="cart",
        network={
            "model": {"architecture": "mlp"},
            "name": "mlp",
            "observation_shape": [4],
            "num_actions": 2,
            "parameters": 9000,
            "forward_flops": 1e4,
            "forward_backward_flops": 3e4,
            "activation_bytes": 0,
        },
        environments=[environment.model_dump(mode="json") | {"id": "CartPole-v1"}],
    )


def test_a_run_says_what_share_of_the_limit_it_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, text = train(tmp_path / "without", capsys)
    assert record["efficiency"] is None
    assert "Efficiency" not in text
    write_profile(cartpole_profile(), profiles_folder())
    record, text = train(tmp_path / "with", capsys)
    limit = 1 / (0.1e-3 + 0.4e-3 + 1.0e-3)
    assert record["efficiency"]["limit_fps"] == round(limit, 2)
    assert record["efficiency"]["share"] == pytest.approx(record["average_fps"] / limit, abs=1e-3)
    assert f"{record['efficiency']['share']:.0%} of this machine's limit, 667 FPS (cart_mlp.json)" in text


def test_a_run_on_another_machine_says_so_rather_than_a_share(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(cartpole_profile(), profiles_folder())
    monkeypatch.setattr(cpu, "cpu_model", lambda: "Another CPU")
    record, text = train(tmp_path / "run", capsys)
    assert record["efficiency"] is None
    assert "another processor" in record["efficiency_note"]
    assert f"Efficiency: not known: {record['efficiency_note']}" in " ".join(text.split())


def test_records_from_before_there_were_profiles_can_still_be_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record, _ = train(tmp_path / "run", capsys)
    del record["efficiency"], record["efficiency_note"]
    print_summary(record, tmp_path, None)
    assert "Efficiency" not in capsys.readouterr().out
