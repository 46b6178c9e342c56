"""The picture of SCALING.md: computed lines, measured points."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perf.cluster_scaling_data import link_name
from perf.cluster_scaling_grid import A2C, COSTS, GROWING, IMPALA, LINKS, NODES, Grid, costs
from perf.cluster_scaling_ring import hierarchical_parts, link_hop, ring_parts
from src.figures import BLUE, GREY, INK, STYLE, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = (8, 64)  # cores of the nodes that have lines
BEST, WORST = LINKS[0], LINKS[-1]
SHADES = {
    "useful": "#0072B2",
    "uneven": "#9AC7E4",
    "small shares": "#C9E0F0",
    "latency, node": "#D55E00",
    "latency, network": "#F0A36B",
    "bytes": "#E69F00",
    "shuffling": "#009E73",
    "gathering": "#7F7F7F",
    "snapshots": "#BFBFBF",
}
BAND = 0.15
RANKS = tuple(2**power for power in range(1, 14))


def draw(grid: Grid, path: Path) -> None:
    """Six panels, into a PNG file."""
    import matplotlib
    from matplotlib.figure import Figure

    network = grid.data.networks[-1]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(15, 9.6))
        figure.subplots_adjust(left=0.055, right=0.975, bottom=0.07, top=0.86, wspace=0.26, hspace=0.42)
        axes = figure.subplots(2, 3)
        for panel, kind in zip(axes[0], (GROWING, A2C, IMPALA)):
            draw_speed(panel, grid, kind, network)
        draw_reductions(axes[1][0], grid)
        draw_shares(axes[1][1], grid, network)
        draw_check(axes[1][2], grid)
        name = {"impala": "IMPALA", "nature": "Nature"}[network]
        figure.text(0.055, 0.955, "Training over several nodes", fontsize=18, fontweight="bold", color=INK)
        figure.text(
            0.055,
            0.922,
            f"{name} network on coinrun, 16 environments a core. Lines and bars are computed from what one "
            "machine showed; points are measured.",
            color=GREY,
        )
        figure.savefig(path, dpi=120)


def draw_speed(axes: Axes, grid: Grid, kind: str, network: str) -> None:
    """Timesteps per second by nodes, for two sizes of nodes and two links."""
    ideal = grid.ideal(kind, network)
    nodes = (1, *NODES)
    for cores in SIZES:
        axes.plot(nodes, [ideal * cores * each for each in nodes], color="0.6", linewidth=1, linestyle=":")
        for (rate, delay), colour in ((BEST, BLUE), (WORST, VERMILION)):
            link = grid.link(rate, delay)
            fps = [grid.predict(kind, network, each, cores, link).fps for each in nodes]
            axes.plot(nodes, fps, color=colour, linewidth=2.2 if cores == SIZES[-1] else 1.3)
            if (rate, delay) == BEST:
                share = fps[-1] / (ideal * cores * nodes[-1])
                text = f"{cores} cores a node: {share:.0%}"
                axes.annotate(
                    text,
                    (nodes[-1], fps[-1]),
                    (-4, 6),
                    textcoords="offset points",
                    ha="right",
                    color=INK,
                    fontsize=9,
                )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(nodes, [str(each) for each in nodes])
    axes.set_xlabel("nodes")
    axes.set_ylabel("timesteps per second")
    axes.set_title(kind, loc="left")
    if kind == GROWING:
        axes.plot([], [], color="0.6", linestyle=":", label="every core as fast as alone")
        axes.plot([], [], color=BLUE, label=f"{link_name(*BEST)}")
        axes.plot([], [], color=VERMILION, label=f"{link_name(*WORST)}")
        axes.legend(frameon=False, fontsize=9, loc="upper left")


def draw_reductions(axes: Axes, grid: Grid) -> None:
    """Seconds of an all-reduce by ranks, of a short message and of a gradient."""
    data, machine = grid.data, grid.data.machine()
    size = max(next(iter(data.links.values())))
    link = link_hop(machine.wire, 1e9, 0.0)
    short = [1e3 * sum(ring_parts(32, 1, each, link, machine.local).values()) for each in RANKS]
    apart = [1e3 * sum(ring_parts(size, each, 1, link, machine.local).values()) for each in RANKS]
    tree = [
        1e3
        * sum(
            hierarchical_parts(
                size, max(1, each // 64), min(64, each), link, machine.local, machine.memory_bandwidth
            ).values()
        )
        for each in RANKS
    ]
    axes.plot(RANKS, short, color=BLUE)
    axes.plot(RANKS, apart, color=VERMILION)
    axes.plot(RANKS, tree, color="#009E73", linestyle="--")
    here = data.ranks("here")
    axes.plot(list(here), [1e3 * each["all_reduce"][32] for each in here.values()], "o", color=BLUE, zorder=3)
    far = data.ranks("apart")
    axes.plot(
        list(far), [1e3 * each["all_reduce"][size] for each in far.values()], "s", color=VERMILION, zorder=3
    )
    for text, series, colour in (
        ("32 bytes, one node", short, BLUE),
        (f"{size / 1e6:.1f} MB, a node each, 1 Gb/s", apart, VERMILION),
        (f"{size / 1e6:.1f} MB if nodes of 64 summed first", tree, "#009E73"),
    ):
        axes.annotate(
            text,
            (RANKS[-1], series[-1]),
            (0, 5),
            textcoords="offset points",
            ha="right",
            color=colour,
            fontsize=9,
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(RANKS[::2], [f"{each:,}" for each in RANKS[::2]])
    axes.set_xlabel("ranks")
    axes.set_ylabel("milliseconds")
    axes.set_title("One all-reduce", loc="left")


def draw_shares(axes: Axes, grid: Grid, network: str) -> None:
    """What an update of PPO goes to, by nodes of 64 cores."""
    cores = SIZES[-1]
    link = grid.link(*BEST)
    bottoms = [0.0] * len(NODES)
    stacks: dict[str, list[float]] = {"useful": [], **{name: [] for name in COSTS}}
    for nodes in NODES:
        prediction = grid.predict(GROWING, network, nodes, cores, link)
        found = costs(prediction, grid.ideal_learn(GROWING, network))
        for name, seconds in found.items():
            stacks[name].append(100 * seconds / prediction.seconds)
        stacks["useful"].append(100 - sum(100 * each / prediction.seconds for each in found.values()))
    for name, values in stacks.items():
        if max(values) < 1:
            continue
        label = COSTS.get(name, "acting and learning")
        axes.bar(range(len(NODES)), values, bottom=bottoms, color=SHADES[name], label=label, width=0.8)
        bottoms = [low + value for low, value in zip(bottoms, values)]
    axes.set_xticks(range(len(NODES)), [str(each) for each in NODES])
    axes.set_xlabel(f"nodes of {cores} cores, {link_name(*BEST)}")
    axes.set_ylabel("% of an update")
    axes.set_ylim(0, 100)
    axes.grid(False)
    axes.set_title("Where PPO's time goes", loc="left")
    axes.legend(frameon=True, framealpha=0.9, edgecolor="none", fontsize=8.5, loc="lower left")


def draw_check(axes: Axes, grid: Grid) -> None:
    """Computed against measured timesteps per second of two hosts with a core each."""
    rows: list[dict[str, Any]] = grid.data.content.get("check", [])
    values = [each[name] for each in rows for name in ("measured_fps", "predicted_fps")]
    if not values:
        return
    low, high = min(values) / 1.4, max(values) * 1.4
    axes.plot((low, high), (low, high), color="0.6", linewidth=1)
    axes.fill_between(
        (low, high), (low * (1 - BAND), high * (1 - BAND)), (low * (1 + BAND), high * (1 + BAND)), color="0.9"
    )
    for network, marker in (("nature", "o"), ("impala", "s")):
        for rate, colour in ((True, VERMILION), (False, BLUE)):
            chosen = [
                each
                for each in rows
                if each["network"] == network and each["link"].startswith("100 Mb/s") == rate
            ]
            if chosen:
                label = f"{network}, {'100 Mb/s' if rate else '1 or 10 Gb/s'}"
                axes.plot(
                    [each["measured_fps"] for each in chosen],
                    [each["predicted_fps"] for each in chosen],
                    marker, color=colour, label=label, markeredgecolor="white",
                )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_xlabel("measured, timesteps per second")
    axes.set_ylabel("computed")
    axes.set_title("Two hosts with a core each, ±15 %", loc="left")
    axes.legend(frameon=False, fontsize=9, loc="upper left")
