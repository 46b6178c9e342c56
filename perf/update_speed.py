"""Samples per second of the PPO update, compared with contiguous NCHW without microbatches.

    venv/bin/python -m perf.update_speed

The bar: at least 2.5 times on 4,096 coinrun samples with IMPALA-CNN, minibatches of 1,024, one epoch.
Both sides have the same threads. The baseline has glibc's own allocator settings, so each side is a process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from perf.measure import interleave, save, table
from rlcb import cpu

if TYPE_CHECKING:
    from rlcb.config.settings import TrainingConfig
    from rlcb.rl.learner import Learner

SAMPLES, STEPS, ENVS, MINIBATCH = 4096, 128, 32, 1024
SIDES = ("channels_last, microbatches, reused pages", "NCHW, whole minibatches, default allocator")


def child(side: str, architecture: str, num_threads: int) -> float:
    """Return the samples per second of one variant: the second of two updates in a separate process."""
    words = [sys.executable, "-m", "perf.update_speed", "--side", side, "--architecture", architecture]
    environment = {**os.environ, **dict.fromkeys(cpu.THREAD_VARIABLES, str(num_threads))}
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    return float(result.stdout.split()[-1])


def measure(side: str, architecture: str) -> float:
    """Build trainer and rollout on real coinrun frames, then time one PPO update."""
    ours = side == SIDES[0]
    if ours:
        cpu.tune_allocator()
    import torch

    from rlcb.config.yaml_file import build_config
    from rlcb.training.base import ProcessSetup
    from rlcb.training.trainer import Trainer

    torch.set_num_threads(cpu.choose_threads(None))
    config = build_config(
        {
            "env": {"id": "coinrun", "num_envs": ENVS},
            "model": {"architecture": architecture},
            "training": {"n_steps": STEPS, "batch_size": MINIBATCH, "n_epochs": 1},
            "hardware": {} if ours else {"microbatch_size": MINIBATCH},
        },
        "update_speed",
    )
    trainer = Trainer(ProcessSetup(config, num_threads=torch.get_num_threads()))
    trainer.iterate(config.training.learning_rate)  # real frames in the rollout, and a warm-up
    if not ours:
        use_contiguous_layout(trainer.learner, config.training)
    start = time.perf_counter()
    trainer.algorithm.update(trainer.learner, trainer.rollout, config, 1)
    return SAMPLES / (time.perf_counter() - start)


def use_contiguous_layout(learner: Learner, config: TrainingConfig) -> None:
    """Make a learner compute in contiguous NCHW: its model's weights and input are copied to that layout."""
    from rlcb.rl.learner import flatten_parameters, make_optimizer

    for parameter in learner.model.parameters():
        parameter.data = parameter.data.contiguous()
    learner.parameters = flatten_parameters(learner.model, learner.gradient)
    learner.optimizer = make_optimizer(learner.parameters, config)
    learner.model.body.register_forward_pre_hook(lambda module, inputs: (inputs[0].contiguous(),))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--architecture", default="impala", choices=("impala", "nature"))
    parser.add_argument("--threads", type=int, default=cpu.usable_cores())
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(measure(arguments.side, arguments.architecture))
        return
    alternatives = {side: partial(child, side, arguments.architecture, arguments.threads) for side in SIDES}
    comparison = interleave(alternatives, arguments.rounds)
    title = (
        f"PPO update, {SAMPLES:,} coinrun samples, minibatches of {MINIBATCH:,}, "
        f"{arguments.architecture} network, "
        f"{arguments.threads} threads, {arguments.rounds} rounds in turn"
    )
    data = {"architecture": arguments.architecture, "rates": comparison.rates}
    save(
        f"update_speed_{arguments.architecture}",
        f"{title}\n\n{table(comparison, SIDES[1], 'samples/s')}",
        data,
    )


if __name__ == "__main__":
    main()
