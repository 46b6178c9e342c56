"""The command line of the evaluator, and where its results go."""

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
from rlcb.evaluation.console import EpisodeProgress, print_plan, print_result
from rlcb.files import write_json

if TYPE_CHECKING:
    from rlcb.evaluation.evaluation import Evaluation

VIDEO_SUFFIXES = (".mp4", ".gif")


def positive(text: str) -> int:
    """A count of at least 1."""
    number = count(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return number


def make_parser() -> Parser:
    parser = Parser(
        description="Measure a trained policy, or the random one, over a number of whole episodes.",
        epilog="The same command gives the same episodes. The run is left as it is: results are added to its "
        "folder under evaluation/.",
    )
    add = parser.add_argument
    add("--checkpoint", type=Path, metavar="FILE", help="the checkpoint to evaluate")
    add(
        "--random",
        action="store_true",
        help="evaluate the uniform random policy; --checkpoint, if given, "
        "then only names environment and levels",
    )
    add("--algorithm", type=str.lower, metavar="NAME", help="refuse a checkpoint of another algorithm")
    add("--env", metavar="TEXT", help="environment (default: the checkpoint's own)")
    add(
        "--num-episodes",
        type=positive,
        default=100,
        metavar="N",
        help="episodes of each split (default: 100)",
    )
    add(
        "--split",
        choices=CHOICES,
        help="levels: train (those trained on), test (unseen ones that begin right "
        "after them) or both; default: both if training had a limited set of levels, else all",
    )
    add("--deterministic", action="store_true", help="take the most probable action (default: sample)")
    add("--seed", type=count, default=0, metavar="N", help="seed of levels and actions (default: 0)")
    add("--num-envs", type=positive, metavar="N", help="environments at once (default: at most 32)")
    add(
        "--max-episode-steps",
        type=positive,
        default=10_000,
        metavar="N",
        help="end an episode after so many steps, and say so (default: 10000)",
    )
    add("--num-threads", type=positive, metavar="N", help="threads (default: OMP_NUM_THREADS, or the cores)")
    add("--device", choices=("cpu",), default="cpu", help="where it runs: cpu is all there is")
    add_output_flags(parser)
    return parser


def add_output_flags(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--output",
        type=Path,
        metavar="FILE",
        help="JSON file of the results (default: a new one in evaluation/ of the run)",
    )
    add("--video", type=Path, metavar="FILE", help="then record further episodes, as .mp4 or .gif")
    add("--render", action="store_true", help="then show further episodes in a window")
    add(
        "--video-episodes",
        type=positive,
        default=4,
        metavar="N",
        help="episodes to record or show (default: 4)",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run an evaluation script; returns its exit code."""
    return exit_code(lambda: run(make_parser().parse_args(argv)))


def run(arguments: argparse.Namespace) -> int:
    """Evaluate as the flags say. Raises UsageError or RunError, before the evaluation wherever possible."""
    if arguments.video is not None and arguments.video.suffix.lower() not in VIDEO_SUFFIXES:
        raise UsageError(f"--video {arguments.video}: the name must end in {' or '.join(VIDEO_SUFFIXES)}")
    if arguments.output is not None and arguments.output.suffix != ".json":
        raise UsageError(f"--output {arguments.output}: the name must end in .json")
    num_threads = prepare_process(arguments.num_threads)  # before torch is loaded
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
    watch = prepare_screening(evaluation, arguments)
    for place in (folder, *([arguments.video.parent] if arguments.video is not None else [])):
        require_writable(place)
    print_plan(evaluation)
    progress = EpisodeProgress(evaluation.plan.episodes * len(evaluation.splits))
    try:
        result = evaluation.run(progress.advance)
    finally:
        progress.close()
    path = save_result(result, folder, arguments.output)
    print_result(result)
    print(f"\nResults: {path}", flush=True)
    watch()
    return 0


def results_folder(checkpoint: Path | None) -> Path:
    """evaluation/ in the run's folder; beside a checkpoint that lies in no run; here without a checkpoint."""
    if checkpoint is None:
        return Path("evaluation")
    folder = checkpoint.absolute().parent
    return (folder.parent if folder.name == "checkpoints" else folder) / "evaluation"


def require_writable(folder: Path) -> None:
    """Make a folder and raise RunError if nothing can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error.strerror or error}") from error


def save_result(result: dict[str, Any], folder: Path, path: Path | None = None) -> Path:
    """Write a result to `path`, or under a new name in `folder`; returns where it is. Raises RunError."""
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
    """Evaluations that end in the same second get numbers behind their names."""
    number = 1
    while True:
        path = folder / f"{stem}{f'_{number}' if number > 1 else ''}.json"
        claim = path.with_name(f".{path.name}.claim")
        try:
            claim.touch(exist_ok=False)  # held by one process only, and only while it writes
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
    """What shows or records episodes when it is called. Raises UsageError if that is impossible here."""
    if arguments.video is None and not arguments.render:
        return lambda: None
    from rlcb.evaluation.video import Screening, VideoFile, Viewer, Window, require_display

    if arguments.render:
        require_display()
    screening = Screening(evaluation)
    viewers: list[Viewer] = []
    if arguments.video is not None:
        viewers.append(VideoFile(arguments.video, screening.fps))
    if arguments.render:
        viewers.append(Window(evaluation.env.id, screening.fps))

    def watch() -> None:
        print(
            f"\nPlaying {arguments.video_episodes} more episodes to watch, on {screening.split.text}",
            flush=True,
        )
        for number, episode in enumerate(screening.show(viewers, arguments.video_episodes), 1):
            print(f"episode {number}: return {episode.reward:.2f}, {episode.length} steps")
        if arguments.video is not None:
            print(f"Video: {arguments.video}")

    return watch
