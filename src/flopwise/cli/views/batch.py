"""A queue on spot workers, on the screen: when it is done, what it costs, how many workers; and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import questions
from flopwise.cli.render import Screen, bars, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.serving.sim.batch_queue import BatchAnswer, WorkersForecast

SHARES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))
BINS = 12


def document(found: BatchAnswer) -> dict[str, Any]:
    """The queue as JSON."""
    done, job = found.outcome, found.job
    counts, edges = histogram(found)
    return {
        "model": job.model.name,
        "gpu": job.cluster.accelerator.name,
        "requests": found.queue.requests,
        "workers": found.queue.workers,
        "num_gpus": found.queue.workers * int(job.layout.num_gpus),
        "requests_per_s_per_worker": found.queue.requests_per_s,
        "completion_s": {name: done.percentile("seconds", share) for name, share in SHARES},
        "cost_usd": {name: done.percentile("usd", share) for name, share in SHARES} | {"mean": float(done.usd.mean())}
        if found.priced
        else None,
        "deadline_s": found.queue.deadline_s,
        "deadline_probability": done.met_frac,
        "interruptions": float(done.interruptions.mean()),
        "fell_back_frac": float(done.fell_back.mean()) if found.queue.fallback_workers else None,
        "useful_frac": found.long_run_frac,
        "on_demand": _row(found.on_demand),
        "fewest_on_demand": None if found.fewest_on_demand is None else _row(found.fewest_on_demand),
        "sweep": [_row(one) for one in found.sweep],
        "histogram": {"edges_s": edges, "trials": counts},
        "settings": dict(found.settings),
        "assumptions": list(found.assumptions),
    }


def _row(one: WorkersForecast) -> dict[str, Any]:
    return {
        "workers": one.workers,
        "p50_s": one.p50_s,
        "p95_s": one.p95_s,
        "deadline_probability": one.met_frac,
        "mean_cost_usd": one.mean_usd,
    }


def histogram(found: BatchAnswer) -> tuple[list[int], list[float]]:
    """(trials, edges in seconds) of the time until the queue is empty; the slowest hundredth is in the last bin."""
    import numpy as np

    seconds = found.outcome.seconds
    top = float(np.quantile(seconds, 0.99))
    low = float(seconds.min())
    counts, edges = np.histogram(np.minimum(seconds, top), bins=BINS, range=(low, max(top, low * (1 + 1e-6))))
    return counts.tolist(), [*edges[:-1].tolist(), float(max(seconds.max(), edges[-1]))]


def blocks(found: BatchAnswer, paper: Screen) -> Iterator[str]:
    """The queue as people read it."""
    done, work, second = found.outcome, found.queue, units.format_seconds
    yield heading(f"{work.requests:,.0f} requests to {found.job.model.name} on {work.workers:,} spot workers", paper)
    yield pairs(found.settings, paper)
    usd = [units.format_usd(done.percentile("usd", share)) if found.priced else None for _, share in SHARES]
    yield table(
        ["", *(f">{name}" for name, _ in SHARES)],
        [["done after", *(second(done.percentile("seconds", share)) for _, share in SHARES)], ["cost", *usd]],
        paper,
    )
    told = [
        ("interruptions", f"{float(done.interruptions.mean()):,.3g} on average"),
        ("useful", f"{units.format_percent(found.long_run_frac)} of a spot worker's time in the long run"),
    ]
    if done.met_frac is not None:
        told.insert(0, ("deadline", f"met with {units.format_percent(done.met_frac)} probability"))
    if work.fallback_workers:
        told.append(("fell back", f"in {units.format_percent(float(done.fell_back.mean()))} of the trials"))
    yield pairs(told, paper)
    yield heading("Time until the queue is empty, trials", paper)
    counts, edges = histogram(found)
    yield bars([(f"to {second(end)}", n, f"{n:,}") for n, end in zip(counts, edges[1:], strict=True)], paper)
    yield heading("Other numbers of workers", paper)
    others = [found.on_demand, *([found.fewest_on_demand] if found.fewest_on_demand else [])]
    yield table(
        ["", ">workers", ">p50", ">p95", ">deadline met", ">mean cost"],
        [
            (
                one.name, one.workers, second(one.p50_s), second(one.p95_s),
                None if one.met_frac is None else units.format_percent(one.met_frac), questions.price(one.mean_usd),
            )
            for one in (*found.sweep, *others)
        ],
        paper,
    )  # fmt: skip
    yield _advice(found)
    yield questions.assumption_list(found.assumptions)


def _advice(found: BatchAnswer) -> str:
    """The cheapest way of the tables that meets the deadline in nine of ten cases."""
    from flopwise.serving.sim.batch_queue import CONFIDENCE

    if found.queue.deadline_s is None:
        return ""
    rows = [*found.sweep, found.on_demand, *([found.fewest_on_demand] if found.fewest_on_demand else [])]
    good = [one for one in rows if one.met_frac is not None and one.met_frac >= CONFIDENCE]
    if not good:
        return f"None of these meets the deadline with {units.format_percent(CONFIDENCE, 0)} probability."
    best = min(good, key=lambda one: (one.mean_usd if one.mean_usd is not None else 0.0, one.workers))
    kind = "spot" if best.name == "spot" else "on-demand"
    cost = "" if best.mean_usd is None else f" for {units.format_usd(best.mean_usd)}"
    return f"Cheapest of these that meets the deadline in 9 of 10 cases: {best.workers:,} {kind} workers{cost}."
