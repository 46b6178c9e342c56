"""Add seeds to a study in rounds until a sequential test has decided which group is best.

A round trains one seed of each group that is still in question. After each round a sequential test
(rlcb.comparison.sequential_test) looks at the returns on unseen levels. It keeps its error however often it
looks.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlcb.comparison.rounds import line
from rlcb.comparison.sequential_test import Decision, decide, least_rounds, threshold
from rlcb.config.games import procgen_game
from rlcb.errors import UsageError
from rlcb.study.console import Outcome
from rlcb.study.folder import StudyFolder, read_study_file
from rlcb.study.runner import Runner
from rlcb.study.state import RunState, TimeEstimate, read_state
from rlcb.study.study import Study, build_study
from rlcb.text import COLUMNS, clock, counted
from rlcb.training.run_folder import STUDY_FILE


def unseen_return(state: RunState) -> float:
    """Return the mean return of a run's evaluation on unseen levels, or on all if the environment has no
    levels; NaN without an evaluation."""
    splits = (state.evaluation or {}).get("splits") or {}
    split: Mapping[str, Any] = splits.get("test") or splits.get("full") or {}
    value = split.get("mean_reward")
    return math.nan if value is None else float(value)


def decisions(study: Study, states: Mapping[str, RunState]) -> dict[str, Decision]:
    """Test the groups of each game by its completed rounds; return the decisions by environment."""
    found = {}
    for env in study.envs:
        runs = [run for run in study.runs if run.env == env]
        rounds = []
        for seed in study.seeds:
            of_round = [run for run in runs if run.seed == seed]
            if not all(states[run.name].done for run in of_round):
                break
            rounds.append({run.label: unseen_return(states[run.name]) for run in of_round})
        labels = dict.fromkeys(run.label for run in runs)
        values = {label: [each[label] for each in rounds if label in each] for label in labels}
        found[env] = decide(values, len(study.envs))
    return found


def next_round(study: Study, found: Mapping[str, Decision]) -> Study:
    """Return the study with one more seed for the groups that are in question."""
    last_seeds = dict(study.last_seeds)
    for run in study.runs:
        decision = found[run.env]
        if decision.winner is not None or run.label not in decision.open:
            last_seeds.setdefault(run.group, study.seeds[-1])
    seeds = [*study.seeds, max(study.seeds) + 1]
    return build_study({**study.model_dump(), "seeds": seeds, "last_seeds": last_seeds}, "study")


def run_rounds(runner: Runner) -> list[Outcome]:
    """Run the study and add rounds until every game is decided, a run has failed, or the time is over.

    The study of `runner.folder` grows. Raises Interrupted after a stop signal.
    """
    while True:
        study = runner.folder.study
        outcomes = runner.run_all(study.runs)
        if any(outcome.status == "failed" for outcome in outcomes):
            return outcomes
        found = decisions(study, runner.states)
        for env, decision in found.items():
            text = f"{procgen_game(env) or env}: {line(decision)}"
            runner.progress.print_line(textwrap.fill(text, COLUMNS, subsequent_indent="      "))
        if all(decision.winner is not None for decision in found.values()):
            return outcomes
        after = next_round(study, found)
        if not fits(runner.folder, runner.estimate, runner.states, after):
            limit = clock((study.max_hours or 0.0) * 3600)
            runner.progress.print_line(f"another round would not end within {limit} (--max-hours)")
            return outcomes
        runner.extend(after)


def fits(folder: StudyFolder, estimate: TimeEstimate, states: Mapping[str, RunState], after: Study) -> bool:
    """Return whether the next round of a study would end within its `max_hours`."""
    done = {run.name for run in folder.study.runs}
    spent = [estimate.spent(run, states[run.name]) for run in folder.study.runs]
    ahead = [estimate.total(run) for run in after.runs if run.name not in done]
    return sum(each or 0.0 for each in [*spent, *ahead]) <= (after.max_hours or 0.0) * 3600


def check_time(study: Study, estimate: TimeEstimate) -> None:
    """Raise UsageError if a new study has no time for the rounds that the test needs at least."""
    rounds, groups = estimate.possible_rounds(), len(study.configurations)
    least = max(len(study.seeds), least_rounds(threshold(groups, len(study.envs))))
    if rounds is not None and rounds < least:
        raise UsageError(
            f"--max-hours {study.max_hours:g}: time for {counted(rounds, 'round')} of "
            f"{counted(groups * len(study.envs), 'run')}, but the test needs {least} at least; give more "
            "hours, shorter runs or fewer groups"
        )


def decisions_of(root: Path) -> dict[str, Decision]:
    """Return what the sequential test says about the study in a folder, by environment; empty unless it adds
    seeds in rounds. Raises UsageError if the study cannot be read."""
    study = build_study(read_study_file(root / STUDY_FILE), str(root / STUDY_FILE))
    if not study.until_decided:
        return {}
    return decisions(study, {run.name: read_state(study, run, root / run.name) for run in study.runs})
