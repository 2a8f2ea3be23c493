"""What the allocation saves, and what more could be saved, each against one plain alternative.

The savings of a workload are steps of one ladder, so that they add up: machines that stand on all month (schedule), the
cheapest larger accelerator on demand (right-sizing), the cheapest way on demand (spot, reserved), the bill. A step goes
up where a policy of the fleet has the plan buy what is dearer than that cheapest way: it is below zero, and counts.
Quantisation is against the cheapest way in 16 bits on demand, and takes the place of right-sizing where it saves more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.fleet.assessment import Allotment, CostSaving
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import ChosenWorkload, MonthlyOption
from flopwise.fleet.offers import OwnOffer
from flopwise.fleet.option import monthly_option
from flopwise.fleet.spec import API, OWNED, Policies
from flopwise.search.plan import plan
from flopwise.units import HOURS_PER_MONTH

LEAST_USD = 1.0
"""Savings below are not worth a line."""
QUANTISED, SEARCHED = 30, 6
"""Workloads, the dearest, whose formats are weighed, and instance types, the cheapest, that each is weighed on."""
LARGER = 1.05
"""A device has more memory than another from here on: the same size is reported a little differently."""
ALTERNATIVES = {"quantisation", "right-sizing"}
FEWER_BITS = ("fp8", "awq")
SIXTEEN_BITS = ("bf16", "fp16", "fp32")


def savings(fleet: SolvedFleet) -> list[CostSaving]:
    """Every saving worth a line, largest first; below zero where the policies have the plan pay more."""
    facts, found = fleet.facts, list[CostSaving]()
    for row, taken, chosen in fleet.primary:
        found += _schedule_savings(row, taken.option, chosen)
        found += _purchase_savings(row, taken.option, chosen, fleet.platform.rules)
    known: dict[tuple[int, int], list[CostSaving]] = {}
    dearest = {id(c) for c in sorted(fleet.chosen, key=lambda c: -c.option.usd)[:QUANTISED]}
    for chosen in fleet.chosen:
        if any(taken.option.purchase == OWNED for taken in chosen.parts):
            continue  # own machines are paid for: what would be rented instead stands beside them
        found += _size_savings(chosen, facts)
        candidate, searched = chosen.option.candidate, chosen.planned.plan
        if id(chosen) in dearest and searched is not None and "weights" in candidate.layout:
            key = (id(searched), id(candidate))
            if key not in known:
                known[key] = list(_format_savings(chosen, facts))
            found += [msgspec.structs.replace(s, workload=chosen.name) for s in known[key]]
    worth = [s for s in found if abs(s.usd_per_month) >= LEAST_USD]
    rows, resized = list[CostSaving](), set[str]()
    for saving in sorted(worth, key=lambda s: (-round(s.usd_per_month), s.what)):
        counted = saving.counted and saving.taken
        if saving.taken and saving.what in ALTERNATIVES:  # answers to one question: only the larger is in the sum
            counted = counted and saving.workload not in resized
            resized.add(saving.workload)
        rows.append(msgspec.structs.replace(saving, counted=counted))
    return rows


def _purchase_savings(
    row: Allotment, option: MonthlyOption, chosen: ChosenWorkload, rules: Policies
) -> Iterable[CostSaving]:
    """How one row of the bill is bought, against the cheapest option on demand."""
    plain = cheapest_on_demand(chosen)
    if row.purchase == OWNED or plain is None:
        return  # own machines are there: what they save is set against clouds in a part of its own
    otherwise = plain.usd * row.count / option.instances
    than = f"the month on demand would cost ${otherwise:,.0f}, at best on {plain}"
    if row.purchase == "on_demand":
        what, how = "on demand", f"{option}; {than}"
    elif row.purchase == "spot":
        what, how = "spot", f"${row.usd_per_hour_effective:,.2f} an hour of work on spot; {than}"
    elif row.purchase == API:
        what, how = "API", f"paid by the token; {than}"
    else:
        years = {"reserved_1y": "one year", "reserved_3y": "three years"}[row.purchase]
        what, how = "reserved", f"committed for {years} at ${row.usd_per_hour:,.2f} an hour; {than}"
    saved, why = otherwise - row.usd_per_month, ""
    if saved < 0 and row.pool:
        why = "its part of machines that others use, too"
    elif saved < 0 and row.provider in rules.shares:
        why = f"bought for the {row.provider} share"
    elif saved < 0:
        why = "bought for policies of the fleet (shares, quotas, limit of spot, carbon)"
    yield CostSaving(
        what=what, workload=row.workload, usd_per_month=saved, how=f"{how}; {why}" if why else how, taken=True,
        purchase=row.purchase, why=why,
    )  # fmt: skip


def _schedule_savings(row: Allotment, option: MonthlyOption, chosen: ChosenWorkload) -> Iterable[CostSaving]:
    """Hours that machines are off; those of runs, which end anyhow, are shown and not counted."""
    rate, job = option.offer.on_demand_usd_per_hour, chosen.job
    busy = option.busy_hours if job.levels is None else row.hours_per_month
    otherwise = min(HOURS_PER_MONTH, job.hours_per_month) if job.ends else HOURS_PER_MONTH
    if rate is None or row.purchase.startswith("reserved") or busy >= otherwise - 1:
        return
    what = f"on for the {busy:,.1f} h of its runs" if job.ends else f"on for {busy:,.0f} h a month"
    whole = f"the {otherwise:,.0f} h of its environment" if job.ends else f"all {otherwise:,.0f} h"
    yield CostSaving(
        what="schedule", workload=row.workload, usd_per_month=rate * row.count * (otherwise - busy),
        how=f"{what} instead of {whole}, on demand", taken=True, counted=not job.ends,
    )  # fmt: skip


def cheapest_on_demand(chosen: ChosenWorkload) -> MonthlyOption | None:
    """The cheapest way that is bought on demand; None where the fleet allows none."""
    return min((w for w in chosen.planned.options if w.purchase == "on_demand"), key=lambda w: w.usd, default=None)


def _on_demand_usd(chosen: ChosenWorkload, plain: MonthlyOption) -> float:
    """What the month would cost in the cheapest way on demand: the step from which each part's purchase goes on."""
    return sum(plain.usd * taken.count / taken.option.instances for taken in chosen.parts)


def _size_savings(chosen: ChosenWorkload, facts: Facts) -> Iterable[CostSaving]:
    """Against the cheapest way on an accelerator with more memory than the smallest that does: the next best choice."""
    option, plain = chosen.option, cheapest_on_demand(chosen)
    if chosen.figures is None or plain is None:
        return
    base = min((option, plain), key=lambda w: w.candidate.capacity_bytes)
    larger = [
        w for w in chosen.planned.options
        if w.purchase == "on_demand" and w.candidate.capacity_bytes > LARGER * base.candidate.capacity_bytes
        and facts.accelerators[w.candidate.gpu].kind != "cpu"
    ]  # fmt: skip
    if not larger:
        return
    best = min(larger, key=lambda w: w.usd)
    yield CostSaving(
        what="right-sizing", workload=chosen.name, taken=True,
        usd_per_month=best.usd - _on_demand_usd(chosen, plain),
        how=f"{base.candidate.gpu} does it; the next best with more memory is {best} at ${best.usd:,.0f} a "
        "month on demand",
    )  # fmt: skip


def _format_savings(chosen: ChosenWorkload, facts: Facts) -> Iterable[CostSaving]:
    """The chosen format against 16 bits on whatever suits those best, and fewer bits on the same instance type."""
    option = chosen.option
    current = _weights(option)
    plain = cheapest_on_demand(chosen)
    if current not in SIXTEEN_BITS:
        if plain is None:
            return
        on_demand = [w for w in chosen.planned.options if w.purchase == "on_demand"]
        offers = {option.instance: option.offer}  # and the few that are cheapest on demand are worth a search
        for other in on_demand:
            if len(offers) <= SEARCHED:
                offers.setdefault(other.instance, other.offer)
        ways = [w for w in on_demand if _weights(w) in SIXTEEN_BITS]
        ways += _options_in("bf16", chosen, list(offers.values()), "on_demand", facts)
        if ways:
            best = min(ways, key=lambda w: w.usd)
            how = f"{current} weights; in 16 bits the month on demand would cost ${best.usd:,.0f}, at best on {best}"
            saved = best.usd - _on_demand_usd(chosen, plain)
            yield CostSaving(what="quantisation", workload="", usd_per_month=saved, how=how, taken=True)
        return
    for name in FEWER_BITS:
        fewer = min((w.usd for w in _options_in(name, chosen, [option.offer], option.purchase, facts)), default=None)
        if fewer is not None and fewer < option.usd:
            how = f"{facts.weight_format(name).name} weights instead of {current} on {option.instance}; check quality"
            yield CostSaving(what="quantisation", workload="", usd_per_month=option.usd - fewer, how=how, taken=False)
            return


def _weights(option: MonthlyOption) -> str:
    return str(option.candidate.layout.get("weights"))


def _options_in(
    weights: str, chosen: ChosenWorkload, offers: Sequence[Offer], purchase: str, facts: Facts
) -> list[MonthlyOption]:
    """The workload in a weight format on some machines; none where they do not hold it."""
    item, workload = chosen.planned, chosen.planned.workload
    assert workload is not None
    own = [o.pool.most * o.count for o in offers if isinstance(o, OwnOffer) and not item.job.splittable]
    narrowed = workload.with_limits(weight_formats=(weights,), purchase=(purchase,))
    narrowed = replace(narrowed, max_gpus=min([workload.max_gpus, *own]))
    try:
        answer = plan(narrowed, facts.with_tables(offers=tuple(offers)), alone=False)
    except FlopwiseError:
        return []
    sold = {o.key: o for o in offers}
    return [
        monthly_option(item.index, item.job, c, sold[c.provider, c.instance, c.region], facts) for c in answer.plans
    ]
