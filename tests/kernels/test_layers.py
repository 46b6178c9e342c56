"""Every kernel against PyTorch in float64, for random shapes."""

from __future__ import annotations

import ctypes

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from rlcb.kernels.check import (
    NATURE_LAYERS,
    TOLERANCES,
    dense_errors,
    direct_errors,
    find_fault,
    pool_errors,
    unpadded_errors,
    winograd_errors,
)
from rlcb.kernels.library import PANEL_MULTIPLE, Library, WinogradGeometry, load

SIDES = st.integers(3, 21)
CHANNELS = st.sampled_from([16, 32, 48, 64])


@pytest.fixture(scope="module")
def library() -> Library:
    return load()


def require_within_tolerance(errors: dict[str, float]) -> None:
    assert {part: error for part, error in errors.items() if not error <= TOLERANCES[part]} == {}


@settings(max_examples=60)
@given(
    images=st.integers(1, 5),
    height=SIDES,
    width=SIDES,
    channels=CHANNELS,
    out_channels=CHANNELS,
    pad=st.integers(1, 2),
    rectify=st.booleans(),
)
def test_a_3x3_convolution_is_right_for_any_shape(
    library: Library,
    images: int,
    height: int,
    width: int,
    channels: int,
    out_channels: int,
    pad: int,
    rectify: bool,
) -> None:
    require_within_tolerance(
        winograd_errors(library, images, (height, width), channels, out_channels, pad, rectify)
    )


@pytest.mark.parametrize("side", [64, 32, 16, 8, 84, 42, 21, 11])
def test_a_3x3_convolution_is_right_for_the_images_of_procgen_and_atari(library: Library, side: int) -> None:
    require_within_tolerance(winograd_errors(library, 2, (side, side), 16, 32, 1, True))


@settings(max_examples=60)
@given(
    images=st.integers(1, 9),
    height=st.integers(8, 45),
    width=st.integers(8, 45),
    channels=st.integers(1, 9),
    out_channels=CHANNELS,
    is_bytes=st.booleans(),
)
def test_an_8x8_convolution_of_observations_is_right_for_any_shape(
    library: Library, images: int, height: int, width: int, channels: int, out_channels: int, is_bytes: bool
) -> None:
    layer = (channels, out_channels, 8, 4)
    require_within_tolerance(unpadded_errors(library, images, (height, width), layer, is_bytes))


@settings(max_examples=80)
@given(
    images=st.integers(1, 9),
    height=st.integers(4, 22),
    width=st.integers(4, 22),
    channels=CHANNELS,
    out_channels=CHANNELS,
    geometry=st.sampled_from([(4, 2), (3, 1)]),
)
def test_a_convolution_without_padding_and_its_input_gradient_are_right_for_any_shape(
    library: Library,
    images: int,
    height: int,
    width: int,
    channels: int,
    out_channels: int,
    geometry: tuple[int, int],
) -> None:
    layer = (channels, out_channels, *geometry)
    require_within_tolerance(unpadded_errors(library, images, (height, width), layer, False))


@pytest.mark.parametrize(
    ("size", "layer", "is_bytes"),
    [
        *NATURE_LAYERS,
        ((84, 84), (9, 32, 8, 4), True),
        ((64, 64), (3, 32, 8, 4), False),
    ],
)
@pytest.mark.parametrize("images", [1, 17])
def test_the_layers_of_the_nature_cnn_are_right_for_procgen_and_atari(
    library: Library, images: int, size: tuple[int, int], layer: tuple[int, int, int, int], is_bytes: bool
) -> None:
    require_within_tolerance(unpadded_errors(library, images, size, layer, is_bytes))


@settings(max_examples=60)
@given(
    images=st.integers(1, 4),
    height=st.integers(8, 30),
    width=st.integers(8, 30),
    channels=st.integers(1, 12),
    out_channels=CHANNELS,
    geometry=st.sampled_from([(3, 1, 1), (8, 4, 0), (4, 3, 0), (5, 1, 2), (2, 1, 0)]),
    is_bytes=st.booleans(),
)
def test_a_direct_convolution_is_right_for_any_shape(
    library: Library,
    images: int,
    height: int,
    width: int,
    channels: int,
    out_channels: int,
    geometry: tuple[int, int, int],
    is_bytes: bool,
) -> None:
    layer = (channels, out_channels, *geometry)
    require_within_tolerance(direct_errors(library, images, (height, width), layer, is_bytes))


@settings(max_examples=60)
@given(images=st.integers(1, 4), height=st.integers(1, 30), width=st.integers(1, 30), channels=CHANNELS)
def test_the_max_pool_takes_the_maxima_of_pytorch(
    library: Library, images: int, height: int, width: int, channels: int
) -> None:
    errors = pool_errors(library, images, (height, width), channels)
    assert errors["forward"] == 0
    assert errors["input gradient"] < 1e-6


@settings(max_examples=60)
@given(rows=st.integers(1, 300), inputs=st.integers(1, 12), outputs=st.integers(1, 9))
def test_a_dense_layer_is_right_for_any_shape(library: Library, rows: int, inputs: int, outputs: int) -> None:
    require_within_tolerance(dense_errors(library, rows, inputs * PANEL_MULTIPLE, outputs * PANEL_MULTIPLE))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_stay_so(library: Library, value: float) -> None:
    """A rectifier or a maximum that made NaN zero would hide that training diverged."""
    x = torch.zeros(1, 6, 6, 16)
    x[0, 2, 3, 5] = value
    y, places = torch.empty(1, 3, 3, 16), torch.empty(1, 3, 3, 16, dtype=torch.uint8)
    library.max_pool(x.data_ptr(), y.data_ptr(), places.data_ptr(), 1, 6, 6, 16)
    expected = F.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1).permute(0, 2, 3, 1)
    assert torch.equal(torch.nan_to_num(y, 7), torch.nan_to_num(expected, 7))

    filters, bias, y = torch.ones(36, 16 * 16), torch.zeros(16), torch.empty(1, 6, 6, 16)
    geometry = WinogradGeometry(6, 6, 16, 1, 1, 1, 0, 16, 256)
    library.winograd(
        ctypes.byref(geometry), x.data_ptr(), filters.data_ptr(), bias.data_ptr(), 0, 0, y.data_ptr(), 1, 0
    )
    assert bool(y.isfinite().all()) == (value < 0)  # the rectifier turns -inf into zero


def test_the_check_of_a_new_library_finds_no_fault(library: Library) -> None:
    assert find_fault(library) is None


def test_the_check_of_a_new_library_names_a_wrong_layer(library: Library) -> None:
    wrong = object.__new__(Library)
    vars(wrong).update(vars(library))
    wrong.max_pool_gradient = lambda dy, places, dx, *sizes: library.max_pool_gradient(dx, places, dx, *sizes)
    fault = find_fault(wrong)
    assert fault is not None
    assert fault.startswith("max-pool, 64 x 64: relative error")
    assert fault.endswith("in the input gradient")
