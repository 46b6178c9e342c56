"""A tuning with a made-up training program, for tests of what happens around the training."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlcb.processes.signals import StopSignal
from rlcb.tuning import tuner
from rlcb.tuning.console import TuningProgress
from rlcb.tuning.folder import TuningFolder, open_tuning
from rlcb.tuning.results import write_results
from rlcb.tuning.score import BUDGET_PARTS
from rlcb.tuning.tuner import Tuner

HOURS = 0.8  # 360 s for each part of the budget
STEPS = 1000  # timesteps in each part
SETTINGS: dict[str, Any] = {
    "algorithms": ["ppo", "a2c"],
    "mode": "sequential",
    "envs": ["starpilot"],
    "trials": 3,
    "duration": HOURS,
    "sampler": "random",
}
Quality = Callable[[str, int, dict[str, Any]], float]


def made_up_row(part: int, reward_per_step: float, episodes: int) -> dict[str, Any]:
    """The row at the end of a part of the budget, `episodes` being those so far."""
    return {
        "timesteps": part * STEPS,
        "update": part,
        "time/elapsed_seconds": part * HOURS * 3600 / BUDGET_PARTS,
        "time/fps_average": 12.5,
        "rollout/ep_reward_mean": 3.0,
        "rollout/episodes": episodes,
        "rollout/reward_per_step": reward_per_step,
        "train/entropy": 1.5,
    }


class Scene:
    """A tuning whose runs get `quality(algorithm, trial, settings)` as their mean reward of a timestep, and
    end 50 episodes in each part of their budget."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch, **settings: Any) -> None:
        self.root, self.given = root, {**SETTINGS, **settings}
        self.quality: Quality = lambda algorithm, trial, settings: 0.1
        self.failing: set[tuple[str, int]] = set()
        self.stop_during: tuple[str, int, int] | None = None
        """(algorithm, trial, part) of the training in which Ctrl-C comes."""
        self.calls: list[tuple[str, int, bool]] = []
        """(algorithm, trial, resumed) of every start of the program."""
        self.parts: dict[Path, int] = {}
        """Parts of the budget that each run has trained for."""
        self.terminated = False
        self.open()
        patch.setattr(tuner, "run_logged", self.run_logged)
        patch.setattr(tuner, "READ_SECONDS", 0.0)
        patch.setattr(os, "kill", self.kill)

    def open(self) -> None:
        """Open the tuning, as each start does."""
        self.folder: TuningFolder = open_tuning(self.root, self.given)
        self.stop = StopSignal(forwards=True)

    def kill(self, pid: int, number: int) -> None:
        assert (pid, number) == (-1, signal.SIGTERM)
        assert not self.terminated, "the program is told to stop once"
        self.terminated = True

    def run(self) -> Tuner:
        """Run the trials that are left."""
        self.folder.write()
        made = Tuner(self.folder, self.stop, TuningProgress(), [], lambda: None)
        try:
            made.run_all()
        finally:
            write_results(self.folder, made.results())
        return made

    def run_logged(
        self,
        command: Sequence[str],
        log: Path,
        stop: StopSignal,
        on_start: Callable[[int], None],
        on_poll: Callable[[], None],
        descriptors: Sequence[int],
    ) -> int:
        place, trial = log.parent, int(log.parent.parent.name.removeprefix("trial_"))
        algorithm, resumed = command[command.index("--algorithm") + 1], "--resume" in command
        assert place == Path(command[command.index("--output-dir") + 1])
        assert float(command[command.index("--duration") + 1]) == HOURS
        if not resumed:
            config = yaml.safe_load(Path(command[command.index("--config") + 1]).read_text())
            place.mkdir(parents=True, exist_ok=True)
            (place / "config.yaml").write_text(yaml.safe_dump(config))
        assert resumed == (place in self.parts)
        config = yaml.safe_load((place / "config.yaml").read_text())
        self.calls.append((algorithm, trial, resumed))
        self.terminated, status = False, "completed"
        on_start(-1)
        if (algorithm, trial) in self.failing:
            log.write_text("rlcb train: failed: the world ended\n")
            status = "failed"
        while status == "completed" and self.parts.get(place, 0) < BUDGET_PARTS:
            part = self.parts[place] = self.parts.get(place, 0) + 1
            quality = self.quality(algorithm, trial, config)
            rows = place / "logs" / "X" / "metrics.jsonl"
            rows.parent.mkdir(parents=True, exist_ok=True)
            with rows.open("a") as file:
                file.write(json.dumps(made_up_row(part, quality, 50 * part)) + "\n")
            on_poll()
            if (algorithm, trial, part) == self.stop_during:
                stop.received.append(signal.SIGINT)
            if self.terminated or stop.received:
                status = "interrupted"
        (place / "benchmark_metrics.json").write_text(json.dumps({"status": status}))
        return {"completed": 0, "failed": 1, "interrupted": 143}[status]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Two algorithms, three trials each, without pruning before the sixth."""
    return Scene(tmp_path / "tuning", monkeypatch)
