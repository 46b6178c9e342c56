"""One optimisation step: gradient in microbatches, all-reduced, clipped, applied."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.settings import TrainingConfig
from rlcb.errors import RunError
from rlcb.rl.communicator import Communicator
from rlcb.rl.models import ActorCritic
from rlcb.rl.timing import PhaseTimer

# Maps sample numbers (n,) to the loss, a mean over these samples, and to named statistics, means as well.
LossFunction = Callable[[NDArray[np.int64]], tuple[Tensor, dict[str, Tensor]]]


def make_optimizer(parameters: Tensor, config: TrainingConfig) -> torch.optim.Optimizer:
    if config.optimizer == "rmsprop":
        return torch.optim.RMSprop(
            [parameters], config.learning_rate, config.rmsprop_alpha, config.optimizer_eps, foreach=True
        )
    return torch.optim.Adam([parameters], config.learning_rate, eps=config.optimizer_eps, fused=True)


def flatten_parameters(model: ActorCritic, gradient: Tensor) -> Tensor:
    """Make all parameters of a model views of one vector, which is returned, and their gradients of another.

    The values stay. The optimizers here work element by element, so one step on the vector is one step on
    every parameter. `gradient` is a vector of as many zeros as the model has parameters.
    """
    parameters = list(model.parameters())
    flat = torch.empty_like(gradient)
    flat.grad = gradient
    offset = 0
    for parameter in parameters:
        shape, stride, end = parameter.shape, parameter.stride(), offset + parameter.numel()
        home = flat[offset:end].as_strided(shape, stride)
        home.copy_(parameter.detach())
        parameter.data = home
        parameter.grad = gradient[offset:end].as_strided(shape, stride)
        offset = end
    return flat


class Learner:
    """Model and optimizer, with all parameters in one vector and all gradients in another.

    One vector means one all-reduce, one norm and one optimizer step. The gradient of a minibatch is
    accumulated over microbatches: the same mathematics, but the activations of only one microbatch are alive
    at a time and stay in the caches (measured with the IMPALA network on two cores: 1.5 times the samples per
    second of whole minibatches).
    """

    def __init__(
        self,
        model: ActorCritic,
        config: TrainingConfig,
        microbatch_size: int,
        communicator: Communicator,
        timer: PhaseTimer,
        heartbeat: Callable[[], None],
        statistics: Sequence[str],
    ) -> None:
        """`statistics` names what the loss function returns beside the loss.

        `heartbeat` is called between microbatches; it may raise to abandon the update. `self.apply` takes the
        clipped gradient to the parameters: the learner's own optimizer does, unless it is set to something
        else.
        """
        self.model = model
        self.microbatch_size = microbatch_size
        self.max_grad_norm = config.max_grad_norm
        self.communicator = communicator
        self.timer = timer
        self.heartbeat = heartbeat
        self.statistics = tuple(statistics)
        size = sum(parameter.numel() for parameter in model.parameters())
        # What a minibatch's processes have to sum: the gradient, and behind it the statistics.
        self.sums = torch.zeros(size + len(self.statistics))
        self.gradient, self.statistics_sums = self.sums[:size], self.sums[size:]
        self.parameters = flatten_parameters(model, self.gradient)
        self.reduction = communicator.reduction(self.sums, list(model.parameters()))
        self.optimizer = make_optimizer(self.parameters, config)
        self.apply: Callable[[], None] = self._apply

    def set_learning_rate(self, learning_rate: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def step(
        self,
        samples: NDArray[np.int64],
        minibatch_size: int,
        loss_function: LossFunction,
        microbatch_size: int | None = None,
        finish: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """One optimizer step on the mean loss over a minibatch.

        `samples` (n,), possibly none, are this process's share of the `minibatch_size` samples, which all
        processes together cover. A sample may be whatever the loss function takes the mean of: V-trace's are
        columns of a rollout, fewer of which make a microbatch. `finish` takes the gradient on from where the
        loss function began, if that was not the beginning of the network, in one more backward pass. Returns
        the loss function's statistics as means over the whole minibatch, and `grad_norm` before clipping.
        Raises RunError if the gradient is not finite; the parameters are then still the old ones.
        """
        self.sums.zero_()
        size = microbatch_size or self.microbatch_size
        with self.timer("learn"):
            for start in range(0, len(samples), size):
                self.heartbeat()
                part = samples[start : start + size]
                if start + len(part) == len(samples):
                    self.reduction.begin()
                weight = len(part) / minibatch_size
                loss, statistics = loss_function(part)
                (loss * weight).backward()  # type: ignore[no-untyped-call]
                means = torch.stack([statistics[name].detach() for name in self.statistics])
                self.statistics_sums.add_(means, alpha=weight)
            if finish is not None:
                finish()
        with self.timer("sync"):
            self.reduction.finish()
        with self.timer("learn"):
            norm = float(self.gradient.norm())
            if not math.isfinite(norm):
                raise RunError(f"the gradient is not finite (norm {norm}): training diverged")
            if norm > self.max_grad_norm:
                self.gradient.mul_(self.max_grad_norm / (norm + 1e-6))
        self.apply()
        metrics = dict(zip(self.statistics, self.statistics_sums.tolist(), strict=True))
        return {**metrics, "grad_norm": norm}

    def _apply(self) -> None:
        with self.timer("learn"):
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
