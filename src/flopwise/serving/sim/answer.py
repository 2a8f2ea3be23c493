"""The figures of a simulation: what users see, with intervals, what it costs, and what a cache of answers saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any

from flopwise.cost.intervals import ErrorBand
from flopwise.cost.money import idle_note
from flopwise.pictures import Picture, PointPicture
from flopwise.results import Result, attributes, notes
from flopwise.serving.closed_loop import closed_loop_text
from flopwise.serving.estimate import least_tpot_s, step_limit_text
from flopwise.serving.job import ServeJob, in_its_class, interval_notes, latency_band, serving_band
from flopwise.serving.sim.autoscale import MOST_FIXED_REPLICAS, fewest
from flopwise.serving.sim.request import ResponseCache, SimulationRequest, hit_rate, length_spread, slow_store_notes
from flopwise.serving.sim.result import RunSummary, SimulatedRun, Slo
from flopwise.serving.sim.sessions import SessionReport
from flopwise.serving.sim.trace import PS, RequestTrace
from flopwise.serving.spec import VARIED
from flopwise.serving.technique_rules import technique_assumptions, technique_settings
from flopwise.units import HOUR_S, format_cost, format_number, format_percent, format_price, format_seconds
from flopwise.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """The effect of a cache of answers on a run. USD None without a price."""

    cache: ResponseCache
    hits: int
    hit_frac: float  # of the requests of this run
    long_run_frac: float  # by theory, without expiry
    usd: float  # of its memory during the run
    without: RunSummary  # the same replicas without it
    attain: float | None  # the share that the fewest replicas hold; None without an objective
    fewest: int | None  # replicas with it, None: no number holds the objective
    fewest_without: int | None
    saved_usd: float | None  # by the replicas that it makes needless, less its memory; None where not known


LATENCIES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "wait_s")
"""Figures of a run by percentile."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SimulateAnswer(Result):
    """A run and its figures; the intervals of its percentiles come from the measured errors of step times."""

    job: ServeJob
    simulated: SimulatedRun
    summary: RunSummary
    slo: Slo
    replicas: int
    gpus_per_replica: int
    usd_per_hour: float | None  # of all replicas
    cost_usd: float | None  # of the replicas, stores of prefixes and the cache of answers
    intervals: dict[str, dict[str, tuple[float, float]]]  # of ttft_s, tpot_s and e2e_s at p50 and p95
    bands: dict[str, ErrorBand]  # of ttft_s and tpot_s: the errors behind their intervals
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    cache: CacheReport | None = None
    sessions: SessionReport | None = None  # where prompts share what answers leave

    @classmethod
    def of(
        cls,
        request: SimulationRequest,
        replicas: int,
        slo: Slo,
        attain: float,
        on_compile: Callable[[], None] | None = None,
    ) -> SimulateAnswer:
        """The run of `replicas`; with a cache what it saves where `attain` of the requests hold `slo`."""
        total = replicas + request.prefill_pool(replicas)
        run = request.run_fixed(replicas, on_compile)
        answer = simulation_answer(request, run, replicas=total, slo=slo, readers=request.prompt_readers(replicas))
        if request.cache is None:
            return answer
        report = _cache_report(request, answer, replicas, attain)
        usd = None if answer.cost_usd is None else answer.cost_usd + report.usd
        return replace(answer, cache=report, cost_usd=usd)

    @property
    def verdict(self) -> str:
        """The answer in a sentence: what users see, and how many in time."""
        summary, second = self.summary, format_seconds
        if not summary.completed:
            return self._why_none()
        seen = list[str]()
        times = [("TTFT", "ttft_s", summary.ttft_s), ("TPOT", "tpot_s", summary.tpot_s)]
        if not self.job.decodes:
            times = [("latency", "e2e_s", summary.e2e_s)]
        for title, name, p in times:
            if isfinite(p.p95):
                low, high = self.intervals[name]["p95"]
                interval = "80 % interval: " * (not seen)
                seen.append(f"{title} {second(p.p95)} ({interval}{second(low)} to {second(high)})")
        text = f"{format_number(summary.requests_per_s)} requests/s answered, {' and '.join(seen)} at p95"
        if any(limit is not None for limit in self.slo):
            text += f"; {format_percent(summary.goodput_frac)} of requests meet every target"
        if summary.mean_queue > max(summary.mean_running, 1.0):
            text += "; the replicas cannot keep up"
        usd = format_cost(self.usd_per_million_output_tokens)
        return f"{text}{f'; {usd} per million output tokens with their prompts' if usd else ''}."

    def _why_none(self) -> str:
        """That no request was answered, and what would have to change."""
        summary, text = self.summary, "No request was answered"
        reasons = [f"{count:,} were {reason}" for reason, count in summary.drop_reasons.items() if count]
        if not reasons:
            return f"{text}: {summary.live:,} were still running when the run ended; let it run longer."
        model, trace = self.job.model, self.simulated.trace
        made = f" ({model.name} is made for {model.max_position:,} tokens)" if model.max_position else ""
        mean = f"{trace.prompt.mean():,.0f} tokens in and {trace.output.mean():,.0f} out on average"
        return f"{text}: {' and '.join(reasons)}{made}, with {mean}; give shorter ones (--input, --output)."

    def document(self) -> dict[str, Any]:
        """The run as the JSON that scripts rely on."""
        ends = {
            f"{name}_{percentile}_{end}": value
            for name, intervals in self.intervals.items()
            for percentile, interval in intervals.items()
            for end, value in zip(("low", "high"), interval, strict=True)
        }
        figures = {name: value for name, value in self.summary._asdict().items() if name not in LATENCIES}
        return {
            **attributes(self, "model=job.model.name gpu=job.cluster.accelerator.name replicas"),
            "num_gpus": self.replicas * self.gpus_per_replica,
            **attributes(self.summary, " ".join(LATENCIES)),
            **ends,
            **figures,
            **attributes(self, "cost_usd usd_per_million_output_tokens slo simulated.timeline"),
            **({} if self.sessions is None else {"prefixes": self.sessions.document()}),
            **self.cache_document(),
            **({"priorities": classes} if (classes := self._priorities_document()) else {}),
            **notes(self),
        }

    def _priorities_document(self) -> list[dict[str, Any]]:
        """Latencies of each class of requests; none where all are alike."""
        return [{"priority": one, **figures._asdict()} for one, figures in self.simulated.by_priority().items()]

    def picture(self) -> Picture:
        """The distribution of latencies, as a picture."""
        series = {
            title: [(float(name[1:]), p) for name, p in times._asdict().items() if isfinite(p)]
            for title, times in (("first token", self.summary.ttft_s), ("each further token", self.summary.tpot_s))
        }
        return PointPicture(title=self.verdict, x="percentile", y="seconds", series=series, lines=tuple(series))

    def cache_document(self) -> dict[str, Any]:
        """The effect of a cache of answers, by key; empty without one."""
        if self.cache is None:
            return {}
        report = attributes(
            self.cache,
            "hits hit_frac long_run_hit_frac=long_run_frac cost_usd=usd saved_usd attain fewest_replicas=fewest "
            "fewest_replicas_without=fewest_without",
        )
        return {
            "response_cache": report
            | {"without": attributes(self.cache.without, "ttft_s goodput_frac utilisation_frac")}
        }

    @property
    def beside_usd(self) -> dict[str, float]:
        """The parts of the cost that are not of replicas, in USD, by name."""
        stores_usd = 0.0 if self.sessions is None else self.sessions.stores_usd
        cache_usd = 0.0 if self.cache is None else self.cache.usd
        return {name: usd for name, usd in (("stores", stores_usd), ("the cache of answers", cache_usd)) if usd}

    @property
    def usd_per_million_output_tokens(self) -> float | None:
        """The cost of a million output tokens of this run, in USD, stores and caches paid; None without a price."""
        _, made = self.simulated.tokens
        return None if self.cost_usd is None or not made or not self.job.decodes else self.cost_usd / made * 1e6


def simulation_answer(
    request: SimulationRequest, run: SimulatedRun, *, replicas: int, slo: Slo, hours: float | None = None,
    readers: int | None = None,
) -> SimulateAnswer:  # fmt: skip
    """The figures of a run; `hours` of replicas are paid, None: all from start to end.

    `readers`: the replicas that read prompts; None: all.
    """
    job, each = request.job, request.usd_per_replica_hour(replicas)
    summary = run.summary(slo)
    hours = replicas * run.paid_s / HOUR_S if hours is None else hours
    summary = summary._replace(replica_hours=hours)
    rate_job = job if request.traffic.users else replace(job, arrivals_per_s=request.trace.requests_per_s)
    rate_job = in_its_class(rate_job, summary.requests_per_s)
    intervals: dict[str, dict[str, tuple[float, float]]] = {"ttft_s": {}, "tpot_s": {}, "e2e_s": {}}
    bands = {f"{name}_s": serving_band(rate_job, name) for name in (("ttft", "tpot") if job.decodes else ("ttft",))}
    least_token_s = least_tpot_s(job) if job.decodes else 0.0
    for percentile in ("p50", "p95"):
        first_s, token_s, whole_s = (getattr(getattr(summary, name), percentile) for name in intervals)
        for name, figure, least in (("ttft_s", first_s, 0.0), ("tpot_s", token_s, least_token_s)):
            if isfinite(figure) and name in bands:
                low, high = bands[name].interval(figure, floor=min(least, figure))
                intervals[name][percentile] = (float(low), float(high))
        if isfinite(first_s) and isfinite(whole_s):
            intervals["e2e_s"][percentile] = latency_band(rate_job).interval(min(first_s, whole_s), whole_s)
    notes = interval_notes(rate_job, bands["ttft_s"])
    idle = idle_note(request.paid_gpus(replicas), request.gpus_per_replica, replicas)
    replicas_usd = None if each is None else each * hours
    reader_hours = hours if readers is None else readers * run.paid_s / HOUR_S
    sessions = SessionReport.of(run, request.stores, reader_hours, replicas_usd)
    assumed = dict.fromkeys((*request.assumptions, *_technique_notes(job), *notes))
    return SimulateAnswer(
        job=job, simulated=run, summary=summary, slo=slo, replicas=replicas, gpus_per_replica=request.gpus_per_replica,
        usd_per_hour=None if each is None else each * replicas,
        cost_usd=replicas_usd if replicas_usd is None or sessions is None else replicas_usd + sessions.stores_usd,
        intervals=intervals, bands=bands, settings=_settings(request, replicas),
        assumptions=(*assumed, *_run_notes(request), *idle),
        sessions=sessions,
    )  # fmt: skip


def has_objective(slo: Slo) -> bool:
    """True if requests have a latency objective."""
    return any(limit is not None for limit in slo)


def fewest_replicas(request: SimulationRequest, slo: Slo, attain: float, near: int) -> int | None:
    """The fewest replicas with which `attain` of the requests hold the objective; None: no number does."""
    most = min(MOST_FIXED_REPLICAS, len(request.computed_requests))
    return fewest(lambda count: request.run_fixed(count).summary(slo).goodput_frac, attain, near=near, most=most)


def _cache_report(request: SimulationRequest, answer: SimulateAnswer, replicas: int, attain: float) -> CacheReport:
    """The effect of a request's cache on the run of `answer`, and the replicas that it saves."""
    cache, bare, slo = request.cache, request.without_cache, answer.slo
    assert cache is not None
    assert request.makers is not None
    with_it = without = saved = None
    hours = answer.simulated.end_ps / PS / HOUR_S
    usd = cache.usd(float(request.requests.output.mean()), hours * HOUR_S)
    if has_objective(slo):
        with_it = fewest_replicas(request, slo, attain, replicas)
        without = fewest_replicas(bare, slo, attain, with_it or replicas)
        if with_it and without and answer.usd_per_hour is not None:
            saved = (without - with_it) * answer.usd_per_hour / answer.replicas * hours - usd
    hits = int((request.makers >= 0).sum())
    return CacheReport(
        cache=cache, hits=hits, hit_frac=hits / len(request.requests), long_run_frac=hit_rate(cache), usd=usd,
        without=bare.run_fixed(replicas).summary(slo), attain=attain if has_objective(slo) else None, fewest=with_it,
        fewest_without=without, saved_usd=saved,
    )  # fmt: skip


def _technique_notes(job: ServeJob) -> Iterator[str]:
    """Assumptions about techniques, and the additions of their simulation."""
    yield from technique_assumptions(job)
    if job.techniques.hit_frac:
        yield "every prompt has the same share of cache hits; preempted sequences are recomputed in full"
    if job.techniques.speculation is not None:
        yield (
            "the tokens accepted in each round are drawn at random; gaps between tokens (ITL) are those between rounds"
        )


def _run_notes(request: SimulationRequest) -> Iterator[str]:
    """Assumptions about the engine, the seed, the traffic and the policy."""
    limits, traffic = request.replica.limits, request.traffic
    if request.job.decodes:
        yield step_limit_text(request.job, request.scheduling.step_tokens)
        yield f"the cache has {limits.num_blocks:,} blocks of {limits.block_tokens} tokens"
    else:
        steps = f"an engine step holds up to {limits.step_tokens:,} tokens and {limits.max_batch:,} sequences"
        yield f"{steps}: a batch takes what waits when the one before it ends"
    yield "the same seed gives exactly the same run; its intervals are those of the step times behind it"
    if traffic.arrivals == "diurnal":
        yield "the simulation starts at midnight; the given rate is the mean over whole days"
    if traffic.turns is not None:
        yield "each turn sends the whole history again; pauses are exponential, drawn separately for people and tools"
    if request.stores:
        yield (
            "a request waits while a store loads its prefix, and loads share one link, one at a time; writing to a "
            "store takes no time, and a replica reads only the prefixes that it has stored itself"
        )
    yield from slow_store_notes(request)
    yield from _idle_policy_note(request.scheduling.policy, request.trace)
    if traffic.in_turn:
        yield closed_loop_text(traffic.users or 0, len(request.trace))
    if request.job.decodes and length_spread(request.job.model, traffic):
        yield VARIED


def _idle_policy_note(policy: str, trace: RequestTrace) -> Iterator[str]:
    """That a policy orders by what the requests do not have."""
    if policy == "priority" and trace.priority.min() == trace.priority.max():
        yield (
            "all requests have the same priority (column `priority` of a trace file), so that order is first come, "
            "first served"
        )
    if policy == "deadline" and trace.deadline_ps.max() < 0:
        yield (
            "no request has a deadline (column `deadline_s` of a trace file), so that order is first come, first served"
        )


def replica_size(request: SimulationRequest, replicas: int) -> str:
    """The size of each replica, and the number of those for prompts alone, as text."""
    gpus, scheduling = request.gpus_per_replica, request.scheduling
    pool = scheduling.prefill_replicas or scheduling.prefill_gpus * replicas // (gpus + scheduling.prefill_gpus)
    return f"each of {gpus} x {request.job.cluster.accelerator.name}" + (f" ({pool} for prompts)" if pool else "")


def _settings(request: SimulationRequest, replicas: int) -> tuple[tuple[str, str], ...]:
    job, trace, traffic, scheduling = request.job, request.trace, request.traffic, request.scheduling
    rate = f"{format_number(trace.requests_per_s)}/s" if isfinite(trace.requests_per_s) else "all at once"
    rate = "each after an answer" if traffic.users else rate
    arrivals = {"poisson": "Poisson"}.get(traffic.arrivals, traffic.arrivals)
    users = f"of {traffic.users:,} users" if traffic.users else f"with {arrivals} arrivals"
    source = f"from {traffic.trace.name}" if traffic.trace else users
    return (
        ("replicas", f"{replicas:,}, {replica_size(request, replicas)}"),
        ("layout", job.layout.text),
        ("weights", job.weights.name + (f"; KV cache {job.kv_dtype.name}" if job.decodes else "")),
        ("engine", f"{job.engine.name}; {scheduling.policy}, {scheduling.balancer}"),
        *technique_settings(job),
        ("requests", f"{len(trace):,} {source}, {rate}"),
        (
            "lengths",
            f"{trace.prompt.mean():,.0f} tokens in"
            + (f", {trace.output.mean():,.0f} out on average" if job.decodes else " on average"),
        ),
        ("price", format_price(job.cluster.usd_per_gpu_hour, job.cluster.price_source)),
    )
