"""perf.kernels: the parts of a pass that it measures are those of the network."""

from __future__ import annotations

import pytest
import torch

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
