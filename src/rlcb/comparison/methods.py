"""Describe in words how the numbers of a comparison are computed, for every output."""

from __future__ import annotations

from rlcb.comparison.analysis import Comparison
from rlcb.comparison.curves import SMOOTH_SHARE
from rlcb.comparison.format import window_text
from rlcb.comparison.metrics import TIME_AXES
from rlcb.comparison.procgen_scores import NORMALISATION, REFERENCE_CITATION, score_range
from rlcb.comparison.statistics import CONFIDENCE
from rlcb.rl.statistics import WINDOW


def methods(comparison: Comparison) -> list[str]:
    """Return a paragraph for each method."""
    bootstrap = comparison.options.bootstrap
    lines = [
        f"Returns are raw; a curve is the mean of the last {WINDOW} episodes, interpolated linearly between "
        "updates and never extended beyond a run's end. A group's mean ends where its first completed run "
        "ends, and the thin lines of the other seeds go on. Runs interrupted before have no part in it.",
        "Drawn curves of return, scores, FPS, policy loss and CPU are smoothed: each point is the mean over "
        f"{SMOOTH_SHARE:.0%} of the axis, near its ends over less. No figure in a table is smoothed, and the "
        "JSON file has the curves as they are.",
        "Equal timesteps and equal wall clock answer different questions: "
        f"{_windows(comparison)}. The shortest completed run sets the point; runs interrupted before it are "
        "left out there. The area under the curve is given as the mean return over that part (trapezoids). "
        "Metrics that grow with the length of a run (timesteps, final and best reward, evaluations) use "
        "completed runs, if a group has any.",
        "± is the sample standard deviation over seeds. Intervals are "
        f"{CONFIDENCE:.0%} percentile bootstraps ({bootstrap.samples:,} samples, seed "
        f"{bootstrap.seed}), runs resampled within each group and game.",
        "Differences are tested by Welch's t-test, two-sided, adjusted by Holm's method over all pairs of a "
        "figure; over games, the mean of the games' differences with Satterthwaite's degrees of freedom.",
        _normalisation(comparison),
        "A performance profile is the share of runs with a score above each value τ. The probability of "
        "improvement P(X > Y) is Mann-Whitney's U divided by the number of pairs of runs. Both are means "
        "over games (Agarwal et al. 2021).",
    ]
    if any(result.reached for result in comparison.results):
        lines.append(
            f"A threshold is reached at the first update whose mean of {WINDOW} episodes is at or above it; "
            "means of fewer episodes do not count. The median counts seeds that never reached it as later "
            "than all others, and leaves out seeds that were interrupted before. Groups are tested if every "
            "seed that was not interrupted reached it."
        )
    lines.append(
        f"Speedup is the average FPS divided by the average FPS of {comparison.baseline}; efficiency gain is "
        "the increase in timesteps per hour, in percent."
    )
    if comparison.options.reference:
        lines.append(f"Published figures: {REFERENCE_CITATION}.")
    return lines


def _windows(comparison: Comparison) -> str:
    parts = []
    for game in comparison.games:
        points = [
            window_text(time_axis, window.end)
            for time_axis in TIME_AXES
            if (window := game.windows[time_axis.key]) is not None
        ]
        parts.append(f"{game.game} at {' and at '.join(points) or 'no common point'}")
    return "; ".join(parts)


def _normalisation(comparison: Comparison) -> str:
    """Return the sentence about normalised scores, with the range of each game and mode."""
    ranges = {}
    for result in comparison.results:
        mode = result.group.runs[0].setting("env.distribution_mode")
        limits = score_range(result.group.env, mode)
        if limits is not None:
            ranges[f"{result.group.game} {mode}"] = f"{limits[0]:g} to {limits[1]:g}"
    if not ranges:
        return "No normalised scores: there are published ranges for Procgen's easy and hard modes only."
    listed = ", ".join(f"{name} {limits}" for name, limits in ranges.items())
    return f"Normalised score = (return - min) / (max - min), ranges of {NORMALISATION}: {listed}."
