"""What may go wrong, when what begins, what it will cost then, and what to watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flopwise.fleet.schedules import month_after, months_between
from flopwise.report.blocks import Bar, Bars, Block, Span, Spans, Table, Text
from flopwise.report.words import between, digits, sentence, usd
from flopwise.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Alert, Assessment, Month

AHEAD = 12
"""Months that a roadmap shows at least."""
LEVELS = ((0.5, "high"), (0.15, "medium"), (0.0, "low"))


def risks(found: Assessment) -> Iterator[Block]:
    """The register, worst first."""
    if found.risks:
        rows = [
            (f"{r.score:.2f}", level(r.score), r.kind, r.workload or "the fleet", sentence(r.evidence),
             sentence(r.mitigation))
            for r in sorted(found.risks, key=lambda r: -r.score)
        ]  # fmt: skip
        yield Table(
            [">score", "", "risk", "workload", "evidence", "what to do"], rows,
            "Scores are computed: the probability of the event (within a month; within a year for machines that fail) "
            "times the share of the workload, of the quota or of the bill that it hits.",
        )  # fmt: skip


def level(score: float) -> str:
    """A score in a word."""
    return next(word for least, word in LEVELS if score >= least)


def roadmap(found: Assessment) -> Iterator[Block]:
    """Phases along their months, what each holds, and the bill of the months to come."""
    if found.roadmap:
        yield from _phases(found)
    yield from _months(found)


def _phases(found: Assessment) -> Iterator[Block]:
    starts = [phase.start for phase in found.roadmap if phase.start]
    begin = min([m for m in (found.date[:7], *starts) if m], default="")
    places = [max(0, months_between(begin, phase.start)) if phase.start else 0 for phase in found.roadmap]
    last = max([AHEAD, *(place + 3 for place in places)])
    every = max(1, -(-last // 6))
    names = [phase.name for phase in found.roadmap]
    repeated, seen = Counter(names), Counter[str]()
    rows = []
    for phase, place in zip(found.roadmap, places, strict=True):
        seen[phase.name] += 1
        name = (
            f"{phase.name} ({seen[phase.name]} of {repeated[phase.name]})" if repeated[phase.name] > 1 else phase.name
        )
        rows.append((name, phase, place))
    if begin:
        yield Spans(
            "Phases",
            [Span(n, float(p), phase.start or begin, f"{usd(phase.usd_per_month)} a month") for n, phase, p in rows],
            [(float(n), month_after(begin, n)) for n in range(0, last + 1, every)],
            float(last),
        )
    yield Table(
        ["phase", "from", "workloads", ">adds a month", "then"],
        [
            (n, p.start or "the start", ", ".join(p.workloads), usd(p.usd_per_month), p.text.split("; ")[-1])
            for n, p, _ in rows
        ],
    )


def _months(found: Assessment) -> Iterator[Block]:
    if len(found.forecast) < 2:
        return
    budget = found.budget_per_month
    yield Bars(
        "The bill month by month, with the growth that the fleet states",
        [
            Bar(f"{m.month} ({m.workloads:,} workloads)", m.usd, usd(m.usd), m.low, m.high, between(m.low, m.high))
            for m in found.forecast
        ],
        budget,
        "" if budget is None else f"budget {usd(budget)}",
    )
    over = past_budget(found)
    if over is not None and budget is not None:
        yield Text(
            f"The bill passes the budget of {usd(budget)} in {over.month}, at {usd(over.usd)}, on the machines of "
            "today; assess again before then.",
            strong=True,
        )
    yield Text(
        "Each workload begins at the load that the fleet states and grows from its own first month, on more of the "
        "same machines, at the prices of today; services get a further machine when theirs are as busy as they may be."
    )


def past_budget(found: Assessment) -> Month | None:
    """The first month to come whose bill exceeds the budget."""
    budget = found.budget_per_month
    return None if budget is None else next((m for m in found.forecast if m.usd > budget), None)


COLUMNS = ("spend", "device memory", "latency", "throughput", "requests", "interruptions", "others")
"""What is watched, as metrics begin; latencies begin with their percentile."""


def monitoring(found: Assessment) -> Iterator[Block]:
    """Thresholds: a row for each workload, a column for each kind of metric."""
    cells: dict[str, dict[str, list[str]]] = {}
    for alert in found.monitoring:
        column = "latency" if alert.unit == "s" else next((c for c in COLUMNS if alert.metric.startswith(c)), "others")
        cells.setdefault(alert.workload or "the fleet", {}).setdefault(column, []).append(threshold(alert))
    if not cells:
        return
    columns = [c for c in COLUMNS if any(c in own for own in cells.values())]
    yield Text("Alert when a figure is:")
    yield Table(
        ["workload", *columns],
        [(name, *("; ".join(own.get(c, [])) or "-" for c in columns)) for name, own in cells.items()],
        "Spend: the upper end of the interval, at least a tenth above the plan, for the fleet that of its dearest day "
        "of the week; this month: what leaves one more such day to the budget. Memory: the upper end of its interval, "
        "or 5 points above what the engine sets aside. Latency: the target. Throughput: the lower end of its interval. "
        "Requests: what keeps the replicas from being too busy. Interruptions: more than chance explains in 19 months "
        "of 20. The JSON has the reason for each.",
    )


def threshold(alert: Alert) -> str:
    """When an alert is due, in the unit that suits it."""
    value = alert.threshold
    if alert.metric.startswith("throughput"):
        return f"below {digits(value)} {alert.unit}"
    if alert.metric.startswith("interruptions"):
        return f"{value:,.0f} or more a month"
    after = {"spend per run": " a run", "spend per day": " a day", "spend this month": " this month"}.get(
        alert.metric, ""
    )
    if alert.unit == "s":
        after = f" ({alert.metric})"
    match alert.unit:
        case "B":
            shown = format_bytes(value)
        case "USD":
            shown = usd(value)
        case "s":
            shown = format_seconds(value)
        case "1/s":
            shown = f"{digits(value)} requests/s"
        case _:
            shown = f"{digits(value)} {alert.unit}".strip()
    return f"above {shown}{after}"
