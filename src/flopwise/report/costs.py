"""What a month costs, of whom it is bought, what is saved, and what would change it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from flopwise.report.blocks import Bar, Bars, Block, Table, Text
from flopwise.report.words import between, bought, digits, hourly, hours, largest, share, signed, usd
from flopwise.units import HOUR_S, format_percent

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Allotment, Assessment, Binding, CostSaving, WorkloadResult

DRAWN = 30
"""Workloads in a picture; tables have all."""
WORTH, FEW = 0.01, 5
"""Share of the bill from which a saving has a line of its own, and how many have one anyhow."""


def saved(found: Assessment) -> dict[str, float]:
    """Savings that the plan has and that add up, by what they are, USD a month, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for saving in found.savings:
        if saving.taken and saving.counted:
            sums[saving.what] += saving.usd_per_month
    return dict(largest(sums))


def intervals(found: Assessment) -> dict[str, tuple[float, float]]:
    """Lower and upper end of each workload's bill; storage and traffic are known as they are."""
    ends: dict[str, list[float]] = {name: [usd, usd] for name, usd in found.usd_per_month.by_workload.items()}
    for row in found.allocation:
        own = ends.setdefault(row.workload, [0.0, 0.0])
        own[0] += row.usd_low - row.usd_per_month
        own[1] += row.usd_high - row.usd_per_month
    return {name: (low, high) for name, (low, high) in ends.items()}


def costs(found: Assessment) -> Iterator[Block]:
    """The bill by workload with intervals, provider, environment, purchase and part."""
    cost, ends = found.usd_per_month, intervals(found)
    yield Bars(
        "By workload, with the interval that holds in 8 of 10 cases",
        list(_workload_bars(cost.by_workload, ends)),
    )
    for title, values in (
        ("By provider", cost.by_provider), ("By environment", cost.by_environment), ("By purchase", cost.by_purchase),
        ("By part", {"machines": cost.compute, "storage": cost.storage, "traffic": cost.traffic}),
    ):  # fmt: skip
        bars = [Bar(bought(n), v, f"{usd(v)} ({share(v, cost.total)})") for n, v in largest(values) if v]
        yield Bars(title, bars)
    held = {w.name: w for w in found.workloads}
    yield Table(
        ["workload", ">a month", ">of the bill", "in 8 of 10 cases", "one unit costs", ">kWh", ">kg CO2"],
        [
            (
                name, usd(value), share(value, cost.total), between(*ends[name]), _unit(held.get(name), value),
                *_footprint(held.get(name)),
            )
            for name, value in largest(cost.by_workload)
        ],
        "Units: a run, or a million requests of a service at its stated mean traffic. Electricity at the meter, carbon "
        f"by the region's grid; {_told(found)}.",
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


def _unit(w: WorkloadResult | None, value: float) -> str:
    if w is None:
        return "-"
    if w.runs_per_month:
        return f"{usd(value / w.runs_per_month)} a run"
    asked = w.targets.get("requests_per_s", {})
    rate = asked.get("mean") or asked.get("value")  # the value is the rate at the peak, which is not there all month
    if not rate:
        return "-"
    return f"{usd(value / (rate * w.hours_per_month * HOUR_S) * 1e6)} a million requests"


def carbon_known(found: Assessment) -> tuple[float, int, int]:
    """(kg a month of the workloads whose carbon is known, how many those are, of how many)."""
    kg = [w.carbon_kg_per_month for w in found.workloads if w.carbon_kg_per_month is not None]
    return sum(kg), len(kg), len(found.workloads)


def _told(found: Assessment) -> str:
    kg, known, whole = carbon_known(found)
    if known == whole:
        return f"in all {digits(kg)} kg"
    return (
        f"known of {known:,} of {whole:,} workloads, {digits(kg)} kg in all: a dash is not zero, but power that is not "
        "known, of devices without a published limit, workstations and APIs"
    )


def _footprint(w: WorkloadResult | None) -> tuple[str, str]:
    return ("-", "-") if w is None else (_digits(w.energy_kwh_per_month), _digits(w.carbon_kg_per_month))


def _digits(value: float | None) -> str:
    return "-" if value is None else digits(value)


def allocation(found: Assessment) -> Iterator[Block]:
    """Every machine of the bill, then what has to be secured before."""
    yield Table(
        [
            "workload", "provider", "region", "instance", "GPU", "bought", ">count", ">hours", ">list $/h", ">paid $/h",
            ">a month", "price of",
        ],
        [
            (
                _whose(a), a.provider, a.region, a.instance, a.gpu,
                f"{bought(a.purchase)}, shared" if a.pool else bought(a.purchase), f"{a.count:,}",
                hours(a.hours_per_month), hourly(a.usd_per_hour), hourly(a.usd_per_hour_effective),
                usd(a.usd_per_month), a.price_date or "the fleet",
            )
            for a in found.allocation
        ],
        f"The bill is within {format_percent(found.optimality_gap)} of the least that these choices allow. Hours are "
        "of one machine; paid prices hold rework, checkpoints and hours that are paid and not used.",
    )  # fmt: skip
    secured = _secured(found)
    if not secured:
        return
    yield Table(
        ["to secure before the start", "region", "bought", ">machines", ">GPU-hours a month", "for"],
        [
            (f"{key[0]} {key[2]}", key[1], bought(key[3]), f"{sum(a.count for a in rows):,}", _work(rows),
             ", ".join(dict.fromkeys(a.workload for a in rows)))
            for key, rows in sorted(secured.items())
        ],
        "Machines if all workloads run at once: ask for quotas of this size, and for capacity of the largest ones.",
    )  # fmt: skip


def _whose(a: Allotment) -> str:
    """The workload, with the role of machines that are not its main ones."""
    if not a.workload:
        return f"none: {a.role}"
    return a.workload if a.role == "primary" else f"{a.workload} ({a.role})"


def _secured(found: Assessment) -> dict[tuple[str, str, str, str], list[Allotment]]:
    held: dict[tuple[str, str, str, str], list[Allotment]] = defaultdict(list)
    for a in found.allocation:
        if a.purchase in {"owned", "api"}:
            continue
        held[a.provider, a.region, a.instance, a.purchase].append(a)
    return held


def _work(rows: list[Allotment]) -> str:
    """Hours of machines times the accelerators in them; unknown of an assessment that does not count those."""
    if not all(a.num_gpus for a in rows):
        return "-"
    return digits(sum(a.hours_per_month * a.num_gpus for a in rows))


def savings(found: Assessment) -> Iterator[Block]:
    """By what they are, then each with its amount and against what."""
    if not found.savings:
        return
    sums = saved(found)
    if sums:
        whole = sum(sums.values())
        told = f"saves {usd(whole)} a month" if whole >= 0 else f"costs {usd(-whole)} a month more than its baseline"
        yield Text(
            f"The plan {told}{_of_it(found)}. The baseline: each workload on the next larger accelerator that does the "
            "work, bought on demand, services with a schedule on around the clock."
        )
        yield Bars("Savings in this plan", [Bar(name, value, usd(value)) for name, value in sums.items()])
    for title, rows in (
        ("in this plan", [s for s in found.savings if s.taken and s.counted]),
        ("still open", [s for s in found.savings if not s.taken]),
    ):
        if rows:
            yield Table(["saving", "workload", ">a month", title], list(_listed(rows, found.usd_per_month.total)))
    beside: dict[str, list[CostSaving]] = defaultdict(list)
    for s in found.savings:
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


def paid_beyond(found: Assessment) -> list[CostSaving]:
    """Steps of the plan that cost more than their alternative, dearest first: what policies have it buy."""
    rows = [s for s in found.savings if s.taken and s.counted and s.usd_per_month < 0]
    return sorted(rows, key=lambda s: s.usd_per_month)


def _of_it(found: Assessment) -> str:
    beyond = paid_beyond(found)
    if not beyond:
        return ""
    return f", with {usd(-sum(s.usd_per_month for s in beyond))} taken off that policies have it pay beyond the least"


def _listed(rows: Sequence[CostSaving], bill: float) -> Iterator[tuple[str, ...]]:
    """Largest first, up or down; what is next to nothing of the bill in one line."""
    ordered = sorted(rows, key=lambda s: -abs(s.usd_per_month))
    shown = [s for number, s in enumerate(ordered) if abs(s.usd_per_month) >= WORTH * bill or number < FEW]
    for s in shown:
        yield s.what, s.workload, usd(s.usd_per_month), s.how
    rest = ordered[len(shown) :]
    if rest:
        yield "others", f"{len(rest):,} smaller ones", usd(sum(s.usd_per_month for s in rest)), "in assessment.json"


def policies(found: Assessment) -> Iterator[Block]:
    """What each policy costs."""
    if found.binding:
        yield Table(
            ["policy", ">a month"], [(_policy(b), usd(b.usd_per_month)) for b in found.binding],
            "Each figure is the bill less the bill without that policy; together they may cost more.",
        )  # fmt: skip
    elif found.allocation:
        yield Text("No policy makes the bill higher than it would be without it.")


def _policy(binding: Binding) -> str:
    """What costs it, without the amount, which stands beside."""
    return re.split(r" costs? \$", binding.text, maxsplit=1)[0]


def what_ifs(found: Assessment) -> Iterator[Block]:
    """The bill under other assumptions, and over drawn months."""
    if found.whatif:
        rows = [
            (w.name, usd(w.usd_per_month) if w.feasible else "no allocation", signed(w.change_usd),
             w.text.split(" %), ", 1)[-1])
            for w in found.whatif
        ]  # fmt: skip
        yield Table(["what if", ">a month", ">change", ""], rows)
    drawn = found.scenarios
    if drawn is None:
        return
    points = [("10 % stay below", drawn.p10), ("half stay below", drawn.p50), ("on average", drawn.mean),
              ("90 % stay below", drawn.p90), ("95 % stay below", drawn.p95)]  # fmt: skip
    mark = found.budget_per_month
    yield Bars(
        f"The bill over {drawn.runs:,} drawn months of demand, prices and interruptions (seed {drawn.seed})",
        [Bar(name, value, usd(value)) for name, value in points],
        mark,
        "" if mark is None else f"budget {usd(mark)}",
    )
    if drawn.over_budget is not None:
        yield Text(f"The chance of a month above the budget is {format_percent(drawn.over_budget)}.")
    if drawn.drivers:
        said = ", ".join(f"{name} {format_percent(value)}" for name, value in largest(drawn.drivers))
        yield Text(f"What the spread comes from: {said}.")
