"""Which tensors the forward pass of a layer leaves for its backward pass, one line each.

The items of a layer are followed in the order in which they run. A tensor is known by the name of the item that made
it; several items that keep the same tensor keep it once. "eager" and "sdpa" are the modules of transformers as
PyTorch's autograd sees them; "fused" are the kernels of Megatron-LM and Transformer Engine, which recompute what is
cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, Literal, get_args

import numpy as np

from flopwise.errors import SpecError
from flopwise.facts.architecture import (
    Attend,
    Convolution,
    Embedding,
    Experts,
    Item,
    Linear,
    Norm,
    Pointwise,
    Recurrence,
    Stream,
)
from flopwise.ops.habits import Habit
from flopwise.ops.shapes import Shape, Split, Trainable, local_heads, local_units, rows
from flopwise.ops.types import Floats, Ints, ceil_div
from flopwise.ops.work import expert_dims, expert_token_share, inner_tp, linear_dims, present_keys
from flopwise.values import dataclass

Implementation = Literal["eager", "sdpa", "fused"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings, besides the items, that decide which tensors are kept.

    `implementation`: "eager" and "sdpa" are what autograd keeps in the modules of transformers (SDPA with a fused
    kernel), "fused" what the kernels of Megatron-LM and Transformer Engine keep (`flash` False: with a score matrix).

    Source: PyTorch's autograd and dropout kernels. Assumes: activations share one element size.
    """

    shape: Shape
    split: Split = Split()
    implementation: Implementation = "fused"
    habit: Habit = Habit()  # how the family's modules are written (`habit_of`)
    elem_bytes: float = 2.0
    autocast: bool = False  # weights are fp32 and products alone cast what they read: see `stream_bytes`
    flash: bool = True  # fused: attention without a score matrix
    clamps: bool = True  # what limits an activation's inputs is an operation of its own, no part of the activation
    plain_experts: bool = False  # an activation with limits is operations of PyTorch, whatever else is fused
    trainable: Trainable = "all"  # or names of the linears with adapters (LoRA)
    rank: int = 0  # of the adapters on the items that `trainable` names
    dropped: bool = False  # adapters keep a copy, dropped out or cast, which the caller counts, and no input
    one_mlp: bool = False  # a gated MLP with adapters on all its products is one operation: see `adapted_mlps`
    weighted_first: bool = False  # experts' activated rows are multiplied by their weights, not their results

    def __post_init__(self) -> None:
        """Raise SpecError for an implementation that is not known."""
        if self.implementation not in get_args(Implementation):
            allowed = ", ".join(get_args(Implementation))
            raise SpecError(f"implementation: {self.implementation!r} is not known; allowed: {allowed}")

    @property
    def wide(self) -> bool:
        """True if a cast to fp32 makes a new tensor."""
        return self.elem_bytes < 4

    @property
    def stream_bytes(self) -> float:
        """Bytes of an element of what passes from layer to layer, and of what norms make.

        Source: PyTorch documentation, Automatic Mixed Precision, "CUDA Ops that can autocast to float16" and those that
        go to float32 or to the widest input: tables, norms and sums of fp32 operands stay fp32.
        """
        return 4.0 if self.autocast and self.wide else self.elem_bytes


@dataclass(frozen=True, slots=True)
class Tensor:
    """An output of an item: its name, its size on one rank, whether a gradient is needed."""

    key: str
    nbytes: Floats
    grad: bool  # something before it is trained: its gradient is needed
    cast: bool = False  # it is fp32, and products read copies that are cast to 16 bits


@dataclass(slots=True)
class Trace:
    """The tensors kept so far, by name, and the outputs of the items so far.

    Source: PyTorch's saved tensors: one that two operations keep is held once.
    Assumes: nothing is freed before the backward pass.
    """

    setting: Setting
    last: Tensor
    kept: dict[str, Floats] = field(default_factory=dict)
    made: dict[str, Tensor] = field(default_factory=dict)
    scores: set[str] = field(default_factory=set)  # kept tensors that selective recompute gives up
    rotated: dict[str, int] = field(default_factory=dict)  # attention blocks with rope: dimensions rotated
    joint: set[str] = field(default_factory=set)  # blocks whose convolution, scan and gate are one kernel
    whole: frozenset[str] = frozenset()  # MLPs that are one operation with their adapters

    def keep(self, tensor: Tensor) -> None:
        """Keep a tensor that exists anyway."""
        self.kept[tensor.key] = tensor.nbytes

    def keep_operand(self, tensor: Tensor, name: str) -> None:
        """Keep what the product `name` reads: a tensor that exists anyway, or the product's own copy in 16 bits.

        Source: PyTorch, aten/src/ATen/autocast_mode.cpp: `cached_cast` remembers copies of weights alone. Assumes: of
        compiled layers equal casts are one, as of equal expressions.
        """
        if not tensor.cast:
            self.keep(tensor)
        else:
            owner = tensor.key if self.setting.implementation == "fused" else name
            self.note(f"{owner}/cast", tensor.nbytes * (self.setting.elem_bytes / self.setting.stream_bytes))

    def note(self, key: str, nbytes: Floats, *, scores: bool = False) -> None:
        """Keep a tensor that nothing else refers to."""
        self.kept[key] = nbytes
        if scores:
            self.scores.add(key)

    def source(self, reads: str) -> Tensor:
        """The tensor that an item reads: the output of the item named, the layer's own input, or the last output."""
        if not reads:
            return self.last
        return self.made.get(reads, self.made["input"])

    def register(self, name: str, nbytes: Floats, *, grad: bool) -> None:
        """Register the output of an item, of activations' element size."""
        self.last = self.made[name] = Tensor(name, nbytes, grad)

    def register_stream(self, name: str, elems: Floats, *, grad: bool) -> None:
        """Register so many elements of what passes from layer to layer, or of a norm's result."""
        each = self.setting.stream_bytes
        self.last = self.made[name] = Tensor(name, elems * each, grad, cast=each > self.setting.elem_bytes)

    @property
    def trains_weights(self) -> bool:
        """True if the items' own weights get gradients."""
        return self.setting.trainable == "all"

    def has_adapter(self, name: str) -> bool:
        """True if an adapter sits on the item."""
        return _has_adapter(name, self.setting.trainable)


def _has_adapter(name: str, chosen: Trainable) -> bool:
    return isinstance(chosen, frozenset) and (name in chosen or name.rsplit("/", 1)[-1] in chosen)


def adapted_mlps(items: Iterable[Item], chosen: Trainable) -> frozenset[str]:
    """The gated MLPs among `items` that have an adapter on every product, by the names of their blocks.

    Their products, adapters and activation can be one operation, which keeps what both halves make, computes the
    activated tensor again in the backward pass and writes the halves' gradients over them.

    Source: unsloth/kernels/fast_lora.py (`LoRA_MLP`) and kernels/swiglu.py; axolotl, kernels/lora.py and swiglu.py.
    Assumes: no dropout and no scale of DoRA, which both leave to PEFT's modules.
    """
    products: dict[str, list[bool]] = {}
    gated: set[str] = set()
    for item in items:
        if isinstance(item, Linear):
            products.setdefault(_prefix(item.name), []).append(_has_adapter(item.name, chosen))
        elif isinstance(item, Pointwise) and item.gated and not item.per_expert:
            gated.add(_prefix(item.name))
    return frozenset(name for name in gated if all(products.get(name, [False])))


def outside(dim: Ints, stream: Stream, s: Setting) -> Floats:
    """Elements of a tensor of `dim` a row outside the region that tensor parallelism cuts.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198) section 4.2.2. Assumes: sequence parallelism cuts evenly.
    """
    whole = rows(stream, s.shape, s.split) * dim
    return whole / s.split.tp if s.split.sequence_parallel else whole


def inside(dim: Ints, stream: Stream, s: Setting) -> Floats:
    """Elements of a tensor whose columns are cut.

    Source: Korthikanti et al. 2022 (arXiv 2205.05198) section 4.2.1. Assumes: the fullest rank is described.
    """
    return rows(stream, s.shape, s.split) * local_units(dim, s.split.tp)


def _prefix(name: str) -> str:
    """The block that an item belongs to: `attention` of `attention/q_proj`."""
    return name.rsplit("/", 1)[0]


def _linear(t: Trace, item: Linear) -> None:
    s, x, trained, adapted = t.setting, t.source(item.reads), t.trains_weights, t.has_adapter(item.name)
    inside_one = _prefix(item.name) in t.whole and item.shard == "row"  # reads what is computed again
    if (
        trained or (adapted and not s.dropped and not inside_one)
    ) and item.reads != "encoder":  # the encoder's output is kept once for all layers
        if item.name == "router" and s.habit.router_fp32 and s.wide and s.implementation != "fused":
            t.note(f"{item.name}/fp32", (rows(item.stream, s.shape, s.split) + item.outputs) * item.inputs * 4)
        else:
            t.keep_operand(x, item.name)
    if adapted:
        t.note(f"{item.name}/lora_a", rows(item.stream, s.shape, s.split) * s.rank * s.elem_bytes)
    _, n = linear_dims(item, s.split)
    size = rows(item.stream, s.shape, s.split) * n if item.shard == "column" else outside(n, item.stream, s)
    t.register(item.name, size * s.elem_bytes, grad=x.grad or trained or adapted)


def _experts(t: Trace, item: Experts) -> None:
    s, x = t.setting, t.source(item.reads)
    _, k, n = expert_dims(item, s.split)
    m = rows("tokens", s.shape, s.split) * expert_token_share(s.split) * item.top_k * s.split.expert_load
    trained = t.trains_weights
    if trained and item.shard == "column":
        t.note(f"{item.name}/permuted", m * k * s.elem_bytes)
        if s.implementation != "fused":  # chosen experts and their weights; where each row came from and goes
            t.note(f"{item.name}/indices", m * (4 * 8 + 2 * 4))
    elif trained:
        t.keep(x)
    t.register(item.name, m * n * s.elem_bytes, grad=x.grad or trained)


def _norm(t: Trace, item: Norm) -> None:
    s, x = t.setting, t.source(item.reads)
    trained = t.trains_weights and item.affine
    groups: Ints = local_heads(item.groups, s.split.tp) if item.shard else item.groups
    elems = (
        rows(item.stream, s.shape, s.split) * groups * item.dim
        if item.shard
        else outside(item.dim * item.groups, item.stream, s)
    )
    if x.grad or trained:
        if s.implementation == "fused" or item.kind == "layernorm" or s.habit.fused_norm:
            t.keep(x)
            if s.implementation != "fused":
                t.note(f"{item.name}/statistics", elems / item.dim * (2 if item.kind == "layernorm" else 1) * 4)
        else:
            if x.grad:
                t.note(f"{item.name}/fp32", elems * 4) if s.wide and not x.cast else t.keep(x)
                t.note(f"{item.name}/rstd", elems / item.dim * 4)
            if trained:
                t.note(f"{item.name}/normed", elems * (4 if s.habit.norm_weight_fp32 or x.cast else s.elem_bytes))
    t.register_stream(item.name, elems, grad=x.grad or trained)


def _save_gated(t: Trace, item: Pointwise, size: Floats, keep_activated: bool) -> None:
    """activation(a) * b: a and b are the two products before it, or the halves of one."""
    prefix = _prefix(item.name)
    if prefix in t.joint:
        return
    whole = t.made.get(f"{prefix}/gate_up_proj")
    if whole is not None:
        t.keep(whole)
    else:
        for name in ("gate_proj", "up_proj"):
            tensor = t.made.get(f"{prefix}/{name}")
            t.keep(tensor) if tensor is not None else t.note(f"{item.name}/{name}", size)
    if keep_activated:
        t.note(f"{item.name}/activated", size)


def _activation(t: Trace, item: Pointwise, x: Tensor, size: Floats) -> None:
    s, fused = t.setting, t.setting.implementation == "fused"
    if item.gated:
        plain = item.clamped and (s.plain_experts or not fused)
        _save_gated(t, item, size, keep_activated=not (fused or plain) and _prefix(item.name) not in t.whole)
        if plain:  # g = min(gate, limit), sigmoid(a g), their product, 1 + the other half; inputs tell what was cut
            t.note(f"{item.name}/clamped", 4 * size)
        elif item.clamped and s.clamps:
            t.note(f"{item.name}/clamped", 2 * size)  # beside its input, of which the derivative asks what was cut
    elif item.kind in ("relu", "tanh", "sigmoid") and not fused:
        t.note(item.name, size)  # their output says everything
    elif item.kind == "relu2" and not fused:
        t.note(f"{item.name}/relu", size)
    else:
        t.keep(x)
        if item.kind == "gelu" and not fused:
            for extra in range(s.habit.gelu_tensors - 1):
                t.note(f"{item.name}/gelu{extra}", size)


def _pointwise(t: Trace, item: Pointwise) -> None:
    s, x = t.setting, t.last
    if item.kind == "rope":
        t.rotated[_prefix(item.name)] = item.dim
        return
    cut = inside(item.dim, item.stream, s) if item.shard else outside(item.dim, item.stream, s)
    if item.per_expert:  # routed copies are whole rows, whatever sequence parallelism does outside
        columns = local_units(item.dim, inner_tp(s.split)) if item.shard else item.dim
        copies = item.per_expert * rows("tokens", s.shape, s.split) * expert_token_share(s.split)
        cut = copies * columns * s.split.expert_load
    size, grad = cut * s.elem_bytes, x.grad
    if item.kind == "residual":
        t.register_stream(item.name, cut, grad=grad or t.source(item.reads or "input").grad)
        return
    if x.grad:
        _keep_for_pointwise(t, item, x, size)
    if item.per_expert and item.kind == "scale":  # weighted copies are summed to a row a token
        size = outside(item.dim, item.stream, s) * s.elem_bytes
    elif x.cast and item.kind in ("scale", "dropout"):
        t.register_stream(item.name, cut, grad=grad)
        return
    t.register(item.name, size, grad=grad)


def _keep_for_pointwise(t: Trace, item: Pointwise, x: Tensor, size: Floats) -> None:
    """Bytes that the derivative of one elementwise operation reads; `size`: bytes of its output."""
    s = t.setting
    if item.kind == "dropout":
        t.note(f"{item.name}/mask", size / s.elem_bytes)  # a byte an element
    elif item.kind == "softmax":
        t.note(item.name, size / s.elem_bytes * 4)
    elif item.kind == "scale":
        routed = item.name.startswith("experts/") and not s.weighted_first
        if routed or item.name.startswith("shared/"):  # multiplied by routing weights, which have gradients
            t.keep(x)
    elif item.kind in ("gate", "conv"):
        t.keep(x)
        if item.kind == "gate":
            t.note(f"{item.name}/gate", size)
    else:
        _activation(t, item, x, size)


def _table(t: Trace, item: Embedding) -> None:
    s, trained = t.setting, t.trains_weights
    if trained:
        sequences = 1 if item.position else s.shape.batch
        t.note(f"{item.name}/ids", rows(item.stream, s.shape, s.split) / s.shape.batch * sequences * 8)
    t.register_stream(item.name, outside(item.dim, item.stream, s), grad=trained or t.last.grad)


def _convolution(t: Trace, item: Convolution) -> None:
    s, x = t.setting, t.last
    if t.trains_weights and x.key == "input":  # sound, not yet of the stack's width
        sampled = item.rows_per_token * item.stride
        t.note(f"{item.name}/input", outside(item.channels, item.stream, s) * sampled * s.elem_bytes)
    elif t.trains_weights:
        t.keep_operand(x, item.name)
    width = item.channels if item.outputs is None else item.outputs
    elems = inside(width, item.stream, s) if item.shard else outside(width, item.stream, s)
    t.register(item.name, elems * item.rows_per_token * s.elem_bytes, grad=x.grad or t.trains_weights)


def _recurrence(t: Trace, item: Recurrence) -> None:
    s, x = t.setting, t.last
    heads = ceil_div(item.heads, s.split.tp) if item.shard else item.heads
    out = rows("tokens", s.shape, s.split) * heads * item.value_dim * s.elem_bytes
    if x.grad and s.implementation == "fused" and item.kind == "mamba2":
        _keep_joint_scan(t, item, out)
    elif x.grad:
        t.keep(x)
        t.note(f"{item.name}/inputs", out + rows("tokens", s.shape, s.split) * 2 * item.key_dim * s.elem_bytes)
    t.register(item.name, out, grad=x.grad)


def _keep_joint_scan(t: Trace, item: Recurrence, out: Floats) -> None:
    """Keep the projection that Mamba 2's kernel of convolution, scan and gate reads, and the result of its scan.

    Source: mamba_ssm/ops/triton/ssd_combined.py, `MambaSplitConv1dScanCombinedFn`: saves zxbcdt and out_x, and
    convolves again in the backward pass; Megatron-Core's MambaMixer runs it (`use_mem_eff_path`).
    Assumes: the norm after the gate is a kernel of its own.
    """
    prefix = _prefix(item.name)
    t.joint.add(prefix)
    for name in (f"{prefix}/conv", f"{prefix}/act"):
        t.kept.pop(name, None)
    t.keep(t.made[f"{prefix}/in_proj"])
    t.note(f"{item.name}/result", out)


@dataclass(frozen=True, slots=True)
class _Operands:
    """Queries, keys and values of an attention item: which need gradients, and the one product behind them, if any."""

    q_grad: bool
    k_grad: bool
    v_grad: bool
    fused: Tensor | None
    views: bool  # queries and keys are still views of `fused`


def _operands(t: Trace, prefix: str) -> _Operands:
    def output(*names: str) -> Tensor | None:
        return next((t.made[f"{prefix}/{n}"] for n in names if f"{prefix}/{n}" in t.made), None)

    fused = output("qkv_proj")
    q, k = output("q_norm", "q_proj", "q_b_proj", "qkv_proj"), output("k_norm", "k_proj", "kv_b_proj", "qkv_proj")
    v = output("v_norm", "v_proj", "kv_b_proj", "qkv_proj") or k
    plain = output("q_norm") is None and prefix not in t.rotated
    grads = [True if x is None else x.grad for x in (q, k, v)]
    return _Operands(grads[0], grads[1], grads[2], fused or output("kv_b_proj"), fused is not None and plain)


def _attend(t: Trace, item: Attend) -> None:
    s, given = t.setting, _operands(t, _prefix(item.name))
    tokens = rows("tokens", s.shape, s.split)
    heads = ceil_div(item.heads, s.split.tp)
    grad = given.q_grad or given.k_grad or given.v_grad
    if grad and s.implementation == "sdpa":
        _keep_kernel_operands(t, item, given)
    elif grad:
        _keep_copied_operands(t, item, given)
    if grad:
        _keep_scores(t, item, given, heads * tokens)
    t.register(item.name, tokens * heads * item.v_dim * s.elem_bytes, grad=grad)
    if grad and s.implementation == "sdpa" and _concatenates(t, item):
        t.note(f"{item.name}/out", t.last.nbytes)  # lies head by head, as the queries: the projection reads a copy
    elif grad and (s.implementation == "sdpa" or (s.implementation == "fused" and s.flash)):
        t.keep(t.last)


def _concatenates(t: Trace, item: Attend) -> bool:
    """True if the queries were put together from a rotated and an unrotated part."""
    turned = t.rotated.get(_prefix(item.name), 0)
    partly = 0 < turned < (item.heads + (0 if item.kv_shared else item.kv_heads)) * item.qk_dim
    return partly or (turned > 0 and t.setting.habit.rope_concat)


def _key_rows(s: Setting, item: Attend) -> Floats:
    """Keys that stand beside one another on one rank, all sequences together."""
    if item.cross:
        return rows("encoder", s.shape, s.split)
    return rows("tokens", s.shape, s.split) * (present_keys(item, s.shape.context) / s.shape.context)


def _keep_copied_operands(t: Trace, item: Attend, given: _Operands) -> None:
    """Queries, keys and values as tensors of their own; eager code repeats keys and values to all heads first."""
    s, eager = t.setting, t.setting.implementation == "eager"
    heads = ceil_div(item.heads, s.split.tp)
    kv_heads = heads if eager else local_heads(item.kv_heads, s.split.tp)
    tokens, keys = rows("tokens", s.shape, s.split), _key_rows(s, item)
    if given.k_grad or not eager:
        t.note(f"{item.name}/q", tokens * heads * item.qk_dim * s.elem_bytes)
    if given.q_grad or not eager:
        t.note(f"{item.name}/k", keys * kv_heads * item.qk_dim * s.elem_bytes)
    if (given.q_grad or given.k_grad) if eager else not item.key_is_value:
        t.note(f"{item.name}/v", keys * kv_heads * item.v_dim * s.elem_bytes)


def _keep_kernel_operands(t: Trace, item: Attend, given: _Operands) -> None:
    """Queries, keys and values as PyTorch's fused attention keeps them: where they lie, if they are views.

    With an explicit mask (a window shorter than the sequence) keys and values are repeated to all heads and the mask is
    kept by each layer.
    """
    s = t.setting
    heads, kv_heads = ceil_div(item.heads, s.split.tp), local_heads(item.kv_heads, s.split.tp) * 1.0
    tokens, keys = rows("tokens", s.shape, s.split), _key_rows(s, item)
    cap = None if item.cross else item.window or item.chunk
    repeated = False
    if cap is not None:
        masked = np.asarray(s.shape.context > cap)
        kv_heads = np.where(masked, heads, kv_heads)[()]
        repeated = bool(masked.all()) and item.kv_heads < item.heads
        area = s.shape.batch * (s.shape.query / s.split.cp) * present_keys(item, s.shape.context)
        t.note(f"{item.name}/mask", (masked * area * s.elem_bytes)[()])
    if given.fused is not None and not repeated:
        t.keep(given.fused)
    elif not item.key_is_value:
        t.note(f"{item.name}/v", keys * kv_heads * item.v_dim * s.elem_bytes)
    if not given.views:
        t.note(f"{item.name}/q", tokens * heads * item.qk_dim * s.elem_bytes)
        t.note(f"{item.name}/k", keys * kv_heads * item.qk_dim * s.elem_bytes)


def _keep_scores(t: Trace, item: Attend, given: _Operands, score_rows: Floats) -> None:
    """Kept probabilities of attention: matrices, or one number a row where a kernel recomputes them."""
    s, eager = t.setting, t.setting.implementation == "eager"
    if s.implementation == "sdpa" or (not eager and s.flash):
        t.note(f"{item.name}/logsumexp", score_rows * 4, scores=True)
        return
    area = score_rows * (s.shape.encoder if item.cross else present_keys(item, s.shape.context))
    upcast = eager and (s.habit.softmax_fp32 or s.autocast) and s.wide
    if given.q_grad or given.k_grad:
        if eager and s.habit.softcap:
            t.note(f"{item.name}/softcap", area * s.elem_bytes, scores=True)
        t.note(f"{item.name}/softmax", area * (4 if upcast else s.elem_bytes), scores=True)
        if item.dropout:
            t.note(f"{item.name}/dropout_mask", area, scores=True)
    if (upcast or item.dropout) and given.v_grad:
        t.note(f"{item.name}/probabilities", area * s.elem_bytes, scores=True)


_RULES: dict[type[Item], Callable[[Trace, Any], None]] = {
    Linear: _linear,
    Experts: _experts,
    Norm: _norm,
    Pointwise: _pointwise,
    Embedding: _table,
    Convolution: _convolution,
    Recurrence: _recurrence,
    Attend: _attend,
}


def trace_items(items: Iterable[Item], setting: Setting, width: int, *, input_grad: bool = True) -> Trace:
    """Follow `items` from an input of `width` columns; `input_grad`: something before them is trained.

    Source: PyTorch's derivatives (what each backward formula reads); Korthikanti et al. 2022 (arXiv 2205.05198) section
    4 for the fused kernels.
    Assumes: parameters and activations of one dtype; an element of a dropout mask is a byte, as on GPUs.
    """
    each = setting.stream_bytes
    entry = Tensor("input", outside(width, "tokens", setting) * each, input_grad, cast=each > setting.elem_bytes)
    items = tuple(items)
    whole = adapted_mlps(items, setting.trainable) if setting.one_mlp else frozenset[str]()
    trace = Trace(setting, entry, made={"input": entry}, whole=whole)
    for item in items:
        rule = _RULES.get(type(item))
        if rule is not None:
            rule(trace, item)
    return trace
