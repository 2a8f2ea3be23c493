"""One way to carry one workload for a month: machines that are rented, machines of one's own, or an API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.fleet.carbon import JOULES_PER_KWH, power_of
from flopwise.fleet.load import filled_frac, needed, unit_of
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.pricing import effective
from flopwise.fleet.spec import API
from flopwise.fleet.tokens import ApiOffer, month_of_tokens
from flopwise.search.answer import Candidate
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to carry one workload for a month: `instances` machines, each on `busy_hours` and paid `paid_hours`.

    `usd_each`: a month of one machine, of own ones of the first; `usd_running`: what its work adds to that, the power
    of own machines. `usd_per_hour` is None of an API. `kwh`: a month, at the meter, of all instances; None where a
    power limit is not known.
    """

    workload: int
    candidate: Candidate
    offer: Offer
    instances: int
    unit: int  # instances of one replica
    busy_hours: float
    paid_hours: float
    usd_per_hour: float | None
    usd_each: float
    kwh: float | None
    usd_running: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def purchase(self) -> str:
        """How its machines are bought."""
        return self.candidate.purchase

    @property
    def gpus_each(self) -> int:
        """Accelerators of one machine; 0 of an API."""
        held = self.candidate
        return 0 if self.purchase == API else max(1, held.num_gpus // held.num_instances)

    @property
    def usd(self) -> float:
        """A month of all instances, nothing shared."""
        if isinstance(self.offer, OwnOffer):
            return self.offer.standing_usd(self.instances) + self.instances * self.usd_running
        return self.instances * self.usd_each


def way(index: int, placed: Placed, candidate: Candidate, offer: Offer, facts: Facts, factor: float = 1.0) -> Way:
    """A candidate as it serves a month, of `factor` times the traffic or runs it was planned for.

    Services first fill the replicas they have, then get more (`load.needed`); runs are as many more.

    Assumes: a request takes as much energy however busy its machine is.
    """
    if isinstance(offer, ApiOffer):
        return api_way(index, placed, offer, factor)
    instances, unit, runs = candidate.num_instances, unit_of(candidate), (placed.runs_per_month or 1.0) * factor
    if factor != 1.0 and not placed.ends and placed.wanted is not None:
        instances = int(needed(instances, filled_frac(candidate), unit, factor))
    if placed.ends:
        busy = candidate.seconds / HOUR_S * runs
        at_once = max(1, -(-round(busy / HOURS_PER_MONTH * 1e6) // 10**6))
        instances, busy = instances * at_once, busy / at_once
        energy = None if candidate.energy_joules is None else candidate.energy_joules * runs
    else:
        busy = placed.hours_per_month
        energy = None
        if candidate.energy_joules is not None:
            energy = candidate.energy_joules * busy / HOURS_PER_MONTH * factor
    if isinstance(offer, OwnOffer):
        return _own_way(index, candidate, offer, instances, unit, busy, energy)
    counted = 0.0 if placed.job.task in {"pretrain", "finetune"} else None  # runs have their interruptions in them
    price = effective(
        offer,
        candidate.purchase,
        busy,
        facts,
        interruptible=placed.interruptible,
        interruptions_per_hour=counted,
        starts_per_month=runs if placed.ends else placed.schedule.starts_per_month,
    )
    assert price is not None, "the search takes what has a price"
    return Way(
        workload=index,
        candidate=candidate,
        offer=offer,
        instances=instances,
        unit=unit,
        busy_hours=busy,
        paid_hours=price.billed_hours,
        usd_per_hour=price.usd_per_hour_list,
        usd_each=price.usd_per_month,
        kwh=None if energy is None else _metered_kwh(energy, offer, facts),
        notes=price.notes,
    )


def _metered_kwh(joules: float, offer: Offer, facts: Facts) -> float:
    """Electricity at the meter of the buildings that an offer stands in; `joules` as the search has it.

    Source: data/carbon.csv, what providers publish of their regions; the search's usual overhead where they do not.
    """
    there = power_of(facts.grid(offer.provider, offer.region))
    return joules / JOULES_PER_KWH * there.pue / DEFAULT_POWER.pue


def _own_way(
    index: int, candidate: Candidate, offer: OwnOffer, instances: int, unit: int, busy: float, joules: float | None
) -> Way:
    """On machines of one's own: they stand there all month, work adds its power."""
    kwh = None if joules is None else offer.metered_kwh(joules)
    there, spent = offer.machines.count, offer.machines.sunk
    notes = [f"paid for all {HOURS_PER_MONTH:g} hours of the month, used or not, and the power of work by use"]
    if there and spent:
        notes.append(f"what {there} of them cost to buy is spent and not in the bill")
    return Way(
        workload=index,
        candidate=candidate,
        offer=offer,
        instances=instances,
        unit=unit,
        busy_hours=busy,
        paid_hours=HOURS_PER_MONTH,
        usd_per_hour=offer.first_usd / HOURS_PER_MONTH,
        usd_each=offer.first_usd,
        kwh=kwh,
        usd_running=offer.running_usd(None if kwh is None else kwh / instances, busy),
        notes=tuple(notes),
    )


def api_way(index: int, placed: Placed, offer: ApiOffer, factor: float = 1.0) -> Way:
    """All requests of a month, answered by an API and paid by the token."""
    month = month_of_tokens(placed, factor)
    assert month is not None, "an API is offered for what has tokens"
    usd = month.usd(offer.price)
    candidate = Candidate(
        rank=0, provider=offer.provider, region=offer.region, instance=offer.instance, num_instances=1, gpu="",
        num_gpus=0, purchase="api", layout={}, seconds=0.0, usd_per_hour=0.0, cost_usd=usd, energy_joules=None,
        meets={}, figures={"input_tokens_per_month": month.inputs, "output_tokens_per_month": month.outputs},
        memory_bytes=0.0, capacity_bytes=0.0, price_date=offer.price_date, price_source=offer.source,
    )  # fmt: skip
    price = offer.price
    note = (
        f"${price.input_usd_per_mtok:g} a million tokens in, ${price.output_usd_per_mtok:g} out, no discounts, for "
        f"the published weights in whatever precision it has ({price.source}, {price.date})"
    )
    return Way(
        workload=index,
        candidate=candidate,
        offer=offer,
        instances=1,
        unit=1,
        busy_hours=placed.hours_per_month,
        paid_hours=placed.hours_per_month,
        usd_per_hour=None,
        usd_each=usd,
        kwh=None,
        notes=(note,),
    )
