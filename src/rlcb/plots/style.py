"""The figure of a run's training curves, and the colours and style of all figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rlcb.rl.statistics import WINDOW
from rlcb.text import count_text, duration_text, tick_text

if TYPE_CHECKING:  # importing matplotlib takes most of a second, and not every caller draws
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Values = NDArray[np.float64]

CURVES = (
    "timesteps",
    "time/elapsed_seconds",
    "time/fps",
    "rollout/ep_reward_mean",
    "rollout/ep_reward_std",
    "rollout/episodes",
    "train/policy_loss",
    "train/value_loss",
    "train/entropy",
)
"""The keys of metrics.jsonl that training curves are drawn from."""

# Okabe and Ito's palette, which readers with any colour vision can tell apart; purple darkened for text.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#A45C86"
INK, GREY, FAINT = "#222222", "#666666", "#E6E6E6"
STYLE: dict[Any, Any] = {
    "font.size": 11,
    "text.color": INK,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,  # names are shown as they are
    "svg.fonttype": "none",  # text stays text
    "pdf.fonttype": 42,  # TrueType
    "svg.hashsalt": "training curves",  # the same picture from the same data, to the byte
}
LEFT = 0.07  # left edge of panels and titles, as a share of the width
SMOOTH_FROM = 100  # series with at least this many updates get a running mean, over 1/50 of the updates


def draw_training_curves(
    curves: Mapping[str, Values], title: str, subtitle: str = "", x: str = "timesteps"
) -> Figure:
    """Draw a figure of five panels: episode return (the widest), FPS, policy loss, value loss, entropy.

    `curves` has an array (R,) for each key of CURVES, with one value per row of metrics.jsonl and NaN for
    missing values. `x` is timesteps or hours (of wall clock). `subtitle` follows the run's totals.
    """
    import matplotlib
    from matplotlib.figure import Figure

    xs = curves["timesteps"] if x == "timesteps" else curves["time/elapsed_seconds"] / 3600
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 7.2))
        grid = figure.add_gridspec(2, 3, height_ratios=(1.3, 1), wspace=0.4, hspace=0.62)
        figure.subplots_adjust(left=LEFT, right=0.94, bottom=0.08, top=0.81)
        returns, fps = figure.add_subplot(grid[0, :2]), figure.add_subplot(grid[0, 2])
        policy_loss, value_loss, entropy = (figure.add_subplot(grid[1, column]) for column in range(3))
        draw_returns(returns, xs, curves["rollout/ep_reward_mean"], curves["rollout/ep_reward_std"])
        draw_fps(fps, xs, curves["time/fps"], average_fps(curves))
        draw_noisy(policy_loss, xs, curves["train/policy_loss"], "Policy loss", "mean per sample", GREEN)
        draw_noisy(value_loss, xs, curves["train/value_loss"], "Value loss", "mean per sample", VERMILION)
        draw_noisy(entropy, xs, curves["train/entropy"], "Policy entropy", "nats", PURPLE)
        for ax in figure.axes:
            _dress_x(ax, xs, x, ticks=8 if ax is returns else 4)
            _dress_y(ax)
        figure.text(LEFT, 0.965, title, fontsize=17, fontweight="bold", va="center")
        facts = [*_totals(curves), *([subtitle] if subtitle else [])]
        figure.text(LEFT, 0.919, " · ".join(facts), color=GREY, va="center")
    return figure


def _totals(curves: Mapping[str, Values]) -> list[str]:
    """Return the run's timesteps, duration and episodes as texts."""
    facts = [f"{curves['timesteps'][-1]:,.0f} timesteps"]
    seconds, episodes = curves["time/elapsed_seconds"][-1], curves["rollout/episodes"][-1]
    if math.isfinite(seconds):
        facts.append(duration_text(seconds))
    if math.isfinite(episodes):
        facts.append(f"{episodes:,.0f} episode{'' if episodes == 1 else 's'}")
    return facts


def draw_returns(ax: Axes, xs: Values, means: Values, stds: Values) -> None:
    """Draw the mean return of the last episodes with a band of one standard deviation."""
    _head(ax, "Episode return", "raw reward")
    shown = np.isfinite(xs) & np.isfinite(means)
    if not shown.any():
        _say(ax, "no episode has finished yet")
        return
    _caption(ax, [(f"mean of the last {WINDOW} episodes", BLUE), ("band: ± 1 standard deviation", GREY)])
    xs, means, stds = xs[shown], means[shown], np.nan_to_num(stds[shown])
    ax.fill_between(xs, means - stds, means + stds, color=BLUE, alpha=0.16, linewidth=0)
    _line(ax, xs, means, BLUE, 2.4 if len(xs) < 500 else 1.6)
    _end_label(ax, xs, means, f"{means[-1]:,.{2 if abs(means[-1]) < 100 else 0}f}", BLUE)


def average_fps(curves: Mapping[str, Values]) -> Values:
    """Return timesteps divided by seconds since the start; `time/fps_average` starts again on resuming."""
    seconds = curves["time/elapsed_seconds"]
    average: Values = curves["timesteps"] / np.where(seconds > 0, seconds, np.nan)
    return average


def draw_fps(ax: Axes, xs: Values, window: Values, average: Values) -> None:
    """Draw the timesteps per wall-clock second of each update and their average since the start."""
    _head(ax, "FPS", "timesteps per second")
    shown = np.isfinite(xs) & np.isfinite(window) & np.isfinite(average)
    if not shown.any():
        _say(ax, "not recorded")
        return
    _caption(ax, [("each update", GREY), ("average since the start", BLUE)])
    _line(ax, xs[shown], window[shown], GREY, 1.0, alpha=0.7)
    _line(ax, xs[shown], average[shown], BLUE, 2.4)
    _end_label(ax, xs[shown], average[shown], f"{average[shown][-1]:,.0f}", BLUE)
    ax.set_ylim(bottom=0)


def draw_noisy(ax: Axes, xs: Values, ys: Values, name: str, unit: str, colour: str) -> None:
    """Draw a metric of each update; in a long run faintly, with a running mean on top."""
    _head(ax, name, unit)
    shown = np.isfinite(xs) & np.isfinite(ys)
    if not shown.any():
        _say(ax, "not recorded")
        return
    xs, ys = xs[shown], ys[shown]
    if len(ys) < SMOOTH_FROM:
        _caption(ax, [("each update", colour)])
        _line(ax, xs, ys, colour, 1.6)
        return
    width = len(ys) // 50 | 1
    _caption(ax, [("each update", GREY), (f"mean of {width} updates", colour)])
    _line(ax, xs, ys, GREY, 0.8, alpha=0.5)
    _line(ax, xs, running_mean(ys, width), colour, 2.2)


def running_mean(values: Values, width: int) -> Values:
    """Return the centred mean over `width` (odd) values; near the ends, over the values that exist."""
    kernel = np.ones(min(width, len(values)))
    sums = np.convolve(values, kernel, "same")
    return sums / np.convolve(np.ones_like(values), kernel, "same")


def _line(ax: Axes, xs: Values, ys: Values, colour: str, width: float, alpha: float = 1.0) -> None:
    """Draw a line; a single value becomes a dot, which the panel's edge does not cut off."""
    single = len(xs) == 1
    marker = "o" if single else ""
    ax.plot(xs, ys, color=colour, linewidth=width, alpha=alpha, marker=marker, clip_on=not single)


def _head(ax: Axes, name: str, unit: str) -> None:
    """Write a panel's title and, beside it, the unit."""
    title = ax.set_title(name, loc="left", pad=24)
    ax.annotate(unit, (1, 0), (8, 0), xycoords=title, textcoords="offset points", va="bottom", color=GREY)


def _caption(ax: Axes, parts: Sequence[tuple[str, str]]) -> None:
    """Write the names of the series in their colours under the panel's title, instead of a legend."""
    before: Any = None
    for words, colour in parts:
        style: dict[str, Any] = {"textcoords": "offset points", "va": "bottom", "color": colour}
        if before is None:
            before = ax.annotate(words, (0, 1), (0, 8), xycoords="axes fraction", **style)
        else:
            before = ax.annotate(words, (1, 0), (14, 0), xycoords=before, **style)


def _end_label(ax: Axes, xs: Values, ys: Values, words: str, colour: str) -> None:
    """Write the last value beside the end of its line."""
    style: dict[str, Any] = {"color": colour, "fontweight": "bold", "va": "center", "annotation_clip": False}
    ax.annotate(words, (xs[-1], ys[-1]), (6, 0), textcoords="offset points", **style)


def _say(ax: Axes, words: str) -> None:
    """Write why a panel has no data."""
    ax.text(0.5, 0.5, words, transform=ax.transAxes, ha="center", va="center", color=GREY, style="italic")
    ax.set_yticks([])


def _dress_x(ax: Axes, xs: Values, x: str, ticks: int) -> None:
    """Set ticks like 100k and 1.5M, and limits that show the whole run in every panel."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    end = float(np.nanmax(xs)) if np.isfinite(xs).any() else 0.0
    ax.set_xlim(0, end or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10]))
    if x == "timesteps":
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    ax.set_xlabel("timesteps" if x == "timesteps" else "wall-clock time (hours)")


def _dress_y(ax: Axes) -> None:
    """Set a few ticks with complete numbers, without a power of ten above the axis."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if ax.get_yticks().size:
        ax.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value, ax.get_yticks())))
