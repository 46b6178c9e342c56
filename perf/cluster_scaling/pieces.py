"""What computing takes on one core while all cores of the machine compute: acting, learning, the rest.

As many processes as cores, each on its own core, do the same at the same time with the programs' own parts
(trainer, collector, learner) on real coinrun frames.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from rlcb import cpu

if TYPE_CHECKING:
    from rlcb.training.trainer import Trainer

GAME = "coinrun"
ENVS, STEPS = 16, 32
ACT_SIZES = (1, 4, 16)
LEARN_SIZES = (1, 8, 32, 128, 512)
INDEX_SIZES = (2**14, 2**18, 2**22)
PIECE_SECONDS = 0.4
ROUNDS = 3  # of one core alone and all cores together, in turn
MEETINGS = 100
START_SECONDS = 120.0


def measure_network(network: str, cores: list[int], seconds: float = PIECE_SECONDS) -> dict[str, Any]:
    """The parts of perf.cluster_scaling.model.Computing: means over one process on each core. And
    `thread_efficiency`, what each thread of one process on all cores is worth.

    `seconds` is how long each piece is repeated.
    """
    pieces: dict[str, Any] = mean_of(on_cores(partial(network_pieces, network, seconds), cores))
    turns = on_cores(partial(alone_and_together, network, cores, seconds), cores)
    alone, together = (min(each[name] for each in turns) for name in ("alone", "together"))
    (threads,) = on_cores(partial(iteration_seconds, network, seconds), [cores])
    beta = max(0.0, together / alone - 1) / max(1, len(cores) - 1)
    return {**pieces, "beta": beta, "thread_efficiency": min(1.0, alone / len(cores) / threads)}


def measure_machine(cores: list[int], seconds: float = PIECE_SECONDS) -> dict[str, Any]:
    """`index_seconds` and `sharing` of perf.cluster_scaling.model.Machine, and `state_bytes`, of an
    environment in a snapshot."""
    return mean_of(on_cores(partial(machine_pieces, seconds), cores))


def mean_of(results: list[Any]) -> Any:
    """The mean over processes of numbers in mappings of one shape."""
    first = results[0]
    if isinstance(first, dict):
        return {name: mean_of([each[name] for each in results]) for name in first}
    return first if isinstance(first, int) else statistics.mean(results)


def on_cores(
    work: Callable[[Callable[[], Any]], Any], places: Sequence[int] | Sequence[Sequence[int]]
) -> list[Any]:
    """Return the results of `work(together)` in a process on each core, or on each group of cores with as
    many threads; `together` waits for all processes."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(places))
    processes = []
    try:
        for place in places:
            ours, theirs = context.Pipe(duplex=False)
            cores = {place} if isinstance(place, int) else set(place)
            process = context.Process(target=_on_cores, args=(cores, work, barrier, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append((process, ours))
        return [connection.recv() for _, connection in processes]
    finally:
        for process, _ in processes:
            process.kill()
            process.join()


def _on_cores(cores: set[int], work: Any, barrier: Any, connection: Any) -> None:
    os.sched_setaffinity(0, cores)
    cpu.tune_allocator()
    cpu.set_thread_environment(len(cores))
    cpu.set_torch_threads(len(cores))
    connection.send(work(lambda: barrier.wait(START_SECONDS)))


def times_of(work: Callable[[], Any], together: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each of as many calls as fit, begun by all at the same time; a first one is not counted."""
    work()
    together()
    return repeated(work, seconds)


def repeated(work: Callable[[], Any], seconds: float) -> list[float]:
    """Seconds of each of as many calls as fit, and of two at least."""
    found: list[float] = []
    while len(found) < 2 or sum(found) < seconds:
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def make_trainer(network: str, algorithm: str, envs: int, n_steps: int, keep: bool = False) -> Trainer:
    """`keep`: whether A2C keeps the passes of acting."""
    from rlcb.config.yaml_file import build_config
    from rlcb.training.base import ProcessSetup
    from rlcb.training.trainer import Trainer

    training: dict[str, Any] = {"n_steps": n_steps, "n_epochs": 1, "batch_size": None}
    if algorithm != "ppo":
        training["normalize_advantages"] = False
    config = build_config(
        {
            "algorithm": algorithm,
            "env": {"id": GAME, "num_envs": envs},
            "model": {"architecture": network},
            "training": training,
            "hardware": {"keep_acting_passes": keep if algorithm == "a2c" else None},
        },
        "cluster_scaling",
    )
    return Trainer(ProcessSetup(config))


def network_pieces(network: str, seconds: float, together: Callable[[], Any]) -> dict[str, Any]:
    """Measure the pieces of a neural network in one process."""
    act: dict[int, float] = {}
    learn: dict[str, dict[int, float]] = {}
    rest: dict[str, float] = {}
    for envs in ACT_SIZES:
        trainer = make_trainer(network, "ppo", envs, STEPS)
        times = times_of(partial(trainer.collector.collect, trainer.local_rollout, 0), together, seconds)
        act[envs] = statistics.mean(times) / STEPS
        trainer.close()
    trainer = make_trainer(network, "ppo", ENVS, STEPS)
    trainer.iterate(0.0)
    learn["ppo"], noise = ppo_steps(trainer, together, seconds)
    low_rank = low_rank_pieces(trainer, together, seconds)
    trainer.close()
    learn["a2c"], learn["impala"] = {}, {}
    for algorithm in ("a2c", "impala"):
        trainer = make_trainer(network, algorithm, ACT_SIZES[1], STEPS)
        rest[algorithm] = rest_of(trainer, together, seconds)
        trainer.close()
    for envs in ACT_SIZES:
        trainer = make_trainer(network, "impala", envs, STEPS)
        learn["impala"][envs * STEPS] = update_seconds(trainer, together, seconds)
        trainer.close()
        # A2C keeps the passes of acting: what an iteration takes beside acting without keeping them.
        trainer = make_trainer(network, "a2c", envs, STEPS, keep=True)
        whole = statistics.mean(times_of(partial(trainer.iterate, 0.0), together, seconds))
        learn["a2c"][envs * STEPS] = max(0.0, whole - STEPS * (act[envs] + rest["a2c"]))
        trainer.close()
    return {
        "parameters": len(trainer.learner.parameters),
        "act": act,
        "learn": learn,
        "rest": {**rest, "ppo": rest["a2c"]},
        "late_bytes": late_bytes(trainer),
        "noise": noise,
        "microbatch": trainer.microbatch_size,
        "low_rank": low_rank,
    }


def alone_and_together(
    network: str, cores: Sequence[int], seconds: float, together: Callable[[], Any]
) -> dict[str, float]:
    """Measure an iteration in a process on each core, alternately while the others idle and do the same.

    The shortest of several, since what else the machine does only makes them longer.
    """
    trainer = make_trainer(network, "ppo", ENVS, STEPS)
    trainer.iterate(0.0)
    own, found = min(os.sched_getaffinity(0)), {"alone": inf, "together": inf}
    for _ in range(ROUNDS):
        for core in (*cores, None):
            together()
            if core in (own, None):
                name = "together" if core is None else "alone"
                found[name] = min(found[name], *repeated(partial(trainer.iterate, 0.0), seconds))
    trainer.close()
    return found


def iteration_seconds(network: str, seconds: float, together: Callable[[], Any]) -> float:
    """Return the seconds of the shortest of several iterations in one process."""
    trainer = make_trainer(network, "ppo", ENVS, STEPS)
    times = times_of(partial(trainer.iterate, 0.0), together, ROUNDS * seconds)
    trainer.close()
    return min(times)


def ppo_steps(
    trainer: Trainer, together: Callable[[], Any], seconds: float
) -> tuple[dict[int, float], float]:
    """Samples -> seconds of an optimiser step on them; the relative spread of those of the size before the
    largest."""
    import numpy as np
    import torch

    from rlcb.rl.ppo import minibatch_loss

    rollout, learner, training = trainer.rollout, trainer.learner, trainer.config.training
    names = ("observations", "actions", "log_probs", "values", "advantages", "returns")
    data = {name: torch.from_numpy(rollout.flat(name)) for name in names}
    loss = partial(minibatch_loss, learner.model, data, training, 0.0, 1.0)
    order = np.random.default_rng(1).permutation(rollout.num_samples)
    learner.set_learning_rate(0.0)
    found, spread = {}, 0.0
    for size in (0, *LEARN_SIZES):
        share = order[:size]
        times = times_of(partial(learner.step, share, max(1, size), loss), together, seconds)
        found[size] = statistics.mean(times)
        if size == LEARN_SIZES[-2]:
            spread = statistics.stdev(times) / statistics.mean(times)
    return found, spread


def low_rank_pieces(trainer: Trainer, together: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Return the parts of perf.cluster_scaling.model.LowRank with the default rank."""
    import torch

    from rlcb.cluster.power_sgd import PowerSGD
    from rlcb.config.settings import DEFAULT_POWERSGD_RANK

    size = len(trainer.learner.parameters)
    power_sgd = PowerSGD(list(trainer.model.parameters()), DEFAULT_POWERSGD_RANK, size)
    gradient = torch.randn(size)
    times = times_of(partial(power_sgd.sum_with, gradient, lambda _: None), together, seconds)
    return {
        "first_bytes": power_sgd.first.nbytes,
        "second_bytes": power_sgd.q.nbytes,
        "seconds": statistics.mean(times),
    }


def update_seconds(trainer: Trainer, together: Callable[[], Any], seconds: float) -> float:
    """Seconds of the algorithm's update on a rollout of real frames."""
    trainer.iterate(0.0)
    work = partial(trainer.algorithm.update, trainer.learner, trainer.rollout, trainer.config, 1)
    return statistics.mean(times_of(work, together, seconds))


def rest_of(trainer: Trainer, together: Callable[[], Any], seconds: float) -> float:
    """Seconds for each row of a rollout that an iteration takes beside collecting and updating."""
    update = update_seconds(trainer, together, seconds)
    collect = times_of(partial(trainer.collector.collect, trainer.local_rollout, 0), together, seconds)
    whole = times_of(partial(trainer.iterate, 0.0), together, seconds)
    return max(0.0, statistics.mean(whole) - statistics.mean(collect) - update) / STEPS


def late_bytes(trainer: Trainer) -> int:
    """Bytes of the bucket of a gradient that is complete last."""
    from rlcb.cluster.gradient_reduction import buckets_of

    _, start, end = buckets_of([each.numel() for each in trainer.model.parameters()])[-1]
    return 4 * (end - start)


def machine_pieces(seconds: float, together: Callable[[], Any]) -> dict[str, Any]:
    """Measure, in one process, shuffling the samples of several nodes and adding vectors."""
    import torch

    from rlcb.rl.communicator import Communicator
    from rlcb.seeding import minibatch_permutation

    communicator = Communicator()
    communicator.world_size, communicator.num_nodes = 2, 2

    def index(total: int) -> None:
        order = minibatch_permutation(1, 1, 1, total)
        for start in range(0, total, total // 8):
            communicator.shard(order[start : start + total // 8], 16)

    indexed = {
        total: statistics.mean(times_of(partial(index, total), together, seconds)) for total in INDEX_SIZES
    }
    one, other = torch.zeros(2**24), torch.zeros(2**24)  # 64 MB each
    added = statistics.mean(times_of(partial(one.add_, other), together, seconds))
    trainer = make_trainer("nature", "ppo", ENVS, STEPS)
    state = trainer.collector.state()
    trainer.close()
    matrix = torch.rand(512, 512)

    def meet() -> float:
        torch.mm(matrix, matrix)  # after which what waiting needs is in no cache
        start = time.perf_counter()
        together()
        return time.perf_counter() - start

    return {
        "index_seconds": {0: 0.0, **indexed},
        "sharing": {
            "meeting": statistics.median(meet() for _ in range(MEETINGS)),
            "bandwidth": 4 * 2**24 / added,
        },
        "state_bytes": len(pickle.dumps(state)) / ENVS,
    }
