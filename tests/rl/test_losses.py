"""The parts of the losses against values worked out by hand or with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlcb.config.settings import TrainingConfig
from rlcb.rl.communicator import Communicator
from rlcb.rl.losses import (
    actor_critic_loss,
    joint_explained_variance,
    joint_moments,
    moments_of,
    normalisations,
    policy_terms,
    value_loss,
)

RunRanks = Callable[[int, Callable[[Communicator], Any]], list[Any]]


def test_log_probabilities_and_entropies_are_those_of_the_policy() -> None:
    probabilities = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.7, 0.2]])
    log_probs, entropies = policy_terms(
        probabilities.log() + 3, torch.tensor([1, 2])
    )  # logits up to a constant
    np.testing.assert_allclose(log_probs, np.log([0.25, 0.2]), rtol=1e-6)
    expected = [1.5 * np.log(2), -0.1 * np.log(0.1) - 0.7 * np.log(0.7) - 0.2 * np.log(0.2)]
    np.testing.assert_allclose(entropies, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("clip_range", "expected"),
    [
        (None, 0.5 * (0.25 + 4.0 + 9.0) / 3),
        # The values are clipped to 1.2, 0.8 and 2.1.
        (0.2, 0.5 * (0.8**2 + 4.0 + 9.0) / 3),
        (10.0, 0.5 * (0.25 + 4.0 + 9.0) / 3),
    ],
)
def test_the_value_loss_is_half_the_mean_of_the_larger_squared_error(
    clip_range: float | None, expected: float
) -> None:
    values, old = torch.tensor([1.5, 0.0, 2.1]), torch.tensor([1.0, 1.0, 2.0])
    returns = torch.tensor([2.0, 2.0, 5.1])
    assert value_loss(values, old, returns, clip_range).item() == pytest.approx(expected, rel=1e-6)


def test_the_actor_critic_loss_weights_its_parts() -> None:
    config = TrainingConfig(vf_coef=0.25, ent_coef=0.1)
    loss, parts = actor_critic_loss(
        log_probs=torch.tensor([-1.0, -2.0]),
        entropies=torch.tensor([0.5, 2.5]),
        values=torch.tensor([1.0, 3.0]),
        advantages=torch.tensor([2.0, -4.0]),
        targets=torch.tensor([3.0, 2.0]),
        config=config,
    )
    # -(-1 * 2 + -2 * -4) / 2 = -3; 0.5 * (4 + 1) / 2 = 1.25; (0.5 + 2.5) / 2 = 1.5
    expected = {"policy_loss": -3.0, "value_loss": 1.25, "entropy": 1.5}
    assert {key: value.item() for key, value in parts.items()} == expected
    assert loss.item() == pytest.approx(-3.0 + 0.25 * 1.25 - 0.1 * 1.5)


def on_nodes(
    run_ranks: RunRanks, nodes: int, per_node: int, function: Callable[[Communicator], Any]
) -> list[Any]:
    """Call `function` once per rank, with `per_node` ranks on each node; return the results by rank."""

    def work(communicator: Communicator) -> Any:
        communicator.num_nodes = nodes
        communicator.node_rank = communicator.rank // per_node
        return function(communicator)

    return run_ranks(nodes * per_node, work)


def test_moments_are_count_mean_and_squared_deviations() -> None:
    assert moments_of(np.array([[1, 2], [3, 6]], np.float32)) == (4.0, 3.0, 14.0)  # 4 + 1 + 0 + 9
    assert moments_of(np.empty(0, np.float32)) == (0.0, 0.0, 0.0)


def test_moments_of_nodes_are_those_of_all_numbers(run_ranks: RunRanks) -> None:
    rng = np.random.default_rng(0)
    parts = [[rng.normal(5, 2, size) for size in sizes] for sizes in ((3, 1, 0), (4, 0, 0))]
    found = on_nodes(
        run_ranks,
        2,
        2,
        lambda each: joint_moments([moments_of(part) for part in parts[each.node_rank]], each),
    )
    for moments in found:
        for index, (count, mean, squares) in enumerate(moments):
            numbers = np.concatenate([part[index] for part in parts])
            assert count == numbers.size
            if numbers.size:
                assert mean == pytest.approx(numbers.mean())
                assert squares == pytest.approx(np.square(numbers - numbers.mean()).sum())
    assert found[0][2] == (0.0, 0.0, 0.0)


def test_explained_variance_covers_the_rollouts_of_all_nodes(run_ranks: RunRanks) -> None:
    rng = np.random.default_rng(1)
    values, returns = (
        rng.normal(1, 1, (2, 5, 3)).astype(np.float32),
        rng.normal(4, 2, (2, 5, 3)).astype(np.float32),
    )
    errors = returns.astype(np.float64) - values
    alone = joint_explained_variance(values[0], returns[0], Communicator())
    assert alone == pytest.approx(1 - errors[0].var() / returns[0].var(dtype=np.float64))
    found = on_nodes(
        run_ranks,
        2,
        2,
        lambda each: joint_explained_variance(values[each.node_rank], returns[each.node_rank], each),
    )
    assert found == pytest.approx([1 - errors.var() / returns.var(dtype=np.float64)] * 4)


def test_returns_without_spread_have_no_explained_variance() -> None:
    assert joint_explained_variance(np.zeros(3, np.float32), np.ones(3, np.float32), Communicator()) is None


def test_advantages_are_normalised_by_mean_and_sample_deviation(run_ranks: RunRanks) -> None:
    minibatches = [np.array(each, np.float32) for each in ([1, 2, 6], [5], [7, 7], [1, 2])]
    expected = [(3, 1 / 7**0.5), (5, 0), (7, 0), (1.5, 2**0.5)]  # variances 14 / 2 and 0.5 / 1
    for (mean, scale), (right_mean, right_scale) in zip(
        normalisations(minibatches, Communicator()), expected, strict=True
    ):
        assert (mean, scale) == (pytest.approx(right_mean), pytest.approx(right_scale, rel=1e-6))
    parts = [[np.array([1, 2], np.float32)], [np.array([6], np.float32)]]
    for found in on_nodes(run_ranks, 2, 1, lambda each: normalisations(parts[each.node_rank], each)):
        assert found == [(pytest.approx(3), pytest.approx(1 / 7**0.5, rel=1e-6))]


def test_a_small_deviation_is_bounded_by_the_epsilon() -> None:
    ((_, scale),) = normalisations([np.array([0, 2**0.5 * 1e-8])], Communicator())  # deviation 1e-8
    assert scale == pytest.approx(0.5e8)


def test_a_single_node_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Communicator, "sum_", lambda *_: pytest.fail("it communicated"))
    assert normalisations([np.array([1, 3], np.float32)], Communicator())[0][0] == 2
    assert (
        joint_explained_variance(np.zeros(2, np.float32), np.array([1, 2], np.float32), Communicator()) == 0
    )
