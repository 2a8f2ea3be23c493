"""A serving job with its techniques, the figures of its estimate, and the measured errors that set their intervals."""

from __future__ import annotations

import shlex
from dataclasses import field
from typing import TYPE_CHECKING, Any

from flopwise.cost.fabric import THROUGH_HOST
from flopwise.cost.intervals import ErrorBand, WholeBand, device_band
from flopwise.cost.rates import families, lent
from flopwise.facts.architecture import Model
from flopwise.facts.formats import BF16, BF16_CACHE, CacheFormat, WeightFormat
from flopwise.facts.software import Engine, platform
from flopwise.serving.iteration import NATIVE, prompt
from flopwise.serving.memory import ServingLayout, ServingMemory, generates
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.cost.cluster import Cluster
    from flopwise.cost.rates import Rates
    from flopwise.ops.types import Ints
    from flopwise.serving.spec import PriorityClass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """A draft proposes `tokens` tokens a step, of which each is accepted with probability `acceptance`."""

    name: str  # as users say it: a model, eagle, mtp, ngram
    tokens: int
    acceptance: float
    draft: Model | None = None  # None: looked up in the text so far, at no cost on the device
    weights: WeightFormat = BF16  # of the draft
    tp: Ints = 1
    shares_ends: bool = False  # embedding and head are the target's own: they run, but take no further memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """A share of the layers keeps its weights in the host's memory.

    `host` None: weights come to the device each step; else the host computes those layers, and holds their cache.
    """

    frac: float
    host: Rates | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Techniques:
    """All of them; the defaults change nothing."""

    shared_tokens: int = 0  # with which all prompts begin: computed once, cached once
    hit_frac: float = 0.0  # of the tokens of a prompt, found in the cache, whoever put them there; or a column
    kept_frac: float = 1.0  # of the tokens of a sequence, whose keys and values are kept
    speculation: Speculation | None = None
    offload: Offload | None = None
    prefill_gpus: int = 0  # devices that work on prompts only, beside those of the layout; 0: all do both
    expert_skew: float | None = None  # tokens of the most popular expert over the mean of all; None: as is usual
    redundant_experts: int = 0  # copies of popular experts in each layer
    overlap: bool = False  # two micro-batches hide each other's messages
    adapters: int = 0  # low-rank ones on the model, each sequence with one of them
    adapter_rank: int = 0
    images: int = 0  # in each prompt, whose tokens are among its own
    image_tokens: int = 0  # that one image makes in a prompt
    structured_frac: float = 0.0  # of answers, those that follow a grammar
    mask_s: float = 0.0  # of the host, for the tokens that a grammar allows next, a sequence and step


PLAIN = Techniques()
HOST_RATIO = "served_host_ratio"
"""Parameter: time of an engine's own work on a device's host over that on those that its times are fitted on."""
HOST_SECONDS = (
    "step_s", "layer_s", "sequence_s", "launch_s", "request_s", "front_s", "front_token_s", "stream_s", "recurrent_s",
    "worker_s", "worker_sequence_s",
)  # fmt: skip
"""Columns of an engine that are seconds of its host: those that a slower one takes longer for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeJob:
    """The input of an estimate: one replica's layout, its load and its software. `concurrency` None: as many as fit."""

    model: Model
    cluster: Cluster
    layout: ServingLayout = field(default_factory=ServingLayout)
    weights: WeightFormat = BF16
    kv_dtype: CacheFormat = BF16_CACHE
    engine: Engine
    input_tokens: int = 1024
    output_tokens: int = 256
    concurrency: int | None = None
    users: float | None = None  # of this replica on average, where `concurrency` is rounded up; None: as that
    arrivals_per_s: float | None = None  # requests that arrive at random, instead of a fixed number in flight
    requests: int | None = None  # in all, of a run with an end; None: they go on for ever
    static: bool = False  # a fixed batch: all prompts first, then all answers
    called: bool = False  # by a program that has all requests, without a server between
    pools: bool = False  # prompts go to replicas of their own, simulated beside it instead of in `techniques`
    memory_frac: float | None = None
    max_batch: int | None = None
    paid_gpus: float | None = None  # those that stand idle in its machines included; None: those that it uses
    prefill_tokens: int | None = None  # prompt tokens that one step works through; None: as the engine does
    recv_interval: int | None = None  # steps between two looks for new requests; None: as the engine does
    batch_wait: int | None = None  # steps for which a prompt waits for others at most; None: as the engine does
    stream_interval: int | None = None  # tokens handed out together; None: as the engine does
    prefill_delayer: bool = False  # attention replicas read prompts in the same steps, once each of them has one
    eager: bool = False  # operations are launched one by one, although the engine could capture them
    graph_batches: tuple[int, ...] = ()  # numbers of sequences that graphs are captured for; none: for any
    policy: str = "fcfs"  # of the queue, by its name in `flopwise.serving.sim.policies`
    preempt: str = "recompute"  # what becomes of a sequence that the cache has no room for, or "swap"
    priorities: tuple[PriorityClass, ...] = ()  # classes of requests with their shares; none: all are alike
    techniques: Techniques = PLAIN

    @property
    def software(self) -> Engine:
        """The engine as it is started, serving or called for a fixed batch or a list of requests.

        Tokens that are handed out together cost the front end one turn. A front end in the engine's own process takes
        its turns between steps; who calls the engine has none. A slower host takes longer for all that it does.
        """
        row = self.engine.on(self.cluster.accelerator, offline=self.called)
        names = ("prefill_tokens", "recv_interval", "batch_wait", "stream_interval")
        set_here = {name: getattr(self, name) for name in names}
        changed: dict[str, Any] = {name: value for name, value in set_here.items() if value is not None}
        if self.prefill_delayer:
            changed["joins_prompts"] = True
        if self.eager:
            changed |= {"graphs": False, "compiled_launch_frac": 1.0}
        if row.pass_request_s is not None and not self.decodes:
            changed["request_s"] = row.pass_request_s
        if row.eager_prompts & self._in_use:
            changed["prompt_graphs"] = False
        if self.max_batch is not None and row.prompt_graph_tokens:
            drafts = self.techniques.speculation
            each = 1 if drafts is None else drafts.tokens + 1  # vLLM, VllmConfig._set_cudagraph_sizes: twice these
            changed["prompt_graph_tokens"] = min(row.prompt_graph_tokens, 2 * self.max_batch * each)
        interval = changed.get("stream_interval", row.stream_interval)
        if self.static or self.called:
            changed |= {"front_s": 0.0, "front_token_s": 0.0, "stream_s": 0.0}
        elif row.one_process:
            changed |= {"stream_s": 0.0, "sequence_s": row.sequence_s + row.stream_s / interval}
        elif interval > 1:
            changed["stream_s"] = row.stream_s / interval
        ratio = self.cluster.rates.value[HOST_RATIO]
        if ratio != 1.0:
            changed |= {name: ratio * changed.get(name, getattr(row, name)) for name in HOST_SECONDS}
        return replace(row, **changed) if changed else row

    @property
    def _in_use(self) -> set[str]:
        """Features that may prevent captured prompts: words of `Engine.eager_prompts`, but the layout's."""
        extra = self.techniques
        used = {
            "pools": self.split, "drafts": extra.speculation is not None, "adapters": extra.adapters > 0,
            "vision-text": self.model.sees,
        }  # fmt: skip
        words = {platform(self.cluster.accelerator) or "", self.model.kind, self.model.model_type}
        return words | {word for word, is_used in used.items() if is_used}

    @property
    def split(self) -> bool:
        """True if prompts and answers are worked on by devices of their own."""
        return self.pools or self.techniques.prefill_gpus > 0

    @property
    def num_gpus(self) -> int:
        """Devices of the replica, those of a prefill pool included."""
        return int(self.layout.num_gpus) + self.techniques.prefill_gpus

    @property
    def decodes(self) -> bool:
        """True if answers are generated token by token; without output, a request is one pass over its input."""
        return self.output_tokens > 0 and generates(self.model)

    @property
    def context(self) -> int:
        """Tokens of the longest sequence: prompt and answer, or what an encoder reads."""
        request = prompt(self.model, self.input_tokens)
        return int(request.tokens if not self.decodes else self.input_tokens + self.output_tokens)

    @property
    def growing(self) -> int:
        """Tokens that a sequence gets while others, at other stages, run: none where all start together."""
        return self.output_tokens if self.decodes and not self.static else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranged:
    """A figure with its 10-90 % interval."""

    value: float
    low: float
    high: float
    band: ErrorBand  # the measured errors that the interval is from
    bound: float | None = None  # what datasheet rates allow at best; the interval ends there


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeEstimate:
    """The estimate of one replica. Seconds, tokens per second; tokens of all its GPUs unless stated otherwise."""

    job: ServeJob
    ttft_s: Ranged
    tpot_s: Ranged | None  # None for models that do not generate; of a step where answers are a single token
    e2e_s: float
    e2e_low: float  # 10 % and 90 % ends, composed of those of the first token and of the further ones
    e2e_high: float
    requests_per_s: float
    throughput: Ranged  # requests per second
    output_tokens_per_s: Ranged | None  # None for models that do not generate
    total_tokens_per_s: float
    concurrency: float
    max_whole_contexts: int  # requests whose prompt and whole answer are cached
    max_concurrency: int  # requests in flight: where caches grow with the answers, half of these on average
    kv_capacity_tokens: int
    memory: ServingMemory
    bound: str
    breakdown: tuple[tuple[str, float], ...]  # of one step with its average share of prefill
    lower_bound_s: float  # of that step
    mfu_frac: float  # of the peak rate of its matrix products, in that step
    usd_per_hour: float | None
    prefill_frac: float  # of the engine's time, spent on prompts
    running_frac: float  # of all time, in which the engine runs steps
    watts: float | None  # mean draw of a device
    usd_per_million_output_tokens: float | None  # the share of the bill that decoding takes; None where none does
    usd_per_million_input_tokens: float | None  # the share that prompts take: both together are the bill
    joules_per_request: float | None
    joules_per_output_token: float | None
    assumptions: tuple[str, ...] = ()

    @property
    def further_token_s(self) -> Ranged | None:
        """The time of each token after the first; None where none follows it."""
        return self.tpot_s if self.job.output_tokens > 1 else None

    @property
    def roofline_frac(self) -> float:
        """Seconds of a step at datasheet rates over those estimated."""
        return self.lower_bound_s / sum(seconds for _, seconds in self.breakdown)

    @property
    def num_gpus(self) -> int:
        """GPUs of the replica."""
        return self.job.num_gpus


def serving_class(job: ServeJob, quantity: str, *, queued: bool = False) -> str:
    """The class of predictions whose measured errors a job's quantity (ttft, tpot, throughput) shares.

    `queued`: more requests than memory holds, so that time to the first token is mostly waiting. A class ends in `far`
    where the job is unlike what rates and engines were fitted to, in `ported` where such a server's software was ported
    to the device, else in `replicas` where attention replicas share experts: these errors are larger.
    """
    name = quantity.split(".", maxsplit=1)[0]
    if not job.decodes and not job.engine.local:  # one pass over a batch
        return f"serving.{name}.batch.encode"
    if job.split and not job.engine.local:  # pools of their own for prompts
        return f"serving.{name}.split"
    return _near_class(job, name, queued=queued) + _worse(job)


def _worse(job: ServeJob) -> str:
    """The end of the class of a job whose errors are larger than those of its like."""
    if is_far(job):
        ported = not job.engine.local and job.cluster.accelerator.vendor not in ("", "NVIDIA")
        return ".ported" if ported else ".far"
    return ".replicas" if shares_experts(job) else ""


OVERLOAD = 0.5
"""Share of its arrivals that a job answers a second at least, to be one of a rate: below, most are answered after the
last has come, and how fast a full replica is decides."""


def in_its_class(job: ServeJob, requests_per_s: float) -> ServeJob:
    """The job whose class of errors a job shares that answers `requests_per_s`: in overload one that has no rate."""
    overloaded = job.arrivals_per_s is not None and requests_per_s < OVERLOAD * job.arrivals_per_s
    return replace(job, arrivals_per_s=None) if overloaded else job


def shares_experts(job: ServeJob) -> bool:
    """True if attention replicas share the experts of a server's model, and so wait for one another."""
    return job.model.has_experts and int(job.layout.dp) > 1 and not job.engine.local


def is_far(job: ServeJob) -> bool:
    """True if a job is far from the measurements that were made in detail.

    For servers: kernels were never timed on the device's family, its steps are not captured in graphs, or ranks talk
    through the host's memory. For engines of one user: neither NVIDIA nor Apple made the device.

    Source: the scopes of data/calibration; `ASSUMED_PATH` of the fabric. Assumes: a variant is as its family.
    """
    chip, row = job.cluster.accelerator, job.software
    if row.local:
        return chip.kind == "cpu" or chip.vendor not in NATIVE
    scopes = families(chip)
    apart = int(job.layout.tp) > 1 and any(level.kind == THROUGH_HOST for level in job.cluster.fabric.levels)
    timed = any(not lent(scope, scopes) for scope in chip.calibration.scopes.get("attention_frac", ()))
    return apart or not row.graphs or not timed


def _near_class(job: ServeJob, name: str, *, queued: bool) -> str:
    """The class of a job that is near what was measured."""
    if job.engine.local:
        return f"serving.{name}.local"
    rate = job.arrivals_per_s is not None
    how = "batch" if job.static else "rate" if rate else "server" if job.requests is None else "run"
    if name == "ttft":
        return f"serving.ttft.{how if how in ('batch', 'run') else 'queued' if queued else 'server'}"
    return f"serving.{name}.{how}.{'moe' if job.model.has_experts else 'dense'}"


def serving_band(job: ServeJob, quantity: str, *, queued: bool = False) -> ErrorBand:
    """The error band of one quantity, on the job's devices."""
    return device_band(serving_class(job, quantity, queued=queued), job.cluster)


def latency_band(job: ServeJob, *, queued: bool = False) -> WholeBand:
    """The error band of whole answers: of their first token, and of the further ones, where there are any."""
    ttft = serving_band(job, "ttft", queued=queued)
    return WholeBand(ttft, serving_band(job, "tpot") if job.decodes else ttft)


def no_room_text(job: ServeJob, context: int) -> str:
    """A sentence on a model that leaves no memory for one sequence, with the command that compares weight formats."""
    name, count, gpu = job.model.name, job.num_gpus, job.cluster.accelerator.name
    fit = shlex.join(["flopwise", "fit", name, "--gpu", gpu if count == 1 else f"{count}x{gpu}"])
    return (
        f"{name} in {job.weights.name} does not fit {count:,} x {gpu} with one sequence of {context:,} tokens; `{fit}` "
        "compares weight formats"
    )


def not_simulated_text(job: ServeJob, load: Sequence[str] = ()) -> str:
    """A sentence on a model that the simulator does not run, with the command that answers; empty for one that it runs.

    `load`: options of that command.
    """
    if generates(job.model) and job.model.kind != "encoder-decoder":
        return ""
    degrees = ((f"--{axis}", int(getattr(job.layout, axis))) for axis in ("tp", "pp", "ep"))
    layout = [word for flag, ways in degrees if ways > 1 for word in (flag, str(ways))]
    device = job.cluster.accelerator.name
    serve = shlex.join(["flopwise", "serve", job.model.name, "--gpu", device, *layout, *load])
    if generates(job.model):
        return (
            f"{job.model.name} has an encoder besides its decoder, and the simulator runs decoders alone; `{serve}` "
            "has its latencies in closed form"
        )
    return (
        f"{job.model.name} answers in one pass, and the simulator runs models that generate; `{serve}` has latency and "
        "inputs per second of batches as its engine makes them"
    )


WIDE = 4.0
"""Times from the lower to the upper end of an interval from which it needs a word."""


def interval_notes(job: ServeJob, ttft: ErrorBand) -> tuple[str, ...]:
    """Why the interval of a first token is as wide as it is, and what that of a whole request rests on."""
    notes = []
    if ttft.high > WIDE * ttft.low:
        across = ttft.high / ttft.low
        apart, device = "as much", ""
        if ttft.spread > 1:
            apart, device = f"a factor of {across ** (1 / ttft.spread):.1f}", "; the device widens it further"
        notes.append(
            f"the interval of TTFT is wide (a factor of {across:.1f}) because the {ttft.rows:,} published runs of this "
            f"class differ by {apart}: most do not state load generator, bursts, queue or warm-up{device}. Measure "
            "TTFT under your own load"
        )
    if job.decodes:
        measured = "it was checked on fixed batches and single streams" if job.static or job.engine.local else (
            "few published runs allow a check, because most state only TTFT and TPOT"
        )  # fmt: skip
        notes.append(f"the interval of a whole request is computed from those of TTFT and TPOT; {measured}")
    return tuple(notes)
