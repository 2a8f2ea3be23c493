"""What the allocation saves against a baseline that an invoice shows, or that the user names.

The usual baseline is the same machines on demand, services around the clock and runs for as long as they take: hours
that they are off (schedule) and the way they are bought (spot, reserved) save against it, and nothing else. Against
what workloads run on today (`existing`), or an accelerator that the fleet names (`policies.baseline`), the steps are
those of `flopwise.fleet.ladder`; what other machines and fewer bits save there is shown and not in the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flopwise.errors import FlopwiseError
from flopwise.facts.offers import OWNED
from flopwise.fleet.assessment import Allotment, CostSaving
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.existing import ExistingSetup, existing_setups
from flopwise.fleet.ladder import setup_changes
from flopwise.fleet.model import ChosenWorkload, MonthlyOption, Platform
from flopwise.fleet.planned import searched_workload
from flopwise.fleet.prices import effective
from flopwise.fleet.spec import API, EXISTING, ON_DEMAND, ExistingMachines, Policies
from flopwise.search.plan import plan
from flopwise.units import HOURS_PER_MONTH, format_usd
from flopwise.values import replace

LEAST_USD = 1.0
"""Savings below are not worth a line."""
KINDS = {"count": "right-sizing", "machine": "right-sizing", "format": "quantisation"}
"""What changes of a set-up are called as savings; others as they are."""
PURCHASES = {"spot": "spot", "reserved_1y": "reserved", "reserved_3y": "reserved", "on_demand": "on demand"}
COUNTED = frozenset({"schedule", *PURCHASES.values()})
"""What is in the sum: the rest is not what an invoice of the same machines shows."""


def baseline_of(platform: Platform) -> str:
    """Baseline of the savings: the fleet's own, else its current machines, else the same machines on demand."""
    there = any(job.spec.existing for job in platform.jobs)
    return platform.rules.baseline or (EXISTING if there else ON_DEMAND)


def savings(fleet: SolvedFleet) -> list[CostSaving]:
    """Every saving worth a line, largest first; below zero where the plan pays more than the baseline does."""
    baseline, savings = baseline_of(fleet.platform), list[CostSaving]()
    setups: dict[str, ExistingSetup] = {}
    if baseline == EXISTING:
        setups = existing_setups(fleet.platform, fleet.facts)
    elif baseline != ON_DEMAND:
        setups = existing_setups(_on_accelerator(fleet, baseline), fleet.facts)
    for chosen in fleet.chosen:
        if chosen.name in setups:
            savings += _against_setup(setups[chosen.name], chosen, fleet)
    for row, taken, chosen in fleet.primary:
        if chosen.name not in setups:
            savings += _against_on_demand(row, taken.option, chosen, fleet)
    worth = [s for s in savings if abs(s.usd_per_month) >= LEAST_USD]
    return sorted(worth, key=lambda s: (-round(s.usd_per_month), s.what))


def _against_on_demand(
    row: Allotment, option: MonthlyOption, chosen: ChosenWorkload, fleet: SolvedFleet
) -> Iterator[CostSaving]:
    """One row of the bill against the same machines on demand; own machines and APIs have no such price."""
    job = chosen.job
    hours = option.busy_hours if job.levels is None else row.hours_per_month  # those of its levels of load
    if row.purchase in {OWNED, API} or option.offer.on_demand_usd_per_hour is None:
        return
    needed = _on_demand_usd(option, chosen, hours, fleet) * row.count
    if not job.ends and hours < HOURS_PER_MONTH - 1:
        around = _on_demand_usd(option, chosen, HOURS_PER_MONTH, fleet) * row.count
        how = f"on for {hours:,.0f} h a month instead of all {HOURS_PER_MONTH:,.0f} h, on demand"
        yield CostSaving(what="schedule", workload=row.workload, usd_per_month=around - needed, how=how)
    if row.purchase != ON_DEMAND:
        saved = needed - row.usd_per_month
        why = _why_dearer(row, fleet.platform.rules) if saved < 0 else ""
        listed = format_usd(option.offer.on_demand_usd_per_hour or 0.0, 2)
        price = f"{format_usd(row.usd_per_hour or 0.0, 2)} an hour instead of {listed}"
        how = f"{row.count:,} x {row.provider} {row.instance} at {price}"
        yield CostSaving(
            what=PURCHASES[row.purchase], workload=row.workload, usd_per_month=saved,
            how=f"{how}; {why}" if why else how, purchase=row.purchase, why=why,
        )  # fmt: skip


def _on_demand_usd(option: MonthlyOption, chosen: ChosenWorkload, hours: float, fleet: SolvedFleet) -> float:
    """USD a month of one of an option's machines on demand, for so many hours.

    Runs on spot have their interruptions in their hours: where the same layout was planned on demand, its hours count.
    """
    job = chosen.job
    if job.ends:
        same = (option.offer.key, option.instances, option.candidate.layout)
        hours = next(
            (
                o.busy_hours for o in chosen.planned.options
                if o.purchase == ON_DEMAND and (o.offer.key, o.instances, o.candidate.layout) == same
            ),
            hours,
        )  # fmt: skip
    starts = job.runs if job.ends else 1.0 if hours >= HOURS_PER_MONTH else job.schedule.starts_per_month
    price = effective(option.offer, ON_DEMAND, hours, fleet.facts, starts_per_month=starts)
    assert price is not None, "only offers with an on-demand price are compared"
    return price.usd_per_month


def _why_dearer(row: Allotment, rules: Policies) -> str:
    """Why the plan pays more than on demand."""
    if row.pool:
        return "its share of machines that other workloads use, too"
    if row.provider in rules.shares:
        return f"bought for the {row.provider} share"
    return "bought for policies of the fleet (shares, quotas, limit of spot, carbon)"


def _against_setup(setup: ExistingSetup, chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterable[CostSaving]:
    """The steps from a set-up to what the fleet takes."""
    for change in setup_changes(setup, chosen, fleet):
        purchase = chosen.option.purchase if change.what == "purchase" else ""
        what = PURCHASES.get(purchase) or KINDS.get(change.what, change.what)
        yield CostSaving(
            what=what, workload=chosen.name, usd_per_month=change.saved_usd, how=change.how, counted=what in COUNTED,
            purchase=purchase,
        )  # fmt: skip


def _on_accelerator(fleet: SolvedFleet, name: str) -> Platform:
    """The platform with each workload set up on an accelerator: as published, on demand, services around the clock.

    A workload that this accelerator cannot carry, and what is bought as own machines or by the token, has no set-up.
    """
    gpu, jobs = fleet.facts.accelerator(name).name, list(fleet.platform.jobs)
    offers = tuple(o for o in fleet.facts.offers if o.accelerator == gpu and o.on_demand_usd_per_hour is not None)
    for number, job in enumerate(jobs):
        chosen, machines = fleet.by_name.get(job.name), tuple[ExistingMachines, ...]()
        if chosen is not None and chosen.option.purchase not in {OWNED, API} and job.workload is not None and offers:
            workload = searched_workload(job, fleet.platform, [ON_DEMAND]).with_limits(
                purchase=(ON_DEMAND,), gpus=(), instances=(), weight_formats=()
            )
            weights = None if job.trains else workload.one_precision or _published_format(workload.model, fleet)
            narrowed = workload if weights is None else workload.with_limits(weight_formats=(weights,))
            try:
                best = plan(narrowed, fleet.facts.with_tables(offers=offers), alone=False).plans[:1]
            except FlopwiseError:
                best = []
            machines = tuple(
                ExistingMachines(
                    instance=c.instance, provider=c.provider, region=c.region, count=c.num_instances, weights=weights,
                    hours=None if job.ends else HOURS_PER_MONTH,
                )
                for c in best
            )  # fmt: skip
        jobs[number] = replace(job, spec=replace(job.spec, existing=machines))
    return replace(fleet.platform, jobs=tuple(jobs))


def _published_format(model: str, fleet: SolvedFleet) -> str:
    """The format that a model's weights were published in."""
    return fleet.facts.model(model).checkpoint_format or "bf16"
