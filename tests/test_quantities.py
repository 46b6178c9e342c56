"""Times and counts as people write them."""

from __future__ import annotations

import pytest

from rlcb.quantities import parse_count, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1h", 3600),
        ("30m", 1800),
        ("30min", 1800),
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172_800),
        ("1d2h3m4.5s", 86_400 + 7200 + 180 + 4.5),
        (".5h", 1800),
        ("1.5h", 5400),
        (" 10m ", 600),
        ("0s", 0),
    ],
)
def test_a_time_is_the_sum_of_its_parts_in_the_unit_that_is_asked_for(text: str, seconds: float) -> None:
    assert parse_duration(text, "s") == seconds
    assert parse_duration(text, "m") == seconds / 60
    assert parse_duration(text, "h") == seconds / 3600


@pytest.mark.parametrize(("text", "number"), [("0.5", 0.5), ("1e-3", 0.001), ("2", 2.0), ("-1", -1.0)])
@pytest.mark.parametrize("unit", ["h", "m", "s"])
def test_a_plain_number_is_in_the_unit_that_is_asked_for(text: str, number: float, unit: str) -> None:
    assert parse_duration(text, unit) == number


@pytest.mark.parametrize(
    "text",
    ["", "h", "1x", "1 hour", "30m1h", "1h1h", "1:30", "1h30", "-1h", "1hh", "1H", "an hour", "1h,30m"],
)
def test_what_is_no_time_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a time such as 1h30m, 30m, 90s or 0\.5 \(in hours\)"):
        parse_duration(text, "h")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1000", 1000),
        ("1_000_000", 10**6),
        ("1e6", 10**6),
        ("2.5e3", 2500),
        ("1M", 10**6),
        ("1.5M", 1_500_000),
        ("250k", 250_000),
        ("250K", 250_000),
        ("2G", 2 * 10**9),
        ("0.001k", 1),
        ("9223372036854775807", 2**63 - 1),
        ("9007199254.740993M", 2**53 + 1),  # no float has this value
        ("-3", -3),
        ("0", 0),
    ],
)
def test_a_count_is_exact(text: str, number: int) -> None:
    found = parse_count(text)
    assert found == number and isinstance(found, int)


@pytest.mark.parametrize(
    "text",
    ["", "k", "many", "1.5", "1e-1", "1.0005k", "1kk", "1m", "1 M M", "inf", "nan", "1e999999999", "0x10"],
)
def test_what_is_no_count_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="expected an integer such as 1000, 250k or 1M"):
        parse_count(text)
