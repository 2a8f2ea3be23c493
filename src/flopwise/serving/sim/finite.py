"""What is simulated for an estimate: runs with an end, as load generators make them, and sessions of several turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.options import OptionError
from flopwise.serving.estimate import RunMeans, estimate
from flopwise.serving.job import ServeEstimate, ServeJob
from flopwise.serving.sessions import ANSWERS_ELSEWHERE
from flopwise.serving.sim.engine import KernelTimes
from flopwise.serving.sim.prefixes import previous_turns
from flopwise.serving.sim.request import SimulationRequest, request_of, slow_store_notes
from flopwise.serving.sim.result import ClassFigures, SimulatedRun, at_shares
from flopwise.serving.sim.sessions import SessionReport
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.trace import LONGEST_S, PS
from flopwise.serving.spec import Scheduling, mean_tokens
from flopwise.serving.steady import ROUNDS
from flopwise.units import DAY_S, HOUR_S
from flopwise.values import replace

ENOUGH_REQUESTS = 2_000
"""Short runs are drawn again, with other lengths and arrivals, until so many requests are simulated in all."""
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
CLOCK_FRAC = 0.5
"""Of the simulator's clock, for arrivals that are few: chance makes some runs twice as long as the mean."""
FALLS_BEHIND = 1.02
"""Time in which the counted requests are answered over that in which they come, from which on the queue only grows."""
AROUND = 8 / 9
"""The shortest of the lengths of a closed loop over their mean, where they go from 0.8 to 1 of the nominal ones."""
LIVES, LEAST_S, MOST_TURNS = 4.0, 600.0, 100_000
"""Sessions come for so many times as long as one lasts, ten minutes at least, and have no more turns in all."""
LEAST_SESSIONS, MOST_S, SELDOM_PER_S = 600, 20 * DAY_S, 1.0 / DAY_S
"""They come at least until there are so many, or for twenty days; at lower rates there would be too few to simulate."""
OVERLOAD = 1.15
"""Sessions that come over those answered, from which on they wait for each other; below it is chance."""
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
    at_once = traffic.together and (traffic.users or 0) >= traffic.requests
    if at_once and traffic.requests > WHOLE_REQUESTS:
        return _long_job(job, traffic, math.ceil(traffic.requests / replicas), facts, on_compile)
    runs = _draws(job, traffic, replicas, facts, on_compile)
    return FiniteRun(_mean([_means(job, run, replicas) for run in runs]), runs[-1])


def _draws(job: ServeJob, traffic: Traffic, replicas: int, facts: Facts, on_compile: OnCompile) -> list[SimulatedRun]:
    """Runs of the same traffic, drawn with one seed after another."""
    draws = max(1, min(MOST_DRAWS, ENOUGH_REQUESTS // max(traffic.requests or 1, 1)))
    seeds, kernels = range(traffic.seed, traffic.seed + draws), KernelTimes()
    requests = (_request(job, replace(traffic, seed=seed), facts, kernels) for seed in seeds)
    return [request.run_fixed(replicas, on_compile, samples=1) for request in requests]


def _mean(figures: Sequence[RunMeans]) -> RunMeans:
    return RunMeans(*np.mean(figures, axis=0).tolist())


class ClosedLoopRun(NamedTuple):
    """Users in a closed loop: what a replica does for them, and the last run behind it."""

    estimate: ServeEstimate
    simulated: SimulatedRun


def closed_loop_run(
    job: ServeJob, facts: Facts, lengths: tuple[int | str, int | str] | None = None, on_compile: OnCompile = None
) -> ClosedLoopRun:
    """A replica and the users of a closed loop, each of whom sends `ROUNDS` requests: means over them, simulated.

    `lengths`: of prompts and answers as they are drawn; None: within a ninth of the job's own. Inputs that are answered
    in one pass are all of its own length then, and those of the first and the last round are not counted: there all
    begin together, or few are left.

    Source: `flopwise.serving.sim`; `flopwise.serving.steady.ROUNDS` for what load generators send; Little's law for the
    rate, as the end of a run, when few are left, is no steady state.
    Raises: as `finite_run`.
    """
    users = max(int(job.concurrency or 1), 1)
    inputs, outputs = lengths or (_about(job.input_tokens), _about(job.output_tokens))
    if not job.decodes:
        inputs, outputs = inputs if lengths else job.input_tokens, 1
    traffic = Traffic(
        requests=ROUNDS * users, users=users, together=True, input_tokens=inputs, output_tokens=outputs,
        priorities=job.priorities or None,
    )  # fmt: skip

    def means(run: SimulatedRun) -> RunMeans:
        if not job.decodes:
            whole_s = float(np.nanmean(run.e2e_s[users:-users]))
            return RunMeans(whole_s, 0.0, users / whole_s)
        return _means(job, run, 1)._replace(requests_per_s=users / float(np.nanmean(run.e2e_s)))

    runs = _draws(job, traffic, 1, facts, on_compile)
    return ClosedLoopRun(estimate(job, _mean([means(run) for run in runs])), runs[-1])


def _about(tokens: int) -> int | str:
    """Lengths around a mean, as load generators draw them."""
    low = round(AROUND * tokens)
    return tokens if low == tokens else f"{low}:{2 * tokens - low}"


def _request(job: ServeJob, traffic: Traffic, facts: Facts, kernels: KernelTimes | None = None) -> SimulationRequest:
    """The request to replicas of a job; `kernels`: times that it shares with others that differ in lengths alone."""
    alone = replace(job, techniques=replace(job.techniques, prefill_gpus=0))
    return request_of(alone, traffic, _scheduling(job), facts, (), one_pass=True, kernels=kernels)


def _scheduling(job: ServeJob, **stated: Any) -> Scheduling:
    """The options by which the replicas of a job schedule its requests."""
    return Scheduling(policy=job.policy, preempt=job.preempt, prefill_gpus=job.techniques.prefill_gpus, **stated)


def _means(job: ServeJob, run: SimulatedRun, replicas: int) -> RunMeans:
    tpot_s = float(np.nanmean(run.tpot_s)) if job.output_tokens > 1 else 0.0
    made = run.summary().output_tokens_per_s / job.output_tokens
    return RunMeans(float(np.nanmean(run.ttft_s)), tpot_s, made / replicas)


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
    ttft_s = means.ttft_s + times * (means.ttft_s - _means(job, half, 1).ttft_s)
    return FiniteRun(RunMeans(ttft_s, means.tpot_s, requests / seconds), run)


def arrivals_of(busy: float, fewest: int = ARRIVALS, most: int = MOST_ARRIVALS) -> int:
    """Requests whose percentiles stand for a steady state at a share `busy` of what a replica sustains.

    Source: `ARRIVALS`. Assumes: `fewest` are enough where nobody waits.
    """
    idle = max(1.0 - busy, 1e-3)
    return int(min(fewest / idle**2, most))


def _arrivals(job: ServeJob, lengths: tuple[int | str, int | str] | None, count: int) -> Traffic:
    """So many requests at the job's rate."""
    inputs, outputs = lengths or (job.input_tokens, job.output_tokens)
    return Traffic(
        requests=count, rate=job.arrivals_per_s, input_tokens=inputs, output_tokens=outputs or 1,
        priorities=job.priorities or None, seed=TYPICAL,
    )  # fmt: skip


def _error_frac(seconds: NDArray[np.float64], shares: Sequence[float]) -> float:
    """The largest standard error of percentiles of a run, over their own size; 0 where there is too little to say.

    Source: batch means (`SPANS`).
    """
    spans = [span[~np.isnan(span)] for span in np.array_split(seconds, SPANS)]
    if not shares or min(len(span) for span in spans) < SPANS:
        return 0.0
    each = np.array([at_shares(span, shares) for span in spans])
    whole = np.maximum(np.abs(each).mean(axis=0), 1.0 / PS)
    return float((each.std(axis=0, ddof=1) / whole).max()) / math.sqrt(SPANS)


class ArrivalRun(NamedTuple):
    """Latencies of requests that arrive at random at a replica: of the middle of a long run, in s."""

    means: RunMeans
    ttft_s: dict[str, float]  # by percentile
    tpot_s: dict[str, float]
    by_priority: dict[int, ClassFigures]  # of each class of requests; none where they are alike
    simulated: SimulatedRun
    counted: slice  # requests of the run that figures are of
    utilisation_frac: float  # 1 or more where the queue only grows: the arrival rate over that of answers; else 0
    error_frac: float  # standard error of the least certain percentile, by chance alone

    @property
    def note(self) -> str:
        """The share by which chance still decides percentiles of the run, in words; empty where they are settled."""
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
    ) -> Self:  # fmt: skip
        """Simulate requests at the job's rate until `percentiles`, as p50, are settled: at first as `arrivals_of` says.

        `lengths`: of prompts and answers as they are drawn; None: all are the job's own. `busy`: share of what the
        replica sustains, as far as it is known.

        Source: `flopwise.serving.sim`. Assumes: Poisson arrivals; the first and the last quarter are no steady state.

        Raises: SpecError, InfeasibleError: as `finite_run`.
        """
        clock = max(int(CLOCK_FRAC * LONGEST_S * (job.arrivals_per_s or 0.0)), 1)
        shares = [float(name.removeprefix("p")) for name in percentiles]
        count, longer = 0, min(arrivals_of(busy), clock)
        error_frac = over = 0.0
        while longer > count:
            count, longer = longer, min(LONGER * longer, clock, LONGEST_ARRIVALS)
            run = _request(job, _arrivals(job, lengths, count), facts).run_fixed(1, on_compile, samples=1)
            counted = slice(count // 4, count - count // 4)
            came, ended = (column[counted] for column in (run.outcome.arrival_ps, run.outcome.finish_ps))
            behind = float(np.ptp(ended)) / max(float(np.ptp(came)), 1.0)
            over = behind if behind >= FALLS_BEHIND else 0.0
            ttft_s, tpot_s = (np.asarray(seen)[counted] for seen in (run.ttft_s, run.tpot_s))
            error_frac = max(_error_frac(seen, shares) for seen in (ttft_s, tpot_s))
            if over or error_frac <= SETTLED_FRAC:
                break
        if not job.decodes or job.output_tokens == 1:
            tpot_s = np.zeros_like(ttft_s)
        first, each = (
            dict(zip(percentiles, at_shares(v[~np.isnan(v)], shares), strict=True)) for v in (ttft_s, tpot_s)
        )
        means = RunMeans(float(np.nanmean(ttft_s)), float(np.nanmean(tpot_s)), job.arrivals_per_s or 0.0)
        return cls(means, first, each, run.by_priority(counted), run, counted, over, error_frac)


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
        report = SessionReport.of(run, request.stores, request.prompt_readers(replicas), None)
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
            hourly = figures.usd_per_hour * replicas + report.stores_usd * HOUR_S / run.paid_s
            per_hour = rate * replicas / report.turns_per_session * HOUR_S
            report = replace(report, usd_per_session=hourly / per_hour)
        elsewhere = (ANSWERS_ELSEWHERE,) if job.techniques.prefill_gpus else ()
        return cls(figures, report, run, kept, (*slow_store_notes(request), *elsewhere))
