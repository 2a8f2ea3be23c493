"""How fast does it serve: latencies, throughput, what memory allows and what tokens cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from flopwise.api.memory import MemoryAnswer, of_serving
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.spec import SourceSpec
from flopwise.options import OptionError, defaults_of, take
from flopwise.serving.spec import RequestSpec, ServingSpec, StartSpec, TechniqueRequest

if TYPE_CHECKING:
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.serving.deployment import DraftGain, UnderLoad
    from flopwise.serving.job import ServeEstimate, ServeJob
    from flopwise.serving.load_curve import SweepPoint
    from flopwise.serving.startup import ColdStart

AXES = ("concurrency", "batch", "tp")
"""What `serve_sweep` goes along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeAnswer:
    """The estimate of one replica, and of all `replicas` together."""

    estimate: ServeEstimate
    machines: MachineSpec
    facts: Facts
    replicas: int
    memory: MemoryAnswer
    fits: bool
    under_load: UnderLoad | None
    quick: tuple[QuickFormula, ...]
    settings: tuple[tuple[str, str], ...]
    cold_start: ColdStart
    speculation: DraftGain | None
    host_bytes: float  # weights in the host's memory, of one replica
    assumptions: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        """Accelerators of all replicas."""
        return self.replicas * self.estimate.num_gpus

    @property
    def keeps_up(self) -> bool:
        """Whether the replicas sustain the rate that was asked for."""
        return self.under_load is None or self.under_load.utilisation_frac < 1


def serve(model: Model | str, *, gpus: int | None = None, static: bool = False, **options: Any) -> ServeAnswer:
    """Serving `model`: `concurrency` requests in flight over all replicas (None: as many as memory holds).

    `gpus` accelerators hold gpus / (tp x pp x dp) replicas. With `rate` (requests per second) the latencies under that
    load, too. Tokens that are not given are `DEFAULT_INPUT` and `DEFAULT_OUTPUT`, or what the model's context holds.
    `options` are those of `RequestSpec` (`rate="5/s" ...`), `MachineSpec` (`gpu="h100", provider="aws" ...`),
    `ServingSpec` (`tp=8, weights="fp8" ...`), `TechniqueRequest` (`draft="Llama-3.2-1B" ...`), `StartSpec` and
    `SourceSpec`, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    from flopwise.serving.deployment import replica_of, request_tokens

    request, machines, deployment, techniques, start, source = take(
        options, RequestSpec, MachineSpec, ServingSpec, TechniqueRequest, StartSpec, SourceSpec
    )
    start.check()
    found = source.layered(model)
    inputs, outputs, request_notes = request_tokens(found, request)
    job, format_notes = replica_of(found, deployment, machines, techniques, source)
    total = job.num_gpus if gpus is None else gpus
    if total % job.num_gpus:
        raise SpecError(f"{total} GPUs do not hold whole replicas of {job.layout.text}: {job.num_gpus} each")
    replicas, rate, in_flight = total // job.num_gpus, request.rate, request.concurrency
    if static and rate is not None:
        raise SpecError(
            "a fixed batch starts together, so that nothing arrives in between: give --static with --concurrency, or "
            "--rate without --static"
        )
    if in_flight is not None and rate is not None:
        raise OptionError("concurrency", "a rate is given, too: fix the requests in flight or the arrivals, not both")
    job = replace(
        job, input_tokens=inputs, output_tokens=outputs, static=static,
        concurrency=None if in_flight is None else max(1, -(-in_flight // replicas)),
        arrivals_per_s=None if rate is None else rate / replicas,
    )  # fmt: skip
    answer = _answer(job, deployment, machines, source.known, start, replicas, request)
    return replace(answer, assumptions=tuple(dict.fromkeys((*format_notes, *request_notes, *answer.assumptions))))


def _answer(
    job: ServeJob, deployment: ServingSpec, machines: MachineSpec, facts: Facts, start: StartSpec, replicas: int,
    request: RequestSpec,
) -> ServeAnswer:  # fmt: skip
    """The answer for `replicas` of one job."""
    from flopwise.serving.deployment import draft_gain, request_text, under_load, unsupported_notes
    from flopwise.serving.estimate import estimate, job_memory
    from flopwise.serving.rules_of_thumb import token_rules
    from flopwise.serving.startup import cold_start
    from flopwise.serving.technique_rules import technique_settings
    from flopwise.serving.techniques import host_bytes
    from flopwise.units import format_price

    result, rate, in_flight, cluster = estimate(job), request.rate, request.concurrency, job.cluster
    waits = None if rate is None else under_load(job, result, rate)
    at_once = max(1, min(job.concurrency or result.max_concurrency, result.max_concurrency) // int(job.layout.dp))
    memory = of_serving(
        job.model, replace(deployment, weights=job.weights.name), job.layout,
        job_memory(replace(job, concurrency=at_once * int(job.layout.dp))), cluster.accelerator, facts,
        context=job.context, concurrency=at_once,
    )  # fmt: skip
    load = f"{in_flight:,} in flight" if in_flight else f"{rate:g} requests/s" if rate else "as many as memory holds"
    return ServeAnswer(
        estimate=result,
        machines=machines,
        facts=facts,
        replicas=replicas,
        memory=memory,
        fits=result.max_concurrency >= 1,
        under_load=waits,
        quick=(*token_rules(result), *memory.quick),
        settings=(
            ("replicas", f"{replicas:,} x {result.num_gpus} {cluster.accelerator.name}"),
            ("layout", job.layout.text),
            ("weights", job.weights.name + (f"; KV cache {job.kv_dtype.name}" if job.decodes else "")),
            ("engine", job.engine.name + (", fixed batch" if job.static else "")),
            *technique_settings(job),
            ("requests", f"{request_text(job)}; {load}"),
            ("price", format_price(cluster.usd_per_gpu_hour, cluster.price_source)),
        ),
        cold_start=cold_start(
            job, start.kind_of_storage(facts), image_bytes=start.image_size or 0.0,
            image_bytes_per_s=start.image_bandwidth or 0.0,
        ),
        speculation=draft_gain(job, result),
        host_bytes=host_bytes(job),
        assumptions=tuple(dict.fromkeys((*result.assumptions, *memory.assumptions, *unsupported_notes(job)))),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSweep:
    """The points of a sweep, and the first whose accelerators deliver `SATURATED_FRAC` of the most."""

    axis: str
    points: tuple[SweepPoint, ...]
    saturation: SweepPoint | None
    most_in_flight: int  # that memory holds, of the last replica swept
    first: ServeAnswer


def serve_sweep(model: Model | str, axis: str, *, values: tuple[int, ...] | None = None, **options: Any) -> ServeSweep:
    """Estimates along `axis`: "concurrency" (requests in flight), "batch" (fixed batches) or "tp".

    `values` None: powers of two as far as memory holds (for tp: that divide the heads, within a node of eight). All
    other keywords as `flopwise.serve`.

    Raises:
        UnknownNameError: no such axis.
        SpecError: a value that cannot be, or an axis whose value is fixed as well.
    """
    from flopwise.serving.load_curve import load_curve

    if axis not in AXES:
        raise UnknownNameError("sweep", axis, AXES, f"allowed: {', '.join(AXES)}")
    if options.get("rate") is not None:
        raise SpecError("a sweep fixes the requests in flight; leave the rate out")
    if axis != "tp" and options.get("concurrency") is not None:
        raise SpecError(f"--sweep {axis} sets the requests in flight itself; leave the concurrency out")
    options["static"] = axis == "batch" or bool(options.get("static"))
    (source,) = take({name: options[name] for name in defaults_of(SourceSpec) if name in options}, SourceSpec)
    found = source.layered(model)
    first = serve(found, **options)

    def estimate_at(value: int) -> tuple[ServeEstimate, int]:
        single = {name: option for name, option in options.items() if axis != "tp" or name != "gpus"}
        answer = serve(found, **single | {"tp" if axis == "tp" else "concurrency": value})
        return answer.estimate, answer.replicas

    points, saturation = load_curve(axis, values, first.estimate, first.replicas, estimate_at)
    most = first.estimate.max_concurrency * first.replicas
    return ServeSweep(axis=axis, points=points, saturation=saturation, most_in_flight=most, first=first)
