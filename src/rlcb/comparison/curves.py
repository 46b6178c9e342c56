"""The curves of the groups on common grids, which the plots and the page draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult
from rlcb.comparison.groups import Group
from rlcb.comparison.metrics import TIME_AXES, TimeAxis, return_curve
from rlcb.comparison.procgen_scores import normalise, score_range
from rlcb.comparison.runs import Run
from rlcb.comparison.statistics import Band, Bootstrap, Values, band, finite, on_grid, rising
from rlcb.plots.style import running_mean

POINTS = 201  # grid points: more than a plot of this size can show
FINE = 5 * POINTS  # noisy columns with more rows are first averaged to about this many
SMOOTH = 11  # grid points in the smoothing window: a twentieth of the axis
SMOOTH_SHARE = (SMOOTH - 1) / (POINTS - 1)
SMOOTHED = ("return", "fps", "policy_loss", "cpu", "score")  # panels with noisy curves
TIMESTEPS, WALL_CLOCK = TIME_AXES


class GroupCurve(NamedTuple):
    """The curves of a group on a panel's grid (P,): the mean with its interval, and each run.

    `smooth_band` and `smooth_runs` hold smoothed curves; they equal the exact ones unless the panel is in
    SMOOTHED. `planned` is the number of runs that the group should have.
    """

    label: str
    planned: int
    band: Band
    runs: list[Values]
    smooth_band: Band
    smooth_runs: list[Values]


class Panel(NamedTuple):
    """The data of one plot: the curves of all groups over a time axis. `grid` (P,) is in the axis's unit."""

    key: str
    title: str
    unit: str
    time_axis: TimeAxis
    grid: Values
    curves: list[GroupCurve]

    @property
    def axis(self) -> str:
        """The name of the horizontal axis with its unit."""
        unit = self.time_axis.unit
        return f"{unit} of wall clock" if self.time_axis.key == "wall_clock" else unit


Sampler = Callable[[Run, TimeAxis, Values], Values]
"""Samples a run's curve on a grid (P,) in timesteps or seconds; returns (P,)."""


def sample_return(run: Run, time_axis: TimeAxis, grid: Values) -> Values:
    return on_grid(*return_curve(run, time_axis), grid)


def sample_timesteps(run: Run, time_axis: TimeAxis, grid: Values) -> Values:
    x, y = rising(run.series[time_axis.column], run.series["timesteps"])
    return (
        on_grid(np.concatenate([[0.0], x]), np.concatenate([[0.0], y]), grid)
        if x.size
        else on_grid(x, y, grid)
    )


def sample_fps(run: Run, time_axis: TimeAxis, grid: Values) -> Values:
    """Return the timesteps per second of each grid interval, which does not depend on the number of rows."""
    steps, seconds = (sample_timesteps(run, time_axis, grid), grid)
    slope = np.diff(steps) / np.diff(seconds)
    return np.append(slope, slope[-1])


def sampler_of(column: str) -> Sampler:
    """Return a sampler for a noisy column, smoothed by a running mean over a fiftieth of the run."""

    def sample(run: Run, time_axis: TimeAxis, grid: Values) -> Values:
        x, y = rising(run.series[time_axis.column], run.series[column])
        if not x.size:
            return on_grid(x, y, grid)
        size = len(x) // FINE  # number of rows that are averaged into one before smoothing
        if size > 1:
            whole = len(x) - len(x) % size
            x, y = (each[:whole].reshape(-1, size).mean(1) for each in (x, y))
        return on_grid(x, running_mean(y, len(y) // 50 | 1), grid)

    return sample


PANELS: tuple[tuple[str, str, str, TimeAxis, Sampler], ...] = (
    ("return", "Episode return", "raw return", TIMESTEPS, sample_return),
    ("return", "Episode return", "raw return", WALL_CLOCK, sample_return),
    ("timesteps", "Timesteps", "collected so far", WALL_CLOCK, sample_timesteps),
    ("fps", "FPS", "timesteps per second", WALL_CLOCK, sample_fps),
    ("policy_loss", "Policy loss", "mean per sample", TIMESTEPS, sampler_of("train/policy_loss")),
    ("memory", "Memory", "GB", WALL_CLOCK, sampler_of("system/memory_gb")),
    ("cpu", "CPU", "% of the cores", WALL_CLOCK, sampler_of("system/cpu_percent")),
)


def game_panels(game: GameResult, bootstrap: Bootstrap) -> list[Panel]:
    """Return the panels of a game, in the order of PANELS."""
    groups = [result.group for result in game.groups]
    return [
        group_panel(groups, key, title, unit, time_axis, sample, bootstrap)
        for key, title, unit, time_axis, sample in PANELS
    ]


def clock_grid(groups: Sequence[Group], time_axis: TimeAxis) -> Values:
    """Return a grid (P,) from 0 to the end of the longest run, in timesteps or seconds."""
    columns = [run.series[time_axis.column] for group in groups for run in group.runs]
    end = max((float(finite(column).max(initial=0.0)) for column in columns), default=0.0)
    grid: Values = np.linspace(0.0, max(end, 1e-9), POINTS)
    return grid


def group_panel(
    groups: Sequence[Group],
    key: str,
    title: str,
    unit: str,
    time_axis: TimeAxis,
    sample: Sampler,
    bootstrap: Bootstrap,
) -> Panel:
    """Return a panel with the curves of groups; `sample` gives the curve of a run on the panel's grid."""
    grid = clock_grid(groups, time_axis)
    curves = []
    for group in groups:
        known = [run for run in group.runs if run.series[time_axis.column].size]
        if known:
            runs = [sample(run, time_axis, grid) for run in known]
            smooth_runs = [smooth(run) for run in runs] if key in SMOOTHED else runs
            name, kept = (
                f"{group.name} | {key} | {time_axis.key}",
                of_mean(runs, [run.completed for run in known]),
            )
            exact, drawn = (
                band([np.array([each[index] for index in kept])], bootstrap, name)
                for each in (runs, smooth_runs)
            )
            curves.append(GroupCurve(group.label, group.planned, exact, runs, drawn, smooth_runs))
    time_axis = readable(time_axis, grid)
    return Panel(key, title, unit, time_axis, grid * time_axis.scale, curves)


def of_mean(curves: Sequence[Values], completed: Sequence[bool]) -> list[int]:
    """Return the indices of the curves (P,) that the mean of a group is made of.

    The mean ends where the first completed run ends; without a completed run, where the first run ends. Runs
    that were interrupted before have no part in it.
    """
    ends = [int(np.flatnonzero(np.isfinite(each))[-1]) if np.isfinite(each).any() else -1 for each in curves]
    known = [end for end, whole in zip(ends, completed) if whole and end >= 0] or [e for e in ends if e >= 0]
    return [index for index, end in enumerate(ends) if known and end >= min(known)] or list(range(len(ends)))


def smooth(values: Values) -> Values:
    """Return the running mean of a curve (P,) over SMOOTH points; the window is shorter at its ends."""
    known = np.flatnonzero(np.isfinite(values))
    smooth_runs = np.full_like(values, np.nan)
    if known.size:
        smooth_runs[known] = running_mean(values[known], SMOOTH)
    return smooth_runs


def smoothed(panel: Panel) -> Panel:
    """Return the panel with its smoothed curves and their intervals, as it is drawn."""
    curves = [each._replace(band=each.smooth_band, runs=each.smooth_runs) for each in panel.curves]
    return panel._replace(curves=curves)


def common_seeds(results: Sequence[GroupResult]) -> int | None:
    """Return the number of planned runs per group; None if the groups have different numbers."""
    sizes = {result.group.planned for result in results}
    return sizes.pop() if len(sizes) == 1 else None


def readable(time_axis: TimeAxis, grid: Values) -> TimeAxis:
    """Return the time axis in a unit that suits its length: seconds, minutes or hours, or timesteps."""
    if time_axis.key == "timesteps":
        return time_axis
    units = (("seconds", 1, 180), ("minutes", 60, 180 * 60), ("hours", 3600, np.inf))
    unit, seconds, _ = next(each for each in units if grid[-1] < each[2])
    return time_axis._replace(unit=unit, scale=1 / seconds)


def score_panels(comparison: Comparison) -> list[Panel]:
    """Return the panels of normalised scores over all common games, one per time axis; none without games."""
    if comparison.across is None:
        return []
    games = [game for game in comparison.games if game.game in comparison.across.games]
    labels = [result.group.label for result in games[0].groups]
    title, panels = "Procgen-normalised score", []
    for time_axis in TIME_AXES:
        grid = clock_grid([result.group for game in games for result in game.groups], time_axis)
        curves = []
        for label in labels:
            tables = [_scores(game, label, time_axis, grid) for game in games]
            if any(not len(table) for table in tables):
                continue
            name = f"{label} | score | {time_axis.key}"
            smooth_runs = [np.array([smooth(row) for row in table]) for table in tables]
            exact, drawn = (band(each, comparison.options.bootstrap, name) for each in (tables, smooth_runs))
            planned = min(game.planned[label] for game in games)
            curves.append(GroupCurve(label, planned, exact, [], drawn, []))
        unit, time_axis = (
            f"mean of {len(games)} game{'s' if len(games) > 1 else ''}",
            readable(time_axis, grid),
        )
        panels.append(Panel("score", title, unit, time_axis, grid * time_axis.scale, curves))
    return panels


def _scores(game: GameResult, label: str, time_axis: TimeAxis, grid: Values) -> Values:
    """Return the normalised return curves of a variant in one game, (runs, P)."""
    group = next(result.group for result in game.groups if result.group.label == label)
    limits = score_range(group.env, group.runs[0].setting("env.distribution_mode"))
    assert limits is not None
    known = [run for run in group.runs if run.series[time_axis.column].size]
    rows = [sample_return(run, time_axis, grid) for run in known]
    rows = [rows[index] for index in of_mean(rows, [run.completed for run in known])]
    return normalise(np.array(rows).reshape(len(rows), len(grid)), limits)


def curve_data(panel: Panel, runs: bool = False) -> dict[str, Any]:
    """Return a panel's curves with five significant digits, None where a curve has no value."""
    return {
        "key": panel.key,
        "title": panel.title,
        "unit": panel.unit,
        "clock": panel.time_axis.key,
        "clock_unit": panel.time_axis.unit,
        "axis": panel.axis,
        "grid": rounded(panel.grid),
        "groups": [
            {
                "label": curve.label,
                "planned": curve.planned,
                "mean": rounded(curve.band.mean),
                "low": rounded(curve.band.low),
                "high": rounded(curve.band.high),
                "n": curve.band.n.tolist(),
                **({"runs": [rounded(each) for each in curve.runs]} if runs else {}),
            }
            for curve in panel.curves
        ],
    }


def rounded(values: Values) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]
