"""Networks: shapes, sizes counted by hand, initialisation, and the memory layout that makes them fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.errors import UsageError
from rlcb.rl.models import (
    ActorCritic,
    ImpalaCNN,
    NatureCNN,
    ResidualBlock,
    largest_activation_bytes,
    make_model,
)

PROCGEN = Spaces((64, 64, 3), "uint8", 15)
VECTOR = Spaces((4,), "float32", 2)
BUILD: dict[str, Callable[[], ActorCritic]] = {
    "impala": lambda: make_model(ModelConfig(), PROCGEN, 0),
    "nature": lambda: make_model(ModelConfig(architecture="nature", hidden_size=512), PROCGEN, 0),
    "mlp": lambda: make_model(ModelConfig(), VECTOR, 0),
}


def images(count: int, spaces: Spaces = PROCGEN, seed: int = 0) -> torch.Tensor:
    """Random observations as an environment lays them in memory, (B, H, W, C)."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.integers(0, 256, (count, *spaces.observation_shape), dtype=np.uint8))


def gain_of(layer: nn.Module) -> float:
    """The factor by which the rows or columns of the weight matrix are orthonormal; fails if they are not."""
    assert isinstance(layer, (nn.Conv2d, nn.Linear))
    matrix = layer.weight.detach().reshape(layer.weight.shape[0], -1).double()
    if matrix.shape[0] > matrix.shape[1]:
        matrix = matrix.T
    products = matrix @ matrix.T
    squared_gain = products.diagonal().mean()
    torch.testing.assert_close(
        products, squared_gain * torch.eye(len(products), dtype=torch.float64), rtol=1e-4, atol=1e-4
    )
    return math.sqrt(squared_gain.item())


# --- Initialisation ---


@pytest.mark.parametrize("name", BUILD)
def test_every_weight_matrix_is_orthogonal_and_every_bias_zero(name: str) -> None:
    model = BUILD[name]()
    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    assert len(layers) >= 4
    for layer in layers:
        assert gain_of(layer) > 0
        assert layer.bias is not None
        assert not layer.bias.any()


@pytest.mark.parametrize("name", BUILD)
def test_policy_head_has_gain_one_hundredth_and_value_head_one(name: str) -> None:
    model = BUILD[name]()
    assert gain_of(model.policy) == pytest.approx(0.01, rel=1e-4)
    assert gain_of(model.value) == pytest.approx(1.0, rel=1e-4)


def test_layers_in_front_of_a_rectifier_have_gain_square_root_of_two() -> None:
    nature = BUILD["nature"]().body
    assert isinstance(nature, NatureCNN)
    impala = BUILD["impala"]().body
    assert isinstance(impala, ImpalaCNN)
    rectified = [module for module in nature.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    rectified += [module for name, module in impala.named_modules() if name.endswith(("conv0", "dense"))]
    assert len(rectified) == 4 + 6 + 1
    for layer in rectified:
        assert gain_of(layer) == pytest.approx(math.sqrt(2), rel=1e-4)


def test_residual_branches_start_small_enough_that_their_sum_does_not_grow_with_depth() -> None:
    impala = BUILD["impala"]().body
    branches = [module for name, module in impala.named_modules() if name.endswith("conv1")]
    assert len(branches) == 6
    assert sum(gain_of(branch) ** 2 for branch in branches) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("name", ["impala", "nature"])
def test_the_first_policy_is_nearly_uniform(name: str) -> None:
    with torch.no_grad():
        logits, _ = BUILD[name]()(images(32))
    probabilities = torch.softmax(logits, -1)
    assert (probabilities - 1 / 15).abs().max() < 0.02
    assert logits.std() > 0  # but it sees the image


def test_the_first_values_are_of_the_order_of_scaled_returns() -> None:
    with torch.no_grad():
        _, values = BUILD["impala"]()(images(32))
    assert values.abs().max() < 3


@pytest.mark.parametrize("other_seed", [8, 7 + 2**32, 7 + 2**40])
def test_weights_depend_only_on_the_seed(other_seed: int) -> None:
    first, again, other = (
        torch.cat(
            [parameter.flatten() for parameter in make_model(ModelConfig(), PROCGEN, seed).parameters()]
        )
        for seed in (7, 7, other_seed)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_building_a_network_leaves_the_global_random_generators_untouched() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    make_model(ModelConfig(), PROCGEN, 3)
    assert torch.equal(torch.get_rng_state(), torch_state)
    np.testing.assert_equal(np.random.get_state(), numpy_state)  # noqa: NPY002


# --- Shapes and sizes ---


def test_the_impala_cnn_has_the_number_of_parameters_counted_by_hand() -> None:
    def convolution(inputs: int, outputs: int) -> int:
        return inputs * outputs * 3 * 3 + outputs

    stages = convolution(3, 16) + 4 * convolution(16, 16)
    stages += convolution(16, 32) + 4 * convolution(32, 32)
    stages += convolution(32, 32) + 4 * convolution(32, 32)
    dense = (32 * 8 * 8) * 256 + 256  # three halvings of 64 x 64
    heads = (256 * 15 + 15) + (256 + 1)
    assert stages + dense + heads == 626_256
    assert sum(parameter.numel() for parameter in BUILD["impala"]().parameters()) == 626_256


def test_the_nature_cnn_has_the_number_of_parameters_counted_by_hand() -> None:
    convolutions = (3 * 32 * 8 * 8 + 32) + (32 * 64 * 4 * 4 + 64) + (64 * 64 * 3 * 3 + 64)
    dense = (64 * 4 * 4) * 512 + 512  # 64 -> 15 -> 6 -> 4
    heads = (512 * 15 + 15) + (512 + 1)
    count = sum(parameter.numel() for parameter in BUILD["nature"]().parameters())
    assert count == convolutions + dense + heads


@pytest.mark.parametrize("architecture", ["auto", "impala", "nature"])
@pytest.mark.parametrize("shape", [(64, 64, 3), (84, 84, 4), (40, 57, 1)])
def test_image_networks_give_logits_and_values_for_any_image_size(
    architecture: str, shape: tuple[int, int, int]
) -> None:
    spaces = Spaces(shape, "uint8", 6)
    model = make_model(ModelConfig.model_validate({"architecture": architecture}), spaces, 0)
    logits, values = model(images(5, spaces))
    assert logits.shape == (5, 6)
    assert values.shape == (5,)
    assert logits.dtype == values.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_vector_observations_go_through_the_mlp(dtype: torch.dtype) -> None:
    model = make_model(ModelConfig(mlp_sizes=(32, 16)), Spaces((4,), "float32", 2), 0)
    logits, values = model(torch.ones(7, 4).to(dtype))
    assert logits.shape == (7, 2) and values.shape == (7,)
    assert [tuple(p.shape) for p in model.body.parameters()] == [(32, 4), (32,), (16, 32), (16,)]


def test_the_mlp_accepts_images_if_configured() -> None:
    spaces = Spaces((8, 8, 3), "uint8", 3)
    logits, _ = make_model(ModelConfig(architecture="mlp"), spaces, 0)(images(2, spaces))
    assert logits.shape == (2, 3)


def test_a_network_that_does_not_fit_the_observations_raises_a_usage_error() -> None:
    small = Spaces((35, 64, 3), "uint8", 3)
    for config, spaces, words in (
        (ModelConfig(architecture="impala"), VECTOR, "impala.*images"),
        (ModelConfig(architecture="nature"), VECTOR, "nature.*images"),
        (ModelConfig(architecture="nature"), small, "36 x 36"),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            make_model(config, spaces, 0)
        assert "\n" not in str(caught.value)
    make_model(ModelConfig(architecture="nature"), Spaces((36, 36, 3), "uint8", 3), 0)


@pytest.mark.parametrize("name", BUILD)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = BUILD[name]()
    logits, values = model(images(4) if name != "mlp" else torch.randn(4, 4))
    (logits.square().sum() + values.sum()).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.any(), key


def test_samples_of_a_batch_do_not_influence_each_other() -> None:
    model = BUILD["impala"]()
    batch = images(6)
    with torch.no_grad():
        logits, values = model(batch)
        alone = [model(batch[i : i + 1]) for i in range(6)]
    torch.testing.assert_close(logits, torch.cat([each[0] for each in alone]), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(values, torch.cat([each[1] for each in alone]), rtol=1e-3, atol=1e-4)


def test_the_network_computes_what_the_same_layers_compute_in_contiguous_memory() -> None:
    """The layout is a matter of speed alone."""
    model = BUILD["impala"]()
    body = model.body
    assert isinstance(body, ImpalaCNN)
    batch = images(3)
    x = (batch.permute(0, 3, 1, 2).contiguous().float() / 255).contiguous()
    with torch.no_grad():
        for module in body.stages:
            if isinstance(module, nn.Conv2d):
                x = nn.functional.conv2d(x, module.weight.contiguous(), module.bias, padding=1)
            elif isinstance(module, nn.MaxPool2d):
                x = nn.functional.max_pool2d(x, 3, 2, 1)
            else:
                assert isinstance(module, ResidualBlock)
                inner = x.clamp(min=0)
                for convolution in (module.conv0, module.conv1):
                    weight = convolution.weight.contiguous()
                    inner = nn.functional.conv2d(inner.clamp(min=0), weight, convolution.bias, padding=1)
                x = x + inner
        flat = x.clamp(min=0).permute(0, 2, 3, 1).reshape(3, -1)
        features = (flat @ body.dense.weight.T + body.dense.bias).clamp(min=0)
        expected_logits = features @ model.policy.weight.T
        expected_values = (features @ model.value.weight.T)[:, 0]
        logits, values = model(batch)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(values, expected_values, rtol=1e-3, atol=1e-4)


# --- Precision ---


@pytest.mark.parametrize("architecture", ["impala", "nature"])
def test_bfloat16_changes_the_outputs_only_slightly(architecture: str) -> None:
    """The same seed gives the same parameters, in float32, so outputs and gradients can be compared."""
    batch, results = images(32), {}
    for precision in ("float32", "bfloat16"):
        config = ModelConfig.model_validate({"architecture": architecture, "precision": precision})
        model = make_model(config, PROCGEN, 0)
        first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        seen: list[torch.Tensor] = []
        first.register_forward_hook(lambda module, arguments, output, seen=seen: seen.append(output))
        logits, values = model(batch)
        assert logits.dtype == values.dtype == torch.float32
        assert seen[0].dtype == getattr(torch, precision)
        assert seen[0].is_contiguous(memory_format=torch.channels_last)
        (logits.square().sum() + values.square().mean()).backward()
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        gradient = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
        results[precision] = (values.detach(), gradient)
    (values, gradient), (rounded_values, rounded_gradient) = results.values()
    assert not torch.equal(values, rounded_values)
    assert (rounded_values - values).norm() < 0.02 * values.norm()
    assert (rounded_gradient - gradient).norm() < 0.05 * gradient.norm()


# --- Memory layout ---


class Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down the operators that are called."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name.removeprefix("aten::"))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["impala", "nature"])
def test_the_first_layer_sees_channels_last_images_between_zero_and_one(name: str) -> None:
    model = BUILD[name]()
    inputs: list[torch.Tensor] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda module, arguments: inputs.append(arguments[0].clone()))
    batch = images(4)
    before = batch.clone()
    with torch.no_grad():
        model(batch)
    (seen,) = inputs
    assert seen.shape == (4, 3, 64, 64)
    assert seen.is_contiguous(memory_format=torch.channels_last)
    assert first.weight.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(seen, torch.from_numpy(np.moveaxis(before.numpy(), 3, 1) / 255.0).float())
    assert torch.equal(batch, before)  # the rollout is not scribbled over


@pytest.mark.parametrize("name", ["impala", "nature"])
def test_the_conversion_to_float_is_the_only_copy(name: str) -> None:
    model = BUILD[name]()
    batch = images(4)
    with torch.no_grad(), Operators() as operators:
        model(batch)
    copies = [each for each in operators.names if each in ("_to_copy", "clone", "contiguous", "copy_", "cat")]
    assert copies == ["_to_copy"]
    assert operators.names.index("_to_copy") < operators.names.index("convolution")


def test_float_observations_are_neither_scaled_nor_changed() -> None:
    model = make_model(ModelConfig(), VECTOR, 0)
    observations = torch.tensor([[200.0, -3.0, 0.5, 1e4]])
    seen: list[torch.Tensor] = []
    first = next(module for module in model.modules() if isinstance(module, nn.Linear))
    first.register_forward_pre_hook(lambda module, arguments: seen.append(arguments[0].clone()))
    model(observations)
    assert torch.equal(seen[0], torch.tensor([[200.0, -3.0, 0.5, 1e4]]))


# --- Facts about spaces ---


def test_spaces_are_restored_from_plain_values() -> None:
    for spaces in (PROCGEN, VECTOR):
        assert Spaces.from_dict(spaces.to_dict()) == spaces
    assert PROCGEN.network_shape == (3, 64, 64)
    assert VECTOR.network_shape == (4,)


@pytest.mark.parametrize(
    ("config", "spaces", "expected"),
    [
        (ModelConfig(), PROCGEN, 16 * 64 * 64 * 4),
        (ModelConfig(impala_channels=(8, 64)), PROCGEN, 8 * 64 * 64 * 4),
        (ModelConfig(mlp_sizes=(64, 128)), VECTOR, 128 * 4),
    ],
)
def test_the_largest_activation_is_in_the_first_stage_or_the_widest_layer(
    config: ModelConfig, spaces: Spaces, expected: int
) -> None:
    assert largest_activation_bytes(config, spaces) == expected
