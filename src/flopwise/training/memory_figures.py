"""Where the bytes of a training step come from, as a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.facts.software import CONTEXT
from flopwise.origin import number, total
from flopwise.provenance import Figure, derived, fact, given
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.stage_memory import trained_widths

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.memory import Memory

_SAID = {
    "weights": "parameters on the fullest rank x bytes each; ZeRO 3 keeps a share",
    "master weights": "a separate fp32 copy, sharded from ZeRO 1 on",
    "optimizer states": "parameters x bytes of states each, sharded from ZeRO 1 on",
    "gradients": "parameters x bytes of a gradient, sharded from ZeRO 2 on, at the fullest moment",
    "activations": "tensors that autograd keeps, layer by layer, all micro-batches in flight",
    "working set of one layer": "gradients between operations, and what recompute makes anew",
    "logits and loss": "micro-batch x tokens x vocabulary on the rank x bytes alive at once",
    "gathered layers": "full weights of layers that ZeRO 3 gathers",
    "16-bit copies of weights": "copies that autocast keeps of fp32 weights",
    "optimizer step": "temporary tensors of the optimizer",
    "communication buffers": "buckets of the software",
    "allocator": "reserved beyond what tensors take",
    CONTEXT: "context, workspaces and communicators",
}


def memory_figure(found: TrainEstimate) -> Figure:
    """The memory of an estimate's fullest GPU."""
    return step_memory_figure(found.job.model, found.job.recipe, found.job.layout, found.memory)


def step_memory_figure(model: Model, recipe: Recipe, layout: Layout, held: Memory) -> Figure:
    """The memory of the fullest GPU, item by item."""
    leaves = _leaves(model, recipe, layout)
    items = []
    for name, size in held.items.items():
        value = number(size)
        if value:
            formula = f"memory model: {_SAID.get(name, name)}"
            items.append(derived(name, value, "B", formula, *leaves.get(name, ())))
    return total("memory per GPU", "B", items, note=f"fullest: {held.worst_rank}")


def _leaves(model: Model, recipe: Recipe, layout: Layout) -> dict[str, tuple[Figure, ...]]:
    """What each item rests on."""
    row, chosen = recipe.stack, recipe.optimizer
    widths = trained_widths(recipe, MemoryTable(model, recipe))
    source = f"data/stacks.json, {row.name}: {row.source}"

    def software(name: str, value: float | str, unit: str = "B") -> Figure:
        return fact(name, value, unit, source=source, note=row.meaning)

    degrees = tuple(given(name, int(getattr(layout, name))) for name in ("dp", "tp", "pp", "cp", "ep"))
    groups = (given("ranks that share the shards", int(layout.shard)),) if layout.shard else ()
    shards = (*degrees, given("ZeRO stage", int(layout.zero)), *groups)
    states = fact(
        "bytes of optimizer states a parameter",
        widths.states,
        "B",
        source=f"data/optimizers.csv, {chosen.name}: {chosen.source}",
    )
    of_others = (
        ()
        if not widths.others
        else (
            fact(
                "more of embedding, head and norms",
                widths.others,
                "B",
                source=f"data/optimizers.csv, {chosen.name}: {chosen.source}",
            ),
        )
    )
    batch = (given("micro-batch", int(layout.micro_batch)), given("sequence length", int(recipe.seq_len)))
    kept = (
        *batch,
        *degrees,
        given("recompute", layout.recompute_text),
        software("kernels", row.activations, ""),
    )
    adapters = (
        ()
        if recipe.lora is None
        else (given("LoRA rank", recipe.lora.rank), given("base format", recipe.lora.base.name))
    )
    return {
        "weights": (software("bytes of a trained weight", widths.weights), *adapters, *shards),
        "master weights": (software("bytes of a master weight", widths.master), *shards),
        "optimizer states": (states, *of_others, *adapters, *shards),
        "gradients": (software("bytes of a gradient", widths.gradients), *adapters, *shards),
        "activations": kept,
        "working set of one layer": kept,
        "logits and loss": (
            *batch,
            given("vocabulary", model.vocab),
            software("bytes of a logit and its loss", row.loss_bytes),
        ),
        "gathered layers": (software("layers gathered at once", row.gathered_units, ""), *shards),
        "communication buffers": (software("buckets", row.buffer_bytes),),
        "allocator": (software("share reserved beyond tensors", row.fragmentation_frac, "frac"),),
        CONTEXT: (software("context", row.context_bytes),),
    }
