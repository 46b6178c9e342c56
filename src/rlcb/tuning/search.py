"""The search over the settings of one algorithm: an Optuna study in a file, which a later start continues.

All algorithms have the same sampler, pruner and numbers of trials. The random numbers of a trial come from
the seed of the search and the trial's number, so a search that was stopped and continued chooses the settings
of one that was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rlcb.config.config import Config
from rlcb.errors import RunError, UsageError, first_line
from rlcb.tuning.score import BUDGET_PARTS
from rlcb.tuning.settings import Tuning
from rlcb.tuning.space import (
    Dimension,
    default_parameters,
    default_settings,
    search_space,
    settings_of,
)

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

STORAGE_FILE = "optuna.db"
STARTUP_TRIALS = 5
"""Trials of an algorithm before the sampler uses earlier results and before the pruner ends any."""
WARMUP_PARTS = BUDGET_PARTS // 2
"""Parts of the budget that the first run of a trial may use before the trial can be pruned. Early scores of
settings that learn and of settings that do not are equal but for noise."""
REDUCTION = 3
"""Successive halving keeps the best of this many trials at each rung."""


def import_optuna() -> Any:
    """Return the module optuna. Raises UsageError, which names the extra, if it is not installed."""
    try:
        import optuna
    except ImportError:
        raise UsageError(
            'tuning needs Optuna: pip install "rl-cluster-benchmark[tune]", or pip install optuna'
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def open_storage(root: Path) -> Any:
    """Open the file with the trials of all algorithms, or create it. Raises RunError."""
    optuna = import_optuna()
    path = root / STORAGE_FILE
    try:
        return optuna.storages.RDBStorage(f"sqlite:///{path.absolute()}")
    except Exception as error:  # SQLAlchemy raises many kinds
        raise RunError(f"cannot open {path}: {first_line(error)}") from error


def make_sampler(tuning: Tuning, number: int) -> Any:
    """Return the sampler of trial `number`."""
    samplers = import_optuna().samplers
    seed = int(np.random.SeedSequence([tuning.search_seed, number]).generate_state(1)[0])
    if tuning.sampler == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)


def make_pruner(tuning: Tuning) -> Any:
    """Return the pruner. It compares trials after equal parts of the budget of equal runs."""
    pruners = import_optuna().pruners
    if tuning.pruner == "none":
        return pruners.NopPruner()
    if tuning.pruner == "halving":
        return pruners.SuccessiveHalvingPruner(min_resource=WARMUP_PARTS, reduction_factor=REDUCTION)
    return pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=WARMUP_PARTS - 1)


@dataclass(frozen=True)
class TrialResult:
    """A trial as the storage has it."""

    algorithm: str
    number: int
    state: str
    """complete, pruned, failed or running."""
    score: float | None
    """The objective; of a pruned trial its last score, of a failed one None."""
    settings: dict[str, Any]
    reason: str
    """Why a failed trial failed."""
    runs: dict[str, dict[str, Any]]
    """For each run, by the name of its folder: status, seconds, timesteps, final entropy; and of its last
    window: return, score, episodes, and whether it is short."""

    @property
    def seconds(self) -> float:
        """The training time of all runs."""
        return sum(float(run["seconds"]) for run in self.runs.values())


class Trial:
    """A trial in progress."""

    def __init__(self, search: Search, trial: optuna.Trial) -> None:
        self._search, self._trial = search, trial
        self.number: int = trial.number
        parameters = {dimension.name: dimension.suggest(trial) for dimension in search.space}
        self.settings: dict[str, Any] = (
            default_settings(search.space, search.config)
            if self.number == 0
            else settings_of(search.space, parameters, search.config)
        )
        trial.set_user_attr("settings", self.settings)

    def report(self, step: int, score: float) -> bool:
        """Store the score after part `step` (from 0) of the trial; return whether to prune the trial.

        The first trial, which has the default settings, is compared with none and therefore not pruned.
        """
        if step in self._search.find(self.number).intermediate_values:
            return False  # reported before the tuning was stopped and continued
        self._trial.report(score, step)
        return bool(self._trial.should_prune())

    def note_run(self, name: str, facts: Mapping[str, Any]) -> None:
        """Store the outcome of one of the trial's runs."""
        runs = {**self._trial.user_attrs.get("runs", {}), name: dict(facts)}
        self._trial.set_user_attr("runs", runs)

    def complete(self, score: float) -> None:
        """End the trial with its score."""
        self._search.study.tell(self._trial, score)

    def prune(self) -> None:
        """End the trial as pruned."""
        self._search.study.tell(self._trial, state=import_optuna().trial.TrialState.PRUNED)

    def fail(self, reason: str) -> None:
        """End the trial as failed."""
        self._trial.set_user_attr("reason", reason)
        self._search.study.tell(self._trial, state=import_optuna().trial.TrialState.FAIL)


class Search:
    """The trials of one algorithm."""

    def __init__(self, tuning: Tuning, config: Config, storage: Any) -> None:
        """Open the algorithm's study or create it. `config` has the settings of the first trial."""
        self.tuning, self.config = tuning, config
        self.space: tuple[Dimension, ...] = search_space(config, tuple(tuning.fixed(config.algorithm)))
        self.study: optuna.Study = import_optuna().create_study(
            storage=storage,
            study_name=config.algorithm,
            direction="maximize",
            pruner=make_pruner(tuning),
            load_if_exists=True,
        )
        if not self.study.get_trials(deepcopy=False):
            self.study.enqueue_trial(default_parameters(self.space, config))

    def find(self, number: int) -> FrozenTrial:
        """Return trial `number` as it is stored."""
        return self.study.get_trials(deepcopy=False)[number]

    def begin(self, number: int) -> Trial | None:
        """Return trial `number`: a new one, or one that an earlier start left unfinished. None if it has
        ended."""
        trials = self.study.get_trials(deepcopy=False)
        if number < len(trials) and trials[number].state.is_finished():
            return None
        optuna = import_optuna()
        self.study.sampler = make_sampler(self.tuning, number)
        if number < len(trials) and trials[number].state.name == "RUNNING":
            return Trial(self, optuna.trial.Trial(self.study, trials[number]._trial_id))
        return Trial(self, self.study.ask())

    def results(self) -> list[TrialResult]:
        """Return all trials that have begun."""
        return [
            self._result(trial)
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.name != "WAITING"
        ]

    def _result(self, trial: FrozenTrial) -> TrialResult:
        state = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}.get(
            trial.state.name, "running"
        )
        score = trial.value
        if state == "pruned" and trial.last_step is not None:
            score = trial.intermediate_values[trial.last_step]
        attrs = trial.user_attrs
        return TrialResult(
            self.config.algorithm,
            trial.number,
            state,
            score,
            attrs.get("settings", {}),
            attrs.get("reason", ""),
            attrs.get("runs", {}),
        )
