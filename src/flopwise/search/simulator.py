"""Deployments through the simulator before they are recommended: their requests, and the percentiles that result."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flopwise.facts.models.positions import longest as longest_sequence
from flopwise.search.answer import SimulatedFigures
from flopwise.search.deployments import DEGREES
from flopwise.search.serving_option import LATENCIES, latency_targets
from flopwise.search.workload_traffic import busiest
from flopwise.serving.sim.engine import ENDLESS, Replica, replica
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.trace import PS, RequestTrace, read_trace_columns, trace

if TYPE_CHECKING:
    from flopwise.ops.types import Array
    from flopwise.search.deployments import Deployments
    from flopwise.search.serving_option import ServingOption
    from flopwise.search.workload import Resolved
    from flopwise.search.workload_traffic import Arriving
    from flopwise.serving.sim.result import SimulatedRun

MOST_REPLICAS = 8
"""Replicas that are run side by side; of more, so many stand for all, with their share of the traffic."""
PERCENTILES = {"mean": None, "p50": 50, "p90": 90, "p95": 95, "p99": 99}
SEED = 0
FEWEST, MOST = 2000, 12000
"""Requests that percentiles are taken of."""
LIFETIMES = 15
"""Requests that are measured, in those that are in flight at once."""
LONGEST_LIFETIME_S = 600.0
"""Of a request, for the number of requests that come before those that are measured."""


class Requests(NamedTuple):
    """A trace, and of which of its requests percentiles are taken: not of those that find the replicas still empty."""

    trace: RequestTrace
    first: int
    last: int
    users: int | None


def drawn_requests(
    flow: Arriving, *, rate: float | None, users: int | None, lifetime_s: float, seed: int = SEED
) -> Requests:
    """Requests at `rate` a second, or of so many `users`; each is answered within about `lifetime_s`.

    Raises:
        SpecError: a trace file that cannot be read any more.
    """
    if users is not None:
        count = max(int(np.clip(LIFETIMES * users, FEWEST, MOST)), 4 * users)
        source = Traffic(users=users, requests=count + users, **_lengths(flow), seed=seed)
        return Requests(source.drawn(), users, count, users)
    assert rate is not None
    if flow.trace is not None:
        stretch = _busiest_stretch(flow.trace, flow, rate, seed)
        warm = int(np.searchsorted(stretch.arrival_ps, lifetime_s * PS))
        return Requests(stretch, warm if warm < len(stretch) // 2 else 0, len(stretch), None)
    warm = max(int(rate * lifetime_s * 1.5), 1)
    count = int(np.clip(LIFETIMES * rate * lifetime_s, FEWEST, MOST))
    source = Traffic(
        rate=rate, requests=warm + count + warm // 2, arrivals=flow.arrivals, burstiness=flow.burstiness,
        **_lengths(flow), seed=seed,
    )  # fmt: skip
    requests = source.drawn()
    return Requests(requests, warm, min(warm + count, len(requests)), None)


def batch_requests(flow: Arriving, count: int, seed: int = SEED) -> RequestTrace:
    """So many requests of a batch job, all there at the start."""
    if flow.trace is not None:
        columns = read_trace_columns(Path(flow.trace))
        rows = np.resize(np.arange(columns["arrival_s"].size), count)
        return trace(np.zeros(count), columns["prompt_tokens"][rows], columns["output_tokens"][rows])
    return Traffic(users=1, requests=count, **_lengths(flow), seed=seed).drawn()


def _lengths(flow: Arriving) -> dict[str, Any]:
    return {"input_tokens": flow.inputs or flow.input_tokens, "output_tokens": flow.outputs or flow.output_tokens}


def _busiest_stretch(path: str, flow: Arriving, rate: float, seed: int) -> RequestTrace:
    """The busiest stretch of a trace at its own times, so many of its requests (at random) that they come at `rate`."""
    columns = read_trace_columns(Path(path))
    first, last = busiest(columns["arrival_s"])
    columns = {name: column[first:last] for name, column in columns.items() if name != "deadline_s"}
    assert flow.requests_per_s is not None
    measured_s = columns["arrival_s"] - columns["arrival_s"][0]
    columns["arrival_s"] = measured_s * ((last - first - 1) / float(measured_s[-1]) / flow.requests_per_s)
    whole = trace(**columns)
    share = min(rate / flow.requests_per_s, 1.0)
    if share < 1.0:
        kept = np.flatnonzero(np.random.default_rng(seed).random(len(whole)) < share)
        whole = whole.take(kept) if kept.size > 1 else whole
    return whole


def machine_key(option: ServingOption, row: int) -> Hashable:
    """What a replica's speed depends on; offers with the same key are run once."""
    job, fabric, chip = option.job(row), option.node.cluster.fabric, option.node.cluster.accelerator
    inside = int(job.layout.num_gpus) <= option.node.count
    degrees = (int(getattr(job.layout, name)) for name in DEGREES)
    return (
        chip.name, chip.hbm_bytes, chip.hbm_bytes_per_s, fabric.levels[:-1] if inside else fabric.levels,
        job.weights.name, job.kv_dtype.name, job.max_batch, *degrees,
    )  # fmt: skip


@dataclass(slots=True)
class Simulator:
    """Runs deployments of one workload, each once."""

    workload: Resolved
    seed: int = SEED
    on_compile: Callable[[], None] | None = None  # called where the simulator must be compiled first
    runs: int = 0
    estimates: dict[Hashable, Deployments] = field(default_factory=dict)  # of more replicas than the traffic takes
    _figures: dict[Hashable, SimulatedFigures] = field(default_factory=dict)
    _replicas: dict[Hashable, Replica] = field(default_factory=dict)
    _requests: dict[Hashable, Requests] = field(default_factory=dict)

    def run(self, option: ServingOption, row: int) -> SimulatedFigures:
        """Percentiles of latencies, as the workload's users see them, of one row of an option.

        Raises:
            InfeasibleError: no room for a sequence; SpecError, MissingFactError: the simulator cannot run this model.
        """
        key = (machine_key(option, row), float(option.found.replicas[row]))
        if key not in self._figures:
            job = self.workload.task == "batch"
            self._figures[key] = self._run_batch(option, row) if job else self._run_service(option, row)
            self.runs += 1
        return self._figures[key]

    def _replica(self, option: ServingOption, row: int, requests: RequestTrace) -> Replica:
        mean = self.workload.input_tokens + self.workload.output_tokens
        made = option.model.max_position
        window = made if made is None or mean <= made else longest_sequence(option.model)
        longest = int((requests.prompt + requests.output).max())
        longest = longest if window is None else min(longest, window)
        key = (machine_key(option, row), longest)
        if key not in self._replicas:
            built = replica(option.job(row), context=mean, max_tokens=max(longest, mean))
            prefixes = bool((requests.prefix >= 0).any())
            limits = replace(built.limits, max_tokens=window or ENDLESS, prefix_cache=prefixes)
            self._replicas[key] = replace(built, limits=limits)
        return self._replicas[key]

    def _run(
        self, option: ServingOption, row: int, requests: RequestTrace, *, replicas: int = 1, **traffic: Any
    ) -> SimulatedRun:
        one = self._replica(option, row, requests)
        return simulate(
            requests, one.cost, one.limits, replicas=replicas * one.schedulers, samples=1,
            on_compile=self.on_compile, **traffic,
        )  # fmt: skip

    def _run_service(self, option: ServingOption, row: int) -> SimulatedFigures:
        workload, found = self.workload, option.found
        count = int(found.replicas[row])
        replicas = min(count, MOST_REPLICAS)
        rate: float | None = None
        users: int | None = int(found.batch[row] * found.dp[row]) * replicas
        if workload.requests_per_s is not None:
            rate, users = workload.requests_per_s * replicas / count, None
        elif workload.concurrency is not None:
            users = -(-workload.concurrency * replicas // count)
        lifetime_s = min(float(found.e2e_s[row]), LONGEST_LIFETIME_S)
        key = (rate, users, round(lifetime_s, 1))
        if key not in self._requests:
            self._requests[key] = drawn_requests(
                workload.arriving, rate=rate, users=users, lifetime_s=lifetime_s, seed=self.seed
            )
        requests = self._requests[key]
        run = self._run(option, row, requests.trace, replicas=replicas, users=requests.users, balancer="least-loaded")
        return _figures(run, workload, slice(requests.first, requests.last), replicas)

    def _run_batch(self, option: ServingOption, row: int) -> SimulatedFigures:
        """A batch job: exactly where it is short, else its beginning, and the rest at the pace reached then.

        Source: the time of twice as many requests less that of so many leaves out filling and emptying the batch.
        Assumes: each replica has an even share, all there from the start.
        """
        workload, found = self.workload, option.found
        assert workload.requests is not None
        each = int(np.ceil(workload.requests / float(found.replicas[row])))
        begin = max(4 * int(found.batch[row] * found.dp[row]), 500)
        counts = [each] if each <= 2 * begin else [begin, 2 * begin]
        seconds: list[float] = []
        for count in counts:
            run = self._run(option, row, batch_requests(workload.arriving, count, self.seed))
            seconds.append(run.end_ps / PS)
        whole = seconds[-1] + (each - counts[-1]) * (seconds[-1] - seconds[0]) / max(counts[-1] - counts[0], 1)
        return _figures(run, workload, slice(0, counts[-1]), 1, seconds=whole)


def _figures(
    run: SimulatedRun, workload: Resolved, rows: slice, replicas: int, *, seconds: float | None = None
) -> SimulatedFigures:
    """Percentiles over some of the requests."""
    from flopwise.serving.sim.result import Slo  # noqa: PLC0415 - beside its only use

    limits = {LATENCIES[name]: None if t is None else t.seconds for name, t in latency_targets(workload).items()}
    good = run.good(Slo(**limits))[rows]
    shares: dict[str, Any] = {
        name: {percentile: _percentile(getattr(run, name)[rows], percentile) for percentile in PERCENTILES}
        for name in LATENCIES.values()
    }
    summary, busy_ps = run.summary(), int(run.totals.busy_ps.sum())
    return SimulatedFigures(
        **shares,
        goodput_frac=float(good.mean()) if any(limits.values()) and good.size else None,
        requests=len(good),
        replicas=replicas,
        dropped=summary.dropped,
        preemptions=summary.preemptions,
        utilisation_frac=busy_ps / max(run.end_ps * len(run.totals.busy_ps), 1),
        kv_peak_frac=summary.kv_peak_frac,
        seconds=seconds,
    )


def _percentile(values: Array, percentile: str) -> float | None:
    """A percentile by name, or the mean, of the values that are not NaN; None without any."""
    there, share = values[~np.isnan(values)], PERCENTILES[percentile]
    if not there.size:
        return None
    return float(there.mean() if share is None else np.percentile(there, share))
