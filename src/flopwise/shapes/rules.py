"""The rules of shape advice: each looks for one kind of dimension that suits a device badly, and asks what it costs.

A rule looks at the model's tables and asks a clock what a pass takes with one dimension changed: the same estimate,
once more. Nothing is advised that saves less than `WORTH` of the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from flopwise.cost.kernels import QUERY_BLOCK, Elements, flash_dim, grouped_matmul_s
from flopwise.facts.architecture import (
    Attend,
    Convolution,
    Embedding,
    Experts,
    Item,
    Layer,
    Linear,
    Model,
    Norm,
    Pointwise,
    Recurrence,
    Stack,
)
from flopwise.ops.types import ceil_div
from flopwise.shapes.clocks import Clock
from flopwise.shapes.kernels import KernelShape, aligned_elems, blocks, preferred_elems, scalar
from flopwise.units import format_number
from flopwise.values import dataclass, replace

WORTH = 0.005
"""Share of the pass below which a gain is not worth a line."""
VOCABULARY_MULTIPLES = (64, 128)
"""Megatron-LM pads the vocabulary to 128 x tp, others to 64."""
HEAD_DIMS = (64, 128, 256)
"""Head dimensions that every flash kernel is built for; the last is for heads that are larger than the second."""
MOST = 0.7
"""Share of the best gain that a smaller change must reach to be preferred."""


@dataclass(frozen=True, slots=True)
class Advice:
    """One change. `gain_s` is saved in each pass, `gain_frac` of the pass; negative where it must be and costs."""

    what: str
    now: str
    better: str
    why: str
    gain_s: float
    gain_frac: float
    needed: bool = False  # software refuses the shape as it is


@dataclass(frozen=True, slots=True)
class Fine:
    """A shape that needs no change."""

    what: str
    why: str


Finding = Advice | Fine


@dataclass(frozen=True, slots=True)
class Case:
    """A clock, the time of a pass of the model as it is, and the kernels behind that.

    Gains are of single changes; two together need not add up.
    """

    clock: Clock
    now_s: float
    kernels: tuple[KernelShape, ...]

    def seconds_saved(self, model: Model) -> float:
        """Seconds of a pass that the changed model saves."""
        return self.now_s - scalar(self.clock.pass_s(model))

    def advice(
        self, what: str, now: object, better: object, why: str, gain_s: float, *, needed: bool = False
    ) -> Advice:
        """The advice with its gain as a share of the pass."""
        return Advice(what, str(now), str(better), why, gain_s, gain_s / self.now_s, needed)

    def percent(self, gain_s: float) -> str:
        """A small gain as a share of the pass, for people."""
        share = 100 * gain_s / self.now_s
        return f"{share:.2f} %" if share >= 0.005 else "nothing"

    def worth(self, gain_s: float) -> bool:
        """True if a gain is large enough for a line."""
        return gain_s >= WORTH * self.now_s


def vocabulary(case: Case) -> Iterator[Finding]:
    """Columns of the head: a multiple of 64 or 128 on every rank.

    Source: Anthony et al. 2024 (arXiv:2401.14489) section 6; Megatron-LM `--make-vocab-size-divisible-by`; nanoGPT
    pads 50,257 to 50,304.
    Assumes: padded rows and columns are computed as others are.
    """
    clock = case.clock
    vocab, tp = clock.model.vocab, clock.tp
    ends = [i for s in clock.model.stacks for i in s.after if isinstance(i, Linear) and i.outputs == vocab]
    if not vocab or not ends:
        return
    cut = tp if any(i.shard == "column" for i in ends) else 1
    targets = dict.fromkeys(ceil_div(vocab, m * cut) * m * cut for m in VOCABULARY_MULTIPLES)
    if vocab in targets:
        yield Fine("vocabulary", f"{vocab:,} is a multiple of 64{f' x tp {tp}' if cut > 1 else ''}")
        return
    gain, best = max((case.seconds_saved(_with_vocabulary(clock.model, int(target))), target) for target in targets)
    per_rank = vocab / cut
    if case.worth(gain):
        columns = f"{format_number(per_rank, 6)} columns a rank"
        why = f"{columns} are not a multiple of {aligned_elems('bf16')}: rows start unaligned"
        if per_rank % aligned_elems("bf16") == 0:
            why = f"{columns} leave a tile partly empty"
        yield case.advice(ends[0].name, f"{vocab:,}", f"{int(best):,}", why + "; pad embeddings and head", gain)
    else:
        yield Fine("vocabulary", f"{vocab:,}: padding to {int(best):,} would save {case.percent(gain)}")


def alignment(case: Case) -> Iterator[Finding]:
    """Inputs and outputs of every product: whole units of 16 bytes on every rank.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide", section 3.1.
    Assumes: padded with zeros, the model computes the same.
    """
    clock = case.clock
    wide = preferred_elems(clock.dtype, clock.cluster.accelerator.compute_capability)
    seen = wrong = 0
    for stack in clock.model.stacks:
        odd: dict[tuple[int, int, str], list[str]] = {}  # (dimension, ranks that cut it, precision) -> products
        for place, _, items in blocks(stack):
            dtype = "bf16" if place is None else clock.dtype
            for item in items:
                if not isinstance(item, Linear | Experts) or item.outputs in {clock.model.vocab, 1}:
                    continue
                seen += 1
                for side, size in (("row", item.inputs), ("column", item.outputs)):
                    cut = clock.tp if item.shard == side else 1
                    if (size / cut) % aligned_elems(dtype):
                        odd.setdefault((size, cut, dtype), []).append(item.name)
        wrong += len(odd)
        for (size, cut, dtype), names in odd.items():
            unit = aligned_elems(dtype)
            targets = dict.fromkeys(int(ceil_div(size, u * cut)) * u * cut for u in (unit, wide))
            gain, to = max((case.seconds_saved(_with_dimension(clock.model, stack.name, size, t)), t) for t in targets)
            if case.worth(gain):
                products = ", ".join(dict.fromkeys(names))
                share = format_number(size / cut, 6)
                why = f"{share} on a rank is not a multiple of {unit} ({dtype}): rows start unaligned; pad {products}"
                yield case.advice(names[0], f"{size:,}", f"{to:,}", why, gain)
    if seen and not wrong:
        yield Fine("alignment", f"all {seen} products are multiples of {aligned_elems(clock.dtype)} elements a rank")


def head_dims(case: Case) -> Iterator[Finding]:
    """Head dimensions that flash kernels are built for; others are computed padded.

    Source: flash-attention 2 (head dimensions of its kernels); Anthony et al. 2024 (arXiv:2401.14489) section 6.
    Assumes: as good a model with as wide projections in other heads.
    """
    clock, done = case.clock, set()
    if not clock.flash:
        return
    for stack in clock.model.stacks:
        for kind in stack.kinds:
            for item in kind.items:
                if not isinstance(item, Attend) or (item.name, item.qk_dim, stack.name) in done:
                    continue
                done.add((item.name, item.qk_dim, stack.name))
                path = f"{stack.name}/{kind.name}/{item.name}" if len(clock.model.stacks) > 1 else item.name
                dim, runs_at = item.qk_dim, int(flash_dim(item.qk_dim))
                if dim == runs_at or item.latent_dim is not None or item.v_dim != dim:
                    continue
                others = list(_other_heads(case, stack.name, kind.name, item))
                most = max((o[0] for o in others), default=0.0)
                near = (o for o in others if o[0] >= MOST * most)  # of those that save about as much, the nearest
                best = min(near, default=None, key=lambda o: max(o[3] / dim, dim / o[3]))
                if best is None or not case.worth(best[0]):
                    saves = case.percent(0.0 if best is None else best[0])
                    yield Fine(path, f"heads of {dim} run as {runs_at}; other heads would save {saves}")
                    continue
                gain_s, heads, kv_heads, to = best
                yield case.advice(
                    path,
                    f"{item.heads} heads of {dim}",
                    f"{heads} heads of {to}" + (f", {kv_heads} of keys" if kv_heads != heads else ""),
                    f"flash kernels compute heads of {dim} as {runs_at}",
                    gain_s,
                )
    dims = sorted({dim for _, dim, _ in done if dim == flash_dim(dim)})
    if dims:
        yield Fine("head dimension", f"{', '.join(map(str, dims))}: flash kernels are built for it")


def _other_heads(case: Case, stack: str, layer: str, item: Attend) -> Iterator[tuple[float, int, int, int]]:
    """(gain, heads, key-value heads, dimension) of the heads that would make the same projections."""
    for to in HEAD_DIMS:
        whole, cached = item.heads * item.qk_dim, item.kv_heads * item.qk_dim
        heads, kv_heads = whole // to, cached // to
        if to > 128 >= item.qk_dim or whole % to or cached % to or heads % kv_heads or heads % case.clock.tp:
            continue
        changed = _with_heads(case.clock.model, stack, layer, item, heads, kv_heads, to)
        yield case.seconds_saved(changed), heads, kv_heads, to


def degrees(case: Case) -> Iterator[Finding]:
    """Heads and key-value heads that the tensor-parallel ranks can share, and the link between these ranks.

    Source: Shoeybi et al. 2019 (arXiv:1909.08053) section 3 (whole heads on a rank); Narayanan et al. 2021
    (arXiv:2104.04473) section 3.2: tensor parallelism stays inside the node.
    Assumes: what a smaller degree leaves over becomes replicas or stages.
    """
    clock = case.clock
    tp = clock.tp
    if tp == 1:
        return
    attends = [i for s in clock.model.stacks[:1] for kind in s.kinds for i in kind.items if isinstance(i, Attend)]
    most = min(tp, max((i.heads for i in attends), default=tp) + 1)
    fewer = [d for d in range(1, most) if (all(i.heads % d == 0 for i in attends) if attends else tp % d == 0)]
    seconds = clock.pass_s(tp=np.array([*fewer, tp]))
    gains = {d: float(seconds[-1] - s * d / tp) for d, s in zip(fewer, seconds, strict=False)}
    odd = next((i for i in attends if i.heads % tp), None)
    if odd is not None:
        to = max(fewer)
        full = -(-odd.heads // tp)
        why = f"{odd.heads} heads are not divisible by {tp}: software refuses, or the fullest rank has {full}"
        near = f"{odd.heads // tp * tp or tp} or {full * tp} heads"
        yield case.advice("tensor parallelism", f"tp {tp}", f"tp {to}, or {near}", why, gains[to], needed=True)
        return
    kv_heads = min((i.kv_heads for i in attends if i.latent_dim is None), default=tp)
    fabric = clock.cluster.fabric
    to, why = tp, ""
    if kv_heads < tp:
        to, why = kv_heads, f"{kv_heads} key-value heads: each is held and computed {ceil_div(tp, kv_heads)} times"
    elif fabric.domain < tp:
        to, why = fabric.domain, f"{fabric.link_kind} joins {fabric.domain}: messages go over the network"
    elif fabric.link_kind.startswith("pcie"):
        to, why = 1, "messages go over PCIe"
    allowed = max((d for d in fewer if d <= to), default=None)
    if why and allowed is not None and case.worth(gains[allowed]):
        more = "more replicas or stages instead, if memory allows; gain per GPU at the same batch"
        yield case.advice("tensor parallelism", f"tp {tp}", f"tp {allowed}", f"{why}; {more}", gains[allowed])
    else:
        yield Fine("tensor parallelism", f"tp {tp} divides the heads and stays on {fabric.link_kind}")


def feed_forward(case: Case) -> Iterator[Finding]:
    """Widths of feed-forward blocks whose tiles fill the last wave: the width nearby that takes less time.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide", section 3.2 (wave quantisation); Anthony et al.
    2024 (arXiv:2401.14489) section 6.4.
    Assumes: a wider block is no worse a model, and a few percent narrower is as good where the time falls by more.
    """
    clock = case.clock
    for stack in clock.model.stacks:
        for kind in {k.name: k for k in stack.kinds}.values():
            for block in _feed_forwards(kind.items):
                if block.experts:
                    continue
                best = max(_other_widths(case, stack.name, kind.name, block), default=None, key=lambda pair: pair[0])
                path = f"{stack.name}/{kind.name}/{block.path}" if len(clock.model.stacks) > 1 else block.path
                if best is None or not case.worth(best[0]):
                    yield Fine(path, f"{block.width:,} hidden columns: none nearby is faster for its size")
                    continue
                why = "fills whole tiles and waves: "
                change = 100 * (best[1] / block.width - 1)
                why += f"{abs(change):.1f} % {'more' if change > 0 else 'fewer'} columns in less time"
                yield case.advice(path, f"{block.width:,}", f"{best[1]:,}", why, best[0])


def _other_widths(case: Case, stack: str, layer: str, block: _FeedForward) -> Iterator[tuple[float, int]]:
    """(gain, width): wider and faster, or narrower by less than half the share of time it saves."""
    clock = case.clock
    wide = preferred_elems(clock.dtype, clock.cluster.accelerator.compute_capability) * clock.tp
    whole = block.width // wide * wide
    spent = sum(o.seconds * o.layers for o in case.kernels if o.kind == "matmul" and f"{block.path}/" in o.name)
    for step in (-2, -1, 0, 1, 2):
        width = whole + step * wide
        if width <= 0 or width == block.width or abs(width / block.width - 1) > 0.04:
            continue
        gain = case.seconds_saved(_with_feed_forward(clock.model, stack, layer, block, width))
        fewer = max(0.0, 1 - width / block.width)
        if gain > 2 * fewer * spent:
            yield gain, width


def length(case: Case) -> Iterator[Finding]:
    """Sequences and windows of whole blocks of queries.

    Source: FlashAttention-2 (arXiv 2307.08691) section 3.3: blocks of 128 queries.
    Assumes: as many tokens in longer sequences are as good.
    """
    clock, block = case.clock, int(QUERY_BLOCK)
    if clock.task == "train" and clock.model.stacks[0].tokens_per_sample is None:
        if clock.seq % block == 0:
            yield Fine("sequence", f"{clock.seq:,} tokens are whole blocks of {block}")
        else:
            to = int(ceil_div(clock.seq, block)) * block
            gain = case.now_s - scalar(clock.pass_s(seq=to)) * clock.seq / to
            if case.worth(gain) and to <= (clock.model.max_position or to):
                why = f"queries come in blocks of {block}; gain for the same tokens"
                yield case.advice("sequence", f"{clock.seq:,}", f"{to:,}", why, gain)
    windows = {i.window for s in clock.model.stacks for k in s.kinds for i in k.items if isinstance(i, Attend)}
    for window in sorted(w for w in windows if w and w % block and w < clock.seq):
        to = int(ceil_div(window, block)) * block
        gain = case.seconds_saved(_with_window(clock.model, window, to))
        if case.worth(gain):
            yield case.advice("attention window", f"{window:,}", f"{to:,}", f"whole blocks of {block}", gain)


def batch(case: Case) -> Iterator[Finding]:
    """The batch that fills waves and reaches the ridge: the nearest that pays, and a larger one where it pays more.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide", sections 2 and 3.2.
    Assumes: the memory allows.
    """
    clock = case.clock
    b = clock.batch
    near = [n for n in range(max(1, b - b // 4), b + b // 4 + 1) if n != b and (b <= 32 or (n - b) % 8 == 0)]
    larger = [b * f for f in (2, 4, 8)]
    candidates = np.array([*near, *larger])
    per = clock.pass_s(batch=candidates) * b / candidates
    gains = {int(n): case.now_s - float(s) for n, s in zip(candidates, per, strict=True)}
    what = "micro-batch" if clock.task == "train" else "sequences in flight"
    note = "gain for the same number of sequences, if memory allows"
    if clock.task == "serve":
        note += "; each step takes longer"
    fixed = max(0.0, 2 * gains[2 * b])  # seconds that each pass takes whatever its size: they alone explain this much
    dips = {n: gains[n] - fixed * (1 - b / n) for n in near}
    first = max(near, key=lambda n: (dips[n], -abs(n - b)), default=b)
    base = 0.0
    if first != b and case.worth(gains[first]) and case.worth(dips[first]):
        base = gains[first]
        yield case.advice(what, b, first, f"nearest that fills tiles and waves better; {note}", base)
    most = max(gains[n] for n in larger)
    if not case.worth(most - base):
        yield Fine(what, f"{b}: larger ones take as long for each sequence")
        return
    to = next(n for n in larger if gains[n] >= MOST * most)
    yield case.advice(what, b, to, f"{_too_small(case)}; {note}", gains[to])


def experts(case: Case) -> Iterator[Finding]:
    """Rows of each expert against whole tiles, and experts that tensor parallelism cuts thin.

    Source: MegaBlocks (arXiv 2211.15841) section 4 for the padding; Megatron-Core's expert-tensor-parallel size of 1.
    Assumes: the gain is of kernels alone: the same messages, over more ranks.
    """
    clock = case.clock
    grouped = [o for o in case.kernels if o.kind == "grouped"]
    first = next((o for o in grouped if o.forward), None)
    if first is None or (rows := first.m) is None:
        return
    each = rows / first.groups
    if first.tiling is not None:
        tile = first.tiling.rows
        empty = 1 - each / (ceil_div(each, tile) * tile)
        more = "; a larger batch fills them" if empty > 0.25 else ""
        text = f"{each:,.0f} in tiles of {tile} rows, {100 * empty:.0f} % of them padding{more}"
        yield Fine("tokens an expert", text)
    if clock.tp == 1 or clock.task != "train":
        return
    widths = {b.width for s in clock.model.stacks[:1] for k in s.kinds for b in _feed_forwards(k.items) if b.experts}
    cut = {w / clock.tp for w in widths} | {2 * w / clock.tp for w in widths}
    gain = sum(o.layers * (o.seconds - _whole_expert_s(case, o, rows, cut)) for o in grouped)
    if case.worth(gain):
        now, whole = (
            f"{' and '.join(f'{format_number(w / d, 6)}' for w in sorted(widths))} columns" for d in (clock.tp, 1)
        )
        why = f"tp {clock.tp} cuts experts thin; spread them over the tp ranks, too (ep x {clock.tp}); kernels alone"
        yield case.advice("experts", f"{now} a rank", whole, why, gain)


def _whole_expert_s(case: Case, shape: KernelShape, rows: float, cut: set[float]) -> float:
    """Seconds of a grouped product of uncut experts, of which a rank holds fewer, each with as many rows."""
    tp = case.clock.tp
    sizes = [v or 0.0 for v in (shape.m, shape.n, shape.k)]
    token = next((i for i, v in enumerate(sizes) if v == rows), 0)
    width = next((i for i, v in enumerate(sizes) if v in cut and i != token), None)
    if width is None:
        return shape.seconds
    sizes[token], sizes[width] = sizes[token] / tp, sizes[width] * tp
    m, n, k = sizes
    groups_here = max(1.0, shape.groups / tp)
    rates = case.clock.cluster.rates
    whole, now = (
        scalar(grouped_matmul_s(rates, *dims, groups, Elements(shape.dtype)).seconds)
        for dims, groups in (((m, n, k), groups_here), ((shape.m or 0.0, shape.n or 0.0, shape.k or 0.0), shape.groups))
    )
    return shape.seconds * whole / now


def _too_small(case: Case) -> str:
    """Why a larger batch pays."""
    idle = 1 - sum(o.share_frac for o in case.kernels)
    if idle > 0.1 and case.clock.tp == 1:
        return f"the device waits for the host for {100 * idle:.0f} % of the pass"
    products = [o for o in case.kernels if o.kind in {"matmul", "grouped"} and o.forward]
    few = [o for o in products if o.kind == "grouped" and o.m is not None and o.m / o.groups < QUERY_BLOCK]
    if few and few[0].m is not None:
        return f"{few[0].m / few[0].groups:,.0f} tokens an expert fill no tile of {int(QUERY_BLOCK)} rows"
    below = sum(o.share_frac for o in products if o.bound == "memory")
    if below > 0.1:
        return f"products that only wait for weights take {100 * below:.0f} % of the pass: below the ridge"
    return "more sequences share the fixed times and the last waves"


def _with_items(
    model: Model, change: Callable[[Item], Item], *, stack: str | None = None, layer: str | None = None
) -> Model:
    """`model` with every item changed; in one stack, or in its layers of one name, where these are given."""

    def of_layer(kind: Layer) -> Layer:
        if layer is not None and kind.name != layer:
            return kind
        return replace(kind, items=tuple(map(change, kind.items)))

    def of_stack(part: Stack) -> Stack:
        if stack is not None and part.name != stack:
            return part
        kinds = tuple(map(of_layer, part.kinds))
        if layer is not None:
            return replace(part, kinds=kinds)
        return replace(part, before=tuple(map(change, part.before)), kinds=kinds, after=tuple(map(change, part.after)))

    return replace(model, stacks=tuple(map(of_stack, model.stacks)))


def _with_vocabulary(model: Model, vocab: int) -> Model:
    """`model` with so many rows of embeddings and columns of logits.

    Tables and products outside the layers that have its size hold it.
    """
    was = model.vocab

    def change(item: Item) -> Item:
        if isinstance(item, Embedding) and item.rows == was and not item.position:
            return replace(item, rows=vocab)
        if isinstance(item, Linear) and item.outputs == was:
            return replace(item, outputs=vocab)
        return item

    stacks = tuple(  # layers keep their width even where it equals the vocabulary's
        replace(s, before=tuple(map(change, s.before)), after=tuple(map(change, s.after))) for s in model.stacks
    )
    return replace(model, vocab=vocab, stacks=stacks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _FeedForward:
    """The hidden dimension of one feed-forward block: the product that makes it and the one that reads it."""

    path: str  # what its items' names begin with
    width: int
    up: tuple[str, ...]
    down: str
    experts: bool


def _feed_forwards(items: Sequence[Item]) -> list[_FeedForward]:
    """The feed-forward blocks among the items of a layer: pairs of products cut by columns, then by rows.

    A block's items share a path.
    """
    pairs = []
    mixers = {i.name.rsplit("/", 1)[0] for i in items if isinstance(i, Attend | Recurrence | Convolution)}
    for down in items:
        path = down.name.rsplit("/", 1)[0]
        if not isinstance(down, Linear | Experts) or down.shard != "row" or path in {down.name, *mixers}:
            continue
        widths = (down.inputs, 2 * down.inputs)
        ups = [i for i in items if isinstance(i, type(down)) and i.name.startswith(f"{path}/") and i.outputs in widths]
        names = tuple(i.name for i in ups if i.shard == "column")
        if names:
            wide = isinstance(down, Experts)
            pairs.append(_FeedForward(path=path, width=down.inputs, up=names, down=down.name, experts=wide))
    return pairs


def _with_feed_forward(model: Model, stack: str, layer: str, block: _FeedForward, width: int) -> Model:
    """`model` whose feed-forward `block` is so wide in the layers of that name.

    Gate and up are as wide as down reads, or one product of both.
    """
    was = block.width

    def change(item: Item) -> Item:
        if isinstance(item, Linear | Experts) and item.name in block.up:
            return replace(item, outputs=item.outputs // was * width)
        if isinstance(item, Linear | Experts) and item.name == block.down:
            return replace(item, inputs=width)
        if isinstance(item, Pointwise) and item.name.startswith(f"{block.path}/") and item.dim == was:
            return replace(item, dim=width)
        return item

    return _with_items(model, change, stack=stack, layer=layer)


def _with_heads(model: Model, stack: str, layer: str, attend: Attend, heads: int, kv_heads: int, dim: int) -> Model:
    """`model` with so many heads of so many dimensions under one attention's path; projections keep their columns.

    heads x dim and kv_heads x dim must be what they were; queries, keys and values have the same dimension.
    """
    assert heads * dim == attend.heads * attend.qk_dim
    assert kv_heads * dim == attend.kv_heads * attend.qk_dim
    path = attend.name.rsplit("/", 1)[0] + "/"

    def change(item: Item) -> Item:
        if not item.name.startswith(path):
            return item
        if isinstance(item, Attend):
            return replace(item, heads=heads, kv_heads=kv_heads, qk_dim=dim, v_dim=dim)
        if isinstance(item, Linear):
            unit = dim if item.shard_unit == attend.qk_dim else item.shard_unit
            return replace(item, shard_unit=unit, heads=kv_heads if item.heads == attend.kv_heads else item.heads)
        if isinstance(item, Norm) and item.dim == attend.qk_dim:
            return replace(item, dim=dim, groups=item.groups * attend.qk_dim // dim)
        return item

    return _with_items(model, change, stack=stack, layer=layer)


def _with_window(model: Model, was: int, window: int) -> Model:
    """`model` whose attention windows of `was` tokens hold `window`."""

    def change(item: Item) -> Item:
        return replace(item, window=window) if isinstance(item, Attend) and item.window == was else item

    return _with_items(model, change)


def _with_dimension(model: Model, stack: str, was: int, size: int) -> Model:
    """`model` whose products, norms and elementwise operations of `was` columns have `size`: padded with zeros.

    What has that size is that dimension.
    """

    def change(item: Item) -> Item:
        if isinstance(item, Linear | Experts):
            inputs, outputs = (size if d == was else d for d in (item.inputs, item.outputs))
            return replace(item, inputs=inputs, outputs=outputs)
        if isinstance(item, Norm | Pointwise | Embedding) and item.dim == was:
            return replace(item, dim=size)
        return item

    return _with_items(model, change, stack=stack)


RULES = (vocabulary, alignment, head_dims, degrees, feed_forward, experts, length, batch)
