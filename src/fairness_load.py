"""What else machines did while runs went on: other programs, and other runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from src.comparison_runs import Run, as_number, dig
from src.comparison_studies import Logged, logged
from src.machine_load import BUSY_PERCENT
from src.terminal import counted

OTHERS_PERCENT = 5.0  # of the CPUs that a run may use, used by other programs while it went on
BUSY = 0.5  # load per core beyond a run's own threads from which on a machine was busy
NAMED_PAIRS = 3  # of runs that overlapped; more are counted


def load_texts(runs: Sequence[Run]) -> Iterator[str]:
    """A sentence on machines that were busy with other programs, and one on runs at the same time."""
    logs = logged(runs)
    busy = [f"{run.path.name} ({how})" for run in runs if (how := _busy(run, logs[run]))]
    if busy:
        yield f"the machine was busy with other work during {'; '.join(busy)}"
    pairs = overlaps(runs, logs)
    if pairs:
        certain = all(None not in (logs[first].host, logs[second].host) for first, second in pairs)
        unsure = ", and slowed each other if they shared a machine"
        how = " on one machine, and slowed each other" if certain else unsure
        named = "; ".join(
            f"{first.path.name} and {second.path.name}" for first, second in pairs[:NAMED_PAIRS]
        )
        more = len(pairs) - NAMED_PAIRS
        rest = f" and {counted(more, 'more pair')}" if more > 0 else ""
        yield f"runs overlapped in time{how}: {named}{rest}"


def _busy(run: Run, log: Logged) -> str:
    """What other programs used, empty if it was little. It is known of the time while a run went on; records
    that do not say so leave what was used before it began, and the load at its end beyond its own threads."""
    others = run.number("resource_usage.others_cpu_percent")
    if math.isfinite(others):
        return f"{others:.0f} % of the CPUs while it went on" if others >= OTHERS_PERCENT else ""
    if log.others_percent >= BUSY_PERCENT:
        return f"{log.others_percent:.0f} % of the cores before it began"
    nodes = as_number(run.setting("cluster.num_nodes"))
    own = run.threads / (nodes if nodes > 1 else 1)  # on the node that measured the load
    end = run.number("hardware.load_average")
    if end - own > BUSY * run.number("hardware.usable_cores"):
        return f"{end:.2f} at its end with {own:.0f} threads of its own"
    return ""


def overlaps(runs: Sequence[Run], logs: Mapping[Run, Logged]) -> list[tuple[Run, Run]]:
    """All pairs of runs that went on at the same time and may have shared a machine, the earlier one first.
    Where a study has logged the machines, runs on different ones do not count."""
    spans = []
    for run in runs:
        try:
            begun = datetime.fromisoformat(str(run.record.get("start_time"))).timestamp()
            ended = datetime.fromisoformat(str(run.record.get("end_time"))).timestamp()
        except ValueError:
            continue  # a run without a record
        spans.append((begun, ended, run))
    spans.sort(key=lambda span: span[:2])
    pairs: list[tuple[Run, Run]] = []
    going_on: list[tuple[float, Run]] = []
    for begun, ended, run in spans:
        going_on = [(end, other) for end, other in going_on if begun < end - 1]  # times are whole seconds
        pairs += [(other, run) for _, other in going_on if _may_share(other, run, logs)]
        going_on.append((ended, run))
    return pairs


def _may_share(first: Run, second: Run, logs: Mapping[Run, Logged]) -> bool:
    hosts = {logs[each].host for each in (first, second)}
    models = {str(dig(each.record, "hardware.cpu_model")) for each in (first, second)}
    return len(models) == 1 and (None in hosts or len(hosts) == 1)
