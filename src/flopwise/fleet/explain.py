"""Where the figures of an assessment come from: the bill by its machines, their prices, hours and what is drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flopwise.fleet.assessment import Allotment, Assessment
from flopwise.origin import COUNTED, total
from flopwise.provenance import Figure, fact, setting, term
from flopwise.search.answer import Plan

BILL = "bill of a month"
_SAME = 1e-6
"""Relative difference up to which two ways to a figure agree."""


def assessment_figure(assessment: Assessment, plans: Mapping[str, Plan]) -> Figure:
    """The tree behind an assessment: bill, scenarios, savings, what-ifs and risks.

    `plans`: of each workload, which hold the sources of prices.
    """
    cost = assessment.usd_per_month
    rows = [_allotment(one, plans) for one in assessment.allocation]
    besides = [
        term(f"{name} of a month", usd, "USD", f"{COUNTED}: bytes of each workload x the provider's price")
        for name, usd in (("storage", cost.storage), ("traffic", cost.traffic)) if usd
    ]  # fmt: skip
    bill = total(BILL, "USD", [*rows, *besides])
    if abs(cost.total - float(bill.value or 0.0)) > _SAME * abs(cost.total):
        formula = f"{COUNTED}: these parts, and commitments that nothing uses"
        bill = term(BILL, cost.total, "USD", formula, *rows, *besides)
    drawn = list(_drawn(assessment, bill))
    figures = [bill, *drawn, *_budget(assessment, drawn[0] if drawn else bill), *_changes(assessment, bill)]
    return Figure("assessment", assessment.name, "", "the figures below", "", tuple(figures))


def allotment_name(one: Allotment) -> str:
    """The name of an allocation row in the tree."""
    bought = one.purchase.replace("_", " ")
    return f"{one.workload or 'nothing'}: {one.count} x {one.provider} {one.instance}, {one.region}, {bought}"


def _allotment(one: Allotment, plans: Mapping[str, Plan]) -> Figure:
    """The bill of one set-up."""
    name = allotment_name(one)
    if one.usd_per_hour is None:
        return term(name, one.usd_per_month, "USD", f"{COUNTED}: tokens of a month x the price of each")
    place = one.provider, one.instance, one.region, one.purchase
    offers = plans[one.workload].plans if one.workload in plans else []
    source = next((c.price_source for c in offers if (c.provider, c.instance, c.region, c.purchase) == place), "")
    what = f"price of {one.provider} {one.instance}, {one.purchase.replace('_', ' ')}"
    price = (
        fact(
            what, one.usd_per_hour, "USD/h", source=source or "data/instances.csv", date=one.price_date,
            note=one.price_note,
        )
        if one.price_date else setting(what, one.usd_per_hour, "USD/h")
    )  # fmt: skip
    count, hours = Figure("machines", one.count, kind="chosen"), setting("hours of a month", one.hours_per_month, "h")
    formula = f"{count.name} x {price.name} x {hours.name}"
    if abs(one.usd_per_month - one.count * one.usd_per_hour * one.hours_per_month) > _SAME * one.usd_per_month:
        formula = f"{COUNTED}: {formula}, with rework after interruptions, discounts and what a commitment costs idle"
    return term(name, one.usd_per_month, "USD", formula, count, price, hours)


def _drawn(assessment: Assessment, bill: Figure) -> Iterator[Figure]:
    """Figures of the bill over drawn months."""
    cost, drawn = assessment.usd_per_month, assessment.scenarios
    if drawn is None or cost.expected is None:
        return
    inputs = bill, setting("drawn months", drawn.runs), setting("seed", drawn.seed)
    what = "drawn months of demand, prices and interruptions"
    yield term("expected bill", cost.expected, "USD", f"{COUNTED}: mean of {what}", *inputs)
    for name, value, share in (("low", cost.low, "10th"), ("high", cost.high, "90th")):
        yield term(f"expected bill, {name}", value, "USD", f"{COUNTED}: {share} percentile of {what}", *inputs)


def _budget(assessment: Assessment, bill: Figure) -> Iterator[Figure]:
    """The share of the budget that the bill takes."""
    if assessment.budget_per_month:
        budget = setting("budget of a month", assessment.budget_per_month, "USD")
        share = float(bill.value or 0.0) / assessment.budget_per_month
        yield term("share of the budget", share, "frac", f"{bill.name} / {budget.name}", bill, budget)


def _changes(assessment: Assessment, bill: Figure) -> Iterator[Figure]:
    """Savings, what would be if, and risks."""
    for saving in assessment.savings:
        name = f"saving by {saving.what}, {saving.workload}"
        yield term(name, saving.usd_per_month, "USD", f"{COUNTED}: {saving.how}", bill)
    for other in assessment.whatif:
        if other.usd_per_month is not None:
            formula = f"{COUNTED}: the fleet planned again; {other.text}"
            then = term(f"bill if {other.name}", other.usd_per_month, "USD", formula, bill)
            yield then
            if other.change_usd is not None:
                formula, name = f"{then.name} - {bill.name}", f"change if {other.name}"
                yield term(name, other.change_usd, "USD", formula, then, bill)
    for risk in assessment.risks:
        what = f"{risk.kind}, {risk.workload or 'the fleet'}: {risk.evidence}"
        yield term(f"risk of {what}", risk.probability, "frac", f"{COUNTED}: {risk.evidence}")
        formula = f"{COUNTED}: share of the workload, the quota or the bill that it affects; {risk.evidence}"
        yield term(f"impact of {what}", risk.impact, "frac", formula)
