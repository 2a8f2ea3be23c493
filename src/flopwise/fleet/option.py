"""What a candidate of the search is for a month: hours, machines, dollars, electricity; and with more or less load."""

from __future__ import annotations

from functools import partial

import numpy as np

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.fleet.model import ChosenWorkload, MonthlyOption, ResolvedJob, Taken, paid_all_month
from flopwise.fleet.offers import ApiOffer, OwnOffer, monthly_tokens
from flopwise.fleet.onprem import JOULES_PER_KWH
from flopwise.fleet.prices import api_usd, effective
from flopwise.ops.types import Array
from flopwise.search.allowed import software_of
from flopwise.search.answer import Candidate
from flopwise.search.rank import price_facts
from flopwise.search.service_load import load_frac
from flopwise.search.service_machines import machines_needed, replica_machines
from flopwise.units import HOUR_S, HOURS_PER_MONTH, format_usd
from flopwise.values import dataclass


def running_usd(offer: OwnOffer, kwh: float | None, busy_hours: float) -> float:
    """USD a month of the power that work takes beyond idling, of one own machine.

    `kwh`: what the work takes in all; where that is not known, power is drawn as by a machine at full use.
    """
    if kwh is None:
        return offer.count * offer.month.busy_power * busy_hours / offer.month.available_hours
    return max(0.0, kwh - offer.idle_kwh * busy_hours / HOURS_PER_MONTH) * offer.site.usd_per_kwh


def monthly_option(
    index: int, job: ResolvedJob, candidate: Candidate, offer: Offer, facts: Facts, factor: float = 1.0
) -> MonthlyOption:
    """A candidate as it serves a month, of `factor` times the traffic or runs it was planned for.

    Services first fill the replicas they have, then get more (`machines_needed`); runs are as many more.

    Assumes: a request takes as much energy however busy its machine is.
    """
    if isinstance(offer, ApiOffer):
        return api_option(index, job, offer, factor)
    instances, unit, runs = candidate.num_instances, replica_machines(candidate), job.runs * factor
    joules = candidate.energy_joules
    if job.ends:
        busy = candidate.paid_s / HOUR_S * runs
        joules = None if joules is None else joules * runs
        at_once = max(1, -(-round(busy / HOURS_PER_MONTH * 1e6) // 10**6))
        instances, busy = instances * at_once, busy / at_once
    else:
        busy = job.hours_per_month
        joules = None if joules is None else joules * busy / HOURS_PER_MONTH * factor
        if factor != 1.0 and job.workload is not None:
            instances = int(machines_needed(instances, load_frac(job.workload, facts, offer, candidate), unit, factor))
        if job.levels is not None and not paid_all_month(candidate.purchase):
            busy = job.levels.paid_hours(job.levels.machines(instances, unit)) / instances
    pue = offer.site.pue if isinstance(offer, OwnOffer) else facts.grid(offer.provider, offer.region).pue
    kwh = metered_kwh(joules, pue)
    option = partial(
        MonthlyOption, workload=index, candidate=candidate, offer=offer, instances=instances, unit=unit, pool=job.pool,
        busy_hours=busy, kwh=kwh, kg=carbon_kg(kwh, offer, facts),
        software=software_of(facts.accelerators[offer.accelerator]) or "",
    )  # fmt: skip
    if isinstance(offer, OwnOffer):
        machines, usd = offer.machines, offer.first_usd
        notes = [f"paid for all {HOURS_PER_MONTH:g} hours of the month, used or not; power by use"]
        if machines.count and machines.sunk:
            notes.append(f"the purchase price of {machines.count} of them is already spent and not in the bill")
        running = running_usd(offer, None if kwh is None else kwh / instances, busy)
        return option(
            paid_hours=HOURS_PER_MONTH, usd_per_hour=usd / HOURS_PER_MONTH, usd_each=usd, usd_running=running,
            own=offer.pool, notes=tuple(notes),
        )  # fmt: skip
    price = effective(
        offer, candidate.purchase, busy, facts, interruptible=job.interruptible,
        interruptions_per_hour=0.0 if job.trains else None,  # runs have their interruptions in them
        starts_per_month=runs if job.ends else (job.levels or job.schedule).starts_per_month,
    )  # fmt: skip
    assert price is not None, "the search takes what has a price"
    return option(
        paid_hours=price.billed_hours, usd_per_hour=price.usd_per_hour_list, usd_each=price.usd_per_month,
        notes=price.notes,
    )  # fmt: skip


def api_option(index: int, job: ResolvedJob, offer: ApiOffer, factor: float = 1.0) -> MonthlyOption:
    """All requests of a month, answered by an API and paid by the token."""
    tokens, price = monthly_tokens(job, factor), offer.price
    assert tokens is not None, "an API is offered for what has tokens"
    usd = float(api_usd(price, *tokens))
    times = job.runs * factor if job.ends else 1.0  # a candidate's cost is that of one run, or of a month of service
    candidate = Candidate(
        rank=0, provider=offer.provider, region=offer.region, instance=offer.instance, num_instances=1, gpu="",
        num_gpus=0, purchase="api", layout={}, seconds=0.0, usd_per_hour=0.0, cost_usd=usd / times, energy_joules=None,
        meets={}, figures={"input_tokens_per_month": tokens[0], "output_tokens_per_month": tokens[1]},
        memory_bytes=0.0, capacity_bytes=0.0, **price_facts(offer, "api", 1),
    )  # fmt: skip
    note = (
        f"{format_usd(price.input_usd_per_mtok)} a million tokens in, {format_usd(price.output_usd_per_mtok)} out, "
        f"no discounts, for the published weights; the precision is not stated ({price.source}, {price.date})"
    )
    return MonthlyOption(
        workload=index, candidate=candidate, offer=offer, instances=1, busy_hours=job.hours_per_month,
        paid_hours=job.hours_per_month, usd_per_hour=None, usd_each=usd, notes=(note,),
    )  # fmt: skip


def metered_kwh(joules: float | None, pue: float | None) -> float | None:
    """Electricity at the meter of a building with this `pue`; `joules` have the search's, the usual one; None: unknown.

    Source: arithmetic; data/carbon.csv has what providers publish of their buildings. Assumes: None: the usual one.
    """
    usual = DEFAULT_POWER.pue
    return None if joules is None else joules / JOULES_PER_KWH * (usual if pue is None else pue) / usual


def carbon_kg(kwh: float | None, offer: Offer, facts: Facts) -> float | None:
    """The emissions of electricity at the meter where an offer stands, in kg of CO2 equivalent; None: unknown.

    Source: data/carbon.csv: averages of a year; neither hours nor certificates that a provider buys are counted.
    Assumes: the load is spread over the year; of own machines the fleet's own figure, where it has one.
    """
    own = offer.machines.kg_per_kwh if isinstance(offer, OwnOffer) else None
    return None if kwh is None else kwh * (facts.grid(offer.provider, offer.region).kg_per_kwh if own is None else own)


# Machines of a service where more or less is asked of them, or where they do more or less than planned


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """The load of a service on the machines of one row of the bill: `count`, of which it takes the share `filled`.

    `time_low` and `time_high`: the 10-90 % interval of the time that a request takes of a machine, over what is
    planned. `usd`: a month of the row. `paid`: whether the machines are paid whatever is asked of them; `missing_usd`:
    a month of one that is then missing.
    """

    count: int
    usd: float
    filled: float = 1.0
    unit: int = 1
    time_low: float = 1.0
    time_high: float = 1.0
    paid: bool = False
    missing_usd: float = 0.0

    def machines(self, times: float | Array) -> Array:
        """Machines at `times` the load; of any shape."""
        return machines_needed(self.count, self.filled, self.unit, times)

    def usd_at(self, times: float | Array) -> Array:
        """USD a month at `times` the load; of any shape."""
        machines = self.machines(times)
        if not self.paid:
            return self.usd * machines / self.count
        return np.asarray(self.usd + np.maximum(0.0, machines - self.count) * self.missing_usd)


def replica_load(taken: Taken, chosen: ChosenWorkload, facts: Facts) -> ReplicaLoad | None:
    """The load on allocated machines; None where they serve none. A backup follows the requests alone."""
    figures, option, workload = chosen.figures, taken.option, chosen.planned.workload
    if figures is None or workload is None or chosen.job.ends:
        return None
    if taken.role == "backup":
        return ReplicaLoad(count=taken.count, usd=taken.usd)
    low, high = (1.0, 1.0) if workload.is_closed_loop else (figures.time_low, figures.time_high)
    filled = load_frac(workload, facts, option.offer, option.candidate)
    return ReplicaLoad(
        count=taken.count, usd=taken.usd, filled=filled, unit=option.unit, time_low=low, time_high=high,
        paid=option.is_pooled, missing_usd=_missing_usd(option, taken.count),
    )  # fmt: skip


def _missing_usd(option: MonthlyOption, count: int) -> float:
    """USD a month of one machine beyond `count`: on demand for its hours, at the option's price where that is unknown.

    Assumes: own machines that are there and not in these are free for it, beyond them one is bought.
    """
    rate = option.offer.on_demand_usd_per_hour
    if option.own is not None:
        (there, used), (_, bought) = option.own.tiers
        return (used if count < there else bought) + option.usd_running
    return option.usd_each if rate is None else rate * min(option.busy_hours, HOURS_PER_MONTH)
