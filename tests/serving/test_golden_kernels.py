"""Kernels and messages of a serving step by hand, with the calibrated shares and fixed times of an H100."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.collectives import all_reduce_s, all_to_all_s, chain_s, p2p_s
from flopwise.cost.kernels import (
    Elements,
    Heads,
    decode_attention_s,
    grouped_matmul_s,
    matmul_s,
    pointwise_s,
    prefill_attention_s,
    touched_keys,
)
from flopwise.facts.catalog import load_facts

H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8)
RATES, VALUE = H100.rates, H100.rates.value
READ = RATES.hbm_bytes_per_s * VALUE["dram_frac"]
CORES, PEAK, FP8 = 132, RATES.peak["bf16"], RATES.peak["fp8"]
LINK = H100.fabric.levels[0]


def overlapped(compute_s: float, memory_s: float, loss: str = "overlap_loss") -> float:
    """The longer, and what is not hidden of the shorter."""
    return max(compute_s, memory_s) + VALUE[loss] * min(compute_s, memory_s)


def waved(tiles: float, tail: float) -> float:
    """Rounds of 132 cores, of whose last one a share `tail` of what is missing is lost (Stream-K, arXiv:2301.03598)."""
    even = tiles / CORES
    return even + tail * (math.ceil(even) - even)


def test_a_large_product_runs_in_the_largest_tiles() -> None:
    """4096 x 14336 x 4096: 16 x 112 tiles of 256 x 128, which is the most intense one."""
    each_s = 4096 * 2 * 256 * 128 * CORES / (PEAK * VALUE["matmul_frac.bf16"]) + 2 * VALUE["tile_fill_s"]
    compute_s = waved(16 * 112, VALUE["wave_tail"]) * each_s
    memory_s = 2 * (4096 * 4096 + 4096 * 14336 + 4096 * 14336) / READ
    found = float(np.asarray(matmul_s(RATES, 4096, 14336, 4096).seconds))
    assert found == pytest.approx(VALUE["kernel_s"] + overlapped(compute_s, memory_s), rel=1e-9)


def test_products_in_fp8_quantise_their_input_first() -> None:
    each_s = 4096 * 2 * 256 * 128 * CORES / (FP8 * VALUE["matmul_frac.fp8"]) + 2 * VALUE["tile_fill_s"]
    compute_s = waved(16 * 112, VALUE["wave_tail.scaled"]) * each_s
    memory_s = (4096 * 4096 + 4096 * 14336 + 2 * 4096 * 14336) / READ
    quantise_s = VALUE["quantise_kernels"] * VALUE["kernel_s"] + 3 * 4096 * 4096 / READ / VALUE["pointwise_frac"]
    found = float(np.asarray(matmul_s(RATES, 4096, 14336, 4096, Elements("fp8")).seconds))
    assert found == pytest.approx(VALUE["kernel_s"] + overlapped(compute_s, memory_s) + quantise_s, rel=1e-9)


@pytest.mark.parametrize(("dtype", "tail"), [("fp8", "wave_tail"), ("fp8_block", "wave_tail.scaled")])
def test_fp8_of_hipblaslt_splits_k_as_16_bits_do(dtype: str, tail: str) -> None:
    """256 rows of 8192 x 5120 on MI300X: 40 tiles of 256 x 128 on 304 cores, or more of fewer rows."""
    rates = cluster(load_facts().accelerator("MI300X")).rates
    value, cores = rates.value, 304
    flops = rates.peak["fp8"] * value[f"matmul_frac.{dtype}"]
    best = min(
        (even + value[tail] * (math.ceil(even) - even))
        * (
            8192 * 2 * rows * 128 * cores / flops
            * max((1 + value["tile_knee"] * (rows + 128) / (rows * 128)) / (1 + value["tile_knee"] * 384 / 32768), 1)
            + value["tile_fill_s"] * rows / 128
        )
        for rows in (256, 128, 64, 16)
        for even in (256 / rows * 40 / cores,)
    )  # fmt: skip
    found = float(np.asarray(matmul_s(rates, 256, 5120, 8192, Elements(dtype)).compute_s))
    assert found == pytest.approx(best, rel=1e-9)


def test_one_row_runs_on_the_vector_units_and_reads_its_weights() -> None:
    """2 n k operations at half of the fp32 rate; 8 bits a weight, four operations more to unpack each."""
    n, k = 28672, 4096
    for bits, unpack in ((16.0, 0.0), (4.0, 4.0)):
        compute_s = (2 + unpack) * n * k / (0.5 * RATES.peak["fp32"])
        memory_s = (n * k * bits / 8 + 2 * (n + k)) / READ
        kind = "bf16" if bits == 16 else "int4_wo"
        found = matmul_s(RATES, 1, n, k, Elements(kind, bits))
        assert float(np.asarray(found.memory_s)) == pytest.approx(memory_s, rel=1e-9)
        assert float(np.asarray(found.compute_s)) <= compute_s * (1 + 1e-9)
        expected = VALUE["kernel_s"] + overlapped(float(np.asarray(found.compute_s)), memory_s)
        assert float(np.asarray(found.seconds)) == pytest.approx(expected, rel=1e-9)
    plain = replace(RATES, num_sms=1e6)  # no tile fills so many cores: the vector units win
    found = matmul_s(plain, 1, n, k)
    assert float(np.asarray(found.compute_s)) == pytest.approx(2 * n * k / (0.5 * RATES.peak["fp32"]), rel=1e-9)


def test_weights_that_are_packed_first_wait_for_neither_rows_nor_units() -> None:
    """Their 2 n k bytes at the packing rate, never faster than memory is; beside them only rows overlap."""
    m, n, k = 8, 4096, 4096
    plain = matmul_s(RATES, m, n, k)
    for rate in (9e9, 1e15):
        packed = replace(RATES, value={**RATES.value, "packed_bytes_per_s.bf16": rate})
        found = matmul_s(packed, m, n, k)
        packing_s = 2 * n * k / min(rate, READ)
        rows_s = 2 * m * (n + k) / READ
        expected = VALUE["kernel_s"] + packing_s + overlapped(float(np.asarray(plain.compute_s)), rows_s)
        assert float(np.asarray(found.seconds)) == pytest.approx(expected, rel=1e-9)
        assert float(np.asarray(found.memory_s)) == pytest.approx(packing_s + rows_s, rel=1e-9)
        assert found.seconds > plain.seconds
        for dtype in ("fp8", "int4_wo"):  # no library packs these each time
            assert matmul_s(packed, m, n, k, Elements(dtype)) == matmul_s(RATES, m, n, k, Elements(dtype))


def test_few_columns_draw_from_few_cores() -> None:
    """512 columns are four tiles of 128: the share of cores that read, and what stream-K shares out of the rest."""
    n, k = 512, 8192
    busy = n / 128 / CORES
    alone = max(VALUE["core_bytes_per_s"] / READ, 1 / CORES)
    share = min(1.0, (busy + (1 - VALUE["wave_tail"]) * (1 - busy)) * CORES * alone)
    expected = (2 * n * k / share + 2 * (n + k)) / READ
    assert float(np.asarray(matmul_s(RATES, 1, n, k).memory_s)) == pytest.approx(expected, rel=1e-9)


def test_experts_gather_their_rows_and_read_their_weights() -> None:
    """1,024 rows of 8 experts of 2048 x 7168, passes over rows in and out.

    An expert has 128 rows, give or take sqrt(128 * 7 / 8) = 10.6: 1.48 tiles of 128, as half of the experts have more.
    """
    beyond = 0.5 - 0.32 * 0.5 / math.sqrt(128 * 7 / 8)
    down = {256: 1.0, 128: 1 + beyond, 64: 2 + beyond, 16: 8 + beyond}
    rate = PEAK * VALUE["matmul_frac.bf16"] * VALUE["grouped_frac"]
    best = min(
        waved(8 * 16 * down[rows], VALUE["wave_tail.scaled"])
        * (
            7168 * 2 * rows * 128 * CORES / rate
            * max((1 + VALUE["tile_knee"] * (rows + 128) / (rows * 128)) / (1 + VALUE["tile_knee"] * 384 / 32768), 1)
            + VALUE["tile_fill_s"] * rows / 128
        )
        for rows in (256, 128, 64, 16)
    )  # fmt: skip
    moved = 2 * (1024 * 7168 + 8 * 2048 * 7168 + 1024 * 2048)
    passes = VALUE["grouped_passes"] * 1024 * 2 * (7168 + 2048)
    found = float(np.asarray(grouped_matmul_s(RATES, 1024, 2048, 7168, 8.0).seconds))
    assert found == pytest.approx(VALUE["grouped_s"] + overlapped(best, (moved + passes) / READ), rel=1e-9)


def test_decoding_streams_the_cache() -> None:
    """64 sequences of 3,000 tokens, 32 query heads on 8: 512 pieces over 132 cores, each with its fixed time."""
    moved = 64 * 3000 * 8 * 256 * 2 + 64 * 32 * 256 * 2
    piece_s = 2 * 4 * 3000 * 256 * CORES / (PEAK * VALUE["attention_frac"]) + VALUE["decode_block_s"]
    whole_s = overlapped(64 * 8 / CORES * piece_s, moved / READ / VALUE["decode_frac"])
    found = decode_attention_s(RATES, Heads(32, 8, 128, 128), 64, 3000)
    assert float(np.asarray(found.seconds)) == pytest.approx(VALUE["decode_s"] + whole_s, rel=1e-9)
    eight = decode_attention_s(RATES, Heads(32, 8, 128, 128), 64, 3000, Elements(kv_bytes=1.0))
    saved = 64 * 3000 * 8 * 256 / READ / VALUE["decode_frac"]
    assert float(np.asarray(found.memory_s - eight.memory_s)) == pytest.approx(saved, rel=1e-9)


def test_a_latent_is_decoded_in_tiles_of_64_heads() -> None:
    """128 heads on one latent of 576: two tiles a sequence, each at the rate of MLA kernels."""
    piece_s = 2 * 64 * 4000 * 2 * 576 * CORES / (PEAK * VALUE["latent_decode_frac"]) + VALUE["latent_block_s"]
    compute_s = waved(32 * 2, VALUE["latent_tail"]) * piece_s
    memory_s = (32 * 4000 * 576 * 2 + 32 * 128 * 2 * 576 * 2) / READ / VALUE["decode_frac"]
    found = decode_attention_s(RATES, Heads(128, 1, 576, 576, latent=True), 32, 4000)
    assert float(np.asarray(found.seconds)) == pytest.approx(VALUE["decode_s"] + overlapped(compute_s, memory_s))


def test_a_prompt_goes_by_blocks_of_128_queries() -> None:
    """FlashAttention-2 (arXiv:2307.08691) section 3.2: 64 blocks of 32 heads, each over its keys and half a block."""
    tokens, heads = 8192, 32
    pairs = tokens * (tokens + 1) / 2
    per_key_s = 2 * 128 * 256 * CORES / (PEAK * VALUE["attention_frac"])
    rounds = waved(64 * heads, VALUE["attention_tail"])
    block_s = VALUE["attention_block_s"] * math.ceil(64 * heads / CORES)
    compute_s = rounds * (pairs / tokens + 64) * per_key_s + block_s
    memory_s = tokens * (32 + 8) * 256 * 2 / READ
    found = prefill_attention_s(RATES, Heads(heads, 8, 128, 128), pairs, 1, tokens, tokens)
    expected = VALUE["attention_s"] + overlapped(compute_s, memory_s, "overlap_loss.attention")
    assert float(np.asarray(found.seconds)) == pytest.approx(expected, rel=1e-9)


def test_no_query_touches_more_keys_than_there_are() -> None:
    """An encoder's 512 queries see all 512 keys: no diagonal, so no half block beside them."""
    tokens, heads = 512, 64
    per_key_s = 2 * 128 * 256 * CORES / (PEAK * VALUE["attention_frac"])
    compute_s = waved(4 * heads, VALUE["attention_tail"]) * tokens * per_key_s
    compute_s += VALUE["attention_block_s"] * math.ceil(4 * heads / CORES)
    memory_s = tokens * (2 * heads) * 256 * 2 / READ
    found = prefill_attention_s(RATES, Heads(heads, heads, 128, 128), tokens * tokens, 1, tokens, tokens)
    expected = VALUE["attention_s"] + overlapped(compute_s, memory_s, "overlap_loss.attention")
    assert float(np.asarray(found.seconds)) == pytest.approx(expected, rel=1e-9)


def test_a_processor_touches_keys_in_blocks_of_512() -> None:
    """PyTorch, aten/src/ATen/native/cpu/FlashAttentionKernel.cpp: kvSplitSize is 512."""
    assert touched_keys(1000.5, 2000, 512) == 1256.5  # half a block on the diagonal
    assert touched_keys(128.5, 256, 512) == 256  # one block has them all
    assert touched_keys(128.5, 256, 128) == 192.5


def test_passes_over_memory_take_their_bytes() -> None:
    found = pointwise_s(RATES, 1e9)
    expected = VALUE["kernel_s"] + 1e9 / READ / VALUE["pointwise_frac"]
    assert float(np.asarray(found.seconds)) == pytest.approx(expected, rel=1e-9)


# ---- messages


def ramped(fixed_s: float, transfer_s: float) -> float:
    """The fixed time, the transfer, and filling the pipeline of its pieces."""
    return fixed_s + transfer_s + LINK.ramp * fixed_s * transfer_s / (transfer_s + LINK.fill_at * fixed_s)


def test_a_long_sum_goes_through_the_switch() -> None:
    """NVLS: of n bytes (n + 1) / n are sent instead of 2 (n - 1) / n, at its share of the rate."""
    nbytes = 1e9
    gain = max(1.0, LINK.multicast * 2 * 7 / 9)
    transfer_s = 2 * 7 / 8 * nbytes / (LINK.bytes_per_s * min(LINK.frac * gain, 1))
    expected = ramped(LINK.launch_s + LINK.hop_s * min(7, 2 * 3), transfer_s)
    assert float(all_reduce_s(H100.fabric, nbytes, 8)) == pytest.approx(expected, rel=1e-9)


def test_a_short_sum_reads_its_peers() -> None:
    """Custom all-reduce of serving engines: everything at once, or two halves where that is less."""
    rate = LINK.bytes_per_s * LINK.frac * LINK.direct_frac
    once, twice = LINK.direct_s + 7 * 64e3 / rate, 2 * LINK.direct_s + 2 * 7 / 8 * 2e6 / rate
    assert float(all_reduce_s(H100.fabric, 64e3, 8, direct=True)) == pytest.approx(once, rel=1e-9)
    assert float(all_reduce_s(H100.fabric, 2e6, 8, direct=True)) == pytest.approx(twice, rel=1e-9)


def test_ranks_exchange_all_but_their_own() -> None:
    transfer_s = 7 / 8 * 1e8 / (LINK.bytes_per_s * min(LINK.frac * LINK.exchange, 1))
    expected = ramped(LINK.launch_s + 0.5 * LINK.hop_s * min(7, 2 * 3), transfer_s)
    assert float(all_to_all_s(H100.fabric, 1e8, 8)) == pytest.approx(expected, rel=1e-9)


def test_a_stage_sends_to_the_next() -> None:
    far = H100.fabric.levels[1]
    assert float(p2p_s(H100.fabric, 1e8, 1)) == pytest.approx(LINK.launch_s + 1e8 / (LINK.bytes_per_s * LINK.frac))
    assert float(p2p_s(H100.fabric, 1e8, 8)) == pytest.approx(far.launch_s + 1e8 / (far.bytes_per_s * far.frac))


def test_a_chain_over_nodes_leaves_one_for_the_next_at_each_border() -> None:
    """Ranks 0, 4, 8, 12 of nodes of eight: from 4 to 8 over the network; its slowest hop is that one."""
    far = H100.fabric.levels[1]
    near_s = LINK.launch_s + 1e8 / (LINK.bytes_per_s * LINK.frac)
    far_s = far.launch_s + 1e8 / (far.bytes_per_s * far.frac)
    assert float(chain_s(H100.fabric, 1e8, 4, 4)) == pytest.approx(2 * near_s + far_s)
    assert float(chain_s(H100.fabric, 1e8, 16, 1)) == pytest.approx(14 * near_s + far_s)
    assert float(chain_s(H100.fabric, 1e8, 4, 8)) == pytest.approx(3 * far_s)
    assert float(chain_s(H100.fabric, 1e8, 8, 1)) == pytest.approx(7 * near_s)
    assert float(chain_s(H100.fabric, 1e8, 1, 8)) == 0.0
    assert float(p2p_s(H100.fabric, 1e8, 4, 4)) == pytest.approx(far_s)
    assert float(p2p_s(H100.fabric, 1e8, 4, 2)) == pytest.approx(near_s)


def test_an_engine_whose_attention_takes_fewer_keys_at_once_computes_less_beside_the_diagonal() -> None:
    """Of 256 causal tokens a query sees 128.5 keys: half a block of 32 beside them is 144.5, of 128 it is 192.5."""
    even = {**RATES.value, "attention_tail": 0.0, "attention_block_s": 0.0}

    def computing_s(**more: float) -> float:
        rates = replace(RATES, value={**even, **more})
        found = prefill_attention_s(rates, Heads(4, 2, 64, 64), 128.5 * 256, 1, 256, 256)
        return float(np.asarray(found.compute_s))

    assert computing_s(attention_keys=32.0) / computing_s() == pytest.approx(144.5 / 192.5, rel=1e-9)
