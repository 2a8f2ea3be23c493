"""An assessment as a document: which parts it has, in which order, and its first page."""

from __future__ import annotations

from collections.abc import Iterator

from flopwise.facts.offers import UNDATED
from flopwise.fleet.assessment import Assessment, Risk
from flopwise.report import costs, machines, outlook, placement, scaling, workloads
from flopwise.report.blocks import Block, Bullets, Document, Heading, Points, Section, Table, Text, Tile, Tiles
from flopwise.report.changes import changes
from flopwise.report.costs import carbon_known, paid_beyond, savings_by_kind
from flopwise.report.words import (
    bill_interval,
    dash,
    digits,
    enumeration,
    largest,
    planned_text,
    purchase_text,
    runs_on,
    sentence,
    share,
    usd,
)
from flopwise.units import format_count, format_items, format_percent

TOP = 3
"""Workloads and risks that the summary names."""
WORTH = 0.01
"""Share of the bill from which a saving or a policy is worth a sentence."""
YEARS = {"reserved_1y": 1, "reserved_3y": 3}


def document(assessment: Assessment, before: Assessment | None = None) -> Document:
    """The whole report; with `before`, an earlier assessment, also what changed since."""
    sections = [
        Section("Summary", tuple(summary(assessment))),
        Section("Since the last assessment", () if before is None else tuple(changes(before, assessment))),
        Section("Workloads", tuple(workloads.workloads(assessment))),
        Section("Recommendations", tuple(workloads.recommendations(assessment))),
        Section("What runs where", tuple(placement.provider_choices(assessment))),
        Section("Performance expected", tuple(workloads.expected_figures(assessment))),
        Section("Monthly cost", tuple(costs.costs(assessment))),
        Section("Allocation over providers", tuple(costs.allocation(assessment))),
        Section("Autoscaling", tuple(scaling.scaling(assessment))),
        Section("Own machines", tuple(machines.own_machines(assessment))),
        Section("Hosted APIs", tuple(hosted_apis(assessment))),
        Section("If you port", tuple(placement.if_you_port(assessment))),
        Section("Savings", tuple(costs.savings(assessment))),
        Section("What the policies cost", tuple(costs.policies(assessment))),
        Section("If things change", tuple(costs.what_ifs(assessment))),
        Section("Risks", tuple(outlook.risks(assessment))),
        Section("Roadmap", tuple(outlook.roadmap(assessment))),
        Section("Monitoring", tuple(outlook.monitoring(assessment))),
        Section("Setting it up", tuple(outlook.advice(assessment)), folded=True),
        Section("Model sizes", (*machines.sizes(assessment), *machines.largest_models(assessment)), folded=True),
        Section("Accelerators compared", tuple(machines.gpus(assessment)), folded=True),
        Section("Instances considered", tuple(machines.instances(assessment)), folded=True),
        Section("Assumptions and sources", tuple(_appendix(assessment)), folded=True),
    ]
    stated = {a.price_date for a in assessment.allocation if a.price_date}
    dates = sorted(stated - {UNDATED})
    prices = "" if not dates else f", prices of {dates[0]}" + (f" to {dates[-1]}" if dates[-1] != dates[0] else "")
    prices += ", some undated" if UNDATED in stated and dates else ", prices undated" if UNDATED in stated else ""
    count = len(assessment.workloads)
    return Document(
        title=f"GPU strategy: {assessment.name}",
        subtitle=f"{assessment.date}: {format_items(count, 'workload')}{prices}",
        sections=[section for section in sections if section.blocks],
    )


TERMS = (
    "TTFT, TPOT: time from a request's arrival to its first output token, and per output token after it.",
    "p95: 95 % of the requests are at or below this value.",
    "MFU: share of the datasheet's rate that goes into the model's own operations.",
    "dp, tp, pp, ep: data-, tensor-, pipeline- and expert-parallel degree.",
    "ZeRO 1, 2, 3: optimizer states, gradients too, weights too are sharded over the data-parallel ranks.",
    "80 % interval: eight in ten measurements of the same kind lie inside it.",
)
"""What the abbreviations of the report mean."""


def _appendix(assessment: Assessment) -> Iterator[Block]:
    if assessment.price_notes:
        yield Heading("Prices")
        yield Bullets(assessment.price_notes)
    if assessment.assumptions:
        yield Heading("Assumptions")
        yield Bullets(assessment.assumptions)
    yield Heading("Terms")
    yield Bullets(TERMS)
    yield Heading("Provenance")
    yield Text(
        "Step times, memory and latencies come from models of kernels, messages and engines; their intervals are the "
        "errors measured against published runs. Prices carry the day and the source that they were read from. "
        "The plan of each workload leads from a figure back to its formulas and facts."
    )


# The first page: the figures that matter, and what they mean for whoever decides


def summary(assessment: Assessment) -> Iterator[Block]:
    """Tiles, one sentence, and what to know, to decide and to watch."""
    yield Tiles(list(_tiles(assessment)))
    yield Text(assessment.verdict, strong=True)
    yield from (Text(sentence(text)) for text in assessment.warnings)
    yield Points(list(_points(assessment)))


def _tiles(assessment: Assessment) -> Iterator[Tile]:
    cost, drawn, budget = assessment.usd_per_month, assessment.scenarios, assessment.budget_per_month
    ends = bill_interval(cost)
    if cost.expected is None:
        yield Tile("a month", usd(cost.total), ends)
    else:
        yield Tile("expected bill a month", usd(cost.expected), f"{ends}; {planned_text(assessment)}")
    if budget is not None:
        odds = None if drawn is None else drawn.over_budget
        chance = "" if odds is None else f"; {format_percent(odds)} chance of exceeding it"
        used = format_percent((cost.total if cost.expected is None else cost.expected) / budget)
        yield Tile("of the budget", used, f"of {usd(budget)} a month{chance}")
    primary = [a for a in assessment.allocation if a.role == "primary" and a.purchase != "api"]
    yield Tile(
        "accelerators", f"{sum(a.num_gpus for a in primary):,}",
        f"on {sum(a.count for a in primary):,} machines of {len({a.provider for a in primary}):,} providers, at peak",
    )  # fmt: skip
    sums = savings_by_kind(assessment)
    if sums:
        named = enumeration([f"{name} {usd(value)}" for name, value in sums.items()], 2)
        beyond = -sum(s.usd_per_month for s in paid_beyond(assessment))
        less = f"; {usd(beyond)} spent on policies is deducted" if beyond else ""
        against = "on demand" if assessment.baseline == "on_demand" else assessment.baseline
        yield Tile("saved a month", usd(sum(sums.values())), f"{named}, against {against}{less}")
    kg, known, whole = carbon_known(assessment)
    if known:
        part = "" if known == whole else f", of {known:,} of {whole:,} workloads; the others' power is not known"
        yield Tile("carbon", f"{digits(kg)} kg", f"CO2 equivalent a month{part}")


def _points(assessment: Assessment) -> Iterator[tuple[str, str]]:
    cost, by_name = assessment.usd_per_month, {w.name: w for w in assessment.workloads}
    parts = []
    for name, value in largest(cost.by_workload)[:TOP]:
        where = f" on {runs_on(assessment, by_name[name])}" if name in by_name else ""
        parts.append(f"{name} {usd(value)} ({share(value, cost.total)}){where}")
    if parts:
        yield "Where the money goes.", f"{'; '.join(parts)}."
    ways = largest(cost.by_purchase)
    if ways and cost.total:
        parts = [f"{purchase_text(n)} {share(v, cost.total)}" for n, v in ways]
        yield "How it is bought.", sentence(enumeration(parts, 6))
    yield from _decisions(assessment)
    worst: dict[str, Risk] = {}
    for risk in sorted(assessment.risks, key=lambda r: -r.score):
        worst.setdefault(risk.kind, risk)
    for risk in [*worst.values()][:TOP]:
        evidence = f"{risk.workload}: {risk.evidence.rstrip('.')}." if risk.workload else sentence(risk.evidence)
        yield f"Risk: {risk.kind}.", f"{evidence} {sentence(risk.mitigation)}"
    if len(assessment.forecast) >= 2:
        last, over = assessment.forecast[-1], outlook.past_budget(assessment)
        text = f"with the stated growth {usd(last.expected)} is expected in {last.month}"
        yield "Outlook.", sentence(text + ("" if over is None else f"; it passes the budget in {over.month}"))


def _decisions(assessment: Assessment) -> Iterator[tuple[str, str]]:
    """Commitments to sign, and what policies cost."""
    for purchase, years in YEARS.items():
        rows = [a for a in assessment.allocation if a.purchase == purchase and a.role == "primary"]
        if rows:
            named = enumeration([f"{a.count:,} x {a.provider} {a.instance}" for a in rows])
            whole = sum(a.usd_per_month for a in rows) * 12 * years
            term = "a year" if years == 1 else f"{years} years"
            yield "Commitments.", f"{named} for {term}, {usd(whole)} in all{_commitment_savings(assessment, purchase)}."
    least = WORTH * assessment.usd_per_month.total
    costly = [b for b in assessment.binding if b.usd_per_month >= least][:2]
    if costly:
        yield "What the policies cost.", sentence("; ".join(b.text.rstrip(".") for b in costly))


def _commitment_savings(assessment: Assessment, purchase: str) -> str:
    """The saving of one term's commitments against on demand, and a warning of those that cost more."""
    mine = [s for s in assessment.savings if s.purchase == purchase]
    saved, text = sum(s.usd_per_month for s in mine), ""
    if saved > 0:
        text = f"; they save {usd(saved)} a month against on demand"
    elif saved < 0:
        text = f"; they cost {usd(-saved)} a month more than on demand"
    dear = sorted((s for s in mine if s.usd_per_month < 0), key=lambda s: s.usd_per_month)
    if not dear:
        return text
    named = enumeration(
        [f"that for {s.workload} costs {usd(-s.usd_per_month)} a month more ({s.why})" for s in dear], 2
    )
    return f"{text}. Check first: {named}"


def hosted_apis(assessment: Assessment) -> Iterator[Block]:
    """Blocks: the cost of APIs for the same requests, and the volume from which machines cost no more."""
    if not assessment.hosted:
        return
    yield Table(
        [
            "workload", "API", ">tokens in", ">tokens out", ">a month", "", "the cheapest machines", ">a month",
            ">break-even", "", "price date",
        ],
        [
            (
                r["workload"], f"{r['provider']} {r['model']}", format_count(r["input_tokens_per_month"]),
                format_count(r["output_tokens_per_month"]), usd(r["usd_per_month"]), "taken" if r["taken"] else "",
                r["machines"] or "-", usd(r["machines_usd_per_month"]),
                dash(r["break_even_tokens"], lambda x: f"{format_count(x)} out"),
                r["why"], r["price_date"],
            )
            for r in assessment.hosted
        ],
        "Tokens of a month. Break-even: output tokens a month, prompts with them, from which one machine that is on "
        "all month costs no more. Latency, rate limits and precision of an API are not in its price list.",
    )  # fmt: skip
