"""The settings of a study, its planned runs in order, and the training flags of each run.

A study is the matrix algorithms x modes x environments x seeds with one budget for every run. The distributed
mode also has numbers of nodes. The state of a run is read from the run's own folder (study/state.py); the
study does not store it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from rlcb.config.algorithms import ALGORITHMS, WHY_NOT, AlgorithmName, Mode
from rlcb.config.budget import require_one_budget, with_default_budget
from rlcb.config.games import canonical_id, procgen_game
from rlcb.config.logging_settings import TrackerName
from rlcb.config.sourced import source_in
from rlcb.config.validation import describe_validation_error
from rlcb.config.values import Count, Hours, NonNegative, Once, Pause, Section
from rlcb.errors import UsageError
from rlcb.suggestion import did_you_mean
from rlcb.text import counted


def _lower(text: Any) -> Any:
    return text.lower() if isinstance(text, str) else text


NotEmpty = Field(min_length=1)


@dataclass(frozen=True)
class PlannedRun:
    """One run of a study."""

    number: int
    """Position in the order of the study, from 1."""
    algorithm: str
    mode: str
    env: str
    seed: int
    nodes: int | None = None
    """The number of machines of a distributed run; None for a run in another mode."""

    @property
    def game(self) -> str:
        """The short name of the environment: `coinrun` for `procgen-coinrun-v0`."""
        return procgen_game(self.env) or self.env

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        game = re.sub(r"[^\w.-]", "-", self.game)
        nodes = "" if self.nodes is None else f"_{self.nodes}nodes"
        return f"{self.algorithm}_{self.mode}{nodes}_{game}_seed{self.seed}"

    @property
    def group(self) -> str:
        """The name of the run's group in its game: the name of its folder without the seed."""
        return self.name.removesuffix(f"_seed{self.seed}")

    @property
    def where(self) -> str:
        """The mode, and the number of nodes of a distributed run."""
        return self.mode if self.nodes is None else f"{self.mode}, {counted(self.nodes, 'node')}"

    @property
    def label(self) -> str:
        """The name of the run's group as comparisons show it, such as `PPO parallel`."""
        return f"{ALGORITHMS[self.algorithm].label} {self.where}"

    @property
    def title(self) -> str:
        return f"{self.algorithm.upper()} {self.where}, {self.game}, seed {self.seed}"


class Study(Section):
    """The settings of a study. In study.yaml and in files for --study each key has the name of its flag."""

    algorithms: Annotated[list[AlgorithmName], NotEmpty, Once]
    modes: Annotated[list[Mode], NotEmpty, Once] = Field(default=["sequential", "parallel"])
    nodes: Annotated[list[Annotated[Count, Field(le=10_000)]], NotEmpty, Once] | None = None
    """Numbers of machines of the distributed runs; None without a distributed mode."""
    scaling: Literal["strong", "weak"] | None = None
    """How distributed runs grow with their nodes. strong (None means this): the whole run has as many
    environments and samples in a minibatch. weak: both are multiplied by the number of nodes."""
    envs: Annotated[list[Annotated[str, AfterValidator(canonical_id)]], NotEmpty, Once] = Field(
        default=["procgen-coinrun-v0"]
    )
    seeds: Annotated[list[Annotated[NonNegative, Field(le=2**63 - 1)]], NotEmpty, Once] = Field(default=[42])
    duration: Hours | None = None
    """Wall-clock hours of each run. Without a duration and without total_timesteps: one hour."""
    total_timesteps: Count | None = None
    """Timesteps of each run, instead of a duration."""
    num_envs: Count | None = None
    """Total number of environments of each run; None: as configured."""
    num_workers: Count | None = None
    """Worker processes of each parallel run (actors for IMPALA); None: chosen by the number of cores, or read
    from a configuration file given with `config`."""
    config: dict[str, str] = Field(default={})
    """Configuration files, by `<algorithm>_<mode>` or `<algorithm>`."""
    set: dict[str, Any] = Field(default={})
    """Overriding settings by `section.key`. A prefix `<algorithm>:`, `<mode>:` or `<algorithm>_<mode>:`
    limits a setting to these runs."""
    evaluate_episodes: NonNegative = 100
    """Evaluation episodes on each split after each run; 0: no evaluation."""
    cooldown: Pause = 0.0
    """Seconds to wait between two runs."""
    track: TrackerName | None = None
    """Experiment tracker that gets every run and the comparison picture, in a group for the study."""
    order: Literal["by-seed", "by-config"] = "by-seed"
    """by-seed: every configuration with the first seed, then every configuration with the next one, so that
    drift of the machine (heat, other load) affects all configurations equally. by-config: all seeds of a
    configuration in a row."""
    until_decided: Literal[True] | None = None
    """Add seeds in rounds until a sequential test has settled which group is best, or until `max_hours`."""
    max_hours: Hours | None = None
    """Hours of all starts together, for a study with `until_decided`."""
    last_seeds: dict[str, int] = Field(default={})
    """The last seed of each group that the sequential test has put out, by `<algorithm>_<mode>_<game>`. The
    program writes it."""

    @field_validator("algorithms", "modes", mode="before")
    @classmethod
    def _ignore_case(cls, value: Any) -> Any:
        return [_lower(each) for each in value] if isinstance(value, list) else value

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, data: Any) -> Any:
        return with_default_budget(data)

    @model_validator(mode="after")
    def _check(self) -> Study:
        require_one_budget(self.duration, self.total_timesteps)
        self._check_nodes()
        self._check_rounds()
        if not self.runs:
            raise ValueError("there is no run: A3C is asynchronous and has only a parallel mode, so use A2C")
        names = [run.name for run in self.runs]
        if len({*names}) < len(names):
            raise ValueError(f"envs = {self.envs!r}: two environments would share their folders")
        return self

    def _check_nodes(self) -> None:
        """Raise ValueError unless the study has numbers of nodes exactly if it has a distributed mode."""
        distributed = "distributed" in self.modes
        if distributed and self.nodes is None:
            raise ValueError("modes = distributed needs the numbers of machines, nodes (--nodes 1 2 4)")
        for key in ("nodes", "scaling"):
            if not distributed and getattr(self, key) is not None:
                raise ValueError(f"{key}: only distributed runs have it; add modes = distributed")

    def _check_rounds(self) -> None:
        """Raise ValueError if seeds cannot be added in rounds to this study."""
        if not self.until_decided:
            if self.max_hours is not None:
                raise ValueError(f"max_hours = {self.max_hours:g}: only a study with until_decided has it")
            return
        if self.max_hours is None:
            raise ValueError("until_decided needs a limit, max_hours (--max-hours)")
        reason = why_no_rounds(self)
        if reason:
            raise ValueError(f"until_decided {reason}")

    @property
    def timed(self) -> bool:
        return self.duration is not None

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """All runs in the order in which they are trained."""
        variants = [
            (algorithm, mode, nodes)
            for algorithm, mode in self.configurations
            for nodes in (self.nodes or [] if mode == "distributed" else [None])
        ]
        keys = [(seed, env, *variant) for seed in self.seeds for env in self.envs for variant in variants]
        if self.order == "by-config":
            rank = {key: index for index, key in enumerate(variants)}
            keys.sort(key=lambda key: (self.envs.index(key[1]), rank[key[2:]]))
        planned = [
            PlannedRun(0, algorithm, mode, env, seed, nodes) for seed, env, algorithm, mode, nodes in keys
        ]
        kept = [run for run in planned if not self._is_out(run)]
        return [replace(run, number=number) for number, run in enumerate(kept, 1)]

    def _is_out(self, run: PlannedRun) -> bool:
        """Return whether the sequential test had put the group out before this run's seed."""
        last = self.last_seeds.get(run.group)
        return last in self.seeds and self.seeds.index(run.seed) > self.seeds.index(last)

    @property
    def configurations(self) -> list[tuple[str, str]]:
        """The (algorithm, mode) pairs of the matrix that exist."""
        return [pair for pair in self._pairs() if pair not in WHY_NOT]

    @property
    def left_out(self) -> list[str]:
        """The (algorithm, mode) pairs of the matrix that do not exist, each as text with the reason."""
        return [f"{ALGORITHMS[a].label} {m} ({WHY_NOT[a, m]})" for a, m in self._pairs() if (a, m) in WHY_NOT]

    def _pairs(self) -> list[tuple[str, str]]:
        return [(algorithm, mode) for algorithm in self.algorithms for mode in self.modes]


def why_no_rounds(study: Study) -> str:
    """Return why seeds cannot be added to a study in rounds; empty if they can."""
    if "distributed" in study.modes:
        return "runs on one machine; leave out modes = distributed"
    if study.order != "by-seed":
        return "adds seeds in rounds; leave out order = 'by-config'"
    if not study.evaluate_episodes:
        return "compares evaluations, so evaluate_episodes must not be 0"
    if len(study.configurations) < 2:
        return "compares groups, so give two algorithms or both modes"
    return ""


def require_known_keys(data: Mapping[str, Any], source: str) -> None:
    """Raise UsageError if a key is not one of a study."""
    unknown = [key for key in data if key not in Study.model_fields]
    if unknown:
        where = source_in(data, source)(unknown[0]) or source
        raise UsageError(
            f"{where}: unknown key {unknown[0]!r} of a study (known: {', '.join(Study.model_fields)})"
            f"{did_you_mean(unknown[0], Study.model_fields)}"
        )


def build_study(data: Mapping[str, Any], source: str) -> Study:
    """Validate the settings of a study. Raises UsageError: one line with the key, the value and the rule."""
    require_known_keys(data, source)
    try:
        return Study.model_validate(dict(data))
    except ValidationError as error:
        raise UsageError(describe_validation_error(error, Study, source_in(data, source))) from None


def training_flags(
    study: Study, run: PlannedRun, config: Path, output: Path, settings: Mapping[str, Any]
) -> list[str]:
    """Return the flags that start the training of a run. `settings` maps keys to values that override its
    configuration file."""
    budget = (
        ["--duration", f"{study.duration:.9g}"]
        if study.timed
        else ["--total-timesteps", str(study.total_timesteps)]
    )
    flags = ["--config", str(config), "--env", run.env, "--seed", str(run.seed)]
    flags += [f"--set={key}={value}" for key, value in settings.items()]
    return [*flags, *budget, "--output-dir", str(output)]
