"""What a model's layers hold on one rank: the part of the memory model that depends on the model.

A `MemoryTable` walks the model once for each distinct (tp, ep, cp) among the candidates and keeps running sums over the
layers, so that any stage of any pipeline is a difference of two entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flopwise.cost.precisions import LOW_PRECISIONS
from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Attend, Embedding, Experts, Item, Layer, Linear, Model, Norm, Stack
from flopwise.facts.software import PLAIN_FORMATS, RECOMPUTE, TrainingStack
from flopwise.ops.columns import distinct
from flopwise.ops.flops import runs, stack_shape
from flopwise.ops.habits import HABITS, Habit
from flopwise.ops.saved import Setting, adapted_mlps, outside, trace_items
from flopwise.ops.shapes import Shape, Split, Trainable
from flopwise.ops.tensors import sharded_parameters
from flopwise.ops.types import Array, Floats, Ints
from flopwise.ops.weights import end_bytes, layer_prefix_bytes
from flopwise.ops.work import is_activation, of_dense_mlp, of_experts, projects_attention
from flopwise.training.adapters import adapted_products, adapter_parameters, casts_inputs, extra_items, fuses_adapters
from flopwise.training.frozen import Block, SplitModel, run_model
from flopwise.training.layout import Layout, Lora, Recipe
from flopwise.training.muon import hidden_matrices
from flopwise.training.routing import expert_load
from flopwise.training.stages import Partial, partials_of, recomputed_layers
from flopwise.values import dataclass

_BITSANDBYTES = ("nf4", "nf4-dq", "llm-int8")
_GRADIENTS_AT_ONCE = 2.0  # tensors of the widest kind that live while one operation is undone: its gradient in and out
_GRADIENTS_OVER_HALVES = 1.0  # the same where an MLP with its adapters is one operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Running sums over the layers for n distinct (tp, ep, cp); arrays (L + 1) x n unless said otherwise."""

    dense: Array  # trained parameters outside experts
    expert: Array  # trained parameters of experts
    others: Array  # trained parameters of the layers outside matrices: norms and biases
    tower_matrices: Array  # n: of the trained parameters before the layers, the matrices of towers
    base: Array  # bytes of frozen weights in their format
    frozen: Array  # parameters outside experts that are not trained, where no adapters are
    frozen_expert: Array  # those of experts
    before_frozen: Array  # n: those before the layers and in towers
    after_frozen: Array  # n: those after the layers
    gathered: Array  # elements of every weight, trained or not
    activations: Array  # modes x (L + 1) x n: bytes kept for one sequence, by recompute mode
    layer_peak: Array  # n: bytes of the largest layer's full set of activations, one sequence
    gradient_peak: Array  # n: bytes of the largest gradients between operations, one sequence
    before: Array  # n: trained parameters before the layers (embedding)
    after: Array  # n: trained parameters after the layers (norm, head)
    copied: Array  # n: parameters of a tied head that a last stage holds besides
    before_base: Array  # n: bytes of frozen weights there, without towers
    after_base: Array
    tower_base: Array  # n: those of towers, encoders among them
    root: Array  # n: elements of embedding and head, trained or not
    embedding: Array  # n: those of the embedding alone
    head: Array  # n: those of the head alone, of a tied one too
    largest: Array  # n: elements of the largest matrix in a layer
    vocabulary: Array  # n: logits a token on one rank
    tower_activations: Array  # n: bytes of towers and encoders beside the first stack, one sequence
    has_experts: bool
    has_copy: bool  # a tied head, which a last stage holds besides
    has_towers: bool
    end_activations: Array  # n: bytes kept for final norm and head, one sequence
    # what fp32 between products adds to the bytes above where weights are not gathered in 16 bits (autocast); else 0
    autocast_activations: Array
    autocast_layer_peak: Array
    autocast_end_activations: Array


def _widest(items: Iterable[Item], width: int, split: Split, tokens: Floats) -> Floats:
    """Elements of the largest tensor between operations of a layer, for `tokens` tokens on one rank.

    The two halves of one product that a gated activation reads count as the two tensors that they are: as where each is
    a product of its own, the gradient of the result lives while those of both are made, and the kept result is gone.
    """
    top: Floats = width * tokens / (split.tp if split.sequence_parallel else 1)
    for item in items:
        if not isinstance(item, Linear | Experts):
            continue
        outputs = item.outputs / 2 if item.name.endswith("gate_up_proj") else item.outputs
        if isinstance(item, Linear):
            cut = split.tp if item.shard else 1
            top = np.maximum(top, max(outputs, item.inputs) * tokens / cut)
        else:
            copies = item.top_k * tokens * split.expert_load
            top = np.maximum(top, max(item.inputs, outputs) * copies / split.tp)
    return top


def _saved_operations(
    layer: Layer, width: int, tokens: Floats, split: Split, *, compiled: bool, input_bytes: float = 2.0
) -> Floats:  # fmt: skip
    """Bytes kept by recompute of single operations: the layer's input, half of the matmuls, attention's output.

    A compiler drops what nothing reads: the outputs that go into a residual sum.
    """
    elements: Floats = width * tokens / (split.tp if split.sequence_parallel else 1) * (input_bytes / 2.0)
    count = 0
    for item in layer.items:
        if isinstance(item, Linear | Experts):
            count += 1
            rows = tokens * (item.top_k * split.expert_load if isinstance(item, Experts) else 1)
            if count % 2 and not (compiled and item.shard == "row"):
                shards = split.tp if item.shard == "column" else 1
                elements = elements + item.outputs * rows / shards
            if item.name.endswith("o_proj"):
                elements = elements + item.inputs * rows / split.tp
    return elements * 2.0


def _eight_bit_inputs(layer: Layer, tokens: Floats, split: Split) -> Floats:
    """Bytes saved by keeping inputs of linear layers in 8 bits, not 16; attention's output stays in 16 bits as well."""
    inputs: dict[str, Floats] = {}
    for item in layer.items:
        if isinstance(item, Linear | Experts) and not item.name.endswith(("o_proj", "router")):
            copies = item.top_k * split.expert_load if isinstance(item, Experts) and item.shard == "row" else 1
            inputs[item.reads or item.name] = item.inputs * copies
    return tokens * sum(inputs.values()) / (split.tp if split.sequence_parallel else 1)


def _kept_outputs(items: Iterable[Item], lora: Lora, tp: Ints = 1) -> Floats:
    """Elements a token that adapters keep of projections' results on one rank of `tp`; shape of `tp`.

    DoRA scales both the base's and the adapter's result by a trained magnitude, adapter v2 every projection's by a
    trained scale: a product's gradient for one factor needs the other.
    """
    if lora.method == "dora":
        items_kept, copies = adapted_products(items, lora), 2
    elif lora.scales_outputs:
        items_kept, copies = [i for i in items if isinstance(i, Linear) and not i.name.endswith("router")], 1
    else:
        return 0.0
    total: Floats = 0.0
    for item in items_kept:
        total = total + copies * item.outputs / (tp if item.shard == "column" else 1)
    return total


def _element_counts(split: SplitModel, elements: Callable[[Iterable[Item]], Floats]) -> dict[str, Any]:
    """`Sums` of elements on a rank, by what is trained: of each kind of layer in a list, of what stands at the ends."""
    stack = split.model.stacks[0]
    first, *blocks, last = split.blocks
    kinds = list(zip(stack.kinds, blocks, strict=True))
    towers = [i for s in split.model.stacks[1:] for i in _all_items(s)]

    def of_layers(*, routed: bool, trained: bool) -> list[Floats]:
        return [
            elements(i for i in layer.items if isinstance(i, Experts) == routed and block.trains(i) == trained)
            for layer, block in kinds
        ]

    def matrices(items: Iterable[Item], block: Block) -> Floats:
        return elements(i for i in hidden_matrices(items) if not isinstance(i, Experts) and block.trains(i))

    def before(*, trained: bool) -> Floats:
        own = elements(i for i in stack.before if first.trains(i) == trained)
        return own + elements(i for i in towers if split.towers.trains(i) == trained)

    dense = of_layers(routed=False, trained=True)
    return {
        "dense": dense,
        "expert": of_layers(routed=True, trained=True),
        "frozen": of_layers(routed=False, trained=False),
        "frozen_expert": of_layers(routed=True, trained=False),
        "others": [own - matrices(layer.items, block) for own, (layer, block) in zip(dense, kinds, strict=True)],
        "tower_matrices": matrices(towers, split.towers),
        "before": before(trained=True),
        "after": elements(i for i in stack.after if last.trains(i)),
        "before_frozen": before(trained=False),
        "after_frozen": elements(i for i in stack.after if not last.trains(i)),
    }


class MemoryTable:
    """A model under a recipe, ready to be asked about any layout. Builds lazily; holds no result."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        """Read the stack's and the recipe's choices once.

        Raises:
            MissingFactError: the network is known by published figures only.
            UnknownNameError: no such stack.
        """
        if not model.stacks:
            raise MissingFactError(
                f"{model.name} is known by published figures only: its memory needs a table of layers (a config.json)"
            )
        self.split = run_model(model, recipe.frozen, recipe.stack)
        self.model, self.recipe = self.split.model, recipe
        layers = self.model.stacks[0].kinds
        self.blocks = {layer.name: block for layer, block in zip(layers, self.split.blocks[1:-1], strict=True)}
        self.software: TrainingStack = recipe.stack
        self.lora = recipe.lora
        self.quantised = self.lora is not None and self.lora.base.name not in PLAIN_FORMATS
        self.keeps_inputs = self.quantised and self.software.quantised_keeps_input
        self.copies_inputs = casts_inputs(recipe) or (self.lora is not None and self.lora.dropout)
        casts = recipe.lora is not None and recipe.lora.base.name in _BITSANDBYTES
        casts = casts and recipe.weights_dtype in (None, "fp32")
        self.fp32_stream, self.fp32_ends = casts and self.software.fp32_stream, casts and self.software.fp32_ends
        usual = Habit(fused_norm=self.software.fused_norms)
        self.habit = HABITS.get(model.model_type, usual) if self.software.hf_modules else usual
        self.selective = recipe.selective or self.software.selective
        implementation = self.software.activations
        self.implementation = "eager" if recipe.attention == "eager" and implementation == "sdpa" else implementation
        self.elem_bytes = recipe.elem_bytes
        self.autocasts = _autocasts(recipe)
        self.eight_bits = self.software.fp8_inputs and recipe.precision in LOW_PRECISIONS
        self._known: dict[tuple[object, ...], Sums] = {}
        self._prepared: tuple[Array, ...] = ()
        self._rows: Array = np.full((1, 1, 1), -1)  # of what is prepared, by tp, ep and cp; -1: it is not
        self._partials: tuple[Partial, ...] = ()

    def prepare(self, tp: Array, ep: Array, cp: Array, partials: tuple[Partial, ...] = ()) -> None:
        """Walk the model once for all of these degrees and ways of partial recompute, for what is asked later."""
        one = np.ones(1, dtype=np.int64)
        degrees, _ = distinct(*(np.concatenate([one, column]) for column in (tp, ep, cp)))
        self._partials, self._prepared = partials, tuple(degrees)
        self._rows = np.full([int(column.max()) + 1 for column in degrees], -1)
        self._rows[self._prepared] = np.arange(len(degrees[0]))

    def sums(self, layout: Layout) -> tuple[Sums, Array]:
        """Sums of (at least) the distinct (tp, ep, cp) of `layout`, and each candidate's index into them."""
        some = partials_of(layout)
        rows = self._prepared_rows(layout)
        if rows is None:
            (tp, ep, cp), rows = distinct(layout.tp, layout.ep, layout.cp)
        else:
            tp, ep, cp = self._prepared
            some = some or self._partials  # modes without them are the same
        key = (tp.tobytes(), ep.tobytes(), cp.tobytes(), layout.sequence_parallel, some)
        if key not in self._known:
            load = expert_load(self.model, self.recipe, ep)
            split = Split(
                tp=tp, ep=ep, cp=cp, expert_tp=self.recipe.expert_tp(tp, ep),
                sequence_parallel=layout.sequence_parallel, expert_load=load,
            )  # fmt: skip
            self._known[key] = self._build(split, some)
        return self._known[key], rows

    def _prepared_rows(self, layout: Layout) -> Array | None:
        """The place of each candidate's degrees among those that are prepared; None where one's are not."""
        degrees = tuple(map(np.asarray, (layout.tp, layout.ep, layout.cp)))
        if any(column.max() >= size for column, size in zip(degrees, self._rows.shape, strict=True)):
            return None
        rows: Array = self._rows[degrees]
        return rows if rows.min() >= 0 else None

    def _layer(self, layer: Layer, split: Split, recompute: int, *, autocast: bool = False) -> Floats:
        """Bytes one layer keeps for one sequence; `autocast`: as of `Setting`."""
        if not self.blocks[layer.name].backward:
            return 0.0
        stack, seq = self.model.stacks[0], self.recipe.seq_len
        if recompute == 1 and self.recipe.modules:
            return self._kept_beside(self.recipe.modules, layer, stack, split, seq, autocast=autocast)
        if recompute == 1 and self.selective == "operations":
            return _saved_operations(
                layer, stack.width, seq / split.cp, split, compiled=self.implementation == "fused",
                input_bytes=4.0 if autocast else 2.0,
            )  # fmt: skip
        if recompute == 1 and self.selective == "alternate":
            return 0.5 * sum(self._layer(layer, split, mode, autocast=autocast) for mode in (0, 2))
        if recompute == 1 and self.selective == "fine" and self.implementation != "eager":
            return self._kept_beside(FINE, layer, stack, split, seq, autocast=autocast)
        mode = 2 if recompute == 1 and self.selective == "full" else recompute
        return self._kept_bytes(layer, stack, split, RECOMPUTE[mode], seq, autocast=autocast)

    def _kept_bytes(
        self, layer: Layer, stack: Stack, split: Split, recompute: str, seq: Ints, *, autocast: bool = False
    ) -> Floats:  # fmt: skip
        extra: Floats = 0.0
        if recompute == "none":
            extra = self._kept_for_adapters(layer, split, seq)
        if recompute != "full" and self.eight_bits:
            extra = extra - _eight_bit_inputs(layer, seq / split.cp, split)
        return extra + layer_activation_bytes(
            layer, stack.width, 1, seq, recompute=recompute, autocast=autocast, **self._setting(layer, split)
        )

    def _kept_beside(
        self, modules: Sequence[str], layer: Layer, stack: Stack, split: Split, seq: Ints, *, autocast: bool
    ) -> Floats:  # fmt: skip
        """Bytes kept by a layer whose `modules` are recomputed."""
        shape = stack_shape(self.model, stack, 1, seq)
        given = Setting(shape=shape, autocast=autocast, **self._setting(layer, split))
        kept = kept_bytes(layer, stack.width, given, modules=modules, eight_bits=self.eight_bits)
        return kept + self._kept_for_adapters(layer, split, seq)

    def _kept_for_adapters(self, layer: Layer, split: Split, seq: Ints) -> Floats:
        """Bytes of inputs that are cast or dropped out, with masks, and of outputs that a method's factors read."""
        lora = self.lora
        if lora is None:
            return 0.0
        tokens = seq / split.cp
        kept = _kept_outputs(layer.items, lora, split.tp) * self.elem_bytes * tokens
        if not self.copies_inputs:
            return kept
        joint = self.software.joint_dropout
        inputs = {(joint and i.reads) or i.name: i.inputs for i in adapted_products(layer.items, lora)}
        return kept + sum(inputs.values()) * (self.elem_bytes + lora.dropout) * tokens

    def _setting(self, layer: Layer, split: Split) -> dict[str, Any]:
        """Fields of `Setting` beside the shape."""
        lora = self.lora
        return {
            "implementation": self.implementation, "elem_bytes": self.elem_bytes, "split": split, "habit": self.habit,
            "flash": self.recipe.attention != "eager" and not self.software.writes_scores(layer.items),
            "trainable": self._trainable(layer),
            "rank": 0 if lora is None else lora.rank,
            "dropped": self.copies_inputs and not self.keeps_inputs,
            "one_mlp": fuses_adapters(self.recipe), "weighted_first": self.software.weighted_first,
            "clamps": "clamp" in self.software.expert_kernels, "plain_experts": self.software.hf_modules,
        }  # fmt: skip

    def _at_once(self, layer: Layer) -> float:
        """Tensors of the widest kind that live while one operation of a layer is undone.

        Source: see `adapted_mlps`: the gradients of both halves are written over them, that of the activated tensor is
        new. Assumes: the MLP is the widest part of the layer.
        """
        whole = fuses_adapters(self.recipe) and adapted_mlps(layer.items, self._trainable(layer))
        return _GRADIENTS_OVER_HALVES if whole else _GRADIENTS_AT_ONCE

    def _trainable(self, layer: Layer) -> Trainable:
        """Names of the projections with adapters; "all" without adapters, none of a frozen layer."""
        if self.lora is None:
            frozen = self.blocks[layer.name].frozen if layer.name in self.blocks else ()
            return frozenset() if frozen else "all"
        trained = adapted_products(layer.items, self.lora)
        if self.keeps_inputs:
            trained += [i for i in layer.items if isinstance(i, Linear)]
        return frozenset(i.name for i in trained)

    def _frozen_ends(self, lora: Lora, split: Split) -> tuple[Floats, Floats, Floats]:
        """Bytes of frozen weights before the layers, after them and in towers: as the stack keeps them."""
        stack, row, form = self.model.stacks[0], self.software, lora.base
        before, after, towers = end_bytes(self.model, form, np.asarray(split.tp), np.asarray(split.ep))
        if self.quantised and self.fp32_ends:
            before, after = (size * 4 / form.vector_bytes for size in (before, after))
        elif row.own_head:
            each = form.weight_bits / 8 if self.quantised else form.vector_bytes
            heads = (i for i in stack.after if isinstance(i, Linear) and i.outputs == self.model.vocab)
            more = (h.inputs * h.outputs * (each - (0.0 if h.tied else form.vector_bytes)) for h in heads)
            after = after + sum(more) / split.tp
        return before, after, towers

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions on the software, for provenance."""
        idle = [stack.name for stack in self.model.stacks[1:] if not runs(self.model, stack)]
        text = (
            f"sequences are text only: the weights of {', '.join(idle)} are counted, but not their time and activations"
        )
        every = "modules of transformers: each token goes through every expert, not only through those it is sent to"
        return (
            f"software: {self.software.name} ({self.software.meaning})",
            *([text] if idle else []),
            *([every] if self.habit.every_expert else []),
        )

    def _build(self, split: Split, partials: tuple[Partial, ...]) -> Sums:
        stack, lora, n = self.model.stacks[0], self.lora, np.shape(split.tp)
        tp, ep, cp = (np.asarray(x) for x in (split.tp, split.ep, split.cp))
        zero = np.zeros(n)

        def running(per_kind: list[Floats], layers: int = stack.num_layers, again: Partial | None = None) -> Array:
            rows = np.zeros((len(stack.order) + 1, *n))
            rows[1 : layers + 1] = np.stack([np.broadcast_to(row, n) for row in per_kind])[list(stack.order[:layers])]
            if again is not None:
                rows[1:][~recomputed_layers(np.array([0, stack.num_layers]), again)] = 0.0
            return np.cumsum(rows, axis=0)

        def elements(items: Iterable[Item]) -> Floats:
            return sharded_parameters(items, tp, ep, expert_tp=split.expert_tp)

        counts = _element_counts(self.split, elements)
        own = len(stack.stored_order)  # weights that all layers share count with the first
        parts = (counts[name] for name in ("dense", "expert", "frozen", "frozen_expert"))
        gathered = running([sum(layer) for layer in zip(*parts, strict=True)], own)
        base, embedding = gathered * 0.0, elements(stack.before)
        ends: tuple[Floats, Floats, Floats] = (zero, zero, zero)
        if lora is not None:
            cut = np.broadcast_to(np.asarray(self.recipe.expert_tp(tp, ep)), n)
            base = layer_prefix_bytes(self.model, lora.base, tp, ep, expert_tp=cut)
            ends = self._frozen_ends(lora, split)
            extra, none = extra_items(self.model, lora), [zero for _ in stack.kinds]
            counts |= {
                "dense": [adapter_parameters(k.items, lora, tp) for k in stack.kinds],
                "expert": none,
                "others": none,
                "tower_matrices": 0.0,
                "before": elements(i for i in extra if isinstance(i, Embedding)),
                "after": elements(i for i in extra if not isinstance(i, Embedding)),
            }

        def of_modes(kept: list[list[Floats]]) -> Array:
            modes = [running(each) for each in kept]
            for some in partials:
                less = running([a - b for a, b in zip(kept[0], kept[2], strict=True)], again=some)
                modes.append(modes[0] - less)
            return np.stack(modes)

        kept = [[self._layer(k, split, m) for k in stack.kinds] for m in range(3)]
        cast: list[list[Floats]] = [[0.0 for _ in stack.kinds] for _ in kept]
        if self.autocasts:
            wide = [[self._layer(k, split, m, autocast=True) for k in stack.kinds] for m in range(3)]
            cast = [[b - a for a, b in zip(*each, strict=True)] for each in zip(kept, wide, strict=True)]
        full, more = (np.stack([np.broadcast_to(each, n) for each in layers[0]]) for layers in (kept, cast))
        tokens = self.recipe.seq_len / cp
        gradients = [self._at_once(k) * _widest(k.items, stack.width, split, tokens) for k in stack.kinds]
        widest = np.stack([np.broadcast_to(each, n) for each in gradients])
        heads = [i for i in stack.after if isinstance(i, Linear) and i.outputs == self.model.vocab]
        tied = sum(i.inputs * i.outputs for i in heads if i.tied)
        towers_kept = sum((self._tower(s, split) for s in self.model.stacks[1:] if runs(self.model, s)), start=zero)
        return Sums(
            **{name: running(v, own) if isinstance(v, list) else v + zero for name, v in counts.items()},
            base=base, gathered=gathered, activations=of_modes(kept), autocast_activations=of_modes(cast),
            has_experts=any(np.any(e) for e in (*counts["expert"], *counts["frozen_expert"])),
            has_copy=bool(tied) and lora is None and not self.split.blocks[-1].frozen,
            has_towers=bool(np.any(towers_kept)),
            layer_peak=full.max(axis=0), gradient_peak=widest.max(axis=0) * self.elem_bytes,
            copied=(tied if lora is None else 0) / tp + zero,
            before_base=ends[0] + zero, after_base=ends[1] + zero, tower_base=ends[2] + zero,
            root=embedding + elements(stack.after) + zero, embedding=embedding + zero,
            head=elements(stack.after) + tied / tp, largest=_largest(stack) / tp + zero,
            vocabulary=sum(i.outputs for i in heads) / tp + zero, tower_activations=towers_kept,
            end_activations=self._ends(stack.width * tokens * self.elem_bytes, split) + zero,
            autocast_layer_peak=more.max(axis=0),
            autocast_end_activations=self.autocasts * (4.0 - self.elem_bytes) * stack.width * tokens + zero,
        )  # fmt: skip

    @staticmethod
    def _ends(hidden: Floats, split: Split) -> Floats:
        """Input of the final norm and input of the head, which sequence parallelism gathers; `hidden`: bytes of one."""
        return hidden / split.tp + hidden if split.sequence_parallel else 2.0 * hidden

    def _tower(self, stack: Stack, split: Split) -> Array:
        """Bytes that a tower or encoder keeps for one sample or sequence."""
        seq = stack.tokens_per_sample or self.recipe.seq_len
        total: Array = np.zeros(np.shape(split.tp))
        if not self.split.towers.backward:
            return total
        for index, layer in enumerate(stack.kinds):
            total = total + self._kept_bytes(layer, stack, split, "none", seq) * stack.order.count(index)
        return total


def _autocasts(recipe: Recipe) -> bool:
    """True if fp32 weights that are not gathered in 16 bits are cast product by product (`TrainingStack.autocasts`)."""
    lora = recipe.lora
    resident = (recipe.weights_dtype or recipe.stack.weights_dtype) if lora is None else lora.base.name
    return recipe.stack.autocasts and resident == "fp32" and recipe.elem_bytes < 4


def _largest(stack: Stack) -> int:
    """Elements of the largest matrix in any layer."""
    return max((i.inputs * i.outputs for k in stack.kinds for i in k.items if isinstance(i, Linear)), default=0)


def _all_items(stack: Stack) -> list[Item]:
    """Every item of a stack, layers repeated that have weights of their own."""
    return [*stack.before, *(i for k in stack.stored_order for i in stack.kinds[k].items), *stack.after]


def layer_activation_bytes(
    layer: Layer, width: int, batch: Ints, seq: Ints, *, recompute: str = "none", **setting: Any
) -> Floats:
    """Bytes that one layer keeps on one rank for `batch` sequences of `seq` tokens; broadcasts over arrays.

    `recompute`: none, selective (the score-sized tensors are given up) or full (only the layer's input is kept); while
    a layer is recomputed, all of what it keeps under "none" lives besides. `setting`: fields of `Setting`, beside the
    shape.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198) equations 1 to 6 for "fused"; recorded runs in tests/oracle for
    the others.
    Assumes: parameters and activations of one dtype; fused kernels' row statistics (8 bytes a row) are left out; batch
    above 1 (eager attention on one sequence may keep views where it otherwise copies); with sequence parallelism a
    fully recomputed layer keeps its shard of the input.
    Raises: SpecError: unknown implementation.
    """
    given = Setting(shape=Shape(batch=batch, query=seq, context=seq), **setting)
    if recompute == "full":
        return outside(width, "tokens", given) * given.stream_bytes
    total: Floats = 0.0
    trace = trace_items(layer.items, given, width)
    for key, nbytes in trace.kept.items():
        if recompute == "none" or key not in trace.scores:
            total = total + nbytes
    return total


FINE = ("layernorm", "activation", "mla_up_proj")
"""Modules of fine-grained recompute: what is cheap to compute again."""


def kept_bytes(
    layer: Layer, width: int, given: Setting, *, modules: Sequence[str], eight_bits: bool = False
) -> Floats:  # fmt: skip
    """Bytes that one layer keeps where `modules` of `RECOMPUTE_MODULES` are computed again; shape of the split's tp.

    Norms and activations leave no result; up-projections of latent attention leave its compressed form instead of
    queries, keys and values; experts' results are weighted before their last product, which with the activation so
    keeps none; a whole layer of experts, and a dense feed-forward part, leave their input; projections around attention
    leave its result alone. `eight_bits`: what experts' products and their activation read is kept in 8 bits.

    Source: DeepSeek-V3 report (arXiv 2412.19437) sections 3.2.3 and 3.3.3; Megatron-Core, `recompute_modules`
    (layernorm, mla_up_proj, moe_act, core_attn, moe, mlp); MaxText, base.yml, `remat_policy: custom` and its tensors.
    Assumes: nothing further.
    """
    trace = trace_items(layer.items, given, width)
    again: set[str] = set()
    narrow: set[str] = set()
    for item in layer.items:
        if isinstance(item, Norm):
            again |= {item.name} if "layernorm" in modules else set()
        elif is_activation(item):
            again |= {item.name} if "activation" in modules else set()
        elif isinstance(item, Attend):
            raised = "attn_proj" in modules or (item.latent_dim and "mla_up_proj" in modules)
            again |= {f"{item.name}/{x}" for x in "qkv"} if raised else set()
        elif isinstance(item, Experts) and item.shard == "row":
            again |= {item.name} if "activation" in modules else set()
        elif isinstance(item, Experts):
            narrow |= {item.name, f"{item.name}/permuted"}
    if "core_attn" in modules:
        again |= trace.scores
    of_modules = {"moe": of_experts, "mlp": of_dense_mlp, "attn_proj": projects_attention}
    whole = tuple(i.name for i in layer.items if any(of_modules[m](i) for m in modules if m in of_modules))
    total: Floats = 0.0
    for key, nbytes in trace.kept.items():
        if key not in again and not key.startswith(whole):
            total = total + (nbytes / given.elem_bytes if eight_bits and key in narrow else nbytes)
    return total


def memory_table(model: Model, recipe: Recipe) -> MemoryTable:
    """The table of a model under a recipe, kept for questions that follow one another; not for a column of recipes."""
    of_one = np.ndim(recipe.global_batch) == np.ndim(recipe.seq_len) == 0
    return _kept_table(model, recipe) if of_one else MemoryTable(model, recipe)


@lru_cache(maxsize=16)
def _kept_table(model: Model, recipe: Recipe) -> MemoryTable:
    return MemoryTable(model, recipe)
