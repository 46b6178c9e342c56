"""The power of a comparison, against noncentral t distributions and simulated studies of SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rlcb.comparison.power import detectable_effect, number_of_pairs, power


@pytest.mark.parametrize(
    ("difference", "seeds", "tests"), [(0.0, 3, 1), (1.0, 5, 1), (2.5, 3, 1), (2.0, 8, 6), (4.0, 3, 3)]
)
def test_power_equals_that_of_the_noncentral_t_distribution(
    difference: float, seeds: int, tests: int
) -> None:
    degrees, shift = 2 * seeds - 2, difference / np.sqrt(2 / seeds)
    critical = stats.t.isf(0.05 / tests / 2, degrees)
    expected = stats.nct.sf(critical, degrees, shift) + stats.nct.cdf(-critical, degrees, shift)
    assert power(difference, seeds, tests) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("seeds", "groups"), [(3, 2), (3, 3), (5, 4), (10, 2)])
def test_a_detectable_effect_is_found_in_four_of_five_simulated_studies(seeds: int, groups: int) -> None:
    tests = groups * (groups - 1) // 2
    assert number_of_pairs(groups) == tests
    difference = detectable_effect(seeds, tests)
    assert difference is not None
    found = stats.power(
        stats.ttest_ind,
        (stats.norm(difference, 1).rvs, stats.norm(0, 1).rvs),
        (seeds, seeds),
        significance=0.05 / tests,
        vectorized=True,
        n_resamples=20_000,
    ).power
    assert found == pytest.approx(0.8, abs=0.012)


def test_one_seed_detects_nothing_and_more_seeds_detect_smaller_differences() -> None:
    assert detectable_effect(1) is None
    found = [detectable_effect(seeds, 6) or 0.0 for seeds in (2, 3, 5, 10, 100)]
    assert found == sorted(found, reverse=True)
