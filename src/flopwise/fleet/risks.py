"""What may go wrong, each scored from 0 to 1 by a margin that was computed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import Allotment, Month, MonthlyCost, Risk, Scenarios, WhatIf
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import ChosenWorkload
from flopwise.fleet.months import Z90
from flopwise.fleet.schedules import WeeklySchedule, most_at_once, slots
from flopwise.fleet.spec import API
from flopwise.search.replica import candidate_job
from flopwise.search.service_load import load_frac
from flopwise.serving.sim.elasticity import replica_start_s
from flopwise.serving.startup import DEFAULT_STORAGE
from flopwise.training.goodput import DEFAULT_RELIABILITY
from flopwise.units import DAY_S, HOUR_S, HOURS_PER_MONTH, format_number, format_seconds, format_usd

MONTHS_PER_YEAR = 12
BACKED = 0.2
"""What is left of a service's outage where a second provider stands ready. Assumed: the move fails one time in five."""
LEAST = 0.02
"""Risks that score less are left out, but for the worst of each kind."""
UNKNOWN = 0.5
"""Probability of what nobody published a rate of."""
PROVIDER_LOSS = 0.1
"""Probability within a year that a provider is given up, for its prices, terms or capacity. Assumed."""
LARGE = 16
"""Number of accelerators of one kind in one region from which capacity must be requested. Assumed."""
THIN = 0.25
"""Share of the price on demand below which a spot price is of capacity that nobody can count on. Assumed."""
SLOWER = 1.1
"""Times the planned time from which a run counts as slower than planned."""
LATENCY = ("latency", "load-test before launch; one more replica")
TARGETS = {
    "memory": ("memory", "a smaller micro-batch, more recompute, or the next larger device"), "ttft": LATENCY,
    "tpot": LATENCY, "latency": LATENCY, "deadline": ("availability", "start earlier, or take more machines"),
}  # fmt: skip
"""Kind of the risk that a target is missed, and what helps."""
LIMITING = ("providers", "regions", "instances", "gpus", "purchase", "max_gpus", "max_usd_per_hour")
"""Constraints that may leave a workload one provider only."""


def risks(
    fleet: SolvedFleet, questions: Sequence[WhatIf], drawn: Scenarios | None, ages: dict[str, float],
    months: Sequence[Month] = (),
) -> list[Risk]:  # fmt: skip
    """The register, worst first. `ages`: days since the price of each row's date; `months`: the bill to come."""
    rules, register = fleet.platform.rules, list[Risk]()
    backed = {row.workload for row in fleet.rows if row.role == "backup"}
    for chosen in fleet.chosen:
        register += _missed_targets(chosen)
        register += _machine_failure(chosen, chosen.name in backed)
    register += _quotas(fleet)
    for row, _, chosen in fleet.primary:
        register += _spot_and_api_risks(row, chosen, fleet)
    for chosen in fleet.chosen:
        register += _degradation(chosen, fleet)
        register += _loading(chosen, fleet.facts)
    register += _capacity(fleet)
    register += _retirements(fleet)
    register += _idle_use(fleet)
    register += _providers(fleet, questions)
    register += _prices(fleet.rows, fleet.cost, ages, rules.max_price_age_days)
    register += _budget(drawn, rules.budget_per_month, months)
    ranked = sorted((r for r in register if r.score > 0), key=lambda r: -r.score)
    worst = {r.kind: r for r in reversed(ranked)}
    return [r for r in ranked if r.score >= LEAST or r is worst[r.kind]]


def _budget(drawn: Scenarios | None, budget: float | None, months: Sequence[Month]) -> Iterable[Risk]:
    """The chance of a month above the budget, and the share of the months to come that growth takes above it."""
    if drawn is not None and drawn.over_budget is not None:
        yield Risk(
            kind="budget", workload="", probability=drawn.over_budget, impact=1.0,
            evidence=f"{100 * drawn.over_budget:.0f} % of {drawn.runs:,} simulated months exceed the budget; "
            f"95 % stay below {format_usd(drawn.p95, 0)}",
            mitigation="alert on daily spend; move runs that can wait to the next month",
        )  # fmt: skip
    over = [] if budget is None else [m for m in months if m.expected > budget]
    if over:
        yield Risk(
            kind="budget", workload="", probability=len(over) / len(months), impact=1.0,
            evidence=f"growth takes the expected bill past the budget in {over[0].month}; {len(over)} of the "
            f"{len(months)} months ahead are above it",
            mitigation="raise the budget for those months, or assess again before: more load may suit other machines",
        )  # fmt: skip


def _missed_targets(chosen: ChosenWorkload) -> Iterable[Risk]:
    """Memory, latency and deadlines: the probability that the target is missed."""
    candidate = chosen.option.candidate
    for target, odds in candidate.meets.items():
        if target not in TARGETS:
            continue
        missed, (kind, mitigation) = 1.0 - odds, TARGETS[target]
        evidence = f"{100 * missed:.1f} % chance of missing its {target} target, by the measured errors of the model"
        if target == "memory":
            used = candidate.memory_bytes / candidate.capacity_bytes
            evidence = f"expected to use {100 * used:.0f} % of the memory of the {candidate.gpu}; "
            evidence += f"{100 * missed:.1f} % chance of running out"
        yield Risk(
            kind=kind, workload=chosen.name, probability=missed, impact=1.0, evidence=evidence, mitigation=mitigation
        )


def _machine_failure(chosen: ChosenWorkload, backup: bool) -> Iterable[Risk]:
    """Services: the probability that a machine fails within a year, times the share of requests the others lack."""
    job, figures, option = chosen.job, chosen.figures, chosen.option
    if job.ends or figures is None:
        return
    count, unit = sum(taken.count for taken in chosen.parts), option.unit
    gpus = max(1, option.candidate.num_gpus // option.candidate.num_instances)
    hours = count * gpus * option.busy_hours * MONTHS_PER_YEAR
    odds = -math.expm1(-hours * HOUR_S / DEFAULT_RELIABILITY.mtbf_gpu_s)
    lacking = 1.0
    if count > 1 and job.workload is not None and job.workload.requests_per_s:
        left = figures.figures["requests_per_s"]["value"] * (count - unit) / count
        lacking = max(0.0, 1.0 - left / job.workload.requests_per_s)
    elif count > unit:
        lacking = unit / count
    carries = "one machine carries all of it" if count == 1 else f"all {count} machines are needed for one replica"
    some = f"without one of {count} machines {100 * lacking:.0f} % of the requests lack room"
    yield Risk(
        kind="availability", workload=job.name, probability=odds, impact=lacking * (BACKED if backup else 1.0),
        evidence=f"{carries if count <= unit else some}; {100 * odds:.0f} % chance that one fails within a year"
        + ("; a second provider is on standby" if backup else ""),
        mitigation="rehearse the move to the backup" if backup else "one more replica, in another zone",
    )  # fmt: skip


def _quotas(fleet: SolvedFleet) -> Iterable[Risk]:
    """Quotas that are more than half used, now or after a year's growth."""
    growth = {c.name: (1 + c.job.growth_per_month) ** MONTHS_PER_YEAR for c in fleet.chosen}
    for quota in fleet.platform.rules.quotas:
        mine = [row for row in fleet.rows if quota.counts(row.provider, row.instance)]
        if not mine or not quota.most:
            continue
        schedules: list[WeeklySchedule | None] = []  # None, at any time: a backup, runs without a place in the week
        for row in mine:
            job = None if row.role != "primary" else fleet.by_name[row.workload].job
            schedules.append(None if job is None or (job.ends and not job.schedule.fixed) else job.schedule)
        week = slots(schedules)
        used = most_at_once(week, [row.count for row in mine])
        later = most_at_once(week, [row.count * growth.get(row.workload, 1.0) for row in mine])
        what = " ".join(part for part in (quota.provider, quota.instance) if part)
        when = "if all run at once" if used == sum(row.count for row in mine) else "at the busiest time of the week"
        yield Risk(
            kind="availability", workload="", probability=max(0.0, min(1.0, 2 * used / quota.most - 1)), impact=1.0,
            evidence=f"{used:g} of the quota of {quota.most} x {what} are taken, {when}"
            + (f"; growth asks for {later:,.1f} after a year" if later > quota.most else ""),
            mitigation="ask for a higher quota now: large accelerators take weeks; or run jobs one after another",
        )  # fmt: skip


def _spot_and_api_risks(row: Allotment, chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterable[Risk]:
    """Interruptions of a row on spot, and what the price list of an API leaves open.

    An interruption hits what a run has done since it was saved, else the share that one machine carries.
    """
    if row.purchase == "spot":
        record, hours = fleet.facts.spot(row.provider, row.gpu), row.count * min(row.hours_per_month, HOURS_PER_MONTH)
        expected, rework = record.interruptions_per_s * HOUR_S * hours, fleet.platform.rules.scenarios.rework_hours
        each = max(chosen.option.candidate.seconds / HOUR_S, 1e-9)
        many = f"{format_number(expected, 2)} interruption{'s'[: f'{format_number(expected, 2)}' != '1']}"
        yield Risk(
            kind="interruption", workload=row.workload, probability=-math.expm1(-expected),
            impact=min(1.0, rework / each) if chosen.job.trains else 1 / row.count,
            evidence=f"{many} expected in {hours:,.1f} instance hours a month: {record.share}, "
            f"{record.confidence} confidence",
            mitigation="checkpoints; on demand as the fallback when spot capacity is gone",
        )  # fmt: skip
    elif row.purchase == API:
        yield Risk(
            kind="availability", workload=row.workload, probability=UNKNOWN, impact=1.0,
            evidence=f"the price of {row.provider}'s {row.instance} does not state latency, rate limits or precision",
            mitigation="test it with real requests, ask for a committed rate, and keep a plan on machines ready",
        )  # fmt: skip


def _capacity(fleet: SolvedFleet) -> Iterable[Risk]:
    """Machines that may not be there when they are asked for: spot, and many of one kind in one region.

    Spot capacity is gone for one machine as often as one is taken back within a day, by the record of the provider, and
    all are needed at once; where it is many, or the price hardly any, the record says nothing and the probability is
    that of what nobody published. Work on spot is then bought on demand, or waits where no such price is known.

    Assumes: machines come and go independently of one another; all workloads want theirs at once.
    """
    kinds: dict[tuple[str, str, str, str], list[tuple[Allotment, float | None]]] = {}
    for row, taken, _ in fleet.primary:
        if row.num_gpus and taken.option.own is None:
            offered = row, taken.option.offer.on_demand_usd_per_hour
            kinds.setdefault((row.provider, row.region, row.gpu, row.purchase), []).append(offered)
    for (provider, region, gpu, purchase), rows in kinds.items():
        gpus, names = sum(row.num_gpus for row, _ in rows), list(dict.fromkeys(row.workload for row, _ in rows))
        usd, many = sum(row.usd_per_month for row, _ in rows), gpus >= LARGE
        what = f"{gpus:,} {gpu} of {provider} in {region}"
        what += f" for {', '.join(names[:3])}{' and others' if len(names) > 3 else ''}" if len(names) > 1 else ""
        name = names[0] if len(names) == 1 else ""
        if purchase == "spot":
            parts = [(row.usd_per_hour or 0.0) / rate if rate else 0.0 for row, rate in rows]
            least, record = min(parts), fleet.facts.spot(provider, gpu)
            gone = -math.expm1(-record.interruptions_per_s * DAY_S)
            odds = 1.0 - (1.0 - gone) ** sum(row.count for row, _ in rows)
            doubts = ["no record covers so many at once"] if many else []
            doubts += ["such a low price is often outdated or has little capacity"] if least < THIN else []
            doubt = f" ({'; '.join(doubts)})" if doubts else ""
            dearer = sum(r.usd_per_month * (1.0 - part) for (r, _), part in zip(rows, parts, strict=True))
            price = f"{100 * least:.0f} % of on demand" if least else "a price without a known on-demand price"
            yield Risk(
                kind="capacity", workload=name, probability=max(odds, UNKNOWN if doubt else 0.0),
                impact=dearer / max(usd, 1e-9),
                evidence=f"{what} on spot, at {price}{doubt}; {record.share}",
                mitigation="use several zones and instance types; budget for the same on demand as the fallback",
            )  # fmt: skip
        elif many:
            share = usd / max(fleet.cost.total, 1e-9)
            yield Risk(
                kind="capacity", workload=name, probability=UNKNOWN, impact=min(1.0, share),
                evidence=f"{what} at once, {100 * share:.0f} % of the bill; no provider publishes such capacity",
                mitigation="ask for the quota and a reservation of capacity early; a second region or provider",
            )  # fmt: skip


def _degradation(chosen: ChosenWorkload, fleet: SolvedFleet) -> Iterable[Risk]:
    """Machines do less than planned: the chance that a service needs more of them, or a run a tenth more time.

    Source: the interval of the time as a lognormal distribution. Impact: what the upper end of the interval adds to
    the bill, of the bill.
    """
    figures, option = chosen.figures, chosen.option
    rows = [row for row, _, other in fleet.primary if other is chosen]
    workload = None if chosen.job.ends else chosen.planned.workload
    if figures is None or figures.time_high <= 1.0 or (workload is not None and workload.is_closed_loop):
        return
    spread = math.log(figures.time_high) / Z90
    room = SLOWER
    if workload is not None:
        room = 1.0 / max(load_frac(workload, fleet.facts, option.offer, option.candidate), 1e-9)
    odds = 0.5 * math.erfc(math.log(max(room, 1.0)) / spread / math.sqrt(2.0))
    usd, high = sum(row.usd_per_month for row in rows), sum(row.usd_high for row in rows)
    what = f"more than {100 * (room - 1):.0f} % slower than planned"
    yield Risk(
        kind="degradation", workload=chosen.name, probability=odds, impact=min(1.0, (high - usd) / max(usd, 1e-9)),
        evidence=f"{100 * odds:.0f} % chance of running {what}, by the errors of the model; the upper end of the "
        f"interval costs {format_usd(high, 0)} instead of {format_usd(usd, 0)}",
        mitigation="measure one machine first (flopwise calibrate); alert on throughput; keep quota for more machines",
    )  # fmt: skip


def _retirements(fleet: SolvedFleet) -> Iterable[Risk]:
    """Machines that their provider retires."""
    kinds: dict[tuple[str, str, str], list[Allotment]] = {}
    for row in fleet.rows:
        if row.retires_on:
            kinds.setdefault((row.provider, row.instance, row.retires_on), []).append(row)
    for (provider, instance, day), rows in kinds.items():
        names = list(dict.fromkeys(row.workload for row in rows))
        yield Risk(
            kind="retirement", workload=names[0] if len(names) == 1 else "", probability=1.0,
            impact=min(1.0, sum(row.usd_per_month for row in rows) / max(fleet.cost.total, 1e-9)),
            evidence=f"{provider} stops {sum(row.count for row in rows):,} x {instance} on {day}",
            mitigation="move to another kind before that day, and sign no term that ends after it",
        )  # fmt: skip


def _loading(chosen: ChosenWorkload, facts: Facts) -> Iterable[Risk]:
    """The time until a replica answers, where one has to be started: daily ones by a schedule, else after a failure.

    Impact: the share of an hour, times the share of the requests that the missing replica carries.
    """
    job, option, workload = chosen.job, chosen.option, chosen.planned.workload
    if job.ends or workload is None or option.purchase == API or not option.gpus_each:
        return
    offer = option.offer
    served = candidate_job(workload, facts.model(workload.model), facts, offer, option.candidate)
    seconds = replica_start_s(served, facts.storage(DEFAULT_STORAGE), facts)
    count = sum(taken.count for taken in chosen.parts)
    hours = count * option.gpus_each * option.busy_hours
    often = job.levels is not None or not job.schedule.always
    odds = 1.0 if often else -math.expm1(-hours * HOUR_S / DEFAULT_RELIABILITY.mtbf_gpu_s)
    when = "with its schedule or traffic" if often else f"after a failure ({100 * odds:.1f} % chance within a month)"
    yield Risk(
        kind="loading", workload=job.name, probability=odds,
        impact=min(1.0, seconds / HOUR_S) * min(1.0, option.unit / count),
        evidence=f"a new replica needs {format_seconds(seconds)} until it answers (machine, engine, weights, "
        f"compilation), {when}",
        mitigation="keep image and weights on local disks, and compiled graphs cached; start ahead of the traffic",
    )  # fmt: skip


def _idle_use(fleet: SolvedFleet) -> Iterable[Risk]:
    """Cost without work: machines that the load does not fill, hours between the peaks, idle own machines.

    Assumes: replicas count as full where they may be as busy as a plan lets them; machines to work on are used.
    """
    total, idle = max(fleet.cost.total, 1e-9), dict[str, float]()
    for row, taken, chosen in fleet.primary:
        option, workload = taken.option, chosen.planned.workload
        if chosen.job.ends or workload is None or not option.gpus_each:
            continue
        filled = load_frac(workload, fleet.facts, option.offer, option.candidate)
        used = filled / workload.peak / max(_paid_capacity(chosen), 1e-9)
        idle[chosen.name] = idle.get(chosen.name, 0.0) + row.usd_per_month * max(0.0, 1.0 - min(1.0, used))
    for row in fleet.rows:
        if not row.workload:
            idle["own machines"] = idle.get("own machines", 0.0) + row.usd_per_month
    for name, usd in idle.items():
        workload_name = "" if name == "own machines" else name
        yield Risk(
            kind="idle", workload=workload_name, probability=1.0, impact=usd / total,
            evidence=f"{format_usd(usd, 0)} a month pays for {name if not workload_name else 'capacity'} that the "
            "load does not use on average",
            mitigation="a profile of traffic and autoscaling; smaller or shared accelerators; batches in quiet hours",
        )  # fmt: skip


def _paid_capacity(chosen: ChosenWorkload) -> float:
    """The mean share of a service's peak machines that is paid over its hours."""
    levels, hours = chosen.job.levels, chosen.job.hours_per_month
    paid = [levels.paid_hours(t.by_level) / hours if levels and t.by_level else t.count for t in chosen.parts]
    return sum(count / taken.option.instances for count, taken in zip(paid, chosen.parts, strict=True))


def _providers(fleet: SolvedFleet, questions: Sequence[WhatIf]) -> Iterable[Risk]:
    """The share of the bill with one provider, times what its loss would cost."""
    total = fleet.cost.total
    for question in questions:
        provider = question.name.removesuffix(" is lost")
        if provider == question.name or not total:
            continue
        share, more = fleet.cost.by_provider.get(provider, 0.0) / total, max(0.0, question.change_usd or 0.0)
        hurt = min(1.0, more / total) if question.feasible else 1.0
        loss = (
            f"its loss adds {format_usd(more, 0)} a month"
            if question.feasible
            else _irreplaceable(provider, fleet, question)
        )
        yield Risk(
            kind="single provider", workload="", probability=PROVIDER_LOSS, impact=share * hurt,
            evidence=f"{100 * share:.0f} % of the bill is with {provider}; {loss}",
            mitigation="keep images, data and quotas ready with a second provider",
        )  # fmt: skip


def _irreplaceable(provider: str, fleet: SolvedFleet, question: WhatIf) -> str:
    """Why nothing takes a provider's place: what the fleet itself asks for, else what is on offer."""
    stuck = [c.job for c in fleet.chosen if all(o.provider == provider for o in c.planned.options)]
    if not stuck:
        return f"the others cannot take its place together: {question.text}"
    policies = [f"policies.{name}" for name in ("providers", "regions") if getattr(fleet.platform.rules, name)]
    limits = dict[str, None]()
    for job in stuck:
        own = [f"constraints.{name}" for name in LIMITING if getattr(job.spec.constraints, name)]
        own += [name for name in ("residency", "tags", "purchase") if getattr(job.spec, name)]
        if not own and not policies:
            return f"no other offer could run {job.name[:60]}"
        limits |= dict.fromkeys(own)
    names = ", ".join(job.name[:60] for job in stuck[:4]) + (" and others" if len(stuck) > 4 else "")
    return f"within its {', '.join([*policies, *limits])} no other offer could run {names}"


def _prices(
    rows: Sequence[Allotment], cost: MonthlyCost, ages: dict[str, float], max_age_days: float
) -> Iterable[Risk]:
    """Old prices, and money on prices that move."""
    old = [r for r in rows if ages.get(r.price_date, 0.0) > max_age_days]
    if old and cost.compute:
        share = sum(r.usd_per_month for r in old) / cost.compute
        oldest = min(r.price_date for r in old)
        yield Risk(
            kind="price", workload="", probability=UNKNOWN, impact=share,
            evidence=f"{100 * share:.0f} % of the bill is at prices older than {max_age_days:g} days (since {oldest})",
            mitigation="run flopwise prices refresh, or import a newer list",
        )  # fmt: skip
    noted = [r for r in rows if r.price_note and r.purchase != "spot" and r.usd_per_hour_interval is None]
    if noted and cost.compute:
        share = sum(r.usd_per_month for r in noted) / cost.compute
        yield Risk(
            kind="price", workload="", impact=share,
            evidence=f"{100 * share:.0f} % of the bill is at prices from no current list: "
            + "; ".join(dict.fromkeys(f"{r.provider} {r.instance}, {r.price_note}" for r in noted[:3])),
            mitigation="ask the provider for its prices, and import them: flopwise prices import",
        )  # fmt: skip
    for kind in ("spot", "reserved"):
        here = (r for r in rows if r.usd_per_hour_interval is not None and r.purchase.startswith(kind))
        assumed = sum(r.usd_per_month for r in here)
        if assumed and cost.compute:
            yield Risk(
                kind="price", workload="", probability=UNKNOWN, impact=assumed / cost.compute,
                evidence=f"{100 * assumed / cost.compute:.0f} % of the bill is at {kind} prices that are assumed from "
                "published discounts",
                mitigation=f"look the {kind} prices up before you sign, and import them: flopwise prices import",
            )  # fmt: skip
    spot = sum(r.usd_per_month for r in rows if r.purchase == "spot")
    if spot and cost.compute:
        yield Risk(
            kind="price", workload="", probability=UNKNOWN, impact=spot / cost.compute,
            evidence=f"{100 * spot / cost.compute:.0f} % of the bill is at spot prices, which move",
            mitigation="allow several instance types and zones, so that capacity comes from the cheapest at the time; "
            "keep on demand as the fallback, and alert when the spot price comes close to it",
        )  # fmt: skip
