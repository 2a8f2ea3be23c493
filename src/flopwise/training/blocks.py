"""One micro-batch through one block of the model on one rank: the inner table of the training model.

A block is a kind of layer, or what stands before or after the layers. Its times depend on the tensor, context and
expert parallel degrees and the micro-batch alone, so a search evaluates them for the few distinct combinations and
gathers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from flopwise.cost.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    groups_reached,
    p2p_s,
    reduce_scatter_s,
)
from flopwise.cost.fabric import group_fabric
from flopwise.cost.kernels import (
    BACKWARD_SOFTMAX,
    BLOCK,
    Elements,
    Timing,
    matmul_s,
    overlap_timing,
    score_dims,
    work_bytes,
    work_s,
)
from flopwise.cost.precisions import LOW_PRECISIONS
from flopwise.cost.sustained import BACKWARD_RATE, PERMUTE_PASSES, efficient_attention, grouped_kernel
from flopwise.facts.architecture import PREDICTED_HEAD, Attend, Experts, Item, Linear, Norm, Pointwise
from flopwise.facts.software import PLAIN_FORMATS, beyond_flash
from flopwise.ops.backward import adapter_items, backward_works
from flopwise.ops.columns import runs
from flopwise.ops.fusion import Group, fused_groups, merge_works, single_groups
from flopwise.ops.shapes import Shape, Split, Work
from flopwise.ops.work import (
    activates_experts,
    expert_token_share,
    has_gated_experts,
    inner_tp,
    is_activation,
    item_work,
    linear_dims,
    of_dense_mlp,
    of_experts,
    projects_attention,
)
from flopwise.training.adapters import adapted_products, casts_inputs, fuses_adapters
from flopwise.training.frozen import TRAINED, Block
from flopwise.training.widths import ACT_BYTES, resident_grad_bytes, resident_grad_dtype
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.fabric import Fabric
    from flopwise.cost.rates import Rates
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.types import Floats, Ints
    from flopwise.training.layout import Recipe

SUM_BYTES = 4.0
"""Bytes of an element of the sum of attention's pieces."""
TIMED = (
    "forward_s", "backward_s", "attention_s", "light_s", "raised_s", "named_s", "weight_s", "attention_back_s",
)  # fmt: skip
"""Fields of `Kernels` that are seconds on the device."""
PARTS = ("forward", "attention", "light", "raised", "named")
"""What recompute may repeat of a forward pass, as fields of `Kernels` begin."""
GRADIENT, WEIGHT_GRADIENT = "/grad", "/wgrad"
LIGHT = frozenset({"norm", "pointwise"})
PRODUCTS = frozenset({"matmul", "grouped"})
RAISED = ("q_b_proj", "kv_b_proj")
"""Names of products that make queries, keys and values out of what latent attention compresses them to."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of one block for one micro-batch on one rank; every field has the shape of the inner columns."""

    forward_s: Floats
    backward_s: Floats
    attention_s: Floats  # part of forward_s that selective recompute runs again
    light_s: Floats  # part of forward_s in norms and elementwise operations
    raised_s: Floats  # part of forward_s in up-projections of latent attention
    named_s: Floats  # part of forward_s in the modules that the recipe names for recompute
    weight_s: Floats  # part of backward_s in gradients of weights
    attention_back_s: Floats  # part of backward_s in attention
    memory_s: Floats  # part of forward_s + backward_s spent in memory-bound kernels
    forward_flops: Floats
    attention_flops: Floats  # part of forward_flops in attention
    light_flops: Floats  # part of forward_flops in norms and elementwise operations
    raised_flops: Floats  # part of forward_flops in up-projections of latent attention
    named_flops: Floats  # part of forward_flops in the modules that the recipe names for recompute
    peak_s: Floats  # forward + backward FLOP at the datasheet's peak rates
    traffic_s: Floats  # forward + backward bytes at the datasheet's memory bandwidth
    clock_frac: Floats = 1.0  # of the boost clock, at which this is

    def recomputed_part(self, unit: str, selective: str) -> Floats:
        """The part of the forward pass that selective recompute repeats: seconds (`unit` s) or operations (flops).

        Attention alone; or all but every other product and attention, whose results are kept ("operations"); or every
        other layer ("alternate"); or norms, elementwise operations and up-projections of latent attention ("fine"); or
        the modules that the recipe names ("modules"); or all.

        Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 5; torchtitan (arXiv:2410.06511) section 2.1.2;
        DeepSeek-V3 report (arXiv:2412.19437) section 3.2.3.
        Assumes: products take about as long as one another.
        """
        figures: Iterator[Floats] = (getattr(self, f"{part}_{unit}") for part in PARTS)
        forward, attention, light, raised, named = figures
        match selective:
            case "attention":
                return attention
            case "operations":
                return light + 0.5 * (forward - attention - light)
            case "alternate":
                return 0.5 * forward
            case "fine":
                return light + raised
            case "modules":
                return named
        assert selective == "full"
        return forward


SUMMED = tuple(f.name for f in fields(Kernels) if f.name != "clock_frac")
"""Fields of `Kernels` that are sums over a block."""


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """Kernels of one block and the messages between them, seconds a micro-batch; shapes as in `Kernels`.

    Source: `flopwise.cost.collectives`. Assumes: nothing further.
    """

    kernels: Kernels
    tp_s: Floats  # tensor-parallel collectives of the forward pass, before overlap; backward has as much
    cp_s: Floats  # what context parallelism adds to the forward pass: messages that are not hidden, pieces of attention
    cp_back_s: Floats  # the same of the backward pass
    ep_s: Floats  # expert all-to-alls of the forward pass
    wire_s: Floats  # collectives of forward + backward at the datasheet's link rate
    tp_overlap: float  # share of the tensor-parallel ones that hides behind compute
    backward: bool = True  # whether gradients pass

    @classmethod
    def of(cls, items: Sequence[Item], width: int, context: BlockContext, kernels: Kernels) -> Self:
        """`kernels` of one block with the messages between its ranks."""
        zero = np.zeros_like(kernels.forward_s)
        tp_s, tp_wire = tensor_parallel_s(items, width, context)
        ep_s, ep_wire = _expert_parallel_s(items, context)
        cp_s, cp_back_s, cp_wire = _context_parallel_s(items, kernels, context)
        backward = context.block.backward
        wire_s = (2 if backward else 1) * (tp_wire + ep_wire + cp_wire) + zero
        overlap = context.software.tp_hidden(sequence_parallel=context.split.sequence_parallel)
        return cls(kernels, tp_s + zero, cp_s + zero, cp_back_s + zero, ep_s + zero, wire_s, overlap, backward)

    def lines(self, mode: int, recipe: Recipe, contention: float) -> NDArray[np.float64]:
        """Seconds of the block's part of a step under one recompute mode, shape (6 + 3, n).

        Forward, backward, recompute, messages of tp, cp and ep. Then, beside them: seconds of the backward pass in
        gradients of weights, seconds of experts' messages that hide as well where another micro-batch's passes run
        beside them, and operations that run again (FLOP).

        Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 5; messages of a forward pass come again with it;
        DeepSeek-V3 report (arXiv:2412.19437) section 3.2.1 for passes side by side.
        Assumes: selective recompute repeats no message but those of experts that run again; side by side, all that
        takes no longer than the layer's passes hides, and slows them by `contention` of its own length.
        """
        kernels, software = self.kernels, recipe.stack
        selective = "modules" if recipe.modules else recipe.selective or software.selective
        nothing = 0.0 * kernels.forward_s
        again_s, flops = nothing, 0.0 * kernels.forward_flops
        if mode and self.backward:
            repeated = selective if mode == 1 else "full"
            again_s, flops = (kernels.recomputed_part(unit, repeated) for unit in ("s", "flops"))
        passes = 3.0 if mode == 2 else 2.0  # forward, backward, and forward again
        sendings = 3.0 if mode == 1 and "moe" in recipe.modules else passes
        if not self.backward:
            passes, sendings = 1.0, 1.0
        routed = beside = nothing
        if np.any(self.ep_s):
            routed = sendings * _exposed_s(self.ep_s, software.ep_overlap, kernels.forward_s)
            hidden = np.minimum(sendings * self.ep_s, kernels.forward_s + kernels.backward_s + again_s)
            undisturbed_s = (1.0 - contention) * hidden
            beside = np.maximum(routed - (sendings * self.ep_s - undisturbed_s), 0.0)
        tensor_s = passes * _exposed_s(self.tp_s, self.tp_overlap, kernels.forward_s)
        ring_s = (2.0 if mode == 2 and self.backward else 1.0) * self.cp_s + self.backward * self.cp_back_s
        parts = kernels.forward_s, kernels.backward_s, again_s, tensor_s, ring_s, routed
        return np.stack([*parts, kernels.weight_s, beside, flops])


def _exposed_s(message_s: Floats, overlap: float, compute_s: Floats) -> Floats:
    """Exposed time of messages of which a share may hide behind compute, but no more than there is compute."""
    return message_s - np.minimum(overlap * message_s, compute_s)


def work_dtype(work: Work, precision: str, *, in_layers: bool) -> str:
    """The unit that runs `work`: low-precision recipes keep attention, head, norms and routers in bf16.

    Source: Micikevicius et al. 2022 (arXiv:2209.05433) section 3; NVIDIA Transformer Engine user guide, FP8 recipes.
    Assumes: every linear layer inside the blocks follows the recipe.
    """
    if precision in LOW_PRECISIONS:
        return precision if in_layers and work.kind in {"matmul", "grouped"} else "bf16"
    return precision


@dataclass(frozen=True, slots=True)
class BlockContext:
    """The data that all blocks share: recipe, rates, links and the inner columns."""

    recipe: Recipe
    rates: Rates
    fabric: Fabric
    shape: Shape
    split: Split
    block: Block = TRAINED  # of the model's parts, the one at hand: what of it is trained

    @property
    def software(self) -> TrainingStack:
        """The training stack of the recipe."""
        return self.recipe.stack

    @property
    def fuses(self) -> bool:
        """True where neighbouring elementwise operations are one kernel: by the software, or the device's compiler."""
        return self.software.activations == "fused" or self.rates.compiles

    @property
    def tokens(self) -> Ints:
        """Tokens of one micro-batch on one rank."""
        return self.shape.batch * self.shape.query / self.split.cp

    @property
    def act_bytes(self) -> float:
        """Bytes of one element of the activations."""
        return self.recipe.elem_bytes

    @property
    def elements(self) -> Elements:
        """Formats of kernels that multiply nothing: activations and what stands for a cache are as wide."""
        return Elements(act_bytes=self.act_bytes, kv_bytes=self.act_bytes)

    def beside_experts(self) -> tuple[BlockContext, NDArray[np.intp] | None]:
        """The combinations that differ in more than experts' ranks, and the place of each among them; None: its own."""
        split, shape = self.split, self.shape
        ep = np.asarray(split.ep)
        if ep.ndim != 1 or (ep == ep[0]).all():
            return self, None
        given = (split.tp, split.cp, shape.batch, shape.query, shape.context, shape.encoder, ep)
        columns = np.broadcast_arrays(*given)[:-1]
        order = np.lexsort(columns)
        first, run = runs(*(column[order] for column in columns))
        place = np.empty_like(order)
        place[order] = run
        tp, cp, batch, query, context, encoder = (column[order[first]] for column in columns)
        few = replace(
            self, shape=replace(shape, batch=batch, query=query, context=context, encoder=encoder),
            split=replace(split, tp=tp, cp=cp, ep=1, expert_tp=None, expert_load=1.0),
        )  # fmt: skip
        return few, place


class BoostedKernels(NamedTuple):
    """Kernels of a block at the boost clock of the device's cores, and what of their seconds that clock sets."""

    whole: Kernels
    clocked: Kernels
    forward_peak_s: Floats  # the forward pass at the datasheet's peak rates

    def plus(self, times: int, other: BoostedKernels) -> BoostedKernels:
        """These and `other` so many times."""
        whole, clocked = (
            Kernels(**{n: getattr(one, n) + times * getattr(more, n) for n in SUMMED})
            for one, more in ((self.whole, other.whole), (self.clocked, other.clocked))
        )
        return BoostedKernels(whole, clocked, self.forward_peak_s + times * other.forward_peak_s)

    def take(self, places: NDArray[np.intp]) -> BoostedKernels:
        """The kernels of the combinations at `places`."""
        whole, clocked = (
            Kernels(**{n: np.asarray(getattr(one, n))[..., places] for n in SUMMED})
            for one in (self.whole, self.clocked)
        )
        return BoostedKernels(whole, clocked, np.asarray(self.forward_peak_s)[..., places])

    def at(self, clock: Floats) -> Kernels:
        """The kernels at a share of the boost clock.

        Source: a core's rate goes with its clock. Assumes: memory keeps its own.
        """
        longer = 1.0 / clock - 1.0
        timed = {n: getattr(self.whole, n) + longer * getattr(self.clocked, n) for n in TIMED}
        return replace(self.whole, **timed, clock_frac=clock + np.zeros_like(self.whole.forward_s))


def block_kernels(items: Sequence[Item], context: BlockContext, *, in_layers: bool = True) -> BoostedKernels:
    """Kernels of one block; shape of the inner columns in `context`, a row of each device where rates are columns.

    Source: sum over its operations (`flopwise.cost.kernels`).
    Assumes: operations run one after the other on one stream; weights are cold.
    """
    groups, (few, place) = _kernels(items, context), context.beside_experts()
    spread = [each for each in groups if any(map(_is_spread, each[0]))]
    others = [each for each in groups if not any(map(_is_spread, each[0]))]
    kernels = chain(_kernels_of(others, few, in_layers), loss_kernels(items, few, in_layers=in_layers))
    total = _summed_kernels(kernels, few)
    if place is not None:
        total = total.take(place)
    if not spread:
        return total
    return total.plus(1, _summed_kernels(_kernels_of(spread, context, in_layers), context))


def _summed_kernels(kernels: Iterable[BlockKernel], context: BlockContext) -> BoostedKernels:
    """The sums over some kernels of a block."""
    split, shape = context.split, context.shape
    zero = np.zeros(np.broadcast(context.rates.num_sms, shape.batch, split.tp, split.cp, split.ep).shape)
    total, clocked = ({name: zero.copy() for name in SUMMED} for _ in range(2))
    forward_peak_s = zero.copy()
    for kernel in kernels:
        work = kernel.work
        for floor in ("memory_s", "peak_s", "traffic_s"):
            total[floor] += getattr(kernel, floor)
        if kernel.forward:
            forward_peak_s += kernel.peak_s
            light, raised = work.kind in LIGHT, work.name.endswith(RAISED)
            named = not kernel.modules.isdisjoint(context.recipe.modules)
            parts = {"forward": True, "attention": kernel.attends, "light": light, "raised": raised, "named": named}
        else:
            weight = work.name.endswith(WEIGHT_GRADIENT)
            parts = {"backward": True, "weight": weight, "attention_back": kernel.attends}
        for part in (name for name, holds in parts.items() if holds):
            total[f"{part}_s"] += kernel.seconds
            clocked[f"{part}_s"] += kernel.clocked_s
            if kernel.forward:
                total[f"{part}_flops"] += work.causal_flops
    return BoostedKernels(Kernels(**total), Kernels(**clocked), forward_peak_s)


class BlockKernel(NamedTuple):
    """One kernel of a block: what it does, in which precision, and how long it takes."""

    work: Work
    dtype: str
    forward: bool
    attends: bool
    seconds: Floats
    memory_s: Floats  # the same where it is bound by memory, else 0
    clocked_s: Floats  # part of it that the clock of the cores sets; 0 where it is bound by memory
    peak_s: Floats  # at the datasheet's peak rate
    traffic_s: Floats  # at the datasheet's memory bandwidth
    modules: frozenset[str] = frozenset()  # of `RECOMPUTE_MODULES`, those that it is part of
    efficient: bool = False  # PyTorch's memory-efficient attention

    def at(self, clock: Floats) -> BlockKernel:
        """The kernel at a share of the boost clock. Source and assumptions: `BoostedKernels.at`."""
        longer = 1.0 / clock - 1.0
        return self._replace(seconds=self.seconds + longer * self.clocked_s)


def recomputed_modules(group: Sequence[Item], *, compiled: bool) -> frozenset[str]:
    """Of `RECOMPUTE_MODULES`, those that the kernel of these items is part of.

    `compiled`: a whole step is; then the last product of a dense feed-forward part, whose result no gradient reads, is
    not run again.

    Source: Megatron-Core, `recompute_modules`: moe is the whole layer of experts with its router and shared experts;
    MaxText, base.yml, `remat_policy: custom`, for the projections around attention.
    Assumes: a kernel that joins a residual and a norm runs again with the norm.
    """
    kinds = {Attend: "core_attn", Norm: "layernorm"}
    names = {kinds[type(item)] for item in group if type(item) in kinds}
    names |= {"activation" for item in group if is_activation(item)}
    names |= {"mla_up_proj" for item in group if item.name.endswith(RAISED)}
    for name, of_module in (("moe", of_experts), ("mlp", of_dense_mlp), ("attn_proj", projects_attention)):
        names |= {name for item in group if of_module(item)}
    if compiled and any(isinstance(item, Linear) and item.shard == "row" for item in group):
        names -= {"mlp"}
    return frozenset(names)


def kernels_of(items: Sequence[Item], context: BlockContext, *, in_layers: bool) -> Iterator[BlockKernel]:
    """The kernels of one block at the boost clock, forward and backward, as the forward pass runs them."""
    yield from _kernels_of(_kernels(items, context), context, in_layers)
    yield from loss_kernels(items, context, in_layers=in_layers)


def _kernels_of(own: Sequence[tuple[Group, bool]], context: BlockContext, in_layers: bool) -> Iterator[BlockKernel]:
    """`kernels_of` some of the groups of a block, without its loss."""
    groups = [(group, _parts(group, trained, context, in_layers)) for group, trained in own]
    timings = iter(_timings([part for _, parts in groups for part in parts], context))
    for group, parts in groups:
        attends, modules = isinstance(group[0], Attend), recomputed_modules(group, compiled=context.rates.compiles)
        for part in parts:
            work, dtype, forward, passes = part.work, part.dtype, part.forward, part.passes
            figures = _seconds(
                work, dtype, context, next(timings), eager=part.eager, passes=passes, efficient=part.efficient
            )
            kernel = BlockKernel(work, dtype, forward, attends, *figures, modules, part.efficient)
            if (unpack_s := part.unpack_s) is not None:
                kernel = kernel._replace(seconds=kernel.seconds + unpack_s, memory_s=kernel.memory_s + unpack_s)
            yield kernel
        yield from expert_kernels(group, context)
        yield from routing_kernels(group, context)
        yield from adapter_kernels(group, context)


def has_fused_experts(items: Sequence[Item], recipe: Recipe) -> bool:
    """True if the gated experts of a block are fused kernels that hold activation, biases and limits.

    Source: cuDNN frontend documentation, grouped GEMM with GLU and dGLU epilogues.
    Assumes: NVIDIA's recipes as published.
    """
    if not recipe.stack.fused_experts or grouped_kernel(recipe.stack, recipe.precision) != "fused":
        return False
    return has_gated_experts(items)


def _is_spread(item: Item) -> bool:
    """True if an item's work depends on how experts are spread over ranks."""
    return isinstance(item, Experts) or (isinstance(item, Pointwise) and bool(item.per_expert))


class _KernelPart(NamedTuple):
    """The work of a kernel, before it is timed."""

    work: Work
    dtype: str
    forward: bool
    eager: bool  # attention that writes its scores
    efficient: bool  # attention in PyTorch's memory-efficient kernel
    passes: float  # bytes that a light operation moves over those of one kernel
    unpack_s: Floats | None  # to turn a weight into 16 bits before; None where it has them


def _parts(group: Group, trained: bool, context: BlockContext, in_layers: bool) -> list[_KernelPart]:
    """The kernels that `group` is forward and backward."""
    works = [w for w in (item_work(item, context.shape, context.split) for item in group) if w is not None]
    if not works:
        return []
    work, first, recipe = merge_works(works), group[0], context.recipe
    adapter = trained and recipe.lora is not None  # adapters stay in 16 bits
    precision = "bf16" if adapter and recipe.precision in LOW_PRECISIONS else recipe.precision
    unpack_s = None if trained or not in_layers else _unpack_s(work, context)
    eager, efficient = _attention_kernel(first, context)
    if isinstance(first, Attend) and not eager and is_masked(first, context):
        work = replace(work, causal_flops=work.flops, pairs=work.query * work.context, window=None)
    undone = backward_works([work], trainable="all" if trained else "none") if context.block.backward else []
    passes = (1.0, 1.0) if context.fuses else eager_passes(first, trained=trained)
    kernels = []
    for part in (work, *undone):
        dtype = work_dtype(part, precision, in_layers=in_layers)
        kernels.append(_KernelPart(part, dtype, part is work, eager, efficient, passes[part is not work], unpack_s))
    return kernels


def is_masked(item: Attend, context: BlockContext) -> bool:
    """True if a window is a dense mask, of which no kernel skips anything: PyTorch's attention knows no windows.

    Source: transformers, masking_utils.py: sequences as long as the window, or longer, have a mask.
    Assumes: sequences of several lengths all are, or none.
    """
    reach = item.window or item.chunk
    if context.recipe.attention != "sdpa" or reach is None or item.cross or item.compress:
        return False
    return bool(np.all(context.shape.context >= np.asarray(reach)))


def _attention_kernel(item: Item, context: BlockContext) -> tuple[bool, bool]:
    """(attention writes its scores, it runs in PyTorch's memory-efficient kernel); both False in the stack's own.

    Source: PyTorch, aten/native/transformers/cuda/sdp_utils.cpp: flash attention takes neither a mask nor heads beyond
    256; transformers, pull request 46960: nor does the efficient kernel share keys among such heads, so they are
    repeated; `large_heads` of data/stacks.json.
    Assumes: XLA's kernels, and those of CPUs, take any head.
    """
    if not isinstance(item, Attend):
        return context.recipe.attention == "eager", False
    takes_all = context.rates.is_host or context.rates.compiles or context.rates.matrix_unit_dim is not None
    sinks = item.sinks and not context.software.fused_sinks
    eager = context.recipe.attention == "eager" or sinks or context.software.writes_scores([item])
    return eager, not (eager or takes_all) and (beyond_flash(item) or is_masked(item, context))


def _timings(parts: Sequence[_KernelPart], context: BlockContext) -> list[Timing]:
    """Seconds of each part as a kernel alone; plain products of one format are evaluated together."""
    timings: dict[int, Timing] = {}
    products: dict[str, list[int]] = {}
    wide, traffic = context.act_bytes, 1.0 if context.fuses else EAGER_SCORES
    for place, part in enumerate(parts):
        if part.work.kind == "matmul":
            products.setdefault(part.dtype, []).append(place)
            continue
        scores = traffic if part.eager else None
        elements = Elements(part.dtype, act_bytes=wide, kv_bytes=wide)
        timings[place] = work_s(context.rates, part.work, elements, score_traffic=scores)
    for dtype, places in products.items():
        works = [parts[place].work for place in places]
        elements = Elements(dtype, act_bytes=wide)
        timings |= zip(places, products_s(context.rates, works, elements), strict=True)
    return [timings[place] for place in range(len(parts))]


EAGER_SCORES = 2.0
"""Bytes of attention's scores in eager PyTorch over those around one softmax kernel: each score is written (2), scaled
(4), masked (4), normalised in fp32 (2 + 4), cast (4 + 2) and read (2): 24 bytes, not 12 (transformers, the function
eager_attention_forward)."""
EXPERT_TRAFFIC = {
    "bias": ((7.0, 7.0), (12.0, 8.0)),
    "clamp": ((4.0, 4.0), (9.0, 6.0)),
    "gathered bias": ((2.0, 2.0), (1.0, 0.0)),
    "plain clamp": ((7.0, 6.0), (23.0, 15.0)),
}
"""16-bit elements that are read and written, forward and backward, for each element of a routed token: see below."""


def expert_kernels(group: Group, context: BlockContext) -> Iterator[BlockKernel]:
    """The kernels of a stack besides experts' products and activation, where these have biases or a limited activation.

    The bias of an expert, times the token's routing weight in fp32, is added to its part of the result; the parts are
    joined in fp32 and cast. Forward: write 4 bytes an element (bias x weight); read 2 + 4, write 4 (sum); read and
    write 4 (join); read 4, write 2 (cast). Backward: the cast again (2, 4) and one of the sum (4, 2); bias and weight
    have a product and a sum over it each (4 + 4, 4); the parts of the gradient are joined (2, 2).
    Both halves of the first product are limited, then joined: 2 + 2 bytes an element of each, and as much for the join;
    backward compares each half with its limits (3 bytes a comparison, three for the half with two) and takes the
    gradient or zero (5).
    In plain PyTorch each row has its expert's bias copied to it, then added (write 2; read 2 + 2, write 2), whose
    gradient is read once more; min(gate, limit) x sigmoid x (up + 1) is seven operations forward, twelve backward and
    the halves' gradients put side by side, less the passes of a fused activation.

    Source: counting the operations of Megatron-Core's `TEGroupedMLP._apply_bias` and `weighted_bias_quick_geglu_impl`,
    of transformers' `grouped_mm_experts_forward` and `GptOssExperts._apply_gate`, and of their derivatives in PyTorch.
    Assumes: no tensor stays in a cache; rows of the same expert do not wait for one another where its bias's gradient
    is added up.
    """
    for item in group:
        biased = isinstance(item, Experts) and item.bias
        clamped = isinstance(item, Pointwise) and item.clamped
        kinds = {
            "bias": isinstance(item, Experts) and item.bias and item.shard == "row", "gathered bias": biased,
            "clamp": clamped, "plain clamp": clamped,
        }  # fmt: skip
        for what, holds in kinds.items():
            if not holds or what not in context.software.expert_kernels:
                continue
            made = item_work(item, context.shape, context.split)
            elems = 0.0 if made is None else made.out_elems
            passes = EXPERT_TRAFFIC[what][: 2 if context.block.backward else 1]
            for (read, written), suffix in zip(passes, ("", GRADIENT), strict=False):
                work = Work(
                    name=f"{item.name}/{what}{suffix}", kind="gather", in_elems=read * elems, out_elems=written * elems
                )
                timing = work_s(context.rates, work, context.elements)
                figures = _seconds(work, "bf16", context, timing)
                kernel = BlockKernel(work, "bf16", not suffix, False, *figures)  # noqa: FBT003
                yield kernel._replace(modules=frozenset({"moe", "activation"} if clamped else {"moe"}))


ADAPTER_TRAFFIC = {
    "cast": ((3.0, 3.0), (3.0, 3.0)),
    "dropout": ((1.0, 1.5), (1.5, 1.0)),
    "wide dropout": ((2.0, 2.5), (2.5, 2.0)),
    "gradients": ((0.0, 0.0), (2.0, 1.0)),
    "sum": ((3.0, 2.0), (1.0, 1.0)),
    "clone": ((1.0, 1.0), (0.0, 0.0)),
}
"""16-bit elements read and written, forward and backward, an element of an adapter's input or result: see below."""


def adapter_kernels(group: Group, context: BlockContext) -> Iterator[BlockKernel]:
    """The elementwise kernels around an adapter's two products in eager PyTorch; none where the stack fuses them.

    Of an element of the input: a cast to fp32 and one back (`casts_inputs`), the same backward; dropout, with a mask of
    a byte; backward, the sum of its gradients from base and adapter. Of one of the result: it is scaled (read, write)
    and added to the base's (read both, write), which a 4-bit base clones before; backward it is scaled.

    Source: counting the operations of PEFT's tuners/lora/layer.py, Linear.forward, and bnb.py, Linear4bit.forward, and
    of their derivatives in PyTorch; torchtune's and LitGPT's layers scale and add alike.
    Assumes: they stream at the memory's rate, as all that PyTorch vectorises; no tensor stays in a cache; the host
    launches them within the time of the products that they stand beside.
    """
    lora, software = context.recipe.lora, context.software
    if lora is None or context.rates.compiles or fuses_adapters(context.recipe):
        return
    if not software.hf_modules and software.activations == "fused":
        return
    item, casts = group[0], casts_inputs(context.recipe)
    if item.name.endswith("/lora_a"):
        runs = {"cast": casts, "wide dropout" if casts else "dropout": lora.dropout, "gradients": True}
    elif item.name.endswith("/lora_b"):
        runs = {"sum": True, "clone": software.hf_modules and lora.base.name.startswith("nf4")}
    else:
        return
    made = item_work(item, context.shape, context.split)
    assert made is not None
    elems = made.in_elems if "cast" in runs else made.out_elems
    for what in (name for name, holds in runs.items() if holds):
        passes = ADAPTER_TRAFFIC[what][: 2 if context.block.backward else 1]
        for (read, written), suffix in zip(passes, ("", GRADIENT), strict=False):
            if read:
                name, rates = f"{item.name}/{what}{suffix}", context.rates
                work = Work(name=name, kind="gather", in_elems=read * elems, out_elems=written * elems)
                moved = (read + written) * elems * ACT_BYTES
                seconds = rates.value["kernel_s"] + moved / rates.read_bytes_per_s
                figures = seconds, seconds, 0.0, 0.0, moved / rates.hbm_bytes_per_s
                yield BlockKernel(work, "bf16", not suffix, False, *figures)  # noqa: FBT003


def routing_kernels(group: Group, context: BlockContext) -> Iterator[BlockKernel]:
    """The kernels that bring tokens into their experts' order, and results back, beside the products of `group`.

    Rows are read and written in passes, as wide as they are sent: the first product's input, the last one's output, and
    their gradients. Even buffers of a capacity are filled and emptied by products with masks instead: of a sequence's
    tokens by the places in all experts, forward for the rows and their combination, backward for the gradients of both
    and of the combination's weights.

    Source: Megatron-Core, `permute`, `sort_chunks_by_idxs`, `unpermute`; MaxText, `RoutedMoE.permute`, `unpermute` and
    `dense_matmul`; Lepikhin et al. 2020 (arXiv:2006.16668) algorithm 2 for masks.
    Assumes: no row stays in a cache; a mask is written and read once.
    """
    masks = grouped_kernel(context.software, context.recipe.precision) == "masked"
    dtype = "bf16" if context.recipe.precision in LOW_PRECISIONS else context.recipe.precision
    for item in (item for item in group if isinstance(item, Experts)):
        for work in _mask_products(item, context) if masks else _permutations(item, context):
            timing = work_s(context.rates, work, context.elements._replace(dtype=dtype))
            backward = work.name.endswith(GRADIENT)
            if context.block.backward or not backward:
                kernel = BlockKernel(work, dtype, not backward, False, *_seconds(work, dtype, context, timing))  # noqa: FBT003
                yield kernel._replace(modules=frozenset({"moe"}))


def _permutations(item: Experts, context: BlockContext) -> Iterator[Work]:
    """Passes over the rows that a product of experts takes or gives, forward and backward."""
    work, last = item_work(item, context.shape, context.split), item.shard == "row"
    assert work is not None
    elems = (work.out_elems if last else work.in_elems) * context.rates.value[PERMUTE_PASSES] / 2.0
    for suffix in ("", GRADIENT):
        name = f"{item.name}/{'unpermute' if last else 'permute'}{suffix}"
        yield Work(name=name, kind="gather", in_elems=elems, out_elems=elems)


def _mask_products(item: Experts, context: BlockContext) -> Iterator[Work]:
    """Products of tokens' rows and a mask over the places of a capacity, forward and backward, and making the mask."""
    last, rows = item.shard == "row", context.tokens * expert_token_share(context.split)
    places = context.shape.query * item.top_k * (context.recipe.capacity_factor or 1.0)
    width = item.outputs if last else item.inputs
    flops = 2.0 * rows * places * width
    name = f"{item.name}/{'unpermute' if last else 'permute'}"
    yield Work(name=f"{name}/mask", kind="gather", in_elems=rows * places, out_elems=rows * places)
    product = Work(
        name=name, kind="matmul", flops=flops, causal_flops=flops, m=rows, n=places, k=width, in_elems=rows * width,
        out_elems=places * width,
    )  # fmt: skip
    yield product
    for suffix in (GRADIENT, f"/weights{GRADIENT}")[: 2 if last else 1]:
        yield replace(product, name=name + suffix)


EAGER_BYTES = {
    "rmsnorm": ((36.0, 96.0), (4.0, 6.0)),
    "rope": ((20.75, 28.5), (4.0, 6.0)),
    "gated": ((10.0, 18.0), (6.0, 10.0)),
}
"""Bytes that an operation moves an element in 16 bits: forward and backward in eager PyTorch, then as one kernel."""
RMSNORM_WEIGHT_BYTES = 8.0
"""Of RMSNorm's bytes an element backward, those of its weight's gradient: a product (4 read, 2 written) and its
sum over the tokens (2 read)."""


def eager_passes(item: Item, *, trained: bool) -> tuple[float, float]:
    """Bytes that eager PyTorch moves over those that `item_work` counts for one kernel, forward and backward.

    RMSNorm casts to fp32, squares, averages, multiplies, casts back and multiplies by its weight, whose gradient it
    lacks unless `trained`; rope turns halves, joins them, multiplies twice and adds; a gated activation writes its
    result before the product. Anything else is one kernel (LayerNorm, GELU, a residual).

    Source: counting the kernels of Llama's modules in transformers, and of their derivatives (tests/training); PyTorch
    before 2.9, which has no fused RMSNorm. Assumes: no tensor stays in a cache; weights and sines are narrow.
    """
    kind: str = item.kind if isinstance(item, Norm | Pointwise) else ""
    if isinstance(item, Pointwise) and item.gated:
        kind = "gated"
    (forward, backward), (one, one_back) = EAGER_BYTES.get(kind, ((1.0, 1.0), (1.0, 1.0)))
    if kind == "rmsnorm" and not trained:
        backward -= RMSNORM_WEIGHT_BYTES
    return forward / one, backward / one_back


def _kernels(items: Sequence[Item], context: BlockContext) -> list[tuple[Group, bool]]:
    """Items that run as one kernel, and the trained ones; adapters follow the projections that carry them."""
    recipe = context.recipe
    groups = fused_groups(items) if context.fuses else single_groups(items)
    if has_fused_experts(items, recipe) and not any(isinstance(i, Experts) and i.bias for i in items):
        groups = [group for group in groups if not all(map(activates_experts, group))]
    if recipe.lora is None:
        return [(group, all(context.block.trains(item) for item in group)) for group in groups]
    carriers = {id(item) for item in adapted_products(items, recipe.lora)}
    out: list[tuple[Group, bool]] = []
    for group in groups:
        out.append((group, False))
        for item in group:
            if id(item) in carriers and isinstance(item, Linear):
                out.extend(((part,), True) for part in adapter_items(item, recipe.lora.rank))
    return out


def _unpack_s(work: Work, context: BlockContext) -> Floats:
    """Seconds to turn a frozen low-bit weight into 16 bits before a product: read packed, written and read whole.

    Source: Dettmers et al. 2023 (arXiv:2305.14314) section 3: every product of QLoRA dequantises its weight.
    Assumes: nothing of the 16-bit copy is kept.
    """
    lora = context.recipe.lora
    if lora is None or work.kind not in {"matmul", "grouped"} or lora.base.name in PLAIN_FORMATS:
        return 0.0
    packed = lora.base.weight_bits / 8
    return work.weight_elems * (packed + 2 * ACT_BYTES) / context.rates.read_bytes_per_s


def _cast_s(work: Work, dtype: str, context: BlockContext) -> Floats:
    """Seconds that low precision adds to a product: reading 16-bit tensors, writing them cast, and transposed.

    Source: NVIDIA Transformer Engine user guide (both directions of every operand are cast); passes by stack; Megatron
    Core MoE report (arXiv:2603.07685): fused grouped kernels quantise what comes in and goes out as they go.
    Assumes: weights are cast every micro-batch.
    """
    if dtype not in LOW_PRECISIONS:
        return 0.0
    fused = work.kind == "grouped" and grouped_kernel(context.software, dtype) == "fused"
    rows = 0.0 if fused else work.in_elems + work.out_elems
    moved = (rows + work.weight_elems) * (ACT_BYTES + 1.0)
    directions = 2.0 if dtype == "fp8_rowwise" else 1.0  # scales of rows do not serve the transposed operand
    return directions * context.software.cast_passes * moved / context.rates.read_bytes_per_s


def _added_s(work: Work, timing: Timing, context: BlockContext) -> Floats:
    """Seconds by which adding a gradient of weights to the resident one lengthens its product.

    Source: `added_grad_bytes`; roofline model where the product adds it itself: what is moved hides behind computing.
    Assumes: the sum is as large as a weight, and never in a cache.
    """
    nbytes = added_grad_bytes(context.recipe)
    if not nbytes:
        return 0.0
    added_s = work.out_elems * nbytes / context.rates.read_bytes_per_s
    if context.software.accumulation == "separate":
        return added_s
    plain, more = (
        overlap_timing(context.rates, timing.compute_s, timing.memory_s + extra, 0.0).seconds
        for extra in (0.0, added_s)
    )
    return more - plain


def added_grad_bytes(recipe: Recipe) -> float:
    """Bytes that adding one micro-batch's gradient to the resident one moves, beside writing it in 16 bits.

    Fused into the product, the resident one is read and written instead; in a kernel of its own, the new one is read
    besides.

    Source: Megatron-LM, `gradient_accumulation_fusion` (2022), before it `main_grad.add_`; DeepSpeed's BF16_Optimizer.
    Assumes: gradients are added from the first micro-batch on, to zeros.
    """
    if recipe.stack.accumulation == "none":
        return 0.0
    resident = resident_grad_bytes(recipe)
    if resident_grad_dtype(recipe) == "both" and recipe.precision == "fp16":
        resident = ACT_BYTES
    return 2.0 * resident + (ACT_BYTES if recipe.stack.accumulation == "separate" else -ACT_BYTES)


def loss_kernels(items: Sequence[Item], context: BlockContext, *, in_layers: bool) -> Iterator[BlockKernel]:
    """Softmax and cross-entropy over the logits, forward and backward; nothing where no head stands.

    In layers heads are those of multi-token prediction.

    Source: counting the stack's logits, their fp32 copies and their gradients (`loss_traffic_bytes`, else
    `loss_bytes`), each written and read.
    Assumes: half of it forward; chunks move as much as the whole.
    """
    if in_layers:
        items = [i for i in items if i.name == PREDICTED_HEAD]
    head = next((i for i in reversed(items) if isinstance(i, Linear) and i.outputs > i.inputs), None)
    if head is None:
        return
    _, words = linear_dims(head, context.split)
    software = context.software
    each = software.loss_bytes if software.loss_traffic_bytes is None else software.loss_traffic_bytes
    elems = context.tokens * words * each / 2.0 / context.act_bytes
    for name in ("loss", f"loss{GRADIENT}"):
        work = Work(name=name, kind="gather", in_elems=elems, out_elems=elems)
        timing = work_s(context.rates, work, context.elements)
        yield BlockKernel(work, "bf16", name == "loss", False, *_seconds(work, "bf16", context, timing))  # noqa: FBT003


def products_s(rates: Rates, works: Sequence[Work], elements: Elements) -> list[Timing]:
    """`work_s` of each of several plain products, whose formula is evaluated once for as many as a cache holds.

    Source: `matmul_s`. Assumes: what formulas of short columns cost is their calls.
    """
    dims = [np.broadcast_arrays(*work.dims) for work in works]
    inner, outer = max(np.ndim(each[0]) for each in dims), np.ndim(rates.num_sms)
    size = max(each[0].size for each in dims) * np.size(rates.num_sms)
    most, timings = max(1, BLOCK // size), list[Timing]()
    if most == 1 or inner > 1:
        return [matmul_s(rates, *work.dims, elements) for work in works]
    for start in range(0, len(works), most):
        some = dims[start : start + most]
        shape = (len(some), *(1,) * (outer - inner), *np.broadcast_shapes(*(each[0].shape for each in some)))
        m, n, k = (np.stack(np.broadcast_arrays(*column)).reshape(shape) for column in zip(*some, strict=True))
        timing = matmul_s(rates, m, n, k, elements)
        timings += [Timing(*parts) for parts in zip(*map(np.asarray, timing), strict=True)]
    return timings


def _seconds(
    work: Work,
    dtype: str,
    context: BlockContext,
    timing: Timing,
    *,
    eager: bool = False,
    passes: float = 1.0,
    efficient: bool = False,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Seconds of one work: all; all if it is memory-bound; those that the clock sets; at the peak rate; at bandwidth.

    The last two are those of the datasheet.

    `timing`: of it alone. `eager`: attention writes its scores. `efficient`: it runs in PyTorch's memory-efficient
    kernel. `passes`: bytes that a light operation moves over those of one kernel. Assumes: attention's backward pass is
    as fast as its forward one on a systolic array, which published runs of long sequences on TPUs bear out, and slower
    by `BACKWARD_RATE` elsewhere.
    """
    rates, software, wide = context.rates, context.software, context.act_bytes
    scale = passes * software.pointwise_traffic if work.kind in LIGHT else 1.0
    seconds = timing.seconds * scale + _cast_s(work, dtype, context)
    if work.kind in PRODUCTS and work.name.endswith(WEIGHT_GRADIENT):
        seconds = seconds + _added_s(work, timing, context)
    slower = rates.matrix_unit_dim is None  # a systolic array is as fast backward
    computes_s: Floats = timing.compute_s
    if efficient:
        rate, back = efficient_attention(rates, max(work.qk_dim, work.v_dim))
        computes_s = timing.compute_s / (rate * (back if work.name.endswith(GRADIENT) else 1.0))
        seconds = seconds + computes_s - timing.compute_s
    elif work.kind == "attention" and work.name.endswith(GRADIENT) and slower and not eager:
        forward, backward = (
            score_dims(rates, work.qk_dim, work.v_dim, dtype, softmax=f) for f in (1.0, BACKWARD_SOFTMAX)
        )
        computes_s = timing.compute_s / BACKWARD_RATE * (backward / forward)
        seconds = seconds + computes_s - timing.compute_s
    moved = work_bytes(work, weight_bits=8.0 * wide, act_bytes=wide, kv_bytes=wide) * min(scale, 1.0)
    waits = timing.memory_s * scale >= timing.compute_s
    return (
        seconds,
        np.where(waits, seconds, 0.0),
        np.where(waits, 0.0, computes_s),
        work.causal_flops / rates.peak_flops_per_s(dtype),
        moved / rates.hbm_bytes_per_s,
    )


def tensor_parallel_s(items: Sequence[Item], width: int, context: BlockContext) -> tuple[Floats, Floats]:
    """(seconds, seconds at link rate) of the forward collectives of one block.

    With sequence parallelism each row-parallel product ends in a reduce-scatter and each column-parallel one begins
    with an all-gather; without, one all-reduce. Ranks that share an expert do so for the tokens that they bring to it;
    an expert that one rank holds whole needs neither.

    Source: Korthikanti et al. 2022 (arXiv:2205.05198) section 4.2.2; Shoeybi et al. 2019 (arXiv:1909.08053) section 3;
    Liu et al. 2025 (arXiv:2504.14960) section 3 for experts.
    Assumes: activations of the recipe's precision.
    """
    nbytes, split = context.tokens * width * context.act_bytes, context.split
    links = group_fabric(context.fabric, inner=True, tp=split.tp)
    cuts = (Linear, split.tp, nbytes), (Experts, inner_tp(split), nbytes * expert_token_share(split))
    total: Floats = 0.0
    wires: Floats = 0.0
    for kind, ranks, shared in cuts:
        rows = sum(1 for i in items if isinstance(i, kind) and i.shard == "row")
        if not rows:
            continue
        if split.sequence_parallel:
            seconds = rows * (2.0 * all_gather_s(links, shared, ranks))  # and scattered on the way back
        else:
            seconds = rows * all_reduce_s(links, shared, ranks)
        wire = rows * 2 * shared * (ranks - 1) / ranks / context.fabric.link_bytes_per_s
        total, wires = total + np.where(ranks > 1, seconds, 0.0), wires + np.where(ranks > 1, wire, 0.0)
    return total, wires


def _expert_parallel_s(items: Sequence[Item], context: BlockContext) -> tuple[Floats, Floats]:
    """(seconds, seconds at link rate) of dispatch and combine: two all-to-alls of the routed tokens a layer.

    Source: Lepikhin et al. 2020 (arXiv:2006.16668) section 3.2; DeepSeek-V3 report (arXiv:2412.19437) sections 3.2
    and, for tokens sent in 8 bits while results come back in 16, 3.3.3; DeepSeek-V2 report (arXiv:2405.04434) section
    2.2.2 for tokens sent once to a device; NVIDIA, LatentMoE (research.nvidia.com, 2026): tokens are brought down to
    the experts' width before they are sent, and up again once they are back.
    Assumes: the rank that receives most sets the time; a token goes once to each rank that wants it, and crosses the
    network once for each of these or of their nodes, where the stack's dispatch does so, else once for each expert;
    groups of experts lie on neighbouring ranks; each rank of a tensor-parallel group sends its part of the sequence.
    """
    first = next((i for i in items if isinstance(i, Experts)), None)
    if first is None:
        return 0.0, 0.0
    ep = context.split.ep
    copies, links = context.tokens * first.top_k * context.split.expert_load, _beside_tensor_groups(context)
    narrow = context.software.fp8_dispatch and context.recipe.precision in LOW_PRECISIONS
    elems, widths = copies * first.inputs / context.split.tp, (1.0 if narrow else context.act_bytes, context.act_bytes)
    if context.software.dispatch == "device":
        elems = elems * groups_reached(ep, first.top_k, first.groups, first.top_groups) / first.top_k
    together = first.top_k if context.software.dispatch == "node" else 1
    each = {
        w: all_to_all_s(
            links, elems * w, ep, inner_tp(context.split), copies=together, pools=first.groups,
            top_pools=first.top_groups,
        )
        for w in set(widths)
    }  # fmt: skip
    seconds = sum((each[w] for w in widths), start=0.0)
    wire = elems * sum(widths) * (ep - 1) / ep / context.fabric.link_bytes_per_s
    return np.where(ep > 1, seconds, 0.0), np.where(ep > 1, wire, 0.0)


def _beside_tensor_groups(context: BlockContext) -> Fabric:
    """The links that a rank's tensor-parallel group leaves to its other groups."""
    return group_fabric(context.fabric, inner=False, tp=context.split.tp)


def _context_parallel_s(
    items: Sequence[Item], kernels: Kernels, context: BlockContext
) -> tuple[Floats, Floats, Floats]:  # fmt: skip
    """(seconds added to the forward pass, to the backward pass, forward messages at link rate) of one block.

    In a ring, attention runs in as many pieces as there are ranks: each of cp - 1 steps sends keys and values on while
    the piece at hand is computed, backward with their gradients beside them; each further piece costs its start, and
    adding it to the sum in fp32. Gathered keys and values, and the sum of their gradients, hide behind nothing.
    All-to-alls bring each rank all tokens of some heads, and back.

    Source: Liu et al. 2023 (arXiv:2310.01889) section 3, Megatron-Core's `cp_comm_type` p2p (a ring); Llama 3
    (arXiv:2407.21783) section 3.3.2, torchtitan's `context_parallel_rotate_method` (a gather); Jacobs et al. 2023
    (arXiv:2309.14509) section 3.1 (all-to-alls).
    Assumes: each rank has two chunks of the sequence, one from either end, so that causal attention is even; keys and
    values are gathered again for the backward pass.
    """
    attends = [i for i in items if isinstance(i, Attend)]
    if not attends:
        return 0.0, 0.0, 0.0
    cp, tp, fabric = context.split.cp, context.split.tp, _beside_tensor_groups(context)
    one = context.tokens * context.act_bytes
    nbytes = one * sum(i.kv_heads * (i.qk_dim + i.v_dim) for i in attends)
    nbytes = nbytes / np.minimum(tp, max(1, attends[0].kv_heads))
    outputs = one * sum(i.heads * i.v_dim for i in attends) / tp
    others, wire = cp - 1, nbytes
    if context.software.context_messages == "ring":
        start_s, merged_bytes = context.rates.value["kernel_s"], outputs * (1.0 + 2.0 * SUM_BYTES / context.act_bytes)
        pieces_s = others * (len(attends) * start_s + merged_bytes / context.rates.read_bytes_per_s)
        hops = [p2p_s(fabric, times * nbytes, tp, cp) for times in (1.0, 2.0)]
        share = context.software.ring_overlap / cp
        hidden = share * kernels.attention_s, share * kernels.attention_back_s
        forward, back = (others * np.maximum(0.0, hop - part) for hop, part in zip(hops, hidden, strict=True))
        forward, back = forward + pieces_s, back + others * len(attends) * start_s
    elif context.software.context_messages == "gather":
        forward = all_gather_s(fabric, cp * nbytes, cp, stride=tp)
        back = forward + reduce_scatter_s(fabric, cp * nbytes, cp, stride=tp)
    else:
        wire = (nbytes + outputs + one * sum(i.heads * i.qk_dim for i in attends) / tp) / cp
        forward = back = all_to_all_s(fabric, cp * wire, cp, stride=tp)
    wire = others * wire / context.fabric.link_bytes_per_s
    return np.where(cp > 1, forward, 0.0), np.where(cp > 1, back, 0.0), np.where(cp > 1, wire, 0.0)
