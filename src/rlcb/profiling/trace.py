"""Where the time of an update goes, operator by operator: a trace of a real training script's update.

The script runs as it always does, in a process of its own, but for one call of its learner (and one of an
IMPALA actor), which torch's profiler watches.
"""

from __future__ import annotations

import importlib
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlcb.cli.command import exit_code
from rlcb.config.config import Config
from rlcb.config.yaml_file import build_config, dump_config, read_config_file, set_value
from rlcb.cpu import prepare_process
from rlcb.errors import RunError
from rlcb.files import write_atomically, write_json
from rlcb.parallel import supervisor
from rlcb.parallel.worker import Job, Link
from rlcb.paths import PROJECT
from rlcb.processes.signals import StopSignal
from rlcb.processes.subprocesses import describe_exit, run_logged
from rlcb.profiling.short_runs import IN_ITS_FOLDER
from rlcb.training.run_folder import RunFolder
from rlcb.training.run_spec import RunSpec

MODULE = "rlcb.profiling.trace"
PROGRAM = (
    f"import sys; sys.path.insert(0, {str(PROJECT)!r}); "
    f"from {MODULE} import main; sys.exit(main(sys.argv[1:]))"
)
TRACED_CALL = 2  # the first one warms up
SHARED_CALLS = 8  # for each worker of A3C, of a number that all draw from: some are faster than others
ROWS = 20
OUTSIDE = "outside of torch: environments, NumPy, Python, waiting"


def trace_call(owner: type, method: str, path: Path) -> None:
    """Have the profiler watch the TRACED_CALL-th call of a method in this process, and write the trace to
    `path` and a table of its operators beside it."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]):
        pass  # it takes a second to start for the first time, in which others would use up A3C's updates
    original, calls = getattr(owner, method), 0

    def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != TRACED_CALL:
            return original(*arguments, **options)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            begun = time.perf_counter()
            result = original(*arguments, **options)
            seconds = time.perf_counter() - begun
        profiler.export_chrome_trace(str(path))
        operators = [
            {"name": each.key, "calls": each.count, "seconds": each.self_cpu_time_total / 1e6}
            for each in profiler.key_averages()
        ]
        write_json(path.with_suffix(".operators"), {"seconds": seconds, "operators": operators})
        return result

    setattr(owner, method, watched)


def watch_learner(config: Config, folder: Path) -> None:
    """Watch an update of this process."""
    name, kind = {
        True: ("rlcb.parallel.impala_learner", "ImpalaLearner"),
        False: ("rlcb.training.trainer", "Trainer"),
    }[config.has_actors]
    if config.algorithm == "a3c":
        name, kind = "rlcb.parallel.a3c", "A3CTrainer"
    trace_call(getattr(importlib.import_module(name), kind), "iterate", folder / "learner.json")


def watch_actor(folder: Path) -> None:
    """Watch how this process, an actor, collects an unroll."""
    from rlcb.rl.collector import Collector

    trace_call(Collector, "collect", folder / "actor.json")


def work(job: Job, link: Link) -> int:
    """A worker of a traced run: what it would be anyway, watched if it is the first of its kind."""
    if link.rank == 0:
        watch_learner(job.spec.config, job.spec.folder.root.parent)
    elif job.spec.config.has_actors and link.rank == job.spec.config.num_learners:
        watch_actor(job.spec.folder.root.parent)
    module = worker_module(job.spec.config)
    code: int = importlib.import_module(module).work(job, link)
    return code


def worker_module(config: Config) -> str:
    """The module whose `work` a worker of this run calls when it is not traced."""
    from rlcb.cli import train_distributed

    if config.mode == "distributed":
        return train_distributed.worker_module(config)
    return supervisor.worker_module(config)


def main(argv: Sequence[str]) -> int:
    """The traced run of the configuration in file argv[0], in folder argv[1]."""
    return exit_code(lambda: run(Path(argv[0]), Path(argv[1])))


def run(settings: Path, parent: Path) -> int:
    config = build_config(read_config_file(settings), str(settings))
    folder = RunFolder(parent / "run", config)
    default = None if config.mode == "sequential" else 1
    num_threads = prepare_process(config.hardware.num_threads, config.hardware.tune_allocator, default)
    if config.mode == "sequential":
        from rlcb.training.run import train_in_one_process

        watch_learner(config, parent)
        return train_in_one_process(RunSpec(config, folder, num_threads))
    if config.mode == "distributed":
        return train_on_one_node(config, settings, folder.root)
    supervisor.worker_module = lambda config: MODULE
    return supervisor.train_in_workers(RunSpec(config, folder, num_threads))


def train_on_one_node(config: Config, settings: Path, root: Path) -> int:
    """A distributed run with this machine as its only node."""
    from rlcb.cli import train_distributed

    train_distributed.worker_module = lambda config: MODULE
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    node = ("--num-nodes", "1", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", str(port))
    return train_distributed.main(
        config.algorithm, ("--config", str(settings), "--output-dir", str(root), *node)
    )


def traced_config(config: Config) -> Config:
    """The run, just long enough that every process that is watched comes to its traced call."""
    updates = {"a3c": SHARED_CALLS}.get(config.algorithm, TRACED_CALL)
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
    """Run config's training with its second update traced; returns the files of the traces, written to
    `folder`, with a table for each. Raises RunError."""
    traces = []
    with tempfile.TemporaryDirectory(prefix="trace-") as place:
        parent = Path(place)
        settings, log = parent / "config.yaml", parent / "log"
        settings.write_text(dump_config(traced_config(config)), encoding="utf-8")
        words = [sys.executable, "-c", PROGRAM, str(settings), str(parent)]
        code = run_logged(words, log, stop, lambda pid: None, on_poll)
        stop.check()
        if code:
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RunError(f"the traced run failed ({describe_exit(code) or lines[-1]})")
        for source in sorted(parent.glob("*.json"), reverse=True):
            name = f"{config.algorithm}_{config.mode}_{source.stem}.json"
            found = json.loads(source.with_suffix(".operators").read_text(encoding="utf-8"))
            try:
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / name, source.read_bytes())
            except OSError as error:
                raise RunError(f"cannot write {folder / name}: {error.strerror or error}") from error
            traces.append((folder / name, operator_table(found["operators"], found["seconds"])))
    if not traces:
        raise RunError("the traced run ended before its learner came to a second update; start it again")
    return traces


def operator_table(operators: Sequence[dict[str, Any]], seconds: float) -> str:
    """The operators that take most of the time, without what they call, as text."""
    ordered = sorted(operators, key=lambda each: -each["seconds"])
    width = max(len(OUTSIDE), *(len(each["name"]) for each in ordered[:ROWS]))
    lines = [f"{'operator':<{width}}{'calls':>10}{'own time':>12}{'of the call':>13}"]
    for each in ordered[:ROWS]:
        share = each["seconds"] / seconds
        lines.append(
            f"{each['name']:<{width}}{each['calls']:>10,}{1e3 * each['seconds']:>9,.1f} ms{share:>13.1%}"
        )
    rest = sum(each["seconds"] for each in ordered[ROWS:])
    outside = seconds - sum(each["seconds"] for each in ordered)
    for name, value in ((f"{max(0, len(ordered) - ROWS)} more", rest), (OUTSIDE, outside)):
        lines.append(f"{name:<{width}}{'':>10}{1e3 * value:>9,.1f} ms{value / seconds:>13.1%}")
    return "\n".join(lines)
