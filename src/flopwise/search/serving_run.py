"""One deployment through the simulator: its percentiles under the workload's traffic."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from flopwise.facts.models.positions import longest as longest_sequence
from flopwise.search.answer import Simulated
from flopwise.search.serving_requests import SEED, Requests, drawn, waiting
from flopwise.search.serving_techniques import job_of
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.engine import ENDLESS, Replica, replica
from flopwise.serving.sim.simulate import Engine, simulate

if TYPE_CHECKING:
    from flopwise.ops.types import Array
    from flopwise.search.serving import Deployments
    from flopwise.search.serving_option import Option
    from flopwise.search.workload import Resolved
    from flopwise.serving.job import ServeJob
    from flopwise.serving.sim.result import SimulatedRun as Run
    from flopwise.serving.sim.trace import RequestTrace

MOST_REPLICAS = 8
"""Replicas that are run side by side; of more, so many stand for all, with their share of the traffic."""
ENGINE: Engine = "fast"
NAMED = {"mean": None, "p50": 50, "p90": 90, "p95": 95, "p99": 99}


def at(values: Array, percentile: str) -> float:
    """A percentile by name, or the mean, of the numbers that are there; NaN where there are none."""
    there = values[~np.isnan(values)]
    share = NAMED[percentile]
    if not there.size:
        return float("nan")
    return float(there.mean() if share is None else np.percentile(there, share))


def option_job(option: Option, row: int) -> ServeJob:
    """The job of one replica of one row of an option."""
    found = option.found
    layout = ServingLayout(**{name: int(getattr(found, name)[row]) for name in ("tp", "pp", "ep", "dp")})
    job = job_of(option.workload, option.model, option.node.cluster, found.weights, layout)
    return replace(job, kv_dtype=option.kv_dtype, max_batch=max(1, int(found.batch[row])))


def machine_key(option: Option, row: int) -> Hashable:
    """What a replica's speed depends on: offers of the same devices and links are run once."""
    job, cluster = option_job(option, row), option.node.cluster
    levels = cluster.fabric.levels
    inside = int(job.layout.num_gpus) <= option.node.count
    chip = cluster.accelerator
    return (
        chip.name, chip.hbm_bytes, chip.hbm_bytes_per_s, levels[:-1] if inside else levels, job.weights, job.kv_dtype,
        job.max_batch, *(int(v) for v in (job.layout.tp, job.layout.pp, job.layout.ep, job.layout.dp)),
    )  # fmt: skip


@dataclass(slots=True)
class Simulator:
    """Runs deployments of one workload; what has been run is kept."""

    workload: Resolved
    engine: Engine = ENGINE
    seed: int = SEED
    on_compile: Callable[[], None] | None = None  # called where the simulator must be compiled first
    runs: int = 0
    estimates: dict[Hashable, Deployments] = field(default_factory=dict)  # of more replicas than the traffic takes
    _kept: dict[Hashable, Simulated] = field(default_factory=dict)
    _replicas: dict[Hashable, Replica] = field(default_factory=dict)
    _requests: dict[Hashable, Requests] = field(default_factory=dict)

    def run(self, option: Option, row: int) -> Simulated:
        """What the workload's users see of one row of an option.

        Raises:
            InfeasibleError: no room for a sequence; SpecError, MissingFactError: the simulator cannot run this model.
        """
        key = (machine_key(option, row), float(option.found.replicas[row]))
        if key not in self._kept:
            job = self.workload.source.task == "batch"
            self._kept[key] = self._job(option, row) if job else self._service(option, row)
            self.runs += 1
        return self._kept[key]

    def _replica(self, option: Option, row: int, trace: RequestTrace) -> Replica:
        mean = self.workload.input_tokens + self.workload.output_tokens
        made = option.model.max_position
        window = made if made is None or mean <= made else longest_sequence(option.model)
        longest = int((trace.prompt + trace.output).max())
        longest = longest if window is None else min(longest, window)
        key = (machine_key(option, row), longest)
        if key not in self._replicas:
            built = replica(option_job(option, row), context=mean, max_tokens=max(longest, mean))
            limits = replace(built.limits, max_tokens=window or ENDLESS, prefix_cache=bool((trace.prefix >= 0).any()))
            self._replicas[key] = replace(built, limits=limits)
        return self._replicas[key]

    def _service(self, option: Option, row: int) -> Simulated:
        workload, found = self.workload, option.found
        count = int(found.replicas[row])
        run = min(count, MOST_REPLICAS)
        rate = None if workload.requests_per_s is None else workload.requests_per_s * run / count
        users = None if rate is not None or workload.concurrency is None else -(-workload.concurrency * run // count)
        if rate is None and users is None:
            users = int(found.batch[row] * found.dp[row]) * run
        lifetime = min(float(found.e2e_s[row]), 600.0)
        key = (rate, users, round(lifetime, 1))
        if key not in self._requests:
            self._requests[key] = drawn(workload.arriving, rate=rate, users=users, lifetime_s=lifetime, seed=self.seed)
        asked = self._requests[key]
        made = self._replica(option, row, asked.trace)
        result = simulate(
            asked.trace, made.cost, made.limits, replicas=run * made.schedulers, balancer="least-loaded",
            users=asked.users, engine=self.engine, samples=1, on_compile=self.on_compile,
        )  # fmt: skip
        return _figures(result, workload, slice(asked.first, asked.last), run)

    def _job(self, option: Option, row: int) -> Simulated:
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
            trace = waiting(workload.arriving, count, self.seed)
            made = self._replica(option, row, trace)
            result = simulate(
                trace, made.cost, made.limits, replicas=made.schedulers, engine=self.engine, samples=1,
                on_compile=self.on_compile,
            )  # fmt: skip
            seconds.append(result.end_ps / 1e12)
        whole = seconds[-1] + (each - counts[-1]) * (seconds[-1] - seconds[0]) / max(counts[-1] - counts[0], 1)
        return _figures(result, workload, slice(0, counts[-1]), 1, seconds=whole)


def _figures(result: Run, workload: Resolved, rows: slice, run: int, *, seconds: float | None = None) -> Simulated:
    """Percentiles over some of the requests."""
    from flopwise.serving.sim.result import Slo  # noqa: PLC0415 - beside its only use

    limits = {"ttft_s": workload.ttft, "tpot_s": workload.tpot, "e2e_s": workload.latency}
    good = result.good(Slo(**{name: None if t is None else t.seconds for name, t in limits.items()}))[rows]
    columns = {"ttft_s": result.ttft_s[rows], "tpot_s": result.tpot_s[rows], "e2e_s": result.e2e_s[rows]}
    shares: dict[str, Any] = {name: {p: _known(at(values, p)) for p in NAMED} for name, values in columns.items()}
    summary, busy_ps = result.summary(), int(result.totals.busy_ps.sum())
    return Simulated(
        **shares,
        goodput_frac=float(good.mean()) if any(limits.values()) and good.size else None,
        requests=len(good),
        replicas=run,
        dropped=summary.dropped,
        preemptions=summary.preemptions,
        utilisation_frac=busy_ps / max(result.end_ps * len(result.totals.busy_ps), 1),
        kv_peak_frac=summary.kv_peak_frac,
        seconds=seconds,
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value
