"""Learning from the passes with which a policy acted: the same gradient as from passes of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcb.cli.train import main
from rlcb.cluster.gradient_reduction import BucketReduction
from rlcb.config import config
from rlcb.config.config import Config, caches_activations
from rlcb.config.settings import ModelConfig
from rlcb.config.yaml_file import build_config
from rlcb.envs.spaces import Spaces
from rlcb.errors import Interrupted, UsageError
from rlcb.rl import a2c
from rlcb.rl.activation_cache import ActivationCache, activation_bytes
from rlcb.rl.communicator import Communicator
from rlcb.rl.models import ActorCritic, make_model
from rlcb.training.trainer import Trainer
from tests import image_env, runs

PROCGEN = Spaces((64, 64, 3), "uint8", 15)
SMALL = {"impala_channels": (4, 4), "hidden_size": 16}
STEPS, ENVS = 5, 6


def configured(keep: bool | None, microbatch: int = 1000, **model: object) -> Config:
    return build_config(
        {
            "algorithm": "a2c",
            "env": {"id": image_env.ID, "num_envs": ENVS},
            "model": {**SMALL, **model},
            "training": {"n_steps": STEPS, "batch_size": None, "n_epochs": 1, "normalize_advantages": True},
            "hardware": {"keep_acting_passes": keep, "microbatch_size": microbatch},
        },
        "a test",
    )


def train(config: Config, updates: int = 3) -> tuple[Trainer, list[dict[str, float]]]:
    """A trainer after some updates, and their metrics, those that A2C has."""
    trainer = Trainer(config, Communicator(), 1, lambda: None)
    found = [trainer.iterate(1e-3).metrics for _ in range(updates)]
    metrics = [{name: each for name, each in row.items() if each is not None} for row in found]
    assert all("policy_loss" in row and "explained_variance" in row for row in metrics)
    trainer.close()
    return trainer, metrics


@pytest.mark.parametrize("microbatch", [1000, 7, 1])
def test_learning_is_the_same_whether_passes_are_kept_or_made_again(microbatch: int) -> None:
    """Also where microbatches of the dense layers are no multiple of a step's environments."""
    again, metrics = train(configured(False))
    kept, figures_kept = train(configured(True, microbatch))
    assert again.passes is None and kept.passes is not None
    start = Trainer(configured(False), Communicator(), 1, lambda: None).learner.parameters
    assert (again.learner.parameters - start).abs().max() > 1e-3  # it did learn
    torch.testing.assert_close(kept.learner.parameters, again.learner.parameters, atol=2e-6, rtol=1e-4)
    for ours, theirs in zip(figures_kept, metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_the_gradient_is_that_of_the_whole_rollout_at_once() -> None:
    """Against autograd on all samples, without the learner."""
    trainer = Trainer(configured(True), Communicator(), 1, lambda: None)
    trainer.collector.collect(trainer.part, 0)
    trainer._compute_advantages()
    trainer.learner.apply = lambda: None  # what it would do to the parameters
    trainer.learner.max_grad_norm = 1e9
    trainer.learn(trainer.rollout, 0)
    gradient = trainer.learner.gradient.clone()
    rollout, training = trainer.rollout, trainer.config.training
    trainer.learner.gradient.zero_()
    logits, values = trainer.model(torch.from_numpy(rollout.flat("observations")))
    log_probs = torch.log_softmax(logits, -1)
    taken = log_probs.gather(1, torch.from_numpy(rollout.flat("actions"))[:, None])[:, 0]
    advantages = torch.from_numpy(rollout.flat("advantages")).double()
    advantages = ((advantages - advantages.mean()) / (advantages.std() + 1e-8)).float()
    returns = torch.from_numpy(rollout.flat("returns"))
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    loss = -(taken * advantages).mean() + training.vf_coef * 0.5 * (values - returns).square().mean()
    (loss - training.ent_coef * entropy).backward()
    torch.testing.assert_close(gradient, trainer.learner.gradient, atol=1e-6, rtol=1e-4)
    trainer.close()


def test_two_workers_compute_what_one_process_computes(tmp_path: Path) -> None:
    """Each learns from its own part then, alone from all of it."""
    flags: tuple[object, ...] = (
        *("--env", image_env.ID, "--num-envs", ENVS, "--n-steps", STEPS, "--total-timesteps", 240),
        *("--set", "model.impala_channels=[4, 4]", "--set", "model.hidden_size=16", "--num-threads", 1),
        *("--set", "logging.tensorboard=false", "--set", "hardware.keep_acting_passes=true"),
    )
    one = [*map(str, flags), "--output-dir", str(tmp_path / "1")]
    assert main("a2c", "sequential", False, one) == 0
    result = runs.run("train_a2c_parallel.py", *flags, "--num-workers", 2, "--output-dir", tmp_path / "2")
    assert result.returncode == 0, result.stderr
    assert "learns from those of acting" in result.stdout
    torch.testing.assert_close(
        runs.parameters(tmp_path / "2"), runs.parameters(tmp_path / "1"), atol=1e-5, rtol=0
    )


def test_in_bfloat16_both_ways_round_alike() -> None:
    (_, exact), (_, kept) = (train(configured(keep, precision="bfloat16"), 1) for keep in (False, True))
    assert kept[0] == pytest.approx(exact[0], rel=0.02, abs=1e-3)


def passes_of(model: ActorCritic, heartbeat: Callable[[], None] = lambda: None) -> ActivationCache:
    """Those of a rollout, after it has been acted."""
    trainer = Trainer(configured(False), Communicator(), 1, lambda: None)
    passes = ActivationCache(model, trainer.part, 0, heartbeat)
    trainer.close()
    observations = torch.from_numpy(trainer.part.observations)
    observations.random_(256)
    for step in range(STEPS):
        passes.act(observations[step])
    return passes


def small_model() -> ActorCritic:
    return make_model(ModelConfig.model_validate(SMALL), Spaces((16, 16, 3), "uint8", 4), 0)


def test_a_run_can_be_stopped_while_the_gradient_goes_back() -> None:
    """Between the steps; what was raised is what arrives."""
    beats = 0

    def heartbeat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            raise Interrupted(15)

    passes = passes_of(small_model(), heartbeat)
    logits, values = passes.learn(np.arange(STEPS * ENVS))
    (logits.square().sum() + values.square().sum()).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(Interrupted) as raised:
        passes.finish()
    assert raised.value.exit_code == 128 + 15
    assert beats == 3


def test_buckets_are_sent_while_the_gradient_goes_back() -> None:
    """The dense layers' before the convolutions' are computed, as in a backward pass in one."""
    model = small_model()
    sums = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    sent: list[int] = []
    beats_at: list[int] = []

    class Recorder:
        def begin(self, operation: Any, tensor: torch.Tensor) -> None:
            sent.append(len(tensor))

        def wait(self, work: Any) -> None: ...

    passes = passes_of(model, lambda: beats_at.append(len(sent)))
    reduction = BucketReduction(Recorder(), sums, list(model.parameters()), "none")
    sizes = [parameter.numel() for parameter in model.parameters()]
    dense = len(sizes) - 6
    reduction.buckets = [(dense, sum(sizes[:dense]), sum(sizes)), (0, 0, sum(sizes[:dense]))]
    reduction._bucket_of = [0 if index >= dense else 1 for index in range(len(sizes))]
    half = STEPS * ENVS // 2
    for samples in (np.arange(half), np.arange(half, STEPS * ENVS)):
        if samples[0]:
            reduction.begin()
        logits, values = passes.learn(samples)
        (logits.square().sum() + values.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert sent == [sum(sizes[dense:])]
    passes.finish()
    assert beats_at == [1] * STEPS
    assert sent == [sum(sizes[dense:]), sum(sizes[:dense])]
    reduction.finish()
    assert sent[2:] == [0]  # statistics, of which there are none here


# --- Memory ---


def test_the_nature_network_keeps_the_inputs_of_its_layers() -> None:
    """As floats: the image, and what the three rectifiers give."""
    model = make_model(ModelConfig(architecture="nature"), PROCGEN, 0)
    places: Sequence[int] = (64 * 64 * 3, 15 * 15 * 32, 6 * 6 * 64, 4 * 4 * 64)
    assert activation_bytes(model) == 4 * sum(places)


def test_in_bfloat16_half_as_much_is_kept() -> None:
    def size(precision: str) -> int:
        settings = {"architecture": "nature", "precision": precision}
        return activation_bytes(make_model(ModelConfig.model_validate(settings), PROCGEN, 0))

    assert size("bfloat16") == size("float32") / 2


def test_an_mlp_keeps_nothing() -> None:
    model = make_model(ModelConfig(mlp_sizes=(8,)), Spaces((4,), "float32", 2), 0)
    assert activation_bytes(model) == 0


def test_passes_are_kept_where_they_fit_into_a_quarter_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(memory: int, keep: bool | None = None) -> bool:
        monkeypatch.setattr(config, "usable_memory", lambda: memory)
        return caches_activations(configured(keep), 1000)

    needed = STEPS * ENVS * 1000
    assert kept(4 * needed) and not kept(4 * needed - 1)
    assert kept(0, keep=True) and not kept(4 * needed, keep=False)
    assert not caches_activations(configured(True), 0)
    ppo = build_config({"algorithm": "ppo", "env": {"id": image_env.ID}}, "a test")
    assert not caches_activations(ppo, 1)


def test_nothing_can_be_kept_where_nothing_is_used_twice() -> None:
    with pytest.raises(UsageError, match="keep_acting_passes = true: only A2C and A3C"):
        build_config({"algorithm": "ppo", "hardware": {"keep_acting_passes": True}}, "a test")
    vector = configured(True, mlp_sizes=(4,)).model_dump()
    vector["env"] |= {"id": "CartPole-v1"}
    with pytest.raises(UsageError, match="keep_acting_passes = true: this network has no conv"):
        Trainer(build_config(vector, "a test"), Communicator(), 1, lambda: None)


def test_passes_that_are_not_kept_leave_the_update_to_the_samples_that_were_shared_out() -> None:
    """Without kept passes an update is a function of the rollout alone."""
    trainer, _ = train(configured(False), 1)
    before = trainer.learner.parameters.clone()
    metrics = a2c.update(trainer.learner, trainer.rollout, trainer.config, 1)
    assert metrics["grad_norm"]
    assert not torch.equal(trainer.learner.parameters, before)
