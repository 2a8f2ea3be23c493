"""The memory of serving as an answer: against a device, with its rule of thumb beside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from flopwise.cost.intervals import ErrorBand
from flopwise.cost.memory_answer import MemoryAnswer, fit_figures
from flopwise.cost.quick import QuickFormula, quick_gpus
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.formats import WeightFormat
from flopwise.ops.degrees import heads_and_experts
from flopwise.ops.tensors import parameters
from flopwise.ops.weights import weight_bytes
from flopwise.serving.job import PLAIN, ServeJob
from flopwise.serving.memory import ServingLayout, ServingMemory, generates, serving_memory
from flopwise.serving.spec import ServingSpec
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ServingMemoryAnswer(MemoryAnswer):
    """The memory of one deployment: `concurrency` sequences of an attention replica, each of `context` tokens."""

    deployment: ServingSpec
    layout: ServingLayout
    memory: ServingMemory
    concurrency: int
    context: int
    job: ServeJob | None = None  # whose techniques take memory, too; None: plain serving

    def document(self) -> dict[str, Any]:
        """The memory as the JSON that scripts rely on."""
        return {**MemoryAnswer.document(self), **self.capacity_fields()}

    @property
    def capacity_ends(self) -> tuple[float, float]:
        """The least and the most that the cache holds, over the estimate."""
        return self.memory.capacity_ends()

    def capacity_fields(self) -> dict[str, float | None]:
        """The ends of what the cache holds: tokens, and sequences of the context as far as the batch may go."""
        names = ("kv_capacity_tokens", "max_concurrency")
        fields = dict[str, float | None].fromkeys(f"{name}_{end}" for name in names for end in ("low", "high"))
        if self.kv_capacity_tokens is None:
            return fields
        cap = self.deployment.max_batch or self.deployment.software(self.facts, self.accelerator)["engine"].max_batch
        contexts = max(
            self.max_concurrency or 0.0, self.kv_capacity_tokens / self.context
        )  # if the batch were not capped
        for end, share in zip(("low", "high"), self.capacity_ends, strict=True):
            fields[f"kv_capacity_tokens_{end}"] = math.floor(share * self.kv_capacity_tokens)
            places = float(np.ravel(self.memory.max_states)[0]) * share  # of recurrent states, a share of the same room
            fields[f"max_concurrency_{end}"] = math.floor(min(share * contexts, places, cap))
        return fields

    @property
    def more_gpus(self) -> str:
        """The fewest GPUs of a replica that hold all sequences; empty where none do, or techniques take memory, too."""
        device, spec = self.accelerator, self.deployment
        if device is None or (self.job is not None and self.job.techniques != PLAIN):
            return ""
        layout = _least_layout(
            self.model, device, self.context, concurrency=self.concurrency * spec.dp, max_batch=spec.max_batch,
            memory_frac=spec.memory_fraction, **spec.software(self.facts, device),
        )  # fmt: skip
        if layout is None or layout.num_gpus <= self.num_gpus:
            return ""
        return f"{layout.num_gpus:,} GPUs ({layout.text})"

    @property
    def room(self) -> str:
        """The number of sequences that fit, as a sentence."""
        most = self.max_concurrency
        return f" At most {most:,.0f} sequences of {self.context:,} tokens at once." if most else ""


def memory_answer(
    model: Model, spec: ServingSpec, memory: ServingMemory, device: Accelerator | None, facts: Facts, *, context: int,
    concurrency: int, job: ServeJob | None = None,
) -> ServingMemoryAnswer:  # fmt: skip
    """The memory of one deployment, against what its engine uses of `device`."""
    layout, caches, known = spec.layout(), generates(model), device is not None
    usable = None if device is None else min(float(device.hbm_bytes), float(memory.usable_bytes))
    band, notes = _total_band(memory), (*model.assumptions, *memory.assumptions)
    return ServingMemoryAnswer(
        **fit_figures(float(memory.total_bytes), band, device, usable, notes, floor=memory.exact_bytes),
        model=model,
        num_gpus=int(layout.num_gpus),
        task="serve",
        facts=facts,
        items=tuple((n, float(size)) for n, size in memory.items.items() if size or (caches and n == "KV cache")),
        worst_rank="first or last pipeline stage" if layout.pp > 1 else "every rank",
        fits=bool(memory.fits) if known else None,
        quick=_capacity_rules(model, device, context, memory_frac=spec.memory_fraction, **spec.software(facts, device)),
        settings=(
            ("layout", layout.text),
            ("weights", f"{spec.weights}; KV cache {spec.kv_dtype or 'bf16'}" if caches else f"{spec.weights}"),
            ("load", f"{concurrency:,} x {context:,} tokens"),
            ("engine", job.engine.name if job is not None else spec.software(facts, device)["engine"].name),
        ),
        deployment=spec,
        layout=layout,
        memory=memory,
        concurrency=concurrency,
        context=context,
        job=job,
        kv_capacity_tokens=float(memory.kv_capacity_tokens) if known and caches else None,
        max_concurrency=float(memory.max_concurrency) if known else None,
        max_whole_contexts=float(memory.max_whole_contexts) if known else None,
    )


OWN_ROWS = 2
OWN_SOURCE = (
    "non-torch memory that vLLM logs: 3.05 GiB for Llama-3-8B on an H100 (pull request 10511), 0.57 GiB for a "
    "quantised mixture on cards of 24 GB (pull request 14447)"
)


def _total_band(memory: ServingMemory) -> ErrorBand:
    """The interval of a deployment's bytes: exact parts, what the format leaves open, and what the engine adds.

    Source: `OWN_SOURCE`. Assumes: as `ServingMemory.difference_ends`.
    """
    total = float(memory.total_bytes)
    low, high = (1.0 + difference / total for difference in memory.difference_ends())
    return ErrorBand(
        name="memory.serving", low=low, median=1.0, high=high, rows=OWN_ROWS, source=OWN_SOURCE, date="2026-11-26"
    )


def _capacity_rules(
    model: Model, device: Accelerator | None, context: int, *, weights: WeightFormat, **how: Any
) -> tuple[QuickFormula, ...]:
    """Weights over memory against the GPUs that it takes; `how` as `serving_memory`."""
    if device is None:
        return ()
    count = parameters(model)
    width = float(weight_bytes(model, weights)) / max(1, count)
    least = _least_layout(model, device, context, weights=weights, **how)
    rule = QuickFormula(
        name="GPUs", formula="parameters x bytes / memory, rounded up", unit="GPUs",
        value=float(quick_gpus(count, width, device.hbm_bytes, training=False)),
        estimate=None if least is None else float(least.num_gpus),
    )  # fmt: skip
    return (rule,)


def _least_layout(
    model: Model, device: Accelerator, context: int, *, concurrency: int = 1, **how: Any
) -> ServingLayout | None:  # fmt: skip
    """The layout of the fewest GPUs whose memory holds weights and sequences: tp of powers of two, then stages."""
    heads, _ = heads_and_experts(model)
    degrees = [t for t in (1, 2, 4, 8, 16) if (heads or t) % t == 0]
    stages = [p for p in (1, 2, 4, 8, 16) if p <= model.stacks[0].num_layers]
    pp, tp = (a.ravel() for a in np.meshgrid(stages, degrees, indexing="ij"))
    memory = serving_memory(
        model, ServingLayout(tp=tp, pp=pp), concurrency=concurrency, context=context, hbm_bytes=device.hbm_bytes,
        device_kind=device.kind, **how,
    )  # fmt: skip
    fits = np.flatnonzero(np.broadcast_to(np.asarray(memory.fits), tp.shape))
    if not fits.size:
        return None
    row = int(fits[(tp * pp)[fits].argmin()])
    return ServingLayout(tp=int(tp[row]), pp=int(pp[row]))
