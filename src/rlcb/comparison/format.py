"""How figures read: digits, units, intervals, n."""

from __future__ import annotations

import math

from rlcb.comparison.metrics import Metric, ThresholdResult, TimeAxis
from rlcb.comparison.statistics import IntervalEstimate
from rlcb.text import count_text, duration_text

MISSING = "n/a"


def value_text(metric: Metric, value: float | None) -> str:
    """A figure with the digits of its metric, `n/a` where there is none."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:.3g}" if metric.digits is None else f"{value:,.{metric.digits}f}"
    return text.removeprefix("-") if text.strip("-0.,") == "" else text  # no "-0.00"


def spread_text(metric: Metric, found: IntervalEstimate | None) -> str:
    """`7.10 ± 0.31`: mean and sample standard deviation over seeds; `± n/a` for one seed."""
    if found is None:
        return MISSING
    if metric.key in ("speedup", "efficiency_gain"):  # ratios of means have an interval only
        sign = "+" if metric.key == "efficiency_gain" and found.mean > 0 else ""
        return sign + value_text(metric, found.mean) + metric.unit
    return f"{value_text(metric, found.mean)} ± {value_text(metric, found.std)}"


def interval_text(metric: Metric, found: IntervalEstimate | None) -> str:
    """`[6.80, 7.40]`, empty without an interval."""
    if found is None or found.low is None or found.high is None:
        return ""
    return f"[{value_text(metric, found.low)}, {value_text(metric, found.high)}]"


def with_interval(metric: Metric, found: IntervalEstimate) -> str:
    """`7.10 [6.80, 7.40]`."""
    unit = metric.unit if metric.unit in ("×", "%") else ""
    return " ".join(filter(None, [value_text(metric, found.mean) + unit, interval_text(metric, found)]))


def p_text(p: float | None) -> str:
    if p is None:
        return f"p {MISSING}"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def window_text(clock: TimeAxis, raw: float) -> str:
    """A place on a clock, from timesteps or seconds: `250k timesteps`, `30.0 minutes`."""
    if clock.key == "timesteps":
        return f"{raw:,.0f} timesteps" if raw < 100_000 else f"{count_text(raw)} timesteps"
    return duration_text(raw)


def reached_text(clock: TimeAxis, found: ThresholdResult | None) -> str:
    """`19.2 minutes (3 of 3)`; seeds that were cut short before they got there are counted apart."""
    if found is None:
        return MISSING
    stopped = f"{found.stopped} stopped before" if found.stopped else ""
    if not found.n:
        return f"not known ({stopped})" if stopped else MISSING
    parts = [f"{found.hits} of {found.n}", *([stopped] if stopped else [])]
    seeds = f"({', '.join(parts)})"
    if found.median is None:
        return f"not reached {seeds}"
    return f"{window_text(clock, found.median / clock.scale)} {seeds}"
