"""The week cut into slots at every time that a schedule starts or stops: what shares machines, and when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from flopwise.fleet.hours import DAY_MIN, WEEK_MIN

if TYPE_CHECKING:
    from flopwise.fleet.hours import Schedule

MOST_SLOTS = 24
"""Slots beyond which schedules are widened to coarser times: a fleet of a thousand schedules has as many slots."""
GRIDS_MIN = (1, 15, 60, 120, 240, 480, DAY_MIN, WEEK_MIN)
Windows = tuple[tuple[int, int], ...]


def slots(schedules: Sequence[Schedule | None], most: int = MOST_SLOTS) -> list[tuple[float, ...]]:
    """Each schedule's share of the week in each slot: 0 where it is off; None may be on at any time.

    A slot is all the time of the week in which the same schedules are on, so its parts need not touch.

    Assumes: with more than `most` slots, schedules are widened to whole quarters of an hour, hours, and so on: machines
    are then shared less than they could be, never more.
    """
    held = {schedule.windows for schedule in schedules if schedule is not None and not schedule.always}
    distinct = sorted(held)
    for grid in GRIDS_MIN:
        lengths = _lengths([_widened(windows, grid) for windows in distinct])
        if len(lengths) <= most:
            break
    shares = [minutes / WEEK_MIN for minutes in lengths.values()]
    whole = tuple(shares)
    own = {
        windows: tuple(share if number in on else 0.0 for on, share in zip(lengths, shares, strict=True))
        for number, windows in enumerate(distinct)
    }
    return [whole if s is None or s.always else own[s.windows] for s in schedules]


def most_at_once(week: Sequence[tuple[float, ...]], counts: Sequence[float]) -> float:
    """The greatest sum of the `counts` that are on in one slot of a `week` from `slots`."""
    return max(
        (sum(n for part, n in zip(parts, counts, strict=True) if part) for parts in zip(*week, strict=True)), default=0
    )


def _widened(windows: Windows, grid: int) -> Windows:
    """Windows from and to whole multiples of `grid` minutes, none narrower than before."""
    wide = [(start // grid * grid, min(-(-stop // grid) * grid, WEEK_MIN)) for start, stop in windows]
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(wide):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(stop, joined[-1][1]))
        else:
            joined.append((start, stop))
    return tuple(joined)


def _lengths(schedules: Sequence[Windows]) -> dict[frozenset[int], int]:
    """Minutes of the week for each set of schedules that are on together, in the order of the week."""
    cuts = sorted({0, WEEK_MIN, *(end for windows in schedules for window in windows for end in window)})
    turns: dict[int, list[tuple[int, bool]]] = {cut: [] for cut in cuts}
    for number, windows in enumerate(schedules):
        for start, stop in windows:
            turns[stop].append((number, False))
            turns[start].append((number, True))
    on: set[int] = set()
    found: dict[frozenset[int], int] = {}
    for cut, following in pairwise(cuts):
        on -= {number for number, starts in turns[cut] if not starts}
        on |= {number for number, starts in turns[cut] if starts}
        together = frozenset(on)
        found[together] = found.get(together, 0) + following - cut
    return found
