"""Saves and loads checkpoints: files of torch.save that hold only tensors and plain values."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import zipfile
from pathlib import Path
from typing import Any

import torch

from rlcb.errors import RunError, UsageError
from rlcb.files import write_atomically
from rlcb.training.run_folder import CONFIG_FILE, RunFolder, config_of_run

logger = logging.getLogger(__name__)

FORMAT = 1
SEAL, DIGEST_SIZE = b"rlcb blake2b ", 16
KEYS = ("format", "algorithm", "mode", "config", "spaces", "learner", "counters", "elapsed_seconds")


def save_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint atomically: a crash or a full disk leaves older files intact.

    Raises RunError if it cannot be written.
    """
    archive = io.BytesIO()
    torch.save({"format": FORMAT, **checkpoint}, archive)
    content = sealed(archive.getvalue())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        size = len(content) / 2**20
        raise RunError(f"cannot save checkpoint {path} ({size:.1f} MB): {error.strerror or error}") from error


def sealed(archive: bytes) -> bytes:
    """Return a zip archive with a digest of its bytes appended as the archive's comment.

    torch.load ignores the comment. It verifies no checksums itself, and reads some damaged archives without
    an error.
    """
    length = (len(SEAL) + DIGEST_SIZE).to_bytes(2, "little")
    body = archive[:-2] + length  # an archive without a comment ends with the comment's length
    return body + SEAL + digest(body)


def digest(body: bytes) -> bytes:
    """Return the BLAKE2b digest of a sealed archive's bytes before the seal."""
    return hashlib.blake2b(body, digest_size=DIGEST_SIZE).digest()


def is_sound(content: bytes) -> bool:
    """Return whether a checkpoint's bytes match their digest.

    Checkpoints of older versions have no digest; the CRCs of the archive are verified instead.
    """
    body, seal = content[: -len(SEAL) - DIGEST_SIZE], content[-len(SEAL) - DIGEST_SIZE :]
    if seal.startswith(SEAL):
        return seal[len(SEAL) :] == digest(body)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.testzip() is None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Return the content of a checkpoint. Raises UsageError if it is missing, damaged or of another kind."""
    if not path.is_file():
        raise UsageError(f"no checkpoint at {path}")
    try:
        content = path.read_bytes()
        if not is_sound(content):
            raise UsageError(f"{path} is damaged: its checksum is wrong")
        checkpoint = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except UsageError:
        raise
    except OSError as error:
        raise UsageError(f"cannot read checkpoint {path}: {error.strerror or error}") from None
    except Exception as error:  # torch.load has no common exception for files that it cannot read
        raise UsageError(f"{path} is not a checkpoint, or is damaged ({type(error).__name__})") from error
    if not isinstance(checkpoint, dict) or any(key not in checkpoint for key in KEYS):
        raise UsageError(f"{path} is not a checkpoint of this project")
    if checkpoint["format"] != FORMAT:
        raise UsageError(
            f"{path} has checkpoint format {checkpoint['format']}; this version reads format {FORMAT}"
        )
    return checkpoint


def step_of(path: Path) -> int | None:
    """Return the timesteps n in a name `..._step_<n>.pt`; None for other names."""
    match = re.search(r"_step_(\d+)\.pt$", path.name)
    return int(match.group(1)) if match else None


def step_checkpoints(folder: Path, stem: str) -> list[Path]:
    """Return the step checkpoints of a run, oldest first."""
    return sorted(folder.glob(f"{stem}_step_*.pt"), key=lambda path: step_of(path) or 0)


def keep_newest(folder: Path, stem: str, count: int) -> None:
    """Delete all but the `count` newest step checkpoints."""
    for path in step_checkpoints(folder, stem)[:-count]:
        path.unlink(missing_ok=True)


def last_checkpoint(root: Path) -> Path:
    """Return the final checkpoint in the folder of a run, or the newest one of a run that has not completed.

    Raises UsageError if there is none, or if the folder does not say which of several is meant.
    """
    folder, stem = root / "checkpoints", "*"
    if (root / CONFIG_FILE).exists():
        paths = RunFolder(root, config_of_run(root))
        folder, stem = paths.checkpoints, paths.stem
    final = sorted(folder.glob(f"{stem}_final.pt"))
    if len(final) > 1:
        raise UsageError(f"{folder} holds {len(final)} final checkpoints; give one of these files")
    found = final or step_checkpoints(folder, stem)
    if not found:
        raise UsageError(f"no checkpoint in {folder}: give the folder of one run, or a checkpoint file")
    return found[-1]


def newest_checkpoint(folder: Path, stem: str) -> tuple[Path, dict[str, Any]] | None:
    """Return the path and content of a run's newest readable checkpoint; None if the run has none yet.

    Skips damaged checkpoints with a warning. Raises UsageError if all are damaged.
    """
    paths = [*step_checkpoints(folder, stem), *folder.glob(f"{stem}_final.pt")]
    error: UsageError | None = None
    for path in reversed(paths):
        try:
            return path, load_checkpoint(path)
        except UsageError as problem:
            logger.warning("%s; trying the one before it", problem)
            error = problem
    if error is not None:
        raise error
    return None
