"""Does it fit: memory per GPU of training or serving, item by item, and what would make it fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import take
from flopwise.training.spec import DataSpec, TrainingSpec

if TYPE_CHECKING:
    from flopwise.changes.effects import Remedy
    from flopwise.cost.intervals import ErrorBand
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.serving.memory import ServingLayout, ServingMemory
    from flopwise.serving.spec import ServingSpec
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.memory import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnswer:
    """Bytes per GPU on the fullest rank; `low_bytes` to `high_bytes` is its 10-90 % interval. None where not known."""

    model: Model
    task: str
    per_gpu_bytes: float
    low_bytes: float
    high_bytes: float
    items: tuple[tuple[str, float], ...]
    worst_rank: str
    host_bytes: float  # offloaded, per GPU
    accelerator: Accelerator | None
    capacity_bytes: float | None
    usable_bytes: float | None  # what the engine takes of it at most; the whole device in training
    fits: bool | None
    fits_probability: float | None
    remedies: tuple[Remedy, ...]  # those that suffice first, then by what they save
    band: ErrorBand
    facts: Facts  # what the answer stands on
    quick: tuple[QuickFormula, ...]
    settings: tuple[tuple[str, str], ...]  # what was asked, and what was assumed where it was not
    assumptions: tuple[str, ...]
    training: tuple[Recipe, Layout, Memory] | None = None
    serving: tuple[ServingLayout, ServingMemory] | None = None
    deployment: ServingSpec | None = None
    concurrency: int = 1  # serving: sequences of one attention replica, and tokens of each
    context: int = 0
    moments: tuple[tuple[str, float], ...] = ()  # training: bytes at each moment of a step, the fullest first
    kv_capacity_tokens: float | None = None
    max_concurrency: float | None = None
    max_whole_contexts: float | None = None

    @property
    def margin_bytes(self) -> float | None:
        """What is left of what may be used; negative when it does not fit."""
        return None if self.usable_bytes is None else self.usable_bytes - self.per_gpu_bytes


def memory(
    model: Model | str,
    *,
    task: Literal["train", "serve"] = "train",
    gpu: str | None = None,
    grad_accum: int = 1,
    concurrency: int | None = None,
    context: int | None = None,
    data: DataSpec | None = None,
    spec: TrainingSpec | None = None,
    deployment: ServingSpec | None = None,
    facts: Path | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **keywords: Any,
) -> MemoryAnswer:
    """Memory per GPU of one training step, or of serving `concurrency` sequences of `context` tokens.

    Further keywords are options: of `DataSpec` and `TrainingSpec` in training (`seq="8k", zero=3, lora=16 ...`), of
    `ServingSpec` in serving (`weights="fp8", tp=8 ...`).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: only published figures of the model are known.
    """
    source = SourceSpec(facts=facts, assume_family=assume_family, offline=offline)
    found, known = source.layered(model), source.known
    resolution = None if gpu is None else known.resolve(gpu)
    chip = None if resolution is None else resolution.accelerator
    notes = (resolution.note,) if resolution is not None and resolution.note else ()
    if task == "train":
        read, method = take(keywords, data or DataSpec(), spec or TrainingSpec())
        answer = _training(found, read, method, chip, known, grad_accum)
    elif task == "serve":
        from flopwise.serving.spec import ServingSpec

        (served,) = take(keywords, deployment or ServingSpec())
        answer = _serving(found, served, chip, known, concurrency or 1, context)
    else:
        raise SpecError(f"unknown task {task!r}; allowed: train, serve")
    return replace(answer, assumptions=(*answer.assumptions, *notes))


def _training(
    model: Model, data: DataSpec, spec: TrainingSpec, chip: Accelerator | None, facts: Facts, grad_accum: int
) -> MemoryAnswer:
    """Memory of a training step, `grad_accum` micro-batches a step."""
    from flopwise.training.routing import check_routing

    if grad_accum < 1:
        raise SpecError(f"gradient accumulation over {grad_accum} micro-batches; give 1 or more")
    seq_len = data.seq_len(model)
    layout = spec.layout(model, seq_len)
    in_a_step = int(layout.dp) * int(layout.micro_batch) * grad_accum
    spec = spec if chip is None else spec.on(chip, facts)
    recipe = spec.recipe(seq_len, in_a_step, facts, data.documents(seq_len))
    check_routing(model, recipe, layout)
    return of_training(model, recipe, layout, chip, facts, seq_given=data.seq is not None)


def of_training(
    model: Model, recipe: Recipe, layout: Layout, chip: Accelerator | None, facts: Facts, *, seq_given: bool = True
) -> MemoryAnswer:
    """The answer for one layout of one recipe."""
    from flopwise.facts.models.positions import check_length
    from flopwise.training.memory import step_memory
    from flopwise.training.rules import memory_rules

    kind = "gpu" if chip is None else chip.kind
    held = step_memory(model, recipe, layout, device_kind=kind)
    total, capacity = float(held.total_bytes), None if chip is None else float(chip.hbm_bytes)
    fits = None if capacity is None else total <= capacity
    band = memory_band("full" if recipe.lora is None else "adapters", facts)
    low, high = band.interval(total)
    said = "" if seq_given else " (the default; --seq sets it)"
    stretched = check_length(model, int(recipe.seq_len))
    return _with_remedies(
        MemoryAnswer(
            model=model,
            task="train",
            per_gpu_bytes=total,
            low_bytes=float(low),
            high_bytes=float(high),
            items=tuple((name, float(size)) for name, size in held.items.items() if size),
            worst_rank=held.worst_rank,
            host_bytes=float(held.host_bytes),
            accelerator=chip,
            capacity_bytes=capacity,
            usable_bytes=capacity,
            fits=fits,
            fits_probability=None if capacity is None else float(band.probability_at_most(total, capacity)),
            remedies=(),
            band=band,
            quick=memory_rules(model, recipe, layout, total, chip),
            settings=(
                ("layout", layout_text(layout)),
                ("micro-batch", f"{int(layout.micro_batch)} x {int(recipe.seq_len):,} tokens{said}"),
                ("recipe", recipe_text(recipe)),
                ("stack", recipe.stack.name),
            ),
            assumptions=(*model.notes, *stretched, *held.assumptions, *_band_notes(band)),
            training=(recipe, layout, held),
            facts=facts,
            moments=tuple(sorted(((n, float(b)) for n, b in held.moments.items()), key=lambda m: -m[1])),
        )
    )


def layout_text(layout: Layout) -> str:
    """The layout on one line; degrees of 1 are left out."""
    from flopwise.training.schedules import NAMES

    degrees = [
        f"{name} {int(getattr(layout, name))}" for name in ("dp", "tp", "pp", "cp", "ep") if getattr(layout, name) > 1
    ]
    zero, parts = int(layout.zero), degrees or ["1 GPU"]
    if zero:
        groups = f" over groups of {int(layout.shard)}" if layout.shard else ""
        parts.append((f"ZeRO {zero}" if zero < 3 else "HSDP" if groups else "ZeRO 3 (FSDP)") + groups)
    if layout.schedule:
        parts.append(f"{NAMES[int(layout.schedule)]} schedule")
    if layout.interleave > 1:
        parts.append(f"interleave {int(layout.interleave)}")
    if layout.stage_layers:
        parts.append(f"{'+'.join(map(str, layout.stage_layers))} layers")
    parts.append(f"recompute {layout.recompute_text}")
    parts += [
        f"{part} offloaded" for part in ("optimizer", "parameters", "activations") if getattr(layout, f"offload_{part}")
    ]
    return ", ".join(parts)


def recipe_text(recipe: Recipe) -> str:
    """The recipe on one line."""
    parts = [recipe.precision, recipe.optimizer.name, f"{recipe.attention} attention"]
    if recipe.lora is not None:
        base = recipe.lora.base.name
        name = "LoRA" if base in {"bf16", "fp16", "fp32"} else f"QLoRA ({base})"
        parts.append(f"{name} rank {recipe.lora.rank} on {', '.join(recipe.lora.targets)}")
    if recipe.frozen is not None:
        parts.append(f"frozen: {recipe.frozen.text}")
    if recipe.capacity_factor is not None:
        parts.append(f"expert capacity factor {recipe.capacity_factor:g}")
    if recipe.expert_skew > 1:
        parts.append(f"expert skew {recipe.expert_skew:g}")
    if recipe.documents is not None:
        parts.append(f"documents of {recipe.documents.mean:,.0f} tokens, {recipe.documents.packing}")
    return ", ".join(parts)


def memory_band(kind: str, facts: Facts) -> ErrorBand:
    """The measured error band of a class of memory estimates, or of all of them.

    Raises:
        MissingFactError: there is none.
    """
    from flopwise.cost.intervals import error_band

    try:
        return error_band(f"memory.{kind}", facts.calibration)
    except MissingFactError:
        return error_band("memory", facts.calibration)


def _band_notes(band: ErrorBand) -> tuple[str, ...]:
    return () if band.rows else (f"the interval is provisional: no measurements stand behind {band.name} yet",)


def _serving(
    model: Model, spec: ServingSpec, chip: Accelerator | None, facts: Facts, concurrency: int, context: int | None
) -> MemoryAnswer:
    """Memory of serving `concurrency` sequences of `context` tokens."""
    from flopwise.facts.models.positions import check_length
    from flopwise.serving.estimate import check_layout
    from flopwise.serving.memory import serving_memory

    spec, native = spec.in_its_format(model)
    software = spec.software(facts)
    check_layout(model, spec.layout())
    tokens = context or DataSpec().seq_len(model)
    stretched = check_length(model, tokens, what="a context") if context else ()
    layout, each = spec.layout(), -(-concurrency // spec.dp)
    held = serving_memory(
        model,
        layout,
        concurrency=each,
        context=tokens,
        hbm_bytes=None if chip is None else chip.hbm_bytes,
        **software,
        memory_frac=spec.memory_fraction,
        device_kind="gpu" if chip is None else chip.kind,
    )
    answer = of_serving(model, spec, layout, held, chip, facts, context=tokens, concurrency=each)
    return replace(answer, assumptions=(*native, *stretched, *answer.assumptions))


def memory_remedies(answer: MemoryAnswer) -> list[Remedy]:
    """Single changes that save memory, those that fit first; whether the job or the service fits already or not."""
    if answer.training is not None:
        from flopwise.changes.training import TrainingSetup, training_remedies

        recipe, layout, _ = answer.training
        kind = "gpu" if answer.accelerator is None else answer.accelerator.kind
        setup = TrainingSetup(answer.model, recipe, layout, answer.facts)
        return training_remedies(setup, answer.capacity_bytes, device_kind=kind)
    from flopwise.changes.serving import serving_remedies

    assert answer.serving is not None
    assert answer.deployment is not None
    return serving_remedies(
        answer.model,
        answer.serving[0],
        answer.facts,
        device=answer.accelerator,
        concurrency=answer.concurrency,
        context=answer.context,
        **answer.deployment.software(answer.facts),
        memory_frac=answer.deployment.memory_fraction,
    )


def _with_remedies(answer: MemoryAnswer) -> MemoryAnswer:
    """The answer with what would make it fit, where it does not."""
    return replace(answer, remedies=tuple(memory_remedies(answer))) if answer.fits is False else answer


def of_serving(
    model: Model,
    spec: ServingSpec,
    layout: ServingLayout,
    held: ServingMemory,
    chip: Accelerator | None,
    facts: Facts,
    *,
    context: int,
    concurrency: int,
) -> MemoryAnswer:
    """The answer for one deployment whose memory is `held`."""
    from flopwise.serving.memory import generates
    from flopwise.serving.rules_of_thumb import capacity_rules

    caches = generates(model)
    total = float(held.total_bytes)
    band = memory_band("serving", facts)
    low, high = band.interval(total)
    usable = None if chip is None else min(float(chip.hbm_bytes), float(held.usable_bytes))
    return _with_remedies(
        MemoryAnswer(
            model=model,
            task="serve",
            per_gpu_bytes=total,
            low_bytes=float(low),
            high_bytes=float(high),
            items=tuple((n, float(size)) for n, size in held.items.items() if size or (caches and n == "KV cache")),
            worst_rank="first or last pipeline stage" if layout.pp > 1 else "every rank",
            host_bytes=0.0,
            accelerator=chip,
            capacity_bytes=None if chip is None else float(chip.hbm_bytes),
            usable_bytes=usable,
            fits=None if chip is None else bool(held.fits),
            fits_probability=None if usable is None else float(band.probability_at_most(total, usable)),
            remedies=(),
            band=band,
            quick=capacity_rules(model, chip, context, memory_frac=spec.memory_fraction, **spec.software(facts)),
            settings=(
                ("layout", layout.text),
                ("weights", f"{spec.weights}; KV cache {spec.kv_dtype or 'bf16'}" if caches else f"{spec.weights}"),
                ("load", f"{concurrency:,} x {context:,} tokens"),
                ("engine", spec.engine),
            ),
            assumptions=(*model.notes, *held.assumptions, *_band_notes(band)),
            serving=(layout, held),
            facts=facts,
            deployment=spec,
            concurrency=concurrency,
            context=context,
            kv_capacity_tokens=None if chip is None or not caches else float(held.kv_capacity_tokens),
            max_concurrency=None if chip is None else float(held.max_concurrency),
            max_whole_contexts=None if chip is None else float(held.max_whole_contexts),
        )
    )
