"""What a device makes of the shapes of one kernel: tiles, waves, alignment, intensity against the ridge."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from flopwise.cost.kernels import (
    ALIGNED_BYTES,
    DECODE_QUERIES,
    EVEN,
    QUERY_BLOCK,
    Elements,
    tile_costs,
    tile_times,
    wave_tail,
    work_bytes,
)
from flopwise.cost.rates import Rates, precision
from flopwise.facts.architecture import Item, Stack, Weight
from flopwise.ops.fusion import fused_groups, single_groups
from flopwise.ops.shapes import Work
from flopwise.ops.types import Floats
from flopwise.values import dataclass

CACHE_LINE_BYTES = 128
"""Rows that start on such a boundary are read without a remainder."""
PRODUCTS = frozenset({"matmul", "grouped"})


class Tiling(NamedTuple):
    """The tiling of one operation: the tile, their number, and the rounds of the cores over them."""

    rows: int
    columns: int
    tiles: float
    waves: float
    last_wave_frac: float  # of the cores have work in the last round


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape:
    """One kernel of a pass on one rank. Seconds are of one call, `share_frac` of all of them in the pass."""

    name: str
    layers: int  # times it runs in a pass
    forward: bool
    kind: str
    dtype: str
    m: float | None
    n: float | None
    k: float | None
    groups: float  # experts that rows are spread over; 1 for a plain product
    flops: float
    bytes: float
    seconds: float
    share_frac: float
    bound: str  # "compute" or "memory"
    achieved_frac: float  # of the datasheet's peak or bandwidth, whichever bounds it
    intensity_flops_per_byte: float
    tiling: Tiling | None

    @property
    def label(self) -> str:
        """Its name, told apart from the forward pass where it is of the backward pass."""
        return self.name if self.forward else f"{self.name}, backward"


def scalar(value: Floats | None) -> float:
    """A number, or a column of one entry, as a number; 0 for None."""
    return 0.0 if value is None else float(np.asarray(value, dtype=float).ravel()[0])


def aligned_elems(dtype: str) -> int:
    """Elements that a row must be a multiple of for the tensor cores' fast path.

    Source: NVIDIA, "Matrix Multiplication Background User's Guide", section 3.1: 16 bytes, so 8 in 16 bits and 16 in 8.
    Assumes: other vendors' matrix units load 16 bytes at once, too.
    """
    return int(ALIGNED_BYTES * 8 // 2.0 ** np.floor(np.log2(precision(dtype).act_bits)))


def preferred_elems(dtype: str, compute_capability: str | None) -> int:
    """Elements that a row is best a multiple of: a cache line from Ampere on, the aligned unit before.

    Source: NVIDIA, as above, table 1: 128 bytes on A100 and later (64 elements in 16 bits), 16 bytes on Volta.
    Assumes: other vendors' devices like a cache line, too.
    """
    major = int(float(compute_capability)) if compute_capability else 8
    unit = aligned_elems(dtype)
    return unit * (CACHE_LINE_BYTES // ALIGNED_BYTES) if major >= 8 else unit


def ridge_flops_per_byte(rates: Rates, dtype: str) -> float:
    """Operations for each byte of DRAM from which on computing bounds, at the achieved rates.

    Source: roofline model (Williams et al. 2009). Assumes: rates of large kernels.
    """
    return rates.matmul_flops_per_s(dtype) / rates.read_bytes_per_s


def l2_ridge_flops_per_byte(rates: Rates, dtype: str) -> float | None:
    """The same for operands that come from L2; None where its size is not known."""
    return ridge_flops_per_byte(rates, dtype) / rates.value["l2_speedup"] if rates.l2_bytes else None


def tiling(rates: Rates, work: Work, dtype: str) -> Tiling | None:
    """The tiles that the cost model picks for a product, or the blocks of attention; None for what streams."""
    if rates.num_sms <= 1:
        return None
    if work.kind == "attention" and scalar(work.query) > DECODE_QUERIES:
        count = scalar(work.batch) * scalar(work.heads) * np.ceil(scalar(work.query) / QUERY_BLOCK)
        return _tiling(rates, (QUERY_BLOCK, QUERY_BLOCK), float(count))
    if work.kind not in PRODUCTS:
        return None
    m, n, k = (scalar(v) for v in (work.m, work.n, work.k))
    if min(m, n, k) <= 0:
        return None
    copies = max(scalar(work.touched), 1.0) if work.kind == "grouped" else 1.0
    each, tail = m / copies, wave_tail(rates, dtype, grouped=copies > 1)
    rate, routed = rates.matmul_flops_per_s(dtype), copies if copies > 1 and EVEN not in rates.value else None
    costs = tile_costs(rates, each, n, k, copies, tail, tile_times(rates, rate), routed=routed)
    tile = min(((scalar(cost), shape) for shape, cost in costs), key=lambda pair: pair[0])[1]
    return _tiling(rates, tile, float(np.ceil(each / tile[0]) * np.ceil(n / tile[1]) * copies))


def _tiling(rates: Rates, tile: tuple[float, float], count: float) -> Tiling:
    rounds = count / rates.num_sms
    last = rounds - np.ceil(rounds) + 1.0
    return Tiling(int(tile[0]), int(tile[1]), count, rounds, float(last))


def blocks(part: Stack) -> Iterator[tuple[str | None, int, tuple[Item, ...]]]:
    """(name, how often, items) of what stands before the layers, each kind of layer, and what stands after.

    The name is None outside the layers, and empty where a stack has one kind of layer only.
    """
    kinds = [kind.name for kind in part.kinds]
    yield None, 1, part.before
    for index, kind in enumerate(part.kinds):
        name = kind.name if kinds.count(kind.name) == 1 else f"{kind.name} {index + 1}"
        yield name if len(kinds) > 1 else "", part.order.count(index), kind.items
    yield None, 1, part.after


def kernel_names(items: Sequence[Item], *, fused: bool) -> dict[str, str]:
    """The name of each kernel's first work -> the names of all that run in it: `attention/q_proj+k_proj+v_proj`."""
    names = {}
    for group in fused_groups(items) if fused else single_groups(items):
        parts = [item.name for item in group if not isinstance(item, Weight)]
        if parts:
            path = parts[0].rsplit("/", 1)[0] + "/"
            names[parts[0]] = "+".join([parts[0], *(name.removeprefix(path) for name in parts[1:])])
    return names


def kernel_shape(
    rates: Rates,
    work: Work,
    elements: Elements,
    *,
    name: str,
    layers: int,
    forward: bool,
    seconds: Floats,
    memory_bound: bool,
    pass_s: float,
) -> KernelShape:
    """One kernel that takes `seconds` as a row of the table; its bytes cross DRAM once."""
    each_s, flops, dtype = scalar(seconds), scalar(work.causal_flops), elements.dtype
    bits = 16.0 if elements.weight_bits is None else elements.weight_bits
    moved = scalar(work_bytes(work, weight_bits=bits, act_bytes=elements.act_bytes, kv_bytes=elements.kv_bytes))
    limit = moved / rates.hbm_bytes_per_s if memory_bound else flops / rates.peak_flops_per_s(dtype)
    product = work.kind in PRODUCTS
    return KernelShape(
        name=name, layers=layers, forward=forward, kind=work.kind, dtype=dtype,
        m=scalar(work.m) if product else None, n=scalar(work.n) if product else None,
        k=scalar(work.k) if product else None,
        groups=max(scalar(work.touched), 1.0) if work.kind == "grouped" else 1.0, flops=flops, bytes=moved,
        seconds=each_s, share_frac=layers * each_s / pass_s if pass_s else 0.0,
        bound="memory" if memory_bound else "compute", achieved_frac=limit / each_s if each_s else 0.0,
        intensity_flops_per_byte=flops / moved if moved else 0.0, tiling=tiling(rates, work, dtype),
    )  # fmt: skip
