"""A profile from the first measurement to its files: what is asked for, and what a failure leaves."""

from __future__ import annotations

import statistics
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from rlcb import cpu
from rlcb.cli.profile import main
from rlcb.config.config import Config
from rlcb.errors import RunError
from rlcb.machine.profile import Profile, Setup, ShortRun, Startup, read_profile, write_profile
from rlcb.processes.signals import StopSignal
from rlcb.profiling import job, measure, trace
from rlcb.profiling.advice import result_of
from rlcb.profiling.measure import EFFORTS, MachineMeasurement, Show, Step
from rlcb.profiling.report import describe_short_run
from tests.profiles import configured, passes, profile, setup


@pytest.fixture(autouse=True)
def _machine_of_two_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    monkeypatch.setenv("RL_BENCHMARK_LOCK", str(tmp_path / "lock"))


def reached(config: Config, setup: Setup) -> ShortRun:
    return ShortRun(
        setup=setup,
        fps=100.0,
        n_steps=config.training.n_steps,
        batch_size=config.training.batch_size,
        updates=2,
        startup_seconds=1.0,
        shares={"learn": 0.9},
    )


class MadeUp(MachineMeasurement):
    """A measurement whose first profile is the made-up one. Measured again after a run, passes of A2C take
    twice as long, in the median of both 1.5 times."""

    def measure(self, show: Show) -> None:
        self.slow = [1.0]

    def measure_parts(self, threads: Collection[int], show: Show) -> None:
        assert threads == {1, 2}  # those of parallel and of sequential runs
        self.slow.append(2.0)

    def profile(self, cpu_percent_of_others: float | None, newest: int | None = None) -> Profile:
        slow = statistics.median(self.slow[-newest if newest else None :])
        times = {1: {32: 1.2 * slow}, 2: {32: 0.9 * slow}}
        return profile(act_and_learn=passes("float32", times))


def test_a_failed_short_run_leaves_the_other_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short_run(config: Config, setup: Setup, *_: Any) -> ShortRun:
        if config.algorithm == "ppo":
            raise RunError("a short run of ppo sequential failed (cannot reserve memory)")
        return reached(config, setup)

    load = {"cpu_percent": 0.0, "busiest": []}
    monkeypatch.setattr(job, "measure_load", lambda: load)
    monkeypatch.setattr(job, "MachineMeasurement", MadeUp)
    monkeypatch.setattr(job, "short_run", short_run)
    flags = ["--network", "nature", "--algorithms", "ppo", "a2c", "--modes", "sequential"]
    folder = tmp_path / "profiles"
    write = ["--write", str(tmp_path / "local_ppo_sequential.yaml")]
    assert main([*flags, "--output-dir", str(folder), *write]) == 1
    output, error = capsys.readouterr()
    assert error == "warning: a short run of ppo sequential failed (cannot reserve memory)\n"
    ppo, a2c = read_profile(folder / "made-up_nature.json").results
    assert (ppo.reached, ppo.share) == (None, None)
    assert a2c.reached is not None and a2c.share == pytest.approx(100 / a2c.limit_fps)
    seconds = 0.08 + 1.5 * 0.9  # of two threads, in the median of before and after the run
    assert a2c.limit_fps == pytest.approx(1e3 / seconds)
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

    monkeypatch.setattr(measure, "Measurers", measurers)
    config = configured(hardware={"tune_allocator": tuned})
    with pytest.raises(Asked) as asked:
        MachineMeasurement(config, [config.env], EFFORTS["quick"], lambda: None).measure(lambda *_: None)
    assert asked.value.args == (tuned,)


def test_the_parts_of_a_timestep_are_measured_again_after_each_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that becomes slower and slower: the profile has the medians, of what runs are made of."""
    slow = 1.0

    class Processes:
        def __enter__(self) -> Processes:
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def ask(self, name: str, *_: Any) -> list[Any]:
            if name == "layers":
                return [[{"name": "conv", "flops": 1.0, "bytes": 1.0, "seconds": 1.0}]]
            described = profile().network.model_dump() | {"startup": dict.fromkeys(Startup.model_fields, 1.0)}
            return [described]

    def answers(processes: Processes, step: Step) -> list[float]:
        return [slow]

    monkeypatch.setattr(measure, "Measurers", lambda *_: Processes())
    monkeypatch.setattr(measure, "answers", answers)
    config = configured()
    machine = MachineMeasurement(config, [config.env], EFFORTS["normal"], lambda: None)
    machine.measure(lambda *_: None)
    slow = 2.0
    machine.measure_parts({1}, lambda *_: None)
    slow = 4.0
    machine.measure_parts({1}, lambda *_: None)
    made, around = machine.profile(None), machine.profile(None, newest=2)
    for each, median in ((made, 2.0), (around, 3.0)):
        assert {env.threads: env.seconds for env in each.environments} == {1: median, 2: 1.0}
        for speeds in (each.forward, each.forward_backward):
            seconds = {(speed.layout, speed.precision, speed.threads): speed.seconds for speed in speeds}
            assert seconds["channels_last", "float32", 1] == median
            assert seconds["channels_last", "float32", 2] == 1.0  # not measured again
            assert seconds["torch", "float32", 1] == 1.0  # which no run uses
    assert {each.seconds for each in made.reduce} == {1.0}
    assert made.machine.peak_flops == 1.0


def test_a_run_with_another_setup_than_the_one_recommended_in_the_end_counts_for_its_own_limit() -> None:
    config = configured("ppo", "parallel")
    ran = setup(processes=1, threads=2, num_envs=64)
    result = result_of(profile(), config, reached(config, ran))
    assert result.setup != ran and result.setup.num_envs == 32
    # Two cores, one thread each: 0.1 ms to step, 0.25 for 64 forward, 4 epochs of 1 ms.
    assert result.limit_fps == pytest.approx(2e3 / (0.1 + 0.25 + 4 * 1.0))
    assert result.share == pytest.approx(100 / result.limit_fps)
    text = describe_short_run(result, config)
    assert text.startswith("rollouts of 64 x 128 steps, minibatches of 1,024 and 1 worker of 2 threads, 64 ")


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
    monkeypatch.setattr(trace, "run_script", lambda *_: None)
    with (
        StopSignal(forwards=True) as stop,
        pytest.raises(RunError, match="ended before its learner"),
    ):
        trace.trace(configured("a2c"), tmp_path / "traces", stop, lambda: None)
    assert not (tmp_path / "traces").exists()
