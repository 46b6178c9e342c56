"""The functions for Python programs and notebooks: `rlcb.train`, `rlcb.load` and `rlcb.compare`.

They accept what the commands accept, and raise UsageError (wrong input) and RunError (a run that failed)
where the commands print a line and exit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlcb.cli.compare import load as load_comparison
from rlcb.cli.compare import make_parser as make_compare_parser
from rlcb.cli.compare import read_options
from rlcb.cli.flags import make_parser
from rlcb.cli.train import make_spec, read_choice, run_spec
from rlcb.cpu import THREAD_VARIABLES
from rlcb.errors import Interrupted, RunError, UsageError
from rlcb.training.metrics_writer import sound_rows
from rlcb.training.run_folder import RunFolder, config_of_run

if TYPE_CHECKING:
    from rlcb.comparison.result import ComparisonResult
    from rlcb.rl.models import ActorCritic

__all__ = ["Interrupted", "Policy", "Run", "RunError", "UsageError", "compare", "load", "train"]


@dataclass(frozen=True, repr=False)
class Run:
    """A training run that has ended, read from its folder. `train` returns one; `Run(folder)` opens one."""

    folder: Path

    def has_record(self) -> bool:
        """Whether the run has ended and left its record."""
        return (self.folder / "benchmark_metrics.json").exists()

    @property
    def record(self) -> dict[str, Any]:
        """The content of benchmark_metrics.json. `record["status"]` is completed, interrupted or failed."""
        record: dict[str, Any] = json.loads((self.folder / "benchmark_metrics.json").read_text("utf-8"))
        return record

    @property
    def rows(self) -> dict[str, NDArray[Any]]:
        """The metrics: for each key of metrics.jsonl an array (updates,). Missing values are NaN."""
        rows, _ = sound_rows(self._paths().rows)
        keys = dict.fromkeys(key for row in rows for key in row)
        values = {key: [row.get(key) for row in rows] for key in keys}
        return {key: np.array([np.nan if v is None else v for v in column]) for key, column in values.items()}

    @property
    def checkpoint(self) -> Path:
        """The final checkpoint, or the newest of an interrupted run. Raises UsageError if there is none."""
        from rlcb.training.checkpoint import last_checkpoint

        return last_checkpoint(self.folder)

    def __repr__(self) -> str:
        """Return the folder, what ran there, how it ended, and its return."""
        if not self.has_record():
            return f"<Run {self.folder}: no record yet>"
        record = self.record
        final = record["performance"]["final_reward"]
        reward = "no episode finished" if final is None else f"return {final:.2f}"
        return (
            f"<Run {self.folder}: {record['algorithm']} {record['training_mode']} on {record['env']}, "
            f"{record['status']} after {record['total_timesteps']:,} timesteps, {reward}>"
        )

    def _paths(self) -> RunFolder:
        return RunFolder(self.folder, config_of_run(self.folder))


def train(
    algorithm: str = "ppo",
    mode: str = "parallel",
    *,
    env: str | None = None,
    duration: float | str | None = None,
    total_timesteps: int | str | None = None,
    output_dir: str | Path | None = None,
    seed: int | None = None,
    config: str | Path | Sequence[str | Path] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    settings: Mapping[str, Any] | None = None,
    **flags: Any,
) -> Run:
    """Train as `rlcb train` does and return the run.

    `duration` is in hours, or a text such as "10m" or "1h30m"; `total_timesteps` may be "1M" or "250k".
    `config` is one configuration file or several, later ones over earlier ones. `settings` maps any setting
    to its value, for example `{"training.clip_range": 0.1}`. `flags` are further flags of `rlcb train`, for
    example `n_steps=16`. Ctrl-C stops the run safely: it returns with the status `interrupted`, and
    `resume=True` with the same `output_dir` continues it.

    Workers do not import the calling script, so it needs no `__main__` guard. An environment of your own
    must be registered in a module that workers can import (`env="my_module:MyEnv-v0"`).

    Raises UsageError for wrong input, RunError if the run fails, and Interrupted if a signal stops it before
    it has begun. Call it from the main thread, which receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        raise UsageError("rlcb.train must be called from the main thread: only it receives signals")
    if mode == "distributed":
        raise UsageError("rlcb.train runs on one machine; start `rlcb train --mode distributed` on each node")
    choice = {"algorithm": algorithm, "mode": mode}
    read_choice(_words(choice), argparse.Namespace())
    limits = {"duration": duration, "total_timesteps": total_timesteps, "seed": seed}
    words = _words({**choice, "env": env, **limits, "output_dir": output_dir, **flags})
    files = [config] if isinstance(config, (str, Path)) else config or []
    words += [f"--config={path}" for path in files]
    words += [f"--set={key}={_as_yaml(key, value)}" for key, value in (settings or {}).items()]
    words += [f"--{name}" for name, wanted in (("resume", resume), ("overwrite", overwrite)) if wanted]
    with _threads_restored():
        spec = make_spec(make_parser(algorithm, mode, timed=None).parse_args(words))
        code = run_spec(spec)
    run = Run(spec.folder.root)
    if code and (not run.has_record() or run.record["status"] == "completed"):  # an earlier run's record
        raise Interrupted(code - 128)
    return run


def _words(flags: Mapping[str, Any]) -> list[str]:
    """Return flags as words of the command line, without those that are None."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None]


def _as_yaml(key: str, value: Any) -> str:
    """Return a setting's value as YAML text. Raises UsageError for a value that YAML cannot hold."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, Path):
        value = str(value)
    try:
        return json.dumps(value)
    except TypeError as error:
        raise UsageError(f"settings: {key} = {value!r}: {error}") from None


@contextlib.contextmanager
def _threads_restored() -> Iterator[None]:
    """Give the process its numbers of threads back, which a run changes."""
    names = (*THREAD_VARIABLES, "GOMP_SPINCOUNT")
    before = {name: os.environ.get(name) for name in names}
    torch = sys.modules.get("torch")
    torch_threads = None if torch is None else torch.get_num_threads()
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if torch is not None:
            torch.set_num_threads(torch_threads)


class Policy:
    """A trained policy; `load` returns one."""

    def __init__(self, model: ActorCritic) -> None:
        self.model = model
        self.spaces = model.spaces

    def predict(
        self, observation: ArrayLike, deterministic: bool = True, rng: np.random.Generator | None = None
    ) -> Any:
        """Return the action for one observation as an int, or the actions (n,) int64 for a batch of n.

        One observation has the shape and dtype that the environment returns: (H, W, C) uint8 for images,
        (D,) for vectors. Images may also be (C, H, W), unless that is the environment's own shape as well.
        `deterministic` takes the most probable action; otherwise actions are sampled from
        the policy, with `rng` if given. Raises UsageError for another shape, and for images of fractions
        where the environment's pixels are whole numbers.
        """
        from rlcb.evaluation.episodes import model_policy

        shape = self.spaces.observation_shape
        observations = np.asarray(observation)
        dtype = np.dtype(self.spaces.observation_dtype)
        if dtype.kind in "iu" and observations.dtype.kind not in "iu":
            raise UsageError(f"observation of dtype {observations.dtype}: the environment has {dtype}")
        if self.spaces.is_image and observations.shape[-3:] == self.spaces.network_shape != shape:
            observations = np.moveaxis(observations, -3, -1)
        observations = np.ascontiguousarray(observations, dtype)
        single = observations.shape == shape
        if single:
            observations = observations[None]
        if observations.shape[1:] != shape:
            raise UsageError(f"observation of shape {observations.shape}: expected {shape} or (n, *{shape})")
        noise = (np.random.default_rng() if rng is None else rng).random(len(observations))
        actions = model_policy(self.model, deterministic)(observations, noise)
        return int(actions[0]) if single else actions


def load(run: Run | str | Path) -> Policy:
    """Return the policy of a run, of the folder of a run or of an export, or of a checkpoint file.

    Raises UsageError.
    """
    from rlcb.config.yaml_file import build_config
    from rlcb.evaluation.evaluation import load_model
    from rlcb.training.checkpoint import load_checkpoint

    path = run.folder if isinstance(run, Run) else Path(run)
    if (path / "model.safetensors").exists():
        from rlcb.evaluation.export import load_export

        return Policy(load_export(path))
    if path.is_dir():
        path = Run(path).checkpoint
    checkpoint = load_checkpoint(path)
    return Policy(load_model(path, checkpoint, build_config(checkpoint["config"], str(path))))


def compare(
    runs: Sequence[Run | str | Path], baseline: str | None = None, threshold: float | None = None
) -> ComparisonResult:
    """Compare runs as `rlcb compare` does and return the findings and a tidy table.

    The result is a sequence of findings (`str(finding)` is a sentence) with the attributes `findings` and
    `table`; printed or shown in a notebook it is readable.

    `runs` may hold folders of runs and folders that hold several. `baseline` is the label of the group to
    compare with; None: the first. `threshold` is the return for the time to threshold. Writes no file.
    Raises UsageError if no run can be used.
    """
    from rlcb.comparison.result import ComparisonResult

    words = [str(run.folder if isinstance(run, Run) else run) for run in runs]
    words += [] if baseline is None else [f"--baseline={baseline}"]
    words += [] if threshold is None else [f"--threshold={threshold}"]
    arguments = make_compare_parser().parse_args(words)
    return ComparisonResult(load_comparison(arguments, read_options(arguments)))
