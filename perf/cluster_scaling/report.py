"""cluster_scaling.md and the picture: what was measured, what is computed from it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from perf.cluster_scaling.data import NAME, Data, link_name
from perf.cluster_scaling.figure import draw
from perf.cluster_scaling.grid import COSTS, HALF, KINDS, LINKS, NODES, WAYS, Grid, costs, first_below
from perf.cluster_scaling.model import Machine, way_parts
from perf.cluster_scaling.ring import Hop, link_hop
from rlcb.cpu import describe_machine
from rlcb.software import describe_software

ALLOWED = 0.15  # by which a prediction may miss a measurement
SHOWN_LINKS = (LINKS[0], LINKS[-1])
SHARES_AT = (1, 8, 32, 128)  # nodes
REMEDIES_AT = ((4, 16), (32, 32))  # nodes, cores


def report(folder: Path, data: Data) -> list[dict[str, Any]]:
    """Write both into `folder`; returns the predictions."""
    grid = Grid(data)
    rows = grid.rows()
    parts = [
        check_text(data),
        pieces_text(data),
        links_text(data),
        ranks_text(data),
        predictions_text(rows),
        binding_text(rows),
        shares_text(grid),
        remedies_text(grid),
    ]
    machine, software = describe_machine(), describe_software()
    foot = (
        f"{machine['cpu_model']}, {machine['usable_cores']} usable cores, {machine['ram_gb']:.0f} GB; "
        f"torch {software['torch']}"
    )
    text = "\n\n".join(["# Scaling over nodes", *(each for each in parts if each), foot])
    (folder / f"{NAME}.md").write_text(text + "\n", encoding="utf-8")
    draw(grid, folder / f"{NAME}.png")
    print(f"\n{parts[0]}\n\nwritten to {folder / NAME}.md, .json and .png")
    return rows


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:,.2f}"


def check_text(data: Data) -> str:
    """Measured training of two hosts beside its prediction."""
    if "check" not in data.content:
        return "Nothing was checked: run --only check."
    rows, errors = [], []
    for each in data.part("check"):
        error = each["predicted_fps"] / each["measured_fps"] - 1
        errors.append(abs(error))
        fps = f"{each['predicted_fps']:,.0f}", f"{each['measured_fps']:,.0f}"
        measured = [run["fps"] for run in each["runs"]]
        spread = f"{min(measured):,.0f} to {max(measured):,.0f}"
        rows.append((each["case"], each["link"], *fps, spread, f"{error:+.0%}"))
    within = sum(error <= ALLOWED for error in errors)
    return "\n\n".join(
        [
            "## Measured: two hosts with a core each, and what the model says of them",
            table(("training", "link", "computed, timesteps/s", "measured", "range", "error"), rows),
            "Measured: medians of as many runs as there were rounds, and what they ranged over.",
            f"{within} of {len(rows)} within {ALLOWED:.0%}; median of the errors "
            f"{statistics.median(errors):.0%}, largest {max(errors):.0%}.",
        ]
    )


def pieces_text(data: Data) -> str:
    """Measured pieces of computing."""
    rows = []
    for network in data.networks:
        pieces = data.computing(network)
        envs, samples = max(pieces.act), max(pieces.learn["ppo"])
        rows.append(
            (
                network,
                f"{pieces.parameters:,}",
                milliseconds(pieces.act[envs] / envs),
                milliseconds(pieces.learn["ppo"][samples] / samples),
                milliseconds(
                    pieces.learn["impala"][max(pieces.learn["impala"])] / max(pieces.learn["impala"])
                ),
                milliseconds(pieces.learn["ppo"][0]),
                f"{pieces.beta:.1%}",
                f"{pieces.noise:.1%}",
            )
        )
    heads = (
        "network", "parameters", "act, ms a timestep", "PPO learns, ms a timestep", "IMPALA learns",
        "optimiser alone, ms", "a further busy core costs", "spread of equal steps",
    )  # fmt: skip
    machine = data.machine()
    index = max(machine.index_seconds)
    return "\n\n".join(
        [
            "## Measured: a core, all cores busy",
            table(heads, rows),
            f"Shuffling {index:,} timesteps takes {1e3 * machine.index_seconds[index]:.0f} ms in every rank, "
            f"each further rank {1e3 * machine.gather_seconds:.2f} ms of rank 0 an update, a snapshot "
            f"{data.state_bytes / 1e3:.0f} kB an environment. A core adds vectors at "
            f"{machine.sharing.bandwidth / 1e9:.1f} GB/s; two processes that wait for each other go on "
            f"{1e6 * machine.sharing.meeting:.0f} us later.",
        ]
    )


def links_text(data: Data) -> str:
    """Measured sums between two hosts, and what the wire and the software's own time come to."""
    machine, rows = data.machine(), []
    for name, times in data.links.items():
        hop = machine.wire
        if name != link_name(inf, 0):
            hop = link_hop(hop, *parse_link(name))
        for way, seconds_of in times.items():
            for size, seconds in sorted(seconds_of.items()):
                computed = sum_seconds(way, size, 2, 1, hop, machine)
                cells = milliseconds(seconds), milliseconds(computed), f"{computed / seconds - 1:+.0%}"
                rows.append((name, way, f"{size:,}", *cells))
    return "\n\n".join(
        [
            "## Measured: sums of two hosts",
            table(("link, delay one way", "way", "bytes", "measured, ms", "computed, ms", "error"), rows),
            "Computed from the first link, which nothing limits, and from the rate and the delay.",
        ]
    )


def sum_seconds(way: str, size: int, nodes: int, per_node: int, hop: Hop, machine: Machine) -> float:
    """Return the computed seconds of a sum with gloo's `all_reduce` over all ranks, or `direct`."""
    names = {"all_reduce": "ring", "direct": "direct"}
    return sum(way_parts(names[way], size, nodes, per_node, hop, machine).values())


def parse_link(name: str) -> tuple[float, float]:
    """The rate in bits per second and the delay in seconds that `link_name` has named."""
    rate, _, delay = name.partition(" + ")
    number, unit = rate.split()
    return float(number) * {"Gb/s": 1e9, "Mb/s": 1e6}[unit], float(delay.removesuffix(" ms") or 0) / 1e3


def ranks_text(data: Data) -> str:
    """Measured sums of more and more ranks."""
    rows = []
    machine = data.machine()
    for where, title, link in (
        ("here", "one host", (inf, 0.0)),
        ("apart", "a host each, 1 Gb/s", (1e9, 0.0)),
        ("far", "a host each, 1 Gb/s + 1 ms", (1e9, 1e-3)),
    ):
        hop = link_hop(machine.wire, *link)
        for count, found in data.ranks(where).items():
            nodes = 1 if where == "here" else count
            for way in ("all_reduce", "direct"):
                for size, seconds in sorted(found[way].items()):
                    computed = sum_seconds(way, size, nodes, count // nodes, hop, machine)
                    cells = milliseconds(seconds), milliseconds(computed), found["connections"]
                    rows.append((title, count, way, f"{size:,}", *cells))
    heads = "where", "ranks", "way", "bytes", "measured, ms", "computed, ms", "open sockets of rank 0"
    return "\n\n".join(["## Measured: sums of more ranks, on the same cores", table(heads, rows)])


def predictions_text(rows: Sequence[dict[str, Any]]) -> str:
    """Timesteps per second and efficiency of clusters, for the best and the worst link."""
    texts = ["## Computed: timesteps per second, and efficiency against as many cores alone"]
    groups: dict[tuple[str, ...], dict[int, dict[int, str]]] = {}
    shown = {link_name(*link) for link in SHOWN_LINKS}
    for row in rows:
        if row["link"] in shown:
            key = tuple(row[name] for name in ("kind", "network", "link", "way"))
            text = f"{row['fps']:,.0f} ({row['efficiency']:.0%})"
            groups.setdefault(key, {}).setdefault(row["nodes"], {})[row["cores"]] = text
    for (kind, network, link, way), cells in groups.items():
        heads = ["nodes", *(f"{cores} cores" for cores in next(iter(cells.values())))]
        lines = [(nodes, *by_cores.values()) for nodes, by_cores in cells.items()]
        texts.append(f"### {kind}, {network} network, {link}, {way}\n\n{table(heads, lines)}")
    return "\n\n".join(texts)


def binding_text(rows: Sequence[dict[str, Any]]) -> str:
    """From how many nodes on less than half of the cores' time gains something, and what costs most there."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("kind", "network", "way", "link", "cores"))
        groups.setdefault(key, []).append(row)
    lines = []
    for key, group in groups.items():
        below = first_below([(each["nodes"], each["efficiency"]) for each in group], HALF)
        at = next((each for each in group if each["nodes"] == below), group[-1])
        where = f"{below}" if below else f"not up to {NODES[-1]}"
        lines.append((*key, where, at["largest_cost"]))
    heads = (
        "what",
        "network",
        "how",
        "link",
        "cores of a node",
        "below half from nodes",
        "what costs most there",
    )
    return f"## Computed: where more nodes gain less than half of what they cost\n\n{table(heads, lines)}"


def shares_text(grid: Grid) -> str:
    """Return the table of the shares of an update's time, for nodes of 32 cores on the best link."""
    lines = []
    for kind in KINDS:
        for network in grid.data.networks:
            for nodes in SHARES_AT:
                prediction = grid.predict(kind, network, nodes, 32, *SHOWN_LINKS[0])
                found = costs(prediction, grid.ideal_learn(kind, network))
                shares = [f"{found[name] / prediction.seconds:.0%}" for name in COSTS]
                useful = 1 - sum(found.values()) / prediction.seconds
                lines.append((kind, network, nodes, f"{prediction.seconds:.2f}", f"{useful:.0%}", *shares))
    heads = ("what", "network", "nodes", "an update, s", "acting and learning", *COSTS.values())
    title = f"## Computed: what an update goes to, nodes of 32 cores, {link_name(*SHOWN_LINKS[0])}"
    return f"{title}\n\n{table(heads, lines)}"


def remedies_text(grid: Grid) -> str:
    """Return the table of possible improvements for some clusters."""
    texts = []
    networks = grid.data.networks
    for nodes, cores in REMEDIES_AT:
        for link in SHOWN_LINKS:
            lines = []
            for way in WAYS:
                found = [
                    grid.predict(kind, network, nodes, cores, *link, way).fps
                    for kind in KINDS
                    for network in networks
                ]
                lines.append((way.name, *(f"{fps:,.0f}" for fps in found)))
            heads = ("timesteps/s", *(f"{kind}, {network}" for kind in KINDS for network in networks))
            title = f"### {nodes} nodes of {cores} cores, {link_name(*link)}"
            texts.append(f"{title}\n\n{table(heads, lines)}")
    return "\n\n".join(["## Computed: what would help", *texts])
