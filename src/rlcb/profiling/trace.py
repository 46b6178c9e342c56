"""A trace of one update, operator by operator, made by a short run of the real training command."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, set_value
from rlcb.errors import RunError
from rlcb.files import write_atomically
from rlcb.processes.signals import StopSignal
from rlcb.profiling.short_runs import IN_ITS_FOLDER, run_script

TRACED_CALL = 2  # the call that training/profiler.py traces
SHARED_CALLS = 8  # updates per worker of A3C: its workers share a budget, and some are faster than others
ROWS = 20
OUTSIDE = "outside of torch: environments, NumPy, Python, waiting"


def traced_config(config: Config) -> Config:
    """Return the same run, just long enough that every traced process makes its traced call."""
    updates = SHARED_CALLS if config.algorithm == "a3c" else TRACED_CALL
    if config.has_actors:
        updates = config.impala.max_policy_lag + 2 * TRACED_CALL
    data = config.model_dump()
    timesteps = updates * config.training.n_steps * config.env.num_envs
    for key, value in {"training.total_timesteps": timesteps, **IN_ITS_FOLDER}.items():
        set_value(data, key, value, "a traced run")
    return build_config(data, "a traced run")


def trace(
    config: Config, folder: Path, stop: StopSignal, on_poll: Callable[[], None]
) -> list[tuple[Path, str]]:
    """Train with a configuration until the second update is traced.

    Returns the file of each trace, written to `folder`, with its table of operators. Raises RunError, or
    Interrupted.
    """
    flags: list[object] = []
    if config.mode == "distributed":  # this machine is the only node
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        flags += ["--num-nodes", 1, "--node-rank", 0, "--master-addr", "127.0.0.1", "--master-port", port]
    traces = []
    with tempfile.TemporaryDirectory(prefix="trace-") as place:
        parent = Path(place)
        flags += ["--trace-folder", parent]
        run_script(traced_config(config), parent / "run", "the traced run", stop, on_poll, *flags)
        for source in sorted(parent.glob("*.json"), reverse=True):
            path = folder / f"{config.algorithm}_{config.mode}_{source.stem}.json"
            measured = json.loads(source.with_suffix(".operators").read_text(encoding="utf-8"))
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(path, source.read_bytes())
            except OSError as error:
                raise RunError(f"cannot write {path}: {error.strerror or error}") from error
            traces.append((path, operator_table(measured["operators"], measured["seconds"])))
    if not traces:
        raise RunError("the traced run ended before its learner's second update; start it again")
    return traces


def operator_table(operators: Sequence[dict[str, Any]], seconds: float) -> str:
    """Return a table of the operators with the longest own time, which excludes nested operators.

    `seconds` is the duration of the traced call.
    """
    ordered = sorted(operators, key=lambda each: -each["seconds"])
    width = max(len(OUTSIDE), *(len(each["name"]) for each in ordered[:ROWS]))
    rest = sum(each["seconds"] for each in ordered[ROWS:])
    outside = seconds - sum(each["seconds"] for each in ordered)
    rows = [(each["name"], f"{each['calls']:,}", each["seconds"]) for each in ordered[:ROWS]]
    rows += [(f"{max(0, len(ordered) - ROWS)} more", "", rest), (OUTSIDE, "", outside)]
    lines = [f"{'operator':<{width}}{'calls':>10}{'own time':>12}{'of the call':>13}"]
    for name, calls, value in rows:
        lines.append(f"{name:<{width}}{calls:>10}{1e3 * value:>9,.1f} ms{value / seconds:>13.1%}")
    return "\n".join(lines)
