"""Sampling of actions, by PyTorch and by the native kernels: frequencies, log-probabilities and extremes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import chi2
from torch import Tensor, nn

from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.kernels.dense import NativeDense
from rlcb.kernels.library import load
from rlcb.kernels.policy import NativePolicy
from rlcb.rl.models import make_model, sample_actions
from rlcb.seeding import action_noise

Sampler = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class Logits(NativeDense):
    """A dense layer whose output is its input."""

    def forward(self, x: Tensor) -> Tensor:
        return x


def sample_natively(logits: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample on the native kernels, with a policy head that passes its inputs on."""
    rows, actions = logits.shape
    width = -(-actions // 32) * 32
    policy, value = nn.Linear(width, actions), nn.Linear(width, 1)
    with torch.no_grad():
        policy.weight.copy_(torch.eye(actions, width))
        policy.bias.zero_()
    library = load()
    hidden = torch.cat([logits, torch.zeros(rows, width - actions)], 1)
    return NativePolicy(library, Logits(library, policy), policy, value)(hidden, noise)[:2]


@pytest.fixture(params=[sample_actions, sample_natively], ids=["torch", "native"])
def sample(request: pytest.FixtureRequest) -> Sampler:
    sampler: Sampler = request.param
    return sampler


def test_action_frequencies_match_the_softmax_probabilities(sample: Sampler) -> None:
    logits = torch.tensor([2.0, -1.0, 0.0, 0.5, -30.0, 1.0])
    count = 200_000
    noise = torch.from_numpy(action_noise(0, 0, 0, 200, count // 200).ravel())
    actions, _ = sample(logits.expand(count, -1), noise)
    probabilities = np.exp(logits.double().numpy())
    probabilities /= probabilities.sum()
    counts = np.bincount(actions.numpy(), minlength=6)
    assert counts[4] == 0  # once in some 10^14
    kept = [0, 1, 2, 3, 5]
    expected = probabilities[kept] * count
    statistic = ((counts[kept] - expected) ** 2 / expected).sum()
    assert statistic < chi2.ppf(0.999, df=4)


def test_each_row_is_sampled_from_its_own_distribution(sample: Sampler) -> None:
    logits = torch.full((4, 4), -1e4).fill_diagonal_(0.0)
    actions, log_probs = sample(logits, torch.tensor([0.0, 0.3, 0.7, 1 - 2**-53], dtype=torch.float64))
    assert actions.tolist() == [0, 1, 2, 3]
    assert actions.dtype == torch.int64
    torch.testing.assert_close(log_probs, torch.zeros(4))


def test_log_probabilities_of_samples_are_the_logarithms_of_the_softmax(sample: Sampler) -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=3, size=(500, 15))
    noise = torch.from_numpy(rng.random(500))
    actions, log_probs = sample(torch.from_numpy(logits).float(), noise)
    expected = (logits - np.log(np.exp(logits).sum(1, keepdims=True)))[np.arange(500), actions.numpy()]
    np.testing.assert_allclose(log_probs.numpy(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("number_of_actions", [1, 2, 15, 1000])
@pytest.mark.parametrize("noise", [0.0, 2**-53, 0.5, 1 - 2**-24, 1 - 2**-53])
def test_noise_at_the_ends_of_its_range_gives_actions_with_positive_probability(
    noise: float, number_of_actions: int, sample: Sampler
) -> None:
    rng = np.random.default_rng(number_of_actions)
    rows = rng.normal(scale=10, size=(200, number_of_actions)).astype(np.float32)
    rows[0] = 0
    rows[1, 0] = rows[2, -1] = rows[3, number_of_actions // 2] = 2000  # all others have probability 0
    rows[4, 0] = rows[5, -1] = -2000  # this one has
    actions, log_probs = sample(torch.from_numpy(rows), torch.full((200,), noise, dtype=torch.float64))
    assert (actions >= 0).all() and (actions < number_of_actions).all()
    assert (log_probs > -745).all()  # below, the probability is 0
    assert (log_probs <= 0).all()
    if number_of_actions > 1:
        assert (
            actions[1] == 0 and actions[2] == number_of_actions - 1 and actions[3] == number_of_actions // 2
        )


def test_logits_that_are_no_numbers_give_log_probabilities_that_are_none(sample: Sampler) -> None:
    logits = torch.tensor([[0.0, float("nan"), 1.0], [float("inf"), 0.0, 0.0]])
    actions, log_probs = sample(logits, torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert actions.tolist() == [0, 0]
    assert bool(log_probs.isnan().all())


def test_both_act_alike() -> None:
    config, spaces = ModelConfig(architecture="nature"), Spaces((64, 64, 3), "uint8", 15)
    native, plain = (make_model(config, spaces, 0, kernels) for kernels in ("native", "torch"))  # type: ignore[arg-type]
    for model in (native, plain):
        with torch.no_grad():
            model.policy.weight.mul_(100)
    assert native.native_policy is not None and plain.native_policy is None
    generator = torch.Generator().manual_seed(1)
    frames = torch.randint(0, 256, (200, 64, 64, 3), generator=generator, dtype=torch.uint8)
    noise = torch.rand(400, generator=generator, dtype=torch.float64)[::2]  # not contiguous
    found, expected = native.act(frames, noise), plain.act(frames, noise)
    assert len(set(expected[0].tolist())) > 5
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1:], expected[1:], rtol=1e-4, atol=1e-5)
