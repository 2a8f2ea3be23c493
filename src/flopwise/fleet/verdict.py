"""Which way is the cheapest, how sure that is, and how far each input would have to move to change it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from flopwise.cost.intervals import ErrorBand
    from flopwise.ops.types import Array

QUANTILES = (np.arange(25) + 0.5) / 25
SURE = 0.9
"""A verdict that holds in so many cases is settled: the measured errors do not change it."""
FARTHEST = 1000.0
"""Inputs that would have to move by more than this factor do not change the verdict."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """Where one input makes the other way the cheaper one; `at` None: nowhere, and `why`.

    `low` and `high` are the ends of `at` by measured errors, None where that end is nowhere; `then` is cheaper beyond.
    """

    input: str
    unit: str
    now: float
    at: float | None
    then: str
    low: float | None = None
    high: float | None = None
    why: str = ""

    @property
    def times(self) -> float | None:
        """`at` over `now`."""
        return None if self.at is None or self.at <= 0 or self.now <= 0 else self.at / self.now


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The cheapest way `against` the best of the other kind (None: there is none); USD over the horizon.

    `chance`: that the cheapest is no dearer, by measured errors; None where none apply. `because` says how both sums
    come about, `turns` what would change the answer, the nearest first.
    """

    cheapest: str
    against: str | None
    saves_usd: float | None
    saves_usd_low: float | None
    saves_usd_high: float | None
    chance: float | None
    settled: bool | None
    because: list[str]
    turns: list[Turn]


@dataclass(frozen=True, slots=True)
class Sum:
    """What a way of one's own costs over a horizon, and how its parts err; USD.

    `upfront` is paid once, `fixed` whatever is rented (upkeep), `served` are the machines where they carry a factor of
    what is estimated. `trained` and `carried` are the measured errors of the training and of what machines carry.
    """

    upfront: float
    fixed: float
    served: Callable[[float], float]
    trained: ErrorBand | None
    carried: ErrorBand

    def total(self, factor: float = 1.0) -> float:
        """All of it, where machines carry `factor` times their estimate."""
        return self.upfront + self.fixed + self.served(factor)


def chance_at_most(own: Sum, other_usd: float) -> float:
    """Probability that one's own machines cost no more than `other_usd`.

    Source: both errors taken at the middle of 25 equal parts of their distributions, each with each.
    Assumes: training and serving err independently; a run that takes longer costs as much more.
    """
    served = np.array([own.served(own.carried.quantile(q)) for q in QUANTILES])
    longer: Array = np.ones(1)
    if own.trained is not None:
        longer = np.array([1.0 / own.trained.quantile(q) for q in QUANTILES])
    totals = own.upfront * longer[:, None] + own.fixed + served[None, :]
    return float(np.mean(totals <= other_usd * (1 + 1e-9)))


def throughput_turn(own: Sum, other_usd: float) -> float | None:
    """The factor on what machines carry at which both cost the same; None: none up to FARTHEST either way.

    Source: bisection: machines that carry more never cost more.
    """
    few, many = 1.0 / FARTHEST, FARTHEST
    if own.total(many) > other_usd or own.total(few) <= other_usd:
        return None
    while many / few > 1 + 1e-6:
        middle = math.sqrt(few * many)
        few, many = (few, middle) if own.total(middle) <= other_usd else (middle, many)
    return many


def machine_price_turn(own: Sum, other_usd: float) -> float | None:
    """The factor on the price of all machines at which both cost the same; None: they would have to be free.

    Source: arithmetic. Assumes: training and serving are paid at prices that move together.
    """
    paid = own.upfront + own.served(1.0)
    left = other_usd - own.fixed
    return left / paid if paid > 0 and left > 0 else None


def nearest_first(turns: list[Turn]) -> list[Turn]:
    """In the order of how far each input would have to move."""
    far = math.inf
    return sorted(turns, key=lambda turn: far if turn.times is None else abs(math.log(turn.times)))
