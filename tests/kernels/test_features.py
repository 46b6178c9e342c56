"""The features of whole networks on native kernels: values, gradients, threads and parts of a batch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.errors import UsageError
from rlcb.kernels.features import NativeFeatures, NativePasses
from rlcb.kernels.networks import ImpalaNetwork
from rlcb.rl import models
from rlcb.rl.models import ActorCritic, ImpalaCNN, NatureCNN, ResidualBlock, make_model

PROCGEN = Spaces((64, 64, 3), "uint8", 15)
ARCHITECTURES = ("impala", "nature")
NAMES = {ImpalaCNN: "impala", NatureCNN: "nature"}


@pytest.fixture
def one_thread() -> Iterator[None]:
    yield
    torch.set_num_threads(1)


def network(
    architecture: str, spaces: Spaces = PROCGEN, seed: int = 0, kernels: str = "native"
) -> ActorCritic:
    """Return a network whose biases are not zero."""
    config = ModelConfig.model_validate({"architecture": architecture})
    model = make_model(config, spaces, seed, kernels)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.01)
    return model


def observations(count: int, spaces: Spaces = PROCGEN, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if spaces.observation_dtype == "uint8":
        return torch.randint(
            0, 256, (count, *spaces.observation_shape), generator=generator, dtype=torch.uint8
        )
    return torch.rand(count, *spaces.observation_shape, generator=generator)


def gradients(model: ActorCritic, x: Tensor) -> list[Tensor]:
    """Return the gradients of all parameters before the dense layers."""
    output = model.features(x)
    direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1)).to(output.dtype)
    parameters = [p for name, p in model.body.named_parameters() if not name.startswith("dense")]
    return list(torch.autograd.grad(output, parameters, direction))


def relative(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm())


def in_double(model: ActorCritic) -> ActorCritic:
    """Return a copy that PyTorch computes in float64."""
    exact = make_model(ModelConfig(architecture=NAMES[type(model.body)]), model.spaces, 0).double()
    exact.load_state_dict(model.state_dict())
    exact.precision = torch.float64
    return exact


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("shape", [(64, 64, 3), (84, 84, 4), (41, 50, 1)])
def test_features_are_those_of_float64(architecture: str, dtype: str, shape: tuple[int, ...]) -> None:
    spaces = Spaces(shape, dtype, 4)
    model, x = network(architecture, spaces), observations(3, spaces)
    assert relative(model.features(x).detach(), in_double(model).features(x).detach()) < 2e-6


def impala_flips(model: ActorCritic, x: Tensor) -> int:
    """Return how many rectifiers and maxima of the IMPALA-CNN are different in float64."""
    native, body = model.native, in_double(model).body
    assert native is not None
    assert isinstance(body, ImpalaCNN)
    passes = NativePasses(native, len(x), lambda: None)
    output = passes.forward(x)
    found, flips = iter(passes.kept), 0

    def differ(value: Tensor, exact: Tensor) -> int:
        return int(
            ((value.reshape(len(x), -1) > 0) != (exact.permute(0, 2, 3, 1).reshape(len(x), -1) > 0)).sum()
        )

    y = x.permute(0, 3, 1, 2).double() / 255
    for module in body.stages:
        if isinstance(module, torch.nn.MaxPool2d):
            places = next(found).reshape(len(x), -1)
            height, width = y.shape[2:]
            y, at = F.max_pool2d(y, 3, 2, 1, return_indices=True)
            rows = torch.arange(y.shape[2]).view(-1, 1) * 2 - 1
            columns = torch.arange(y.shape[3]).view(1, -1) * 2 - 1
            exact = (at // width - rows) * 3 + (at % width - columns)
            flips += int((places != exact.permute(0, 2, 3, 1).reshape(len(x), -1)).sum())
            flips += differ(next(found), y)
        elif isinstance(module, ResidualBlock):
            inner = module.conv0(F.relu(y))
            flips += differ(next(found), inner)
            y = y + module.conv1(F.relu(inner))
            flips += differ(next(found, output), y)
        else:
            y = module(y)
    return flips


def test_the_gradient_of_the_impala_cnn_is_exact_where_nothing_flips() -> None:
    """A unit whose value is within rounding of zero may be rectified in float32 and not in float64."""
    model, exact_seeds = network("impala"), 0
    exact_model = in_double(model)
    for seed in range(8):
        x = observations(2, seed=seed)
        if impala_flips(model, x) == 0:
            exact_seeds += 1
            for value, exact in zip(gradients(model, x), gradients(exact_model, x), strict=True):
                assert relative(value, exact) < 1e-5
    assert exact_seeds >= 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_one_backward_pass_through_several_batches_gives_the_gradient_of_one_batch(
    architecture: str, threads: int
) -> None:
    """Twice, with other weights and other batches the second time."""
    torch.set_num_threads(threads)
    model, beats = network(architecture), 0

    def heartbeat() -> None:
        nonlocal beats
        beats += 1

    assert model.native is not None
    passes = NativePasses(model.native, 40, heartbeat)
    for sizes in ((5, 33, 2), (20, 20)):
        x = observations(sum(sizes))
        expected = model.features(x)
        direction = torch.randn(expected.shape, generator=torch.Generator().manual_seed(0))
        convolutions = model.native.parameters()
        exact = torch.autograd.grad((expected * direction).sum(), convolutions)
        for part in x.split(sizes):
            passes.forward(part)
        torch.testing.assert_close(passes.features(), expected.detach(), atol=1e-6, rtol=1e-6)
        beats = 0
        for parameter in convolutions:
            parameter.grad = torch.ones_like(parameter)  # to which the gradient is added
        passes.backward(direction)
        assert beats == len(sizes) and len(passes.features()) == 0
        for parameter, gradient in zip(convolutions, exact, strict=True):
            assert parameter.grad is not None
            assert relative(parameter.grad - 1, gradient.double()) < 1e-5
        with torch.no_grad():
            for parameter in convolutions:
                parameter.mul_(1.1)


def test_the_gradient_of_the_nature_cnn_is_that_of_float64() -> None:
    model = network("nature")
    errors = [
        relative(value, exact)
        for value, exact in zip(
            gradients(model, observations(4)), gradients(in_double(model), observations(4)), strict=True
        )
    ]
    assert max(errors) < 1e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_features_do_not_depend_on_the_batch_or_on_gradients(architecture: str) -> None:
    model, x = network(architecture), observations(37)
    together = model.features(x)
    with torch.no_grad():
        assert torch.equal(model.features(x), together)
        assert torch.equal(torch.cat([model.features(part) for part in x.split(5)]), together)
    assert model.features(x[:0]).shape == (0, together.shape[1])
    assert all(not gradient.any() for gradient in gradients(model, x[:0]))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_threads_give_the_same_features_and_gradients(architecture: str, one_thread: None) -> None:
    model, x = network(architecture), observations(37)
    one, alone = model.features(x), gradients(model, x)
    torch.set_num_threads(3)
    assert torch.equal(model.features(x), one)
    first, second = gradients(model, x), gradients(model, x)
    for value, again, expected in zip(first, second, alone, strict=True):
        assert torch.equal(value, again)  # the same every time
        assert relative(value, expected.double()) < 2e-5


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_changed_weights_are_used_at_once(architecture: str) -> None:
    model, other, x = network(architecture), network(architecture, seed=1), observations(2)
    before = model.features(x)
    model.load_state_dict(other.state_dict())
    assert not torch.equal(model.features(x), before)
    assert torch.equal(model.features(x), other.features(x))
    for value, expected in zip(gradients(model, x), gradients(other, x), strict=True):
        assert torch.equal(value, expected)


def test_the_first_layer_trains_on_any_image_in_memory() -> None:
    """Observations may be a part of a larger tensor; the kernels read memory, not strides."""
    model, x = network("nature"), observations(6)
    assert torch.equal(model.features(x[::2]), model.features(x[::2].clone()))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"precision": "bfloat16"}, "they compute in float32, not in bfloat16"),
        ({"impala_channels": (16, 24, 32)}, "the channels of a convolution are not a multiple of 16"),
        ({"architecture": "mlp"}, "this network has no convolutions"),
    ],
)
def test_networks_without_native_kernels_use_those_of_pytorch(
    settings: dict[str, object], reason: str
) -> None:
    config = ModelConfig.model_validate(settings)
    model = make_model(config, PROCGEN, 0, "auto")
    assert (model.kernels, model.why_not_native) == ("torch", None)
    with pytest.raises(UsageError, match=f"hardware.kernels = 'native': {reason}"):
        make_model(config, PROCGEN, 0, "native")


def test_a_machine_without_native_kernels_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise models.KernelsUnavailable("no C++ compiler")

    monkeypatch.setattr(models, "load", refuse)
    model = make_model(ModelConfig(), PROCGEN, 0, "auto")
    assert (model.kernels, model.why_not_native) == ("torch", "no C++ compiler")
    with pytest.raises(UsageError, match=r"hardware.kernels = 'native': no C\+\+ compiler"):
        make_model(ModelConfig(), PROCGEN, 0, "native")


def test_a_thread_that_fails_ends_the_pass(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
    model = network("impala")
    native = model.native
    assert isinstance(native, NativeFeatures)
    assert isinstance(native.network, ImpalaNetwork)
    forward = native.network.forward

    def fail_late(x: int, *others: object) -> None:
        if others[2] != 0:  # the slot: not the first part
            raise MemoryError("too little")
        forward(x, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(native.network, "forward", fail_late)
    torch.set_num_threads(2)
    with pytest.raises(MemoryError, match="too little"):
        model.features(observations(2 * native.network.images))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("threads", [1, 2])
def test_weights_that_are_constant_give_the_same_actions_and_may_change_afterwards(
    architecture: str, threads: int, one_thread: None
) -> None:
    torch.set_num_threads(threads)
    model, x, noise = network(architecture), observations(70), torch.rand(70, dtype=torch.float64)

    def acts(expected: tuple[Tensor, ...] | None = None) -> tuple[Tensor, ...]:
        found = model.act(x, noise)
        for value, right in zip(found, expected or found, strict=True):
            assert torch.equal(value, right)
        return found

    before = acts()
    with pytest.raises(KeyError), model.constant_weights():
        raise KeyError
    with model.constant_weights():
        acts(before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    after = acts()
    assert not torch.equal(after[2], before[2])
    with model.constant_weights():
        acts(after)
    logits, values = model(x)  # with a graph
    torch.testing.assert_close(values, after[2], rtol=1e-5, atol=1e-5)
