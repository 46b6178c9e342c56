"""The activation cache: learning from cached activations gives the gradient of a new forward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlcb.cli.train import main
from rlcb.cluster.gradient_reduction import BucketReduction
from rlcb.config import derived
from rlcb.config.config import Config
from rlcb.config.derived import caches_activations
from rlcb.config.settings import KernelsSetting, ModelConfig
from rlcb.config.yaml_file import build_config
from rlcb.envs.spaces import Spaces
from rlcb.errors import Interrupted, UsageError
from rlcb.rl import a2c
from rlcb.rl.activation_cache import ActivationCache, activation_bytes
from rlcb.rl.models import ActorCritic, make_model
from rlcb.training.base import ProcessSetup
from rlcb.training.trainer import Trainer
from tests import image_env, runs
from tests.cluster_runs import require_compiler

PROCGEN = Spaces((64, 64, 3), "uint8", 15)
SMALL = {"impala_channels": (16, 16), "hidden_size": 16}
STEPS, ENVS = 5, 6


@pytest.fixture(params=["torch", "native"])
def kernels(request: pytest.FixtureRequest) -> KernelsSetting:
    if request.param == "native":
        require_compiler()
    return request.param  # type: ignore[no-any-return]


def configured(
    keep: bool | None, microbatch: int = 1000, kernels: KernelsSetting = "torch", **model: object
) -> Config:
    return build_config(
        {
            "algorithm": "a2c",
            "env": {"id": image_env.ID, "num_envs": ENVS},
            "model": {**SMALL, **model},
            "training": {"n_steps": STEPS, "batch_size": None, "n_epochs": 1, "normalize_advantages": True},
            "hardware": {"keep_acting_passes": keep, "microbatch_size": microbatch, "kernels": kernels},
        },
        "a test",
    )


def train(config: Config, updates: int = 3) -> tuple[Trainer, list[dict[str, float]]]:
    """Make some updates; return the trainer and each update's metrics without those that A2C lacks."""
    trainer = Trainer(ProcessSetup(config))
    found = [trainer.iterate(1e-3).metrics for _ in range(updates)]
    metrics = [{name: each for name, each in row.items() if each is not None} for row in found]
    assert all("policy_loss" in row and "explained_variance" in row for row in metrics)
    assert {row["epochs"] for row in metrics} == {1}
    trainer.close()
    return trainer, metrics


@pytest.mark.parametrize("microbatch", [1000, 7, 1])
def test_training_with_and_without_the_cache_gives_the_same_parameters(
    microbatch: int, kernels: KernelsSetting
) -> None:
    """Also if a microbatch of the dense layers is no multiple of the number of environments."""
    plain, plain_metrics = train(configured(False, kernels=kernels))
    cached, cached_metrics = train(configured(True, microbatch, kernels))
    assert cached.model.kernels == kernels
    assert plain.learner.activation_cache is None and cached.learner.activation_cache is not None
    start = Trainer(ProcessSetup(configured(False))).learner.parameters
    assert (plain.learner.parameters - start).abs().max() > 1e-3  # it did learn
    torch.testing.assert_close(cached.learner.parameters, plain.learner.parameters, atol=2e-6, rtol=1e-4)
    for actual, expected in zip(cached_metrics, plain_metrics, strict=True):
        assert actual == pytest.approx(expected, rel=1e-3, abs=1e-5)


def test_the_gradient_equals_that_of_one_pass_over_the_whole_rollout(kernels: KernelsSetting) -> None:
    """Compared with autograd on all samples, without the learner."""
    trainer = Trainer(ProcessSetup(configured(True, kernels=kernels)))
    trainer.collector.collect(trainer.local_rollout, 0)
    trainer._compute_advantages()
    trainer.learner.apply = lambda: None  # leave the parameters unchanged
    trainer.learner.max_grad_norm = 1e9
    a2c.update(trainer.learner, trainer.rollout, trainer.config, 0)
    gradient = trainer.learner.gradient.clone()
    rollout, training = trainer.rollout, trainer.config.training
    trainer.learner.gradient.zero_()
    logits, values = trainer.model(torch.from_numpy(rollout.flat("observations")))
    log_probs = torch.log_softmax(logits, -1)
    chosen = log_probs.gather(1, torch.from_numpy(rollout.flat("actions"))[:, None])[:, 0]
    advantages = torch.from_numpy(rollout.flat("advantages")).double()
    advantages = ((advantages - advantages.mean()) / (advantages.std() + 1e-8)).float()
    returns = torch.from_numpy(rollout.flat("returns"))
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    loss = -(chosen * advantages).mean() + training.vf_coef * 0.5 * (values - returns).square().mean()
    (loss - training.ent_coef * entropy).backward()
    torch.testing.assert_close(gradient, trainer.learner.gradient, atol=1e-6, rtol=1e-4)
    trainer.close()


def test_two_workers_compute_what_one_process_computes(tmp_path: Path) -> None:
    """Each worker learns from its own samples, the single process from all of them."""
    flags: tuple[object, ...] = (
        *("--env", image_env.ID, "--num-envs", ENVS, "--n-steps", STEPS, "--total-timesteps", 240),
        *("--set", "model.impala_channels=[16, 16]", "--set", "model.hidden_size=16", "--num-threads", 1),
        *("--set", "logging.tensorboard=false", "--set", "hardware.keep_acting_passes=true"),
    )
    one = [*map(str, flags), "--output-dir", str(tmp_path / "1")]
    assert main("a2c", "sequential", False, one) == 0
    result = runs.call(
        "train.py --algorithm a2c --mode parallel", *flags, "--num-workers", 2, "--output-dir", tmp_path / "2"
    )
    assert result.returncode == 0, result.stderr
    assert "cached while acting" in result.stdout
    torch.testing.assert_close(
        runs.parameters(tmp_path / "2"), runs.parameters(tmp_path / "1"), atol=1e-5, rtol=0
    )


def test_in_bfloat16_metrics_are_about_equal_with_and_without_the_cache() -> None:
    (_, plain), (_, cached) = (train(configured(keep, precision="bfloat16"), 1) for keep in (False, True))
    assert cached[0] == pytest.approx(plain[0], rel=0.02, abs=1e-3)


def filled_cache(model: ActorCritic, heartbeat: Callable[[], None] = lambda: None) -> ActivationCache:
    """The cache after the policy has acted in a whole rollout."""
    trainer = Trainer(ProcessSetup(configured(False)))
    cache = ActivationCache(model, trainer.local_rollout, 0, heartbeat)
    trainer.close()
    observations = torch.from_numpy(trainer.local_rollout.observations)
    observations.random_(256)
    for step in range(STEPS):
        cache.act(observations[step], torch.full((len(observations[step]),), 0.5, dtype=torch.float64))
    return cache


def small_model(kernels: KernelsSetting) -> ActorCritic:
    return make_model(ModelConfig.model_validate(SMALL), Spaces((16, 16, 3), "uint8", 4), 0, kernels)


def test_a_run_can_be_stopped_during_the_backward_pass(kernels: KernelsSetting) -> None:
    """The heartbeat is called between steps; its exception reaches the caller."""
    beats = 0

    def heartbeat() -> None:
        nonlocal beats
        beats += 1
        if beats == 3:
            raise Interrupted(15)

    cache = filled_cache(small_model(kernels), heartbeat)
    logits, values = cache.forward(np.arange(STEPS * ENVS))
    (logits.square().sum() + values.square().sum()).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(Interrupted) as raised:
        cache.backward()
    assert raised.value.exit_code == 128 + 15
    assert beats == 3


def test_gradient_buckets_are_sent_during_the_backward_pass(kernels: KernelsSetting) -> None:
    """The dense layers' bucket is sent before the convolutions' gradient is computed, as without a cache."""
    model = small_model(kernels)
    sums = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    sent: list[int] = []
    beats_at: list[int] = []

    class Recorder:
        def begin_sum(self, tensor: torch.Tensor, compress: bool = False) -> None:
            sent.append(len(tensor))

        def wait(self, work: Any) -> None: ...

    cache = filled_cache(model, lambda: beats_at.append(len(sent)))
    reduction = BucketReduction(Recorder(), sums, list(model.parameters()), "none")
    sizes = [parameter.numel() for parameter in model.parameters()]
    dense = len(sizes) - 6
    reduction.buckets = [(dense, sum(sizes[:dense]), sum(sizes)), (0, 0, sum(sizes[:dense]))]
    reduction._bucket_of = [0 if index >= dense else 1 for index in range(len(sizes))]
    half = STEPS * ENVS // 2
    for samples in (np.arange(half), np.arange(half, STEPS * ENVS)):
        if samples[0]:
            reduction.begin()
        logits, values = cache.forward(samples)
        (logits.square().sum() + values.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert sent == [sum(sizes[dense:])]
    cache.backward()
    assert beats_at == [1] * STEPS
    assert sent == [sum(sizes[dense:]), sum(sizes[:dense])]
    reduction.finish()
    assert sent[2:] == [0]  # no statistics


# --- Memory ---


def test_a_sample_of_the_nature_cnn_takes_the_bytes_of_its_layers_inputs() -> None:
    """In float32: the image and the outputs of the three rectifiers."""
    model = make_model(ModelConfig(architecture="nature"), PROCGEN, 0)
    places: Sequence[int] = (64 * 64 * 3, 15 * 15 * 32, 6 * 6 * 64, 4 * 4 * 64)
    assert activation_bytes(model) == 4 * sum(places)


def test_a_sample_takes_half_the_bytes_in_bfloat16() -> None:
    def size(precision: str) -> int:
        settings = {"architecture": "nature", "precision": precision}
        return activation_bytes(make_model(ModelConfig.model_validate(settings), PROCGEN, 0))

    assert size("bfloat16") == size("float32") / 2


def test_an_mlp_has_nothing_to_cache() -> None:
    model = make_model(ModelConfig(mlp_sizes=(8,)), Spaces((4,), "float32", 2), 0)
    assert activation_bytes(model) == 0


def test_activations_are_cached_if_they_fit_into_a_quarter_of_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kept(memory: int, keep: bool | None = None) -> bool:
        monkeypatch.setattr(derived, "usable_memory", lambda: memory)
        return caches_activations(configured(keep), 1000)

    needed = STEPS * ENVS * 1000
    assert kept(4 * needed) and not kept(4 * needed - 1)
    assert kept(0, keep=True) and not kept(4 * needed, keep=False)
    assert not caches_activations(configured(True), 0)
    ppo = build_config({"algorithm": "ppo", "env": {"id": image_env.ID}}, "a test")
    assert not caches_activations(ppo, 1)


def test_requiring_a_cache_is_refused_for_ppo_and_for_networks_without_convolutions() -> None:
    with pytest.raises(UsageError, match="keep_acting_passes = true: only A2C and A3C"):
        build_config({"algorithm": "ppo", "hardware": {"keep_acting_passes": True}}, "a test")
    vector = configured(True, mlp_sizes=(4,)).model_dump()
    vector["env"] |= {"id": "CartPole-v1"}
    with pytest.raises(UsageError, match="keep_acting_passes = true: this network has no conv"):
        Trainer(ProcessSetup(build_config(vector, "a test")))


def test_without_the_cache_an_update_needs_only_the_rollout() -> None:
    trainer, _ = train(configured(False), 1)
    before = trainer.learner.parameters.clone()
    metrics = a2c.update(trainer.learner, trainer.rollout, trainer.config, 1)
    assert metrics["grad_norm"]
    assert not torch.equal(trainer.learner.parameters, before)
