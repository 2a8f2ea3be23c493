"""How many replicas are enough: the fewest that hold an objective, found by running the simulator."""

from __future__ import annotations

from collections.abc import Callable

from flopwise.errors import SpecError

MOST_REPLICAS = 1024
"""Replicas beyond which nobody looks."""


def fewest(attained: Callable[[int], float], share: float, *, near: int = 1, most: int = MOST_REPLICAS) -> int | None:
    """The fewest replicas, 1 to `most`, whose `attained` share of good requests is `share`; None: not by any number.

    `attained` is asked about O(log) counts, first around `near`.

    Source: galloping and bisection. Assumes: more replicas attain no less. Where two and four times as many attain the
    same share, above 0, the rest are requests that no replica answers in time however idle it is.
    Raises: SpecError: a share beyond 0 to 1.
    """
    if not 0 <= share <= 1:
        raise SpecError(f"attainment {share:g} is out of range; allowed: 0 to 1")
    high = min(max(near, 1), most)
    low, shares = 0, [attained(high)]  # all up to `low` are too few
    while shares[-1] < share:
        if high >= most or (len(shares) > 2 and shares[-3] == shares[-1] > 0):
            return None
        low, high = high, min(2 * high, most)
        shares.append(attained(high))
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attained(middle) >= share else (middle, high)
    return high
