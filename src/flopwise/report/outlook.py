"""What may go wrong, when what begins, what it will cost then, and what to watch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from flopwise.fleet.assessment import Alert, Assessment, Month, Phase
from flopwise.fleet.schedules import month_after, months_between
from flopwise.report.blocks import Bar, Bars, Block, Heading, Span, Spans, Table, Text
from flopwise.report.words import between, digits, purchase_text, sentence, usd
from flopwise.units import format_bytes, format_items, format_percent, format_seconds

AHEAD = 12
"""Months that a roadmap shows at least."""
SHOWN = 8
"""Rows of the register and of the tasks that a page does not fold."""
LEVELS = ((0.5, "high"), (0.15, "medium"), (0.0, "low"))


def risks(assessment: Assessment) -> Iterator[Block]:
    """The register, worst first."""
    if assessment.risks:
        rows = [
            (f"{r.score:.2f}", level(r.score), f"{100 * r.probability:.0f} %", f"{100 * r.impact:.0f} %", r.kind,
             r.workload or "the fleet", sentence(r.evidence), sentence(r.mitigation))
            for r in sorted(assessment.risks, key=lambda r: -r.score)
        ]  # fmt: skip
        yield Table(
            [">score", "level", ">probability", ">impact", "risk", "workload", "evidence", "what to do"], rows,
            "Probability: of the event within a month (within a year for failing machines and lost providers). "
            "Impact: the share of the workload, the quota or the bill that it affects (all of it for a missed target "
            "or limit). Score: their product. Where no rate is published, the probability is assumed to be 50 %.",
            first=SHOWN,
        )  # fmt: skip


def level(score: float) -> str:
    """A score in a word."""
    return next(word for least, word in LEVELS if score >= least)


def roadmap(assessment: Assessment) -> Iterator[Block]:
    """Phases along their months, what each holds, and the bill of the months to come."""
    if assessment.roadmap:
        yield from _phases(assessment)
    if len(assessment.forecast) < 2:
        return
    budget = assessment.budget_per_month
    yield Bars(
        "The expected bill month by month at the stated growth, with its 80 % interval",
        [
            Bar(
                f"{m.month} ({format_items(m.workloads, 'workload')})",
                m.expected, usd(m.expected), m.low, m.high, between(m.low, m.high),
            )
            for m in assessment.forecast
        ],
        budget, "" if budget is None else f"budget {usd(budget)}",
    )  # fmt: skip
    first, last = assessment.forecast[0], assessment.forecast[-1]
    yield Text(f"As planned, at list prices: {usd(first.usd)} in {first.month}, {usd(last.usd)} in {last.month}.")
    over = past_budget(assessment)
    if over is not None and budget is not None:
        yield Text(
            f"The expected bill passes the budget of {usd(budget)} in {over.month}, at {usd(over.expected)}, on the "
            "machines of today; assess again before then.",
            strong=True,
        )
    yield Text(
        "Each workload starts at its stated load and grows from its own first month, on more of the same machines at "
        "today's prices; a service gets another machine when its own reach their planned utilisation. Machines beyond "
        "today's reservations are bought on demand, also in the simulated months; more reservations lower the bill. "
        "The intervals come from the simulated months."
    )


def _phases(assessment: Assessment) -> Iterator[Block]:
    phases = assessment.roadmap
    begin = min([m for m in (assessment.date[:7], *(phase.start for phase in phases)) if m], default="")
    places = [max(0, months_between(begin, phase.start)) if phase.start else 0 for phase in phases]
    last = max([AHEAD, *(place + 3 for place in places)])
    times, seen, spans, rows = Counter(phase.name for phase in phases), Counter[str](), list[Span](), []
    for phase, place in zip(phases, places, strict=True):
        seen[phase.name] += 1
        of_several = f" ({seen[phase.name]} of {times[phase.name]})" if times[phase.name] > 1 else ""
        name, adds = phase.name + of_several, usd(phase.usd_per_month)
        spans.append(Span(name, float(place), phase.start or begin, f"{adds} a month"))
        until = "-" if phase.usd is None else usd(phase.usd)
        then = phase.text.split("; ")[-1]
        rows.append((name, phase.start or "the start", ", ".join(phase.workloads), adds, then, until))
    if begin:
        ticks = [(float(n), month_after(begin, n)) for n in range(0, last + 1, max(1, -(-last // 6)))]
        yield Spans("Phases", spans, ticks, float(last))
    yield Table(["phase", "from", "workloads", ">adds a month", "then", ">bill until the next"], rows)
    yield from _preparation(phases, [span.name for span in spans])


def _weeks(count: int) -> str:
    """`1 week`, `2 weeks`."""
    return format_items(count, "week")


def _preparation(phases: Sequence[Phase], names: Sequence[str]) -> Iterator[Block]:
    """Tasks by weeks, and the quotas to ask for with their last days."""
    tasks, quotas = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for phase, name in zip(phases, names, strict=True):
        begins, late = phase.begins or "-", f", {_weeks(phase.weeks_late)} ago" if phase.weeks_late else ""
        for n, task in enumerate(phase.tasks):
            span = f"{task.week + 1}" if task.weeks == 1 else f"{task.week + 1}-{task.week + task.weeks}"
            waits = ", ".join(f"{m}." for m, other in enumerate(phase.tasks, 1) if other.name in task.after) or "-"
            head = ("", "") if n else (name, f"{begins}{late}")
            tasks.append((*head, f"{n + 1}. {task.name}", span, waits))
        quotas += [
            (
                q.ask_by or f"{q.weeks} weeks before", q.provider, q.region, q.instance, purchase_text(q.purchase),
                f"{q.count:,}", f"{q.count_in_a_year:,}", f"{q.num_gpus:,} {q.gpu}", f"{q.weeks}",
                ", ".join(q.workloads),
            )
            for q in phase.quotas
        ]  # fmt: skip
    if tasks:
        yield Table(
            ["phase", "begins by", "task", ">weeks", "after"], tasks,
            "Weeks of each phase, counted back from its month. Assumed durations: accounts 2 weeks, a quota 1 (4 for "
            "accelerators of 60 GB and more, or for 16 of them), own machines 12, data 1, a measurement 1, short runs "
            "1, a load test 2, contracts 1.",
            first=SHOWN,
        )  # fmt: skip
    if quotas:
        yield Table(
            ["request by", "provider", "region", "instance", "bought", ">machines", ">in a year", "accelerators",
             ">weeks", "for"],
            sorted(quotas),
            "All workloads of a phase are assumed to run at once. In a year: at the stated growth.",
        )  # fmt: skip


def past_budget(assessment: Assessment) -> Month | None:
    """The first month to come whose expected bill exceeds the budget."""
    budget = assessment.budget_per_month
    return None if budget is None else next((m for m in assessment.forecast if m.expected > budget), None)


COLUMNS = ("spend", "device memory", "latency", "throughput", "requests", "load", "interruptions", "others")
"""What is watched, as metrics begin; latencies begin with their percentile."""
_PLANNED = "Requests and load: the planned utilisation of the replicas."
MEANINGS = {
    "spend": "Spend, with storage and traffic: the upper end of the interval, at least 10 % above the plan; for the "
             "fleet, on its most expensive day of the week. This month: the budget less one such day.",
    "device memory": "Memory: the upper end of its interval, or 5 points above the engine's share.",
    "latency": "Latency: the target.", "throughput": "Throughput: the lower end of its interval.",
    "requests": _PLANNED, "load": _PLANNED,
    "interruptions": "Interruptions: more than chance explains in 19 of 20 months.",
    "others": "Waiting: the requests that the replicas can work off within the target.",
}  # fmt: skip
"""What the thresholds of a column are."""


KINDS = {
    "quantisation": "Quantised weights", "fp16": "Training in fp16", "placement": "Devices, sockets and memory",
    "corpus": "The corpus", "arm": "Arm processors",
}  # fmt: skip


def advice(assessment: Assessment) -> Iterator[Block]:
    """Blocks: advice for setting up workloads, by kind; each text once, with all its workloads."""
    for kind, title in KINDS.items():
        texts: dict[tuple[str, str], list[str]] = {}
        for note in assessment.advice:
            if note.kind == kind:
                texts.setdefault((note.text, note.source), []).append(note.workload)
        if texts:
            yield Heading(title)
            yield Table(
                ["workloads", "advice", "source"],
                [(", ".join(names), sentence(text), source or "-") for (text, source), names in texts.items()],
            )


def monitoring(assessment: Assessment) -> Iterator[Block]:
    """Thresholds: a row for each workload, a column for each kind of metric."""
    cells: dict[str, dict[str, list[str]]] = {}
    for alert in assessment.monitoring:
        column = "latency" if alert.unit == "s" else next((c for c in COLUMNS if alert.metric.startswith(c)), "others")
        cells.setdefault(alert.workload or "the fleet", {}).setdefault(column, []).append(threshold(alert))
    if not cells:
        return
    columns = [c for c in COLUMNS if any(c in own for own in cells.values())]
    yield Text("Alert when a figure is:")
    yield Table(
        ["workload", *columns],
        [(name, *("; ".join(own.get(c, [])) or "-" for c in columns)) for name, own in cells.items()],
        " ".join([*dict.fromkeys(MEANINGS[c] for c in columns), "The JSON gives the reason for each."]),
    )
    kinds = {(a.metric.split()[-1] if a.unit == "s" else a.metric, a.for_s, a.severity, a.action): a for a in
             assessment.monitoring if a.action}  # fmt: skip
    if kinds:
        rows = [(metric, lasts(for_s), severity, action) for metric, for_s, severity, action in kinds]
        yield Table(["metric", ">for", "severity", "what to do"], rows)


def lasts(seconds: float) -> str:
    """The time for which a threshold has to be passed, as text."""
    return f"{seconds / 60:.0f} min" if seconds else "at once"


def threshold(alert: Alert) -> str:
    """The condition of an alert, in the unit that suits it."""
    value, unit = alert.threshold, alert.unit
    if alert.metric.startswith("throughput"):
        return f"below {digits(value)} {unit}"
    if alert.metric.startswith("interruptions"):
        return f"{value:,.0f} or more a month"
    if unit == "s":
        return f"above {format_seconds(value)} ({alert.metric})"
    after = {"spend per run": " a run", "spend per day": " a day", "spend this month": " this month"}
    if unit in {"B", "USD"}:
        return f"above {format_bytes(value) if unit == 'B' else usd(value)}{after.get(alert.metric, '')}"
    shown = format_percent(value, 0) if alert.metric.startswith("load") else digits(value)
    return f"above {shown} {({'1/s': 'requests/s', 'requests': 'waiting'}).get(unit, unit)}".rstrip()
