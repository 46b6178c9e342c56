"""The dense layer of a network on native kernels: values, gradients, threads and parts of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.rl.models import ActorCritic, make_model

PROCGEN = Spaces((64, 64, 3), "uint8", 15)


@pytest.fixture
def one_thread() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def network(kernels: str, **settings: object) -> ActorCritic:
    """Return a Nature CNN whose policy is not nearly uniform."""
    config = ModelConfig.model_validate({"architecture": "nature", **settings})
    model = make_model(config, PROCGEN, 0, kernels)  # type: ignore[arg-type]
    with torch.no_grad():
        model.policy.weight.mul_(100)
    return model


def features(rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).relu()


def results(model: ActorCritic, x: Tensor, heads: Callable[[Tensor], tuple[Tensor, Tensor]]) -> list[Tensor]:
    """Return logits, values and the gradients of features and of all layers after the convolutions."""
    leaf = x.detach().requires_grad_()
    logits, values = heads(leaf)
    parameters = [p for name, p in model.named_parameters() if "convolutions" not in name]
    loss = logits.square().mean() + values.square().mean()
    return [logits.detach(), values.detach(), *torch.autograd.grad(loss, [leaf, *parameters])]


def test_outputs_and_gradients_are_those_of_float64() -> None:
    model, exact = network("native"), network("torch").double()

    def exact_heads(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = exact.body.hidden(x)
        return exact.policy(hidden), exact.value(hidden).squeeze(-1)

    x = features(50, model.body.dense.in_features)  # type: ignore[union-attr, arg-type]
    assert model.native_dense is not None
    found, right = results(model, x, model.heads), results(exact, x.double(), exact_heads)
    for value, expected in zip(found, right, strict=True):
        assert float((value.double() - expected).norm() / expected.norm()) < 1e-5


def test_results_do_not_depend_on_threads_batch_or_gradients(one_thread: None) -> None:
    model = network("native")
    x = features(77, model.body.dense.in_features)  # type: ignore[union-attr, arg-type]
    dense = model.native_dense
    assert dense is not None
    together = dense(x)
    torch.set_num_threads(3)
    with torch.no_grad():
        assert torch.equal(dense(x), together)
        assert torch.equal(torch.cat([dense(part) for part in x.split(10)]), together)
        assert dense(x[:0]).shape == (0, 256)
    direction = torch.ones_like(together)
    several = dense.backward(x, together, direction)
    torch.set_num_threads(1)
    for value, expected in zip(several, dense.backward(x, together, direction), strict=True):
        assert torch.equal(value, expected)
    assert not any(bool(gradient.any()) for gradient in dense.backward(x[:0], together[:0], direction[:0]))


def test_features_that_are_no_matrix_in_memory_are_copied() -> None:
    model = network("native")
    x = features(8, model.body.dense.in_features)  # type: ignore[union-attr, arg-type]
    assert torch.equal(model.heads(x[::2])[0], model.heads(x[::2].clone())[0])


def test_other_sizes_of_the_layer_are_computed_by_pytorch() -> None:
    model = network("auto", hidden_size=100)
    assert model.native is not None
    assert model.native_dense is None
    assert model(torch.zeros(2, 64, 64, 3, dtype=torch.uint8))[0].shape == (2, 15)
