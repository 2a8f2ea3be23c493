"""Single changes that would make a training job need less memory, each with the bytes that it saves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from flopwise.errors import FlopwiseError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.training.layout import TARGET_SETS, Layout, Lora, Recipe
from flopwise.training.memory import step_memory
from flopwise.training.stages import FULL

Change = tuple[str, Recipe, Layout]
Kind = Callable[[Model, Recipe, Layout], Iterator[Change]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRemedy:
    """One change of a job: what to do, what it saves on the fullest GPU, what is left, and whether that fits."""

    change: str
    saves_bytes: float
    total_bytes: float
    fits: bool


def _recompute(model: Model, recipe: Recipe, layout: Layout) -> Iterator[Change]:
    del model
    for mode, name in ((1, "selective"), (2, "full")):
        if int(layout.recompute) < mode or (mode == 2 and layout.recomputes_some):
            yield f"recompute activations ({name})", recipe, layout.recomputing(mode)


def _some_again(model: Model, recipe: Recipe, layout: Layout) -> Iterator[Change]:
    """Of every other block only: half of what full recompute saves, for half of its time."""
    del model
    if int(layout.recompute) < FULL:
        some = replace(layout, recompute=FULL, recompute_every=2)
        yield f"recompute activations ({some.recompute_text})", recipe, some


def _sharding(model: Model, recipe: Recipe, layout: Layout) -> Iterator[Change]:
    del model
    if int(layout.dp) * int(layout.cp) > 1 and int(layout.pp) == 1:
        if int(layout.shard):
            yield "shards over all ranks, not over groups of them", recipe, replace(layout, shard=0)
        for stage in range(int(layout.zero) + 1, recipe.stack.zero + 1):
            words = "parameters too: FSDP full shard" if stage == 3 else "gradients too" if stage == 2 else "states"
            yield f"ZeRO stage {stage} (shard {words})", recipe, replace(layout, zero=stage)
    elif int(layout.dp) * int(layout.cp) > 1 and int(layout.zero) == 0:
        yield "ZeRO stage 1 (shard optimizer states)", recipe, replace(layout, zero=1)


def _parallel(model: Model, recipe: Recipe, layout: Layout) -> Iterator[Change]:
    """Twice a degree: on the same GPUs where dp is even, else on twice as many."""
    dp = int(layout.dp)
    fewer = dp // 2 if dp % 2 == 0 else dp
    note = "" if dp % 2 == 0 else " on twice the GPUs"
    ep = min(int(layout.ep), max(1, fewer * int(layout.cp)))
    limits = {"tp": 8, "pp": model.stacks[0].num_layers, "cp": 64}
    for name, limit in limits.items():
        degree = 2 * int(getattr(layout, name))
        if degree <= limit and fewer * int(layout.cp) % max(1, int(layout.shard)) == 0:
            changed = layout.with_degrees(dp=fewer, ep=ep, **{name: degree})
            yield f"{name} {degree}{note}", recipe, changed
    if note == "" or int(layout.zero):
        yield "twice the GPUs (dp)", recipe, replace(layout, dp=2 * dp)


def _batch(model: Model, recipe: Recipe, layout: Layout) -> Iterator[Change]:
    del model
    if int(layout.micro_batch) > 1:
        half = int(layout.micro_batch) // 2
        yield f"micro-batch {half}", recipe, replace(layout, micro_batch=half)
        if half > 1:
            yield "micro-batch 1", recipe, replace(layout, micro_batch=1)
    if int(recipe.seq_len) >= 1024:
        half = int(recipe.seq_len) // 2
        yield f"sequences of {half:,} tokens", recipe.with_seq(half), layout
    if (recipe.loss_chunks or 1) == 1:
        yield "logits and loss in 8 chunks", replace(recipe, loss_chunks=8), layout


def _states(facts: Facts, model: Model, recipe: Recipe, layout: Layout) -> Iterator[Change]:
    del model
    if recipe.optimizer.name == "adamw":
        for name, words in (("adamw-8bit", "8-bit AdamW"), ("adafactor", "Adafactor"), ("muon", "Muon")):
            yield words, replace(recipe, optimizer=facts.optimizer(name)), layout
    if not layout.offload_optimizer:
        yield "optimizer states in host memory", recipe, replace(layout, offload_optimizer=True)
    if int(layout.zero) == 3 and not layout.offload_parameters:
        both = replace(layout, offload_parameters=True, offload_optimizer=True)
        yield "parameters and optimizer states in host memory", recipe, both
    if not layout.offload_activations:
        yield "activations in host memory", recipe, replace(layout, offload_activations=True)


def _adapters(facts: Facts, model: Model, recipe: Recipe, layout: Layout) -> Iterator[Change]:
    del model
    if recipe.lora is None:
        lora = Lora(rank=16, targets=TARGET_SETS["all-linear"])
        yield "LoRA (rank 16, all linear layers) instead of all weights", replace(recipe, lora=lora), layout
    elif recipe.lora.base.name in ("bf16", "fp16", "fp32"):
        quantised = replace(recipe.lora, base=facts.weight_format("nf4"))
        yield "QLoRA (base weights in NF4)", replace(recipe, lora=quantised), layout


_KINDS: tuple[Kind, ...] = (
    _recompute,
    _some_again,
    _sharding,
    _batch,
    _parallel,
)


def training_remedies(
    model: Model,
    recipe: Recipe,
    layout: Layout,
    facts: Facts,
    capacity_bytes: float | None = None,
    *,
    device_kind: str = "gpu",
) -> list[TrainingRemedy]:
    """Single changes of one job that save memory: those that fit first, then by what they save.

    `facts` has the optimizers and formats to change to; `capacity_bytes`: what the GPU has, None: nothing is known to
    fit.
    """
    now = float(step_memory(model, recipe, layout, device_kind=device_kind).total_bytes)
    found: list[TrainingRemedy] = []
    kinds: tuple[Kind, ...] = (*_KINDS, partial(_states, facts), partial(_adapters, facts))
    for kind in kinds:
        for change, new_recipe, new_layout in kind(model, recipe, layout):
            try:
                total = float(step_memory(model, new_recipe, new_layout, device_kind=device_kind).total_bytes)
            except FlopwiseError:  # a model without a projection to adapt, say: no remedy then
                continue
            if total < now:
                fits = capacity_bytes is not None and total <= capacity_bytes
                found.append(TrainingRemedy(change=change, saves_bytes=now - total, total_bytes=total, fits=fits))
    return sorted(found, key=lambda r: (not r.fits, -r.saves_bytes))
