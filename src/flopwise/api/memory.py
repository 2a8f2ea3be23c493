"""Does it fit: memory per GPU of training or serving, item by item, and what would make it fit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from flopwise.api.recipes import Method, check_length
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import defaults

if TYPE_CHECKING:
    from flopwise.changes.effects import Remedy
    from flopwise.cost.intervals import ErrorBand
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.facts.formats import CacheFormat, WeightFormat
    from flopwise.facts.software import Engine
    from flopwise.serving.memory import ServingLayout, ServingMemory
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.memory import Memory

DEFAULT_SEQ = 4096
"""Tokens of a sequence where none are given, or what the model is made for if that is less."""


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
    deployment: Deployment | None = None
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


class ServingSoftware(TypedDict):
    """With what a model is served: keywords of `ServeJob` and `serving_memory`."""

    weights: WeightFormat
    kv_dtype: CacheFormat
    engine: Engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """How a model is served, as people say it."""

    weights: str | None = None  # None: as the checkpoint is published
    kv_dtype: str | None = None
    concurrency: int | None = None
    context: int | None = None
    tp: int = 1
    pp: int = 1
    ep: int = 1
    dp: int = 1  # attention replicas that share the experts
    engine: str = defaults.ENGINE
    memory_frac: float | None = None

    def layout(self) -> ServingLayout:
        """How a replica is spread."""
        from flopwise.serving.memory import ServingLayout

        return ServingLayout(tp=self.tp, pp=self.pp, ep=self.ep, dp=self.dp)

    def software(self, facts: Facts) -> ServingSoftware:
        """Formats and engine, looked up.

        Raises:
            UnknownNameError, SpecError: there is no such format or engine.
        """
        return ServingSoftware(
            weights=facts.weight_format(self.weights or defaults.WEIGHTS),
            kv_dtype=facts.cache_format(self.kv_dtype or defaults.CACHE),
            engine=facts.engine(self.engine),
        )

    @property
    def layout_text(self) -> str:
        """The same on one line."""
        further = [f"{name} {value}" for name, value in (("ep", self.ep), ("dp", self.dp)) if value > 1]
        return ", ".join([f"tp {self.tp}", f"pp {self.pp}", *further])


def memory(
    model: Model | str,
    *,
    task: Literal["train", "serve"] = "train",
    gpu: str | None = None,
    seq: int | None = None,
    grad_accum: int = 1,
    how: Method | None = None,
    deployment: Deployment | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **said: Any,
) -> MemoryAnswer:
    """Memory per GPU of one training step, or of serving `concurrency` sequences of `context` tokens.

    Further keywords are the fields of `Method` (training) or `Deployment` (serving): `tp=8, zero=3, lora=16 ...`.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: only published figures of the model are known.
    """
    from flopwise.api.machines import described, loaded
    from flopwise.facts.catalog import load_facts

    found = described(loaded(model, assume_family=assume_family, offline=offline, facts=facts))
    known = load_facts(facts)
    resolution = None if gpu is None else known.resolve(gpu)
    chip = None if resolution is None else resolution.accelerator
    notes = (resolution.note,) if resolution is not None and resolution.note else ()
    if task == "train":
        method = overridden(how or Method(), said)
        answer = training_memory(found, method, chip, known, seq=seq, grad_accum=grad_accum)
    elif task == "serve":
        answer = serving_memory_answer(found, overridden(deployment or Deployment(), said), chip, known)
    else:
        raise SpecError(f"unknown task {task!r}; allowed: train, serve")
    return replace(answer, assumptions=(*answer.assumptions, *notes))


def overridden(given: Any, said: dict[str, Any]) -> Any:
    """`given` with the fields of `said` replaced.

    Raises:
        SpecError: no such field; names the nearest.
    """
    from dataclasses import fields

    from flopwise.errors import nearest_names

    known = [f.name for f in fields(given)]
    for name in said:
        if name not in known:
            near = nearest_names(name, known)
            raise SpecError(
                f"unknown argument {name!r}; {f'nearest: {near[0]}; ' if near else ''}there are {', '.join(known)}"
            )
    return replace(given, **said)


def default_seq(model: Model, seq: int | None) -> int:
    """Tokens of a sequence: as given, as the model has it fixed, or the default."""
    fixed = model.stacks[0].tokens_per_sample
    if fixed is not None:
        return fixed
    if seq is not None:
        check_length(model, seq)
        return seq
    return min(DEFAULT_SEQ, model.max_position or DEFAULT_SEQ)


def training_memory(
    model: Model, how: Method, chip: Accelerator | None, facts: Facts, *, seq: int | None, grad_accum: int
) -> MemoryAnswer:
    """Memory of a training step of `how`, `grad_accum` micro-batches a step."""
    from flopwise.training.routing import check_routing

    if grad_accum < 1:
        raise SpecError(f"gradient accumulation over {grad_accum} micro-batches; give 1 or more")
    seq_len = default_seq(model, seq)
    layout = how.layout(model, seq_len)
    in_a_step = int(layout.dp) * int(layout.micro_batch) * grad_accum
    recipe = (how if chip is None else how.on(chip, facts)).recipe(seq_len, in_a_step, facts)
    check_routing(model, recipe, layout)
    return of_training(model, recipe, layout, chip, facts, seq_given=seq is not None)


def of_training(
    model: Model, recipe: Recipe, layout: Layout, chip: Accelerator | None, facts: Facts, *, seq_given: bool = True
) -> MemoryAnswer:
    """The answer for one layout of one recipe."""
    from flopwise.training.memory import step_memory
    from flopwise.training.rules_of_thumb import memory_rules

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


def in_its_format(model: Model, asked: Deployment) -> tuple[Deployment, tuple[str, ...]]:
    """`asked` with the checkpoint's own weight format where none was given, and the sentence that says so."""
    if asked.weights is not None:
        return asked, ()
    own = model.checkpoint_format
    told = () if own is None else (f"weights in {own}, as the checkpoint of {model.name} is published",)
    return replace(asked, weights=own or defaults.WEIGHTS), told


def serving_memory_answer(model: Model, asked: Deployment, chip: Accelerator | None, facts: Facts) -> MemoryAnswer:
    """Memory of serving as `asked`."""
    from flopwise.serving.estimate import check_layout
    from flopwise.serving.memory import serving_memory

    asked, native = in_its_format(model, asked)
    software = asked.software(facts)
    check_layout(model, asked.layout())
    context = asked.context or default_seq(model, None)
    stretched = check_length(model, context, what="a context") if asked.context else ()
    layout = asked.layout()
    concurrency = -(-(asked.concurrency or 1) // asked.dp)
    held = serving_memory(
        model,
        layout,
        concurrency=concurrency,
        context=context,
        hbm_bytes=None if chip is None else chip.hbm_bytes,
        **software,
        memory_frac=asked.memory_frac,
        device_kind="gpu" if chip is None else chip.kind,
    )
    answer = of_serving(model, asked, layout, held, chip, facts, context=context, concurrency=concurrency)
    return replace(answer, assumptions=(*native, *stretched, *answer.assumptions))


def memory_remedies(answer: MemoryAnswer) -> list[Remedy]:
    """Single changes that save memory, those that fit first; whether the job or the service fits already or not."""
    from flopwise.changes.serving import serving_remedies
    from flopwise.changes.training import training_remedies

    if answer.training is not None:
        recipe, layout, _ = answer.training
        kind = "gpu" if answer.accelerator is None else answer.accelerator.kind
        return training_remedies(answer.model, recipe, layout, answer.facts, answer.capacity_bytes, device_kind=kind)
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
        memory_frac=answer.deployment.memory_frac,
    )


def _with_remedies(answer: MemoryAnswer) -> MemoryAnswer:
    """The answer with what would make it fit, where it does not."""
    return replace(answer, remedies=tuple(memory_remedies(answer))) if answer.fits is False else answer


def of_serving(
    model: Model,
    asked: Deployment,
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
            quick=capacity_rules(model, chip, context, memory_frac=asked.memory_frac, **asked.software(facts)),
            settings=(
                ("layout", asked.layout_text),
                ("weights", f"{asked.weights}; KV cache {asked.kv_dtype or 'bf16'}" if caches else f"{asked.weights}"),
                ("load", f"{concurrency:,} x {context:,} tokens"),
                ("engine", asked.engine),
            ),
            assumptions=(*model.notes, *held.assumptions, *_band_notes(band)),
            serving=(layout, held),
            facts=facts,
            deployment=asked,
            concurrency=concurrency,
            context=context,
            kv_capacity_tokens=None if chip is None or not caches else float(held.kv_capacity_tokens),
            max_concurrency=None if chip is None else float(held.max_concurrency),
            max_whole_contexts=None if chip is None else float(held.max_whole_contexts),
        )
    )
