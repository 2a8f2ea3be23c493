"""What a month costs, of whom it is bought, what is saved, and what would change it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from flopwise.facts.offers import beside_date, retirement_note
from flopwise.fleet.assessment import Allotment, Assessment, Binding, CostSaving, shares_text
from flopwise.report.blocks import Bar, Bars, Block, Table, Text
from flopwise.report.words import between, change_text, dash, digits, hourly, hours, largest, purchase_text, share, usd
from flopwise.units import format_cost, format_percent

DRAWN = 30
"""Workloads in a picture; tables have all."""
WORTH, FEW = 0.01, 5
"""Share of the bill from which a saving has a line of its own, and how many have one anyhow."""


def savings_by_kind(assessment: Assessment) -> dict[str, float]:
    """Savings that are in the sum, by what they are, USD a month, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for saving in assessment.savings:
        if saving.counted:
            sums[saving.what] += saving.usd_per_month
    return dict(largest(sums))


def paid_beyond(assessment: Assessment) -> list[CostSaving]:
    """Steps of the plan that cost more than their alternative, dearest first: what policies have it buy."""
    rows = [s for s in assessment.savings if s.counted and s.usd_per_month < 0]
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
    yield Bars("By workload, with its 80 % interval", bars)
    for title, values in (
        ("By provider", cost.by_provider), ("By environment", cost.by_environment), ("By purchase", cost.by_purchase),
        ("By part", {"machines": cost.compute, "storage": cost.storage, "traffic": cost.traffic}),
    ):  # fmt: skip
        yield Bars(
            title, [Bar(purchase_text(n), v, f"{usd(v)} ({share(v, cost.total)})") for n, v in largest(values) if v]
        )
    by_name = {w.name: w for w in assessment.workloads}
    rows = []
    for name, value in largest(cost.by_workload):
        w = by_name.get(name)
        kwh, kg = ("-", "-") if w is None else (
            dash(w.energy_kwh_per_month, digits), dash(w.carbon_kg_per_month, digits)
        )  # fmt: skip
        rows.append((name, usd(value), share(value, cost.total), between(*ends[name]), kwh, kg))
    kilograms, known, whole = carbon_known(assessment)
    carbon = f"in all {digits(kilograms)} kg"
    if known < whole:
        carbon = f"known for {known:,} of {whole:,} workloads, {digits(kilograms)} kg in all; a dash means that the "
        carbon += "power is not known (devices without a published limit, workstations, APIs)"
    yield Table(
        ["workload", ">a month", ">of the bill", "80 % interval", ">kWh", ">kg CO2"], rows,
        f"Electricity at the meter, carbon by the region's grid; {carbon}.",
    )  # fmt: skip
    yield from _unit_costs(assessment)


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


UNITS = {
    "run": "a run", "epoch": "an epoch", "request": "a request", "million_requests": "a million requests",
    "million_tokens": "a million tokens", "million_input_tokens": "a million tokens in",
    "million_output_tokens": "a million tokens out", "session": "a session", "hour": "an hour",
}  # fmt: skip


def _unit_costs(assessment: Assessment) -> Iterator[Block]:
    """The cost of one of each unit, for each workload."""
    some = [unit for unit in UNITS if any(unit in w.unit_usd for w in assessment.workloads)]
    if all("million_requests" in w.unit_usd for w in assessment.workloads if "request" in w.unit_usd):
        some = [unit for unit in some if unit != "request"]  # the same figure, of millionths of a dollar
    if some:
        yield Table(
            ["workload", *(f">{UNITS[unit]}" for unit in some)],
            [(w.name, *(_small_usd(w.unit_usd.get(unit)) for unit in some)) for w in assessment.workloads],
            "Each figure is the workload's monthly bill over its work: the columns are views of one bill, not parts of "
            "it. Work of a service is its stated mean traffic; hours are those of machines that are on, or of runs.",
        )  # fmt: skip


def _small_usd(value: float | None) -> str:
    """An amount of which a cent is much."""
    return usd(value) if value is None or value >= 1 else format_cost(value) or ""


def _price_day(a: Allotment) -> str:
    """The day of the price that is paid, and what is to be known of it."""
    note = beside_date(a.price_note) if a.price_date else a.price_note
    return ", ".join(filter(None, [a.price_date or "the fleet", note, retirement_note(a.retires_on)]))


def allocation(assessment: Assessment) -> Iterator[Block]:
    """Every machine of the bill, then what has to be secured before."""
    yield Table(
        [
            "workload", "provider", "region", "instance", "GPU", "bought", ">count", ">hours", ">list price/h",
            ">paid/h",
            ">a month", "price date",
        ],
        [
            (
                _carries(a), a.provider, a.region, a.instance, a.gpu,
                _purchase_text(a), f"{a.count:,}",
                hours(a.hours_per_month), hourly(a.usd_per_hour), hourly(a.usd_per_hour_effective),
                usd(a.usd_per_month), _price_day(a),
            )
            for a in assessment.allocation
        ],
        f"The bill is {assessment.optimality}. Hours are per machine; paid prices include rework, checkpoints "
        "and hours that are paid for but not used.",
    )  # fmt: skip
    pools: dict[tuple[str, str, str, str], list[Allotment]] = defaultdict(list)
    for a in assessment.allocation:
        if a.purchase not in {"owned", "api"}:
            pools[a.provider, a.region, a.instance, a.purchase].append(a)
    rows = []
    for (provider, region, instance, purchase), own in sorted(pools.items()):
        gpu_hours = digits(sum(a.hours_per_month * a.num_gpus for a in own)) if all(a.num_gpus for a in own) else "-"
        names, machines = ", ".join(dict.fromkeys(a.workload for a in own)), f"{sum(a.count for a in own):,}"
        rows.append((f"{provider} {instance}", region, purchase_text(purchase), machines, gpu_hours, names))
    if rows:
        yield Table(
            ["capacity to secure", "region", "bought", ">machines", ">GPU-hours a month", "for"], rows,
            "The machines that are needed if all workloads run at once: request quotas of this size, and capacity for "
            "the largest.",
        )  # fmt: skip


def _purchase_text(a: Allotment) -> str:
    """How, and who may use them."""
    who = f", dedicated to {a.pool}" if a.dedicated else ", shared" if a.pool else ""
    return f"{purchase_text(a.purchase)}{who}"


def _carries(a: Allotment) -> str:
    """The workload, with the role of machines that are not its main ones."""
    if not a.workload:
        return f"none: {a.role}"
    return a.workload if a.role == "primary" else f"{a.workload} ({a.role})"


def baseline_text(assessment: Assessment) -> str:
    """Baseline of the savings, in words."""
    if assessment.baseline == "existing":
        return "what runs today, where that is stated, else the same machines on demand"
    if assessment.baseline == "on_demand":
        return "the same machines on demand, with services around the clock and runs for as long as they take"
    return f"{assessment.baseline}, each workload as published, on demand, services around the clock"


def savings(assessment: Assessment) -> Iterator[Block]:
    """By what they are, then each with its amount; against another baseline also what is not in the sum."""
    sums = savings_by_kind(assessment)
    if sums:
        whole, beyond = sum(sums.values()), -sum(s.usd_per_month for s in paid_beyond(assessment))
        saves = f"saves {usd(whole)} a month" if whole >= 0 else f"costs {usd(-whole)} a month more than its baseline"
        saves += f", after {usd(beyond)} that the policies cost" if beyond else ""
        yield Text(f"The plan {saves}. The baseline: {baseline_text(assessment)}.")
        yield Bars("Savings in this plan", [Bar(name, value, usd(value)) for name, value in sums.items()])
    for title, note, rows in (
        ("in this plan", "", [s for s in assessment.savings if s.counted]),
        (
            "not in the sum",
            "Other machines, other counts and fewer bits change the work itself, so they do not count as savings.",
            [s for s in assessment.savings if not s.counted],
        ),
    ):
        if rows:
            cells = list(_saving_rows(rows, assessment.usd_per_month.total))
            yield Table(["saving", "workload", ">a month", title], cells, note)


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
    """Blocks: the cost of each policy."""
    if assessment.binding:
        rows = [
            (re.split(r" costs? (?=\S*\d)", b.text, maxsplit=1)[0], usd(b.usd_per_month),
             "; ".join([*(move.text for move in b.moves[:2]), *_shares_without(b)]) or "-")
            for b in assessment.binding
        ]  # fmt: skip
        note = "Each figure is the bill minus the bill without that policy; together they may cost more."
        yield Table(["policy", ">a month", "without it"], rows, note)
    elif assessment.allocation:
        yield Text("No policy makes the bill higher than it would be without it.")
    if steps := [step for b in assessment.binding for step in b.steps]:
        yield Table(
            ["binding share, moved to", ">a month", ">change"],
            [
                (f"{step.provider}: at {step.bound} {100 * step.share:g} %",
                 "none found without waste" if step.usd_per_month is None else usd(step.usd_per_month),
                 change_text(step.change_usd))
                for step in steps
            ],
            "With the other policies in force. Waste: machines that cost more than others of the same provider that "
            "do the same work with what the fleet uses anyway, and workloads moved although no share requires it. On "
            "demand in place of spot is not waste, as it is not interrupted.",
        )  # fmt: skip


def _shares_without(binding: Binding) -> Iterator[str]:
    """The bill's shares without those of policies."""
    if binding.shares_without:
        yield f"the bill is then {shares_text(binding.shares_without)}"


def what_ifs(assessment: Assessment) -> Iterator[Block]:
    """The bill under other assumptions, and over drawn months."""
    if assessment.whatif:
        rows = [
            (w.name, usd(w.usd_per_month) if w.feasible else "no allocation", change_text(w.change_usd),
             w.text.split(" %), ", 1)[-1])
            for w in assessment.whatif
        ]  # fmt: skip
        yield Table(["what if", ">a month", ">change", "how"], rows)
    drawn = assessment.scenarios
    if drawn is None:
        return
    points = [("10 % stay below", drawn.p10), ("half stay below", drawn.p50), ("on average", drawn.mean),
              ("90 % stay below", drawn.p90), ("95 % stay below", drawn.p95)]  # fmt: skip
    mark = assessment.budget_per_month
    yield Bars(
        f"The bill over {drawn.runs:,} simulated months of demand, prices and interruptions (seed {drawn.seed})",
        [Bar(name, value, usd(value)) for name, value in points], mark, "" if mark is None else f"budget {usd(mark)}",
    )  # fmt: skip
    if drawn.over_budget is not None:
        yield Text(f"The chance of a month above the budget is {format_percent(drawn.over_budget)}.")
    if drawn.drivers:
        drivers = ", ".join(f"{name} {format_percent(value)}" for name, value in largest(drawn.drivers))
        yield Text(f"What the spread comes from: {drivers}.")
