"""cluster_scaling.json: what was measured, kept part by part, and what the model takes from it."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from perf.cluster_scaling.model import Computing, LowRank, Machine
from perf.cluster_scaling.ring import Points, Sharing, fit_hop
from rlcb.cpu import describe_machine
from rlcb.files import write_json
from rlcb.software import describe_software

NAME = "cluster_scaling"


def link_name(rate: float, delay: float) -> str:
    """Return the name of a link, such as "1 Gb/s + 0.1 ms"; `rate` in bits/s, one-way `delay` in seconds."""
    if rate == inf:
        text = "no limit"
    else:
        text = f"{rate / 1e9:g} Gb/s" if rate >= 1e9 else f"{rate / 1e6:g} Mb/s"
    return f"{text} + {delay * 1e3:g} ms" if delay else text


@dataclass(frozen=True)
class Data:
    """The content of cluster_scaling.json."""

    content: dict[str, Any]

    def part(self, name: str) -> Any:
        """Return the measurements of a part. If there are none, exit and say how to make them."""
        if name not in self.content:
            part = "links" if name == "ranks" else name
            sys.exit(f"perf.cluster_scaling: nothing measured yet of {part}: run --only {part} first")
        return self.content[name]

    @property
    def links(self) -> dict[str, dict[str, Points]]:
        """Link -> way -> bytes -> seconds of a sum of two ranks: with gloo's `all_reduce`, and `direct`."""
        return {
            name: {way: _points(found[way]) for way in ("all_reduce", "direct")}
            for name, found in self.part("links").items()
        }

    def ranks(self, where: str) -> dict[int, dict[str, Any]]:
        """Number of ranks -> what was found; `where` is "here" (one host), "apart" (each on its own, with
        1 Gb/s) or "far" (and with 1 ms between them)."""
        found = self.part("ranks")[where]
        return {
            int(count): {**each, **{way: _points(each[way]) for way in ("all_reduce", "direct")}}
            for count, each in found.items()
        }

    @property
    def networks(self) -> tuple[str, ...]:
        return tuple(self.part("compute")["networks"])

    def thread_efficiency(self, network: str) -> float:
        """Return the speed of each of two threads of a process, relative to a process of one thread."""
        return float(self.part("compute")["networks"][network]["thread_efficiency"])

    def computing(self, network: str) -> Computing:
        measured = dict(self.part("compute")["networks"][network])
        del measured["thread_efficiency"]
        measured["act"] = _points(measured["act"])
        measured["learn"] = {name: _points(each) for name, each in measured["learn"].items()}
        measured["low_rank"] = LowRank(**measured["low_rank"])
        return Computing(**measured)

    @property
    def state_bytes(self) -> float:
        """Return the bytes of one environment's state in a snapshot."""
        return float(self.part("compute")["machine"]["state_bytes"])

    def machine(self) -> Machine:
        """Return the model's values for a node. Hops are measured with two ranks of one core each."""
        compute = self.part("compute")
        measured = compute["machine"]
        here = self.ranks("here")
        hidden = self.part("links")[link_name(1e9, 0.0)]["hidden"]
        return Machine(
            local=fit_hop(here[min(here)]["all_reduce"]),
            wire=fit_hop(*self.links[link_name(inf, 0.0)].values()),
            sharing=Sharing(**measured["sharing"]),
            gather_seconds=slope({count: each["gather"] for count, each in here.items()}),
            index_seconds=_points(measured["index_seconds"]),
            hidden_share=statistics.mean(hidden.values()),
            measured_cores=compute["cores"],
        )


def slope(points: Points) -> float:
    """Return the slope of the line through the smallest and the largest size, at least 0."""
    first, last = min(points), max(points)
    return max(0.0, (points[last] - points[first]) / (last - first))


def _points(measured: Mapping[Any, float]) -> dict[int, float]:
    return {int(size): seconds for size, seconds in measured.items()}


def load(folder: Path) -> Data:
    path = folder / f"{NAME}.json"
    return Data(json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})


def merge(folder: Path, found: Mapping[str, Any]) -> None:
    """Keep what a part has found beside what the others have."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {"machine": describe_machine(), "software": describe_software()}
    write_json(folder / f"{NAME}.json", {**load(folder).content, **about, **found})
