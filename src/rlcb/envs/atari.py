"""Atari's preprocessing, and the emulator's state as plain data."""

from __future__ import annotations

import base64
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation

from rlcb.config.settings import AtariOptions


def preprocess(env: gymnasium.Env[Any, Any], options: AtariOptions) -> FrameStackObservation[Any, Any, Any]:
    """Return an environment with observations uint8 (frame_stack, screen_size, screen_size).

    `env` must not skip frames.
    """
    preprocessed = AtariPreprocessing(
        SavedEmulator(env),
        noop_max=options.noop_max,
        frame_skip=options.frame_skip,
        screen_size=options.screen_size,
        terminal_on_life_loss=options.terminal_on_life_loss,
    )
    return FrameStackObservation(preprocessed, options.frame_stack)


class SavedEmulator(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Keeps what restores the emulator exactly: its state at the start of the episode, and the actions since.

    A copy of the present state is not enough: it lacks the last action, which a sticky action repeats.
    Restoring repeats the episode, at about 20,000 frames per second.
    """

    covers: ClassVar = ("ale", "_action_set")
    """Attributes of the environment inside that envs/state.py need not save."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.start: str | None = None
        """The emulator's state at the start of the episode with its random stream, 14 kB."""
        self.actions = np.zeros(1024, np.uint8)
        self.frames = 0
        """Frames since then; so many of the actions are valid, one for each frame."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        result = self.env.reset(**arguments)
        state = self.unwrapped.ale.cloneState(include_rng=True)  # type: ignore[attr-defined]
        self.start, self.frames = base64.b64encode(state.serialize()).decode(), 0
        return result

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        if self.frames == len(self.actions):
            self.actions = np.concatenate([self.actions, np.zeros_like(self.actions)])
        self.actions[self.frames] = action
        self.frames += 1
        return self.env.step(action)

    def after_restore(self) -> None:
        """Put the emulator into the state that the attributes describe."""
        from ale_py import ALEState

        if self.start is None:
            return  # saved before the first episode
        emulator = self.unwrapped.ale  # type: ignore[attr-defined]
        emulator.reset_game()  # forgets the last action, as at the start of every episode
        emulator.restoreState(ALEState(base64.b64decode(self.start)))
        for action in self.actions[: self.frames].tolist():
            self.unwrapped.step(action)
