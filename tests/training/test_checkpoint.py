"""A damaged checkpoint is never used: it is refused, and a resumed run falls back to the one before it."""

from __future__ import annotations

import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcb.errors import UsageError
from rlcb.training.checkpoint import SEAL, load_checkpoint, newest_checkpoint, save_checkpoint
from tests.runs import PROJECT

SOUND = PROJECT / "tests/data/old_runs/ppo_sequential/checkpoints/ppo_sequential_final.pt"


def equal(one: Any, other: Any) -> bool:
    """Whether two contents of a checkpoint are equal, bit for bit in their tensors."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def flip(path: Path, position: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """A checkpoint has a digest; only a flip in the text that marks it can go by, and changes nothing."""
    content, sealed, copy = load_checkpoint(SOUND), tmp_path / "sealed.pt", tmp_path / "flipped.pt"
    save_checkpoint(sealed, content)
    size, passed = sealed.stat().st_size, 0
    for position in [*range(0, size, 37), *range(size - 600, size)]:
        shutil.copy(sealed, copy)
        flip(copy, position, position % 8)
        try:
            assert equal(load_checkpoint(copy), content), f"byte {position}"
            passed += 1
        except UsageError:
            pass
    assert passed <= len(SEAL)


def test_a_flipped_bit_in_a_tensor_of_an_older_checkpoint_is_refused(tmp_path: Path) -> None:
    """Checkpoints without a digest have the archive's checksums of each member."""
    content = SOUND.read_bytes()
    with zipfile.ZipFile(SOUND) as archive:
        headers = [info.header_offset for info in archive.infolist() if "/data/" in info.filename]
    assert len(headers) > 5
    for header in headers:
        copy = tmp_path / "flipped.pt"
        shutil.copy(SOUND, copy)
        name, extra = struct.unpack("<HH", content[header + 26 : header + 30])
        flip(copy, header + 30 + name + extra, 5)  # the first byte of the tensor
        with pytest.raises(UsageError, match="damaged"):
            load_checkpoint(copy)


def test_a_resumed_run_falls_back_to_the_newest_sound_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("ppo_sequential_step_100", "ppo_sequential_step_200", "ppo_sequential_final"):
        shutil.copy(SOUND, tmp_path / f"{name}.pt")
    middle = SOUND.stat().st_size // 2
    flip(tmp_path / "ppo_sequential_final.pt", middle, 0)
    flip(tmp_path / "ppo_sequential_step_200.pt", middle, 7)
    found = newest_checkpoint(tmp_path, "ppo_sequential")
    assert found is not None and found[0].name == "ppo_sequential_step_100.pt"
    assert ["final.pt is damaged" in caplog.text, "step_200.pt is damaged" in caplog.text] == [True, True]
    flip(tmp_path / "ppo_sequential_step_100.pt", middle, 3)
    with pytest.raises(UsageError, match="is damaged"):
        newest_checkpoint(tmp_path, "ppo_sequential")
