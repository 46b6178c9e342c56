"""Tables, text and picture of the composed returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from perf.cluster_learning.composition import Composed, compose, horizon, panels
from perf.cluster_learning.figure import draw
from perf.cluster_learning.ways import BATCH, ENVS, EPOCHS, LINK_NAMES, STEPS, WAYS
from perf.measure import RESULTS, save

NAME = "cluster_learning"


def table(ways: Sequence[Composed]) -> str:
    """Return one panel's table."""
    until, base = horizon(ways), ways[0]
    lines = [
        "| way | timesteps/s | range | ratio | all timesteps, s | return then, by seed | mean over the run | "
        f"return after {until:.0f} s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in ways:
        then, whole, after = "not run", "not run", "not run"
        if each.has_curve:
            then = ", ".join(f"{value:.2f}" for value in each.returns[:, -1])
            whole = ", ".join(f"{value:.2f}" for value in np.nanmean(each.returns, axis=1))
            later = each.return_after(until)
            after = "none yet" if np.isnan(later) else f"{later:.2f}"
        lines.append(
            f"| {each.name} | {each.rate:,.0f} | {min(each.rates):,.0f} to {max(each.rates):,.0f} | "
            f"{each.rate / base.rate:.2f} | {each.total / each.rate:,.0f} | {then} | {whole} | {after} |"
        )
    return "\n".join(lines)


def check_lines(checks: Sequence[dict[str, Any]], composed: Sequence[Composed]) -> list[str]:
    """Compare whole runs over a link with the composed ones."""
    lines = []
    for check in checks:
        way = WAYS[check["way"]]
        (found,) = (
            each
            for each in composed
            if (each.key, each.ranks, each.link) == (check["way"], check["ranks"], check["link"])
        )
        real, alone = check["real"], check["without_link"]
        seconds = real["seconds"][-1]
        predicted = real["timesteps"][-1] / found.rate
        pairs = [
            (one, two)
            for one, two in zip(real["returns"], alone["returns"])
            if one is not None and two is not None
        ]
        largest = max(abs(one - two) for one, two in pairs)
        lines.append(
            f"- {way.name}, {check['ranks']} ranks, {LINK_NAMES[check['link']]}: {seconds:.0f} s for "
            f"{real['timesteps'][-1]:,} timesteps, composed {predicted:.0f} s "
            f"({predicted / seconds - 1:+.0%}); its returns and those of the run without a link "
            + (f"differ by at most {largest:.2g}" if largest else "are equal")
        )
    return lines


def choices(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Say what `auto` measured and chose."""
    lines = []
    for cell in cells:
        found = [speed["choice"] for speed in cell["speeds"] if "choice" in speed]
        if found:
            each = "; ".join(
                f"{choice['every']} (an average {choice['average_seconds']:.2g} s, an update "
                f"{choice['update_seconds']:.2g} s)"
                for choice in found
            )
            lines.append(f"- {cell['ranks']} ranks, {LINK_NAMES[cell['link']]}: {each}")
    return lines


def write(data: dict[str, Any]) -> None:
    """Write table, picture and numbers to perf/results/cluster_learning.*"""
    composed = compose(data["cells"], data["timesteps"])
    if not composed:
        raise SystemExit("perf.cluster_learning: no speed was measured yet")
    parts = [
        f"PPO on {data['env']}, Nature CNN, {ENVS} environments x {STEPS} steps in total, minibatches of "
        f"{BATCH}, {EPOCHS} epochs; one rank of one thread on each host. All hosts are network namespaces of "
        "one machine and share its cores. The return over wall clock is composed: the curve over timesteps "
        "of whole runs without a link, divided by the speed of short runs over the link."
    ]
    for (ranks, link), ways in panels(composed).items():
        parts.append(f"### {ranks} ranks, {LINK_NAMES[link]}\n\n{table(ways)}")
    parts.append("What `auto` chose, by round:\n\n" + "\n".join(choices(data["cells"])))
    if data["checks"]:
        parts.append("Whole runs over the link:\n\n" + "\n".join(check_lines(data["checks"], composed)))
    save(NAME, "\n\n".join(parts), data)
    draw([each for each in composed if each.has_curve], data["env"], RESULTS / f"{NAME}.png")
