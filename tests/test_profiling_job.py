"""A profile from the first measurement to its files: what is asked for, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from src import cpu_utils, profiling_job, profiling_steps, profiling_trace
from src.config import Config
from src.errors import RunError
from src.profiling import Profile, Reached, read_profile, write_profile
from src.profiling_cli import main
from src.profiling_steps import EFFORTS, measure_machine
from src.programs import Stop
from tests.profiles import configured, profile


@pytest.fixture(autouse=True)
def _machine_of_two_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu_utils, "usable_cores", lambda: 2)
    monkeypatch.setenv("RL_BENCHMARK_LOCK", str(tmp_path / "lock"))


def reached(config: Config) -> Reached:
    return Reached(
        fps=100.0,
        num_envs=config.env.num_envs,
        n_steps=config.training.n_steps,
        batch_size=config.training.batch_size,
        updates=2,
        startup_seconds=1.0,
        shares={"learn": 0.9},
    )


def test_a_short_run_that_fails_costs_its_figure_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def try_out(profile: Profile, config: Config, *_: Any) -> Reached:
        if config.algorithm == "ppo":
            raise RunError("a short run of train_ppo_sequential.py failed (cannot reserve memory)")
        return reached(config)

    load = {"cpu_percent": 0.0, "busiest": []}
    monkeypatch.setattr(profiling_job, "measure_load", lambda: load)
    monkeypatch.setattr(profiling_job, "measure_machine", lambda *_: profile())
    monkeypatch.setattr(profiling_job, "try_out", try_out)
    flags = ["--network", "nature", "--algorithms", "ppo", "a2c", "--modes", "sequential"]
    folder = tmp_path / "profiles"
    write = ["--write", str(tmp_path / "local_ppo_sequential.yaml")]
    assert main([*flags, "--output-dir", str(folder), *write]) == 1
    output, error = capsys.readouterr()
    assert error == "warning: a short run of train_ppo_sequential.py failed (cannot reserve memory)\n"
    ppo, a2c = read_profile(folder / "made-up_nature.json").results
    assert (ppo.reached, ppo.share) == (None, None)
    assert a2c.reached is not None and a2c.share == pytest.approx(100 / a2c.limit_fps)
    rows = {line[:20].strip(): line[20:].split() for line in output.splitlines()}
    assert rows["PPO sequential"][1:3] == ["-", "-"]
    assert (folder / "made-up_nature.txt").exists() and (folder / "made-up_nature.png").exists()
    assert (tmp_path / "local_ppo_sequential.yaml").exists()


@pytest.mark.parametrize("tuned", [True, False])
def test_the_machine_is_measured_with_the_allocator_of_the_runs(
    tuned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        """Ends the measurement before it begins."""

    def measurers(count: int, bench: str, arguments: Any, check_stop: Any, tune_allocator: bool) -> Any:
        raise Asked(tune_allocator)

    monkeypatch.setattr(profiling_steps, "Measurers", measurers)
    config = configured(hardware={"tune_allocator": tuned})
    with pytest.raises(Asked) as asked:
        measure_machine(config, [config.env], EFFORTS["quick"], lambda: None, lambda *_: None, None)
    assert asked.value.args == (tuned,)


def test_a_game_that_was_not_measured_is_not_passed_over_when_a_profile_is_reused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_profile(profile(), tmp_path)
    flags = ["--network", "nature", "--algorithms", "a2c", "--modes", "sequential", "--reuse"]
    flags += ["--output-dir", str(tmp_path), "--env"]
    assert main([*flags, "coinrun", "maze"]) == 2
    error = capsys.readouterr().err
    assert f"--reuse: {path} has not measured procgen-maze-v0 easy" in error and error.count("\n") == 1
    assert main([*flags, "coinrun"]) == 0


def test_a_traced_run_that_leaves_no_trace_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiling_trace, "run_logged", lambda *_: 0)
    with Stop() as stop, pytest.raises(RunError, match="before its learner came to a second update"):
        profiling_trace.trace(configured("a2c"), tmp_path / "traces", stop, lambda: None)
    assert not (tmp_path / "traces").exists()
