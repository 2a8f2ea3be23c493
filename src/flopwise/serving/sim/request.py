"""One question to the simulator: requests, a replica, how replicas work, and a cache of whole answers before them."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.positions import check_length, usual_length
from flopwise.facts.models.positions import longest as longest_sequence
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.options import OptionError, take, without_none
from flopwise.serving.deployment import paid_gpus, replica_of, spread
from flopwise.serving.disaggregated import moved_s
from flopwise.serving.estimate import default_lengths, estimate
from flopwise.serving.job import ServeJob, not_simulated_text
from flopwise.serving.memory import generates
from flopwise.serving.sim.autoscale import AutoscaledRun, Autoscaling, elastic
from flopwise.serving.sim.cost import StepCost
from flopwise.serving.sim.engine import Replica, loaded_cost, replica
from flopwise.serving.sim.lengths import Lengths
from flopwise.serving.sim.result import SimulatedRun
from flopwise.serving.sim.setup import Transfer
from flopwise.serving.sim.simulate import simulate
from flopwise.serving.sim.source import Traffic
from flopwise.serving.sim.stores import KvStore
from flopwise.serving.sim.trace import PS, Column, RequestTrace
from flopwise.serving.sim.traffic import draw_requests
from flopwise.serving.spec import (
    DEFAULT_INPUT,
    DEFAULT_OUTPUT,
    SHORTEST,
    ResponseCacheSpec,
    Scheduling,
    ServingSpec,
    TechniqueRequest,
    check_classes,
    mean_tokens,
)
from flopwise.serving.techniques import tokens_of_images
from flopwise.units import HOUR_S, format_seconds
from flopwise.values import dataclass, replace

Rng = np.random.Generator
SEED_OF_PROMPTS = 1
"""Beside the seed of the traffic: which request asks which prompt is drawn independently."""
MOST_PROMPTS = 10_000_000
"""Distinct prompts that a popularity may have."""
BYTES_PER_TOKEN = 4.0
"""Text of a token: about four characters of English in UTF-8."""
USUAL_LOAD = 0.7
"""Of what a replica sustains: the rate of one among replicas whose number follows the load."""
ENTRY_BYTES = 500.0
"""Key, pointers and expiry beside an answer's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCache:
    """Answers of the latest prompts, by the least recently used; how often prompts repeat is their popularity.

    A share `repeated` of requests asks one of `prompts` prompts, the k-th of them with a weight k^-`skew` (Zipf); all
    others ask what nobody asked before. An answer is served again for `ttl_s` seconds after it was made.
    """

    entries: int
    prompts: int
    skew: float = 1.0
    repeated: float = 1.0
    ttl_s: float = math.inf
    hit_s: float = 0.005  # from the request to the cached answer
    usd_per_gb_hour: float = 0.0  # of the memory that holds it

    def __post_init__(self) -> None:
        """Raise SpecError for figures that cannot be."""
        for name, value, low, high in (
            ("cache entries", self.entries, 1, MOST_PROMPTS),
            ("distinct prompts", self.prompts, 1, MOST_PROMPTS),
            ("skew", self.skew, 0, 10),
            ("repeated share", self.repeated, 0, 1),
            ("cache time to live", self.ttl_s, 0, math.inf),
            ("cache latency", self.hit_s, 0, 3600),
            ("price of cache memory", self.usd_per_gb_hour, 0, 1e6),
        ):
            if not low <= value <= high:
                raise SpecError(f"{name} {value:g} is out of range; allowed: {low:g} to {high:g}")

    @classmethod
    def of(cls, spec: ResponseCacheSpec) -> ResponseCache | None:
        """The cache of the options; None where none is asked for.

        Raises: SpecError: figures that cannot be, or no number of prompts that repeat.
        """
        if spec.response_cache is None:
            return None
        if spec.distinct is None:
            raise OptionError("response_cache", "needs to know how many prompts repeat: give distinct (--distinct)")
        figures = without_none(
            skew=spec.skew, repeated=spec.repeated, ttl_s=spec.cache_ttl, usd_per_gb_hour=spec.cache_price
        )
        return cls(entries=spec.response_cache, prompts=spec.distinct, **figures)

    def popularity(self) -> NDArray[np.float64]:
        """Shares of all requests that ask each of the prompts; shape (prompts,), their sum is `repeated`."""
        weights = np.arange(1, self.prompts + 1, dtype=float) ** -self.skew
        shares: NDArray[np.float64] = weights / weights.sum() * self.repeated
        return shares

    def usd(self, mean_output_tokens: float, duration_s: float) -> float:
        """The cost of the memory of a full cache over `duration_s`, in USD.

        Source: text of the answers and what stands beside it. Assumes: the whole capacity is paid for all the time.
        """
        size = self.entries * (ENTRY_BYTES + BYTES_PER_TOKEN * mean_output_tokens)
        return size / 1e9 * self.usd_per_gb_hour * duration_s / HOUR_S


@dataclass(frozen=True, kw_only=True)
class SimulationRequest:
    """The input of a simulation: the traffic, one replica and its rules; built by `simulation_request`.

    With a `cache` of answers, `makers` are the rows of `trace` whose answers later requests get, -1 where a request is
    computed.
    """

    facts: Facts
    job: ServeJob
    traffic: Traffic
    scheduling: Scheduling
    trace: RequestTrace
    replica: Replica
    transfer: Transfer | None
    assumptions: tuple[str, ...]
    cache: ResponseCache | None = None
    makers: Column | None = None
    stores: tuple[KvStore, ...] = ()  # of prefixes, of one replica
    further: tuple[RequestTrace, ...] = ()  # what the seeds after that of the traffic draw

    @property
    def gpus_per_replica(self) -> int:
        """Devices of a replica, without those of prompt-only replicas."""
        return int(self.job.layout.num_gpus)

    def usd_per_replica_hour(self, replicas: int) -> float | None:
        """The price of each of so many replicas with what idles in their machines; None where it is not known."""
        each = self.job.cluster.usd_per_gpu_hour
        return None if each is None else each * (self.paid_gpus(replicas) or self.gpus_per_replica)

    def paid_gpus(self, replicas: int) -> float | None:
        """Devices that each of so many replicas pays for; None without an offer."""
        return paid_gpus(self.job, replicas, self.gpus_per_replica)

    def prefill_pool(self, replicas: int) -> int:
        """Prompt-only replicas beside so many others."""
        return self.scheduling.prefill_pool(replicas, self.gpus_per_replica)

    def prompt_readers(self, replicas: int) -> int:
        """Replicas that read prompts, of so many and the pool beside them: the ones with stores of prefixes."""
        return self.prefill_pool(replicas) or replicas

    def with_cache(self, cache: ResponseCache | None) -> Self:
        """The same with a cache of answers before the replicas; who asks the same is drawn.

        Raises: SpecError: users in a closed loop: when they ask depends on when they are answered.
        """
        if cache is None:
            return self
        if self.traffic.users is not None or self.trace.follows:
            raise SpecError("a response cache needs --trace or --rate: the requests of --users depend on their answers")
        rng = np.random.default_rng([self.traffic.seed, SEED_OF_PROMPTS])
        return replace(self, cache=cache, makers=made_by(cache, self.trace.arrival_ps / PS, rng))

    @property
    def without_cache(self) -> Self:
        """The same requests, all of them computed: those that the cache answers as long as the ones that it keeps."""
        return replace(self, trace=self.requests, cache=None, makers=None)

    @cached_property
    def requests(self) -> RequestTrace:
        """The requests as users send them: those that the cache answers as long as the ones whose answers they get."""
        return self.trace if self.makers is None else with_hits(self.trace, self.makers)

    @cached_property
    def computed_requests(self) -> RequestTrace:
        """The requests that reach the replicas."""
        return self.requests if self.makers is None else self.requests.take(self.makers < 0)

    def run_fixed(
        self, replicas: int, on_compile: Callable[[], None] | None = None, *, samples: int = 200
    ) -> SimulatedRun:
        """The simulated run of a fixed number of replicas; `samples` of its timeline, as of `simulate`.

        Raises: SpecError: less than one replica.
        """
        cost = self._cost_among(replicas)
        return self._with_cached_answers(self._run(self.computed_requests, cost, replicas, on_compile, samples=samples))

    def run_draws(self, replicas: int, on_compile: Callable[[], None] | None = None) -> list[SimulatedRun]:
        """The simulated runs of a fixed number of replicas: of the trace, and of each of `further`.

        Raises: SpecError: less than one replica.
        """
        cost = self._cost_among(replicas)
        return [self._run(drawn, cost, replicas, on_compile, samples=1) for drawn in (self.trace, *self.further)]

    def _run(
        self, requests: RequestTrace, cost: StepCost, replicas: int, on_compile: Callable[[], None] | None, *,
        samples: int,
    ) -> SimulatedRun:  # fmt: skip
        one, how, flow = self.replica, self.scheduling, self.traffic
        return simulate(
            requests, cost, one.limits, replicas=replicas * one.schedulers, balancer=how.balancer, policy=how.policy,
            users=flow.users, think_s=flow.think_s, prefill_replicas=self.prefill_pool(replicas) * one.schedulers,
            transfer=self.transfer, samples=samples, on_compile=on_compile,
        )  # fmt: skip

    def run_elastic(
        self,
        rule: Autoscaling,
        on_compile: Callable[[], None] | None = None,
        report: Callable[[float, float], None] | None = None,
    ) -> AutoscaledRun:
        """The simulated run of replicas that follow `rule`."""
        one, how = self.replica, self.scheduling
        run = elastic(
            self.computed_requests, self._cost_among(self._usual_replicas(rule)), one.limits, rule,
            schedulers=one.schedulers, balancer=how.balancer, policy=how.policy, on_compile=on_compile, report=report,
        )  # fmt: skip
        return replace(run, simulated=self._with_cached_answers(run.simulated))

    @property
    def _requests_per_s(self) -> float:
        """Of the requests that reach the replicas, on average."""
        came = self.computed_requests.arrival_ps
        return len(came) * PS / max(float(came[-1] - came[0]), 1.0) if len(came) > 1 else 0.0

    def _usual_replicas(self, rule: Autoscaling) -> int:
        """About so many replicas share the load on average, each as busy as `USUAL_LOAD` of what it sustains."""
        full = float(np.ravel(estimate(self.job).requests_per_s)[0])
        return int(min(max(math.ceil(self._requests_per_s / (USUAL_LOAD * full)), rule.least, 1), rule.most))

    def _cost_among(self, replicas: int) -> StepCost:
        """Step costs where so many replicas share the load.

        Source: `loaded_cost`. Assumes: of users, who begin together, none waits for the first time.
        Raises: SpecError: less than one replica.
        """
        if replicas < 1:
            raise SpecError(f"{replicas} replicas; allowed: from 1")
        cost, users, share = self.replica.cost, self.traffic.users, 1.0
        if self.prefill_pool(replicas):
            return cost
        if users is not None:
            job = replace(self.job, concurrency=max(1, round(users / replicas)))
            share = max(0.0, 1.0 - users / len(self.trace))
        else:
            job = replace(self.job, arrivals_per_s=self._requests_per_s / replicas)
        return loaded_cost(cost, job, share)

    def _with_cached_answers(self, run: SimulatedRun) -> SimulatedRun:
        """A run of `computed_requests` and the answers that the cache gave."""
        if self.makers is None or self.cache is None:
            return run
        return merge_hits(run, self.requests, self.makers, self.cache.hit_s)


def simulation_request(model: ModelName, *, one_pass: bool = False, **options: Any) -> SimulationRequest:
    """The requests, one replica and how replicas work; the replica's lengths become the means of the traffic.

    `options` are those of `Traffic` (`rate=5, trace=... `), `Scheduling`, `ServingSpec` (`tp=8 ...`),
    `TechniqueRequest` (`draft="eagle", acceptance=0.7 ...`), `MachineSpec` and `DatedSourceSpec`, or whole specs.
    `one_pass`: models that answer in one pass are simulated, too.

    Raises:
        SpecError: a value that cannot be; InfeasibleError: weights and one request do not fit.
        MissingFactError: a fact that the answer needs is not known.
    """
    traffic, scheduling, machines, deployment, techniques, source = take(
        options, Traffic, Scheduling, MachineSpec, ServingSpec, TechniqueRequest, DatedSourceSpec
    )
    check_classes(traffic.priorities, scheduling.policy)
    scheduling = replace(scheduling, prefill_gpus=techniques.prefill_gpus or scheduling.prefill_gpus)
    techniques = replace(techniques, prefill_gpus=scheduling.prefill_gpus or None)
    architecture = source.model_with_layers(model)
    deployment = spread(deployment, architecture, machines, source.catalog)
    if machines.counted not in (None, deployment.num_gpus):
        more = f"{machines.counted:,}x{machines.gpu} and a replica of {deployment.num_gpus}"
        raise SpecError(f"{more}: give the number of replicas instead (--gpu {machines.gpu} --replicas N)")
    job, notes = replica_of(architecture, deployment, machines, techniques, source)
    job = replace(job, techniques=replace(job.techniques, prefill_gpus=0))  # replicas of their own, on its machines
    if generates(architecture) and traffic.trace is None and traffic.lengths_from is None:
        inputs, outputs, lengths = default_lengths(
            architecture,
            traffic.input_tokens,
            traffic.output_tokens,
            traffic.prefix_tokens or 0,
            tokens_of_images(techniques, architecture),
        )
        traffic, notes = replace(traffic, input_tokens=inputs, output_tokens=outputs), (*notes, *lengths)
    elif one_pass and not generates(architecture):
        inputs, _, lengths = default_lengths(architecture, traffic.input_tokens, 1)
        traffic, notes = replace(traffic, input_tokens=inputs, output_tokens=1), (*notes, *lengths)
    notes = (*notes, *job.model.assumptions, *job.cluster.assumptions)
    return request_of(job, traffic, scheduling, source.catalog, notes, one_pass=one_pass)


def request_of(
    job: ServeJob, traffic: Traffic, scheduling: Scheduling, facts: Facts, assumptions: tuple[str, ...], *,
    one_pass: bool = False, draws: int = 1,
) -> SimulationRequest:  # fmt: skip
    """The request to replicas of `job`; `one_pass` and errors as of `simulation_request`.

    `draws`: of the traffic, with one seed after another. Step costs are those of the mean lengths of all of them.
    """
    loads = (("--rate", traffic.rate), ("--concurrency", traffic.users))
    load = [word for flag, value in loads if value is not None for word in (flag, f"{value:g}")]
    passes = one_pass and not generates(job.model)
    if not passes and (text := not_simulated_text(job, load)):
        raise SpecError(text)
    spread_frac = 0.0 if passes else length_spread(job.model, traffic)
    seeded = (traffic, *(replace(traffic, seed=traffic.seed + i) for i in range(1, draws)))
    traces = tuple(draw_requests(one, spread_frac) for one in seeded)
    if passes:
        traces = tuple(replace(one, output=np.ones_like(one.output)) for one in traces)
    prompts, answers = (np.concatenate([getattr(one, name) for one in traces]) for name in ("prompt", "output"))
    inputs, outputs = max(1, round(float(prompts.mean()))), max(1, round(float(answers.mean())))
    window, stretched = _window(job.model, inputs if passes else inputs + outputs)
    job = replace(
        job,
        input_tokens=inputs if window is None else max(1, min(inputs, window - 1)),
        output_tokens=job.output_tokens if passes else _within(outputs, window, inputs),
    )
    longest = int((prompts + answers).max())
    split = bool(scheduling.prefill_replicas or scheduling.prefill_gpus)
    job = replace(job, concurrency=None, arrivals_per_s=None, pools=split)  # of the run the traffic loads it
    usual = min(longest, math.ceil((2.0 - SHORTEST) * (inputs + outputs)))  # of a long tail the rest is left out
    step_tokens, most = scheduling.step_tokens, window or longest
    built = replica(job, context=inputs + outputs, longest=usual, step_tokens=step_tokens, max_tokens=most)
    shares = any(bool((one.prefix >= 0).any() or (one.session >= 0).any()) for one in traces)
    prefix = shares if scheduling.prefix_cache is None else scheduling.prefix_cache
    mix = job.engine.mixes if scheduling.mix is None else scheduling.mix
    limits = replace(built.limits, mix=mix, preempt=scheduling.preempt, prefix_cache=prefix)
    stores: tuple[KvStore, ...] = ()
    if scheduling.kv_stores is not None:
        if not prefix:
            raise OptionError(
                "kv_stores", "no prompts share a prefix: give --turns, --prefixes or a trace that has them"
            )
        stores = KvStore.parse_list(scheduling.kv_stores, job.cluster.rates, int(job.layout.num_gpus), facts)
        limits = replace(limits, stores=tuple(one.block_store(built.block_bytes, built.schedulers) for one in stores))
    return SimulationRequest(
        facts=facts, job=job, traffic=traffic, scheduling=scheduling, trace=traces[0], further=traces[1:],
        replica=replace(built, limits=limits), transfer=transfer(job) if split else None,
        assumptions=(*assumptions, *stretched),
        stores=stores,
    )  # fmt: skip


def slow_store_notes(request: SimulationRequest) -> Iterator[str]:
    """Notes on stores that take longer to bring a cached token than the replica to compute it.

    Source: the rate of the store over the bytes of a token; one step of a whole prompt, at most of what a step takes.
    Assumes: nobody else asks the store.
    """
    replica = request.replica
    tokens = min(replica.limits.step_tokens, max(request.job.input_tokens, 1))
    computed_s = replica.cost.seconds(chunk=tokens) / tokens
    for store, blocks in zip(request.stores, replica.limits.stores, strict=True):
        brought_s = blocks.block_ps / PS / replica.limits.block_tokens
        if brought_s > computed_s:
            yield (
                f"store {store.name} takes {format_seconds(brought_s)} to bring a cached token, computing it takes "
                f"{format_seconds(computed_s)}: it makes first tokens later; leave it out, or give a faster one"
            )


def length_spread(model: Model, traffic: Traffic) -> float:
    """Share by which lengths that are given as one number vary around it.

    Source: `SHORTEST`; no more than the longest request that the model takes allows. Assumes: of inputs that are
    answered in one pass all are equal, which end together whatever their lengths.
    """
    given = (traffic.input_tokens or DEFAULT_INPUT, traffic.output_tokens or DEFAULT_OUTPUT)
    numbers = any(Lengths.parse(str(length)).is_number for length in given)
    if not (traffic.varies and numbers) or traffic.lengths_from is not None:
        return 0.0
    tokens = sum(mean_tokens(length) for length in given) + (traffic.prefix_tokens or 0)
    window, _ = _window(model, tokens)
    return 1.0 - SHORTEST if window is None else max(0.0, min(1.0 - SHORTEST, window / tokens - 1.0))


def _window(model: Model, tokens: int) -> tuple[int | None, tuple[str, ...]]:
    """The longest request that is taken, where they have so many tokens on average, and what is assumed of it.

    Source: `flopwise.facts.models.positions`: the length that a model is made for; where its requests are longer than
    that, as far as its positions can be stretched. None: any.
    """
    made, most = usual_length(model), longest_sequence(model)
    if made is None or tokens <= made or (most is not None and tokens > most):
        return made, ()
    return most, check_length(model, tokens, what="a request of mean length")


def _within(outputs: int, window: int | None, inputs: int) -> int:
    """Tokens of an answer, as many as the window leaves."""
    return outputs if window is None else max(1, min(outputs, window - inputs))


def transfer(job: ServeJob) -> Transfer:
    """The time of a cache between the pools as a straight line over its tokens.

    Source: `flopwise.serving.disaggregated.moved_s` at one token and at the job's prompt.
    Raises: SpecError: what joins the pools is not known.
    """
    most = max(job.input_tokens, 2)
    one, whole = moved_s(job, 1), moved_s(job, most)
    if not whole < float("inf"):
        raise SpecError("the network between the two pools is not known; give --network or --instance")
    each = (whole - one) / (most - 1)
    return Transfer(latency_s=max(one - each, 0.0), s_per_token=each)


def made_by(cache: ResponseCache, arrival_s: NDArray[np.float64], rng: Rng) -> NDArray[np.int64]:
    """For each request the earlier one whose answer it gets, -1 where it is computed; `arrival_s` ascends.

    Source: the policy itself, request by request: a miss stores its answer and drops the least recently used.
    Assumes: a request that asks what is being computed right now gets those tokens as they come: it is a hit.
    """
    count = arrival_s.size
    ends = np.cumsum(cache.popularity())
    prompts = np.searchsorted(ends, rng.random(count), side="right")
    fresh = prompts >= cache.prompts
    prompts[fresh] = cache.prompts + np.arange(np.count_nonzero(fresh))
    made: OrderedDict[int, int] = OrderedDict()  # prompt -> row that computed the answer
    makers = np.full(count, -1, dtype=np.int64)
    times = arrival_s.tolist()
    for row, prompt in enumerate(prompts.tolist()):
        maker = made.get(prompt, -1)
        if maker >= 0 and times[row] - times[maker] <= cache.ttl_s:
            makers[row] = maker
        else:
            made[prompt] = row
            if len(made) > cache.entries:
                made.popitem(last=False)
        made.move_to_end(prompt)
    return makers


def hit_rate(cache: ResponseCache) -> float:
    """Share of requests that the cache answers in the long run, without regard to expiry.

    Source: Che, Tung and Wang 2002 (IEEE JSAC 20(7)), the characteristic time T of a least-recently-used cache: the
    entries that were asked for within T fill it, sum(1 - exp(-p T)) = entries.
    Assumes: independent requests; those that ask what nobody asked before pass through the cache as well.
    """
    shares = cache.popularity()
    unique = 1.0 - cache.repeated

    def cached_entries(requests: float) -> float:
        return float(-np.expm1(-shares * requests).sum()) + unique * requests

    if unique == 0 and cache.entries >= cache.prompts:
        return 1.0
    low, high = 0.0, 1.0
    while cached_entries(high) < cache.entries and high < 1e18:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if cached_entries(middle) < cache.entries else (low, middle)
    return float((shares * -np.expm1(-shares * high)).sum())


RENEWED_REQUESTS = 200_000
"""Requests over whose second half the hits of a cache with expiry are counted."""


def computed_frac(cache: ResponseCache, rate_per_s: float) -> float:
    """Share of requests at `rate_per_s` that the cache does not answer, once it is warm.

    Source: `hit_rate`; with an expiry `made_by`, over requests that arrive at random.
    Raises: SpecError: it answers all of them.
    """
    if math.isinf(cache.ttl_s):
        hits = hit_rate(cache)
    else:
        rng = np.random.default_rng(SEED_OF_PROMPTS)
        arrival_s = np.cumsum(rng.exponential(1.0 / rate_per_s, RENEWED_REQUESTS))
        hits = float(np.mean(made_by(cache, arrival_s, rng)[RENEWED_REQUESTS // 2 :] >= 0))
    if hits >= 1.0:
        raise SpecError(
            "a warm response cache holds every prompt and answers all requests, so that nothing is left to compute; "
            "give --repeated or --cache-ttl"
        )
    return 1.0 - hits


def with_hits(trace: RequestTrace, makers: NDArray[np.int64]) -> RequestTrace:
    """The same requests, those that the cache answers as long as the one whose answer they get."""
    source = np.where(makers >= 0, makers, np.arange(len(trace)))
    return replace(trace, prompt=trace.prompt[source], output=trace.output[source])


def merge_hits(run: SimulatedRun, trace: RequestTrace, makers: NDArray[np.int64], hit_s: float) -> SimulatedRun:
    """A run of the requests that were computed, and those that the cache answered laid between them; rows of `trace`.

    An answer comes whole, `hit_s` after it was asked for; one that is still being computed comes as its tokens do. The
    answer of a request that was dropped is none: who asks the same is dropped, too.

    Source: definition. Assumes: the cache itself is never the bottleneck. Gaps between tokens that come as they are
    computed are counted once, for the request that computes them.
    """
    computed, hits = np.flatnonzero(makers < 0), np.flatnonzero(makers >= 0)
    reasons = np.zeros(len(trace), dtype=np.int64)
    reasons[computed] = run.reasons
    outcome = run.outcome.spread(computed, len(trace))
    reasons[hits] = reasons[makers[hits]]
    come = outcome.arrival_ps[hits] = trace.arrival_ps[hits]
    for column in (outcome.first_ps, outcome.finish_ps):
        made = column[makers[hits]]
        column[hits] = np.where(made >= 0, np.maximum(come, made) + round(hit_s * PS), -1)
    itl = run.itl.copy()
    done = outcome.finish_ps[makers[hits]]
    itl[0] += int((trace.output[hits] - 1)[(done >= 0) & (done <= come)].sum())
    end = max(run.end_ps, int(outcome.finish_ps.max(initial=0)))
    hits_of = steps = None
    if run.hits is not None:
        hits_of = np.zeros(len(trace), dtype=np.int64)
        hits_of[computed] = run.hits
    if run.steps is not None:
        steps = trace.output.copy()
        steps[computed] = run.steps
    return replace(
        run, trace=trace, reasons=reasons, outcome=outcome, itl=itl, end_ps=end, cached=hits, hits=hits_of, steps=steps
    )
