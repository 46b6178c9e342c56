"""Format numbers of a comparison as text: digits, units, intervals and numbers of seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlcb.comparison.metrics import Metric, ThresholdResult, TimeAxis
from rlcb.comparison.statistics import IntervalEstimate
from rlcb.text import count_text, duration_text

MISSING = "n/a"


def value_text(metric: Metric, value: float | None) -> str:
    """Return a value with the digits of its metric; `n/a` if it is missing."""
    if value is None or not math.isfinite(value):
        return MISSING
    text = f"{value:.3g}" if metric.digits is None else f"{value:,.{metric.digits}f}"
    return text.removeprefix("-") if text.strip("-0.,") == "" else text  # no "-0.00"


def spread_text(metric: Metric, found: IntervalEstimate | None) -> str:
    """Return mean and sample standard deviation over seeds, `7.10 ± 0.31`; only the value for one seed."""
    if found is None:
        return MISSING
    if metric.key in ("speedup", "efficiency_gain"):  # ratios of means have an interval only
        sign = "+" if metric.key == "efficiency_gain" and found.mean > 0 else ""
        return sign + value_text(metric, found.mean) + metric.unit
    return value_text(metric, found.mean) + (
        "" if found.std is None else f" ± {value_text(metric, found.std)}"
    )


def interval_text(metric: Metric, found: IntervalEstimate | None) -> str:
    """Return the interval as `[6.80, 7.40]`; empty if there is none."""
    if found is None or found.low is None or found.high is None:
        return ""
    return f"[{value_text(metric, found.low)}, {value_text(metric, found.high)}]"


def interval_words(metric: Metric, low: float | None, high: float | None) -> str:
    """Return `95 % interval 0.80 to 3.90`; empty without an interval."""
    if low is None or high is None:
        return ""
    return f"95 % interval {value_text(metric, low)} to {value_text(metric, high)}"


def with_interval(metric: Metric, found: IntervalEstimate) -> str:
    """Return mean and interval: `7.10 [6.80, 7.40]`."""
    unit = metric.unit if metric.unit in ("×", "%") else ""
    return " ".join(filter(None, [value_text(metric, found.mean) + unit, interval_text(metric, found)]))


def listed(names: Sequence[str]) -> str:
    """Return names as `A, B and C`; of more than four the first three and the number of the others."""
    if len(names) > 4:
        return f"{', '.join(names[:3])} and {len(names) - 3} others"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def p_text(p: float | None) -> str:
    if p is None:
        return f"p {MISSING}"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"


def window_text(time_axis: TimeAxis, raw: float) -> str:
    """Return a point on a time axis, given in timesteps or seconds, as `250k timesteps` or `30.0 minutes`."""
    if time_axis.key == "timesteps":
        return f"{raw:,.0f} timesteps" if raw < 100_000 else f"{count_text(raw)} timesteps"
    return duration_text(raw)


def reached_text(time_axis: TimeAxis, found: ThresholdResult | None) -> str:
    """Return the median time to a threshold and the seeds that reached it: `19.2 minutes (3 of 3)`.

    Seeds that were interrupted before they reached it are counted separately.
    """
    if found is None:
        return MISSING
    stopped = f"{found.stopped} stopped before" if found.stopped else ""
    if not found.n:
        return f"not known ({stopped})" if stopped else MISSING
    parts = [f"{found.hits} of {found.n}", *([stopped] if stopped else [])]
    seeds = f"({', '.join(parts)})"
    if found.median is None:
        return f"not reached {seeds}"
    return f"{window_text(time_axis, found.median / time_axis.scale)} {seeds}"


def round_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return up to `count` + 1 values from `low` to `high`, in steps of 1, 2 or 5 times a power of ten."""
    least = (high - low) / count
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * index for index in range(first, last + 1)]
