"""Single changes of a training job, with their effect on memory, speed and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from flopwise.changes.effects import (
    Headline,
    MemoryAfter,
    Sensitivity,
    faster_clusters,
    ranked_remedies,
    ranked_sensitivities,
)
from flopwise.cost.memory_answer import Remedy
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.software import RECOMPUTE
from flopwise.ops.degrees import check_expert_parallel, check_pipeline, check_tensor_parallel
from flopwise.training.layout import TARGET_SETS, Layout, Lora, Recipe
from flopwise.training.memory import step_memory
from flopwise.training.on_device import recipe_on
from flopwise.training.stages import FULL
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.job import TrainJob

PRECISIONS = ("bf16", "fp8", "nvfp4")
OPTIMIZERS = {"adamw-8bit": "8-bit AdamW", "adafactor": "Adafactor", "muon": "Muon"}
STAGES = ("", " (shard states)", " (shard gradients too)", " (shard parameters too: FSDP full shard)")
MOST_DEGREES = {"tp": 8, "cp": 64}
LEAST_SEQ = 1024
"""Sequences from which on half of one is a remedy."""
SAVING = (
    "recompute", "sharding", "micro-batch", "length", "loss", "degrees", "devices", "optimizer", "offload", "adapters"
)  # fmt: skip
MOVING = ("precision", "recompute", "micro-batch", "batch", "length", "degrees", "sharding")


@dataclass(frozen=True, slots=True)
class TrainingSetup:
    """The settings that a change modifies: recipe, layout, and what they run on."""

    model: Model
    recipe: Recipe
    layout: Layout
    facts: Facts  # optimizers and formats to change to


Change = tuple[str, Recipe, Layout]


def training_changes(setup: TrainingSetup, kinds: Iterable[str]) -> Iterator[Change]:
    """(name, recipe, layout) of each change of these kinds whose degrees the model allows."""
    for kind in kinds:
        for name, recipe, layout in CHANGES[kind](setup):
            if _allows(setup.model, recipe, layout):
                yield name, recipe, layout


def remedies(setup: TrainingSetup, capacity_bytes: float | None = None, *, device_kind: str = "gpu") -> list[Remedy]:
    """Single changes of one job that save memory: those that fit first, then by what they save.

    `capacity_bytes`: what the GPU has, None: nothing is known to fit.
    """

    def memory(recipe: Recipe, layout: Layout) -> Callable[[], MemoryAfter]:
        def after() -> MemoryAfter:
            changed = step_memory(setup.model, recipe, layout, device_kind=device_kind)
            total = float(changed.total_bytes)
            return changed.items, total, capacity_bytes is not None and total <= capacity_bytes

        return after

    changes = ((name, memory(recipe, layout)) for name, recipe, layout in training_changes(setup, SAVING))
    return ranked_remedies(memory(setup.recipe, setup.layout)()[1], changes)


def sensitivities(now: TrainEstimate, facts: Facts, *, can_run: bool = True) -> tuple[Sensitivity, ...]:
    """Time, memory and cost of a token after each single change over those before; the largest effect first.

    Of what cannot run, the memory alone.
    """
    from flopwise.training.estimate import estimate  # noqa: PLC0415 - remedies of memory need no times

    job = now.job

    def headline(job: TrainJob) -> Callable[[], tuple[Headline, str]]:
        def after() -> tuple[Headline, str]:
            step = now if job is now.job else estimate(job)
            memory, usd = float(step.memory.total_bytes), job.cluster.usd_per_gpu_hour
            cost = None if usd is None else step.num_gpus * usd / step.tokens_per_s
            fits = memory <= job.cluster.accelerator.hbm_bytes
            if not can_run:
                return {"memory": memory}, "" if fits else "does not fit"
            figures = {"time per token": 1.0 / step.tokens_per_s, "memory": memory, "cost per token": cost}
            return figures, "" if fits else "does not fit"

        return after

    faster = ((name, headline(replace(job, cluster=c))) for name, c in faster_clusters(job.cluster, now.num_gpus))
    device = job.cluster.accelerator
    changes = (
        change
        for change in training_changes(TrainingSetup(job.model, job.recipe, job.layout, facts), MOVING)
        if recipe_on(change[1], device)[0] is change[1]
    )
    changed = ((name, headline(replace(job, recipe=r, layout=shape))) for name, r, shape in changes)
    return ranked_sensitivities(headline(job)()[0], (*faster, *changed))


def _allows(model: Model, recipe: Recipe, layout: Layout) -> bool:
    """True if heads, experts, layers and the sequence allow the degrees."""
    try:
        check_tensor_parallel(model, int(layout.tp))
        check_expert_parallel(model, int(layout.ep))
        check_pipeline(model, int(layout.pp))
    except SpecError:
        return False
    return int(recipe.seq_len) % int(layout.cp) == 0


def _precision(setup: TrainingSetup) -> Iterator[Change]:
    for precision in PRECISIONS:
        if precision != setup.recipe.precision:
            yield f"precision {precision}", replace(setup.recipe, precision=precision), setup.layout


def _recompute(setup: TrainingSetup) -> Iterator[Change]:
    """Another mode for all blocks, or full recompute of some blocks only."""
    recipe, layout = setup.recipe, setup.layout
    for mode, name in enumerate(RECOMPUTE):
        if mode != int(layout.recompute) or layout.recomputes_some:
            yield f"recompute {name}", recipe, replace(layout, recompute=mode, recompute_every=1, recompute_first=0)
    every = 2 * int(layout.recompute_every) if int(layout.recompute) == FULL else 2
    some = replace(layout, recompute=FULL, recompute_every=every, recompute_first=0)
    yield f"recompute {some.recompute_text}", recipe, some


def _sharding(setup: TrainingSetup) -> Iterator[Change]:
    recipe, layout = setup.recipe, setup.layout
    if int(layout.dp) * int(layout.cp) == 1:
        return
    if int(layout.shard):
        yield "shards over all ranks, not over groups of them", recipe, replace(layout, shard=0)
    for stage in recipe.zero_stages(piped=int(layout.pp) > 1):
        if stage != int(layout.zero):
            shard = layout.shard if stage else 0
            yield f"ZeRO stage {stage}{STAGES[stage]}", recipe, replace(layout, zero=stage, shard=shard)


def _micro_batch(setup: TrainingSetup) -> Iterator[Change]:
    """Half, one, or twice as many sequences at once; with twice the global batch where that one does not divide."""
    recipe, layout = setup.recipe, setup.layout
    size, batch = int(layout.micro_batch), int(recipe.global_batch)
    for smaller in sorted({size // 2, 1} - {0, size}, reverse=True):
        yield f"micro-batch {smaller}", recipe, replace(layout, micro_batch=smaller)
    twice = replace(layout, micro_batch=2 * size)
    if batch % (2 * size * int(layout.dp)) == 0:
        yield f"micro-batch {2 * size}", recipe, twice
    else:
        yield f"micro-batch {2 * size}, global batch {2 * batch}", replace(recipe, global_batch=2 * batch), twice


def _batch(setup: TrainingSetup) -> Iterator[Change]:
    twice = replace(setup.recipe, global_batch=2 * int(setup.recipe.global_batch))
    yield "global batch x 2", twice, setup.layout


def _loss(setup: TrainingSetup) -> Iterator[Change]:
    if (setup.recipe.loss_chunks or 1) == 1:
        yield "logits and loss in 8 chunks", replace(setup.recipe, loss_chunks=8), setup.layout


def _length(setup: TrainingSetup) -> Iterator[Change]:
    tokens, documents = int(setup.recipe.seq_len), setup.recipe.documents
    for other in (*((tokens // 2,) if tokens >= LEAST_SEQ else ()), 2 * tokens):
        within = None if documents is None else documents.within(other)
        yield f"sequences of {other:,} tokens", replace(setup.recipe, seq_len=other, documents=within), setup.layout


def _degrees(setup: TrainingSetup) -> Iterator[Change]:
    """Twice a degree: on the same GPUs where dp is even, else on twice as many."""
    recipe, layout = setup.recipe, setup.layout
    dp = int(layout.dp)
    fewer, where = (dp // 2, f", dp {dp // 2}") if dp % 2 == 0 else (dp, " on twice the GPUs")
    ep = min(int(layout.ep), max(1, fewer * int(layout.cp)))
    limits = MOST_DEGREES | {"pp": setup.model.stacks[0].num_layers}
    for name in ("tp", "pp", "cp"):
        degree = 2 * int(getattr(layout, name))
        if (
            name in recipe.stack.degrees
            and degree <= limits[name]
            and fewer * int(layout.cp) % max(1, int(layout.shard)) == 0
        ):
            yield f"{name} {degree}{where}", recipe, layout.with_degrees(dp=fewer, ep=ep, **{name: degree})


def _devices(setup: TrainingSetup) -> Iterator[Change]:
    layout = setup.layout
    wider = replace(layout, dp=2 * int(layout.dp), zero=max(1, int(layout.zero)))
    yield "twice the GPUs (dp)", setup.recipe, wider


def _optimizer(setup: TrainingSetup) -> Iterator[Change]:
    if setup.recipe.optimizer.name == "adamw":
        for name, words in OPTIMIZERS.items():
            yield words, replace(setup.recipe, optimizer=setup.facts.optimizer(name)), setup.layout


def _offload(setup: TrainingSetup) -> Iterator[Change]:
    recipe, layout = setup.recipe, setup.layout
    if not layout.offload_optimizer:
        yield "optimizer states in host memory", recipe, replace(layout, offload_optimizer=True)
    if int(layout.zero) == 3 and not layout.offload_parameters:
        both = replace(layout, offload_parameters=True, offload_optimizer=True)
        yield "parameters and optimizer states in host memory", recipe, both
    if not layout.offload_activations:
        yield "activations in host memory", recipe, replace(layout, offload_activations=True)


def _adapters(setup: TrainingSetup) -> Iterator[Change]:
    recipe = setup.recipe
    if recipe.lora is None:
        lora = Lora(rank=16, targets=TARGET_SETS["all-linear"])
        adapted = replace(recipe, lora=lora, frozen=None)
        yield "LoRA (rank 16, all linear layers) instead of all weights", adapted, setup.layout
    elif recipe.lora.base.name in ("bf16", "fp16", "fp32"):
        quantised = replace(recipe.lora, base=setup.facts.weight_format("nf4"))
        yield "QLoRA (base weights in NF4)", replace(recipe, lora=quantised), setup.layout


CHANGES: dict[str, Callable[[TrainingSetup], Iterator[Change]]] = {
    "precision": _precision, "recompute": _recompute, "sharding": _sharding, "micro-batch": _micro_batch,
    "batch": _batch, "length": _length, "degrees": _degrees, "devices": _devices, "loss": _loss,
    "optimizer": _optimizer, "offload": _offload, "adapters": _adapters,
}  # fmt: skip
"""Each kind of change: a question names those that it asks about."""
