"""Print an evaluation: its plan, its progress, its results."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from rlcb.config.games import procgen_game
from rlcb.text import WIDTH, print_rows

if TYPE_CHECKING:
    from rlcb.evaluation.evaluation import Evaluation

LINE_SECONDS = 10.0
SPLIT_NOTES = {"train": " (trained on)", "test": " (unseen in training)", "full": ""}


class EpisodeProgress:
    """Shows how many episodes are finished: a bar on a terminal, else a line every ten seconds."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self._next_line = time.monotonic() + LINE_SECONDS
        self._bar = tqdm(total=total, unit="episode", dynamic_ncols=True) if sys.stderr.isatty() else None

    def advance(self) -> None:
        """Count one more finished episode."""
        self.done += 1
        if self._bar is not None:
            self._bar.update()
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_SECONDS
            print(f"{self.done} of {self.total} episodes", flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def print_evaluation_plan(evaluation: Evaluation) -> None:
    """Print the policy, the environment, the levels and the number of episodes."""
    plan, env, checkpoint = evaluation.plan, evaluation.env, evaluation.checkpoint
    actions = "the most probable action" if plan.deterministic else "actions sampled from the policy"
    if plan.random or checkpoint is None:
        policy = "uniformly random actions"
    else:
        timesteps = checkpoint["counters"]["timesteps"]
        policy = f"{checkpoint['algorithm'].upper()} after {timesteps:,} timesteps; {actions}"
    mode = f", {env.distribution_mode}" if procgen_game(env.id) else ""
    rows: dict[str, str | Path] = {"policy": policy, "checkpoint": plan.checkpoint or "none"}
    rows["environment"] = env.id + mode
    if evaluation.other_env and evaluation.config is not None:
        rows["note"] = f"another environment than the checkpoint's, {evaluation.config.env.id}"
    rows |= {
        "observations": str(evaluation.spaces.network_shape),
        "actions": str(evaluation.spaces.num_actions),
        "device": f"cpu, {plan.num_threads} thread{'s' if plan.num_threads > 1 else ''}",
    }
    for split in evaluation.splits:
        rows[f"{split.name} split"] = split.text + SPLIT_NOTES[split.name]
    rows |= {
        "episodes": f"{plan.episodes} on each split, in {evaluation.num_envs} environments, "
        f"each at most {plan.max_episode_steps:,} steps",
        "seed": str(plan.seed),
    }
    print("=" * WIDTH)
    print_rows(rows, indent=14)
    print("=" * WIDTH, flush=True)


def print_result(result: dict[str, Any]) -> None:
    """Print the returns and lengths on every level split, and the generalisation gap."""
    print(f"\n{'=' * WIDTH}\nEVALUATION (± is the standard deviation over episodes)\n{'=' * WIDTH}")
    for name, split in result["splits"].items():
        interval = split["ci95_mean_reward"]
        rows = {
            "Episodes": f"{split['episodes']}",
            "Mean reward": _mean_and_std(split["mean_reward"], split["std_reward"], 2),
            "95 % interval": "n/a" if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}",
            "Min / max reward": f"{split['min_reward']:.2f} / {split['max_reward']:.2f}",
            "Mean episode length": _mean_and_std(split["mean_length"], split["std_length"], 1),
        }
        if split["capped_episodes"]:
            rows["Capped"] = (
                f"{split['capped_episodes']} episodes were ended after "
                f"{result['max_episode_steps']:,} steps (--max-episode-steps)"
            )
        print(f"{name}: {split['levels']['description']}")
        for label, value in rows.items():
            print(f"  {label + ':':<21} {value}")
    gap = result["generalisation_gap"]
    if gap is not None:
        error = "n/a" if gap["standard_error"] is None else f"{gap['standard_error']:.2f}"
        print(f"Generalisation gap: {gap['mean']:.2f} (train minus test; standard error {error})")


def _mean_and_std(mean: float, std: float | None, digits: int) -> str:
    return f"{mean:.{digits}f} ± {'n/a' if std is None else f'{std:.{digits}f}'}"
