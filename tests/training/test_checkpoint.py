"""A damaged checkpoint is never used: it is refused, and a resumed run falls back to the one before it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcb.errors import UsageError
from rlcb.training.checkpoint import load_checkpoint, newest_checkpoint
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
    """Bits in the padding between the archive's members hold nothing; all others have a checksum."""
    sound, copy, refused = load_checkpoint(SOUND), tmp_path / "flipped.pt", 0
    positions = range(0, SOUND.stat().st_size, 37)
    for position in positions:
        shutil.copy(SOUND, copy)
        flip(copy, position, position % 8)
        try:
            assert equal(load_checkpoint(copy), sound), f"byte {position}"
        except UsageError:
            refused += 1
    assert refused > 0.8 * len(positions)


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
