"""Compares kernels with PyTorch in float64, layer by layer: `python -m rlcb.kernels.check LIBRARY`.

build.py runs this in a process of its own before a library is used for the first time: a crash ends this
process only. Exits with 1 if a layer is wrong. The tests call the same comparisons for random shapes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rlcb.kernels.dense import NativeDense
from rlcb.kernels.layers import DirectConvolution, Filters, Winograd
from rlcb.kernels.library import CHANNEL_MULTIPLE, Library
from rlcb.kernels.policy import NativePolicy

TOLERANCES = {"forward": 2e-6, "input gradient": 5e-6, "weight gradient": 2e-5, "bias gradient": 2e-5}
"""Largest relative error (norm of the difference by norm) of each pass."""
NATURE_LAYERS = (
    ((64, 64), (3, 32, 8, 4), True),
    ((15, 15), (32, 64, 4, 2), False),
    ((6, 6), (64, 64, 3, 1), False),
    ((84, 84), (4, 32, 8, 4), True),
    ((20, 20), (32, 64, 4, 2), False),
    ((9, 9), (64, 64, 3, 1), False),
)
"""The convolutions of the Nature CNN on Procgen and Atari, as `unpadded_errors` takes them: size of an image,
layer, and whether it is of bytes."""


def relative_error(value: Tensor, reference: Tensor) -> float:
    """Return |value - reference| / |reference|; 0 if both are zero."""
    norm, distance = reference.norm(), (value.double() - reference).norm()
    return 0.0 if distance == 0 else float(distance / norm)


def seeded(*shape: int) -> Tensor:
    """Return normal numbers that are the same every time for a shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def as_images(tensor: Tensor) -> Tensor:
    """Return (N, H, W, C) of a tensor (N, C, H, W), contiguous."""
    return tensor.permute(0, 2, 3, 1).contiguous()


def as_maps(tensor: Tensor) -> Tensor:
    """Return (N, C, H, W) of a tensor (N, H, W, C)."""
    return tensor.permute(0, 3, 1, 2)


def make_layer(*shape: int) -> tuple[nn.Conv2d, Tensor]:
    """Return a seeded convolution (channels, out_channels, kernel, stride, padding), and its bias."""
    channels, out_channels, kernel, stride, pad = shape
    module = nn.Conv2d(channels, out_channels, kernel, stride, pad)
    assert module.bias is not None
    with torch.no_grad():
        module.weight.copy_(seeded(*module.weight.shape) / (kernel * channels**0.5))
        module.bias.copy_(seeded(out_channels))
    return module, module.bias


def exact_convolution(module: nn.Conv2d, x: Tensor, dy: Tensor, rectify: bool = False) -> dict[str, Tensor]:
    """Return the output and the gradients of a convolution of x (N, C, H, W), by PyTorch in float64."""
    assert module.bias is not None
    leaves = [tensor.detach().double().requires_grad_() for tensor in (x, module.weight, module.bias)]
    inputs = F.relu(leaves[0]) if rectify else leaves[0]
    output = F.conv2d(inputs, leaves[1], leaves[2], module.stride, module.padding)
    gradients = torch.autograd.grad(output, leaves, dy.double())
    return dict(zip(("output", "x", "weight", "bias"), (output.detach(), *gradients), strict=True))


def winograd_errors(
    library: Library,
    images: int,
    size: tuple[int, int],
    channels: int,
    out_channels: int,
    pad: int,
    rectify: bool,
) -> dict[str, float]:
    """Return the relative errors of a 3x3 convolution with a residual sum, forward and backward."""
    module, bias = make_layer(channels, out_channels, 3, 1, pad)
    layer = Winograd(library, size, module, rectify)
    filters, weights = Filters([layer]), [module.weight]
    x, dy = seeded(images, channels, *size), seeded(images, out_channels, *layer.out_size)
    added, more = 2 * dy, 3 * x.flip(0)
    exact = exact_convolution(module, x, dy, rectify)

    inputs, gradients, added_images, more_images = map(as_images, (x, dy, added, more))
    y, dx = torch.empty_like(gradients), torch.empty_like(inputs)
    address = inputs.data_ptr()
    layer.forward(
        *(address, filters.forward(weights), bias.data_ptr(), y.data_ptr(), images),
        add=added_images.data_ptr(),
    )
    layer.input_gradient(
        *(gradients.data_ptr(), filters.backward(weights), dx.data_ptr(), images),
        mask=address if rectify else 0,
        add=more_images.data_ptr(),
    )
    sums, bias_sums = torch.zeros(filters.shape), torch.zeros(out_channels)
    layer.weight_gradient(address, gradients.data_ptr(), sums, bias_sums.data_ptr(), images)
    return {
        "forward": relative_error(as_maps(y), exact["output"] + added),
        "input gradient": relative_error(as_maps(dx), exact["x"] + more),
        "weight gradient": relative_error(filters.gradients(sums)[0], exact["weight"]),
        "bias gradient": relative_error(bias_sums, exact["bias"]),
    }


def inputs_of(images: int, channels: int, size: tuple[int, int], is_bytes: bool) -> Tensor:
    """Return seeded images (images, channels, *size): float32, or uint8 in the middle of the range."""
    x = seeded(images, channels, *size)
    return (x * 64 + 128).clamp(0, 255).to(torch.uint8) if is_bytes else x


def unpadded_errors(
    library: Library, images: int, size: tuple[int, int], layer: tuple[int, int, int, int], is_bytes: bool
) -> dict[str, float]:
    """Return the relative errors of a convolution without padding and a rectifier, by Winograd's algorithm.

    `layer` is (channels, out_channels, kernel, stride). There is an input gradient if 16 divides channels.
    """
    channels, out_channels, _, _ = layer
    module, bias = make_layer(*layer, 0)
    convolution = Winograd(library, size, module, is_bytes=is_bytes)
    filters, weights = Filters([convolution]), [module.weight]
    x, dy = inputs_of(images, channels, size, is_bytes), seeded(images, out_channels, *convolution.out_size)
    exact = exact_convolution(module, x.double() * convolution.scale, dy)

    inputs, gradients = as_images(x), as_images(dy)
    y, dx, address = torch.empty_like(gradients), torch.empty_like(inputs), inputs.data_ptr()
    convolution.forward(
        *(address, filters.forward(weights), bias.data_ptr(), y.data_ptr(), images), rectify=True
    )
    sums, bias_sums = torch.zeros(filters.shape), torch.zeros(out_channels)
    backward = (address, gradients.data_ptr(), sums, bias_sums.data_ptr())
    errors = {}
    if is_bytes or channels % CHANNEL_MULTIPLE:
        convolution.weight_gradient(*backward, images)
    else:
        convolution.gradients(*backward, filters.backward(weights), dx.data_ptr(), images, mask=address)
        errors["input gradient"] = relative_error(as_maps(dx), exact["x"] * (x > 0))
    return {
        "forward": relative_error(as_maps(y), F.relu(exact["output"])),
        "weight gradient": relative_error(filters.gradients(sums)[0], exact["weight"]),
        "bias gradient": relative_error(bias_sums, exact["bias"]),
        **errors,
    }


def direct_errors(
    library: Library,
    images: int,
    size: tuple[int, int],
    layer: tuple[int, int, int, int, int],
    is_bytes: bool,
) -> dict[str, float]:
    """Return the relative errors of a direct convolution, forward and backward.

    `layer` is (channels, out_channels, kernel, stride, padding).
    """
    module, bias = make_layer(*layer)
    convolution = DirectConvolution(library, size, module, is_bytes)
    x = inputs_of(images, layer[0], size, is_bytes)
    dy = seeded(images, layer[1], *convolution.out_size)
    exact = exact_convolution(module, x.double() * convolution.scale, dy)

    inputs, gradients = as_images(x), as_images(dy)
    y, weights, address = torch.empty_like(gradients), convolution.filter(module.weight), inputs.data_ptr()
    convolution.forward(address, weights, bias.data_ptr(), y.data_ptr(), images)
    sums, bias_sums = torch.zeros_like(weights), torch.zeros(layer[1])
    convolution.weight_gradient(address, gradients.data_ptr(), sums.data_ptr(), bias_sums.data_ptr(), images)
    return {
        "forward": relative_error(as_maps(y), exact["output"]),
        "weight gradient": relative_error(convolution.gradient(sums), exact["weight"]),
        "bias gradient": relative_error(bias_sums, exact["bias"]),
    }


def pool_errors(library: Library, images: int, size: tuple[int, int], channels: int) -> dict[str, float]:
    """Return the relative errors of the max-pool, forward and backward. Values repeat, so that maxima tie."""
    x = (seeded(images, channels, *size) * 2).round().requires_grad_()
    output = F.max_pool2d(x, 3, stride=2, padding=1)
    dy = seeded(*output.shape)
    output.backward(dy)  # type: ignore[no-untyped-call]
    assert x.grad is not None
    inputs, gradients = as_images(x.detach()), as_images(dy)
    y, dx = as_images(torch.empty_like(output)), torch.empty_like(inputs)
    places = torch.empty_like(y, dtype=torch.uint8)
    library.max_pool(inputs.data_ptr(), y.data_ptr(), places.data_ptr(), images, *size, channels)
    library.max_pool_gradient(gradients.data_ptr(), places.data_ptr(), dx.data_ptr(), images, *size, channels)
    return {
        "forward": relative_error(as_maps(y), output.detach().double()),
        "input gradient": relative_error(as_maps(dx), x.grad.double()),
    }


def dense_errors(library: Library, rows: int, inputs: int, outputs: int) -> dict[str, float]:
    """Return the relative errors of a dense layer and a rectifier, forward and backward."""
    layer = nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(seeded(outputs, inputs) / inputs**0.5)
        layer.bias.copy_(seeded(outputs))
    x, dy = seeded(rows, inputs), seeded(rows, outputs)
    dense = NativeDense(library, layer)
    with torch.no_grad():
        y = dense(x)
        found = dense.backward(x, y, dy)
        weight, bias = layer.weight.double(), layer.bias.double()
        dz = dy.double() * (y > 0)  # rounding may decide whether a value close to zero is rectified
        exact = (F.relu(F.linear(x.double(), weight, bias)), dz @ weight, dz.T @ x.double(), dz.sum(0))
        names = ("forward", "input gradient", "weight gradient", "bias gradient")
        errors = map(relative_error, (y, *found), exact)
    return dict(zip(names, errors, strict=True))


def acting_errors(library: Library, rows: int, hidden: int, actions: int) -> dict[str, float]:
    """Return the relative error of log-probabilities and values; infinity if an action is another one."""
    layer, policy, value = nn.Linear(64, hidden), nn.Linear(hidden, actions), nn.Linear(hidden, 1)
    with torch.no_grad():
        for parameter in (*layer.parameters(), *policy.parameters(), *value.parameters()):
            parameter.copy_(seeded(*parameter.shape) / parameter[0].numel() ** 0.5)
        features, noise = seeded(rows, 64), (torch.arange(rows).double() + 0.5) / rows
        act = NativePolicy(library, NativeDense(library, layer), policy, value)
        chosen, log_probs, values = act(features, noise)
        units = F.relu(F.linear(features.double(), layer.weight.double(), layer.bias.double()))
        exact = F.linear(units, policy.weight.double(), policy.bias.double()).log_softmax(-1)
        exact_values = F.linear(units, value.weight.double(), value.bias.double()).squeeze(-1)
        expected = torch.searchsorted(exact.exp().cumsum(-1), noise[:, None], right=True).squeeze(-1)
        picked = exact.gather(-1, chosen[:, None]).squeeze(-1)
    found, right = torch.cat([log_probs, values]), torch.cat([picked, exact_values])
    return {"forward": relative_error(found, right) if torch.equal(chosen, expected) else float("inf")}


def find_fault(library: Library) -> str | None:
    """Return what is wrong with the kernels, in one line; None if all layers are right."""
    layers: dict[str, dict[str, float]] = {}
    for images, size, channels, out_channels, pad, rectify in (
        (3, (32, 32), 16, 16, 1, True),
        (2, (9, 14), 16, 32, 1, False),
        (5, (8, 8), 32, 32, 1, True),
        (2, (11, 6), 48, 16, 1, True),
        (1, (2, 3), 32, 16, 2, False),
    ):
        name = f"convolution 3x3 {channels} -> {out_channels}, {size[0]} x {size[1]}, padding {pad}"
        layers[name] = winograd_errors(library, images, size, channels, out_channels, pad, rectify)
    for size, unpadded, is_bytes in (
        *NATURE_LAYERS,
        ((41, 50), (1, 48, 8, 4), False),
        ((9, 13), (16, 32, 4, 2), False),
    ):
        name = (
            f"convolution {unpadded[2]}x{unpadded[2]} {unpadded[0]} -> {unpadded[1]}, {size[0]} x {size[1]}"
        )
        layers[name] = unpadded_errors(library, 9, size, unpadded, is_bytes)
    for size, direct, is_bytes in (
        ((64, 64), (3, 16, 3, 1, 1), True),
        ((21, 17), (4, 16, 3, 1, 1), False),
        ((30, 23), (5, 32, 5, 3, 0), True),
    ):
        name = f"convolution {direct[2]}x{direct[2]} {direct[0]} -> {direct[1]}, {size[0]} x {size[1]}"
        layers[name] = direct_errors(library, 3, size, direct, is_bytes)
    for size in ((64, 64), (11, 6)):
        layers[f"max-pool, {size[0]} x {size[1]}"] = pool_errors(library, 2, size, 16)
    for rows, inputs, outputs in ((17, 1024, 256), (1, 64, 32), (300, 96, 64)):
        layers[f"dense layer {inputs} -> {outputs}"] = dense_errors(library, rows, inputs, outputs)
    for rows, inputs, outputs in ((20, 256, 15), (3, 32, 4)):
        layers[f"acting, {inputs} hidden units, {outputs} actions"] = acting_errors(
            library, rows, inputs, outputs
        )
    for layer_name, errors in layers.items():
        for part, error in errors.items():
            if not error <= TOLERANCES[part]:
                return f"{layer_name}: relative error {error:.1e} in the {part}"
    return None


def main() -> int:
    """Check the library that the command names; print the fault if there is one. Returns the exit code."""
    torch.set_num_threads(1)
    fault = find_fault(Library(Path(sys.argv[1])))
    print(fault or "all layers are right")
    return int(fault is not None)


if __name__ == "__main__":
    raise SystemExit(main())
