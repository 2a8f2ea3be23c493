"""Sustained rates: clocks follow power limits, and never leave what physics and datasheets allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each
from fit_training import PRODUCTS
from flopwise.cost.cluster import cluster
from flopwise.cost.collectives import all_to_all_s
from flopwise.cost.kernels import BACKWARD_SOFTMAX, Elements, matmul_s, score_dims, work_s
from flopwise.cost.rates import rates
from flopwise.cost.spec import with_power_limit
from flopwise.cost.sustained import (
    BACKWARD_RATE,
    MEMORY_POWER,
    PERMUTE_PASSES,
    bandwidth_frac,
    clock_frac,
    full_rate_power,
    grouped_kernel,
    limited_rates,
    own_limit_frac,
    products_clock_frac,
    scaled_headroom,
    training_rates,
)
from flopwise.facts.architecture import Attend
from flopwise.ops.backward import backward_works
from flopwise.ops.shapes import Shape, Split
from flopwise.ops.work import item_work
from named import FACTS

H100 = rates(FACTS.accelerator("H100-SXM-80"))
H100_NODES = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)


@given(watts=st.floats(50, 2000), more=st.floats(1, 4))
def test_a_higher_limit_never_lowers_the_clock(watts: float, more: float) -> None:
    low, high = (products_clock_frac(replace(H100, tdp_w=w)) for w in (watts, watts * more))
    assert 0 < low <= high <= 1


@given(factor=st.floats(1, 8))
def test_a_higher_peak_under_the_same_limit_still_helps(factor: float) -> None:
    faster = replace(H100, peak={d: p * factor for d, p in H100.peak.items()})
    assert products_clock_frac(faster) <= products_clock_frac(H100)
    assert products_clock_frac(faster) * factor >= products_clock_frac(H100) * (1 - 1e-12)


def test_the_limit_alone_tells_cards_apart() -> None:
    """A 500 W H100 sustains less than a 700 W one: by the published limit, for no other reason."""
    short = rates(FACTS.accelerator("H100-SXM-96-HBM2e"))
    assert short.tdp_w == 500
    assert products_clock_frac(short) == pytest.approx(products_clock_frac(replace(H100, tdp_w=500.0)))
    assert products_clock_frac(short) < products_clock_frac(H100) - 0.1
    assert products_clock_frac(replace(H100, tdp_w=None)) == 1.0


@pytest.mark.parametrize("chip", ["MI300X", "MI325X", "MI355X"])
def test_what_was_measured_under_the_power_limit_is_not_throttled_again(chip: str) -> None:
    """CDNA's share of the peak is of products at the clocks that 750, 1,000 and 1,400 W leave: 0.56 and 0.63."""
    found = rates(FACTS.accelerator(chip))
    assert products_clock_frac(found) == 1.0
    alone = found.value["matmul_frac.bf16"]
    assert training_rates(found, FACTS.stack("megatron-te")).value["matmul_frac.bf16"] == alone


@each("name", FACTS.stacks)
@pytest.mark.parametrize("chip", ["A100-SXM-80", "H100-SXM-80", "B200", "MI300X", "RTX 4090"])
def test_training_never_beats_datasheets(name: str, chip: str) -> None:
    alone = rates(FACTS.accelerator(chip))
    sustained = training_rates(alone, FACTS.stack(name))
    for parameter, value in sustained.value.items():
        if parameter.startswith(("matmul_frac", "attention_frac")):
            assert 0 < value <= 1, parameter
        if parameter.startswith("matmul_frac"):
            assert value <= alone.value[parameter]
    assert sustained.peak == alone.peak


def test_rows_for_several_ranks_of_a_node_cross_the_network_once() -> None:
    fabric, nbytes = H100_NODES.fabric, 1e9
    plain = all_to_all_s(fabric, nbytes, 32)
    once = all_to_all_s(fabric, nbytes, 32, copies=8)
    distinct = 4 * (1 - (1 - 1 / 4) ** 8) / 8  # of eight copies over four nodes, as many as there are nodes hit
    assert once / plain == pytest.approx(distinct, rel=0.02)
    here = 8 * (1 - (1 - 1 / 8) ** 8) / 8  # and of a node's eight ranks each gets one copy (DeepEP, intranode kernels)
    assert all_to_all_s(fabric, nbytes, 8, copies=8) == pytest.approx(all_to_all_s(fabric, here * nbytes, 8), rel=1e-6)


def test_fused_products_of_experts_serve_block_scaled_formats_alone() -> None:
    new, old = FACTS.stack("megatron-2026"), FACTS.stack("megatron-te")
    for dtype in ("mxfp8", "nvfp4"):
        assert grouped_kernel(new, dtype) == "fused"
        assert grouped_kernel(old, dtype) == "split"
    assert grouped_kernel(new, "bf16") == grouped_kernel(new, "fp8") == "split"
    chip = rates(FACTS.accelerator("GB300"))
    ours, theirs = (training_rates(chip, s, "mxfp8").value for s in (new, old))
    assert ours["grouped_frac"] > theirs["grouped_frac"]
    assert ours[PERMUTE_PASSES] == theirs[PERMUTE_PASSES]  # both exchange tokens plainly


def test_tokens_sent_by_node_are_permuted_once() -> None:
    """Megatron-Core's flexible dispatcher against its all-to-all, which permutes and sorts chunks besides."""
    chip = rates(FACTS.accelerator("GB300"))
    plain, node, sorting = (training_rates(chip, FACTS.stack(n)).value for n in ("megatron-te", "nemo", "xla"))
    assert node[PERMUTE_PASSES] == chip.value["train_permute_passes.node"] < plain[PERMUTE_PASSES]
    assert plain[PERMUTE_PASSES] == chip.value["train_permute_passes.exchange"]
    assert sorting[PERMUTE_PASSES] == chip.value["train_permute_passes.ragged"]


def test_the_clock_follows_the_mean_power_of_all_kernels() -> None:
    """By hand: half of the time in products at 0.8 of the peak, which would draw 1.5 times what the limit leaves.

    At the boost clock 0.5 x 0.8 x 1.5 + 0.5 x 0.5 (kernels that wait for memory) = 0.85: it fits. Products alone draw
    1.2: power falls as the square of the clock, so 1.2 c^2 = 1. With 0.8 of the time in products, 0.96 + 0.1 = 1.06 at
    the boost clock; at a clock c they take 0.8 / c, so that 0.96 c + 0.1 = 0.2 + 0.8 / c.
    """
    memory = H100.value[MEMORY_POWER]
    assert memory == 0.5
    assert clock_frac(1.5, 0.5, 0.5 * 0.8, 0.5, 0.5, memory) == 1.0
    assert clock_frac(1.5, 0.5, 0.8, 1.0, 0.0, memory) == pytest.approx((1 / 1.2) ** 0.5)
    c = clock_frac(1.5, 0.5, 0.8 * 0.8, 0.8, 0.2, memory)
    assert 0.96 * c + 0.1 == pytest.approx(0.2 + 0.8 / c, rel=1e-4)
    assert c < 1


def test_the_cpu_of_a_superchip_leaves_the_device_less() -> None:
    """JUPITER (Jülich): 680 W for the whole GH200; 100 W of it for a CPU that waits."""
    chip = FACTS.accelerator("GH200-96")
    assert chip.host_w == 100
    assert rates(chip).tdp_w == 900
    limited, _ = with_power_limit(chip, 680)
    assert rates(limited).tdp_w == 580
    assert rates(limited).made_for_w == 900
    power = 990e12 * rates(chip).value["train_joules_per_flop"] / (580 * (1 - rates(chip).value["train_idle_frac"]))
    assert full_rate_power(rates(limited)) == pytest.approx(power)


def test_superchips_of_a_node_draw_less_than_one_alone() -> None:
    """680 W each in JUPITER's nodes of four, unless another limit is given; up to 1,000 W alone."""
    chip = FACTS.accelerator("GH200-96")
    alone, beside = (cluster(chip, gpus_per_node=count) for count in (1, 4))
    assert (alone.rates.tdp_w, beside.rates.tdp_w, beside.rates.made_for_w) == (900, 580, 900)
    assert not any("680 W" in note for note in alone.assumptions)
    assert any("of a node of 4 may draw 680 W" in note for note in beside.assumptions)
    given = cluster(with_power_limit(chip, 800)[0], gpus_per_node=4)
    assert given.rates.tdp_w == 700
    assert not any("680 W" in note for note in given.assumptions)
    half = chip.partition(0.5)
    assert (half.tdp_w, half.node_w) == (500, 340)


def test_kernels_under_a_power_limit_lose_the_clock_that_training_loses() -> None:
    limited = replace(H100, tdp_w=500.0, made_for_w=700.0)
    slower = limited_rates(limited)
    frac = products_clock_frac(limited) / products_clock_frac(H100)
    assert frac < 0.95
    assert slower.matmul_flops_per_s("bf16") == pytest.approx(frac * H100.matmul_flops_per_s("bf16"))
    assert slower.value["attention_frac"] == pytest.approx(frac * H100.value["attention_frac"])
    assert slower.read_bytes_per_s == H100.read_bytes_per_s  # decoding draws 385 W: 70 idle, half of the other 630
    assert limited_rates(H100) is H100


def test_a_card_with_less_power_for_as_many_units_loses_the_clock_that_its_kernels_were_measured_at() -> None:
    """By hand: an H100 PCIe has 350 W for 756 TFLOP/s, the H100 SXM of the kernels 700 W for 989.

    1.53 times the power for an operation, so the clock is that to the power of the exponent lower. An RTX A6000 has
    300 W less a tenth for 154.8e12 x 3.0e-12 J: 1.73 times as much at full clock; its kernels' rate is an RTX PRO
    6000's, which its own 600 W do not limit.
    """
    card = rates(FACTS.accelerator("H100-PCIe"))
    exponent = card.value["train_clock_exponent"]
    frac = (350 / 756e12 / (700 / 989.4e12)) ** exponent
    assert own_limit_frac(card) == pytest.approx(frac, rel=2e-3)
    slower = limited_rates(card)
    assert slower.matmul_flops_per_s("fp8") == pytest.approx(frac * card.matmul_flops_per_s("fp8"), rel=2e-3)
    assert slower.read_bytes_per_s == card.read_bytes_per_s
    rtx = rates(FACTS.accelerator("RTX A6000"))
    joules = rtx.value["train_joules_per_flop"]
    drawn = rtx.value["matmul_frac.bf16"] * rtx.peak["bf16"] * joules / (0.9 * 300)
    assert rtx.value["train_idle_frac"] == 0.1
    assert own_limit_frac(rtx) == pytest.approx(drawn**-exponent, rel=1e-3)


@pytest.mark.parametrize(
    "chip", ["A100-SXM-80", "H100-SXM-80", "H200", "B200", "B300", "L40", "RTX 3090", "RTX 2080 Ti", "MI300X"]
)
def test_what_was_measured_under_the_limit_of_its_own_device_loses_nothing_more(chip: str) -> None:
    found = rates(FACTS.accelerator(chip))
    assert own_limit_frac(found) == 1.0
    assert limited_rates(found) is found


@pytest.mark.parametrize(("chip", "share"), [(name, share) for name, share, _ in PRODUCTS])
def test_large_products_under_a_card_s_own_limit_reach_what_was_measured(chip: str, share: float) -> None:
    """The best large product over the peak, which the fit of a training step sees beside the runs."""
    assert limited_rates(rates(FACTS.accelerator(chip))).value["matmul_frac.bf16"] == pytest.approx(share, rel=0.12)


def test_a_t4_keeps_a_third_of_its_peak_under_its_own_limit() -> None:
    """24 of 65 TFLOP/s under 70 W (NVIDIA developer forum, topic 264462: products of 4,096 squared, one after another);
    an RTX 2080 Ti, by which the rate was measured, has 250 W for 53.8."""
    reached = limited_rates(rates(FACTS.accelerator("T4"))).matmul_flops_per_s("fp16")
    assert reached == pytest.approx(24e12, rel=0.2)


def test_a_limit_that_is_set_comes_on_top_of_the_card_s_own() -> None:
    chip = FACTS.accelerator("RTX A6000")
    own, set_lower = (limited_rates(rates(each)) for each in (chip, with_power_limit(chip, 200)[0]))
    clocks = [products_clock_frac(rates(each)) for each in (with_power_limit(chip, 200)[0], chip)]
    assert set_lower.value["matmul_frac.bf16"] == pytest.approx(own.value["matmul_frac.bf16"] * clocks[0] / clocks[1])


@pytest.mark.parametrize(("watts", "share"), [(300, 0.868), (350, 0.951), (400, 0.989), (450, 0.999), (500, 1.0)])
def test_one_stream_on_a_limited_card_keeps_the_rate_that_was_measured(watts: float, share: float) -> None:
    """Light-Heart-Labs, MMBT hardware-tests (2026-04-29), phase 1b: 72.1 tokens/s at 600 W, 62.6 at 300 W."""
    limited, _ = with_power_limit(FACTS.accelerator("RTX PRO 6000 Blackwell"), watts)
    assert bandwidth_frac(rates(limited)) == pytest.approx(share, abs=0.02)


def test_bandwidth_under_a_limit_is_over_that_of_a_card_that_its_own_limit_slows() -> None:
    """By hand: an RTX 3090 is made for 350 W, 35 of them idle; reads would draw 1.48 x 315 = 466 W more.

    As made 315 / 466 = 0.676: 1 - 1.3 x 0.324^3 = 0.956. At 220 W 185 / 466 = 0.397, below half: 0.397 / 0.6 = 0.661.
    Measured at 230 W of 350: 0.66 to 0.69 (club-3090, docs/HARDWARE.md).
    """
    chip = FACTS.accelerator("RTX 3090")
    limited = rates(with_power_limit(chip, 220)[0])
    share = 0.3968 / 0.6 / (1 - 1.3 * (1 - 1 / 1.48) ** 3)
    assert bandwidth_frac(limited) == pytest.approx(share, rel=1e-3)
    assert limited_rates(limited).read_bytes_per_s == pytest.approx(share * rates(chip).read_bytes_per_s, rel=1e-3)
    trained = training_rates(limited, FACTS.stack("megatron-te"))
    assert trained.read_bytes_per_s == pytest.approx(share * rates(chip).read_bytes_per_s, rel=1e-3)
    assert bandwidth_frac(rates(chip)) == 1.0


@pytest.mark.parametrize(("name", "watts", "share"), [("RTX 3090", 250, 0.863), ("RTX 5090", 400, 0.839)])
def test_prompts_on_a_limited_card_keep_the_rate_that_was_measured(name: str, watts: float, share: float) -> None:
    """club-3090, docs/HARDWARE.md, prefill-heavy: 907 of 1,051 tokens/s, 247 of 295."""
    chip = FACTS.accelerator(name)
    clock = products_clock_frac(rates(with_power_limit(chip, watts)[0]))
    assert clock == pytest.approx(share, abs=0.05)
    assert products_clock_frac(rates(chip)) == 1.0


def test_scans_run_at_half_the_rate_of_flash_attention_2() -> None:
    """Mamba-2 (arXiv 2405.21060) figure 10; their kernels and FlashAttention-2 use Ampere instructions."""
    for chip in ("H100-SXM-80", "GB200"):
        table = rates(FACTS.accelerator(chip))
        trained = training_rates(table, FACTS.stack("megatron-te"))
        scan = trained.matmul_flops_per_s("bf16") * trained.value["recurrence_frac"]
        flash = table.peak["bf16"] * table.value["train_attention_frac.fa2"]
        assert scan == pytest.approx(0.5 * flash, rel=1e-9)


def test_xla_multiplies_experts_in_one_kernel_over_uneven_groups() -> None:
    table, xla = rates(FACTS.accelerator("TPU v6e")), FACTS.stack("xla")
    assert {grouped_kernel(xla, dtype) for dtype in ("bf16", "fp8", "mxfp8")} == {"ragged"}
    trained = training_rates(table, xla)
    assert trained.value["grouped_frac"] == table.value["train_grouped_frac.ragged"]
    assert trained.value[PERMUTE_PASSES] == table.value["train_permute_passes.ragged"]
    assert trained.value["grouped_passes"] == 0


def test_products_of_pytorch_s_library_on_amd_are_those_of_untuned_kernels() -> None:
    """0.65 of the rate in every format, until 2026; stacks with kernels of their own and other devices lose nothing."""
    amd, early, late = rates(FACTS.accelerator("MI300X")), FACTS.stack("fsdp-compile"), FACTS.stack("fsdp-compile-2026")
    for name in ("matmul_frac.bf16", "matmul_frac.fp8"):
        tuned = training_rates(amd, late).value[name]
        assert training_rates(amd, early).value[name] == pytest.approx(0.65 * tuned)
        assert training_rates(amd, FACTS.stack("megatron-te")).value[name] == tuned
        assert training_rates(H100, early).value[name] == training_rates(H100, late).value[name]


@pytest.mark.parametrize(("chip", "kernel", "heads", "forward_ms", "backward_ms"), [
    ("B200", "fa2", 128, 5.499, 17.288), ("GB300", "fa2", 128, 4.999, 15.632), ("B200", "cudnn", 128, 1.877, 5.833),
    ("GB300", "cudnn", 128, 1.470, 4.865), ("GB200", "cudnn-2026", 64, 0.704, 2.150),
    ("GB300", "cudnn-2026", 64, 0.571, 1.976), ("H200", "cudnn-2026", 64, 1.708, 5.083),
])  # fmt: skip
def test_attention_is_no_faster_than_alone_and_no_slower_than_two_thirds_more(
    chip: str, kernel: Any, heads: int, forward_ms: float, backward_ms: float
) -> None:
    """8,192 tokens, heads of 128, causal, in bf16: NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training.

    Of 2025 in its artifacts, under cuDNN 9.18 and 9.19 in its results of 2026-01 and -02. In training, attention has
    other work beside it (layouts, padding), which published runs leave in its rate.
    """
    stack = replace(FACTS.stack("nemo"), attention_kernel=kernel)
    trained = training_rates(rates(FACTS.accelerator(chip)), stack)
    item = Attend(name="attend", heads=heads, kv_heads=8, qk_dim=128, v_dim=128)
    forward = item_work(item, Shape(batch=1, query=8192, context=8192), Split())
    assert forward is not None
    [backward] = backward_works([forward])
    ahead, back = (work_s(trained, work) for work in (forward, backward))
    dims = [score_dims(trained, 128, 128, "bf16", softmax=part) for part in (1.0, BACKWARD_SOFTMAX)]
    back_s = float(back.seconds + back.compute_s * (dims[1] / dims[0] / BACKWARD_RATE - 1))
    assert 0.95 < float(ahead.seconds) * 1e3 / forward_ms < 5 / 3
    assert 0.95 < back_s * 1e3 / backward_ms < 5 / 3


def test_the_first_flash_attention_and_the_later_cudnn_are_shares_of_the_usual_ones() -> None:
    """Dao 2023 (arXiv:2307.08691): the second is about twice the first; cuDNN 9.18 attends faster than that of 2025."""
    chip, stack = rates(FACTS.accelerator("H100-SXM-80")), FACTS.stack("nemo")
    found = {
        kernel: training_rates(chip, replace(stack, attention_kernel=kernel)).value["attention_frac"]
        for kernel in ("fa1", "fa2", "cudnn", "cudnn-2026")
    }
    late, first = (chip.value[name] for name in ("train_attention_late", "train_attention_first"))
    assert found["cudnn-2026"] == pytest.approx(late * found["cudnn"], rel=1e-12)
    assert late > 1.05
    assert found["fa1"] == pytest.approx(first * found["fa2"], rel=1e-12)
    assert first < 0.95


def test_products_in_few_bits_are_faster_where_each_operation_has_more_power() -> None:
    """GB300: 1,400 W for 5 PFLOP/s in 8 bits, where those measured had 235 W for each: 280 / 235 to the power 0.65."""
    chips = {name: rates(FACTS.accelerator(name)) for name in ("GB300", "B200", "H100-SXM-80")}
    exponent = chips["GB300"].value["train_clock_exponent"]
    assert scaled_headroom(chips["GB300"]) == pytest.approx((280 / 235) ** exponent)
    assert scaled_headroom(chips["B200"]) == pytest.approx((1000 / 4.5 / 235) ** exponent)
    assert scaled_headroom(chips["H100-SXM-80"]) == 1.0  # its clock falls with all that it computes
    limited = replace(chips["GB300"], tdp_w=1000.0, made_for_w=1400.0)
    assert scaled_headroom(limited) == scaled_headroom(chips["GB300"])  # the limit has a rule of its own
    table = chips["GB300"]
    trained = training_rates(table, FACTS.stack("megatron-te"), "mxfp8").value
    scaled = table.value["train_scaled_frac"] * (280 / 235) ** exponent
    assert trained["matmul_frac.fp8"] == pytest.approx(table.value["matmul_frac.fp8"] * scaled)
    assert trained["matmul_frac.bf16"] == table.value["matmul_frac.bf16"]


@pytest.mark.parametrize(
    ("gpu", "measured", "within"),
    [("V100-SXM2-16", 14.0, 0.08), ("P100-PCIe-16", 8.21, 0.08), ("RTX 2080 Ti", 11.4, 0.15)],
)
def test_products_in_fp32_reach_what_their_own_units_do(gpu: str, measured: float, within: float) -> None:
    """Large products in TFLOP/s as others than the constants' source measured them; V100's tensor units reach 0.75.

    Source: lablup/mlxcel, issue 1654 (V100); DeepBench, README (P100); bewantbe/busy-gemm-benchmark (2080 Ti).
    """
    found = rates(FACTS.accelerator(gpu))
    reached = 2 * 8192**3 / matmul_s(found, 8192, 8192, 8192, Elements("fp32", act_bytes=4)).seconds
    assert float(reached) / 1e12 == pytest.approx(measured, rel=within)


def test_products_in_fp32_are_none_in_few_bits() -> None:
    """In training they keep their share: what scaling operands costs is that of 8- and 4-bit products."""
    found = rates(FACTS.accelerator("B200"))
    trained = training_rates(found, FACTS.stack("megatron-te"), "fp32").value
    assert trained["matmul_frac.fp32"] == found.value["matmul_frac.fp32"] == 0.883
    assert found.matmul_flops_per_s("fp32") == pytest.approx(0.883 * 75e12)
    assert found.matmul_flops_per_s("tf32") == pytest.approx(found.value["matmul_frac.bf16"] * 1.125e15)
