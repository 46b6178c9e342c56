"""One optimisation step: gradient in microbatches, all-reduced, clipped, applied."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from src.config import TrainingConfig
from src.distributed import Communicator
from src.errors import RunError
from src.models import ActorCritic
from src.timing import PhaseTimer

# Maps sample numbers (n,) to the loss, a mean over these samples, and to named statistics, means as well.
LossFunction = Callable[[NDArray[np.int64]], tuple[Tensor, dict[str, Tensor]]]


def make_optimizer(parameters: list[Tensor], config: TrainingConfig) -> torch.optim.Optimizer:
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(
            parameters, config.learning_rate, config.rmsprop_alpha, config.optimizer_eps, foreach=True
        )
    return torch.optim.Adam(parameters, config.learning_rate, eps=config.optimizer_eps, fused=True)


class Learner:
    """Model, optimizer and the flat gradient that all of its parameters' gradients are views of.

    One flat gradient means one all-reduce and one norm. The gradient of a minibatch is accumulated over
    microbatches: the same mathematics, but the activations of only one microbatch are alive at a time and
    stay in the caches (measured with the IMPALA network on two cores: 1.5 times the samples per second of
    whole minibatches).
    """

    def __init__(
        self,
        model: ActorCritic,
        config: TrainingConfig,
        microbatch_size: int,
        communicator: Communicator,
        timer: PhaseTimer,
        heartbeat: Callable[[], None],
    ) -> None:
        """`heartbeat` is called between microbatches; it may raise to abandon the update."""
        self.model = model
        self.microbatch_size = microbatch_size
        self.max_grad_norm = config.max_grad_norm
        self.communicator = communicator
        self.timer = timer
        self.heartbeat = heartbeat
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self.optimizer = make_optimizer(list(parameters), config)
        self.flat_gradient = torch.zeros(sum(parameter.numel() for parameter in parameters))
        offset = 0
        for parameter in parameters:
            part = self.flat_gradient[offset : offset + parameter.numel()]
            parameter.grad = part.as_strided(parameter.shape, parameter.stride())
            offset += parameter.numel()

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def step(
        self, samples: NDArray[np.int64], minibatch_size: int, loss_function: LossFunction
    ) -> dict[str, float]:
        """One optimizer step on the mean loss over a minibatch.

        `samples` (n,) are this process's share of the `minibatch_size` samples, which all processes together
        cover. Returns the loss function's statistics as means over the whole minibatch, and `grad_norm`
        before clipping. Raises RunError if the gradient is not finite; the parameters are then still the old
        ones.
        """
        self.flat_gradient.zero_()
        totals: dict[str, Tensor] = {}
        with self.timer("learn"):
            for start in range(0, len(samples), self.microbatch_size):
                self.heartbeat()
                part = samples[start : start + self.microbatch_size]
                weight = len(part) / minibatch_size
                loss, statistics = loss_function(part)
                (loss * weight).backward()  # type: ignore[no-untyped-call]
                for name, value in statistics.items():
                    totals[name] = totals.get(name, torch.zeros(())) + value.detach() * weight
        with self.timer("sync"):
            self.communicator.sum_(self.flat_gradient)
            means = self.communicator.sum_(torch.stack(list(totals.values()))).tolist()
        with self.timer("learn"):
            norm = float(self.flat_gradient.norm())
            if not math.isfinite(norm):
                raise RunError(f"the gradient is not finite (norm {norm}): training diverged")
            if norm > self.max_grad_norm:
                self.flat_gradient.mul_(self.max_grad_norm / (norm + 1e-6))
            self.optimizer.step()
        return {**dict(zip(totals, means, strict=True)), "grad_norm": norm}

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
