"""Dollars, from times and prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from flopwise.errors import SpecError
from flopwise.ops.types import Floats, Ints
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_usd

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.price_book import PurchaseTerms, VolumeKind, VolumePrice


def num_instances(num_gpus: Ints, gpus_per_instance: Ints) -> Ints:
    """Whole instances that hold `num_gpus`; broadcasts.

    Source: arithmetic; clouds rent whole machines.
    Assumes: no sharing of an instance between jobs.
    """
    return -(-num_gpus // gpus_per_instance)


def run_usd(seconds: Floats, usd_per_hour: Floats) -> Floats:
    """Cost of keeping machines of `usd_per_hour` for `seconds`, in USD; broadcasts.

    Source: arithmetic; per-second billing, as the large clouds bill GPU machines after the first minute.
    Assumes: the price holds for the whole run.
    """
    return seconds / HOUR_S * usd_per_hour


def idle_note(paid: float | None, used: float, times: int = 1) -> tuple[str, ...]:
    """An assumption on accelerators that are paid for but not used, `times` so many; none where there are none.

    Source: arithmetic. Assumes: clouds rent whole machines.
    """
    idle = 0 if paid is None else round((paid - used) * times)
    whole = f"{idle:,} of the {idle + round(used * times):,} accelerators that are paid for stand idle"
    return (f"machines are rented whole: {whole}",) if idle > 0 else ()


RESERVED_YEARS = {"reserved_1y": 1, "reserved_3y": 3}


def commitment_note(purchase: str, usd_per_hour: float | None, seconds: float) -> str:
    """The cost of a whole reservation of `usd_per_hour` in words; "" for other purchases, and for runs as long as it.

    Source: AWS, Google Cloud and Azure bill each hour of the term, used or not. Assumes: nothing is sold on.
    """
    years = RESERVED_YEARS.get(purchase, 0)
    hours = 12.0 * HOURS_PER_MONTH * years
    if usd_per_hour is None or seconds >= hours * HOUR_S:
        return ""
    term = "year" if years == 1 else f"{years} years"
    return f"the reservation costs {format_usd(usd_per_hour * hours)} in its {term}, used or not"


def billed_hours(hours: Floats, starts: Floats = 1.0, unit_s: Floats = 1.0, minimum_s: Floats = 0.0) -> Floats:
    """Hours a month that are billed of machines started `starts` times for `hours` in all; broadcasts.

    Source: arithmetic: each start is rounded up to whole units, and to the least time.
    Assumes: all starts last equally long.
    """
    each_s = hours * HOUR_S / starts
    units = np.ceil(np.round(each_s / unit_s, 6))
    billed_s: Floats = np.maximum(units * unit_s, minimum_s)
    return billed_s * starts / HOUR_S


def run_cost_usd(seconds: Floats, start_s: Floats, usd_per_hour: Floats, terms: PurchaseTerms | None = None) -> Floats:
    """USD of a run with its start, as the provider rounds the time; broadcasts.

    Source: data/purchase_terms.csv. Assumes: one start; where the terms are not known the time is paid as it is.
    """
    hours = (seconds + start_s) / HOUR_S
    if terms is not None:
        hours = billed_hours(hours, unit_s=terms.billing_unit_s, minimum_s=terms.minimum_s)
    return hours * usd_per_hour


def tiered_usd(nbytes: Floats, tiers: tuple[tuple[float, float], ...]) -> Floats:
    """The cost of `nbytes` a month under `tiers` of (from this byte on, USD for a byte), in USD; broadcasts.

    Source: arithmetic: each byte costs what its tier says. Assumes: one bill for all of a provider's regions.
    """
    ends = [*(start for start, _ in tiers[1:]), np.inf]
    total: Floats = 0.0 * nbytes
    for (start, usd), end in zip(tiers, ends, strict=True):
        total = total + usd * np.clip(nbytes - start, 0.0, end - start)
    return total


def volume_usd(provider: str, kind: VolumeKind, nbytes: float, facts: Facts) -> tuple[float, VolumePrice] | None:
    """(USD a month, price) of `nbytes` stored, sent out or sent between zones; None where no price is known.

    Source: arithmetic; the tiers are the provider's, each with its page.
    Assumes: no other volume of the account fills the lower tiers.

    Raises: SpecError: negative bytes.
    """
    if not 0 <= nbytes < float("inf"):
        raise SpecError(f"{kind}: {nbytes:g} bytes is out of range; allowed: 0 or more")
    price = facts.volume_prices.get((provider, kind))
    return None if price is None else (float(tiered_usd(nbytes, price.tiers)), price)


def unit_usd(usd: float | None, amounts: Mapping[str, float | None]) -> dict[str, float]:
    """The cost of one of each unit of `amounts` that `usd` pays for, in USD; without amounts that are unknown or 0.

    Source: arithmetic. Assumes: all of the money is for each of the units: they are views of one bill, and no parts.
    """
    return {} if usd is None else {name: usd / amount for name, amount in amounts.items() if amount}


def usd_per_million_tokens(usd_per_hour: Floats, tokens_per_s: Floats) -> Floats:
    """Price of a million tokens at a sustained rate, in USD; broadcasts.

    Source: arithmetic.
    Assumes: the machines do nothing else and run at that rate all the time.
    """
    return usd_per_hour / (tokens_per_s * HOUR_S) * 1e6
