"""IMPALA over nodes, which are threads here: what they learn from together, and what is settled before."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.distributed import HashStore  # type: ignore[attr-defined]

from rlcb.cli import train_distributed
from rlcb.cluster.actor_split import apply_decision, publish, read_decision
from rlcb.cluster.launch import as_starter
from rlcb.cluster.rendezvous import agree_on_start_name
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config
from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.parallel.calibration import candidates, fastest_split
from rlcb.parallel.heartbeat import Heartbeats
from rlcb.parallel.impala_actor import Actor
from rlcb.parallel.impala_learner import ImpalaLearner, open_shared_parts
from rlcb.parallel.slot_queue import SlotQueue
from rlcb.parallel.supervisor import Supervisor, WorkerHandle
from rlcb.parallel.worker_context import SupervisedContext
from rlcb.parallel.world import World, host_name
from rlcb.rl import impala
from rlcb.training.base import ProcessSetup, Update
from rlcb.training.console import count_processes, who_waited
from rlcb.training.run_folder import RunFolder
from rlcb.training.run_spec import RunSpec
from tests import cluster_runs, runs, step_env
from tests.conftest import ThreadCommunicator

pytestmark = pytest.mark.timeout(180)
N_STEPS, ENVS = 4, 8


def config(nodes: int, actors: int, learners: int = 1, lag: int = 0, **training: Any) -> Config:
    """`actors` and `learners` are those of a node."""
    data: dict[str, Any] = {
        "algorithm": "impala",
        "mode": "distributed",
        "env": {"id": step_env.ID, "num_envs": ENVS, "kwargs": {"length": 3, "rewarded": 2, "free": False}},
        "model": {"mlp_sizes": (4,)},
        "training": {
            "n_steps": N_STEPS,
            "n_epochs": 1,
            "batch_size": None,
            "normalize_advantages": False,
            "gamma": 0.9,
            "optimizer_eps": 1.0,  # so that a step is as large as its gradient
            "max_grad_norm": 1e9,
            **training,
        },
        "impala": {
            "num_actors": actors,
            "num_learners": learners,
            "max_policy_lag": lag,
            "actor_nice": 0,
            "check_unwritten": True,
        },
        "cluster": {"num_nodes": nodes},
    }
    return build_config(data, "test")


class Rank(ThreadCommunicator):
    """A learner among those of all nodes."""

    def __init__(
        self,
        rank: int,
        nodes: int,
        tensors: list[torch.Tensor],
        values: list[Any],
        barrier: threading.Barrier,
    ) -> None:
        super().__init__(rank, tensors, barrier)
        self.num_nodes = nodes
        self.node_rank = rank // self.local_size
        self.names = [f"rank {each} on h{each // self.local_size}" for each in range(len(tensors))]
        self._values = values

    def gather(self, value: Any) -> list[Any] | None:
        self._values[self.rank] = value
        self._barrier.wait()
        values = list(self._values)
        self._barrier.wait()
        return values if self.is_main else None


class Node:
    """The actors and learners of a node, and what they share."""

    def __init__(self, config: Config, node_rank: int, ranks: list[Rank]) -> None:
        learners, actors = config.learners_per_node, config.actors_per_node
        context = multiprocessing.get_context("spawn")
        self.connection, connection = context.Pipe()
        """To what the learners say to the process that started them."""
        self.heartbeats = Heartbeats(context, learners + actors)
        queues = SlotQueue(context.Pipe(duplex=False)), SlotQueue(context.Pipe(duplex=False))
        spec, memory = RunSpec(config, RunFolder(None, config)), bytearray(2**20)
        contexts = [
            SupervisedContext(
                connection=connection,
                rank=rank,
                generation=self.heartbeats.begin(rank),
                heartbeats=self.heartbeats,
                queues=queues,
                world=World("hand", config.num_nodes, node_rank, learners, None, "x", 1),
            )
            for rank in range(learners + actors)
        ]
        self.actors = [Actor(spec, context) for context in contexts[learners:]]
        spaces = self.actors[0].spaces
        self.learners = [
            ImpalaLearner(ProcessSetup(config, rank, 1, context.check, lambda size: memory), spaces, context)
            for rank, context in zip(ranks, contexts)
        ]
        for actor in self.actors:
            actor.join(*open_shared_parts(config, spaces, actor.num_parameters, lambda size: memory))


class Cluster:
    """Nodes whose actors are threads; the learners as well while they make an update."""

    def __init__(self, nodes: int, actors: int, learners: int = 1, lag: int = 0, **training: Any) -> None:
        self.config = config(nodes, actors, learners, lag, **training)
        size = nodes * learners
        tensors, values, barrier = (
            [torch.zeros(())] * size,
            [None] * size,
            threading.Barrier(size, timeout=30),
        )
        ranks = [Rank(rank, nodes, tensors, values, barrier) for rank in range(size)]
        self.nodes = [Node(self.config, node, ranks[node * learners :][:learners]) for node in range(nodes)]
        self.learners = [learner for node in self.nodes for learner in node.learners]
        self.seen: dict[tuple[int, int], list[list[NDArray[Any]]]] = {}
        """(update, environment) -> unrolls: observations, actions, log-probabilities, rewards for
        learning."""
        self.updates: list[Update] = []
        self.parameters: list[list[torch.Tensor]] = []
        """Those of every rank, after every update."""

    @contextmanager
    def acting(self) -> Iterator[None]:
        for node in self.nodes[1:]:  # whose slots have other numbers than those of the first node
            first = node.learners[0]
            first.snapshot.publish(first.learner.parameters, first.counters.updates)
            first.batches.give_out(reversed(range(first.store.size.slots)))
        actors = [actor for node in self.nodes for actor in node.actors]
        threads = [threading.Thread(target=actor.act) for actor in actors]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for learner in self.learners:
                learner.finish()
            for thread in threads:
                thread.join(20)

    def learn(self, updates: int) -> None:
        real = impala.update

        def spy(learner: Any, rollout: Any, config: Any, number: int, columns: Any) -> Any:
            self._look(learner.communicator, rollout, number, columns)
            return real(learner, rollout, config, number, columns)

        with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(len(self.learners)) as pool:
            patch.setattr(impala, "update", spy)
            for _ in range(updates):
                made = list(pool.map(lambda learner: learner.iterate(0.3), self.learners))
                self.updates.append(made[0])
                self.parameters.append([each.learner.parameters.detach().clone() for each in self.learners])

    def wait_until_all_is_written(self) -> None:
        """Wait until every actor has worked ahead as far as it may."""

        def written() -> bool:
            return all(
                node.learners[0].store.begun.sum() == due and all(node.heartbeats.waiting[-actors:])
                for node in self.nodes
            )

        actors, lag = self.config.actors_per_node, self.config.impala.max_policy_lag
        due = (len(self.updates) + lag + 1) * self.nodes[0].learners[0].batches.batch_size
        runs.wait_until(written)

    def _look(self, rank: Rank, rollout: Any, number: int, columns: Any) -> None:
        if rank.local_rank:
            return
        store, per_actor = self.nodes[rank.node_rank].learners[0].store, self.config.envs_per_process
        for column in columns:
            slot, env = divmod(int(column), per_actor)
            actor = rank.node_rank * self.config.actors_per_node + store.actor_of(slot)
            names = ("observations", "actions", "log_probs", "scaled_rewards")
            unroll = [getattr(rollout, name)[:, column].copy() for name in names]
            self.seen.setdefault((number, actor * per_actor + env), []).append(unroll)

    def of_environment(self, env: int, what: int) -> NDArray[Any]:
        """All that was learned from of an environment, in the order of learning."""
        unrolls = [self.seen[key] for key in sorted(self.seen) if key[1] == env]
        return np.concatenate([unroll[what] for several in unrolls for unroll in several])


@pytest.fixture(scope="module")
def one_node() -> Cluster:
    """Four actors and a learner, which see all that there is."""
    cluster = Cluster(1, 4)
    with cluster.acting():
        cluster.learn(8)
    return cluster


@pytest.mark.parametrize(("nodes", "actors", "learners"), [(2, 1, 1), (2, 2, 2), (4, 1, 1)])
def test_nodes_learn_together_what_one_learns_alone(
    one_node: Cluster, nodes: int, actors: int, learners: int
) -> None:
    """The same environments, actions and rewards; equal parameters, so a mean over the batch of all nodes."""
    cluster = Cluster(nodes, actors, learners)
    with cluster.acting():
        cluster.learn(8)
    assert cluster.seen.keys() == one_node.seen.keys()
    for env in range(ENVS):
        for what in range(4):
            mine, other = cluster.of_environment(env, what), one_node.of_environment(env, what)
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    for ranks, (reference,) in zip(cluster.parameters, one_node.parameters):
        assert all(torch.equal(each, ranks[0]) for each in ranks)
        torch.testing.assert_close(ranks[0], reference, atol=1e-6, rtol=0)
    assert all(learner.counters == one_node.learners[0].counters for learner in cluster.learners)
    for mine, other in zip(cluster.updates, one_node.updates):
        assert mine.episodes == other.episodes
        for key in ("grad_norm", "policy_loss", "value_loss", "explained_variance"):
            assert mine.metrics[key] == pytest.approx(other.metrics[key], rel=1e-4, abs=1e-6), key
    moved = (one_node.parameters[-1][0] - one_node.parameters[0][0]).abs().max()
    assert moved > 1e-2


def test_no_two_environments_or_actions_of_nodes_share_a_stream(one_node: Cluster) -> None:
    first = [one_node.of_environment(env, 0)[0, :2] for env in range(ENVS)]  # the seed, in two halves
    assert len({tuple(seed) for seed in first}) == ENVS
    cluster = Cluster(2, 1)
    with cluster.acting():
        cluster.learn(6)
    assert len({tuple(cluster.of_environment(env, 1)) for env in range(ENVS)}) == ENVS


@pytest.mark.parametrize("lag", [1, 3])
def test_each_transition_of_every_node_is_learned_from_exactly_once(lag: int) -> None:
    cluster = Cluster(2, 2, lag=lag)
    with cluster.acting():
        cluster.learn(15)
    counts = []
    for env in range(ENVS):
        steps = cluster.of_environment(env, 0)[:, 2]
        np.testing.assert_array_equal(steps, np.arange(len(steps)))
        counts.append(len(steps))
    assert sum(counts) == 15 * N_STEPS * ENVS
    assert [learner.counters.timesteps for learner in cluster.learners] == [15 * N_STEPS * ENVS] * 2
    episodes = [episode for update in cluster.updates for episode in update.episodes]
    assert len(episodes) == sum(count // 3 for count in counts)
    assert {episode.env for episode in episodes} == set(range(ENVS))


def test_figures_are_those_of_all_nodes_and_processes_are_called_by_their_hosts() -> None:
    cluster = Cluster(2, 2, lag=2)
    cluster.nodes[0].learners[0].batches.replaced, cluster.nodes[1].learners[0].batches.replaced = 1, 2
    with cluster.acting():
        cluster.learn(4)
        cluster.wait_until_all_is_written()
        cluster.learn(2)  # the second of which is of unrolls that were written before the first
    first, second = (node.learners[0] for node in cluster.nodes)
    metrics = cluster.updates[-1].metrics
    lags = [*first.lags.tolist(), *second.lags.tolist()]
    assert metrics["impala/policy_lag_mean"] == pytest.approx(np.mean(lags))
    assert metrics["impala/policy_lag_max"] == max(lags) > 0
    assert metrics["impala/actor_restarts"] == 3
    assert first.state()["replaced_actors"] == [1, 2]
    assert first.process_names() == [
        *("rank 0 on h0", "rank 1 on h1", "actor 0 on h0", "actor 1 on h0"),
        *("actor 2 on h1", "actor 3 on h1"),
    ]
    assert len(first.phase_seconds) == len(first.process_names())
    assert first.metrics()["impala"]["actor_restarts"] == 3


def test_a_resumed_run_goes_on_with_what_each_node_had() -> None:
    before = Cluster(2, 2)
    before.nodes[0].learners[0].batches.replaced, before.nodes[1].learners[0].batches.replaced = 1, 2
    with before.acting():
        before.learn(3)
    state = before.learners[0].state()
    assert np.min(state["begun"]) >= 3
    after = Cluster(2, 2)
    for learner in after.learners:
        learner.load(state)
    for node, replaced, begun in zip(after.nodes, (1, 2), state["begun"]):
        (first,) = node.learners
        assert first.batches.replaced == replaced
        assert node.connection.poll(1)
        assert node.connection.recv() == ("replaced", replaced)
        assert torch.equal(first.learner.parameters, before.parameters[-1][0])
        assert first.store.begun.tolist() == begun
    with after.acting():
        # An actor may have been too slow for the first batch.
        while len({env for _, env in after.seen}) < ENVS:
            after.learn(1)
    seeds = {tuple(after.of_environment(env, 0)[0, :2]) for env in range(ENVS)}
    seeds |= {tuple(before.of_environment(env, 0)[0, :2]) for env in range(ENVS)}
    assert len(seeds) == 2 * ENVS  # new episodes, of streams that were not used before


def test_actors_that_were_replaced_before_the_run_was_resumed_count() -> None:
    context = multiprocessing.get_context("spawn")
    ours = config(2, 1)
    spec = RunSpec(ours, RunFolder(None, ours))
    supervisor = Supervisor(context, "", spec, World("hand", 2, 1, 1, None, "x", 1))
    (near, far), (_, other) = context.Pipe(), context.Pipe()
    learner = WorkerHandle(SimpleNamespace(exitcode=None), near)
    actor = WorkerHandle(SimpleNamespace(exitcode=-9), other)
    supervisor.workers, supervisor.memory = [learner, actor], -1
    far.send(("replaced", ours.impala.max_actor_restarts))
    supervisor._receive(learner)
    assert not supervisor._replace(1)
    assert supervisor._first_error() == (
        "end",
        f"actor 1 on {host_name()} was killed by SIGKILL; 3 actors had been replaced before "
        "(impala.max_actor_restarts)",
    )


def test_a_worker_that_was_killed_only_because_it_did_not_leave_in_time_is_not_named_as_the_cause() -> None:
    ours = config(2, 1)
    supervisor = Supervisor(multiprocessing.get_context("spawn"), "", RunSpec(ours, RunFolder(None, ours)))
    killed, cause = (WorkerHandle(SimpleNamespace(exitcode=code), None) for code in (-9, 7))  # type: ignore[arg-type]
    killed.left_over = True
    supervisor.workers = [killed, cause]
    kind, message = supervisor._first_error()
    assert kind == "end"
    assert message.endswith("ended with exit code 7")


def test_the_slowest_rank_is_the_one_that_works_or_waits_for_its_own_actors_longest() -> None:
    cluster = Cluster(2, 1, learners=2)
    first = cluster.learners[0]
    nothing = dict.fromkeys(("env", "inference", "learn", "sync", "wait"), 0.0)
    first.joint_metrics = {"impala/actor_restarts": 0.0}
    first.phase_seconds = [
        {**nothing, "learn": 3.0, "sync": 6.0},
        {**nothing, "learn": 3.0, "wait": 7.0},  # for the node's first learner
        {**nothing, "learn": 2.0, "wait": 5.0},  # for its actors
        {**nothing, "learn": 2.0, "wait": 7.0},
        *[nothing, nothing],
    ]
    slowest = first.metrics()["slowest_rank"]
    assert slowest == {"name": "rank 2 on h1", "busy_seconds": 7.0, "mean_busy_seconds": 3.75, "nodes": 2}


def test_the_summary_says_how_many_nodes_and_who_waited() -> None:
    record = {
        "training_mode": "distributed",
        "config": {"env": {"num_envs": 8}},
        "workers": [{}] * 6,
        "duration_hours": 100 / 3600,
        "hardware": {"usable_cores": 3},
        "slowest_rank": {"name": "rank 1 on h", "busy_seconds": 7, "mean_busy_seconds": 5, "nodes": 2},
        "impala": {
            "actors": 4, "learner_wait_seconds": 60, "actor_wait_seconds": 10, "learner_sync_seconds": 25,
        },
    }  # fmt: skip
    rows = count_processes(record)
    assert (rows["Nodes"], rows["Actors"], rows["Learners"]) == ("2", "4", "2")
    assert rows["Slowest rank"].startswith("rank 1 on h: busy 7.0 s")
    assert who_waited(record) == (
        "actor-bound: learners waited 60% of the time (actors 10%); more actors or more environments for "
        "each would help; learners spent 25% synchronising with other nodes"
    )
    record["workers"] = [{}] * 7  # on two nodes of three cores each
    assert "they share the cores" in who_waited(record)


def test_processes_are_numbered_over_all_nodes_learners_first() -> None:
    ours = config(2, 2, learners=3)
    assert (ours.num_ranks, ours.ranks_on(1), ours.learners_per_node, ours.actors_per_node) == (
        10,
        5,
        3,
        2,
    )
    names = [[ours.process_name(ours.rank_of(node, local)) for local in range(5)] for node in range(2)]
    assert names == [
        ["learner 0", "learner 1", "learner 2", "actor 0", "actor 1"],
        ["learner 3", "learner 4", "learner 5", "actor 2", "actor 3"],
    ]


# --- What is refused ---

HERE = ("--num-nodes", 2, "--node-rank", 0)
WRONG = {
    "workers": (("--num-workers", 2), ("--num-workers 2", "--num-actors")),
    "workers as a setting": (
        ("--set", "cluster.num_workers=2"),
        ("cluster.num_workers = 2", "impala.num_actors"),
    ),
    "environments that nodes and actors cannot share": (
        (*HERE, "--num-actors", 3, "--num-envs", 8),
        ("env.num_envs = 8", "cluster.num_nodes x impala.num_actors = 6"),
    ),
    "a batch with unrolls of one node only": (
        (*HERE, "--num-actors", 2, "--num-envs", 8, "--n-steps", 4, "--batch-size", 8),
        ("training.batch_size = 8", "of each of 2 nodes", "= 16"),
    ),
    "environments by actor that are not as many": (
        (*HERE, "--num-actors", 2, "--num-envs-per-actor", 3, "--num-envs", 6),
        ("3 x 2 actors x 2 nodes", "--num-envs 6"),
    ),
    "a place without an address": (("--num-nodes", 2), ("cluster.num_nodes = 2", "--node-rank")),
}


def refusal(*flags: object) -> str:
    arguments = train_distributed.make_parser("impala").parse_args([str(flag) for flag in flags])
    with pytest.raises(UsageError) as refused:
        train_distributed.run(arguments, "impala")
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize(("flags", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_setting_is_refused_with_what_would_be_right(
    flags: tuple[object, ...], words: tuple[str, ...]
) -> None:
    text = refusal("--env", step_env.ID, "--master-addr", cluster_runs.own_address(), *flags)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("launcher", "flag"), [("torchrun", "--nproc-per-node 1"), ("slurm", "--ntasks-per-node 1")]
)
def test_several_processes_of_a_launcher_on_a_node_are_refused(launcher: str, flag: str) -> None:
    world = World(launcher, 2, 1, 4, 3, "192.0.2.7", 29500)
    with pytest.raises(UsageError, match=f"{launcher} starts 8 processes on 2 nodes.*{flag}"):
        as_starter(world)


def test_one_process_of_a_launcher_on_a_node_starts_all_that_the_node_has() -> None:
    world = as_starter(World("torchrun", 2, 1, 1, 0, "192.0.2.7", 29500, hosted=True))
    assert (world.local_rank, world.node_rank, world.rank) == (None, 1, 1)
    by_hand = as_starter(World("hand", 2, 1, 16, None, "192.0.2.7", 29500))
    assert (by_hand.local_rank, by_hand.num_workers) == (None, 1)


# --- What nodes agree on before ranks meet ---


def together(*functions: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result() for future in [pool.submit(function) for function in functions]]


def test_members_of_one_start_agree_on_a_name_whatever_earlier_ones_left_in_the_store() -> None:
    store = HashStore()

    def member(number: int, pause: float = 0.0) -> str:
        time.sleep(pause)
        return agree_on_start_name(store, number, 3, 20.0, lambda: None)

    def start(*pauses: float) -> set[str]:
        return set(together(*(lambda n=n, p=p: member(n, p) for n, p in enumerate(pauses))))

    names = [start(0, 0, 0), start(0, 0.4, 0.2), start(0.4, 0, 0)]
    store.set("word/1", "left by one that died before the others came")
    names.append(start(0, 0.3, 0))
    assert all(len(each) == 1 for each in names)
    assert len(set().union(*names)) == 4


def test_who_comes_alone_gives_up() -> None:
    for number in (0, 1):
        with pytest.raises(RunError, match="not all of 2 processes came"):
            agree_on_start_name(HashStore(), number, 2, 0.2, lambda: None)


def test_all_nodes_hear_what_the_first_has_decided() -> None:
    store = HashStore()
    world = World("torchrun", 3, 1, 1, None, "x", 1, hosted=True)
    split = {"num_actors": 4, "num_learners": 2}
    told = together(
        lambda: publish(store, split, 2, 10.0),
        lambda: read_decision(store, world, 10.0),
        lambda: read_decision(store, world, 10.0),
    )
    assert told == [split] * 3
    data = config(2, 1).model_dump()
    data["impala"] |= {"num_actors": None, "num_learners": None}
    ours = apply_decision(build_config(data, "test"), split)
    assert (ours.num_processes, ours.num_learners) == (8, 4)


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({"usage": "no such world"}, UsageError),
        ({"run": "node 0 (h): it took too long"}, RunError),
        ({"signal": 15}, Interrupted),
    ],
)
def test_what_the_first_node_ends_by_ends_all(told: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        apply_decision(config(2, 1), told)


def test_nodes_that_do_not_come_are_not_waited_for_for_ever() -> None:
    assert "not all of 3 nodes came" in publish(HashStore(), {"num_actors": 1}, 2, 0.2)["run"]
    world = World("torchrun", 3, 1, 1, None, "x", 1, hosted=True)
    assert "node 0 did not say" in read_decision(HashStore(), world, 0.2)["run"]


def test_the_calibration_is_one_of_a_nodes_environments() -> None:
    data = config(2, 1).model_dump()
    data["env"]["num_envs"], data["impala"]["num_actors"] = 24, None
    ours = build_config(data, "test")
    assert candidates(ours, cores=4) == [6, 4, 3]  # 12 environments on a node
    chosen = fastest_split(ours, 4, {2: 1e-3, 3: 1e-3, 4: 1e-3}, 1e-5, microbatch_size=1)
    assert (chosen.num_actors, chosen.num_learners) == (4, 1)
