"""Checkpoints: tensors and plain values only, written aside and renamed, refused with a reason when they do
not fit."""

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

logger = logging.getLogger(__name__)

FORMAT = 1
SEAL, DIGEST_SIZE = b"rlcb blake2b ", 16
KEYS = ("format", "algorithm", "mode", "config", "spaces", "learner", "counters", "elapsed_seconds")


def save_checkpoint(path: Path, checkpoint: dict[str, Any]) -> None:
    """Write a checkpoint so that a crash or a full disk leaves the older files as they are. Raises
    RunError."""
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
    """Return a zip archive with a digest of all its bytes as its comment, which readers of archives ignore.

    torch.load compares no checksums, and takes some damaged directories of an archive without an error.
    """
    length = (len(SEAL) + DIGEST_SIZE).to_bytes(2, "little")
    body = archive[:-2] + length  # an archive without a comment ends with the comment's length
    return body + SEAL + digest(body)


def digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=DIGEST_SIZE).digest()


def is_sound(content: bytes) -> bool:
    """Whether a checkpoint's bytes match their digest; for a file of before there was one, whether the
    archive's own checksums are right."""
    body, seal = content[: -len(SEAL) - DIGEST_SIZE], content[-len(SEAL) - DIGEST_SIZE :]
    if seal.startswith(SEAL):
        return seal[len(SEAL) :] == digest(body)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.testzip() is None


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. Raises UsageError if it is missing, damaged or not one of this project's."""
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
    except Exception as error:  # torch raises whatever its archive reader or unpickler meets first
        raise UsageError(f"{path} is not a checkpoint, or is damaged ({type(error).__name__})") from error
    if not isinstance(checkpoint, dict) or any(key not in checkpoint for key in KEYS):
        raise UsageError(f"{path} is not a checkpoint of this project")
    if checkpoint["format"] != FORMAT:
        raise UsageError(
            f"{path} has checkpoint format {checkpoint['format']}; this version reads format {FORMAT}"
        )
    return checkpoint


def step_of(path: Path) -> int | None:
    """The timesteps in the name `..._step_<n>.pt`; None for another name."""
    match = re.search(r"_step_(\d+)\.pt$", path.name)
    return int(match.group(1)) if match else None


def step_checkpoints(folder: Path, stem: str) -> list[Path]:
    """The step checkpoints of a run, oldest first."""
    return sorted(folder.glob(f"{stem}_step_*.pt"), key=lambda path: step_of(path) or 0)


def keep_newest(folder: Path, stem: str, count: int) -> None:
    """Delete all but the `count` newest step checkpoints."""
    for path in step_checkpoints(folder, stem)[:-count]:
        path.unlink(missing_ok=True)


def newest_checkpoint(folder: Path, stem: str) -> tuple[Path, dict[str, Any]] | None:
    """The checkpoint of a run that is farthest on, with its content; damaged ones are passed over with a
    warning.

    Returns None for a run that has not come to its first checkpoint. Raises UsageError if all of them are
    damaged.
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
