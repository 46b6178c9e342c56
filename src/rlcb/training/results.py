"""Writes the results of a finished run: benchmark_metrics.json, training_summary.json, metrics.json."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from rlcb.config.config import Config
from rlcb.cpu import describe_machine
from rlcb.errors import Interrupted, RunError
from rlcb.files import write_json
from rlcb.machine.efficiency import efficiency_of
from rlcb.rl.statistics import EpisodeStatistics
from rlcb.software import describe_software
from rlcb.text import counted
from rlcb.training.metrics_writer import sound_rows, write_columns
from rlcb.training.run_folder import RunFolder
from rlcb.training.run_spec import RunSpec
from rlcb.training.worker_context import WorkerContext

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1


def write_record(
    folder: RunFolder, config: Config, status: str, metrics: dict[str, Any], kernels: str | None = None
) -> dict[str, Any]:
    """Write the three files of results and return the content of benchmark_metrics.json.

    `status` is completed, interrupted or failed. `metrics` has start_time, end_time, duration_hours,
    total_timesteps, total_updates, total_episodes, average_fps, final_fps, performance, resource_usage,
    time_breakdown and workers. `kernels` computed the convolutions: native or torch. Raises RunError if a
    file cannot be written.
    """
    threads = [worker["threads"] for worker in metrics["workers"]]
    record = {
        "schema_version": SCHEMA_VERSION,
        "status": status,
        "algorithm": config.algorithm,
        "training_mode": config.mode,
        "env": config.env.id,
        "seed": config.training.seed,
        **metrics,
        **_efficiency(config, metrics, kernels),
        "hardware": {**describe_machine(), "threads": threads, "kernels": kernels},
        "software": describe_software(),
        "config": config.model_dump(mode="json"),
    }
    performance, usage = record["performance"], record["resource_usage"]
    summary = {
        "algorithm": config.algorithm,
        "mode": config.mode,
        "status": status,
        "duration_hours": record["duration_hours"],
        "total_timesteps": record["total_timesteps"],
        "total_updates": record["total_updates"],
        "avg_fps": record["average_fps"],
        "final_fps": record["final_fps"],
        "peak_memory_gb": usage["peak_memory_gb"],
        "initial_reward": performance["initial_reward"],
        "final_reward": performance["final_reward"],
        "best_reward": performance["best_reward"],
        "num_episodes": record["total_episodes"],
    }
    try:
        if folder.rows.exists():
            write_columns(folder.rows, folder.root / "metrics.json")
        write_json(folder.root / "training_summary.json", summary)
        write_json(folder.root / "benchmark_metrics.json", record)
    except OSError as error:
        raise RunError(f"cannot write the results to {folder.root}: {error.strerror or error}") from error
    return record


def _efficiency(config: Config, metrics: dict[str, Any], kernels: str | None) -> dict[str, Any]:
    """Return `efficiency` and `efficiency_note`, which compare a run with the limit of one machine."""
    others = ((metrics.get("impala") or {}).get("remote") or {}).get("other_hosts", 0)
    if others:
        note = f"actors of {counted(others, 'other host')} took part"
        return {"efficiency": None, "efficiency_note": note}
    threads = [worker["threads"] for worker in metrics["workers"]]
    return efficiency_of(config, metrics["average_fps"], threads[0] if threads else None, kernels)


def write_failed_record(folder: RunFolder, config: Config) -> None:
    """Write the results of a run whose main process died without writing them.

    They come from the rows of its metrics.jsonl; what only the main process knew is null. Errors are logged
    and not raised, because they would hide why the run failed.
    """
    if (folder.root / "benchmark_metrics.json").exists():
        return
    try:
        rows = sound_rows(folder.rows)[0] if folder.rows.exists() else []
        write_record(folder, config, "failed", metrics_of_rows(rows))
    except (OSError, ValueError, RunError) as error:
        logger.error("could not write the record of the failed run: %s", error)


@contextlib.contextmanager
def failure_recorded(spec: RunSpec, context: WorkerContext) -> Iterator[None]:
    """Write a record if the run inside this context manager fails without writing one.

    Before the run has locked its folder (`context.folder`), the folder may belong to another run, and no
    record is written.
    """
    try:
        yield
    except Interrupted:
        raise
    except BaseException:
        if context.folder is not None:
            write_failed_record(spec.folder, spec.config)
        raise


def metrics_of_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the `metrics` of a record (see `write_record`) from the rows of a metrics.jsonl."""
    last = rows[-1] if rows else {}
    elapsed, timesteps = last.get("time/elapsed_seconds", 0.0), last.get("timesteps", 0)
    return {
        "start_time": None,
        "end_time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "duration_hours": round(elapsed / 3600, 9),
        "total_timesteps": timesteps,
        "total_updates": last.get("update", 0),
        "total_episodes": last.get("rollout/episodes", 0),
        "average_fps": round(timesteps / elapsed, 3) if elapsed else None,
        "final_fps": last.get("time/fps"),
        "performance": {
            **EpisodeStatistics().performance(),
            "final_reward": last.get("rollout/ep_reward_mean"),
            "average_reward_last_100_episodes": last.get("rollout/ep_reward_mean"),
        },
        "resource_usage": {
            "peak_memory_gb": max((row["system/memory_gb"] for row in rows), default=None),
            "average_memory_gb": None,
            "average_cpu_percent": None,
            "others_cpu_percent": None,
        },
        "time_breakdown": None,
        "workers": [],
    }
