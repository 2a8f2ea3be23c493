"""The verdict of `compare`: the cheapest way against the best of the other kind, why, and what would change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise import units
from flopwise.fleet import ways
from flopwise.fleet.verdict import (
    SURE,
    Sum,
    Turn,
    Verdict,
    chance_at_most,
    machine_price_turn,
    nearest_first,
    throughput_turn,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.api.own_ways import OwnWays
    from flopwise.fleet.ways import Crossing, Way


def verdict(found: Sequence[Way], crossings: Sequence[Crossing], own: OwnWays) -> Verdict:
    """The verdict over `found`, cheapest first, the feasible before the others."""
    feasible = [way for way in found if way.feasible]
    first = feasible[0]
    other = next((way for way in feasible if (way.kind == "api") != (first.kind == "api")), None)
    if other is None:
        return _among(feasible, own)
    mine, api = (other, first) if first.kind == "api" else (first, other)
    held = _sum(mine, own)
    assert api.total_usd is not None
    assert mine.total_usd is not None
    chance = chance_at_most(held, api.total_usd)
    chance = chance if first is mine else 1.0 - chance
    sign = 1.0 if first is mine else -1.0
    ends = sorted(sign * (api.total_usd - (end or 0.0)) for end in (mine.total_usd_low, mine.total_usd_high))
    [crossing] = [c for c in crossings if (c.way, c.against) == (mine.name, api.name)]
    return Verdict(
        cheapest=first.name, against=other.name, saves_usd=sign * (api.total_usd - mine.total_usd),
        saves_usd_low=ends[0], saves_usd_high=ends[1], chance=chance, settled=chance >= SURE,
        because=[_because(first, own), _because(other, own)],
        turns=nearest_first(_turns(mine, api, crossing, held, own)),
    )  # fmt: skip


def _among(feasible: list[Way], own: OwnWays) -> Verdict:
    """All are of one kind: there is nothing to weigh machines against tokens with."""
    first, second = feasible[0], feasible[1] if len(feasible) > 1 else None
    saves = None if second is None else (second.total_usd or 0.0) - (first.total_usd or 0.0)
    certain = saves if first.kind == "api" else None  # price lists do not err
    return Verdict(
        cheapest=first.name, against=None if second is None else second.name, saves_usd=saves, saves_usd_low=certain,
        saves_usd_high=certain, chance=None, settled=None, because=[_because(way, own) for way in feasible[:2]],
        turns=[],
    )  # fmt: skip


def _sum(way: Way, own: OwnWays) -> Sum:
    """The parts of a way's total and their errors."""
    goal, machines, begun = own.goal, own.machines(way.kind), own.begun[way.kind]
    upkeep = goal.upkeep_usd_per_month * goal.months
    index, _ = ways.chosen(float(own.volumes(1)[0]), machines)
    size = len(machines.usd_per_month)

    def served(factor: float) -> float:
        return float(own.paid(way.kind, goal.months, np.full(size, factor)).sum()) - upkeep

    return Sum(begun.usd, upkeep, served, begun.band, machines.bands[index])


def _turns(mine: Way, api: Way, crossing: Crossing, held: Sum, own: OwnWays) -> list[Turn]:
    """How far each input would have to move for the other way to be the cheaper one."""
    assert api.total_usd is not None
    assert mine.total_usd is not None
    assert api.usd_per_million_tokens is not None
    cheap = mine.total_usd <= api.total_usd  # own machines are the cheaper way as it stands
    then = api.name if cheap else mine.name
    each = api.usd_per_million_tokens
    prices = [each * (usd or 0.0) / api.total_usd for usd in (mine.total_usd, mine.total_usd_low, mine.total_usd_high)]
    carried, factor = held.carried, throughput_turn(held, api.total_usd)
    measured = f"measured errors reach from {carried.low:.2g} to {carried.high:.2g} times the estimate"
    if factor is None:
        measured = "however fast the machines are, " + ("they stay cheaper" if cheap else "they cost more")
    price = machine_price_turn(held, api.total_usd)
    turns = [
        Turn(
            input="tokens a month, steady", unit="tokens", now=own.goal.traffic.tokens_per_month,
            at=crossing.tokens_per_month, low=crossing.tokens_per_month_low, high=crossing.tokens_per_month_high,
            then=then, why=crossing.why if crossing.tokens_per_month is None else "",
        ),
        Turn(
            input="price of the API, a million tokens of this mix", unit="USD", now=each, at=prices[0], low=prices[1],
            high=prices[2], then=then,
        ),
        Turn(
            input="what a machine carries, over the estimate", unit="times", now=1.0, at=factor, then=then,
            why=measured,
        ),
        Turn(
            input="price of the machines, over today's", unit="times", now=1.0, at=price, then=then,
            why="" if price is not None else "not even free of charge: the upkeep alone costs more",
        ),
    ]  # fmt: skip
    if held.upfront > 0:
        why = "" if crossing.month is not None else f"not within {ways.LONGEST} months at this traffic"
        turns.append(
            Turn(
                input="months", unit="months", now=float(own.goal.months), at=_number(crossing.month),
                low=_number(crossing.month_low), high=_number(crossing.month_high), then=then, why=why,
            )
        )  # fmt: skip
    return turns


def _number(month: int | None) -> float | None:
    return None if month is None else float(month)


def _because(way: Way, own: OwnWays) -> str:
    """How a total comes about, in one sentence."""
    goal, served = own.goal, way.serving
    assert served is not None
    month, total = units.format_usd(way.usd_per_month or 0.0), units.format_usd(way.total_usd or 0.0)
    whole = f"{total} in {goal.months} months"
    grown = f" in the first month, {units.format_usd(way.last_usd_per_month or 0.0)} in the last"
    rate = grown if goal.traffic.growth_frac else " a month"
    if way.kind == "api":
        return f"{way.name}: ${served.usd_per_million_tokens:.4g} a million tokens of this mix, {month}{rate}: {whole}"
    filled = units.format_percent(served.filled_frac or 0.0)
    said = (
        f"{way.name}: {served.num_instances} x {served.provider} {served.what} at ${served.usd_per_hour:.4g} an hour "
        f"({served.purchase}), on all month and filled to {filled}, {month}{rate}"
    )
    run = way.training
    if run is not None:
        said += f"; {units.format_usd(way.upfront_usd or 0.0)} of training first ({units.format_seconds(run.seconds)})"
    return f"{said}: {whole}"
