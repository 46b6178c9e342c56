"""IMPALA's loss against known answers and autograd on the whole batch, its steps against torch's own."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlcb.config.config import Config
from rlcb.config.settings import ImpalaConfig, ModelConfig, TrainingConfig
from rlcb.envs.spaces import Spaces
from rlcb.rl import impala
from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import Learner
from rlcb.rl.models import ActorCritic, make_model
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.timing import PhaseTimer
from tests.rl.test_vtrace import direct_sum

VECTOR = Spaces((3,), "float32", 4)
RunRanks = Callable[[int, Callable[[Communicator], Any]], list[Any]]
UNCLIPPED = 1e9  # a max_grad_norm that no gradient here reaches


def configured(training: dict[str, Any] | None = None, **of_impala: Any) -> Config:
    """A run's configuration, of which only these two sections matter here."""
    defaults = {"max_grad_norm": UNCLIPPED, "gamma": 0.97, "gae_lambda": 0.9, "optimizer": "rmsprop"}
    return Config.model_construct(
        training=TrainingConfig.model_validate({**defaults, **(training or {})}),
        impala=ImpalaConfig.model_validate(of_impala),
    )


def make_learner(
    model: ActorCritic,
    config: Config,
    microbatch_size: int = 1000,
    communicator: Communicator | None = None,
) -> Learner:
    return Learner(
        model,
        config.training,
        microbatch_size,
        communicator or Communicator(),
        PhaseTimer(),
        lambda: None,
        impala.STATISTICS,
    )


def vector_model(seed: int = 0) -> ActorCritic:
    """With a policy that is not nearly uniform, and values of any size."""
    model = make_model(ModelConfig(mlp_sizes=(8,)), VECTOR, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)) * 0.5)
    return model


def random_rollout(n_steps: int, num_envs: int, seed: int = 0) -> RolloutBuffer:
    """As another policy could have left it, with episodes that end in all ways, complete for an update."""
    rng = np.random.default_rng(seed)
    rollout = RolloutBuffer(n_steps, num_envs, VECTOR)
    grid = (n_steps, num_envs)
    rollout.observations[:] = rng.normal(size=rollout.observations.shape)
    rollout.actions[:] = rng.integers(0, VECTOR.num_actions, grid)
    rollout.log_probs[:] = np.log(rng.uniform(0.05, 0.9, grid))
    rollout.bootstrap_values[:] = rng.normal(size=grid)
    rollout.scaled_rewards[:] = rng.normal(size=grid)
    rollout.terminated[:] = rng.random(grid) < 0.15
    rollout.truncated[:] = (rng.random(grid) < 0.15) & ~rollout.terminated
    # what IMPALA may not use: its own network says it anew, and only later than these were written
    for array in (rollout.values, rollout.rewards, rollout.advantages, rollout.returns):
        array[:] = np.nan
    return rollout


def whole_loss(
    model: ActorCritic, rollout: RolloutBuffer, config: Config, columns: Sequence[int]
) -> tuple[torch.Tensor, dict[str, float]]:
    """The loss over some columns by autograd alone, in one piece, with targets by direct summation."""
    training, own = config.training, config.impala
    thresholds = (
        own.vtrace_clip_rho_threshold,
        own.vtrace_clip_pg_rho_threshold,
        own.vtrace_clip_c_threshold,
    )
    terms, metrics = [], []
    for i in columns:
        logits, values = model(torch.from_numpy(rollout.observations[:, i].copy()))
        distribution = torch.distributions.Categorical(logits=logits)
        log_probs = distribution.log_prob(torch.from_numpy(rollout.actions[:, i].copy()))
        now = values.detach().numpy().astype(np.float64)
        following = np.append(now[1:], rollout.bootstrap_values[-1, i])
        following = np.where(rollout.truncated[:, i], rollout.bootstrap_values[:, i], following)
        log_ratios = log_probs.detach().numpy() - rollout.log_probs[:, i]
        column = [
            array[:, None]
            for array in (
                log_ratios,
                rollout.scaled_rewards[:, i],
                now,
                following,
                rollout.terminated[:, i],
                rollout.truncated[:, i],
            )
        ]
        targets, advantages = direct_sum(*column, training.gamma, training.gae_lambda, thresholds)
        target, advantage = (torch.from_numpy(each[:, 0]) for each in (targets, advantages))
        parts = (-log_probs * advantage, 0.5 * (values - target).square(), distribution.entropy())
        terms.append(torch.stack([each.double() for each in parts]))
        ratios = np.exp(log_ratios.astype(np.float64))
        metrics.append(np.stack([ratios - 1 - log_ratios, ratios > thresholds[0], targets[:, 0], now]))
    policy, value, entropy = torch.cat(terms, dim=1).mean(1)
    loss = policy + training.vf_coef * value - training.ent_coef * entropy
    kl, clipped, all_targets, all_values = np.concatenate(metrics, axis=1)
    return loss, {
        "policy_loss": policy.item(),
        "value_loss": value.item(),
        "entropy": entropy.item(),
        "approx_kl": kl.mean(),
        "impala/rho_clipped_fraction": clipped.mean(),
        "explained_variance": 1 - np.var(all_targets - all_values) / np.var(all_targets),
    }


def gradient_of(loss: torch.Tensor, model: ActorCritic) -> torch.Tensor:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return torch.cat([each.flatten() for each in gradients])


def vector_of(model: ActorCritic) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def close(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float = 2e-5) -> bool:
    return bool((ours - theirs).norm() <= tolerance * theirs.norm())


# --- The loss ---


@pytest.mark.parametrize(
    ("behaviour", "target", "value_target", "policy_loss"),
    [(0.4, 0.8, 1.0, 0.223144), (0.8, 0.4, 0.5, 0.458145)],
)
def test_known_loss_of_one_terminal_step_uses_the_ratio_once(
    behaviour: float, target: float, value_target: float, policy_loss: float
) -> None:
    """Reward 1, V = 0, gamma 1: -log .8 * 1, and -log .4 * 1/2."""
    spaces = Spaces((1,), "float32", 2)
    model = make_model(ModelConfig(mlp_sizes=(1,)), spaces, 0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.policy.bias.copy_(torch.log(torch.tensor([target, 1 - target])))
    rollout = RolloutBuffer(1, 1, spaces)
    for array in (rollout.observations, rollout.actions, rollout.bootstrap_values, rollout.truncated):
        array[:] = 0
    rollout.scaled_rewards[:], rollout.terminated[:], rollout.log_probs[:] = 1, True, np.log(behaviour)
    config = configured({"gamma": 1.0, "gae_lambda": 1.0, "vf_coef": 0.5, "ent_coef": 0.0})
    loss, parts = impala.columns_loss(model, rollout, config, np.arange(1))
    assert parts["policy_loss"].item() == pytest.approx(policy_loss, abs=1e-6)
    assert parts["target"].item() == pytest.approx(value_target, rel=1e-6)
    assert parts["value_loss"].item() == pytest.approx(0.5 * value_target**2, rel=1e-6)
    assert loss.item() == pytest.approx(policy_loss + 0.25 * value_target**2, abs=1e-6)
    # d loss / d logit of the action: -(1 - pi) A, through the logarithm only
    gradient = torch.autograd.grad(loss, model.policy.bias)[0]
    assert gradient[0].item() == pytest.approx(-(1 - target) * value_target, rel=1e-5)


def test_successor_values_come_from_the_next_row_or_from_bootstrap_values() -> None:
    values = np.array([[1, 10], [2, 20], [3, 30]], np.float32)
    bootstrap = np.array([[-1, -10], [-2, -20], [-3, -30]], np.float32)
    truncated = np.array([[False, True], [False, False], [True, False]])
    expected = [[2, -10], [3, 30], [-3, -30]]
    np.testing.assert_array_equal(impala.successor_values(values, bootstrap, truncated), expected)


THRESHOLDS = {
    "as on policy": {},
    "apart": {
        "vtrace_clip_rho_threshold": 2.0,
        "vtrace_clip_pg_rho_threshold": 1.5,
        "vtrace_clip_c_threshold": 0.8,
    },
}


@pytest.mark.parametrize("microbatch_size", [1, 14, 7 * 5, 1000])
@pytest.mark.parametrize("thresholds", THRESHOLDS.values(), ids=THRESHOLDS)
@pytest.mark.parametrize("num_envs", [1, 5])
def test_an_update_equals_autograd_on_the_whole_batch(
    microbatch_size: int, thresholds: dict[str, float], num_envs: int
) -> None:
    config = configured({"vf_coef": 0.7, "ent_coef": 0.03}, **thresholds)
    model, rollout = vector_model(), random_rollout(7, num_envs, seed=2)
    loss, expected = whole_loss(model, rollout, config, range(num_envs))
    gradient = gradient_of(loss, model)
    learner = make_learner(model, config, microbatch_size)
    metrics = impala.update(learner, rollout, config, 3)
    assert close(learner.gradient, gradient)
    assert metrics["grad_norm"] == pytest.approx(gradient.norm().item(), rel=1e-4)
    for name, value in expected.items():
        assert metrics[name] == pytest.approx(value, rel=1e-3, abs=1e-5), name
    assert 0 < expected["impala/rho_clipped_fraction"] < 1
    assert metrics["clip_fraction"] is None
    assert metrics["epochs"] == 1


@pytest.mark.parametrize("columns", [[2], [5, 0, 3], [1, 2, 3, 4, 5, 0], [4, 1]])
@pytest.mark.parametrize("microbatch_size", [6, 13, 1000])
def test_an_update_on_some_columns_learns_only_from_them_in_any_order(
    columns: list[int], microbatch_size: int
) -> None:
    config = configured()
    model, rollout = vector_model(), random_rollout(6, 6)
    others = [i for i in range(6) if i not in columns]
    loss, expected = whole_loss(model, rollout, config, columns)
    gradient = gradient_of(loss, model)
    rollout.scaled_rewards[:, others] = np.nan  # being written by someone else at this moment
    learner = make_learner(model, config, microbatch_size)
    metrics = impala.update(learner, rollout, config, 0, np.array(columns))
    assert close(learner.gradient, gradient)
    assert metrics["policy_loss"] == pytest.approx(expected["policy_loss"], rel=1e-4)
    assert metrics["explained_variance"] == pytest.approx(expected["explained_variance"], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("columns", [None, [3, 1]])
def test_loss_reduction_sum_is_the_mean_times_the_number_of_samples(columns: list[int] | None) -> None:
    rollout = random_rollout(5, 4)
    chosen = None if columns is None else np.array(columns)
    gradients, metrics = [], []
    for reduction in ("mean", "sum"):
        config = configured(loss_reduction=reduction)
        learner = make_learner(vector_model(), config, 10)
        metrics.append(impala.update(learner, rollout, config, 0, chosen))
        gradients.append(learner.gradient)
    samples = 5 * (4 if columns is None else 2)
    assert close(gradients[1], gradients[0] * samples)
    assert metrics[1].pop("grad_norm") == pytest.approx(samples * (metrics[0].pop("grad_norm") or 0))
    for name in ("policy_loss", "value_loss", "entropy", "explained_variance"):
        assert metrics[1][name] == pytest.approx(metrics[0][name])  # reported as means in either case


@pytest.mark.parametrize("optimizer", ["adam", "rmsprop"])
@pytest.mark.parametrize("max_grad_norm", [0.05, UNCLIPPED])
def test_steps_equal_those_of_torchs_own_optimizer(optimizer: str, max_grad_norm: float) -> None:
    settings = {"optimizer": optimizer, "learning_rate": 0.003, "rmsprop_alpha": 0.9, "optimizer_eps": 1e-3}
    config = configured({**settings, "max_grad_norm": max_grad_norm})
    model, rollout = vector_model(), random_rollout(6, 3)
    twin = copy.deepcopy(model)
    theirs: torch.optim.Optimizer
    if optimizer == "adam":
        theirs = torch.optim.Adam(twin.parameters(), lr=0.003, eps=1e-3)
    else:
        theirs = torch.optim.RMSprop(twin.parameters(), lr=0.003, alpha=0.9, eps=1e-3)
    learner = make_learner(model, config, microbatch_size=6)
    for number in range(4):
        rate = 0.003 * (1 - number / 4)
        learner.set_learning_rate(rate)
        impala.update(learner, rollout, config, number)
        theirs.param_groups[0]["lr"] = rate
        theirs.zero_grad()
        torch.autograd.backward(whole_loss(twin, rollout, config, range(3))[0])
        torch.nn.utils.clip_grad_norm_(twin.parameters(), max_grad_norm)
        theirs.step()
        torch.testing.assert_close(vector_of(model), vector_of(twin), rtol=1e-4, atol=1e-5)


def test_an_update_does_not_modify_the_rollout() -> None:
    config, rollout = configured(), random_rollout(5, 4)
    names = ("observations", "actions", "log_probs", "scaled_rewards", "bootstrap_values")
    before = {name: getattr(rollout, name).copy() for name in names}
    impala.update(make_learner(vector_model(), config), rollout, config, 0)
    for name, array in before.items():
        np.testing.assert_array_equal(getattr(rollout, name), array)


def test_updates_do_not_depend_on_their_number() -> None:
    config, rollout = configured(), random_rollout(5, 4)
    results = []
    for number in (0, 17):
        model = vector_model()
        impala.update(make_learner(model, config, 5), rollout, config, number)
        results.append(vector_of(model))
    assert torch.equal(*results)


# --- Several processes ---


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("columns", [None, [4, 0, 3], [2]], ids=["all", "some", "fewer than processes"])
def test_processes_that_share_the_columns_make_the_update_of_a_single_process(
    world_size: int, columns: list[int] | None, run_ranks: RunRanks
) -> None:
    config = configured({"max_grad_norm": 0.1})
    rollout = random_rollout(6, 5)
    chosen = None if columns is None else np.array(columns)
    models = [vector_model() for _ in range(world_size + 1)]  # making one is not for threads

    def update(communicator: Communicator) -> tuple[dict[str, float | None], torch.Tensor]:
        model = models.pop()
        metrics = impala.update(make_learner(model, config, 6, communicator), rollout, config, 0, chosen)
        return metrics, vector_of(model)

    expected_figures, expected = update(Communicator())
    results = run_ranks(world_size, update)
    for metrics, parameters in results:
        torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(parameters, results[0][1])
        for name, value in expected_figures.items():
            assert metrics[name] == (None if value is None else pytest.approx(value, rel=1e-3, abs=1e-5))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_nodes_with_separate_rollouts_make_the_update_of_one_node_on_all_rollouts(
    reduction: str, run_ranks: RunRanks
) -> None:
    config = configured(loss_reduction=reduction)
    whole = random_rollout(6, 4)
    models = [vector_model() for _ in range(3)]

    def update(communicator: Communicator) -> torch.Tensor:
        communicator.num_nodes = communicator.world_size
        part = whole
        if communicator.num_nodes == 2:
            communicator.node_rank = communicator.rank
            part = whole.columns(2 * communicator.rank, 2)
        learner = make_learner(models.pop(), config, 6, communicator)
        impala.update(learner, part, config, 0)
        return learner.gradient.clone()

    expected = update(Communicator())
    for gradient in run_ranks(2, update):
        assert close(gradient, expected)


# --- Figures ---


def on_policy(rollout: RolloutBuffer, model: ActorCritic) -> RolloutBuffer:
    """The same rollout with the model itself as the behaviour policy."""
    with torch.no_grad():
        logits, _ = model(torch.from_numpy(rollout.flat("observations")))
        log_probs = torch.log_softmax(logits, -1)
        taken = log_probs.gather(1, torch.from_numpy(rollout.flat("actions"))[:, None])
    rollout.log_probs[:] = taken.numpy().reshape(rollout.log_probs.shape)
    return rollout


def test_on_policy_there_is_no_divergence_and_nothing_is_clipped() -> None:
    config, model = configured(vtrace_clip_rho_threshold=1.0001), vector_model()  # rounding is no clipping
    metrics = impala.update(make_learner(model, config), on_policy(random_rollout(8, 3), model), config, 0)
    assert metrics["approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["impala/rho_clipped_fraction"] == 0


def test_a_ratio_at_the_threshold_is_not_clipped() -> None:
    config, model = configured(vtrace_clip_rho_threshold=1.0), vector_model()
    with torch.no_grad():
        model.policy.weight.zero_()  # every action has the same probability, whatever the observation
        model.policy.bias.zero_()
    rollout = on_policy(random_rollout(8, 3), model)
    assert impala.update(make_learner(model, config), rollout, config, 0)["impala/rho_clipped_fraction"] == 0


@pytest.mark.parametrize("rewards", [0.0, 0.1, -3e4])
def test_explained_variance_is_null_when_targets_have_no_spread(rewards: float) -> None:
    config, model = configured({"gamma": 0.0}), vector_model()
    rollout = on_policy(random_rollout(7, 3), model)
    rollout.log_probs -= 1  # every ratio is e, which is clipped to 1: the target is the reward
    rollout.scaled_rewards[:] = rewards
    metrics = impala.update(make_learner(model, config, 7), rollout, config, 0)
    assert metrics["explained_variance"] is None


def test_explained_variance_is_exact_for_targets_far_from_zero() -> None:
    """Returns around 1,000 with a deviation of 1, as with gamma .999 and a reward in every step."""
    config, model = configured({"gamma": 0.0}), vector_model()
    with torch.no_grad():
        model.value.bias.fill_(1000)
    rollout = on_policy(random_rollout(16, 8), model)
    rollout.log_probs -= 1
    rollout.scaled_rewards += 1000
    _, expected = whole_loss(model, rollout, config, range(8))
    metrics = impala.update(make_learner(model, config, 32), rollout, config, 0)
    assert metrics["explained_variance"] == pytest.approx(expected["explained_variance"], rel=0.02)


def test_actions_with_higher_rewards_become_more_likely() -> None:
    config = configured({"gamma": 0.0, "ent_coef": 0.0, "optimizer": "adam", "learning_rate": 0.01})
    model = make_model(ModelConfig(mlp_sizes=(8,)), VECTOR, 0)
    rollout = random_rollout(32, 4)
    rollout.scaled_rewards[:] = rollout.actions == 2
    learner = make_learner(model, config)
    observations = torch.from_numpy(rollout.flat("observations"))

    def probability() -> float:
        with torch.no_grad():
            return float(torch.softmax(model(observations)[0], -1)[:, 2].mean())

    before = probability()
    rollout.log_probs[:] = np.log(0.25)
    for number in range(10):
        impala.update(learner, rollout, config, number)
    assert probability() > before + 0.03


def columns_seen(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.int64]]:
    calls: list[NDArray[np.int64]] = []
    real = impala.columns_loss

    def spy(model: Any, rollout: Any, config: Any, columns: NDArray[np.int64]) -> Any:
        calls.append(columns.copy())
        return real(model, rollout, config, columns)

    monkeypatch.setattr(impala, "columns_loss", spy)
    return calls


@pytest.mark.parametrize(("microbatch_size", "largest"), [(1, 1), (7, 1), (20, 2), (35, 5), (1000, 5)])
def test_microbatches_are_whole_columns_and_each_column_is_used_once(
    microbatch_size: int, largest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = columns_seen(monkeypatch)
    config = configured()
    impala.update(make_learner(vector_model(), config, microbatch_size), random_rollout(7, 5), config, 0)
    assert max(len(part) for part in seen) == largest
    np.testing.assert_array_equal(np.sort(np.concatenate(seen)), np.arange(5))
