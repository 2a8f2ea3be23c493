"""What is simulated for an estimate: runs with an end, as load generators make them, and sessions of several turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.catalog import Facts
from flopwise.options import OptionError
from flopwise.serving.estimate import RunMeans, engine_limit, estimate, largest_batch
from flopwise.serving.job import ServeEstimate, ServeJob, no_room_text
from flopwise.serving.sessions import ANSWERS_ELSEWHERE
from flopwise.serving.sim.prefixes import previous_turns
from flopwise.serving.sim.request import SimulationRequest, request_of, slow_store_notes
from flopwise.serving.sim.result import ClassFigures, SimulatedRun, at_shares
from flopwise.serving.sim.sessions import SessionReport
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.trace import LONGEST_S, PS
from flopwise.serving.spec import ROUNDS, Scheduling, mean_tokens
from flopwise.units import DAY_S, HOUR_S, format_percent
from flopwise.values import replace

ENOUGH_REQUESTS, ENOUGH_OF_LOOPS = 2_000, 10_000
"""Short runs are drawn again, with other lengths and arrivals, until so many requests are simulated in all; of closed
loops, whose users fall in step or do not, more: of 20 draws of 1,280 requests to Llama-3.3-70B on eight A100 half have
a median TTFT of 360 ms, the others one of 440 ms."""
MOST_DRAWS = 8
WHOLE_REQUESTS = 8_192
"""Batch jobs of up to so many requests are simulated whole."""
BATCHES = 4
"""Full batches after which the pace of a long batch job is that of its middle."""
ARRIVALS, MOST_ARRIVALS = 12_000, 150_000
"""Requests of a run whose middle half stands for a steady state under random arrivals: of idle replicas, and at most.
A queue forgets how it began after some 1 / (1 - rho)^2 services (Cohen 1982, The single server queue, III.7.3): of
6,000 requests, percentiles of replicas that are 80 to 95 % busy were 10 to 50 % too low in 72 of 81 cases. 150,000 take
0.06 s."""
TYPICAL = 4
"""The first seed whose 150,000 arrivals make waits of M/D/1 within a tenth of those of long runs, at 80, 90 and 95 % of
capacity and p50, p95 and p99; of the first twelve, one was twice too long."""
SETTLED_FRAC, SPANS = 0.02, 10
"""Standard error up to which a percentile is settled, over spans of a run one after the other (batch means: Law,
Simulation modeling and analysis, 9.5.3); and how many spans."""
LONGER, LONGEST_ARRIVALS = 4, 600_000
"""Until percentiles are settled, runs are made so many times as long, up to so many requests: 0.25 s. On replicas that
are 85 to 92 % busy and whose cache bursts fill, p95 and p99 of 150,000 requests vary by 10 to 60 % from run to run."""
DRIFTING_ARRIVALS, DRIFT_ERRORS = 2_400_000, 3.0
"""Up to so many where percentiles still change one way: by so many standard errors from one half of what is counted to
the other. Thousands of short answers that begin together end together: prompts first, an engine reads until the batch
is full, and it takes half a million requests until the waves have run into each other."""
MOST_REPLICAS = 32
"""Replicas that are simulated together; of more, so many stand for all, with their share of the load."""
CLOCK_FRAC = 0.5
"""Of the simulator's clock, for arrivals that are few: chance makes some runs twice as long as the mean."""
FALLS_BEHIND = 1.02
"""Time in which the counted requests are answered over that in which they come, from which on the queue only grows."""
LIVES, LEAST_S, MOST_TURNS = 4.0, 600.0, 100_000
"""Sessions come for so many times as long as one lasts, ten minutes at least, and have no more turns in all."""
LEAST_SESSIONS, MOST_S, SELDOM_PER_S = 600, 20 * DAY_S, 1.0 / DAY_S
"""They come at least until there are so many, or for twenty days; at lower rates there would be too few to simulate."""
OVERLOAD = 1.15
"""Sessions that come over those answered, from which on they wait for each other; below it is chance."""
MOST_USERS, FULL_BATCHES = 16_384, 4
"""Users of a closed loop who are all simulated: so many, and those who fill every batch four times. Each further user
waits as long as the last: from half and all of these, mean TTFT of 300,000 on an H100 is within 0.04 % of that of a run
of all, percentiles within 1 %."""
BEFORE = 1 / 3
"""Of that time, until as many sessions are under way as on average."""


OnCompile = Callable[[], None] | None
"""Called where the simulator must be compiled first."""


class FiniteRun(NamedTuple):
    """Means over the requests of a run, and its last draw; of a long batch job the first requests of a replica."""

    means: RunMeans
    simulated: SimulatedRun


def finite_run(job: ServeJob, traffic: Traffic, replicas: int, facts: Facts, on_compile: OnCompile = None) -> FiniteRun:
    """Simulate `replicas` that work off `traffic` to its end; `on_compile` is called where code is compiled first.

    The duration holds the first prompts, before which nothing is answered, and the drain of the longest answers, when
    few are left to share a step; `estimate` of the means takes a step, and what bounds it, of the steady state.

    Source: `flopwise.serving.sim`, run to the end; vLLM's and SGLang's serving benchmarks divide by the same duration.
    Assumes: lengths and arrivals as drawn; of a short run the mean of several draws.

    Raises:
        SpecError: a model that answers in one pass, or traffic without a number of requests.
        InfeasibleError: weights leave no room for a sequence.
    """
    if traffic.requests is None:
        raise SpecError("the number of requests is not given")
    if (traffic.users or 0) >= traffic.requests and traffic.requests > WHOLE_REQUESTS:
        return _long_job(job, traffic, math.ceil(traffic.requests / replicas), facts, on_compile)
    runs = _draws(job, traffic, replicas, facts, on_compile)
    return FiniteRun(_mean([_means(job, run, replicas) for run in runs]), runs[-1])


def _draws(
    job: ServeJob, traffic: Traffic, replicas: int, facts: Facts, on_compile: OnCompile, enough: int = ENOUGH_REQUESTS
) -> list[SimulatedRun]:
    """Runs of the same traffic, drawn with one seed after another until there are `enough` requests."""
    request = _request(job, traffic, facts, num_draws(traffic.num_requests or 1, enough))
    return request.run_draws(replicas, on_compile)


def num_draws(requests: int, enough: int) -> int:
    """Runs of so many `requests` until there are `enough` of them, one at least and `MOST_DRAWS` at most."""
    return max(1, min(MOST_DRAWS, enough // requests))


def _mean(figures: Sequence[RunMeans]) -> RunMeans:
    return RunMeans(*np.mean(figures, axis=0).tolist())


class ClosedLoopRun(NamedTuple):
    """Users in a closed loop: what a replica does for them, latencies by percentile in s, and the runs behind them."""

    estimate: ServeEstimate
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    runs: tuple[SimulatedRun, ...]
    replicas: int  # that were run

    @property
    def note(self) -> str:
        """The share of requests that no replica has room for, in words; empty where there are none."""
        return dropped_text(sum(run.dropped_count for run in self.runs), sum(len(run.trace) for run in self.runs))


def dropped_text(dropped: int, requests: int) -> str:
    """That some requests are left out of the figures, in words; empty where none are."""
    if not dropped:
        return ""
    share = format_percent(dropped / requests)
    return f"{share} of requests are longer than the whole cache or the context: they are refused, and left out"


def closed_loop_run(
    job: ServeJob, facts: Facts, lengths: tuple[int | str, int | str] | None = None, on_compile: OnCompile = None,
    percentiles: Sequence[str] = (), replicas: int = 1,
) -> ClosedLoopRun:  # fmt: skip
    """Users of a closed loop, each of whom sends `ROUNDS` requests, and what a replica does, to the last answer.

    `replicas`: behind one balancer, with the job's users each on average. `lengths`: of prompts and answers as they are
    drawn; None: the job's own, which vary as `Traffic` says. Of a short run figures are the means of those of several
    draws: what one load test shows on average.

    Source: `flopwise.serving.sim`; `flopwise.serving.spec.ROUNDS`; of more than `MOST_USERS`, the growth from half of
    these to all. Assumes: no more than that; the queue is first come, first served where users are so many.
    Raises: as `finite_run`; InfeasibleError, too, where the cache has no room for any of the requests.
    """
    replicas = min(replicas, MOST_REPLICAS)
    users = max(round((job.users or job.concurrency or 1) * replicas), 1)
    inputs, outputs = lengths or (job.input_tokens, job.output_tokens)
    traffic = Traffic(
        users=users, input_tokens=inputs, output_tokens=outputs if job.decodes else 1, priorities=job.priorities or None
    )
    slots = engine_limit(job) if job.decodes else largest_batch(job)
    most = max(MOST_USERS, FULL_BATCHES * slots * int(job.layout.dp) * replicas)
    if users <= most or job.priorities:
        loop = _loop(job, traffic, facts, on_compile, percentiles, replicas)
    else:
        half, whole = (
            _loop(job, replace(traffic, users=count), facts, on_compile, percentiles, replicas)
            for count in (most // 2, most // 2 * 2)
        )
        loop = whole.with_users(users, half)
    return ClosedLoopRun(estimate(job, loop.means), loop.ttft_s, loop.tpot_s, loop.runs, replicas)


class _Loop(NamedTuple):
    """Runs of the same users: means over their requests, and latencies by percentile in s."""

    means: RunMeans
    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    runs: tuple[SimulatedRun, ...]

    @property
    def end_s(self) -> float:
        """Time of the last answer, on average."""
        return float(np.mean([run.end_ps for run in self.runs])) / PS

    def with_users(self, users: int, half: Self) -> Self:
        """The same loop with more users, of which `half` has half as many: whoever is more waits in the queue."""
        simulated = len(self.runs[-1].trace) // ROUNDS
        times = (users - simulated) / (simulated // 2)
        end_s = self.end_s + times * (self.end_s - half.end_s)
        rate = self.means.requests_per_s * (users / simulated) * (self.end_s / end_s)
        waits_s = self.means.ttft_s + times * (self.means.ttft_s - half.means.ttft_s)
        first_s = {name: seconds + times * (seconds - half.ttft_s[name]) for name, seconds in self.ttft_s.items()}
        return self._replace(means=RunMeans(waits_s, self.means.tpot_s, rate), ttft_s=first_s)


def _loop(
    job: ServeJob, traffic: Traffic, facts: Facts, on_compile: OnCompile, percentiles: Sequence[str], replicas: int
) -> _Loop:
    """The users of `traffic` at so many replicas. Raises: as `closed_loop_run`."""
    runs = _draws(job, traffic, replicas, facts, on_compile, ENOUGH_OF_LOOPS)
    if not any(np.any(run.outcome.first_ps >= 0) for run in runs):
        raise InfeasibleError(no_room_text(job, job.context))
    seen = [_latencies(job, run, percentiles) for run in runs]
    first_s, each_s = ({name: float(np.mean([one[k][name] for one in seen])) for name in percentiles} for k in (0, 1))
    return _Loop(_mean([_means(job, run, replicas) for run in runs]), first_s, each_s, tuple(runs))


def _latencies(
    job: ServeJob, run: SimulatedRun, percentiles: Sequence[str], counted: slice = slice(None)
) -> tuple[dict[str, float], dict[str, float]]:
    """(TTFT, TPOT) of the `counted` requests of a run by percentile, as p50; of answers of one token TPOT is 0."""
    shares = [float(name.removeprefix("p")) for name in percentiles]
    ttft_s, tpot_s = (np.asarray(seen)[counted] for seen in (run.ttft_s, run.tpot_s))
    if not job.decodes or job.output_tokens == 1:
        tpot_s = np.zeros_like(ttft_s)
    first, each = (dict(zip(percentiles, at_shares(v[~np.isnan(v)], shares), strict=True)) for v in (ttft_s, tpot_s))
    return first, each


def _request(job: ServeJob, traffic: Traffic, facts: Facts, draws: int = 1) -> SimulationRequest:
    """The request to replicas of a job, with so many draws of its traffic."""
    alone = replace(job, techniques=replace(job.techniques, prefill_gpus=0))
    return request_of(alone, traffic, _scheduling(job), facts, (), one_pass=True, draws=draws)


def _scheduling(job: ServeJob, **stated: Any) -> Scheduling:
    """The options by which the replicas of a job schedule its requests."""
    return Scheduling(policy=job.policy, preempt=job.preempt, prefill_gpus=job.techniques.prefill_gpus, **stated)


def _means(job: ServeJob, run: SimulatedRun, replicas: int) -> RunMeans:
    """Mean latencies of the requests of a run, and how many a replica answered a second, to the end of the run."""
    tpot_s = float(np.nanmean(run.tpot_s)) if job.output_tokens > 1 else 0.0
    whole = run.summary()
    answered_per_s = whole.output_tokens_per_s / job.output_tokens if job.decodes else whole.requests_per_s
    return RunMeans(float(np.nanmean(run.ttft_s)), tpot_s, answered_per_s / replicas)


def _long_job(job: ServeJob, traffic: Traffic, requests: int, facts: Facts, on_compile: OnCompile) -> FiniteRun:
    """The share of one replica in a batch job: whole where it is short, else its beginning and then the pace there.

    Source: the time of twice as many requests less that of so many leaves out filling and emptying the batch.
    Assumes: each replica has an even share, all there from the start, so that waiting grows with the job.
    """

    def first_requests(count: int) -> SimulationRequest:
        return _request(job, replace(traffic, requests=count, users=count), facts)

    first = first_requests(WHOLE_REQUESTS // 2)
    begin = max(WHOLE_REQUESTS // 2, BATCHES * first.replica.limits.max_batch * first.replica.schedulers)
    run = first_requests(min(requests, 2 * begin)).run_fixed(1, on_compile)
    means = _means(job, run, 1)
    if requests <= 2 * begin:
        return FiniteRun(means, run)
    half = (first if begin == WHOLE_REQUESTS // 2 else first_requests(begin)).run_fixed(1)
    times = (requests - 2 * begin) / begin
    seconds = (run.end_ps + times * (run.end_ps - half.end_ps)) / PS
    ttft_s = means.ttft_s + times * (means.ttft_s - float(np.nanmean(half.ttft_s)))
    return FiniteRun(RunMeans(ttft_s, means.tpot_s, requests / seconds), run)


def arrivals_of(busy: float, fewest: int = ARRIVALS, most: int = MOST_ARRIVALS) -> int:
    """Requests whose percentiles stand for a steady state at a share `busy` of what a replica sustains.

    Source: `ARRIVALS`. Assumes: `fewest` are enough where nobody waits.
    """
    idle = max(1.0 - busy, 1e-3)
    return int(min(fewest / idle**2, most))


def _arrivals(job: ServeJob, lengths: tuple[int | str, int | str] | None, count: int, replicas: int) -> Traffic:
    """So many requests at the rate of so many replicas of the job."""
    inputs, outputs = lengths or (job.input_tokens, job.output_tokens)
    return Traffic(
        requests=count, rate=_simulated_per_s(job, replicas), input_tokens=inputs, output_tokens=outputs or 1,
        priorities=job.priorities or None, seed=TYPICAL,
    )  # fmt: skip


def _simulated_per_s(job: ServeJob, replicas: int) -> float:
    """The rate at which requests of so many replicas are simulated: once a day at least, as seldom as nobody waits."""
    return max((job.arrivals_per_s or 0.0) * replicas, SELDOM_PER_S)


def _by_span(seconds: NDArray[np.float64], shares: Sequence[float]) -> NDArray[np.float64]:
    """Percentiles of each of `SPANS` parts of a run, in order: (spans, shares); zeros if there is too little."""
    spans = [span[~np.isnan(span)] for span in np.array_split(seconds, SPANS)]
    if not shares or min(len(span) for span in spans) < SPANS:
        return np.zeros((SPANS, 1))
    return np.array([at_shares(span, shares) for span in spans])


def _error_frac(each: NDArray[np.float64]) -> float:
    """The largest standard error of percentiles of a run, over their own size; `each`: of `_by_span`.

    Source: batch means (`SPANS`).
    """
    whole = np.maximum(np.abs(each).mean(axis=0), 1.0 / PS)
    return float((each.std(axis=0, ddof=1) / whole).max()) / math.sqrt(SPANS)


def _drifts(each: NDArray[np.float64]) -> bool:
    """True if percentiles change from the first half of a run to the second by more than chance makes them.

    Source: Welch's test on batch means; `DRIFT_ERRORS`. Assumes: spans are independent. `each`: of `_by_span`.
    """
    halves = np.array_split(each, 2)
    apart = np.abs(halves[0].mean(axis=0) - halves[1].mean(axis=0))
    errors = np.sqrt(halves[0].var(axis=0, ddof=1) / len(halves[0]) + halves[1].var(axis=0, ddof=1) / len(halves[1]))
    return bool(np.any(apart > DRIFT_ERRORS * errors))


class ArrivalRun(NamedTuple):
    """Latencies of requests that arrive at random at replicas: of the middle of a long run, in s."""

    means: RunMeans
    ttft_s: dict[str, float]  # by percentile
    tpot_s: dict[str, float]
    by_priority: dict[int, ClassFigures]  # of each class of requests; none where they are alike
    simulated: SimulatedRun
    counted: slice  # requests of the run that figures are of
    utilisation_frac: float  # 1 or more where the queue only grows: the arrival rate over that of answers; else 0
    error_frac: float  # standard error of the least certain percentile, by chance alone
    replicas: int  # that were run

    @property
    def note(self) -> str:
        """Requests that are refused, or the share by which chance still decides percentiles, in words; or nothing."""
        if text := dropped_text(self.simulated.dropped_count, len(self.simulated.trace)):
            return text
        if self.error_frac <= SETTLED_FRAC or self.utilisation_frac:
            return ""
        return (
            f"bursts that are seldom decide the percentiles: the least certain one is known to {self.error_frac:.0%} "
            f"(standard error) after {len(self.simulated.trace):,} simulated requests"
        )

    @classmethod
    def of(
        cls, job: ServeJob, percentiles: Sequence[str], facts: Facts,
        lengths: tuple[int | str, int | str] | None = None, on_compile: OnCompile = None, *, busy: float = 0.0,
        replicas: int = 1,
    ) -> Self:  # fmt: skip
        """Simulate requests at the job's rate until `percentiles`, as p50, are settled: at first as `arrivals_of` says.

        `lengths`: of prompts and answers as they are drawn; None: the job's own, which vary as `Traffic` says. `busy`:
        share of what a replica sustains, as far as it is known. `replicas`: with that rate each, behind one balancer.

        Source: `flopwise.serving.sim`. Assumes: Poisson arrivals; the first and the last quarter are no steady state.

        Raises: SpecError, InfeasibleError: as `closed_loop_run`.
        """
        replicas = min(replicas, MOST_REPLICAS)
        clock = max(int(CLOCK_FRAC * LONGEST_S * _simulated_per_s(job, replicas)), 1)
        shares = [float(name.removeprefix("p")) for name in percentiles]
        count, longer = 0, min(replicas * arrivals_of(busy), clock, LONGEST_ARRIVALS)
        error_frac = over = 0.0
        while longer > count:
            count, longer = longer, min(LONGER * longer, clock, LONGEST_ARRIVALS)
            request = _request(job, _arrivals(job, lengths, count, replicas), facts)
            run = request.run_fixed(replicas, on_compile, samples=1)
            counted = slice(count // 4, count - count // 4)
            answered = run.outcome.finish_ps[counted] >= 0
            if not np.any(answered):
                raise InfeasibleError(no_room_text(job, job.context))
            came, ended = (column[counted][answered] for column in (run.outcome.arrival_ps, run.outcome.finish_ps))
            behind = float(np.ptp(ended)) / max(float(np.ptp(came)), 1.0)
            over = behind if behind >= FALLS_BEHIND else 0.0
            ttft_s, tpot_s = (np.asarray(seen)[counted] for seen in (run.ttft_s, run.tpot_s))
            spans = [_by_span(seen, shares) for seen in (ttft_s, tpot_s)]
            error_frac = max(map(_error_frac, spans))
            if over or error_frac <= SETTLED_FRAC:
                break
            if any(map(_drifts, spans)):
                longer = min(LONGER * count, clock, DRIFTING_ARRIVALS)
        first, each = _latencies(job, run, percentiles, counted)
        each_s = float(np.nanmean(tpot_s)) if job.decodes and job.output_tokens > 1 else 0.0
        means = RunMeans(float(np.nanmean(ttft_s)), each_s, (job.arrivals_per_s or 0.0) * float(answered.mean()))
        return cls(means, first, each, run.by_priority(counted), run, counted, over, error_frac, replicas)


class SessionRun(NamedTuple):
    """Sessions that come at random: what a replica does for them on average, and what they reuse and cost."""

    estimate: ServeEstimate
    report: SessionReport
    simulated: SimulatedRun
    counted: NDArray[np.bool_]  # turns of the run that figures are of
    notes: tuple[str, ...]  # what to know of the stores

    @classmethod
    def of(
        cls, job: ServeJob, traffic: Traffic, stores: str | None, replicas: int, facts: Facts,
        on_compile: OnCompile = None,
    ) -> Self:  # fmt: skip
        """Sessions of `traffic` on `replicas` of the job; prefixes stay in the cache, or in `stores`, if they can.

        A request goes where its session's prefix is. Figures are means over turns that come when as many sessions are
        under way as on average; the step is that of the mean turn, of whose prompt as much is found as in the run.

        Source: `flopwise.serving.sim`; routing by prefix as SGLang's and vLLM's routers do.
        Assumes: pauses of people and tools are drawn around their means; cold caches at first.

        Raises:
            SpecError: a model that answers in one pass, or no rate of sessions.
            InfeasibleError: weights leave no room for a sequence.
        """
        if traffic.rate is None or traffic.turns is None:
            raise SpecError("sessions need a rate: give --rate (sessions per second) with --turns")
        if traffic.rate < SELDOM_PER_S:
            raise OptionError("rate", "sessions that come less than once a day are not simulated; give 1/day or more")
        turns = max(1.0, mean_tokens(traffic.turns))
        tools = traffic.tool_share or 0.0
        pause_s = (1.0 - tools) * traffic.think_s + tools * (traffic.tool_pause or 0.0)
        life_s = turns * (pause_s + estimate(job).e2e_s)
        least_s = max(LIVES * life_s, LEAST_S, min(LEAST_SESSIONS / traffic.rate, MOST_S))
        duration_s = min(least_s, MOST_TURNS / (traffic.rate * turns))
        how = _scheduling(job, kv_stores=stores, balancer="prefix-aware")
        alone = replace(job, techniques=replace(job.techniques, prefill_gpus=0))
        request = request_of(alone, replace(traffic, duration_s=duration_s), how, facts, ())
        run = request.run_fixed(replicas, on_compile)
        first_s, last_s = BEFORE * duration_s, duration_s
        came, ended = run.outcome.arrival_ps / PS, run.outcome.finish_ps / PS
        kept = (came >= first_s) & (came <= last_s)
        kept = kept if kept.any() else np.ones(len(came), dtype=bool)
        reader_hours = request.prompt_readers(replicas) * run.paid_s / HOUR_S
        report = SessionReport.of(run, request.stores, reader_hours, None)
        assert report is not None, "turns share what was said before"
        inputs, outputs = (max(1, round(float(column.mean()))) for column in (run.trace.prompt, run.trace.output))
        answered = max(float(((ended >= first_s) & (ended <= last_s)).sum()), 1.0)
        begun = float((kept & (previous_turns(run.trace) < 0)).sum()) * report.turns_per_session
        rate = traffic.rate * report.turns_per_session / replicas
        if begun >= OVERLOAD * answered:
            rate *= answered / begun
        mean = replace(
            job, input_tokens=inputs, output_tokens=outputs, arrivals_per_s=rate,
            techniques=replace(job.techniques, hit_frac=1.0 - report.computed_frac, shared_tokens=0),
        )  # fmt: skip
        tpot_s = float(np.nanmean(run.tpot_s[kept])) if outputs > 1 else 0.0
        figures = estimate(mean, RunMeans(float(np.nanmean(run.ttft_s[kept])), tpot_s, rate))
        if figures.usd_per_hour is not None:  # of what the replicas do for good, not while they fill and drain
            hourly = figures.usd_per_hour * replicas + report.stores_usd_per_hour
            per_hour = rate * replicas / report.turns_per_session * HOUR_S
            report = replace(report, usd_per_session=hourly / per_hour)
        elsewhere = (ANSWERS_ELSEWHERE,) if job.techniques.prefill_gpus else ()
        return cls(figures, report, run, kept, (*slow_store_notes(request), *elsewhere))
