"""What a candidate of the search is for a month: hours, machines, dollars and electricity of one `MonthlyOption`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.fleet.carbon import carbon_kg, metered_kwh
from flopwise.fleet.hosted import ApiOffer, monthly_tokens
from flopwise.fleet.model import MonthlyOption
from flopwise.fleet.own_machines import OwnOffer
from flopwise.fleet.prices import effective
from flopwise.fleet.replica_scaling import filled_frac, machines_needed, replica_machines
from flopwise.search.answer import Candidate
from flopwise.units import HOUR_S, HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.model import ResolvedJob


def monthly_option(
    index: int, job: ResolvedJob, candidate: Candidate, offer: Offer, facts: Facts, factor: float = 1.0
) -> MonthlyOption:
    """A candidate as it serves a month, of `factor` times the traffic or runs it was planned for.

    Services first fill the replicas they have, then get more (`machines_needed`); runs are as many more.

    Assumes: a request takes as much energy however busy its machine is.
    """
    if isinstance(offer, ApiOffer):
        return api_option(index, job, offer, factor)
    instances, unit, runs = candidate.num_instances, replica_machines(candidate), (job.runs_per_month or 1.0) * factor
    joules = candidate.energy_joules
    if job.ends:
        busy, joules = candidate.seconds / HOUR_S * runs, None if joules is None else joules * runs
        at_once = max(1, -(-round(busy / HOURS_PER_MONTH * 1e6) // 10**6))
        instances, busy = instances * at_once, busy / at_once
    else:
        busy = job.hours_per_month
        joules = None if joules is None else joules * busy / HOURS_PER_MONTH * factor
        if factor != 1.0 and job.workload is not None:
            instances = int(machines_needed(instances, filled_frac(candidate), unit, factor))
    if isinstance(offer, OwnOffer):
        return _own_option(index, candidate, offer, instances, unit, busy, joules, facts)
    price = effective(
        offer,
        candidate.purchase,
        busy,
        facts,
        interruptible=job.interruptible,
        interruptions_per_hour=0.0 if job.trains else None,  # runs have their interruptions in them
        starts_per_month=runs if job.ends else job.schedule.starts_per_month,
    )
    assert price is not None, "the search takes what has a price"
    pue = facts.grid(offer.provider, offer.region).pue
    kwh = None if joules is None else float(metered_kwh(joules, pue))
    return MonthlyOption(
        workload=index, candidate=candidate, offer=offer, instances=instances, unit=unit, busy_hours=busy,
        paid_hours=price.billed_hours, usd_per_hour=price.usd_per_hour_list, usd_each=price.usd_per_month, kwh=kwh,
        kg=None if kwh is None else float(carbon_kg(kwh, offer.provider, offer.region, facts)), notes=price.notes,
    )  # fmt: skip


def _own_option(
    index: int,
    candidate: Candidate,
    offer: OwnOffer,
    instances: int,
    unit: int,
    busy: float,
    joules: float | None,
    facts: Facts,
) -> MonthlyOption:
    """On own machines: they stand there all month, work adds its power."""
    machines = offer.machines
    notes = [f"paid for all {HOURS_PER_MONTH:g} hours of the month, used or not, and the power of work by use"]
    if machines.count and machines.sunk:
        notes.append(f"what {machines.count} of them cost to buy is spent and not in the bill")
    kwh = None if joules is None else float(metered_kwh(joules, machines.site.pue))
    kg = kwh
    if kwh is not None:
        own = machines.kg_per_kwh
        kg = float(carbon_kg(kwh, offer.provider, offer.region, facts)) if own is None else kwh * own
    return MonthlyOption(
        workload=index, candidate=candidate, offer=offer, instances=instances, unit=unit, busy_hours=busy,
        paid_hours=HOURS_PER_MONTH, usd_per_hour=offer.first_usd / HOURS_PER_MONTH, usd_each=offer.first_usd,
        usd_running=offer.running_usd(None if kwh is None else kwh / instances, busy), kwh=kwh, kg=kg, own=offer.pool,
        notes=tuple(notes),
    )  # fmt: skip


def api_option(index: int, job: ResolvedJob, offer: ApiOffer, factor: float = 1.0) -> MonthlyOption:
    """All requests of a month, answered by an API and paid by the token."""
    tokens, price = monthly_tokens(job, factor), offer.price
    assert tokens is not None, "an API is offered for what has tokens"
    usd = tokens.usd(price)
    candidate = Candidate(
        rank=0, provider=offer.provider, region=offer.region, instance=offer.instance, num_instances=1, gpu="",
        num_gpus=0, purchase="api", layout={}, seconds=0.0, usd_per_hour=0.0, cost_usd=usd, energy_joules=None,
        meets={}, figures={"input_tokens_per_month": tokens.inputs, "output_tokens_per_month": tokens.outputs},
        memory_bytes=0.0, capacity_bytes=0.0, price_date=offer.price_date, price_source=offer.source,
    )  # fmt: skip
    note = (
        f"${price.input_usd_per_mtok:g} a million tokens in, ${price.output_usd_per_mtok:g} out, no discounts, for "
        f"the published weights in whatever precision it has ({price.source}, {price.date})"
    )
    return MonthlyOption(
        workload=index, candidate=candidate, offer=offer, instances=1, busy_hours=job.hours_per_month,
        paid_hours=job.hours_per_month, usd_per_hour=None, usd_each=usd, notes=(note,),
    )  # fmt: skip
