"""The picture: return over timesteps, and over wall clock for each link."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from perf.cluster_learning.composition import Composed, horizon, panels
from perf.cluster_learning.ways import LINK_NAMES
from rlcb.plots.style import GREY, INK, STYLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = 4.0  # times the seconds that the fastest way needs
EXPLANATION = (
    "Mean return of the last 100 episodes; line: mean over seeds, band: their range. Over wall clock it is "
    "composed: measured return over timesteps,\n"
    "divided by the measured speed over the link. Dotted: the fastest way has made all timesteps."
)


def draw(composed: Sequence[Composed], env: str, path: Path) -> None:
    """Draw a row of panels for each number of ranks into a PNG file."""
    import matplotlib
    from matplotlib.figure import Figure

    found = panels(composed)
    ranks = list(dict.fromkeys(each for each, _ in found))
    links = list(dict.fromkeys(each for _, each in found))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4 * (1 + len(links)), 2.05 + 3.9 * len(ranks)))
        top = 1 - 1.8 / figure.get_figheight()
        figure.subplots_adjust(left=0.05, right=0.985, bottom=0.09, top=top, wspace=0.16, hspace=0.38)
        axes = figure.subplots(len(ranks), 1 + len(links), sharey=True, squeeze=False)
        for row, count in zip(axes, ranks):
            draw_timesteps(row[0], [each for link in links for each in found.get((count, link), [])], count)
            for panel, link in zip(row[1:], links):
                if (count, link) in found:
                    draw_clock(panel, found[count, link], f"{count} nodes, {LINK_NAMES[link]}")
        handles = {line.get_label(): line for line in axes[0][1].get_lines() if line.get_label()[0] != "_"}
        height = figure.get_figheight()
        figure.text(
            0.05,
            1 - 0.42 / height,
            f"PPO on {env} over slow links",
            fontsize=19,
            fontweight="bold",
            color=INK,
        )
        figure.text(0.05, 1 - 0.95 / height, EXPLANATION, fontsize=11, color=GREY)
        figure.legend(
            handles.values(),
            handles.keys(),
            loc="upper left",
            bbox_to_anchor=(0.045, 1 - 1.0 / height),
            ncols=6,
            frameon=False,
            fontsize=11,
        )
        figure.savefig(path, dpi=110)


def draw_timesteps(axes: Axes, ways: Sequence[Composed], ranks: int) -> None:
    """Draw the curves over timesteps; ways with equal settings over several links once."""
    drawn = set()
    for each in ways:
        if (key := (each.key, each.every)) in drawn:
            continue
        drawn.add(key)
        draw_line(axes, each.timesteps / 1e3, each)
        if each.way.every == "auto":
            axes.annotate(
                f"every {each.every}",
                (each.timesteps[-1] / 1e3, each.mean[-1]),
                xytext=(3, -3),
                textcoords="offset points",
                color=each.way.colour,
                fontsize=9,
                annotation_clip=False,
            )
    axes.set_title(f"{ranks} nodes, equal timesteps", loc="left")
    axes.set_xlabel("timesteps, thousands")
    axes.set_ylabel("return")


def draw_clock(axes: Axes, ways: Sequence[Composed], title: str) -> None:
    """Draw the composed curves of a link."""
    until = horizon(ways)
    axes.axvline(until, color=GREY, linewidth=0.8, linestyle=":")
    for each in ways:
        draw_line(axes, each.seconds, each)
    longest = max(float(each.seconds[-1]) for each in ways)
    axes.set_xlim(0, min(SHOWN * until, 1.05 * longest))
    axes.set_title(title, loc="left")
    axes.set_xlabel("seconds (composed)")


def draw_line(axes: Axes, x: NDArray[np.float64], each: Composed) -> None:
    axes.fill_between(
        x, each.returns.min(axis=0), each.returns.max(axis=0), color=each.way.colour, alpha=0.12, linewidth=0
    )
    axes.plot(x, each.mean, color=each.way.colour, linewidth=2, label=each.way.name)
    axes.plot(x[-1:], each.mean[-1:], "o", color=each.way.colour, markersize=5)
