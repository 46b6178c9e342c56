"""Add seeds to a study in rounds until a sequential test has decided which group is best.

A round trains one seed of each group that is still in question. After each round a sequential test
(rlcb.comparison.sequential_test) looks at the returns on unseen levels. It keeps its error however often it
looks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rlcb.comparison.sequential_test import Decision, decide, least_rounds, threshold
from rlcb.config.algorithms import ALGORITHMS
from rlcb.config.games import procgen_game
from rlcb.errors import UsageError
from rlcb.study.console import Outcome
from rlcb.study.folder import StudyFolder
from rlcb.study.runner import Runner
from rlcb.study.state import RunState, TimeEstimate
from rlcb.study.study import PlannedRun, Study, build_study
from rlcb.text import counted


def label_of(run: PlannedRun) -> str:
    """Return the name of a run's group as comparisons show it, such as `PPO parallel`."""
    return f"{ALGORITHMS[run.algorithm].label} {run.mode}"


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
            rounds.append({label_of(run): unseen_return(states[run.name]) for run in of_round})
        labels = dict.fromkeys(label_of(run) for run in runs)
        values = {label: [each[label] for each in rounds if label in each] for label in labels}
        found[env] = decide(values, len(study.envs))
    return found


def next_round(study: Study, found: Mapping[str, Decision]) -> Study:
    """Return the study with one more seed for the groups that are in question."""
    last_seeds = dict(study.last_seeds)
    for run in study.runs:
        decision = found[run.env]
        if decision.winner is not None or label_of(run) not in decision.open:
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
        for text in describe_decisions(found):
            runner.progress.print_line(text)
        if all(decision.winner is not None for decision in found.values()):
            return outcomes
        after = next_round(study, found)
        if not fits(runner.folder, runner.estimate, runner.states, after):
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


def describe_decisions(found: Mapping[str, Decision]) -> list[str]:
    """Return one line about each game: whether the test has decided, and between which groups it has not."""
    return [f"{procgen_game(env) or env}: {describe_decision(each)}" for env, each in found.items()]


def describe_decision(decision: Decision) -> str:
    """Return in words what the sequential test says about the groups of one game."""
    after = f"after {counted(decision.rounds, 'round')}"
    lead = ""
    if decision.lead is not None:
        low, high = decision.lead.interval or (None, None)
        lead = f"{decision.lead.difference:+.2f} against {decision.lead.second}"
        lead += "" if low is None or high is None else f" [{low:+.2f}, {high:+.2f}]"
    out = "".join(
        f"; {each.label} is out since round {each.rounds} ({each.by} is better)" for each in decision.excluded
    )
    if decision.winner is not None:
        return f"settled {after}: {decision.winner} is best on unseen levels, {lead}{out}"
    names = ", ".join(decision.open)
    return f"not settled {after}: {names} are in question; {decision.open[0]} is ahead, {lead}{out}"
