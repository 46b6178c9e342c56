"""Peak memory of a large rollout: 64 environments x 256 steps with IMPALA-CNN, one update of one
epoch.

    venv/bin/python -m perf.memory_peak

The bar: under 1.2 GB (proportional set size of the whole process tree).
"""

from __future__ import annotations

from perf.measure import save
from perf.training_runs import train


def main() -> None:
    flags = ("--env", "coinrun", "--num-envs", 64, "--n-steps", 256, "--n-epochs", 1, "--total-timesteps", 1)
    result = train("train_ppo_sequential.py", flags, ("logging.memory_interval_seconds=0.5",))
    text = f"Peak memory, 64 environments x 256 steps, IMPALA-CNN: {result.peak_memory_mb:,.0f} MB"
    save("memory_peak", text, {"peak_memory_mb": result.peak_memory_mb})


if __name__ == "__main__":
    main()
