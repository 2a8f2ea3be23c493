"""A queue of requests with a deadline on machines that may be taken away: when it is done, for how much.

Each worker runs until it is taken back, is away until another is found, loads the weights, and goes on. What it had in
hand goes back into the queue: with it the work done on requests in flight, or since the last checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.cluster import Cluster
from flopwise.cost.spec import MachineSpec
from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.options import OptionError
from flopwise.pictures import BarPicture, Picture
from flopwise.results import Result, attributes, notes
from flopwise.serving.deployment import replica_of, spread
from flopwise.serving.estimate import default_lengths, estimate
from flopwise.serving.job import ServeEstimate, ServeJob, no_room_text, not_simulated_text
from flopwise.serving.memory import generates
from flopwise.serving.sim.elasticity import replica_start_s
from flopwise.serving.sim.lengths import Lengths
from flopwise.serving.sim.trace import read_trace_columns
from flopwise.serving.spec import DEFAULT_INPUT, DEFAULT_OUTPUT, BatchRequest, ServingSpec, TechniqueRequest
from flopwise.serving.startup import DEFAULT_STORAGE
from flopwise.serving.technique_rules import technique_assumptions, technique_settings
from flopwise.units import DAY_S, HOUR_S, format_chance, format_items, format_number, format_seconds, format_usd
from flopwise.values import dataclass, replace

Seconds = NDArray[np.float64]
Rng = np.random.Generator
HORIZONS = 8
"""Doublings of the simulated span before a queue counts as never worked off."""
MOST_INTERRUPTIONS_PER_S = 1 / 60
"""Nobody offers machines that last less than a minute on average."""
LEAST_FRAC = 0.01
"""Share of the time below which spot workers do nothing but start."""
REPLACE_S = 300.0
"""Until another spot machine is found where nothing is said: a guess."""
SWEEP = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Workers of the table, over those asked for."""
CONFIDENCE = 0.9
"""On-demand workers are counted so that they meet the deadline with this probability, errors of the rate included."""
SWEEP_TRIALS = 300
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
"""Percentiles of a queue's time and cost."""
BINS = 12
"""Bars of the time until a queue is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchQueue:
    """The queue and the workers. Rates per worker; a worker is one replica with all its devices."""

    requests: float
    requests_per_s: float
    workers: int
    boot_s: float  # from the machine to the first request: image, weights, warm-up
    in_flight: float = 0.0  # requests that a worker works on at once, on average half done
    interruptions_per_s: float = 0.0  # of a worker, or of the instance that several share
    workers_per_instance: int = 1  # that are taken back, and come back, together
    replace_s: float = 0.0  # mean time until another machine is found
    checkpoint_every_s: float | None = None  # progress is saved; None: requests in flight start again
    checkpoint_s: float = 0.0  # each save keeps a worker busy so long
    deadline_s: float | None = None
    spot_usd_per_hour: float = 0.0
    on_demand_usd_per_hour: float = 0.0
    fallback_workers: int = 0  # on-demand workers that take over when the deadline would be missed otherwise

    def __post_init__(self) -> None:
        """Raise SpecError for figures that cannot be."""
        for name in ("requests", "requests_per_s", "workers", "workers_per_instance"):
            _within(name, getattr(self, name), 0, open_low=True)
        _within("interruptions_per_s", self.interruptions_per_s, 0, MOST_INTERRUPTIONS_PER_S)
        for name in ("boot_s", "in_flight", "replace_s", "checkpoint_s", "fallback_workers"):
            _within(name, getattr(self, name), 0)
        for name in ("checkpoint_every_s", "deadline_s"):
            if getattr(self, name) is not None:
                _within(name, getattr(self, name), 0, open_low=True)

    @property
    def useful_frac(self) -> float:
        """Share of a worker's time that checkpoints leave."""
        every = self.checkpoint_every_s
        return 1.0 if every is None else every / (every + self.checkpoint_s)

    @property
    def flight_s(self) -> float:
        """Time that a request is in flight, by Little's law."""
        return self.in_flight / (self.requests_per_s * self.useful_frac)

    def lost_s(self, worked_s: Seconds) -> Seconds:
        """Work that an interruption sends back to the queue, by the time worked since the boot; in seconds of a worker.

        Answers are handed in as they are complete; lost is what went into requests in flight since they began, or since
        their tokens were last saved: the mean of min(age, time) over ages that are spread evenly over their flight.

        Source: definition. Assumes: a worker's requests began at different times.
        """
        every = self.checkpoint_every_s
        return self._unsaved_s(worked_s if every is None else np.minimum(worked_s % (every + self.checkpoint_s), every))

    def _unsaved_s(self, since_s: Seconds) -> Seconds:
        """Work in requests in flight that was done within the last `since_s`."""
        flight = self.flight_s
        if flight == 0:
            return np.zeros_like(since_s)
        time = np.minimum(since_s, flight)
        return np.asarray(time - time * time / (2 * flight))

    @property
    def most_lost_s(self) -> float:
        """The most that one interruption sends back."""
        return float(self._unsaved_s(np.asarray(self.checkpoint_every_s or math.inf)))


def _within(name: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> None:
    if not (math.isfinite(value) and low <= value <= high) or (open_low and value == low):
        allowed = f"above {low:g}" if open_low else f"{low:g} and above"
        allowed += f", up to {high:g}" if math.isfinite(high) else ""
        raise SpecError(f"{name.replace('_', ' ')} {value:g} is out of range; allowed: {allowed}")


def long_run_frac(queue: BatchQueue) -> float:
    """Share of a worker's time that advances the queue, in the long run, 0 to 1.

    Source: renewal reward: a cycle is an exponential life and an absence; work goes on where the life outlasts the
    boot, and by the exponential's lack of memory what is worked then is exponential, too. What is lost of it is the
    integral of the loss's slope over the chance that the time since the last save is longer.
    Assumes: lives are exponential.
    """
    rate, flight = queue.interruptions_per_s, queue.flight_s
    if rate == 0:
        return queue.useful_frac
    every = math.inf if queue.checkpoint_every_s is None else queue.checkpoint_every_s
    cycle = every + queue.checkpoint_s
    end = min(every, flight)
    lost = 0.0
    if end > 0:
        alive, never = math.exp(-rate * end), math.exp(-rate * cycle)
        slopes = -math.expm1(-rate * end) / rate - (-math.expm1(-rate * end) / rate**2 - end * alive / rate) / flight
        lost = (slopes - never * (end - end * end / (2 * flight))) / -math.expm1(-rate * cycle)
    outlasts = math.exp(-rate * queue.boot_s)
    return queue.useful_frac * outlasts * max(1.0 / rate - lost, 0.0) / (1.0 / rate + queue.replace_s)


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """One figure a trial: seconds until the queue is empty, USD, interruptions; shapes (trials,)."""

    seconds: Seconds
    usd: Seconds
    interruptions: NDArray[np.int64]
    fell_back: NDArray[np.bool_]
    deadline_s: float | None

    @property
    def met_frac(self) -> float | None:
        """Share of trials that meet the deadline; None without one."""
        return None if self.deadline_s is None else float(np.mean(self.seconds <= self.deadline_s))

    def percentile(self, column: str, share: float) -> float:
        """The value of `column` ("seconds" or "usd") that `share` of the trials stays below."""
        return float(np.quantile(getattr(self, column), share))


def on_demand(queue: BatchQueue, workers: int | None = None) -> tuple[float, float]:
    """(seconds, USD) of the same queue on as many workers (or on `workers`) that nobody takes away.

    Source: definition: the boot, then all workers at their rate. Assumes: nothing is saved on the way.
    """
    count = workers or queue.workers
    seconds = queue.boot_s + queue.requests / (queue.requests_per_s * count)
    return seconds, count * seconds / HOUR_S * queue.on_demand_usd_per_hour


def fewest_on_demand(queue: BatchQueue) -> int | None:
    """The fewest workers that nobody takes away and that meet the deadline; None without one, or where none do.

    Source: `on_demand` solved for the workers.
    """
    if queue.deadline_s is None or queue.deadline_s <= queue.boot_s:
        return None
    return max(1, math.ceil(queue.requests / (queue.requests_per_s * (queue.deadline_s - queue.boot_s)) - 1e-9))


def simulate_queue(
    queue: BatchQueue,
    rng: Rng,
    *,
    trials: int = 1000,
    speeds: Seconds | None = None,
    report: Callable[[int, int], None] | None = None,
) -> BatchOutcome:
    """The queue worked off `trials` times with interruptions drawn anew; seconds and USD of each.

    `speeds`: by what factor the workers of each trial are faster than the queue says; shape (trials,).

    Source: Wu et al. 2024 (NSDI, "Can't Be Late") for the rule to fall back: on-demand workers take over at the last
    moment from which they still meet the deadline, whatever happens to the spot workers until then.
    Assumes: lives and absences of instances are exponential and independent; machines are billed by the second from
    boot to end.
    Raises: InfeasibleError: interruptions undo the work faster than it is done.
    """
    if not 1 <= trials <= 1_000_000:
        raise SpecError(f"{trials} trials; allowed: 1 to 1,000,000")
    factors = np.ones(trials) if speeds is None else speeds
    if queue.fallback_workers and queue.deadline_s is None:
        raise SpecError("fallback workers need a deadline, and none is given")
    if long_run_frac(queue) < LEAST_FRAC:
        raise InfeasibleError(
            f"a worker is interrupted every {format_seconds(1 / queue.interruptions_per_s)} on average, takes "
            f"{format_seconds(queue.boot_s)} to boot and {format_seconds(queue.flight_s)} for a request: the queue "
            "never empties; use on-demand workers, or save progress more often"
        )
    rows = []
    for trial, factor in enumerate(factors.tolist(), 1):
        rows.append(_trial(replace(queue, requests_per_s=queue.requests_per_s * factor), rng))
        if report is not None:
            report(trial, trials)
    seconds, usd, interruptions, fell_back = (np.array(column) for column in zip(*rows, strict=True))
    return BatchOutcome(seconds, usd, interruptions, fell_back, queue.deadline_s)


def _trial(queue: BatchQueue, rng: Rng) -> tuple[float, float, int, bool]:
    """(seconds, USD, interruptions, whether it fell back) of one run."""
    goal = queue.requests / (queue.requests_per_s * queue.useful_frac)  # seconds of one worker
    lives = _Lives(queue, rng)
    for span in _spans(queue, goal):
        lives.extend(span)
        line = lives.progress()
        end = _reaches(line, goal)
        switch = _switch_s(queue, line, goal) if queue.fallback_workers else None
        if switch is not None and (end is None or switch < end):
            if switch + queue.boot_s <= span:
                return _fallen_back(queue, lives, switch, end, goal)
        elif end is not None and end <= span:
            return end, lives.up_s(end) / HOUR_S * queue.spot_usd_per_hour, lives.interruptions(end), False
    raise InfeasibleError("interruptions undo the work faster than workers do it: the queue never empties")


def _spans(queue: BatchQueue, goal: float) -> Iterator[float]:
    """Seconds up to which lives are drawn, longer and longer; those of a deadline end with it."""
    if queue.interruptions_per_s == 0:
        yield math.inf
        return
    expected = goal * queue.useful_frac / queue.workers / long_run_frac(queue) + queue.boot_s
    for doubling in range(HORIZONS):
        yield expected * 1.5 * 2**doubling
    if queue.fallback_workers and queue.deadline_s is not None:
        yield queue.deadline_s + queue.boot_s


class _WorkCurve(NamedTuple):
    """Progress over time: segments from `at` to the next, with `rate` workers at work."""

    at: Seconds
    done: Seconds  # at the segment's beginning; seconds of one worker
    rate: Seconds


class _Lives:
    """Starts and ends of each instance's lives so far; shapes (instances, lives).

    `size`: workers of each instance, shape (instances, 1); the last may have fewer.
    """

    def __init__(self, queue: BatchQueue, rng: Rng) -> None:
        self.queue, self.rng = queue, rng
        whole, rest = divmod(queue.workers, queue.workers_per_instance)
        self.size = np.array([[queue.workers_per_instance]] * whole + [[rest]] * (rest > 0), dtype=np.float64)
        self.starts = np.zeros(self.size.shape)
        rate = queue.interruptions_per_s
        self.ends = rng.exponential(1.0 / rate, self.starts.shape) if rate else np.full(self.starts.shape, np.inf)

    def extend(self, until_s: float) -> None:
        """Draw lives until every instance's last one ends at `until_s` or later."""
        if self.queue.interruptions_per_s == 0:
            return
        cycle = 1.0 / self.queue.interruptions_per_s + self.queue.replace_s
        while (last := self.ends[:, -1:]).min() < until_s:
            more = 4 + math.ceil((until_s - float(last.min())) / cycle * 1.2)
            life = self.rng.exponential(1.0 / self.queue.interruptions_per_s, (len(self.size), more))
            away = self.rng.exponential(self.queue.replace_s, life.shape) if self.queue.replace_s else 0.0
            ends = last + np.cumsum(life + away, axis=1)
            self.starts = np.concatenate([self.starts, ends - life], axis=1)
            self.ends = np.concatenate([self.ends, ends], axis=1)

    def progress(self) -> _WorkCurve:
        """The work done over time, as far as lives are drawn."""
        starts, ends = self.starts.ravel(), self.ends.ravel()
        begins = np.minimum(starts + self.queue.boot_s, ends)
        finite = np.isfinite(ends)
        size = np.broadcast_to(self.size, self.starts.shape).ravel()
        lost = self.queue.lost_s((ends - begins)[finite]) * size[finite]
        at = np.concatenate([[0.0], begins, ends[finite]])
        change = np.concatenate([[0.0], size, -size[finite]])
        drop = np.concatenate([np.zeros(1 + begins.size), lost])
        order = np.argsort(at, kind="stable")
        at, change, drop = at[order], change[order], drop[order]
        rate = np.cumsum(change)
        done = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(at))]) - np.cumsum(drop)
        return _WorkCurve(at, done, rate)

    def kept_s(self, until_s: float) -> float:
        """The work done if all workers are taken back at `until_s`; seconds of one worker."""
        begins = np.minimum(self.starts + self.queue.boot_s, until_s)
        worked = np.maximum(np.minimum(self.ends, until_s) - begins, 0.0)
        return float(((worked - self.queue.lost_s(worked)) * self.size).sum())

    def up_s(self, until_s: float) -> float:
        """Seconds of all workers that are paid for until `until_s`."""
        return float(((np.minimum(self.ends, until_s) - np.minimum(self.starts, until_s)) * self.size).sum())

    def interruptions(self, until_s: float) -> int:
        """Instances that were taken back before `until_s`."""
        return int(np.count_nonzero(self.ends < until_s))


def _reaches(line: _WorkCurve, goal: float) -> float | None:
    """The first moment at which `goal` is done; None beyond the drawn lives."""
    ends = np.append(line.at[1:], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        hit = np.where(line.rate > 0, line.at + (goal - line.done) / line.rate, np.inf)
    hit = np.where(line.done >= goal, line.at, hit)
    good = np.flatnonzero((hit <= ends) & np.isfinite(hit))
    return float(hit[good[0]]) if good.size else None


def _switch_s(queue: BatchQueue, line: _WorkCurve, goal: float) -> float | None:
    """The moment from which on-demand workers have to take over, whatever becomes of the spot workers from there on.

    What they have in hand counts as lost, so that no interruption while the others boot costs the deadline.
    """
    assert queue.deadline_s is not None
    speed = queue.fallback_workers / queue.useful_frac  # they save nothing on the way
    kept = line.done - line.rate * queue.most_lost_s
    slack = queue.deadline_s - queue.boot_s - line.at - (goal - kept) / speed
    slope = line.rate / speed - 1.0
    ends = np.append(line.at[1:], np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        moment = np.where(slack <= 0, line.at, np.where(slope < 0, line.at - slack / slope, np.inf))
    due = np.flatnonzero((moment <= ends) & np.isfinite(moment))
    return float(moment[due[0]]) if due.size else None


def _fallen_back(
    queue: BatchQueue, lives: _Lives, switch: float, early: float | None, goal: float
) -> tuple[float, float, int, bool]:
    """On-demand workers boot at `switch` while spot workers go on, and take the rest over; `early`: without them."""
    ready = switch + queue.boot_s
    if early is not None and early <= ready:
        end = early
    else:
        left = max(goal - lives.kept_s(ready), 0.0)
        end = ready + left * queue.useful_frac / queue.fallback_workers
    spot = lives.up_s(min(ready, end)) / HOUR_S * queue.spot_usd_per_hour
    paid = queue.fallback_workers * (end - switch) / HOUR_S * queue.on_demand_usd_per_hour
    return end, spot + paid, lives.interruptions(min(ready, end)), True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersForecast:
    """A number of workers: percentiles of seconds, the odds of the deadline, USD on average; None where not known."""

    name: str
    workers: int
    p50_s: float
    p95_s: float
    met_frac: float | None
    mean_usd: float | None

    def document(self) -> dict[str, Any]:
        """A row of the JSON of `flopwise simulate --queue`."""
        return attributes(self, "workers p50_s p95_s deadline_probability=met_frac mean_cost_usd=mean_usd")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchAnswer(Result):
    """The finish time and cost of a queue, over trials that differ in interruptions and in the rate's error."""

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
    table = "sweep"

    @classmethod
    def of(
        cls, model: ModelName, request: BatchRequest, wanted: MachineSpec, deployment: ServingSpec,
        techniques: TechniqueRequest, source: DatedSourceSpec, *, concurrency: int | None = None,
        report: Callable[[int, int], None] | None = None,
    ) -> BatchAnswer:  # fmt: skip
        """The queue worked off by replicas of a deployment on machines as `wanted`.

        `concurrency` requests are in flight at each, or as many as their memory holds. Each trial draws the lives of
        the workers and, from the measured errors of predicted throughput, a rate.

        Raises:
            SpecError: options that do not go together, or a model that does not generate.
            InfeasibleError: the model does not fit, or interruptions undo the work faster than it is done.
            MissingFactError: how often machines are taken back is not known.
        """
        request.check()
        number, facts, architecture = request.queue, source.catalog, source.model_with_layers(model)
        assert number is not None
        deployment = spread(deployment, architecture, wanted, facts)
        job, notes = replica_of(architecture, deployment, wanted, techniques, source)
        job = replace(job, concurrency=concurrency)
        if not generates(architecture):
            raise SpecError(not_simulated_text(job))
        if request.lengths_from is None:
            prompt, answer, length_notes = default_lengths(
                job.model,
                request.input_tokens,
                request.output_tokens,
                images=job.techniques.images * job.techniques.image_tokens,
            )
            request, notes = replace(request, input_tokens=prompt, output_tokens=answer), (*notes, *length_notes)
        inputs, outputs = (max(1, round(mean)) for mean in mean_lengths(request))
        job, gpus = replace(job, input_tokens=inputs, output_tokens=outputs), job.num_gpus * request.workers
        machines = _WorkerMachines(
            spot=replace(wanted, purchase="spot", price=request.spot_price).cluster(gpus, facts),
            on_demand=replace(wanted, purchase="on_demand").cluster(gpus, facts), provider=wanted.provider, facts=facts,
        )  # fmt: skip
        notes = (*notes, *job.model.assumptions, *technique_assumptions(job))
        worker = estimate(job)
        if not worker.max_concurrency:
            raise InfeasibleError(no_room_text(job, job.context))
        if request.workers * worker.max_concurrency > number:
            worker = estimate(replace(job, concurrency=-(-number // request.workers)))
        job = worker.job
        interruptions_per_s, spot_notes = _interruptions(request, machines)
        queue = _queue(request, worker, interruptions_per_s, machines)
        outcome, own = _trials(queue, worker, request, request.trials, report)
        counts = {max(1, round(request.workers * factor)) for factor in SWEEP} - {request.workers}
        trials = min(request.trials, SWEEP_TRIALS)
        others = [_trials(replace(queue, workers=count), worker, request, trials)[1] for count in sorted(counts)]
        slow = worker.throughput.band.quantile(1.0 - CONFIDENCE)
        fewest = fewest_on_demand(replace(queue, requests_per_s=queue.requests_per_s * slow))
        return BatchAnswer(
            job=job,
            estimate=worker,
            queue=queue,
            outcome=outcome,
            long_run_frac=long_run_frac(queue),
            on_demand=_constant_workers("on demand", queue, worker, queue.workers),
            fewest_on_demand=None
            if fewest is None
            else _constant_workers("on demand, the fewest", queue, worker, fewest),
            sweep=tuple(sorted([own, *others], key=lambda row: row.workers)),
            priced=machines.spot.usd_per_gpu_hour is not None and machines.on_demand.usd_per_gpu_hour is not None,
            settings=_settings(job, queue, request, machines),
            assumptions=tuple(dict.fromkeys((*notes, *job.cluster.assumptions, *spot_notes, *_guesses(request)))),
        )

    @property
    def verdict(self) -> str:
        """The answer in a sentence: how long the queue takes, for how much, and the odds of its deadline."""
        queue, done = self.queue, self.outcome
        workers = format_items(queue.workers, "spot worker")
        text = f"{queue.requests:,.0f} requests on {workers} take {self._spread('seconds', format_seconds)}"
        if self.priced:
            text += f" and cost {self._spread('usd', format_usd)}"
        if done.met_frac is not None:
            text += f"; the deadline is met with {format_chance(done.met_frac)} probability"
        return f"{text}."

    def _spread(self, column: str, text: Callable[[float], str]) -> str:
        """The median of the trials and their 95th percentile."""
        return f"{text(self.outcome.percentile(column, 0.5))} (p95: {text(self.outcome.percentile(column, 0.95))})"

    @property
    def histogram(self) -> tuple[list[int], list[float]]:
        """(trials, edges in seconds) of the time until the queue is empty; the slowest hundredth is in the last bin."""
        seconds = self.outcome.seconds
        top, low = float(np.quantile(seconds, 0.99)), float(seconds.min())
        counts, edges = np.histogram(np.minimum(seconds, top), bins=BINS, range=(low, max(top, low * (1 + 1e-6))))
        return counts.tolist(), [*edges[:-1].tolist(), float(max(seconds.max(), edges[-1]))]

    def document(self) -> dict[str, Any]:
        """A queue on spot workers as the JSON that scripts rely on."""
        done, queue = self.outcome, self.queue
        counts, edges = self.histogram
        seconds, usd = ({name: done.percentile(what, p) for name, p in SHARES.items()} for what in ("seconds", "usd"))
        return {
            **attributes(self, "model=job.model.name gpu=job.cluster.accelerator.name queue.requests queue.workers"),
            "num_gpus": queue.workers * int(self.job.layout.num_gpus),
            "requests_per_s_per_worker": queue.requests_per_s,
            "completion_s": seconds,
            "cost_usd": usd | {"mean": float(done.usd.mean())} if self.priced else None,
            **attributes(self, "queue.deadline_s deadline_probability=outcome.met_frac"),
            "interruptions": float(done.interruptions.mean()),
            "fell_back_frac": float(done.fell_back.mean()) if queue.fallback_workers else None,
            "useful_frac": self.long_run_frac,
            "on_demand": self.on_demand.document(),
            "fewest_on_demand": None if self.fewest_on_demand is None else self.fewest_on_demand.document(),
            "sweep": [one.document() for one in self.sweep],
            "histogram": {"edges_s": edges, "trials": counts},
            **notes(self),
        }

    def picture(self) -> Picture:
        """The number of trials finished by each time, as a picture."""
        counts, edges = self.histogram
        rows = [(f"to {format_seconds(end)}", float(n)) for n, end in zip(counts, edges[1:], strict=True)]
        return BarPicture(title=self.verdict, unit="trials", rows=rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WorkerMachines:
    """The machines of all workers as spot capacity and on demand, and the facts on their interruptions and drives."""

    spot: Cluster
    on_demand: Cluster
    provider: str | None
    facts: Facts


def mean_lengths(request: BatchRequest) -> tuple[float, float]:
    """Mean tokens of a prompt and of an answer.

    Raises: SpecError: lengths given twice, or that cannot be.
    """
    lengths = (request.input_tokens or DEFAULT_INPUT, request.output_tokens or DEFAULT_OUTPUT)
    if request.lengths_from is None:
        prompt, answer = (Lengths.parse(str(length)).mean for length in lengths)
        return prompt, answer
    if request.input_tokens or request.output_tokens:
        raise OptionError("lengths_from", "gives the lengths of requests; leave out --input and --output")
    columns = read_trace_columns(request.lengths_from)
    return float(columns["prompt_tokens"].mean()), float(columns["output_tokens"].mean())


def _interruptions(request: BatchRequest, machines: _WorkerMachines) -> tuple[float, tuple[str, ...]]:
    """The rate at which a spot instance is taken back, and what to say of it.

    Raises: MissingFactError: it is not given, and neither is a provider.
    """
    if request.spot_interruptions is not None:
        return request.spot_interruptions, ()
    offer = machines.spot.offer
    provider = offer.provider if offer is not None else machines.provider
    if provider is None:
        raise MissingFactError(
            "the rate of spot interruptions depends on the provider, and none is given; give --provider, or "
            "--spot-interruptions such as 0.1/day (0: never)"
        )
    record = machines.facts.spot(provider, machines.spot.accelerator.name)
    return record.interruptions_per_s, (f"spot interruptions: {record.text}",)


def _queue(request: BatchRequest, worker: ServeEstimate, rate: float, machines: _WorkerMachines) -> BatchQueue:
    """The queue; a worker over several instances goes with any of them, workers of one instance go together."""
    gpus, node = worker.job.num_gpus, max(machines.spot.gpus_per_node, 1)
    drive = machines.facts.storage(DEFAULT_STORAGE)
    return BatchQueue(
        requests=request.queue or 0, requests_per_s=worker.requests_per_s, workers=request.workers,
        boot_s=replica_start_s(worker.job, drive, machines.facts) if request.cold_start is None else request.cold_start,
        in_flight=worker.concurrency, interruptions_per_s=rate * -(-gpus // node),
        workers_per_instance=min(max(node // gpus, 1), request.workers),
        replace_s=REPLACE_S if request.replace_s is None else request.replace_s,
        checkpoint_every_s=request.checkpoint_every, checkpoint_s=request.checkpoint_time,
        deadline_s=request.deadline, fallback_workers=request.fallback,
        spot_usd_per_hour=(machines.spot.usd_per_gpu_hour or 0.0) * gpus,
        on_demand_usd_per_hour=(machines.on_demand.usd_per_gpu_hour or 0.0) * gpus,
    )  # fmt: skip


def _speed_factors(worker: ServeEstimate, count: int) -> list[float]:
    """True over predicted throughput: evenly spread shares of the measured errors, as far as physics allows."""
    band, most = worker.throughput.band, worker.throughput.bound
    ceiling = math.inf if most is None else most / worker.requests_per_s
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
    p50_s, p95_s = (outcome.percentile("seconds", share) for share in (0.5, 0.95))
    return outcome, WorkersForecast(
        name="spot", workers=queue.workers, p50_s=p50_s, p95_s=p95_s, met_frac=outcome.met_frac,
        mean_usd=float(outcome.usd.mean()) if priced else None,
    )  # fmt: skip


def _constant_workers(name: str, queue: BatchQueue, worker: ServeEstimate, workers: int) -> WorkersForecast:
    """Workers that nobody takes away: only the rate is uncertain."""
    rate, deadline = queue.requests_per_s, queue.deadline_s
    factors = _speed_factors(worker, SWEEP_TRIALS)
    runs = [on_demand(replace(queue, requests_per_s=rate * factor), workers) for factor in factors]
    seconds = [second for second, _ in runs]
    p50_s, p95_s = (float(np.quantile(seconds, share)) for share in (0.5, 0.95))
    return WorkersForecast(
        name=name, workers=workers, p50_s=p50_s, p95_s=p95_s,
        met_frac=None if deadline is None else sum(s <= deadline for s in seconds) / len(seconds),
        mean_usd=sum(usd for _, usd in runs) / len(runs) if queue.on_demand_usd_per_hour else None,
    )  # fmt: skip


def _settings(
    job: ServeJob, queue: BatchQueue, request: BatchRequest, machines: _WorkerMachines
) -> tuple[tuple[str, str], ...]:
    gpus, every = job.num_gpus, queue.checkpoint_every_s
    rate, together = queue.interruptions_per_s, queue.workers_per_instance
    what = "worker" if together == 1 else f"instance of {together:,} workers, which are interrupted together"

    def price(cluster: Cluster) -> str:
        if cluster.usd_per_gpu_hour is None:
            return "price unknown"
        whose = cluster.price_source.partition(",")[0] or "given"
        return f"{format_usd(cluster.usd_per_gpu_hour * gpus)} per worker-hour ({whose})"

    return (
        ("workers", f"{queue.workers:,} on spot, each of {gpus} x {job.cluster.accelerator.name}"),
        ("weights", f"{job.weights.name}; KV cache {job.kv_dtype.name}; engine {job.engine.name}"),
        *technique_settings(job),
        ("lengths", f"{job.input_tokens:,} tokens in, {job.output_tokens:,} out on average"),
        ("a worker", f"{format_number(queue.requests_per_s)} requests/s with {queue.in_flight:,.0f} in flight"),
        (
            "interruptions",
            f"{format_number(rate * DAY_S)} per day and {what}; replaced after {format_seconds(queue.replace_s)}",
        ),
        ("boot", format_seconds(queue.boot_s)),
        ("progress", "requests in flight start again" if every is None else f"saved every {format_seconds(every)}"),
        ("deadline", "none" if queue.deadline_s is None else format_seconds(queue.deadline_s)),
        ("fallback", f"{request.fallback:,} on-demand workers" if request.fallback else "none"),
        ("spot", price(machines.spot)),
        ("on demand", price(machines.on_demand)),
    )


def _guesses(request: BatchRequest) -> Iterator[str]:
    """Assumptions where nothing is given."""
    if request.cold_start is None:
        yield "a worker's cold start is that of its engine, with weights on local storage (--cold-start)"
    if request.replace_s is None:
        yield f"an interrupted spot instance is replaced after {format_seconds(REPLACE_S)} on average (--replace)"
    yield "all spot instances are available at the start; their lifetimes are exponential and independent"
    yield "trials draw the interruptions and the error of the predicted throughput, as measured"
