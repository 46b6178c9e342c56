"""The metrics of a comparison: their names and units, and how each is computed from a run."""

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
    """A quantity over which runs are compared: timesteps or wall-clock time.

    `column` is its column in metrics.jsonl; values times `scale` are in `unit`.
    """

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
    """A number that describes a run. `digits` is the number of decimals; None: three significant digits."""

    key: str
    title: str
    unit: str
    digits: int | None
    better: int = 0
    """1 if higher is better, -1 if lower is better, 0 if neither."""


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
DERIVED = ("speedup", "efficiency_gain")  # metrics of a group relative to the baseline
# Metrics that are tested between every two groups.
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
EVALUATIONS = {"test_return": "unseen levels", "full_return": "all levels"}
"""The evaluation that a finding uses, the first that exists, with the levels that it plays."""
# Returns that are normalised over games as well.
NORMALISED = (
    "return_at_timesteps",
    "return_at_wall_clock",
    "area_timesteps",
    "area_wall_clock",
    "final_reward",
    "test_return",
)
# Metrics that depend on the length of a run: those of an interrupted run do not describe the whole budget.
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


def score_metric(key: str) -> Metric:
    """Return the metric of the normalised score of a return: a number near 0 to 1, without a unit."""
    return BY_KEY[key]._replace(unit="", digits=3)


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
    """Return the metrics that are read from the record and evaluation of a run; NaN where missing."""
    return {key: read(run) for key, read in _OF_RUN.items()}


def used_values(runs: Sequence[Run], key: str, values: Values) -> Values:
    """Return the values (n,) of a metric that means and tests use; NaN for runs that they leave out.

    Metrics in OF_WHOLE_RUNS use completed runs only, unless there are none. Times to a threshold use no run
    if a completed run never reached it: the mean of the other runs would be too low.
    """
    completed = np.array([run.completed for run in runs])
    if key in OF_WHOLE_RUNS and completed.any():
        return np.where(completed, values, np.nan)
    if key in TO_THRESHOLD:
        has_rows = np.array([run.series[REWARD].size > 0 for run in runs])
        if (np.isnan(values) & completed & has_rows).any():
            return np.full_like(values, np.nan)
    return values


def return_curve(run: Run, time_axis: TimeAxis) -> tuple[Values, Values]:
    """Return (x, y), each (R,): timesteps or seconds, and the mean raw return of the last 100 episodes."""
    return rising(run.series[time_axis.column], run.series[REWARD])


class TimeWindow(NamedTuple):
    """The interval on a time axis over which runs are compared, in timesteps or seconds."""

    start: float
    end: float


def equal_window(groups: Sequence[Sequence[tuple[Values, Values, bool]]]) -> TimeWindow | None:
    """Return the interval from the last start of a curve to the end of the shortest completed run.

    `groups` holds (x, y, completed) of each run. An interrupted run does not shorten the interval, unless its
    group has no completed run: then the longest run of the group counts. Curves that end before the end of
    the interval, or start after it, are left out. None if there is no such interval.
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


def metrics_at(run: Run, time_axis: TimeAxis, window: TimeWindow | None) -> dict[str, float]:
    """Compute the return at the end of a window and the mean return over it; NaN if the run does not cover
    the window."""
    at, over = math.nan, math.nan
    if window is not None:
        x, y = return_curve(run, time_axis)
        at, over = float(on_grid(x, y, window.end)), area(x, y, *window)
    return {f"return_at_{time_axis.key}": at, f"area_{time_axis.key}": over}


def time_to_threshold(run: Run, time_axis: TimeAxis, threshold: float) -> float:
    """Return the timesteps or seconds until a run's 100-episode mean first reaches a threshold; infinity if
    it never does.

    Means of fewer episodes do not count, because a single first episode can have the highest possible return.
    """
    rewards, episodes = run.series[REWARD], run.series["rollout/episodes"]
    whole = np.where(episodes < WINDOW, np.nan, rewards)
    index = first_reached(whole, threshold)
    return math.inf if index is None else float(run.series[time_axis.column][index])


def times_to_threshold(run: Run, threshold: float | None) -> dict[str, float]:
    """Return the timesteps and hours of a run to a threshold; NaN if not reached or without a threshold."""
    at = {
        key: math.inf if threshold is None else time_to_threshold(run, time_axis, threshold) * time_axis.scale
        for key, time_axis in TO_THRESHOLD.items()
    }
    return {key: value if math.isfinite(value) else math.nan for key, value in at.items()}


class ThresholdResult(NamedTuple):
    """When the seeds of a group reached a threshold: `hits` of `n` did. The median counts the other seeds as
    later than all."""

    threshold: float
    hits: int
    n: int
    median: float | None
    """In timesteps or hours; None if half of the seeds or more never reached it."""
    each: tuple[float | None, ...]
    stopped: int = 0
    """Further seeds that were interrupted before they reached it; they are not in `n`."""


def threshold_result(runs: Sequence[Run], time_axis: TimeAxis, threshold: float) -> ThresholdResult:
    """Summarise when the runs of a group reached a threshold."""
    with_rows = [run for run in runs if run.series[REWARD].size]
    at = [time_to_threshold(run, time_axis, threshold) * time_axis.scale for run in with_rows]
    known = sorted(value for run, value in zip(with_rows, at) if run.completed or math.isfinite(value))
    n = len(known)
    # numpy's median would return NaN for two infinities.
    middle = (known[(n - 1) // 2] + known[n // 2]) / 2 if n else math.inf
    each = tuple(value if math.isfinite(value) else None for value in at)
    median = middle if math.isfinite(middle) else None
    return ThresholdResult(threshold, sum(map(math.isfinite, known)), n, median, each, len(at) - n)


def threshold_of(thresholds: Mapping[str, float], game: str) -> float | None:
    """Return the threshold of a game, or else the threshold for all games, which has the empty name."""
    return thresholds.get(game, thresholds.get(""))
