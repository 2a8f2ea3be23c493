"""Where the figures of a training estimate come from, as one tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.facts.software import CONTEXT
from flopwise.origin import KERNEL, estimate_of, interval, number, total
from flopwise.provenance import Figure, fact, setting, term
from flopwise.training.estimate import TrainEstimate, again_frac, counted_flops, counted_passes
from flopwise.training.run_figures import RunFigures
from flopwise.training.widths import trained_widths

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.memory import Memory

_MEMORY_ITEMS = {
    "weights": "parameters on the fullest rank x bytes each; ZeRO 3 keeps a share",
    "master weights": "a separate fp32 copy, sharded from ZeRO 1 on",
    "optimizer states": "parameters x bytes of states each, sharded from ZeRO 1 on",
    "gradients": "parameters x bytes of a gradient, sharded from ZeRO 2 on, at the fullest moment",
    "activations": "tensors that autograd keeps, layer by layer, all micro-batches in flight",
    "working set of one layer": "gradients between operations, and recomputed activations",
    "logits and loss": "micro-batch x tokens x vocabulary on the rank x bytes alive at once",
    "gathered layers": "full weights of layers that ZeRO 3 gathers",
    "16-bit copies of weights": "copies that autocast keeps of fp32 weights",
    "optimizer step": "temporary tensors of the optimizer",
    "communication buffers": "buckets of the software",
    "allocator": "memory reserved beyond live tensors",
    CONTEXT: "context, workspaces and communicators",
}


def train_figure(estimate: TrainEstimate, *, can_run: bool = True) -> Figure:
    """The tree of an estimate: throughput with its interval, utilisation, bounds, memory and the run.

    What cannot run has memory alone.
    """
    tree, job = _TrainingTree(estimate), estimate.job
    memory = step_memory_figure(job.model, job.recipe, job.layout, estimate.memory)
    figures = [memory]
    if can_run:
        figures = [*tree.throughput(), *tree.utilisation(), *tree.bounds(), memory, *tree.run()]
    return estimate_of(f"{job.model.name} on {estimate.num_gpus:,} x {job.cluster.accelerator.name}", figures)


class _TrainingTree(RunFigures):
    """The headline figures over the step's."""

    def throughput(self) -> list[Figure]:
        """Tokens per second, for each GPU with its interval."""
        estimate, name = self.estimate, "throughput per GPU"
        tokens = number(self.recipe.global_batch) * number(self.computed.value)
        self.add("computed tokens per step", tokens, "tokens", f"global batch x {self.computed.name}")
        self.add("throughput", estimate.tokens_per_s, "tokens/s", "computed tokens per step / step time")
        each = self.add(name, estimate.tokens_per_s_per_gpu, "tokens/s", "throughput / GPUs")
        return [each, *interval(name, each, estimate.band, estimate.low, estimate.high)]

    def utilisation(self) -> list[Figure]:
        """MFU in both conventions, and HFU."""
        estimate = self.estimate
        self.add_count("passes", counted_passes(self.job), "", "forward, and backward of what is trained")
        causal, whole = counted_flops(self.job)
        self.add_count("causal forward FLOP", causal, "FLOP", "what masks, windows and dropped tokens leave")
        self.add_count("full forward FLOP", whole, "FLOP", "attention in full; what dropped tokens leave")
        peak = self.add_figure(self.device.datasheet(f"peak {self.recipe.precision}", "FLOP/s"))
        again = again_frac(estimate.table, self.layout)
        self.add_count(
            "recomputed passes", again, "", "share of a forward pass that is recomputed",
            setting("recompute", self.layout.recompute_text),
        )  # fmt: skip
        return [
            self.add(name, value, "frac", f"{flops} / ({self.step.name} x GPUs x {peak.name})")
            for name, value, flops in (
                ("MFU", estimate.mfu_frac, "passes x causal forward FLOP"),
                ("MFU, attention in full", estimate.mfu_full_attention_frac, "passes x full forward FLOP"),
                ("HFU", estimate.hfu_frac, "(passes + recomputed passes) x causal forward FLOP"),
            )
        ]

    def bounds(self) -> list[Figure]:
        """The step at datasheet rates, and with nothing hidden at the slow end of calibrated ones."""
        names = ("compute at peak", "memory at datasheet bandwidth", "links at datasheet bandwidth")
        leaves = [
            self.add_count(name, float(seconds), "s", "work of a micro-batch / datasheet rate")
            for name, seconds in zip(names, self.table.floor_s[:, 0, 0], strict=True)
        ]
        formula = f"micro-batches x max({', '.join(names)})"
        if self.reading is not None:
            leaves.append(self.reading)
            formula = f"max({self.reading.name}, {formula})"
        lower_s, upper_s = self.estimate.lower_bound_s, self.estimate.upper_bound_s
        text = f"{KERNEL}: every line at the slow end of calibrated rates, one after another, without overlap"
        return [
            self.add("lower bound of the step", lower_s, "s", formula, self.num_micro, *leaves),
            self.add("upper bound of the step", upper_s, "s", text),
        ]


def step_memory_figure(model: Model, recipe: Recipe, layout: Layout, memory: Memory) -> Figure:
    """The memory of the fullest GPU, item by item."""
    leaves = _memory_leaves(model, recipe, layout)
    items = []
    for name, size in memory.items.items():
        if value := number(size):
            formula = f"memory model: {_MEMORY_ITEMS.get(name, name)}"
            items.append(term(name, value, "B", formula, *leaves.get(name, ())))
    return total("memory per GPU", "B", items, note=f"fullest: {memory.worst_rank}")


def _memory_leaves(model: Model, recipe: Recipe, layout: Layout) -> dict[str, tuple[Figure, ...]]:
    """The figures that each item rests on."""
    row, chosen, lora = recipe.stack, recipe.optimizer, recipe.lora
    widths = trained_widths(recipe)

    def software(name: str, value: float | str, unit: str = "B") -> Figure:
        return fact(name, value, unit, source=f"data/stacks.json, {row.name}: {row.source}", note=row.meaning)

    def optimizer(name: str, value: float) -> Figure:
        return fact(name, value, "B", source=f"data/optimizers.csv, {chosen.name}: {chosen.source}")

    degrees = [setting(name, int(getattr(layout, name))) for name in ("dp", "tp", "pp", "cp", "ep")]
    shards = [*degrees, setting("ZeRO stage", int(layout.zero))]
    if layout.shard:
        shards.append(setting("ranks that share the shards", int(layout.shard)))
    states = [optimizer("bytes of optimizer states per parameter", widths.states)]
    if widths.others:
        states.append(optimizer("more of embedding, head and norms", widths.others))
    batch = setting("micro-batch", int(layout.micro_batch)), setting("sequence length", int(recipe.seq_len))
    kept = (*batch, *degrees, setting("recompute", layout.recompute_text), software("kernels", row.activations, ""))
    adapters = () if lora is None else (setting("LoRA rank", lora.rank), setting("base format", lora.base.name))
    logits = software("bytes of a logit and its loss", row.loss_bytes)
    gathered = software("layers gathered at once", row.gathered_units, "")
    if row.live_parameters:
        gathered = software("parameters that stay gathered", row.live_parameters, "")
    return {
        "weights": (software("bytes of a trained weight", widths.weights), *adapters, *shards),
        "master weights": (software("bytes of a master weight", widths.master), *shards),
        "optimizer states": (*states, *adapters, *shards),
        "gradients": (software("bytes of a gradient", widths.gradients), *adapters, *shards),
        "activations": kept,
        "working set of one layer": kept,
        "logits and loss": (*batch, term("vocabulary", model.vocab, "", "counted: of the model"), logits),
        "gathered layers": (gathered, *shards),
        "communication buffers": (software("buckets", row.buffer_bytes),),
        "allocator": (software("share reserved beyond tensors", row.fragmentation_frac, "frac"),),
        CONTEXT: (software("context", row.context_bytes),),
    }
