"""How fast does it serve: latencies, throughput, what memory allows and what tokens cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.features import Features
from flopwise.api.machines import Machines, described, loaded
from flopwise.api.memory import Deployment, MemoryAnswer, in_its_format, of_serving, overridden
from flopwise.api.serve_techniques import Drafted, drafted, started, unsupported
from flopwise.api.train import price_text
from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.serving.job import ServeEstimate, ServeJob
    from flopwise.serving.startup import ColdStart

DEFAULT_INPUT, DEFAULT_OUTPUT = 1024, 256
"""Tokens of a prompt and an answer where none are given."""
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
    machines: Machines
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
    gpu: str | None = None,
    gpus: int | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    concurrency: int | None = None,
    rate: float | None = None,
    static: bool = False,
    machines: Machines | None = None,
    deployment: Deployment | None = None,
    features: Features | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **said: Any,
) -> ServeAnswer:
    """Serving `model`: `concurrency` requests in flight over all replicas (None: as many as memory holds).

    `gpus` accelerators hold gpus / (tp x pp x dp) replicas. With `rate` (requests per second) the latencies under that
    load, too. Tokens that are not given are `DEFAULT_INPUT` and `DEFAULT_OUTPUT`, or what the model's context holds.
    Further keywords are fields of `Deployment` (`tp=8, weights="fp8" ...`), `Machines` (`provider="aws" ...`) or
    `Features` (`prefix_hit=0.5, draft="Llama-3.2-1B" ...`).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    from flopwise.serving.job import ServeJob

    of_place, of_features, rest = _told_apart(said)
    place = overridden(machines or Machines(gpu=gpu, facts=facts), of_place)
    more, asked = overridden(features or Features(), of_features), overridden(deployment or Deployment(), rest)
    found = described(loaded(model, assume_family=assume_family, offline=offline, facts=place.facts))
    asked, native = in_its_format(found, asked)
    inputs, outputs, shaped = request_shape(found, input_tokens, output_tokens)
    _check(found, asked, place.known_facts)
    replica = asked.tp * asked.pp * asked.dp + (more.prefill_gpus or 0)
    replicas = _replicas(asked, replica, gpus)
    cluster = place.cluster(replica)
    names: dict[str, Any] = {"assume_family": assume_family, "offline": offline}
    job = ServeJob(
        model=found,
        cluster=cluster,
        layout=asked.layout(),
        **asked.software(place.known_facts),
        input_tokens=inputs,
        output_tokens=outputs,
        concurrency=_each(concurrency, rate, replicas, static=static),
        arrivals_per_s=None if rate is None else rate / replicas,
        static=static,
        memory_frac=asked.memory_frac,
        techniques=more.techniques(found, asked, cluster.accelerator, place.known_facts, **names),
    )
    answer = answered(job, asked, place, replicas=replicas, rate=rate, concurrency=concurrency, features=more)
    return replace(answer, assumptions=tuple(dict.fromkeys((*native, *shaped, *answer.assumptions))))


def _told_apart(said: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Keywords of the machines, of the features, and the rest."""
    place = {k: v for k, v in said.items() if k in Machines.__dataclass_fields__}
    more = {k: v for k, v in said.items() if k in Features.__dataclass_fields__}
    return place, more, {k: v for k, v in said.items() if k not in place and k not in more}


def _each(concurrency: int | None, rate: float | None, replicas: int, *, static: bool) -> int | None:
    """Requests in flight of one replica; None: as many as fit, or as arrive."""
    if static and rate is not None:
        raise SpecError(
            "a fixed batch starts together, so that nothing arrives in between: give --static with --concurrency, or "
            "--rate without --static"
        )
    if concurrency is not None and rate is not None:
        raise SpecError("concurrency and rate are both given: fix the requests in flight or the arrivals, not both")
    return None if concurrency is None else max(1, -(-concurrency // replicas))


def _replicas(asked: Deployment, replica: int, gpus: int | None) -> int:
    """How many replicas of `replica` accelerators `gpus` hold; one where nothing is said."""
    total = replica if gpus is None else gpus
    if total % replica:
        raise SpecError(f"{total} GPUs do not hold whole replicas of {asked.layout_text}: {replica} each")
    return total // replica


def request_shape(model: Model, inputs: int | None, outputs: int | None) -> tuple[int, int, tuple[str, ...]]:
    """(tokens of a prompt, of an answer, what was assumed): as given, else the default as far as the context goes."""
    from flopwise.serving.iteration import prompt
    from flopwise.serving.memory import generates

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
        return asked, answer, ()
    said = f"a request of {asked:,} tokens in" + (f" and {answer:,} out" if decodes else "")
    return asked, answer, (f"{said}, as {model.name} is made for {most:,}",)


def _check(model: Model, asked: Deployment, facts: Facts) -> None:
    from flopwise.serving.estimate import check_layout

    asked.software(facts)
    check_layout(model, asked.layout())


def answered(
    job: ServeJob,
    asked: Deployment,
    place: Machines,
    *,
    replicas: int,
    rate: float | None,
    concurrency: int | None,
    features: Features | None = None,
) -> ServeAnswer:
    """The answer for `replicas` of one job."""
    from flopwise.serving.estimate import estimate, job_memory
    from flopwise.serving.rules_of_thumb import token_rules
    from flopwise.serving.technique_rules import technique_settings
    from flopwise.serving.technique_runner import host_bytes

    found = estimate(job)
    under = None if rate is None else _under_load(job, found, rate)
    context, ranks = job.context, int(job.layout.dp)
    at_once = max(1, min(job.concurrency or found.max_concurrency, found.max_concurrency) // ranks)
    used = job_memory(replace(job, concurrency=at_once * ranks))
    held = of_serving(
        job.model,
        asked,
        job.layout,
        used,
        job.cluster.accelerator,
        place.known_facts,
        context=context,
        concurrency=at_once,
    )
    load = (
        f"{concurrency:,} in flight" if concurrency else f"{rate:g} requests/s" if rate else "as many as memory holds"
    )
    return ServeAnswer(
        estimate=found,
        machines=place,
        replicas=replicas,
        memory=held,
        fits=found.max_concurrency >= 1,
        under_load=under,
        quick=(*token_rules(found), *held.quick),
        settings=(
            ("replicas", f"{replicas:,} x {found.num_gpus} {job.cluster.accelerator.name}"),
            ("layout", asked.layout_text),
            ("weights", job.weights.name + (f"; KV cache {job.kv_dtype.name}" if job.decodes else "")),
            ("engine", job.engine.name + (", fixed batch" if job.static else "")),
            *technique_settings(job),
            ("requests", f"{_request_text(job)}; {load}"),
            ("price", price_text(job.cluster)),
        ),
        cold_start=started(job, features or Features(), place),
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
