"""Many drawn months: demand, prices and interruptions, and the distribution of the bill that comes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.reliability import spot_record
from flopwise.fleet.assessment import Allotment, Scenarios
from flopwise.fleet.spec import API, OWNED
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from pathlib import Path

    from flopwise.fleet.file import Platform

Draws = NDArray[np.floating[Any]]
PARTS = ("demand", "prices", "interruptions", "prediction")
Z90 = 1.2815515655446004


def simulated(
    platform: Platform,
    rows: Sequence[Allotment],
    fixed_usd: float,
    *,
    loads: Mapping[str, float],
    sent_usd: Mapping[str, float] | None = None,
    runs: int,
    seed: int,
    folder: Path | None = None,
) -> Scenarios:
    """The distribution of the bill over `runs` drawn months; the same for the same `seed`.

    `fixed_usd` is paid in each; `sent_usd`, by workload, follows its demand.

    Machines follow demand, but those reserved or one's own, which are paid anyhow: more demand first fills those there
    are, as far as `loads` (by workload: busy share over what they may be busy) leaves room. Each part's share of the
    variance is that of months in which only this part is drawn.

    Assumes: `Rules.strays`; an interruption of a training run stops all its machines; predictions err as the intervals
    of the bill say.
    """
    if not rows:
        raise ValueError("a bill needs machines")
    draws, demand = _draws(platform, rows, loads, runs, seed, folder)
    sent = np.array([(sent_usd or {}).get(placed.name, 0.0) for placed in platform.workloads])
    total = _bill(rows, draws, set(PARTS)) + fixed_usd + demand @ sent
    alone = {part: float(np.var(_bill(rows, draws, {part}) + (part == "demand") * (demand @ sent))) for part in PARTS}
    explained = sum(alone.values())
    p10, p50, p90, p95 = (float(v) for v in np.percentile(total, [10, 50, 90, 95]))
    budget = platform.rules.budget_per_month
    return Scenarios(
        runs=runs, seed=seed, mean=float(total.mean()), p10=p10, p50=p50, p90=p90, p95=p95,
        over_budget=None if budget is None else float((total > budget).mean()),
        drivers={part: value / explained if explained else 0.0 for part, value in alone.items()},
    )  # fmt: skip


def _draws(
    platform: Platform, rows: Sequence[Allotment], loads: Mapping[str, float], runs: int, seed: int, folder: Path | None
) -> tuple[dict[str, Draws], Draws]:
    """Factors of (runs, rows), and demand of (runs, workloads); prices are one draw for each provider and purchase."""
    random, strays = np.random.default_rng(seed), platform.rules.strays
    runs_that_end = {placed.name for placed in platform.workloads if placed.ends}
    gangs = {placed.name for placed in platform.workloads if placed.job.task in {"pretrain", "finetune"}}
    names = {placed.name: n for n, placed in enumerate(platform.workloads)}
    demand = np.exp(random.normal(0.0, strays.demand, (runs, len(names))))
    told = random.normal(0.0, 1.0, (runs, len(names)))
    sold = {key: n for n, key in enumerate(dict.fromkeys((r.provider, r.purchase) for r in rows))}
    moved = random.normal(0.0, 1.0, (runs, len(sold)))
    spread = np.array([strays.spot_price if r.purchase == "spot" else strays.list_price for r in rows])
    owner = np.array([names[r.workload] for r in rows])
    rates = np.array([_interruptions(r, folder) for r in rows])
    lost = random.poisson(rates, (runs, len(rows))) - rates
    hours = np.array([max(r.hours_per_month * (1 if r.workload in gangs else r.count), 1e-9) for r in rows])
    up = np.array([np.log(max(r.usd_high, 1e-9) / max(r.usd_per_month, 1e-9)) / Z90 for r in rows])
    down = np.array([np.log(max(r.usd_per_month, 1e-9) / max(r.usd_low, 1e-9)) / Z90 for r in rows])
    erred = told[:, owner]
    price = np.exp(moved[:, [sold[r.provider, r.purchase] for r in rows]] * spread)
    count = np.array([r.count for r in rows])
    asked = demand[:, owner]
    loaded = np.where(asked > 1, asked * np.array([min(1.0, loads.get(r.workload, 1.0)) for r in rows]), asked)
    machines = np.maximum(np.ceil(np.round(count * loaded, 6)), np.where(asked > 1, count, 1)) / count
    linear = np.array([r.workload in runs_that_end or r.purchase == API for r in rows])
    factors = {
        "demand": np.where(linear, asked, machines),
        "prices": price,
        "interruptions": np.maximum(1.0 + lost * strays.rework_hours / hours, 0.0),
        "prediction": np.exp(erred * np.where(erred > 0, up, down)),
    }
    return factors, demand


def _interruptions(row: Allotment, folder: Path | None) -> float:
    """Expected a month, of all instances."""
    if row.purchase != "spot":
        return 0.0
    rate = spot_record(row.provider, row.gpu, folder).interruptions_per_s
    return rate * HOUR_S * row.hours_per_month * row.count


def _bill(rows: Sequence[Allotment], draws: dict[str, Draws], drawn: set[str]) -> Draws:
    usd = np.array([r.usd_per_month for r in rows])
    reserved = np.array([r.purchase.startswith("reserved") or r.purchase == OWNED for r in rows])
    factor: Draws = np.ones_like(draws["demand"])
    for part in drawn:
        own = draws[part]
        if part == "prices" or not reserved.any():
            factor = factor * np.where(reserved, 1.0, own)
        else:  # what is reserved is paid anyhow; more than that is bought on top
            factor = factor * np.where(reserved, np.maximum(own, 1.0), own)
    total: Draws = (factor * usd).sum(axis=1)
    return total
