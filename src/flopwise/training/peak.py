"""What one pipeline stage holds: what stands through a step, and what comes and goes at five moments of it.

Everything is computed for all candidates of a layout at once; `flopwise.training.memory` picks the fullest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flopwise.facts.software import optimizer
from flopwise.ops.types import Array, Floats
from flopwise.training.layout import Layout, Recipe
from flopwise.training.table import MemoryTable

_DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_LOGITS_KEPT_BYTES = 2.0  # what stays whole of a loss computed in pieces: 16-bit logits
_GRADIENTS_AT_ONCE = 2.0  # tensors of the widest kind that live while one operation is undone: its gradient in and out

MOMENTS = ("loss", "layer", "end", "step", "load")
"""When a peak may fall: at the loss, undoing the last layer, the first, in the optimizer step, on loading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Bytes a trained parameter of each thing that is kept for it."""

    weights: float
    master: float
    gradients: float
    states: float
    step: float  # temporary copies while the optimizer runs


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage of every candidate: which layers, whether it holds the ends, micro-batches in flight."""

    start: Array
    stop: Array
    first: Floats  # 1.0 where it holds the embedding
    last: Floats  # 1.0 where it holds head and loss
    in_flight: Floats

    @property
    def layers(self) -> Array:
        """Layers of the stage, at least 1."""
        layers: Array = np.maximum(self.stop - self.start, 1)
        return layers


@dataclass(frozen=True, slots=True)
class Parts:
    """One stage's bytes: what stands through the step, what each moment adds, what lies on the host."""

    fixed: dict[str, Floats]
    moments: tuple[dict[str, Floats], ...]  # in the order of MOMENTS
    host: Floats


def trained_widths(recipe: Recipe, table: MemoryTable) -> Widths:
    """How wide fully trained parameters are kept: the recipe's choices over the stack's row."""
    row, chosen, compute = table.software, optimizer(recipe.optimizer), table.elem_bytes

    def size(name: str) -> float:
        if name == "both":
            return compute + 4.0 if recipe.precision != "fp16" else compute
        return compute if name == "compute" else _DTYPE_BYTES[name]

    weights, state = size(recipe.weights_dtype or row.weights_dtype), size(recipe.states_dtype or row.states_dtype)
    separate = row.master_weights if recipe.master_weights is None else recipe.master_weights
    return Widths(
        weights=weights,
        master=4.0 if separate and weights < 4 else 0.0,
        gradients=size(recipe.grad_dtype or row.grad_dtype),
        states=chosen.states * state + chosen.packed_bytes,
        step=row.step_copies * state if chosen.states else 0.0,
    )


def adapter_widths(recipe: Recipe, table: MemoryTable, elem: float) -> Widths:
    """How wide adapters, or whole tensors trained beside them, are kept: all in one type of `elem` bytes."""
    chosen = optimizer(recipe.optimizer)
    return Widths(
        weights=elem,
        master=0.0,
        gradients=elem,
        states=chosen.states * elem + chosen.packed_bytes,
        step=table.software.step_copies * elem if chosen.states else 0.0,
    )


def pipeline_stages(table: MemoryTable, layout: Layout) -> list[Stage]:
    """First, second and last stage: layers as even as possible, what is left goes to the middle, then to the first.

    The second is left out where it cannot be the fullest: one kind of layer, evenly divided.
    """
    layers, kinds = table.model.stacks[0].num_layers, len(table.model.stacks[0].kinds)
    pp, interleave = np.asarray(layout.pp), np.asarray(layout.interleave)
    if np.all(pp == 1):
        one = np.ones((), dtype=np.int64)
        return [Stage(0 * one, layers * one, 1.0, 1.0, 1.0)]
    each, left = layers // pp, layers % pp
    on_first = each + (left > np.maximum(pp - 2, 0))
    micro_batches = np.maximum(
        np.asarray(table.recipe.global_batch) / (layout.dp * np.asarray(layout.micro_batch)), 1.0
    )

    def in_flight(stage: Array) -> Floats:
        plain: Floats = np.minimum(pp - stage, micro_batches)
        if np.all(interleave == 1):
            return plain
        chunks = np.minimum(2.0 * (pp - 1 - stage) + (interleave - 1) * pp + 1.0, micro_batches * interleave)
        turned: Floats = np.where((interleave > 1) & (pp > 1), chunks / interleave, plain)
        return turned

    zero, alone = np.zeros_like(pp), (pp == 1) * 1.0
    stages = [Stage(zero, on_first, 1.0, alone, in_flight(zero))]
    if np.any(pp > 2) and (kinds > 1 or np.any(left > 0)):
        start, stop = (np.where(pp > 2, x, zero) for x in (on_first, on_first + each + (left > 0)))
        stages.append(Stage(start, stop, 0.0, 0.0, in_flight(np.minimum(1, pp - 1))))
    stages.append(Stage(layers - each, zero + layers, alone, 1.0, in_flight(pp - 1)))
    return stages


class Evaluation:
    """One question about a column of layouts: what all stages share, computed once."""

    def __init__(self, table: MemoryTable, layout: Layout) -> None:
        """Look up the sums that the candidates need."""
        self.table, self.layout, self.recipe = table, layout, table.recipe
        self.row, self.optimizer = table.software, optimizer(table.recipe.optimizer)
        self.sums, self.index = table.sums(layout)
        self.width = trained_widths(table.recipe, table)
        if table.lora is not None:
            self.width = adapter_widths(table.recipe, table, _DTYPE_BYTES[table.lora.adapter_dtype])
        zero, group = np.asarray(layout.zero), np.asarray(layout.dp) * layout.cp
        expert_group = np.maximum(group / layout.ep, 1.0)
        self.sharded = (zero >= 3) * 1.0
        self.gathers = bool(np.any(zero >= 3))
        self.shares = [1.0 / np.where(zero >= z, group, 1.0) for z in (1, 2, 3)]
        self.expert_shares = [1.0 / np.where(zero >= z, expert_group, 1.0) for z in (1, 2, 3)]
        batches = np.asarray(self.recipe.global_batch) / (layout.dp * np.asarray(layout.micro_batch))
        self.lasting = np.maximum(batches > 1, self.row.lasting_gradients) * 1.0
        self.many = len(self.sums.before)

    def _sum(self, prefix: Array, stage: Stage) -> Floats:
        """Sum of a running sum over the stage's layers: (L + 1) x n at (stop, index) less (start, index)."""
        flat = prefix.ravel()
        total: Floats = np.take(flat, stage.stop * self.many + self.index)
        if np.any(stage.start):
            total = total - np.take(flat, stage.start * self.many + self.index)
        return total

    def parts(self, stage: Stage) -> Parts:
        """Everything that one stage holds."""
        s, index, lora = self.sums, self.index, self.recipe.lora
        dense, expert = self._sum(s.dense, stage), self._sum(s.expert, stage) if s.has_experts else 0.0
        ends = stage.first * s.before[index] + stage.last * (s.after[index] + (1 - stage.first) * s.copied[index])
        fixed: dict[str, Floats] = {"weights": 0.0, "master weights": 0.0, "optimizer states": 0.0}
        gradients: Floats = 0.0
        step: Floats = 0.0
        groups = [(dense + ends if lora is None else dense, expert, self.width)]
        if lora is not None:
            ends_base = stage.first * s.before_base[index] + stage.last * s.after_base[index]
            fixed["weights"] = (self._sum(s.base, stage) + ends_base) * self.shares[2]
            groups.append((ends, 0.0, adapter_widths(self.recipe, self.table, self.table.elem_bytes)))
        for whole, of_experts, w in groups:
            held = [whole * a + of_experts * b for a, b in zip(self.shares, self.expert_shares, strict=True)]
            fixed["weights"] = fixed["weights"] + held[2] * w.weights
            fixed["master weights"] = fixed["master weights"] + held[0] * w.master
            fixed["optimizer states"] = fixed["optimizer states"] + held[0] * w.states
            gradients, step = gradients + held[1] * w.gradients, step + held[0] * w.step
        if self.recipe.optimizer_in_backward:
            gradients, step = gradients / stage.layers, step / stage.layers
        host, gradients = self._offloaded(fixed, gradients)
        cast = self._cast(stage, dense + ends + expert)
        fixed["communication buffers"] = self.row.buffer_bytes * (np.asarray(self.layout.dp) * self.layout.tp > 1)
        moments = self._moments(stage, gradients, step, cast, fixed["optimizer states"] + fixed["master weights"])
        return Parts(fixed, moments, host)

    def _offloaded(self, fixed: dict[str, Floats], gradients: Floats) -> tuple[Floats, Floats]:
        """What moves to the host, taken out of `fixed`; and the gradients that stay."""
        host: Floats = 0.0
        names: list[str] = []
        if self.layout.offload_parameters:
            names.append("weights")
            host, gradients = gradients, gradients * 0.0
        if self.layout.offload_optimizer or self.optimizer.paged:
            names += ["master weights", "optimizer states"]
        for name in names:
            host = host + fixed[name]
            fixed[name] = 0.0
        return host, gradients

    def _cast(self, stage: Stage, trained: Floats) -> Floats:
        """16-bit copies of fp32 weights where they are not gathered as such: what autocast keeps."""
        compute = self.table.elem_bytes
        lora = self.recipe.lora
        if lora is not None and lora.base == "fp32" and compute < 4:
            return self._sum(self.sums.gathered, stage) * compute * (1.0 - self.sharded)
        return trained * (compute if self.width.weights > compute else 0.0) * (1.0 - self.sharded)

    def _activations(self, stage: Stage) -> Floats:
        """Bytes kept for the backward pass by the layers of a stage, all micro-batches in flight."""
        s, index, layout = self.sums, self.index, self.layout
        rows = s.activations.shape[1]
        mode = np.asarray(layout.recompute) * (rows * self.many)
        flat = s.activations.ravel()
        kept = np.take(flat, mode + stage.stop * self.many + index)
        if np.any(stage.start):
            kept = kept - np.take(flat, mode + stage.start * self.many + index)
        if s.has_towers:
            kept = kept + stage.first * s.tower_activations[index]
        kept = kept * stage.in_flight
        if layout.offload_activations:
            kept = kept * np.minimum(1.0, 2.0 / stage.layers)
        total: Floats = (kept + stage.last * s.end_activations[index]) * layout.micro_batch
        return total

    def _loss(self, stage: Stage) -> Floats:
        """Logits, their fp32 copies and gradients, at the fullest moment of the loss."""
        chunks, per_entry = self.recipe.loss_chunks or self.row.loss_chunks, self.row.loss_bytes
        if chunks > 1:
            per_entry = _LOGITS_KEPT_BYTES + max(per_entry - _LOGITS_KEPT_BYTES, 0.0) / chunks
        tokens = np.asarray(self.layout.micro_batch) * (self.recipe.seq_len * per_entry) / np.asarray(self.layout.cp)
        total: Floats = stage.last * tokens * self.sums.vocabulary[self.index]
        return total

    def _moments(
        self, stage: Stage, gradients: Floats, step: Floats, cast: Floats, states: Floats
    ) -> tuple[dict[str, Floats], ...]:
        """What each of MOMENTS adds to what stands."""
        s, index, layout, compute = self.sums, self.index, self.layout, self.table.elem_bytes
        activations, early = self._activations(stage), gradients * self.lasting
        recomputed = np.where(np.asarray(layout.recompute) > 0, s.layer_peak[index], 0.0)
        working = (_GRADIENTS_AT_ONCE * s.gradient_peak[index] + recomputed) * layout.micro_batch
        gathered: Floats = 0.0
        undone: Floats = 0.0
        loading: Floats = 0.0
        if self.gathers:
            whole = self._sum(s.gathered, stage)
            root = s.root[index] * np.maximum(stage.first, stage.last)
            kept = root * self.row.root_gathered
            unit = whole / stage.layers
            gathered = self.sharded * (self.row.gathered_units * unit + kept) * compute
            undone = gathered + self.sharded * (unit + kept) * (0.0 if self.recipe.lora is not None else compute)
            loading = self.sharded * self.row.loads_whole * np.maximum((whole + root) * compute - states, 0.0)
        copies = "16-bit copies of weights"
        return (
            {"activations": activations, "logits and loss": self._loss(stage), "gradients": early,
             "gathered layers": gathered, copies: cast},
            {"activations": activations, "working set of one layer": working, "gradients": early,
             "gathered layers": undone, copies: cast},
            {"gradients": gradients, "working set of one layer": working, "gathered layers": undone, copies: cast},
            {"gradients": gradients, "optimizer step": step},
            {"whole weights while loading": loading},
        )  # fmt: skip
