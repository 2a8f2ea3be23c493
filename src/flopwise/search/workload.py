"""A workload: what someone wants to run, under which targets and constraints, in base units."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.architecture import Model
from flopwise.facts.software import Engine
from flopwise.options import OptionError, options_of
from flopwise.search import spec as specs
from flopwise.search.spec import WORKLOAD_FILE, ConstraintsSpec, Latency, TargetsSpec, TrafficSpec, WorkloadSpec
from flopwise.serving.sessions import SessionTraffic
from flopwise.serving.sim.profiles import weekly_rates
from flopwise.serving.spec import (
    DEFAULT_INPUT,
    DEFAULT_OUTPUT,
    PriorityClass,
    QueueSpec,
    ResponseCacheSpec,
    TechniqueRequest,
    mean_tokens,
)
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.units import HOUR_S, in_dollars
from flopwise.values import dataclass, replace

ANYWHERE: Mapping[str, Any] = {
    "providers": (), "regions": (), "gpus": (), "vendors": (), "exclude": (), "instances": (), "software": ("any",),
    "marketplace": True, "include_retired": True,
}  # fmt: skip
"""Limits that leave all machines: of what runs on machines that are there."""
STRETCH = 5000
"""Requests of a trace that replicas are sized by: the busiest so many that follow one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTraffic:
    """The requests of a workload. `requests_per_s` is the rate that replicas are sized for; the mean is that / `peak`.

    `inputs`, `outputs`: lengths as `flopwise.serving.sim.lengths.Lengths.parse` reads them, None where all are alike.
    With `sessions` a request is a turn, whose prompt holds all turns before it: rates and lengths are those of turns.
    """

    requests_per_s: float | None = None
    concurrency: int | None = None
    requests: float | None = None
    input_tokens: int  # on average
    output_tokens: int
    peak: float = 1.0
    inputs: str | None = None
    outputs: str | None = None
    arrivals: str = "poisson"
    burstiness: float | None = None  # standard deviation of the gaps over their mean
    trace: str | None = None
    profile: tuple[float, ...] = ()  # rates of the hours of a week over their mean
    sessions: SessionTraffic | None = None  # None: requests that stand alone
    computed_frac: float = 1.0  # of all requests, those of `requests_per_s`: a cache of answers has the others
    priorities: tuple[PriorityClass, ...] = ()  # classes of requests with their shares; none: all are alike

    @property
    def sessions_per_s(self) -> float | None:
        """Sessions that start in a second, at the rate that replicas are sized for; None without any."""
        if self.sessions is None or self.requests_per_s is None:
            return None
        return self.requests_per_s / self.sessions.mean_turns

    @property
    def is_poisson(self) -> bool:
        """True if requests arrive at random at a rate, as `flopwise serve --rate` has them."""
        return self.requests_per_s is not None and self.trace is None and self.arrivals == "poisson"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved(WorkloadTraffic):
    """A workload in base units, and the `document` of its file. None: the file is silent and there is no default."""

    document: Mapping[str, Any]
    model: str
    task: str
    name: str | None
    objective: str
    spot: str  # spot prices that are not known: left out ("known"), or assumed
    reserved: str  # the same of reserved machines
    simulate: bool
    one_precision: str | None  # of products in training, of weights in serving
    data: DataSpec
    training: TrainingSpec
    conditions: RunConditionsSpec
    limits: ConstraintsSpec
    techniques: TechniqueRequest
    queue: QueueSpec
    cache: ResponseCacheSpec  # of whole answers
    purchase: tuple[str, ...]  # ways to buy machines
    min_gpus: int
    max_gpus: int
    max_usd_per_hour: float | None
    confidence: float
    tokens: float | None  # that the run goes through, padding included; `with_tokens` counts those of samples
    ttft: Latency | None
    tpot: Latency | None
    latency: Latency | None
    tokens_per_s: float | None
    deadline_s: float | None
    budget_usd: float | None
    instances: int | None = None  # that a service or a batch has, whatever it would take; None: as many as it takes
    drafter: Model | None = None  # the model that drafts, once it is looked up
    facts: Any = None  # what is known (`Facts`), once it is given

    @property
    def assumed_prices(self) -> frozenset[str]:
        """The kinds of prices that are assumed where they are not known: spot, reserved."""
        return specs.assumed_kinds(spot=self.spot, reserved=self.reserved)

    @property
    def by_cost_alone(self) -> bool:
        """True if the cost of a run is all that counts: nothing limits its time, its rate or what it may cost."""
        limits = (self.deadline_s, self.tokens_per_s, self.budget_usd, self.max_usd_per_hour)
        return self.objective == "cost" and all(limit is None for limit in limits)

    @property
    def is_closed_loop(self) -> bool:
        """True if users wait for their answers, at whichever rate they get them: slower machines need no others."""
        return self.concurrency is not None and self.requests_per_s is None and self.tokens_per_s is None

    @property
    def engine(self) -> Engine:
        """The inference engine that is asked for, else the usual one. Raises UnknownNameError."""
        engine: Engine = self.facts.engine(self.limits.engine or defaults.ENGINE)
        return engine

    def with_tokens(self, model: Model) -> Resolved:
        """The workload with the tokens of a run that is given in samples: as many each as `train` takes of `model`."""
        if self.tokens is not None or self.data.samples is None:
            return self
        seq_len = self.data.seq_len(model, tunes=self.training.tunes)
        documents = self.data.documents(seq_len)
        return replace(self, tokens=self.data.run_tokens(seq_len if documents is None else documents.mean))

    def with_limits(self, purchase: tuple[str, ...] = (), **limits: Any) -> Resolved:
        """The workload with other constraints, and other ways to buy machines where any are given."""
        values = limits | ({"purchase": purchase} if purchase else {})
        plain = {name: [*value] if isinstance(value, tuple) else value for name, value in values.items()}
        document = WORKLOAD_FILE.without_defaults(merged_onto(self.document, as_in_file(plain)))
        changed = replace(self.limits, **limits)
        return replace(self, limits=changed, purchase=purchase or self.purchase, document=document)

    def amounts(self, hours: float) -> dict[str, float | None]:
        """The amounts of a run, or of a service in `hours` at its mean rate: requests, millions of tokens, epochs.

        Source: arithmetic. Assumes: lengths are their means; tokens trained are those without padding; a cache of
        answers gives out what it has beside what is computed.
        """
        if self.task in specs.TRAINING:
            tokens = None if self.tokens is None else self.tokens * (1.0 - self.data.padded) / 1e6
            return {"run": 1.0, "hour": hours, "million_tokens": tokens, "epoch": self.data.epochs}
        ends = self.task == "batch"
        rate = None if self.requests_per_s is None else self.requests_per_s / self.peak * hours * HOUR_S
        requests = self.requests if ends else rate and rate / self.computed_frac
        done: dict[str, float | None] = {"run": 1.0 if ends else None, "hour": hours, "request": requests}
        if requests is not None:
            done |= {"million_requests": requests / 1e6, "million_input_tokens": requests * self.input_tokens / 1e6}
            outputs = requests * self.output_tokens / 1e6 if self.task != "encode" else None
            done |= {"million_output_tokens": outputs}
        if self.sessions is not None and requests is not None:
            done |= {"session": requests / self.sessions.mean_turns}
        return done

    @property
    def nameless(self) -> Resolved:
        """The workload whatever it is called."""
        return replace(self, name=None, document={key: value for key, value in self.document.items() if key != "name"})


def schema() -> dict[str, Any]:
    """The JSON Schema of a workload file."""
    document = WORKLOAD_FILE.schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flopwise workload", **document}


def merged_onto(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with `changes` laid over it, section by section; an option of several keys goes where its task has it."""
    merged, task = dict(data), str(changes.get("task", data.get("task")))
    for name, change in changes.items():
        places = specs.keys_of(name)
        section, _, part = next((key for key in places if specs.means_something(key, task)), name).rpartition(".")
        key, value = (section, {part: change}) if len(places) > 1 and section else (name, change)
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def resolve(data: Mapping[str, Any], at: str = "") -> Resolved:
    """The workload of plain data, which stand `at` this place of a file ("workloads.3.").

    Raises: SpecError: a key or a value that cannot be; starts with the key's place.
    """
    values: dict[type, Any] = {type(spec): spec for spec in WORKLOAD_FILE.parse(data, at)}
    document = in_dollars(WORKLOAD_FILE.without_defaults(data))
    task = values[WorkloadSpec].task
    for section, keys in document.items():
        for key in [f"{section}.{part}" for part in keys] if section in WORKLOAD_FILE.sections else [section]:
            if not specs.means_something(key, task):
                shown = key if specs.means_something(section, task) else section
                served = "; adapters that a service has are techniques.adapters (--adapters)" * (section == "method")
                raise SpecError(f"{at}{shown}: has no meaning for a {task} workload; leave it out{served}")
    try:
        return _workload(values, document)
    except OptionError as error:
        keys = (options_of(spec)[error.name].key for spec in WORKLOAD_FILE.specs if error.name in options_of(spec))
        raise SpecError(f"{at}{next(filter(None, keys), error.name)}: {error.reason}") from None
    except SpecError as error:
        raise SpecError(f"{at}{error}") from None


def _workload(values: dict[type, Any], document: dict[str, Any]) -> Resolved:
    what, ranking, data = values[WorkloadSpec], values[specs.RankingSpec], values[DataSpec]
    limits, targets = values[ConstraintsSpec], values[TargetsSpec]
    adapters, techniques, queueing = values[specs.AdaptersSpec], values[TechniqueRequest], values[specs.QueueingSpec]
    training = replace(
        values[TrainingSpec], lora=None if adapters.kind == "full" else adapters.rank, qlora=adapters.kind == "qlora",
        finetune=what.task == "finetune", stack=limits.stack, schedule=limits.schedule, shard=limits.shard,
    )  # fmt: skip
    training.check_adapters()
    data.check_packing()
    data.check_batch()
    techniques.check()
    if values[TrafficSpec].turns is not None and techniques.prefix_hit:
        raise SpecError(
            "techniques: the turns of sessions have prefixes of their own (traffic.turns); leave prefix_hit out"
        )
    each = _sample_tokens(data)
    open_ = data.samples is not None and data.tokens is None and each is None  # until the model is known
    tokens = None if open_ else data.run_tokens(each)
    if what.task in specs.TRAINING and tokens is None and not open_:
        raise SpecError(f"data: a {what.task} workload needs data.tokens or data.samples")
    traffic = _with_queue(_traffic(values[TrafficSpec], what.task), queueing, simulates=what.simulate)
    if traffic.sessions is not None and techniques.shared_prefix:
        traffic = replace(traffic, sessions=_with_shared_prefix(traffic.sessions, techniques.shared_prefix))
    if limits.inter_node_bandwidth is not None and limits.network is not None:
        raise OptionError("network", "inter_node_bandwidth sets it for the whole instance; give one of them")
    most, least = limits.max_gpus or (4096 if what.task in specs.SERVING else 100_000), limits.min_gpus or 1
    if least > most:
        given = "" if limits.max_gpus else " unless --max-gpus allows more"
        raise OptionError("min_gpus", f"{least:,} is more than max_gpus, {most:,}{given}")
    return Resolved(
        **{field.name: getattr(part, field.name) for part in (what, ranking, traffic) for field in fields(part)},
        document=document, data=data, training=training, conditions=values[RunConditionsSpec], limits=limits,
        techniques=techniques, queue=queueing.queue, cache=queueing.cache, purchase=limits.purchase or ("on_demand",),
        min_gpus=least, max_gpus=most,
        max_usd_per_hour=limits.max_usd_per_hour, confidence=targets.confidence, tokens=tokens, ttft=targets.ttft,
        tpot=targets.tpot, latency=targets.latency, tokens_per_s=targets.throughput, deadline_s=targets.deadline,
        budget_usd=targets.budget,
    )  # fmt: skip


def _sample_tokens(data: DataSpec) -> float | None:
    """Tokens of a sample; None where they are not given."""
    if data.mean_length is not None or data.lengths is None or data.seq is None:
        return data.mean_length or data.seq
    documents = data.documents(data.seq)
    return None if documents is None else documents.mean


def _traffic(traffic: TrafficSpec, task: str) -> WorkloadTraffic:
    """The traffic of a workload. Raises SpecError: what cannot be; of a trace file, with its line and column."""
    process = traffic.arrivals or ("poisson" if traffic.burstiness is None else "gamma")
    _check_traffic(traffic, process)
    if traffic.trace is not None:
        return _trace_traffic(traffic, task)
    if task == "serve" and traffic.rate is None and traffic.concurrency is None:
        raise SpecError(
            "traffic: a serve workload needs its load: --rate, --concurrency or --trace (in a file "
            "traffic.requests_per_s, traffic.concurrency, traffic.trace)"
        )
    if task == "batch" and traffic.requests is None:
        raise SpecError(
            "traffic: a batch workload needs --requests, how many there are in all (in a file traffic.requests)"
        )
    lengths = (traffic.input_tokens or DEFAULT_INPUT, traffic.output_tokens or DEFAULT_OUTPUT)
    inputs, outputs = (length if isinstance(length, str) else None for length in lengths)
    prompt, answer = map(mean_tokens, lengths)
    peak, profile = 1.0 if traffic.peak is None else traffic.peak, tuple[float, ...]()
    if traffic.profile is not None:
        profile = weekly_rates(traffic.profile, "profile")
        peak = max(profile)
    if traffic.turns is not None:
        assert traffic.rate is not None
        sessions = SessionTraffic(
            turns=traffic.turns, input_tokens=lengths[0], output_tokens=lengths[1], think_s=traffic.think_s,
            tool_share=traffic.tool_share or 0.0, tool_pause_s=traffic.tool_pause or 0.0, kv_stores=traffic.kv_stores,
        )  # fmt: skip
        return WorkloadTraffic(
            requests_per_s=traffic.rate * sessions.mean_turns * peak, peak=peak, profile=profile, sessions=sessions,
            input_tokens=round(sessions.prompt_tokens), output_tokens=answer,
        )  # fmt: skip
    return WorkloadTraffic(
        requests_per_s=None if traffic.rate is None else traffic.rate * peak, concurrency=traffic.concurrency,
        requests=traffic.requests, input_tokens=prompt, output_tokens=answer, peak=peak, inputs=inputs,
        outputs=outputs, arrivals=process, burstiness=traffic.burstiness, profile=profile,
    )  # fmt: skip


def _with_shared_prefix(sessions: SessionTraffic, tokens: int) -> SessionTraffic:
    """Sessions whose first prompts begin with so many tokens alike. Raises SpecError: as many as the prompt has."""
    if tokens >= (own := mean_tokens(sessions.input_tokens)):
        raise SpecError(
            f"techniques.shared_prefix: {tokens:,} tokens in first prompts of {own:,}; allowed: fewer than the prompt "
            "has"
        )
    return replace(sessions, shared_tokens=tokens)


def _with_queue(flow: WorkloadTraffic, queueing: specs.QueueingSpec, *, simulates: bool) -> WorkloadTraffic:
    """The traffic that reaches the replicas: its classes, without what a cache of answers has.

    Raises: SpecError: an order that nothing comes of, or a cache before requests that do not arrive at a rate.
    """
    queue, cache = queueing.queue, queueing.cache
    queue.check(traced=flow.trace is not None)
    cache.check()
    if not queue.is_plain and not simulates:
        name = "policy" if queue.policy != "fcfs" else "preempt"
        raise OptionError(name, "takes the simulator, which is off (--no-simulate, simulate: false)")
    flow = replace(flow, priorities=queue.priorities or ())
    if cache.response_cache is None:
        return flow
    if flow.requests_per_s is None or flow.trace is not None or flow.sessions is not None:
        raise OptionError("response_cache", "needs requests at a rate (--rate), not those of a trace, of users or of "
        "sessions")  # fmt: skip
    from flopwise.serving.sim.request import ResponseCache, computed_frac  # noqa: PLC0415 - few caches are asked for

    of_answers = ResponseCache.of(cache)
    assert of_answers is not None
    computed = computed_frac(of_answers, flow.requests_per_s / flow.peak)
    return replace(flow, requests_per_s=flow.requests_per_s * computed, computed_frac=computed)


def _check_traffic(traffic: TrafficSpec, process: str) -> None:
    """Refuse what contradicts itself; `process`: how requests arrive."""
    _check_sessions(traffic, process)
    shape = next((n for n in ("profile", "arrivals", "burstiness", "peak") if getattr(traffic, n) is not None), None)
    for name in (shape, "concurrency", "input_tokens", "output_tokens") if traffic.trace is not None else ():
        if name is not None and getattr(traffic, name) is not None:
            what = "how long requests are" if name.endswith("tokens") else "when requests arrive"
            raise OptionError(name, f"a trace sets {what}; leave it out")
    if shape is not None and traffic.rate is None:
        raise OptionError(shape, "shapes the rate of requests (--rate, traffic.requests_per_s), which is not given")
    if traffic.rate is not None and traffic.concurrency is not None:
        raise OptionError("concurrency", "requests arrive at a rate or from users; leave one of them out")
    if traffic.burstiness is not None and process != "gamma":
        raise OptionError("burstiness", f"goes with gamma arrivals, not {traffic.arrivals}")
    if traffic.profile is not None and traffic.peak is not None:
        raise OptionError("peak", "the profile has a highest rate of its own; leave one of them out")
    if traffic.arrivals == "diurnal":
        raise OptionError(
            "arrivals", "a plan is sized for the highest rate of a day: give peak, or a profile, instead of diurnal"
        )


def _check_sessions(traffic: TrafficSpec, process: str) -> None:
    """Refuse what is said of sessions and cannot be."""
    traffic.sessions.check()
    if bool(traffic.tool_share) != bool(traffic.tool_pause):
        raise OptionError("tool_share", "how many turns and how long a tool takes (tool_pause) go together")
    if traffic.turns is None:
        return
    for name in ("trace", "concurrency"):
        if getattr(traffic, name) is not None:
            raise OptionError(name, "sessions need a rate (--rate, in sessions per second); leave it out with turns")
    if traffic.rate is None:
        raise OptionError("turns", "sessions need a rate: give --rate, in sessions per second")
    if process != "poisson":
        raise OptionError("arrivals", "sessions start at random (poisson); leave it out with turns")


def _trace_traffic(traffic: TrafficSpec, task: str) -> WorkloadTraffic:
    """Rates and mean lengths of a trace; times are stretched to a rate that is given besides."""
    from flopwise.serving.sim.trace import read_trace_columns  # noqa: PLC0415 - few workloads have one

    try:
        columns = read_trace_columns(traffic.trace)
    except SpecError as error:
        raise OptionError("trace", str(error)) from None
    arrival_s = columns["arrival_s"]
    count, span_s = arrival_s.size, float(arrival_s[-1] - arrival_s[0])
    if task != "batch" and (count < 2 or not span_s):
        raise OptionError("trace", f"{traffic.trace} has no time between its requests, so no rate")
    mean = (count - 1) / span_s if span_s else math.inf
    first, last = busiest(arrival_s)
    peak = (last - first - 1) / float(arrival_s[last - 1] - arrival_s[first]) / mean if last - first < count else 1.0
    prompt, answer = (max(1, round(float(columns[name].mean()))) for name in ("prompt_tokens", "output_tokens"))
    sizes: dict[str, Any] = {"input_tokens": prompt, "output_tokens": answer, "peak": peak, "trace": str(traffic.trace)}
    if task == "batch":
        return WorkloadTraffic(requests=traffic.requests or float(count), **sizes)
    rate = (mean if traffic.rate is None else traffic.rate) * peak
    return WorkloadTraffic(requests_per_s=rate, requests=traffic.requests, **sizes)


def busiest(arrival_s: Any, requests: int = STRETCH) -> tuple[int, int]:
    """First row of the busiest stretch of a trace, and the row after its last: the whole of short ones."""
    count = len(arrival_s)
    if count <= requests:
        return 0, count
    first = int((arrival_s[requests - 1 :] - arrival_s[: count - requests + 1]).argmin())
    return first, first + requests


def one_as_several(given: Mapping[str, Any], *declaring: type) -> dict[str, Any]:
    """Keywords that are not None, with one text where the specs take several as a tuple of it."""
    declared = {name: one for spec in declaring for name, one in options_of(spec).items()}
    values = {name: value for name, value in given.items() if value is not None}
    several = {name for name, value in values.items() if isinstance(value, str) and name in declared}
    return {n: (value,) if n in several and declared[n].repeated else value for n, value in values.items()}


def as_in_file(named: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their names as the mapping that a file would say; one of several keys stays under its name."""
    lora, adapters = named.get("lora"), named.get("qlora") or "lora" in named
    mapping: dict[str, Any] = {"method": {"kind": "qlora" if named.get("qlora") else "lora"}} if adapters else {}
    if lora is not None:
        mapping["method"]["rank"] = lora
    for name, value in named.items():
        if name not in ("lora", "qlora"):
            places = specs.keys_of(name)
            section, dot, part = (places[0] if len(places) == 1 else name).rpartition(".")
            (mapping.setdefault(section, {}) if dot else mapping)[part] = (
                [*value] if isinstance(value, tuple) else value
            )
    return mapping
