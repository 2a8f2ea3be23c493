"""Seconds of one kernel: products, grouped products, attention (prefill, decoding, MLA) and what only moves bytes.

The shape of every formula is the same. Fixed time of a kernel, plus the longer of computing and moving bytes, plus the
share of the shorter that is not hidden. Computing is counted in whole tiles spread over the cores in waves, so that it
grows in steps but never shrinks; moving is bytes over the sustained bandwidth. Both are at least what the datasheet
allows, so `Timing.seconds` is never below the roofline of cold operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.cost.precisions import Precision
from flopwise.cost.rates import USUAL_HEAD, Rates, is_zero, precision
from flopwise.ops.types import Floats, Ints, ceil_div

if TYPE_CHECKING:
    from flopwise.ops.shapes import Work

TILES = ((256.0, 128.0), (128.0, 128.0), (64.0, 128.0), (16.0, 128.0))
"""Output tiles that libraries offer, rows x columns; the last ones serve decoding, where rows are few."""
BLOCK = 16_384  # rows of a long column handled at once: intermediate results stay in the processor's cache
VECTOR_FRAC = 0.5
"""Of the fp32 rate, what matrix-vector kernels reach. Source: assumed: every other instruction multiplies."""
VECTOR_UNPACK = 4.0
"""Operations to unpack a weight to a float. Source: assumed, not fitted: shift, mask, convert, scale. Integer kernels
need fewer (llama.cpp, ggml-cuda/vecdotq.cuh: a shift and a mask for four weights of q4_0)."""
UNPACKED = 0.9  # weights with fewer bits than this share of the activations' are unpacked as they are multiplied
REGISTER_ROWS = 32  # up to so many rows, kernels for packed weights unpack them in registers, not in shared memory
ALIGNED_BYTES = 16  # a row of a matrix must start on such a boundary for the fast path
QUERY_BLOCK = 128.0
"""Queries of one head that a flash kernel handles at once."""
HOST_KEYS = 512.0
"""Keys that PyTorch's flash kernel for CPUs handles at once; on other devices as many as queries."""
DECODE_QUERIES = 16
"""Maximum number of queries per sequence at which the cache is streamed as in decoding."""

LATENT_ROWS = 64.0
"""Rows (query heads of one sequence, which share the latent) that a kernel of MLA decoding computes at once."""

PACKING = {"fp32": "packed_bytes_per_s.fp32", "tf32": "packed_bytes_per_s.fp32"}
"""Name of the rate at which a product's weights are packed before it multiplies, by the format that it runs in."""
PACKED_16 = "packed_bytes_per_s.bf16"
KEYS = "attention_keys"
"""Name of how many keys attention over prompts handles at once, where rates are those of an engine's own kernel."""

DOT = "packed_dot_s"
"""Seconds of the whole device for one packed weight of one row, of kernels that multiply bytes one by one."""
DOT_ROWS = 8
"""Most rows for which those kernels are taken (llama.cpp, ggml-cuda/mmvq.cuh, MMVQ_MAX_BATCH_SIZE)."""

ROW_BY_ROW = "packed_row_s"
"""Seconds of the whole device for one packed weight of each row but the first, of kernels that take few rows one by
one: the first reads the weights from memory, and each further one reads and unpacks them anew from the caches."""
FURTHER_ROWS, FURTHER_ROWS_OF_EXPERT = 8, 3
"""Most further rows that those kernels are taken for, of one product and of each of several experts (MLX 0.31,
backend/metal/quantized.cpp: get_qmv_batch_limit, fewer than 10 rows of large matrices; GatherQMM, fewer than 4 rows an
expert); more rows take no less time."""

EVEN = "grouped_even"
"""Name of a figure of rates under which all experts have as many rows: in training, where vendors balance them by force
or buffers have a capacity, and where the shares that products reach are fitted to whole runs."""
STREAMS = "grouped_streams"
"""Name of how many of a layer's experts are multiplied at once; where rates have none, all are, in one kernel."""
PORTED = "ported_grouped."
"""Before a precision: rate of an engine's grouped products in it over that of the device's best; without one, 1."""
BLOCK_FRAC = "block_frac."
"""Before a kernel's name: its rate of plain fp8 products with scales of blocks over that of the device's best."""
PLAIN_PRODUCTS = "plain_products."
"""Before a precision: rate of plain products in it, not of experts, over that of the device's best; without one, 1."""
CORE_UNPACKS = "core_unpacks_per_s"
"""Name of the weights that one core unpacks in a second, in grouped products that do so in vector units (Marlin's)."""
UNPACKED_ROWS = 64
"""Rows that such a kernel multiplies by weights it has unpacked once."""
FLASH_DIMS = (32, 64, 96, 128, 192, 256)
"""Head dimensions that flash kernels are built for."""


class Timing(NamedTuple):
    """Seconds of a kernel and its two parts: computing and moving bytes, each without the fixed time."""

    seconds: Floats
    compute_s: Floats
    memory_s: Floats


def in_blocks(formula: Callable[..., Timing], columns: tuple[Ints, ...]) -> Timing:
    """`formula(*columns)`, a long column in pieces: the same numbers, several times faster.

    Source: none needed. Assumes: the formula goes element by element over columns of one dimension.
    """
    size = max((c.size for c in columns if isinstance(c, np.ndarray)), default=1)
    if size <= BLOCK or any(isinstance(c, np.ndarray) and c.ndim > 1 for c in columns):
        return formula(*columns)
    out = np.empty((3, size))
    for start in range(0, size, BLOCK):
        piece = slice(start, start + BLOCK)
        out[:, piece] = formula(*(c[piece] if isinstance(c, np.ndarray) and c.size > 1 else c for c in columns))
    return Timing(out[0], out[1], out[2])


def overlap_timing(
    rates: Rates, compute_s: Floats, memory_s: Floats, fixed_s: Floats, loss: str = "overlap_loss"
) -> Timing:
    """Computing and moving at once: the longer, and the part of the shorter that is not hidden.

    Source: roofline model (Williams 2009); the part not hidden is calibrated.
    Assumes: both proceed evenly through the kernel.
    """
    longer, shorter = np.maximum(compute_s, memory_s), np.minimum(compute_s, memory_s)
    exposed_s = rates.value[loss] * shorter
    return Timing(fixed_s + longer + exposed_s, compute_s, memory_s)


def waves(units: Floats, cores: float, tail: float) -> Floats:
    """Rounds of work that `cores` need for `units` equal pieces.

    tail = 1: whole rounds only; tail = 0: the last round is shared out perfectly (split-K, stream-K).

    Source: Osama et al. 2023 (arXiv 2301.03598), sections 3 and 4.
    Assumes: one piece at a time on a core.
    """
    even = units / cores
    return even + tail * (np.ceil(even) - even)


def wave_tail(rates: Rates, dtype: str, *, grouped: bool = False) -> float:
    """The `tail` of products in a `PRECISIONS` entry, as `waves` takes it; `grouped`: of experts.

    Source: calibrated (data/calibration). Assumes: kernels for scaled or unpacked formats split k as rarely as those of
    experts, but those of fp8 in a maker's library (`fp8_splits_k`).
    """
    p, plain, scaled = precision(dtype), rates.value["wave_tail"], rates.value["wave_tail.scaled"]
    apart = grouped and STREAMS not in rates.value
    if apart or not (p.quantised or p.unpacked):
        return scaled if apart else plain
    in_library = rates.value["fp8_splits_k"] if p.rate == "fp8" else 0.0
    return in_library * plain + (1 - in_library) * scaled


NORMAL_SLOPE = 0.32
"""Slope, for each standard deviation, of the straight line from 0 to 1 that is nearest to the normal distribution: the
least mean square over all deviations (0.322)."""


def routed_tiles(mean: Floats, rows: float, deviation: Floats) -> Floats:
    """Tiles of `rows` rows that an expert with `mean` tokens, of such a standard deviation, fills on average.

    How many tokens an expert has varies as a binomial number does, so that some experts need a tile more than the mean
    and some one less: the tiles up to the edge nearest to the mean, at least one, and one more as often as the edge is
    passed (from half a token beyond it on, since tokens are whole).

    Source: counting; the normal distribution for the binomial, and a line for it (`NORMAL_SLOPE`).
    Assumes: tokens choose experts independently, all experts alike.
    """
    whole = np.maximum(np.floor(mean / rows + 0.5), 1.0)
    passed = 0.5 + NORMAL_SLOPE / deviation * (mean - 0.5 - whole * rows)
    return whole + np.minimum(np.maximum(passed, 0.0), 1.0)


def token_deviation(mean: Floats, experts: Floats) -> Floats:
    """Standard deviation of an expert's tokens, with `mean` of them for each of so many `experts`.

    Source: binomial distribution. Assumes: as `routed_tiles`.
    """
    return np.sqrt(np.maximum(mean * (1.0 - 1.0 / experts), 1e-9))


def tile_costs(
    rates: Rates, m: Ints, n: Ints, k: Ints, copies: Floats, tail: float, tiles: Sequence[TileTimes], *,
    routed: Floats | None = None,
) -> Iterator[tuple[tuple[float, float], Floats]]:  # fmt: skip
    """Each of `TILES`, which take `tiles`, with the seconds of computing `copies` products in it.

    `routed`: m is the mean of that many products, whose rows vary as tokens choose experts.

    Source: `tile_times`, `waves`, `routed_tiles`. Assumes: as there.
    """
    across = np.ceil(n / TILES[0][1]) * copies
    deviation = 0.0 if routed is None else token_deviation(m, routed)
    for (rows, columns), (per_k_s, unpacking_s, fill_s) in zip(TILES, tiles, strict=True):
        each_s = per_k_s if unpacking_s is None else np.where(np.asarray(m) <= REGISTER_ROWS, unpacking_s, per_k_s)
        down = np.ceil(m / rows) if routed is None else routed_tiles(m, rows, deviation)
        cost = waves(down * across, rates.num_sms, tail) * (k * each_s + fill_s)
        yield (rows, columns), cost


class TileTimes(NamedTuple):
    """Seconds of one tile for each step along k, those where weights are unpacked in registers, and of its start."""

    per_k_s: Floats
    unpacking_s: Floats | None
    fill_s: Floats


def tile_times(rates: Rates, rate: Floats, packed: Floats = 1.0, least_rows: Floats = 0.0) -> list[TileTimes]:
    """The times of each of `TILES` on a device that computes at `rate` FLOP/s, whatever the product.

    `packed`: bits of a weight over those of an activation, where kernels for few rows unpack weights in registers.
    `least_rows`: tiles of fewer rows are computed as if they had so many.

    Source: calibrated (data/calibration); Marlin (Frantar et al. 2024, arXiv 2408.11743) section 3 for packed weights.
    Assumes: a tile's rate falls with its intensity: operations over what a core must load for them.
    """
    knee, times = rates.value["tile_knee"], list[TileTimes]()
    largest = max(rows * columns / (rows + columns) for rows, columns in TILES)

    def per_k_s(rows: Floats, columns: float, loaded: Floats) -> Floats:
        intensity = rows * columns / (rows + loaded * columns)
        slower = np.maximum((1.0 + knee / intensity) / (1.0 + knee / largest), 1.0)
        return 2.0 * rows * columns * slower * rates.num_sms / rate

    for rows, columns in TILES:
        in_registers = rows == TILES[-1][0] and _all_below(packed, 1.0)
        unpacking_s = per_k_s(rows, columns, packed) if in_registers else None
        fill_s = rates.value["tile_fill_s"] * rows * columns / (TILES[1][0] * TILES[1][1])
        times.append(TileTimes(per_k_s(np.maximum(rows, least_rows), columns, 1.0), unpacking_s, fill_s))
    return times


def _tiled_s(rates: Rates, way: _Way, m: Ints, n: Ints, k: Ints, copies: Floats, matrices: Floats) -> Floats:
    """Seconds of computing `copies` of so many products in tiles that take so long: the best tile's."""
    best: Floats = np.inf
    routed = matrices if way.routed else None
    for _, cost in tile_costs(rates, m, n, k, copies, way.tail, way.tiles, routed=routed):
        best = np.minimum(best, cost)
    return best


def _vector_s(rates: Rates, m: Ints, n: Ints, k: Ints, *, unpacked: bool) -> Floats:
    """Seconds of a product on the vector units, infinite where their rate is not known: best for a few rows.

    A weight is read once and, where it is packed, unpacked once, however many rows it multiplies.

    Source: matrix-vector kernels of llama.cpp (`mul_mat_vec`) and of TensorRT-LLM's weight-only plugin.
    Assumes: half of the fp32 rate; four operations to unpack a weight.
    """
    peak = rates.peak.get("fp32")
    if peak is None or is_zero(peak):
        return np.inf
    return (2.0 * m + VECTOR_UNPACK * unpacked) * n * k / (VECTOR_FRAC * peak)


def read_s(rates: Rates, nbytes: Floats, *, cold: bool = True) -> Floats:
    """Seconds to move `nbytes` from DRAM, or from L2 when the operands are warm and fit.

    Source: calibrated fraction of the datasheet's bandwidth. Assumes: large consecutive accesses.
    """
    seconds = nbytes / rates.read_bytes_per_s
    if cold or is_zero(rates.l2_bytes):
        return seconds
    return np.where(nbytes <= rates.l2_bytes, seconds / rates.value["l2_speedup"], seconds)


class Elements(NamedTuple):
    """Formats of a kernel's elements: the precision of its products, and the sizes of what it reads and writes.

    `dtype`: entry of `PRECISIONS`. `weight_bits`: of a weight as stored; None: those of `dtype`. `act_bytes`: of an
    activation that comes in, before any quantisation, or goes out; `kv_bytes`: of a cached element. `quantised`: what
    comes in has the bits of the product already.
    """

    dtype: str = "bf16"
    weight_bits: float | None = None
    act_bytes: float = 2.0
    kv_bytes: float = 2.0
    quantised: bool = False


PLAIN = Elements()
"""Of 16 bits throughout."""


class Heads(NamedTuple):
    """Heads of attention on one rank: of queries, of keys and values, and the elements of a key and of a value.

    `latent`: keys and values are views of one latent, the key, which alone is cached (MLA).
    """

    query: Ints
    kv: Ints
    qk_dim: Ints
    v_dim: Ints
    latent: bool = False


def block_rates(value: Mapping[str, float], kernel: str) -> dict[str, float]:
    """The rate of plain products with scales of blocks in a kernel of that name, as rates have it; nothing: the best.

    Source: `block_frac.*` of data/calibration, over the device's best. Assumes: as there.
    """
    frac = value.get(BLOCK_FRAC + kernel)
    return {} if frac is None else {PLAIN_PRODUCTS + "fp8_block": frac}


def matmul_s(rates: Rates, m: Ints, n: Ints, k: Ints, elements: Elements = PLAIN, *, cold: bool = True) -> Timing:
    """An (m x k) by (k x n) product; shape of the broadcast of m, n, k.

    `cold`: operands come from DRAM (always so in real decoding).

    Source: roofline with tiles, waves and calibrated fractions (data/calibration).
    Assumes: the library picks the best of `TILES`, or the vector units for a few rows; a row that is not aligned to 16
    bytes takes the slow path.
    """
    way = _way(rates, elements)
    p, act_bytes = way.precision, elements.act_bytes
    unit = ALIGNED_BYTES * 8 / 2.0 ** np.floor(np.log2(p.act_bits))  # scales are stored apart

    def formula(m: Ints, n: Ints, k: Ints) -> Timing:
        misaligned = (np.remainder(n, unit) > 0) | (np.remainder(k, unit) > 0)
        slower = np.where(misaligned, 1.0 / rates.value["misaligned_frac"], 1.0)
        product = _product(rates, way, m, n, k, 1.0, slower)
        timing = _product_timing(rates, way, product, rates.value["kernel_s"], cold=cold)
        if not p.quantised or elements.quantised or act_bytes <= p.act_bits / 8:
            return timing
        extra_s = _quantise_s(rates, m * k, act_bytes, p.act_bits / 8, cold=cold)
        return timing._replace(seconds=timing.seconds + extra_s)

    return in_blocks(formula, (m, n, k))


class _Way(NamedTuple):
    """Figures of a product: rate of full tiles, lost share of an incomplete wave, bytes of an element."""

    precision: Precision
    rate: float  # FLOP/s of the whole device
    tail: float
    weight_bits: float
    act_bytes: float  # of an element that comes in before, and goes out after, any quantisation
    unpacked: bool  # weights are unpacked as they are multiplied
    packed: float  # bits of a weight over those of an activation, where it is unpacked in registers
    packing: float  # B/s at which weights are packed before they are multiplied; 0: they are multiplied as they are
    tiles: list[TileTimes]
    routed: bool  # of experts, whose rows vary as tokens choose them
    grouped: bool  # of experts


def _way(rates: Rates, elements: Elements, *, grouped: bool = False) -> _Way:
    """The figures of products of such elements; kept with the rates."""
    bits = elements.weight_bits
    key = (elements.dtype, id(bits) if isinstance(bits, np.ndarray) else bits, elements.act_bytes, grouped)
    if key not in rates.products:
        rates.products[key] = _new_way(rates, elements, grouped=grouped)
    way: _Way = rates.products[key]
    return way


def _new_way(rates: Rates, elements: Elements, *, grouped: bool) -> _Way:
    dtype, weight_bits = elements.dtype, elements.weight_bits
    p = precision(dtype)
    bits = p.weight_bits if weight_bits is None else weight_bits
    unpacked = p.unpacked or _all_below(bits, UNPACKED * p.act_bits)
    rate = rates.matmul_flops_per_s(dtype)
    if unpacked:
        rate *= rates.value["grouped_unpack_frac" if grouped else "unpack_frac"]
    rate *= rates.value["grouped_frac"] if grouped else rates.value.get(PLAIN_PRODUCTS + dtype, 1.0)
    tail = wave_tail(rates, dtype, grouped=grouped)
    packed = bits / p.act_bits if unpacked and not grouped else 1.0
    packing = 0.0 if unpacked or p.quantised else rates.value[PACKING.get(rates.peak_dtype(dtype), PACKED_16)]
    routed = grouped and EVEN not in rates.value
    rows = rates.value["expert_rows"] if grouped and p.peak == "fp8" else 0.0
    tiles = tile_times(rates, rate, packed, rows)
    return _Way(p, rate, tail, bits, elements.act_bytes, unpacked, packed, packing, tiles, routed, grouped)


def _all_below(figures: Floats, most: float) -> bool:
    """True if a figure is below `most`; those of several devices are on the same side of it."""
    return bool(np.all(figures < most)) if isinstance(figures, np.ndarray) else bool(figures < most)


def _product(
    rates: Rates, way: _Way, m: Ints, n: Ints, k: Ints, touched: Floats, slower: Floats = 1.0
) -> tuple[Floats, Floats, Floats]:
    """Seconds of computing `touched` products, m rows in all; bytes of their k x n weights, and of the rows."""
    matrices = np.maximum(touched, 1.0)
    each, at_once = m / matrices, np.minimum(matrices, rates.value.get(STREAMS, math.inf))
    compute_s = _tiled_s(rates, way, each, n, k, at_once, matrices) * (matrices / at_once) * slower
    p = way.precision
    if not p.quantised:
        compute_s = np.minimum(compute_s, matrices * _vector_s(rates, each, n, k, unpacked=way.unpacked))
    dot_s = rates.value.get(DOT)
    if way.unpacked and dot_s is not None and not is_zero(dot_s):
        compute_s = np.where(each <= DOT_ROWS, np.maximum(compute_s, m * n * k * dot_s), compute_s)
    if way.unpacked and way.grouped and CORE_UNPACKS in rates.value:
        weights = touched * n * k * np.ceil(each / UNPACKED_ROWS)
        compute_s = np.maximum(compute_s, weights / (rates.value[CORE_UNPACKS] * rates.num_sms))
    act_in = m * k * (p.act_bits / 8 if p.quantised else way.act_bytes)
    weights = touched * n * k * (way.weight_bits / 8) * _narrow(rates, n * matrices, way.tail)
    if way.unpacked and ROW_BY_ROW in rates.value:
        further = matrices * np.minimum(each - 1.0, FURTHER_ROWS_OF_EXPERT if way.grouped else FURTHER_ROWS)
        apart_s = read_s(rates, weights) + further * n * k * rates.value[ROW_BY_ROW]
        compute_s = np.where(each > 1.0, np.maximum(compute_s, apart_s), compute_s)
    return compute_s, weights, act_in + m * n * way.act_bytes


def _product_timing(
    rates: Rates, way: _Way, product: tuple[Floats, Floats, Floats], fixed_s: Floats, *, cold: bool
) -> Timing:
    """Computing and moving at once; weights that are packed first wait for neither.

    Source: Goto and van de Geijn 2008, Anatomy of high-performance matrix multiplication, section 4 (packing); oneDNN,
    "Memory format propagation" (reorders); the rate is measured (`flopwise probe`).
    Assumes: a library packs anew each time, as it does for weights that it was not given to keep.
    """
    compute_s, weights, moved = product
    if is_zero(way.packing):
        return overlap_timing(rates, compute_s, read_s(rates, weights + moved, cold=cold), fixed_s)
    packing_s = np.maximum(weights / way.packing, read_s(rates, weights, cold=cold))
    timing = overlap_timing(rates, compute_s, read_s(rates, moved, cold=cold), fixed_s)
    return Timing(timing.seconds + packing_s, compute_s, timing.memory_s + packing_s)


def _narrow(rates: Rates, columns: Floats, tail: float) -> Floats:
    """The factor by which few columns, and so few cores that read, slow down reading weights; else 1."""
    busy = np.minimum(columns / (TILES[1][1] * rates.num_sms), 1.0)
    alone = np.maximum(rates.value["core_bytes_per_s"] / rates.read_bytes_per_s, 1.0 / rates.num_sms)
    share: Floats = np.minimum(1.0, (busy + (1.0 - tail) * (1.0 - busy)) * rates.num_sms * alone)
    return 1.0 / share


def _quantise_s(rates: Rates, elems: Floats, from_bytes: float, to_bytes: float, *, cold: bool) -> Floats:
    moved_s = read_s(rates, elems * (from_bytes + to_bytes), cold=cold) / rates.value["pointwise_frac"]
    return rates.value["quantise_kernels"] * rates.value["kernel_s"] + moved_s


def grouped_matmul_s(
    rates: Rates,
    m: Ints,
    n: Ints,
    k: Ints,
    touched: Floats,
    elements: Elements = PLAIN,
    *,
    cold: bool = True,
) -> Timing:
    """One product per expert: m rows in all, spread over `touched` experts, each with its own k x n weight.

    Rows of each expert are padded to whole tiles; the weights of touched experts are read once; rows are gathered by
    expert, quantised where they must be, and scattered back: so many passes over them.
    Products that are kernels of their own fill the cores as many at once as there are streams, and start one by one.

    Source: as `matmul_s`; MegaBlocks (arXiv 2211.15841) section 4 for the padding; Transformer Engine's
    `multi_stream_cublas_gemm` for streams.
    Assumes: tokens choose experts independently (`routed_tiles`); where `cold`, operands come from DRAM, as in serving.
    """
    way, act_bytes = _way(rates, elements, grouped=True), elements.act_bytes
    slower = 1.0 / rates.value.get(PORTED + elements.dtype, 1.0)

    def formula(m: Ints, n: Ints, k: Ints, touched: Floats) -> Timing:
        compute_s, weights, moved = _product(rates, way, m, n, k, touched, slower)
        arriving = way.precision.act_bits / 8 if way.precision.quantised else act_bytes
        passes = rates.value["grouped_passes"] * m * (k * arriving + n * act_bytes)
        starts = np.maximum(touched / rates.value.get(STREAMS, math.inf) - 1.0, 0.0)
        fixed_s = rates.value["grouped_s"] + starts * rates.value["kernel_s"]
        return _product_timing(rates, way, (compute_s, weights * slower, moved + passes), fixed_s, cold=cold)

    return in_blocks(formula, (m, n, k, touched))


def pointwise_s(rates: Rates, nbytes: Floats, *, cold: bool = True) -> Timing:
    """A kernel that streams `nbytes` (read and written): norms, activations, residuals, rope, gathers.

    Source: calibrated fraction of the streaming bandwidth. Assumes: what is computed on the way takes no time.
    """
    memory_s = read_s(rates, nbytes, cold=cold) / rates.value["pointwise_frac"]
    return overlap_timing(rates, 0.0, memory_s, rates.value["kernel_s"])


def flash_dim(dim: Ints) -> Ints:
    """Head dimension at which a flash kernel computes heads of `dim`: the next that it is built for.

    Source: flash-attention 2, csrc/flash_attn/src/static_switch.h (HEADDIM_SWITCH).
    Assumes: what is padded is computed but not moved; beyond the largest in steps of 64.
    """
    if isinstance(dim, np.ndarray):
        sizes = np.asarray(FLASH_DIMS, dtype=float)
        place = np.searchsorted(sizes, dim)
        return np.where(place < len(sizes), sizes[np.minimum(place, len(sizes) - 1)], np.ceil(dim / 64.0) * 64.0)
    return next((size for size in FLASH_DIMS if dim <= size), -(-dim // 64) * 64)


BACKWARD_SOFTMAX = 0.6
"""Share of a score's time that its softmax takes backward, over the forward pass's: FlashAttention-3 (arXiv 2407.08608)
figures 5 and 6, heads of 64 against 128: 0.85 of the rate backward, 0.77 forward."""


def score_dims(
    rates: Rates, qk_dim: Ints, v_dim: Ints, dtype: str = "bf16", frac: str = "attention_frac", softmax: float = 1.0
) -> Floats:
    """Dimensions of a head, keys and values together, for which a score takes matrix units' time: padded as they pad.

    The softmax of a score takes as long whatever the head's dimension. A systolic array pads a dimension to its side,
    and the vector unit's softmax takes as long as the array takes for one side more. A GPU's core takes
    `softmax_cycles` a score, in which it multiplies as many dimensions as its rate for heads of 128 (`frac`) allows;
    larger heads gain nothing, since fewer scores fit a tile. Counted so that a head of 128 is 128. `softmax`: factor of
    its share in the time of a score.

    Source: Cloud TPU documentation: arrays of 128 x 128, from TPU v6e on of 256 x 256; a softmax takes some ten
    operations a score on 8 x 128 lanes of four units, as many cycles as a side takes an array; checked by published
    runs of 64k to 16M tokens with heads of 256 (study tpu-v5p-long in benchmarks/truth/training.csv). GPUs:
    FlashAttention-3 (arXiv 2407.08608) section 3: 989 TFLOP/s of products, 3.9 of exponentials; figures 5 and 6: heads
    of 256 run at 1.04 to 1.16 of the rate of 128, cuDNN's on B200 at the same.
    Assumes: GPUs pad as `flash_dim` says; where cores or clock are not known, products alone count.
    """
    side = rates.matrix_unit_dim
    if side is None:
        padded = np.add(flash_dim(qk_dim), flash_dim(v_dim))
        share = softmax * rates.value["softmax_frac"] * rates.value[frac]
        faster = rates.peak_flops_per_s(dtype) / rates.peak_flops_per_s("bf16") if np.any(share) else 1.0
        dims: Floats = padded + np.minimum(share * faster, 1.0) * np.maximum(2.0 * USUAL_HEAD - padded, 0.0)
        return dims
    usual = 2.0 * ceil_div(USUAL_HEAD, side) * side + side
    return 2.0 * USUAL_HEAD / usual * ((ceil_div(qk_dim, side) + ceil_div(v_dim, side)) * side + side)


def touched_keys(keys: Floats, context: Floats, block: float) -> Floats:
    """Keys that a flash kernel of `block` keys at once computes for the average query, which sees `keys` of `context`.

    Source and assumptions: `prefill_attention_s`.
    """
    return np.minimum(keys + block / 2, context)


def prefill_attention_s(
    rates: Rates,
    heads: Heads,
    pairs: Floats,
    batch: Ints,
    query: Ints,
    context: Ints,
    elements: Elements = PLAIN,
    *,
    cold: bool = True,
) -> Timing:
    """Flash attention of `query` new tokens in each of `batch` sequences.

    `pairs`: (query, key) pairs that the mask lets through in one sequence and head. Queries come in blocks of 128; a
    block touches its keys in blocks, too, so half a block is added on the diagonal where there is one, and no query
    touches more keys than there are. Each block costs a fixed time.

    Source: FlashAttention-2 (arXiv 2307.08691) sections 3.1 and 3.2; PyTorch, aten/src/ATen/native/cpu/
    FlashAttentionKernel.cpp (kvSplitSize) for CPUs; rates calibrated.
    Assumes: one head of one sequence and block on a core at a time; no split along the keys.
    """
    frac = "latent_prefill_frac" if heads.latent else "attention_frac"
    qk_dim, v_dim, dtype = heads.qk_dim, heads.v_dim, elements.dtype
    rate = rates.peak_flops_per_s(dtype) * rates.value[frac]
    fixed_s = rates.value["attention_s"]
    block_s = rates.value["attention_block_s"] * (qk_dim + v_dim) / 256.0  # loading queries, storing results
    keys_at_once = rates.value.get(KEYS, HOST_KEYS if rates.is_host else QUERY_BLOCK)

    def formula(pairs: Floats, batch: Ints, query: Ints, of_query: Ints, of_kv: Ints, context: Ints) -> Timing:
        blocks = np.ceil(query / QUERY_BLOCK)
        count = batch * of_query * blocks
        keys = touched_keys(pairs / np.maximum(query, 1), context, keys_at_once)
        per_key = 2.0 * QUERY_BLOCK * score_dims(rates, qk_dim, v_dim, dtype, frac) * rates.num_sms / rate
        rounds = waves(count, rates.num_sms, rates.value["attention_tail"])
        longest_s = context * per_key * rates.value["attention_tail"]  # the last block sees all keys
        compute_s = np.maximum(rounds * keys * per_key, longest_s) + block_s * np.ceil(count / rates.num_sms)
        moved = batch * query * of_query * (qk_dim + v_dim) * elements.act_bytes
        moved = moved + batch * context * of_kv * (qk_dim + v_dim) * elements.kv_bytes
        return overlap_timing(rates, compute_s, read_s(rates, moved, cold=cold), fixed_s, "overlap_loss.attention")

    return in_blocks(formula, (pairs, batch, query, heads.query, heads.kv, context))


def decode_attention_s(
    rates: Rates,
    heads: Heads,
    batch: Ints,
    context: Ints,
    elements: Elements = PLAIN,
    *,
    query: Ints = 1,
    cold: bool = True,
) -> Timing:
    """One query (or a few) against the cache of each sequence; `context` tokens are read.

    Source: Flash-Decoding (Dao et al. 2023); FlashMLA's deep dive of 2025-04-22 (tiles of 64 x 512); calibrated.
    Assumes: the cache of a sequence is split over cores until all are busy (for MLA, where `latent_tail` is 0); each
    (sequence, KV head) has a fixed time.
    """
    qk_dim, v_dim, latent = heads.qk_dim, heads.v_dim, heads.latent
    cached = qk_dim if latent else qk_dim + v_dim
    rate = rates.peak_flops_per_s(elements.dtype) * rates.value["latent_decode_frac" if latent else "attention_frac"]
    fixed_s = rates.value["decode_s"]
    block_s = rates.value["latent_block_s" if latent else "decode_block_s"]
    tail = rates.value["latent_tail"] if latent else 0.0

    def formula(batch: Ints, of_query: Ints, of_kv: Ints, context: Ints, query: Ints) -> Timing:
        rows = of_query * query / of_kv
        tiles = np.ceil(rows / LATENT_ROWS) if latent else 1.0
        count = batch * of_kv * tiles
        tile_s = 2.0 * (LATENT_ROWS if latent else rows) * context * (qk_dim + v_dim) * rates.num_sms / rate
        own = batch * query * of_query * (qk_dim + v_dim) * elements.act_bytes  # queries and results
        moved = batch * of_kv * context * cached * elements.kv_bytes + own
        memory_s = read_s(rates, moved, cold=cold) / rates.value["decode_frac"]
        compute_s = waves(count, rates.num_sms, tail) * (tile_s + block_s)
        return overlap_timing(rates, compute_s, memory_s, fixed_s)

    return in_blocks(formula, (batch, heads.query, heads.kv, context, query))


PAGED_ROWS = 64.0
"""Queries of a block of FlashAttention 2 over a cache in pages (csrc/flash_attn/src/flash_fwd_launch_template.h)."""


def one_call_attention_s(rates: Rates, work: Work, elements: Elements = PLAIN) -> Timing:
    """Seconds of decoding by FlashAttention's kernel for prompts, which takes both in one call; element by element.

    Each query head of a sequence has a block of its own, which its few queries do not fill and which sees all keys:
    heads that share keys are not packed into one block, and keys are not split over cores.

    Source: flash-attention, csrc/flash_attn/flash_api.cpp (mha_varlen_fwd); vLLM pull request 58013.
    Assumes: blocks are as fast as full ones and start as those of decoding do; heads that share keys find them in the
    L2 cache; blocks beyond a sequence's queries, which the longest prompt of a call makes start and end at once, take
    no time.
    """
    qk_dim, v_dim = work.qk_dim, work.v_dim
    rate = rates.peak_flops_per_s("bf16") * rates.value["attention_frac"]
    key_s = 2.0 * PAGED_ROWS * score_dims(rates, qk_dim, v_dim) * rates.num_sms / rate
    block_s, fixed_s = rates.value["decode_block_s"], rates.value["decode_s"]
    reach = work.window if work.window is not None else np.inf

    def formula(batch: Ints, of_query: Ints, of_kv: Ints, context: Ints, query: Ints) -> Timing:
        context = np.minimum(context, reach)
        heads = Heads(of_query, of_kv, qk_dim, v_dim)
        memory_s = decode_attention_s(rates, heads, batch, context, elements, query=query).memory_s
        count = batch * of_query * np.ceil(query / PAGED_ROWS)
        return overlap_timing(rates, waves(count, rates.num_sms, 1.0) * (context * key_s + block_s), memory_s, fixed_s)

    return in_blocks(formula, (work.batch, work.heads, work.kv_heads, work.context, work.query))


def attention_s(rates: Rates, work: Work, elements: Elements = PLAIN) -> Timing:
    """Seconds of an attention `Work`; decoding where a sequence has few queries, prefill elsewhere; element by element.

    The backward pass is a prefill of as many times the operations (`causal_flops`) as it counts.

    Source: the two functions above. Assumes: MLA unfolds its latent for prefill and runs on it in decoding.
    """
    few = np.asarray(work.query) <= DECODE_QUERIES
    if few.all():
        return _decoding_s(rates, work, elements)
    forward = work.batch * work.pairs * (2.0 * work.heads * (work.qk_dim + work.v_dim))
    rounds = work.causal_flops / np.maximum(forward, 1.0)
    context = np.minimum(work.context, work.window if work.window is not None else np.inf)
    unfolded = Heads(work.heads, work.kv_heads, work.qk_dim, work.v_dim, work.latent_dim is not None)
    prefill = prefill_attention_s(rates, unfolded, work.pairs, work.batch, work.query, context, elements)
    prefill = Timing(prefill.seconds * rounds, prefill.compute_s * rounds, prefill.memory_s * rounds)
    if not few.any():
        return prefill
    return Timing(*(np.where(few, d, p) for d, p in zip(_decoding_s(rates, work, elements), prefill, strict=True)))


def _decoding_s(rates: Rates, work: Work, elements: Elements) -> Timing:
    """Seconds of an attention `Work` of few queries a sequence."""
    latent = work.latent_dim
    if latent is None:
        heads = Heads(work.heads, work.kv_heads, work.qk_dim, work.v_dim)
        read = work.kv_elems / (np.maximum(work.batch * work.kv_heads, 1.0) * max(1, work.qk_dim + work.v_dim))
    else:
        heads = Heads(work.heads, 1, latent, latent, latent=True)
        read = work.kv_elems / np.maximum(work.batch * float(latent), 1.0)
    return decode_attention_s(rates, heads, work.batch, read, elements, query=work.query)


SCORE_PASSES = 6.0
"""Times that the scores cross memory in a forward pass: written, masked and normalised (2), dropped out (2), read."""


def eager_attention_s(rates: Rates, work: Work, elements: Elements = PLAIN, *, score_traffic: float = 1.0) -> Timing:
    """Seconds of attention that writes its scores: two batched products over all pairs, and passes over the scores.

    `score_traffic` scales the passes: 1 for a fused softmax, more where each step of it is a kernel. The backward pass
    is as many forward passes as it counts operations.

    Source: Korthikanti et al. 2022 (arXiv:2205.05198) figure 3 and section 4.1 for the tensors; traffic by counting.
    Assumes: products of one head run at the sustained rate of large ones; nothing skips the masked half.
    """
    forward = work.batch * 1.0 * work.query * work.context * 2.0 * work.heads * (work.qk_dim + work.v_dim)
    rounds = work.flops / np.maximum(forward, 1.0)
    act_bytes, compute_s = elements.act_bytes, work.flops / rates.matmul_flops_per_s(elements.dtype)
    scores = work.batch * 1.0 * work.heads * work.query * work.context
    moved = scores * act_bytes * SCORE_PASSES * score_traffic + work.in_elems * act_bytes
    memory_s = rounds * read_s(rates, moved)
    return Timing(4 * rates.value["kernel_s"] * rounds + compute_s + memory_s, compute_s, memory_s)


def work_bytes(work: Work, *, weight_bits: float = 16.0, act_bytes: float = 2.0, kv_bytes: float = 2.0) -> Floats:
    """Bytes that a `Work` must move at least: weights, inputs, outputs, the cache.

    Source: counting. Assumes: each element crosses DRAM once; attention reads its keys and values from the cache.
    """
    moved = work.weight_elems * (weight_bits / 8) + work.out_elems * act_bytes
    if work.kind == "attention":
        return moved + work.batch * work.query * work.heads * work.qk_dim * act_bytes + work.kv_elems * kv_bytes
    return moved + work.in_elems * act_bytes + work.kv_elems * kv_bytes


def work_s(rates: Rates, work: Work, elements: Elements = PLAIN, *, score_traffic: float | None = None) -> Timing:
    """Seconds of one `Work` on one rank, operands cold; arrays of the broadcast shape.

    Matrix products run in the precision of `elements`; attention runs in 16 bits, in fp32 where products do. With
    `score_traffic` attention writes its scores, in the precision of the products.

    Source: the function of its kind. Assumes: as there; attention of one query a sequence is decoding, of more prefill.
    """
    if work.kind == "matmul":
        return matmul_s(rates, *work.dims, elements)
    if work.kind == "grouped":
        return grouped_matmul_s(rates, *work.dims, work.touched, elements)
    if work.kind == "attention" and score_traffic is not None:
        return eager_attention_s(rates, work, elements, score_traffic=score_traffic)
    if work.kind == "attention":
        wide = "fp32" if elements.dtype in ("fp32", "tf32") else "bf16"
        return attention_s(rates, work, elements._replace(dtype=wide))
    act_bytes = elements.act_bytes
    nbytes = work_bytes(work, weight_bits=8.0 * act_bytes, act_bytes=act_bytes, kv_bytes=elements.kv_bytes)
    if work.kind in ("conv", "recurrence"):
        rate = rates.matmul_flops_per_s("bf16") * rates.value[f"{work.kind}_frac"]
        memory_s = pointwise_s(rates, nbytes).memory_s
        return overlap_timing(rates, work.causal_flops / rate, memory_s, rates.value["kernel_s"])
    return pointwise_s(rates, nbytes)
