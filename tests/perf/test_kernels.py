"""perf.kernels measures the parts of the network's passes; perf.kernels_learning compares returns."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from perf import kernels_learning
from perf.kernels import SPACES, NatureParts
from rlcb.config.settings import ModelConfig
from rlcb.kernels.build import KernelsUnavailable, find_compiler
from rlcb.rl.models import make_model
from tests.cluster_runs import require_real


@pytest.fixture(autouse=True)
def compiler() -> None:
    try:
        find_compiler()
    except KernelsUnavailable as error:
        require_real(str(error))


def test_the_parts_compute_what_the_network_computes() -> None:
    model = make_model(ModelConfig(architecture="nature"), SPACES, 0, "native")
    parts = NatureParts(model)
    for number in range(3):
        parts.forward(number)
    with torch.no_grad():
        assert torch.equal(parts.outputs[2].relu(), model.features(parts.inputs[0]))

    features = torch.nn.functional.relu(parts.outputs[2], inplace=False)
    parts.gradients[2] = direction = parts.gradients[2] * (features > 0)
    for number in (2, 1, 0):
        parts.backward(number)
    weights = [module.weight for module in parts.network.modules]
    exact = torch.autograd.grad(model.features(parts.inputs[0]), weights, direction)
    found = parts.network.gradients(parts.sums)[::2]
    for value, expected in zip(found, exact, strict=True):
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


def test_every_part_runs() -> None:
    model = make_model(ModelConfig(architecture="nature"), SPACES, 0, "native")
    for part in NatureParts(model).all().values():
        part()


def test_learning_with_both_kernels_is_compared_by_welchs_test() -> None:
    """Checked against scipy: ttest_ind(native, torch, equal_var=False) and its confidence interval."""
    values = {
        "starpilot": {"native": [2.0, 2.5, 3.0], "torch": [2.2, 2.4, 2.9]},
        "coinrun": {"native": [5.0, 6.0, 7.0], "torch": [1.0, 1.5, 2.0]},
    }
    lines = kernels_learning.describe("nature", values).splitlines()
    for line, game in zip(lines[4:6], values, strict=True):
        test = scipy.stats.ttest_ind(*values[game].values(), equal_var=False)
        low, high = test.confidence_interval()
        difference = np.mean(values[game]["native"]) - np.mean(values[game]["torch"])
        cells = [cell.strip() for cell in line.split("|")]
        assert cells[1] == game
        assert cells[4] == f"{difference:+.2f} [{low:+.2f}, {high:+.2f}]"
        # Holm: the smaller of two p values counts twice.
        p = 2 * test.pvalue if game == "coinrun" else test.pvalue
        assert cells[5] == f"{p:.2f}"
    assert lines[6].startswith("| mean of the games | 4.25 | 2.00 | +2.25 [")


def test_the_value_of_a_run_is_the_return_over_the_second_half_of_its_timesteps() -> None:
    rows = [{"timesteps": 10 * n, "rollout/ep_reward_mean": float(n)} for n in (1, 2, 3, 4)]
    assert kernels_learning.value_of(rows) == 3.5
