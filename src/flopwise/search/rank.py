"""From searched and timed layouts to ranked candidates: targets, probabilities, the front, the nearest misses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.intervals import ErrorBand
from flopwise.search.answer import Candidate
from flopwise.search.pareto import pareto_front
from flopwise.search.training import Searched, Timed
from flopwise.training.layout import COLUMNS, RECOMPUTE
from flopwise.training.memory import memory_band
from flopwise.training.schedules import NAMES

if TYPE_CHECKING:
    from flopwise.search.nodes import NodeKind, Priced
    from flopwise.search.workload import Resolved

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Option:
    """One kind of node bought one way, with the rows that fit it."""

    job: Searched
    node: NodeKind
    result: Timed
    priced: Priced
    band: ErrorBand

    @property
    def usd_per_hour(self) -> Floats:
        """Price of all instances of each row, USD per hour."""
        hourly: Floats = self.priced.usd_per_hour * (self.result.num_gpus // self.node.count)
        return hourly

    @property
    def cost_usd(self) -> Floats:
        """Cost of each row's run."""
        cost: Floats = self.result.run_s / 3600 * self.usd_per_hour
        return cost

    @property
    def energy_joules(self) -> Floats:
        """Energy of each row's run at the meter; infinite where the device's power limit is not known."""
        energy: Floats = self.result.run_s * self.result.watts
        return energy

    @property
    def objectives(self) -> tuple[Floats, Floats, Floats, Floats]:
        """What each row is weighed by: cost, time, devices and energy (the largest number where it is not known)."""
        known = np.minimum(self.energy_joules, np.finfo(float).max)
        return self.cost_usd, self.result.run_s, self.result.num_gpus.astype(float), known


def at_most(option: Option, run_s: Floats, limit_s: float | Floats) -> Floats:
    """Probability that a run predicted to take `run_s` takes at most `limit_s`.

    The band is of throughput, measured / predicted: time at most t means throughput at least predicted time / t.
    """
    return np.asarray(1.0 - option.band.probability_at_most(1.0, run_s / limit_s))


def odds(option: Option, workload: Resolved) -> dict[str, Floats]:
    """Probability, for each target and row, that it is met."""
    run_s = option.result.run_s
    held = option.result.memory_bytes
    capacity = float(option.node.cluster.accelerator.hbm_bytes)
    band = memory_band(option.job.recipe, option.node.cluster.accelerator.calibration)
    fits: Floats = np.asarray(band.probability_at_most(held, capacity))
    found: dict[str, Floats] = {"memory": fits}
    if workload.deadline_s is not None:
        found["deadline"] = at_most(option, run_s, workload.deadline_s)
    if workload.budget_usd is not None:
        found["budget"] = at_most(option, option.cost_usd, workload.budget_usd)
    if workload.tokens_per_s is not None:
        rate = option.job.recipe.useful_tokens / option.result.step_s
        found["throughput"] = np.asarray(1.0 - option.band.probability_at_most(rate, workload.tokens_per_s))
    return found


def allowed(option: Option, workload: Resolved, met: dict[str, Floats]) -> NDArray[np.bool_]:
    """Rows that meet every target with the asked confidence and stay under the hourly limit."""
    keep = np.ones(option.result.rows.size, dtype=bool)
    for probability in met.values():
        keep &= probability >= workload.confidence
    if workload.max_usd_per_hour is not None:
        keep &= option.usd_per_hour <= workload.max_usd_per_hour
    return keep & (option.result.num_gpus >= workload.min_gpus)


def score(option: Option, objective: str) -> Floats:
    """What is minimised: cost, time or energy."""
    if objective == "time":
        return option.result.run_s
    if objective == "energy":
        return option.energy_joules
    return option.cost_usd


def best_row(option: Option, workload: Resolved, keep: NDArray[np.bool_]) -> int | None:
    """The row that is best under the objective among those kept; ties go to the faster, then to fewer GPUs."""
    rows = np.flatnonzero(keep)
    if not rows.size:
        return None
    keys = (option.result.num_gpus[rows], option.result.run_s[rows], score(option, workload.source.objective)[rows])
    return int(rows[np.lexsort(keys)[0]])


def shortfalls(option: Option, workload: Resolved) -> dict[str, Floats]:
    """How many times its limit the figure of each target is, for each row: above 1 it misses."""
    found: dict[str, Floats] = {}
    if workload.deadline_s is not None:
        found["deadline"] = option.result.run_s / workload.deadline_s
    if workload.budget_usd is not None:
        found["budget"] = option.cost_usd / workload.budget_usd
    if workload.max_usd_per_hour is not None:
        found["max_usd_per_hour"] = option.usd_per_hour / workload.max_usd_per_hour
    if workload.tokens_per_s is not None:
        rate = option.job.recipe.useful_tokens / option.result.step_s
        found["throughput"] = workload.tokens_per_s / rate
    return found


def nearest_miss(option: Option, workload: Resolved) -> tuple[float, int] | None:
    """(shortfall, row) of the row that misses its worst target by least; None without rows."""
    if not option.result.rows.size:
        return None
    short = np.zeros(option.result.rows.size)
    for times in shortfalls(option, workload).values():
        short = np.maximum(short, times)
    row = int(short.argmin())
    return float(short[row]), row


def cheaper_misses(
    options: list[Option], workload: Resolved, cost_usd: float, most: int = 3
) -> list[tuple[Option, int, dict[str, Floats]]]:
    """Of rows cheaper than `cost_usd` that a target forbids, the nearest on each kind of device; nearest first."""
    found: dict[str, tuple[float, Option, int, dict[str, Floats]]] = {}
    for option in options:
        met = odds(option, workload)
        rows = np.flatnonzero((option.cost_usd < cost_usd) & ~allowed(option, workload, met))
        if not rows.size:
            continue
        likely = np.min(np.stack([p[rows] for p in met.values()]), axis=0)
        best = int(likely.argmax())
        name = option.node.cluster.accelerator.name
        if name not in found or -float(likely[best]) < found[name][0]:
            found[name] = (-float(likely[best]), option, int(rows[best]), met)
    ordered = sorted(found.values(), key=lambda entry: entry[0])[:most]
    return [(option, row, met) for _, option, row, met in ordered]


def candidate(option: Option, workload: Resolved, row: int, met: dict[str, Floats], rank: int) -> Candidate:
    """The candidate of one row."""
    job, result, node, offer = option.job, option.result, option.node, option.priced.offer
    layout = job.space.layout(int(result.rows[row]))
    gpus = int(result.num_gpus[row])
    device = node.cluster.accelerator
    energy = float(option.energy_joules[row])
    tokens = job.recipe.useful_tokens
    step_s = float(result.step_s[row])
    return Candidate(
        rank=rank,
        provider=offer.provider,
        region=offer.region,
        instance=offer.instance,
        num_instances=gpus // node.count,
        gpu=device.name,
        num_gpus=gpus,
        purchase=option.priced.purchase,
        layout={
            **{name: int(value) for name, value in zip(COLUMNS, layout.columns, strict=True)},
            "schedule": NAMES[int(layout.schedule)],
            "recompute": RECOMPUTE[int(layout.recompute)], "precision": job.recipe.precision,
            "global_batch": int(job.recipe.global_batch), "seq_len": int(job.recipe.seq_len),
            "stack": job.recipe.stack.name,
            "optimizer": job.recipe.optimizer.name,
            **({"offload": list(job.space.offload)} if job.space.offload else {}),
        },
        seconds=float(result.run_s[row]),
        usd_per_hour=float(option.usd_per_hour[row]),
        cost_usd=float(option.cost_usd[row]),
        energy_joules=energy if np.isfinite(energy) else None,
        meets={name: round(float(p[row]), 4) for name, p in met.items()},
        figures={
            "step_s": step_s,
            "tokens_per_s": tokens / step_s,
            "tokens_per_s_per_gpu": tokens / step_s / gpus,
            "gpu_hours": float(result.run_s[row]) / 3600 * gpus,
        },
        memory_bytes=float(result.memory_bytes[row]),
        capacity_bytes=float(device.hbm_bytes),
        price_date=offer.price_date,
        price_source=offer.source,
        shortfall={name: float(times[row]) for name, times in shortfalls(option, workload).items()},
    )  # fmt: skip


def front_rows(options: list[Option], workload: Resolved) -> list[tuple[Option, int]]:
    """The rows, over all options, that no other beats in cost, time, devices and energy at once; cheapest first."""
    points, owners, rows = [], [], []
    for index, option in enumerate(options):
        keep = np.flatnonzero(option.result.num_gpus >= workload.min_gpus)
        held = np.stack([each[keep] for each in option.objectives])
        own = pareto_front(*held)
        points.append(held[:, own])
        rows.append(keep[own])
        owners.append(np.full(own.size, index))
    if not points:
        return []
    all_rows, all_owners = np.concatenate(rows), np.concatenate(owners)
    front = pareto_front(*np.concatenate(points, axis=1))
    return [(options[int(all_owners[i])], int(all_rows[i])) for i in front]
