"""Speed of each implementation choice in updating and collecting, compared with its alternatives.

    venv/bin/python -m perf.choices [--network nature]

An update is PPO's on a rollout of real coinrun frames: 32 environments x 32 steps, one epoch of one
minibatch. Collecting is 32 environments acting by the network. Everything in one process with a thread for
each core, in turns; each other way changes one thing.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from perf.measure import interleave, rate, save, table
from rlcb import cpu

ENVS, STEPS, COLLECTED_STEPS = 32, 32, 16
AS_IT_IS = "as it is"


def make_trainer(network: str) -> Any:
    import torch

    from rlcb.config.yaml_file import build_config
    from rlcb.training.base import ProcessSetup
    from rlcb.training.trainer import Trainer

    training = {"n_steps": STEPS, "batch_size": ENVS * STEPS, "n_epochs": 1}
    config = build_config(
        {
            "env": {"id": "coinrun", "num_envs": ENVS},
            "model": {"architecture": network},
            "training": training,
        },
        "choices",
    )
    trainer = Trainer(ProcessSetup(config, num_threads=torch.get_num_threads()))
    trainer.iterate(config.training.learning_rate)  # real frames in the rollout
    return trainer


def use_optimizer(trainer: Any, whole_vector: bool, **kind: bool) -> None:
    """Use Adam on one vector of all parameters, or on each parameter separately."""
    import torch

    learner = trainer.learner
    parameters = [learner.parameters] if whole_vector else list(learner.model.parameters())
    learner.optimizer = torch.optim.Adam(parameters, 5e-4, eps=1e-5, **kind)  # type: ignore[arg-type]


def use_microbatches(trainer: Any, size: int) -> None:
    trainer.learner.microbatch_size = size


def add_in_place(trainer: Any) -> None:
    """Make residual blocks add their input to the output of the second convolution in place."""
    import torch.nn.functional as F

    from rlcb.rl.models import ResidualBlock

    def forward(block: Any, x: Any) -> Any:
        return block.conv1(F.relu(block.conv0(F.relu(x)), inplace=True)).add_(x)

    for module in trainer.model.modules():
        if isinstance(module, ResidualBlock):
            module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]


def pool_by_maxima(trainer: Any) -> None:
    """Max-pooling of 3 x 3, stride 2, as elementwise maxima of every other row and column; even sizes."""
    import torch
    import torch.nn.functional as F

    def forward(_: Any, x: Any) -> Any:
        x = F.pad(x, (1, 0, 1, 0), value=float("-inf"))
        x = torch.maximum(torch.maximum(x[:, :, :-1:2], x[:, :, 1::2]), x[:, :, 2::2])
        return torch.maximum(torch.maximum(x[..., :-1:2], x[..., 1::2]), x[..., 2::2])

    for module in trainer.model.modules():
        if isinstance(module, torch.nn.MaxPool2d):
            module.forward = types.MethodType(forward, module)  # type: ignore[method-assign]


def convert_once(trainer: Any) -> None:
    """Convert frames to floating point once per update, not once per microbatch."""
    import numpy as np

    rollout, flat = trainer.rollout, trainer.rollout.flat

    def converted(name: str) -> Any:
        values = flat(name)
        return values.astype(np.float32) / np.float32(255) if name == "observations" else values

    rollout.flat = converted


def ways_to_learn(network: str, microbatch: int) -> dict[str, Callable[[Any], None]]:
    ways: dict[str, Callable[[Any], None]] = {
        AS_IT_IS: lambda trainer: None,
        "Adam over the vector, foreach": partial(use_optimizer, whole_vector=True, foreach=True),
        "Adam over each parameter, fused": partial(use_optimizer, whole_vector=False, fused=True),
        "Adam over each parameter, foreach": partial(use_optimizer, whole_vector=False, foreach=True),
        "frames to floating point once an update": convert_once,
    }
    if network == "impala":
        ways["residual sums in place"] = add_in_place
        ways["max-pooling by maxima of slices"] = pool_by_maxima
    for size in (microbatch // 4, microbatch // 2, 2 * microbatch, ENVS * STEPS):
        ways[f"microbatches of {size:,}"] = partial(use_microbatches, size=size)
    return ways


def learn(trainer: Any) -> None:
    trainer.algorithm.update(trainer.learner, trainer.rollout, trainer.config, 1)


def act(model: Any, observations: Any, noise: Any) -> Any:
    import torch

    from rlcb.rl.models import sample_actions

    with torch.inference_mode():
        return sample_actions(model(torch.from_numpy(observations))[0], noise)[0].numpy()


class Whole:
    """Choose actions for all environments, then step all of them."""

    def __init__(self, network: str, native_threads: int) -> None:
        import torch

        self.model = make_trainer(network).model
        self.env = make_env(ENVS, native_threads)
        self.observations = self.env.reset()[0]
        self.noise = torch.rand(COLLECTED_STEPS, ENVS, dtype=torch.float64)

    def __call__(self) -> None:
        for noise in self.noise:
            self.observations = self.env.step(act(self.model, self.observations, noise))[0]


class Halves:
    """While the native threads step one half of the environments, the network acts for the other."""

    def __init__(self, network: str) -> None:
        import torch

        self.model = make_trainer(network).model
        self.envs = [make_env(ENVS // 2, 1), make_env(ENVS // 2, 1)]
        self.observations = [env.reset()[0] for env in self.envs]
        self.noise = torch.rand(COLLECTED_STEPS, 2, ENVS // 2, dtype=torch.float64)
        self.envs[1]._act(act(self.model, self.observations[1], self.noise[0, 1]))

    def __call__(self) -> None:
        for noise in self.noise:
            for this, other in ((0, 1), (1, 0)):
                self.envs[this]._act(act(self.model, self.observations[this], noise[this]))
                self.observations[other] = self.envs[other]._observe()[0]


def make_env(count: int, native_threads: int) -> Any:
    from rlcb.config.settings import EnvConfig
    from rlcb.envs.vector_env import make_vector_env
    from rlcb.seeding import group_seed

    config = EnvConfig(id="coinrun", num_envs=count)
    return make_vector_env(config, [group_seed(1, group) for group in range(count // 8)], 8, native_threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--network", default="impala", choices=("impala", "nature"))
    arguments = parser.parse_args()
    threads = cpu.choose_threads(None)
    cpu.set_thread_environment(threads)
    cpu.tune_allocator()
    import torch

    torch.set_num_threads(threads)
    trainers = {}
    microbatch = make_trainer(arguments.network).microbatch_size
    for name, change in ways_to_learn(arguments.network, microbatch).items():
        trainers[name] = make_trainer(arguments.network)
        change(trainers[name])
        learn(trainers[name])
    learning = interleave(
        {name: partial(rate, partial(learn, each), ENVS * STEPS) for name, each in trainers.items()},
        arguments.rounds,
    )
    trainers.clear()
    ways: dict[str, Callable[[], None]] = {
        AS_IT_IS: Whole(arguments.network, 1),
        "stepped by the thread that acts": Whole(arguments.network, 0),
        "one half acts while the other is stepped": Halves(arguments.network),
    }
    collecting = interleave(
        {name: partial(rate, each, ENVS * COLLECTED_STEPS) for name, each in ways.items()}, arguments.rounds
    )
    title = f"{arguments.network} network, {threads} threads, {arguments.rounds} rounds in turn"
    parts = [
        f"PPO's update, {ENVS * STEPS:,} samples, {title}; microbatches of {microbatch}",
        table(learning, AS_IT_IS, "samples/s"),
        f"Collecting, {ENVS} environments, {title}",
        table(collecting, AS_IT_IS, "timesteps/s"),
    ]
    data = {"network": arguments.network, "learning": learning.rates, "collecting": collecting.rates}
    save(f"choices_{arguments.network}", "\n\n".join(parts), data)


if __name__ == "__main__":
    main()
