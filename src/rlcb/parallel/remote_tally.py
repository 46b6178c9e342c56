"""What a run tells of its actors on other machines: how many there are, and what they contributed."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from rlcb.parallel.world import host_name
from rlcb.text import counted

SETTLE_SECONDS = 1.5  # a machine's actors come one after another: one line for all of them
MAX_EVENTS = 1000  # of the record; older ones are dropped


class RemoteTally:
    """Counts connected actors, unrolls and late unrolls by host. The gate's lock guards it."""

    def __init__(self, local_actors: int) -> None:
        self.local_actors = local_actors
        self.own_host = host_name()
        self.connected: Counter[str] = Counter()
        self.unrolls: Counter[str] = Counter()
        """Unrolls that were learned from, by the host that wrote them; `own_host` is the learner's."""
        self.late = 0
        """Unrolls that came after their slot had been given to another actor, and were thrown away."""
        self.compressed = 0
        """Unrolls of actors of other machines that arrived compressed."""
        self.received_bytes, self.unroll_bytes = 0, 0
        """What arrived as the arrays of all their unrolls, and what these have in memory."""
        self.events: deque[dict[str, Any]] = deque(maxlen=MAX_EVENTS)
        """For each change of a host's number of actors: time, host, actors."""
        self._announced: Counter[str] = Counter()
        self._changed_at: dict[str, float] = {}

    def add(self, host: str, actors: int) -> None:
        """Note that actors of a host came, or left if `actors` is negative."""
        self.connected[host] += actors
        self._changed_at[host] = time.monotonic()

    def _changes(self, settled_seconds: float) -> list[dict[str, Any]]:
        """Return an event for each host whose number of actors differs from that of its last event, and has
        been the same for so many seconds."""
        now, moment = time.monotonic(), datetime.now(timezone.utc).isoformat(timespec="seconds")
        return [
            {"time": moment, "host": host, "actors": self.connected[host]}
            for host, changed_at in self._changed_at.items()
            if self.connected[host] != self._announced[host] and now - changed_at >= settled_seconds
        ]

    def news(self) -> list[str]:
        """Return a line for each host whose number of actors has changed and is settled."""
        lines, total = [], self.local_actors + sum(self.connected.values())
        for event in self._changes(SETTLE_SECONDS):
            host, actors = event["host"], event["actors"]
            before, self._announced[host] = self._announced[host], actors
            self.events.append(event)
            if not actors:
                lines.append(f"actor node {host} left: {counted(total, 'actor')} in all")
            elif before:
                lines.append(
                    f"actor node {host}: {counted(actors, 'actor')} instead of {before}, {total} in all"
                )
            else:
                lines.append(f"actor node {host} joined: {counted(actors, 'actor')}, {total} in all")
        return lines

    def count_learned(self, hosts: Iterable[str | None]) -> None:
        """Count unrolls that were learned from; None stands for this host."""
        self.unrolls.update(host or self.own_host for host in hosts)

    def count_arrival(self, received_bytes: int, unroll_bytes: int, compressed: bool) -> None:
        """Count an unroll that arrived from another machine."""
        self.compressed += compressed
        self.received_bytes += received_bytes
        self.unroll_bytes += unroll_bytes

    def metrics(self) -> dict[str, float]:
        """Return the metrics of an update."""
        return {
            "impala/remote_actors": float(sum(self.connected.values())),
            "impala/unrolls_late": float(self.late),
        }

    def record(self) -> dict[str, Any]:
        """Return plain values for the record of the run and for checkpoints. The events include changes that
        `news` has not told yet."""
        return {
            "other_hosts": len({*self.unrolls} - {self.own_host}),
            "unrolls": dict(self.unrolls),
            "unrolls_late": self.late,
            "unrolls_compressed": self.compressed,
            "received_bytes": self.received_bytes,
            "unroll_bytes": self.unroll_bytes,
            "events": [*self.events, *self._changes(0.0)][-MAX_EVENTS:],
        }

    def load(self, record: dict[str, Any]) -> None:
        """Continue from what `record` returned, with no actor connected."""
        self.unrolls = Counter(record["unrolls"])
        self.late = record["unrolls_late"]
        if "unroll_bytes" in record:  # older versions did not compress
            self.compressed = record["unrolls_compressed"]
            self.received_bytes, self.unroll_bytes = record["received_bytes"], record["unroll_bytes"]
        self.events.extend(record["events"])
