"""How long a study takes: from its budget, and from what its finished runs took."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from src.study import Cell, Study
from src.study_state import State

START_SECONDS = 8.0  # to load libraries, make environments and save, beside the training itself
EVALUATION_START_SECONDS = 5.0
EPISODE_SECONDS = 0.3  # a guess, for an episode of Procgen, until the first evaluation was timed


class Estimate:
    """Seconds of the parts of a study. None is what nobody can know yet: how long a number of timesteps takes
    before anything has run."""

    def __init__(self, study: Study, states: Mapping[str, State]) -> None:
        self.study = study
        self.speeds: list[tuple[Cell, float]] = []
        """Finished runs and their FPS."""
        self.evaluations: list[tuple[Cell, float]] = []
        """Evaluated runs and the seconds that it took."""
        for cell in study.cells:
            self.learn(cell, states[cell.name])

    def learn(self, cell: Cell, state: State) -> None:
        """Take in what a run took."""
        fps = state.record.get("average_fps")
        if state.status == "completed" and fps:
            self.speeds.append((cell, float(fps)))
        if state.evaluation is not None:
            self.evaluations.append((cell, float(state.evaluation.get("duration_seconds") or 0.0)))

    def training(self, cell: Cell, fps: float | None = None) -> float | None:
        """Seconds of a whole training; `fps` is that of a run which goes on, for want of finished ones."""
        if self.study.duration is not None:
            return self.study.duration * 3600
        for same in (("algorithm", "mode", "env"), ("algorithm", "mode"), ()):
            speeds = [
                speed
                for other, speed in self.speeds
                if all(getattr(other, key) == getattr(cell, key) for key in same)
            ]
            if speeds:
                return (self.study.total_timesteps or 0) / fmean(speeds)
        return None if not fps else (self.study.total_timesteps or 0) / fps

    def evaluation(self, cell: Cell) -> float:
        """Seconds of an evaluation."""
        if not self.study.evaluate_episodes:
            return 0.0
        seconds = [taken for other, taken in self.evaluations if other.env == cell.env]
        seconds = seconds or [taken for _, taken in self.evaluations]
        guess = 2 * self.study.evaluate_episodes * EPISODE_SECONDS
        return EVALUATION_START_SECONDS + (fmean(seconds) if seconds else guess)

    def whole(self, cell: Cell, fps: float | None = None) -> float | None:
        """Seconds of a run from its start to its evaluation."""
        training = self.training(cell, fps)
        return None if training is None else training + START_SECONDS + self.evaluation(cell)

    def left(self, cell: Cell, state: State, fps: float | None = None) -> float | None:
        """Seconds until a run is done, from how it stands."""
        if state.done:
            return 0.0
        if state.status == "completed":
            return self.evaluation(cell)
        training = self.training(cell, fps)
        if training is None:
            return None
        return max(0.0, training - state.elapsed_seconds) + START_SECONDS + self.evaluation(cell)

    def total_left(self, cells: list[Cell], states: Mapping[str, State]) -> float | None:
        """Seconds until all of them are done, with the rests between them."""
        seconds = [self.left(cell, states[cell.name]) for cell in cells]
        known = [each for each in seconds if each is not None]
        if len(known) < len(seconds):
            return None
        return sum(known) + self.study.cooldown * max(0, sum(each > 0 for each in known) - 1)
