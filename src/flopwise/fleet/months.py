"""The bill over months: drawn ones, in which demand, prices and interruptions are others, and those to come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import Allotment, Month, Scenarios
from flopwise.fleet.bill import IDLE, SolvedFleet, spot_interruptions
from flopwise.fleet.model import ChosenWorkload, Platform, paid_all_month
from flopwise.fleet.option import ReplicaLoad, monthly_option
from flopwise.fleet.schedules import month_after, months_between

Draws = NDArray[np.floating[Any]]
PARTS = ("demand", "prices", "interruptions", "prediction")
Z90 = 1.2815515655446004


def scenarios(fleet: SolvedFleet, runs: int, seed: int) -> Scenarios:
    """Simulated months of machines that carry workloads; idle machines and storage cost the same in each."""
    sent = {fleet.chosen[number].name: traffic for number, (_, traffic) in fleet.volumes.items()}
    busy = [(row, load) for row, load in zip(fleet.rows, fleet.loads, strict=True) if row.role != IDLE]
    fixed = fleet.cost.storage + sum(row.usd_per_month for row in fleet.rows if row.role == IDLE)
    return drawn_months(
        fleet.platform, [row for row, _ in busy], fixed, loads=[load for _, load in busy], sent_usd=sent, runs=runs,
        seed=seed, facts=fleet.facts,
    )  # fmt: skip


def drawn_months(
    platform: Platform,
    rows: Sequence[Allotment],
    fixed_usd: float,
    *,
    loads: Sequence[ReplicaLoad | None],
    sent_usd: Mapping[str, float] | None = None,
    runs: int,
    seed: int,
    facts: Facts,
) -> Scenarios:
    """The distribution of the bill over `runs` drawn months; the same for the same `seed`.

    `fixed_usd` is paid in each; `sent_usd`, by workload, follows its demand.

    `loads`: of each row (`replica_load`). Services take the machines that the drawn demand needs, on machines that do
    as much as drawn; runs and APIs cost in proportion; machines to work on are as many as asked. What is reserved or
    owned is paid anyhow, and what it cannot do comes on top. Each part's share of the variance is that of months in
    which only this part is drawn.

    Assumes: the standard deviations of `policies.scenarios`; an interruption of a training run stops all its machines;
    predictions err as the intervals of the bill say.
    """
    if not rows:
        raise ValueError("a bill needs machines")
    draws, demand = _draws(platform, rows, loads, runs, seed, facts)
    sent = demand @ np.array([(sent_usd or {}).get(job.name, 0.0) for job in platform.jobs])
    total = _bills(rows, loads, draws, set(PARTS)) + fixed_usd + sent
    alone = {part: float(np.var(_bills(rows, loads, draws, {part}) + (part == "demand") * sent)) for part in PARTS}
    explained = sum(alone.values())
    p10, p50, p90, p95 = (float(v) for v in np.percentile(total, [10, 50, 90, 95]))
    budget = platform.rules.budget_per_month
    return Scenarios(
        runs=runs, seed=seed, mean=float(total.mean()), p10=p10, p50=p50, p90=p90, p95=p95,
        over_budget=None if budget is None else float((total > budget).mean()),
        drivers={part: value / explained if explained else 0.0 for part, value in alone.items()},
    )  # fmt: skip


def _draws(
    platform: Platform, rows: Sequence[Allotment], loads: Sequence[ReplicaLoad | None], runs: int, seed: int,
    facts: Facts,
) -> tuple[dict[str, Draws], Draws]:  # fmt: skip
    """Factors of (runs, rows), and demand of (runs, workloads); prices are one draw for each provider and purchase."""
    random, spreads = np.random.default_rng(seed), platform.rules.scenarios
    numbers = {job.name: n for n, job in enumerate(platform.jobs)}
    jobs = [platform.jobs[numbers[row.workload]] for row in rows]
    owner = np.array([numbers[row.workload] for row in rows])
    demand = np.exp(random.normal(0.0, spreads.demand, (runs, len(numbers))))
    errors = random.normal(0.0, 1.0, (runs, len(numbers)))[:, owner]
    sold = {key: n for n, key in enumerate(dict.fromkeys((r.provider, r.purchase) for r in rows))}
    moved = random.normal(0.0, 1.0, (runs, len(sold)))[:, [sold[r.provider, r.purchase] for r in rows]]
    listed = [spreads.spot_price if r.purchase == "spot" else spreads.list_price for r in rows]
    price_spread = np.hypot(listed, [_assumed_spread(r, load) for r, load in zip(rows, loads, strict=True)])
    expected = np.array([spot_interruptions(r, facts) for r in rows])
    lost = random.poisson(expected, (runs, len(rows))) - expected
    machines = [1 if j.trains else r.count for r, j in zip(rows, jobs, strict=True)]
    hours = np.maximum([r.hours_per_month * n for r, n in zip(rows, machines, strict=True)], 1e-9)
    low, high = np.array([_time_interval(r, load) for r, load in zip(rows, loads, strict=True)]).T
    factors = {
        "demand": np.where([job.workload is None for job in jobs], 1.0, demand[:, owner]),
        "prices": np.exp(moved * price_spread),
        "interruptions": np.maximum(1.0 + lost * spreads.rework_hours / hours, 0.0),
        "prediction": np.exp(errors * np.log(np.where(errors > 0, high, 1 / low)) / Z90),
    }
    return factors, demand


def _assumed_spread(row: Allotment, load: ReplicaLoad | None) -> float:
    """Standard deviation of the logarithm of a service's price that is assumed; runs have it in their interval."""
    if load is None or row.usd_per_hour_interval is None:
        return 0.0
    low, high = row.usd_per_hour_interval
    return float(np.log(high / low) / (2 * Z90))


def _time_interval(row: Allotment, load: ReplicaLoad | None) -> tuple[float, float]:
    """Factors at the ends of the 10-90 % interval: on the time of a service's requests, else on what the row costs."""
    if load is not None:
        return min(1.0, load.time_low), max(1.0, load.time_high)
    usd = max(row.usd_per_month, 1e-9)
    return min(1.0, max(row.usd_low, 1e-9) / usd), max(1.0, row.usd_high / usd)


def _bills(
    rows: Sequence[Allotment], loads: Sequence[ReplicaLoad | None], draws: dict[str, Draws], drawn: set[str]
) -> Draws:
    """The rows' USD of each drawn month, of shape (runs,); parts that are not in `drawn` stay as planned."""
    total: Draws = np.zeros(len(draws["demand"]))
    for n in range(len(rows)):
        total += _row_bill(rows[n], loads[n], {part: draws[part][:, n] if part in drawn else 1.0 for part in PARTS})
    return total


def _row_bill(
    row: Allotment, load: ReplicaLoad | None, factors: Mapping[str, Draws | float], grown: float = 1.0,
    more: float = 1.0,
) -> Draws:  # fmt: skip
    """USD of a row in drawn months, at `grown` times its load, for which `more` times its machines are planned.

    What today's reserved or own machines lack is bought at the price of a missing one, growth included, so that a
    higher load never costs less: committing to more of them is another decision, and lowers the bill when it is taken.
    """
    times, planned = factors["demand"] * factors["prediction"], row.usd_per_month * more
    paid = paid_all_month(row.purchase)
    if load is not None:
        usd = np.asarray(load.usd_at(grown * times))
    else:  # what is reserved is paid anyhow; more than that is bought on top
        usd = np.asarray(planned * (np.maximum(times, 1.0) if paid else times))
    return usd if paid else usd * factors["prices"] * factors["interruptions"]


# The months to come: the bill of each as workloads begin and grow

AHEAD, MOST = 12, 48
"""Months after the last beginning that are shown, and how many at most."""


def forecast(fleet: SolvedFleet, today: str | None, runs: int, seed: int) -> list[Month]:
    """The bill of each month from the first beginning to a year after the last; none where no month is known.

    Each month is drawn as `scenarios` draws one, with the same draws: a month in which all have begun and none has
    grown has the interval of the bill. `runs` 0: as planned, without an interval.

    Assumes: the fleet describes each workload as it begins; growth is met with more of the same machines, services
    adding one when those they have are as busy as they may be, on demand where those are reserved; own machines beyond
    those there may be cost as much; what is sent grows with the load at the same price of a byte, what is stored stays.
    """
    starts = [c.job.spec.starts for c in fleet.chosen]
    known = [s for s in starts if s is not None]
    if not known and not today:
        return []
    first = min(known) if known and not today else (today or "")[:7]
    if known and all(s is not None for s in starts):
        first = max(first, min(known))
    begins = {c.name: max(0, months_between(first, s or first)) for c, s in zip(fleet.chosen, starts, strict=True)}
    idle = sum((row.usd_per_month for row in fleet.rows if not row.workload), 0.0)  # own machines that carry nothing
    months = min(MOST, max(begins.values()) + AHEAD + 1)
    planned, drawn = np.full(months, idle), np.full((months, max(1, runs)), idle)
    busy = [(row, load) for row, load in zip(fleet.rows, fleet.loads, strict=True) if row.role != IDLE]
    rows, loads = [row for row, _ in busy], [load for _, load in busy]
    demand: Draws = np.ones((max(1, runs), len(fleet.platform.jobs)))
    factors: dict[str, Draws] = {part: np.ones((max(1, runs), len(rows))) for part in PARTS}
    if runs:
        factors, demand = _draws(fleet.platform, rows, loads, runs, seed, fleet.facts)
    own: dict[str, list[int]] = {}
    for n, row in enumerate(rows):
        own.setdefault(row.workload, []).append(n)
    columns = {job.name: n for n, job in enumerate(fleet.platform.jobs)}
    for chosen in fleet.chosen:
        stored, sent = fleet.volumes.get(chosen.planned.index, (0.0, 0.0))
        bills: tuple[float, Draws] | None = None
        for number in range(begins[chosen.name], months):
            grown = (1 + chosen.job.growth_per_month) ** (number - begins[chosen.name])
            if bills is None or grown != 1.0:
                more = _machine_growth(chosen, grown, fleet.facts)
                mine = own.get(chosen.name, [])
                usd = sum(float(_row_bill(rows[n], loads[n], dict.fromkeys(PARTS, 1.0), grown, more)) for n in mine)
                each = [_row_bill(rows[n], loads[n], {p: factors[p][:, n] for p in PARTS}, grown, more) for n in mine]
                traffic = sent * grown * demand[:, columns[chosen.name]]
                bills = usd + stored + sent * grown, np.sum([stored + traffic, *each], axis=0)
            planned[number] += bills[0]
            drawn[number] += bills[1]
    low, mean, high = np.percentile(drawn, 10, axis=1), drawn.mean(axis=1), np.percentile(drawn, 90, axis=1)
    return [
        Month(
            month=month_after(first, n), usd=float(planned[n]), expected=float(mean[n]), low=float(low[n]),
            high=float(high[n]), workloads=sum(b <= n for b in begins.values()),
        )
        for n in range(months)
    ]  # fmt: skip


def _machine_growth(chosen: ChosenWorkload, grown: float, facts: Facts) -> float:
    """The factor by which the machines' cost grows at `grown` times the load."""
    job = chosen.job
    if grown == 1.0 or job.workload is None:
        return 1.0
    now = later = 0.0
    for taken in chosen.parts:
        option = taken.option
        share = taken.count / option.instances
        now += share * option.usd
        more = monthly_option(option.workload, job, option.candidate, option.offer, facts, grown)
        beyond = option.own is not None and more.instances > option.own.most
        later += share * (option.usd * grown if beyond else more.usd)
    return later / now if now else grown
