"""The measurements that one process makes: environments, the network, kernels, copies and all-reduces.

All processes of a measurement pool (processes/measurement_pool.py) make the same measurement at the same
time, so that all cores are busy. The first call of each measurement is a warm-up.
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
from rlcb.envs.vector_env import groups_of, make_vector_env, native_threads, spaces_of
from rlcb.parallel.gloo import GlooCommunicator, use_loopback
from rlcb.rl.activation_cache import ActivationCache, activation_bytes
from rlcb.rl.learner import flatten_parameters
from rlcb.rl.losses import actor_critic_loss, policy_terms
from rlcb.rl.models import ActorCritic, make_model
from rlcb.rl.rollout_buffer import RolloutBuffer

LOOPBACK = "127.0.0.1"
MIN_CALLS = 3
WARM_UP_STEPS = 16
MATRIX, CHANNELS = 512, 64
IMAGES = (32, CHANNELS, 16, 16)
LARGE, SMALL = 64 * 2**20, 128 * 2**10  # bytes to copy: far more than a core's cache, and well within it
REDUCE_CALLS = 30
CACHED_SAMPLES = 128  # samples whose activations are cached at a time, or one step if that has more samples


def seconds_of_calls(work: Callable[[], Any], duration: float) -> list[float]:
    """Call `work` for `duration` seconds, at least MIN_CALLS times; return the seconds of each call.

    One more call before them warms up.
    """
    work()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < MIN_CALLS or time.perf_counter() - start < duration:
        call_start = time.perf_counter()
        work()
        times.append(time.perf_counter() - call_start)
    return times


def median_seconds(work: Callable[[], Any], duration: float) -> float:
    """Return the median seconds of a call of `work`."""
    return statistics.median(seconds_of_calls(work, duration))


class MachineBench:
    """A network, frames of its environment, and the measurements that use them.

    Every process of a measurement pool makes one; profiling/measure.py calls its methods by name.
    """

    def __init__(self, import_seconds: float, config: Config, largest: int) -> None:
        """`import_seconds` is the time that importing this module took; `largest` is the number of samples
        in the largest pass."""
        self.config = config
        cpu.set_torch_threads(1)
        start = time.perf_counter()
        env = self._environments(config.env, config.env.num_envs, 1)
        frames = [env.reset()[0]]
        env_end = time.perf_counter()
        self.spaces = spaces_of(env)
        self.models: dict[tuple[str, str], tuple[ActorCritic, Tensor]] = {}
        self._model("channels_last", config.model.precision)
        self.startup = {
            "imports": import_seconds,
            "environments": env_end - start,
            "network": time.perf_counter() - env_end,
        }
        rng = np.random.default_rng(config.training.seed)
        self.actions = rng.integers(0, self.spaces.num_actions, max(largest, 4096))
        while sum(map(len, frames)) < largest:
            frames.append(env.step(self.actions[: env.num_envs])[0])
        env.close()
        self.frames = torch.from_numpy(np.concatenate(frames)[:largest].copy())
        self.noise = torch.from_numpy(rng.random(largest))
        targets = rng.standard_normal(max(largest, CACHED_SAMPLES))
        self.targets = torch.from_numpy(targets.astype(np.float32))

    def _environments(self, env: EnvConfig, count: int, threads: int) -> Any:
        size = env.group_size or largest_divisor(count, MAX_GROUP_SIZE)
        groups, envs = groups_of(range(count), size)
        seeds = [seeding.group_seed(self.config.training.seed, group) for group in groups]
        return make_vector_env(env, seeds, size, native_threads(threads), envs=envs)

    def _model(self, layout: str, precision: str) -> tuple[ActorCritic, Tensor]:
        """Return a network and the flat vector of its gradients, as a learner has them."""
        if (layout, precision) not in self.models:
            settings = self.config.model.model_copy(update={"precision": precision})
            kernels = "torch" if layout == "torch" else self.config.hardware.kernels
            model = make_model(settings, self.spaces, self.config.training.seed, kernels)
            gradient = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
            flatten_parameters(model, gradient)
            self.models[layout, precision] = model, gradient
        return self.models[layout, precision]

    def describe(self) -> dict[str, Any]:
        """Return the start-up times and the facts of the network."""
        from torch.utils.flop_counter import FlopCounterMode

        used, _ = self._model("channels_last", self.config.model.precision)
        model, _ = self._model("torch", self.config.model.precision)  # whose operations can be counted
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
            "activation_bytes": activation_bytes(used),
            "kernels": used.kernels,
        }

    def environment(self, env_config: EnvConfig, count: int, threads: int, duration: float) -> float:
        """Return the mean seconds for one step of one of `count` environments with random actions.

        A mean, since some steps are slow because they generate a level.
        """
        env = self._environments(env_config, count, threads)
        env.reset()
        rng = np.random.default_rng(self.config.training.seed)
        actions = rng.integers(0, spaces_of(env).num_actions, (512, count))
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
        """Return the seconds per sample for choosing actions for `size` observations."""
        cpu.set_torch_threads(threads)
        model, _ = self._model(layout, precision)
        frames = self.frames[:size]

        def act() -> None:
            model.act(frames, self.noise[:size])

        with model.constant_weights():
            return median_seconds(act, duration) / size

    def forward_backward(
        self, size: int, threads: int, layout: str, precision: str, duration: float
    ) -> float:
        """Return the seconds per sample for the gradient of an actor-critic loss on `size` samples."""
        cpu.set_torch_threads(threads)
        model, gradient = self._model(layout, precision)

        def learn() -> None:
            self._loss(*model(self.frames[:size])).backward()  # type: ignore[no-untyped-call]

        seconds = median_seconds(learn, duration) / size
        gradient.zero_()
        return seconds

    def act_and_learn(self, size: int, threads: int, layout: str, precision: str, duration: float) -> float:
        """Return the seconds per sample for acting on `size` observations at a time and for the gradient from
        the cached activations."""
        cpu.set_torch_threads(threads)
        model, gradient = self._model(layout, precision)
        rollout = RolloutBuffer(max(1, CACHED_SAMPLES // size), size, self.spaces)
        cache = ActivationCache(model, rollout, 0, lambda: None)
        frames = self.frames[:size]

        def act_and_learn() -> None:
            with model.constant_weights():
                for _ in range(rollout.n_steps):
                    cache.act(frames, self.noise[:size])
            loss = self._loss(*cache.forward(np.arange(rollout.num_samples)))
            loss.backward()  # type: ignore[no-untyped-call]
            cache.backward()

        seconds = median_seconds(act_and_learn, duration) / rollout.num_samples
        gradient.zero_()
        return seconds

    def _loss(self, logits: Tensor, values: Tensor) -> Tensor:
        size = len(values)
        targets = self.targets[:size]
        log_probs, entropies = policy_terms(logits, torch.from_numpy(self.actions[:size]))
        return actor_critic_loss(log_probs, entropies, values, targets, targets, self.config.training)[0]

    def layers(self, size: int, duration: float) -> list[dict[str, Any]]:
        """Return name, operations, bytes and forward seconds per sample of each shape of layer, on PyTorch's
        kernels."""
        cpu.set_torch_threads(1)
        model, _ = self._model("torch", self.config.model.precision)
        layers = [each for each in model.modules() if isinstance(each, (nn.Conv2d, nn.Linear))]
        records = [LayerRecord(layer, size) for layer in layers]
        with torch.inference_mode():
            seconds_of_calls(lambda: model(self.frames[:size]), duration)
        groups: dict[str, dict[str, Any]] = {}
        for record in records:
            record.remove()
            empty = {"name": record.name, "flops": 0.0, "bytes": 0.0, "seconds": 0.0}
            group = groups.setdefault(record.name, empty)
            group["flops"] += record.flops
            group["bytes"] += record.bytes
            group["seconds"] += statistics.median(record.seconds[1:]) / size
        return list(groups.values())

    def peak(self, precision: str, duration: float) -> float:
        """Return the operations per second of one thread in its best kernel.

        That is the faster of a matrix product and a convolution, both small enough for its cache.
        """
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
        """Return the bytes per second, read plus written, of one thread that copies in cache or memory."""
        size, repeats = (SMALL, 200) if in_cache else (LARGE, 1)
        source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)

        def copy() -> None:
            for _ in range(repeats):
                np.copyto(target, source)

        return 2 * size * repeats / median_seconds(copy, duration)

    def open_store(self) -> int:
        """Open a store for a rendezvous of processes and return its port."""
        use_loopback()
        self.store = dist.TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        return int(self.store.port)

    def all_reduce(self, rank: int, count: int, port: int, size: int) -> float:
        """Return the median seconds of an all-reduce of `size` bytes of float32 over `count` processes."""
        cpu.set_torch_threads(1)
        use_loopback()
        if rank:
            store = dist.TCPStore(LOOPBACK, port, is_master=False, timeout=timedelta(seconds=60))  # type: ignore[attr-defined]
        else:
            store = self.store
        communicator = GlooCommunicator(store, rank, count, timeout_seconds=60)
        message, times = torch.zeros(size // 4), []
        for _ in range(REDUCE_CALLS):
            start = time.perf_counter()
            communicator.sum_(message)
            times.append(time.perf_counter() - start)
        communicator.close()
        return statistics.median(times[REDUCE_CALLS // 6 :])


class LayerRecord:
    """Hooks on one layer that record its seconds, call by call, and its work for one sample."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, size: int) -> None:
        """Install the hooks. `size` is the number of samples in each call."""
        self.size = size
        self.seconds: list[float] = []
        self.name, self.flops, self.bytes, self.start = "", 0.0, 0.0, 0.0
        self.handles = [
            layer.register_forward_pre_hook(self._before),
            layer.register_forward_hook(self._after),
        ]

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()

    def _before(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.start = time.perf_counter()

    def _after(self, layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        self.seconds.append(time.perf_counter() - self.start)
        if self.name:
            return
        assert isinstance(layer, (nn.Conv2d, nn.Linear))
        weights = sum(parameter.numel() for parameter in layer.parameters())
        moved = inputs[0].nbytes + output.nbytes + weights * output.element_size()
        self.bytes = moved / self.size
        self.flops = 2 * layer.weight[0].numel() * output.numel() / self.size
        if isinstance(layer, nn.Conv2d):
            kernel, area = "x".join(map(str, layer.kernel_size)), "x".join(map(str, output.shape[2:]))
            self.name = f"conv {kernel}, {layer.in_channels} to {layer.out_channels}, {area}"
        else:
            self.name = f"dense {layer.in_features} to {layer.out_features}"
