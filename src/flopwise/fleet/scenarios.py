"""Many drawn months: demand, prices and interruptions, and the distribution of the bill that comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.fleet.assessment import Allotment, Scenarios
from flopwise.fleet.spec import OWNED
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.fleet.file import Platform
    from flopwise.fleet.load import Load

Draws = NDArray[np.floating[Any]]
PARTS = ("demand", "prices", "interruptions", "prediction")
Z90 = 1.2815515655446004


def simulated(
    platform: Platform,
    rows: Sequence[Allotment],
    fixed_usd: float,
    *,
    loads: Sequence[Load | None],
    sent_usd: Mapping[str, float] | None = None,
    runs: int,
    seed: int,
    facts: Facts,
) -> Scenarios:
    """The distribution of the bill over `runs` drawn months; the same for the same `seed`.

    `fixed_usd` is paid in each; `sent_usd`, by workload, follows its demand.

    `loads`: of each row (`load.loads_of`). Services take the machines that the drawn demand needs, on machines that do
    as much as drawn; runs and APIs cost in proportion; machines to work on are as many as asked. What is reserved or
    one's own is paid anyhow, and what it cannot do comes on top. Each part's share of the variance is that of months in
    which only this part is drawn.

    Assumes: `Rules.strays`; an interruption of a training run stops all its machines; predictions err as the intervals
    of the bill say.
    """
    if not rows:
        raise ValueError("a bill needs machines")
    draws, demand = _draws(platform, rows, loads, runs, seed, facts)
    sent = np.array([(sent_usd or {}).get(placed.name, 0.0) for placed in platform.workloads])
    total = _bill(rows, loads, draws, set(PARTS)) + fixed_usd + demand @ sent
    alone = {
        part: float(np.var(_bill(rows, loads, draws, {part}) + (part == "demand") * (demand @ sent))) for part in PARTS
    }
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
    loads: Sequence[Load | None],
    runs: int,
    seed: int,
    facts: Facts,
) -> tuple[dict[str, Draws], Draws]:
    """Factors of (runs, rows), and demand of (runs, workloads); prices are one draw for each provider and purchase."""
    random, strays = np.random.default_rng(seed), platform.rules.strays
    gangs = {placed.name for placed in platform.workloads if placed.job.task in {"pretrain", "finetune"}}
    names = {placed.name: n for n, placed in enumerate(platform.workloads)}
    demand = np.exp(random.normal(0.0, strays.demand, (runs, len(names))))
    told = random.normal(0.0, 1.0, (runs, len(names)))
    sold = {key: n for n, key in enumerate(dict.fromkeys((r.provider, r.purchase) for r in rows))}
    moved = random.normal(0.0, 1.0, (runs, len(sold)))
    spread = np.array([strays.spot_price if r.purchase == "spot" else strays.list_price for r in rows])
    owner = np.array([names[r.workload] for r in rows])
    rates = np.array([_interruptions(r, facts) for r in rows])
    lost = random.poisson(rates, (runs, len(rows))) - rates
    hours = np.array([max(r.hours_per_month * (1 if r.workload in gangs else r.count), 1e-9) for r in rows])
    low, high = (np.array([_error(r, held)[n] for r, held in zip(rows, loads, strict=True)]) for n in (0, 1))
    erred = told[:, owner]
    price = np.exp(moved[:, [sold[r.provider, r.purchase] for r in rows]] * spread)
    fixed = {placed.name for placed in platform.workloads if placed.wanted is None}
    asked = np.where(np.array([r.workload in fixed for r in rows]), 1.0, demand[:, owner])
    factors = {
        "demand": asked,
        "prices": price,
        "interruptions": np.maximum(1.0 + lost * strays.rework_hours / hours, 0.0),
        "prediction": np.exp(erred * np.log(np.where(erred > 0, high, 1 / low)) / Z90),
    }
    return factors, demand


def _interruptions(row: Allotment, facts: Facts) -> float:
    """Expected a month, of all instances."""
    if row.purchase != "spot":
        return 0.0
    rate = facts.spot(row.provider, row.gpu).interruptions_per_s
    return rate * HOUR_S * row.hours_per_month * row.count


def _error(row: Allotment, load: Load | None) -> tuple[float, float]:
    """Factors at the ends of the 10-90 % interval: on the time of a service's requests, else on what the row costs."""
    if load is not None:
        return min(1.0, load.time_low), max(1.0, load.time_high)
    usd = max(row.usd_per_month, 1e-9)
    return min(1.0, max(row.usd_low, 1e-9) / usd), max(1.0, row.usd_high / usd)


def _bill(rows: Sequence[Allotment], loads: Sequence[Load | None], draws: dict[str, Draws], drawn: set[str]) -> Draws:
    """The rows' USD of each drawn month, of shape (runs,); parts that are not in `drawn` stay as planned."""
    still = np.ones_like(draws["demand"])
    factors = {part: draws[part] if part in drawn else still for part in PARTS}
    asked, price = factors["demand"] * factors["prediction"], factors["prices"] * factors["interruptions"]
    total: Draws = np.zeros(len(still))
    for n, (row, load) in enumerate(zip(rows, loads, strict=True)):
        paid = row.purchase.startswith("reserved") or row.purchase == OWNED
        if load is not None:
            usd = load.usd_at(asked[:, n])
        else:  # what is reserved is paid anyhow; more than that is bought on top
            usd = row.usd_per_month * (np.maximum(asked[:, n], 1.0) if paid else asked[:, n])
        total += usd if paid else usd * price[:, n]
    return total
