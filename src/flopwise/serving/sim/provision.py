"""How many replicas are enough: the fewest that hold an objective, found by running the simulator."""

from __future__ import annotations

from collections.abc import Callable

from flopwise.errors import SpecError

MOST_REPLICAS = 1024
"""Replicas beyond which nobody looks."""


def fewest(attained: Callable[[int], float], share: float, *, near: int = 1, most: int = MOST_REPLICAS) -> int | None:
    """The fewest replicas, 1 to `most`, whose `attained` share of good requests is `share`; None: not by any number.

    `attained` is asked about O(log) counts, first around `near`.

    Source: galloping and bisection. Assumes: more replicas attain no less. Where twice as many attain the same share,
    above 0, the rest are requests that no replica answers in time however idle it is.
    Raises: SpecError: a share beyond 0 to 1.
    """
    if not 0 <= share <= 1:
        raise SpecError(f"attainment {share:g} is out of range; allowed: 0 to 1")
    high = min(max(near, 1), most)
    low, found = 0, attained(high)  # all up to `low` are too few
    while found < share:
        if high >= most:
            return None
        low, high, before = high, min(2 * high, most), found
        found = attained(high)
        if found == before > 0:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attained(middle) >= share else (middle, high)
    return high
