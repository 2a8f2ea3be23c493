"""A queue of requests with a deadline on spot workers: when it is done, for how much, against on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from flopwise.cost.cluster import Cluster
from flopwise.errors import InfeasibleError, MissingFactError
from flopwise.facts.catalog import Facts
from flopwise.serving.estimate import estimate
from flopwise.serving.job import ServeEstimate, ServeJob
from flopwise.serving.sim.batch import (
    BatchOutcome,
    BatchQueue,
    fewest_on_demand,
    long_run_frac,
    on_demand,
    simulate_queue,
)
from flopwise.serving.sim.elasticity import replica_start_s
from flopwise.serving.spec import BatchRequest
from flopwise.serving.startup import DEFAULT_STORAGE
from flopwise.serving.technique_rules import technique_settings
from flopwise.units import DAY_S, format_seconds, format_usd

REPLACE_S = 300.0
"""Until another spot machine is found where nothing is said: a guess."""
SWEEP = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Workers of the table, over those asked for."""
CONFIDENCE = 0.9
"""On-demand workers are counted so that they meet the deadline with this probability, errors of the rate included."""
SWEEP_TRIALS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersForecast:
    """A number of workers: percentiles of seconds, the odds of the deadline, USD on average; None where not known."""

    name: str
    workers: int
    p50_s: float
    p95_s: float
    met_frac: float | None
    mean_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAnswer:
    """When the queue is empty and what it costs, over trials that differ in interruptions and in the rate's error."""

    job: ServeJob
    estimate: ServeEstimate  # of one worker
    queue: BatchQueue
    outcome: BatchOutcome
    long_run_frac: float  # of a spot worker's time that advances the queue
    on_demand: WorkersForecast  # as many workers that nobody takes away
    fewest_on_demand: WorkersForecast | None  # that meet the deadline in nine of ten cases; None: none do, or none set
    sweep: tuple[WorkersForecast, ...]  # over the number of spot workers
    priced: bool  # whether the prices of both are known
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMachines:
    """The machines of all workers as spot capacity and on demand, and the facts on their interruptions and drives."""

    spot: Cluster
    on_demand: Cluster
    provider: str | None
    facts: Facts


def queue_answer(
    request: BatchRequest,
    job: ServeJob,
    machines_of: Callable[[int], WorkerMachines],
    notes: tuple[str, ...],
    report: Callable[[int, int], None] | None = None,
) -> BatchAnswer:
    """The queue worked off by replicas of `job`, with as many requests in flight as their memory holds.

    `machines_of` gives the machines of a number of devices. Each trial draws the lives of the workers and, from the
    measured errors of predicted throughput, a rate.

    Raises:
        InfeasibleError: the model does not fit, or interruptions undo the work faster than it is done.
        MissingFactError: how often machines are taken back is not known.
    """
    assert request.queue is not None
    worker = estimate(job)
    if not worker.max_concurrency:
        raise InfeasibleError(f"{job.model.name} leaves no memory for a sequence of {job.context:,} tokens")
    if request.workers * worker.max_concurrency > request.queue:
        worker = estimate(replace(job, concurrency=-(-request.queue // request.workers)))
    job = worker.job
    machines = machines_of(job.num_gpus * request.workers)
    interruptions_per_s, spot_notes = _interruptions(request, machines)
    queue = _queue(request, worker, interruptions_per_s, machines)
    outcome, row = _trials(queue, worker, request, request.trials, report)
    slow = worker.throughput.band.quantile(1.0 - CONFIDENCE)
    fewest = fewest_on_demand(replace(queue, requests_per_s=queue.requests_per_s * slow))
    return BatchAnswer(
        job=job,
        estimate=worker,
        queue=queue,
        outcome=outcome,
        long_run_frac=long_run_frac(queue),
        on_demand=_constant_workers("on demand", queue, worker, queue.workers),
        fewest_on_demand=None if fewest is None else _constant_workers("on demand, the fewest", queue, worker, fewest),
        sweep=_sweep(queue, worker, request, row),
        priced=machines.spot.usd_per_gpu_hour is not None and machines.on_demand.usd_per_gpu_hour is not None,
        settings=_settings(job, queue, request, machines),
        assumptions=tuple(dict.fromkeys((*notes, *job.cluster.assumptions, *spot_notes, *_guesses(request)))),
    )


def _interruptions(request: BatchRequest, machines: WorkerMachines) -> tuple[float, tuple[str, ...]]:
    """The rate at which a spot instance is taken back, and what to say of it.

    Raises:
        MissingFactError: it is not given, and neither is a provider.
    """
    if request.spot_interruptions is not None:
        return request.spot_interruptions, ()
    offer = machines.spot.offer
    provider = offer.provider if offer is not None else machines.provider
    if provider is None:
        raise MissingFactError(
            "how often spot instances of machines without a --provider are taken back is not known; give "
            "--spot-interruptions, such as 0.1/day (0: never), or a --provider"
        )
    record = machines.facts.spot(provider, machines.spot.accelerator.name)
    return record.interruptions_per_s, (f"spot interruptions: {record.text}",)


def _queue(request: BatchRequest, worker: ServeEstimate, rate: float, machines: WorkerMachines) -> BatchQueue:
    """The queue; a worker over several instances goes with any of them, workers of one instance go together."""
    gpus, node = worker.job.num_gpus, max(machines.spot.gpus_per_node, 1)
    drive = machines.facts.storage(DEFAULT_STORAGE)
    return BatchQueue(
        requests=request.queue or 0,
        requests_per_s=worker.requests_per_s,
        workers=request.workers,
        boot_s=replica_start_s(worker.job, drive) if request.cold_start is None else request.cold_start,
        in_flight=worker.concurrency,
        interruptions_per_s=rate * -(-gpus // node),
        workers_per_instance=min(max(node // gpus, 1), request.workers),
        replace_s=REPLACE_S if request.replace_s is None else request.replace_s,
        checkpoint_every_s=request.checkpoint_every,
        checkpoint_s=request.checkpoint_time,
        deadline_s=request.deadline,
        spot_usd_per_hour=(machines.spot.usd_per_gpu_hour or 0.0) * gpus,
        on_demand_usd_per_hour=(machines.on_demand.usd_per_gpu_hour or 0.0) * gpus,
        fallback_workers=request.fallback,
    )


def _speed_factors(worker: ServeEstimate, count: int) -> list[float]:
    """True over predicted throughput: evenly spread shares of the measured errors, as far as physics allows."""
    band, most = worker.throughput.band, worker.throughput.bound
    ceiling = float("inf") if most is None else most / worker.requests_per_s
    return [min(band.quantile((place + 0.5) / count), ceiling) for place in range(count)]


def _trials(
    queue: BatchQueue,
    worker: ServeEstimate,
    request: BatchRequest,
    trials: int,
    report: Callable[[int, int], None] | None = None,
) -> tuple[BatchOutcome, WorkersForecast]:
    """The trials of one number of workers; the same draws of the rate's error for every number."""
    rng = np.random.default_rng(request.seed)
    speeds = np.array(_speed_factors(worker, trials))[rng.permutation(trials)]
    outcome = simulate_queue(queue, rng, trials=trials, speeds=speeds, report=report)
    priced = bool(queue.spot_usd_per_hour) and (bool(queue.on_demand_usd_per_hour) or not outcome.fell_back.any())
    row = WorkersForecast(
        name="spot",
        workers=queue.workers,
        p50_s=outcome.percentile("seconds", 0.5),
        p95_s=outcome.percentile("seconds", 0.95),
        met_frac=outcome.met_frac,
        mean_usd=float(outcome.usd.mean()) if priced else None,
    )
    return outcome, row


def _sweep(
    queue: BatchQueue, worker: ServeEstimate, request: BatchRequest, own: WorkersForecast
) -> tuple[WorkersForecast, ...]:
    """Other numbers of spot workers beside the one asked for."""
    counts = sorted({max(1, round(request.workers * factor)) for factor in SWEEP} - {request.workers})
    trials = min(request.trials, SWEEP_TRIALS)
    rows = [_trials(replace(queue, workers=count), worker, request, trials)[1] for count in counts]
    return tuple(sorted([own, *rows], key=lambda row: row.workers))


def _constant_workers(name: str, queue: BatchQueue, worker: ServeEstimate, workers: int) -> WorkersForecast:
    """Workers that nobody takes away: only the rate is uncertain."""
    rate, deadline = queue.requests_per_s, queue.deadline_s
    factors = _speed_factors(worker, SWEEP_TRIALS)
    runs = [on_demand(replace(queue, requests_per_s=rate * factor), workers) for factor in factors]
    seconds = [second for second, _ in runs]
    return WorkersForecast(
        name=name,
        workers=workers,
        p50_s=float(np.quantile(seconds, 0.5)),
        p95_s=float(np.quantile(seconds, 0.95)),
        met_frac=None if deadline is None else sum(s <= deadline for s in seconds) / len(seconds),
        mean_usd=sum(usd for _, usd in runs) / len(runs) if queue.on_demand_usd_per_hour else None,
    )


def _settings(
    job: ServeJob, queue: BatchQueue, request: BatchRequest, machines: WorkerMachines
) -> tuple[tuple[str, str], ...]:
    gpus, every = job.num_gpus, queue.checkpoint_every_s
    rate, together = queue.interruptions_per_s, queue.workers_per_instance
    what = "worker" if together == 1 else f"instance of {together:,} workers, which go together"

    def price(cluster: Cluster) -> str:
        if cluster.usd_per_gpu_hour is None:
            return "price unknown"
        whose = cluster.price_source.partition(",")[0] or "given"
        return f"{format_usd(cluster.usd_per_gpu_hour * gpus)} a worker and hour ({whose})"

    return (
        ("workers", f"{queue.workers:,} x {gpus} {job.cluster.accelerator.name}, spot"),
        ("weights", f"{job.weights.name}; KV cache {job.kv_dtype.name}; engine {job.engine.name}"),
        *technique_settings(job),
        ("lengths", f"{job.input_tokens:,} tokens in, {job.output_tokens:,} out on average"),
        ("a worker", f"{queue.requests_per_s:,.3g} requests/s with {queue.in_flight:,.0f} in flight"),
        ("taken back", f"{rate * DAY_S:,.3g} a day and {what}; the next one after {format_seconds(queue.replace_s)}"),
        ("boot", format_seconds(queue.boot_s)),
        ("progress", "requests in flight start anew" if every is None else f"saved every {format_seconds(every)}"),
        ("deadline", "none" if queue.deadline_s is None else format_seconds(queue.deadline_s)),
        ("fallback", f"{request.fallback:,} on-demand workers" if request.fallback else "none"),
        ("spot", price(machines.spot)),
        ("on demand", price(machines.on_demand)),
    )


def _guesses(request: BatchRequest) -> tuple[str, ...]:
    """What is assumed where nothing is said."""
    guesses = []
    if request.cold_start is None:
        guesses.append("a worker starts as its engine does, weights read from local storage (--cold-start)")
    if request.replace_s is None:
        guesses.append(f"another spot machine is found after {format_seconds(REPLACE_S)} on average (--replace)")
    return (
        *guesses,
        "all spot machines are there at the start; the lives of instances are exponential and independent",
        "trials differ in interruptions and, together, in the measured error of predicted throughput",
    )
