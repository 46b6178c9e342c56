"""What a study prints: the plan, one bar over all runs (or lines without a terminal), how each run ended."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from rlcb.config.algorithms import ALGORITHMS, ONE_MACHINE
from rlcb.config.config import Config, flat_settings
from rlcb.cpu import describe_machine, usable_cores
from rlcb.study.folder import StudyFolder
from rlcb.study.state import Estimate, State
from rlcb.study.study import PlannedRun
from rlcb.text import WIDTH, clock, counted

LINE_SECONDS = 60.0
BAR_COLUMNS = 13  # percentage and a bar that is still one
PLAN_ROWS = 40
LEARNING = ("env.", "model.", "training.")  # sections that the modes of an algorithm should agree in


@dataclass(frozen=True)
class Outcome:
    """How a run stands when the study is through with it."""

    cell: PlannedRun
    status: str
    """completed, failed (in training or evaluation)."""
    reason: str = ""


def print_plan(folder: StudyFolder, states: Mapping[str, State], retry_failed: bool) -> None:
    """Print what will run, how long it takes, and how every run stands."""
    study, cells = folder.study, folder.study.cells
    estimate = Estimate(study, states)
    todo = [
        cell
        for cell in cells
        if not states[cell.name].done and (states[cell.name].status != "failed" or retry_failed)
    ]
    print("=" * WIDTH)
    print(f"STUDY of {counted(len(cells), 'run')}: {describe_time(estimate.total_left(todo, states), todo)}")
    print("=" * WIDTH)
    for name, value in _facts(folder, estimate).items():
        print(f"{name:<13} {value}")
    for note in _notes(folder):
        print(f"{'note':<13} {note}")
    print()
    width = max(len("environment"), *(len(cell.game) for cell in cells))
    print(f"{'run':>4}  {'algorithm':<9}  {'mode':<10}  {'environment':<{width}}  {'seed':>6}  state")
    for cell in cells[:PLAN_ROWS]:
        state = states[cell.name].text
        note = " (or running elsewhere)" if state == "unfinished" else ""
        if state == "failed" and not retry_failed:
            note = " (--retry-failed tries it again)"
        print(
            f"{cell.number:>4}  {cell.algorithm.upper():<9}  {cell.mode:<10}  {cell.game:<{width}}  "
            f"{cell.seed:>6}  {state}{note}"
        )
    if len(cells) > PLAN_ROWS:
        print(f" ...  and {len(cells) - PLAN_ROWS} more, all named in study.yaml")
    print("=" * WIDTH, flush=True)


def describe_time(seconds: float | None, todo: Sequence[PlannedRun]) -> str:
    if not todo:
        return "nothing is left to run"
    if seconds is None:
        return f"{len(todo)} to run; the first one will show how long that takes"
    end = time.strftime("%a %d %b %H:%M", time.localtime(time.time() + seconds))
    return f"{len(todo)} to run, about {clock(seconds)} in all, until {end}"


def _facts(folder: StudyFolder, estimate: Estimate) -> dict[str, str]:
    study, machine = folder.study, describe_machine()
    budget = f"{clock(study.duration * 3600)} of wall clock" if study.duration is not None else ""
    budget = budget or f"{study.total_timesteps or 0:,} timesteps"
    seconds = estimate.evaluation(study.cells[0])
    facts = {
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
    if study.left_out:
        facts["left out"] = "; ".join(study.left_out)
    facts["machine"] = (
        f"{machine['cpu_model']}, {counted(machine['usable_cores'], 'usable core')}, "
        f"{machine['ram_gb']:.0f} GB"
    )
    return facts | {"results": str(folder.root)}


def _notes(folder: StudyFolder) -> list[str]:
    """What may make the comparison say something else than is meant."""
    return [*_crowded(folder), *_unlike(folder)]


def _configs(folder: StudyFolder) -> dict[tuple[str, str], Config]:
    """The configuration of the first run of every algorithm and mode."""
    cells = {(cell.algorithm, cell.mode): cell for cell in reversed(folder.study.cells)}
    return {pair: folder.configs[cells[pair].name] for pair in folder.study.configurations}


def _crowded(folder: StudyFolder) -> list[str]:
    cores = usable_cores()
    processes = {pair: config.num_processes for pair, config in _configs(folder).items()}
    crowded = [algorithm.upper() for (algorithm, mode), number in processes.items() if number > cores]
    if not crowded:
        return []
    most = max(processes.values())
    notes = [f"parallel {', '.join(crowded)}: {most} processes on {counted(cores, 'core')}"]
    given = folder.study.num_workers is not None
    return notes if given else [*notes, f"--num-workers {cores} gives each a core"]


def _unlike(folder: StudyFolder) -> list[str]:
    """Settings of learning that differ between the modes of an algorithm."""
    configs, notes = _configs(folder), []
    for algorithm in folder.study.algorithms:
        if not {(algorithm, mode) for mode in ONE_MACHINE} <= configs.keys():
            continue
        one, other = (flat_settings(configs[algorithm, mode]) for mode in ONE_MACHINE)
        for key, value in one.items():
            if key.startswith(LEARNING) and value != other[key]:
                notes.append(
                    f"{ALGORITHMS[algorithm].label}: {key} is {value} sequential, {other[key]} parallel; "
                    "alike with"
                )
                notes.append(f"--set {algorithm}:{key}={value}")
    return notes


def row_text(row: Mapping[str, Any]) -> str:
    """The figures of a run that goes on, from its newest row."""
    if not row:
        return "starting"
    reward = row.get("rollout/ep_reward_mean")
    text = f"{row.get('time/fps') or 0:,.0f} FPS"
    return text if reward is None else f"{text} · reward {reward:.2f}"


def result_text(state: State) -> str:
    """The figures of a finished training."""
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
    """The mean returns of an evaluation."""
    splits = evaluation.get("splits") or {}
    means = ", ".join(f"{name} {split['mean_reward']:.2f}" for name, split in splits.items())
    return f"evaluation over {evaluation.get('episodes_per_split')} episodes: {means}"


class StudyProgress:
    """One bar over the whole study on a terminal, else a line every minute."""

    def __init__(self) -> None:
        self._next_line = time.monotonic() + LINE_SECONDS
        self._bar: tqdm[Any] | None = None
        if sys.stderr.isatty():
            tqdm.set_lock(threading.RLock())
            self._bar = tqdm(total=1.0, bar_format="{percentage:3.0f}%|{bar}| {desc}", dynamic_ncols=True)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._bar is not None:
            self._bar.clear()
        print(text, flush=True)
        if self._bar is not None:
            self._bar.refresh()

    def show(self, share: float, left: float | None, text: str) -> None:
        """How far the study is, from 0 to 1, the seconds that are left, and what goes on."""
        remaining = "time left unknown" if left is None else f"{clock(left)} left"
        if self._bar is not None:
            columns = max(20, shutil.get_terminal_size().columns - BAR_COLUMNS)
            line = f"{remaining} · {text}"
            self._bar.n = min(1.0, max(share, self._bar.n))
            self._bar.set_description_str(line if len(line) <= columns else line[: columns - 1] + "…")
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            print(f"{share:4.0%} of the study, {remaining} · {text}", flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.leave = False
            self._bar.close()


def print_outcomes(folder: StudyFolder, outcomes: Sequence[Outcome]) -> None:
    """Print how many runs are done, and which failed why."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    total = len(folder.study.cells)
    print(f"\n{len(outcomes) - len(failed)} of {counted(total, 'run')} completed, {len(failed)} failed")
    for outcome in failed:
        print(f"failed: run {outcome.cell.number}, {outcome.cell.title}: {outcome.reason}")
        print(f"        {folder.run_folder(outcome.cell)}")
    if failed:
        print(f"Try them again: python run_benchmark.py --output-dir {folder.root} --retry-failed")
    sys.stdout.flush()
