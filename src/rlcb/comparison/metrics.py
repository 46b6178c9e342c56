"""The figures that runs are compared by: what each is, in which unit, and how it is read from a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from rlcb.comparison.runs import Run, as_number, dig
from rlcb.comparison.statistics import Values, area, first_reached, on_grid, rising
from rlcb.rl.statistics import WINDOW

REWARD = "rollout/ep_reward_mean"


class TimeAxis(NamedTuple):
    """What runs can be laid side by side over: the column of a row, and how it is shown."""

    key: str
    title: str
    column: str
    unit: str
    scale: float


TIME_AXES = (
    TimeAxis("timesteps", "equal timesteps", "timesteps", "timesteps", 1.0),
    TimeAxis("wall_clock", "equal wall clock", "time/elapsed_seconds", "hours", 1 / 3600),
)


class Metric(NamedTuple):
    """A figure of a run. `digits` is None where it is shown with three significant figures."""

    key: str
    title: str
    unit: str
    digits: int | None
    better: int = 0
    """1 if more is better, -1 if less is, 0 if neither."""


METRICS = (
    Metric("duration_hours", "Duration", "h", 4),
    Metric("timesteps", "Timesteps", "", 0),
    Metric("updates", "Updates", "", 0),
    Metric("episodes", "Episodes", "", 0),
    Metric("average_fps", "Average FPS", "timesteps/s", 1, 1),
    Metric("final_fps", "Final FPS", "timesteps/s", 1, 1),
    Metric("speedup", "Speedup", "×", 2, 1),
    Metric("timesteps_per_hour", "Timesteps per hour", "", 0, 1),
    Metric("efficiency_gain", "Efficiency gain", "%", 1, 1),
    Metric("initial_reward", "Initial reward", "raw return", 2),
    Metric("final_reward", "Final reward", "raw return", 2, 1),
    Metric("best_reward", "Best reward", "raw return", 2, 1),
    Metric("return_at_timesteps", "Return at equal timesteps", "raw return", 2, 1),
    Metric("return_at_wall_clock", "Return at equal wall clock", "raw return", 2, 1),
    Metric("area_timesteps", "Area under curve, equal timesteps", "mean raw return", 2, 1),
    Metric("area_wall_clock", "Area under curve, equal wall clock", "mean raw return", 2, 1),
    Metric("timesteps_to_threshold", "Timesteps to the threshold", "", 0, -1),
    Metric("hours_to_threshold", "Time to the threshold", "h", 4, -1),
    Metric("test_return", "Evaluation, test levels", "raw return", 2, 1),
    Metric("train_return", "Evaluation, training levels", "raw return", 2, 1),
    Metric("full_return", "Evaluation, all levels", "raw return", 2, 1),
    Metric("generalisation_gap", "Generalisation gap (train - test)", "raw return", 2, -1),
    Metric("peak_memory_gb", "Peak memory", "GB", 2, -1),
    Metric("average_memory_gb", "Average memory", "GB", 2, -1),
    Metric("average_cpu_percent", "Average CPU", "%", 1),
    Metric("others_cpu_percent", "CPU of other programs", "%", 1),
)
BY_KEY = {metric.key: metric for metric in METRICS}
DERIVED = ("speedup", "efficiency_gain")  # figures of a group against the baseline
# Compared between every two groups.
TESTED = (
    "return_at_wall_clock",
    "return_at_timesteps",
    "area_wall_clock",
    "area_timesteps",
    "final_reward",
    "best_reward",
    "test_return",
    "train_return",
    "full_return",
    "generalisation_gap",
    "hours_to_threshold",
    "timesteps_to_threshold",
    "average_fps",
    "final_fps",
    "peak_memory_gb",
)
# Returns that are normalised over games as well.
NORMALISED = (
    "return_at_timesteps",
    "return_at_wall_clock",
    "area_timesteps",
    "area_wall_clock",
    "final_reward",
    "test_return",
)
# What a run that was cut short has less of, so that it says nothing about the whole budget.
OF_WHOLE_RUNS = (
    "duration_hours",
    "timesteps",
    "updates",
    "episodes",
    "final_reward",
    "best_reward",
    "test_return",
    "train_return",
    "full_return",
    "generalisation_gap",
)
TO_THRESHOLD = {"timesteps_to_threshold": TIME_AXES[0], "hours_to_threshold": TIME_AXES[1]}


def _per_hour(run: Run) -> float:
    hours = run.number("duration_hours")
    return run.number("total_timesteps") / hours if hours > 0 else math.nan


def _evaluated(split: str) -> Callable[[Run], float]:
    return lambda run: as_number(dig(run.evaluation, f"splits.{split}.mean_reward"))


_OF_RUN: dict[str, Callable[[Run], float]] = {
    "duration_hours": lambda run: run.number("duration_hours"),
    "timesteps": lambda run: run.number("total_timesteps"),
    "updates": lambda run: run.number("total_updates"),
    "episodes": lambda run: run.number("total_episodes"),
    "average_fps": lambda run: run.number("average_fps"),
    "final_fps": lambda run: run.number("final_fps"),
    "timesteps_per_hour": _per_hour,
    "initial_reward": lambda run: run.number("performance.initial_reward"),
    "final_reward": lambda run: run.number("performance.final_reward"),
    "best_reward": lambda run: run.number("performance.best_reward"),
    "test_return": _evaluated("test"),
    "train_return": _evaluated("train"),
    "full_return": _evaluated("full"),
    "generalisation_gap": lambda run: as_number(dig(run.evaluation, "generalisation_gap.mean")),
    "peak_memory_gb": lambda run: run.number("resource_usage.peak_memory_gb"),
    "average_memory_gb": lambda run: run.number("resource_usage.average_memory_gb"),
    "average_cpu_percent": lambda run: run.number("resource_usage.average_cpu_percent"),
    "others_cpu_percent": lambda run: run.number("resource_usage.others_cpu_percent"),
}


def metrics_of(run: Run) -> dict[str, float]:
    """The figures that a run states of itself; NaN where it does not."""
    return {key: of(run) for key, of in _OF_RUN.items()}


def used_values(runs: Sequence[Run], key: str, values: Values) -> Values:
    """Of a figure of each run, (n,), those that means and tests are of; NaN for the others.

    A figure of OF_WHOLE_RUNS counts for completed runs only, unless there are none. The way to a threshold
    counts for no run if one of them never got there: a mean of the others would be too short.
    """
    completed = np.array([run.completed for run in runs])
    if key in OF_WHOLE_RUNS and completed.any():
        return np.where(completed, values, np.nan)
    if key in TO_THRESHOLD:
        has_rows = np.array([run.series[REWARD].size > 0 for run in runs])
        if (np.isnan(values) & completed & has_rows).any():
            return np.full_like(values, np.nan)
    return values


def return_curve(run: Run, clock: TimeAxis) -> tuple[Values, Values]:
    """Mean return of the last 100 episodes over a clock, (R,) each: timesteps or seconds, raw return."""
    return rising(run.series[clock.column], run.series[REWARD])


class TimeWindow(NamedTuple):
    """The part of a clock that runs are compared over, in timesteps or seconds."""

    start: float
    end: float


def equal_window(groups: Sequence[Sequence[tuple[Values, Values, bool]]]) -> TimeWindow | None:
    """From where all curves have begun to where the first complete one ends; None without such a part.

    `groups` has (x, y, completed) for each run. A run that was cut short does not shorten the others, unless
    its group has no other: then the longest run of the group counts. Curves that end before, or that begin
    only then, are left out.
    """
    ends = []
    for curves in groups:
        complete = [x[-1] for x, _, completed in curves if x.size and completed]
        cut = [x[-1] for x, _, _ in curves if x.size]
        if cut:
            ends.append(min(complete) if complete else max(cut))
    if not ends:
        return None
    end = min(ends)
    starts = [x[0] for curves in groups for x, _, _ in curves if x.size and x[0] < end <= x[-1]]
    return TimeWindow(float(max(starts)), float(end)) if starts else None


def metrics_at(run: Run, clock: TimeAxis, window: TimeWindow | None) -> dict[str, float]:
    """Return at the end of a window and mean return over it; NaN for a run that does not reach over it."""
    at, over = math.nan, math.nan
    if window is not None:
        x, y = return_curve(run, clock)
        at, over = float(on_grid(x, y, window.end)), area(x, y, *window)
    return {f"return_at_{clock.key}": at, f"area_{clock.key}": over}


def time_to_threshold(run: Run, clock: TimeAxis, threshold: float) -> float:
    """Where on a clock a run first logged a mean of 100 episodes at or above a threshold; infinity if never.

    Means of fewer episodes do not count: the first episode alone can have the highest return there is.
    """
    rewards, episodes = run.series[REWARD], run.series["rollout/episodes"]
    whole = np.where(episodes < WINDOW, np.nan, rewards)
    index = first_reached(whole, threshold)
    return math.inf if index is None else float(run.series[clock.column][index])


def times_to_threshold(run: Run, threshold: float | None) -> dict[str, float]:
    """What a run took to reach a threshold; NaN if it did not, or if there is none."""
    at = {
        key: math.inf if threshold is None else time_to_threshold(run, clock, threshold) * clock.scale
        for key, clock in TO_THRESHOLD.items()
    }
    return {key: value if math.isfinite(value) else math.nan for key, value in at.items()}


class ThresholdResult(NamedTuple):
    """Of `n` seeds `hits` reached the threshold; the median takes the others as later than all."""

    threshold: float
    hits: int
    n: int
    median: float | None
    """In timesteps or hours; None if half of the seeds or more never got there."""
    each: tuple[float | None, ...]
    stopped: int = 0
    """Further seeds that were cut short before they got there: nobody knows whether they would have."""


def threshold_result(runs: Sequence[Run], clock: TimeAxis, threshold: float) -> ThresholdResult:
    with_rows = [run for run in runs if run.series[REWARD].size]
    at = [time_to_threshold(run, clock, threshold) * clock.scale for run in with_rows]
    known = sorted(value for run, value in zip(with_rows, at) if run.completed or math.isfinite(value))
    n = len(known)
    # Without numpy's median, which makes NaN of two infinities.
    middle = (known[(n - 1) // 2] + known[n // 2]) / 2 if n else math.inf
    each = tuple(value if math.isfinite(value) else None for value in at)
    median = middle if math.isfinite(middle) else None
    return ThresholdResult(threshold, sum(map(math.isfinite, known)), n, median, each, len(at) - n)


def threshold_of(thresholds: Mapping[str, float], game: str) -> float | None:
    """The threshold of a game; the one under the empty name is for all games."""
    return thresholds.get(game, thresholds.get(""))
