"""Fair measurements on a shared machine: alternatives in turn, medians, and ratios within each round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcb.cpu import describe_machine
from rlcb.files import write_json
from rlcb.software import describe_software

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Comparison:
    """Rates of several alternatives, measured in turn: one list a name, entries of one round side by side."""

    rates: dict[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.rates[name])

    def ratio(self, name: str, base: str) -> float:
        """Return the median over rounds of the ratio within a round, which cancels the machine's drift."""
        return statistics.median(a / b for a, b in zip(self.rates[name], self.rates[base], strict=True))


def interleave(alternatives: Mapping[str, Callable[[], float]], rounds: int) -> Comparison:
    """Call each alternative once per round; each returns a rate (units per second)."""
    rates: dict[str, list[float]] = {name: [] for name in alternatives}
    for number in range(rounds):
        for name, measure in alternatives.items():
            rate = measure()
            rates[name].append(rate)
            print(f"  round {number + 1}/{rounds}  {name:<44} {rate:>12,.1f} /s", flush=True)
    return Comparison(rates)


def rate(work: Callable[[], None], units: int, at_least_seconds: float = 1.0) -> float:
    """Return the units per second of `work`, repeated until `at_least_seconds` have passed."""
    start, done = time.perf_counter(), 0
    while True:
        work()
        done += units
        seconds = time.perf_counter() - start
        if seconds >= at_least_seconds:
            return done / seconds


def table(comparison: Comparison, base: str, unit: str, base_name: str | None = None) -> str:
    """Return a Markdown table: median, range, and the median ratio to `base`."""
    lines = [f"| what | {unit}, median | range | ratio to {base_name or base} |", "|---|---|---|---|"]
    for name, values in comparison.rates.items():
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        lines.append(
            f"| {name} | {statistics.median(values):,.0f} | {spread} | {comparison.ratio(name, base):.2f} |"
        )
    return "\n".join(lines)


def save(name: str, text: str, data: dict[str, Any]) -> None:
    """Write perf/results/<name>.md and .json, with the machine and the versions."""
    RESULTS.mkdir(exist_ok=True)
    machine = describe_machine()
    heading = (
        f"{machine['cpu_model']}, {machine['usable_cores']} usable cores, {machine['ram_gb']:.0f} GB; "
        f"torch {describe_software()['torch']}"
    )
    (RESULTS / f"{name}.md").write_text(f"{text.rstrip()}\n\n{heading}\n", encoding="utf-8")
    write_json(RESULTS / f"{name}.json", {"machine": machine, "software": describe_software(), **data})
    print(f"\n{text}\n\nwritten to {RESULTS / name}.md and .json")
