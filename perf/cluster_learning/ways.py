"""What is compared: ways in which nodes learn together over a link, and the training that they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rlcb.plots.style import BLUE, GREEN, GREY, PURPLE, VERMILION

LINK_NAMES = {"1gbit": "1 Gb/s", "100mbit": "100 Mb/s", "10mbit": "10 Mb/s"}

SCRIPT = "train_ppo_distributed.py"
ENVS, STEPS, BATCH, EPOCHS = 32, 64, 512, 3
UPDATE = ENVS * STEPS
"""Timesteps of an update."""
TRAINING: tuple[object, ...] = (
    *("--num-envs", ENVS, "--n-steps", STEPS, "--batch-size", BATCH, "--n-epochs", EPOCHS),
    *("--num-workers", 1, "--set", "model.architecture=nature", "--set", "logging.tensorboard=false"),
)


@dataclass(frozen=True)
class Way:
    """One way to learn together."""

    name: str
    colour: str
    settings: tuple[str, ...] = ()
    every: int | Literal["auto"] | None = None
    """Updates between two averages; None: every gradient is summed."""
    needs_ranks: bool = True
    """Whether what is learned from a timestep depends on the number of ranks; else one curve is for all."""


WAYS = {
    "plain": Way("one all-reduce", GREY, needs_ranks=False),
    "bf16": Way(
        "bfloat16, overlapped",
        BLUE,
        ("cluster.compression=bf16", "cluster.overlap=true"),
        needs_ranks=False,
    ),
    # PowerSGD is linear in the gradients of the ranks, so it is that of their sum, however many there are.
    "powersgd": Way(
        "PowerSGD, rank 4",
        PURPLE,
        ("cluster.compression=powersgd", "cluster.powersgd_rank=4"),
        needs_ranks=False,
    ),
    "every1": Way("averages every update", GREEN, every=1),
    "every4": Way("averages every 4 updates", VERMILION, every=4),
    "auto": Way("averages, auto", "#B58900", every="auto"),
}


def flags_of(settings: tuple[str, ...]) -> list[object]:
    return [word for setting in settings for word in ("--set", setting)]


def average_every(every: int | str) -> tuple[str, ...]:
    return (f"cluster.average_every={every}",)


def settings_of(way: Way) -> tuple[str, ...]:
    """Return the settings of a way, as `--set` takes them."""
    return way.settings if way.every is None else average_every(way.every)
