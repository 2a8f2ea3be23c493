"""What can be said of a service: how it is deployed and started, its requests, and how they are scheduled."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from flopwise import options
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.spec import StorageSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import OptionError, Spec, ValueKind, option, same
from flopwise.units import format_items
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.catalog import Facts
    from flopwise.facts.formats import CacheFormat, WeightFormat
    from flopwise.facts.software import Engine
    from flopwise.serving.memory import ServingLayout

DEFAULT_INPUT, DEFAULT_OUTPUT = 1024, 256
"""Tokens of a prompt and an answer where none are given."""
DEFAULT_CONTEXT = 8192
"""Tokens of a whole request where it is asked what fits, and none are given."""
ROUNDS = 10
"""Requests of each user in a closed loop where no number is given, as load generators send them.

SemiAnalysisAI/InferenceX, utils/bench_serving/benchmark_serving.py, is started with num-prompts of ten times
max-concurrency: all are handed at once to a semaphore of max-concurrency, once the warm-up has ended; means,
percentiles and throughput are of all of them. `vllm bench serve` does so with its --num-prompts. guidellm
(ConcurrentStrategy: rampup_duration 0) and AIPerf (no --concurrency-ramp-duration) begin with all users at once, too.
"""
SHORTEST = 8 / 9
"""The shortest length over the one that is given, and the longest as much above it, where requests are simulated.

The same benchmark draws lengths between 0.8 and 1 of the nominal ones (--random-range-ratio). Users whose requests were
all equal would end together, as they began, for ever: in 115 published closed loops that do not say how lengths vary,
nor how many requests were sent, first tokens came twice as fast (in the median) as for users who stay in step.
"""
VARIED = (
    "lengths vary by up to a ninth around those that are given as one number, as load generators draw them (1024:1024: "
    "all equal)"
)
"""The assumption of `SHORTEST`, in words."""
ROUNDED = 1e-6
"""By which shares that make a whole may differ from one."""
NGRAM_DRAFTS = frozenset({"ngram", "n-gram", "prompt-lookup", "suffix"})
BLOCK_DRAFTS = frozenset({"eagle", "eagle3", "eagle-3", "mtp", "nextn"})
DRAFT_TOKENS = 4
"""Tokens that a draft proposes where no number is given."""
ADAPTER_RANK = 16
"""Rank of adapters where none is given: vLLM's default of --max-lora-rank."""
_TECHNIQUES = "Prefixes, drafts, pools, layers on the host"

_format = partial(option, section="Formats and engine")
_start = partial(option, section="Cold start")
_traffic = partial(option, section="Traffic")
_scheduling = partial(option, section="Scheduling")
_scaling = partial(option, section="Autoscaling")
_queue = partial(option, section="Batch queue with a deadline")
_cache = partial(option, section="Response cache")


def _technique(flag: str, kind: ValueKind, text: str) -> Any:
    """An option of a technique, which files group under `techniques`."""
    name = flag[2:].partition("/")[0].replace("-", "_")
    return option(flag, kind, text, section=_TECHNIQUES, key=f"techniques.{name}")


def _length(value: object, what: str) -> int | str:
    """Tokens, or a distribution of them as `flopwise.serving.sim.lengths.Lengths` reads it."""
    if not isinstance(value, str) or ":" not in value:
        return options.TOKENS.parse(value, what)  # type: ignore[no-any-return]  # a whole number
    from flopwise.serving.sim.lengths import Lengths

    try:
        Lengths.parse(value)
    except SpecError as error:
        raise SpecError(f"{what}: {error}") from None
    return value


@dataclass(frozen=True, slots=True)
class PriorityClass:
    """A class of requests, of which the smallest is served first, and its share of them."""

    priority: int
    frac: float

    def __str__(self) -> str:
        """As a command line says it."""
        return f"{self.priority}={options.argument_text(self.frac)}"


def _priorities(value: object, what: str) -> tuple[PriorityClass, ...]:
    """Classes of requests with their shares, smaller first: `0=20%,1=80%`, or as a mapping."""
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = f"such as 0=20%,1=80% (given: {str(value)[:60]!r})"
    given = value.items() if isinstance(value, dict) else (one.partition("=")[::2] for one in str(value).split(","))
    shares: dict[int, float] = {}
    for name, share in given:
        if share == "":
            raise SpecError(f"{what}: each class needs its share, {text}")
        priority = options.whole(low=-1_000_000, high=1_000_000).parse(name, f"{what}: class")
        shares[priority] = shares.get(priority, 0.0) + options.FRACTION.parse(share, f"{what}.{priority}")
    if abs(sum(shares.values()) - 1.0) > ROUNDED:
        raise SpecError(f"{what}: shares of classes that make 100 % are needed, {text}")
    return tuple(PriorityClass(*one) for one in sorted(shares.items()))


PRIORITIES = ValueKind(
    "shares", _priorities, "shares by class",
    {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object", "minProperties": 1,
     "additionalProperties": {"type": ["number", "string"]}},
     {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}}]},
)  # fmt: skip
LENGTH = ValueKind("length", _length, "quantity", {"type": ["number", "string"]})


def mean_tokens(length: int | str) -> int:
    """Tokens of a length, on average where they are drawn."""
    if not isinstance(length, str):
        return length
    from flopwise.serving.sim.lengths import Lengths

    return max(1, round(Lengths.parse(length).mean))


class ServingSoftware(TypedDict):
    """With what a model is served: keywords of `ServeJob` and `serving_memory`."""

    weights: WeightFormat
    kv_dtype: CacheFormat
    engine: Engine


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSpec(Spec):
    """Options of a deployment: weight format, engine, and the layout of a replica."""

    weights: str | None = _format("--weights", options.name("format"),
        "bf16, fp8, int8, awq, gptq, mxfp4, nvfp4, Q4_K_M ...; any in plans (default: as published).")
    kv_dtype: str | None = _format(
        "--kv-dtype", options.name("dtype"), "Format of the KV cache: bf16 (default; fp32 with fp32 weights), fp8 ...")
    engine: str | None = _format("--engine", options.name("engine"),
        "vllm (default), sglang, tensorrt-llm, llama.cpp (default on Apple), hf ...; encoders: tei, onnxruntime, "
        "openvino, tensorrt.")
    memory_fraction: float | None = _format(
        "--memory-fraction", options.FRACTION,
        "Share of device memory that the engine may use (default: the engine's).")
    max_batch: int | None = _format(
        "--max-batch", options.BATCH,
        "Sequences that each attention replica runs at once (default: the engine's limit).")
    recv_interval: int | None = _format("--recv-interval", options.whole(high=10_000),
        "Number of engine steps between polls for new requests: SGLang's --scheduler-recv-interval (default: 1).")
    batch_wait: int | None = _format("--batch-wait", options.whole(low=0, high=10_000),
        "Engine steps that a prompt waits for others at most: TensorRT-LLM's batch_wait_timeout_iters (default: 0).")
    stream_interval: int | None = _format("--stream-interval", options.whole(high=10_000),
        "Tokens streamed together after the first, as in vLLM and SGLang (default: 1).")
    prefill_delayer: bool = _format("--prefill-delayer/--no-prefill-delayer", options.FLAG,
        "Attention replicas read prompts together, once each has one: SGLang's --enable-prefill-delayer, "
        "TensorRT-LLM's attention_dp_config.enable_balance.",
        default=False)
    eager: bool = _format("--eager/--no-eager", options.FLAG,
        "Launch kernels one by one, without CUDA graphs (vLLM's --enforce-eager).", default=False)
    tp: int = same(SharedSpec, "tp", default=1)
    pp: int = same(SharedSpec, "pp", default=1)
    ep: int = same(SharedSpec, "ep", default=1)
    dp: int = same(SharedSpec, "dp", default=1)

    def layout(self) -> ServingLayout:
        """The layout of a replica."""
        from flopwise.serving.memory import ServingLayout

        return ServingLayout(tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp)

    @property
    def num_gpus(self) -> int:
        """Accelerators of a replica."""
        return self.tp * self.pp * self.dp

    def software(self, facts: Facts, accelerator: Accelerator | None = None) -> ServingSoftware:
        """Formats and engine, looked up; the engine as it is started on a device, if one is known.

        Raises: UnknownNameError, SpecError: there is no such format or engine.
        """
        weights = facts.weight_format(self.weights or defaults.WEIGHTS)
        return ServingSoftware(
            weights=weights,
            kv_dtype=facts.cache_format(self.kv_dtype or ("fp32" if weights.computes == "fp32" else "bf16")),
            engine=facts.engine(self.engine or defaults.ENGINE).on(accelerator),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpec(Spec):
    """Options of a replica's start: the storage and the speed of loading. None: the default."""

    storage: str | None = same(StorageSpec, "storage", section="Cold start")
    storage_bandwidth: float | None = same(StorageSpec, "storage_bandwidth", section="Cold start")
    image_size: float | None = _start(
        "--image-size", options.BYTES, "Size of the container image that is pulled at a start: 10GB.")
    image_bandwidth: float | None = _start(
        "--image-bandwidth", options.BANDWIDTH, "Rate at which the image is pulled and unpacked: 200MB/s.")

    def check(self) -> None:
        """Refuse what a replica cannot be started from.

        Raises: SpecError: says what goes together.
        """
        if (self.image_size is None) != (self.image_bandwidth is None):
            raise SpecError("the image's size and bandwidth go together (--image-size, --image-bandwidth)")
        if self.storage is not None and self.storage_bandwidth is not None:
            raise OptionError("storage_bandwidth", "a kind of storage is given as well; give one of them")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec(Spec):
    """One request, and how many of them there are at once; None: the usual."""

    input_tokens: int | str | None = _traffic(
        "--input", LENGTH,
        f"Tokens of a prompt: {DEFAULT_INPUT} (default; simulated within a ninth of it), 1024:1024 "
        "(all equal), 200:800, lognormal:512:cv=1.2, sharegpt-prompts:220.")
    output_tokens: int | str | None = _traffic(
        "--output", LENGTH, f"Tokens of an answer, as --input (default: {DEFAULT_OUTPUT}); sharegpt-answers:200.")
    rate: float | None = _traffic("--rate", options.RATE, "Requests per second, on average: 20, 500/min.")
    concurrency: int | None = _traffic("--concurrency", options.BATCH,
        "Requests in flight over all replicas, in a closed loop begun by all at once (default: as many as fit in "
        "memory).")
    requests: int | None = _traffic("--requests", options.whole(high=10**12),
        "Total number of requests: a batch job, or instead of a duration.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsSpec(Spec):
    """Sessions of several requests, each of which contains all before it; None: requests that stand alone."""

    turns: int | str | None = _traffic("--turns", LENGTH,
        "Turns of a session, as --input; the prompt of each contains all turns before it.")
    think_s: float = _traffic(
        "--think", options.SECONDS_OR_ZERO,
        "Pause of a user before the next request; for sessions, the mean pause between turns.", default=0.0)
    tool_share: float | None = _traffic("--tool-share", options.FRACTION_OR_ZERO,
        "Share of later turns that follow a tool call, not a person (default: none).")
    tool_pause: float | None = _traffic(
        "--tool-pause", options.SECONDS_OR_ZERO, "How long a tool takes on average.")
    kv_stores: str | None = _scheduling("--kv-stores", options.name("stores"),
        "Tiers below the KV cache of each replica that keep evicted prefixes, the nearest first: "
        "host=200GB,nvme=4TB@6GB/s@0.08 (capacity, rate, USD per GB and month).")

    def check(self) -> None:
        """Refuse what means nothing without turns.

        Raises: SpecError: says what is missing.
        """
        for name in ("think_s", "tool_share", "tool_pause", "kv_stores"):
            if self.turns is None and getattr(self, name):
                plain = "; N users who pause T between single requests send N / T of them: --rate" * (name == "think_s")
                raise OptionError(name, f"needs the turns of sessions (--turns){plain}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnLengthsSpec(Spec):
    """Lengths that are drawn from what was measured."""

    lengths_from: Path | None = _traffic(
        "--lengths-from", options.FILE, "Draw pairs of prompt and answer from this trace file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TechniqueRequest(Spec):
    """Techniques of serving; None: not used."""

    shared_prefix: int | None = _technique(
        "--shared-prefix", options.TOKENS, "Tokens of a prefix that all prompts share: computed and cached once.")
    prefix_hit: float | None = _technique(
        "--prefix-hit", options.FRACTION_OR_ZERO, "Share of a prompt's tokens found in the cache: 0.6, 60%.")
    kv_keep: float | None = _technique(
        "--kv-keep", options.FRACTION, "Share of cached tokens that eviction keeps (H2O, SnapKV).")
    draft: str | None = _technique("--draft", options.name("draft"),
        "Speculative decoding with a draft model, eagle, mtp or ngram.")
    draft_tokens: int | None = _technique(
        "--draft-tokens", options.whole(high=64), f"Tokens that the draft proposes (default: {DRAFT_TOKENS}).")
    acceptance: float | None = _technique(
        "--acceptance", options.FRACTION_OR_ZERO, "Share of the draft's tokens that are accepted.")
    draft_weights: str | None = _technique(
        "--draft-weights", options.name("format"), "Format of the draft's weights (default: as published).")
    prefill_gpus: int | None = _technique("--prefill-gpus", options.DEGREE,
        "Additional accelerators per replica that run only prefill (disaggregated serving).")
    offload_weights: float | None = _technique(
        "--offload-weights", options.FRACTION_OR_ZERO, "Share of the layers whose weights are kept in host memory.")
    gpu_layers: int | None = _technique(
        "--gpu-layers", options.whole(low=0, high=100_000), "Layers that stay on the device, as llama.cpp -ngl.")
    host: str | None = _technique(
        "--host", options.name("cpu"), "Processor that computes offloaded layers (llama.cpp).")
    expert_skew: float | None = same(SharedSpec, "expert_skew", section=_TECHNIQUES, key="techniques.expert_skew")
    redundant_experts: int | None = _technique("--redundant-experts", options.whole(low=0, high=100_000),
        "Copies of popular experts in each layer: SGLang's --ep-num-redundant-experts, vLLM's EPLB.")
    overlap: bool | None = _technique("--overlap/--no-overlap", options.FLAG,
        "Overlap the communication of two micro-batches: SGLang's --enable-two-batch-overlap, vLLM's --enable-dbo.")

    adapters: int | None = _technique("--adapters", options.whole(high=100_000),
        "LoRA adapters served on one base model, all of them in device memory: vLLM's --max-loras.")
    adapter_rank: int | None = _technique("--adapter-rank", options.whole(high=4096),
        f"Rank of the adapters served on one base model (default: {ADAPTER_RANK}).")
    images: int | None = _technique("--images", options.whole(high=10_000),
        "Images in each prompt; --input counts their tokens, and the model's image tower encodes them.")
    image_tokens: int | None = _technique("--image-tokens", options.TOKENS,
        "Prompt tokens that one image makes (default: those of the model's own resolution).")
    structured: float | None = _technique("--structured", options.FRACTION_OR_ZERO,
        "Share of answers that must follow a grammar or a JSON schema: 0.5, 100%.")
    mask_time: float | None = _technique("--mask-time", options.SECONDS_OR_ZERO,
        "Host time to find the tokens that a grammar allows next, for one sequence (default: 47us, LLGuidance).")

    @property
    def any(self) -> bool:
        """True if a technique is named."""
        return self != NO_TECHNIQUES

    @property
    def offloads(self) -> bool:
        """True if layers are in the host's memory."""
        return self.offload_weights is not None or self.gpu_layers is not None

    @property
    def draft_name(self) -> str | None:
        """The model that drafts, where it is one of its own."""
        return None if self.draft is None or self.draft.lower() in NGRAM_DRAFTS | BLOCK_DRAFTS else self.draft

    def check(self) -> None:
        """Refuse what means nothing alone.

        Raises: SpecError: says what is missing.
        """
        for name in ("draft_tokens", "acceptance", "draft_weights"):
            if getattr(self, name) is not None and self.draft is None:
                raise OptionError(name, "needs a draft (--draft MODEL, eagle, mtp or ngram)")
        for name, other in (("adapter_rank", "adapters"), ("image_tokens", "images"), ("mask_time", "structured")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise OptionError(name, f"needs {other} (--{other})")
        if self.draft is not None and self.acceptance is None:
            raise OptionError(
                "draft",
                "needs --acceptance, the share of its tokens that are accepted: engines report it, and drafts "
                "of one family reach 0.5 to 0.9 (arXiv:2211.17192, table 3)",
            )
        if self.offload_weights is not None and self.gpu_layers is not None:
            raise OptionError(
                "gpu_layers", "the share of offloaded layers (--offload-weights) is given as well; give one of them"
            )

NO_TECHNIQUES = TechniqueRequest()
"""None is asked for."""


def check_classes(priorities: tuple[PriorityClass, ...] | None, policy: str) -> None:
    """Refuse classes of requests in a queue whose order has none. Raises SpecError: says which order has."""
    if priorities is not None and policy != "priority":
        raise OptionError("priorities", "are served in their order with --policy priority; give it")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSpec(Spec):
    """The order of waiting requests, and what becomes of a sequence that the cache has no room for."""

    policy: str = _scheduling("--policy", options.name("policy"),
        "Order of the queue: fcfs, priority, shortest, shortest-prompt, deadline.", default="fcfs")
    preempt: str = _scheduling("--preempt", options.choice("recompute", "swap"),
        "How a sequence is preempted when the KV cache is full.", default="recompute")
    priorities: tuple[PriorityClass, ...] | None = _scheduling("--priorities", PRIORITIES,
        "Priority classes with their shares of the requests: 0=20%,1=80%; with --policy priority, class 0 goes first.")

    @property
    def is_plain(self) -> bool:
        """True if requests are alike, served first come, first served, and recomputed after a preemption."""
        return self == QueueSpec()

    def check(self, *, traced: bool = False) -> None:
        """Refuse what nothing comes of; `traced`: requests are a trace's, which may have priorities and deadlines.

        Raises: SpecError: says what is missing; UnknownNameError: no such policy.
        """
        if traced and self.priorities is not None:
            raise OptionError("priorities", "a trace has its own (column priority); leave them out")
        check_classes(self.priorities, self.policy)
        if self.policy == "priority" and self.priorities is None and not traced:
            raise OptionError("policy", "priority needs the classes of requests: give --priorities 0=20%,1=80%")
        if self.policy == "deadline" and not traced:
            raise OptionError("policy", "deadline goes with a trace whose requests have deadlines: `flopwise simulate`")
        from flopwise.serving.sim.policies import policy_named

        policy_named(self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling(Spec):
    """Options of batching in replicas and of balancing between them. None: those of the engine's row."""

    policy: str = same(QueueSpec, "policy", default="fcfs")
    balancer: str = _scheduling("--balancer", options.name("balancer"),
        "Load balancing: round-robin, least-loaded, least-tokens, prefix-aware.", default="least-loaded")
    step_tokens: int | None = _scheduling(
        "--step-tokens", options.TOKENS, "Token budget of an engine step (default: the engine's).")
    mix: bool | None = _scheduling(
        "--mix/--no-mix", options.FLAG,
        "Mix prefill and decoding in one step (chunked prefill), or run prefill first (default: as the engine does).")
    preempt: str = same(QueueSpec, "preempt", default="recompute")
    prefix_cache: bool | None = _scheduling(
        "--prefix-cache/--no-prefix-cache", options.FLAG, "Cache shared prefixes (default: where there are any).")
    kv_stores: str | None = same(SessionsSpec, "kv_stores")
    prefill_replicas: int = _scheduling("--prefill-replicas", options.WHOLE_OR_ZERO,
        "Additional replicas that run only prefill and transfer the cache.", default=0)
    prefill_gpus: int = 0  # the same as accelerators beside those of each other replica

    def prefill_pool(self, replicas: int, gpus: int) -> int:
        """Prompt-only replicas of `gpus` devices beside so many others.

        Raises: SpecError: both ways to say it are used, or they make no whole replicas.
        """
        if self.prefill_replicas and self.prefill_gpus:
            raise OptionError("prefill_gpus", "prefill_replicas is given as well; give one of them")
        whole, rest = divmod(replicas * self.prefill_gpus, gpus)
        if rest or self.prefill_gpus < 0:
            raise SpecError(
                f"{format_items(self.prefill_gpus, 'prefill GPU')} for each of {format_items(replicas, 'replica')}: no "
                f"whole number of prompt-only replicas of {gpus}; give a multiple, or --prefill-replicas"
            )
        return self.prefill_replicas + whole


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscaleSpec(Spec):
    """Replicas that come and go; None: the usual of `flopwise.serving.sim.autoscale.Autoscaling`."""

    autoscale: str | None = _scaling("--autoscale", options.name("measure"),
        "Start and drain replicas by concurrency, queue, utilisation or kv (how full the cache is).")
    target: float | None = _scaling(
        "--target", options.COUNT, "Target value of the measure: 32 requests per replica, 0.7 of the time ...")
    min_replicas: int | None = _scaling(
        "--min-replicas", options.WHOLE_OR_ZERO, "Fewest replicas (default: 1; 0 scales to zero).")
    max_replicas: int | None = _scaling("--max-replicas", options.DEGREE, "Most replicas (default: 16).")
    min_by_hour: tuple[int, ...] | None = _scaling("--min-by-hour", options.WHOLES,
        "Fewest replicas by hour, ready when it begins: 24 numbers of a day, 168 of a week from Monday 0:00.")
    cold_start: float | None = _scaling("--cold-start", options.SECONDS_OR_ZERO,
        "Time from requesting a machine until it serves (default: a minute, then the start of the engine).")
    cool_down: float | None = _scaling(
        "--cool-down", options.SECONDS_OR_ZERO,
        "Scale-down window: no fewer replicas than were wanted within it (default: 5min).")
    tick: float | None = _scaling("--tick", options.SECONDS, "Time between scaling decisions (default: 15 s).")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRequest(Spec):
    """A queue of requests on spot replicas. None: the usual, or from the facts."""

    queue: int | None = _queue("--queue", options.whole(high=10**12),
        "Number of requests in a batch queue, instead of traffic.")
    workers: int = _queue("--workers", options.whole(high=10_000), "Spot replicas that work on the queue.", default=1)
    deadline: float | None = same(SharedSpec, "deadline", section="Batch queue with a deadline")
    spot_interruptions: float | None = _queue("--spot-interruptions", options.RATE_OR_ZERO,
        "Interruption rate of one spot instance: 0.1/day (default: the provider's, where known).")
    spot_price: float | None = _queue(
        "--spot-price", options.USD_OR_ZERO, "Price of one spot accelerator in US dollars per hour.")
    replace_s: float | None = _queue("--replace", options.SECONDS_OR_ZERO,
        "Time until an interrupted spot instance is replaced: 5min.")
    checkpoint_every: float | None = same(SharedSpec, "checkpoint_every", section="Batch queue with a deadline")
    checkpoint_time: float = _queue(
        "--checkpoint-time", options.SECONDS_OR_ZERO, "Time that a worker takes to write a checkpoint.", default=0.0)
    fallback: int = _queue(
        "--fallback", options.whole(low=0, high=10_000),
        "On-demand replicas that step in where the deadline is at risk.", default=0)
    trials: int = _queue("--trials", options.whole(high=10**6), "Number of simulated trials.", default=1000)
    cold_start: float | None = same(AutoscaleSpec, "cold_start")
    input_tokens: int | str | None = same(RequestSpec, "input_tokens")
    output_tokens: int | str | None = same(RequestSpec, "output_tokens")
    lengths_from: Path | None = same(DrawnLengthsSpec, "lengths_from")
    seed: int = same(SharedSpec, "seed", default=0, section="Traffic")

    def check(self) -> None:
        """Refuse what needs another option.

        Raises: SpecError: says which.
        """
        if self.checkpoint_time and self.checkpoint_every is None:
            raise OptionError("checkpoint_time", "needs the time between checkpoints (--checkpoint-every)")
        if self.fallback and self.deadline is None:
            raise OptionError("fallback", "fallback workers start when a deadline is at risk: give --deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCacheSpec(Spec):
    """Answers that are given again; None: the usual of `flopwise.serving.sim.request.ResponseCache`."""

    response_cache: int | None = _cache(
        "--response-cache", options.BATCH, "Number of entries in a cache of answers to repeated prompts.",
        metavar="ENTRIES")
    distinct: int | None = _cache("--distinct", options.BATCH, "Number of different prompts that are repeated.")
    skew: float | None = _cache("--skew", options.COUNT_OR_ZERO, "Zipf exponent of their popularity (default: 1).")
    repeated: float | None = _cache(
        "--repeated", options.FRACTION_OR_ZERO, "Share of requests that repeat one of them (default: all).")
    cache_ttl: float | None = _cache(
        "--cache-ttl", options.SECONDS, "How long an answer stays valid (default: forever).")
    cache_price: float | None = _cache(
        "--cache-price", options.USD_OR_ZERO, "US dollars per GB and hour of the cache's memory.")

    def check(self) -> None:
        """Refuse what means nothing without a cache.

        Raises: SpecError: says what is missing.
        """
        for name in ("distinct", "skew", "repeated", "cache_ttl", "cache_price"):
            if self.response_cache is None and getattr(self, name) is not None:
                raise OptionError(name, "needs the number of cached answers (--response-cache)")
