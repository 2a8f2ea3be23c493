"""Single changes of a service, with their effect on memory, speed and cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from flopwise.changes.effects import (
    Headline,
    MemoryAfter,
    Sensitivity,
    faster_clusters,
    ranked_remedies,
    ranked_sensitivities,
)
from flopwise.cost.cluster import Cluster, cluster
from flopwise.cost.fabric import fabric
from flopwise.cost.memory_answer import Remedy
from flopwise.cost.rates import rates
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import BF16, BF16_CACHE, CacheFormat, WeightFormat
from flopwise.facts.software import Engine
from flopwise.ops.weights import changes_weights
from flopwise.serving.estimate import check_layout, estimate, least_offload
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import ServeEstimate, ServeJob
from flopwise.serving.memory import ServingLayout, generates, serving_memory
from flopwise.serving.precision import conversion_note, product_path
from flopwise.serving.techniques import memory_changes, runner
from flopwise.values import replace

WEIGHTS = ("bf16", "fp8", "awq", "nvfp4", "Q4_K_M")
CACHES = ("bf16", "fp8", "q4_0")
ENGINES = ("vllm", "sglang", "tensorrt-llm")
MOST_TP = 8
"""Largest tensor-parallel degree that is proposed as a change."""
LEAST_CONTEXT = 2048
"""Tokens of a context from which on half of it is a remedy."""
HEADLINES = ("TTFT", "TPOT", "throughput per GPU", "concurrency", "cost per token")
"""Figures that a change is judged by."""
NO_ROOM = "does not fit"
"""Note of a change after which weights and one sequence do not fit."""
Change = tuple[str, dict[str, Any]]


def serving_changes(
    model: Model, service: Mapping[str, Any], facts: Facts, device: Accelerator | None
) -> Iterator[Change]:
    """(name, fields after it) of each change of a service that its engine, device and model accept.

    `service`: the fields that may change, of a `ServeJob` or of `serving_memory`: `weights`, `kv_dtype`, `layout` and
    `engine`, and of its load what is fixed. `device` None: any.
    """
    engine: Engine = service["engine"]
    forms = tuple(map(facts.weight_format, WEIGHTS))
    for form in runnable_formats(model, engine, device, forms):
        if form.name != service["weights"].name:
            yield f"weights in {form.name}", {"weights": form}
    for cache in map(facts.cache_format, CACHES):
        if cache.name != service["kv_dtype"].name and (cache.name != "q4_0" or engine.name.startswith("llama.cpp")):
            yield f"KV cache in {cache.name}", {"kv_dtype": cache}
    layout: ServingLayout = service["layout"]
    for axis, wider in (("tp", replace(layout, tp=2 * layout.tp)), ("pp", replace(layout, pp=2 * layout.pp))):
        joined = device is None or _joins(device)
        if wider.tp <= max(MOST_TP, layout.tp) and joined and allows(model, wider):
            yield f"{axis} {getattr(wider, axis)}", {"layout": wider}
    yield from _loads(service)
    if device is not None:
        for name in filter(facts.is_released, ENGINES):
            other = facts.engine(name)
            if other.name != engine.name and other.runs_on(device):
                yield f"engine {name}", {"engine": other}


def _loads(service: Mapping[str, Any]) -> Iterator[Change]:
    """More and less of what the load fixes."""
    if service.get("concurrency"):
        yield "requests in flight x 2", {"concurrency": 2 * service["concurrency"]}
        if service["concurrency"] > 1:
            yield "requests in flight / 2", {"concurrency": service["concurrency"] // 2}
    if service.get("arrivals_per_s"):
        yield "arrivals x 2", {"arrivals_per_s": 2 * service["arrivals_per_s"]}
    for name, words in (("input_tokens", "input tokens"), ("output_tokens", "output tokens")):
        if service.get(name):
            yield f"{words} x 2", {name: 2 * service[name]}
    if service["engine"].profile_bytes and (service.get("max_batch") or 0) > (service.get("concurrency") or math.inf):
        yield f"at most {service['concurrency']:,} sequences at once", {"max_batch": service["concurrency"]}
    if service.get("context", 0) >= LEAST_CONTEXT:
        yield f"a context of {service['context'] // 2:,} tokens", {"context": service["context"] // 2}


def remedies(
    model: Model,
    layout: ServingLayout,
    facts: Facts,
    *,
    device: Accelerator | None,
    engine: Engine,
    weights: WeightFormat = BF16,
    kv_dtype: CacheFormat = BF16_CACHE,
    job: ServeJob | None = None,
    **how: Any,
) -> list[Remedy]:
    """Single changes of one service that save memory: those that fit first, then by what they save.

    A cache format that the device converts in software has its price: the time that it adds to a step in which all
    sequences decode, each with its whole context; where a fact is missing for that, it is left out. `device` None: any,
    and nothing is known to fit. `job`: its techniques take memory too, of a wider layout less each. `how`: as
    `serving_memory`.
    """
    service: dict[str, Any] = {"layout": layout, "engine": engine, "weights": weights, "kv_dtype": kv_dtype, **how}
    served = job
    if job is None and device is not None and engine.offload == "host" and generates(model):
        with suppress(MissingFactError):  # a device without links of its own has no host to offload to
            served = ServeJob(
                model=model, cluster=cluster(device), layout=layout, engine=engine, weights=weights, kv_dtype=kv_dtype,
                input_tokens=how["context"] - 1, output_tokens=1,
            )  # fmt: skip
    on = {} if device is None else {"hbm_bytes": device.hbm_bytes, "device_kind": device.kind}

    def memory(fields: dict[str, Any]) -> Callable[[], MemoryAfter]:
        def after() -> MemoryAfter:
            own = {name: fields[name] for name in ("weights", "kv_dtype", "layout", "techniques") if name in fields}
            owner = served if "techniques" in fields else job
            techniques = {} if owner is None else {"changes": memory_changes(replace(owner, **own))}
            changed = {name: value for name, value in fields.items() if name != "techniques"}
            memory_after = serving_memory(model, **(service | on | changed | techniques))
            fits = device is not None and bool(memory_after.fits)
            return memory_after.items, float(memory_after.total_bytes), fits

        return after

    achieved = None if device is None or not generates(model) else rates(device)
    changes = [(n, fields) for n, fields in serving_changes(model, service, facts, device) if "engine" not in fields]
    saving, slower = list[tuple[str, Callable[[], MemoryAfter]]](), dict[str, float]()
    for name, fields in changes:
        cache = fields.get("kv_dtype")
        if cache is not None and device is not None and achieved is not None and conversion_note(cache, achieved):
            try:
                now = job or ServeJob(
                    model=model, cluster=cluster(device), layout=layout, engine=engine, weights=weights,
                    kv_dtype=kv_dtype,
                )  # fmt: skip
                slower[name] = _slower_frac(now, replace(now, kv_dtype=cache), how["concurrency"] or 1, how["context"])
            except MissingFactError:
                continue
        saving.append((name, memory(fields)))
    if served is not None and engine.offload == "host" and (away := least_offload(served, facts)) is not None:
        layers = model.stacks[0].num_layers
        stay = layers - round(away.frac * layers)
        techniques = replace(served.techniques, offload=away)
        saving.append((f"gpu layers {stay} of {layers}", memory({"techniques": techniques})))
    return ranked_remedies(memory({})()[1], saving, slower)


def _slower_frac(now: ServeJob, changed: ServeJob, batch: int, context: int) -> float:
    """Time that a change adds to a step of an attention replica which decodes `batch` sequences of `context` tokens.

    Over the time without it; 0 where it takes less. Source: `Runner.step`. Assumes: as there; both fit.
    """
    load = StepLoad(decode_batch=float(batch), decode_context=float(context))
    before_s, after_s = (float(np.ravel(runner(job).step(load, job.layout).seconds)[0]) for job in (now, changed))
    return max(after_s / before_s - 1.0, 0.0)


def sensitivities(now: ServeEstimate, facts: Facts, cluster_of: Callable[[int], Cluster]) -> tuple[Sensitivity, ...]:
    """Latencies, throughput, capacity and cost after each single change over those before; the largest effect first.

    Before and after are in closed form, also where `now` has the figures of simulated requests. What does not fit has
    none of these: of it each change is one that makes it fit, or does not, those that do first.
    `cluster_of` gives the cluster of a number of devices.
    """
    job = now.job

    def headline(**fields: Any) -> Callable[[], tuple[Headline, str]]:
        def after() -> tuple[Headline, str]:
            wider = fields.get("layout")
            more: dict[str, Any] = {} if wider is None else {"cluster": cluster_of(int(wider.num_gpus))}
            if job.users is not None and job.concurrency and "concurrency" in fields:
                more["users"] = job.users * fields["concurrency"] / job.concurrency
            one = estimate(replace(job, **(fields | more)))
            if not one.max_concurrency:
                return dict.fromkeys(HEADLINES), NO_ROOM
            figures = (
                one.ttft_s.value,
                None if one.further_token_s is None else one.further_token_s.value,
                (one.output_tokens_per_s or one.throughput).value / one.num_gpus,
                float(one.max_concurrency),
                one.usd_per_million_output_tokens,
            )
            return dict(zip(HEADLINES, figures, strict=True)), ""

        return after

    service = {name: getattr(job, name) for name in ("weights", "kv_dtype", "layout", "engine", "arrivals_per_s")}
    service |= {"input_tokens": job.input_tokens, "output_tokens": job.output_tokens}
    if job.arrivals_per_s is None:
        service["concurrency"] = job.concurrency or max(1, now.max_concurrency)
    offered = serving_changes(job.model, service, facts, job.cluster.accelerator)
    changes = [(name, headline(**fields)) for name, fields in offered]
    if not now.max_concurrency:
        found = ranked_sensitivities(dict.fromkeys(HEADLINES), changes)
        fitting = [replace(one, note="fits") for one in found if one.note != NO_ROOM]
        return (*fitting, *(one for one in found if one.note == NO_ROOM))
    faster = ((name, headline(cluster=c)) for name, c in faster_clusters(job.cluster, now.num_gpus))
    return ranked_sensitivities(headline()()[0], (*faster, *changes))


def runnable_formats(
    model: Model, engine: Engine, device: Accelerator | None, formats: Sequence[WeightFormat]
) -> tuple[WeightFormat, ...]:
    """The formats of `formats` that change the model's weights, and that the engine supports and has kernels for.

    Files of llama.cpp are for engines of your own machine; `device` None: on any.
    """
    achieved = None if device is None else rates(device)

    def runs(form: WeightFormat) -> bool:
        if not engine.runs(form, device) or (form.kind == "gguf") > engine.local or not changes_weights(model, form):
            return False
        try:
            return achieved is None or bool(product_path(model, form, achieved))
        except MissingFactError:
            return False

    return tuple(filter(runs, formats))


def allows(model: Model, layout: ServingLayout) -> bool:
    """True if heads, experts and layers of a model allow a layout."""
    try:
        check_layout(model, layout)
    except SpecError:
        return False
    return True


def _joins(device: Accelerator) -> bool:
    """True if a link or PCIe is known that joins such devices."""
    try:
        return bool(fabric(device, gpus_per_node=2))
    except MissingFactError:
        return False
