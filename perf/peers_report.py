"""The tables of the field: from what was measured to Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.measure import Comparison
from perf.peers_cases import BARS, BASE, CASES, SIDES, Bar, Case
from src.errors import UsageError
from src.terminal import counted

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NAMES = {
    "python": "Python",
    "torch": "torch",
    "numpy": "NumPy",
    "procgen": "Procgen",
    "gymnasium": "Gymnasium",
    "stable-baselines3": "Stable-Baselines3",
    "sample-factory": "Sample Factory",
    "cleanrl": "CleanRL",
    "gym": "Gym",
    "shimmy": "Shimmy",
}

Round = Mapping[str, Mapping[str, Any]]
"""Of one round: what `Measurement.to_dict` gave, by side."""


def column(rounds: Sequence[Round], side: str, key: str) -> list[float]:
    return [each[side][key] for each in rounds]


def comparison(rounds: Sequence[Round], key: str) -> Comparison:
    """A figure of all sides that every round has."""
    sides = [side for side in SIDES if all(side in each for each in rounds)]
    return Comparison({side: column(rounds, side, key) for side in sides})


def case_table(case: Case, rounds: Sequence[Round], unavailable: Mapping[str, str]) -> str:
    """A row a side: timesteps per second, ratio to BASE within a round, memory."""
    fps, memory = comparison(rounds, "fps"), comparison(rounds, "peak_memory_mb")
    lines = [
        f"| who | timesteps/s, median | range | ratio to {SIDES[BASE].title} | peak memory, MB |",
        "|---|---|---|---|---|",
    ]
    for side in case.sides:
        title = SIDES[side].title
        if side not in fps.rates:
            lines.append(f"| {title} | did not run: {unavailable.get(side, 'not measured')} | | | |")
            continue
        values = fps.rates[side]
        ratio = f"{fps.ratio(side, BASE):.2f}" if BASE in fps.rates else ""
        lines.append(
            f"| {title} | {fps.median(side):,.0f} | {min(values):,.0f} to {max(values):,.0f} | {ratio} | "
            f"{memory.median(side):,.0f} |"
        )
    return "\n".join(lines)


def verdict(bar: Bar, rounds: Sequence[Round]) -> tuple[float, bool] | None:
    """The ratio that was reached, and whether that is enough; None if a side was not measured."""
    ratios = comparison(rounds, "peak_memory_mb" if bar.memory else "fps")
    if not rounds or not {bar.side, bar.base} <= ratios.rates.keys():
        return None
    ratio = ratios.ratio(bar.side, bar.base)
    return ratio, ratio <= bar.bar if bar.memory else ratio >= bar.bar


def bars_table(measured: Mapping[str, Sequence[Round]], bars: Sequence[Bar] = BARS) -> str:
    lines = ["| workload | what | bar | reached | |", "|---|---|---|---|---|"]
    for bar in bars:
        found = verdict(bar, measured.get(bar.case, ()))
        if found is None:
            continue
        ratio, enough = found
        what = f"{SIDES[bar.side].title}, against {SIDES[bar.base].title}"
        limit = f"memory at most {bar.bar:g} x" if bar.memory else f"at least {bar.bar:g} x"
        aim = f" (aim {bar.aim:g} x)" if bar.aim else ""
        lines.append(
            f"| {bar.case} | {what} | {limit}{aim} | {ratio:.2f} x | {'yes' if enough else '**no**'} |"
        )
    return "\n".join(lines)


def versions_table(measured: Mapping[str, Sequence[Round]]) -> str:
    """What each side ran on in its last round."""
    found: dict[str, dict[str, str]] = {}
    for rounds in measured.values():
        for each in rounds:
            found |= {side: dict(figures["versions"]) for side, figures in each.items()}
    lines = ["| who | versions |", "|---|---|"]
    for side in SIDES:
        if side in found:
            words = [f"{name} {found[side][key]}" for key, name in NAMES.items() if key in found[side]]
            lines.append(f"| {SIDES[side].title} | {', '.join(words)} |")
    return "\n".join(lines)


def report(data: Mapping[str, Any]) -> str:
    """All tables, from the content of perf/results/peers.json."""
    machine, measured = data["machine"], data["rounds"]
    parts = [
        f"{machine['cpu_model']}, {machine['usable_cores']} usable cores, {machine['ram_gb']:.0f} GB.",
        bars_table(measured),
    ]
    for case in CASES:
        rounds = measured.get(case.name, [])
        if rounds:
            others = [figures["others_percent"] for each in rounds for figures in each.values()]
            parts += [
                f"### {case.name}",
                f"{case.describe()}.",
                f"{counted(len(rounds), 'round')}; other programs took {statistics.median(others):.0f} % of "
                f"the processor meanwhile (median over the rows; {max(others):.0f} % at the most).",
                case_table(case, rounds, data["unavailable"]),
            ]
    return "\n\n".join([*parts, "### Versions", versions_table(measured)])


def write_between_marks(path: Path, text: str) -> None:
    """Replace what stands between the two marks of a document; what people wrote around them stays."""
    document = path.read_text(encoding="utf-8")
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UsageError(f"{path} must have the lines {BEGIN} and {END}, between which the tables go")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
