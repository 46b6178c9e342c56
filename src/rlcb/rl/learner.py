"""The learner: one optimizer step, from microbatch gradients over the all-reduce to clipping and update."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rlcb.config.settings import TrainingConfig
from rlcb.errors import RunError
from rlcb.rl.activation_cache import ActivationCache
from rlcb.rl.communicator import Communicator
from rlcb.rl.models import ActorCritic
from rlcb.rl.timing import PhaseTimer

LossFunction = Callable[[NDArray[np.int64]], tuple[Tensor, dict[str, Tensor]]]
"""Maps sample numbers (B,) to their mean loss and to named statistics, which are means as well."""


def without_compiler(optimizer: type[Any]) -> type[Any]:
    """Return a subclass of a torch optimizer that works without torch's compiler.

    torch decorates these methods for torch.compile, and the decorators load the compiler (torch._dynamo) at
    the first call: about 1 s of CPU time in each process that learns. This project compiles nothing.
    """
    names = ("add_param_group", "zero_grad", "state_dict", "load_state_dict", "step")
    methods = {name: inspect.unwrap(getattr(optimizer, name)) for name in names}
    methods["step"] = torch.no_grad()(methods["step"])
    return type(optimizer.__name__, (optimizer,), methods)


Adam = without_compiler(torch.optim.Adam)
RMSprop = without_compiler(torch.optim.RMSprop)


def make_optimizer(parameters: Tensor, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the configured optimizer (Adam or RMSprop) of one parameter vector."""
    optimizer: torch.optim.Optimizer
    if config.optimizer == "rmsprop":
        optimizer = RMSprop(
            [parameters], config.learning_rate, config.rmsprop_alpha, config.optimizer_eps, foreach=True
        )
    else:
        optimizer = Adam([parameters], config.learning_rate, eps=config.optimizer_eps, fused=True)
    return optimizer


def flatten_parameters(model: ActorCritic, gradient: Tensor) -> Tensor:
    """Turn all parameters of a model into views of one vector (P,) and return that vector.

    The gradients become views of `gradient`, a vector of P zeros. Parameter values do not change. Adam and
    RMSprop work element by element, so a step on the vector equals a step on every parameter.
    """
    parameters = list(model.parameters())
    flat = torch.empty_like(gradient)
    flat.grad = gradient
    offset = 0
    for parameter in parameters:
        shape, stride, end = parameter.shape, parameter.stride(), offset + parameter.numel()
        view = flat[offset:end].as_strided(shape, stride)
        view.copy_(parameter.detach())
        parameter.data = view
        parameter.grad = gradient[offset:end].as_strided(shape, stride)
        offset = end
    return flat


class Learner:
    """Model and optimizer of one process, with all parameters in one vector and all gradients in another.

    One vector means one all-reduce, one norm and one optimizer step. The gradient of a minibatch is
    accumulated over microbatches: the result is the same, but only one microbatch's activations are alive
    at a time, and they fit into the CPU caches (measured with the IMPALA-CNN on two cores: 1.5 times the
    samples per second of whole minibatches).
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
        """`statistics` names what the loss function returns beside the loss, in order.

        `heartbeat` is called between microbatches; it may raise to abandon the update.
        """
        self.model = model
        self.microbatch_size = microbatch_size
        self.max_grad_norm = config.max_grad_norm
        self.communicator = communicator
        self.timer = timer
        self.heartbeat = heartbeat
        self.statistics = tuple(statistics)
        size = sum(parameter.numel() for parameter in model.parameters())
        # The vector that processes sum for each minibatch: the gradient [P], then the statistics.
        self.sums = torch.zeros(size + len(self.statistics))
        self.gradient, self.statistics_sums = self.sums[:size], self.sums[size:]
        self.parameters = flatten_parameters(model, self.gradient)
        self.reduction = communicator.reduction(self.sums, list(model.parameters()))
        self.optimizer = make_optimizer(self.parameters, config)
        self.activation_cache: ActivationCache | None = None
        """The passes with which this process acted, if it learns from them (A2C and A3C)."""
        self.apply: Callable[[], None] = self._apply
        """Applies the clipped gradient to the parameters; A3C replaces it to step the shared parameters."""

    def set_learning_rate(self, learning_rate: float) -> None:
        """Set the learning rate of the next steps."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate

    def step(
        self,
        samples: NDArray[np.int64],
        minibatch_size: int,
        loss_function: LossFunction,
        microbatch_size: int | None = None,
    ) -> dict[str, float]:
        """Make one optimizer step on the mean loss over a minibatch.

        `samples` (n,), possibly none, is this process's shard of the `minibatch_size` samples; the shards of
        all processes cover the minibatch. IMPALA's samples are columns of a rollout and its microbatches have
        fewer of them. Returns the statistics as means over the whole minibatch, and `grad_norm` before
        clipping. Raises RunError, with the parameters unchanged, if the gradient is not finite.
        """
        self.sums.zero_()
        size = microbatch_size or self.microbatch_size
        with self.timer("learn"):
            for start in range(0, len(samples), size):
                self.heartbeat()
                part = samples[start : start + size]  # [B]
                if start + len(part) == len(samples):
                    self.reduction.begin()
                weight = len(part) / minibatch_size
                loss, statistics = loss_function(part)
                (loss * weight).backward()  # type: ignore[no-untyped-call]
                means = torch.stack([statistics[name].detach() for name in self.statistics])
                self.statistics_sums.add_(means, alpha=weight)
            if self.activation_cache is not None:
                self.activation_cache.backward()
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

    def averaged(self) -> list[Tensor]:
        """Return the vectors [P] that nodes which learn by themselves average: parameters, and moments of the
        optimizer."""
        moments = self.optimizer.state[self.parameters].values()
        shape = self.parameters.shape
        return [self.parameters, *(each for each in moments if torch.is_tensor(each) and each.shape == shape)]

    def average(self, communicator: Communicator) -> None:
        """Replace parameters and moments of the optimizer by their means over all processes of a group."""
        with self.timer("sync"):
            for vector in self.averaged():
                communicator.sum_(vector).div_(communicator.world_size)

    def state(self) -> dict[str, Any]:
        """Return the states of model, optimizer and, if it has one, reduction; they share memory."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        reduction = self.reduction.state()
        return {**state, "reduction": reduction} if reduction else state

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if "reduction" in state:
            self.reduction.load(state["reduction"])
