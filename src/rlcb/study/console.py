"""Output of a study on the terminal: the plan, the progress over all runs, and the outcome of each run."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcb.comparison.sequential_test import ROUNDS_NEEDED
from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
from rlcb.config.budget import few_timesteps
from rlcb.config.config import Config, flat_settings
from rlcb.config.derived import cores_without_work
from rlcb.cpu import describe_machine, usable_cores
from rlcb.files import read_json
from rlcb.progress import ProgressBar
from rlcb.study.folder import StudyFolder
from rlcb.study.plan import describe_power
from rlcb.study.state import RunState, TimeEstimate
from rlcb.study.study import PlannedRun, Study, why_no_rounds
from rlcb.text import COLUMNS, WIDTH, clock, counted, print_rows

LINE_INTERVAL_SECONDS = 60.0
PLAN_ROWS = 40
MORE_ROUNDS = 10
SCALING = {
    "strong": "the whole run has as many environments on any number (strong scaling)",
    "weak": "each node has as many environments (weak scaling)",
}
PICTURE = "comparison.png"
"""The picture of a study's comparison, in its folder."""
LEARNING = ("env.", "model.", "training.")  # sections that should be equal in both modes of an algorithm


@dataclass(frozen=True)
class Outcome:
    """The outcome of one run in this start of the study."""

    run: PlannedRun
    status: str
    """completed or failed (in training or evaluation)."""
    reason: str = ""


def print_study_plan(folder: StudyFolder, states: Mapping[str, RunState], retry_failed: bool) -> None:
    """Print which runs will run, how long they take, and the state of every run."""
    study, runs = folder.study, folder.study.runs
    estimate = TimeEstimate(study, states)
    todo = [
        run
        for run in runs
        if not states[run.name].done and (states[run.name].status != "failed" or retry_failed)
    ]
    print("=" * WIDTH)
    of = "in rounds, so far" if study.until_decided else "of"
    time_left = describe_time(estimate.total_remaining(todo, states), todo)
    print(f"STUDY {of} {counted(len(runs), 'run')}: {time_left}")
    print("=" * WIDTH)
    print_rows(_facts(folder, estimate), indent=14)
    for note in _notes(folder):
        print_rows({"note": note}, indent=14)
    print()
    width = max(len("environment"), *(len(run.game) for run in runs))
    modes = max(10, *(len(run.where) for run in runs))
    print(f"{'run':>4}  {'algorithm':<9}  {'mode':<{modes}}  {'environment':<{width}}  {'seed':>6}  state")
    for run in runs[:PLAN_ROWS]:
        state = states[run.name].text
        note = " (or run by another process)" if state == "unfinished" else ""
        if state == "failed" and not retry_failed:
            note = " (--retry-failed retries it)"
        print(
            f"{run.number:>4}  {run.algorithm.upper():<9}  {run.where:<{modes}}  {run.game:<{width}}  "
            f"{run.seed:>6}  {state}{note}"
        )
    if len(runs) > PLAN_ROWS:
        print(f" ...  and {len(runs) - PLAN_ROWS} more, all listed in study.yaml")
    print("=" * WIDTH, flush=True)


def describe_time(seconds: float | None, todo: Sequence[PlannedRun]) -> str:
    """Describe how many runs are left, how long they take and when they end."""
    if not todo:
        return "nothing is left to run"
    if seconds is None:
        return f"{len(todo)} to run; the time is unknown until the first run has started"
    end = time.strftime("%a %d %b %H:%M", time.localtime(time.time() + seconds))
    return f"{len(todo)} to run, about {clock(seconds)} in all, until {end}"


def _facts(folder: StudyFolder, estimate: TimeEstimate) -> dict[str, str | Path]:
    study, machine = folder.study, describe_machine()
    runs = study.runs
    labels = list(dict.fromkeys(run.label for run in runs))
    budget = f"{clock(study.duration * 3600)} of wall clock" if study.duration is not None else ""
    budget = budget or f"{study.total_timesteps or 0:,} timesteps"
    seconds = estimate.evaluation(study.runs[0])
    facts: dict[str, str | Path] = {
        "games": ", ".join(dict.fromkeys(run.game for run in runs)),
        "groups": ", ".join(labels),
        "seeds": f"{len(study.seeds)}: {' '.join(map(str, study.seeds))}",
        "training": f"{budget} for each run",
        "evaluation": f"{study.evaluate_episodes} episodes of each split, about {clock(seconds)} a run"
        if study.evaluate_episodes
        else "none",
    }
    if study.cooldown:
        facts["cooldown"] = f"{study.cooldown:g} s between runs"
    if len(study.seeds) > 1:
        facts["order"] = (
            "every configuration with one seed, then with the next"
            if study.order == "by-seed"
            else "all seeds of a configuration in a row"
        )
    if study.nodes is not None:
        facts["nodes"] = f"{' '.join(map(str, study.nodes))}, {SCALING[study.scaling or 'strong']}"
    if study.left_out:
        facts["left out"] = "; ".join(study.left_out)
    if study.until_decided:
        facts["rounds"] = describe_rounds(study, estimate)
    elif len(labels) > 1:
        facts["can detect"] = describe_power(len(labels), len(study.seeds), study.envs)
    facts["machine"] = (
        f"{machine['cpu_model']}, {counted(machine['usable_cores'], 'usable core')}, "
        f"{machine['ram_gb']:.0f} GB"
    )
    return {**facts, "results": folder.root}


def describe_rounds(study: Study, estimate: TimeEstimate) -> str:
    """Return in words how a study adds seeds, and how many rounds the sequential test may need."""
    groups, limit = len(study.configurations), clock((study.max_hours or 0.0) * 3600)
    rounds = estimate.possible_rounds()
    fit = "" if rounds is None else f"; {counted(rounds, 'round')} of all groups fit"
    one, two = next((each for size, each in ROUNDS_NEEDED.items() if size >= groups), (None, None))
    lead = "a lead of 2 standard deviations across seeds needs about"
    needed = "" if one is None else f"; {lead} {two}, of 1 about {one}"
    return (
        "one seed of each group in question until the sequential test has settled which is best, for at "
        f"most {limit}{fit}{needed}"
    )


def _notes(folder: StudyFolder) -> list[str]:
    """Return warnings about settings that make the comparison of the runs misleading."""
    short = [
        f"{ALGORITHMS[algorithm].label} {mode}: {few_timesteps(config)}"
        for (algorithm, mode), config in _configs(folder).items()
        if few_timesteps(config)
    ]
    return [*short, *_core_notes(folder), *_mode_difference_notes(folder)]


def _configs(folder: StudyFolder) -> dict[tuple[str, str], Config]:
    """Return the configuration of the first run of each (algorithm, mode)."""
    runs = {(run.algorithm, run.mode): run for run in reversed(folder.study.runs)}
    return {pair: folder.configs[run.name] for pair, run in runs.items()}


def _core_notes(folder: StudyFolder) -> list[str]:
    """Return warnings if parallel runs start more processes than there are cores, or fewer."""
    cores, given = usable_cores(), folder.study.num_workers is not None
    parallel = {
        ALGORITHMS[algorithm].label: config
        for (algorithm, mode), config in _configs(folder).items()
        if mode == "parallel"
    }
    many = {label: config for label, config in parallel.items() if config.num_processes > cores}
    few = {
        label: config
        for label, config in parallel.items()
        if cores_without_work(config, cores, config.hardware.num_threads or 1)
    }
    notes = []
    if many:
        most = max(config.num_processes for config in many.values())
        advice = "" if given else f"; --num-workers {cores} gives each process a core"
        notes.append(f"parallel {', '.join(many)}: {most} processes on {counted(cores, 'core')}{advice}")
    if few:
        least = counted(min(config.num_processes for config in few.values()), "worker")
        notes.append(
            f"parallel {', '.join(few)}: {least} on {counted(cores, 'core')}; --num-envs in multiples "
            f"of {cores} uses all of them"
        )
    return notes


def _mode_difference_notes(folder: StudyFolder) -> list[str]:
    """Return a warning for each learning setting that differs between the modes of an algorithm."""
    configs, notes = _configs(folder), []
    for algorithm in folder.study.algorithms:
        if not {(algorithm, mode) for mode in ONE_MACHINE} <= configs.keys():
            continue
        one, other = (flat_settings(configs[algorithm, mode]) for mode in ONE_MACHINE)
        for key, value in one.items():
            if key.startswith(LEARNING) and value != other[key]:
                notes.append(
                    f"{ALGORITHMS[algorithm].label}: {key} is {value} sequential, {other[key]} parallel; "
                    "equal with"
                )
                notes.append(f"--set {algorithm}:{key}={value}")
    return notes


def result_text(state: RunState) -> str:
    """Return the timesteps, time, speed and final reward of a completed training."""
    record = state.record
    performance = record.get("performance") or {}
    final, std = performance.get("final_reward"), performance.get("std_reward_last_100_episodes")
    reward = "no episode finished" if final is None else f"reward {final:.2f}"
    reward += "" if final is None or std is None else f" ± {std:.2f}"
    return (
        f"{record.get('total_timesteps') or 0:,} timesteps in {clock(state.elapsed_seconds)}, "
        f"{record.get('average_fps') or 0:,.0f} FPS, {reward}"
    )


def evaluation_text(evaluation: Mapping[str, Any]) -> str:
    """Return the mean return of an evaluation on each split."""
    splits = evaluation.get("splits") or {}
    means = ", ".join(f"{name} {split['mean_reward']:.2f}" for name, split in splits.items())
    return f"evaluation over {evaluation.get('episodes_per_split')} episodes: {means}"


class StudyProgress:
    """The progress of the whole study: a bar on a terminal, or else a line every minute."""

    def __init__(self) -> None:
        self._next_line = time.monotonic() + LINE_INTERVAL_SECONDS
        self._bar = ProgressBar.on_terminal(leave=False)
        self._fraction = 0.0

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.print_line(text)
        else:
            print(text, flush=True)

    def show(self, fraction: float, seconds_left: float | None, run: str, parts: Sequence[str]) -> None:
        """Show the completed fraction (0 to 1), the remaining seconds, the current run and what it does.

        The bar shows the number of the run only: the line above it has its title.
        """
        remaining = "time left unknown" if seconds_left is None else f"{clock(max(0.0, seconds_left))} left"
        if self._bar is not None:
            self._fraction = max(self._fraction, fraction)  # estimates of the time may grow
            self._bar.show(self._fraction, [remaining, *parts, f"run {run.split()[0]}"])
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_SECONDS
            text = " · ".join([f"{remaining} · {run}", *parts])
            print(f"{fraction:4.0%} of the study, {text}", flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def print_outcomes(folder: StudyFolder, outcomes: Sequence[Outcome]) -> None:
    """Print how many runs completed, and the reason and folder of each failed run."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    total = len(folder.study.runs)
    print(f"\n{len(outcomes) - len(failed)} of {counted(total, 'run')} completed, {len(failed)} failed")
    for outcome in failed:
        print(f"failed: run {outcome.run.number}, {outcome.run.title}: {outcome.reason}")
        print(f"        {folder.run_folder(outcome.run)}")
    if failed:
        print(f"To retry them: python run_benchmark.py --output-dir {folder.root} --retry-failed")
    sys.stdout.flush()


def print_answer(folder: StudyFolder) -> None:
    """Print the answer of the last comparison, how to settle it, and the path of its picture."""
    picture = folder.root / PICTURE
    found = read_json(picture.with_suffix(".json"))
    text = str(found.get("answer", ""))
    print(f"\n{textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)}")
    hours = hours_of_more_rounds(folder)
    if hours is not None and not all(answer.get("best") for answer in found.get("answers", [])):
        print(f"To add seeds until it is settled, within {hours:g} hours in all:")
        print(f"    python run_benchmark.py --output-dir {folder.root} \\")
        print(f"        --until-decided --max-hours {hours:g}")
    print(f"Picture: {picture}", flush=True)


def hours_of_more_rounds(folder: StudyFolder) -> float | None:
    """Return the hours of a study with MORE_ROUNDS more rounds, rounded up to tenths.

    None if rounds cannot be added to it, or if the time of its runs is unknown.
    """
    study, states = folder.study, folder.states()
    estimate = TimeEstimate(study, states)
    round_seconds = estimate.round_seconds()
    if round_seconds is None or why_no_rounds(study):
        return None
    spent = sum(estimate.spent(run, states[run.name]) for run in study.runs)
    return math.ceil((spent + MORE_ROUNDS * round_seconds) / 360) / 10
