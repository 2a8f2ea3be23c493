"""What serving answers: the estimate of a replica and of all, its memory, waits under load, what drafts gain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from flopwise.cost.money import idle_note, usd_per_million_tokens
from flopwise.cost.quick import QuickFormula
from flopwise.cost.spec import MachineSpec
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.storage import Storage
from flopwise.ops.weights import weight_bytes
from flopwise.options import OptionError
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Kind
from flopwise.results import Result, attributes, entries, notes
from flopwise.serving.closed_loop import closed_loop_text
from flopwise.serving.deployment import paid_gpus
from flopwise.serving.disaggregated import disaggregated_percentiles
from flopwise.serving.estimate import (
    SHORT_ANSWER,
    JobSteady,
    answers_are_short,
    estimate,
    job_memory,
    largest_batch,
    outgrows_cache,
    request_tokens,
    requests_held,
    step_limit_text,
    waiting_batches,
)
from flopwise.serving.iteration import StepLoad, prompt
from flopwise.serving.job import Ranged, ServeEstimate, ServeJob, interval_notes
from flopwise.serving.memory import generates
from flopwise.serving.memory_answer import ServingMemoryAnswer, memory_answer
from flopwise.serving.open_loop import Percentile, SteadyCurves
from flopwise.serving.spec import (
    DEFAULT_OUTPUT,
    VARIED,
    QueueSpec,
    RequestSpec,
    ResponseCacheSpec,
    ServingSpec,
    SessionsSpec,
    StartSpec,
    TechniqueRequest,
    mean_tokens,
)
from flopwise.serving.startup import DEFAULT_STORAGE, ColdStart, cold_start
from flopwise.serving.technique_rules import technique_settings
from flopwise.serving.techniques import host_bytes, percentile_tpot_s, request_work, runner, tokens_a_round
from flopwise.serving.waiting_batches import one_pass_latency_s
from flopwise.units import (
    HOUR_S,
    format_arrivals,
    format_bytes,
    format_cost,
    format_interval,
    format_items,
    format_multiple,
    format_percent,
    format_price,
    format_seconds,
)  # fmt: skip
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.serving.sim.finite import ArrivalRun, ClosedLoopRun, FiniteRun, SessionRun
    from flopwise.serving.sim.request import ResponseCache
    from flopwise.serving.sim.result import ClassFigures
    from flopwise.serving.sim.sessions import SessionReport

PERCENTILES = ("p50", "p90", "p95", "p99")
LARGEST_BATCH = 4096
"""Largest batch at which speculation is checked for a benefit."""


SIMULATED_FROM = 0.45
"""Share of capacity from which simulation differs from the moments of `OpenLoop` where arrivals are not simulated at
any load (`_why_no_closed_form`). They are because of 216 drawn cases (nine deployments, prompts of 64 to 3,500 tokens,
answers of 128 to 1,024, 2 to 90 % of capacity) p50, p95 or p99 of TTFT or TPOT is off by more than a tenth in 98, by 79
% at worst. It takes 0.1 s of processor time. Of users in a closed loop no closed form says a percentile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyPercentiles:
    """Latencies of requests by percentile, in s, with the ends of their 80 % intervals where these are known."""

    ttft_s: dict[str, float]
    tpot_s: dict[str, float]
    ttft_s_low: dict[str, float] = field(default_factory=dict)
    ttft_s_high: dict[str, float] = field(default_factory=dict)
    tpot_s_low: dict[str, float] = field(default_factory=dict)
    tpot_s_high: dict[str, float] = field(default_factory=dict)

    def ends(self, name: str, percentile: str) -> tuple[float, float]:
        """The 80 % interval of `ttft_s` or `tpot_s` at a percentile."""
        return getattr(self, f"{name}_low")[percentile], getattr(self, f"{name}_high")[percentile]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad(LatencyPercentiles):
    """Latencies of requests that arrive at random at `rate` a second; infinite where the replicas cannot keep up."""

    requests_per_s: float
    utilisation_frac: float  # of the rate that all replicas sustain
    replicas_needed: int  # the fewest that keep up


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftGain:
    """The gain of speculative decoding at this load, and the load up to which it pays."""

    draft: str
    tokens_per_step: float
    decode_speedup: float  # at this batch
    pays_up_to: int  # sequences decoding at once on one attention replica, looked up at powers of two; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedAnswers:
    """A cache of whole answers before the replicas, once it is warm."""

    cache: ResponseCache
    computed_frac: float  # of requests, those that it does not answer
    usd_per_hour: float  # of its memory

    def percentile_of_computed(self, name: str) -> str | None:
        """The percentile of the requests that are computed where all have percentile `name` (p95); None: a hit."""
        share = 1.0 - (1.0 - float(name.removeprefix("p")) / 100) / self.computed_frac
        return f"p{100 * share:.6f}" if share > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeQuestion:
    """A service in question: its load, its deployment, machines and start, and how requests are answered.

    `gpus`: accelerators of all replicas; None: of one. `static`: a fixed batch; `encode`: one pass over each input.
    `simulate`: latencies of users or of arrivals are those of simulated requests; `closed_form`: they are not, even
    where the closed form is known to be off. `cache`: of whole answers.
    """

    request: RequestSpec
    deployment: ServingSpec
    machines: MachineSpec
    start: StartSpec
    techniques: TechniqueRequest
    sessions: SessionsSpec
    queue: QueueSpec
    cache: ResponseCacheSpec
    gpus: int | None = None
    static: bool = False
    encode: bool = False
    simulate: bool = False
    closed_form: bool = False

    def check(self) -> None:
        """Check options that go together. Raises SpecError: some of them do not."""
        self.start.check()
        self.sessions.check()
        self.cache.check()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServeAnswer(Result):
    """The estimate of one replica, and of all `replicas` together."""

    table = "breakdown"
    estimate: ServeEstimate
    machines: MachineSpec
    facts: Facts
    replicas: int
    memory: ServingMemoryAnswer
    fits: bool
    under_load: UnderLoad | None
    closed_loop: LatencyPercentiles | None  # of users, where they are simulated
    quick: tuple[QuickFormula, ...]
    settings: tuple[tuple[str, str], ...]
    cold_start: ColdStart
    speculation: DraftGain | None
    host_bytes: float  # weights in the host's memory, of one replica
    assumptions: tuple[str, ...]
    sessions: SessionReport | None = None  # where requests are turns of sessions
    cached: CachedAnswers | None = None
    beside_usd_per_hour: float = 0.0  # of stores of prefixes and the cache of answers, of all replicas
    by_priority: Mapping[int, ClassFigures] = field(default_factory=dict)  # of each class of requests
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of settings that were not given, by name

    @classmethod
    def of(
        cls, job: ServeJob, question: ServeQuestion, facts: Facts, *, notes: tuple[str, ...] = (),
        on_compile: Callable[[], None] | None = None,
    ) -> ServeAnswer:  # fmt: skip
        """The answer for accelerators that hold replicas of `job`, which has no load yet.

        `on_compile` is called where the simulator must be compiled first.

        Raises:
            SpecError: no whole replicas, or a load that cannot be.
        """
        request, sessions, start = question.request, question.sessions, question.start
        cached = _cached_answers(question)
        job, replicas, request_notes = _loaded_replica(job, question, cached)
        cluster, known = job.cluster, JobSteady(job)
        session_run, closed_loop = None, None
        by_priority: Mapping[int, ClassFigures] = {}
        if sessions.turns is not None:
            session_run = _session_run(job, replicas, request, sessions, facts, on_compile)
            result, job = session_run.estimate, session_run.estimate.job
            by_priority = session_run.simulated.by_priority(session_run.counted)
            request_notes += session_run.notes
        elif request.requests is not None:
            finite = _finite_run(job, replicas, request, facts, on_compile)
            result, by_priority = estimate(job, finite.means), finite.simulated.by_priority()
            request_notes += tuple(_traffic_notes(job, request))
        else:
            result, closed_loop, by_priority, loop_notes = _closed_loop(known, question, replicas, facts, on_compile)
            request_notes += loop_notes
        at_once = requests_held(job, result.max_concurrency)
        memory = memory_answer(
            job.model, replace(question.deployment, weights=job.weights.name),
            job_memory(job, concurrency=at_once), cluster.accelerator, facts,
            context=job.context, concurrency=at_once, job=job,
        )  # fmt: skip
        waits = None
        if request.rate is not None and request.requests is None and session_run is None:
            arrivals = _arrivals(known, question, replicas, cached, facts, on_compile)
            waits, request_notes = arrivals.under_load, request_notes + arrivals.notes
            result, by_priority = arrivals.estimate or result, arrivals.by_priority
        if session_run is not None and request.rate is not None:
            waits = _overload(session_run, request.rate, replicas)
        beside_usd = 0.0 if session_run is None else session_run.report.stores_usd_per_hour
        if cached is not None:
            beside_usd += cached.usd_per_hour
        result = _with_whole_bill(result, replicas, beside_usd, 1.0 if cached is None else cached.computed_frac)
        answers = result.max_concurrency >= 1 and (waits is None or waits.utilisation_frac < 1)
        ends = interval_notes(job, result.ttft_s.band) if answers else ()
        steps = (step_limit_text(job),) if job.decodes and not job.static else ()
        notes += (*request_notes, *steps, *result.assumptions, *ends, *memory.assumptions, *_unsupported_notes(job))
        notes += (
            *_host_notes(job, replicas, question.machines, facts),
            *idle_note(job.paid_gpus, job.num_gpus, replicas),
        )
        return ServeAnswer(
            estimate=result,
            machines=question.machines,
            facts=facts,
            replicas=replicas,
            memory=memory,
            fits=result.max_concurrency >= 1,
            under_load=waits,
            closed_loop=closed_loop,
            quick=(*(_token_rules(result) if result.max_concurrency else ()), *memory.quick),
            settings=_answered_settings(job, result, question, replicas, session_run, cached),
            cold_start=cold_start(
                job, _storage_of(start, facts), image_bytes=start.image_size or 0.0,
                image_bytes_per_s=start.image_bandwidth or 0.0,
            ),
            speculation=_draft_gain(job, result),
            host_bytes=host_bytes(job),
            sessions=None if session_run is None else session_run.report,
            cached=cached,
            beside_usd_per_hour=beside_usd,
            by_priority=by_priority,
            assumptions=tuple(dict.fromkeys(notes)),
        )  # fmt: skip

    @property
    def num_gpus(self) -> int:
        """Accelerators of all replicas."""
        return self.replicas * self.estimate.num_gpus

    @property
    def noun(self) -> str:
        """The noun of what arrives: `request` where it is answered in tokens, else `input`."""
        return _noun(self.estimate.job)

    @property
    def keeps_up(self) -> bool:
        """True if the replicas sustain the rate given."""
        return self.under_load is None or self.under_load.utilisation_frac < 1

    @property
    def usd_per_million_requests(self) -> float | None:
        """US dollars of a million requests; None without a price."""
        hourly, rate = self.estimate.usd_per_hour, self.estimate.requests_per_s
        if hourly is None or not rate:
            return None
        given_per_s = rate if self.cached is None else rate / self.cached.computed_frac
        return float(usd_per_million_tokens(hourly + self.beside_usd_per_hour / self.replicas, given_per_s))

    @property
    def verdict(self) -> str:
        """The answer in a sentence: speed and cost, or what stands in the way."""
        estimate, load = self.estimate, self.under_load
        where = f"{self.num_gpus:,} x {estimate.job.cluster.accelerator.name}"
        if not self.fits:
            return self.memory.verdict
        decodes = estimate.tpot_s is not None and estimate.output_tokens_per_s is not None
        if load is not None and not self.keeps_up:
            needed = load.replicas_needed * estimate.num_gpus
            rate = format_arrivals(load.requests_per_s, self.noun)
            far = format_multiple(load.utilisation_frac)
            return f"Too slow: {rate} is {far} {where} can sustain; {needed:,} are needed."
        verb = "serves" if self.num_gpus == 1 else "serve"
        token_usd = estimate.usd_per_million_output_tokens
        usd = format_cost(self.usd_per_million_requests if token_usd is None else token_usd)
        paid = f"; {usd} per million {self.noun}s" if usd else ""
        if token_usd is not None:
            read = format_cost(estimate.usd_per_million_input_tokens)
            paid = f"; {f'{read} per million input and ' if read else ''}{usd} per million output tokens"
        if load is not None:
            first = f"{'TTFT' if decodes else 'latency'} {format_seconds(load.ttft_s['p95'])}"
            seen = f"{first} {format_interval(*load.ends('ttft_s', 'p95'), format_seconds)}"
            if estimate.further_token_s is not None:
                low, high = map(format_seconds, load.ends("tpot_s", "p95"))
                seen += f" and TPOT {format_seconds(load.tpot_s['p95'])} ({low} to {high})"
            rate = format_arrivals(load.requests_per_s, self.noun)
            share = format_percent(load.utilisation_frac)
            return f"{where} {verb} {rate}, {share} of capacity: {seen} at p95{paid}."
        if estimate.tpot_s is None or estimate.output_tokens_per_s is None:
            rate = _with_ends(estimate.throughput, self.replicas, "inputs/s")
            latency = f"{format_seconds(estimate.ttft_s.value)} ({_ends(estimate.ttft_s)})"
            return f"{where} {verb} {rate}, each answered within {latency}{paid}."
        seen = f"first token after {format_seconds(estimate.ttft_s.value)}"
        job, in_flight = estimate.job, estimate.requests_per_s * estimate.e2e_s * self.replicas  # Little's law
        if job.users is not None and job.requests is None:
            in_flight = job.users * self.replicas
        if estimate.further_token_s is not None:
            seen += f", then one every {format_seconds(estimate.further_token_s.value)}"
        seen += f", with {in_flight:,.0f} in flight" if in_flight >= 1 else f", with {in_flight:.2g} in flight"
        rate = _with_ends(estimate.output_tokens_per_s, self.replicas, "tokens/s")
        return f"{where} {verb} {rate}: {seen}{paid}."

    def room_ends(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """The 80 % intervals of the tokens that all caches hold, and of the requests in flight."""
        job, times = self.estimate.job, self.replicas
        least, most = job_memory(job).capacity_ends()
        ranks, sequences = int(job.layout.dp), self.memory.capacity_fields()  # of one attention replica
        low, high = (int(sequences[f"max_concurrency_{end}"] or 0) * ranks * times for end in ("low", "high"))
        tokens = self.estimate.kv_capacity_tokens
        return (int(least * tokens) * times, int(most * tokens) * times), (low, high)

    def picture(self) -> Picture:
        """The parts of one step with its average share of prefill; none of what does not fit."""
        rows = [(name, seconds * 1e3) for name, seconds in self.estimate.breakdown if seconds > 0 and self.fits]
        return BarPicture(title=self.verdict, unit="ms of a step", rows=rows)

    def document(self) -> dict[str, Any]:
        """The answer by key, as scripts rely on it; throughput of all replicas. What does not fit has no speed."""
        speed = self._speed_document() if self.fits else dict.fromkeys(self._speed_document())
        job, replicas, hourly = self.estimate.job, self.replicas, self.estimate.usd_per_hour
        room = attributes(self.estimate, "max_concurrency max_whole_contexts kv_capacity_tokens")
        room = {name: value * replicas for name, value in room.items()}
        for name, ends in zip(("kv_capacity_tokens", "max_concurrency"), self.room_ends(), strict=True):
            room |= zip((f"{name}_low", f"{name}_high"), ends, strict=True)
        absent = dict.fromkeys(name for name in room if name.startswith("kv") or name.endswith(("_low", "_high")))
        return {
            **attributes(
                self, "model=estimate.job.model.name gpu=estimate.job.cluster.accelerator.name num_gpus replicas"
            ),
            "layout": {name: int(degree) for name, degree in attributes(job.layout, "tp pp ep dp").items()},
            **speed,
            **(room if job.decodes else room | absent),
            "usd_per_hour": None if hourly is None else hourly * replicas,
            "price_source": job.cluster.price_source or None,
            "memory": self.memory.document(),
            **attributes(self, "fits cold_start_s=cold_start.seconds"),
            "cold_start": {
                "parts": entries(self.cold_start.parts, "seconds"),
                **attributes(self.cold_start, "storage weights_bound read_bytes_per_node=read_bytes"),
            },
            "prefill_gpus": job.techniques.prefill_gpus * replicas,
            "host_bytes": self.host_bytes,
            **({} if self.sessions is None else {"sessions": self.sessions.document()}),
            **({} if self.cached is None else {"response_cache": _cache_document(self.cached)}),
            **({"priorities": self._priorities_document()} if self.by_priority else {}),
            "quick": [rule.document() for rule in self.quick],
            **notes(self),
        }

    def _priorities_document(self) -> list[dict[str, Any]]:
        """Latencies of each class of requests."""
        return [{"priority": priority, **one._asdict()} for priority, one in self.by_priority.items()]

    def _speed_document(self) -> dict[str, Any]:
        """Latencies, rates, their bounds, and what tokens take of money and energy."""
        estimate, replicas = self.estimate, self.replicas
        each_s = estimate.further_token_s if self.keeps_up else None
        return {
            **_interval_fields("ttft_s", estimate.ttft_s if self.keeps_up else None),
            **_interval_fields("tpot_s", each_s),
            **dict.fromkeys(("e2e_s", "e2e_s_low", "e2e_s_high")),
            **(attributes(estimate, "e2e_s e2e_s_low=e2e_low e2e_s_high=e2e_high") if self.keeps_up else {}),
            **_interval_fields("requests_per_s", estimate.throughput, replicas),
            **_interval_fields("output_tokens_per_s", estimate.output_tokens_per_s, replicas),
            **_interval_fields("output_tokens_per_s_per_gpu", estimate.output_tokens_per_s, 1 / estimate.num_gpus),
            "tokens_per_s_per_user": None if each_s is None else 1 / each_s.value,
            "total_tokens_per_s": estimate.total_tokens_per_s * replicas,
            "concurrency": estimate.concurrency * replicas,
            "bound": estimate.bound,
            "breakdown": entries(estimate.breakdown, "seconds"),
            **attributes(estimate, "lower_bound_s mfu_frac"),
            "utilisation_frac": estimate.roofline_frac,
            **attributes(estimate, "usd_per_million_output_tokens usd_per_million_input_tokens"),
            "usd_per_million_requests": self.usd_per_million_requests,
            **attributes(estimate, "prefill_frac joules_per_request joules_per_output_token"),
            **attributes(self, "speculation under_load closed_loop"),
        }


Seen = TypeVar("Seen", bound=LatencyPercentiles)


def _with_intervals(load: Seen, estimate: ServeEstimate, cached: CachedAnswers | None) -> Seen:
    """The percentiles of a load that can be kept up with, with the relative error of the mean's class; none of hits.

    Where no token follows the first, the time of a further one is not a number.
    """
    ends = dict[str, Any]()
    for name, mean, percentiles in (
        ("ttft_s", estimate.ttft_s, load.ttft_s),
        ("tpot_s", estimate.further_token_s, load.tpot_s),
    ):
        if mean is None:
            ends[name] = dict.fromkeys(percentiles, math.nan)
            continue
        intervals = {
            p: (seconds, seconds) if cached is not None and cached.percentile_of_computed(p) is None
            else mean.band.interval(seconds, floor=mean.bound)
            for p, seconds in percentiles.items()
        }  # fmt: skip
        ends[f"{name}_low"] = {p: float(low) for p, (low, _) in intervals.items()}
        ends[f"{name}_high"] = {p: float(high) for p, (_, high) in intervals.items()}
    return replace(load, **ends)


def _ends(value: Ranged) -> str:
    """The ends of a time's interval, where one before it has said what they are."""
    return f"{format_seconds(value.low)} to {format_seconds(value.high)}"


def _with_ends(value: Ranged, times: float, unit: str) -> str:
    """A rate of all replicas, with its interval."""

    def shown(rate: float) -> str:
        return f"{rate * times:,.0f}" if rate * times >= 100 else f"{rate * times:,.3g}"

    return f"{shown(value.value)} {unit} {format_interval(value.low, value.high, shown)}"


def _interval_fields(name: str, value: Ranged | None, scale: float = 1.0) -> dict[str, float | None]:
    ends = (None, None, None) if value is None else (value.value * scale, value.low * scale, value.high * scale)
    return dict(zip((name, f"{name}_low", f"{name}_high"), ends, strict=True))


def _cached_answers(question: ServeQuestion) -> CachedAnswers | None:
    """The cache of answers that is asked for, warm, under the rate of requests.

    Raises: SpecError: the requests do not arrive at a rate, or none is left to compute.
    """
    spec, request = question.cache, question.request
    if spec.response_cache is None:
        return None
    turns = question.sessions.turns is not None
    if request.rate is None or turns or request.requests is not None or question.static:
        raise OptionError("response_cache", "needs requests that arrive for good: give --rate, without --turns, "
        "--requests, --concurrency and --static")  # fmt: skip
    from flopwise.serving.sim.request import ResponseCache, computed_frac  # noqa: PLC0415 - few caches are asked for

    cache = ResponseCache.of(spec)
    assert cache is not None
    tokens = mean_tokens(request.output_tokens or DEFAULT_OUTPUT)
    return CachedAnswers(
        cache=cache, computed_frac=computed_frac(cache, request.rate), usd_per_hour=cache.usd(tokens, HOUR_S)
    )


def _with_whole_bill(
    computed: ServeEstimate, replicas: int, beside_usd_per_hour: float, computed_frac: float
) -> ServeEstimate:
    """The estimate with costs per token over all tokens that are given out, of which `computed_frac` are computed.

    What stores and caches cost beside the machines is split as these are.
    """
    if not computed.usd_per_hour or (not beside_usd_per_hour and computed_frac == 1.0):
        return computed
    times = computed_frac * (1.0 + beside_usd_per_hour / (computed.usd_per_hour * replicas))
    costs = (computed.usd_per_million_input_tokens, computed.usd_per_million_output_tokens)
    inputs, outputs = (None if usd is None else usd * times for usd in costs)
    return replace(computed, usd_per_million_input_tokens=inputs, usd_per_million_output_tokens=outputs)


WARM = (
    "the response cache is warm, and never the bottleneck; rates of tokens, and mean latencies, are of what is "
    "computed, costs per token of all that is given out"
)


def _cache_settings(cached: CachedAnswers) -> Iterator[tuple[str, str]]:
    """The cache of answers, in words."""
    hits, quick = format_percent(1.0 - cached.computed_frac), format_seconds(cached.cache.hit_s)
    paid = f", {format_cost(cached.usd_per_hour)}/h" if cached.usd_per_hour else ""
    yield "response cache", f"{cached.cache.entries:,} answers{paid}: {hits} of requests are answered in {quick}"


def _cache_document(cached: CachedAnswers) -> dict[str, Any]:
    """The cache of answers, by key."""
    fields = attributes(cached, "entries=cache.entries hit_s=cache.hit_s computed_frac usd_per_hour")
    return {"hit_frac": 1.0 - cached.computed_frac, **fields}


def _loaded_replica(
    job: ServeJob, question: ServeQuestion, cached: CachedAnswers | None
) -> tuple[ServeJob, int, tuple[str, ...]]:
    """(one replica under its share of the load, replicas, what was assumed of the requests).

    Requests that a cache answers are no load.

    Raises:
        SpecError: no whole replicas, or a load that cannot be.
    """
    request = question.request
    inputs, outputs, notes = request_tokens(
        job.model, request, encode=question.encode, images=job.techniques.images * job.techniques.image_tokens
    )
    notes = notes if request.requests is None else ()  # lengths are drawn
    total = job.num_gpus if question.gpus is None else question.gpus
    if total % job.num_gpus:
        raise SpecError(
            f"{format_items(total, 'GPU')} cannot be divided into replicas of {job.layout.text}, which take "
            f"{job.num_gpus} each"
        )
    replicas, rate, in_flight = total // job.num_gpus, request.rate, request.concurrency
    if request.requests is not None and in_flight is None and rate is None:
        in_flight = request.requests  # all at once
    _check_load(job.model, question, decodes=bool(outputs) and generates(job.model))
    if rate is not None and cached is not None:
        rate *= cached.computed_frac
        notes += (WARM,)
    queue = question.queue
    loaded = replace(
        job, input_tokens=inputs, output_tokens=outputs, static=question.static,
        concurrency=None if in_flight is None else max(1, -(-in_flight // replicas)),
        users=None if in_flight is None else in_flight / replicas,
        arrivals_per_s=None if rate is None else rate / replicas, paid_gpus=paid_gpus(job, replicas),
        requests=request.requests, policy=queue.policy, preempt=queue.preempt, priorities=queue.priorities or (),
    )  # fmt: skip
    if rate is not None and not loaded.decodes:
        loaded = replace(loaded, concurrency=_batch_at_rate(loaded))
    return loaded, replicas, notes


def _check_load(model: Model, question: ServeQuestion, *, decodes: bool) -> None:
    """Refuse a load that contradicts itself, or that means nothing for the model; `decodes`: it answers in tokens.

    Raises: SpecError: says what does not go together.
    """
    request, alone = question.request, question.static or not decodes
    loads = {"rate": request.rate, "concurrency": request.concurrency, "requests": request.requests}
    if question.static and request.rate is not None:
        raise SpecError(
            "the requests of a fixed batch start together, without an arrival rate: give --static with "
            "--concurrency, or --rate without --static"
        )
    if request.concurrency is not None and request.rate is not None:
        raise OptionError(
            "concurrency", "a rate is given as well; give either the requests in flight or the arrival rate"
        )
    if request.requests is not None and alone:
        raise OptionError("requests", "a run of a given number of requests is simulated token by token: leave it out "
        "with --static and for models that answer in one pass")  # fmt: skip
    if request.output_tokens is not None and not decodes:
        raise OptionError("output_tokens", f"{model.name} answers in one pass, without output tokens: leave it out")
    if question.simulate and question.static:
        raise OptionError("simulate", "a fixed batch has no queue to simulate: leave it out with --static")
    if question.simulate and question.closed_form:
        raise OptionError("closed_form", "--simulate asks for simulated requests; give one of them")
    if question.simulate and not any(value is not None for value in loads.values()):
        raise OptionError("simulate", "needs a load: give --concurrency or --rate")
    _check_queue(question, decodes=decodes)


def _check_queue(question: ServeQuestion, *, decodes: bool) -> None:
    """Refuse an order of requests that nothing comes of.

    Raises: SpecError: says what is missing.
    """
    queue, request = question.queue, question.request
    queue.check()
    if queue.is_plain:
        return
    name = "policy" if queue.policy != "fcfs" else "preempt"
    if question.static or not decodes:
        raise OptionError(name, "a fixed batch, or a model that answers in one pass, has no queue: leave it out")
    if request.rate is None and request.concurrency is None and request.requests is None:
        raise OptionError(name, "needs a load: give --rate, --concurrency or --requests")


def _batch_at_rate(job: ServeJob) -> int:
    """Inputs that go through at once, over all attention replicas: as many as wait on average, to a whole one.

    Of a `max_batch` that is given as many. Source: `WaitingBatches.mean_batch`.
    """
    ranks = int(job.layout.dp)
    if job.max_batch is not None:
        return largest_batch(job) * ranks
    return max(1, round(float(waiting_batches(job, runner(job)).mean_batch[0]))) * ranks


def _session_run(
    job: ServeJob, replicas: int, request: RequestSpec, sessions: SessionsSpec, facts: Facts,
    on_compile: Callable[[], None] | None,
) -> SessionRun:  # fmt: skip
    """Sessions at the rate that is asked for, simulated.

    Raises: SpecError, InfeasibleError: as `SessionRun.of`; what says something else about the load.
    """
    from flopwise.serving.sessions import SessionTraffic  # noqa: PLC0415 - few are asked for
    from flopwise.serving.sim.finite import SessionRun  # noqa: PLC0415 - the simulator starts where one runs

    if not job.decodes:
        raise OptionError("turns", f"{job.model.name} answers in one pass: sessions need a model that generates")
    for name in ("requests", "concurrency"):
        if getattr(request, name) is not None:
            raise OptionError(name, "sessions need a rate (--rate, in sessions per second); leave it out with --turns")
    if request.rate is None:
        raise OptionError("turns", "sessions need a rate: give --rate, in sessions per second")
    assert sessions.turns is not None
    arrivals = SessionTraffic(
        turns=sessions.turns, think_s=sessions.think_s, tool_share=sessions.tool_share or 0.0,
        tool_pause_s=sessions.tool_pause or 0.0, input_tokens=request.input_tokens or job.input_tokens,
        output_tokens=request.output_tokens or job.output_tokens, kv_stores=sessions.kv_stores,
    )  # fmt: skip
    traffic = arrivals.traffic(request.rate)
    traffic.check()
    return SessionRun.of(job, traffic, sessions.kv_stores, replicas, facts, on_compile)


def _overload(run: SessionRun, sessions_per_s: float, replicas: int) -> UnderLoad | None:
    """A warning of sessions that come faster than they are answered; None where the replicas keep up."""
    arriving_per_s, answered_per_s = (
        sessions_per_s * run.report.turns_per_session,
        run.estimate.requests_per_s * replicas,
    )
    if arriving_per_s <= answered_per_s * (1.0 + 1e-9):
        return None
    endless = dict.fromkeys(PERCENTILES, math.inf)
    return UnderLoad(
        requests_per_s=arriving_per_s, utilisation_frac=arriving_per_s / answered_per_s,
        replicas_needed=math.ceil(replicas * arriving_per_s / answered_per_s), ttft_s=endless, tpot_s=endless,
    )  # fmt: skip


def _session_text(job: ServeJob, request: RequestSpec, sessions: SessionsSpec) -> str:
    """The lengths of sessions, in words."""
    pauses = f", {format_seconds(sessions.think_s)} between them" if sessions.think_s else ""
    return f"{request.rate:g} sessions/s of {sessions.turns} turns{pauses}; {_request_text(job)} on average"


def _answered_settings(
    job: ServeJob, result: ServeEstimate, question: ServeQuestion, replicas: int, run: SessionRun | None,
    cached: CachedAnswers | None,
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    """(name, text) of what an answer is of: replicas, layout, formats, engine, techniques, requests, price."""
    cluster, request, sessions = job.cluster, question.request, question.sessions
    return (
        ("replicas", f"{replicas:,}, each of {result.num_gpus} x {cluster.accelerator.name}"),
        ("layout", job.layout.text),
        ("weights", job.weights.name + (f"; KV cache {job.kv_dtype.name}" if job.decodes else "")),
        ("engine", job.engine.name + (", fixed batch" if job.static else "") + _order_text(job)),
        *technique_settings(job),
        ("requests", f"{_request_text(job)}; {_load_text(request, _noun(job))}" if run is None
         else _session_text(job, request, sessions)),
        *(() if run is None else _session_settings(run.report)),
        *(() if cached is None else _cache_settings(cached)),
        ("price", format_price(cluster.usd_per_gpu_hour, cluster.price_source)),
    )  # fmt: skip


def _session_settings(report: SessionReport) -> Iterator[tuple[str, str]]:
    """The origin of histories, and the cost of a session."""
    shares = {"the device": report.device_frac, **report.store_fracs, "computed": report.computed_frac}
    yield "prompts", ", ".join(f"{format_percent(share)} {name}" for name, share in shares.items())
    if report.usd_per_session is not None:
        yield "session", f"{format_cost(report.usd_per_session)} each"


def _finite_run(
    job: ServeJob, replicas: int, request: RequestSpec, facts: Facts, on_compile: Callable[[], None] | None
) -> FiniteRun:
    """The run that is asked for: all at once where neither a rate nor users are given.

    Raises: SpecError, InfeasibleError: as `finite_run`.
    """
    from flopwise.serving.sim.finite import finite_run  # noqa: PLC0415 - the simulator starts where one runs
    from flopwise.serving.sim.source import Traffic  # noqa: PLC0415 - same

    inputs, outputs, count = request.input_tokens, request.output_tokens, request.requests or 1
    users = None if request.rate is not None else min(request.concurrency or count, count)
    traffic = Traffic(
        requests=count, rate=request.rate, users=users,
        input_tokens=inputs if isinstance(inputs, str) else job.input_tokens,
        output_tokens=outputs if isinstance(outputs, str) else job.output_tokens,
        priorities=job.priorities or None,
    )  # fmt: skip
    return finite_run(job, traffic, replicas, facts, on_compile)


OUTGROWN = (
    "the answers of so many users outgrow the cache: the requests that started last are preempted and recomputed, as "
    "in the simulator"
)


HALF_GROWN = "in closed form, of answers that are half grown"
LEAST_LOADED = "each request goes to the least loaded replica (other balancers: `flopwise simulate --balancer`)"
SHORT = f"answers of fewer than {SHORT_ANSWER} tokens take too few steps for a closed form"


def _runs_on(job: ServeJob) -> bool:
    """True if requests that the simulator can play come for good, and their answers grow."""
    return job.growing > 1 and job.requests is None and job.model.kind != "encoder-decoder"


def _closed_loop(
    known: JobSteady, question: ServeQuestion, replicas: int, facts: Facts, on_compile: Callable[[], None] | None
) -> tuple[ServeEstimate, LatencyPercentiles | None, dict[int, ClassFigures], tuple[str, ...]]:
    """(the estimate, what users see, the same by priority, notes) of users in a closed loop, from simulated runs.

    In closed form where it stands for them, and of what is no closed loop; then nothing is known by percentile.
    """
    job, because = known.job, _why_simulated_users(known, question)
    request = question.request
    notes = tuple(text for text in (*_traffic_notes(job, request), because) if text)
    if because is None:
        return estimate(job, known=known), None, {}, notes
    try:
        loop = _closed_loop_run(job, request, replicas, facts, on_compile)
    except InfeasibleError as error:
        return (
            estimate(job, known=known),
            None,
            {},
            (*notes, f"{HALF_GROWN}: {error}"),
        )
    seen = LatencyPercentiles(ttft_s=loop.ttft_s, tpot_s=loop.tpot_s)
    further = (LEAST_LOADED if replicas > 1 else "", loop.note)
    notes += tuple(text for text in further if text)
    return loop.estimate, _with_intervals(seen, loop.estimate, None), loop.runs[-1].by_priority(), notes


def _traffic_notes(job: ServeJob, request: RequestSpec) -> Iterator[str]:
    """Assumptions about users in a closed loop, and about lengths that are given as one number."""
    users, count = request.concurrency or 0, request.requests
    in_turn = users > 1 and (count is None or count > users) and not job.static
    if in_turn:
        yield closed_loop_text(users, count)
    numbers = not all(isinstance(length, str) for length in (request.input_tokens, request.output_tokens))
    if job.decodes and numbers and (in_turn or request.rate is not None):
        yield VARIED


def _why_simulated_users(known: JobSteady, question: ServeQuestion) -> str | None:
    """A note on users in a closed loop who are simulated, or an empty one; None: the closed form stands for them."""
    job = known.job
    if job.concurrency is None or job.arrivals_per_s is not None or job.static or not known.memory.max_concurrency:
        return None
    if outgrows_cache(job):
        return OUTGROWN
    if not question.queue.is_plain:
        return f"latencies are those of simulated requests: {_queue_text(job)}"
    played = not job.decodes or job.model.kind != "encoder-decoder"
    return "" if question.simulate or (played and not question.closed_form) else None


def _queue_text(job: ServeJob) -> str:
    """The rule of a queue that is not the usual one, in words."""
    return f"the queue is served by {job.policy}" if job.policy != "fcfs" else f"preempted sequences {job.preempt}"


def _why_simulated(job: ServeJob, question: ServeQuestion) -> str | None:
    """The reason why arrivals are simulated; None: the closed form stands for them, empty: it is asked for."""
    if question.cache.response_cache is not None:
        return "some answers come from the response cache"
    if not question.queue.is_plain:
        return _queue_text(job)
    return None if question.closed_form else _why_no_closed_form(job) or ("" if question.simulate else None)


def _why_no_closed_form(job: ServeJob) -> str | None:
    """The reason why the closed form of arrivals is known to be off; None: it is not."""
    if not job.decodes:
        return "what waits when a batch ends goes into the next"
    if answers_are_short(job):
        return SHORT
    if not _runs_on(job):
        return None
    if job.split:
        return "prompts queue for accelerators of their own"
    return "prompts that arrive at random fill steps that others decode in"


def _closed_loop_run(
    job: ServeJob, request: RequestSpec, replicas: int, facts: Facts, on_compile: Callable[[], None] | None
) -> ClosedLoopRun:
    """Users in a closed loop, whose lengths are as asked for, simulated."""
    from flopwise.serving.sim.finite import closed_loop_run  # noqa: PLC0415 - the simulator starts where one runs

    return closed_loop_run(job, facts, _drawn_lengths(job, request), on_compile, PERCENTILES, replicas)


def _drawn_lengths(job: ServeJob, request: RequestSpec) -> tuple[int | str, int | str] | None:
    """Lengths of prompts and answers where either is drawn; None: all are alike."""
    drawn = (request.input_tokens, request.output_tokens)
    if not any(isinstance(length, str) for length in drawn):
        return None
    inputs, outputs = drawn
    return inputs or job.input_tokens, outputs or job.output_tokens


def _order_text(job: ServeJob) -> str:
    """The order of waiting requests, and what becomes of preempted ones, where either is not the usual."""
    classes = ", ".join(f"{one.priority} {format_percent(one.frac)}" for one in job.priorities)
    order = "" if job.policy == "fcfs" else f"; {job.policy}" + (f" ({classes})" if classes else "")
    return order + ("" if job.preempt == "recompute" else f"; preempted sequences {job.preempt}")


def _noun(job: ServeJob) -> str:
    return "request" if job.decodes else "input"


def _load_text(request: RequestSpec, noun: str) -> str:
    """The number of requests, in words."""
    rate, at_once = request.rate, request.concurrency
    load = f"{at_once:,} in flight" if at_once else format_arrivals(rate, noun) if rate else None
    if request.requests is None:
        return load or "as many as fit in memory"
    return f"{request.requests:,} in total, {load or 'all at once'}"


def _storage_of(start: StartSpec, facts: Facts) -> Storage:
    """The storage from which weights are read at a start.

    Raises: UnknownNameError: no such kind.
    """
    if start.storage_bandwidth is None:
        return facts.storage(start.storage or DEFAULT_STORAGE)
    return Storage(name="given", read_bytes_per_s=start.storage_bandwidth, source="given", date="")


def sound_positions(job: ServeJob) -> int:
    """Positions of the encoder that a request fills beside its prompt, as sound does; 0 where there is none."""
    positions = int(prompt(job.model, job.input_tokens).encoder) if job.model.kind == "encoder-decoder" else 0
    return 0 if positions == job.input_tokens else positions


def _request_text(job: ServeJob) -> str:
    """One request in words."""
    if not job.decodes:
        return f"{job.context:,} tokens per input"
    sound = sound_positions(job)
    encoded = f"{sound:,} encoder positions, " if sound else ""
    return f"{encoded}{job.input_tokens:,} tokens in, {job.output_tokens:,} out"


def _unsupported_notes(job: ServeJob) -> Iterator[str]:
    """Notes where the engine is not documented to run the format, or on the device."""
    yield from job.engine.unsupported_note(job.cluster.accelerator)
    device = job.cluster.accelerator
    if not job.engine.runs(job.weights, device):
        of_ports = f"{job.engine.ports_source}; read {job.engine.ports_date}"
        there = f" on {device.name} ({of_ports})" if job.engine.runs(job.weights) else ""
        runs = ", ".join(sorted(job.engine.formats_on(device)))
        yield f"{job.engine.name} has no documented support for {job.weights.name} weights{there}; supported: {runs}"


def _host_notes(job: ServeJob, replicas: int, machines: MachineSpec, facts: Facts) -> Iterator[str]:
    """A note where the memory of the instance that is named cannot hold the weights that are offloaded to it."""
    if machines.instance is None:
        return
    offers = facts.offers_for(provider=machines.provider, instance=machines.instance)
    room = min((offer.ram_bytes for offer in offers if offer.ram_bytes is not None), default=np.inf)
    each = int(job.layout.num_gpus)
    needed = host_bytes(job) / each * min(each * replicas, max(job.cluster.gpus_per_node, 1))
    if needed > room:
        yield (
            f"{machines.instance} has {format_bytes(room)} of memory: the {format_bytes(needed)} of offloaded weights "
            "do not fit"
        )


def _under_load(known: JobSteady, rate: float, cached: CachedAnswers | None, names: Sequence[str]) -> UnderLoad:
    """Percentiles of requests that arrive at random, `rate` a second over all replicas; of those that are computed.

    `names`: of the percentiles; infinite where the replicas cannot keep up.
    """
    job = known.job
    assert job.arrivals_per_s is not None
    ranks = int(job.layout.dp)
    each = job.arrivals_per_s / ranks
    if job.decodes:
        sustained, waits = percentiles(job, max(1.0, int(known.memory.max_concurrency)), each, names, known)
    else:
        machine = known.machine
        batches = waiting_batches(job, machine)
        sustained = float(batches.sustained_per_s[0])
        seen = (one_pass_latency_s(machine.engine, batches, job.input_tokens, p) for p in names)
        waits = {p: Percentile(one[0], 0.0) for p, one in zip(names, seen, strict=True)}
    over = each >= sustained
    if over:
        waits = dict.fromkeys(PERCENTILES, Percentile(float("inf"), float("inf")))
    load = UnderLoad(
        requests_per_s=rate,
        utilisation_frac=each / sustained,
        replicas_needed=int((1.0 if cached is None else cached.computed_frac) * rate / (sustained * ranks)) + 1,
        ttft_s={p: float(w.ttft_s) for p, w in waits.items()},
        tpot_s={p: float(w.tpot_s) for p, w in waits.items()},
    )
    return load if cached is None or over or not names else _among_hits(load, cached)


def _among_hits(load: UnderLoad, cached: CachedAnswers) -> UnderLoad:
    """Percentiles over all requests, hits among them, from those of the requests that are computed.

    Source: `CachedAnswers.percentile_of_computed`. Assumes: between known percentiles tails are exponential, as of
    queues; below the median there is nothing quicker.
    """

    def tail(name: str) -> float:
        return -math.log(1.0 - float(name.removeprefix("p")) / 100)

    def at(own: str | None, known: dict[str, float], hit: float) -> float:
        return hit if own is None else float(np.interp(tail(own), [tail(name) for name in known], [*known.values()]))

    names = {name: cached.percentile_of_computed(name) for name in PERCENTILES}
    ttft_s = {name: at(own, load.ttft_s, cached.cache.hit_s) for name, own in names.items()}
    return replace(load, ttft_s=ttft_s, tpot_s={name: at(own, load.tpot_s, 0.0) for name, own in names.items()})


class _Arrivals(NamedTuple):
    """Latencies of requests that arrive at random, by percentile, on average and by class, and notes on them."""

    under_load: UnderLoad
    estimate: ServeEstimate | None = None  # where it is not the closed form's
    by_priority: Mapping[int, ClassFigures] = MappingProxyType({})
    notes: tuple[str, ...] = ()


def _arrivals(
    known: JobSteady, question: ServeQuestion, replicas: int, cached: CachedAnswers | None, facts: Facts,
    on_compile: Callable[[], None] | None,
) -> _Arrivals:  # fmt: skip
    """Requests that arrive at the rate of the question, in closed form or simulated, with intervals."""
    rate, because = question.request.rate, _why_simulated(known.job, question)
    assert rate is not None
    load = _under_load(known, rate, cached, () if because is not None else PERCENTILES)
    if load.utilisation_frac >= 1:
        return _Arrivals(load)
    share = format_percent(load.utilisation_frac)
    if because is not None:
        because = because or f"{share} of capacity is used"
        found = _simulated_load(known, load, because, replicas, question.request, cached, facts, on_compile)
    else:
        better = f"{share} of capacity is used: simulated requests (--simulate) show the tail of latencies better"
        found = _Arrivals(load, estimate(known.job, known=known))
        found = found._replace(notes=(better,)) if load.utilisation_frac >= SIMULATED_FROM else found
    if found.under_load.utilisation_frac >= 1 or found.estimate is None:
        return found
    return found._replace(under_load=_with_intervals(found.under_load, found.estimate, cached))


def _simulated_load(
    known: JobSteady, waits: UnderLoad, because: str, replicas: int, request: RequestSpec,
    cached: CachedAnswers | None, facts: Facts, on_compile: Callable[[], None] | None,
) -> _Arrivals:  # fmt: skip
    """Arrivals of a run of the simulator, on all replicas together; `because`: why they are simulated.

    With a cache percentiles are over all requests, hits among them; the others, and the mean, are of what is computed.
    """
    from flopwise.serving.sim.finite import ArrivalRun  # noqa: PLC0415 - the simulator starts where one runs

    job = known.job
    names = {name: name if cached is None else cached.percentile_of_computed(name) for name in PERCENTILES}
    computed = tuple(dict.fromkeys(name for name in names.values() if name is not None))
    simulated, lengths = f"latencies are those of simulated requests: {because}", _drawn_lengths(job, request)
    try:
        run = ArrivalRun.of(
            job, computed, facts, lengths, on_compile, busy=waits.utilisation_frac, replicas=replicas
        )  # fmt: skip
    except InfeasibleError as error:
        closed = _under_load(known, waits.requests_per_s, cached, PERCENTILES)
        return _Arrivals(closed, estimate(job, known=known), notes=(f"{HALF_GROWN}: {error}",))
    if run.utilisation_frac:
        behind, over = _falls_behind(known, waits, run, 1.0 if cached is None else cached.computed_frac)
        return _Arrivals(over, behind, notes=(simulated,))
    hit_s = 0.0 if cached is None else cached.cache.hit_s
    ttft_s = {name: hit_s if own is None else run.ttft_s[own] for name, own in names.items()}
    tpot_s = {name: 0.0 if own is None else run.tpot_s[own] for name, own in names.items()}
    seen = replace(waits, ttft_s=ttft_s, tpot_s=tpot_s)
    balanced = LEAST_LOADED if replicas > 1 else ""
    notes = tuple(text for text in (simulated, *_traffic_notes(job, request), balanced, run.note) if text)
    return _Arrivals(seen, estimate(job, run.means, known=known), run.by_priority, notes)


def _falls_behind(
    known: JobSteady, waits: UnderLoad, run: ArrivalRun, computed_frac: float
) -> tuple[ServeEstimate, UnderLoad]:
    """As `_simulated_load`, where the queue only grows: what the replicas answer, as they do in the run."""
    job = known.job
    assert job.arrivals_per_s is not None
    replicas = computed_frac * waits.requests_per_s / job.arrivals_per_s
    means = run.means._replace(requests_per_s=job.arrivals_per_s / run.utilisation_frac)
    never = dict.fromkeys(PERCENTILES, float("inf"))
    over = replace(
        waits, utilisation_frac=run.utilisation_frac, ttft_s=never, tpot_s=never,
        replicas_needed=int(replicas * run.utilisation_frac) + 1,
    )  # fmt: skip
    return estimate(job, means, known=known), over


def percentiles(
    job: ServeJob, most_in_flight: float, arrivals_per_s: float, names: Sequence[str], known: JobSteady | None = None
) -> tuple[float, dict[str, Percentile]]:
    """(requests per second that it sustains, TTFT and TPOT by percentile) of one attention replica.

    `known`: what was computed of the job before, with as many in flight.

    Source: `OpenLoop.percentile`, `disaggregated_percentiles`. Assumes: as there.
    """
    machine = runner(job) if known is None else known.machine
    if job.techniques.prefill_gpus:
        return disaggregated_percentiles(job, machine, most_in_flight, arrivals_per_s, names)
    curves = (
        SteadyCurves.up_to(machine, job.layout, most_in_flight, *request_work(job)) if known is None else known.curves
    )
    sustained = float(np.ravel(curves.steady.requests_per_s)[-1])
    if not names:
        return sustained, {}
    loop = curves.at(np.array([[min(arrivals_per_s, sustained)]]))._replace(arrivals_per_s=np.array([[arrivals_per_s]]))
    seen = {name: loop.percentile(name) for name in dict.fromkeys((*names, "mean"))}
    middle_s = seen["mean"].tpot_s
    tpot_s = {name: percentile_tpot_s(job, seen[name].tpot_s, middle_s, name) for name in names}
    return sustained, {
        name: Percentile(*(np.ravel(one)[0] for one in (seen[name].ttft_s, tpot_s[name]))) for name in names
    }


def _draft_gain(job: ServeJob, estimate: ServeEstimate) -> DraftGain | None:
    """The gain of drafts at this load, and the batch up to which they gain; None without them."""
    how = job.techniques.speculation
    if how is None:
        return None
    without = replace(job, techniques=replace(job.techniques, speculation=None))
    now = max(estimate.concurrency / int(job.layout.dp), 1.0)
    batch = np.concatenate([[now], 2.0 ** np.arange(int(np.log2(LARGEST_BATCH)) + 1)])

    def token_s(one: ServeJob) -> np.ndarray:
        tokens, rounds = request_work(one)
        load = StepLoad(decode_batch=batch, decode_context=tokens + rounds / 2.0)
        return np.asarray(runner(one).step(load, one.layout).seconds) / tokens_a_round(one)

    gain = token_s(without) / token_s(job)
    stops = np.flatnonzero(gain[1:] <= 1.0)
    last = len(gain) - 1 if not len(stops) else int(stops[0])
    return DraftGain(
        draft=how.name, tokens_per_step=tokens_a_round(job), decode_speedup=float(gain[0]),
        pays_up_to=int(batch[last]) if last else 0,
    )  # fmt: skip


def _token_rules(estimate: ServeEstimate) -> tuple[QuickFormula, ...]:
    """Time a token: the weights read once at the datasheet's bandwidth.

    Source: rule of thumb (memory roofline of decoding). Assumes: no cache, no messages, no overhead.
    """
    job = estimate.job
    if estimate.further_token_s is None:
        return ()
    decoding = int(job.layout.num_gpus)  # accelerators that prompts have for themselves read none of them
    each = float(weight_bytes(job.model, job.weights)) / decoding / job.cluster.accelerator.hbm_bytes_per_s
    formula = "weights / memory bandwidth"
    return (
        QuickFormula(
            name="time per token", formula=formula, unit="s", value=each, estimate=estimate.further_token_s.value
        ),
    )
