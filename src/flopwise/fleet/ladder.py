"""From the machines that a workload has to those that the fleet takes for it, one change after the other.

What is easiest to change comes first: hours, the number of machines, the way to buy them, the format of the weights,
then the machines themselves. Each step is a set-up of its own, estimated and priced as a whole, so that the steps add
up to the difference.
"""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.errors import FlopwiseError
from flopwise.fleet.bill import BOUGHT, SolvedFleet
from flopwise.fleet.existing import ExistingPart, ExistingSetup, existing_workload, machines_usd
from flopwise.fleet.model import ChosenWorkload, MonthlyOption, paid_all_month
from flopwise.fleet.option import monthly_option
from flopwise.search.plan import plan
from flopwise.search.workload import ANYWHERE
from flopwise.units import format_items, format_number, format_usd
from flopwise.values import dataclass, replace

LEAST_USD = 0.005
"""Changes of less are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupChange:
    """One change: its monthly saving (below zero: it costs more), and the bill after it; USD."""

    what: str  # schedule, count, purchase, format, machine, backup, storage and traffic
    saved_usd: float
    usd_after: float
    how: str


def setup_changes(setup: ExistingSetup, chosen: ChosenWorkload, fleet: SolvedFleet) -> list[SetupChange]:
    """The changes from a set-up to the allocated machines of the workload; their sum is the difference of the bills."""
    changes, usd = list[SetupChange](), setup.usd
    for what, after, how in (*_machine_steps(setup, chosen, fleet), *_steps_beside(setup, chosen, fleet)):
        if abs(usd - after) >= LEAST_USD:
            changes.append(SetupChange(what=what, saved_usd=usd - after, usd_after=after, how=how))
            usd = after
    return changes


def _machine_steps(
    setup: ExistingSetup, chosen: ChosenWorkload, fleet: SolvedFleet
) -> Iterator[tuple[str, float, str]]:
    """(what, USD a month after it, how) of each step on the way to the machines that the fleet takes."""
    usd, beside = setup.usd, setup.volumes_usd
    scheduled = sum(_needed_usd(part, setup, fleet) for part in setup.parts) + beside
    if setup.fits and scheduled < usd - LEAST_USD:
        part = setup.main
        yield (
            "schedule",
            scheduled,
            f"paid for {format_number(part.work_hours, 4)} h a month instead of {format_number(part.paid_hours, 4)}",
        )
        usd = scheduled
    if len(setup.parts) == 1:
        for what, option, how in _steps_on_same_type(setup, chosen, fleet):
            if what == "count" or option.usd + beside < usd - LEAST_USD:  # else it pays on other machines only
                usd = option.usd + beside
                yield what, usd, how
    elif setup.fits:
        yield from _surplus_step(setup, fleet)
        for option, how in _one_kind_step(setup, chosen, fleet):
            if option.usd + beside < usd - LEAST_USD:
                yield "count", option.usd + beside, how
    rows = [row for row, _, owner in fleet.primary if owner is chosen]
    machines = " and ".join(
        f"{row.count:,} x {row.provider} {row.instance} ({row.gpu}), {BOUGHT[row.purchase]}"
        + (", on machines shared with other workloads" if row.pool else "")
        for row in rows
    )
    yield "machine", sum(row.usd_per_month for row in rows) + beside, machines


def _surplus_step(setup: ExistingSetup, fleet: SolvedFleet) -> Iterator[tuple[str, float, str]]:
    """The step to as many machines to work on as are requested, the cheapest of several kinds."""
    wanted = setup.job.spec.machines
    surplus = 0 if wanted is None else sum(part.count for part in setup.parts) - wanted.count
    usd, spare = setup.volumes_usd, list[str]()
    for each, part in sorted(((_needed_usd(p, setup, fleet) / p.count, p) for p in setup.parts), key=lambda e: -e[0]):
        unused = max(0, min(surplus, part.count))
        surplus, usd = surplus - unused, usd + (part.count - unused) * each
        spare += [f"{unused:,} x {part.offer.instance}"] if unused else []
    if wanted is not None and spare:
        yield "count", usd, f"{format_items(wanted.count, 'machine')} requested: without {' and '.join(spare)}"


def _one_kind_step(
    setup: ExistingSetup, chosen: ChosenWorkload, fleet: SolvedFleet
) -> Iterator[tuple[MonthlyOption, str]]:
    """The step to the cheapest of several kinds that carries all traffic by itself, on no more machines than it has."""
    if setup.job.workload is None or setup.job.spec.backup:
        return
    alone = list[tuple[MonthlyOption, ExistingPart]]()
    for part in setup.parts:
        weights = None if part.candidate is None else part.candidate.layout.get("weights")
        option = _cheapest_on_type(part, part.written.purchase, weights, setup, chosen, fleet)
        if option is not None and option.instances <= part.count:
            alone.append((option, part))
    if alone:
        option, part = min(alone, key=lambda pair: pair[0].usd)
        now = " and ".join(f"{other.count:,} x {other.offer.instance}" for other in setup.parts)
        yield option, f"{option.instances:,} x {part.offer.instance} instead of {now}"


def _steps_beside(setup: ExistingSetup, chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterator[tuple[str, float, str]]:
    """The steps to a backup, and to storage and traffic with other providers."""
    mine = [row for row in fleet.rows if row.workload == chosen.name]
    usd = sum(row.usd_per_month for row in mine)
    ready = [f"{row.count:,} x {row.provider} {row.instance}" for row in mine if row.role == "backup"]
    yield "backup", usd + setup.volumes_usd, f"{' and '.join(ready)} stand ready in a second provider"
    volumes = sum(fleet.volumes.get(chosen.planned.index, (0.0, 0.0)))
    yield "storage and traffic", usd + volumes, f"with {chosen.option.provider}"


def _needed_usd(part: ExistingPart, setup: ExistingSetup, fleet: SolvedFleet) -> float:
    """A month of a part that is paid only while it is needed."""
    if paid_all_month(part.written.purchase) or part.work_hours >= part.paid_hours:
        return part.usd
    return machines_usd(part.written, part.offer, part.work_hours, setup.job, fleet.facts)


def _steps_on_same_type(
    setup: ExistingSetup, chosen: ChosenWorkload, fleet: SolvedFleet
) -> Iterator[tuple[str, MonthlyOption, str]]:
    """The steps that keep to the instance type: as many as it takes, then bought and in the format as is proposed."""
    (part,), target = setup.parts, chosen.option.candidate
    name, layout = part.offer.instance, {} if part.candidate is None else part.candidate.layout
    purchase, weights = part.written.purchase, layout.get("weights")
    option = _cheapest_on_type(part, purchase, weights, setup, chosen, fleet)
    if option is not None and option.instances != part.count:
        yield "count", option, f"{option.instances:,} x {name} instead of {part.count:,}"
    if target.purchase != purchase and option is not None:
        bought = _cheapest_on_type(part, target.purchase, weights, setup, chosen, fleet)
        if bought is not None and bought.usd < option.usd:
            way = f"{BOUGHT[target.purchase]} at {format_usd(bought.usd_per_hour or 0.0, 2)} an hour"
            yield "purchase", bought, f"{way} instead of {BOUGHT[purchase]}"
            option, purchase = bought, target.purchase
    wanted = target.layout.get("weights")
    if wanted != weights and wanted is not None:
        smaller = _cheapest_on_type(part, purchase, str(wanted), setup, chosen, fleet)
        if smaller is not None:
            yield "format", smaller, f"{wanted} weights instead of {weights} on {smaller}; check quality"


def _cheapest_on_type(
    part: ExistingPart, purchase: str, weights: str | None, setup: ExistingSetup, chosen: ChosenWorkload,
    fleet: SolvedFleet,
) -> MonthlyOption | None:  # fmt: skip
    """The cheapest way on the instance type of a part, in any number, in a format; None: nothing holds the targets."""
    job, offer, facts = setup.job, part.offer, fleet.facts
    if job.workload is None:
        same = (o for o in chosen.planned.options if o.offer.key == offer.key and o.purchase == purchase)
        return next(same, None)
    if offer.price_usd_per_hour(purchase) is None or (purchase == "spot" and not job.interruptible):
        return None
    machines = replace(part.written, purchase=purchase, weights=weights, hours=None)
    workload = existing_workload(machines, job, fleet.platform)
    workload = workload.with_limits(**ANYWHERE)
    try:
        answer = plan(workload, facts.with_tables(offers=(offer,)), alone=False)
    except FlopwiseError:
        return None
    options = [monthly_option(chosen.planned.index, job, c, offer, facts) for c in answer.plans]
    return min(options, key=lambda option: option.usd, default=None)
