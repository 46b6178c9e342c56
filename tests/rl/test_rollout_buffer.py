"""The rollout buffer: flat views, columns of one worker, arrays in a given block of memory."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rlcb.envs.spaces import Spaces
from rlcb.rl.rollout_buffer import RolloutBuffer, rollout_bytes, rollout_layout

IMAGE = Spaces((6, 5, 3), "uint8", 4)
VECTOR = Spaces((7,), "float32", 2)
STEPS, ENVS = 5, 3
ALIGNMENT = 64  # bytes of a cache line
NAMES = (
    "observations",
    "actions",
    "log_probs",
    "values",
    "bootstrap_values",
    "rewards",
    "terminated",
    "truncated",
    "scaled_rewards",
    "advantages",
    "returns",
)


def numbered(array: NDArray[Any]) -> NDArray[Any]:
    return (np.arange(array.size) % 251).reshape(array.shape).astype(array.dtype)


def span(array: NDArray[Any]) -> tuple[int, int]:
    """First and last address plus one of a contiguous array."""
    address = array.__array_interface__["data"][0]
    return address, address + array.nbytes


@pytest.mark.parametrize("spaces", [IMAGE, VECTOR])
def test_arrays_are_time_major_with_their_dtypes(spaces: Spaces) -> None:
    rollout = RolloutBuffer(STEPS, ENVS, spaces)
    assert tuple(rollout_layout(STEPS, ENVS, spaces)) == NAMES
    assert rollout.observations.shape == (STEPS, ENVS, *spaces.observation_shape)
    assert rollout.observations.dtype == np.dtype(spaces.observation_dtype)
    for name in NAMES[1:]:
        assert getattr(rollout, name).shape == (STEPS, ENVS), name
    assert rollout.actions.dtype == np.int64
    assert rollout.terminated.dtype == rollout.truncated.dtype == np.bool_
    for name in ("log_probs", "values", "bootstrap_values", "rewards", "advantages", "returns"):
        assert getattr(rollout, name).dtype == np.float32, name
    assert rollout.num_samples == STEPS * ENVS


@pytest.mark.parametrize("name", NAMES)
def test_sample_t_times_n_plus_i_of_a_flat_view_is_step_t_of_environment_i(name: str) -> None:
    rollout = RolloutBuffer(STEPS, ENVS, IMAGE)
    array = getattr(rollout, name)
    array[:] = numbered(array)
    flat = rollout.flat(name)
    assert flat.shape == (STEPS * ENVS, *array.shape[2:])
    for t in range(STEPS):
        for i in range(ENVS):
            np.testing.assert_array_equal(flat[t * ENVS + i], array[t, i])
    flat[2 * ENVS + 1] = 1
    assert (array[2, 1] == 1).all()
    assert array.shape[:2] == (STEPS, ENVS)  # the array itself keeps its shape


def test_writing_to_columns_changes_only_their_environments() -> None:
    rollout = RolloutBuffer(STEPS, 5, IMAGE)
    for name in NAMES:
        getattr(rollout, name)[:] = 0
    part = rollout.columns(2, 2)
    assert part.num_envs == 2 and part.n_steps == STEPS and part.spaces == IMAGE
    assert part.num_samples == 2 * STEPS
    for name in NAMES:
        getattr(part, name)[:] = 1
        whole = getattr(rollout, name)
        assert (whole[:, 2:4] == 1).all() and not whole[:, :2].any() and not whole[:, 4:].any(), name
    rollout.rewards[3, 3] = 7
    assert part.rewards[3, 1] == 7


def test_flattening_columns_raises_instead_of_copying() -> None:
    part = RolloutBuffer(STEPS, 4, IMAGE).columns(1, 2)
    with pytest.raises(AttributeError):  # the samples of two of four columns are no single view
        part.flat("rewards")


@pytest.mark.parametrize("home", ["bytearray", "anonymous mapping", "file"])
def test_a_given_block_holds_the_whole_rollout(home: str, tmp_path: Path) -> None:
    size = rollout_bytes(STEPS, ENVS, IMAGE)
    block: Any
    if home == "bytearray":
        block = bytearray(size)
    elif home == "anonymous mapping":
        block = mmap.mmap(-1, size)
    else:
        (tmp_path / "rollout").write_bytes(bytes(size))
        with (tmp_path / "rollout").open("r+b") as file:
            block = mmap.mmap(file.fileno(), size)
    first = RolloutBuffer(STEPS, ENVS, IMAGE, block)
    second = RolloutBuffer(STEPS, ENVS, IMAGE, block)  # as another process would map it
    for name in NAMES:
        array = getattr(first, name)
        array[:] = numbered(array)
    for name in NAMES:  # none has overwritten another
        array = getattr(second, name)
        np.testing.assert_array_equal(array, numbered(array), err_msg=name)
    if home == "file":
        block.flush()
        content = (tmp_path / "rollout").read_bytes()
        assert content.startswith(numbered(first.observations).tobytes())


@pytest.mark.parametrize("spaces", [IMAGE, VECTOR])
@pytest.mark.parametrize(("n_steps", "num_envs"), [(1, 1), (5, 3), (128, 32)])
def test_arrays_are_aligned_to_cache_lines_and_do_not_overlap(
    n_steps: int, num_envs: int, spaces: Spaces
) -> None:
    size = rollout_bytes(n_steps, num_envs, spaces)
    block = mmap.mmap(-1, size)  # begins on a page
    rollout = RolloutBuffer(n_steps, num_envs, spaces, block)
    base, end = span(np.frombuffer(block, np.uint8))
    spans = sorted(span(getattr(rollout, name)) for name in NAMES)
    assert spans[0][0] >= base and spans[-1][1] <= end
    for (start, stop), following in zip(spans, [*spans[1:], (end, end)], strict=True):
        assert start % ALIGNMENT == 0
        assert stop <= following[0]
    assert all(getattr(rollout, name).flags.aligned for name in NAMES)
    assert size - sum(stop - start for start, stop in spans) < ALIGNMENT * len(NAMES)  # little is wasted


def test_private_memory_is_aligned_and_not_shared_between_buffers() -> None:
    first, second = RolloutBuffer(STEPS, ENVS, VECTOR), RolloutBuffer(STEPS, ENVS, VECTOR)
    for name in NAMES:
        assert getattr(first, name).flags.aligned and getattr(first, name).flags.writeable
        assert not np.shares_memory(getattr(first, name), getattr(second, name))


def test_a_block_that_is_too_small_is_refused() -> None:
    size = rollout_bytes(STEPS, ENVS, IMAGE)
    with pytest.raises(TypeError):
        RolloutBuffer(STEPS, ENVS, IMAGE, bytearray(size - ALIGNMENT))
