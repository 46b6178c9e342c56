"""The section `logging` of a configuration: metrics, checkpoints and the experiment tracker."""

from __future__ import annotations

from typing import Literal

from rlcb.config.values import Count, Minutes, Pause, PositiveFloat, Seconds, Section

TrackerName = Literal["wandb", "trackio"]


class LoggingConfig(Section):
    """Metrics and checkpoints."""

    log_interval: Count = 1
    """Updates between console lines without a terminal; metrics.jsonl has every update."""
    tensorboard: bool = True
    checkpoint_interval: Count = 100
    """Updates between checkpoints, unless checkpoint_minutes is reached first."""
    checkpoint_minutes: Minutes = 10.0
    """Minutes between checkpoints, unless checkpoint_interval is reached first."""
    snapshot_seconds: Pause = 1.0
    """Seconds between copies of the state in memory, from which an interrupted run is saved; 0: a copy after
    each update."""
    keep_checkpoints: Count = 3
    """Number of step checkpoints to keep; the final and the best checkpoint are always kept."""
    memory_interval_seconds: Seconds = 2.0
    """Seconds between measurements of memory and CPU use; more where measuring would take over 1 % of a
    core."""
    checkpoint_dir: str | None = None
    log_dir: str | None = None
    track: TrackerName | None = None
    """Experiment tracker that gets the configuration, the metrics and the results as well."""
    track_project: str | None = None
    """Project at the tracker; null: WANDB_PROJECT or TRACKIO_PROJECT if set, else rlcb."""
    track_timeout_seconds: PositiveFloat = 30.0
    """Seconds that the tracker may take to start, to log a row, and to finish; then the run goes on without
    it."""
