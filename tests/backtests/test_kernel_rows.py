"""Rows of a kernels file: predicted from their description alone, or skipped with a reason."""

# ruff: noqa: E501 - tables read better in one line a row
from __future__ import annotations

import pytest

from flopwise.backtests.columns import our_columns
from flopwise.backtests.kernels import Predictor
from flopwise.backtests.prediction import Prediction
from flopwise.cost.rates import rates
from flopwise.facts.catalog import load_facts

FACTS = load_facts()
Row = dict[str, str]


def predict_row(row: Row) -> Prediction:
    """Of a row with the columns of published tables."""
    return Predictor(FACTS).predict(our_columns("kernels", {"framework": "", **row}))


def row(op: str, gpu: str = "H100-SXM-80GB", **cells: object) -> Row:
    return {"op": op, "gpu": gpu, **{name: str(cell) for name, cell in cells.items()}}


GEMM = row("gemm", dtype="bfloat16", m=4096, n=8192, k=8192)
MOE = row("moe", dtype="fp8", tokens=512, hidden=4096, inter=14336, experts=8, topk=2, ep=1, tp=8)
DECODE = row("attention_decode", dtype="bfloat16", kv_dtype="fp8", batch=64, seq_kv=8192, n_heads=32, n_kv_heads=8, head_dim=128)  # fmt: skip
MLA = row("mla_decode", dtype="bfloat16", kv_dtype="bfloat16", batch=32, seq_kv=8192, n_heads=16)
REDUCE = row("allreduce", dtype="half", framework="nccl", bytes=1 << 24, n_gpus=8)


@pytest.mark.parametrize("known", [GEMM, MOE, DECODE, MLA, REDUCE], ids=lambda r: r["op"])
def test_measured_columns_change_nothing(known: Row) -> None:
    told = known | {
        "measured_time_us": "12345", "achieved_tflops": "9", "achieved_gbs": "9", "frac_of_peak": "0.01", "roofline_us": "1",
    }  # fmt: skip
    plain, other = predict_row(known), predict_row(told)
    assert plain.skipped is None
    assert (plain.predicted, plain.low, plain.high) == (other.predicted, other.low, other.high)
    assert (plain.measured, other.measured) == (None, 0.012345)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (GEMM | {"gpu": "H900"}, "H900"),
        (GEMM | {"op": "sort"}, "sort"),
        (GEMM | {"m": ""}, "m is missing"),
        (GEMM | {"k": "many"}, "not a number"),
        (GEMM | {"n": "nan"}, "positive and finite"),
        (GEMM | {"n": "0"}, "positive"),
        (GEMM | {"dtype": "int3"}, "int3"),
        (GEMM | {"dtype": "nvfp4"}, "fp4"),
        (DECODE | {"kv_dtype": "q3"}, "q3"),
        (REDUCE | {"n_gpus": "1"}, "one GPU"),
        (REDUCE | {"note": "devices_per_node=2; rank 0 median; topology somewhere"}, "network"),
        ({}, "unknown"),
    ],
)
def test_what_cannot_be_predicted_is_skipped_with_a_reason(wrong: Row, reason: str) -> None:
    found = predict_row(wrong)
    assert found.predicted is None
    assert found.skipped is not None
    assert reason in found.skipped


@pytest.mark.parametrize(
    ("known", "measured_us"),
    [
        (row("gemm", dtype="bfloat16", m=4097, n=65536, k=3072, framework="vllm"), 2210),
        (row("gemm", dtype="bfloat16", m=128, n=16384, k=16384, framework="trtllm"), 193),
        (row("gemm", dtype="fp8", m=12, n=65536, k=7168, framework="sglang"), 174),
        (row("gemm", "B200", dtype="nvfp4", m=8, n=65536, k=51200, framework="trtllm"), 328),
        (row("attention_decode", dtype="bfloat16", kv_dtype="bfloat16", batch=64, seq_kv=16384, n_heads=8, n_kv_heads=8, head_dim=128), 1388),
        (row("attention_prefill", dtype="bfloat16", kv_dtype="bfloat16", batch=1, seq_q=8192, seq_kv=8192, n_heads=64, n_kv_heads=64, head_dim=128), 2260),
        (row("allreduce", dtype="half", framework="nccl", bytes=268435456, n_gpus=8), 1092),
    ],
)  # fmt: skip
def test_large_kernels_within_a_fifth_of_what_was_published(known: Row, measured_us: float) -> None:
    """Times from aiconfigurator's published tables; the calibration has seen them, so this guards against breakage."""
    assert predict_row(known).predicted == pytest.approx(measured_us * 1e-6, rel=0.2)


def test_experts_of_other_ranks_cost_only_where_the_software_computes_them() -> None:
    one = MOE | {"dtype": "bfloat16", "tokens": "4096", "ep": "4", "tp": "1"}
    triton = one | {"framework": "sglang", "impl": "sglang_fused_moe_triton"}
    seconds = [predict_row(r).predicted or 0.0 for r in (one, triton, triton | {"ep": "1"})]
    assert seconds[1] > 2.5 * seconds[0]
    assert seconds[1] == pytest.approx(seconds[2], rel=0.15)  # as many rows, fewer experts


RANDOM = {"routing": "random", "framework": "vllm", "impl": "fused_moe", "ep": "1"}


@pytest.mark.parametrize(
    ("known", "measured_us"),
    [
        (MOE | RANDOM | {"gpu": "A100-PCIe-80", "dtype": "bfloat16", "tokens": "16", "hidden": "3072", "inter": "1024", "experts": "256", "tp": "2"}, 606),
        (MOE | RANDOM | {"dtype": "bfloat16", "tokens": "4", "tp": "2", "topk": "2"}, 351),
        (MOE | RANDOM | {"gpu": "H200-SXM-141", "dtype": "bfloat16", "tokens": "256", "hidden": "2816", "inter": "704", "experts": "128", "tp": "1"}, 420),
        (MOE | RANDOM | {"gpu": "L40S", "tokens": "64", "hidden": "2048", "inter": "768", "experts": "128", "tp": "1"}, 903),
    ],
)  # fmt: skip
def test_mixtures_with_random_routing_within_a_fifth_of_what_was_published(known: Row, measured_us: float) -> None:
    """vLLM's benchmark_moe.py (pull requests 55511, 24700, 44818, 53710), which no constant of these kernels is from."""
    known = known | {"topk": known["topk"] if known["experts"] == "8" else "8"}
    assert predict_row(known).predicted == pytest.approx(measured_us * 1e-6, rel=0.2)


def test_random_routing_touches_fewer_experts() -> None:
    few = MOE | {"tokens": "4", "tp": "1"}
    even, random = (predict_row(few | {"routing": routing}).predicted or 0.0 for routing in ("", "random"))
    assert random / even == pytest.approx(1 - 0.75**4, rel=0.05)  # of eight experts, two a token


def test_experts_that_fit_the_l2_cache_are_read_from_it_where_a_benchmark_repeats() -> None:
    experts = {"hidden": "2048", "inter": "768", "experts": "128", "topk": "8", "tp": "1"}
    small = MOE | experts | {"gpu": "L40S"}
    for tokens, faster in (("2", True), ("4", False)):  # 71 and 141 MB of 101
        cold, warm = (
            predict_row(small | {"tokens": tokens, "cache_regime": cache}).predicted or 0.0
            for cache in ("cold", "l2_possible")
        )
        assert (warm < 0.95 * cold) is faster


def test_rows_that_come_quantised_are_not_quantised_again() -> None:
    plain = GEMM | {"dtype": "fp8"}
    raw, quantised = (predict_row(plain | {"quantised": cell}).predicted or 0.0 for cell in ("", "1"))
    read_s = 4096 * 8192 * 3 / 3.35e12
    assert raw - quantised > read_s
    wide = plain | {"m": "1024", "n": "32768", "k": "512"}  # results have 16 bits: 67 MB of them, in 20 us
    raw, quantised = (predict_row(wide | {"quantised": cell}).predicted or 0.0 for cell in ("", "1"))
    assert 0 < raw - quantised < 5e-6


def test_experts_with_as_many_rows_fill_their_tiles_where_random_ones_do_not() -> None:
    """1,024 rows for each of eight experts are four tiles of 256, and one more for half of those that vary."""
    full = MOE | {"tokens": "4096", "tp": "1", "topk": "2"}
    even, random = (predict_row(full | {"routing": routing}).predicted or 0.0 for routing in ("", "random"))
    assert 1.06 < random / even < 4.5 / 4


def test_experts_in_one_kernel_start_once_on_blackwell() -> None:
    """vLLM's gpt-oss of one token on GB200 takes 25.2 us (aiconfigurator); two products of `grouped_s` save one."""
    for gpu, saved in (("B200", 1.0), ("H100-SXM-80GB", 0.0)):
        few = MOE | {"gpu": gpu, "tokens": "1", "tp": "1"}
        apart, joined = (
            predict_row(few | {"impl": impl}).predicted or 0.0 for impl in ("other_moe", "other_trtllm_moe")
        )
        each_s = rates(FACTS.accelerator(gpu)).value["grouped_s"]
        assert apart - joined == pytest.approx(saved * each_s, rel=1e-6, abs=1e-12)


def test_mla_on_the_latent_or_with_a_cast_cache_is_read_as_such() -> None:
    prefill = row("mla_prefill", dtype="bfloat16", kv_dtype="bfloat16", batch=4, seq_q=4096, seq_kv=4096, n_heads=64)
    decode = MLA | {"kv_dtype": "fp8", "seq_kv": "16384", "batch": "64"}
    software = {"framework": "sglang", "impl": "flash_attention"}
    plain, latent, small, cast = (
        predict_row(r).predicted or 0.0 for r in (prefill, prefill | software, decode, decode | software)
    )
    assert latent / plain == pytest.approx((576 + 512) / (192 + 128), rel=0.1)
    assert cast > 2.5 * small
    measured_us = {(64, 4096): 7816.6, (64, 16384): 2223.5}  # published, H100
    assert latent == pytest.approx(measured_us[64, 4096] * 1e-6, rel=0.3)
    assert cast == pytest.approx(measured_us[64, 16384] * 1e-6, rel=0.3)


def test_a_node_with_one_adapter_shares_it() -> None:
    note = "devices_per_node={}; rank 0 median; topology a100_dgx"
    send = row("p2p", "A100-SXM-80GB", framework="nccl(vidur)", bytes=41156608, n_gpus=2, note=note.format(1))
    assert predict_row(send).predicted == pytest.approx(5273e-6, rel=0.3)
    reduce = row("allreduce", "A100-SXM-80GB", framework="nccl(vidur)", bytes=23855104, n_gpus=16, note=note.format(8))
    assert predict_row(reduce).predicted == pytest.approx(2955e-6, rel=0.3)


def test_a_clone_within_the_time_is_a_kernel_more() -> None:
    """By hand: both move 16 MB on an H100; the clone reads and writes DRAM, the norm finds its input in the L2 cache."""
    value = rates(FACTS.accelerator("H100-SXM-80GB")).value
    dram_s = 16e6 / (3.35e12 * value["dram_frac"] * value["pointwise_frac"])
    norm = row("elementwise", min_bytes=16_000_000, impl="rmsnorm")
    cloned, cached = norm | {"impl": "rmsnorm_of_clone"}, norm | {"cache_regime": "l2_possible"}
    start_s, warm_s = value["kernel_s"], dram_s / value["l2_speedup"]
    assert [predict_row(one).predicted for one in (norm, cached, cloned)] == pytest.approx(
        [start_s + dram_s, start_s + warm_s, 2 * start_s + dram_s + warm_s], rel=1e-3
    )
