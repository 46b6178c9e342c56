"""Show episodes: render frames in high resolution to a video file or a window."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from rlcb.envs.procgen import ProcgenVectorEnv
from rlcb.envs.vector_env import GymnasiumVectorEnv
from rlcb.errors import RunError, UsageError
from rlcb.evaluation.episodes import PlayedEpisode
from rlcb.evaluation.evaluation import STREAMS, Evaluation

DEFAULT_FPS = 30
MAX_GIF_FPS = 50  # GIF delays are whole centiseconds, and players slow down delays below two
# One palette per frame: a palette for the whole file would need all frames in memory.
GIF_FILTER = "split[a][b];[a]palettegen=stats_mode=single:reserve_transparent=0[p];[b][p]paletteuse=new=1"
NO_WINDOW = "--render cannot open a window here ({}); use --video FILE to record the episodes instead"


class Viewer(Protocol):
    """Shows or records frames (H, W, 3) uint8, one at a time."""

    def show(self, frame: NDArray[np.uint8]) -> None: ...

    def close(self, complete: bool) -> None: ...


class WindowClosed(Exception):
    """The user closed the window."""


class VideoFile:
    """An mp4 or gif, written frame by frame to a temporary file that is renamed once it is complete."""

    def __init__(self, path: Path, fps: float) -> None:
        self.path = path
        self.fps = min(fps, MAX_GIF_FPS) if path.suffix.lower() == ".gif" else fps
        self.frames = 0
        self._temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp{path.suffix.lower()}")
        self._writer: Any = None

    def _open(self, height: int, width: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing it warns that pkg_resources is deprecated
            import imageio_ffmpeg
        if self._temporary.suffix == ".gif":
            options = {
                "codec": "gif",
                "pix_fmt_out": "pal8",
                "macro_block_size": 1,
                "output_params": ["-vf", GIF_FILTER, "-gifflags", "-transdiff"],
            }
        else:
            options = {"codec": "libx264", "macro_block_size": 2}
        writer = imageio_ffmpeg.write_frames(
            str(self._temporary), (width, height), fps=self.fps, ffmpeg_log_level="error", **options
        )
        writer.send(None)
        return writer

    def show(self, frame: NDArray[np.uint8]) -> None:
        """Append a frame. Raises RunError if it cannot be written."""
        height, width = frame.shape[0] // 2 * 2, frame.shape[1] // 2 * 2  # video codecs need even sizes
        try:
            if self._writer is None:
                self._writer = self._open(height, width)
            self._writer.send(np.ascontiguousarray(frame[:height, :width]))
        except (OSError, StopIteration) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise RunError(f"cannot write video {self.path}: {reason}") from error
        self.frames += 1

    def close(self, complete: bool) -> None:
        """Finish the file or, unless `complete`, delete it. Raises RunError if the encoder wrote nothing."""
        if self._writer is not None:
            self._writer.close()
        if complete and self._temporary.exists():
            self._temporary.replace(self.path)
        else:
            self._temporary.unlink(missing_ok=True)
            if complete:
                raise RunError(f"cannot write video {self.path}: the encoder left no file")


class ViewerWindow:
    """A window that shows `fps` frames per second."""

    def __init__(self, title: str, fps: float) -> None:
        """Open the window. Raises UsageError without a display or a window toolkit."""
        require_display()
        import matplotlib.pyplot as plt

        self.fps = fps
        self._plt = plt
        self._due = 0.0
        try:
            self._figure = plt.figure(title, figsize=(6, 6))
        except Exception as error:  # each toolkit has its own exceptions
            raise UsageError(NO_WINDOW.format(" ".join(str(error).split())[:100])) from error
        self._axes = self._figure.add_axes((0, 0, 1, 1))
        self._axes.set_axis_off()
        self._image: Any = None

    def show(self, frame: NDArray[np.uint8]) -> None:
        """Draw a frame, then wait until the next one is due. Raises WindowClosed once the user closed the
        window."""
        if not self._plt.fignum_exists(self._figure.number):
            raise WindowClosed
        if self._image is None:
            self._image = self._axes.imshow(frame)
            self._figure.show()
        self._image.set_data(frame)
        self._figure.canvas.draw_idle()
        self._figure.canvas.flush_events()
        time.sleep(max(0.0, self._due - time.monotonic()))
        self._due = time.monotonic() + 1 / self.fps

    def close(self, complete: bool) -> None:
        self._plt.close(self._figure)


def require_display() -> None:
    """Raise UsageError without a display or a window toolkit."""
    if sys.platform.startswith("linux") and not (
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    ):
        raise UsageError(NO_WINDOW.format("there is no display"))
    import matplotlib.pyplot as plt

    if plt.get_backend().lower() == "agg":
        raise UsageError(NO_WINDOW.format("matplotlib has no toolkit for windows, such as Tk or Qt"))


class Screening:
    """Further episodes of an evaluation's policy, which are shown but not measured.

    They are played in one environment on the last level split: unseen levels if there are any.
    """

    def __init__(self, evaluation: Evaluation) -> None:
        """Make the environment and render a frame. Raises UsageError if it cannot render."""
        self.evaluation = evaluation
        self.split = evaluation.splits[-1]
        self.env: ProcgenVectorEnv | GymnasiumVectorEnv = evaluation.make_env(
            self.split, 1, STREAMS["watch"], render=True
        )
        self.fps = float(self.env.metadata.get("render_fps") or DEFAULT_FPS)
        self.env.reset()
        self.frame()

    def frame(self) -> NDArray[np.uint8]:
        """The current frame (H, W, 3)."""
        try:
            frames = self.env.render()
        except Exception as error:  # each rendering library has its own exceptions
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise UsageError(f"cannot render {self.env_id}: {reason}") from error
        if not frames or not isinstance(frames[0], np.ndarray):
            raise UsageError(f"cannot render {self.env_id}: it returned no rgb_array")
        return frames[0]

    @property
    def env_id(self) -> str:
        return self.evaluation.env.id

    def show(self, viewers: Sequence[Viewer], episodes: int) -> list[PlayedEpisode]:
        """Play and show episodes and return them; none if the user closed the window.

        Raises RunError if an environment fails or the video cannot be written.
        """

        def show_frame() -> None:
            frame = self.frame()
            for viewer in viewers:
                viewer.show(frame)

        played: list[PlayedEpisode] = []
        complete = False
        try:
            played = self.evaluation.play(self.env, episodes, STREAMS["watch"], before_step=show_frame)
            complete = True
        except WindowClosed:
            complete = True  # keep what was recorded so far
        finally:
            for viewer in viewers:
                viewer.close(complete)
        return played
