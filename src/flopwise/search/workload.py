"""A workload: what someone wants to run, under which targets and constraints.

The structs below are the schema: they validate a file and make its published JSON Schema. Quantities may be written
with units (`1T`, `500ms`, `$2k`); `resolve` turns them into base units.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

import msgspec

from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.software import Engine
from flopwise.search.workload_data import check_packing, maybe, positive, training_tokens, whole
from flopwise.search.workload_techniques import asked_techniques
from flopwise.search.workload_traffic import Arriving, arriving
from flopwise.serving.technique_request import TechniqueRequest
from flopwise.units import parse_bytes_per_s, parse_count, parse_rate, parse_seconds, parse_usd

SERVING_ONLY = ("weight_formats", "kv_dtype", "engine")

Quantity = Annotated[
    str | float | int, msgspec.Meta(description="a number, or text with a unit such as 1T, 500ms, $2k")
]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Task = Literal["pretrain", "finetune", "serve", "batch", "encode"]
Percentile = Literal["p50", "p90", "p95", "p99", "mean"]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, frozen=True):
    """Unknown keys are errors: a misspelt target must not be ignored."""


class Data(_Strict, frozen=True):
    """What a training job reads."""

    tokens: Quantity | None = msgspec.field(default=None)
    """That are trained on, in all: 2T."""
    samples: Quantity | None = None
    """Sequences of seq_len, instead of tokens."""
    epochs: Quantity = 1
    """Passes over them."""
    seq_len: Quantity | None = None
    """Tokens of a sequence."""
    global_batch: Quantity | None = None
    """Sequences per optimizer step."""
    global_batch_tokens: Quantity | None = None
    """Instead of global_batch: 4M."""
    padded_frac: float = 0.0
    """Share of each sequence that is padding, from 0 to 1."""
    packing: Literal["padded", "packed"] | None = None
    """Documents shorter than a sequence are padded to the longest of a micro-batch, or packed."""
    mean_length: Quantity | None = None
    """Mean tokens of a document, lognormal; with packing."""
    length_spread: float = 1.0
    """Standard deviation of the lengths over their mean."""


class Method(_Strict, frozen=True):
    """How a model is fine-tuned."""

    freeze: Name | None = None
    """What is not trained: embedding, head, towers, first:N, all-but-last:N, separated by commas."""
    kind: Literal["full", "lora", "qlora"] = "full"
    """All weights, adapters, or adapters on a quantised model."""
    rank: Quantity = 16
    """Of adapters."""
    targets: list[Name] = []
    """Which matrices have adapters: q, k, v ...; all linear ones when none is named."""
    base_format: Name | None = None
    """Of the frozen weights: nf4, int8 ..."""


class Routing(_Strict, frozen=True):
    """How a mixture of experts is loaded in training."""

    expert_skew: float = 1.0
    """Tokens of the most popular expert over the mean of all; 1 is balanced."""
    capacity_factor: float | None = None
    """Experts compute so many times the mean load and drop what is more; nothing is dropped where it is not given."""


class Traffic(_Strict, frozen=True):
    """What a service receives, or what a batch job holds."""

    requests_per_s: Quantity | None = None
    """At the mean: 20, or 100k/h."""
    concurrency: Quantity | None = None
    """Instead of a rate: requests at the same time."""
    requests: Quantity | None = None
    """Batch inference: how many requests in all."""
    input_tokens: Quantity | None = None
    """Tokens of a prompt, 1024 unless said: a number, or a distribution as 200:800 or lognormal:512:cv=1.2."""
    output_tokens: Quantity | None = None
    """Tokens of an answer, 256 unless said; as input_tokens."""
    trace: Name | None = None
    """A CSV file of requests (arrival_s, prompt_tokens, output_tokens): their lengths, and when they come."""
    arrivals: Literal["poisson", "gamma", "uniform"] | None = None
    """How requests arrive at their rate; poisson, or gamma where burstiness is given."""
    burstiness: float | None = None
    """Of gamma arrivals: standard deviation of the gaps over their mean; 1 is Poisson."""
    peak: float | None = None
    """Highest rate of a day over the mean rate: replicas are sized for it."""


class Techniques(_Strict, frozen=True):
    """What a service does besides running its model as it is; each applies to every candidate."""

    shared_prefix: Quantity | None = None
    """Tokens with which all prompts begin: computed once, cached once."""
    prefix_hit: Quantity | None = None
    """Share of a prompt's tokens found in the cache: 0.6, 60%."""
    kv_keep: Quantity | None = None
    """Share of the cached tokens that eviction keeps."""
    draft: Name | None = None
    """Speculative decoding: a model, eagle, mtp or ngram; needs its acceptance."""
    draft_tokens: Quantity | None = None
    """Tokens that the draft proposes, 4 unless said."""
    acceptance: Quantity | None = None
    """Share of the proposed tokens that are accepted."""
    draft_weights: Name | None = None
    """Format of the draft's weights."""
    offload_weights: Quantity | None = None
    """Share of the layers whose weights stand in host memory."""
    gpu_layers: Quantity | None = None
    """The same as layers that stay on the accelerator."""
    host: Name | None = None
    """Processor that computes offloaded layers, where the engine does that."""
    expert_skew: Quantity | None = None
    """Tokens of the most popular expert over the mean of all; 1 is balanced."""


class Checkpoints(_Strict, frozen=True):
    """How a training run is saved: what an interruption of a spot machine, or a failure, costs."""

    every: Quantity | None = None
    """Time between them: 30min; as often as loses least when it is not given."""
    write_per_gpu: Quantity | None = None
    """With which each accelerator writes its part: 2GB/s; 1 GB/s when it is not given."""
    asynchronous: bool = False
    """Training goes on while they are written, once they stand in host memory."""


class Targets(_Strict, frozen=True):
    """What the answer has to hold. A latency is a time, or a percentile with its time: `{p95: 1s}`."""

    ttft: Quantity | dict[Percentile, Quantity] | None = None
    """Time to first token."""
    tpot: Quantity | dict[Percentile, Quantity] | None = None
    """Time per output token."""
    latency: Quantity | dict[Percentile, Quantity] | None = None
    """Whole request, from arrival to last token."""
    throughput: Quantity | None = None
    """Tokens per second, over all GPUs."""
    deadline: Quantity | None = None
    """Of a run: 24h, 30d."""
    budget: Quantity | None = None
    """US dollars: the whole run for training and batch, a month for a service."""
    confidence: float = 0.8
    """Probability with which each target has to be met, from 0.05 to 0.99."""


class Constraints(_Strict, frozen=True):
    """Where and with what it may run."""

    providers: list[Name] = []
    """Any when none is named; so for the next three."""
    regions: list[Name] = []
    """Or patterns of them: us-*."""
    gpus: list[Name] = []
    """By any common spelling."""
    instances: list[Name] = []
    """Instance types."""
    purchase: list[Literal["on_demand", "spot", "reserved_1y", "reserved_3y"]] = []
    """Ways to buy; on demand when none is named."""
    max_gpus: Quantity | None = None
    """Accelerators at most."""
    min_gpus: Quantity | None = None
    """Accelerators at least."""
    precision: list[Name] = []
    """Training: bf16, fp8 ..."""
    weight_formats: list[Name] = []
    """Serving: bf16, fp8, awq ..."""
    kv_dtype: Name | None = None
    """Of the cache: fp8."""
    engine: Name | None = None
    """vllm, sglang, tensorrt-llm ..."""
    stack: Name | None = None
    """Of training: megatron-te, fsdp-compile ..."""
    schedule: Name | None = None
    """Training: the schedule of pipelines; by default 1F1B, interleaved, and of zero-bubble, ZB-V and DualPipe those
    that the stack runs."""
    shard: Quantity | None = None
    """HSDP: weights are sharded over groups of exactly so many ranks; any layout when it is not given."""
    inter_node_bandwidth: Quantity | None = None
    """Of one instance to others, shared by its accelerators, instead of its offer's: 400GB/s."""
    network: Quantity | None = None
    """The same for each accelerator: 400Gbps."""
    max_usd_per_hour: Quantity | None = None
    """Of all machines together."""


class Workload(_Strict, frozen=True):
    """One workload, as written."""

    model: Name
    task: Task
    name: Name | None = None
    data: Data = Data()
    method: Method = Method()
    routing: Routing = Routing()
    traffic: Traffic = Traffic()
    techniques: Techniques = Techniques()
    targets: Targets = Targets()
    constraints: Constraints = Constraints()
    objective: Literal["cost", "time", "energy"] = "cost"
    simulate: bool = True
    """Serving: whether the best plans are run through the simulator before they are ranked."""
    optimizer: Name = defaults.OPTIMIZER
    precision: Name | None = None
    checkpoints: Checkpoints = Checkpoints()


class Saving(msgspec.Struct, frozen=True):
    """How a run is saved, in base units; None as `flopwise.training.goodput.Reliability` has it."""

    every_s: float | None
    write_bytes_per_s_per_gpu: float | None
    asynchronous: bool


class Latency(msgspec.Struct, frozen=True):
    """A latency target: the percentile it is held at, and its seconds."""

    percentile: str
    seconds: float


class Resolved(msgspec.Struct, frozen=True, kw_only=True):
    """A workload in base units. None where the file is silent and no default stands for it."""

    source: Workload
    tokens: float | None
    seq_len: int | None
    global_batch: int | None
    global_batch_tokens: float | None
    useful_frac: float
    confidence: float
    lora_rank: int
    requests_per_s: float | None
    concurrency: int | None
    requests: float | None
    input_tokens: int
    output_tokens: int
    arriving: Arriving
    techniques: TechniqueRequest
    ttft: Latency | None
    tpot: Latency | None
    latency: Latency | None
    tokens_per_s: float | None
    deadline_s: float | None
    budget_usd: float | None
    min_gpus: int
    max_gpus: int
    max_usd_per_hour: float | None
    shard: int | None
    inter_node_bytes_per_s: float | None  # of an instance
    network_bytes_per_s_per_gpu: float | None  # the same, given for each accelerator
    saving: Saving
    drafter: Any = None  # the model that drafts, once it is looked up
    facts: Any = None  # what is known, once it is given

    @property
    def engine(self) -> Engine:
        """The inference engine that is asked for, else the usual one. Raises UnknownNameError."""
        found: Engine = self.facts.engine(self.source.constraints.engine or defaults.ENGINE)
        return found


def schema() -> dict[str, Any]:
    """The JSON Schema of a workload file."""
    document = msgspec.json.schema(Workload)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flopwise workload", **document}


def _latency(value: Any, what: str, default: str) -> Latency | None:
    if value is None:
        return None
    if isinstance(value, dict):
        if len(value) != 1:
            raise SpecError(f"{what}: one percentile with its time, such as {{p95: 1s}}; {len(value)} given")
        ((percentile, value),) = value.items()
    else:
        percentile = default
    return Latency(percentile, positive(parse_seconds(value, what), what))


def _meaningless(workload: Workload) -> None:
    """Refuse what has no meaning for the task: what is silently ignored is worse than an error."""
    trains = workload.task in {"pretrain", "finetune"}
    targets = workload.targets
    if trains:
        held = {"traffic": workload.traffic != Traffic(), "techniques": workload.techniques != Techniques()}
        held |= {f"targets.{name}": getattr(targets, name) is not None for name in ("ttft", "tpot", "latency")}
        held |= {f"constraints.{name}": bool(getattr(workload.constraints, name)) for name in SERVING_ONLY}
        held["simulate"] = not workload.simulate
    else:
        held = {"data": workload.data != Data(), "method": workload.method != Method()}
        held["routing"] = workload.routing != Routing()
        held["checkpoints"] = workload.checkpoints != Checkpoints()
        held |= {
            "optimizer": workload.optimizer != defaults.OPTIMIZER,
            "constraints.stack": workload.constraints.stack is not None,
            "constraints.schedule": workload.constraints.schedule is not None,
            "constraints.shard": workload.constraints.shard is not None,
        }
        held |= {"constraints.precision": bool(workload.constraints.precision)}
    if workload.task == "pretrain":
        held["method"] = workload.method != Method()
    if workload.task not in {"pretrain", "finetune", "batch"}:
        held["targets.deadline"] = targets.deadline is not None
        held["traffic.requests"] = workload.traffic.requests is not None
    if workload.task == "encode":
        held["targets.tpot"] = targets.tpot is not None
    given = next((name for name, present in held.items() if present), None)
    if given is not None:
        raise SpecError(f"{given}: has no meaning for a {workload.task} workload; leave it out")


def _saving(told: Checkpoints) -> Saving:
    return Saving(
        maybe(told.every, parse_seconds, "checkpoints.every"),
        maybe(told.write_per_gpu, parse_bytes_per_s, "checkpoints.write_per_gpu"),
        told.asynchronous,
    )


def _check_routing(routing: Routing) -> None:
    if not 1 <= routing.expert_skew < math.inf:
        raise SpecError(f"routing.expert_skew: 1 (balanced) or more, not {routing.expert_skew}")
    capacity = routing.capacity_factor
    if capacity is not None and not 0 < capacity < math.inf:
        raise SpecError(f"routing.capacity_factor: a finite number above 0, not {capacity}")


def _check_method(method: Method) -> None:
    if method.kind == "full" and (method.targets or method.base_format):
        name = "targets" if method.targets else "base_format"
        raise SpecError(f"method.{name}: of adapters; give method.kind lora or qlora, too (--lora, --qlora)")


def resolve(workload: Workload) -> Resolved:
    """The workload in base units.

    Raises:
        SpecError: a quantity that cannot be read or is out of range; starts with the key's path.
    """
    _meaningless(workload)
    data, traffic, targets, limits = workload.data, workload.traffic, workload.targets, workload.constraints
    tokens, seq_len, global_batch = training_tokens(data)
    if not 0 <= data.padded_frac < 1:
        raise SpecError(f"data.padded_frac: a fraction from 0 to below 1, not {data.padded_frac}")
    if not 0.05 <= targets.confidence <= 0.99:
        raise SpecError(f"targets.confidence: a probability from 0.05 to 0.99, not {targets.confidence}")
    _check_routing(workload.routing)
    _check_method(workload.method)
    check_packing(data)
    trains = workload.task in {"pretrain", "finetune"}
    if trains and tokens is None:
        raise SpecError(f"data: a {workload.task} workload needs data.tokens, or data.samples with data.seq_len")
    flow = arriving(traffic, workload.task)
    if limits.inter_node_bandwidth is not None and limits.network is not None:
        raise SpecError("constraints.network: inter_node_bandwidth says it for the whole instance; give one of them")
    most = whole(limits.max_gpus, "constraints.max_gpus", 10**6) or (100_000 if trains else 4096)
    least = whole(limits.min_gpus, "constraints.min_gpus", 10**6) or 1
    if least > most:
        raise SpecError(f"constraints.min_gpus: {least} is more than max_gpus, {most}")
    return Resolved(
        source=workload,
        tokens=tokens,
        seq_len=seq_len,
        global_batch=global_batch,
        global_batch_tokens=maybe(data.global_batch_tokens, parse_count, "data.global_batch_tokens"),
        useful_frac=1 - data.padded_frac,
        confidence=targets.confidence,
        lora_rank=whole(workload.method.rank, "method.rank", 65536) or 16,
        requests_per_s=flow.requests_per_s,
        concurrency=flow.concurrency,
        requests=flow.requests,
        input_tokens=flow.input_tokens,
        output_tokens=flow.output_tokens,
        arriving=flow,
        techniques=asked_techniques(workload.techniques),
        ttft=_latency(targets.ttft, "targets.ttft", "p95"),
        tpot=_latency(targets.tpot, "targets.tpot", "p95"),
        latency=_latency(targets.latency, "targets.latency", "p95"),
        tokens_per_s=maybe(targets.throughput, parse_rate, "targets.throughput"),
        deadline_s=maybe(targets.deadline, parse_seconds, "targets.deadline"),
        budget_usd=maybe(targets.budget, parse_usd, "targets.budget"),
        min_gpus=least,
        max_gpus=most,
        shard=whole(limits.shard, "constraints.shard", 10**6),
        max_usd_per_hour=maybe(limits.max_usd_per_hour, parse_usd, "constraints.max_usd_per_hour"),
        inter_node_bytes_per_s=maybe(
            limits.inter_node_bandwidth, parse_bytes_per_s, "constraints.inter_node_bandwidth"
        ),
        network_bytes_per_s_per_gpu=maybe(limits.network, parse_bytes_per_s, "constraints.network"),
        saving=_saving(workload.checkpoints),
    )
