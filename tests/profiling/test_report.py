"""What is measured, tried out and shown of a profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcb.machine.profile import Profile
from rlcb.plots.save import save_figure
from rlcb.profiling.measure import EFFORTS, counts_up_to, plan
from rlcb.profiling.report import describe_profile, precisions
from rlcb.profiling.roofline import draw_roofline
from rlcb.profiling.short_runs import read_run, short_config
from tests.profiles import ENV, configured, passes, profile, setup, with_results


def test_threads_and_processes_are_measured_in_doubles_and_all_together() -> None:
    assert [counts_up_to(n) for n in (1, 2, 3, 8, 12)] == [
        [1],
        [1, 2],
        [1, 2, 3],
        [1, 2, 4, 8],
        [1, 2, 4, 8, 12],
    ]


def test_the_plan_measures_every_size_with_every_number_of_threads_and_all_cores_busy() -> None:
    config = configured()
    steps = list(plan(config, [config.env], EFFORTS["quick"], 4, ("float32", "bfloat16"), 1000, True))
    found = {(step.key, step.count) for step in steps}
    for threads, processes in ((1, 4), (2, 2), (4, 1)):
        assert (("environment", ENV, "easy", "{}", threads), processes) in found
        for size in (16, 32):
            assert (("forward", size, threads, "channels_last", "float32"), processes) in found
        for size in (64, 128):
            assert (("forward_backward", size, threads, "channels_last", "float32"), processes) in found
        assert (("forward_backward", 128, threads, "torch", "float32"), processes) in found
    assert (("forward", 8, 1, "channels_last", "float32"), 4) in found  # the share of each of four
    assert (("forward_backward", 128, 1, "channels_last", "bfloat16"), 4) in found
    assert (("all_reduce", 4, 4000), 4) in found
    assert len({step.key for step in steps}) == len(steps)
    plain = plan(config, [config.env], EFFORTS["quick"], 4, ("float32",), 1000, False)
    assert not [step for step in plain if "bfloat16" in step.key or "torch" in step.key]


def test_a_short_run_is_the_recommended_one_with_shorter_rollouts() -> None:
    config = configured(mode="parallel")
    short = short_config(config, setup(predicted_fps=2000.0, microbatch_size=64), 2.0)
    # 4,000 timesteps are two updates of at most 2,000: 32 environments x 32 steps, at least.
    assert (short.training.n_steps, short.training.batch_size) == (32, 1024)
    assert short.training.total_timesteps == (1 + 4) * 32 * 32
    assert (short.parallel.num_workers, short.hardware.num_threads) == (2, 1)
    assert (short.hardware.microbatch_size, short.training.n_epochs) == (64, 4)
    assert (short.env.num_envs, short.training.duration_hours) == (32, None)


def test_a_short_run_of_ppo_keeps_a_whole_minibatch_however_long_it_takes() -> None:
    config = configured(mode="parallel")
    short = short_config(config, setup(predicted_fps=210.0), 3.0)
    # 630 timesteps are less than a minibatch, which is 32 environments x 32 steps; one update is counted.
    assert (short.training.n_steps, short.training.batch_size) == (32, 1024)
    assert short.training.total_timesteps == (1 + 1) * 1024
    wide = short_config(config, setup(predicted_fps=210.0, num_envs=64), 3.0)
    assert (wide.training.n_steps, wide.training.batch_size) == (16, 1024)
    whole = short_config(
        configured(training={"batch_size": 4096}), setup(processes=1, predicted_fps=210.0), 3.0
    )
    assert (whole.training.n_steps, whole.training.batch_size) == (128, 4096)


def test_a_short_run_of_actors_has_batches_of_as_many_unrolls() -> None:
    config = configured("impala", "parallel", training={"n_steps": 16, "batch_size": 256})
    lag = config.impala.max_policy_lag
    same = short_config(config, setup(learners=1, predicted_fps=1024.0), 1.0)
    assert (same.training.n_steps, same.training.batch_size) == (16, 256)
    assert same.training.total_timesteps == 256 * (lag + 2 + 4)
    short = short_config(config, setup(learners=1, predicted_fps=100.0), 1.0)
    # Unrolls of 8 steps by 16 environments of an actor: one of them is a batch, as before.
    assert (short.training.n_steps, short.training.batch_size) == (8, 128)
    assert short.training.total_timesteps == 128 * (lag + 2 + 2)


def test_a_short_run_leaves_nothing_outside_its_folder() -> None:
    elsewhere = {"checkpoint_dir": "/elsewhere", "log_dir": "/elsewhere"}
    config = configured("a2c", training={"batch_size": 128 * 32, "duration_hours": 8.0}, logging=elsewhere)
    short = short_config(config, setup(processes=1, predicted_fps=100.0), 1.0)
    assert (short.logging.checkpoint_dir, short.logging.log_dir) == (None, None)
    assert (short.training.batch_size, short.training.duration_hours) == (None, None)


def test_a_short_run_of_actors_leaves_out_the_updates_until_they_are_ahead() -> None:
    config = configured("impala", "parallel", training={"n_steps": 16}, impala={"max_policy_lag": 1})
    short = short_config(config, setup(learners=1, predicted_fps=512.0), 4.0)
    assert short.training.n_steps == 16
    assert short.training.total_timesteps == 512 * (1 + 2 + 4)


def test_the_speed_of_a_short_run_is_that_after_its_first_update(tmp_path: Path) -> None:
    logs = tmp_path / "logs/PPO_Sequential"
    logs.mkdir(parents=True)
    rows = [(100, 1, 5.0), (200, 2, 6.0), (300, 3, 7.5)]
    (logs / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"timesteps": t, "update": u, "time/elapsed_seconds": s}) + "\n" for t, u, s in rows
        )
    )
    (tmp_path / "benchmark_metrics.json").write_text(
        json.dumps({"time_breakdown": {"learn": {"seconds": 6.0, "share": 0.8}}})
    )
    reached = read_run(tmp_path, configured(), setup(processes=1), seconds=9.0)
    assert reached.fps == pytest.approx(200 / 2.5)
    assert (reached.updates, reached.startup_seconds, reached.shares) == (2, 1.5, {"learn": 0.8})
    assert (reached.setup, reached.n_steps, reached.batch_size) == (setup(processes=1), 128, 1024)


def test_the_text_has_limit_share_bottleneck_and_recommendation() -> None:
    shown = with_results()
    configs = {
        ("ppo", "sequential"): configured(),
        ("impala", "parallel"): configured("impala", "parallel", training={"n_steps": 16}),
    }
    text = describe_profile(shown, configs)
    lines = {line[:20].strip(): line[20:].split() for line in text.splitlines()}
    assert lines["PPO sequential"] == ["323", "200", "62%", "455", "44%"]
    assert lines["IMPALA parallel"] == ["1,429", "-", "-", "1,429", "-"]
    assert "this CPU has no instructions for bfloat16" in text
    assert "learning: forward and backward passes of 4 epochs" in text
    assert "2 actors, 2 learners, 1 thread each, 32 environments, microbatches of 128" in text
    assert "reached with rollouts of 32 x 64 steps, minibatches of 1,024" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 110


def with_bfloat16(acting: float, learning: float) -> Profile:
    """Milliseconds a sample in bfloat16 of one thread; in float32 it is one to act and one to learn."""
    forward = passes("float32", {1: {32: 1.0}, 2: {32: 1.0}}) + passes("bfloat16", {1: {32: acting}})
    both = passes("float32", {1: {128: 1.0}, 2: {128: 1.0}}) + passes("bfloat16", {1: {128: learning}})
    machine = profile().machine.model_dump(mode="json") | {"peak_flops_bfloat16": 2e11}
    return profile(forward=forward, forward_backward=both, machine=machine)


def test_another_precision_is_offered_only_where_it_is_faster() -> None:
    """By the time of a timestep: 0.1 ms environment, one pass to act, one for each epoch to learn."""
    text = precisions(with_bfloat16(0.9, 0.5))  # 2.1 against 1.5 ms
    assert "1.11 times as fast as float32 forward, 2.00 times forward and backward" in text
    assert text.endswith("--set model.precision=bfloat16 makes use of it, here and in training scripts")
    assert precisions(with_bfloat16(1.0, 0.98)).endswith("not worth while here")  # 2.1 against 2.08 ms
    slow_to_act = with_bfloat16(1 / 0.70, 1 / 1.06)  # 2.1 against 2.47 ms
    assert precisions(slow_to_act).endswith("not worth while here")


def test_another_precision_may_pay_with_many_epochs_alone() -> None:
    measured = with_bfloat16(1 / 0.70, 0.77)  # one epoch: 2.1 against 2.3 ms; four: 5.1 against 4.61 ms
    assert precisions(measured).endswith("not worth while here")
    both = measured.model_copy(update={"results": with_results().results})
    assert {each.epochs for each in both.results} == {1, 4}
    assert precisions(both).endswith("makes use of it, where a rollout is learned from 4 times, as in PPO")


def test_a_processor_without_bfloat16_says_what_the_profile_computes_in() -> None:
    network = profile().network.model_dump(mode="json")
    network["model"]["precision"] = "bfloat16"
    text = precisions(profile(network=network))
    assert text == "bfloat16; this CPU has no instructions for bfloat16"


def test_the_roofline_is_drawn(tmp_path: Path) -> None:
    save_figure(draw_roofline(profile()), tmp_path / "roofline.png")
    content = (tmp_path / "roofline.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    words = {text.get_text() for axes in [draw_roofline(profile())] for text in axes.texts}
    # At best 1 MFLOP in 0.25 ms and 3 MFLOP in 1 ms: 4 and 3 GFLOP/s; the layer 1 MFLOP in 20 us.
    assert {"whole network", "forward and backward", "3", "4", "1  conv", "50"} <= words
