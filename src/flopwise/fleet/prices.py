"""What hours of work, bytes kept or sent, and tokens really cost: the listed price, and what buying it so makes of it.

On demand is rounded to the provider's unit of time and may have a discount for staying on; spot pays for checkpoints,
for work done twice and for starting again; a reservation is paid all month, used or not. A price that is not known
stays unknown. Every function but `effective`, `run_usd` and `break_even` takes arrays too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from flopwise.cost.money import billed_hours, volume_usd
from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.facts.price_book import VOLUME_KINDS, HostedPrice, VolumeKind
from flopwise.fleet.model import ResolvedJob, VolumeBill
from flopwise.ops.types import Floats
from flopwise.training.goodput import DEFAULT_RELIABILITY, daly_interval_s, progress_frac
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_usd
from flopwise.values import dataclass

MOST_HOURS = 744.0
"""Hours of the longest month."""
RESTART_S = DEFAULT_RELIABILITY.detect_s + DEFAULT_RELIABILITY.reschedule_s + DEFAULT_RELIABILITY.warmup_s
"""Default time from the loss of an instance until work continues: that of `flopwise.training.goodput`."""
_LEAST_S = 1e-3
_SUSTAINED_FROM = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectivePrice:
    """The price of one instance under a purchase option, for the hours of work of a month; USD and hours.

    `usd_per_hour_effective` is for each hour of work, `usd_per_month` the bill. `break_even_frac`, of reservations: the
    share of the month from which they are cheaper than on demand; None where that has no price.
    """

    purchase: str
    usd_per_hour_list: float
    usd_per_hour_effective: float
    work_hours: float
    billed_hours: float
    usd_per_month: float
    price_date: str
    notes: tuple[str, ...] = ()
    break_even_frac: float | None = None


def sustained_frac(used_frac: Floats, tiers: tuple[tuple[float, float], ...]) -> Floats:
    """Share of the list price paid, on average, by a machine that is on for `used_frac` of the month; broadcasts.

    `tiers`: (from this share of the month on, share of the price).

    Source: Google Cloud, sustained use discounts: each hour is billed at the share of the tier that it falls in.
    Assumes: one machine, or several of a kind that are on at the same time.
    """
    used = np.minimum(used_frac, 1.0)
    ends = [*(start for start, _ in tiers[1:]), 1.0]
    paid = sum(share * np.clip(used - start, 0.0, end - start) for (start, share), end in zip(tiers, ends, strict=True))
    return np.where(used > 0, paid / np.maximum(used, 1e-12), tiers[0][1])


def spot_frac(
    interruptions_per_s: Floats, checkpoint_s: Floats, restart_s: Floats, saved_every_s: Floats | None = None
) -> Floats:
    """Share of paid spot time that is progress; broadcasts.

    A job is saved every `saved_every_s` of work, in `checkpoint_s` that it waits (None: as often as loses least); an
    interruption costs `restart_s`, reading the checkpoint back included, and the work since the last one. Where nothing
    is to be saved (requests that are asked again), `checkpoint_s` is 0 and only restarts cost.

    Source: Daly 2006 (doi:10.1016/j.future.2004.11.016), as `progress_frac`.
    Assumes: a warning before the interruption is not used to save; instances of a job are lost one at a time.
    """
    mtbf_s = 1.0 / np.maximum(interruptions_per_s, 1e-30)
    stall_s = np.maximum(checkpoint_s, 0.0)
    interval_s = daly_interval_s(np.maximum(stall_s, _LEAST_S), mtbf_s) if saved_every_s is None else saved_every_s
    interval_s = np.where((stall_s <= 0) & (saved_every_s is None), _LEAST_S, interval_s)
    return np.minimum(progress_frac(mtbf_s, interval_s, stall_s, restart_s), 1.0)


def break_even_frac(reserved_usd_per_hour: Floats, on_demand_usd_per_hour: Floats) -> Floats:
    """Share of the month from which a reservation is cheaper than paying for the hours used; broadcasts.

    Source: arithmetic: all hours at one price against some at the other.
    Assumes: on demand is paid by the hour used, without discounts for staying on.
    """
    return reserved_usd_per_hour / on_demand_usd_per_hour


def effective(
    offer: Offer, purchase: str, hours_per_month: float, facts: Facts, *, interruptible: bool = True,
    checkpoint_s: float = 0.0, restart_s: float = RESTART_S, interruptions_per_hour: float | None = None,
    saved_every_s: float | None = None, instances: int = 1, starts_per_month: float = 1.0,
) -> EffectivePrice | None:  # fmt: skip
    """The effective price of one instance of `offer` for `hours_per_month` of work.

    `instances`: of the job, which stands still when one is taken back. `interruptions_per_hour` of one spot instance,
    None: as `data/spot.csv` has it; pass 0 for hours that have the interruptions in them already, as the runs of
    `flopwise plan` have. `starts_per_month`: how often the machines are turned on.

    None: not sold so, the price is not known, or spot for what may not be interrupted.

    Raises: SpecError: no such purchase option; hours outside (0, 744]; something negative.
    """
    usd = offer.price_usd_per_hour(purchase)
    _check_ranges(
        hours_per_month, checkpoint_s=checkpoint_s, restart_s=restart_s, interruptions_per_hour=interruptions_per_hour,
        saved_every_s=saved_every_s, instances=instances, starts_per_month=starts_per_month,
    )  # fmt: skip
    if usd is None or (purchase == "spot" and not interruptible):
        return None
    share, even = 1.0, None
    if purchase.startswith("reserved"):
        billed, on_demand = max(HOURS_PER_MONTH, hours_per_month), offer.on_demand_usd_per_hour
        notes = [f"paid for all {HOURS_PER_MONTH:g} hours of the month, {hours_per_month:.4g} of them used"]
        if on_demand is not None:
            even = float(break_even_frac(usd, on_demand))
            notes.append(f"cheaper than on demand from {100 * even:.3g} % of the month on")
    else:
        terms, notes, billed = facts.terms_of(offer.provider, offer.instance), list[str](), hours_per_month
        if purchase == "spot":
            rate, origin = _interruptions(offer, interruptions_per_hour, facts)
            notes += [origin] if origin else []
            lasting = float(spot_frac(rate * instances / HOUR_S, checkpoint_s, restart_s, saved_every_s))
            billed = hours_per_month / max(lasting, 1e-9)
            longer = billed / hours_per_month - 1
            if longer > 1e-9:
                notes.append(f"{100 * longer:.3g} % longer because of checkpoints, restarts and repeated work")
        if terms is None:
            notes.append(f"how {offer.provider} rounds the time is not known; billed as used")
        else:
            billed = float(billed_hours(billed, starts_per_month, terms.billing_unit_s, terms.minimum_s))
            if purchase == "on_demand" and terms.sustained_tiers is not None:
                share = float(sustained_frac(billed / HOURS_PER_MONTH, terms.sustained_tiers))
                if share > 1 - 1e-9:
                    notes.append(f"no sustained-use discount below {100 * _SUSTAINED_FROM:g} % of the month")
                else:
                    saved = f"{100 * (1 - share):.3g} % sustained-use discount"
                    notes.append(f"{saved} ({terms.source}, {terms.date})")
    month = usd * billed * share
    return EffectivePrice(
        purchase=purchase, usd_per_hour_list=usd, usd_per_hour_effective=month / hours_per_month,
        work_hours=hours_per_month, billed_hours=billed, usd_per_month=month, price_date=offer.price_date_of(purchase),
        notes=tuple(notes), break_even_frac=even,
    )  # fmt: skip


def _check_ranges(hours_per_month: float, **figures: float | None) -> None:
    if not 0 < hours_per_month <= MOST_HOURS:
        raise SpecError(f"hours_per_month: {hours_per_month:g} is out of range; allowed: above 0, up to {MOST_HOURS:g}")
    for name, value in figures.items():
        above = name in {"saved_every_s", "instances", "starts_per_month"}
        if value is not None and (not 0 <= value < math.inf or (above and not value)):
            raise SpecError(f"{name}: {value:g} is out of range; allowed: {'above 0' if above else '0 or more'}")


def _interruptions(offer: Offer, given: float | None, facts: Facts) -> tuple[float, str]:
    """(interruptions of one instance an hour, where that is from)."""
    if given is not None:
        return given, ""
    record = facts.spot(offer.provider, offer.accelerator)
    rate = record.interruptions_per_s * HOUR_S
    return rate, f"one interruption in {1 / rate:,.0f} h of an instance: {record.text}"


def run_usd(offer: Offer, purchase: str, hours: float, facts: Facts) -> tuple[float, EffectivePrice] | None:
    """(USD of one instance for a run of `hours` that is started once, the price of a month of it); None: not sold so.

    A run that outlasts a month is paid over as many as it takes; a reservation for all hours of each of them. `hours`
    have the interruptions of spot capacity in them, as the runs of `flopwise plan` have.

    Raises: SpecError: no such purchase option; hours not above 0.
    """
    months = max(1, math.ceil(round(hours / HOURS_PER_MONTH, 9)))
    price = effective(offer, purchase, hours / months, facts, interruptions_per_hour=0.0)
    return None if price is None else (price.usd_per_month * months, price)


# Bytes kept and sent


def volume_bills(
    jobs: Sequence[ResolvedJob], providers: Sequence[Mapping[str, bool]], facts: Facts
) -> dict[tuple[int, str], VolumeBill]:
    """The cost of each workload's volumes with each of its `providers` (each with a flag: a cloud).

    Source: arithmetic on `data/storage_prices.csv`.
    Assumes: prices in tiers are paid at their average over the volumes of the whole fleet, as if one provider had them
    all; where a cloud's price is not known, the dearest that is known of any cloud counts, whichever of them the fleet
    may use (else a policy that leaves a dear cloud out would make the others cheaper); what is kept on own machines, or
    sent to an API, is in their price.
    """
    clouds = sorted({name for by_name in providers for name, cloud in by_name.items() if cloud})
    nbytes = [{kind: float(getattr(job.volumes, kind)) for kind in VOLUME_KINDS} for job in jobs]
    totals = {kind: sum(own[kind] for own in nbytes) for kind in VOLUME_KINDS}
    rates = {kind: _byte_rates(kind, total, clouds, facts) if total else {} for kind, total in totals.items()}
    bills: dict[tuple[int, str], VolumeBill] = {}
    for number, (own, by_name) in enumerate(zip(nbytes, providers, strict=True)):
        for name in by_name if any(own.values()) else ():
            usd, notes = dict.fromkeys(VOLUME_KINDS, 0.0), list[str]()
            for kind in (kind for kind in VOLUME_KINDS if own[kind]):
                included = f"{kind.replace('_', ' ')} of {name}: assumed to be included in its price"
                usd_per_byte, note = rates[kind].get(name, (0.0, included))
                usd[kind] = usd_per_byte * own[kind]
                notes.append(note)
            moved = usd["egress"] + usd["inter_zone"]
            bills[number, name] = VolumeBill(storage=usd["storage"], traffic=moved, notes=tuple(notes))
    return bills


def _byte_rates(kind: VolumeKind, total: float, clouds: Sequence[str], facts: Facts) -> dict[str, tuple[float, str]]:
    """(USD a byte on average over `total`, where that is from) of each cloud."""
    known, rates, words = dict[str, float](), dict[str, tuple[float, str]](), kind.replace("_", " ")
    for name in sorted({provider for provider, priced in facts.volume_prices if priced == kind}):
        bill = volume_usd(name, kind, total, facts)
        assert bill is not None, "its price is in the table"
        known[name] = bill[0] / total
        rates[name] = known[name], f"{words} of {name}: {bill[1].source}, {bill[1].date}"
    dearest = max(known, key=known.__getitem__, default=None)
    usd = 0.0 if dearest is None else known[dearest]
    counted = (
        "not counted"
        if dearest is None
        else f"counted at the price of {dearest}, {format_usd(usd * 1e9)} a GB on average"
    )
    return {name: rates.get(name, (usd, f"the price of {words} at {name} is not known; {counted}")) for name in clouds}


# Tokens of hosted models, and when own machines cost less


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Own machines against an API; output tokens a month (their prompts are counted with them), USD.

    `first`: the least volume at which own machines cost no more, `always`: from which they never cost more, whatever
    the last machine is filled to; both None where the API is cheaper than a full machine (`why`).
    """

    provider: str
    model: str
    api_usd_per_mtok: float  # output, with its share of prompts
    own_usd_per_mtok: float  # of machines that are full all month
    capacity_per_machine: float  # output tokens a month
    first: float | None
    always: float | None
    why: str
    date: str


def api_usd(price: HostedPrice, input_tokens: Floats, output_tokens: Floats, cached_frac: Floats = 0.0) -> Floats:
    """The cost of so many tokens at an API, in USD; broadcasts.

    `cached_frac` of the prompt tokens are priced as the provider prices those that it still holds, else as others.

    Source: arithmetic on the provider's price list. Assumes: no batch or volume discount.
    """
    cached = price.input_usd_per_mtok if price.cached_usd_per_mtok is None else price.cached_usd_per_mtok
    prompt = input_tokens * ((1.0 - cached_frac) * price.input_usd_per_mtok + cached_frac * cached)
    return (prompt + output_tokens * price.output_usd_per_mtok) / 1e6


def break_even(
    price: HostedPrice,
    usd_per_month: float,
    output_tokens_per_s: float,
    *,
    inputs_per_output: float = 0.0,
    cached_frac: float = 0.0,
    fill_frac: float = 1.0,
) -> BreakEven:
    """From which volume on machines of `usd_per_month` each cost less than an API.

    Each machine carries `output_tokens_per_s` (and the prompts that go with them) while it is full; over a month
    `fill_frac` of that, since traffic is not even.

    Source: own machines cost n C for volumes up to n times the capacity K, an API p a token: the first machine pays
    from C / p on (if that is at most K), every further one always if n C / p is at most (n - 1) K.
    Assumes: machines stay on all month, and each carries up to `capacity` tokens; the same tokens count on both sides.

    Raises: SpecError: a figure is not positive, or a share is outside (0, 1].
    """
    for name, value, valid, allowed in (
        ("usd_per_month", usd_per_month, 0 < usd_per_month < math.inf, "above 0"),
        ("output_tokens_per_s", output_tokens_per_s, 0 < output_tokens_per_s < math.inf, "above 0"),
        ("fill_frac", fill_frac, 0 < fill_frac <= 1, "above 0, up to 1"),
        ("inputs_per_output", inputs_per_output, 0 <= inputs_per_output < math.inf, "0 or more"),
        ("cached_frac", cached_frac, 0 <= cached_frac <= 1, "0 or more, up to 1"),
    ):
        if not valid:
            raise SpecError(f"{name}: {value:g} is out of range; allowed: {allowed}")
    capacity = output_tokens_per_s * fill_frac * HOURS_PER_MONTH * HOUR_S
    each = float(api_usd(price, inputs_per_output, 1.0, cached_frac))
    least, own_each = usd_per_month / each, usd_per_month / capacity
    pays = least <= capacity
    own, api = format_usd(1e6 * own_each), format_usd(1e6 * each)
    dearer = f"a full machine costs {own} for a million output tokens, the API {api}"
    return BreakEven(
        provider=price.provider, model=price.model or price.name, api_usd_per_mtok=1e6 * each,
        own_usd_per_mtok=1e6 * own_each, capacity_per_machine=capacity, first=least if pays else None,
        always=_always(least, capacity) if pays else None, why="" if pays else dearer, date=price.date,
    )  # fmt: skip


def _always(first: float, capacity: float) -> float | None:
    """The volume from which a machine more always pays at once; None where the margin is too thin for any number."""
    if first >= capacity * (1 - 1e-9):
        return None
    machines = int(np.ceil(round(capacity / (capacity - first), 9)))  # the least n with n first <= (n - 1) capacity
    return (machines - 1) * first
