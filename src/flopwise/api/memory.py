"""Does it fit: memory per GPU of training or serving, item by item, and what would make it fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from flopwise.errors import SpecError
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
    host_bytes: float = 0.0  # offloaded, per GPU
    accelerator: Accelerator | None
    capacity_bytes: float | None
    usable_bytes: float | None  # what the engine takes of it at most; the whole device in training
    fits: bool | None
    fits_probability: float | None
    remedies: tuple[Remedy, ...] = ()  # those that suffice first, then by what they save
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
    model: Model | str, *, task: Literal["train", "serve"] = "train", gpu: str | None = None, grad_accum: int = 1,
    concurrency: int | None = None, context: int | None = None, **options: Any,
) -> MemoryAnswer:  # fmt: skip
    """Memory per GPU of one training step, or of serving `concurrency` sequences of `context` tokens.

    `options` are those of `DataSpec` and `TrainingSpec` in training (`seq="8k", zero=3, lora=16 ...`), of
    `ServingSpec` in serving (`weights="fp8", tp=8 ...`), and of `SourceSpec`; or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: only published figures of the model are known.
    """
    if task == "train":
        data, spec, source = take(options, DataSpec, TrainingSpec, SourceSpec)
    elif task == "serve":
        from flopwise.serving.spec import ServingSpec

        deployment, source = take(options, ServingSpec, SourceSpec)
    else:
        raise SpecError(f"unknown task {task!r}; allowed: train, serve")
    found, facts = source.model_with_layers(model), source.catalog
    resolution = None if gpu is None else facts.resolve(gpu)
    chip = None if resolution is None else resolution.accelerator
    if task == "train":
        answer = _training(found, data, spec, chip, facts, grad_accum)
    else:
        answer = _serving(found, deployment, chip, facts, concurrency or 1, context)
    notes = (resolution.note,) if resolution is not None and resolution.note else ()
    return replace(answer, assumptions=(*answer.assumptions, *notes))


def _training(
    model: Model, data: DataSpec, spec: TrainingSpec, chip: Accelerator | None, facts: Facts, grad_accum: int
) -> MemoryAnswer:
    """Memory of a training step, `grad_accum` micro-batches a step."""
    from flopwise.training.on_device import recipe_on
    from flopwise.training.routing import check_routing

    if grad_accum < 1:
        raise SpecError(f"gradient accumulation over {grad_accum} micro-batches; give 1 or more")
    seq_len = data.seq_len(model)
    layout = spec.layout(model, seq_len)
    in_a_step = int(layout.dp) * int(layout.micro_batch) * grad_accum
    spec = spec if chip is None else spec.on(chip, facts)
    wanted = spec.recipe(seq_len, in_a_step, facts, data.documents(seq_len))
    recipe, notes = (wanted, ()) if chip is None else recipe_on(wanted, chip)
    check_routing(model, recipe, layout)
    answer = of_training(model, recipe, layout, chip, facts, seq_given=data.seq is not None)
    return replace(answer, assumptions=(*notes, *answer.assumptions))


def of_training(
    model: Model, recipe: Recipe, layout: Layout, chip: Accelerator | None, facts: Facts, *, seq_given: bool = True
) -> MemoryAnswer:
    """The answer for one layout of one recipe."""
    from flopwise.facts.models.positions import check_length
    from flopwise.training.memory import memory_band, step_memory
    from flopwise.training.rules import memory_rules

    memory = step_memory(model, recipe, layout, device_kind="gpu" if chip is None else chip.kind)
    total, capacity = float(memory.total_bytes), None if chip is None else float(chip.hbm_bytes)
    default = "" if seq_given else " (the default; --seq sets it)"
    return _answer(
        model, memory, chip, capacity, memory_band(recipe, facts.calibration), facts,
        task="train",
        items=tuple((name, float(size)) for name, size in memory.items.items() if size),
        worst_rank=memory.worst_rank,
        host_bytes=float(memory.host_bytes),
        fits=None if capacity is None else total <= capacity,
        quick=memory_rules(model, recipe, layout, total, chip),
        settings=(
            ("layout", layout_text(layout)),
            ("micro-batch", f"{int(layout.micro_batch)} x {int(recipe.seq_len):,} tokens{default}"),
            ("recipe", recipe.text),
            ("stack", recipe.stack.name),
        ),
        assumptions=(*model.notes, *check_length(model, int(recipe.seq_len)), *memory.assumptions),
        training=(recipe, layout, memory),
        moments=tuple(sorted(((n, float(b)) for n, b in memory.moments.items()), key=lambda m: -m[1])),
    )  # fmt: skip


def layout_text(layout: Layout) -> str:
    """A layout on one line; degrees of 1 are left out."""
    from flopwise.training.schedules import NAMES

    degrees = [f"{n} {int(getattr(layout, n))}" for n in ("dp", "tp", "pp", "cp", "ep") if getattr(layout, n) > 1]
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
    offloads = [part for part in ("optimizer", "parameters", "activations") if getattr(layout, f"offload_{part}")]
    return ", ".join([*parts, f"recompute {layout.recompute_text}", *(f"{part} offloaded" for part in offloads)])


def _answer(
    model: Model, memory: Memory | ServingMemory, chip: Accelerator | None, usable: float | None, band: ErrorBand,
    facts: Facts, *, assumptions: tuple[str, ...], **parts: Any,
) -> MemoryAnswer:  # fmt: skip
    """The answer of which `parts` depend on the task, with what would make it fit where it does not."""
    total = float(memory.total_bytes)
    low, high = band.interval(total)
    if not band.rows:
        assumptions += (f"the interval is provisional: no measurements stand behind {band.name} yet",)
    answer = MemoryAnswer(
        model=model, per_gpu_bytes=total, low_bytes=float(low), high_bytes=float(high), accelerator=chip,
        capacity_bytes=None if chip is None else float(chip.hbm_bytes), usable_bytes=usable, band=band, facts=facts,
        fits_probability=None if usable is None else float(band.probability_at_most(total, usable)),
        assumptions=assumptions, **parts,
    )  # fmt: skip
    return replace(answer, remedies=tuple(memory_remedies(answer))) if answer.fits is False else answer


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
        answer.model, answer.serving[0], answer.facts, device=answer.accelerator, concurrency=answer.concurrency,
        context=answer.context, memory_frac=answer.deployment.memory_fraction,
        **answer.deployment.software(answer.facts),
    )  # fmt: skip


def _serving(
    model: Model, spec: ServingSpec, chip: Accelerator | None, facts: Facts, concurrency: int, context: int | None
) -> MemoryAnswer:
    """Memory of serving `concurrency` sequences of `context` tokens."""
    from flopwise.facts.models.positions import check_length
    from flopwise.serving.estimate import check_layout
    from flopwise.serving.memory import serving_memory

    spec, format_notes = spec.in_its_format(model)
    software, layout, each = spec.software(facts), spec.layout(), -(-concurrency // spec.dp)
    check_layout(model, layout)
    tokens = context or DataSpec().seq_len(model)
    length_notes = check_length(model, tokens, what="a context") if context else ()
    memory = serving_memory(
        model, layout, concurrency=each, context=tokens, hbm_bytes=None if chip is None else chip.hbm_bytes,
        **software, memory_frac=spec.memory_fraction, device_kind="gpu" if chip is None else chip.kind,
    )  # fmt: skip
    answer = of_serving(model, spec, layout, memory, chip, facts, context=tokens, concurrency=each)
    return replace(answer, assumptions=(*format_notes, *length_notes, *answer.assumptions))


def of_serving(
    model: Model, spec: ServingSpec, layout: ServingLayout, memory: ServingMemory, chip: Accelerator | None,
    facts: Facts, *, context: int, concurrency: int,
) -> MemoryAnswer:  # fmt: skip
    """The answer for one deployment."""
    from flopwise.cost.intervals import error_band
    from flopwise.serving.memory import generates
    from flopwise.serving.rules_of_thumb import capacity_rules

    band = error_band("memory.serving", facts.calibration)
    caches, known = generates(model), chip is not None
    return _answer(
        model, memory, chip, None if chip is None else min(float(chip.hbm_bytes), float(memory.usable_bytes)), band,
        facts,
        task="serve",
        items=tuple((n, float(size)) for n, size in memory.items.items() if size or (caches and n == "KV cache")),
        worst_rank="first or last pipeline stage" if layout.pp > 1 else "every rank",
        fits=bool(memory.fits) if known else None,
        quick=capacity_rules(model, chip, context, memory_frac=spec.memory_fraction, **spec.software(facts)),
        settings=(
            ("layout", layout.text),
            ("weights", f"{spec.weights}; KV cache {spec.kv_dtype or 'bf16'}" if caches else f"{spec.weights}"),
            ("load", f"{concurrency:,} x {context:,} tokens"),
            ("engine", spec.engine),
        ),
        assumptions=(*model.notes, *memory.assumptions),
        serving=(layout, memory),
        deployment=spec,
        concurrency=concurrency,
        context=context,
        kv_capacity_tokens=float(memory.kv_capacity_tokens) if known and caches else None,
        max_concurrency=float(memory.max_concurrency) if known else None,
        max_whole_contexts=float(memory.max_whole_contexts) if known else None,
    )  # fmt: skip
