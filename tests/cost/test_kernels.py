"""Kernel times: between their bounds, monotonic, the same alone and in a column, and near published measurements."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.kernels import (
    BACKWARD_SOFTMAX,
    CORE_UNPACKS,
    DOT,
    NORMAL_SLOPE,
    Elements,
    Heads,
    Timing,
    attention_s,
    decode_attention_s,
    grouped_matmul_s,
    matmul_s,
    pointwise_s,
    prefill_attention_s,
    routed_tiles,
    score_dims,
    token_deviation,
    waves,
    work_s,
)
from flopwise.cost.precisions import PRECISIONS
from flopwise.cost.rates import Rates, families, rates
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Attend, Experts, Linear, Norm
from flopwise.facts.catalog import load_facts
from flopwise.ops.backward import backward_works
from flopwise.ops.shapes import Shape, Split, Work
from flopwise.ops.types import Floats
from flopwise.ops.work import item_work
from flopwise.serving.iteration import _own_rates

FACTS = load_facts()
GPUS = ("A100-SXM-80", "H100-SXM-80", "B200", "RTX PRO 6000 Blackwell", "MI300X", "T4", "TPU v5p", "Gaudi3")
RATES = {name: rates(FACTS.accelerator(name)) for name in GPUS}
H100 = RATES["H100-SXM-80"]
FORMATS = ("bf16", "int8_wo", "int4_wo", "fp8", "fp8_block", "mxfp8")
SLACK = 1 + 1e-9

gpu = st.sampled_from(GPUS)
dim = st.integers(1, 4096).map(lambda i: 32 * i)  # aligned: a row off the boundary is slower than the next larger one
count = st.integers(1, 60_000)


def roofline_s(r: Rates, flops: Floats, nbytes: Floats, dtype: str = "bf16") -> Floats:
    """The longer of computing and moving at datasheet rates (Williams 2009)."""
    return np.maximum(flops / r.peak_flops_per_s(dtype), nbytes / r.hbm_bytes_per_s)


def roofline_of_work_s(r: Rates, work: Work) -> Floats:
    """The same of 16-bit tensors that all cross memory once; attention reads its queries, and keys and values."""
    queries = work.batch * work.query * work.heads * work.qk_dim
    read = queries if work.kind == "attention" else work.in_elems
    flops = work.causal_flops if work.kind in ("attention", "matmul", "grouped") else 0.0
    return roofline_s(r, flops, 2.0 * (work.weight_elems + read + work.kv_elems + work.out_elems))


@settings(max_examples=150)
@given(gpu, count, dim, dim, st.sampled_from(("m", "n", "k")), st.integers(1, 64))
def test_a_larger_product_never_takes_less_time(name: str, m: int, n: int, k: int, which: str, step: int) -> None:
    more = {"m": m, "n": n, "k": k}
    more[which] += step * (1 if which == "m" else 32)
    assert (
        matmul_s(RATES[name], more["m"], more["n"], more["k"]).seconds * SLACK >= matmul_s(RATES[name], m, n, k).seconds
    )


@settings(max_examples=150)
@given(gpu, count, dim, dim, st.sampled_from(FORMATS))
def test_a_product_lies_above_its_roofline(name: str, m: int, n: int, k: int, dtype: str) -> None:
    r, p = RATES[name], PRECISIONS[dtype]
    if p.peak not in r.peak and p.peak != "bf16":
        with pytest.raises(MissingFactError, match=p.peak):
            matmul_s(r, m, n, k, Elements(dtype))
        return
    timing = matmul_s(r, m, n, k, Elements(dtype))
    nbytes = m * k * (p.act_bits / 8 if p.quantised else 2.0) + n * k * p.weight_bits / 8 + 2.0 * m * n
    assert timing.seconds * SLACK >= roofline_s(r, 2.0 * m * n * k, nbytes, dtype)
    assert timing.seconds * SLACK >= max(timing.compute_s, timing.memory_s)


@settings(max_examples=80)
@given(gpu, count, dim, dim, st.floats(1.0, 3.0))
def test_more_bandwidth_or_rate_never_hurts(name: str, m: int, n: int, k: int, factor: float) -> None:
    r = RATES[name]
    wider = replace(r, hbm_bytes_per_s=r.hbm_bytes_per_s * factor)
    faster = replace(r, peak={d: rate * factor for d, rate in r.peak.items()})
    for better in (wider, faster):
        assert matmul_s(better, m, n, k).seconds <= matmul_s(r, m, n, k).seconds * SLACK
        assert pointwise_s(better, 1.0 * m * n).seconds <= pointwise_s(r, 1.0 * m * n).seconds * SLACK


@settings(max_examples=60)
@given(gpu, st.integers(1, 64), st.integers(1, 8192), st.integers(0, 8192), st.sampled_from((1, 4, 8)))
def test_attention_grows_with_its_context_and_lies_above_its_roofline(
    name: str, batch: int, query: int, cached: int, kv_heads: int
) -> None:
    r = RATES[name]
    item = Attend(name="attention", heads=8, kv_heads=kv_heads, qk_dim=128, v_dim=128)
    work = item_work(item, Shape(batch=batch, query=query, context=query + cached), Split())
    more = item_work(item, Shape(batch=batch, query=query, context=query + cached + 64), Split())
    assert work is not None
    assert more is not None
    assert attention_s(r, more).seconds * SLACK >= attention_s(r, work).seconds
    assert attention_s(r, work).seconds * SLACK >= roofline_of_work_s(r, work)
    (backward,) = backward_works([work])
    if query > 16:
        assert attention_s(r, backward).compute_s == pytest.approx(2.5 * attention_s(r, work).compute_s)


@settings(max_examples=60)
@given(gpu, count, dim, dim, st.integers(1, 128), st.integers(1, 500))
def test_a_grouped_product_costs_at_least_the_plain_one_with_its_weights(
    name: str, m: int, n: int, k: int, touched: int, step: int
) -> None:
    r = RATES[name]
    grouped = grouped_matmul_s(r, m, n, k, touched)
    assert grouped.compute_s * SLACK >= matmul_s(r, m, n, k).compute_s
    assert grouped_matmul_s(r, m + step, n, k, touched).seconds * SLACK >= grouped.seconds
    assert grouped.seconds * SLACK >= roofline_s(r, 2.0 * m * n * k, 2.0 * touched * n * k)


def test_a_column_gives_the_same_numbers_as_each_row_alone() -> None:
    draw = np.random.default_rng(7)
    m, n, k = (draw.integers(1, 9000, 40_000).astype(float) for _ in range(3))
    touched = draw.integers(1, 64, 40_000).astype(float)
    whole = matmul_s(H100, m, n, k, Elements("fp8"))
    grouped = grouped_matmul_s(H100, m, n, k, touched)
    for i in draw.integers(0, 40_000, 50):
        assert Timing(*(np.asarray(part)[i] for part in whole)) == pytest.approx(
            matmul_s(H100, m[i], n[i], k[i], Elements("fp8"))
        )
        assert np.asarray(grouped.seconds)[i] == pytest.approx(
            grouped_matmul_s(H100, m[i], n[i], k[i], touched[i]).seconds
        )


def test_prefill_and_decoding_in_one_column() -> None:
    item = Attend(name="attention", heads=32, kv_heads=8, qk_dim=128, v_dim=128)
    query, context = np.array([4096, 1, 1]), np.array([4096, 4096, 131072])
    work = item_work(item, Shape(batch=np.array([1, 16, 1]), query=query, context=context), Split())
    assert work is not None
    column = attention_s(H100, work).seconds
    alone = [
        work_s(H100, w).seconds
        for b, q, c in zip((1, 16, 1), query, context, strict=True)
        if (w := item_work(item, Shape(batch=b, query=int(q), context=int(c)), Split())) is not None
    ]
    assert column == pytest.approx(alone)


def test_latent_attention_decodes_on_the_latent_and_prefills_with_full_heads() -> None:
    item = Attend(name="attention", heads=128, kv_heads=128, qk_dim=192, v_dim=128, latent_dim=576)
    decode = item_work(item, Shape(batch=32, query=1, context=8192), Split())
    prefill = item_work(item, Shape(batch=1, query=4096, context=4096), Split())
    assert decode is not None
    assert prefill is not None
    cache_s = 32 * 8192 * 576 * 2 / H100.hbm_bytes_per_s
    assert cache_s < work_s(H100, decode).seconds < 128 * cache_s / 4  # no head reads a cache of its own
    full = prefill_attention_s(H100, Heads(128, 128, 192, 128), 4096 * 4097 / 2, 1, 4096, 4096)
    assert work_s(H100, prefill).seconds == pytest.approx(full.seconds, rel=0.6)


def test_weight_formats_help_decoding_and_not_prefill() -> None:
    few, many = ({d: matmul_s(H100, m, 8192, 8192, Elements(d)).seconds for d in FORMATS} for m in (1, 8192))
    assert few["int4_wo"] < few["int8_wo"] < few["bf16"]
    assert many["int4_wo"] >= 0.95 * many["bf16"]
    assert many["fp8"] < many["bf16"]


def test_norms_experts_and_products_have_a_time() -> None:
    shape = Shape(batch=np.array([1, 8]), query=512, context=512)
    items = (
        Norm(name="norm", dim=4096),
        Linear(name="up", inputs=4096, outputs=14336, shard="column"),
        Experts(name="experts", experts=8, top_k=2, inputs=4096, outputs=14336),
    )
    for item in items:
        work = item_work(item, shape, Split())
        assert work is not None
        seconds = work_s(H100, work).seconds
        assert np.shape(seconds) == (2,)
        assert np.all(np.asarray(seconds) * SLACK >= roofline_of_work_s(H100, work))


def test_waves_are_whole_rounds_or_shared_out() -> None:
    assert waves(np.array([1.0, 132.0, 133.0]), 132, 1.0) == pytest.approx([1, 1, 2])
    assert waves(np.array([1.0, 132.0, 133.0]), 132, 0.0) == pytest.approx([1 / 132, 1, 133 / 132])


def test_large_products_run_at_published_rates() -> None:
    """Best published bf16 matmul rates (ml-engineering, 2026-08), which no fit has seen: within a fifth."""
    for name in ("A100-SXM-80", "H100-SXM-80", "B200", "B300", "GB200", "MI300X", "MI325X", "Gaudi2", "Gaudi3"):
        chip = FACTS.accelerator(name)
        reached = 2 * 8192.0**3 / float(np.asarray(matmul_s(rates(chip), 8192, 8192, 8192).seconds))
        assert reached == pytest.approx(chip.figure("measured_bf16_flops_per_s"), rel=0.2), name


@pytest.mark.parametrize(
    ("dim", "published", "within"), [(1024, 95.1, 0.1), (2048, 120.3, 0.1), (4096, 133.4, 0.04), (8192, 138.6, 0.04)]
)
def test_an_h20_keeps_its_slowed_matrix_units_busy(dim: int, published: float, within: float) -> None:
    """Its products in bf16 of sizes that no constant is from (zzc0721/torch-performance-test-data, issue 77)."""
    seconds = float(np.asarray(matmul_s(rates(FACTS.accelerator("H20")), dim, dim, dim, cold=False).seconds))
    assert 2e-12 * dim**3 / seconds == pytest.approx(published, rel=within)


@pytest.mark.parametrize(
    ("m", "n", "k", "published_us"),
    [(1024, 24576, 7168, (1317, 1437)), (8192, 24576, 7168, (10207, 11351)), (1024, 32768, 512, (150, 194))],
)
def test_scales_of_blocks_hold_slowed_matrix_units_back_less(
    m: int, n: int, k: int, published_us: tuple[float, float]
) -> None:
    """Products in fp8 with blocks on an H20, of the best library and of Triton (vLLM, pull request 49932).

    At the share of the peak that an H100 reaches they would take 1.45 times as long as with Triton.
    """
    h20 = rates(FACTS.accelerator("H20"))
    seconds = float(np.asarray(matmul_s(h20, m, n, k, Elements("fp8_block")).seconds))
    assert 0.9 * published_us[0] < 1e6 * seconds < 1.1 * published_us[1]
    assert H100.value["matmul_frac.fp8_block"] < 0.75 * h20.value["matmul_frac.fp8_block"]
    assert h20.value["matmul_frac.bf16"] == FACTS.calibration.find("matmul_frac.bf16", ("hopper-h20",)).value
    wide = float(np.asarray(matmul_s(h20, 10_240, 10_240, 10_240, Elements("fp32", act_bytes=4.0)).seconds))
    assert 2 * 10_240**3 / wide == pytest.approx(31.99e12, rel=0.05), "vector units are not slowed (zzc0721, as above)"


def test_the_rest_of_a_core_holds_halved_matrix_units_back_half_as_long() -> None:
    """A core at 0.8 of its peak spends a fifth of the time on the rest, beside halved units a ninth: 0.8 / 0.9.

    Floats of eight bits and unpacked weights run at the halved rate; integers and floats of four bits do not (NVIDIA's
    RTX Blackwell whitepaper, appendix A: 838 TOPS and 1,676 TFLOP/s of a 5090, 419 TFLOP/s in fp8).
    """
    chip = FACTS.accelerator("RTX 5090")
    known = {("matmul_frac.fp8", "blackwell-rtx"): 0.8, ("grouped_unpack_frac", "any"): 0.5}
    table = FACTS.calibration.with_values(known)
    half, whole = rates(chip, table), rates(FACTS.accelerator("RTX PRO 6000 Blackwell Server"), table)
    assert (whole.value["matmul_frac.fp8"], half.value["matmul_frac.fp8"]) == pytest.approx((0.8, 0.8 / 0.9))
    assert half.value["grouped_unpack_frac"] == pytest.approx(2 / 3)
    for name in ("matmul_frac.nvfp4", "matmul_frac.int8", "matmul_frac.fp32"):
        assert half.value[name] == whole.value[name], name
    wide = float(np.asarray(matmul_s(half, 10_240, 10_240, 10_240, Elements("fp32", act_bytes=4.0)).seconds))
    assert 2 * 10_240**3 / wide == pytest.approx(70.47e12, rel=0.05), "measured (zzc0721, as above)"
    assert half.value["matmul_frac.bf16"] == FACTS.calibration.find("matmul_frac.bf16", ("blackwell-rtx-half",)).value


@pytest.mark.parametrize(("rows", "experts"), [(16, 8), (16, 128), (64, 8), (64, 128), (256, 64)])
def test_tiles_of_routed_rows_are_those_of_drawn_ones(rows: int, experts: int) -> None:
    draws = np.random.default_rng(7)
    for mean in (1.5, 4.0, 12.0, 16.0, 20.0, 48.0, 64.0, 100.0, 256.0, 1000.0):
        drawn = draws.binomial(round(mean * experts), 1 / experts, 40_000)
        sampled = float(np.ceil(drawn[drawn > 0] / rows).mean())
        assert float(routed_tiles(mean, rows, token_deviation(mean, experts))) == pytest.approx(sampled, rel=0.04), mean


def test_a_line_stands_for_the_normal_distribution() -> None:
    """No slope has a smaller square error, by a tenth either way."""
    at, wide = np.linspace(-6, 6, 1201), np.vectorize(lambda z: 0.5 * math.erfc(-z / math.sqrt(2)))
    slopes = NORMAL_SLOPE * np.array([0.9, 1.0, 1.1])
    errors = [float(np.square(np.clip(0.5 + slope * at, 0, 1) - wide(at)).sum()) for slope in slopes]
    assert errors[1] == min(errors)


def test_one_expert_has_all_rows() -> None:
    for mean in (1, 16, 17, 255, 256, 257):
        assert routed_tiles(mean, 16, token_deviation(mean, 1)) == pytest.approx(np.ceil(mean / 16))


def test_experts_in_8_bits_are_computed_64_rows_at_once_on_hopper() -> None:
    """Qwen3-Next's of 96 tokens on an H20 with 141 GB at tp 2, by default (vLLM, pull request 45142): 493 us, both.

    With tiles of 16 rows they would take a third less; on Ada and in 16 bits, tiles have 16 rows.
    """
    h20, experts = rates(FACTS.accelerator("H20-141")), 512 * (1 - (1 - 10 / 512) ** 96)
    small = replace(h20, value={**h20.value, "expert_rows": 16.0})
    both = [
        sum(float(np.asarray(grouped_matmul_s(r, 960, n, k, experts, Elements("fp8_block")).seconds))
            for n, k in ((512, 2048), (2048, 256)))
        for r in (h20, small)
    ]  # fmt: skip
    assert both[0] == pytest.approx(493e-6, rel=0.15)
    assert both[1] < 0.75 * both[0]
    assert rates(FACTS.accelerator("L40S")).value["expert_rows"] == 16.0
    coarse = replace(H100, value={**H100.value, "expert_rows": 256.0})
    for rows, differs in (("bf16", False), ("fp8", True)):
        fine_s, coarse_s = (
            grouped_matmul_s(r, 9600, 512, 2048, experts, Elements(rows)).compute_s for r in (H100, coarse)
        )
        assert bool(coarse_s > 1.5 * fine_s) is differs, rows


@pytest.mark.parametrize(
    ("tokens", "experts", "top_k", "width", "hidden", "microseconds"),
    [
        (16, 256, 8, 2048, 7168, 1395), (64, 256, 8, 2048, 7168, 2973), (16, 512, 10, 1024, 4096, 599),
        (256, 512, 10, 1024, 4096, 2227), (16, 8, 2, 14336, 4096, 457),
    ],
)  # fmt: skip
def test_marlin_unpacks_as_many_weights_a_core_whatever_the_experts(
    tokens: int, experts: int, top_k: int, width: int, hidden: int, microseconds: float
) -> None:
    """Experts in 4 bits on an H20 (vLLM 0.20; FlagGems, pull request 3609): less than half of its bandwidth."""
    h20 = rates(FACTS.accelerator("H20"))
    touched = experts * (1 - (1 - top_k / experts) ** tokens)
    weights = touched * 3 * width * hidden
    assert weights / (h20.num_sms * microseconds / 1e6) == pytest.approx(
        FACTS.engine("vllm").core_unpacks_per_s, rel=0.1
    )
    assert weights * 4.25 / 8 / (microseconds / 1e6) < 0.5 * h20.hbm_bytes_per_s


def test_weights_of_experts_are_unpacked_again_for_every_64_rows() -> None:
    slow = replace(H100, value={**H100.value, CORE_UNPACKS: 1e9})
    for rows, times in ((8, 1), (8 * 64, 1), (8 * 65, 2)):
        for dtype, differs in (("int4_wo", True), ("fp8", False)):
            bound, free = (grouped_matmul_s(r, rows, 4096, 7168, 8, Elements(dtype)) for r in (slow, H100))
            unpacked_s = times * 8 * 4096 * 7168 / (1e9 * H100.num_sms)
            assert bound.compute_s == pytest.approx(unpacked_s if differs else free.compute_s)
    plain = (matmul_s(r, 8, 4096, 7168, Elements("int4_wo")).compute_s for r in (slow, H100))
    assert len({float(np.asarray(each)) for each in plain}) == 1


@pytest.mark.parametrize(("head_dim", "published"), [(128, 107.8), (64, 100.3)])
def test_flash_attention_with_a_mask_on_an_h20(head_dim: int, published: float) -> None:
    """FlashAttention-3 of 2,048 tokens, batch 2, 2,048 wide (Dao-AILab/flash-attention, issue 1310), mask of a decoder.

    The rate is one without a mask, fixed times included, so the time is a little long; with the shares of an H100's
    kernels it is a quarter longer.
    """
    many = 2048 // head_dim
    heads, pairs = Heads(many, many, head_dim, head_dim), 2048 * 2049 / 2
    seconds = prefill_attention_s(rates(FACTS.accelerator("H20")), heads, pairs, 2, 2048, 2048).seconds
    reached = 2 * many * 4e-12 * head_dim * 2048**2 / 2 / float(np.asarray(seconds))
    assert 0.85 * published < reached < published


def test_slowed_matrix_units_make_a_family_of_their_own() -> None:
    scopes = {
        name: families(FACTS.accelerator(name))[:2] for name in ("H20", "H20-141", "H100-PCIe-80", "H200-NVL-141")
    }
    assert scopes["H20"] == scopes["H20-141"] == ("hopper-h20", "hopper")
    assert {scopes["H100-PCIe-80"][0], scopes["H200-NVL-141"][0]} == {"hopper"}
    unknown = replace(FACTS.accelerator("H20"), num_sms=None)
    assert families(unknown)[0] == "hopper"


def test_halved_matrix_units_make_a_family_of_their_own() -> None:
    """By hand, operations of a core in a cycle: RTX 4090 165.2e12 / (128 x 2.52e9) = 512, L40S 362e12 / (142 x 2.52e9).

    That is 1,012, as of an RTX A4500, whose clock is low; 512 of an A10G.
    """
    first = {name: families(FACTS.accelerator(name))[:2] for name in ("RTX 4090", "A10G", "RTX 5090", "L40")}
    assert first["RTX 4090"] == first["L40"] == ("ada-half", "ada")
    assert first["A10G"] == ("ampere-rtx-half", "ampere-rtx")
    assert first["RTX 5090"] == ("blackwell-rtx-half", "blackwell-rtx")
    whole = ("L40S", "RTX A4500", "RTX 2000 Ada", "RTX PRO 6000 Blackwell Server", "A100-SXM-80")
    assert [families(FACTS.accelerator(name))[0] for name in whole] == [
        "ada", "ampere-rtx", "ada", "blackwell-rtx", "ampere",
    ]  # fmt: skip
    assert families(replace(FACTS.accelerator("RTX 4090"), boost_clock_hz=None))[0] == "ada"


@pytest.mark.parametrize(
    ("gpu", "published"), [("RTX 3090", 76.5), ("RTX 3080 Ti", 76.5), ("RTX 4090", 163.1), ("RTX 4090 D", 148.9),
                           ("RTX 4070 SUPER", 75.2), ("L40", 170.3), ("L20", 110.0), ("RTX 5090", 232.0)],
)  # fmt: skip
def test_halved_matrix_units_reach_the_datasheets_rate(gpu: str, published: float) -> None:
    """TFLOP/s of large 16-bit products; GeForce cards exceed their datasheets' clocks, estimates do not.

    Source: zzc0721/torch-performance-test-data, database.md; L40: mag-/gpu_benchmark, README; L20: cuBLAS in
    xlite-dev/CUDA-Learn-Notes, hgemm, 105 to 115; RTX 5090: vllm-project/vllm pull request 34424, too.
    """
    card = FACTS.accelerator(gpu)
    expected = min(1e12 * published, card.peak_flops_per_s("bf16"))
    assert rates(card).matmul_flops_per_s("bf16") == pytest.approx(expected, rel=0.1)


def test_what_is_not_known_is_said() -> None:
    assert any("volta" in sentence for sentence in rates(FACTS.accelerator("V100-SXM2-16")).assumptions)
    with pytest.raises(MissingFactError, match="fp4"):
        matmul_s(H100, 16, 4096, 4096, Elements("nvfp4"))
    with pytest.raises(SpecError, match="allowed"):
        matmul_s(H100, 16, 4096, 4096, Elements("int3"))


def test_every_accelerator_has_rates() -> None:
    for chip in FACTS.accelerators.values():
        r: Rates = rates(chip)
        assert 0 < r.read_bytes_per_s <= r.hbm_bytes_per_s
        if {"bf16", "fp16", "fp32"} & set(r.peak):
            seconds = float(np.asarray(decode_attention_s(r, Heads(8, 8, 128, 128), 1, 1024).seconds))
            assert 1e-7 < seconds < 1.0


def test_a_million_products_in_well_under_a_second() -> None:
    m = np.linspace(1, 9000, 1_000_000)
    best = min(_seconds_of(m) for _ in range(3))
    assert best < 0.3  # 60 ns a row on an idle core; slack for busy machines


def _seconds_of(m: np.ndarray) -> float:
    began = time.perf_counter()
    matmul_s(H100, m, 4096.0, 4096.0)
    return time.perf_counter() - began


def test_a_few_rows_on_packed_weights_are_bound_by_reading_them() -> None:
    """Marlin (arXiv 2408.11743, figure 1): 4-bit products reach the memory's speed up to 16 rows on an A100."""
    for name in ("A100-SXM-80", "H100-SXM-80"):
        for m in (1, 4, 16):
            timing = matmul_s(RATES[name], m, 28_672, 4_096, Elements("int4_wo"))
            assert timing.compute_s < timing.memory_s
            plain = matmul_s(RATES[name], m, 28_672, 4_096)
            assert 2.5 < plain.seconds / timing.seconds < 4.0


def test_latent_decoding_computes_whole_tiles_of_heads() -> None:
    r = rates(FACTS.accelerator("H100-SXM-80"))
    few, tile, more = (
        decode_attention_s(r, Heads(h, 1, 576, 512, latent=True), 512, 4096).compute_s for h in (2, 64, 65)
    )
    assert few == pytest.approx(tile)
    assert more == pytest.approx(2 * np.asarray(tile))


def test_latent_decoding_of_one_sequence_uses_all_cores_where_the_cache_is_split() -> None:
    def seconds(name: str, batch: int) -> float:
        r = rates(FACTS.accelerator(name))
        timing = decode_attention_s(r, Heads(2, 1, 576, 512, latent=True), batch, 32_768)
        return float(np.asarray(timing.compute_s))

    assert seconds("H100-SXM-80", 8) == pytest.approx(8 * seconds("H100-SXM-80", 1))
    assert seconds("A100-SXM-80", 8) == pytest.approx(seconds("A100-SXM-80", 1))


def test_few_columns_are_read_at_the_rate_of_few_cores_and_many_at_the_devices() -> None:
    for name in ("A100-SXM-80", "H100-SXM-80", "B200", "TPU v5p"):
        r = rates(FACTS.accelerator(name))
        wide = matmul_s(r, 1, 128 * 1024, 8192)
        assert wide.memory_s == pytest.approx((128 * 1024 * 8192 * 2 + 2 * (8192 + 128 * 1024)) / r.read_bytes_per_s)
    narrow = float(np.asarray(matmul_s(H100, 1, 256, 65_536, Elements("fp8")).memory_s))
    assert narrow > 1.5 * 256 * 65_536 / H100.read_bytes_per_s


def test_a_variant_of_a_family_is_that_family_but_for_what_was_measured_on_it() -> None:
    plain, ultra = rates(FACTS.accelerator("B200")), rates(FACTS.accelerator("B300"))
    differing = {name for name, value in plain.value.items() if value != ultra.value[name]}
    assert differing == {"attention_frac", "train_attention_frac.cudnn", "softmax_cycles", "softmax_frac"}
    assert ultra.value["softmax_cycles"] == plain.value["softmax_cycles"] / 2  # twice the exponentials
    assert ultra.value["attention_frac"] > plain.value["attention_frac"]
    assert not any("dram_frac" in sentence for sentence in ultra.assumptions)


@pytest.mark.parametrize(("chip", "head", "dims"), [
    ("TPU v5p", 128, 256), ("TPU v5p", 64, 256), ("TPU v5p", 256, (4 * 128 + 128) * 256 / 384),
    ("TPU v7", 128, 256), ("TPU v7", 64, 256), ("TPU v7", 256, 256),
])  # fmt: skip
def test_a_systolic_array_pads_heads_to_its_side_and_softmax_takes_one_more(chip: str, head: int, dims: float) -> None:
    """By hand: v5p has sides of 128, v7 of 256; both count a head of 128 as what it is."""
    assert score_dims(rates(load_facts().accelerator(chip)), head, head) == pytest.approx(dims, rel=1e-12)


def test_small_heads_wait_for_exponentials_as_long_as_others() -> None:
    """FlashAttention-3, figure 5: 648 TFLOP/s forward for heads of 128, 497 for 64; of 16 exponentials a cycle."""
    fast = replace(H100, value={**H100.value, "attention_frac": 648 / 989})
    per_cycle = 989.4e12 / (132 * 1.98e9)  # operations of one of 132 cores at 1.98 GHz
    products = 4 * 128 / (per_cycle * 648 / 989) - 1 / 16  # cycles of a score with 128 dimensions less its exponential
    by_hand = 256 * (products / 2 + 1 / 16) / (products + 1 / 16)
    assert score_dims(fast, 64, 64) == pytest.approx(by_hand, rel=1e-3)
    assert 128 / score_dims(fast, 64, 64) == pytest.approx(497 / 648, rel=0.01)
    assert score_dims(fast, 80, 80) == pytest.approx(192 + (by_hand - 128) / 2, rel=1e-3)  # padded to 96
    assert score_dims(fast, 128, 128) == 256
    assert score_dims(fast, 256, 256) == 512
    assert score_dims(fast, 64, 64, softmax=BACKWARD_SOFTMAX) < score_dims(fast, 64, 64)
    slow = replace(H100, value={**H100.value, "attention_frac": 0.25})  # products that take longer leave less to it
    assert score_dims(slow, 64, 64) < score_dims(fast, 64, 64)
    unknown = rates(replace(FACTS.accelerator("H100-SXM-80"), boost_clock_hz=None))
    assert score_dims(unknown, 64, 64) == 128


def test_a_device_without_products_of_four_bytes_multiplies_each_by_itself() -> None:
    """P100, a product of 4 bits for one row: 2 conversions at 16 a cycle, 3 parts of a product and 2 sums at 64.

    Source: CUDA C++ programming guide, throughput of native arithmetic instructions, compute capability 6.0; from nine
    rows on llama.cpp has another kernel. V100 has the instruction, and vLLM's kernels have no need of it.
    """
    p100, v100 = (load_facts().accelerator(name) for name in ("P100-PCIe-16", "V100-PCIe-16"))
    llama, vllm = (load_facts().engine(name) for name in ("llama.cpp", "vllm"))
    each_s = (2 / 16 + 3 / 64 + 2 / 64) / (56 * 1.303e9)
    own = _own_rates(rates(p100), llama, chains=False, generating=True, joins_experts=False)
    assert own.value[DOT] == pytest.approx(each_s, rel=1e-3)
    for chip, engine in ((v100, llama), (p100, vllm)):
        assert DOT not in _own_rates(rates(chip), engine, chains=False, generating=True, joins_experts=False).value
    one, eight, nine = (float(matmul_s(own, m, 4096, 4096, Elements("int4_wo")).compute_s) for m in (1, 8, 9))
    assert (one, eight) == pytest.approx((4096**2 * each_s, 8 * 4096**2 * each_s), rel=1e-3)
    assert nine < eight


def test_rows_that_go_one_by_one_read_packed_weights_anew() -> None:
    """MLX on an M3 Ultra of 80 cores, 17,408 x 5,120 in 4 bits with a scale and a bias for 64: 50.1 MB.

    One row takes as long as without; each of up to eight further ones the 89.1 million weights at 4.4e10 a second and
    core, 25.3 us; what is beyond takes no less. Measured (mlx issue 4265): 0.134, 0.218 and 0.252 ms for 4, 7 and 8, of
    weights that partly stay in the cache. Experts' rows do so up to three further ones each; 16-bit weights never.
    """
    chip, row = rates(FACTS.accelerator("Apple M3 Ultra")), FACTS.engine("mlx")
    apart, joined = (
        _own_rates(chip, engine, chains=False, generating=True, joins_experts=False)
        for engine in (row, replace(row, core_row_weights_per_s=0.0))
    )
    n, k, each_s = 17_408, 5_120, 17_408 * 5_120 / (4.4e10 * 80)
    assert each_s == pytest.approx(25.3e-6, rel=1e-3)

    def product(own: Rates, m: int, dtype: str = "int4_wo") -> Timing:
        return matmul_s(own, m, n, k, Elements(dtype, 4.5 if dtype == "int4_wo" else 16.0))

    read = n * k * 4.5 / 8 / apart.read_bytes_per_s
    assert product(apart, 1) == product(joined, 1)
    for m in (2, 4, 8, 9):
        assert float(product(apart, m).compute_s) == pytest.approx(read + (m - 1) * each_s)
        assert product(apart, m, "bf16") == product(joined, m, "bf16")
    assert float(product(apart, 10).seconds) >= float(product(apart, 9).seconds)
    assert product(apart, 512) == product(joined, 512)
    for m, measured_s in ((4, 0.134e-3), (7, 0.218e-3), (8, 0.252e-3)):
        assert float(product(apart, m).seconds) == pytest.approx(measured_s, rel=0.25)
        assert float(product(joined, m).seconds) < 0.75 * measured_s

    def experts(own: Rates, m: int) -> Timing:
        return grouped_matmul_s(own, m, n, k, 8, Elements("int4_wo", 4.5))

    assert experts(apart, 8) == experts(joined, 8)
    for m, further in ((16, 1), (32, 3), (40, 3)):
        assert float(experts(apart, m).compute_s) == pytest.approx(8 * (read + further * each_s))
