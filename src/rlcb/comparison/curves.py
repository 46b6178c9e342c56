"""Curves of groups on common grids: what the plots and the page draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from rlcb.comparison.analysis import Comparison, GameResult, GroupResult
from rlcb.comparison.groups import Group
from rlcb.comparison.metrics import TIME_AXES, TimeAxis, return_curve
from rlcb.comparison.procgen_scores import normalise, score_range
from rlcb.comparison.runs import Run
from rlcb.comparison.statistics import Band, Bootstrap, Values, band, on_grid, rising, stratified_band
from rlcb.plots.style import running_mean

POINTS = 201  # of a grid: more than a plot of this size can show
FINE = 5 * POINTS  # points of a noisy column beyond which rows are averaged first
RAGGED = 0.1  # of the axis: at either end so much may be left undrawn where fewer runs are left
SMOOTH = 11  # points that are averaged for the eye: a twentieth of the axis
SMOOTH_SHARE = (SMOOTH - 1) / (POINTS - 1)
SMOOTHED = ("return", "fps", "policy_loss", "cpu", "score")  # panels of noisy figures
TIMESTEPS, WALL_CLOCK = TIME_AXES


class GroupCurve(NamedTuple):
    """A group on a panel's grid (P,): its mean with the interval, and each of its runs; then the same of runs
    that are smoothed for the eye, where the figure is a noisy one."""

    label: str
    band: Band
    runs: list[Values]
    smooth_band: Band
    smooth_runs: list[Values]


class Panel(NamedTuple):
    """One plot: groups over one clock. `grid` (P,) is in the clock's unit."""

    key: str
    title: str
    unit: str
    clock: TimeAxis
    grid: Values
    curves: list[GroupCurve]


Sampler = Callable[[Run, TimeAxis, Values], Values]
"""A run on a grid in the clock's raw unit (timesteps or seconds)."""


def sample_return(run: Run, clock: TimeAxis, grid: Values) -> Values:
    return on_grid(*return_curve(run, clock), grid)


def sample_timesteps(run: Run, clock: TimeAxis, grid: Values) -> Values:
    x, y = rising(run.series[clock.column], run.series["timesteps"])
    return (
        on_grid(np.concatenate([[0.0], x]), np.concatenate([[0.0], y]), grid)
        if x.size
        else on_grid(x, y, grid)
    )


def sample_fps(run: Run, clock: TimeAxis, grid: Values) -> Values:
    """Timesteps of each stretch of the grid over its seconds: exact also where rows are many or few."""
    steps, seconds = (sample_timesteps(run, clock, grid), grid)
    slope = np.diff(steps) / np.diff(seconds)
    return np.append(slope, slope[-1])


def sampler_of(column: str) -> Sampler:
    """A noisy column of the rows: in a long run the mean of a fiftieth of it at a time."""

    def sample(run: Run, clock: TimeAxis, grid: Values) -> Values:
        x, y = rising(run.series[clock.column], run.series[column])
        if not x.size:
            return on_grid(x, y, grid)
        size = len(x) // FINE  # rows that become one before they are smoothed
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
    """The panels of a game, in the order of PANELS."""
    groups = [result.group for result in game.groups]
    return [
        _panel(groups, key, title, unit, clock, sample, bootstrap)
        for key, title, unit, clock, sample in PANELS
    ]


def clock_grid(groups: Sequence[Group], clock: TimeAxis) -> Values:
    """From 0 to the end of the longest run, in the clock's raw unit."""
    columns = [run.series[clock.column] for group in groups for run in group.runs]
    end = max((float(np.nanmax(column, initial=0.0)) for column in columns), default=0.0)
    grid: Values = np.linspace(0.0, max(end, 1e-9), POINTS)
    return grid


def _panel(
    groups: Sequence[Group],
    key: str,
    title: str,
    unit: str,
    clock: TimeAxis,
    sample: Sampler,
    bootstrap: Bootstrap,
) -> Panel:
    grid = clock_grid(groups, clock)
    curves = []
    for group in groups:
        runs = [sample(run, clock, grid) for run in group.runs if run.series[clock.column].size]
        if runs:
            name = f"{group.name} | {key} | {clock.key}"
            curves.append(_curve(group.label, key, runs, bootstrap, name))
    clock = readable(clock, grid)
    return Panel(key, title, unit, clock, grid * clock.scale, curves)


def _curve(label: str, key: str, runs: list[Values], bootstrap: Bootstrap, name: str) -> GroupCurve:
    exact = trimmed(band(runs, bootstrap, name))
    if key not in SMOOTHED:
        return GroupCurve(label, exact, runs, exact, runs)
    even = [smooth(run) for run in runs]
    return GroupCurve(label, exact, runs, trimmed(band(even, bootstrap, name)), even)


def smooth(values: Values) -> Values:
    """A curve (P,) averaged over SMOOTH points about each, near its ends over those that there are."""
    known = np.flatnonzero(np.isfinite(values))
    even = np.full_like(values, np.nan)
    if known.size:
        even[known] = running_mean(values[known], SMOOTH)
    return even


def smoothed(panel: Panel) -> Panel:
    """The panel as it is drawn: with smooth curves, and the intervals of their means."""
    curves = [each._replace(band=each.smooth_band, runs=each.smooth_runs) for each in panel.curves]
    return panel._replace(curves=curves)


def common_seeds(results: Sequence[GroupResult]) -> int | None:
    """How many runs every group has; None if not all have equally many."""
    sizes = {len(result.group.runs) for result in results}
    return sizes.pop() if len(sizes) == 1 else None


def readable(clock: TimeAxis, grid: Values) -> TimeAxis:
    """The clock in the unit that suits its length: seconds, minutes or hours; timesteps as they are."""
    if clock.key == "timesteps":
        return clock
    units = (("seconds", 1, 180), ("minutes", 60, 180 * 60), ("hours", 3600, np.inf))
    unit, seconds, _ = next(each for each in units if grid[-1] < each[2])
    return clock._replace(unit=unit, scale=1 / seconds)


def trimmed(whole: Band) -> Band:
    """A band without short ragged ends: one seed that ran a little longer must not bend the group's mean.

    A stretch at either end with fewer runs than its neighbour is cut off, and then the next one, as long as
    all that is cut off at this end is short.
    """
    keep = whole.n > 0
    edges = [0, *(np.flatnonzero(np.diff(whole.n)) + 1), len(whole.n)]
    stretches = [(a, b) for a, b in pairwise(edges) if b > a and whole.n[a] > 0]
    for end, neighbour in ((-1, -2), (0, 1)):
        allowed = RAGGED * len(whole.n)
        while len(stretches) > 1:
            (a, b), (beside, _) = stretches[end], stretches[neighbour]
            if whole.n[a] >= whole.n[beside] or b - a > allowed:
                break
            allowed -= b - a
            keep[a:b] = False
            stretches.pop(end)

    def kept(values: Values) -> Values:
        return np.where(keep, values, np.nan)

    return Band(kept(whole.mean), kept(whole.low), kept(whole.high), np.where(keep, whole.n, 0))


def score_panels(comparison: Comparison) -> list[Panel]:
    """Normalised scores over all common games, over both clocks; none without such games."""
    if comparison.across is None:
        return []
    games = [game for game in comparison.games if game.game in comparison.across.games]
    labels = [result.group.label for result in games[0].groups]
    title, panels = "Procgen-normalised score", []
    for clock in TIME_AXES:
        grid = clock_grid([result.group for game in games for result in game.groups], clock)
        curves = []
        for label in labels:
            tables = [_scores(game, label, clock, grid) for game in games]
            if any(not len(table) for table in tables):
                continue
            name = f"{label} | score | {clock.key}"
            even = [np.array([smooth(row) for row in table]) for table in tables]
            exact, drawn = (
                trimmed(stratified_band(each, comparison.options.bootstrap, name)) for each in (tables, even)
            )
            curves.append(GroupCurve(label, exact, [], drawn, []))
        unit, clock = f"mean of {len(games)} game{'s' if len(games) > 1 else ''}", readable(clock, grid)
        panels.append(Panel("score", title, unit, clock, grid * clock.scale, curves))
    return panels


def _scores(game: GameResult, label: str, clock: TimeAxis, grid: Values) -> Values:
    """Normalised curves of a variant in one game, (runs, P)."""
    group = next(result.group for result in game.groups if result.group.label == label)
    limits = score_range(group.env, group.runs[0].setting("env.distribution_mode"))
    assert limits is not None
    rows = [sample_return(run, clock, grid) for run in group.runs if run.series[clock.column].size]
    return normalise(np.array(rows).reshape(len(rows), len(grid)), limits)
