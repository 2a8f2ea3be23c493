"""An assessment as a document: which figures stand where, and the sentences between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flopwise.report.blocks import Bar, Bars, Block, Bullets, Document, Section, Table, Text, Tile, Tiles
from flopwise.report.changes import changes
from flopwise.report.money import between, rate, usd
from flopwise.report.own import hosted, own_machines
from flopwise.report.parts import months, shown
from flopwise.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment, WorkloadResult

TOP = 3
"""Workloads, savings and risks that the summary names."""


def bought_better(found: Assessment) -> float:
    """Savings that are in the plan, USD a month; a smaller machine than one might have taken is none of the sum."""
    return sum(s.usd_per_month for s in found.savings if s.taken and s.what != "right-sizing")


def document(found: Assessment, before: Assessment | None = None) -> Document:
    """The whole report; with `before`, an earlier assessment, also what changed since."""
    sections = [
        Section("Summary", tuple(_summary(found))),
        Section("Since the last assessment", () if before is None else tuple(changes(before, found))),
        Section("Workloads", tuple(_workloads(found))),
        Section("Recommendations", tuple(_recommendations(found))),
        Section("Monthly cost", tuple(_costs(found))),
        Section("Allocation over providers", tuple(_allocation(found))),
        Section("Own machines", tuple(own_machines(found))),
        Section("Hosted APIs", tuple(hosted(found))),
        Section("Savings", tuple(_savings(found))),
        Section("What the policies cost", tuple(_policies(found))),
        Section("If things change", tuple(_changes(found))),
        Section("Risks", tuple(_risks(found))),
        Section("Roadmap", tuple(months(found))),
        Section("Monitoring", tuple(_monitoring(found))),
        Section("Model sizes", tuple(shown(found.sizes))),
        Section("Accelerators compared", tuple(shown(found.gpus))),
        Section("Instances considered", tuple(shown(found.instances))),
        Section("Assumptions and sources", tuple(_appendix(found))),
    ]
    return Document(
        title=f"GPU strategy: {found.name}",
        subtitle=f"{found.date}: {len(found.workloads):,} workloads, prices and estimates of that day",
        sections=[section for section in sections if section.blocks],
    )


def _summary(found: Assessment) -> Iterator[Block]:
    cost = found.usd_per_month
    count = sum(a.count for a in found.allocation if a.role == "primary")
    budget = found.budget_per_month
    kg = sum(w.carbon_kg_per_month or 0.0 for w in found.workloads)
    tiles = [
        Tile("a month", usd(cost.total), f"{between(cost.low, cost.high)} in 8 of 10 cases"),
        Tile("instances", f"{count:,}", f"with {len({a.provider for a in found.allocation}):,} providers"),
        Tile("savings in it", usd(bought_better(found)), "against on demand all day"),
        Tile("carbon", f"{kg:,.0f} kg", "CO2 a month"),
    ]
    if budget is not None:
        tiles.insert(1, Tile("of the budget", format_percent(cost.total / budget), f"{usd(budget)} a month"))
    yield Tiles(tiles)
    yield Text(_headline(found), strong=True)
    yield Bullets(list(_points(found)))


def _headline(found: Assessment) -> str:
    cost = found.usd_per_month
    split = ", ".join(f"{p} {format_percent(v / cost.total)}" for p, v in _largest(cost.by_provider) if cost.total)
    failed = [w.name for w in found.workloads if not w.feasible]
    runs = (
        f"All {len(found.workloads):,} workloads run"
        if not failed
        else f"Nothing runs {', '.join(failed)}; the rest runs"
    )
    return f"{runs} for {usd(cost.total)} a month: {split}." if split else f"{runs} for {usd(cost.total)} a month."


def _points(found: Assessment) -> Iterator[str]:
    cost = found.usd_per_month
    for name, value in _largest(cost.by_workload)[:TOP]:
        best = next((w.best for w in found.workloads if w.name == name), {})
        where = f" on {_machines(best)}" if best else ""
        yield f"{name} takes {usd(value)} a month ({format_percent(value / cost.total) if cost.total else '-'}){where}."
    for saving in sorted(found.savings, key=lambda s: -s.usd_per_month)[:TOP]:
        done = "is in this plan" if saving.taken else "is open"
        yield f"{saving.what} of {saving.workload}: {usd(saving.usd_per_month)} a month {done}; {saving.how}."
    for risk in sorted(found.risks, key=lambda r: -r.score)[:TOP]:
        yield f"Risk ({risk.kind}, {risk.workload or 'the fleet'}): {risk.evidence}. {risk.mitigation}."
    for binding in found.binding[:TOP]:
        if binding.usd_per_month > 0:
            yield f"{binding.text}."


def _largest(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(values.items(), key=lambda item: -item[1])


def _machines(best: Mapping[str, Any]) -> str:
    gpus, instances = best.get("num_gpus"), best.get("num_instances")
    if best.get("purchase") == "api":
        return f"the API of {best.get('provider')}, {best.get('instance')}"
    held = f"{gpus:,} x {best.get('gpu', '?')}" if gpus else str(best.get("gpu", "?"))
    return f"{held} ({instances:,} x {best.get('provider')} {best.get('instance')})" if instances else held


def _workloads(found: Assessment) -> Iterator[Block]:
    yield Table(
        [
            "workload", "kind", "environment", "model", ">parameters", ">memory", ">FLOP/byte", "bound by",
            ">hours a month",
        ],
        [
            (
                w.name, w.kind, w.environment, w.model or "-", _count(w.parameters),
                "-" if w.memory_bytes is None else format_bytes(w.memory_bytes),
                "-" if w.intensity is None else f"{w.intensity:,.3g}", w.pattern or "-", f"{w.hours_per_month:,.0f}",
            )
            for w in found.workloads
        ],
        "Memory and intensity (operations for each byte of device memory moved) are of the recommended way to run it.",
    )  # fmt: skip


def _count(value: float | None) -> str:
    if value is None:
        return "-"
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:,.3g} {letter}"
    return f"{value:,.0f}"


def _recommendations(found: Assessment) -> Iterator[Block]:
    rows = []
    for w in found.workloads:
        if not w.feasible:
            rows.append((w.name, "nothing runs it", "", "; ".join(w.reasons), ""))
            continue
        rows.append((w.name, _machines(w.best), _layout(w), _performance(w), w.why_not_cheaper or "it is the cheapest"))
    yield Table(["workload", "machines", "laid out", "performance", "why not the cheaper one"], rows)


def _layout(w: WorkloadResult) -> str:
    layout = w.best.get("layout") or {}
    named = [f"{key} {value}" for key, value in layout.items() if value not in (None, "", 0, 1, False)]
    return ", ".join(named) or "-"


def _performance(w: WorkloadResult) -> str:
    """Figures with their intervals, as far as there are any."""
    said = []
    for name, words, form in (
        ("seconds", "takes", format_seconds), ("ttft_s", "TTFT", format_seconds), ("tpot_s", "TPOT", format_seconds),
        ("latency_s", "latency", format_seconds), ("requests_per_s", "requests/s", "{:,.3g}".format),
        ("tokens_per_s", "tokens/s", "{:,.0f}".format),
    ):  # fmt: skip
        value = w.best.get(name)
        if value is None:
            continue
        low, high = w.best.get(f"{name}_low"), w.best.get(f"{name}_high")
        ends = f" ({form(low)} to {form(high)})" if low is not None and high is not None else ""
        said.append(f"{words} {form(value)}{ends}")
    return ", ".join(said) or "-"


def _costs(found: Assessment) -> Iterator[Block]:
    cost = found.usd_per_month
    ends: dict[str, tuple[float, float]] = {}
    for a in found.allocation:  # storage and traffic are known as they are
        fixed = cost.by_workload.get(a.workload, 0.0) - sum(
            b.usd_per_month for b in found.allocation if b.workload == a.workload
        )
        low, high = ends.get(a.workload, (fixed, fixed))
        ends[a.workload] = low + a.usd_low, high + a.usd_high
    yield Bars(
        "By workload, with the interval that holds in 8 of 10 cases",
        [Bar(n, v, usd(v), *ends.get(n, (None, None))) for n, v in _largest(cost.by_workload)],
    )
    for title, values in (
        ("By provider", cost.by_provider), ("By environment", cost.by_environment), ("By purchase", cost.by_purchase),
    ):  # fmt: skip
        share = {n: f"{usd(v)} ({format_percent(v / cost.total)})" if cost.total else usd(v) for n, v in values.items()}
        yield Bars(title, [Bar(name.replace("_", " "), v, share[name]) for name, v in _largest(values)])
    yield Table(
        ["what", ">a month"],
        [
            ("compute", usd(cost.compute)), ("storage", usd(cost.storage)), ("traffic", usd(cost.traffic)),
            ("total", usd(cost.total)),
        ],
    )  # fmt: skip


def _allocation(found: Assessment) -> Iterator[Block]:
    yield Table(
        [
            "workload", "provider", "region", "instance", "GPU", "bought", ">count", ">hours", ">list $/h", ">paid $/h",
            ">a month", "interval", "price of", "role",
        ],
        [
            (
                a.workload, a.provider, a.region, a.instance, a.gpu, a.purchase.replace("_", " "), f"{a.count:,}",
                f"{a.hours_per_month:,.0f}", rate(a.usd_per_hour), rate(a.usd_per_hour_effective),
                usd(a.usd_per_month), between(a.usd_low, a.usd_high), a.price_date,
                f"{a.role}, pool {a.pool}" if a.pool else a.role,
            )
            for a in found.allocation
        ],
        f"The bill is within {format_percent(found.optimality_gap)} of the least that these choices allow. Paid prices "
        "hold rework, checkpoints and hours that are paid and not used.",
    )  # fmt: skip


def _savings(found: Assessment) -> Iterator[Block]:
    if found.savings:
        rows = [
            (s.what, s.workload, usd(s.usd_per_month), "in this plan" if s.taken else "open", s.how)
            for s in sorted(found.savings, key=lambda s: -s.usd_per_month)
        ]
        yield Table(["what", "workload", ">a month", "", "how"], rows)


def _policies(found: Assessment) -> Iterator[Block]:
    if found.binding:
        yield Table(
            ["policy", ">a month", ""], [(b.constraint, usd(b.usd_per_month), b.text) for b in found.binding],
            "Each figure is the bill less the bill without that one policy.",
        )  # fmt: skip
    elif found.allocation:
        yield Text("No policy makes the bill higher than it would be without it.")


def _changes(found: Assessment) -> Iterator[Block]:
    if found.whatif:
        rows = [
            (w.name, usd(w.usd_per_month) if w.feasible else "nothing holds the policies", usd(w.change_usd), w.text)
            for w in found.whatif
        ]
        yield Table(["what if", ">a month", ">change", ""], rows)
    drawn = found.scenarios
    if drawn is not None:
        points = [("10 % stay below", drawn.p10), ("half stay below", drawn.p50), ("on average", drawn.mean),
                  ("90 % stay below", drawn.p90), ("95 % stay below", drawn.p95)]  # fmt: skip
        mark = found.budget_per_month
        yield Bars(
            f"The bill over {drawn.runs:,} draws of demand, prices and interruptions (seed {drawn.seed})",
            [Bar(name, value, usd(value)) for name, value in points],
            mark,
            "" if mark is None else f"budget {usd(mark)}",
        )
        if drawn.over_budget is not None:
            yield Text(f"The chance of a month above the budget is {format_percent(drawn.over_budget)}.")
        if drawn.drivers:
            said = ", ".join(f"{name} {format_percent(value)}" for name, value in _largest(drawn.drivers))
            yield Text(f"What the spread comes from: {said}.")


def _risks(found: Assessment) -> Iterator[Block]:
    if found.risks:
        rows = [
            (f"{r.score:.2f}", r.kind, r.workload or "the fleet", r.evidence, r.mitigation)
            for r in sorted(found.risks, key=lambda r: -r.score)
        ]
        yield Table([">score", "risk", "workload", "evidence", "what to do"], rows)


def _monitoring(found: Assessment) -> Iterator[Block]:
    if found.monitoring:
        rows = [(m.metric, m.workload or "the fleet", f"{m.threshold:,.4g} {m.unit}", m.why) for m in found.monitoring]
        yield Table(["watch", "workload", ">alert beyond", "why"], rows)


def _appendix(found: Assessment) -> Iterator[Block]:
    if found.price_notes:
        yield Text("Prices", strong=True)
        yield Bullets(found.price_notes)
    if found.assumptions:
        yield Text("Assumptions", strong=True)
        yield Bullets(found.assumptions)
    yield Text(
        "Step times, memory and latencies come from models of kernels, messages and engines; their intervals are the "
        "errors measured against published runs. Prices carry the day and the source that they were read from."
    )
