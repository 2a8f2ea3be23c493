"""Quantities as people write them, and how figures are written back."""

from __future__ import annotations

import pytest

from flopwise import units
from flopwise.errors import SpecError


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,000", 1e3), ("1,000,000", 1e6), ("12,345.5", 12345.5), ("40_000", 4e4), ("1,024k", 1.024e6), ("1e3", 1e3)],
)
def test_commas_set_thousands_apart(text: str, number: float) -> None:
    assert units.parse_count(text) == number


@pytest.mark.parametrize("text", ["1,4,16,64", "1,4", "1,0000", "1,000,00", "12,34,567"])
def test_a_list_is_not_one_number(text: str) -> None:
    """Read without its commas it would be another number: 141,664."""
    with pytest.raises(SpecError, match=r"is more than one number; give one, for example"):
        units.parse_count(text, "--concurrency")


@pytest.mark.parametrize(
    ("probability", "text"),
    [(0.0, "<1 %"), (0.005, "<1 %"), (0.006, "1 %"), (0.21, "21 %"), (0.994, "99 %"), (0.995, ">99 %"), (1, ">99 %")],
)
def test_a_probability_is_never_certain(probability: float, text: str) -> None:
    shown = units.format_chance(probability)
    assert shown == text


def test_one_thing_has_no_plural() -> None:
    assert [units.format_items(n, "GPU") for n in (0, 1, 2, 1024)] == ["0 GPUs", "1 GPU", "2 GPUs", "1,024 GPUs"]


@pytest.mark.parametrize(
    ("ratio", "digits", "text"),
    [(1.25, 0, "+25 %"), (0.9, 1, "-10.0 %"), (0.9999, 1, "+0.0 %"), (0.999, 0, "+0 %"), (28.385, 1, "+2,738.5 %")],
)
def test_a_change_that_rounds_to_nothing_has_no_minus(ratio: float, digits: int, text: str) -> None:
    assert units.format_change(ratio, digits) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.236, "1.24 times"), (99.94, "99.9 times"), (99.96, "100 times"), (14_312.0, "14,312 times")]
)
def test_a_ratio_is_never_a_power_of_ten(ratio: float, text: str) -> None:
    assert units.format_times(ratio) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (310.0, 2, "310"), (1063.0, 3, "1,060"), (1556.4, 3, "1,560"), (10_480.0, 4, "10,480"), (0.1234, 3, "0.123"),
        (2.50, 3, "2.5"), (0.0, 3, "0"), (1e9, 3, "1.00 B"), (9.996e8, 3, "1,000,000,000"), (1.5e-7, 3, "0.00000015"),
        (-1234.0, 3, "-1,230"), (float("inf"), 3, "inf"),
    ],
)  # fmt: skip
def test_numbers_have_no_powers_of_ten(value: float, digits: int, text: str) -> None:
    assert units.format_number(value, digits) == text


def test_rates_of_arrivals_have_no_powers_of_ten() -> None:
    assert units.format_arrivals(1e9) == "1.00 B requests/s"
    assert units.format_arrivals(2500.0) == "2,500 requests/s"
    assert units.format_arrivals(1.0, "session") == "1 session/s"


@pytest.mark.parametrize(
    "text",
    ["5", "5/s", "5 rps", "5QPS", "5 req/s", "300 requests/min", "300 requests per minute", "18k/hour", "300/Min"],
)
def test_a_rate_of_requests_as_people_write_it(text: str) -> None:
    assert units.parse_rate(text) == pytest.approx(5.0)


def test_a_rate_that_is_none_says_how_one_is_written() -> None:
    with pytest.raises(SpecError, match=r"unknown unit '/fortnight' .*; a rate is per second, or such as 500/min"):
        units.parse_rate("5/fortnight")
