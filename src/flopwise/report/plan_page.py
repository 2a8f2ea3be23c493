"""A plan as a document: the choice with its figures, what comes next to it, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from flopwise.facts.offers import UNDATED
from flopwise.report.blocks import Bar, Bars, Block, Bullets, Document, Points, Section, Table, Text, Tile, Tiles
from flopwise.report.words import between, dash, digits, hourly, purchase_text, sentence, usd
from flopwise.report.workloads import layout
from flopwise.search.answer import LATENCIES, RUNS, Candidate, Plan
from flopwise.units import format_bytes, format_chance, format_change, format_joules, format_percent, format_seconds

DRAWN = 10
"""Plans whose costs are drawn."""
FIGURES = {
    "step_s": "one step", "tokens_per_s": "tokens/s", "tokens_per_s_per_gpu": "tokens/s of an accelerator",
    "gpu_hours": "accelerator hours", "mfu_frac": "MFU", "ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "whole request",
    "output_tokens_per_s": "output tokens/s", "requests_per_s_capacity": "requests/s it sustains",
    "busy_frac": "share of what it sustains",
    "usd_per_million_tokens": "price of a million output tokens, with their prompts",
}  # fmt: skip


def plan_document(plan: Plan, title: str) -> Document:
    """The page of one plan, called `title`."""
    rows = plan.plans or plan.misses
    sections = [
        Section("The choice" if plan.plans else "The nearest miss", tuple(_choice(plan, rows[0])) if rows else ()),
        Section("What else was considered", tuple(_others(plan, rows))),
        Section("What one change would do", tuple(_changes(plan))),
        Section("Ruled out", tuple(_ruled_out(plan))),
        Section("Assumptions", (Bullets([*dict.fromkeys(plan.assumptions)]),) if plan.assumptions else ()),
    ]
    return Document(
        title=title, subtitle=f"{plan.task} {plan.workload.get('model', '')}: {plan.verdict}",
        sections=[section for section in sections if section.blocks],
        footer=f"{plan.evaluated:,} layouts were considered, {plan.timed:,} of them timed." if plan.evaluated else "",
    )  # fmt: skip


def _choice(plan: Plan, best: Candidate) -> Iterator[Block]:
    runs, cost = plan.task in RUNS, best.ends("cost_usd")
    yield Tiles([
        Tile("a run" if runs else "a month", usd(best.cost_usd), f"80 % interval {between(*cost)}" if cost else ""),
        *_time(best, "one run" if runs else "one request"),
        *_devices(best),
        *([Tile("chance to meet every target", best.likely)] if best.likely else []),
    ])  # fmt: skip
    if plan.cost_scope:
        yield Text(sentence(f"Cost is of {plan.cost_scope}"))
    yield Points(list(_facts(best)))
    rows = [(FIGURES[name], _figure(name, best.figures[name])) for name in FIGURES if best.figures.get(name)]
    rows += [(f"chance to meet {LATENCIES.get(name, name)}", format_chance(p)) for name, p in best.meets.items()]
    if rows:
        yield Table(["figure", ">"], rows, best.note)


def _time(best: Candidate, title: str) -> Iterator[Tile]:
    """The time of a run or a request, with its interval; none of an API."""
    if best.is_hosted:
        return
    ends = best.ends("seconds")
    interval = "" if ends is None else f"80 % interval {format_seconds(ends[0])} to {format_seconds(ends[1])}"
    yield Tile(title, format_seconds(best.seconds), interval)


def _devices(best: Candidate) -> Iterator[Tile]:
    """The accelerators and their memory; none of an API."""
    if best.memory_frac is None:
        return
    yield Tile("accelerators", f"{best.num_gpus:,}", best.gpu)
    size = f"{format_bytes(best.memory_bytes)} of {format_bytes(best.capacity_bytes)}"
    yield Tile("memory of each", format_percent(best.memory_frac, 0), size)


def _facts(best: Candidate) -> Iterator[tuple[str, str]]:
    """Machines, layout, price and evidence of a plan."""
    if best.is_hosted:
        yield "Host.", sentence(f"{best.machines}, paid per token")
    else:
        where = f"{best.machines} in {best.region}, {purchase_text(best.purchase)}"
        yield "Machines.", f"{where}, {hourly(best.usd_per_hour)} an hour in all."
        yield "Layout.", sentence(layout(best.layout))
    dated = "undated" if best.price_date in {"", UNDATED} else f"of {best.price_date}"
    yield "Price.", sentence(f"{dated}, {best.price_source}")
    if best.start_s:
        before = f"{format_seconds(best.start_s)} before the first step, {usd(best.start_usd)} of the cost"
        yield "Start.", f"{before}: machines that boot, image, weights, data, compilation."
    if best.evidence:
        yield "Evidence.", sentence(best.evidence)
    if best.reproduce:
        yield "Alone.", best.reproduce


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return "-"
    if name.startswith("usd_"):
        return usd(value)
    return (
        format_percent(value) if name.endswith("_frac")
        else format_seconds(value) if name.endswith("_s") and not name.endswith("_per_s")
        else digits(value)
    )  # fmt: skip


def _others(plan: Plan, rows: list[Candidate]) -> Iterator[Block]:
    if len(rows) < 2:
        return
    drawn = [
        Bar(
            c.machines if c.is_hosted else f"{c.num_gpus:,} x {c.gpu}, {c.provider}",
            c.cost_usd,
            usd(c.cost_usd),
            *(c.ends("cost_usd") or ()),
        )
        for c in rows[:DRAWN]
    ]
    unit = "run" if plan.task in RUNS else "month"
    yield Bars(f"Cost of a {unit} of the first {len(drawn)}, with its 80 % interval", drawn)
    yield Table(
        ["#", "machines", "region", "bought", "layout", ">time", ">memory", ">an hour", f">a {unit}", ">energy",
         ">chance", "price date"],
        [
            (
                str(c.rank), c.machines if c.is_hosted else f"{c.machines} ({c.num_gpus:,} x {c.gpu})", c.region,
                purchase_text(c.purchase), layout(c.layout), "-" if c.is_hosted else format_seconds(c.seconds),
                dash(c.memory_frac, partial(format_percent, digits=0)), "-" if c.is_hosted else hourly(c.usd_per_hour),
                usd(c.cost_usd),
                dash(c.energy_joules, format_joules), c.likely or "-", c.price_date or "-",
            )
            for c in rows
        ],
        "Chance: the probability that the hardest target is met.",
    )  # fmt: skip


def _changes(plan: Plan) -> Iterator[Block]:
    def ratio(value: float | None) -> str:
        return "-" if value is None else format_change(value)

    if plan.levers:
        rows = [
            (one.change, ratio(one.memory), ratio(one.seconds), ratio(one.cost), "yes" if one.fits else "no", one.note)
            for one in plan.levers
        ]
        yield Table(["change", ">memory", ">time", ">cost", "fits", ""], rows)


def _ruled_out(plan: Plan) -> Iterator[Block]:
    if plan.ruled_out:
        rows = [(f"{row.count:,}", row.unit, sentence(row.reason), row.example) for row in plan.ruled_out]
        yield Table([">number", "of", "why", "for example"], rows)
