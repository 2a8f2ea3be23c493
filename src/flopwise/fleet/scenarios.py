"""Many drawn months: demand, prices and interruptions, and the distribution of the bill that comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.fleet.assessment import Allotment, Scenarios
from flopwise.fleet.model import paid_all_month
from flopwise.fleet.risks import spot_interruptions

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.model import Platform
    from flopwise.fleet.replica_scaling import ReplicaLoad

Draws = NDArray[np.floating[Any]]
PARTS = ("demand", "prices", "interruptions", "prediction")
Z90 = 1.2815515655446004


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

    Assumes: `Rules.spreads`; an interruption of a training run stops all its machines; predictions err as the intervals
    of the bill say.
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
    platform: Platform,
    rows: Sequence[Allotment],
    loads: Sequence[ReplicaLoad | None],
    runs: int,
    seed: int,
    facts: Facts,
) -> tuple[dict[str, Draws], Draws]:
    """Factors of (runs, rows), and demand of (runs, workloads); prices are one draw for each provider and purchase."""
    random, spreads = np.random.default_rng(seed), platform.rules.spreads
    numbers = {job.name: n for n, job in enumerate(platform.jobs)}
    jobs = [platform.jobs[numbers[row.workload]] for row in rows]
    owner = np.array([numbers[row.workload] for row in rows])
    demand = np.exp(random.normal(0.0, spreads.demand, (runs, len(numbers))))
    errors = random.normal(0.0, 1.0, (runs, len(numbers)))[:, owner]
    sold = {key: n for n, key in enumerate(dict.fromkeys((r.provider, r.purchase) for r in rows))}
    moved = random.normal(0.0, 1.0, (runs, len(sold)))[:, [sold[r.provider, r.purchase] for r in rows]]
    price_spread = np.array([spreads.spot_price if r.purchase == "spot" else spreads.list_price for r in rows])
    expected = np.array([spot_interruptions(r, facts) for r in rows])
    lost = random.poisson(expected, (runs, len(rows))) - expected
    hours = np.array(
        [max(r.hours_per_month * (1 if j.trains else r.count), 1e-9) for r, j in zip(rows, jobs, strict=True)]
    )
    low, high = np.array([_time_interval(r, load) for r, load in zip(rows, loads, strict=True)]).T
    fixed = np.array([job.workload is None for job in jobs])
    factors = {
        "demand": np.where(fixed, 1.0, demand[:, owner]),
        "prices": np.exp(moved * price_spread),
        "interruptions": np.maximum(1.0 + lost * spreads.rework_hours / hours, 0.0),
        "prediction": np.exp(errors * np.log(np.where(errors > 0, high, 1 / low)) / Z90),
    }
    return factors, demand


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
    still = np.ones_like(draws["demand"])
    factors = {part: draws[part] if part in drawn else still for part in PARTS}
    load_factor, price = factors["demand"] * factors["prediction"], factors["prices"] * factors["interruptions"]
    total: Draws = np.zeros(len(still))
    for n, (row, load) in enumerate(zip(rows, loads, strict=True)):
        paid = paid_all_month(row.purchase)
        if load is not None:
            usd = load.usd_at(load_factor[:, n])
        else:  # what is reserved is paid anyhow; more than that is bought on top
            usd = row.usd_per_month * (np.maximum(load_factor[:, n], 1.0) if paid else load_factor[:, n])
        total += usd if paid else usd * price[:, n]
    return total
