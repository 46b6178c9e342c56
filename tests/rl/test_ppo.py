"""PPO's loss against known answers and plain NumPy, its update against torch's gradients and optimizers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlcb.config.config import Config
from rlcb.config.settings import ModelConfig, TrainingConfig
from rlcb.envs.spaces import Spaces
from rlcb.errors import RunError
from rlcb.rl import ppo
from rlcb.rl.communicator import Communicator, Reduction
from rlcb.rl.learner import Learner
from rlcb.rl.losses import normalisations, value_loss
from rlcb.rl.models import ActorCritic, make_model
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.timing import PhaseTimer

VECTOR = Spaces((3,), "float32", 4)
IMAGE = Spaces((64, 64, 3), "uint8", 15)
RunRanks = Callable[[int, Callable[[Communicator], Any]], list[Any]]
UNCLIPPED = 1e9  # a max_grad_norm that no gradient here reaches


def run_with(training: TrainingConfig) -> Config:
    """A run's configuration, of which only this section matters here."""
    return Config.model_construct(training=training)


def make_learner(
    model: ActorCritic,
    config: TrainingConfig,
    microbatch_size: int = 1000,
    communicator: Communicator | None = None,
) -> Learner:
    return Learner(
        model,
        config,
        microbatch_size,
        communicator or Communicator(),
        PhaseTimer(),
        lambda: None,
        ppo.STATISTICS,
    )


def vector_model(seed: int = 0) -> ActorCritic:
    return make_model(ModelConfig(mlp_sizes=(8,)), VECTOR, seed)


def random_rollout(n_steps: int, num_envs: int, spaces: Spaces = VECTOR, seed: int = 0) -> RolloutBuffer:
    """A rollout as any behaviour policy could have left it, with advantages and returns."""
    rng = np.random.default_rng(seed)
    rollout = RolloutBuffer(n_steps, num_envs, spaces)
    shape = rollout.observations.shape
    if spaces.is_image:
        rollout.observations[:] = rng.integers(0, 256, shape)
    else:
        rollout.observations[:] = rng.normal(size=shape)
    rollout.actions[:] = rng.integers(0, spaces.num_actions, (n_steps, num_envs))
    rollout.log_probs[:] = np.log(rng.uniform(0.1, 0.5, (n_steps, num_envs)))
    for array in (rollout.values, rollout.advantages, rollout.returns):
        array[:] = rng.normal(size=(n_steps, num_envs))
    return rollout


def tensors(rollout: RolloutBuffer) -> dict[str, torch.Tensor]:
    names = ("observations", "actions", "log_probs", "values", "advantages", "returns")
    return {name: torch.from_numpy(rollout.flat(name)) for name in names}


def whole_loss(
    model: ActorCritic,
    rollout: RolloutBuffer,
    config: TrainingConfig,
    mean: float = 0.0,
    scale: float = 1.0,
) -> Callable[[NDArray[np.int64]], tuple[torch.Tensor, dict[str, torch.Tensor]]]:
    return partial(ppo.minibatch_loss, model, tensors(rollout), config, mean, scale)


def reference_loss(
    logits: NDArray[np.float64],
    values: NDArray[np.float64],
    actions: NDArray[np.int64],
    old_log_probs: NDArray[np.float64],
    old_values: NDArray[np.float64],
    advantages: NDArray[np.float64],
    returns: NDArray[np.float64],
    config: TrainingConfig,
) -> dict[str, float]:
    """The clipped objective of Schulman et al. 2017, sample by sample in double precision."""
    sums = dict.fromkeys(("policy_loss", "value_loss", "entropy", "approx_kl", "clip_fraction"), 0.0)
    for i, action in enumerate(actions):
        weights = np.exp(logits[i] - logits[i].max())
        probabilities = weights / weights.sum()
        ratio = probabilities[action] / np.exp(old_log_probs[i])
        kept = min(max(ratio, 1 - config.clip_range), 1 + config.clip_range)
        sums["policy_loss"] -= min(ratio * advantages[i], kept * advantages[i])
        error = (values[i] - returns[i]) ** 2
        if config.clip_value_loss:
            change = min(max(values[i] - old_values[i], -config.clip_range), config.clip_range)
            error = max(error, (old_values[i] + change - returns[i]) ** 2)
        sums["value_loss"] += 0.5 * error
        sums["entropy"] -= float((probabilities * np.log(probabilities)).sum())
        sums["approx_kl"] += ratio - 1 - np.log(ratio)
        sums["clip_fraction"] += float(abs(ratio - 1) > config.clip_range)
    means = {name: total / len(actions) for name, total in sums.items()}
    loss = means["policy_loss"] + config.vf_coef * means["value_loss"] - config.ent_coef * means["entropy"]
    return {**means, "loss": loss}


# --- The loss ---


@pytest.mark.parametrize(
    ("new", "target", "loss", "gradient"),
    [
        (-1.0, 0.5, 1.125, -1.5),
        (0.1, 0.5, 0.08, -0.4),
        (1.0, 0.5, 0.125, 0.5),
        (1.0, 2.0, 1.62, 0.0),
    ],
)
def test_clipped_value_loss_has_the_known_values_and_gradients(
    new: float, target: float, loss: float, gradient: float
) -> None:
    value = torch.tensor([new], requires_grad=True)
    result = value_loss(value, torch.zeros(1), torch.tensor([target]), clip_range=0.2)
    torch.autograd.backward(result)
    assert result.item() == pytest.approx(loss, rel=1e-6)
    assert value.grad is not None
    assert value.grad.item() == pytest.approx(gradient, rel=1e-6)
    assert gradient != 0 or value.grad.item() == 0.0  # not even a little


def test_value_loss_without_clipping_is_half_the_mean_squared_error() -> None:
    result = value_loss(torch.tensor([1.0, -2.0]), torch.zeros(2), torch.tensor([3.0, 1.0]), None)
    assert result.item() == pytest.approx(0.5 * (4 + 9) / 2)


@pytest.mark.parametrize("clip_value_loss", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_loss_and_its_parts_equal_a_plain_calculation(seed: int, clip_value_loss: bool) -> None:
    config = TrainingConfig(clip_value_loss=clip_value_loss, clip_range=0.15, vf_coef=0.7, ent_coef=0.03)
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(50, 5))
    values, old_values, advantages, returns = rng.normal(size=(4, 50))
    actions = rng.integers(0, 5, 50)
    taken = logits[np.arange(50), actions] - np.log(np.exp(logits).sum(1))
    old_log_probs = taken + rng.normal(scale=0.3, size=50)
    arrays = (logits, values, actions, old_log_probs, old_values, advantages, returns)
    as_tensors = [torch.from_numpy(x if x.dtype == np.int64 else x.astype(np.float32)) for x in arrays]
    with_config: list[Any] = [*as_tensors, config]
    loss, parts = ppo.ppo_loss(*with_config)
    expected = reference_loss(*[*arrays, config])
    assert 0 < expected["clip_fraction"] < 1
    assert set(parts) == set(ppo.STATISTICS) == expected.keys() - {"loss"}
    for name, value in {**parts, "loss": loss}.items():
        assert value.item() == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name


def test_entropy_of_a_uniform_policy_is_the_logarithm_of_the_number_of_actions_in_nats() -> None:
    zeros = torch.zeros(3)
    _, parts = ppo.ppo_loss(
        torch.zeros(3, 15), zeros, zeros.long(), zeros, zeros, zeros, zeros, TrainingConfig()
    )
    assert parts["entropy"].item() == pytest.approx(np.log(15), rel=1e-6)


@pytest.mark.parametrize(
    ("advantage", "log_ratio", "pulls"),
    [(1.0, 0.5, False), (1.0, -0.5, True), (-1.0, 0.5, True), (-1.0, -0.5, False), (1.0, 0.1, True)],
)
def test_the_policy_gradient_vanishes_only_where_the_ratio_is_clipped(
    advantage: float, log_ratio: float, pulls: bool
) -> None:
    logits = torch.zeros(1, 2, requires_grad=True)
    old = torch.log(torch.tensor([0.5])) - log_ratio
    zeros = torch.zeros(1)
    config = TrainingConfig(ent_coef=0.0, vf_coef=0.0)
    loss, _ = ppo.ppo_loss(logits, zeros, zeros.long(), old, zeros, torch.tensor([advantage]), zeros, config)
    torch.autograd.backward(loss)
    assert logits.grad is not None
    # d(-ratio A)/d logit_0 = -A ratio (1 - p_0)
    expected = -advantage * np.exp(log_ratio) * 0.5 if pulls else 0.0
    assert logits.grad[0, 0].item() == pytest.approx(expected, rel=1e-5)


# --- Normalised advantages ---


def test_normalised_advantages_have_mean_zero_and_standard_deviation_one() -> None:
    advantages = np.random.default_rng(0).normal(3.0, 5.0, 40).astype(np.float32)
    ((mean, scale),) = normalisations([advantages], Communicator())
    normalised = (advantages.astype(np.float64) - mean) * scale
    assert normalised.mean() == pytest.approx(0.0, abs=1e-9)
    assert normalised.std(ddof=1) == pytest.approx(1.0, rel=1e-7)


@pytest.mark.parametrize("advantages", [[2.5], [0.1] * 7, [-3e6] * 3])
def test_advantages_without_spread_are_scaled_to_zero(advantages: list[float]) -> None:
    ((mean, scale),) = normalisations([np.array(advantages, np.float32)], Communicator())
    assert mean == pytest.approx(advantages[0])
    assert scale == 0


@pytest.mark.parametrize(
    ("n_steps", "batch_size", "advantages"),
    [(1, 1, [2.5]), (5, 4, [1.0, -1.0, 2.0, 0.5, 3.0]), (6, 6, [0.1] * 6), (6, 3, [-7e5] * 6)],
    ids=["one sample in all", "a last minibatch of one", "no spread", "no spread, large"],
)
def test_normalising_a_minibatch_without_spread_stays_finite(
    n_steps: int, batch_size: int, advantages: list[float]
) -> None:
    config = TrainingConfig(n_steps=n_steps, batch_size=batch_size, n_epochs=2)
    model = vector_model()
    rollout = random_rollout(n_steps, 1)
    rollout.advantages[:, 0] = advantages
    metrics = ppo.update(make_learner(model, config), rollout, run_with(config), 0)
    assert all(np.isfinite(value) for value in metrics.values() if value is not None)
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_the_loss_is_that_of_the_normalised_advantages() -> None:
    rollout, model, samples = random_rollout(6, 2), vector_model(), np.arange(12)
    given = whole_loss(model, rollout, TrainingConfig(), mean=0.75, scale=2.0)(samples)[1]["policy_loss"]
    rollout.advantages[:] = (rollout.advantages - 0.75) * 2.0
    expected = whole_loss(model, rollout, TrainingConfig())(samples)[1]["policy_loss"]
    assert given.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_sum_over_processes_begins_before_the_last_microbatch_and_finishes_after_it() -> None:
    events: list[object] = []

    class Noting(Reduction):
        def begin(self) -> None:
            events.append("begin")

        def finish(self) -> None:
            events.append("finish")

    class Noted(Communicator):
        def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
            return Noting(self, sums)

    rollout, model, config = random_rollout(5, 1), vector_model(), TrainingConfig()
    learner = make_learner(model, config, 2, Noted())
    loss = whole_loss(model, rollout, config)

    def noted_loss(samples: NDArray[np.int64]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        events.append(len(samples))
        return loss(samples)

    learner.step(np.arange(5), 5, noted_loss)
    assert events == [2, 2, "begin", 1, "finish"]


def test_actions_with_higher_advantages_become_more_likely() -> None:
    config = TrainingConfig(batch_size=32, n_epochs=3, learning_rate=0.01, ent_coef=0.0, vf_coef=0.0)
    model = vector_model()
    rollout = random_rollout(32, 2)
    observations = torch.from_numpy(rollout.flat("observations"))
    with torch.no_grad():
        before = torch.log_softmax(model(observations)[0], -1)
    rollout.log_probs[:] = (
        before.gather(1, torch.from_numpy(rollout.flat("actions"))[:, None]).numpy().reshape(32, 2)
    )
    rollout.advantages[:] = np.where(rollout.actions == 2, 1.0, -1.0)
    ppo.update(make_learner(model, config), rollout, run_with(config), 0)
    with torch.no_grad():
        after = torch.log_softmax(model(observations)[0], -1)
    assert after[:, 2].exp().mean() > before[:, 2].exp().mean() + 0.02


# --- Gradients in microbatches ---


def impala_case() -> tuple[ActorCritic, RolloutBuffer, TrainingConfig]:
    config = TrainingConfig(max_grad_norm=UNCLIPPED, clip_value_loss=True)
    return make_model(ModelConfig(), IMAGE, seed=1), random_rollout(13, 1, IMAGE), config


@pytest.fixture(scope="module")
def whole_gradients() -> dict[str, torch.Tensor]:
    """The gradient of the mean loss over 13 images, by torch alone."""
    model, rollout, config = impala_case()
    loss, _ = whole_loss(model, rollout, config, 0.3, 1.7)(np.arange(13))
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("microbatch_size", [1, 5, 12, 13, 64])
def test_gradient_in_microbatches_equals_the_gradient_of_the_whole_minibatch(
    microbatch_size: int, whole_gradients: dict[str, torch.Tensor]
) -> None:
    model, rollout, config = impala_case()
    learner = make_learner(model, config, microbatch_size)
    metrics = learner.step(np.arange(13), 13, whole_loss(model, rollout, config, 0.3, 1.7))
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        difference = (parameter.grad - whole_gradients[name]).norm() / whole_gradients[name].norm()
        assert difference.item() < 1e-5, name
    norm = torch.cat([gradient.flatten() for gradient in whole_gradients.values()]).double().norm().item()
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("microbatch_size", [1, 3, 7, 10])
def test_statistics_do_not_depend_on_the_microbatch_size(microbatch_size: int) -> None:
    config = TrainingConfig(max_grad_norm=UNCLIPPED)
    model, rollout = vector_model(), random_rollout(10, 1)
    with torch.no_grad():
        _, parts = whole_loss(model, rollout, config)(np.arange(10))
    expected = {name: value.item() for name, value in parts.items()}
    learner = make_learner(model, config, microbatch_size)
    metrics = learner.step(np.arange(10), 10, whole_loss(model, rollout, config))
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("size", [1, 2, 9])
def test_processes_that_share_a_minibatch_make_the_step_of_a_single_process(
    size: int, run_ranks: RunRanks
) -> None:
    """Also where there are fewer samples than processes."""
    config = TrainingConfig(max_grad_norm=0.5)
    rollout = random_rollout(size, 1)
    samples = np.arange(size)

    models = [vector_model() for _ in range(4)]

    def step(communicator: Communicator) -> tuple[dict[str, float], torch.Tensor]:
        model = models.pop()
        learner = make_learner(model, config, 2, communicator)
        share = samples[communicator.rank :: communicator.world_size]
        metrics = learner.step(share, size, whole_loss(model, rollout, config))
        return metrics, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    alone_figures, alone = step(Communicator())
    for metrics, parameters in run_ranks(3, step):
        torch.testing.assert_close(parameters, alone, rtol=1e-5, atol=1e-6)
        assert metrics == pytest.approx(alone_figures, rel=1e-5)


# --- One optimizer step ---


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("max_grad_norm", [0.1, UNCLIPPED])
def test_steps_equal_those_of_torchs_own_optimizer(optimizer: str, max_grad_norm: float) -> None:
    config = TrainingConfig.model_validate(
        {"optimizer": optimizer, "max_grad_norm": max_grad_norm, "learning_rate": 0.003, "rmsprop_alpha": 0.9}
    )
    model, rollout = vector_model(), random_rollout(12, 1)
    twin = copy.deepcopy(model)
    theirs: torch.optim.Optimizer
    if optimizer == "adam":
        theirs = torch.optim.Adam(twin.parameters(), lr=0.003, eps=config.optimizer_eps)
    else:
        theirs = torch.optim.RMSprop(twin.parameters(), lr=0.003, alpha=0.9, eps=config.optimizer_eps)
    learner = make_learner(model, config, microbatch_size=5)
    for number in range(4):
        rate = 0.003 * (1 - number / 4)
        learner.set_learning_rate(rate)
        learner.step(np.arange(12), 12, whole_loss(model, rollout, config))
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        torch.autograd.backward(whole_loss(twin, rollout, config)(np.arange(12))[0])
        torch.nn.utils.clip_grad_norm_(twin.parameters(), max_grad_norm)
        theirs.step()
        for ours, other in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-4, atol=1e-6)


def test_a_gradient_above_the_clipping_threshold_is_scaled_to_it_and_keeps_its_direction() -> None:
    model, rollout = vector_model(), random_rollout(12, 1)
    free = model_gradient(model, rollout, UNCLIPPED)
    norm = free.norm().item()
    for limit in (0.01 * norm, 0.8 * norm):
        clipped = model_gradient(model, rollout, limit)
        assert clipped.norm().item() == pytest.approx(limit, rel=1e-4)
        direction = torch.nn.functional.cosine_similarity(free, clipped, dim=0)
        assert direction.item() == pytest.approx(1.0, abs=1e-6)
    assert torch.equal(model_gradient(model, rollout, 1.01 * norm), free)


def model_gradient(model: ActorCritic, rollout: RolloutBuffer, max_grad_norm: float) -> torch.Tensor:
    """The gradient with which a copy of the model takes a step."""
    config = TrainingConfig(max_grad_norm=max_grad_norm)
    twin = copy.deepcopy(model)
    samples = np.arange(rollout.num_samples)
    metrics = make_learner(twin, config).step(samples, len(samples), whole_loss(twin, rollout, config))
    loss, _ = whole_loss(model, rollout, config)(samples)
    whole = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
    assert metrics["grad_norm"] == pytest.approx(whole.norm().item(), rel=1e-5)  # as it was before clipping
    return torch.cat(
        [parameter.grad.flatten() for parameter in twin.parameters() if parameter.grad is not None]
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_gradient_that_is_not_finite_ends_the_run_and_leaves_the_parameters_unchanged(
    bad: float,
) -> None:
    config = TrainingConfig()
    model, rollout = vector_model(), random_rollout(8, 1)
    learner = make_learner(model, config, microbatch_size=3)
    learner.step(np.arange(8), 8, whole_loss(model, rollout, config))
    before = copy.deepcopy(learner.state())
    rollout.returns[5] = bad
    with pytest.raises(RunError, match="not finite"):
        learner.step(np.arange(8), 8, whole_loss(model, rollout, config))
    after = learner.state()
    for name, tensor in before["model"].items():
        assert torch.equal(after["model"][name], tensor), name
    torch.testing.assert_close(after["optimizer"], before["optimizer"], rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
def test_a_learner_that_loads_a_state_continues_like_the_saved_one(optimizer: str) -> None:
    config = TrainingConfig.model_validate({"optimizer": optimizer})
    rollout = random_rollout(12, 1)
    learners = [make_learner(vector_model(seed), config) for seed in (0, 1)]

    def step(learner: Learner) -> None:
        learner.step(np.arange(12), 12, whole_loss(learner.model, rollout, config))

    step(learners[0])
    learners[1].load(copy.deepcopy(learners[0].state()))
    for _ in range(2):
        step(learners[0])
        step(learners[1])
    for saved, loaded in zip(learners[0].model.parameters(), learners[1].model.parameters(), strict=True):
        assert torch.equal(saved, loaded)


def test_the_heartbeat_is_called_between_microbatches_and_may_abandon_the_step() -> None:
    class Stop(Exception):
        pass

    beats: list[int] = []

    def heartbeat() -> None:
        beats.append(len(beats))
        if len(beats) == 3:
            raise Stop

    config = TrainingConfig()
    model, rollout = vector_model(), random_rollout(8, 1)
    before = copy.deepcopy(model.state_dict())
    learner = Learner(model, config, 2, Communicator(), PhaseTimer(), heartbeat, ppo.STATISTICS)
    with pytest.raises(Stop):
        learner.step(np.arange(8), 8, whole_loss(model, rollout, config))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


# --- The update ---


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.int64]]:
    """The samples of every call of the loss, in order."""
    calls: list[NDArray[np.int64]] = []
    real = ppo.minibatch_loss

    def spy(*arguments: Any) -> Any:
        calls.append(arguments[-1].copy())
        return real(*arguments)

    monkeypatch.setattr(ppo, "minibatch_loss", spy)
    return calls


@pytest.mark.parametrize(
    ("n_steps", "num_envs", "batch_size", "microbatch_size"),
    [(8, 4, 8, 8), (7, 3, 8, 3), (5, 2, 10, 4), (5, 2, 3, 2), (3, 1, 2, 7)],
)
def test_every_sample_is_used_exactly_once_an_epoch(
    n_steps: int, num_envs: int, batch_size: int, microbatch_size: int, seen: list[NDArray[np.int64]]
) -> None:
    config = TrainingConfig(batch_size=batch_size, n_epochs=3)
    learner = make_learner(vector_model(), config, microbatch_size)
    ppo.update(learner, random_rollout(n_steps, num_envs), run_with(config), 5)
    assert max(len(part) for part in seen) <= min(batch_size, microbatch_size)
    samples = np.concatenate(seen).reshape(3, n_steps * num_envs)
    for epoch in samples:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(n_steps * num_envs))
    assert not np.array_equal(samples[0], samples[1])  # shuffled anew


def test_processes_together_use_every_sample_exactly_once_an_epoch(
    seen: list[NDArray[np.int64]], run_ranks: RunRanks
) -> None:
    config = TrainingConfig(batch_size=6, n_epochs=2)
    rollout = random_rollout(13, 1)
    models = [vector_model(), vector_model()]

    def update(communicator: Communicator) -> torch.Tensor:
        model = models[communicator.rank]
        ppo.update(make_learner(model, config, 2, communicator), rollout, run_with(config), 0)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    first, second = run_ranks(2, update)
    assert torch.equal(first, second)
    used = np.bincount(np.concatenate(seen), minlength=13)
    np.testing.assert_array_equal(used, np.full(13, 2))


class ScriptedLearner(Learner):
    """Learns nothing and reports the approximate KL divergences that it is given."""

    def __init__(self, config: TrainingConfig, divergences: list[float]) -> None:
        super().__init__(
            vector_model(), config, 8, Communicator(), PhaseTimer(), lambda: None, ppo.STATISTICS
        )
        self.divergences = iter(divergences)
        self.sizes: list[int] = []

    def step(self, samples: NDArray[np.int64], minibatch_size: int, loss_function: Any) -> dict[str, float]:
        self.sizes.append(len(samples))
        return {"approx_kl": next(self.divergences)}


def test_target_kl_ends_the_update_after_the_epoch_whose_mean_exceeds_it() -> None:
    config = TrainingConfig(batch_size=4, n_epochs=5, target_kl=0.03)
    # epoch means .025 (one minibatch above the target does not count), .03 (not exceeded), .04
    learner = ScriptedLearner(config, [0.0, 0.05, 0.03, 0.03, 0.08, 0.0, 9.0])
    metrics = ppo.update(learner, random_rollout(8, 1), run_with(config), 0)
    assert metrics["epochs"] == 3
    assert learner.sizes == [4] * 6  # the epoch is finished
    assert metrics["approx_kl"] == pytest.approx(0.19 / 6)


def test_without_target_kl_all_epochs_are_made() -> None:
    config = TrainingConfig(batch_size=4, n_epochs=5)
    learner = ScriptedLearner(config, [100.0] * 10)
    assert ppo.update(learner, random_rollout(8, 1), run_with(config), 0)["epochs"] == 5


def test_statistics_are_means_in_which_every_sample_has_the_same_weight() -> None:
    config = TrainingConfig(batch_size=4, n_epochs=2)
    learner = ScriptedLearner(config, [1.0, 2.0, 6.0, 3.0, 4.0, 12.0])
    metrics = ppo.update(learner, random_rollout(10, 1), run_with(config), 0)
    assert learner.sizes == [4, 4, 2] * 2
    assert metrics["approx_kl"] == pytest.approx((4 * (1 + 2 + 3 + 4) + 2 * (6 + 12)) / 20)


def test_statistics_of_an_update_with_a_tiny_learning_rate_equal_the_whole_rollouts() -> None:
    config = TrainingConfig(batch_size=4, n_epochs=3, learning_rate=1e-30, normalize_advantages=False)
    model, rollout = vector_model(), random_rollout(11, 2)
    with torch.no_grad():
        logits, values = model(torch.from_numpy(rollout.flat("observations")))
    names = ("actions", "log_probs", "values", "advantages", "returns")
    arguments: list[Any] = [logits.double().numpy(), values.double().numpy()]
    arguments += [*(rollout.flat(name) for name in names), config]
    expected = reference_loss(*arguments)
    metrics = ppo.update(make_learner(model, config), rollout, run_with(config), 0)
    for name in ppo.STATISTICS:
        assert metrics[name] == pytest.approx(expected[name], rel=1e-4), name


def test_explained_variance_compares_the_collected_values_with_the_returns() -> None:
    config = TrainingConfig(batch_size=8, n_epochs=1)
    rollout = random_rollout(8, 2)
    metrics = ppo.update(make_learner(vector_model(), config), rollout, run_with(config), 0)
    returns, values = rollout.returns.astype(np.float64), rollout.values.astype(np.float64)
    expected = 1 - np.square(returns - values - (returns - values).mean()).mean() / returns.var()
    assert metrics["explained_variance"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("constant", [0.0, 0.1, -3e4])
def test_explained_variance_is_null_when_returns_have_no_spread(constant: float) -> None:
    config = TrainingConfig(batch_size=7, n_epochs=1)
    rollout = random_rollout(7, 3)
    rollout.returns[:] = constant
    metrics = ppo.update(make_learner(vector_model(), config), rollout, run_with(config), 0)
    assert metrics["explained_variance"] is None


def test_updates_are_reproducible_and_depend_on_number_and_seed() -> None:
    def parameters(seed: int, number: int) -> torch.Tensor:
        config = TrainingConfig(batch_size=3, n_epochs=2, seed=seed)
        model = vector_model()
        ppo.update(make_learner(model, config), random_rollout(10, 1), run_with(config), number)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    assert torch.equal(parameters(1, 0), parameters(1, 0))
    assert not torch.equal(parameters(1, 0), parameters(1, 1))
    assert not torch.equal(parameters(1, 0), parameters(2, 0))
