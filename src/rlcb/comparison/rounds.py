"""What the sequential test says about a study that added seeds in rounds, in words."""

from __future__ import annotations

from collections.abc import Mapping

from rlcb.comparison.format import listed
from rlcb.comparison.sequential_test import Decision, Lead
from rlcb.text import counted

CAUTION = (
    "the study added seeds until the sequential test had settled the return on unseen levels, or until its "
    "time was over; the p-values of other findings do not allow for that"
)
"""The warning about the other findings of such a study."""


def claim(decision: Decision) -> str:
    """Return the outcome: `settled after 8 rounds: PPO parallel is best`."""
    after = f"after {counted(decision.rounds, 'round')}"
    if decision.winner is not None:
        return f"settled by the sequential test {after}: {decision.winner} is best"
    return f"not settled by the sequential test {after}; {listed(decision.open)} are in question"


def lead(decision: Decision) -> str:
    """Return `PPO parallel is 0.83 ahead of A2C parallel, sequential interval 0.21 to 1.45`; empty without a
    second group. The interval holds at all rounds together."""
    return "" if decision.lead is None else f"{decision.lead.first} is {_distance(decision.lead)}"


def _distance(found: Lead) -> str:
    text = f"{found.difference:.2f} ahead of {found.second}"
    if found.interval is None:
        return f"{text}, too few rounds for an interval"
    return f"{text}, sequential interval {found.interval[0]:.2f} to {found.interval[1]:.2f}"


def put_out(decision: Decision) -> str:
    """Return which groups were put out, by which and when; empty if none was."""
    outs = [f"{each.label} by {each.by} in round {each.rounds}" for each in decision.excluded]
    return f"put out: {listed(outs)}" if outs else ""


def sentence(decision: Decision, means: Mapping[str, float], where: str, basis: str, choose: str) -> str:
    """Return the answer for one game.

    `means` holds the means by label, `where` is `on unseen levels of starpilot`, `basis` says what each value
    rests on, and `choose` is the advice if there is a winner.
    """
    first = decision.open[0]
    text = f"{claim(decision)} {where}"
    text = text[0].upper() + text[1:]
    if decision.lead is not None:
        text += f". {first} returned {means[first]:.2f} and is {_distance(decision.lead)} ({basis})"
    if decision.winner is not None:
        return f"{text}: {choose}." if choose else f"{text}."
    return f"{text}. Choose any of {listed(decision.open)}, or add rounds with more --max-hours."


def line(decision: Decision) -> str:
    """Return the state of a game after a round in one line, as a study prints it."""
    return "; ".join(filter(None, [claim(decision), lead(decision), put_out(decision)]))
