"""How long the layers of a network take, and what they do and move for a sample."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


def layer_times(model: nn.Module, size: int, run: Callable[[], Any]) -> list[dict[str, Any]]:
    """Time, operations and bytes of the convolutions and dense layers, those of one shape together, while
    `run` has the model compute on `size` samples several times."""
    records, handles = {}, []
    for module in model.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            watch = Watch(module, size)
            records[module] = watch
            handles.append(module.register_forward_pre_hook(watch.begin))
            handles.append(module.register_forward_hook(watch.end))
    run()
    for handle in handles:
        handle.remove()
    groups: dict[str, dict[str, Any]] = {}
    for watch in records.values():
        group = groups.setdefault(
            watch.name, {"name": watch.name, "flops": 0.0, "bytes": 0.0, "seconds": 0.0}
        )
        group["flops"] += watch.flops
        group["bytes"] += watch.bytes
        group["seconds"] += statistics.median(watch.seconds[1:]) / size
    return list(groups.values())


class Watch:
    """Notes how long a layer takes, call by call, and what it does for a sample."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, size: int) -> None:
        self.size = size
        self.seconds: list[float] = []
        self.name, self.flops, self.bytes = "", 0.0, 0.0
        self.begun = 0.0

    def begin(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.begun = time.perf_counter()

    def end(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.seconds.append(time.perf_counter() - self.begun)
        if self.name:
            return
        weights = sum(parameter.numel() for parameter in layer.parameters())
        moved = inputs[0].nbytes + output.nbytes + weights * output.element_size()
        self.bytes = moved / self.size
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        self.flops = 2 * layer.weight[0].numel() * output.numel() / self.size
        if isinstance(layer, nn.Conv2d):
            kernel = "x".join(map(str, layer.kernel_size))
            place = "x".join(map(str, output.shape[2:]))
            self.name = f"conv {kernel}, {layer.in_channels} to {layer.out_channels}, {place}"
        else:
            self.name = f"dense {layer.in_features} to {layer.out_features}"
