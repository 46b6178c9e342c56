"""What one process measures: environments, passes of the network, matrix products, copying, sums.

Times of passes are medians over calls, of which the first is not counted. Every process of a machine does the
same at the same time (processes/measurement_pool.py), with the threads that it is told.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from rlcb import cpu, seeding
from rlcb.config.config import MAX_GROUP_SIZE, Config, largest_divisor
from rlcb.config.settings import EnvConfig
from rlcb.envs.vector_env import make_vector_env, native_threads, spaces_of
from rlcb.parallel.gloo import GlooCommunicator, use_loopback
from rlcb.rl.activation_cache import ActivationCache, activation_bytes
from rlcb.rl.collector import sample_actions
from rlcb.rl.learner import flatten_parameters
from rlcb.rl.losses import actor_critic_loss, policy_terms
from rlcb.rl.models import ActorCritic, make_model
from rlcb.rl.rollout_buffer import RolloutBuffer

HOST = "127.0.0.1"
MIN_CALLS = 3
WARM_UP_STEPS = 16
MATRIX, CHANNELS = 512, 64
IMAGES = (32, CHANNELS, 16, 16)
LARGE, SMALL = 64 * 2**20, 128 * 2**10  # bytes to copy: far beyond any cache of a core, well within
REDUCE_CALLS = 30
KEPT_SAMPLES = 128  # of which the passes are kept at a time; those of larger steps are kept for one


def seconds_of_calls(work: Callable[[], Any], duration: float) -> list[float]:
    """Seconds of each call, for `duration` or at least MIN_CALLS; the first call is not among them."""
    work()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < MIN_CALLS or time.perf_counter() - start < duration:
        begun = time.perf_counter()
        work()
        times.append(time.perf_counter() - begun)
    return times


def median_seconds(work: Callable[[], Any], duration: float) -> float:
    return statistics.median(seconds_of_calls(work, duration))


def use_contiguous_layout(model: ActorCritic) -> None:
    """Have a network compute in contiguous NCHW: its weights and input are copied to that layout."""
    for parameter in model.parameters():
        parameter.data = parameter.data.contiguous()
    first = next(module for module in model.body.modules() if isinstance(module, nn.Conv2d))
    first.register_forward_pre_hook(lambda module, inputs: (inputs[0].contiguous(),))


class Bench:
    """A network, frames of the environment that it is for, and what is measured with them."""

    def __init__(self, import_seconds: float, config: Config, largest: int) -> None:
        """`largest` is the number of samples that are measured at once, at the most."""
        self.config = config
        self.largest = largest
        cpu.set_torch_threads(1)
        start = time.perf_counter()
        env = self._environments(config.env, config.env.num_envs, 1)
        frames = [env.reset()[0]]
        made = time.perf_counter()
        self.spaces = spaces_of(env)
        self.models: dict[tuple[str, str], tuple[ActorCritic, Tensor]] = {}
        self._model("channels_last", config.model.precision)
        self.startup = {
            "imports": import_seconds,
            "environments": made - start,
            "network": time.perf_counter() - made,
        }
        rng = np.random.default_rng(config.training.seed)
        self.actions = rng.integers(0, self.spaces.num_actions, max(largest, 4096))
        while sum(map(len, frames)) < largest:
            frames.append(env.step(self.actions[: env.num_envs])[0])
        self.frames = torch.from_numpy(np.concatenate(frames)[:largest].copy())
        env.close()
        self.noise = torch.from_numpy(rng.random(largest))
        targets = rng.standard_normal(max(largest, KEPT_SAMPLES))
        self.targets = torch.from_numpy(targets.astype(np.float32))

    def _environments(self, env: EnvConfig, count: int, threads: int) -> Any:
        size = env.group_size or largest_divisor(count, MAX_GROUP_SIZE)
        seeds = [seeding.group_seed(self.config.training.seed, group) for group in range(count // size)]
        return make_vector_env(env, seeds, size, native_threads(threads))

    def _model(self, layout: str, precision: str) -> tuple[ActorCritic, Tensor]:
        """The network and the vector of its gradients, as a learner has them."""
        if (layout, precision) not in self.models:
            settings = self.config.model.model_copy(update={"precision": precision})
            model = make_model(settings, self.spaces, self.config.training.seed)
            if layout == "NCHW":
                use_contiguous_layout(model)
            gradient = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
            flatten_parameters(model, gradient)
            self.models[layout, precision] = model, gradient
        return self.models[layout, precision]

    def describe(self) -> dict[str, Any]:
        """The network and how long it took until it was there."""
        from torch.utils.flop_counter import FlopCounterMode

        model, _ = self._model("channels_last", self.config.model.precision)
        with FlopCounterMode(display=False) as forward:
            loss = self._loss(*model(self.frames[:1]))
        with FlopCounterMode(display=False) as backward:
            loss.backward()  # type: ignore[no-untyped-call]
        return {
            "startup": self.startup,
            "observation_shape": self.spaces.observation_shape,
            "num_actions": self.spaces.num_actions,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "forward_flops": float(forward.get_total_flops()),
            "forward_backward_flops": float(forward.get_total_flops() + backward.get_total_flops()),
            "activation_bytes": activation_bytes(model),
        }

    def environment(self, env_config: EnvConfig, count: int, threads: int, duration: float) -> float:
        """Seconds for a step of one of `count` environments with random actions: a mean, since some steps
        make a new level."""
        env = self._environments(env_config, count, threads)
        env.reset()
        number = spaces_of(env).num_actions
        rng = np.random.default_rng(self.config.training.seed)
        actions = rng.integers(0, number, (512, count))
        for index in range(WARM_UP_STEPS):
            env.step(actions[index])
        start, steps = time.perf_counter(), 0
        while steps == 0 or time.perf_counter() - start < duration:
            env.step(actions[steps % len(actions)])
            steps += 1
        seconds = (time.perf_counter() - start) / (steps * count)
        env.close()
        return seconds

    def forward(self, size: int, threads: int, layout: str, precision: str, duration: float) -> float:
        """Seconds a sample for the policy to choose actions for `size` observations."""
        cpu.set_torch_threads(threads)
        model, _ = self._model(layout, precision)
        frames, noise = self.frames[:size], self.noise[:size]

        def act() -> None:
            with torch.inference_mode():
                logits, values = model(frames)
                for each in (*sample_actions(logits, noise), values):
                    each.numpy()

        return median_seconds(act, duration) / size

    def forward_backward(
        self, size: int, threads: int, layout: str, precision: str, duration: float
    ) -> float:
        """Seconds a sample for the gradient of an actor-critic loss over a microbatch of `size`."""
        cpu.set_torch_threads(threads)
        model, gradient = self._model(layout, precision)

        def learn() -> None:
            loss = self._loss(*model(self.frames[:size]))
            loss.backward()  # type: ignore[no-untyped-call]

        seconds = median_seconds(learn, duration) / size
        gradient.zero_()
        return seconds

    def act_and_learn(self, size: int, threads: int, layout: str, precision: str, duration: float) -> float:
        """Seconds a sample for the policy to choose actions for `size` observations and, some steps later, to
        learn from the same passes: their gradient."""
        cpu.set_torch_threads(threads)
        model, gradient = self._model(layout, precision)
        part = RolloutBuffer(max(1, KEPT_SAMPLES // size), size, self.spaces)
        passes = ActivationCache(model, part, 0, lambda: None)
        frames, noise = self.frames[:size], self.noise[:size]

        def act_and_learn() -> None:
            for _ in range(part.n_steps):
                logits, values = passes.act(frames)
                with torch.inference_mode():
                    for each in (*sample_actions(logits, noise), values):
                        each.numpy()
            loss = self._loss(*passes.learn(np.arange(part.num_samples)))
            loss.backward()  # type: ignore[no-untyped-call]
            passes.finish()

        seconds = median_seconds(act_and_learn, duration) / part.num_samples
        gradient.zero_()
        return seconds

    def _loss(self, logits: Tensor, values: Tensor) -> Tensor:
        size = len(values)
        targets = self.targets[:size]
        log_probs, entropies = policy_terms(logits, torch.from_numpy(self.actions[:size]))
        return actor_critic_loss(log_probs, entropies, values, targets, targets, self.config.training)[0]

    def layers(self, size: int, duration: float) -> list[dict[str, Any]]:
        """Those of the network (profiling/bench.py), forward."""
        cpu.set_torch_threads(1)
        model, _ = self._model("channels_last", self.config.model.precision)
        with torch.inference_mode():
            return layer_times(
                model, size, lambda: seconds_of_calls(lambda: model(self.frames[:size]), duration)
            )

    def peak(self, precision: str, duration: float) -> float:
        """Operations a second of one thread at what it does best: the faster of a matrix product and of a
        convolution, both within its cache."""
        cpu.set_torch_threads(1)
        dtype = getattr(torch, precision)
        a, b = torch.randn(MATRIX, MATRIX, dtype=dtype), torch.randn(MATRIX, MATRIX, dtype=dtype)
        out = torch.empty_like(a)
        layer = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1).to(dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = torch.randn(*IMAGES, dtype=dtype).to(memory_format=torch.channels_last)
        convolution = 2 * 9 * CHANNELS * images.numel()
        with torch.inference_mode():
            return max(
                2 * MATRIX**3 / median_seconds(lambda: torch.mm(a, b, out=out), duration / 2),
                convolution / median_seconds(lambda: layer(images), duration / 2),
            )

    def copy(self, in_cache: bool, duration: float) -> float:
        """Bytes a second, read and written, of one thread that copies: in main memory or in its cache."""
        size, repeats = (SMALL, 200) if in_cache else (LARGE, 1)
        source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)

        def copy() -> None:
            for _ in range(repeats):
                np.copyto(target, source)

        return 2 * size * repeats / median_seconds(copy, duration)

    def open_store(self) -> int:
        """A place where processes can meet; returns its port."""
        use_loopback()
        self.store = dist.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        return int(self.store.port)

    def all_reduce(self, rank: int, count: int, port: int, size: int) -> float:
        """Seconds to sum `size` bytes of float32 over `count` processes that meet at a port."""
        cpu.set_torch_threads(1)
        use_loopback()
        if rank:
            store = dist.TCPStore(HOST, port, is_master=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
        else:
            store = self.store
        communicator = GlooCommunicator(store, rank, count, timeout_seconds=60)
        message, times = torch.zeros(size // 4), []
        for _ in range(REDUCE_CALLS):
            begun = time.perf_counter()
            communicator.sum_(message)
            times.append(time.perf_counter() - begun)
        communicator.close()
        return statistics.median(times[REDUCE_CALLS // 6 :])


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
