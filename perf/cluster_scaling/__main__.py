"""What training over several nodes gains, and where the network binds: measured here, computed for clusters.

    venv/bin/python -m perf.cluster_scaling                     # everything: about half an hour, as root
    venv/bin/python -m perf.cluster_scaling --only report       # tables and plots from what was measured
    venv/bin/python -m perf.cluster_scaling --quick             # each part once and briefly: two minutes

The parts, each of which keeps what it found in cluster_scaling.json, for those after it:

    compute   what a core takes to act and to learn while all cores do, by network and size
    links     sums of two network namespaces over links of given rates and delays, and of more and more ranks
    check     training of two namespaces with a core each, against what the model says from the parts before
    report    predictions for 2 to 128 nodes of 8 to 64 cores, cluster_scaling.md and cluster_scaling.png

docs/scaling.md explains the model. Namespaces need root and iproute2; compute and report do not.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Any

from perf.cluster_scaling import check as checks
from perf.cluster_scaling import pieces
from perf.cluster_scaling.data import link_name, load, merge
from perf.cluster_scaling.link import hosts, require_namespaces, this_machine
from perf.cluster_scaling.reduce import SMALL, all_reduce_times
from perf.measure import RESULTS

PARTS = ("compute", "links", "check", "report")
NETWORKS = ("nature", "impala")
LINKS = (
    (inf, 0.0),
    (1e10, 0.0),
    (1e9, 0.0),
    (1e8, 0.0),
    (1e9, 1e-4),
    (1e9, 3e-4),
    (1e9, 1e-3),
    (1e10, 1e-4),
    (1e10, 1e-3),
)
QUICK_LINKS = ((inf, 0.0), (1e9, 0.0), (1e9, 1e-3))
SIZES = (SMALL, 1_369_792, 2_505_024)  # a few numbers, the gradients of the two networks
ENDS = (SIZES[0], SIZES[-1])
RANKS = (2, 4, 8, 16)
LINK_SECONDS, RUN_SECONDS = 0.6, 7.0


def measure_compute(quick: bool) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    seconds = 0.1 if quick else pieces.PIECE_SECONDS
    networks = {}
    for network in NETWORKS[:1] if quick else NETWORKS:
        networks[network] = pieces.measure_network(network, cores, seconds)
        learn = networks[network]["learn"]["ppo"]
        print(
            f"  {network}: a step on {max(learn)} samples takes a core {learn[max(learn)]:.3f} s", flush=True
        )
    machine = pieces.measure_machine(cores, seconds)
    return {"compute": {"networks": networks, "machine": machine, "cores": len(cores)}}


def measure_links(quick: bool) -> dict[str, Any]:
    require_namespaces()
    seconds = 0.2 if quick else LINK_SECONDS
    links: dict[str, Any] = {}
    ranks: dict[str, Any] = {}
    for rate, delay in QUICK_LINKS if quick else LINKS:
        name = link_name(rate, delay)
        with hosts(2, rate, delay) as place:
            links[name] = found = all_reduce_times(place, 1, SIZES, seconds)
        times = ", ".join(f"{size:,} bytes {1e3 * each:.2f} ms" for size, each in found["all_reduce"].items())
        print(f"  {name}: {times}", flush=True)
    counts = RANKS[:2] if quick else RANKS
    place = this_machine(1)
    ranks["here"] = {n: all_reduce_times(place, n, ENDS, seconds) for n in counts}
    for where, delay in (("apart", 0.0), ("far", 1e-3)):
        ranks[where] = {}
        for count in counts[:-1]:
            with hosts(count, 1e9, delay) as place:
                ranks[where][count] = all_reduce_times(place, 1, ENDS, seconds)
    return {"links": links, "ranks": ranks}


def measure_check(quick: bool, folder: Path, wanted: str, rounds: int) -> dict[str, Any]:
    """Cases take turns; each is kept as soon as it has run, in the place of what it came to before."""
    require_namespaces()
    data, seconds = load(folder), 2.0 if quick else RUN_SECONDS
    rows = {tuple(row[name] for name in checks.KEY): row for row in data.content.get("check", [])}
    runs: dict[checks.Case, list[dict[str, Any]]] = {
        case: []
        for case in (checks.QUICK_CASES if quick else checks.CASES)
        if wanted.lower() in f"{case.name}, {link_name(case.rate, case.delay)}".lower()
    }
    for _ in range(1 if quick else rounds):
        for case in runs:
            computing = data.computing(case.network)
            row = checks.check(case, data.links, computing, data.machine(), seconds, runs[case])
            runs[case] = row["runs"]
            rows[tuple(row[name] for name in checks.KEY)] = row
            merge(folder, {"check": list(rows.values())})
    return {"check": list(rows.values())}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m perf.cluster_scaling",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help="parts to do")
    parser.add_argument("--quick", action="store_true", help="briefly; the figures are not worth keeping")
    parser.add_argument("--cases", default="", metavar="TEXT", help="check only cases named like this")
    parser.add_argument(
        "--rounds", type=int, default=3, help="of the check; its figures are medians (default: 3)"
    )
    parser.add_argument(
        "--output-dir", type=Path, help="where results are and go (perf/results; cluster_scaling_quick)"
    )
    options = parser.parse_args(arguments)
    folder = options.output_dir or (Path("cluster_scaling_quick") if options.quick else RESULTS)
    if os.geteuid() != 0 and {"links", "check"} & set(options.only):
        sys.exit("perf.cluster_scaling: links and check need root, for network namespaces; see --only")
    from perf.cluster_scaling.report import report

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # namespaces are removed then
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "compute": lambda: measure_compute(options.quick),
        "links": lambda: measure_links(options.quick),
        "check": lambda: measure_check(options.quick, folder, options.cases, options.rounds),
    }
    for part in PARTS:
        if part in options.only:
            print(part, flush=True)
            if part == "report":
                report(folder, load(folder))
            else:
                merge(folder, work[part]())


if __name__ == "__main__":
    main()
