"""Where the figures of a simulation come from: what is counted of which requests, over which steps, at which price."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING

from flopwise.origin import COUNTED, error_ends, estimate_of, interval
from flopwise.provenance import Figure, Kind, setting, term, walk, with_kinds
from flopwise.serving.estimate import estimate
from flopwise.serving.explain import serve_figure
from flopwise.units import HOUR_S
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.serving.sim.answer import SimulateAnswer

LATENCIES = {
    "ttft_s": ("TTFT", "from its arrival to its first token"), "tpot_s": ("TPOT", "for each token after the first"),
    "itl_s": ("between tokens", "between two tokens"), "e2e_s": ("whole request", "from its arrival to its last token"),
}  # fmt: skip
ALONE = ("mean step", "cache budget per GPU", "memory per GPU", "price per device and hour")
"""Figures of the estimate of one replica that a run rests on."""
_SAME = 1e-6
"""Relative difference up to which two ways to a figure agree."""


class SimulatedFigureTree:
    """The tree of a run: percentiles, shares, load and cost."""

    def __init__(self, answer: SimulateAnswer) -> None:
        """Over the estimate of a replica with as many sequences as ran on average."""
        self.answer, self.summary = answer, answer.summary
        running = max(1, round(answer.summary.mean_running / max(answer.replicas, 1)))
        alone = serve_figure(estimate(replace(answer.job, concurrency=running, arrivals_per_s=None)))
        self.known = {one.name: one for one in walk(alone) if one.name in ALONE}
        self.requests = setting("requests that arrive", answer.summary.requests)
        self.step = [self.known["mean step"]] if "mean step" in self.known else []

    def tree(self) -> Figure:
        """The root over all figures."""
        job = self.answer.job
        name = f"{job.model.name} on {self.answer.replicas} replicas of {job.cluster.accelerator.name}"
        usual: dict[str, Kind] = {} if job.memory_frac is not None else {"memory fraction": "default"}
        return with_kinds(estimate_of(name, self.figures()), usual)

    def figures(self) -> Iterator[Figure]:
        """All of them."""
        summary = self.summary
        what = f"{COUNTED}: requests that are played through every step of the engine"
        answered = term("answered", summary.completed, "", what, self.requests, *self.step)
        yield answered
        for key, (name, meaning) in LATENCIES.items():
            for percentile, value in getattr(summary, key)._asdict().items():
                if isfinite(value):
                    formula = f"{COUNTED}: time {meaning}; {percentile} of those that were answered"
                    one = term(f"{name} {percentile}", value, "s", formula, answered, *self.step)
                    yield one
                    yield from self._ends(one, key, percentile)
        limits = [setting(f"limit of {name}", limit, "s") for name, limit in self.answer.slo._asdict().items() if limit]
        formula = f"{COUNTED}: requests that keep to every limit, of all that arrive"
        yield term("within all targets", summary.goodput_frac, "frac", formula, self.requests, *limits)
        yield term("busy", summary.utilisation_frac, "frac", f"{COUNTED}: time in steps / time switched on", *self.step)
        budget = [self.known[name] for name in ("cache budget per GPU",) if name in self.known]
        for name, share in (("cache at most", summary.kv_peak_frac), ("cache on average", summary.kv_mean_frac)):
            yield term(name, share, "frac", f"{COUNTED}: blocks in use / blocks of the cache", *budget)
        for name, count in (("running", summary.mean_running), ("waiting", summary.mean_queue)):
            formula = f"{COUNTED}: requests that are {name}, over the time of the run"
            yield term(f"{name} on average", count, "requests", formula, answered, *self.step)
        yield from self._bill()

    def _ends(self, one: Figure, key: str, percentile: str) -> Iterator[Figure]:
        """The interval of a percentile, where it has one."""
        ends, band = self.answer.intervals.get(key, {}).get(percentile), self.answer.bands.get(key)
        if ends is None:
            return
        if band is not None:
            yield from interval(one.name, one, band, *ends)
            return
        errors = [ratio for each in self.answer.bands.values() for ratio in error_ends(each)]
        for word, end in zip(("low", "high"), ends, strict=True):
            formula = "error model: the first token and the rest, each over or times its errors"
            yield term(f"{one.name}, {word}", end, "s", formula, one, *errors)

    def _bill(self) -> Iterator[Figure]:
        """Hours of replicas, and what they cost."""
        answer, summary = self.answer, self.summary
        count, time = Figure("replicas", answer.replicas, kind="chosen"), answer.simulated.paid_s
        lasted = term("time that is paid", time, "s", f"{COUNTED}: from the start to the last answer or arrival")
        formula = f"{count.name} x {lasted.name} / {HOUR_S:g}"
        if abs(summary.replica_hours - answer.replicas * time / HOUR_S) > _SAME * summary.replica_hours:
            formula = f"{COUNTED}: hours of each replica while it is switched on"
        hours = term("replica-hours", summary.replica_hours, "h", formula, count, lasted)
        yield hours
        price = self.known.get("price per device and hour")
        if price is None or answer.usd_per_hour is None or answer.cost_usd is None:
            return
        gpus, each = setting("GPUs of a replica", answer.gpus_per_replica), answer.usd_per_hour / answer.replicas
        formula = f"{price.name} x {gpus.name}"
        if abs(each - float(price.value or 0.0) * answer.gpus_per_replica) > _SAME * each:
            formula = f"{COUNTED}: {formula}, and the rest of its machine where that stands idle"
        one = term("price of a replica", each, "USD/h", formula, price, gpus)
        formula = f"{hours.name} x {one.name}"
        if answer.beside_usd:
            usd = sum(answer.beside_usd.values())
            beside = term("stores and caches", usd, "USD", f"{COUNTED}: bytes x price x time")
            yield term("cost of the run", answer.cost_usd, "USD", f"{formula} + {beside.name}", hours, one, beside)
        else:
            yield term("cost of the run", answer.cost_usd, "USD", formula, hours, one)
