"""One test of many rows of data: where rows by the hundred are held to one rule, the rule is the test."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

SHOWN = 5
"""Rows whose failures are shown in full."""


def each(
    argument: str, rows: Iterable[Any] | Callable[[], Iterable[Any]], label: Callable[[Any], object] = str
) -> Callable[[Any], Any]:
    """A test of every row, given to it as `argument`: all are tried, and those that fail are named.

    Rows that take long to list are given as a function, which a worker calls that runs the test, and not all that
    collect it.
    """
    listed = rows if callable(rows) else list(rows)

    def of_all(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def once(**fixtures: Any) -> None:
            given = list(listed() if callable(listed) else listed)
            assert given
            failures = list[Exception]()
            for row in given:
                try:
                    test(**{argument: row}, **fixtures)
                except Exception as error:  # noqa: BLE001 - what a row is refused by is shown below
                    error.add_note(f"{argument}: {label(row)}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(given)} rows", failures[:SHOWN])

        others = [value for name, value in inspect.signature(test).parameters.items() if name != argument]
        once.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]  # what pytest reads fixtures from
        return once

    return of_all
