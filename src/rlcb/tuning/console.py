"""Output of a tuning on the terminal: the plan, the progress, and the tables of results."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from rlcb.config.algorithms import ALGORITHMS
from rlcb.config.config import Config
from rlcb.config.games import procgen_game
from rlcb.cpu import describe_machine
from rlcb.progress import ProgressBar
from rlcb.text import COLUMNS, WIDTH, clock, counted, print_rows
from rlcb.tuning.folder import TuningFolder
from rlcb.tuning.results import Best, best_of, shown
from rlcb.tuning.search import STARTUP_TRIALS, TrialResult
from rlcb.tuning.settings import Tuning
from rlcb.tuning.space import Dimension

SHORT_WINDOW = (
    "{runs}: fewer episodes ended in the last quarter of the budget than there are environments, so the "
    "score counts unfinished episodes as whole ones; use a longer budget or fewer environments"
)
LINE_INTERVAL_SECONDS = 60.0
START_SECONDS = 8.0  # time to load libraries, make environments and save, in addition to training
SAMPLERS = {"tpe": "tree-structured Parzen estimator (TPE)", "random": "random"}
PRUNERS = {
    "median": f"from trial {STARTUP_TRIALS + 1} on, a trial ends when its score is below the median after an "
    "equal part of the budget",
    "halving": "successive halving: the best third of the trials continues at each rung",
    "none": "none",
}


def print_plan(folder: TuningFolder, spaces: Mapping[str, Sequence[Dimension]]) -> None:
    """Print what the tuning does, what it costs at most, and the search space of each algorithm."""
    tuning = folder.tuning
    runs = len(tuning.runs_per_trial)
    total = len(tuning.algorithms) * tuning.trials * runs
    cost = f"{counted(total, 'run')} in all"
    if tuning.duration is not None:
        cost += f", at most {clock(total * (tuning.duration * 3600 + START_SECONDS))}"
    else:
        cost += "; the time is unknown until the first run has trained"
    budget = f"{clock(tuning.budget)} of wall clock" if tuning.timed else f"{int(tuning.budget):,} timesteps"
    machine = describe_machine()
    print("=" * WIDTH)
    print(f"TUNING of {', '.join(ALGORITHMS[name].label for name in tuning.algorithms)} ({tuning.mode})")
    print("=" * WIDTH)
    seeds = f"{counted(len(tuning.seeds), 'seed')} ({', '.join(map(str, tuning.seeds))})"
    each_trial = f"{counted(tuning.trials, 'trial')} for each algorithm, {counted(runs, 'run')} each"
    several = "the mean over its runs, " if runs > 1 else ""
    print_rows(
        {
            "effort": f"{each_trial}, {budget} for a run",
            "runs": f"{', '.join(procgen_game(env) or env for env in tuning.envs)}; {seeds}",
            "cost": cost,
            "objective": f"{several}the training return in the last quarter of the budget, on the published "
            "scale of Procgen's games (other environments: raw)",
            "search": f"{SAMPLERS[tuning.sampler]}, seed {tuning.search_seed}; the first trial has the "
            "default settings",
            "pruning": PRUNERS[tuning.pruner],
            "machine": f"{machine['cpu_model']}, {counted(machine['usable_cores'], 'usable core')}",
            "results": folder.root,
        },
        12,
    )
    for name, space in spaces.items():
        print(f"\n{ALGORITHMS[name].label} searches {counted(len(space), 'setting')}:")
        for dimension in space:
            print(f"  {dimension.key:<34} {dimension.text()}")
    print("=" * WIDTH, flush=True)


def trial_line(result: TrialResult, trials: int) -> str:
    """Return one line about a trial that has ended."""
    head = f"{ALGORITHMS[result.algorithm].label:<7}trial {result.number + 1:>3}/{trials}"
    if result.state == "failed":
        return f"{head}  FAILED: {result.reason}"
    score = "no score" if result.score is None else f"score {result.score:.3f}"
    name = " (default settings)" if result.number == 0 else ""
    return f"{head}  {result.state:<8}  {score}  {clock(result.seconds)}{name}"


def seconds_left(
    tuning: Tuning, ended: Sequence[TrialResult], current: str, runs_done: float
) -> float | None:
    """Return the seconds until all trials have ended, if no further trial is pruned; None if unknown.

    `ended` are the trials that have ended. The trial that runs now is one of the algorithm `current` and has
    done `runs_done` of its runs. For a budget in timesteps the time of a run is the mean over the completed
    runs of the algorithm, or else of all algorithms.
    """
    total = 0.0
    for algorithm in tuning.algorithms:
        seconds = run_seconds(tuning, ended, algorithm)
        if seconds is None:
            return None
        trials = sum(result.algorithm == algorithm for result in ended)
        runs = (tuning.trials - trials) * len(tuning.runs_per_trial)
        total += (runs - (runs_done if algorithm == current else 0.0)) * seconds
    return max(0.0, total)


def run_seconds(tuning: Tuning, ended: Sequence[TrialResult], algorithm: str) -> float | None:
    """Return the seconds of a whole run of an algorithm, start included; None if unknown."""
    if tuning.duration is not None:
        return tuning.duration * 3600 + START_SECONDS
    times: dict[str, list[float]] = {
        name: [
            run["seconds"]
            for result in ended
            for run in result.runs.values()
            if result.algorithm == name and run["status"] == "completed"
        ]
        for name in tuning.algorithms
    }
    known = times[algorithm] or [each for values in times.values() for each in values]
    return fmean(known) + START_SECONDS if known else None


class TuningProgress:
    """The progress of the tuning: a bar on a terminal, or else a line every minute."""

    def __init__(self) -> None:
        self._next_line = time.monotonic() + LINE_INTERVAL_SECONDS
        self._bar = ProgressBar.on_terminal(leave=False)

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        if self._bar is not None:
            self._bar.print_line(text)
        else:
            print(text, flush=True)

    def show(
        self,
        tuning: Tuning,
        ended: Sequence[TrialResult],
        config: Config,
        number: int,
        runs_done: float,
        rows: Sequence[Mapping[str, Any]],
    ) -> None:
        """Show trial `number` with `runs_done` of its runs, whose current one has these `rows` so far."""
        done = len(ended) + runs_done / len(tuning.runs_per_trial)
        fraction = done / (tuning.trials * len(tuning.algorithms))
        left = seconds_left(tuning, ended, config.algorithm, runs_done)
        game = procgen_game(config.env.id) or config.env.id
        parts = ["time left unknown" if left is None else f"{clock(left)} left"]
        parts.append(f"{config.algorithm} {number + 1}/{tuning.trials} {game}")
        if rows:
            reward = rows[-1]["rollout/ep_reward_mean"]
            parts.append(f"{rows[-1]['time/fps_average']:,.0f} FPS")
            parts += [] if reward is None else [f"return {reward:.2f}"]
        if self._bar is not None:
            self._bar.show(fraction, parts)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_INTERVAL_SECONDS
            print(f"{fraction:4.0%} of the tuning, {' · '.join(parts)}", flush=True)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()


def print_results(folder: TuningFolder, results: Sequence[TrialResult]) -> None:
    """Print the table of algorithms, the best settings of each, and every failed trial."""
    console = Console(width=max(COLUMNS, Console().width) if sys.stdout.isatty() else COLUMNS)
    console.print(effort_table(folder.tuning, results))
    for algorithm in folder.tuning.algorithms:
        best = best_of(results, algorithm)
        if best is None:
            console.print(f"\n{ALGORITHMS[algorithm].label}: no trial is complete, so there are no settings")
        else:
            console.print()
            console.print(settings_table(best))
            short = [name for name, run in best.trial.runs.items() if run.get("is_short")]
            if short:
                print_rows({"note": SHORT_WINDOW.format(runs=", ".join(short))}, 6)
    for result in results:
        if result.state == "failed":
            print(f"failed: {ALGORITHMS[result.algorithm].label} trial {result.number + 1}: {result.reason}")
    print(flush=True)


def effort_table(tuning: Tuning, results: Sequence[TrialResult]) -> Table:
    """Return the table with the effort spent on each algorithm and the scores that it found."""
    table = Table(title="Effort and result of each algorithm", title_justify="left")
    table.add_column("algorithm")
    for name in ("complete", "pruned", "failed", "hours", "default", "best", "trial"):
        table.add_column(name, justify="right")
    for algorithm in tuning.algorithms:
        own = [result for result in results if result.algorithm == algorithm]
        counts = [
            str(sum(result.state == state for result in own)) for state in ("complete", "pruned", "failed")
        ]
        best = best_of(results, algorithm)
        default = None if best is None or best.default is None else best.default.score
        table.add_row(
            ALGORITHMS[algorithm].label,
            *counts,
            f"{sum(result.seconds for result in own) / 3600:.2f}",
            "n/a" if default is None else f"{default:.3f}",
            "n/a" if best is None else f"{best.trial.score:.3f}",
            "n/a" if best is None else str(best.trial.number + 1),
        )
    return table


def settings_table(best: Best) -> Table:
    """Return the table of an algorithm's settings: those of the first trial, and those of the best."""
    title = f"{ALGORITHMS[best.trial.algorithm].label}: settings of trial {best.trial.number + 1}"
    table = Table(title=title, title_justify="left")
    table.add_column("setting")
    table.add_column("default", justify="right")
    table.add_column("best", justify="right")
    for key, value in best.trial.settings.items():
        table.add_row(key, shown(best.default_settings.get(key)), shown(value))
    return table
