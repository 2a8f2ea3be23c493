"""A queue of requests with a deadline on spot workers: when it is done, for how much, against on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flopwise.api.elasticity import replica_start_s
from flopwise.api.features import Features
from flopwise.api.machines import Machines, described, loaded
from flopwise.api.memory import Deployment, in_its_format, overridden
from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.units import DAY_S, format_seconds, format_usd

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.serving.estimate import ServeJob
    from flopwise.serving.result import ServeEstimate
    from flopwise.serving.sim.batch import BatchOutcome, BatchQueue

REPLACE_S = 300.0
"""Until another spot machine is found where nothing is said: a guess."""
SWEEP = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Workers of the table, over those asked for."""
CONFIDENCE = 0.9
"""On-demand workers are counted so that they meet the deadline with this probability, errors of the rate included."""
SWEEP_TRIALS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The queue as users ask for it. None: the usual, or from the facts."""

    requests: int
    workers: int = 1  # spot replicas
    deadline_s: float | None = None
    inputs: str | None = None  # lengths as `flopwise.simulate` takes them
    outputs: str | None = None
    lengths_from: Path | None = None
    interruptions_per_s: float | None = None  # of one instance
    replace_s: float | None = None
    boot_s: float | None = None
    checkpoint_every_s: float | None = None
    checkpoint_s: float = 0.0
    fallback: int = 0
    spot_price: float | None = None  # USD for one accelerator and hour
    trials: int = 1000
    seed: int = 0

    def means(self) -> tuple[float, float]:
        """Mean tokens of a prompt and of an answer.

        Raises:
            SpecError: lengths given twice, or that cannot be.
        """
        from flopwise.serving.sim.lengths import Lengths
        from flopwise.serving.sim.source import DEFAULT_INPUT, DEFAULT_OUTPUT

        if self.lengths_from is None:
            return Lengths.parse(self.inputs or DEFAULT_INPUT).mean, Lengths.parse(self.outputs or DEFAULT_OUTPUT).mean
        from flopwise.serving.sim.trace_file import read_trace_columns

        if self.inputs or self.outputs:
            raise SpecError("--lengths-from says how long requests are; leave --input and --output out")
        held = read_trace_columns(self.lengths_from)
        return float(held["prompt_tokens"].mean()), float(held["output_tokens"].mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
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
    on_demand: Ahead  # as many workers that nobody takes away
    fewest_on_demand: Ahead | None  # that meet the deadline in nine of ten cases; None: none do, or no deadline
    sweep: tuple[Ahead, ...]  # over the number of spot workers
    priced: bool  # whether the prices of both are known
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]


class Prices(NamedTuple):
    """USD for an accelerator and hour, None where not known, and what it is the price of."""

    spot: float | None
    on_demand: float | None
    spot_machines: Cluster
    on_demand_machines: Cluster


def batch(
    model: Any,
    requests: int,
    *,
    queue: Batch | None = None,
    gpu: str | None = None,
    machines: Machines | None = None,
    deployment: Deployment | None = None,
    features: Features | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    report: Callable[[int, int], None] | None = None,
    **said: Any,
) -> BatchAnswer:
    """Work off `requests` on spot workers; further keywords: of `Batch`, `Deployment`, `Machines` or `Features`.

    Each trial draws the lives of the workers and, from the measured errors of predicted throughput, a rate.

    Raises:
        SpecError: a value or a name that cannot be; InfeasibleError: the model does not fit, or interruptions undo
            the work faster than it is done; MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.serving.estimate import estimate
    from flopwise.serving.sim.batch import long_run_frac

    kinds = (Batch, Machines, Features)
    held = {kind: {k: said.pop(k) for k in list(said) if k in kind.__dataclass_fields__} for kind in kinds}
    place = overridden(machines or Machines(gpu=gpu, facts=facts), held[Machines])
    asked = overridden(queue or Batch(requests=requests), held[Batch] | {"requests": requests})
    _checked(asked)
    more = overridden(features or Features(), held[Features])
    job, native = _job(model, asked, overridden(deployment or Deployment(), said), place, more, assume_family, offline)
    found = estimate(job)
    if not found.max_concurrency:
        raise InfeasibleError(f"{job.model.name} leaves no memory for a sequence of {job.context:,} tokens")
    if asked.workers * found.max_concurrency > asked.requests:
        most = -(-asked.requests // asked.workers)
        job = replace(job, concurrency=most)
        found = estimate(job)
    prices = _prices(asked, place, job)
    spot, why = _interruptions(asked, prices.spot_machines, place)
    work = _queue(asked, found, spot, prices)
    outcome, row = _worked(work, found, asked, asked.trials, report)
    fewest = _fewest(work, found)
    return BatchAnswer(
        job=job,
        estimate=found,
        queue=work,
        outcome=outcome,
        long_run_frac=long_run_frac(work),
        on_demand=_certain("on demand", work, found, work.workers),
        fewest_on_demand=None if fewest is None else _certain("on demand, the fewest", work, found, fewest),
        sweep=_swept(work, found, asked, row),
        priced=prices.spot is not None and prices.on_demand is not None,
        settings=_settings(job, work, asked, prices),
        assumptions=tuple(dict.fromkeys((*native, *job.cluster.assumptions, *why, *_told(asked)))),
    )


def _checked(asked: Batch) -> None:
    for name, least, most in (("requests", 1, 10**12), ("workers", 1, 10_000), ("fallback", 0, 10_000)):
        value = getattr(asked, name)
        if not least <= value <= most:
            raise SpecError(f"{value:,} {name}; allowed: {least} to {most:,}")
    if asked.checkpoint_s and asked.checkpoint_every_s is None:
        raise SpecError("a checkpoint's time is given, but not how often one is written (--checkpoint-every)")
    if asked.fallback and asked.deadline_s is None:
        raise SpecError("--fallback workers take over when a deadline calls for them: give --deadline")
    if asked.spot_price is not None and not 0 <= asked.spot_price < 1e6:
        raise SpecError(f"spot price {asked.spot_price:g} is out of range; allowed: 0 to 1e6 USD")


def _job(
    model: Any,
    asked: Batch,
    deployment: Deployment,
    place: Machines,
    features: Features,
    family: str | None,
    offline: bool,
) -> tuple[ServeJob, tuple[str, ...]]:
    """One worker with as many requests in flight as its memory holds."""
    from flopwise.serving.estimate import ServeJob, check_layout
    from flopwise.serving.memory import generates
    from flopwise.serving.technique_rules import told_of_techniques

    found = described(loaded(model, assume_family=family, offline=offline, facts=place.facts))
    if not generates(found):
        raise SpecError(f"{found.name} answers in one pass; a queue is worked off by models that generate")
    how, native = in_its_format(found, deployment)
    check_layout(found, how.layout())
    inputs, outputs = asked.means()
    cluster = place.cluster(how.tp * how.pp * how.dp + (features.prefill_gpus or 0))
    names: dict[str, Any] = {"assume_family": family, "offline": offline}
    job = ServeJob(
        model=found,
        cluster=cluster,
        layout=how.layout(),
        weights=how.weights or "bf16",
        kv_dtype=how.kv_dtype or "bf16",
        engine=how.engine,
        input_tokens=max(1, round(inputs)),
        output_tokens=max(1, round(outputs)),
        concurrency=how.concurrency,
        memory_frac=how.memory_frac,
        techniques=features.techniques(found, how, cluster.accelerator, place.facts, **names),
    )
    return job, (*native, *found.notes, *told_of_techniques(job))


def _prices(asked: Batch, place: Machines, job: ServeJob) -> Prices:
    """USD for an accelerator and hour: spot, on demand; and the clusters of all workers that these are of."""
    gpus = job.num_gpus * asked.workers
    paid = replace(place, purchase="on_demand").cluster(gpus)
    cheap = replace(place, purchase="spot", usd_per_gpu_hour=asked.spot_price).cluster(gpus)
    return Prices(cheap.usd_per_gpu_hour, paid.usd_per_gpu_hour, cheap, paid)


def _interruptions(asked: Batch, cheap: Cluster, place: Machines) -> tuple[float, tuple[str, ...]]:
    """The rate at which a spot instance is taken back, and what to say of it.

    Raises:
        MissingFactError: it is not given, and neither is a provider.
    """
    from flopwise.facts.reliability import spot_record

    if asked.interruptions_per_s is not None:
        return asked.interruptions_per_s, ()
    provider = cheap.offer.provider if cheap.offer is not None else place.provider
    folder = Path(place.facts) if place.facts is not None else None
    if provider is None:
        raise MissingFactError(
            "how often spot instances of machines without a --provider are taken back is not known; give "
            "--spot-interruptions, such as 0.1/day (0: never), or a --provider"
        )
    record = spot_record(provider, cheap.accelerator.name, folder)
    return record.interruptions_per_s, (f"spot interruptions: {record.text}",)


def _queue(
    asked: Batch,
    found: ServeEstimate,
    rate: float,
    prices: Prices,
) -> BatchQueue:
    """The queue; a worker over several instances goes with any of them, workers of one instance go together."""
    from flopwise.serving.sim.batch import BatchQueue

    gpus, node = found.job.num_gpus, max(prices.spot_machines.gpus_per_node, 1)
    return BatchQueue(
        requests=asked.requests,
        requests_per_s=found.requests_per_s,
        workers=asked.workers,
        boot_s=replica_start_s(found.job) if asked.boot_s is None else asked.boot_s,
        in_flight=found.concurrency,
        interruptions_per_s=rate * -(-gpus // node),
        workers_per_instance=min(max(node // gpus, 1), asked.workers),
        replace_s=REPLACE_S if asked.replace_s is None else asked.replace_s,
        checkpoint_every_s=asked.checkpoint_every_s,
        checkpoint_s=asked.checkpoint_s,
        deadline_s=asked.deadline_s,
        spot_usd_per_hour=(prices.spot or 0.0) * gpus,
        on_demand_usd_per_hour=(prices.on_demand or 0.0) * gpus,
        fallback_workers=asked.fallback,
    )


def _speeds(found: ServeEstimate, count: int) -> list[float]:
    """True over predicted throughput: evenly spread shares of the measured errors, as far as physics allows."""
    band, most = found.throughput.band, found.throughput.bound
    ceiling = float("inf") if most is None else most / found.requests_per_s
    return [min(band.quantile((place + 0.5) / count), ceiling) for place in range(count)]


def _worked(
    work: BatchQueue, found: ServeEstimate, asked: Batch, trials: int, report: Callable[[int, int], None] | None = None
) -> tuple[BatchOutcome, Ahead]:
    """The trials of one number of workers; the same draws of the rate's error for every number."""
    import numpy as np

    from flopwise.serving.sim.batch import simulated

    if not 1 <= trials <= 1_000_000:
        raise SpecError(f"{trials} trials; allowed: 1 to 1,000,000")
    rng = np.random.default_rng(asked.seed)
    speeds = np.array(_speeds(found, trials))[rng.permutation(trials)]
    done = simulated(work, rng, trials=trials, speeds=speeds, report=report)
    known = bool(work.spot_usd_per_hour) and (bool(work.on_demand_usd_per_hour) or not done.fell_back.any())
    row = Ahead(
        name="spot",
        workers=work.workers,
        p50_s=done.percentile("seconds", 0.5),
        p95_s=done.percentile("seconds", 0.95),
        met_frac=done.met_frac,
        mean_usd=float(done.usd.mean()) if known else None,
    )
    return done, row


def _swept(work: BatchQueue, found: ServeEstimate, asked: Batch, own: Ahead) -> tuple[Ahead, ...]:
    """Other numbers of spot workers beside the one asked for."""
    counts = sorted({max(1, round(asked.workers * factor)) for factor in SWEEP} - {asked.workers})
    trials = min(asked.trials, SWEEP_TRIALS)
    rows = [_worked(replace(work, workers=count), found, asked, trials)[1] for count in counts]
    return tuple(sorted([own, *rows], key=lambda row: row.workers))


def _certain(name: str, work: BatchQueue, found: ServeEstimate, workers: int) -> Ahead:
    """Workers that nobody takes away: only the rate is uncertain."""
    from numpy import quantile

    from flopwise.serving.sim.batch import on_demand

    rate, deadline = work.requests_per_s, work.deadline_s
    runs = [on_demand(replace(work, requests_per_s=rate * speed), workers) for speed in _speeds(found, SWEEP_TRIALS)]
    seconds = [second for second, _ in runs]
    return Ahead(
        name=name,
        workers=workers,
        p50_s=float(quantile(seconds, 0.5)),
        p95_s=float(quantile(seconds, 0.95)),
        met_frac=None if deadline is None else sum(s <= deadline for s in seconds) / len(seconds),
        mean_usd=sum(usd for _, usd in runs) / len(runs) if work.on_demand_usd_per_hour else None,
    )


def _fewest(work: BatchQueue, found: ServeEstimate) -> int | None:
    """On-demand workers that meet the deadline in nine of ten cases."""
    from flopwise.serving.sim.batch import fewest_on_demand

    slow = found.throughput.band.quantile(1.0 - CONFIDENCE)
    return fewest_on_demand(replace(work, requests_per_s=work.requests_per_s * slow))


def _settings(job: ServeJob, work: BatchQueue, asked: Batch, prices: Prices) -> tuple[tuple[str, str], ...]:
    from flopwise.serving.technique_rules import technique_settings

    gpus = job.num_gpus
    rate, together = work.interruptions_per_s, work.workers_per_instance
    what = "worker" if together == 1 else f"instance of {together:,} workers, which go together"

    def paid(each: float | None, machines: Cluster) -> str:
        if each is None:
            return "price unknown"
        whose = machines.price_source.partition(",")[0] or "given"
        return f"{format_usd(each * gpus)} a worker and hour ({whose})"

    saved = work.checkpoint_every_s
    return (
        ("workers", f"{work.workers:,} x {gpus} {job.cluster.accelerator.name}, spot"),
        ("weights", f"{job.weights}; KV cache {job.kv_dtype}; engine {job.engine}"),
        *technique_settings(job),
        ("lengths", f"{job.input_tokens:,} tokens in, {job.output_tokens:,} out on average"),
        ("a worker", f"{work.requests_per_s:,.3g} requests/s with {work.in_flight:,.0f} in flight"),
        ("taken back", f"{rate * DAY_S:,.3g} a day and {what}; the next one after {format_seconds(work.replace_s)}"),
        ("boot", format_seconds(work.boot_s)),
        ("progress", "requests in flight start anew" if saved is None else f"saved every {format_seconds(saved)}"),
        ("deadline", "none" if work.deadline_s is None else format_seconds(work.deadline_s)),
        ("fallback", f"{asked.fallback:,} on-demand workers" if asked.fallback else "none"),
        ("spot", paid(prices.spot, prices.spot_machines)),
        ("on demand", paid(prices.on_demand, prices.on_demand_machines)),
    )


def _told(asked: Batch) -> tuple[str, ...]:
    guesses = []
    if asked.boot_s is None:
        guesses.append("a worker starts as its engine does, weights read from local storage (--cold-start)")
    if asked.replace_s is None:
        guesses.append(f"another spot machine is found after {format_seconds(REPLACE_S)} on average (--replace)")
    return (
        *guesses,
        "all spot machines are there at the start; the lives of instances are exponential and independent",
        "trials differ in interruptions and, together, in the measured error of predicted throughput",
    )
