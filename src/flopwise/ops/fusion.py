"""Operations that run as one kernel in good software: parallel projections, and neighbouring elementwise work."""

from __future__ import annotations

from collections.abc import Sequence

from flopwise.facts.architecture import Item, Linear, Norm, Pointwise
from flopwise.ops.shapes import Work
from flopwise.values import replace

Group = tuple[Item, ...]


def fused_groups(items: Sequence[Item]) -> list[Group]:
    """`items` in groups that run as one kernel each, in the order of their first members.

    Projections that read the same tensor and are cut alike are one product (q, k and v; gate and up); neighbouring
    norms and elementwise operations are one pass; one that ends a block joins the one that begins it, as blocks follow
    one another.

    Source: kernels of Megatron-LM, vLLM and TensorRT-LLM (fused QKV, fused gate and up, residual with norm).
    Assumes: what stands between two products fuses whole.
    """
    groups: list[list[Item]] = []
    by_source: dict[tuple[str, str, str], list[Item]] = {}
    for item in items:
        if isinstance(item, Linear) and item.reads:
            key = (item.reads, item.shard, item.stream)
            if key in by_source:
                by_source[key].append(item)
                continue
            by_source[key] = [item]
            groups.append(by_source[key])
        elif _light(item) and groups and _light(groups[-1][-1]):
            groups[-1].append(item)
        else:
            groups.append([item])
    if len(groups) > 1 and _light(groups[0][0]) and _light(groups[-1][-1]):
        groups[0] = [*groups.pop(), *groups[0]]
    return [tuple(group) for group in groups]


def _light(item: Item) -> bool:
    """True if the item only moves bytes."""
    return isinstance(item, Norm | Pointwise)


def single_groups(items: Sequence[Item]) -> list[Group]:
    """Every item a kernel of its own, as eager code runs them.

    Source: PyTorch without a compiler: a kernel for each operation. Assumes: no library fuses any of them.
    """
    return [(item,) for item in items]


def merge_works(works: Sequence[Work]) -> Work:
    """The works of one group as one: products side by side share their input, elementwise passes add their bytes.

    Source: counting. Assumes: all products have the same rows and inputs.
    """
    first = works[0]
    if len(works) == 1:
        return first
    side_by_side = first.kind == "matmul"
    return replace(
        first,
        kind=first.kind if side_by_side else "pointwise",
        flops=sum(w.flops for w in works),
        causal_flops=sum(w.causal_flops for w in works),
        weight_elems=sum(w.weight_elems for w in works),
        in_elems=first.in_elems if side_by_side else sum(w.in_elems for w in works),
        out_elems=sum(w.out_elems for w in works),
        n=sum(w.n for w in works if w.n is not None) if side_by_side else first.n,
    )
