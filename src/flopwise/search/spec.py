"""Keys of a planned workload, and the format of its file."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from typing import Any

from flopwise import options
from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.spec import DatedSourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FIELD, FileFormat, OptionError, Spec, ValueKind, option, same
from flopwise.serving.sim.source import Traffic
from flopwise.serving.spec import (
    PriorityClass,
    QueueSpec,
    RequestSpec,
    ResponseCacheSpec,
    ServingSpec,
    SessionsSpec,
    TechniqueRequest,
)
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.units import parse_share, split_count
from flopwise.values import dataclass

TRAINING, SERVING = ("pretrain", "finetune"), ("serve", "batch", "encode")
PERCENTILES = ("p50", "p90", "p95", "p99", "mean")
USUAL_PERCENTILE = "p95"
UNKNOWN_PRICES = ("known", "assume")
ANY = "any"
"""Stands for every precision that the training software has."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency target: the percentile it is held at, and its seconds. `stated`: the percentile was given."""

    percentile: str
    seconds: float
    stated: bool = field(default=True, compare=False)

    def __str__(self) -> str:
        """As a command line says it."""
        text = options.argument_text(self.seconds)
        return f"{self.percentile}={text}" if self.stated else text


def _latency(value: object, what: str) -> Latency:
    """A time, or a percentile with its time: `1s`, `p95=1s`, `{p95: 1s}`."""
    if isinstance(value, Latency):
        return value
    if isinstance(value, str) and "=" in value:
        name, _, time = value.partition("=")
        value = {name.strip(): time.strip()}
    if not isinstance(value, dict):
        return Latency(USUAL_PERCENTILE, options.SECONDS.parse(value, what), stated=False)
    if len(value) != 1:
        raise SpecError(f"{what}: one percentile with its time, such as {{p95: 1s}}; {len(value)} given")
    ((percentile, seconds),) = value.items()
    if percentile not in PERCENTILES:
        raise SpecError(f"{what}.{str(percentile)[:20]}: not one of {', '.join(PERCENTILES)}")
    return Latency(percentile, options.SECONDS.parse(seconds, f"{what}.{percentile}"))


LATENCY = ValueKind(
    "time", _latency, "quantity or quantity by percentile",
    {"anyOf": [{"type": ["number", "string"]}, {"type": "object", "minProperties": 1, "maxProperties": 1,
     "propertyNames": {"enum": list(PERCENTILES)}, "additionalProperties": {"type": ["number", "string"]}}]},
)  # fmt: skip


# fmt: off
@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec(Spec):
    """Options of a workload."""

    model: str = option(
        "", options.name("model", 4096), "A catalog name, a hub id, a folder, a config.json, or a size such as 7B.",
        default=options.NEEDED, key=FIELD,
    )
    task: str = option(
        "--task", options.choice(*TRAINING, *SERVING), "Kind of workload.", default=options.NEEDED, key=FIELD,
    )
    name: str | None = option("", options.name("name"), "Name used in the results.", key=FIELD)
    simulate: bool = option(
        "--simulate/--no-simulate", options.FLAG,
        "Services: run the best plans through the simulator before they are ranked, or rank by estimates alone.",
        default=True, key=FIELD,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSpec(Spec):
    """Options of the ranking, and the precisions to search."""

    objective: str = option(
        "--objective", options.choice("cost", "time", "energy"), "What to rank by.", default="cost", key=FIELD,
    )
    spot: str = option(
        "--spot", options.choice(*UNKNOWN_PRICES),
        "Offers whose spot price is unknown: leave them out, or assume the provider's published discounts.",
        default="known", section="Where it may run", key=FIELD,
    )
    reserved: str = option(
        "--reserved", options.choice(*UNKNOWN_PRICES),
        "Offers whose reserved price is not known: leave them out, or assume the provider's published discounts.",
        default="known", section="Where it may run", key=FIELD,
    )
    one_precision: str | None = option(
        "", options.name("precision"), "One precision instead of all: of products in training, of weights in serving.",
        key="precision",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptersSpec(Spec):
    """Adapters as files say them; on the command line `--lora` and `--qlora`."""

    kind: str = option(
        "", options.choice("full", "lora", "qlora"), "All weights, adapters, or adapters on a quantised model.",
        default="full", key="method.",
    )
    rank: int = option(
        "", options.whole(high=65536), "Rank of the adapters.", default=defaults.LORA_RANK, key="method.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficSpec(Spec):
    """Options of the traffic of a service, or of the requests of a batch job."""

    rate: float | None = same(RequestSpec, "rate", key="traffic.requests_per_s")
    concurrency: int | None = same(RequestSpec, "concurrency", key="traffic.")
    requests: int | None = same(Traffic, "requests", key="traffic.")
    input_tokens: int | str | None = same(RequestSpec, "input_tokens", key="traffic.")
    output_tokens: int | str | None = same(RequestSpec, "output_tokens", key="traffic.")
    trace: Any = same(Traffic, "trace", key="traffic.")
    arrivals: str | None = same(Traffic, "arrivals", key="traffic.")
    burstiness: float | None = same(Traffic, "burstiness", key="traffic.")
    peak: float | None = same(Traffic, "peak", key="traffic.")
    profile: Any = same(Traffic, "profile", key="traffic.")
    turns: int | str | None = same(SessionsSpec, "turns", key="traffic.")
    think_s: float = same(SessionsSpec, "think_s", key="traffic.think", default=0.0)
    tool_share: float | None = same(SessionsSpec, "tool_share", key="traffic.")
    tool_pause: float | None = same(SessionsSpec, "tool_pause", key="traffic.")
    kv_stores: str | None = same(SessionsSpec, "kv_stores", key="traffic.", section="Traffic")

    @property
    def sessions(self) -> SessionsSpec:
        """The options of sessions."""
        names = ("turns", "think_s", "tool_share", "tool_pause", "kv_stores")
        return SessionsSpec(**{name: getattr(self, name) for name in names})


_queue = partial(same, QueueSpec, section="Queue and response cache")
_cache = partial(same, ResponseCacheSpec, key="techniques.", section="Queue and response cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueingSpec(Spec):
    """Options of a service's queue, and of a cache of whole answers before it."""

    policy: str = _queue("policy", key="techniques.", default="fcfs")
    preempt: str = _queue("preempt", key="techniques.", default="recompute")
    priorities: tuple[PriorityClass, ...] | None = _queue("priorities", key="traffic.")
    response_cache: int | None = _cache("response_cache")
    distinct: int | None = _cache("distinct")
    skew: float | None = _cache("skew")
    repeated: float | None = _cache("repeated")
    cache_ttl: float | None = _cache("cache_ttl")
    cache_price: float | None = _cache("cache_price")

    @property
    def queue(self) -> QueueSpec:
        """The options of the queue."""
        return QueueSpec(policy=self.policy, preempt=self.preempt, priorities=self.priorities)

    @property
    def cache(self) -> ResponseCacheSpec:
        """The options of the cache of answers."""
        names = ("response_cache", "distinct", "skew", "repeated", "cache_ttl", "cache_price")
        return ResponseCacheSpec(**{name: getattr(self, name) for name in names})


_target = partial(option, section="Targets", key="targets.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetsSpec(Spec):
    """Options of targets."""

    ttft: Latency | None = _target(
        "--ttft", LATENCY, "Time to the first token: 500ms, or at a percentile: p95=1s.",
    )
    tpot: Latency | None = _target("--tpot", LATENCY, "Time per further output token, on average: 50ms, p95=50ms.")
    latency: Latency | None = _target("--latency", LATENCY, "Whole request, from arrival to last token: 5s, p99=5s.")
    throughput: float | None = _target("--throughput", options.RATE, "Tokens per second, over all accelerators.")
    deadline: float | None = same(SharedSpec, "deadline", section="Targets", key="targets.")
    budget: float | None = _target(
        "--budget", options.USD,
        "Budget in US dollars: of the whole run for training and batch, of a month for a service.",
    )
    confidence: float = _target(
        "--confidence", options.quantity("share", parse_share, low=0.05, high=0.99, closed=True),
        "Probability with which each target has to be met.", default=defaults.CONFIDENCE,
    )


_place = partial(option, section="Where it may run", key="constraints.")
_machines = partial(same, MachineSpec, repeated=True, section="Where it may run", key="constraints.")
_service = partial(same, ServingSpec, key="constraints.")
_training = partial(same, TrainingSpec, key="constraints.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintsSpec(Spec):
    """Options of the allowed regions, machines and software; any where none is named."""

    providers: tuple[str, ...] = _machines("provider")
    regions: tuple[str, ...] = _machines("region")
    gpus: tuple[str, ...] = _machines(
        "gpu",
        help="Accelerators by name, vendor or family: h100, a100 (all variants), nvidia, hopper; 8xh100 for at most 8; "
        "or a hypothetical one: custom:fp16=70TFLOP/s,bandwidth=900GB/s,memory=24GB.",
    )
    vendors: tuple[str, ...] = _place(
        "--vendor", options.name("vendor"), "Devices of these vendors only: NVIDIA, AMD, Google ...", repeated=True,
    )
    exclude: tuple[str, ...] = _place(
        "--exclude", options.name("gpu"), "Leave out devices of these names, vendors or families: b200, amd, hopper.",
        repeated=True,
    )
    software: tuple[str, ...] = option(
        "--software", options.choice("cuda", "rocm", "xla", "neuron", "gaudi", "cpu", "any"),
        "Software that the project runs on; machines that need a port are left out (default: cuda and cpu, on which a "
        "PyTorch project runs unchanged, and the software of devices that are named).",
        section="Where it may run", key=FIELD, repeated=True,
    )
    marketplace: bool = same(MachineSpec, "marketplace", section="Where it may run", key="constraints.", default=False)
    include_retired: bool = same(
        MachineSpec, "include_retired", section="Where it may run", key="constraints.", default=False
    )
    instances: tuple[str, ...] = _machines("instance")
    purchase: tuple[str, ...] = _machines("purchase")
    max_gpus: int | None = _place("--max-gpus", options.DEGREE, "Maximum number of accelerators.")
    min_gpus: int | None = _place("--min-gpus", options.DEGREE, "Minimum number of accelerators.")
    precision: tuple[str, ...] = _training("precision", repeated=True, kind=options.choice(*TRAINING_PRECISIONS, ANY))
    weight_formats: tuple[str, ...] = _service("weights", repeated=True)
    kv_dtype: str | None = _service("kv_dtype")
    engine: str | None = _service("engine")
    memory_fraction: float | None = _service("memory_fraction")
    stack: str | None = _training("stack")
    software_month: str | None = same(DatedSourceSpec, "software_month", section="Where it may run")
    schedule: str | None = _training("schedule")
    shard: int | None = _training("shard")
    inter_node_bandwidth: float | None = option(
        "", options.BANDWIDTH,
        "Network bandwidth of one instance, shared by its accelerators, instead of its offer's: 400GB/s.",
        key="constraints.",
    )
    network: float | None = same(MachineSpec, "network", section="Where it may run", key="constraints.")
    intra_node: str | None = same(MachineSpec, "intra_node", section="Where it may run", key="constraints.")
    max_usd_per_hour: float | None = _place(
        "--max-hourly", options.USD, "Maximum US dollars per hour, of all machines together.",
    )
    # fmt: on

    def __post_init__(self) -> None:
        """Read the values; numbers in front of accelerators' names say how many there are at most."""
        Spec.__post_init__(self)
        counted = [split_count(name) for name in self.gpus]
        if counts := [count for count, _ in counted if count is not None]:
            if self.max_gpus not in (None, max(counts)):
                raise OptionError("max_gpus", f"{self.max_gpus:,}, but {self.gpus[0]} is at most {max(counts):,}")
            object.__setattr__(self, "gpus", tuple(name for _, name in counted))
            object.__setattr__(self, "max_gpus", max(counts))


SECTIONS = {
    "data": "What a training job reads.",
    "method": "How a model is fine-tuned.",
    "routing": "How a mixture of experts is loaded in training.",
    "traffic": "What a service receives, or what a batch job holds.",
    "techniques": "What a service does besides running its model as it is; each applies to every candidate.",
    "targets": "Targets of the answer. A latency is a time, or a percentile with its time: `{p95: 1s}`.",
    "constraints": "Where and with what it may run; any where none is named.",
    "checkpoints": "How a training run is saved: what an interruption of a spot machine, or a failure, costs.",
}
WORKLOAD_FILE = FileFormat(
    specs=(
        WorkloadSpec, RankingSpec, DataSpec, AdaptersSpec, TrainingSpec, TrafficSpec, TechniqueRequest, QueueingSpec,
        TargetsSpec,
        ConstraintsSpec, RunConditionsSpec,
    ),
    sections=SECTIONS,
    order=(
        "model", "task", "name", "data", "method", "routing", "traffic", "techniques", "targets", "constraints",
        "objective", "spot", "reserved", "simulate", "optimizer", "precision", "attention", "grad_dtype",
        "master_weights", "checkpoints",
    ),
)  # fmt: skip
MEANING: dict[str, tuple[str, ...]] = {
    "data": TRAINING, "routing": TRAINING, "checkpoints": TRAINING, "method": ("finetune",),
    "optimizer": TRAINING, "attention": TRAINING, "grad_dtype": TRAINING, "master_weights": TRAINING,
    "constraints.precision": TRAINING, "constraints.stack": TRAINING, "constraints.schedule": TRAINING,
    "constraints.shard": TRAINING,
    "traffic": SERVING, "techniques": SERVING, "simulate": SERVING, "targets.ttft": SERVING,
    "targets.tpot": ("serve", "batch"), "targets.latency": SERVING, "constraints.weight_formats": SERVING,
    "constraints.kv_dtype": SERVING, "constraints.engine": SERVING, "constraints.memory_fraction": SERVING,
    "targets.deadline": (*TRAINING, "batch"), "traffic.requests": ("batch",),
    "techniques.prefill_gpus": ("serve",),
    **dict.fromkeys(("techniques.policy", "techniques.preempt", "traffic.priorities"), ("serve", "batch")),
    **dict.fromkeys(
        ("techniques.response_cache", "techniques.distinct", "techniques.skew", "techniques.repeated",
         "techniques.cache_ttl", "techniques.cache_price"), ("serve",),
    ),
    **dict.fromkeys(
        ("traffic.turns", "traffic.think", "traffic.tool_share", "traffic.tool_pause", "traffic.kv_stores"), ("serve",)
    ),
}  # fmt: skip
"""Tasks for which a section or a key of a workload means something, where that is not all of them."""


def assumed_kinds(**choices: str) -> frozenset[str]:
    """The kinds of prices (spot, reserved) that are assumed where they are not known."""
    return frozenset(kind for kind, choice in choices.items() if choice == "assume")


def keys_of(name: str) -> list[str]:
    """The file keys of the option of this name: one, or several of which each task has its own."""
    specs = (ConstraintsSpec, *WORKLOAD_FILE.specs)
    keys = [options.options_of(spec)[name].key for spec in specs if name in options.options_of(spec)]
    return [key for key in dict.fromkeys(keys) if key]


def means_something(key: str, task: str) -> bool:
    """True if a key of a workload applies to a task."""
    section = key.partition(".")[0]
    return all(task in MEANING.get(part, (*TRAINING, *SERVING)) for part in (section, key))
