"""The configuration of a run: typed, validated, frozen.

Unknown keys, wrong types and impossible combinations are errors that name the key, the value and the rule.
config/settings.py and config/logging_settings.py describe each setting; config/yaml_file.py reads and writes
configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from rlcb.config.algorithms import ALGORITHMS, Algorithm, AlgorithmName, Mode
from rlcb.config.games import procgen_game
from rlcb.config.logging_settings import LoggingConfig
from rlcb.config.settings import (
    ClusterConfig,
    EnvConfig,
    HardwareConfig,
    ImpalaConfig,
    ModelConfig,
    ParallelConfig,
    TrainingConfig,
)
from rlcb.config.values import Count, Section
from rlcb.cpu import usable_cores

MAX_GROUP_SIZE = 8
COUNT = TypeAdapter[int](Count, config=Section.model_config)


class Config(Section):
    """All settings of a run. `Config.model_dump()`, written as YAML, reproduces it."""

    algorithm: AlgorithmName = "ppo"
    mode: Mode = "sequential"
    env: EnvConfig = Field(default_factory=lambda: EnvConfig.model_validate({}))
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    impala: ImpalaConfig = ImpalaConfig()
    parallel: ParallelConfig = ParallelConfig()
    cluster: ClusterConfig = ClusterConfig()
    hardware: HardwareConfig = HardwareConfig()
    logging: LoggingConfig = LoggingConfig()

    @property
    def traits(self) -> Algorithm:
        """The registry's entry of the algorithm."""
        return ALGORITHMS[self.algorithm]

    @property
    def has_actors(self) -> bool:
        """Whether different processes act and learn (IMPALA, except in the sequential mode)."""
        return self.traits.has_actors and self.mode != "sequential"

    @property
    def accepts_actors(self) -> bool:
        """Whether actors of other machines may join the run (IMPALA)."""
        return self.has_actors and (self.impala.actor_port is not None or self.cluster.elastic)

    @property
    def num_seats(self) -> int:
        """How many actors of other machines the run has place for."""
        return self.impala.max_remote_actors if self.accepts_actors else 0

    @property
    def timesteps_per_update(self) -> int:
        """Samples of one update: a rollout of all environments, in A3C of one worker's, in IMPALA a batch of
        unrolls."""
        if self.has_actors and self.training.batch_size is not None:
            return self.training.batch_size
        num_envs = self.envs_per_process if self.traits.is_asynchronous else self.env.num_envs
        return self.training.n_steps * num_envs

    @property
    def timesteps_per_unroll(self) -> int:
        """Samples of one rollout of one process: an unroll of an IMPALA actor."""
        return self.training.n_steps * self.envs_per_process

    @property
    def num_processes(self) -> int:
        """Number of processes on all nodes that step environments: workers, or IMPALA's actors."""
        return sum(self.node_sizes)

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """Number of processes of each node that step environments: workers, or IMPALA's actors."""
        if self.cluster.node_workers is not None:
            return self.cluster.node_workers
        workers = self.cluster.num_workers if self.mode == "distributed" else self.parallel.num_workers
        return ((self.impala.num_actors if self.has_actors else workers) or 1,) * self.num_nodes

    @property
    def num_nodes(self) -> int:
        """Number of nodes that learn; 1 except in the distributed mode, and in elastic runs."""
        if self.cluster.elastic:
            return 1
        return self.cluster.num_nodes or len(self.cluster.node_workers or (1,))

    @property
    def envs_per_node(self) -> int:
        """Number of environments of each node; of the largest node if they have different numbers."""
        return max(self.node_sizes) * self.envs_per_process

    @property
    def num_learners(self) -> int:
        """Number of processes on all nodes that learn: workers, or IMPALA's learners."""
        return self.num_nodes * (self.impala.num_learners or 1) if self.has_actors else self.num_processes

    @property
    def num_ranks(self) -> int:
        """Number of workers, or of learners and actors, on all nodes. The supervisors are not counted."""
        return self.num_learners + (self.num_processes if self.has_actors else 0)

    def ranks_on(self, node_rank: int) -> int:
        """Return the number of workers, or of learners and actors, of one node."""
        return self.node_sizes[node_rank] + (self.learners_per_node if self.has_actors else 0)

    @property
    def learners_per_node(self) -> int:
        """Number of processes of each node that learn; of the largest node if they have different numbers."""
        return (self.impala.num_learners or 1) if self.has_actors else max(self.node_sizes)

    @property
    def actors_per_node(self) -> int:
        return max(self.node_sizes)

    def busy_on(self, node_rank: int) -> int:
        """Return how many processes of a node need a core at the same time. Actors and learners wait for each
        other, so only the larger group counts."""
        return max(self.learners_per_node if self.has_actors else 0, self.node_sizes[node_rank])

    def rank_of(self, node_rank: int, local_rank: int) -> int:
        """Return the rank of a node's process in the whole run; the ranks of learners come before actors."""
        processes_before = sum(self.node_sizes[:node_rank])
        if not self.has_actors:
            return processes_before + local_rank
        learners = self.learners_per_node
        if local_rank < learners:
            return node_rank * learners + local_rank
        return self.num_learners + processes_before + local_rank - learners

    def process_name(self, rank: int) -> str:
        """Return the name of the process with this rank of the whole run, such as `worker 3`."""
        if not self.has_actors:
            return f"worker {rank}"
        return f"learner {rank}" if rank < self.num_learners else f"actor {rank - self.num_learners}"

    @property
    def envs_per_process(self) -> int:
        return self.env.num_envs // self.num_processes

    @property
    def group_size(self) -> int:
        """Environments that share one seed, also if env.group_size is null.

        Depends on the number of environments only, so that every number of processes gets equal levels.
        """
        if self.env.group_size is not None:
            return self.env.group_size
        return largest_divisor(self.env.num_envs, MAX_GROUP_SIZE) if procgen_game(self.env.id) else 1

    @model_validator(mode="before")
    @classmethod
    def _default_workers(cls, data: Any) -> Any:
        """Replace a missing number of workers by its default, so that config.yaml contains it."""
        parallel = data.get("parallel", {}) if isinstance(data, Mapping) else None
        if not isinstance(parallel, Mapping) or parallel.get("num_workers") is not None:
            return data
        mode = data.get("mode")
        if mode == "distributed" or (mode == "parallel" and data.get("algorithm") == "impala"):
            return data
        workers = _workers_for(data.get("env")) if mode == "parallel" else 1
        return {**data, "parallel": {**parallel, "num_workers": workers}}

    @model_validator(mode="after")
    def _check(self) -> Config:
        self._check_algorithm()
        self._check_impala()
        self._check_cluster()
        self._check_processes()
        training, size = self.training, self.timesteps_per_update
        if training.batch_size is not None and training.batch_size > size:
            raise ValueError(
                f"training.batch_size = {training.batch_size} must be at most the rollout, "
                f"training.n_steps x env.num_envs = {training.n_steps} x {self.env.num_envs} = {size}"
            )
        return self

    def _check_processes(self) -> None:
        processes, num_envs = self.num_processes, self.env.num_envs
        key = "impala.num_actors" if self.has_actors else "parallel.num_workers"
        if self.cluster.node_workers is not None:
            key = f"the sum of cluster.node_workers ({list(self.node_sizes)})"
        elif self.mode == "distributed":
            key = f"cluster.num_nodes x {key if self.has_actors else 'cluster.num_workers'}"
        if self.mode == "sequential" and processes != 1:
            raise ValueError(f"{key} = {processes}: a sequential run has one process")
        if num_envs % processes:
            raise ValueError(f"env.num_envs = {num_envs} must be a multiple of {key} = {processes}")

    def _check_cluster(self) -> None:
        if self.mode != "distributed":
            for key, value in self.cluster.model_dump(exclude_defaults=True).items():
                raise ValueError(f"cluster.{key} = {value}: only the distributed mode has this setting")
        elif self.parallel.num_workers is not None:
            raise ValueError(
                f"parallel.num_workers = {self.parallel.num_workers}: the distributed mode has "
                "cluster.num_workers, for each node, instead"
            )
        elif self.parallel.timeout_seconds != ParallelConfig().timeout_seconds:
            raise ValueError(
                f"parallel.timeout_seconds = {self.parallel.timeout_seconds:g}: the distributed mode has "
                "cluster.timeout_seconds instead"
            )
        elif self.cluster.elastic:
            self._check_elastic()
        elif self.impala.actor_port is not None:
            raise ValueError(
                f"impala.actor_port = {self.impala.actor_port}: in the distributed mode, only elastic runs "
                "accept actors of other machines; set cluster.elastic to true"
            )
        elif self.traits.is_asynchronous:
            raise ValueError("A3C shares its parameters in the memory of one machine: use mode parallel")
        else:
            self._check_node_workers()
            self._check_average()

    def _check_node_workers(self) -> None:
        cluster, sizes = self.cluster, self.cluster.node_workers
        if sizes is None:
            return
        key = f"cluster.node_workers = {list(sizes)}"
        if cluster.num_workers is not None:
            raise ValueError(f"{key} and cluster.num_workers = {cluster.num_workers}: set one of them")
        if len(sizes) != self.num_nodes:
            raise ValueError(f"{key}: must have a number for each of cluster.num_nodes = {self.num_nodes}")

    def _check_elastic(self) -> None:
        if not self.has_actors:
            raise ValueError(
                f"cluster.elastic = true: only IMPALA has actors that come and go, not {self.traits.label}"
            )
        for key in ("compression", "reduction", "overlap", "average_every"):
            value = getattr(self.cluster, key)
            if value != ClusterConfig.model_fields[key].default:
                raise ValueError(f"cluster.elastic = true and cluster.{key} = {value}: only node 0 learns")

    def _check_average(self) -> None:
        if self.cluster.average_every is None:
            return
        key, cluster = f"cluster.average_every = {self.cluster.average_every}", self.cluster
        if self.has_actors:
            raise ValueError(f"{key}: only PPO and A2C have this setting, not {self.traits.label}")
        for other, value, default in (
            ("compression", cluster.compression, "none"),
            ("overlap", cluster.overlap, False),
        ):
            if value != default:
                raise ValueError(f"{key} and cluster.{other} = {value}: no gradient is sent between nodes")
        size, sizes = self.training.batch_size or 0, self.node_sizes
        if any(size * workers % sum(sizes) for workers in sizes):
            factor = f"cluster.num_nodes = {self.num_nodes}"
            if self.cluster.node_workers is not None:
                least = sum(sizes) // math.gcd(*sizes)
                factor = f"{least}, the parts of cluster.node_workers = {list(sizes)}"
            raise ValueError(
                f"training.batch_size = {size} must be a multiple of {factor}: with cluster.average_every "
                "each node takes a part of a minibatch in proportion to its workers"
            )

    def _check_algorithm(self) -> None:
        if self.hardware.keep_acting_passes and not self.traits.caches_activations:
            raise ValueError("hardware.keep_acting_passes = true: only A2C and A3C learn as they acted")
        if self.hardware.pin_workers and (self.has_actors or self.mode == "sequential"):
            which = (
                "actors and learners share cores" if self.has_actors else "a sequential run has no workers"
            )
            raise ValueError(f"hardware.pin_workers = true: {which}, so leave it out")
        if self.traits.has_minibatches:
            return
        name, training = self.traits.label, self.training
        if training.n_epochs != 1:
            raise ValueError(
                f"training.n_epochs = {training.n_epochs}: {name} uses a rollout once, so it must be 1"
            )
        if not self.has_actors and training.batch_size not in (None, self.timesteps_per_update):
            raise ValueError(
                f"training.batch_size = {training.batch_size}: {name} learns from the whole rollout at once; "
                f"leave it null or {self.timesteps_per_update}"
            )
        for key in PPO_SETTINGS:
            value = getattr(training, key)
            if value != TrainingConfig.model_fields[key].default:
                raise ValueError(f"training.{key} = {value}: only PPO has this setting, not {name}")
        if self.algorithm == "a3c" and self.mode == "sequential":
            raise ValueError("A3C is asynchronous: one sequential A3C worker is A2C, so use A2C")
        check_every = self.parallel.check_every
        if self.traits.is_asynchronous and check_every != ParallelConfig().check_every:
            raise ValueError(
                f"parallel.check_every = {check_every}: A3C's workers never hold the same parameters, so "
                "nothing is checked; leave it out"
            )

    def _check_impala(self) -> None:
        if self.algorithm != "impala":
            changed = self.impala.model_dump(exclude_defaults=True)
            for key, value in changed.items():
                raise ValueError(f"impala.{key} = {value}: only IMPALA has this setting")
            return
        if self.training.normalize_advantages:
            raise ValueError(
                "training.normalize_advantages = true: IMPALA uses its advantages as they are; "
                "set it to false"
            )
        if not self.has_actors:
            for key in ACTOR_SETTINGS:
                value, default = getattr(self.impala, key), ImpalaConfig.model_fields[key].default
                one = default is None and value == 1  # one actor or learner, as a sequential run has
                if value != default and not one:
                    raise ValueError(f"impala.{key} = {value}: a sequential run has no actors")
            return
        for key, workers in (
            ("parallel.num_workers", self.parallel.num_workers),
            ("cluster.num_workers", self.cluster.num_workers),
            ("cluster.node_workers", self.cluster.node_workers),
        ):
            if workers is not None:
                raise ValueError(
                    f"{key} = {workers}: IMPALA has impala.num_actors and impala.num_learners, equal on all "
                    "nodes, instead"
                )
        size, unrolls = self.training.batch_size, self.timesteps_per_unroll * self.num_nodes
        if size is not None and self.impala.num_actors is not None and size % unrolls:
            each = "" if self.num_nodes == 1 else f" of each of {self.num_nodes} nodes"
            raise ValueError(
                f"training.batch_size = {size} must be a multiple of an unroll{each}, "
                f"training.n_steps x environments of an actor{' x nodes' if each else ''} = {unrolls}"
            )


# Settings that only PPO uses.
PPO_SETTINGS = ("clip_range", "clip_value_loss", "target_kl")
# Settings of IMPALA that only runs with actors use.
ACTOR_SETTINGS = (
    "num_actors",
    "num_learners",
    "max_policy_lag",
    "max_actor_restarts",
    "actor_nice",
    "check_unwritten",
    "actor_port",
    "max_remote_actors",
    "compress_unrolls",
)


def _workers_for(env: Any) -> int:
    """Return the default number of workers: the largest divisor of num_envs up to the usable cores."""
    environments = env.get("num_envs") if isinstance(env, Mapping) else None
    if environments is None:
        environments = EnvConfig().num_envs
    number = as_count(environments)
    if number is None:
        return usable_cores()  # validation rejects such a num_envs
    return largest_divisor(number, usable_cores())


def as_count(value: Any) -> int | None:
    """Return a count in any form that settings accept (8, 1e3, "1k"); None for everything else."""
    try:
        return COUNT.validate_python(value)
    except ValidationError:
        return None


def largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of `number` that is at most `limit`."""
    return next(size for size in range(min(number, limit), 0, -1) if number % size == 0)


def flat_settings(config: Config) -> dict[str, Any]:
    """Return all settings by dotted key, such as `training.gamma`."""

    def walk(data: dict[str, Any], prefix: str) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for key, value in data.items():
            flat.update(
                walk(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {prefix + key: value}
            )
        return flat

    return walk(config.model_dump(), "")
