"""Speed of lower precision: acting and learning in float32 and bfloat16, acting in int8.

    venv/bin/python -m perf.precision

One process of one thread, alternatives in turn. Acting is what an actor of IMPALA does: 16 environments for
16 steps, then new parameters (from which an int8 policy has to be made again). Learning is an update on one
such unroll. Then a network is trained in float32, and after every update it is measured how far each policy
made from it is from the network itself: that is what V-trace would have to correct.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from perf.measure import interleave, rate, save, table
from rlcb import cpu

ENVS, STEPS = 16, 16
NETWORKS = {"impala": 256, "nature": 512}
RANGES = {"int8, ranges every 20th update": 20, "int8, ranges every update": 1}
POLICIES = ("float32", "bfloat16", *RANGES)


def make(architecture: str, policy: str) -> Any:
    """An IMPALA trainer that acts as `policy` says and learns in its precision, with int8 in float32."""
    from perf.int8_policy import Int8Policy
    from rlcb.config.yaml_file import build_config
    from rlcb.training.base import ProcessSetup
    from rlcb.training.trainer import Trainer

    model = {"architecture": architecture, "hidden_size": NETWORKS[architecture]}
    precision = "bfloat16" if policy == "bfloat16" else "float32"
    training = {"n_steps": STEPS, "batch_size": None, "n_epochs": 1, "normalize_advantages": False}
    config = build_config(
        {
            "algorithm": "impala",
            "env": {"id": "starpilot", "num_envs": ENVS},
            "model": {**model, "precision": precision},
            "training": {**training, "learning_rate": 1e-3, "ent_coef": 0.001, "max_grad_norm": 40},
        },
        "precision",
    )
    trainer = Trainer(ProcessSetup(config))
    trainer.iterate(config.training.learning_rate)  # a rollout to learn from, and a warm-up
    if policy in RANGES:
        trainer.collector.model = Int8Policy(trainer.model, RANGES[policy])
    return trainer


def act(trainer: Any, counter: list[int]) -> None:
    """An unroll with parameters that have just changed."""
    import torch

    if hasattr(trainer.collector.model, "refresh"):
        trainer.collector.model.refresh(torch.from_numpy(trainer.collector.observations))
    trainer.collector.collect(trainer.local_rollout, counter[0])
    counter[0] += 1


def learn(trainer: Any) -> None:
    trainer.algorithm.update(trainer.learner, trainer.rollout, trainer.config, 0)


def speed(architecture: str, rounds: int, seconds: float) -> tuple[list[str], dict[str, Any]]:
    text: list[str] = []
    data: dict[str, Any] = {}
    trainers = {name: make(architecture, name) for name in POLICIES}
    acting: dict[str, Callable[[], float]] = {
        name: partial(rate, partial(act, trainer, [0]), ENVS * STEPS, seconds)
        for name, trainer in trainers.items()
    }
    learning: dict[str, Callable[[], float]] = {
        name: partial(rate, partial(learn, trainers[name]), ENVS * STEPS, seconds) for name in POLICIES[:2]
    }
    for what, alternatives in (("acting", acting), ("learning", learning)):
        comparison = interleave(alternatives, rounds)
        text += [f"{what}:", "", table(comparison, "float32", "timesteps/s"), ""]
        data[what] = comparison.rates
    return text, data


def divergences(architecture: str, updates: int) -> dict[str, list[tuple[float, float]]]:
    """Return how far each policy is from the float32 network that it is made from, after every update.

    This is the mean over an unroll's observations of `distances`.
    """
    import torch

    from perf.int8_policy import Int8Policy

    trainer = make(architecture, "float32")
    policies: dict[str, Any] = {name: Int8Policy(trainer.model, every) for name, every in RANGES.items()}
    policies["bfloat16"] = make(architecture, "bfloat16").model
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in policies}
    for _ in range(updates):
        trainer.iterate(trainer.config.training.learning_rate)
        observations = torch.from_numpy(trainer.rollout.flat("observations"))
        with torch.inference_mode():
            exact = trainer.model(observations)[0]
            for name, policy in policies.items():
                if isinstance(policy, Int8Policy):
                    policy.refresh(torch.from_numpy(trainer.collector.observations))
                else:
                    policy.load_state_dict(trainer.model.state_dict())
                found[name].append(distances(policy(observations)[0], exact))
    return found


def distances(acting: Any, learning: Any) -> tuple[float, float]:
    """Return two distances of the acting policy from the learning one, from their logits.

    They are the Kullback-Leibler divergence, and how far importance ratios that V-trace cuts at 1 are below 1
    on average.
    """
    q, p = acting.double().log_softmax(-1), learning.double().log_softmax(-1)
    divergence = (q.exp() * (q - p)).sum(-1)
    cut = 1 - (q.exp() * (p - q).exp().clamp(max=1)).sum(-1)
    return float(divergence.mean()), float(cut.mean())


def divergence_table(found: dict[str, list[tuple[float, float]]]) -> str:
    lines = [
        "| policy | KL divergence from float32, median | largest of an update | ratios cut at 1, median |",
        "|---|---|---|---|",
    ]
    for name in POLICIES[1:]:
        divergence, cut = zip(*found[name], strict=True)
        lines.append(
            f"| {name} | {statistics.median(divergence):.2g} | {max(divergence):.2g} | "
            f"{statistics.median(cut):.2%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (default: 2)")
    parser.add_argument("--updates", type=int, default=100, help="of the training (default: 100)")
    arguments = parser.parse_args()
    cpu.set_thread_environment(1)
    cpu.tune_allocator()
    import torch

    torch.set_num_threads(1)
    texts = ["One thread; 16 environments of starpilot, unrolls of 16 steps"]
    data: dict[str, Any] = {}
    for architecture in NETWORKS:
        lines, data[architecture] = speed(architecture, arguments.rounds, arguments.seconds)
        found = data[architecture]["divergence"] = divergences(architecture, arguments.updates)
        texts += ["\n".join([f"### {architecture}", "", *lines, divergence_table(found)])]
    save("precision", "\n\n".join(texts), data)


if __name__ == "__main__":
    main()
