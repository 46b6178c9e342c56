"""Prints what a training run shows: its settings, its progress and its summary."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlcb.config.budget import Budget, few_timesteps, late_first_update
from rlcb.config.config import Config
from rlcb.cpu import describe_machine
from rlcb.envs.levels import describe_levels
from rlcb.machine.efficiency import describe_efficiency
from rlcb.processes.pinned_cores import Pinning
from rlcb.progress import ProgressBar
from rlcb.text import WIDTH, brief, clock, counted, print_rows, short

REFRESH_SECONDS = 0.25

logger = logging.getLogger(__name__)


def describe_budget(budget: Budget) -> str:
    """Return the limits of a run in words, such as `1:00:00 of wall clock`."""
    parts = []
    if budget.seconds is not None:
        parts.append(f"{clock(budget.seconds)} of wall clock")
    if budget.updates is not None:
        parts.append(
            f"{budget.updates * budget.timesteps_per_update:,} timesteps ({budget.updates:,} updates)"
        )
    return " or ".join(parts)


def reward_text(row: dict[str, Any]) -> str:
    """Return the mean and standard deviation of the last returns in a metrics row, in words."""
    mean, std = row["rollout/ep_reward_mean"], row["rollout/ep_reward_std"]
    return "no episode yet" if mean is None else f"reward {mean:.2f} ± {std:.2f}"


def describe_processes(config: Config) -> str:
    """Return the numbers of environments, groups, processes and nodes in words."""
    if config.mode == "sequential":
        return f"{config.env.num_envs} in groups of {config.group_size}, one process"
    kind = "actor" if config.has_actors else "worker"
    return (
        f"{config.env.num_envs} in groups of {config.group_size}, "
        f"{config.envs_per_process} for each of {counted(config.num_processes, kind)}"
        f"{_on_nodes(config.node_sizes)}"
    )


def _on_nodes(sizes: Sequence[int]) -> str:
    """Return " on 2 nodes", with the number of processes of each node if they differ; "" for one node."""
    each = f" ({' + '.join(map(str, sizes))})" if len({*sizes}) > 1 else ""
    return f" on {len(sizes)} nodes{each}" if len(sizes) > 1 else ""


def describe_learning(config: Config) -> str:
    """Return the optimizer steps per update and the optimizer's settings in words."""
    training = config.training
    passes = "one step on the whole rollout"
    if config.has_actors:
        unrolls = config.timesteps_per_update // config.timesteps_per_unroll
        passes = f"{counted(config.num_learners, 'learner')}, one step on {counted(unrolls, 'unroll')}"
    if config.algorithm == "ppo":
        size = training.batch_size or config.timesteps_per_update
        passes = f"{training.n_epochs} epochs, minibatches of {size:,}"
    return (
        f"{passes}, {training.optimizer}, rate {training.learning_rate:g} ({training.lr_schedule}), "
        f"gamma {training.gamma:g}"
    )


def describe_pinning(pinning: Pinning) -> dict[str, str]:
    """Return the row of the settings that says which CPUs the workers are pinned to; {} without pinning."""
    if not pinning:
        return {}
    cpus = "; ".join(",".join(map(str, each)) for each in pinning)
    return {"pinned": f"each worker to cores of its own, CPUs {cpus}"}


def print_settings(config: Config, budget: Budget, facts: dict[str, str], root: Path) -> None:
    """Print the settings of a run, the machine and the folder of its results; `facts` are further rows."""
    machine, env, training = describe_machine(), config.env, config.training
    levels = f", {env.distribution_mode}, {describe_levels(env)}" if env.id.startswith("procgen-") else ""
    per_update = config.timesteps_per_update
    per_worker = " of each worker" if config.algorithm == "a3c" else ""
    rows: dict[str, str | Path] = {
        "algorithm": f"{config.algorithm.upper()}, {config.mode}",
        "environment": f"{env.id}{levels}",
        "environments": describe_processes(config),
        "rollout": f"{training.n_steps} steps x {per_update // training.n_steps} environments{per_worker} "
        f"= {per_update:,} timesteps",
        "learning": describe_learning(config),
        "budget": describe_budget(budget),
        "seed": str(training.seed),
        "machine": f"{machine['cpu_model']}, {machine['usable_cores']} usable cores, "
        f"{machine['ram_gb']:.0f} GB",
        **facts,
        "results": root,
    }
    print("=" * WIDTH)
    print_rows(rows, indent=14)
    print("=" * WIDTH, flush=True)
    if config.mode != "sequential":
        kind = "Actor" if config.has_actors else "Worker"
        for number in range(config.num_processes):
            print(f"{kind} {number} started with {config.envs_per_process} environments", flush=True)


def progress_parts(row: dict[str, Any]) -> list[str]:
    """Return timesteps, speed and return of a metrics row for a progress bar, each as a short text."""
    parts = [f"{brief(row['timesteps'])} timesteps", f"{row['time/fps'] or 0:,.0f} FPS"]
    mean = row["rollout/ep_reward_mean"]
    return parts if mean is None else [*parts, f"return {mean:.2f}"]


class RunProgress:
    """Shows progress: a live bar on a terminal, or else a line every `log_interval` updates."""

    def __init__(self, config: Config, budget: Budget, updates: int, elapsed: float) -> None:
        """Start the bar at `updates` updates and `elapsed` seconds, which a resumed run has behind it."""
        self.config, self.budget = config, budget
        self.log_interval = config.logging.log_interval
        self.updates = updates
        self.parts = ["collecting the first rollout"]
        self._next_refresh = 0.0
        self._is_late = False
        if not updates and few_timesteps(config):
            logger.warning(few_timesteps(config))
        self.bar = ProgressBar.on_terminal(leave=True)
        self.refresh(elapsed)

    def refresh(self, elapsed: float) -> None:
        """Move the bar to `elapsed` seconds, at most once every REFRESH_SECONDS.

        Warns once if the time limit passes before the first update is complete.
        """
        seconds = self.budget.seconds
        if not self.updates and not self._is_late and seconds is not None and elapsed > seconds:
            self._is_late = True
            self._warn(late_first_update(self.config))
        now = time.monotonic()
        if self.bar is None or now < self._next_refresh:
            return
        self._next_refresh = now + REFRESH_SECONDS
        left = self.budget.seconds_left(self.updates, elapsed)
        remaining = [] if left is None else [f"{clock(left)} left"]
        self.bar.show(self.budget.share_used(self.updates, elapsed), [*remaining, *self.parts])

    def print_line(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        if self.bar is None:
            print(text, flush=True)
        else:
            self.bar.print_line(text)

    def _warn(self, text: str) -> None:
        """Print a warning, above the bar if there is one."""
        if self.bar is None:
            logger.warning(text)
        else:
            self.bar.print_line(f"WARNING: {text}")

    def update(self, row: dict[str, Any]) -> None:
        """Show the metrics row of a finished update."""
        line_due = row["update"] // self.log_interval > self.updates // self.log_interval
        self.updates = row["update"]
        if self.bar is not None:
            self.parts = progress_parts(row)
            self._next_refresh = 0.0
            self.refresh(row["time/elapsed_seconds"])
        elif line_due:
            share = self.budget.share_used(row["update"], row["time/elapsed_seconds"])
            print(
                f"{share:4.0%} {clock(row['time/elapsed_seconds'])} update {row['update']:,} · "
                f"{short(row['timesteps'])} timesteps · {row['time/fps']:,.0f} FPS · {reward_text(row)}",
                flush=True,
            )

    def close(self) -> None:
        """Leave the bar on the screen as it stands."""
        if self.bar is not None:
            self.bar.close()


def count_processes(record: dict[str, Any]) -> dict[str, str]:
    """Return the summary's rows about nodes, processes and environments, from a benchmark_metrics.json."""
    environments = str(record["config"]["env"]["num_envs"])
    if record["training_mode"] == "sequential":
        return {"Environments": environments}
    workers, kinds = len(record["workers"]), {}
    nodes = record.get("slowest_rank", {}).get("nodes")
    if "impala" in record:
        actors = record["impala"]["actors"]
        kinds = {**({"Nodes": str(nodes)} if nodes else {}), "Actors": str(actors)}
        kinds["Learners"] = str(workers - actors)
    elif nodes:
        kinds["Nodes x workers"] = f"{nodes} x {workers // nodes}"
    else:
        kinds["Workers"] = str(workers)
    if nodes:
        slowest = record["slowest_rank"]
        kinds["Slowest rank"] = (
            f"{slowest['name']}: busy {slowest['busy_seconds']:.1f} s, "
            f"{slowest['mean_busy_seconds']:.1f} s on average"
        )
    return {**kinds, "Total environments": environments}


def describe_joined(remote: dict[str, Any] | None) -> dict[str, str]:
    """Return the summary's row about actors of other machines, from a record's `impala.remote`; {} if there
    were none."""
    if remote is None or not remote["other_hosts"]:
        return {}
    parts = [f"{count:,} by {host}" for host, count in remote["unrolls"].items()]
    late = remote["unrolls_late"]
    return {"Unrolls": ", ".join(parts) + (f"; {late:,} came too late" if late else "")}


def who_waited(record: dict[str, Any]) -> str:
    """Return which side of an IMPALA run waited for the other, and what would help, in words."""
    seconds, metrics = record["duration_hours"] * 3600, record["impala"]
    if not seconds:
        return "nobody yet"
    actors, learners = metrics["actor_wait_seconds"] / seconds, metrics["learner_wait_seconds"] / seconds
    nodes = record.get("slowest_rank", {}).get("nodes", 1)
    between = ""
    if nodes > 1:
        share = metrics["learner_sync_seconds"] / seconds
        between = f"; learners spent {share:.0%} synchronising with other nodes"
    if actors > learners:
        return (
            f"learner-bound: actors waited {actors:.0%} of the time (learners {learners:.0%}); "
            f"fewer actors or a larger batch would help{between}"
        )
    advice = "more actors or more environments for each would help"
    if len(record["workers"]) > nodes * record["hardware"]["usable_cores"]:
        advice = "they share the cores, so actors ran meanwhile"
    return f"actor-bound: learners waited {learners:.0%} of the time (actors {actors:.0%}); {advice}{between}"


def tracking_text(tracking: dict[str, Any]) -> str:
    """Return what became of the tracking of a run, from its record, in words."""
    if tracking["problem"] is not None:
        return f"{tracking['tracker']} failed: {tracking['problem']}"
    return f"{tracking['tracker']}, {tracking['name']}: {counted(tracking['rows'], 'row')}"


def print_summary(record: dict[str, Any], root: Path, checkpoint: Path | None) -> None:
    """Print TRAINING SUMMARY from the content of benchmark_metrics.json."""
    performance, efficiency = record["performance"], describe_efficiency(record)

    def reward(key: str) -> str:
        return "no episode finished" if performance[key] is None else f"{performance[key]:.2f}"

    rows = {
        "Status": record["status"],
        "Duration": f"{clock(record['duration_hours'] * 3600)} ({record['duration_hours']:.4f} hours)",
        "Total timesteps": f"{record['total_timesteps']:,}",
        "Total updates": f"{record['total_updates']:,}",
        "Total episodes": f"{record['total_episodes']:,}",
        **count_processes(record),
        "Average FPS": f"{record['average_fps']:,.1f}",
        "Final FPS": f"{record['final_fps']:,.1f}",
        **({} if efficiency is None else {"Efficiency": efficiency}),
        "Initial reward": reward("initial_reward"),
        "Final reward": reward("final_reward"),
        "Best reward": reward("best_reward"),
        "Peak memory": f"{record['resource_usage']['peak_memory_gb']:.2f} GB",
        "Time spent": ", ".join(
            f"{phase} {part['share']:.0%}"
            for phase, part in record["time_breakdown"].items()
            if part["share"] >= 0.005
        ),
        **({"Who waited": who_waited(record)} if "impala" in record else {}),
        **describe_joined(record.get("impala", {}).get("remote")),
        **({"Tracking": tracking_text(record["tracking"])} if "tracking" in record else {}),
        "Checkpoint": "none" if checkpoint is None else checkpoint,
        "Results": root,
    }
    print(f"\n{'=' * WIDTH}\nTRAINING SUMMARY\n{'=' * WIDTH}")
    print_rows({f"{name}:": value for name, value in rows.items()}, indent=20)
    print("=" * WIDTH, flush=True)
