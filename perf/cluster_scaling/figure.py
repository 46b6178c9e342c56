"""The picture of docs/scaling.md: lines and bars are computed, points are measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.cluster_scaling.data import link_name
from perf.cluster_scaling.grid import (
    A2C,
    AS_IT_IS,
    COSTS,
    GROWING,
    IMPALA,
    LINKS,
    NODES,
    ONE_RING,
    Grid,
    costs,
)
from perf.cluster_scaling.model import way_parts
from perf.cluster_scaling.ring import link_hop
from rlcb.plots.style import BLUE, GREEN, GREY, INK, STYLE, VERMILION
from rlcb.text import count_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SMALL_NODE, LARGE_NODE = 8, 64  # cores
BEST, WORST = LINKS[0], LINKS[-1]
GIGABIT = 1e9
BAND = 0.15
RANKS = tuple(2**power for power in range(1, 14))
USEFUL = "acting and learning"
SHADES = {
    USEFUL: BLUE,
    "crowd": "#8CB9DC",
    "small shares": "#BCD6EA",
    "uneven": "#DDE9F3",
    "latency, node": VERMILION,
    "latency, network": "#EBA06B",
    "bytes": "#F3CDB0",
    "low rank": "#C9A0C9",
    "shuffling": GREEN,
    "gathering": "#7F7F7F",
    "snapshots": "#B5B5B5",
}


def draw(grid: Grid, path: Path) -> None:
    """Six panels, into a PNG file."""
    import matplotlib
    from matplotlib.figure import Figure

    network = grid.data.networks[-1]
    name = {"impala": "IMPALA", "nature": "Nature"}[network]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(16, 10))
        figure.subplots_adjust(left=0.06, right=0.975, bottom=0.07, top=0.855, wspace=0.25, hspace=0.42)
        axes = figure.subplots(2, 3)
        for panel, kind in zip(axes[0], (GROWING, A2C, IMPALA)):
            draw_speed(panel, grid, kind, network)
        draw_reductions(axes[1][0], grid)
        draw_shares(axes[1][1], grid, network)
        draw_check(axes[1][2], grid)
        figure.text(0.06, 0.955, "Training over several nodes", fontsize=19, fontweight="bold", color=INK)
        figure.text(
            0.06,
            0.922,
            f"{name} network on coinrun, 16 environments a core. Lines and bars are computed from pieces "
            "measured on one machine; points are measured.",
            color=GREY,
        )
        figure.savefig(path, dpi=120)


def draw_speed(axes: Axes, grid: Grid, kind: str, network: str) -> None:
    """Timesteps per second by nodes: small and large ones, two links, two ways to sum."""
    ideal = grid.ideal(kind, network)
    lines = ((BEST, AS_IT_IS, BLUE), (WORST, AS_IT_IS, VERMILION), (BEST, ONE_RING, GREEN))
    for cores, width in ((SMALL_NODE, 1.2), (LARGE_NODE, 2.4)):
        axes.plot(NODES, [ideal * cores * each for each in NODES], color="0.6", linewidth=1, linestyle=":")
        for link, way, colour in lines:
            fps = [grid.predict(kind, network, each, cores, *link, way).fps for each in NODES]
            axes.plot(NODES, fps, color=colour, linewidth=width)
            if cores == LARGE_NODE and link == BEST:
                share = fps[-1] / (ideal * cores * NODES[-1])
                note(axes, f"{share:.1%} of ideal", (NODES[-1], fps[-1]), colour, below=way is ONE_RING)
    logarithmic(axes, NODES, "nodes", "timesteps per second")
    axes.set_title(kind, loc="left")
    if kind == GROWING:
        axes.plot([], [], color="0.6", linestyle=":", label="every core as fast as alone")
        axes.plot([], [], color=GREEN, label=f"one ring of all ranks, {link_name(*BEST)}")
        axes.plot([], [], color=BLUE, label=f"as it is, {link_name(*BEST)}")
        axes.plot([], [], color=VERMILION, label=f"as it is, {link_name(*WORST)}")
        axes.legend(frameon=False, fontsize=9.5, loc="upper left")
        axes.set_ylim(top=axes.get_ylim()[1] * 12)
    else:
        axes.set_title(f"thick: {LARGE_NODE} cores a node, thin: {SMALL_NODE}", loc="right", fontsize=9.5)


def draw_reductions(axes: Axes, grid: Grid) -> None:
    """Seconds of a sum by nodes, over a ring and in direct messages, of a short message and of a gradient."""
    data, machine = grid.data, grid.data.machine()
    first = next(iter(data.links.values()))["all_reduce"]
    link = link_hop(machine.wire, *WORST)
    found = data.ranks("far")
    for size, words, marker in (
        (max(first), f"{max(first) / 1e6:.1f} MB", "s"),
        (min(first), "32 bytes", "o"),
    ):
        for way, name, colour in (("ring", "all_reduce", GREEN), ("direct", "direct", BLUE)):
            computed = [sum(way_parts(way, size, each, 1, link, machine).values()) for each in NODES[1:]]
            text = f"{words}, {'one ring' if way == 'ring' else 'direct messages'}"
            axes.plot(NODES[1:], [1e3 * each for each in computed], color=colour)
            values = [1e3 * each[name][size] for each in found.values()]
            axes.plot(
                list(found), values, marker, color=colour, markeredgecolor="white", markersize=8, label=text
            )
    logarithmic(axes, NODES[1:], "nodes of one rank", "milliseconds")
    axes.set_title(f"One sum, {link_name(*WORST)}", loc="left")
    axes.legend(frameon=False, fontsize=9.5, loc="upper left")
    axes.set_ylim(top=axes.get_ylim()[1] * 30)


def draw_shares(axes: Axes, grid: Grid, network: str) -> None:
    """Draw the shares of a PPO update's time over the number of nodes with many cores."""
    stacks: dict[str, list[float]] = {USEFUL: [], **{name: [] for name in SHADES if name != USEFUL}}
    for nodes in NODES:
        prediction = grid.predict(GROWING, network, nodes, LARGE_NODE, *BEST)
        found = costs(prediction, grid.ideal_learn(GROWING, network))
        for name, seconds in found.items():
            stacks[name].append(100 * seconds / prediction.seconds)
        stacks[USEFUL].append(100 * (1 - sum(found.values()) / prediction.seconds))
    bottoms = [0.0] * len(NODES)
    for name, values in stacks.items():
        label = COSTS.get(name, name) if max(values) >= 2 else None
        axes.bar(range(len(NODES)), values, bottom=bottoms, color=SHADES[name], label=label, width=0.82)
        bottoms = [low + value for low, value in zip(bottoms, values)]
    axes.set_xticks(range(len(NODES)), [str(each) for each in NODES])
    axes.set_xlabel(f"nodes of {LARGE_NODE} cores, {link_name(*BEST)}")
    axes.set_ylabel("% of an update")
    axes.set_ylim(0, 145)
    axes.set_yticks(range(0, 101, 25))
    axes.grid(False)
    axes.set_title("Where PPO's time goes, as it is", loc="left")
    axes.legend(frameon=False, fontsize=9.5, loc="upper center", ncols=2)


def draw_check(axes: Axes, grid: Grid) -> None:
    """Computed against measured timesteps per second of two hosts with a core each."""
    rows: list[dict[str, Any]] = grid.data.content.get("check", [])
    axes.set_title(f"Two hosts with a core each; band: ±{BAND:.0%}", loc="left")
    if not rows:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GREY)
        return
    values = [each[name] for each in rows for name in ("measured_fps", "predicted_fps")]
    ends = min(values) / 1.4, max(values) * 1.4
    axes.plot(ends, ends, color="0.6", linewidth=1)
    axes.fill_between(
        ends, [each / (1 + BAND) for each in ends], [each * (1 + BAND) for each in ends], color="0.9"
    )
    for algorithm, marker in (("ppo", "o"), ("a2c", "^"), ("impala", "s")):
        for slow, colour in ((True, VERMILION), (False, BLUE)):
            chosen = [
                each
                for each in rows
                if each["algorithm"] == algorithm and each["link"].startswith("100 Mb/s") == slow
            ]
            axes.plot(
                [each["measured_fps"] for each in chosen],
                [each["predicted_fps"] for each in chosen],
                marker,
                color=colour,
                label=f"{algorithm.upper()}, {'100 Mb/s' if slow else '1 or 10 Gb/s'}",
                markeredgecolor="white",
                markersize=8,
            )
    ticks = (200, 500, 1000, 2000, 5000)
    logarithmic(axes, ticks, "measured, timesteps per second", "computed")
    axes.set_yticks(ticks, [f"{each:,}" for each in ticks])
    axes.set_xlim(*ends)
    axes.set_ylim(*ends)
    axes.legend(frameon=False, fontsize=9.5, loc="upper left")


def logarithmic(axes: Axes, ticks: Sequence[int], x: str, y: str) -> None:
    """Both axes, with numbers that are written out."""
    from matplotlib.ticker import FuncFormatter, LogLocator

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [f"{each:,}" for each in ticks])
    axes.yaxis.set_major_locator(LogLocator(numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    axes.minorticks_off()
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def note(axes: Axes, text: str, place: tuple[float, float], colour: str, below: bool) -> None:
    """Words at the right end of a line."""
    offset = (0, -15) if below else (0, 7)
    axes.annotate(
        text,
        place,
        offset,
        textcoords="offset points",
        ha="right",
        color=colour,
        fontsize=9.5,
        fontweight="bold",
    )
