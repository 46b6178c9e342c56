"""The tables of the field: from what was measured to Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.peers.cases import BARS, BASE, CASES, SIDES, Bar, Case
from rlcb.errors import UsageError
from rlcb.text import counted

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
ENOUGH = 3  # rounds, for a ratio to be held against a bar
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
    "git_commit": "commit",
}

Round = Mapping[str, Mapping[str, Any]]
"""Of one round: what `Measurement.to_dict` gave, by side; a side that failed in it is not there."""


def column(rounds: Sequence[Round], side: str, key: str) -> list[float]:
    """Return a value of a side in every round that has the side."""
    return [each[side][key] for each in rounds if side in each]


def ratios(rounds: Sequence[Round], side: str, base: str, key: str) -> list[float]:
    """Return the ratio of a value to that of `base` in every round that has both sides."""
    return [each[side][key] / each[base][key] for each in rounds if side in each and base in each]


def case_table(case: Case, rounds: Sequence[Round], reasons: Mapping[str, str]) -> str:
    """Return the table of a case: a row for each side.

    A row has timesteps per second, the ratio to BASE within a round, and memory. `reasons` say why sides did
    not run.
    """
    lines = [
        f"| who | timesteps/s, median | range | ratio to {SIDES[BASE].title} | peak memory, MB |",
        "|---|---|---|---|---|",
    ]
    for side in case.sides:
        title, rates = SIDES[side].title, column(rounds, side, "fps")
        if not rates:
            lines.append(f"| {title} | did not run: {reasons.get(side, 'not measured')} | | | |")
            continue
        if len(rates) < len(rounds):
            title += f" ({len(rates)} of {counted(len(rounds), 'round')})"
        found = ratios(rounds, side, BASE, "fps")
        ratio = f"{statistics.median(found):.2f}" if found else ""
        memory = statistics.median(column(rounds, side, "peak_memory_mb"))
        spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
        lines.append(f"| {title} | {statistics.median(rates):,.0f} | {spread} | {ratio} | {memory:,.0f} |")
    return "\n".join(lines)


def verdict(bar: Bar, rounds: Sequence[Round]) -> tuple[float, bool] | None:
    """The median ratio that was reached, and whether that is enough; None if no round has both sides."""
    found = ratios(rounds, bar.side, bar.base, "peak_memory_mb" if bar.memory else "fps")
    if not found:
        return None
    ratio = statistics.median(found)
    return ratio, ratio <= bar.bar if bar.memory else ratio >= bar.bar


def bars_table(measured: Mapping[str, Sequence[Round]], bars: Sequence[Bar] = BARS) -> str:
    """A row a bar; only ENOUGH rounds with both sides say yes or no."""
    lines = ["| workload | what | bar | reached | |", "|---|---|---|---|---|"]
    for bar in bars:
        rounds = measured.get(bar.case, ())
        found = verdict(bar, rounds)
        reached, words = "", "not measured"
        if found is not None:
            count = len(ratios(rounds, bar.side, bar.base, "fps"))
            reached, words = f"{found[0]:.2f} x", "yes" if found[1] else "**no**"
            if count < ENOUGH:
                words = f"not enough rounds: {count} of {ENOUGH}"
        what = f"{SIDES[bar.side].title}, against {SIDES[bar.base].title}"
        limit = f"memory at most {bar.bar:g} x" if bar.memory else f"at least {bar.bar:g} x"
        aim = f" (aim {bar.aim:g} x)" if bar.aim else ""
        lines.append(f"| {bar.case} | {what} | {limit}{aim} | {reached} | {words} |")
    return "\n".join(lines)


def versions_table(measured: Mapping[str, Sequence[Round]]) -> str:
    """Return the table of versions of each side, with the threads that its program reported. Where cases were
    measured on different versions, all are listed."""
    lines = ["| who | versions |", "|---|---|"]
    for side in SIDES:
        found: dict[str, None] = {}
        for rounds in measured.values():
            for each in rounds:
                if side in each:
                    found[describe_versions(each[side])] = None
        if found:
            lines.append(f"| {SIDES[side].title} | {'; '.join(found)} |")
    return "\n".join(lines)


def describe_versions(figures: Mapping[str, Any]) -> str:
    versions, threads = figures["versions"], figures["threads"]
    words = [f"{name} {versions[key]}" for key, name in NAMES.items() if key in versions]
    return ", ".join(words if threads is None else [*words, counted(threads, "thread")])


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
                case_table(case, rounds, {**data["unavailable"], **data["failed"].get(case.name, {})}),
            ]
    return "\n\n".join([*parts, "### Versions", versions_table(measured)])


def require_marks(path: Path) -> None:
    """Raises UsageError if a document does not have the two marks between which the tables go."""
    try:
        document = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from None
    if END not in document.partition(BEGIN)[2]:
        raise UsageError(f"{path} must have the lines {BEGIN} and {END}, between which the tables go")


def write_between_marks(path: Path, text: str) -> None:
    """Replace what stands between the two marks of a document; what people wrote around them stays."""
    require_marks(path)
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
