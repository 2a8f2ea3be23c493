"""Which alternative is the cheapest, how sure that is, and how far each input would have to move to change it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flopwise import units
from flopwise.buy_or_build.alternatives import Alternative, ApiBreakEven, ComparisonRequest, TippingPoint, Verdict
from flopwise.buy_or_build.self_hosted import LONGEST_MONTHS, SelfHosted
from flopwise.cost.intervals import ErrorBand
from flopwise.ops.types import Array

QUANTILES = (np.arange(25) + 0.5) / 25
SURE = 0.9
"""A verdict that holds in so many cases is settled: the measured errors do not change it."""
FARTHEST = 1000.0
"""Inputs that would have to move by more than this factor do not change the verdict."""


@dataclass(frozen=True, slots=True)
class TotalCost:
    """What a self-hosted alternative costs over a horizon, and how its parts err; USD.

    `upfront` is paid once, `fixed` whatever is rented (upkeep), `served` are the machines where they carry a factor of
    their estimate. `training_band` and `throughput_band` are the measured errors of the training and of what machines
    carry.
    """

    upfront: float
    fixed: float
    served: Callable[[float], float]
    training_band: ErrorBand | None
    throughput_band: ErrorBand

    def total(self, factor: float = 1.0) -> float:
        """All of it, where machines carry `factor` times their estimate."""
        return self.upfront + self.fixed + self.served(factor)


def verdict(
    alternatives: Sequence[Alternative],
    break_evens: Sequence[ApiBreakEven],
    own: Mapping[str, SelfHosted],
    request: ComparisonRequest,
) -> Verdict:
    """The verdict over alternatives, cheapest first and the feasible before the others; `own` is by name."""
    feasible = [each for each in alternatives if each.feasible]
    first = feasible[0]
    other = next((each for each in feasible if (each.kind == "api") != (first.kind == "api")), None)
    if other is None:
        return _verdict_of_one_kind(feasible, request)
    mine, api = (other, first) if first.kind == "api" else (first, other)
    cost = _total_cost(own[mine.name])
    assert api.total_usd is not None
    assert mine.total_usd is not None
    chance = chance_at_most(cost, api.total_usd)
    chance = chance if first is mine else 1.0 - chance
    sign = 1.0 if first is mine else -1.0
    ends = sorted(sign * (api.total_usd - (end or 0.0)) for end in (mine.total_usd_low, mine.total_usd_high))
    [break_even] = [b for b in break_evens if (b.way, b.against) == (mine.name, api.name)]
    return Verdict(
        cheapest=first.name, against=other.name, saves_usd=sign * (api.total_usd - mine.total_usd),
        saves_usd_low=ends[0], saves_usd_high=ends[1], chance=chance, settled=chance >= SURE,
        because=[_explanation(first, request), _explanation(other, request)],
        turns=nearest_first(_tipping_points(mine, api, break_even, cost, request)),
    )  # fmt: skip


def chance_at_most(own: TotalCost, other_usd: float) -> float:
    """Probability that own machines cost no more than `other_usd`.

    Source: both errors taken at the middle of 25 equal parts of their distributions, each with each.
    Assumes: training and serving err independently; a run that takes longer costs as much more.
    """
    served = np.array([own.served(own.throughput_band.quantile(q)) for q in QUANTILES])
    longer: Array = np.ones(1)
    if own.training_band is not None:
        longer = np.array([1.0 / own.training_band.quantile(q) for q in QUANTILES])
    totals = own.upfront * longer[:, None] + own.fixed + served[None, :]
    return float(np.mean(totals <= other_usd * (1 + 1e-9)))


def tipping_throughput(own: TotalCost, other_usd: float) -> float | None:
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


def tipping_machine_price(own: TotalCost, other_usd: float) -> float | None:
    """The factor on the price of all machines at which both cost the same; None: they would have to be free.

    Source: arithmetic. Assumes: training and serving are paid at prices that move together.
    """
    paid = own.upfront + own.served(1.0)
    left = other_usd - own.fixed
    return left / paid if paid > 0 and left > 0 else None


def nearest_first(points: list[TippingPoint]) -> list[TippingPoint]:
    """In the order of how far each input would have to move."""
    return sorted(points, key=lambda point: math.inf if point.times is None else abs(math.log(point.times)))


def _verdict_of_one_kind(feasible: list[Alternative], request: ComparisonRequest) -> Verdict:
    """The verdict where all are APIs, or none is: no machines to weigh against tokens."""
    first, second = feasible[0], feasible[1] if len(feasible) > 1 else None
    saves = None if second is None else (second.total_usd or 0.0) - (first.total_usd or 0.0)
    certain = saves if first.kind == "api" else None  # price lists do not err
    return Verdict(
        cheapest=first.name, against=None if second is None else second.name, saves_usd=saves, saves_usd_low=certain,
        saves_usd_high=certain, chance=None, settled=None,
        because=[_explanation(each, request) for each in feasible[:2]], turns=[],
    )  # fmt: skip


def _total_cost(own: SelfHosted) -> TotalCost:
    """The parts of the total of an alternative, and their errors."""
    months, rentable = own.request.months, own.serving.units
    upkeep = own.upkeep_usd * months
    index, _ = rentable.cheapest(float(own.volumes(1)[0]))
    size = len(rentable.usd_per_month)

    def served(factor: float) -> float:
        return float(own.monthly_usd(months, np.full(size, factor)).sum()) - upkeep

    return TotalCost(own.training.ends[0], upkeep, served, own.training.band, rentable.bands[index])


def _tipping_points(
    mine: Alternative, api: Alternative, break_even: ApiBreakEven, cost: TotalCost, request: ComparisonRequest
) -> list[TippingPoint]:
    """How far each input would have to move for the other alternative to be the cheaper one."""
    assert api.total_usd is not None
    assert mine.total_usd is not None
    assert api.usd_per_million_tokens is not None
    own_is_cheaper = mine.total_usd <= api.total_usd
    then = api.name if own_is_cheaper else mine.name
    each = api.usd_per_million_tokens
    prices = [each * (usd or 0.0) / api.total_usd for usd in (mine.total_usd, mine.total_usd_low, mine.total_usd_high)]
    band, factor = cost.throughput_band, tipping_throughput(cost, api.total_usd)
    measured = f"measured errors reach from {band.low:.2g} to {band.high:.2g} times the estimate"
    if factor is None:
        measured = "however fast the machines are, " + ("they stay cheaper" if own_is_cheaper else "they cost more")
    price = tipping_machine_price(cost, api.total_usd)
    points = [
        TippingPoint(
            input="tokens a month, steady", unit="tokens", now=request.traffic.tokens_per_month,
            at=break_even.tokens_per_month, low=break_even.tokens_per_month_low, high=break_even.tokens_per_month_high,
            then=then, why=break_even.why if break_even.tokens_per_month is None else "",
        ),
        TippingPoint(
            input="price of the API, a million tokens of this mix", unit="USD", now=each, at=prices[0], low=prices[1],
            high=prices[2], then=then,
        ),
        TippingPoint(
            input="what a machine carries, over the estimate", unit="times", now=1.0, at=factor, then=then,
            why=measured,
        ),
        TippingPoint(
            input="price of the machines, over today's", unit="times", now=1.0, at=price, then=then,
            why="" if price is not None else "not even free of charge: the upkeep alone costs more",
        ),
    ]  # fmt: skip
    if cost.upfront > 0:
        points.append(
            TippingPoint(
                input="months", unit="months", now=float(request.months), at=_float_or_none(break_even.month),
                low=_float_or_none(break_even.month_low), high=_float_or_none(break_even.month_high), then=then,
                why="" if break_even.month is not None else f"not within {LONGEST_MONTHS} months at this traffic",
            )
        )  # fmt: skip
    return points


def _float_or_none(month: int | None) -> float | None:
    return None if month is None else float(month)


def _explanation(alternative: Alternative, request: ComparisonRequest) -> str:
    """How the total of an alternative comes about, in one sentence."""
    serving = alternative.serving
    assert serving is not None
    month = units.format_usd(alternative.usd_per_month or 0.0)
    total = f"{units.format_usd(alternative.total_usd or 0.0)} in {request.months} months"
    rate = f"{month} a month"
    if request.traffic.growth_frac:
        rate = f"{month} in the first month, {units.format_usd(alternative.last_usd_per_month or 0.0)} in the last"
    if alternative.kind == "api":
        each = f"${serving.usd_per_million_tokens:.4g} a million tokens of this mix"
        return f"{alternative.name}: {each}, {rate}: {total}"
    text = (
        f"{alternative.name}: {serving.num_instances} x {serving.provider} {serving.what} at "
        f"${serving.usd_per_hour:.4g} an hour ({serving.purchase}), on all month and filled to "
        f"{units.format_percent(serving.filled_frac or 0.0)}, {rate}"
    )
    run = alternative.training
    if run is not None:
        upfront = units.format_usd(alternative.upfront_usd or 0.0)
        text += f"; {upfront} of training first ({units.format_seconds(run.seconds)})"
    return f"{text}: {total}"
