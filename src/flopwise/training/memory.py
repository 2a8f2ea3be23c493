"""Memory of a training step: bytes on the fullest GPU, item by item, for one layout or a column of layouts.

Three moments are compared, and the fullest is reported: the end of the forward pass (all activations, logits and loss), the
backward pass of the layer with the most left behind it, and the optimizer step (all gradients, no activations).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flopwise.facts.architecture import Model
from flopwise.facts.software import Optimizer, optimizer
from flopwise.ops.types import Array, Floats
from flopwise.training.layout import Layout, Recipe
from flopwise.training.table import MemoryTable, Sums

_DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0}
_STAGES = ("first pipeline stage", "second pipeline stage", "last pipeline stage")
_LOGITS_KEPT_BYTES = (
    4.0  # of the loss, what stays whole when it is computed in pieces: 16-bit logits and their gradient
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes per GPU on the worst rank; every value a float, or a column as long as the layout's."""

    items: dict[str, Floats]
    total_bytes: Floats  # what the driver would report
    reserved_bytes: Floats  # what PyTorch's allocator holds: without context and NCCL
    allocated_bytes: Floats  # what tensors take: without fragmentation
    host_bytes: Floats  # offloaded, per GPU
    worst_stage: Array | int  # 0 first, 1 second, 2 last pipeline stage
    assumptions: tuple[str, ...] = field(default=())

    @property
    def worst_rank(self) -> str:
        """The fullest rank of a single layout, in words."""
        return "every rank" if int(np.ravel(self.worst_stage)[0]) < 0 else _STAGES[int(np.ravel(self.worst_stage)[0])]


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Bytes a trained parameter of each resident thing, after the recipe's choices and the stack's defaults."""

    weights: float
    master: float
    gradients: float
    states: float
    packed_states: float
    compute: float


def widths(recipe: Recipe, table: MemoryTable) -> Widths:
    """How wide weights, gradients and states are kept."""
    row, chosen, lora = table.software, optimizer(recipe.optimizer), recipe.lora
    compute = table.elem_bytes

    def size(name: str) -> float:
        if name == "both":
            return compute + 4.0 if recipe.precision != "fp16" else compute
        return compute if name == "compute" else _DTYPE_BYTES[name]

    weights = size(recipe.weights_dtype or row.weights_dtype)
    separate = row.master_weights if recipe.master_weights is None else recipe.master_weights
    gradients, states = size(recipe.grad_dtype or row.grad_dtype), size(recipe.states_dtype or row.states_dtype)
    if lora is not None:
        weights = gradients = states = _DTYPE_BYTES[lora.adapter_dtype]
        separate = False
    master = 4.0 if separate and weights < 4 else 0.0
    return Widths(
        weights=weights, master=master, gradients=gradients, states=chosen.states * states,
        packed_states=chosen.packed_bytes, compute=compute,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Stage:
    """One pipeline stage of every candidate: which layers, whether it holds the ends, how many micro-batches are in flight."""

    start: Array
    stop: Array
    first: Array  # 1.0 where it holds the embedding
    last: Array  # 1.0 where it holds head and loss
    in_flight: Floats


def _stages(layers: int, layout: Layout, recipe: Recipe) -> list[_Stage]:
    """First, second and last stage: layers as even as possible, what is left over goes to the middle, then to the first."""
    pp, interleave = np.asarray(layout.pp), np.asarray(layout.interleave)
    each, left = layers // pp, layers % pp
    on_first = each + (left > np.maximum(pp - 2, 0))
    on_second = each + (left > 0)
    micro_batches = np.maximum(np.asarray(recipe.global_batch) / (layout.dp * np.asarray(layout.micro_batch)), 1.0)

    def in_flight(stage: Array) -> Floats:
        plain = np.minimum(pp - stage, micro_batches)
        chunks = np.minimum(2.0 * (pp - 1 - stage) + (interleave - 1) * pp + 1.0, micro_batches * interleave)
        return np.where(interleave > 1, chunks / interleave, plain)

    zero, one = np.zeros_like(pp), np.ones_like(pp)
    alone = (pp == 1) * 1.0
    second = np.minimum(one, pp - 1)
    stages = [_Stage(zero, np.where(pp == 1, layers, on_first), one * 1.0, alone, in_flight(zero))]
    if np.any(pp > 2):
        start, stop = (np.where(pp > 2, x, zero) for x in (on_first, on_first + on_second))
        stages.append(_Stage(start, stop, zero * 1.0, zero * 1.0, in_flight(second)))
    if np.any(pp > 1):
        start = np.where(pp == 1, zero, layers - each)
        stages.append(_Stage(start, start * 0 + layers, alone, one * 1.0, in_flight(pp - 1)))
    return stages


def _between(prefix: Array, stage: _Stage, index: Array) -> Array:
    """Sum over a stage's layers of a running sum."""
    return prefix[stage.stop, index] - prefix[stage.start, index]


class _Evaluation:
    """One call of `step_memory`: the columns it needs, computed once and used by every stage."""

    def __init__(self, table: MemoryTable, layout: Layout) -> None:
        self.table, self.layout, self.recipe = table, layout, table.recipe
        self.row, self.optimizer = table.software, optimizer(table.recipe.optimizer)
        self.sums, self.index = table.sums(layout)
        self.width = widths(table.recipe, table)
        self.casts = self.width.weights > self.width.compute
        zero, group = np.asarray(layout.zero), np.asarray(layout.dp) * layout.cp
        expert_group = np.maximum(group / layout.ep, 1.0)
        self.sharded = zero >= 3
        self.shares = [1.0 / np.where(zero >= z, group, 1.0) for z in (1, 2, 3)]
        self.expert_shares = [1.0 / np.where(zero >= z, expert_group, 1.0) for z in (1, 2, 3)]
        batches = np.asarray(self.recipe.global_batch) / (layout.dp * np.asarray(layout.micro_batch))
        self.lasting = np.maximum(batches > 1, self.row.lasting_gradients) * 1.0

    def stage(self, stage: _Stage) -> tuple[dict[str, Floats], Floats]:
        """Bytes of one stage by item, and what lies on the host."""
        s, index, layout, w = self.sums, self.index, self.layout, self.width
        dense = _between(s.dense, stage, index)
        ends = stage.first * s.before[index] + stage.last * (s.after[index] + (1 - stage.first) * s.copied[index])
        expert = _between(s.expert, stage, index)
        held = [(dense + ends) * a + expert * b for a, b in zip(self.shares, self.expert_shares, strict=True)]
        frozen: Floats = 0.0
        if self.recipe.lora is not None:
            ends_base = stage.first * s.before_base[index] + stage.last * s.after_base[index]
            frozen = (_between(s.base, stage, index) + ends_base) * self.shares[2]
        states = held[0] * (w.states + w.packed_states)
        items: dict[str, Floats] = {
            "weights": frozen + held[2] * w.weights,
            "master weights": held[0] * w.master,
            "optimizer states": states,
        }
        gradients = held[1] * w.gradients
        host: Floats = 0.0
        if layout.offload_parameters:
            host, items["weights"] = items["weights"] + gradients, items["weights"] * 0.0
            gradients = gradients * 0.0
        if layout.offload_optimizer or self.optimizer.paged:
            host = host + items["master weights"] + items["optimizer states"]
            items["master weights"], items["optimizer states"] = 0.0 * states, 0.0 * states
        if self.recipe.optimizer_in_backward:
            gradients = gradients / np.maximum(stage.stop - stage.start, 1)
        items |= self._moments(stage, gradients, held[0], dense + ends + expert, items["optimizer states"])
        return items, host

    def _activations(self, stage: _Stage) -> Floats:
        """Bytes kept for the backward pass by the layers of a stage, all micro-batches in flight."""
        s, index, layout = self.sums, self.index, self.layout
        recompute = np.asarray(layout.recompute)
        modes = [_between(m, stage, index) for m in s.activations]
        kept = np.where(recompute == 0, modes[0], np.where(recompute == 1, modes[1], modes[2]))
        kept = kept * stage.in_flight + stage.first * s.tower_activations[index] * stage.in_flight
        if layout.offload_activations:
            kept = kept * np.minimum(1.0, 2.0 / np.maximum(stage.stop - stage.start, 1))
        return (kept + stage.last * s.end_activations[index]) * layout.micro_batch

    def _loss(self, stage: _Stage) -> Floats:
        """Logits, their fp32 copies and gradients, at the fullest moment of the loss."""
        tokens = np.asarray(self.layout.micro_batch) * self.recipe.seq_len / np.asarray(self.layout.cp)
        chunks = self.recipe.loss_chunks or self.row.loss_chunks
        per_entry = self.row.loss_bytes
        if chunks > 1:
            per_entry = _LOGITS_KEPT_BYTES + max(per_entry - _LOGITS_KEPT_BYTES, 0.0) / chunks
        return stage.last * tokens * self.sums.vocabulary[self.index] * per_entry

    def _moments(
        self, stage: _Stage, gradients: Floats, trained: Floats, trained_here: Floats, states: Floats
    ) -> dict[str, Floats]:
        """What comes and goes within a step, at the fullest of three moments."""
        s, index, w, layout = self.sums, self.index, self.width, self.layout
        activations, loss = self._activations(stage), self._loss(stage)
        layers = np.maximum(stage.stop - stage.start, 1)
        unit = _between(s.gathered, stage, index) / layers
        root = s.root[index] * np.maximum(stage.first, stage.last) * self.row.root_gathered
        gathered = self.sharded * (self.row.gathered_units * unit + root) * w.compute
        whole = self.sharded * (0.0 if self.recipe.lora is not None else 1.0) * (unit + root) * w.compute
        recomputed = np.where(np.asarray(layout.recompute) > 0, s.layer_peak[index], 0.0) * layout.micro_batch
        working = 2.0 * s.gradient_peak[index] * layout.micro_batch + recomputed
        cast = np.where(self.sharded, 0.0, trained_here) * (w.compute if self.casts else 0.0)
        at_loss = activations + loss + gradients * self.lasting + gathered + cast
        at_layer = activations + working + gradients * self.lasting + gathered + whole + cast
        at_end = gradients + working + gathered + whole + cast
        at_step = gradients + trained * self.row.step_bytes
        loading = self.sharded * self.row.loads_whole * np.maximum((unit * layers + root) * w.compute - states, 0.0)
        peak = np.maximum(np.maximum(at_loss, at_layer), np.maximum(np.maximum(at_end, at_step), loading))
        loss_now = (at_loss >= peak) * 1.0
        layer_now = (1 - loss_now) * (at_layer >= peak)
        end_now = (1 - loss_now) * (1 - layer_now) * (at_end >= peak)
        step_now = (1 - loss_now) * (1 - layer_now) * (1 - end_now) * (at_step >= peak)
        load_now = (1 - loss_now) * (1 - layer_now) * (1 - end_now) * (1 - step_now)
        early = loss_now + layer_now
        return {
            "gradients": gradients * (self.lasting * early + end_now + step_now),
            "activations": activations * early,
            "working set of one layer": working * (layer_now + end_now),
            "logits and loss": loss * loss_now,
            "16-bit copies of weights": cast * (early + end_now),
            "whole weights while loading": loading * load_now,
            "gathered layers": gathered * (early + end_now) + whole * (layer_now + end_now),
            "optimizer step": trained * self.row.step_bytes * step_now,
            "communication buffers": self.row.buffer_bytes * (np.asarray(layout.dp) * layout.tp > 1),
        }


def step_memory(model: Model, recipe: Recipe, layout: Layout, *, table: MemoryTable | None = None) -> Memory:
    """Bytes on the fullest GPU of each candidate of `layout`, item by item.

    `table` keeps what depends on the model and the recipe alone; pass one when asking about many layouts.

    Source: Rajbhandari et al. 2020 (arXiv 1910.02054) for states under ZeRO; Korthikanti et al. 2022 (arXiv 2205.05198) for
    activations in flight under 1F1B and interleaving.
    Assumes: experts are evenly loaded; stages hold layers as evenly as they divide; see data/stacks.csv for the software.
    Raises: UnknownNameError: no such optimizer, stack or format.
    """
    table = table or MemoryTable(model, recipe)
    run = _Evaluation(table, layout)
    shape = layout.shape()
    best: dict[str, Floats] = {}
    best_total: Array | None = None
    host: Floats = 0.0
    worst: Array = np.full(shape, -1 if np.all(np.asarray(layout.pp) == 1) else 0)
    stages = _stages(model.stacks[0].num_layers, layout, recipe)
    for number, stage in enumerate(stages):
        items, on_host = run.stage(stage)
        total: Array = np.asarray(sum(items.values(), start=np.zeros(shape)))
        if best_total is None:
            best, best_total, host = items, total, on_host
            continue
        larger = total > best_total
        best = {name: np.where(larger, items[name], best[name]) for name in items}
        host = np.where(larger, on_host, host)
        worst = np.where(larger, 2 if number == len(stages) - 1 else 1, worst)
        best_total = np.maximum(total, best_total)
    assert best_total is not None  # there is always a first stage
    fragmentation = best_total * table.software.fragmentation_frac
    context = table.software.context_bytes + np.zeros(shape)
    best |= {"allocator": fragmentation, "CUDA context and NCCL": context}
    return Memory(
        items={name: _plain(value, shape) for name, value in best.items()},
        total_bytes=_plain(best_total + fragmentation + context, shape),
        reserved_bytes=_plain(best_total + fragmentation, shape),
        allocated_bytes=_plain(best_total, shape),
        host_bytes=_plain(host, shape),
        worst_stage=worst if shape else int(worst),
    )


def _plain(value: Floats, shape: tuple[int, ...]) -> Floats:
    """A float for a single candidate, else a column of the candidates' shape."""
    return np.broadcast_to(value, shape) if shape else float(np.asarray(value))
