"""The command `evaluate`: parse the flags, evaluate, print and save the results."""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcb.cli.command import Parser, count, exit_code
from rlcb.cpu import prepare_process
from rlcb.envs.levels import CHOICES
from rlcb.errors import RunError, UsageError
from rlcb.evaluation.console import EpisodeProgress, print_evaluation_plan, print_result
from rlcb.files import write_json
from rlcb.training.tracking import track_evaluation

if TYPE_CHECKING:
    from rlcb.evaluation.evaluation import Evaluation

VIDEO_SUFFIXES = (".mp4", ".gif")


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    number = count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def make_parser() -> Parser:
    parser = Parser(
        description="Play whole episodes with a trained or a random policy and report the returns.",
        epilog="The same command plays the same episodes. Results are added to the run's folder under "
        "evaluation/; nothing else in it changes.",
    )
    add = parser.add_argument
    add(
        "run",
        nargs="?",
        type=Path,
        metavar="RUN",
        help="a run's folder (its final checkpoint is evaluated, or the newest one) or a checkpoint file",
    )
    add("--checkpoint", type=Path, metavar="FILE", help="a checkpoint file, the same as RUN")
    add(
        "--random",
        action="store_true",
        help="take uniformly random actions; a checkpoint then only names environment and levels",
    )
    add("--algorithm", type=str.lower, metavar="NAME", help="refuse a checkpoint of another algorithm")
    add("--env", metavar="ID", help="environment (default: the checkpoint's)")
    add(
        "--num-episodes",
        type=positive,
        default=100,
        metavar="N",
        help="episodes on each level split (default: 100)",
    )
    add(
        "--split",
        choices=CHOICES,
        help="levels: train (seen in training), test (unseen, starting right after the training levels) or "
        "both; default: both if training had a limited set of levels, else all",
    )
    add("--deterministic", action="store_true", help="take the most probable action (default: sample)")
    add("--seed", type=count, default=0, metavar="N", help="seed of levels and actions (default: 0)")
    add("--num-envs", type=positive, metavar="N", help="environments that run at once (default: up to 32)")
    add(
        "--max-episode-steps",
        type=positive,
        default=10_000,
        metavar="N",
        help="end longer episodes after N steps and report how many there were (default: 10000)",
    )
    add("--num-threads", type=positive, metavar="N", help="threads (default: OMP_NUM_THREADS, or all cores)")
    add("--device", choices=("cpu",), default="cpu", help="only cpu is supported")
    _add_output_flags(parser)
    return parser


def _add_output_flags(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON file for the results (default: a new file in the run's evaluation/)",
    )
    add("--video", type=Path, metavar="FILE", help="also record further episodes, as .mp4 or .gif")
    add("--render", action="store_true", help="also show further episodes in a window")
    add(
        "--video-episodes",
        type=positive,
        default=4,
        metavar="N",
        help="episodes to record or show (default: 4)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with `argv` (default: sys.argv) and return its exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    """Evaluate, print and save the results; return 0.

    Raises UsageError or RunError, wherever possible before the first episode.
    """
    if arguments.video is not None and arguments.video.suffix.lower() not in VIDEO_SUFFIXES:
        raise UsageError(f"--video {arguments.video}: the name must end in {' or '.join(VIDEO_SUFFIXES)}")
    if arguments.output is not None and arguments.output.suffix != ".json":
        raise UsageError(f"--output {arguments.output}: the name must end in .json")
    num_threads = prepare_process(arguments.num_threads)  # before torch is loaded
    arguments.checkpoint = checkpoint_of(arguments.run, arguments.checkpoint)
    from rlcb.cpu import set_torch_threads
    from rlcb.evaluation.evaluation import Evaluation, Plan

    set_torch_threads(num_threads)
    evaluation = Evaluation(
        Plan(
            checkpoint=arguments.checkpoint,
            episodes=arguments.num_episodes,
            split=arguments.split,
            seed=arguments.seed,
            deterministic=arguments.deterministic,
            random=arguments.random,
            algorithm=arguments.algorithm,
            env_id=arguments.env,
            num_envs=arguments.num_envs,
            max_episode_steps=arguments.max_episode_steps,
            num_threads=num_threads,
        )
    )
    folder = arguments.output.parent if arguments.output is not None else results_folder(arguments.checkpoint)
    screen = prepare_screening(evaluation, arguments)
    for target in (folder, *([arguments.video.parent] if arguments.video is not None else [])):
        require_writable(target)
    print_evaluation_plan(evaluation)
    progress = EpisodeProgress(evaluation.plan.episodes * len(evaluation.splits))
    try:
        result = evaluation.run(progress.advance)
    finally:
        progress.close()
    path = save_result(result, folder, arguments.output)
    print_result(result)
    print(f"\nResults: {path}", flush=True)
    if arguments.checkpoint is not None:
        track_evaluation(results_folder(arguments.checkpoint).parent, result)
    screen()
    return 0


def checkpoint_of(run: Path | None, checkpoint: Path | None) -> Path | None:
    """Return the checkpoint that RUN and --checkpoint name; of a run's folder it is the last one.

    Raises UsageError if the folder has no checkpoint, or if the two name different files.
    """
    from rlcb.training.checkpoint import last_checkpoint

    if run is None:
        return checkpoint
    found = last_checkpoint(run) if run.is_dir() else run
    if checkpoint is not None and checkpoint.resolve() != found.resolve():
        raise UsageError(f"RUN {run} is {found}, but --checkpoint is {checkpoint}: give one of them")
    return found


def results_folder(checkpoint: Path | None) -> Path:
    """Return the folder for results: evaluation/ in the run's folder.

    A checkpoint outside of a run gets evaluation/ beside it; without a checkpoint it is ./evaluation.
    """
    if checkpoint is None:
        return Path("evaluation")
    folder = checkpoint.absolute().parent
    return (folder.parent if folder.name == "checkpoints" else folder) / "evaluation"


def require_writable(folder: Path) -> None:
    """Create a folder if necessary. Raises RunError if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from error


def save_result(result: dict[str, Any], folder: Path, path: Path | None = None) -> Path:
    """Write a result to `path`, or to a new file in `folder`, and return its path. Raises RunError."""
    try:
        if path is not None:
            write_json(path, result)
            return path
        checkpoint, splits = result["checkpoint"], list(result["splits"])
        stem = Path(checkpoint).stem if checkpoint is not None else re.sub(r"[^\w.-]", "-", result["env"])
        if result["algorithm"] == "random":
            stem = f"random_{stem}"
        stem += f"_{splits[0] if len(splits) == 1 else 'both'}_{time.strftime('%Y%m%d-%H%M%S')}"
        return _write_under_new_name(folder, stem, result)
    except OSError as error:
        raise RunError(f"cannot write the results to {path or folder}: {error.strerror or error}") from error


def _write_under_new_name(folder: Path, stem: str, result: dict[str, Any]) -> Path:
    """Write `<stem>.json` in `folder`; if it exists, `<stem>_2.json` and so on. Returns the path."""
    number = 1
    while True:
        path = folder / f"{stem}{f'_{number}' if number > 1 else ''}.json"
        claim = path.with_name(f".{path.name}.claim")  # keeps other processes from the same name
        try:
            claim.touch(exist_ok=False)
        except FileExistsError:
            number += 1
            continue
        try:
            if not path.exists():
                write_json(path, result)
                return path
        finally:
            claim.unlink()
        number += 1


def prepare_screening(evaluation: Evaluation, arguments: argparse.Namespace) -> Callable[[], None]:
    """Return a function that records or shows further episodes, or does nothing without --video and --render.

    Raises UsageError if this machine cannot record or show them.
    """
    if arguments.video is None and not arguments.render:
        return lambda: None
    from rlcb.evaluation.video import Screening, VideoFile, Viewer, ViewerWindow, require_display

    if arguments.render:
        require_display()
    screening = Screening(evaluation)
    viewers: list[Viewer] = []
    if arguments.video is not None:
        viewers.append(VideoFile(arguments.video, screening.fps))
    if arguments.render:
        viewers.append(ViewerWindow(evaluation.env.id, screening.fps))

    def screen() -> None:
        print(f"\nPlaying {arguments.video_episodes} further episodes on {screening.split.text}", flush=True)
        for number, episode in enumerate(screening.show(viewers, arguments.video_episodes), 1):
            print(f"episode {number}: return {episode.reward:.2f}, {episode.length} steps")
        if arguments.video is not None:
            print(f"Video: {arguments.video}")

    return screen
