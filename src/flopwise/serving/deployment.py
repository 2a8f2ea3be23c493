"""From what is said of a deployment to one replica of it."""

from __future__ import annotations

from contextlib import suppress

from flopwise.cost.money import num_instances
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts import defaults
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import MXFP4
from flopwise.facts.software import Engine, platform
from flopwise.facts.spec import SourceSpec
from flopwise.options import OptionError
from flopwise.serving.estimate import check_layout
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import generates
from flopwise.serving.spec import ServingSpec, TechniqueRequest
from flopwise.serving.techniques import resolve_techniques
from flopwise.units import format_items
from flopwise.values import replace

FP8 = "fp8"


def replica_of(
    model: Model, deployment: ServingSpec, machines: MachineSpec, techniques: TechniqueRequest, source: SourceSpec
) -> tuple[ServeJob, tuple[str, ...]]:
    """One replica of a deployment, without its load, and what was assumed of its format.

    Raises:
        SpecError: a degree that the model does not allow, a technique that does not go with it, or an engine that has
            no code for the device.
        UnknownNameError: no such format, engine, draft or processor.
    """
    check_layout(model, deployment.layout(), techniques.redundant_experts or 0)
    cluster = machines.cluster(deployment.num_gpus + (techniques.prefill_gpus or 0), source.catalog)
    spec, notes = on_its_engine(deployment, model, cluster.accelerator, source.catalog)
    software = spec.software(source.catalog, cluster.accelerator)
    check_platform(software["engine"], cluster.accelerator, source.catalog)
    job = ServeJob(
        model=model, cluster=cluster, layout=spec.layout(), **software, memory_frac=spec.memory_fraction,
        max_batch=spec.max_batch, recv_interval=spec.recv_interval, batch_wait=spec.batch_wait,
        stream_interval=spec.stream_interval, eager=spec.eager, prefill_delayer=spec.prefill_delayer,
    )  # fmt: skip
    return replace(job, techniques=resolve_techniques(techniques, job, source.catalog, source.model)), notes


def spread(spec: ServingSpec, model: Model, machines: MachineSpec, facts: Facts) -> ServingSpec:
    """The spec with a replica over all accelerators that the machines count (`2xa100`), where no degree is given.

    Tensor parallelism as far as the model allows it and a node goes, pipeline stages beyond: how engines are started on
    a given number of devices. Models that answer in one pass are replicated, not spread.

    Raises: SpecError: degrees that are given do not make whole replicas of that number.
    """
    count = machines.counted
    if count is None or not generates(model):
        return spec
    if max(spec.tp, spec.pp, spec.ep, spec.dp) > 1:
        if count % spec.num_gpus:
            given = format_items(count, "accelerator")
            raise SpecError(f"{given} cannot be divided into replicas of {spec.num_gpus} (tp x pp x dp)")
        return spec
    node = machines.cluster(count, facts).gpus_per_node
    for tp in (tp for tp in range(min(count, node), 0, -1) if count % tp == 0):
        whole = replace(spec, tp=tp, pp=count // tp)
        with suppress(SpecError):
            check_layout(model, whole.layout())
            return whole
    raise SpecError(f"{model.name} cannot be spread over {count:,} accelerators: give --tp, --pp and --gpus")


def on_its_engine(
    spec: ServingSpec, model: Model, accelerator: Accelerator | None, facts: Facts
) -> tuple[ServingSpec, tuple[str, ...]]:
    """The spec with engine and formats where none are given, and what to say of them.

    The engine is the one that people run there (`usual_engine`); the format the checkpoint's own, of 16 bits the one
    that the engine runs on the device, of MXFP4 that of the engine's files. The cache's is the engine's for the model.

    Raises: UnknownNameError: there is no such engine.
    """
    engine = usual_engine(facts, model, accelerator) if spec.engine is None else facts.engine(spec.engine)
    spec = replace(spec, engine=engine.name)
    own = None if spec.weights is not None else model.checkpoint_format
    published = () if own is None else (f"weights in {own}, as the checkpoint of {model.name} is published",)
    if engine.mxfp4_file and (spec.weights or own) == MXFP4:
        own, published = (
            engine.mxfp4_file,
            (f"weights in {engine.mxfp4_file}: {engine.name} runs {MXFP4} from its files",),
        )
        spec = replace(spec, weights=own)
    spec = replace(spec, weights=spec.weights or own or engine.plain_format(accelerator))
    assumed = facts.weight_format(spec.weights or "").assumption
    cached: tuple[str, ...] = ()
    if spec.kv_dtype is None and own_cache(engine, model) == FP8:
        spec = replace(spec, kv_dtype=FP8)
        cached = (f"KV cache in {FP8}, as {engine.name} keeps it for {model.name} unless --kv-dtype says otherwise",)
    return spec, (*published, *((assumed,) if assumed else ()), *cached)


def paid_gpus(job: ServeJob, replicas: int, gpus: int | None = None) -> float | None:
    """Accelerators that each replica pays for, those that idle in its instances included; None without an offer.

    `gpus`: those that a replica uses; None: all of the job's, pools included.

    Source: arithmetic; clouds rent whole machines. Assumes: a replica has machines of its own, or a share of one; where
    pools have servers of their own, those of several replicas share machines.
    """
    if job.cluster.offer is None:
        return None
    node, gpus = job.cluster.gpus_per_node, gpus or job.num_gpus
    packed = node // gpus
    if job.split and not packed:
        machines = num_instances(replicas * gpus, node)
    else:
        machines = num_instances(replicas, packed) if packed else replicas * num_instances(gpus, node)
    return float(machines * node / replicas)


def own_cache(engine: Engine, model: Model) -> str:
    """The name of the format in which an engine caches a model where nobody says one.

    Source: `Engine.fp8_cache_families`. Assumes: weights of 16 bits or fewer.
    """
    return FP8 if model.model_type in engine.fp8_cache_families else defaults.CACHE


def check_platform(engine: Engine, accelerator: Accelerator, facts: Facts) -> None:
    """Refuse an engine on a device that it has no code for.

    Assumes: a device that only software of its own runs on (Inferentia1, SN40L), which no record knows, is estimated
    with a note.
    Raises: SpecError: names what runs there, and where the engine does.
    """
    past = {name for name, generation in facts.generations.items() if generation.until}
    there = [one.name for one in facts.engines.values() if one.is_built_for(accelerator) and one.name not in past]
    if engine.is_built_for(accelerator) or not there:
        return
    raise OptionError(
        "engine", f"{engine.name} runs on {', '.join(sorted(engine.platforms))}, not on {accelerator.name}; engines "
        f"that do: {', '.join(there)}"
    )  # fmt: skip


def usual_engine(facts: Facts, model: Model, accelerator: Accelerator | None) -> Engine:
    """The engine that is common for a model: one where it generates, else by its input and the device.

    Source: `flopwise.facts.defaults`. Assumes: where the device is not known, the first.
    """
    if generates(model):
        kind = None if accelerator is None else platform(accelerator)
        return facts.engine(defaults.PLATFORM_ENGINES.get(kind or "", defaults.ENGINE))
    names = defaults.ENCODER_ENGINES if model.kind == "encoder" else defaults.TOWER_ENGINES
    able = (engine for engine in map(facts.engine, names) if accelerator is None or engine.runs_on(accelerator))
    return next(able, None) or facts.engine(defaults.ENGINE)
