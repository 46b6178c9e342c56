"""PPO over several nodes (threads here): the steps of a single process, with the fewest all-reduces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rlcb.config.settings import TrainingConfig
from rlcb.rl import a2c, ppo
from rlcb.rl.communicator import Communicator
from rlcb.rl.learner import Learner
from rlcb.rl.losses import normalisations
from rlcb.rl.models import ActorCritic
from rlcb.rl.rollout_buffer import RolloutBuffer
from rlcb.rl.timing import PhaseTimer
from tests.rl.test_ppo import random_rollout, run_with, vector_model

RunRanks = Callable[[int, Callable[[Communicator], Any]], list[Any]]
COLUMNS = ("observations", "actions", "log_probs", "values", "advantages", "returns")
MOMENTS = 3  # numbers that a node tells of its part of a minibatch


def place(communicator: Communicator, nodes: int) -> None:
    """Make the ranks of one node those of several."""
    communicator.num_nodes = nodes
    communicator.node_rank = communicator.rank // communicator.local_size


def part_of(rollout: RolloutBuffer, nodes: int, node: int) -> RolloutBuffer:
    """The columns that a node has, in memory of its own."""
    count = rollout.num_envs // nodes
    part = RolloutBuffer(rollout.n_steps, count, rollout.spaces)
    for name in COLUMNS:
        getattr(part, name)[:] = getattr(rollout, name)[:, node * count : (node + 1) * count]
    return part


def parameters(model: ActorCritic) -> torch.Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


@pytest.fixture
def sums(run_ranks: RunRanks, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(rank, numbers) of every all-reduce."""
    seen: list[tuple[int, int]] = []
    (kind,) = run_ranks(1, type)
    real = kind.sum_

    def spy(communicator: Communicator, tensor: torch.Tensor) -> torch.Tensor:
        seen.append((communicator.rank, tensor.numel()))
        summed: torch.Tensor = real(communicator, tensor)
        return summed

    monkeypatch.setattr(kind, "sum_", spy)
    return seen


def update_of(
    algorithm: Any, config: TrainingConfig, rollout: RolloutBuffer, nodes: int
) -> Callable[[Communicator], tuple[dict[str, float | None], torch.Tensor]]:
    """What each rank of `nodes` nodes does: one update of a network of its own, which is returned."""
    models = [vector_model() for _ in range(6)]

    def update(communicator: Communicator) -> tuple[dict[str, float | None], torch.Tensor]:
        place(communicator, nodes)
        model = models[communicator.rank]
        learner = Learner(model, config, 4, communicator, PhaseTimer(), lambda: None, algorithm.STATISTICS)
        part = part_of(rollout, nodes, communicator.node_rank)
        return algorithm.update(learner, part, run_with(config), 5), parameters(model)

    return update


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 3), (2, 1), (3, 2)])
def test_ppo_makes_one_all_reduce_per_step_and_one_per_epoch_for_advantages_over_nodes(
    nodes: int, per_node: int, run_ranks: RunRanks, sums: list[tuple[int, int]]
) -> None:
    config = TrainingConfig(batch_size=10, n_epochs=3)
    rollout = random_rollout(7, 6)  # 42 samples: minibatches of 10, 10, 10, 10 and 2
    alone_figures, alone = update_of(ppo, config, rollout, 1)(Communicator())
    found = run_ranks(nodes * per_node, update_of(ppo, config, rollout, nodes))
    explained_variance = [nodes * 2 * MOMENTS]  # of the returns and of the errors
    step = len(alone) + len(ppo.STATISTICS)
    epoch = [nodes * 5 * MOMENTS, *[step] * 5]
    expected = [step] * 15 if nodes == 1 else explained_variance + epoch * 3
    for rank, (metrics, ours) in enumerate(found):
        assert [size for each, size in sums if each == rank] == expected
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-5)
        assert metrics == pytest.approx(alone_figures, rel=1e-4, abs=1e-6)
        assert torch.equal(ours, found[0][1])


def test_without_normalised_advantages_nodes_do_not_exchange_them(
    run_ranks: RunRanks, sums: list[tuple[int, int]]
) -> None:
    config = TrainingConfig(batch_size=10, n_epochs=2, normalize_advantages=False)
    rollout = random_rollout(7, 6)
    _, alone = update_of(ppo, config, rollout, 1)(Communicator())
    for _, ours in run_ranks(2, update_of(ppo, config, rollout, 2)):
        torch.testing.assert_close(ours, alone, rtol=0, atol=1e-5)
    assert 2 * 5 * MOMENTS not in [size for _, size in sums]


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 2), (2, 1), (2, 3)])
def test_nodes_of_a2c_normalise_with_the_advantages_of_all_nodes(
    nodes: int, per_node: int, run_ranks: RunRanks
) -> None:
    config = TrainingConfig(batch_size=None, n_epochs=1, max_grad_norm=1e9, optimizer_eps=1.0)
    rollout = random_rollout(5, 6)
    rollout.advantages[:, :3] += 4.0  # the nodes' own means and deviations differ
    alone_figures, alone = update_of(a2c, config, rollout, 1)(Communicator())
    for metrics, ours in run_ranks(nodes * per_node, update_of(a2c, config, rollout, nodes)):
        torch.testing.assert_close(ours, alone, rtol=1e-5, atol=1e-6)
        known = [name for name, value in alone_figures.items() if value is not None]
        assert [metrics[name] for name in known] == pytest.approx(
            [alone_figures[name] for name in known], rel=1e-4, abs=1e-6
        )


# --- The mean and the deviation of a minibatch whose parts are on several nodes ---


def normalise(run_ranks: RunRanks, parts: list[list[NDArray[np.float32]]]) -> list[list[tuple[float, float]]]:
    """What each node finds; `parts` are by node and minibatch."""

    def ask(communicator: Communicator) -> list[tuple[float, float]]:
        place(communicator, len(parts))
        return normalisations(parts[communicator.rank], communicator)

    return run_ranks(len(parts), ask)


def test_nodes_compute_mean_and_standard_deviation_of_every_minibatch(run_ranks: RunRanks) -> None:
    generator = np.random.default_rng(1)
    sizes = [(5, 1, 9), (4, 0, 3), (0, 0, 2)]  # by minibatch and node: also nothing on a node
    minibatches = [
        [generator.normal(3.0 * node, 1.0 + node, size).astype(np.float32) for node, size in enumerate(each)]
        for each in sizes
    ]
    found = normalise(run_ranks, [list(parts) for parts in zip(*minibatches)])
    assert found[0] == found[1] == found[2]
    for (mean, scale), parts in zip(found[0], minibatches, strict=True):
        whole = np.concatenate(parts).astype(np.float64)
        assert mean == pytest.approx(whole.mean(), rel=1e-12)
        assert scale == pytest.approx(1 / (whole.std(ddof=1) + 1e-8), rel=1e-12)


def test_the_deviation_of_numbers_with_a_large_mean_is_exact(run_ranks: RunRanks) -> None:
    """Their squares add up to 4e14, of which float64 keeps no hundredths."""
    parts = [[np.array([1e7, 1e7 + 1], np.float32)], [np.array([1e7 + 2, 1e7 + 3], np.float32)]]
    for ((mean, scale),) in normalise(run_ranks, parts):
        assert mean == 1e7 + 1.5
        assert scale == pytest.approx((5 / 3) ** -0.5, rel=1e-7)  # squares 2.25 + .25 + .25 + 2.25, by 3


@pytest.mark.parametrize("number", [0.1, -7e5])
def test_advantages_without_spread_over_nodes_are_scaled_to_zero(run_ranks: RunRanks, number: float) -> None:
    parts = [[np.full(size, number, np.float32)] for size in (7, 0, 4)]
    for ((mean, scale),) in normalise(run_ranks, parts):
        assert mean == np.float32(number)
        assert scale == 0


def test_on_one_node_normalising_needs_no_communication(
    run_ranks: RunRanks, sums: list[tuple[int, int]]
) -> None:
    advantages = np.random.default_rng(1).normal(-2.0, 3.0, 11).astype(np.float32)
    whole = normalisations([advantages], Communicator())
    assert run_ranks(3, lambda communicator: normalisations([advantages], communicator)) == [whole] * 3
    assert sums == []
