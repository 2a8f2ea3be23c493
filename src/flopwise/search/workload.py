"""A workload: what someone wants to run, under which targets and constraints, in base units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.options import OptionError, options_of
from flopwise.search.spec import (
    SERVING,
    TRAINING,
    WORKLOAD_FILE,
    AdaptersSpec,
    ConstraintsSpec,
    Latency,
    RankingSpec,
    TargetsSpec,
    TrafficSpec,
    WorkloadSpec,
    keys_of,
    means_something,
)
from flopwise.search.workload_traffic import Arriving, arriving
from flopwise.serving.spec import TechniqueRequest
from flopwise.training.spec import DataSpec, RunConditionsSpec, TrainingSpec

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.facts.software import Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A workload in base units, and as it is `written`. None where the file is silent and no default stands for it."""

    written: Mapping[str, Any]
    model: str
    task: str
    name: str | None
    objective: str
    simulate: bool
    one_precision: str | None  # of products in training, of weights in serving
    data: DataSpec
    training: TrainingSpec
    conditions: RunConditionsSpec
    limits: ConstraintsSpec
    purchase: tuple[str, ...]  # ways to buy machines
    confidence: float
    tokens: float | None  # that the run goes through, padding included
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
    drafter: Model | None = None  # the model that drafts, once it is looked up
    facts: Any = None  # what is known (`Facts`), once it is given

    @property
    def engine(self) -> Engine:
        """The inference engine that is asked for, else the usual one. Raises UnknownNameError."""
        found: Engine = self.facts.engine(self.limits.engine or defaults.ENGINE)
        return found

    def limited(self, purchase: tuple[str, ...] = (), **limits: Any) -> Resolved:
        """The workload with other constraints, and other ways to buy machines where any are given."""
        lists = {name: list(values) for name, values in limits.items()} | (
            {"purchase": [*purchase]} if purchase else {}
        )
        return replace(
            self,
            limits=replace(self.limits, **limits),
            purchase=purchase or self.purchase,
            written=WORKLOAD_FILE.written(merged_onto(self.written, {"constraints": lists})),
        )

    @property
    def nameless(self) -> Resolved:
        """The workload whatever it is called."""
        return replace(self, name=None, written={key: value for key, value in self.written.items() if key != "name"})


def schema() -> dict[str, Any]:
    """The JSON Schema of a workload file."""
    document = WORKLOAD_FILE.schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "flopwise workload", **document}


def merged_onto(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with `changes` laid over it, section by section; an option of several keys goes where its task has it."""
    merged, task = dict(data), str(changes.get("task", data.get("task")))
    for name, said in changes.items():
        places = keys_of(name)
        section, _, part = next((key for key in places if means_something(key, task)), name).rpartition(".")
        key, value = (section, {part: said}) if len(places) > 1 and section else (name, said)
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def resolve(data: Mapping[str, Any], at: str = "") -> Resolved:
    """The workload of plain data, which stand `at` this place of a file ("workloads.3.").

    Raises:
        SpecError: a key or a value that cannot be; starts with the key's place.
    """
    values: dict[type, Any] = {type(spec): spec for spec in WORKLOAD_FILE.read(data, at)}
    written = WORKLOAD_FILE.written(data)
    task = values[WorkloadSpec].task
    for section, keys in written.items():
        for key in [f"{section}.{part}" for part in keys] if section in WORKLOAD_FILE.sections else [section]:
            if not means_something(key, task):
                shown = key if means_something(section, task) else section
                raise SpecError(f"{at}{shown}: has no meaning for a {task} workload; leave it out")
    try:
        return _resolved(values, written)
    except OptionError as error:
        raise SpecError(f"{at}{_key(error.name)}: {error.reason}") from None
    except SpecError as error:
        raise SpecError(f"{at}{error}") from None


def _key(name: str) -> str:
    """Where a file says what the option of this name says."""
    found = (options_of(spec)[name].key for spec in WORKLOAD_FILE.specs if name in options_of(spec))
    return next((key for key in found if key), name)


def _resolved(values: dict[type, Any], written: dict[str, Any]) -> Resolved:
    spec, ranking, data = values[WorkloadSpec], values[RankingSpec], values[DataSpec]
    limits, targets = values[ConstraintsSpec], values[TargetsSpec]
    adapters, techniques = values[AdaptersSpec], values[TechniqueRequest]
    training = replace(
        values[TrainingSpec],
        lora=None if adapters.kind == "full" else adapters.rank,
        qlora=adapters.kind == "qlora",
        stack=limits.stack,
        schedule=limits.schedule,
        shard=limits.shard,
    )
    training.check_adapters()
    data.check_packing()
    data.check_batch()
    techniques.check()
    tokens = data.run_tokens(_sample_tokens(data))
    if spec.task in TRAINING and tokens is None:
        raise SpecError(f"data: a {spec.task} workload needs data.tokens, or data.samples with data.seq_len")
    flow = arriving(values[TrafficSpec], spec.task)
    if limits.inter_node_bandwidth is not None and limits.network is not None:
        raise OptionError("network", "inter_node_bandwidth says it for the whole instance; give one of them")
    most = limits.max_gpus or (4096 if spec.task in SERVING else 100_000)
    least = limits.min_gpus or 1
    if least > most:
        raise OptionError("min_gpus", f"{least} is more than max_gpus, {most}")
    return Resolved(
        written=written,
        model=spec.model,
        task=spec.task,
        name=spec.name,
        objective=ranking.objective,
        simulate=spec.simulate,
        one_precision=ranking.one_precision,
        data=data,
        training=training,
        conditions=values[RunConditionsSpec],
        limits=limits,
        purchase=limits.purchase or ("on_demand",),
        confidence=targets.confidence,
        tokens=tokens,
        requests_per_s=flow.requests_per_s,
        concurrency=flow.concurrency,
        requests=flow.requests,
        input_tokens=flow.input_tokens,
        output_tokens=flow.output_tokens,
        arriving=flow,
        techniques=techniques,
        ttft=targets.ttft,
        tpot=targets.tpot,
        latency=targets.latency,
        tokens_per_s=targets.throughput,
        deadline_s=targets.deadline,
        budget_usd=targets.budget,
        min_gpus=least,
        max_gpus=most,
        max_usd_per_hour=limits.max_usd_per_hour,
    )


def _sample_tokens(data: DataSpec) -> float | None:
    """Tokens of a sample; None where they are not given."""
    if data.mean_length is not None or data.lengths is None or data.seq is None:
        return data.mean_length or data.seq
    documents = data.documents(data.seq)
    return None if documents is None else documents.mean


def as_in_file(named: Mapping[str, Any]) -> dict[str, Any]:
    """Options by their names as the mapping that a file would say; one of several keys stays under its name."""
    lora, adapters = named.get("lora"), named.get("qlora") or "lora" in named
    found: dict[str, Any] = {"method": {"kind": "qlora" if named.get("qlora") else "lora"}} if adapters else {}
    if lora is not None:
        found["method"]["rank"] = lora
    for name, value in named.items():
        if name not in ("lora", "qlora"):
            places = keys_of(name)
            section, dot, part = (places[0] if len(places) == 1 else name).rpartition(".")
            (found.setdefault(section, {}) if dot else found)[part] = [*value] if isinstance(value, tuple) else value
    return found
