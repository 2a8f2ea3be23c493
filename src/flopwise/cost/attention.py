"""Seconds of attention: prefill (blocks of queries, flash kernels) and decoding (streaming the cache), MLA included."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.kernels import Timing, in_blocks, launched, overlapped, read_s, waves
from flopwise.cost.rates import Rates
from flopwise.ops.types import Floats, Ints

if TYPE_CHECKING:
    from flopwise.ops.work import Work

QUERY_BLOCK = 128.0
"""Queries of one head that a flash kernel handles at once."""
DECODE_QUERIES = 16
"""Up to so many queries a sequence the cache is streamed as in decoding (speculative decoding among them)."""

LATENT_ROWS = 64.0
"""Rows (query heads of one sequence, which share the latent) that a kernel of MLA decoding computes at once."""

FLASH_DIMS = (32, 64, 96, 128, 192, 256)
"""Head dimensions that flash kernels are built for."""


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


def prefill_attention_s(
    rates: Rates,
    pairs: Floats,
    batch: Ints,
    query: Ints,
    heads: Ints,
    kv_heads: Ints,
    context: Ints,
    *,
    qk_dim: Ints,
    v_dim: Ints,
    act_bytes: float = 2.0,
    kv_bytes: float = 2.0,
    cold: bool = True,
    graph: bool = True,
    frac: str = "attention_frac",
    dtype: str = "bf16",
) -> Timing:
    """Flash attention of `query` new tokens in each of `batch` sequences.

    `pairs`: (query, key) pairs that the mask lets through in one sequence and head. Queries come in blocks of 128; a
    block touches its keys in blocks, too, so half a block is added on the diagonal. Each block costs a fixed time.

    Source: FlashAttention-2 (arXiv 2307.08691) sections 3.1 and 3.2; rates calibrated.
    Assumes: one head of one sequence and block on a core at a time; no split along the keys.
    """
    rate = rates.peak_flops_per_s(dtype) * rates.value[frac]
    fixed_s = rates.value["attention_s"]
    block_s = rates.value["attention_block_s"] * (qk_dim + v_dim) / 256.0  # loading queries, storing results

    def formula(pairs: Floats, batch: Ints, query: Ints, heads: Ints, kv_heads: Ints, context: Ints) -> Timing:
        blocks = np.ceil(query / QUERY_BLOCK)
        count = batch * heads * blocks
        keys = pairs / np.maximum(query, 1) + QUERY_BLOCK / 2  # of the average block
        per_key = 2.0 * QUERY_BLOCK * (flash_dim(qk_dim) + flash_dim(v_dim)) * rates.num_sms / rate
        rounds = waves(count, rates.num_sms, rates.value["attention_tail"])
        longest_s = context * per_key * rates.value["attention_tail"]  # the last block sees all keys
        compute_s = np.maximum(rounds * keys * per_key, longest_s) + block_s * np.ceil(count / rates.num_sms)
        moved = (
            batch * query * heads * (qk_dim + v_dim) * act_bytes
            + batch * context * kv_heads * (qk_dim + v_dim) * kv_bytes
        )
        return overlapped(rates, compute_s, read_s(rates, moved, cold=cold), fixed_s, "overlap_loss.attention")

    return launched(rates, in_blocks(formula, (pairs, batch, query, heads, kv_heads, context)), graph=graph)


def decode_attention_s(
    rates: Rates,
    batch: Ints,
    heads: Ints,
    kv_heads: Ints,
    context: Ints,
    *,
    qk_dim: Ints,
    v_dim: Ints,
    cached_dim: Ints | None = None,
    query: Ints = 1,
    act_bytes: float = 2.0,
    kv_bytes: float = 2.0,
    cold: bool = True,
    graph: bool = True,
) -> Timing:
    """One query (or a few) against the cache of each sequence; `context` tokens are read.

    `cached_dim`: elements cached for a token and KV head (qk_dim + v_dim unless the two share a latent, as in MLA).

    Source: Flash-Decoding (Dao et al. 2023); FlashMLA's deep dive of 2025-04-22 (tiles of 64 x 512); calibrated.
    Assumes: the cache of a sequence is split over cores until all are busy (for MLA, where `latent_tail` is 0); each
    (sequence, KV head) has a fixed time.
    """
    cached = qk_dim + v_dim if cached_dim is None else cached_dim
    latent = cached_dim is not None
    rate = rates.peak_flops_per_s("bf16") * rates.value["latent_decode_frac" if latent else "attention_frac"]
    fixed_s = rates.value["decode_s"]
    block_s = rates.value["latent_block_s" if latent else "decode_block_s"]
    tail = rates.value["latent_tail"] if latent else 0.0

    def formula(batch: Ints, heads: Ints, kv_heads: Ints, context: Ints, query: Ints) -> Timing:
        rows = heads * query / kv_heads
        tiles = np.ceil(rows / LATENT_ROWS) if latent else 1.0
        count = batch * kv_heads * tiles
        tile_s = 2.0 * (LATENT_ROWS if latent else rows) * context * (qk_dim + v_dim) * rates.num_sms / rate
        moved = batch * kv_heads * context * cached * kv_bytes + batch * query * heads * (qk_dim + v_dim) * act_bytes
        memory_s = read_s(rates, moved, cold=cold) / rates.value["decode_frac"]
        compute_s = waves(count, rates.num_sms, tail) * (tile_s + block_s)
        return overlapped(rates, compute_s, memory_s, fixed_s)

    return launched(rates, in_blocks(formula, (batch, heads, kv_heads, context, query)), graph=graph)


def attention_s(
    rates: Rates,
    work: Work,
    *,
    act_bytes: float = 2.0,
    kv_bytes: float = 2.0,
    cold: bool = True,
    graph: bool = True,
    dtype: str = "bf16",
) -> Timing:
    """Seconds of an attention `Work`; decoding where a sequence has few queries, prefill elsewhere; element by element.

    The backward pass is a prefill of as many times the operations (`causal_flops`) as it counts.

    Source: the two functions above. Assumes: MLA unfolds its latent for prefill and runs on it in decoding.
    """
    per_pair = 2.0 * work.heads * (work.qk_dim + work.v_dim)
    forward = work.batch * work.pairs * per_pair
    rounds = work.causal_flops / np.maximum(forward, 1.0)
    window = work.window if work.window is not None else np.inf
    prefill = prefill_attention_s(
        rates, work.pairs, work.batch, work.query, work.heads, work.kv_heads, np.minimum(work.context, window),
        qk_dim=work.qk_dim, v_dim=work.v_dim, act_bytes=act_bytes, kv_bytes=kv_bytes, cold=cold, graph=graph,
        frac="attention_frac" if work.latent_dim is None else "latent_prefill_frac", dtype=dtype,
    )  # fmt: skip
    prefill = Timing(prefill.seconds * rounds, prefill.compute_s * rounds, prefill.memory_s * rounds)
    few = np.asarray(work.query) <= DECODE_QUERIES
    if not few.any():
        return prefill
    per_token = np.maximum(work.batch * work.kv_heads, 1.0)
    if work.latent_dim is None:
        read = work.kv_elems / (per_token * max(1, work.qk_dim + work.v_dim))
        decode = decode_attention_s(
            rates, work.batch, work.heads, work.kv_heads, read, qk_dim=work.qk_dim, v_dim=work.v_dim,
            query=work.query, act_bytes=act_bytes, kv_bytes=kv_bytes, cold=cold, graph=graph,
        )  # fmt: skip
    else:
        read = work.kv_elems / np.maximum(work.batch * float(work.latent_dim), 1.0)
        decode = decode_attention_s(
            rates, work.batch, work.heads, 1, read, qk_dim=work.latent_dim, v_dim=work.latent_dim,
            cached_dim=work.latent_dim, query=work.query, act_bytes=act_bytes, kv_bytes=kv_bytes, cold=cold,
            graph=graph,
        )  # fmt: skip
    if few.all():
        return decode
    return Timing(*(np.where(few, d, p) for d, p in zip(decode, prefill, strict=True)))


SCORE_PASSES = 6.0
"""Times that the scores cross memory in a forward pass: written, masked and normalised (2), dropped out (2), read."""


def eager_attention_s(
    rates: Rates, work: Work, *, act_bytes: float = 2.0, score_traffic: float = 1.0, dtype: str = "bf16"
) -> Timing:
    """Seconds of attention that writes its scores: two batched products over all pairs, and passes over the scores.

    `score_traffic` scales the passes: 1 for a fused softmax, more where each step of it is a kernel. The backward pass
    is as many forward passes as it counts operations.

    Source: Korthikanti et al. 2022 (arXiv:2205.05198) figure 3 and section 4.1 for the tensors; traffic by counting.
    Assumes: products of one head run at the sustained rate of large ones; nothing skips the masked half.
    """
    forward = work.batch * 1.0 * work.query * work.context * 2.0 * work.heads * (work.qk_dim + work.v_dim)
    rounds = work.flops / np.maximum(forward, 1.0)
    compute_s = work.flops / rates.matmul_flops_per_s(dtype)
    scores = work.batch * 1.0 * work.heads * work.query * work.context
    moved = scores * act_bytes * SCORE_PASSES * score_traffic + work.in_elems * act_bytes
    memory_s = rounds * read_s(rates, moved)
    return Timing(4 * rates.value["kernel_s"] * rounds + compute_s + memory_s, compute_s, memory_s)
