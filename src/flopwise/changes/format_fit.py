"""One service in each weight format: what it leaves for the cache, how fast it is, what a token costs and keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from flopwise.changes.explanation import memory_figure
from flopwise.changes.serving import runnable_formats
from flopwise.cost.money import idle_note
from flopwise.cost.spec import MachineSpec
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import QualityRecord
from flopwise.facts.software import PLAIN_FORMATS
from flopwise.facts.spec import SourceSpec
from flopwise.ops.columns import ascending
from flopwise.ops.types import Ints
from flopwise.origin import estimate_of
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Figure, fact, term
from flopwise.results import Result, attributes
from flopwise.serving.deployment import on_its_engine, paid_gpus, replica_of
from flopwise.serving.estimate import estimate
from flopwise.serving.explain import serve_figure
from flopwise.serving.job import ServeEstimate, ServeJob
from flopwise.serving.memory import ServingMemory, generates, serving_memory
from flopwise.serving.memory_answer import ServingMemoryAnswer, memory_answer
from flopwise.serving.spec import ServingSpec, TechniqueRequest
from flopwise.units import GIB, format_chance, format_items
from flopwise.values import dataclass, replace

USUAL_FORMATS = ("bf16", "fp8", "int8", "awq", "nvfp4", "mxfp4", "Q8_0", "Q4_K_M")
"""Formats in common use, which are compared by default."""
LIKELY = 0.5
"""Probability to fit from which a format is recommended."""
LONGEST = 1 << 20
"""Tokens up to which contexts are looked at where a model names no longest one."""
STEPS = 1024
"""Number of contexts tried, which is the resolution of the longest context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatFit:
    """One weight format: memory of one request, longest context, and requests at once."""

    weights: str
    memory: ServingMemoryAnswer
    longest_context: int  # tokens of a request that is alone; 0 where the weights do not fit
    service: ServeEstimate | None  # of as many requests as memory holds; None where it holds none
    quality: tuple[float, float] | None  # least and most of scores kept, of evaluations; None: published so, or none
    notes: tuple[str, ...]

    @property
    def weights_bytes(self) -> float:
        """On each device."""
        return dict(self.memory.items)["weights"]

    @property
    def likely(self) -> bool:
        """True if one request fits with a probability of `LIKELY`."""
        return (self.memory.fits_probability or 0.0) >= LIKELY

    def document(self) -> dict[str, Any]:
        """The row by key."""
        return {
            **attributes(
                self,
                "weights fits=memory.fits fits_probability=memory.fits_probability total_bytes=memory.per_gpu_bytes "
                "low_bytes=memory.low_bytes high_bytes=memory.high_bytes usable_bytes=memory.usable_bytes",
            ),
            **attributes(
                self,
                "weights_bytes longest_context most_requests tokens_per_s=service.output_tokens_per_s.value "
                "tokens_per_s_low=service.output_tokens_per_s.low tokens_per_s_high=service.output_tokens_per_s.high "
                "ttft_s=service.ttft_s.value tpot_s=service.tpot_s.value service.requests_per_s "
                "service.usd_per_million_input_tokens service.usd_per_million_output_tokens quality",
            ),
        }

    @property
    def chance(self) -> str:
        """The odds that one request fits."""
        return format_chance(self.memory.fits_probability or 0.0)

    @property
    def most_requests(self) -> int:
        """Requests of the context that run at once."""
        return 0 if self.service is None else self.service.max_concurrency


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FitAnswer(Result):
    """The formats that engine and device run, those with the most bytes first."""

    table = "formats"
    model: Model
    accelerator: Accelerator
    num_gpus: int
    layout: str
    context: int
    output_tokens: int
    formats: tuple[FormatFit, ...]
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]

    @property
    def fitting(self) -> list[FormatFit]:
        """The formats that hold a request: those that likely fit first, among these the published one, then by bits."""
        rows = [row for row in self.formats if row.most_requests]
        return sorted(rows, key=lambda row: (not row.likely, row.weights != self.model.checkpoint_format))

    @property
    def recommendation(self) -> FormatFit | None:
        """The published format if it likely fits, else the one with the most bits that does; None where none does."""
        return next((row for row in self.fitting if row.likely), None)

    @property
    def verdict(self) -> str:
        """The answer in a sentence: what fits, with how many requests, and what does not."""
        where, size = f"{self.num_gpus:,} x {self.accelerator.name}", f"{self.context:,} tokens"
        fitting = self.fitting
        failing = [f"{row.weights} ({row.chance} chance)" for row in self.formats if not row.most_requests][:3]
        if not fitting:
            return f"No format fits {where} with a request of {size}: {', '.join(failing)}."
        first, *others = fitting[:4]
        counts = ", ".join([f"in {first.weights}", *(f"{row.most_requests:,} in {row.weights}" for row in others)])
        verb = "holds" if self.num_gpus == 1 else "hold"
        requests = f"{format_items(first.most_requests, 'request')} of {size} at once"
        text = f"{where} {verb} {requests} {counts}."
        return text + (f" Does not fit: {', '.join(failing)}." if failing else "")

    def document(self) -> dict[str, Any]:
        """The answer by key, as scripts rely on it."""
        return {
            **attributes(self, "model=model.name gpu=accelerator.name num_gpus layout context output_tokens"),
            "formats": [row.document() for row in self.formats],
            "settings": dict(self.settings),
            "assumptions": self.assumptions,
        }

    def picture(self) -> Picture:
        """The memory of each accelerator in each format beside the usable memory, as a picture."""
        rows = [(row.weights, row.memory.per_gpu_bytes / GIB) for row in self.formats]
        usable = self.formats[0].memory.usable_bytes
        limit = None if usable is None else ("may be used", usable / GIB)
        return BarPicture(title=self.verdict, unit="GiB with one request", rows=rows, limit=limit)

    def figure(self) -> Figure:
        """The tree of the figures, those of each format beside each other."""
        figures = [figure for row in self.formats for figure in _format_figures(row)]
        return estimate_of(f"{self.model.name} on {self.num_gpus} x {self.accelerator.name}", figures)

    @classmethod
    def of(
        cls, model: Model, spec: ServingSpec, machines: MachineSpec, source: SourceSpec,
        formats: tuple[str, ...] | None, *, context: int, output_tokens: int,
    ) -> Self:  # fmt: skip
        """The answer for one replica in each of `formats`: requests of `context` tokens, of them `output_tokens` made.

        `formats` None: those of `usual_formats`.

        Raises:
            SpecError: an answer as long as the context, or none of the formats runs on the device.
            UnknownNameError: no such format.
        """
        if generates(model) and output_tokens >= context:
            raise SpecError(f"answers of {output_tokens:,} tokens leave no prompt in a context of {context:,}")
        made = output_tokens if generates(model) else 0
        facts, cluster = source.catalog, machines.cluster(spec.num_gpus, source.catalog)
        rows, lacking = list[FormatFit](), list[str]()
        for name in formats or usual_formats(model, spec, cluster.accelerator, facts):
            one = replace(spec, weights=name)
            try:
                job, notes = replica_of(model, one, machines, TechniqueRequest(), source)
                job = replace(job, input_tokens=context - made, output_tokens=made, paid_gpus=paid_gpus(job, 1))
                rows.append(_format_fit(job, one, facts, context, notes))
            except MissingFactError as reason:
                lacking.append(str(reason))
        if not rows:
            raise SpecError(f"no format runs there: {'; '.join(lacking)}")
        rows.sort(key=lambda row: -row.weights_bytes)
        first = rows[0].memory
        assumed = [note for row in rows for note in (*row.notes, *row.memory.assumptions, *_notes(row.service))]
        service = next((row.service for row in rows if row.service is not None), None)
        paid = None if service is None else service.job.paid_gpus
        shape = f"{context - made:,} tokens in, {made:,} out" if made else f"{context:,} tokens an input"
        return cls(
            model=model, accelerator=cluster.accelerator, num_gpus=spec.num_gpus, layout=first.layout.text,
            context=context, output_tokens=made, formats=tuple(rows),
            settings=(
                ("replica", f"{spec.num_gpus:,} x {cluster.accelerator.name}, {first.layout.text}"),
                ("engine", f"{first.deployment.engine}" + (f"; KV cache {spec.kv_dtype or 'bf16'}" if made else "")),
                ("a request", shape),
            ),
            assumptions=tuple(dict.fromkeys((*assumed, *lacking, *idle_note(paid, spec.num_gpus)))),
        )  # fmt: skip


def usual_names(own: str | None) -> list[str]:
    """`USUAL_FORMATS` beside the format `own` of a checkpoint (None: 16 bits), which comes first."""
    plain = own is None or own in PLAIN_FORMATS
    return [*([] if own is None else [own]), *(name for name in USUAL_FORMATS if name != "bf16" or plain)]


def usual_formats(model: Model, spec: ServingSpec, device: Accelerator, facts: Facts) -> tuple[str, ...]:
    """The checkpoint's own format and those of `USUAL_FORMATS` that the engine runs on the device."""
    engine = facts.engine(on_its_engine(spec, model, device, facts)[0].engine or "")
    own = model.checkpoint_format or engine.plain_format(device)
    names = usual_names(own)
    forms = tuple(map(facts.weight_format, dict.fromkeys(names)))
    return tuple(form.name for form in runnable_formats(model, engine, device, forms)) or (own,)


def _format_fit(job: ServeJob, spec: ServingSpec, facts: Facts, context: int, notes: tuple[str, ...]) -> FormatFit:
    """One format, of which `job` is a replica."""
    chip = job.cluster.accelerator
    spec, _ = on_its_engine(spec, job.model, chip, facts)

    def memory_of(tokens: Ints) -> ServingMemory:
        return serving_memory(
            job.model, job.layout, context=tokens, hbm_bytes=chip.hbm_bytes, weights=job.weights,
            kv_dtype=job.kv_dtype, engine=job.software, memory_frac=job.memory_frac, max_batch=job.max_batch,
            device_kind=chip.kind,
        )  # fmt: skip

    longest = job.model.max_position or LONGEST
    contexts = ascending(np.linspace(longest / STEPS, longest, STEPS).astype(int).clip(1))
    holds = contexts[np.broadcast_to(np.asarray(memory_of(contexts).max_whole_contexts) >= 1, contexts.shape)]
    one = memory_answer(job.model, spec, memory_of(context), chip, facts, context=context, concurrency=1)
    service = estimate(job)
    scores = [row.score for row in _evaluations(job.model, job.weights.name, facts)]
    return FormatFit(
        weights=job.weights.name, memory=one, longest_context=int(holds.max(initial=0)),
        service=service if service.max_concurrency >= 1 else None, notes=notes,
        quality=(min(scores), max(scores)) if scores else None,
    )  # fmt: skip


def _evaluations(model: Model, weights: str, facts: Facts) -> list[QualityRecord]:
    """Evaluations of a format that weights are converted to afterwards; none of what the model is published in."""
    if weights == model.checkpoint_format:
        return []
    return [one for one in facts.quality if one.format == weights and not one.trained]


def _notes(service: ServeEstimate | None) -> tuple[str, ...]:
    return () if service is None else service.assumptions


FORMAT_FIGURES = {
    "memory per GPU": "memory", "chance to fit": "chance to fit", "maximum concurrency": "requests at once",
    "throughput": "tokens/s", "TTFT": "TTFT", "TPOT": "TPOT",
    "cost per million input tokens": "cost per million input tokens",
    "cost per million output tokens": "cost per million output tokens",
}  # fmt: skip
"""Figures of a service and of its memory that a row of `fit` shows: their names, and those of the columns."""


def _format_figures(row: FormatFit) -> Iterator[Figure]:
    """The figures in the row of a weight format."""
    memory = {one.name: one for one in memory_figure(row.memory).inputs}  # of one request
    served = () if row.service is None else serve_figure(row.service).inputs
    known = {one.name: one for one in served} | {
        n: memory[n] for n in ("memory per GPU", "chance to fit") if n in memory
    }
    for name, shown in FORMAT_FIGURES.items():
        if name in known:
            one = known[name]
            yield term(f"{shown} in {row.weights}", one.value, one.unit, name, one)  # type: ignore[arg-type] # a number
    for word in ("low", "high"):
        if (end := known.get(f"throughput, {word}")) is not None:
            yield term(f"tokens/s in {row.weights}, {word}", end.value, end.unit, end.name, end)  # type: ignore[arg-type] # a number
    formula = "memory model: the longest request that fits alone, of 1,024 lengths up to the longest of the model"
    alone = [known[name] for name in ("memory per GPU", "chance to fit") if name in known]
    yield term(f"longest context in {row.weights}", row.longest_context, "tokens", formula, *alone)
    evaluations = _evaluations(row.memory.model, row.weights, row.memory.facts)
    if evaluations:
        scores = [
            fact(f"score of {one.model}, {one.measure}", one.score, "frac", source=one.source, date=one.date,
                 confidence=one.confidence, note=one.notes)
            for one in evaluations
        ]  # fmt: skip
        least = min(one.score for one in evaluations)
        formula = "counted: the lowest of the scores below"
        yield term(f"scores kept in {row.weights}", least, "frac", formula, *scores)
