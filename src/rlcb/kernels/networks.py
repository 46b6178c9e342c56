"""The convolutions of the IMPALA-CNN and the Nature CNN on the native kernels, for a part of a batch.

A network is run depth first: all layers for a few images, then the next images, so that the outputs of a
layer are still in the caches when the next one reads them (kernels/features.py cuts the batch).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from rlcb.kernels.layers import DirectConvolution, Filters, Winograd
from rlcb.kernels.library import CHANNEL_MULTIPLE, Library

CACHED_FLOATS = 2**17
"""Floats of a layer's output, before max-pooling, that stay in a core's cache."""


class Sums:
    """One thread's sums of gradients: of all transformed filters, of the direct filters, of all biases."""

    def __init__(self, filters: Sequence[Filters], direct: Sequence[DirectConvolution], biases: int) -> None:
        self.filters = [torch.zeros(group.shape) for group in filters]
        self.direct = [
            torch.zeros(layer.kernel, layer.kernel, layer.channels, layer.out_channels) for layer in direct
        ]
        self.biases = torch.zeros(biases)

    def add(self, other: Sums) -> None:
        """Add the sums of another thread."""
        self.biases.add_(other.biases)
        pairs = zip((*self.filters, *self.direct), (*other.filters, *other.direct), strict=True)
        for sums, more in pairs:
            sums.add_(more)


class Network:
    """The convolutions of a network: first direct ones, then those by Winograd's algorithm."""

    out_features: int
    images = 16
    """Images that run through the network at once."""

    def __init__(
        self, modules: list[nn.Conv2d], direct: list[DirectConvolution], winograd: list[list[Winograd]]
    ) -> None:
        """`modules` are the layers in order. `direct` computes the first ones, and `winograd` the others, in
        groups with one size of kernel."""
        self.modules, self.direct = modules, direct
        self.filters = [Filters(layers) for layers in winograd]
        self.buffers = Buffers()

    def prepare(self) -> list[Tensor]:
        """Return the filters for forward passes: of each direct convolution, then of each group."""
        weights = [module.weight for module in self.modules[: len(self.direct)]]
        direct = [layer.filter(weight) for layer, weight in zip(self.direct, weights, strict=True)]
        return [*direct, *(group.forward(weights) for group, weights in self._groups())]

    def prepare_backward(self) -> list[Tensor]:
        """Return the filters for backward passes, of each group."""
        return [group.backward(weights) for group, weights in self._groups()]

    def _groups(self) -> Iterator[tuple[Filters, list[Tensor]]]:
        """Yield the groups of transformed filters with their layers' weights."""
        weights = iter(module.weight for module in self.modules[len(self.direct) :])
        for group in self.filters:
            yield group, list(islice(weights, len(group.layers)))

    def activations(self, images: int) -> list[Tensor]:
        """Return tensors for what the backward pass needs of so many images."""
        raise NotImplementedError

    def forward(
        self, x: int, filters: list[Tensor], kept: list[Tensor], slot: int, out: int, count: int
    ) -> None:
        """Run `count` images at address `x`: activations go to `kept` from image `slot` on, the output of the
        last convolution to address `out`."""
        raise NotImplementedError

    def backward(
        self,
        x: int,
        filters: list[Tensor],
        kept: list[Tensor],
        slot: int,
        gradient: int,
        sums: Sums,
        count: int,
    ) -> None:
        """Add the gradients of all weights to `sums`; the output has the gradient at address `gradient`."""
        raise NotImplementedError

    def sums(self) -> Sums:
        """Return sums of zero."""
        biases = sum(module.out_channels for module in self.modules)
        return Sums(self.filters, self.direct, biases)

    def gradients(self, sums: Sums) -> list[Tensor]:
        """Return the gradients of weight, bias, weight, bias, ... of all layers in order."""
        direct = [layer.gradient(each) for layer, each in zip(self.direct, sums.direct, strict=True)]
        groups = zip(self.filters, sums.filters, strict=True)
        weights = [*direct, *(each for group, part in groups for each in group.gradients(part))]
        biases = torch.split(sums.biases, [module.out_channels for module in self.modules])
        return [gradient for pair in zip(weights, biases, strict=True) for gradient in pair]


def address(tensor: Tensor, image: int) -> int:
    """Return the address of an image in a contiguous tensor (images, ...)."""
    return tensor.data_ptr() + image * tensor.stride(0) * tensor.element_size()


def supported(layers: Sequence[nn.Conv2d]) -> bool:
    """Return whether the kernels can compute these convolutions."""
    return all(layer.out_channels % CHANNEL_MULTIPLE == 0 for layer in layers)


class Buffers(threading.local):
    """Memory that each thread uses again for every part of a batch."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}

    def get(self, name: str, floats: int) -> int:
        """Return the address of at least so many floats."""
        tensor = self._tensors.get(name)
        if tensor is None or tensor.numel() < floats:
            tensor = self._tensors[name] = torch.empty(floats)
        return tensor.data_ptr()


class _Stage:
    """A stage of the IMPALA-CNN: a convolution, a max-pool and two residual blocks."""

    def __init__(
        self,
        image_bytes: int,
        size: tuple[int, int],
        channels: int,
        blocks: list[tuple[Winograd, Winograd]],
    ) -> None:
        """An input image takes `image_bytes`; `size` is that before the max-pool."""
        self.image_bytes, self.size, self.channels, self.blocks = image_bytes, size, channels, blocks
        self.out_size = ((size[0] + 1) // 2, (size[1] + 1) // 2)
        self.unpooled = size[0] * size[1] * channels
        self.floats = self.out_size[0] * self.out_size[1] * channels
        self.part = max(1, CACHED_FLOATS // self.unpooled)
        """How many images are convolved before they are pooled."""


class ImpalaNetwork(Network):
    """The three stages of the IMPALA-CNN (rl/models.py), without the last rectifier."""

    def __init__(
        self, library: Library, modules: list[list[nn.Conv2d]], shape: tuple[int, int, int], is_bytes: bool
    ) -> None:
        """`modules` has the five convolutions of each stage; `shape` is (C, H, W) of an observation."""
        self.library = library
        size = (shape[1], shape[2])
        self.first = DirectConvolution(library, size, modules[0][0], is_bytes)
        image_bytes = shape[0] * size[0] * size[1] * (1 if is_bytes else 4)
        self.stages: list[_Stage] = []
        self.entries: list[Winograd] = []
        """The first convolution of every stage but the first."""
        layers: list[Winograd] = []

        def add(layer: nn.Conv2d, rectify: bool) -> Winograd:
            layers.append(Winograd(library, size, layer, rectify))
            return layers[-1]

        for number, (entry, *branches) in enumerate(modules):
            if number > 0:
                self.entries.append(add(entry, False))
            unpooled, size = size, ((size[0] + 1) // 2, (size[1] + 1) // 2)
            convolutions = [add(branch, True) for branch in branches]
            blocks = list(zip(convolutions[::2], convolutions[1::2], strict=True))
            self.stages.append(_Stage(image_bytes, unpooled, entry.out_channels, blocks))
            image_bytes = 4 * self.stages[-1].floats
        super().__init__([module for stage in modules for module in stage], [self.first], [layers])
        self.out_features = self.stages[-1].floats

    def activations(self, images: int) -> list[Tensor]:
        tensors = []
        for number, stage in enumerate(self.stages):
            tensors += [
                torch.empty(images, stage.floats, dtype=torch.uint8),
                torch.empty(images, stage.floats),
            ]
            for block in range(len(stage.blocks)):
                tensors.append(torch.empty(images, stage.floats))
                if (number, block) != (len(self.stages) - 1, len(stage.blocks) - 1):
                    tensors.append(torch.empty(images, stage.floats))
        return tensors

    def forward(
        self, x: int, filters: list[Tensor], kept: list[Tensor], slot: int, out: int, count: int
    ) -> None:
        tensors, modules = iter(kept), iter(self.modules)
        for number, stage in enumerate(self.stages):
            places, pooled = address(next(tensors), slot), address(next(tensors), slot)
            self._enter(number, x, filters, _bias(next(modules)), places, pooled, count)
            x = pooled
            for first, second in stage.blocks:
                inner = address(next(tensors), slot)
                first.forward(x, filters[1], _bias(next(modules)), inner, count)
                following = next(tensors, None)
                y = out if following is None else address(following, slot)
                second.forward(inner, filters[1], _bias(next(modules)), y, count, add=x)
                x = y

    def _enter(
        self, number: int, x: int, filters: list[Tensor], bias: int, places: int, pooled: int, count: int
    ) -> None:
        """Run the first convolution and the max-pool of a stage."""
        stage = self.stages[number]
        y = self.buffers.get("unpooled", stage.part * stage.unpooled)
        for start in range(0, count, stage.part):
            images, at = min(stage.part, count - start), start * stage.floats
            inputs = x + start * stage.image_bytes
            if number == 0:
                self.first.forward(inputs, filters[0], bias, y, images)
            else:
                self.entries[number - 1].forward(inputs, filters[1], bias, y, images)
            self.library.max_pool(y, pooled + 4 * at, places + at, images, *stage.size, stage.channels)

    def backward(
        self,
        x: int,
        filters: list[Tensor],
        kept: list[Tensor],
        slot: int,
        gradient: int,
        sums: Sums,
        count: int,
    ) -> None:
        tensors = [address(tensor, slot) for tensor in kept]
        bias_sums = _bias_addresses(self.modules, sums.biases)
        convolution, at = len(self.modules) - 1, sums.filters[0]
        last = len(self.stages) - 1
        for number in range(last, -1, -1):
            stage = self.stages[number]
            inner_gradient = self.buffers.get("inner", count * stage.floats)
            if number == last:
                tensors.append(0)  # the output of the last block, which no gradient depends on
            for block in range(len(stage.blocks) - 1, -1, -1):
                first, second = stage.blocks[block]
                tensors.pop()
                inner, before = tensors.pop(), tensors[-1]
                second.weight_gradient(inner, gradient, at, bias_sums[convolution], count)
                second.input_gradient(gradient, filters[0], inner_gradient, count, mask=inner)
                first.weight_gradient(before, inner_gradient, at, bias_sums[convolution - 1], count)
                target = self.buffers.get(f"gradient {block % 2}", count * stage.floats)
                first.input_gradient(inner_gradient, filters[0], target, count, mask=before, add=gradient)
                gradient, convolution = target, convolution - 2
            tensors.pop()
            places = tensors.pop()
            gradient = self._leave(
                number,
                x if number == 0 else tensors[-1],
                filters,
                places,
                gradient,
                sums,
                bias_sums[convolution],
                count,
            )
            convolution -= 1

    def _leave(
        self,
        number: int,
        x: int,
        filters: list[Tensor],
        places: int,
        gradient: int,
        sums: Sums,
        bias_sums: int,
        count: int,
    ) -> int:
        """Run the max-pool and the first convolution of a stage backward; return the gradient's address."""
        stage = self.stages[number]
        unpooled = self.buffers.get("unpooled", stage.part * stage.unpooled)
        target = self.buffers.get("entry", count * stage.image_bytes // 4) if number else 0
        for start in range(0, count, stage.part):
            images, at = min(stage.part, count - start), start * stage.floats
            self.library.max_pool_gradient(
                gradient + 4 * at, places + at, unpooled, images, *stage.size, stage.channels
            )
            inputs = x + start * stage.image_bytes
            if number == 0:
                self.first.weight_gradient(inputs, unpooled, sums.direct[0].data_ptr(), bias_sums, images)
            else:
                entry = self.entries[number - 1]
                entry.weight_gradient(inputs, unpooled, sums.filters[0], bias_sums, images)
                entry.input_gradient(unpooled, filters[0], target + start * stage.image_bytes, images)
        return target


class NatureNetwork(Network):
    """The three convolutions of the Nature CNN (rl/models.py), without the last rectifier."""

    images = 32

    def __init__(
        self, library: Library, modules: list[nn.Conv2d], shape: tuple[int, int, int], is_bytes: bool
    ) -> None:
        """`modules` are the convolutions; `shape` is (C, H, W) of an observation."""
        self.first = Winograd(library, (shape[1], shape[2]), modules[0], is_bytes=is_bytes)
        self.second = Winograd(library, self.first.out_size, modules[1])
        self.third = Winograd(library, self.second.out_size, modules[2])
        super().__init__(modules, [], [[self.first, self.second], [self.third]])
        self.out_features = self.third.out_floats

    def activations(self, images: int) -> list[Tensor]:
        return [torch.empty(images, layer.out_floats) for layer in (self.first, self.second)]

    def forward(
        self, x: int, filters: list[Tensor], kept: list[Tensor], slot: int, out: int, count: int
    ) -> None:
        one, two = (address(tensor, slot) for tensor in kept)
        self.first.forward(x, filters[0], _bias(self.modules[0]), one, count, rectify=True)
        self.second.forward(one, filters[0], _bias(self.modules[1]), two, count, rectify=True)
        self.third.forward(two, filters[1], _bias(self.modules[2]), out, count)

    def backward(
        self,
        x: int,
        filters: list[Tensor],
        kept: list[Tensor],
        slot: int,
        gradient: int,
        sums: Sums,
        count: int,
    ) -> None:
        one, two = (address(tensor, slot) for tensor in kept)
        blocks, pixels = sums.filters
        biases = _bias_addresses(self.modules, sums.biases)
        second = self.buffers.get("second", count * self.second.out_floats)
        self.third.gradients(two, gradient, pixels, biases[2], filters[1], second, count, mask=two)
        first = self.buffers.get("first", count * self.first.out_floats)
        self.second.gradients(one, second, blocks, biases[1], filters[0], first, count, mask=one)
        self.first.weight_gradient(x, first, blocks, biases[0], count)


def _bias(module: nn.Conv2d) -> int:
    assert module.bias is not None
    return module.bias.data_ptr()


def _bias_addresses(modules: Sequence[nn.Conv2d], biases: Tensor) -> list[int]:
    """Return the address of each module's part of the sums of all biases."""
    addresses, at = [], biases.data_ptr()
    for module in modules:
        addresses.append(at)
        at += 4 * module.out_channels
    return addresses
