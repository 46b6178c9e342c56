"""The picture of a profile: the roofline of one core, with the measured layers and passes of the network."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlcb.machine.limits import NotMeasured, seconds_by_size
from rlcb.machine.profile import LayerSpeed, Profile
from rlcb.plots.style import BLUE, GREEN, GREY, INK, PURPLE, STYLE, VERMILION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEFT, LIST = 0.07, 0.665  # left edges of the axes and of the list, as shares of the width
LINE = 0.042  # distance of two lines of the list, as a share of the height
LABEL: dict[str, Any] = {"textcoords": "offset points", "fontsize": 10}
LITTLE = 0.005  # layers that take a smaller share of a forward pass are left out


class WholePass(NamedTuple):
    """The speed of a pass of the whole network, and the colour that shows it."""

    name: str
    gflops: float
    colour: str


def draw_roofline(profile: Profile) -> Figure:
    """Draw the operations per second of one busy core over the operations per byte, both logarithmic.

    The roofs are measured: the best matrix product or convolution, and copies in memory and in the cache.
    Dots are the layers of a forward pass. Bars are the whole network, at its operations per byte. A list
    beside the axes names dots and bars.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(12, 6.6))
        figure.subplots_adjust(left=LEFT, right=0.63, bottom=0.11, top=0.83)
        ax = figure.add_subplot()
        layers, whole = main_layers(profile), whole_passes(profile)
        place = profile.network.forward_flops / sum(each.bytes for each in profile.layers)
        places = [*(each.flops / each.bytes for each in layers), place]
        set_axes(ax, profile, places, [*map(gflops, layers), *(each.gflops for each in whole)])
        draw_roofs(ax, profile)
        for each in whole:
            ax.plot(place, each.gflops, "_", color=each.colour, markersize=30, markeredgewidth=4)
        draw_layers(ax, layers)
        list_passes(figure, layers, whole)
        machine, name = profile.machine, profile.network.name
        title = f"What a core does with the {name} network in {profile.precision}"
        figure.text(LEFT, 0.955, title, fontsize=17, fontweight="bold", va="center")
        busy = "its one core" if machine.usable_cores == 1 else f"all {machine.usable_cores} cores"
        where = f"{machine.cpu_model} · one thread, {busy} busy · {profile.layers_size} samples at once"
        figure.text(LEFT, 0.905, where, color=GREY, va="center")
    return figure


def gflops(layer: LayerSpeed) -> float:
    """Return a layer's speed in GFLOP/s."""
    return layer.flops / layer.seconds / 1e9


def main_layers(profile: Profile) -> list[LayerSpeed]:
    """Return the layers that take at least LITTLE of the time, by operations per byte."""
    total = sum(each.seconds for each in profile.layers)
    kept = [each for each in profile.layers if each.seconds >= LITTLE * total]
    return sorted(kept, key=lambda each: each.flops / each.bytes)


def whole_passes(profile: Profile) -> list[WholePass]:
    """Return the measured passes of the whole network, each at its fastest size."""
    network, own = profile.network, profile.precision
    other = "bfloat16" if own == "float32" else "float32"
    wanted = (
        ("forward", profile.forward, (own, "channels_last"), GREEN),
        ("forward and backward", profile.forward_backward, (own, "channels_last"), BLUE),
        ("forward and backward, PyTorch's kernels", profile.forward_backward, (own, "torch"), VERMILION),
        (f"forward and backward, {other}", profile.forward_backward, (other, "channels_last"), PURPLE),
    )
    found = []
    for name, speeds, how, colour in wanted:
        flops = network.forward_flops if name == "forward" else network.forward_backward_flops
        try:
            found.append(
                WholePass(name, flops / min(seconds_by_size(speeds, 1, *how).values()) / 1e9, colour)
            )
        except NotMeasured:
            continue
    return found


def draw_roofs(ax: Axes, profile: Profile) -> None:
    """Draw the lines that limit a core: memory, cache and best kernel."""
    machine = profile.machine
    peak, bf16 = machine.peak_flops / 1e9, machine.peak_flops_bfloat16
    memory, cache = machine.memory_bandwidth / 1e9, machine.cache_bandwidth / 1e9
    xs = np.geomspace(*ax.get_xlim(), 400)
    for name, bandwidth, colour in (("memory", memory, INK), ("its cache", cache, GREY)):
        ax.plot(xs, np.minimum(peak, bandwidth * xs), color=colour, linewidth=2)
        # Place the words on the slope, low enough to fit below the roof's edge.
        low = max(ax.get_ylim()[0], bandwidth * ax.get_xlim()[0])
        height = low * (peak / low) ** 0.12
        place = (height / bandwidth, height)
        first, second = ax.transData.transform([place, (2 * place[0], 2 * place[1])])
        slope = math.degrees(math.atan2(second[1] - first[1], second[0] - first[0]))
        style: dict[str, Any] = {"rotation": slope, "rotation_mode": "anchor", "color": colour}
        ax.annotate(f"{name}: {bandwidth:,.0f} GB/s", place, (0, 6), **style, **LABEL)
    edge = max(peak / cache, ax.get_xlim()[0])
    ax.annotate(f"best kernel: {peak:,.0f} GFLOP/s", (edge, peak), (2, 6), color=GREY, **LABEL)
    if bf16 is not None:
        words = f"best kernel in bfloat16: {bf16 / 1e9:,.0f} GFLOP/s"
        ax.axhline(bf16 / 1e9, color=GREY, linewidth=1.5, linestyle=(0, (4, 3)))
        ax.annotate(words, (edge, bf16 / 1e9), (2, 6), color=GREY, **LABEL)


def draw_layers(ax: Axes, layers: list[LayerSpeed]) -> None:
    """Draw the numbered dots; the numbers alternate between left and right, so that they do not overlap."""
    for number, each in enumerate(layers, 1):
        x, y = each.flops / each.bytes, gflops(each)
        ax.plot(x, y, "o", color=INK, markersize=7, markeredgecolor="white", zorder=3)
        side = -1 if number % 2 else 1
        style: dict[str, Any] = {"ha": "right" if number % 2 else "left", "va": "center", "color": INK}
        style["bbox"] = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        ax.annotate(str(number), (x, y), (6 * side, 2), **style, **LABEL)


def list_passes(figure: Figure, layers: list[LayerSpeed], whole: list[WholePass]) -> None:
    """Draw the list beside the axes: GFLOP/s of the whole network and of its layers."""
    top = 0.83

    def line(text: str, value: str, colour: str, bold: bool = False) -> None:
        nonlocal top
        weight = "bold" if bold else "normal"
        figure.text(LIST, top, text, color=colour, fontsize=10.5, fontweight=weight, va="top")
        figure.text(0.985, top, value, color=colour, fontsize=10.5, fontweight=weight, va="top", ha="right")
        top -= LINE

    line("whole network", "GFLOP/s", GREY)
    for each in whole:
        line(each.name, f"{each.gflops:,.0f}", each.colour, bold=True)
    top -= LINE / 2
    line("layers, forward", "GFLOP/s", GREY)
    for number, layer in enumerate(layers, 1):
        line(f"{number}  {layer.name}", f"{gflops(layer):,.0f}", INK)


def set_axes(ax: Axes, profile: Profile, places: list[float], heights: list[float]) -> None:
    """Set scales, limits and labels; the limits include all points and the points where the roofs meet."""
    from matplotlib.ticker import FuncFormatter

    machine = profile.machine
    top = max(machine.peak_flops, machine.peak_flops_bfloat16 or 0.0) / 1e9
    edge = machine.peak_flops / machine.cache_bandwidth
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xlim(min(*places, edge) / 4, max(*places, machine.peak_flops / machine.memory_bandwidth) * 4)
    ax.set_ylim(min(heights) / 4, max(top, *heights) * 1.5)
    plain = FuncFormatter(lambda value, _: f"{value:g}" if value < 1 else f"{value:,.0f}")
    ax.xaxis.set_major_formatter(plain)
    ax.yaxis.set_major_formatter(plain)
    ax.set_xlabel("operations per byte moved (calculated)")
    ax.set_ylabel("GFLOP/s of a core (measured)")
