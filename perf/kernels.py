"""Speed of the native kernels (rlcb/kernels) against PyTorch's: layers, whole networks and whole runs.

    venv/bin/python -m perf.kernels [--only networks parts runs] [--rounds 7]

Networks: one thread, batches of 64 images of Procgen's size, float32 with both kinds of kernels and bfloat16.
Parts: the time of each layer of the Nature CNN in these passes, on native kernels.
Both reuse freed pages, as runs do.
Runs: PPO, A2C and IMPALA on starpilot in parallel mode, each kind in turn.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from perf.measure import interleave, rate, save, table
from perf.training_runs import Result, train
from rlcb import cpu
from rlcb.config.settings import ModelConfig
from rlcb.envs.spaces import Spaces
from rlcb.kernels.networks import NatureNetwork, address
from rlcb.rl.models import ActorCritic, make_model

SECTIONS = ("networks", "parts", "runs")
IMAGES = 64
SPACES = Spaces((64, 64, 3), "uint8", 15)
NETWORKS = {"impala": "IMPALA-CNN", "nature": "Nature CNN"}
KINDS = {
    "native": ("native", "float32"),
    "PyTorch": ("torch", "float32"),
    "PyTorch, bfloat16": ("torch", "bfloat16"),
}
RUNS = {
    "PPO, IMPALA-CNN": ("ppo", "impala", ("--num-envs", 32, "--n-steps", 32, "--batch-size", 512), 12),
    "PPO, Nature CNN": ("ppo", "nature", ("--num-envs", 64, "--n-steps", 64, "--batch-size", 1024), 12),
    "A2C, IMPALA-CNN": ("a2c", "impala", ("--num-envs", 32, "--n-steps", 16), 50),
    "A2C, Nature CNN": ("a2c", "nature", ("--num-envs", 32, "--n-steps", 16), 160),
    "IMPALA, IMPALA-CNN": ("impala", "impala", (), 20),
}
"""Algorithm, network, flags and number of updates of each run."""


def passes(model: ActorCritic, backward: bool) -> float:
    """Return the images per second of a forward pass, or of a forward and a backward pass."""
    observations = torch.randint(0, 256, (IMAGES, 64, 64, 3), dtype=torch.uint8)

    def forward() -> None:
        with torch.inference_mode():
            model(observations)

    def both() -> None:
        logits, values = model(observations)
        (logits.square().mean() + values.square().mean()).backward()  # type: ignore[no-untyped-call]

    return rate(both if backward else forward, IMAGES)


def measure_networks(rounds: int) -> None:
    """Measure both networks and save the results."""
    torch.set_num_threads(1)
    parts, data = [f"Images per second of one thread, batches of {IMAGES} images of 64 x 64 x 3"], {}
    for architecture, name in NETWORKS.items():
        models = {
            kind: make_model(
                ModelConfig.model_validate({"architecture": architecture, "precision": precision}),
                SPACES,
                0,
                kernels,  # type: ignore[arg-type]
            )
            for kind, (kernels, precision) in KINDS.items()
        }
        for backward, what in ((False, "forward"), (True, "forward and backward")):
            alternatives = {kind: partial(passes, model, backward) for kind, model in models.items()}
            comparison = interleave(alternatives, rounds)
            parts += [f"\n{name}, {what}\n", table(comparison, "PyTorch", "images/s")]
            data[f"{name}, {what}"] = comparison.rates
    save("kernels_networks", "\n".join(parts), data)


class NatureParts:
    """The parts of a forward and a backward pass of the Nature CNN on native kernels, without autograd."""

    def __init__(self, model: ActorCritic) -> None:
        assert model.native is not None
        assert model.native_dense is not None
        network = model.native.network
        assert isinstance(network, NatureNetwork)
        self.model, self.network, self.dense = model, network, model.native_dense
        self.layers = (network.first, network.second, network.third)
        self.outputs = [torch.rand(IMAGES, layer.out_floats) for layer in self.layers]
        self.gradients = [torch.randn(IMAGES, layer.out_floats) for layer in self.layers]
        self.inputs = [torch.randint(0, 256, (IMAGES, 64, 64, 3), dtype=torch.uint8), *self.outputs[:2]]
        self.filters, self.transposed = network.prepare(), network.prepare_backward()
        self.sums = network.sums()
        self.hidden = torch.rand(IMAGES, model.policy.in_features)

    def forward(self, number: int) -> None:
        layer, count, bias = self.layers[number], self.network.images, self.network.modules[number].bias
        assert bias is not None
        for at in range(0, IMAGES, count):
            x, y = address(self.inputs[number], at), address(self.outputs[number], at)
            layer.forward(x, self.filters[number // 2], bias.data_ptr(), y, count, rectify=number < 2)

    def backward(self, number: int) -> None:
        layer, count, group = self.layers[number], self.network.images, number // 2
        for at in range(0, IMAGES, count):
            x, dy = address(self.inputs[number], at), address(self.gradients[number], at)
            target = (x, dy, self.sums.filters[group], self.sums.biases.data_ptr())
            if number == 0:
                layer.weight_gradient(*target, count)
            else:
                dx = address(self.gradients[number - 1], at)
                layer.gradients(*target, self.transposed[group], dx, count, mask=x)

    def dense_forward(self) -> None:
        with torch.no_grad():
            self.dense.forward(self.outputs[2])

    def dense_backward(self) -> None:
        with torch.no_grad():
            self.dense.backward(self.outputs[2], self.hidden, self.hidden)

    def heads(self) -> None:
        leaf = self.hidden.detach().requires_grad_()
        loss = self.model.policy(leaf).square().mean() + self.model.value(leaf).square().mean()
        loss.backward()

    def prepare(self) -> None:
        self.network.prepare()
        self.network.prepare_backward()

    def finish(self) -> None:
        self.network.gradients(self.network.sums())

    def all(self) -> dict[str, Callable[[], None]]:
        """Return the parts by name."""
        parts: dict[str, Callable[[], None]] = {}
        for number, name in enumerate(("8x8 convolution", "4x4 convolution", "3x3 convolution")):
            parts[f"{name}, forward"] = partial(self.forward, number)
            parts[f"{name}, backward"] = partial(self.backward, number)
        return {
            **parts,
            "dense layer, forward": self.dense_forward,
            "dense layer, backward": self.dense_backward,
            "heads, with autograd": self.heads,
            "looking for changed weights": self.prepare,
            "gradients of weights from those of transformed filters": self.finish,
        }


def measure_parts(rounds: int) -> None:
    """Measure the parts of the Nature CNN's passes and save their shares."""
    torch.set_num_threads(1)
    model = make_model(ModelConfig(architecture="nature"), SPACES, 0, "native")
    whole = "forward and backward"
    parts = {name: partial(rate, part, IMAGES, 0.2) for name, part in NatureParts(model).all().items()}
    comparison = interleave({whole: partial(passes, model, True), **parts}, rounds)
    times = {name: 1e6 / comparison.median(name) for name in comparison.rates}
    total = times.pop(whole)
    times["the rest: autograd, memory, additions to gradients"] = total - sum(times.values())
    lines = [f"| {name} | {value:.1f} | {value / total:.0%} |" for name, value in times.items()]
    text = (
        f"Nature CNN on native kernels, forward and backward: one thread, batches of {IMAGES} images of "
        "64 x 64 x 3\n\n| part | microseconds per image | share |\n|---|---|---|\n"
    )
    save("kernels_parts", text + "\n".join([*lines, f"| all | {total:.1f} | 100% |"]), comparison.rates)


def run(name: str, kind: str, results: dict[str, list[Result]]) -> float:
    """Train with one kind of kernels and return the timesteps per second; keep the result."""
    algorithm, network, flags, updates = RUNS[name]
    kernels, precision = KINDS[kind]
    settings = (
        f"model.architecture={network}",
        f"hardware.kernels={kernels}",
        f"model.precision={precision}",
        "env.id=procgen-starpilot-v0",
    )
    script = f"train.py --algorithm {algorithm} --mode parallel"
    words = dict(zip(flags[::2], flags[1::2], strict=True))
    timesteps = updates * words.get("--num-envs", 32) * words.get("--n-steps", 32)
    result = train(script, (*flags, "--total-timesteps", timesteps), settings)
    results.setdefault(kind, []).append(result)
    return result.fps


def measure_runs(rounds: int) -> None:
    """Measure whole runs and save the results."""
    parts: list[str] = ["Timesteps per second of whole parallel runs on starpilot"]
    data: dict[str, Any] = {}
    for name in RUNS:
        results: dict[str, list[Result]] = {}
        comparison = interleave({kind: partial(run, name, kind, results) for kind in KINDS}, rounds)
        parts += [f"\n{name}\n", table(comparison, "PyTorch", "timesteps/s")]
        data[name] = {
            "rates": comparison.rates,
            "peak_memory_mb": {
                kind: [round(each.peak_memory_mb) for each in results[kind]] for kind in results
            },
            "shares": {kind: results[kind][-1].shares for kind in results},
        }
    save("kernels_runs", "\n".join(parts), data)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--rounds", type=int, default=7, help="of networks; runs: at most three")
    arguments = parser.parse_args()
    cpu.tune_allocator()
    if "networks" in arguments.only:
        measure_networks(arguments.rounds)
    if "parts" in arguments.only:
        measure_parts(arguments.rounds)
    if "runs" in arguments.only:
        measure_runs(min(3, arguments.rounds))


if __name__ == "__main__":
    main()
