"""What one pipeline stage holds: what stands through a step, and what comes and goes at five moments of it.

Everything is computed for all candidates of a layout at once; `flopwise.training.memory` picks the fullest.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise

import numpy as np

from flopwise.ops.types import Array, Floats
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Inner, Layout
from flopwise.training.schedules import Pipe, any_of, copies, having, in_flight
from flopwise.training.stages import (
    FULL,
    Partial,
    first_blocks,
    left_to_heads,
    mode_index,
    partials_of,
    uneven_layers,
)
from flopwise.training.widths import DTYPE_BYTES, Widths, adapter_widths, trained_widths
from flopwise.values import dataclass, replace

STALE = "blocks of other lengths"
"""The item of what the allocator keeps and cannot use: blocks for tensors of shorter micro-batches."""
STALE_FRAC = 0.5
"""Over the tensors of a micro-batch. Fragments are 15 % of what is reserved in the mean of eight fine-tuned models, at
most 33 % (Guo et al. 2024, GMLake, arXiv:2401.08156, section 5), states included, which lie in blocks that fit them."""
_PURE_LOSS_BYTES = 8.0  # of a loss without fp32 copies: logits, log-probabilities and the gradients of both
_FLAT_GRADIENTS = 2.0  # layers whose gradients stand whole while one is scattered
_CHUNKS_WHOLE = 2.0  # chunks whose gradients stand whole: one adds up while those of the one before are scattered
_LAYERS_HERE = 2.0  # layers whose activations stay on the device where others' go to the host: two buffers

MOMENTS = ("loss", "start of the backward pass", "end of the backward pass", "optimizer step", "loading")
"""When a peak may fall."""


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """One pipeline stage of every candidate: which layers, whether it holds the ends, micro-batches in flight."""

    start: Array
    stop: Array
    first: Floats  # 1.0 where it holds the embedding
    last: Floats  # 1.0 where it holds head and loss
    in_flight: Floats
    losses: Floats = 1.0  # micro-batches whose logits it holds

    @property
    def layers(self) -> Array:
        """Layers of the stage, at least 1."""
        layers: Array = np.maximum(self.stop - self.start, 1)
        return layers


def plus(total: Floats, count: Floats, width: float) -> Floats:
    """`total + count * width`, without touching columns where there is nothing to add."""
    if not width:
        return total
    if isinstance(count, float) and not count:
        return total
    more = count if width == 1.0 else count * width
    return more if isinstance(total, float) and not total else total + more


def _where(share: Floats, value: Floats) -> Floats:
    """`share * value` for shares of 0 or 1, without touching the column where all are the same."""
    if isinstance(share, float):
        return value if share else 0.0
    return share * value


def _is_one(value: Floats) -> bool:
    return isinstance(value, float) and value == 1.0


@dataclass(frozen=True, slots=True)
class StageBytes:
    """One stage's bytes: what stands through the step, what each moment adds, what lies on the host."""

    fixed: dict[str, Floats]
    moments: tuple[dict[str, Floats], ...]  # in the order of MOMENTS
    host: Floats


def pipeline_stages(table: MemoryTable, layout: Layout) -> list[Stage]:
    """First, second and last stage: layers as even as possible (`even_layers`).

    Every stage where a layout names their layers. The second is left out where it cannot be the fullest: one kind of
    layer, evenly divided.
    """
    layers, kinds = table.model.stacks[0].num_layers, len(table.model.stacks[0].kinds)
    pp, turns = np.asarray(layout.pp), np.asarray(layout.interleave)
    sizes = uneven_layers(layout)
    if pp.max() == 1 and not sizes:
        return [Stage(0 * np.ones((), dtype=np.int64), layers * np.ones((), dtype=np.int64), 1.0, 1.0, 1.0)]
    depth, alone = pp * 1.0, (pp == 1) * 1.0  # mixed integers and floats are slow to compute with
    sequences = np.asarray(layout.dp) * 1.0 * layout.micro_batch
    waiting = np.maximum(np.asarray(table.recipe.global_batch) / sequences, 1.0)
    pipe = Pipe(depth, turns, waiting)
    plain = turns.max() == 1 and not np.any(layout.schedule)

    def micro_batches(behind: Floats) -> Floats:
        """Micro-batches that a stage holds with `behind` stages after it."""
        many = in_flight(layout.schedule, behind, pipe)
        return many if plain else np.where(pp > 1, many, 1.0)

    losses: Floats = 1.0
    if any_of(layout.schedule, lambda schedule: schedule.keeps_losses):
        losses = np.where(pp > 1, 1.0 + having(layout.schedule, lambda s: s.keeps_losses) * (waiting - 1.0), 1.0)
    if sizes:
        edges, most = np.cumsum([0, *sizes]), len(sizes) - 1
        return [
            Stage(*ends, float(i == 0), float(i == most), micro_batches(1.0 * (most - i)), losses if i == most else 1.0)
            for i, ends in enumerate(pairwise(edges))
        ]
    spare = left_to_heads(layers, pp, table.model.stacks[0].output_heads)
    each, left = (layers + spare) // pp, (layers + spare) % pp
    uneven = bool(left.any())
    zero = np.zeros_like(pp)
    on_first = each + (left > np.maximum(pp - 2, 0)) if uneven else each
    stages = [Stage(zero, on_first, 1.0, alone, micro_batches(depth - 1.0))]
    if pp.max() > 2 and (kinds > 1 or uneven):
        start, stop = (np.where(pp > 2, x, zero) for x in (on_first, on_first + each + (left > 0)))
        stages.append(Stage(start, stop, 0.0, 0.0, micro_batches(np.maximum(depth - 2.0, 0.0))))
    stages.append(
        Stage(layers - each + spare, zero + layers, alone, 1.0, 1.0 if plain else micro_batches(0.0 * depth), losses)
    )
    return stages


class StageMemory:
    """One question about a column of layouts: what all stages share, computed once."""

    def __init__(self, table: MemoryTable, layout: Layout) -> None:
        """Look up the sums that the candidates need."""
        self.table, self.layout, self.recipe = table, layout, table.recipe
        self.row, self.optimizer = table.software, table.recipe.optimizer
        self.sums, self.index = table.sums(layout)
        self.width = trained_widths(table.recipe)
        if table.lora is not None:
            self.width = adapter_widths(table.recipe, DTYPE_BYTES[table.lora.adapter_dtype])
        zero, shard, replicas = np.asarray(layout.zero), np.asarray(layout.shard), np.asarray(layout.dp) * 1.0
        self.context_share = 1.0 / np.asarray(layout.cp)
        self.micro_batch = np.asarray(layout.micro_batch) * 1.0
        of_group, whole = self.context_share / replicas, copies(layout.schedule, layout.pp)
        if shard.any():
            of_group = np.where(shard > 0, np.maximum(of_group, 1.0 / np.maximum(layout.shard, 1)), of_group)
        at_least = [zero >= z for z in (1, 2, table.recipe.shards_weights_from)]
        self.sharded, self.gathers = at_least[2] * 1.0, bool(at_least[2].any())
        self.shares = [np.where(chosen, of_group, whole) for chosen in at_least]
        self.expert_shares: list[Floats] = [0.0, 0.0, 0.0]
        if self.sums.has_experts:
            sets = table.recipe.expert_ranks(layout.tp, layout.ep) / layout.tp
            of_experts = np.minimum(of_group * sets, 1.0)
            self.expert_shares = [np.where(chosen, of_experts, whole) for chosen in at_least]
        pp, alone = np.asarray(layout.pp), np.asarray(self.recipe.global_batch) <= replicas * self.micro_batch
        self.gathers_once, (single, piped) = table.recipe.gathers_once(pp) | (zero == 2), table.recipe.grad_syncs
        late = at_least[1] & np.where(pp > 1, piped != "each", single != "each") & ~alone
        if late.any():
            narrow = self.row.unsharded_grad_dtype == "compute" and table.lora is None
            share = whole * (min(1.0, table.elem_bytes / self.width.gradients) if narrow else 1.0)
            of_round = np.minimum(_CHUNKS_WHOLE / np.asarray(layout.interleave), 1.0)
            share = share * np.where((pp > 1) & (piped == "round"), of_round, 1.0)
            self.shares[1] = np.where(late, np.maximum(share, self.shares[1]), self.shares[1])
            self.expert_shares[1] = np.where(late, np.maximum(share, self.expert_shares[1]), self.expert_shares[1])
        self.lasting: Floats = 1.0
        if not self.row.lasting_gradients:
            self.lasting = ~alone * 1.0
        self.many = len(self.sums.before)
        self._of_mode = self.sums.activations.shape[1] * self.many
        self.mode = mode_index(layout, partials_of(layout)) * self._of_mode
        self._first = first_blocks(layout)
        self._known: dict[str, Floats] = {}
        self._stages: dict[Stage, tuple[Array, Array | None]] = {}

    def _at(self, name: str) -> Floats:
        """The sum `name` that has one entry a distinct (tp, ep, cp), for every candidate; looked up once."""
        if name not in self._known:
            self._known[name] = getattr(self.sums, name)[self.index]
        return self._known[name]

    @cached_property
    def _working(self) -> Floats:
        """Gradients between operations, and what recompute makes anew: the same on all stages."""
        peak = self._at("layer_peak")
        if self.table.autocasts:
            peak = peak + (1.0 - self.sharded) * self._at("autocast_layer_peak")
        recomputed = (np.asarray(self.layout.recompute) > 0) * peak
        return (self._at("gradient_peak") + recomputed) * self.micro_batch

    @property
    def _exchanges(self) -> Array:
        """True where buckets of messages are allocated: DeepSpeed's ZeRO has them on one GPU, too (`ipg_buffer`)."""
        return (np.asarray(self.layout.dp) * self.layout.tp > 1) | (np.asarray(self.layout.zero) > 0)

    @property
    def _replicated_frac(self) -> Array:
        """Share of whole gradients in replicas, which DDP's buckets hold once more.

        Source: PyTorch documentation, DistributedDataParallel: `gradient_as_bucket_view`, off by default, would save
        as much memory as all gradients take.
        """
        share: Array = ((np.asarray(self.layout.dp) > 1) & (np.asarray(self.layout.zero) == 0)) * 1.0
        return share

    def _ends(self, stage: Stage, before: str, after: str) -> Floats:
        """Items of a stage before and after the layers."""
        return plus(_where(stage.first, self._at(before)), _where(stage.last, self._at(after)), 1.0)

    def _sum(self, prefix: Array, stage: Stage) -> Floats:
        """Sum of a running sum over the stage's layers: (L + 1) x n at (stop, index) less (start, index)."""
        upper, lower = self._places(stage)
        flat = prefix.ravel()
        total: Floats = np.take(flat, upper)
        return total if lower is None else total - np.take(flat, lower)

    def _places(self, stage: Stage) -> tuple[Array, Array | None]:
        """Places of a stage's end and start in flattened running sums; None: it starts with the first layer."""
        if stage not in self._stages:
            start = stage.start * self.many + self.index if stage.start.any() else None
            self._stages[stage] = stage.stop * self.many + self.index, start
        return self._stages[stage]

    def parts(self, stage: Stage) -> StageBytes:
        """Everything that one stage holds."""
        s, lora = self.sums, self.recipe.lora
        dense, expert = self._sum(s.dense, stage), self._sum(s.expert, stage) if s.has_experts else 0.0
        ends = self._ends(stage, "before", "after")
        if s.has_copy and np.any(np.asarray(stage.first) < 1.0):
            ends = ends + (1.0 - stage.first) * self._at("copied")
        fixed: dict[str, Floats] = {"weights": 0.0, "master weights": 0.0, "optimizer states": 0.0}
        gradients: Floats = 0.0
        step: Floats = 0.0
        others = self._others(stage, ends)
        groups: list[tuple[Floats, Floats, Floats, Widths]] = [(dense + ends, expert, others, self.width)]
        if lora is not None:
            base = self._sum(s.base, stage) + self._ends(stage, "before_base", "after_base")
            base = base + _where(stage.first, self._at("tower_base"))
            fixed["weights"] = base * self.shares[2]
            groups = [(dense, expert, 0.0, self.width)]
            groups.append((ends, 0.0, others, adapter_widths(self.recipe, self.recipe.elem_bytes)))
        if self.recipe.frozen is not None:
            fixed["weights"] = self._frozen(stage) * self.width.weights
        for whole, of_experts, with_more_states, w in groups:
            of_states, of_gradients, of_weights = self._rank_parameters(whole, of_experts)
            fixed["weights"] = plus(fixed["weights"], of_weights, w.weights)
            fixed["master weights"] = plus(fixed["master weights"], of_states, w.master)
            fixed["optimizer states"] = plus(fixed["optimizer states"], of_states, w.states)
            if w.others:
                more = with_more_states * self.shares[0]
                fixed["optimizer states"] = plus(fixed["optimizer states"], more, w.others)
            gradients, step = plus(gradients, of_gradients, w.gradients), plus(step, of_states, w.step)
        if self.recipe.optimizer_in_backward:
            gradients, step = gradients / stage.layers, step / stage.layers
        host, gradients = self._move_to_host(fixed, gradients)
        cast = self._cast(stage, dense + ends + expert if self.width.weights > self.table.elem_bytes else 0.0)
        if self.row.buffer_bytes:
            fixed["communication buffers"] = self.row.buffer_bytes * self._exchanges
        elif self.row.bucket_copies:
            fixed["communication buffers"] = self.row.bucket_copies * self._replicated_frac * gradients
        activations, copied = self._activations(stage)
        if self.recipe.lengths_vary:
            fixed[STALE] = STALE_FRAC * (activations + np.maximum(self._loss(stage), self._working))
        moments = self._moments(stage, gradients, step, cast, fixed, activations)
        return StageBytes(fixed, moments, host + copied if self.layout.offload_activations else host)

    def _others(self, stage: Stage, ends: Floats) -> Floats:
        """Trained parameters outside the hidden matrices, of which there are `ends` before and after the layers."""
        if not self.width.others:
            return 0.0
        return ends - _where(stage.first, self._at("tower_matrices")) + self._sum(self.sums.others, stage)

    def _frozen(self, stage: Stage) -> Floats:
        """Parameters without gradients of which a rank holds the weights."""
        s = self.sums
        whole = self._sum(s.frozen, stage) + self._ends(stage, "before_frozen", "after_frozen")
        dense = whole * self.shares[2]
        return dense + self._sum(s.frozen_expert, stage) * self.expert_shares[2] if s.has_experts else dense

    def _rank_parameters(self, whole: Floats, of_experts: Floats) -> list[Floats]:
        """Parameters of which a rank holds states, gradients and weights."""
        if not self.sums.has_experts:
            return [whole * share for share in self.shares]
        return [whole * a + of_experts * b for a, b in zip(self.shares, self.expert_shares, strict=True)]

    def _move_to_host(self, fixed: dict[str, Floats], gradients: Floats) -> tuple[Floats, Floats]:
        """Bytes that move to the host, taken out of `fixed`; and the gradients that stay."""
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
        if lora is not None and lora.base.name == "fp32" and compute < 4:
            return self._sum(self.sums.gathered, stage) * compute * (1.0 - self.sharded)
        return trained * compute * (1.0 - self.sharded) if self.width.weights > compute else 0.0

    def _layers_keep(self, stage: Stage) -> Floats:
        """Bytes that the layers of a stage keep for the backward pass of one micro-batch, wherever they are.

        Source: PEFT, `prepare_model_for_kbit_training`, and TRL, `peft_module_casting_to_bf16`: norms are in fp32
        beside weights of bitsandbytes; bitsandbytes, `Linear4bit.forward`: what an fp32 input gives is cast back to
        fp32. TRL prepares no sharded model.
        Assumes: of layers that are recomputed the inputs alone are wider, the first one's, too.
        """
        kept = self._of_layers(self.sums.activations, stage)
        if self.table.autocasts:
            kept = kept + (1.0 - self.sharded) * self._of_layers(self.sums.autocast_activations, stage)
        if self.table.fp32_stream and self.table.elem_bytes < 4:
            wider = 1.0 + (4.0 / self.table.elem_bytes - 1.0) * (1.0 - self.sharded)
            kept = np.where(np.asarray(self.layout.recompute) == FULL, kept * wider, kept)
        if self.sums.has_towers:
            kept = kept + stage.first * self._at("tower_activations")
        return kept * self.micro_batch

    def _of_layers(self, activations: Array, stage: Stage) -> Floats:
        """Bytes of one sequence that a stage's layers keep, of running sums by way of recompute."""
        flat, (upper, lower) = activations.ravel(), self._places(stage)
        kept: Floats = np.take(flat, self.mode + upper)
        if lower is not None:
            kept = kept - np.take(flat, self.mode + lower)
        if self._first.any():  # what follows the first blocks is kept
            again = np.where(self._first > 0, stage.start + self._first, stage.stop)
            middle = np.minimum(again, stage.stop) * self.many + self.index
            rest, none = self._of_mode * FULL, np.take(flat, upper) - np.take(flat, middle)
            kept = kept - (np.take(flat, rest + upper) - np.take(flat, rest + middle)) + none
        return kept

    def moved_bytes(self, stage: Stage) -> Floats:
        """Bytes of one micro-batch that go to host memory where activations do: all but those of the last layers.

        Source: Transformer Engine, CPU offloading: while one layer computes, a neighbour's activations are copied;
        Megatron-Core, `cpu_offloading_num_layers`: those of the first layers.
        Assumes: `_LAYERS_HERE` layers stay, as buffers of copies under way and for the turn to the backward pass.
        """
        away = 1.0 - np.minimum(1.0, _LAYERS_HERE / stage.layers)
        if self.layout.offload_layers is not None:
            away = np.minimum(away, self.layout.offload_layers / stage.layers)
        return self._layers_keep(stage) * away

    def _activations(self, stage: Stage) -> tuple[Floats, Floats]:
        """Bytes kept for the backward pass on a stage, all micro-batches in flight: on the device, and on the host."""
        kept, host = self._layers_keep(stage), 0.0 * self.micro_batch
        every = kept if _is_one(stage.in_flight) else kept * stage.in_flight
        if self.layout.offload_activations:
            host = np.maximum(every - (kept - self.moved_bytes(stage)), 0.0)
            every = every - host
        end = self._at("end_activations")
        if self.table.autocasts:
            end = end + (1.0 - self.sharded) * self._at("autocast_end_activations")
        ends = _where(stage.last, end * self.micro_batch)
        return plus(every, ends if _is_one(stage.losses) else ends * stage.losses, 1.0), host

    def _loss(self, stage: Stage) -> Floats:
        """Logits, their fp32 copies and gradients, at the fullest moment of the loss."""
        return 0.0 if isinstance(stage.last, float) and not stage.last else _where(stage.last, self._whole_loss)

    @cached_property
    def _whole_loss(self) -> Floats:
        chunks, per_entry = self.recipe.loss_chunks or self.row.loss_chunks, self.row.loss_bytes
        lora = self.recipe.lora
        resident = self.width.weights if lora is None else lora.base.vector_bytes
        if not self.row.fp32_loss and resident <= self.table.elem_bytes < 4:
            per_entry = min(per_entry, _PURE_LOSS_BYTES)
        if chunks > 1:
            whole = self.row.chunks_keep_bytes
            per_entry = whole + max(per_entry - whole, 0.0) / chunks
        tokens = self.micro_batch * (self.recipe.seq_len * per_entry) * self.context_share
        loss: Floats = tokens * (self.table.model.stacks[0].output_heads * self._at("vocabulary"))
        if not self.row.sharded_loss_bytes:
            return loss
        parts = (np.asarray(self.layout.tp) > 1) * (self.row.sharded_loss_bytes / self.row.loss_bytes)
        split: Floats = loss * (1.0 + parts)
        return split

    def _gathered_bytes(self, stage: Stage) -> tuple[Floats, Floats]:
        """Bytes of a stage's layers, and of what stands at their ends, as ZeRO 3 gathers them: packed where quantised.

        Source: PyTorch FSDP with `quant_storage`: packed weights are parameters as they are.
        """
        if self.table.quantised:
            return self._sum(self.sums.base, stage), self._ends(stage, "before_base", "after_base")
        compute = self.table.elem_bytes
        return self._sum(self.sums.gathered, stage) * compute, self._root(stage) * compute

    def _unpacked_bytes(self, stage: Stage) -> Floats:
        """Bytes of the widest quantised weight, which its product turns into the type that it computes with.

        Source: Dettmers et al. 2023 (arXiv:2305.14314) section 3: every product of QLoRA dequantises its weight.
        """
        if not self.table.quantised:
            return 0.0
        widest = self._at("largest")
        if self.row.own_head:
            widest = np.maximum(widest, stage.last * self._at("head"))
        return widest * self.table.elem_bytes

    def _largest_module(self, stage: Stage) -> Floats:
        """Elements of the largest matrix of a stage, embedding and head among them."""
        ends = np.maximum(_where(stage.first, self._at("embedding")), _where(stage.last, self._at("head")))
        return np.maximum(self._at("largest"), ends)

    def _root(self, stage: Stage) -> Floats:
        """Elements of embedding and head that a stage holds; of a tied pair once where it holds both."""
        return np.minimum(self._ends(stage, "embedding", "head"), self._at("root"))

    def _held_inputs(self, stage: Stage) -> Floats:
        """Inputs of recomputed layers that the end of the backward pass still holds, with gradients of all but two.

        FSDP reshards frozen weights by a hook on what their layer reads, and keeps the hook, which keeps the tensor,
        until the pass is over. In a reentrant checkpoint that tensor is a leaf: its gradient stays with it.

        Source: PyTorch, torch/distributed/fsdp/_runtime_utils.py, `_register_post_backward_reshard_only_hook` (2.1 and
        later) and torch/utils/checkpoint.py, `CheckpointFunction.backward`; transformers,
        `gradient_checkpointing_enable`: reentrant by default before version 5.
        Assumes: the last layer's gradient is in the working set, as is the one that comes in; nothing is offloaded.
        """
        if self.recipe.lora is None or not self.row.holds_inputs or self.row.frozen_stay_gathered:
            return 0.0
        again = (np.asarray(self.layout.recompute) == FULL) * self.sharded
        passes = 1.0 + np.maximum(stage.layers - 2.0, 0.0) / stage.layers
        inputs_bytes: Floats = again * self._layers_keep(stage) * passes
        return inputs_bytes

    def _moments(
        self, stage: Stage, gradients: Floats, step: Floats, cast: Floats, fixed: dict[str, Floats], activations: Floats
    ) -> tuple[dict[str, Floats], ...]:
        """Bytes that each of MOMENTS adds.

        Source: PyTorch, torch/distributed/fsdp/_init_utils.py, `_move_module_to_device`: an FSDP unit moves the weights
        that no unit inside it has, and shards them before the next one does: no rank ever loads a whole model.
        """
        compute, working = self.table.elem_bytes, self._working
        loss = self._loss(stage)
        others: Floats = 0.0 if _is_one(stage.losses) else loss * (0.5 * (stage.losses - 1.0))  # without gradients
        early = gradients if self.row.lasting_gradients else gradients * self.lasting
        gathered: Floats = 0.0
        undone: Floats = 0.0
        at_end: Floats = 0.0
        loading: Floats = 0.0
        if self.gathers:
            whole, root = self._gathered_bytes(stage)
            kept = root * self.row.root_gathered
            unit = whole / stage.layers
            cut = self.sharded
            gathered = cut * (self.row.gathered_units * unit + kept)
            if self.row.live_parameters:
                module = self._largest_module(stage)
                gathered = cut * np.minimum(np.maximum(self.row.live_parameters, module) * compute, whole + root)
            if self.gathers_once.any():
                gathered = np.where(self.gathers_once, cut * (whole + root), gathered)
            undone = at_end = gathered
            if self.recipe.lora is None:  # whole gradients: of a layer, of the head from the start, of all at the end
                head = self._at("head") * (compute * self.row.root_gathered) * stage.last
                undone, at_end = gathered + cut * (unit + head), gathered + cut * (unit + kept)
                if self.row.live_parameters:  # the rest has gone through the buckets of messages
                    undone = at_end = gathered + cut * module * compute
            elif self.row.frozen_stay_gathered:
                # FSDP 1: frozen weights, once gathered, stay through the backward pass (PyTorch issue 95805, mended by
                # pull request 101982); where a unit mixes both, gradients span frozen weights (litgpt issue 1417)
                at_end = cut * (whole + 2.0 * root + _FLAT_GRADIENTS * unit)
        if self.row.quantise_bytes and self.table.quantised:
            states = fixed["optimizer states"] + fixed["master weights"]
            loading = np.maximum(self._at("largest") * self.row.quantise_bytes - states, 0.0)
        inputs = self._held_inputs(stage) if self.gathers else 0.0
        copies, unpacked, wide = "16-bit copies of weights", "dequantised weight", self._unpacked_bytes(stage)
        return (
            {"activations": activations, "logits and loss": loss + others, "gradients": early,
             "gathered layers": gathered, copies: cast, unpacked: wide},
            {"activations": activations, "logits and loss": others, "working set of one layer": working,
             "gradients": early, "gathered layers": undone, copies: cast, unpacked: wide},
            {"gradients": gradients, "working set of one layer": working, "gathered layers": at_end, copies: cast,
             unpacked: wide, "activations": inputs},
            {"gradients": gradients, "optimizer step": step},
            {"weights while loading": loading},
        )  # fmt: skip


def moved_bytes(
    table: MemoryTable, inner: Inner, degrees: Array, like: Layout, partials: tuple[Partial, ...] = ()
) -> Array:
    """Bytes of a micro-batch that the stage which moves most sends to host memory, (modes, d, n).

    Modes are none, selective and full recompute, then `partials`; of `like` only what is no degree is read.

    Source: `StageMemory.moved_bytes`: the same activations as in the memory model.
    Assumes: as there.
    """
    every = np.array([1, 1, 1, *(some.every for some in partials)])
    modes = np.array([0, 1, 2, *(2 for _ in partials)])
    columns = replace(
        like, dp=1, tp=inner.tp, cp=inner.cp, ep=inner.ep, micro_batch=inner.micro_batch,
        pp=int(degrees[0]) if degrees.size == 1 else degrees[:, None],
        recompute=modes[:, None, None], recompute_every=every[:, None, None], zero=0, shard=0,
    )  # fmt: skip
    memory = StageMemory(table, columns)
    most: Array = np.zeros((modes.size, degrees.size, inner.tp.size))
    for stage in pipeline_stages(table, columns):
        most = np.maximum(most, memory.moved_bytes(stage))
    return most
