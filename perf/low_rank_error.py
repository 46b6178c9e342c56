"""How much of a gradient a sum in low rank misses (cluster.compression=powersgd), by rank.

    venv/bin/python -m perf.low_rank_error [--architecture impala] [--env coinrun] [--updates 20]

PPO trains in one process with whole gradients. Each gradient is also summed in low rank, with error feedback.
PowerSGD depends on gradients and errors of several processes only through their sums, so one process shows
what the sums of any number of processes miss. Nothing is timed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import cosine_similarity

from perf.measure import save
from rlcb.cluster.power_sgd import PowerSGD
from rlcb.config.yaml_file import build_config
from rlcb.rl.communicator import Communicator, Reduction
from rlcb.training.base import ProcessSetup
from rlcb.training.trainer import Trainer

RANKS = (1, 2, 4, 8)
ENVS, STEPS, BATCH, EPOCHS = 32, 64, 512, 3
WARM = 2  # updates that are not counted


@dataclass
class Misses:
    """What the sums of one rank miss, one entry per gradient."""

    cosine: list[float] = field(default_factory=list)
    """Cosine of the angle between a sum and the gradient."""
    missed: list[float] = field(default_factory=list)
    """Norm of their difference, as a share of the gradient's."""
    errors: list[float] = field(default_factory=list)
    """Norm of what has not been applied yet, as a share of the gradient's."""


class ShadowReduction(Reduction):
    """Leaves the gradient as it is, and notes what sums in low rank would make of it."""

    def __init__(
        self, communicator: Communicator, sums: torch.Tensor, parameters: Sequence[torch.Tensor]
    ) -> None:
        super().__init__(communicator, sums)
        self.size = sum(each.numel() for each in parameters)
        self.power_sgd = {rank: PowerSGD(parameters, rank, len(sums)) for rank in RANKS}
        self.misses = {rank: Misses() for rank in RANKS}

    def finish(self) -> None:
        gradient = self.sums[: self.size]
        norm = gradient.norm()
        for rank, power_sgd in self.power_sgd.items():
            vector = self.sums.clone()
            power_sgd.sum_with(vector, lambda tensor: tensor)
            found, applied = self.misses[rank], vector[: self.size]
            found.cosine.append(float(cosine_similarity(applied, gradient, dim=0)))
            found.missed.append(float((applied - gradient).norm() / norm))
            found.errors.append(float(power_sgd.errors.norm() / norm))


class Shadow(Communicator):
    """A process alone whose learner has a ShadowReduction."""

    def reduction(self, sums: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Reduction:
        self.shadow = ShadowReduction(self, sums, parameters)
        return self.shadow


def table(shadow: ShadowReduction, skip: int) -> str:
    """Return a Markdown table of medians over all gradients but the first `skip`."""
    lines = [
        "| rank | kB of a sum | cosine with the gradient | missed by the sum | not applied yet |",
        "|---|---|---|---|---|",
        f"| whole | {4 * len(shadow.sums) / 1e3:,.0f} | 1 | 0 % | 0 % |",
    ]
    for rank, found in shadow.misses.items():
        cosine, missed, errors = (
            statistics.median(values[skip:]) for values in (found.cosine, found.missed, found.errors)
        )
        sent = shadow.power_sgd[rank].bytes_sent / 1e3
        lines.append(
            f"| {rank} | {sent:,.0f} | {cosine:.3f} | {missed:.0%} | {errors:.0%} |".replace("%", " %")
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="nature", choices=("nature", "impala"))
    parser.add_argument("--env", default="starpilot")
    parser.add_argument("--updates", type=int, default=20)
    arguments = parser.parse_args()
    training = {"n_steps": STEPS, "batch_size": BATCH, "n_epochs": EPOCHS}
    settings = {
        "env": {"id": arguments.env, "num_envs": ENVS},
        "model": {"architecture": arguments.architecture},
        "training": training,
    }
    communicator = Shadow()
    trainer = Trainer(ProcessSetup(build_config(settings), communicator))
    for update in range(arguments.updates):
        trainer.iterate(trainer.config.training.learning_rate)
        print(f"update {update + 1} of {arguments.updates}", flush=True)
    trainer.close()
    shadow = communicator.shadow
    per_update = len(shadow.misses[RANKS[0]].cosine) // arguments.updates
    title = (
        f"PPO on {arguments.env}, {arguments.architecture} network, {ENVS} environments x {STEPS} steps, "
        f"minibatches of {BATCH}, {EPOCHS} epochs: medians over the gradients of updates {WARM + 1} "
        f"to {arguments.updates}. What a sum misses, and what no sum has applied yet, as shares of "
        "the norm of the gradient"
    )
    data = {str(rank): vars(found) for rank, found in shadow.misses.items()}
    text = f"{title}\n\n{table(shadow, WARM * per_update)}"
    save(f"low_rank_error_{arguments.architecture}", text, {"ranks": data})


if __name__ == "__main__":
    main()
