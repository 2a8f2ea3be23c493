"""Rows of one test: each is tried, and those that fail are named."""

from __future__ import annotations

import pytest

from each import each


def test_rows_that_fail_are_named_and_the_others_are_tried() -> None:
    tried = []

    @each("number", [1, 2, 3, 4], label=lambda number: f"no. {number}")
    def even(number: int) -> None:
        tried.append(number)
        assert number % 2 == 0

    with pytest.raises(ExceptionGroup, match="2 of 4 rows") as failed:
        even()
    assert tried == [1, 2, 3, 4]
    assert [error.__notes__ for error in failed.value.exceptions] == [["number: no. 1"], ["number: no. 3"]]


def test_rows_may_be_listed_by_who_runs_the_test() -> None:
    asked = []

    def rows() -> list[int]:
        asked.append(1)
        return [1, 2]

    test = each("number", rows)(lambda number: asked.append(10 * number))
    assert not asked
    test()
    assert asked == [1, 10, 20]


def test_no_rows_are_no_test() -> None:
    with pytest.raises(AssertionError):
        each("row", [])(lambda row: row)()
