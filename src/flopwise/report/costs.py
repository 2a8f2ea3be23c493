"""What a month costs, of whom it is bought, what is saved, and what would change it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from flopwise.facts.offers import UNDATED
from flopwise.fleet.assessment import Allotment, Assessment, CostSaving, WorkloadResult
from flopwise.report.blocks import Bar, Bars, Block, Table, Text
from flopwise.report.words import between, bought, change_text, dash, digits, hourly, hours, largest, share, usd
from flopwise.units import HOUR_S, format_percent

DRAWN = 30
"""Workloads in a picture; tables have all."""
WORTH, FEW = 0.01, 5
"""Share of the bill from which a saving has a line of its own, and how many have one anyhow."""


def savings_by_kind(assessment: Assessment) -> dict[str, float]:
    """Savings that the plan has and that add up, by what they are, USD a month, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for saving in assessment.savings:
        if saving.taken and saving.counted:
            sums[saving.what] += saving.usd_per_month
    return dict(largest(sums))


def paid_beyond(assessment: Assessment) -> list[CostSaving]:
    """Steps of the plan that cost more than their alternative, dearest first: what policies have it buy."""
    rows = [s for s in assessment.savings if s.taken and s.counted and s.usd_per_month < 0]
    return sorted(rows, key=lambda s: s.usd_per_month)


def carbon_known(assessment: Assessment) -> tuple[float, int, int]:
    """(kg a month of the workloads whose carbon is known, how many those are, of how many)."""
    kg = [w.carbon_kg_per_month for w in assessment.workloads if w.carbon_kg_per_month is not None]
    return sum(kg), len(kg), len(assessment.workloads)


def intervals(assessment: Assessment) -> dict[str, tuple[float, float]]:
    """Lower and upper end of each workload's bill; storage and traffic are known as they are."""
    ends: dict[str, list[float]] = {name: [usd, usd] for name, usd in assessment.usd_per_month.by_workload.items()}
    for row in assessment.allocation:
        own = ends.setdefault(row.workload, [0.0, 0.0])
        own[0] += row.usd_low - row.usd_per_month
        own[1] += row.usd_high - row.usd_per_month
    return {name: (low, high) for name, (low, high) in ends.items()}


def costs(assessment: Assessment) -> Iterator[Block]:
    """The bill by workload with intervals, provider, environment, purchase and part."""
    cost, ends = assessment.usd_per_month, intervals(assessment)
    bars = list(_workload_bars(cost.by_workload, ends))
    yield Bars("By workload, with the interval that holds in 8 of 10 cases", bars)
    for title, values in (
        ("By provider", cost.by_provider), ("By environment", cost.by_environment), ("By purchase", cost.by_purchase),
        ("By part", {"machines": cost.compute, "storage": cost.storage, "traffic": cost.traffic}),
    ):  # fmt: skip
        yield Bars(title, [Bar(bought(n), v, f"{usd(v)} ({share(v, cost.total)})") for n, v in largest(values) if v])
    by_name = {w.name: w for w in assessment.workloads}
    rows = []
    for name, value in largest(cost.by_workload):
        w = by_name.get(name)
        unit, kwh, kg = ("-", "-", "-") if w is None else (
            _unit_cost(w, value), dash(w.energy_kwh_per_month, digits), dash(w.carbon_kg_per_month, digits)
        )  # fmt: skip
        rows.append((name, usd(value), share(value, cost.total), between(*ends[name]), unit, kwh, kg))
    kilograms, known, whole = carbon_known(assessment)
    carbon = f"in all {digits(kilograms)} kg"
    if known < whole:
        carbon = f"known of {known:,} of {whole:,} workloads, {digits(kilograms)} kg in all: a dash is not zero, but "
        carbon += "power that is not known, of devices without a published limit, workstations and APIs"
    yield Table(
        ["workload", ">a month", ">of the bill", "in 8 of 10 cases", "one unit costs", ">kWh", ">kg CO2"], rows,
        "Units: a run, or a million requests of a service at its stated mean traffic. Electricity at the meter, carbon "
        f"by the region's grid; {carbon}.",
    )  # fmt: skip


def _workload_bars(values: Mapping[str, float], ends: Mapping[str, tuple[float, float]]) -> Iterator[Bar]:
    """The dearest, each with its interval; of large fleets the rest as one."""
    ordered = largest(values)
    for name, value in ordered[:DRAWN]:
        yield Bar(name, value, usd(value), *ends[name], between(*ends[name]))
    rest = ordered[DRAWN:]
    if rest:
        low, high = (sum(ends[name][n] for name, _ in rest) for n in (0, 1))
        total = sum(value for _, value in rest)
        yield Bar(f"{len(rest):,} others", total, usd(total), low, high, between(low, high))


def _unit_cost(w: WorkloadResult, value: float) -> str:
    if w.runs_per_month:
        return f"{usd(value / w.runs_per_month)} a run"
    target = w.targets.get("requests_per_s", {})
    rate = target.get("mean") or target.get("value")  # the value is the rate at the peak, which is not there all month
    if not rate:
        return "-"
    return f"{usd(value / (rate * w.hours_per_month * HOUR_S) * 1e6)} a million requests"


def _price_day(a: Allotment) -> str:
    """The day of the price that is paid, and what is to be known of it."""
    note = "" if a.price_date == UNDATED and a.price_note == "undated price" else a.price_note
    return f"{a.price_date or 'the fleet'}" + (f", {note}" if note else "")


def allocation(assessment: Assessment) -> Iterator[Block]:
    """Every machine of the bill, then what has to be secured before."""
    yield Table(
        [
            "workload", "provider", "region", "instance", "GPU", "bought", ">count", ">hours", ">list $/h", ">paid $/h",
            ">a month", "price of",
        ],
        [
            (
                _carries(a), a.provider, a.region, a.instance, a.gpu,
                f"{bought(a.purchase)}, shared" if a.pool else bought(a.purchase), f"{a.count:,}",
                hours(a.hours_per_month), hourly(a.usd_per_hour), hourly(a.usd_per_hour_effective),
                usd(a.usd_per_month), _price_day(a),
            )
            for a in assessment.allocation
        ],
        f"The bill is within {format_percent(assessment.optimality_gap)} of the least that these choices allow. Hours "
        "are of one machine; paid prices hold rework, checkpoints and hours that are paid and not used.",
    )  # fmt: skip
    pools: dict[tuple[str, str, str, str], list[Allotment]] = defaultdict(list)
    for a in assessment.allocation:
        if a.purchase not in {"owned", "api"}:
            pools[a.provider, a.region, a.instance, a.purchase].append(a)
    rows = []
    for (provider, region, instance, purchase), own in sorted(pools.items()):
        gpu_hours = digits(sum(a.hours_per_month * a.num_gpus for a in own)) if all(a.num_gpus for a in own) else "-"
        names, machines = ", ".join(dict.fromkeys(a.workload for a in own)), f"{sum(a.count for a in own):,}"
        rows.append((f"{provider} {instance}", region, bought(purchase), machines, gpu_hours, names))
    if rows:
        yield Table(
            ["to secure before the start", "region", "bought", ">machines", ">GPU-hours a month", "for"], rows,
            "Machines if all workloads run at once: ask for quotas of this size, and for capacity of the largest ones.",
        )  # fmt: skip


def _carries(a: Allotment) -> str:
    """The workload, with the role of machines that are not its main ones."""
    if not a.workload:
        return f"none: {a.role}"
    return a.workload if a.role == "primary" else f"{a.workload} ({a.role})"


def savings(assessment: Assessment) -> Iterator[Block]:
    """By what they are, then each with its amount and against what."""
    sums = savings_by_kind(assessment)
    if sums:
        whole, beyond = sum(sums.values()), -sum(s.usd_per_month for s in paid_beyond(assessment))
        saves = f"saves {usd(whole)} a month" if whole >= 0 else f"costs {usd(-whole)} a month more than its baseline"
        saves += f", with {usd(beyond)} taken off that policies have it pay beyond the least" if beyond else ""
        yield Text(
            f"The plan {saves}. The baseline: each workload on the next larger accelerator that does the work, bought "
            "on demand, services with a schedule on around the clock."
        )
        yield Bars("Savings in this plan", [Bar(name, value, usd(value)) for name, value in sums.items()])
    for title, rows in (
        ("in this plan", [s for s in assessment.savings if s.taken and s.counted]),
        ("still open", [s for s in assessment.savings if not s.taken]),
    ):
        if rows:
            cells = list(_saving_rows(rows, assessment.usd_per_month.total))
            yield Table(["saving", "workload", ">a month", title], cells)
    beside: dict[str, list[CostSaving]] = defaultdict(list)
    for s in assessment.savings:
        if s.taken and not s.counted:
            beside[s.what].append(s)
    if beside:
        yield Table(
            ["not in the sum", ">workloads", ">a month", "for instance"],
            [(what, f"{len({s.workload for s in rows}):,}", usd(sum(s.usd_per_month for s in rows)),
              f"{rows[0].workload}: {rows[0].how}")
             for what, rows in beside.items()],
            "Runs end whoever plans them, and of fewer bits and a smaller accelerator only the larger saving counts.",
        )  # fmt: skip


def _saving_rows(rows: Sequence[CostSaving], bill: float) -> Iterator[tuple[str, ...]]:
    """Largest first, up or down; what is next to nothing of the bill in one line."""
    ordered = sorted(rows, key=lambda s: -abs(s.usd_per_month))
    shown = [s for number, s in enumerate(ordered) if abs(s.usd_per_month) >= WORTH * bill or number < FEW]
    for s in shown:
        yield s.what, s.workload, usd(s.usd_per_month), s.how
    rest = ordered[len(shown) :]
    if rest:
        yield "others", f"{len(rest):,} smaller ones", usd(sum(s.usd_per_month for s in rest)), "in assessment.json"


def policies(assessment: Assessment) -> Iterator[Block]:
    """What each policy costs."""
    if assessment.binding:
        rows = [(re.split(r" costs? \$", b.text, maxsplit=1)[0], usd(b.usd_per_month)) for b in assessment.binding]
        note = "Each figure is the bill less the bill without that policy; together they may cost more."
        yield Table(["policy", ">a month"], rows, note)
    elif assessment.allocation:
        yield Text("No policy makes the bill higher than it would be without it.")


def what_ifs(assessment: Assessment) -> Iterator[Block]:
    """The bill under other assumptions, and over drawn months."""
    if assessment.whatif:
        rows = [
            (w.name, usd(w.usd_per_month) if w.feasible else "no allocation", change_text(w.change_usd),
             w.text.split(" %), ", 1)[-1])
            for w in assessment.whatif
        ]  # fmt: skip
        yield Table(["what if", ">a month", ">change", ""], rows)
    drawn = assessment.scenarios
    if drawn is None:
        return
    points = [("10 % stay below", drawn.p10), ("half stay below", drawn.p50), ("on average", drawn.mean),
              ("90 % stay below", drawn.p90), ("95 % stay below", drawn.p95)]  # fmt: skip
    mark = assessment.budget_per_month
    yield Bars(
        f"The bill over {drawn.runs:,} drawn months of demand, prices and interruptions (seed {drawn.seed})",
        [Bar(name, value, usd(value)) for name, value in points], mark, "" if mark is None else f"budget {usd(mark)}",
    )  # fmt: skip
    if drawn.over_budget is not None:
        yield Text(f"The chance of a month above the budget is {format_percent(drawn.over_budget)}.")
    if drawn.drivers:
        drivers = ", ".join(f"{name} {format_percent(value)}" for name, value in largest(drawn.drivers))
        yield Text(f"What the spread comes from: {drivers}.")
