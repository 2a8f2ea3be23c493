"""How fast does it serve: latencies, throughput, what memory allows and what tokens cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.memory import MemoryAnswer, of_serving
from flopwise.api.serve_techniques import Drafted, drafted, started, unsupported
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import OptionError, take
from flopwise.serving.spec import (
    DEFAULT_INPUT,
    DEFAULT_OUTPUT,
    RequestSpec,
    ServingSpec,
    StartSpec,
    TechniqueRequest,
    mean_tokens,
)

if TYPE_CHECKING:
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.serving.job import ServeEstimate, ServeJob
    from flopwise.serving.startup import ColdStart

START_TOKENS = 4
"""Tokens that start a transcript: language, task, timestamps (Whisper)."""
PERCENTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderLoad:
    """What requests see when they arrive at `rate` a second as they please; infinite where it cannot keep up."""

    requests_per_s: float
    utilisation_frac: float  # of the rate that all replicas sustain
    replicas_needed: int  # the fewest that keep up
    ttft_s: dict[str, float]  # by percentile
    tpot_s: dict[str, float]


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
    speculation: Drafted | None
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


def serve(
    model: Model | str,
    *,
    gpus: int | None = None,
    static: bool = False,
    request: RequestSpec | None = None,
    machines: MachineSpec | None = None,
    deployment: ServingSpec | None = None,
    techniques: TechniqueRequest | None = None,
    start: StartSpec | None = None,
    facts: Path | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **keywords: Any,
) -> ServeAnswer:
    """Serving `model`: `concurrency` requests in flight over all replicas (None: as many as memory holds).

    `gpus` accelerators hold gpus / (tp x pp x dp) replicas. With `rate` (requests per second) the latencies under that
    load, too. Tokens that are not given are `DEFAULT_INPUT` and `DEFAULT_OUTPUT`, or what the model's context holds.
    Further keywords are options: of `RequestSpec` (`rate="5/s" ...`), `MachineSpec` (`gpu="h100", provider="aws" ...`),
    `ServingSpec` (`tp=8, weights="fp8" ...`), `TechniqueRequest` (`draft="Llama-3.2-1B" ...`) and `StartSpec`.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    request, machines, deployment, techniques, start = take(
        keywords, request or RequestSpec(), machines or MachineSpec(), deployment or ServingSpec(),
        techniques or TechniqueRequest(), start or StartSpec(),
    )  # fmt: skip
    start.check()
    source = SourceSpec(facts=facts, assume_family=assume_family, offline=offline)
    found = source.layered(model)
    inputs, outputs, shaped = request_shape(found, request)
    job, native = replica_job(found, deployment, machines, techniques, source)
    total = job.num_gpus if gpus is None else gpus
    if total % job.num_gpus:
        raise SpecError(f"{total} GPUs do not hold whole replicas of {job.layout.text}: {job.num_gpus} each")
    replicas = total // job.num_gpus
    rate, in_flight = request.rate, request.concurrency
    if static and rate is not None:
        raise SpecError(
            "a fixed batch starts together, so that nothing arrives in between: give --static with --concurrency, or "
            "--rate without --static"
        )
    if in_flight is not None and rate is not None:
        raise OptionError("concurrency", "a rate is given, too: fix the requests in flight or the arrivals, not both")
    job = replace(
        job,
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=None if in_flight is None else max(1, -(-in_flight // replicas)),
        arrivals_per_s=None if rate is None else rate / replicas,
        static=static,
    )
    answer = _answered(job, deployment, machines, source.known, start, replicas=replicas, request=request)
    return replace(answer, assumptions=tuple(dict.fromkeys((*native, *shaped, *answer.assumptions))))


def replica_job(
    model: Model,
    deployment: ServingSpec,
    machines: MachineSpec,
    techniques: TechniqueRequest,
    source: SourceSpec,
) -> tuple[ServeJob, tuple[str, ...]]:
    """One replica of a deployment, without its load, and what was assumed of its format.

    Raises:
        SpecError: a degree that the model does not allow, or a technique that does not go with it.
        UnknownNameError: no such format, engine, draft or processor.
    """
    from flopwise.serving.estimate import check_layout
    from flopwise.serving.job import ServeJob
    from flopwise.serving.techniques import resolve_techniques

    spec, native = deployment.in_its_format(model)
    software = spec.software(source.known)
    check_layout(model, spec.layout())
    cluster = machines.cluster(spec.num_gpus + (techniques.prefill_gpus or 0), source.known)
    job = ServeJob(model=model, cluster=cluster, layout=spec.layout(), **software, memory_frac=spec.memory_fraction)
    return replace(job, techniques=resolve_techniques(techniques, job, source.known, source.model)), native


def request_shape(model: Model, request: RequestSpec) -> tuple[int, int, tuple[str, ...]]:
    """(tokens of a prompt, of an answer, what was assumed): as given, else the default as far as the context goes."""
    from flopwise.serving.iteration import prompt
    from flopwise.serving.memory import generates

    drawn = [text for text in (request.input_tokens, request.output_tokens) if isinstance(text, str)]
    mean = (f"requests of mean length, not drawn ({' and '.join(drawn)}): `flopwise simulate` draws them",)
    inputs, outputs = (
        None if tokens is None else mean_tokens(tokens) for tokens in (request.input_tokens, request.output_tokens)
    )
    notes = mean if drawn else ()
    own, made = model.stacks[0].tokens_per_sample, model.max_position
    if own is not None:
        same = inputs in (None, own)
        return own, 0, () if same else (f"{model.name} makes {own:,} tokens of every input, whatever is given",)
    most, decodes, reads = made or DEFAULT_INPUT + DEFAULT_OUTPUT, generates(model), prompt(model, 2)
    fixed, apart = reads.own == 2 and reads.encoder, reads.own == 1  # sound beside the text; text on either side
    answer = outputs or (DEFAULT_OUTPUT if apart or fixed else min(DEFAULT_OUTPUT, max(1, most // 4)))
    room = most if apart or not decodes else max(1, most - answer)
    asked = inputs or min(START_TOKENS if fixed else DEFAULT_INPUT, room)
    if outputs is None:
        answer = max(1, min(answer, most if apart else most - asked)) if decodes else 0
    plain = (inputs or DEFAULT_INPUT, outputs or (DEFAULT_OUTPUT if decodes else 0))
    if (asked, answer) == plain or (not decodes and asked == plain[0]):
        return asked, answer, notes
    said = f"a request of {asked:,} tokens in" + (f" and {answer:,} out" if decodes else "")
    return asked, answer, (f"{said}, as {model.name} is made for {most:,}", *notes)


def _answered(
    job: ServeJob,
    deployment: ServingSpec,
    machines: MachineSpec,
    facts: Facts,
    start: StartSpec,
    *,
    replicas: int,
    request: RequestSpec,
) -> ServeAnswer:
    """The answer for `replicas` of one job."""
    from flopwise.serving.estimate import estimate, job_memory
    from flopwise.serving.rules_of_thumb import token_rules
    from flopwise.serving.technique_rules import technique_settings
    from flopwise.serving.techniques import host_bytes
    from flopwise.units import format_price

    found, rate, concurrency = estimate(job), request.rate, request.concurrency
    deployment = replace(deployment, weights=job.weights.name)
    under = None if rate is None else _under_load(job, found, rate)
    context, ranks = job.context, int(job.layout.dp)
    at_once = max(1, min(job.concurrency or found.max_concurrency, found.max_concurrency) // ranks)
    used = job_memory(replace(job, concurrency=at_once * ranks))
    chip = job.cluster.accelerator
    held = of_serving(job.model, deployment, job.layout, used, chip, facts, context=context, concurrency=at_once)
    load = (
        f"{concurrency:,} in flight" if concurrency else f"{rate:g} requests/s" if rate else "as many as memory holds"
    )
    return ServeAnswer(
        estimate=found,
        machines=machines,
        facts=facts,
        replicas=replicas,
        memory=held,
        fits=found.max_concurrency >= 1,
        under_load=under,
        quick=(*token_rules(found), *held.quick),
        settings=(
            ("replicas", f"{replicas:,} x {found.num_gpus} {job.cluster.accelerator.name}"),
            ("layout", job.layout.text),
            ("weights", job.weights.name + (f"; KV cache {job.kv_dtype.name}" if job.decodes else "")),
            ("engine", job.engine.name + (", fixed batch" if job.static else "")),
            *technique_settings(job),
            ("requests", f"{_request_text(job)}; {load}"),
            ("price", format_price(job.cluster.usd_per_gpu_hour, job.cluster.price_source)),
        ),
        cold_start=started(job, start, facts),
        speculation=drafted(job, found),
        host_bytes=host_bytes(job),
        assumptions=tuple(dict.fromkeys((*found.assumptions, *held.assumptions, *unsupported(job)))),
    )


def _request_text(job: ServeJob) -> str:
    """One request in words."""
    from flopwise.serving.iteration import prompt

    if job.decodes:
        sound = prompt(job.model, job.input_tokens).encoder if job.model.kind == "encoder-decoder" else 0
        encoded = f"{sound:,} encoder positions, " if sound and sound != job.input_tokens else ""
        return f"{encoded}{job.input_tokens:,} tokens in, {job.output_tokens:,} out"
    return f"{job.context:,} tokens an input"


def _under_load(job: ServeJob, found: ServeEstimate, rate: float) -> UnderLoad:
    """Percentiles of what requests see that arrive at random, `rate` a second over all replicas."""
    from flopwise.serving.estimate import percentiles
    from flopwise.serving.memory import generates

    if not generates(job.model):
        raise SpecError(
            f"{job.model.name} does not generate; percentiles under load need a model that does: leave the rate out"
        )
    ranks = int(job.layout.dp)
    each, sustained, waits = percentiles(job, max(1.0, found.max_concurrency / ranks), PERCENTILES)
    over = each >= sustained
    return UnderLoad(
        requests_per_s=rate,
        utilisation_frac=each / sustained,
        replicas_needed=int(rate / (sustained * ranks)) + 1,
        ttft_s={p: float("inf") if over else float(w.ttft_s) for p, w in waits.items()},
        tpot_s={p: float("inf") if over else float(w.tpot_s) for p, w in waits.items()},
    )
