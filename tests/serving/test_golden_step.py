"""Every term of a step, worked out by hand at datasheet rates: weights, products, attention, messages, the host."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plain_machine import (
    BYTES_PER_S,
    CHIP,
    DIM,
    ENGINE,
    FFN,
    FLOPS_PER_S,
    FP8_PER_S,
    HEADS,
    INT8_PER_S,
    KV_HEADS,
    LAUNCH_S,
    LAYERS,
    LINK_BYTES_PER_S,
    NETWORK_BYTES_PER_S,
    TOKEN_BYTES,
    VOCAB,
    WIDTH,
    decode_attention_s,
    plain_cluster,
    plain_job,
    plain_runner,
    product_s,
    step_s,
)

import flopwise
from flopwise.backtests.serving import predict_row
from flopwise.cost.cluster import cluster
from flopwise.cost.rates import rates
from flopwise.errors import SpecError
from flopwise.facts.architecture import Attend, Experts, Model, Pointwise
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.iteration import StepLoad, StepTime
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.engine import replica
from flopwise.serving.techniques import runner
from named import FACTS

ONE = ServingLayout()


def step(load: StepLoad, layout: ServingLayout = ONE, **changes: Any) -> StepTime:
    """A step of the package; `changes` of the job."""
    found = plain_runner(plain_job(**changes)).step(load, layout)
    return StepTime(*(float(np.asarray(part)) for part in found))


def seconds(load: StepLoad, layout: ServingLayout = ONE, **changes: Any) -> float:
    return float(step(load, layout, **changes).seconds)


def grown_s(load: StepLoad, more: StepLoad, **changes: Any) -> float:
    return seconds(more, **changes) - seconds(load, **changes)


# ---- one decoding sequence: weights and cache, read once


def test_one_token_reads_all_weights_but_the_embedding_and_its_own_cache_once() -> None:
    """Pope et al. 2022 (arXiv:2211.05102) section 2: the weights once a step, the cache once a sequence."""
    weights = LAYERS * (2 * WIDTH * (HEADS + KV_HEADS) * DIM + 3 * WIDTH * FFN) + VOCAB * WIDTH
    cache = 1000 * 2 * LAYERS * KV_HEADS * DIM
    queries = 2 * LAYERS * HEADS * DIM
    rows = LAYERS * (4 * WIDTH + HEADS * DIM + (HEADS + 2 * KV_HEADS) * DIM + 3 * FFN) + WIDTH + VOCAB
    moved = 2 * (weights + cache + queries + rows)
    host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + ENGINE.sequence_s
    found = step(StepLoad(decode_batch=1, decode_context=1000))
    assert found.seconds == pytest.approx(moved / BYTES_PER_S + host_s, rel=1e-12)
    assert found.memory_s == pytest.approx(moved / BYTES_PER_S, rel=1e-12)
    assert found.overhead_s == pytest.approx(host_s, rel=1e-12)
    assert found.compute_s == found.communication_s == 0.0
    assert found.floor_s == pytest.approx(2 * (weights + cache) / BYTES_PER_S, rel=1e-4)  # norms' weights besides
    assert found.flops == pytest.approx(2 * weights + 4 * 1000 * LAYERS * HEADS * DIM, rel=1e-12)


@pytest.mark.parametrize(
    ("batch", "context", "chunk", "seen"),
    [(1, 1000, 0, 0), (64, 3000, 0, 0), (512, 100, 0, 0), (0, 0, 2048, 2048), (32, 1500, 1024, 4096), (0, 0, 40, 40)],
)
def test_a_step_is_its_products_its_attention_and_the_host(batch: int, context: int, chunk: int, seen: int) -> None:
    load = StepLoad(decode_batch=batch, decode_context=context, prefill_tokens=chunk, prefill_context=seen)
    assert seconds(load) == pytest.approx(step_s(batch, context, chunk, seen), rel=1e-9)


def test_prompts_of_a_step_see_themselves_only() -> None:
    """Four prompts of 512 tokens: a quarter of the pairs that one of 2,048 has, and four rows of the head."""
    four = StepLoad(prefill_tokens=2048, prefill_context=512, prompts=4)
    assert seconds(four) == pytest.approx(step_s(chunk=2048, seen=512, prompts=4), rel=1e-9)


@pytest.mark.parametrize(("dtype", "elem_bytes"), [("bf16", 2), ("fp8", 1), ("int8", 1)])
def test_each_cached_token_is_read_in_its_format(dtype: str, elem_bytes: int) -> None:
    less, more = (StepLoad(decode_batch=48, decode_context=c) for c in (2000, 5000))
    expected = 48 * 3000 * 2 * LAYERS * KV_HEADS * DIM * elem_bytes / BYTES_PER_S
    assert grown_s(less, more, kv_dtype=dtype) == pytest.approx(expected, rel=1e-9)


def test_verifying_drafts_computes_them_all_and_reads_the_cache_once() -> None:
    load = StepLoad(decode_batch=8, decode_context=4000, decode_tokens=5)
    rows = 8 * 5
    layer_s = (
        product_s(rows, 6144, WIDTH) + product_s(rows, WIDTH, WIDTH) + product_s(rows, 2 * FFN, WIDTH)
        + product_s(rows, WIDTH, FFN) + decode_attention_s(8, 4000, tokens=5)
    )  # fmt: skip
    host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + 8 * ENGINE.sequence_s
    assert seconds(load) == pytest.approx(LAYERS * layer_s + product_s(rows, VOCAB, WIDTH) + host_s, rel=1e-9)


# ---- kinds of attention


def attention_s(model: Model, load: StepLoad, **changes: Any) -> float:
    """Attention of all layers."""
    machine = plain_runner(plain_job(model=model, **changes))
    stack = model.stacks[0]
    return sum(
        stack.order.count(index) * float(np.asarray(kernel.timing.seconds))
        for index, kind in enumerate(stack.kinds)
        for item in kind.items
        if isinstance(item, Attend)
        for kernel in machine.kernels_of((item,), load, ONE, inside=True)
    )


def test_a_latent_is_read_once_for_all_heads() -> None:
    """DeepSeek-V2 (arXiv:2405.04434) section 2.1: 512 + 64 elements a token and layer; 61 layers."""
    model = load_model("DeepSeek-V3")
    less, more = (attention_s(model, StepLoad(decode_batch=32, decode_context=c)) for c in (1000, 9000))
    assert more - less == pytest.approx(61 * 32 * 8000 * 576 * 2 / BYTES_PER_S, rel=1e-9)


def test_absorbed_attention_computes_with_the_latent() -> None:
    """DeepSeek-V2 section 2.1.2: scores over 576 elements and sums over 512, 128 heads; five tokens make it compute.

    The kernel's tiles take 576 for both (FlashMLA, tiles of 64 x 576), 6 % more.
    """
    load = StepLoad(decode_batch=32, decode_context=8000, decode_tokens=5)
    flops = 61 * 2 * 128 * (576 + 512) * 32 * 5 * 8000
    assert attention_s(load_model("DeepSeek-V3"), load) == pytest.approx(flops / FLOPS_PER_S, rel=0.06)


def test_a_latent_is_unfolded_for_prompts() -> None:
    """Heads of 192 for scores and 128 for values (DeepSeek-V3, arXiv:2412.19437, section 4.2), causal."""
    tokens = 8192
    flops = 61 * 2 * 128 * (192 + 128) * tokens * (tokens / 2 + 64.5)
    found = attention_s(load_model("DeepSeek-V3"), StepLoad(prefill_tokens=tokens, prefill_context=tokens))
    assert found == pytest.approx(flops / FLOPS_PER_S, rel=1e-6)


def test_windows_bound_what_is_read() -> None:
    """gpt-oss-120b: 18 of 36 layers see 128 tokens; 8 heads of 64."""
    model = load_model("gpt-oss-120b")
    each = 32 * 2 * 8 * 64 * 2 / BYTES_PER_S
    a, b = (attention_s(model, StepLoad(decode_batch=32, decode_context=c)) for c in (100, 4000))
    queries_s = 36 * 32 * 64 * 2 * 64 * 2 / BYTES_PER_S
    assert a == pytest.approx(36 * 100 * each + queries_s, rel=1e-9)
    assert b == pytest.approx(18 * (4000 + 128) * each + queries_s, rel=1e-9)


def test_heads_of_their_own_cache_each() -> None:
    """Llama-2-7B: 32 key-value heads of 128, 32 layers."""
    less, more = (
        attention_s(load_model("Llama-2-7B"), StepLoad(decode_batch=4, decode_context=c)) for c in (500, 2500)
    )
    assert more - less == pytest.approx(32 * 4 * 2000 * 2 * 32 * 128 * 2 / BYTES_PER_S, rel=1e-9)


# ---- formats of weights


@pytest.mark.parametrize(
    ("weights", "bits", "rate"), [("fp8", 8.0, FP8_PER_S), ("int8", 8.0, INT8_PER_S), ("awq", 4.25, None)]
)
def test_weights_are_read_in_their_format_and_multiply_at_its_rate(
    weights: str, bits: float, rate: float | None
) -> None:
    """Scales a row or a block of 128 weights add at most 2 %; AWQ keeps a 16-bit scale and a 4-bit zero for each 128,
    and unpacks to 16 bits. Decoding reads, a long prompt multiplies."""
    elems = WIDTH * ((HEADS + 2 * KV_HEADS) * DIM + HEADS * DIM + 3 * FFN)
    decode = StepLoad(decode_batch=1, decode_context=1)
    saved = seconds(decode) - seconds(decode, weights=weights)
    assert saved == pytest.approx(LAYERS * elems * (16 - bits) / 8 / BYTES_PER_S, rel=0.02)
    prompt = StepLoad(prefill_tokens=8192, prefill_context=8192)
    saved = seconds(prompt) - seconds(prompt, weights=weights)
    expected = LAYERS * 2 * 8192 * elems * (1 / FLOPS_PER_S - 1 / (rate or FLOPS_PER_S))
    assert saved == pytest.approx(expected, rel=1e-3, abs=1e-6)


# ---- experts


def test_a_token_reads_its_experts_and_many_read_all() -> None:
    """Mixtral (arXiv:2401.04088): 2 of 8 experts of 3 x 4096 x 14336; n tokens touch 8 (1 - (6/8)^n) of them."""
    model = load_model("Mixtral-8x7B")
    one, eight = (seconds(StepLoad(decode_batch=b, decode_context=1), model=model) for b in (1, 8))
    expert = 3 * WIDTH * FFN
    shared = (2 * WIDTH * (HEADS + KV_HEADS) * DIM + 8 * WIDTH) * 32 + 32000 * WIDTH
    touched = 8 * (1 - 0.75**8)
    for found, batch, experts in ((one, 1, 2.0), (eight, 8, touched)):
        rows = batch * (32 * (10 * WIDTH + 2 * 2 * (2 * WIDTH + 3 * FFN) / 2) + 32000)
        host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + batch * ENGINE.sequence_s
        expected = 2 * (shared + 32 * experts * expert + rows) / BYTES_PER_S + host_s
        assert found == pytest.approx(expected, rel=1e-4)


def test_summing_the_results_of_experts_is_part_of_their_kernels() -> None:
    """The pass between a mixture's layers moves as much whether a token goes to two of its experts or to six."""
    moved = []
    for top_k in (2, 6):
        model = load_model("Mixtral-8x7B")
        kind = model.stacks[0].kinds[0]
        items = tuple(
            replace(item, top_k=top_k) if isinstance(item, Experts)
            else replace(item, per_expert=top_k) if isinstance(item, Pointwise) and item.per_expert
            else item
            for item in kind.items
        )  # fmt: skip
        kernels = runner(plain_job(model=model)).kernels_of(items, StepLoad(decode_batch=64), ONE, inside=True)
        passes = [k.work for k in kernels if k.work.kind == "pointwise" and not k.work.name.startswith("experts/act")]
        moved.append(sum(float(work.in_elems + work.out_elems) for work in passes))
        assert not any("combine" in work.name for work in passes)
    assert moved[0] == moved[1] > 0


def test_kernels_around_experts_take_their_time_in_each_of_their_layers() -> None:
    """30 us of the engine and 20 us of the device in each of 32 layers; none in a model without experts."""
    load = StepLoad(decode_batch=4, decode_context=1)
    for name, layers in (("Mixtral-8x7B", 32), ("Mistral-7B", 0)):
        machine = plain_runner(plain_job(model=load_model(name)))
        slower = replace(machine, engine=replace(machine.engine, experts_s=30e-6 + machine.engine.experts_s))
        value = {**machine.rates.value, "experts_s": 20e-6 + machine.rates.value["experts_s"]}
        slower = replace(slower, rates=replace(machine.rates, value=value))
        added = float(np.asarray(slower.step(load, ONE).seconds - machine.step(load, ONE).seconds))
        assert added == pytest.approx(layers * 50e-6)


@pytest.mark.parametrize(
    ("name", "formats", "layers"),
    [
        ("gpt-oss-120b", {"mxfp4"}, 36), ("Mixtral-8x7B", {"mxfp4"}, 0), ("Mixtral-8x7B", {"any"}, 32),
        ("gpt-oss-120b", set(), 0),
    ],
)  # fmt: skip
def test_experts_in_one_kernel_start_once(name: str, formats: set[str], layers: int) -> None:
    """Of two products that take 10 us each beside their bytes, half of it is left in each layer."""
    load = StepLoad(decode_batch=4, decode_context=1)
    machine = plain_runner(plain_job(model=load_model(name)))
    rates = replace(machine.rates, value={**machine.rates.value, "grouped_s": 10e-6, "joined_grouped_frac": 0.5})
    apart, joined = (
        replace(machine, rates=rates, engine=replace(machine.engine, joined_experts=frozenset(how)))
        for how in (set(), formats)
    )
    saved = float(np.asarray(apart.step(load, ONE).seconds - joined.step(load, ONE).seconds))
    assert saved == pytest.approx(layers * 10e-6, abs=1e-12)


def test_a_delta_rule_of_many_operations_costs_each_of_its_layers_its_time() -> None:
    """0.5 ms in 36 of Qwen3-Next's 48 layers; the others attend."""
    load = StepLoad(decode_batch=4, decode_context=1)
    machine = plain_runner(plain_job(model=load_model("Qwen3-Next-80B-A3B")))
    slower = replace(machine, engine=replace(machine.engine, delta_s=0.5e-3 + machine.engine.delta_s))
    assert float(np.asarray(slower.step(load, ONE).seconds - machine.step(load, ONE).seconds)) == pytest.approx(18e-3)


@pytest.mark.parametrize(("vendor", "kind", "slower"), [("Intel", "gpu", 1), ("Intel", "cpu", 0), ("NVIDIA", "gpu", 0)])
def test_experts_cost_each_layer_more_on_gpus_of_intel(vendor: str, kind: str, slower: int) -> None:
    """0.1 ms in 32 layers of Mixtral."""
    load = StepLoad(decode_batch=4, decode_context=1)
    plain = plain_runner(plain_job(model=load_model("Mixtral-8x7B")))
    plain = replace(plain, rates=replace(plain.rates, vendor=vendor, is_host=kind == "cpu"))
    later = replace(plain, engine=replace(plain.engine, intel_experts_s=0.1e-3))
    added = float(np.asarray(later.step(load, ONE).seconds - plain.step(load, ONE).seconds))
    assert added == pytest.approx(slower * 3.2e-3, abs=1e-12)


@pytest.mark.parametrize(
    ("vendor", "kind", "left"), [("NVIDIA", "gpu", 0.25), ("NVIDIA", "cpu", 1.0), ("AMD", "gpu", 1.0)]
)
def test_fused_kernels_leave_a_share_of_the_time_around_experts_on_gpus_of_nvidia(
    vendor: str, kind: str, left: float
) -> None:
    """A quarter of 0.1 ms in 32 layers of Mixtral; processors and other makers' GPUs have all of it."""
    load = StepLoad(decode_batch=4, decode_context=1)
    plain = plain_runner(plain_job(model=load_model("Mixtral-8x7B")), cuda_experts_frac=0.25, experts_s=0.0)
    plain = replace(plain, rates=replace(plain.rates, vendor=vendor, is_host=kind == "cpu"))
    later = replace(plain, engine=replace(plain.engine, experts_s=0.1e-3))
    added = float(np.asarray(later.step(load, ONE).seconds - plain.step(load, ONE).seconds))
    assert added == pytest.approx(left * 3.2e-3, abs=1e-12)


@pytest.mark.parametrize(("model", "layers"), [("DeepSeek-V3", 58), ("Mixtral-8x7B", 0)])
def test_experts_chosen_by_groups_cost_each_layer_their_time(model: str, layers: int) -> None:
    """SGLang before 0.4.6, of 256 experts: 100.5 us to choose and 71.7 to sort, for 18 and 31.8 of later kernels; the
    first three of DeepSeek-V3's 61 layers have none, and Mixtral's experts are in one group."""
    row = FACTS.engine("sglang-2024").grouped_experts_s
    assert row == pytest.approx((100.5 - 18 + 71.7 - 31.8) * 1e-6)
    assert FACTS.engine("sglang-2025").grouped_experts_s == 0.0
    load = StepLoad(decode_batch=4, decode_context=1)
    plain = plain_runner(plain_job(model=load_model(model)))
    later = replace(plain, engine=replace(plain.engine, grouped_experts_s=row))
    added = float(np.asarray(later.step(load, ONE).seconds - plain.step(load, ONE).seconds))
    assert added == pytest.approx(layers * row, abs=1e-12)


@pytest.mark.parametrize(
    ("engine", "left"), [("llama.cpp", 0.24), ("llama.cpp-2025", 0.24), ("llama.cpp-2024", 1.0), ("mlx", 1.0)]
)
def test_llama_cpp_fuses_the_kernels_around_experts_since_2025(engine: str, left: float) -> None:
    """Measured on an RTX 4090, 48 layers of Qwen3-30B-A3B: one kernel that chooses experts saves 6.8 us of each
    (llama.cpp pull request 16130), one that sums them 6.1 (15631): together less than what the share takes away."""
    row = FACTS.engine(engine)
    assert row.cuda_experts_frac == left
    saved = sum((1 / before - 1 / after) / 48 for before, after in ((194.63, 207.75), (194.24, 205.87)))
    assert saved == pytest.approx(12.9e-6, rel=1e-2)
    assert left == 1.0 or saved < (1.0 - left) * row.experts_s < 3.0 * saved


@pytest.mark.parametrize(("vendor", "slower"), [("Intel", 4.0), ("NVIDIA", 1.0)])
def test_products_reach_a_share_of_the_matrix_rate_of_intel(vendor: str, slower: float) -> None:
    """A quarter of it: the products of a long prompt take four times as long, its attention as long as before."""
    load, machine = StepLoad(prefill_tokens=8192, prefill_context=8192), plain_runner(plain_job())
    machine = replace(machine, rates=replace(machine.rates, vendor=vendor))
    quarter = replace(machine, engine=replace(machine.engine, intel_matmul_frac=0.25))
    products = LAYERS * 2 * 8192 * (2 * WIDTH * (HEADS + KV_HEADS) * DIM + 3 * WIDTH * FFN) / FLOPS_PER_S
    added = float(np.asarray(quarter.step(load, ONE).seconds - machine.step(load, ONE).seconds))
    assert added == pytest.approx((slower - 1) * products, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize(("library", "slower"), [(True, 2.0), (False, 1.0)])
def test_an_engine_without_kernels_for_few_rows_draws_the_share_of_the_library(library: bool, slower: float) -> None:
    """Half of the bandwidth: all that a step reads takes twice as long, what the host does as long as before."""
    load = StepLoad(decode_batch=1, decode_context=1000)
    host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + ENGINE.sequence_s
    engine = replace(ENGINE, library_rows=library)
    found = seconds(load, cluster=plain_cluster(library_dram_frac=0.5), engine=engine)
    assert found - host_s == pytest.approx(slower * (seconds(load) - host_s), rel=1e-6)


@pytest.mark.parametrize(("vendor", "reads", "slower"), [("NVIDIA", 1.0, 1.0), ("AMD", 1.0, 2.0), ("AMD", 0.0, 1.0)])
def test_ported_kernels_read_more_slowly_where_waves_are_wider_than_warps(
    vendor: str, reads: float, slower: float
) -> None:
    """At half of their own devices' rate (llama.cpp issue 3630); one sequence, whose step is all reading."""
    load = StepLoad(decode_batch=1, decode_context=1000)
    plain = plain_cluster(port_reads=reads)
    machine = replace(plain, rates=replace(plain.rates, vendor=vendor))
    host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + ENGINE.sequence_s
    found = seconds(load, cluster=machine, engine=replace(ENGINE, port_frac=0.5))
    assert found - host_s == pytest.approx(slower * (seconds(load, cluster=machine) - host_s), rel=0.02)


@pytest.mark.parametrize(("gpu", "reads"), [("RX 7900 XTX", 0.0), ("RX 6800 XT", 0.0), ("MI250", 1.0), ("MI100", 1.0)])
def test_devices_whose_waves_have_32_threads_read_with_ported_kernels_as_with_their_own(gpu: str, reads: float) -> None:
    """llama.cpp pull request 11519: waves of 64 are 34 % faster on MI100 and do nothing for RX 6800 XT."""
    assert rates(load_facts().accelerator(gpu)).value["port_reads"] == reads


def test_ported_products_of_experts_with_scales_of_blocks_read_their_weights_more_slowly() -> None:
    """At half the rate: each of the 32 layers reads its touched experts' 3 x 4096 x 14336 weights of 8.25 bits, twice.

    Elsewhere, in another format, and in engines whose kernels are as good there, nothing changes.
    """
    load = StepLoad(decode_batch=1, decode_context=100)
    plain = plain_runner(plain_job(model=load_model("Mixtral-8x7B")))
    for vendor, dtype, slower in (("AMD", "fp8_block", 1), ("NVIDIA", "fp8_block", 0), ("AMD", "fp8", 0)):
        machine = replace(plain, dtype=dtype, weight_bits=8.25, rates=replace(plain.rates, vendor=vendor))
        half, whole = (replace(machine, engine=replace(machine.engine, block_port_frac=frac)) for frac in (0.5, 1.0))
        added = float(np.asarray(half.step(load, ONE).seconds - whole.step(load, ONE).seconds))
        expected = slower * 32 * 2 * 3 * 4096 * 14336 * 8.25 / 8 / BYTES_PER_S
        assert added == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_plain_products_with_scales_of_blocks_take_what_the_engines_kernel_does() -> None:
    """A quarter of the rate in Triton, half in CUTLASS: the projections of Mixtral's 32 layers take 2 m n k operations
    four times, or twice, as long. Its experts have kernels of their own; other formats and the best kernel, the rate.
    """
    load = StepLoad(prefill_tokens=4096, prefill_context=4096)
    values = {"block_frac.triton": 0.25, "block_frac.cutlass": 0.5}
    plain = plain_runner(plain_job(model=load_model("Mixtral-8x7B"), cluster=plain_cluster(**values)))
    projections_s = 32 * 2 * 4096 * 2 * WIDTH * (HEADS + KV_HEADS) * DIM / FP8_PER_S
    cases: tuple[tuple[Any, str, int], ...] = (
        ("triton", "fp8_block", 3),
        ("cutlass", "fp8_block", 1),
        ("triton", "fp8", 0),
    )
    for kernel, dtype, longer in cases:
        best = replace(plain, dtype=dtype, weight_bits=8.0)
        own = replace(best, engine=replace(best.engine, block_kernel=kernel))
        added = float(np.asarray(own.step(load, ONE).seconds - best.step(load, ONE).seconds))
        router_s = 32 * 2 * 4096 * 8 * WIDTH / FP8_PER_S
        assert added == pytest.approx(longer * (projections_s + router_s), rel=0.01, abs=1e-9)


def test_kernels_of_old_engines_reach_what_their_authors_printed() -> None:
    """TFLOP/s on H100 and H200 of 1,024 x 18,432 x 7,168 (vLLM, benchmarks/kernels/deepgemm/README.md) and by times of
    4,096 x 24,576 x 7,168 in us (SGLang pull requests 3893, 5207 and 5820): medians over DeepGEMM's calibrated share.
    """
    size = 2 * 4096 * 24576 * 7168 / 1e6
    rates_of = {
        "triton": [301.4, size / 4067.3, size / 2254.2, size / 2200.2],
        "cutlass": [818.2, size / 1787.6, size / 1619.6],
    }
    hopper = rates(load_facts().accelerator("H100-SXM-80"))
    deepgemm = 1979.0 * hopper.value["matmul_frac.fp8_block"]
    for kernel, found in rates_of.items():
        assert hopper.value[f"block_frac.{kernel}"] == pytest.approx(np.median(found) / deepgemm, abs=0.01)
    h20, b200 = (rates(load_facts().accelerator(name)) for name in ("H20", "B200"))
    assert all(device.value[f"block_frac.{kernel}"] == 1.0 for device in (h20, b200) for kernel in rates_of)
    generations = {"sglang-2024": "triton", "sglang-2025": "best", "vllm-v0": "cutlass", "vllm-2025": "best"}
    assert {name: load_facts().engine(name).block_kernel for name in generations} == generations


def test_a_long_prompt_multiplies_with_two_experts_a_token() -> None:
    """2 x 2 experts x 3 x 4096 x 14336 operations a token and layer; rows of each expert fill tiles."""
    load = StepLoad(prefill_tokens=8192, prefill_context=8192)
    found = seconds(load, model=load_model("Mixtral-8x7B"))
    dense = 32 * 2 * 8192 * (2 * WIDTH * (HEADS + KV_HEADS) * DIM + 2 * 3 * WIDTH * FFN)
    attention = 32 * 4 * 32 * 128 * 8192 * (8192 / 2 + 64.5)
    assert found == pytest.approx((dense + attention) / FLOPS_PER_S, rel=0.02)  # router, head and host besides


def test_the_fullest_rank_holds_the_most_popular_expert() -> None:
    """Skew 2 of 8 experts over 8 ranks: the first expert's rank works on twice the mean, 4,096 of 16,384 copies; chance
    adds 1.434 standard deviations to the fullest of eight (Blom: quantile 7.625 / 8.25). Rows fill tiles of 16."""
    load = StepLoad(prefill_tokens=8192, prefill_context=8192)
    layout, model = ServingLayout(tp=8, ep=8), load_model("Mixtral-8x7B")
    machine = plain_runner(plain_job(model=model))
    skewed = replace(machine, expert_skew=2.0)
    added = float(np.asarray(skewed.step(load, layout).seconds - machine.step(load, layout).seconds))
    one_rank = 32 * 2 * 8192 * 2 / 8 * 3 * WIDTH * FFN / FLOPS_PER_S
    twice, once = (16 * math.ceil((n + 1.434 * (n * 7 / 8) ** 0.5) / 16) for n in (4096, 2048))
    assert added == pytest.approx(one_rank * (twice - once) / 2048, rel=1e-3)


# ---- messages


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_layers_sum_twice(tp: int) -> None:
    """Ring all-reduce: 2 (n - 1) / n of the rows' bytes, behind attention and behind the MLP."""
    load = StepLoad(decode_batch=64, decode_context=2000)
    found = step(load, ServingLayout(tp=tp))
    messages_s = 2 * LAYERS * (LAUNCH_S + 2 * (tp - 1) / tp * 64 * WIDTH * 2 / LINK_BYTES_PER_S)
    assert found.communication_s == pytest.approx(messages_s, rel=1e-9)
    assert found.seconds == pytest.approx(step_s(64, 2000, tp=tp), rel=1e-9)


@pytest.mark.parametrize(("name", "norms"), [("OLMo-2-7B", 2), ("Qwen3-8B", 0)])
def test_norms_over_all_heads_sum_their_squares_over_the_ranks(name: str, norms: int) -> None:
    """By hand: four bytes for each norm and token in one ring all-reduce, and one more kernel; Qwen3's are of one head.

    OLMo 2 7B has 32 layers of width 4,096, Qwen3-8B 36 of the same.
    """
    load, layers = StepLoad(decode_batch=64, decode_context=500), 36 if norms == 0 else 32
    found = step(load, ServingLayout(tp=4), model=load_model(name), cluster=plain_cluster(kernel_s=1e-6))
    rows_s, squares_s = (LAUNCH_S + 2 * 3 / 4 * 64 * nbytes / LINK_BYTES_PER_S for nbytes in (WIDTH * 2, norms * 4))
    more_s = (squares_s + 1e-6) if norms else 0.0
    assert found.communication_s == pytest.approx(layers * (2 * rows_s + more_s), rel=1e-9)
    assert step(load, model=load_model(name)).communication_s == 0


def test_pipeline_stages_hand_on_their_rows() -> None:
    load = StepLoad(decode_batch=16, decode_context=500, prefill_tokens=1024, prefill_context=1024)
    found = step(load, ServingLayout(tp=2, pp=4))
    hops_s = 3 * (LAUNCH_S + 1040 * WIDTH * 2 / 2 / LINK_BYTES_PER_S)
    sums_s = 2 * LAYERS * (LAUNCH_S + 1040 * WIDTH * 2 / LINK_BYTES_PER_S)
    assert found.communication_s == pytest.approx(hops_s + sums_s, rel=1e-9)
    assert found.seconds == pytest.approx(step_s(16, 500, 1024, 1024, tp=2, pp=4), rel=1e-9)


def test_stages_in_other_nodes_are_reached_by_the_network() -> None:
    found = step(StepLoad(decode_batch=16, decode_context=500), ServingLayout(tp=8, pp=2))
    hop_s = LAUNCH_S + 16 * WIDTH * 2 / 8 / NETWORK_BYTES_PER_S
    sums_s = 2 * LAYERS * (LAUNCH_S + 2 * 7 / 8 * 16 * WIDTH * 2 / LINK_BYTES_PER_S)
    assert found.communication_s == pytest.approx(hop_s + sums_s, rel=1e-9)


def test_tokens_travel_to_their_experts_and_back() -> None:
    """DeepSeek-V3 (arXiv:2412.19437) section 3.2.2: dispatch in fp8 (scales of 32 bits for 128), combine in 16 bits.

    8 of 256 experts over 8 ranks: a token goes once to each of 8 (1 - (7/8)^8) ranks, an eighth of them its own. So it
    does where NVLink joins nodes; in one node engines gather.
    """
    load, layout = StepLoad(decode_batch=64, decode_context=2000), ServingLayout(dp=8, ep=8)
    node = plain_runner(plain_job(model=load_model("DeepSeek-V3"), weights="fp8-block"))
    rack = replace(node.fabric, levels=(replace(node.fabric.levels[0], size=72), node.fabric.levels[1]))
    found = replace(node, fabric=rack).step(load, layout)
    copies = 8 * (1 - (7 / 8) ** 8)
    routed = 64 * copies * 7168 * 7 / 8
    dispatch_s, combine_s = (LAUNCH_S + routed * width / LINK_BYTES_PER_S for width in (8.25 / 8, 2.0))
    assert found.communication_s == pytest.approx(58 * (dispatch_s + combine_s), rel=1e-9)
    rows = 8 * 64 * 7168 * 7 / 8
    gather_s, scatter_s = (LAUNCH_S + rows * width / LINK_BYTES_PER_S for width in (8.25 / 8, 2.0))
    assert node.step(load, layout).communication_s == pytest.approx(58 * (gather_s + scatter_s), rel=1e-9)


def test_tokens_travel_to_latent_experts_in_their_width() -> None:
    """NVIDIA, LatentMoE (2026): Nemotron 3 Super brings 4,096 down to 1,024 before its 40 layers of experts."""
    load, layout = StepLoad(decode_batch=64, decode_context=2000), ServingLayout(dp=8, ep=8)
    node = plain_runner(plain_job(model=load_model("Nemotron-3-Super-120B-A12B")))
    each_s = LAUNCH_S + 8 * 64 * 1024 * 2 * 7 / 8 / LINK_BYTES_PER_S  # all ranks gather, and sum what comes out
    assert node.step(load, layout).communication_s == pytest.approx(40 * 2 * each_s, rel=1e-9)


def test_tokens_are_gathered_in_16_bits_where_they_are_quantised_afterwards() -> None:
    """Eight ranks, 64 tokens of 2,048 elements each: a byte an element there where they are quantised before, two
    where not, and two back, in each of 48 layers."""
    load, layout = StepLoad(decode_batch=64, decode_context=2000), ServingLayout(dp=8, ep=8)
    job = plain_job(model=load_model("Qwen3-30B-A3B"), weights=FACTS.weight_format("fp8"))
    for formats, nbytes in (({"any"}, 3), ({"fp8"}, 3), ({"nvfp4"}, 4), (set[str](), 4)):
        found = plain_runner(job, thin_gathers=frozenset(formats)).step(load, layout).communication_s
        each_s = 2 * LAUNCH_S + 8 * 64 * 2048 * nbytes * 7 / 8 / LINK_BYTES_PER_S
        assert found == pytest.approx(48 * each_s, rel=1e-9)


def test_steps_that_only_decode_are_filled_up_to_a_captured_size() -> None:
    """Empty sequences take rows of the products, and have nothing cached; a step with a prompt is launched as it is."""
    machine = plain_runner(plain_job())
    padded = replace(machine, graph_batches=(256, 512))
    two, five, beyond = (StepLoad(decode_batch=n, decode_context=2000) for n in (257, 512, 600))
    empty_s = float(machine.step(replace(five, decode_context=2000 * 257 / 512), ONE).seconds)
    assert float(padded.step(two, ONE).seconds) == pytest.approx(empty_s, rel=1e-12)
    assert empty_s > 1.1 * float(machine.step(two, ONE).seconds)
    for load in (five, beyond, replace(two, prefill_tokens=64, prefill_context=64), replace(two, beside_prompts=True)):
        assert float(padded.step(load, ONE).seconds) == float(machine.step(load, ONE).seconds)


def test_steps_that_outgrow_what_is_captured_are_launched() -> None:
    """Up to 24 sequences are captured, over four ranks or more up to 80: one more, and the host starts each kernel."""
    machine = plain_runner(graph_batch=24, wide_graph_batch=80, launch_s=1.0)
    for layout, most in ((ONE, 24), (ServingLayout(tp=2), 24), (ServingLayout(tp=4), 80), (ServingLayout(tp=8), 80)):
        for batch, launched in ((most, False), (most + 1, True)):
            seconds = float(machine.step(StepLoad(decode_batch=batch, decode_context=500), layout).seconds)
            assert (seconds > 1.0) == launched


def test_experts_cut_over_ranks_gather_all_tokens_and_sum() -> None:
    """Mixtral on 4 attention replicas, experts over 2 of the 4 ranks: all-gather of the rows, reduce-scatter back."""
    found = step(
        StepLoad(decode_batch=64, decode_context=500), ServingLayout(dp=4, ep=2), model=load_model("Mixtral-8x7B")
    )
    one_s = LAUNCH_S + 3 / 4 * 4 * 64 * WIDTH * 2 / LINK_BYTES_PER_S
    assert found.communication_s == pytest.approx(32 * 2 * one_s, rel=1e-9)


def test_ranks_with_prompts_broadcast_their_tokens_and_reduce() -> None:
    """Each of n ranks' shares goes round the whole ring: all bytes cross a link, of which an all-gather takes 1 - 1/n.

    vLLM and TensorRT-LLM group broadcasts and reductions where ranks have unequal tokens; SGLang has collectives of
    all. Steps that only decode, and programs of XLA, have as many on each.
    """
    load, layout = StepLoad(prefill_tokens=1000, prefill_context=1000, decode_batch=64), ServingLayout(dp=4, ep=2)
    machine = plain_runner(plain_job(model=load_model("Mixtral-8x7B")))
    even = plain_runner(plain_job(model=load_model("Mixtral-8x7B")), grouped_gathers=False)
    whole_s = 4 * 1064 * WIDTH * 2 / LINK_BYTES_PER_S
    assert machine.step(load, layout).communication_s == pytest.approx(32 * 2 * (LAUNCH_S + whole_s), rel=1e-9)
    even_s = 32 * 2 * (LAUNCH_S + 3 / 4 * whole_s)
    assert even.step(load, layout).communication_s == pytest.approx(even_s, rel=1e-9)
    compiled = replace(machine, rates=replace(machine.rates, compiles=True))
    assert compiled.step(load, layout).communication_s == pytest.approx(even_s, rel=1e-9)
    columns = replace(load, prefill_tokens=np.array([0, 1000]))
    found, without = (np.asarray(one.step(columns, layout).communication_s) for one in (machine, even))
    assert found[0] == without[0]
    assert found[1] == pytest.approx(32 * 2 * (LAUNCH_S + whole_s), rel=1e-9)


def test_experts_of_tensor_parallel_ranks_are_summed_once() -> None:
    """Attention's rows and the experts': two all-reduces a layer, no dispatch."""
    found = step(
        StepLoad(decode_batch=64, decode_context=500), ServingLayout(tp=4, ep=4), model=load_model("Mixtral-8x7B")
    )
    one_s = LAUNCH_S + 2 * 3 / 4 * 64 * WIDTH * 2 / LINK_BYTES_PER_S
    assert found.communication_s == pytest.approx(32 * 2 * one_s, rel=1e-9)


# ---- what the engine adds


@pytest.mark.parametrize("traffic", [0.7, 1.0, 1.5])
def test_norms_and_elementwise_operations_cross_memory_once(traffic: float) -> None:
    """A layer's rope reads and writes 40 heads; norms and residuals read 2 + 1 rows' widths each and write 1 + 1;
    silu reads gate and up and writes one; embeddings are looked up for all tokens, the last norm is of one row. Some
    share a pass with others, and eager ones repeat theirs."""
    rows = 2048
    load = StepLoad(prefill_tokens=rows, prefill_context=rows)
    placed, engine = plain_cluster(pointwise_frac=0.5), replace(ENGINE, pointwise_traffic=traffic)
    added = seconds(load, cluster=placed, engine=engine) - seconds(load, engine=engine)
    layer = 2 * 40 * DIM + 2 * (3 + 2) * WIDTH + 3 * FFN
    fused = 2 * LAYERS * (rows * layer + 2 * WIDTH)
    ends = 2 * (rows * 2 * WIDTH + 2 * WIDTH + WIDTH)
    expected = (traffic * fused + ends) / (0.5 * BYTES_PER_S)
    assert added == pytest.approx(expected, rel=1e-3)


def test_kernels_hide_part_of_their_start() -> None:
    """Programmatic dependent launch: `hidden_frac` of a kernel's fixed time passes behind the kernel before it."""
    load = StepLoad(decode_batch=64, decode_context=2000)
    kernels = LAYERS * (4 + 4 + 1) + 3  # products, elementwise passes, attention; embedding, last norm, head
    placed = plain_cluster(kernel_s=4e-6, decode_s=4e-6, pointwise_frac=1e12)
    added = seconds(load, cluster=placed) - seconds(load)
    assert added == pytest.approx(kernels * 4e-6 * (1 - ENGINE.hidden_frac), rel=1e-6)


def test_chained_kernels_win_back_part_of_all_starts_in_captured_steps() -> None:
    """Three tenths of each fixed time, whichever kernel's; none in steps that are not captured, or where weights are
    integers in groups, whose kernels wait for the one ahead."""
    load = StepLoad(decode_batch=64, decode_context=2000)
    fixed = {"kernel_s": 4e-6, "decode_s": 9e-6, "pointwise_frac": 1e12}
    total_s = LAYERS * (4 + 4) * 4e-6 + LAYERS * 9e-6 + 3 * 4e-6
    hidden_s = ENGINE.hidden_frac * 4e-6 * (LAYERS * (4 + 4 + 1) + 3)
    for graphs, kept in ((True, 0.7), (False, 1.0)):
        engine = replace(ENGINE, graphs=graphs, launch_s=0.0)
        placed = plain_cluster(**fixed, chained_frac=0.3)
        added = seconds(load, cluster=placed, engine=engine) - seconds(load, engine=engine)
        assert added == pytest.approx(kept * (total_s - hidden_s), rel=1e-6)
    for name, chains in (("bf16", True), ("nvfp4", True), ("mxfp4", True), ("awq", False), ("Q4_K_M", False)):
        assert runner(plain_job(weights=load_facts().weight_format(name))).chains == chains


@pytest.mark.parametrize(("chained", "slower"), [(0.0, 4.0), (0.5, 2.0)])
def test_idle_cores_of_a_narrow_product_fetch_what_the_next_kernel_reads(chained: float, slower: float) -> None:
    """128 cores, one for each tile of 128 columns: 4,096 columns keep 32 busy, 6,144 keep 48, which read alone."""
    load = StepLoad(decode_batch=1, decode_context=1000)
    placed = plain_cluster(chained_frac=chained, core_bytes_per_s=BYTES_PER_S / 128, wave_tail=1.0)
    narrow = replace(placed.rates, num_sms=128.0)
    wide = replace(narrow, value={**narrow.value, "core_bytes_per_s": 1e15})
    added_s = seconds(load, cluster=replace(placed, rates=narrow)) - seconds(load, cluster=replace(placed, rates=wide))
    lost = 4096 * (6144 * (slower * 32 / 48 - 1) + (4096 + FFN) * (slower - 1))
    assert added_s == pytest.approx(LAYERS * 2 * lost / BYTES_PER_S, rel=1e-6)


def test_engines_draw_their_share_of_the_sustained_bandwidth() -> None:
    """Half of it: all that a step of one sequence reads takes twice as long, what the host does as long as before."""
    load = StepLoad(decode_batch=1, decode_context=1000)
    host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + ENGINE.sequence_s
    halved_s = seconds(load, cluster=plain_cluster(served_dram_frac=0.5))
    assert halved_s - host_s == pytest.approx(2 * (seconds(load) - host_s), rel=1e-6)


def test_an_emulated_cache_format_is_converted_by_each_query_head() -> None:
    """A100: no fp8 units; `cache_convert_flops` vector operations for each cached element and query head."""
    peak = {"bf16": FLOPS_PER_S, "fp16": FLOPS_PER_S, "fp32": 19.5e12}
    placed = replace(plain_cluster(), rates=replace(plain_cluster(cache_convert_flops=60.0).rates, peak=peak))
    less, more = (StepLoad(decode_batch=16, decode_context=c) for c in (1000, 3000))
    read_s = 16 * 2000 * 2 * LAYERS * KV_HEADS * DIM / BYTES_PER_S
    convert_s = 16 * 2000 * 2 * LAYERS * HEADS * DIM * 60.0 / 19.5e12
    assert grown_s(less, more, cluster=placed, kv_dtype="fp8") == pytest.approx(read_s + convert_s, rel=1e-6)
    one = step(more, cluster=placed, kv_dtype="fp8")
    assert one.conversion_s == pytest.approx(1.5 * convert_s, rel=1e-6)
    assert sum(one[1:5]) + one.conversion_s == pytest.approx(one.seconds, rel=1e-9)
    for kv_dtype, cards in (("bf16", placed), ("fp8", plain_cluster())):
        assert step(more, cluster=cards, kv_dtype=kv_dtype).conversion_s == 0.0


def test_the_slowdown_of_an_emulated_cache_is_that_of_published_runs() -> None:
    """Llama-3-8B in 16 bits, vLLM on an A100, 64 x (1,024 + 1,024) tokens: 1,821 tokens/s, with an fp8 cache 390.

    Source: argonne-lcf/LLM-Inference-Bench, Plots/Fig_3/A100_H100_quant_all_results.csv (benchmarks/truth/serving.csv).
    """
    how: dict[str, Any] = {
        "gpu": "a100-80gb",
        "engine": "vllm",
        "input_tokens": 1024,
        "output_tokens": 1024,
        "concurrency": 64,
    }
    sixteen, eight = (flopwise.serve("Llama-3-8B", kv_dtype=kv, **how).estimate for kv in ("bf16", "fp8"))
    assert sixteen.output_tokens_per_s is not None
    assert eight.output_tokens_per_s is not None
    slower = sixteen.output_tokens_per_s.value / eight.output_tokens_per_s.value
    assert slower == pytest.approx(1821.37 / 389.84, rel=0.35)
    assert eight.bound == "cache conversion"
    note = "has no fp8 units: it converts an fp8 cache in software at each read"
    assert any(note in line for line in eight.assumptions)
    assert not any(note in line for line in sixteen.assumptions)
    for gpu, told in (("a100-80gb", True), ("h100", False)):
        sized = flopwise.memory("Llama-3-8B", task="serve", gpu=gpu, kv_dtype="fp8")
        assert any(note in line for line in sized.assumptions) == told


def test_kernels_without_groups_read_the_cache_for_each_query_head() -> None:
    machine = plain_runner(grouped_decode=False)
    less, more = (machine.step(StepLoad(decode_batch=16, decode_context=c), ONE).seconds for c in (1000, 3000))
    expected = 16 * 2000 * 2 * LAYERS * HEADS * DIM * 2 / BYTES_PER_S
    assert float(np.asarray(more - less)) == pytest.approx(expected, rel=1e-9)


def test_engines_kernels_draw_what_a_core_can() -> None:
    """llama.cpp: bytes a cycle and core, of 1.98 GHz and as many cores as the device has, bound the bandwidth."""
    placed = plain_cluster()
    placed = replace(placed, rates=replace(placed.rates, num_sms=100.0, clock_hz=1e9))
    machine = plain_runner(plain_job(cluster=placed), core_bytes_per_cycle=6.0, core_flops_per_s=1e12)
    assert machine.own_rates.value["dram_frac"] * BYTES_PER_S == pytest.approx(6.0 * 100 * 1e9)
    assert machine.own_rates.value["matmul_frac.bf16"] * FLOPS_PER_S == pytest.approx(100e12)
    assert math.isclose(machine.own_rates.value["matmul_frac.fp8"] * FP8_PER_S, 100e12)
    wide = {"fp32": 400e12}  # without units for 16 bits, whose products run in fp32
    placed = replace(placed, rates=replace(placed.rates, peak=wide))
    machine = plain_runner(plain_job(cluster=placed), core_bytes_per_cycle=6.0, core_flops_per_s=1e12)
    for name in ("matmul_frac.bf16", "matmul_frac.fp32"):
        assert machine.own_rates.value[name] * 400e12 == pytest.approx(100e12)


@pytest.mark.parametrize(("model", "gpu", "measured"), [
    ("Llama-3.1-8B", "Jetson Orin Nano 8GB", 14.0), ("Llama-3.1-8B", "Jetson Orin Nano Super", 19.14),
    ("Qwen2.5-7B", "Jetson Orin Nano 8GB", 14.2), ("Qwen2.5-7B", "Jetson Orin Nano Super", 21.75),
])  # fmt: skip
def test_kernels_that_tvm_compiles_have_no_limit_of_llama_cpps(model: str, gpu: str, measured: float) -> None:
    """MLC on eight cores of 0.6 to 1 GHz. Source: Jetson AI Lab, benchmarks of Orin Nano before and after Super."""
    cells = {
        "engine": "MLC LLM", "date": "2024-12", "mode": "single_stream_decode", "model": model, "gpu": gpu,
        "gpus": "1", "weights": "q4f16_1", "concurrency": "1",
    }  # fmt: skip
    [found] = predict_row(cells, load_facts())
    assert found.predicted == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(("dots", "core"), [(True, 0.32e12), (False, 1e12)])
def test_products_with_packed_weights_may_have_a_rate_of_their_own(dots: bool, core: float) -> None:
    """100 cores of 320 GFLOP/s in an engine that multiplies weights as integers; others keep what their cores reach."""
    placed = plain_cluster(dot_core_flops_per_s=0.32e12)
    placed = replace(placed, rates=replace(placed.rates, num_sms=100.0))
    machine = plain_runner(plain_job(cluster=placed), core_flops_per_s=1e12, dots_bytes=dots)
    assert machine.own_rates.value["matmul_frac.bf16"] * FLOPS_PER_S == pytest.approx(100 * core)


def test_a_prompt_on_strix_halo_runs_as_llama_cpps_developers_have_it() -> None:
    """512 tokens of Llama 3 8B in Q4_0 on 40 cores: 742 to 996 tokens/s by backend (llama.cpp pull request 18749).

    An RDNA3 card reaches as much a core as llama.cpp's kernels do elsewhere.
    """
    asked: dict[str, Any] = {"engine": "llama.cpp", "input": 512, "output": 1, "batch": 1, "weights": "int4_wo"}
    strix = flopwise.serve("Llama-3-8B", gpu="Radeon 8060S", **asked).estimate.ttft_s.value
    assert 742 < 512 / strix < 996
    facts, per_core = load_facts(), {}
    for name in ("Radeon 8060S", "RX 7900 XTX"):
        placed = cluster(facts.accelerator(name), gpus_per_node=1)
        own = runner(plain_job(cluster=placed, engine=facts.engine("llama.cpp"))).own_rates
        per_core[name] = own.value["matmul_frac.bf16"] * own.peak["bf16"] / own.num_sms
    assert per_core["Radeon 8060S"] == pytest.approx(0.32e12)
    assert per_core["RX 7900 XTX"] > 2 * per_core["Radeon 8060S"]


# ---- the simulator's tables


def test_the_simulator_takes_the_same_steps() -> None:
    """Its blocks are what 0.92 of the card leaves beside 8.03e9 weights and the sampler of as many whole contexts."""
    found = replica(plain_job(), max_tokens=16_384)
    for batch, context, chunk, before in ((1, 1000, 0, 0), (64, 3000, 0, 0), (0, 0, 2048, 0), (32, 1500, 1024, 3072)):
        seconds = found.cost.seconds(batch=batch, cached=batch * context, chunk=chunk, start=before)
        assert seconds == pytest.approx(step_s(batch, context, chunk, before + chunk), rel=1e-3)
    assert found.cost.request_ps == round(ENGINE.request_s * 1e12)
    weights = LAYERS * (2 * WIDTH * (HEADS + KV_HEADS) * DIM + 3 * WIDTH * FFN + 2 * WIDTH) + 2 * VOCAB * WIDTH + WIDTH
    standing = 2 * weights + ENGINE.graph_bytes + ENGINE.context_bytes + ENGINE.workspace_bytes
    room = 0.92 * CHIP.hbm_bytes - standing - ENGINE.prefill_tokens * WIDTH * 2
    sequences = math.floor(room / (1280 * TOKEN_BYTES + 14 * VOCAB))
    tokens = (room - sequences * 14 * VOCAB) / TOKEN_BYTES
    assert found.limits.num_blocks == math.floor(tokens) // 16
    assert (found.limits.max_batch, found.limits.step_tokens) == (ENGINE.max_batch, ENGINE.prefill_tokens)
    assert found.limits.swap_ps_per_block == pytest.approx(16 * TOKEN_BYTES / (0.76 * 63e9) * 1e12, rel=1e-4)


def test_a_replica_has_the_front_end_of_its_engine() -> None:
    found = replica(plain_job(engine=replace(ENGINE, front_s=0.002, front_token_s=3e-6, stream_s=4e-5)))
    assert found.cost.front_scalars == (round(ENGINE.request_s * 1e12), 2 * 10**9, 3 * 10**6, 40 * 10**6)
    with pytest.raises(SpecError, match="out of range"):
        replace(found.cost, stream_ps=-1)


def test_a_sum_that_normalises_too_saves_the_start_of_the_pass_behind_it() -> None:
    """TensorRT-LLM, AllReduceFusionOp.RESIDUAL_RMS_NORM: two sums a layer, each with the norm behind it."""
    load, two = StepLoad(decode_batch=1, decode_context=100), ServingLayout(tp=2)
    joined = replace(ENGINE, sums_normalise=True, hidden_frac=0.25)
    apart = replace(joined, sums_normalise=False)
    plain = plain_runner()
    chip = replace(plain.rates, value={**plain.rates.value, "kernel_s": 2e-6})

    def own_s(engine: Any, layout: ServingLayout) -> float:
        return float(np.asarray(replace(plain, engine=engine, rates=chip).step(load, layout).seconds))

    assert own_s(apart, two) - own_s(joined, two) == pytest.approx(LAYERS * 2 * 0.75 * 2e-6, rel=1e-6)
    assert own_s(joined, ONE) == own_s(apart, ONE)
    engines = [load_facts().engine(name).sums_normalise for name in ("tensorrt-llm", "tensorrt-llm-v0", "vllm")]
    assert engines == [True, False, False]


def test_engines_that_plan_ahead_leave_the_device_idle_as_long_as_traces_show() -> None:
    """vLLM pull request 11133: 150 to 170 us between two steps; TensorRT-LLM issue 13957: 580 with 64 sequences."""
    engines = {name: load_facts().engine(name) for name in ("vllm", "vllm-2026", "sglang", "tensorrt-llm")}
    assert all(engine.plans_ahead for engine in engines.values())
    assert all(engine.step_s == pytest.approx(160e-6, rel=0.3) for engine in engines.values())
    busy = engines["tensorrt-llm"]
    assert 1 / 1.5 < (busy.step_s + 64 * busy.sequence_s) / 580e-6 < 1.5
    waiting = load_facts().engine("vllm-2025")
    assert not waiting.plans_ahead
    assert waiting.step_s > 4 * busy.step_s


def test_an_engine_of_small_kernels_takes_as_many_cycles_a_layer_on_each_nvidia_device() -> None:
    """What takes 20 us at 2 GHz takes 20 x 2 / 1.53 at the V100's boost clock."""
    plain, load = plain_runner(local=True), StepLoad(decode_batch=1, decode_context=100)

    def layers_s(name: str, *, local: bool = True) -> float:
        chip = load_facts().accelerator(name)
        value = {**plain.rates.value, "core_slowness": rates(chip).value["core_slowness"]}
        engine = replace(plain.engine, local=local)
        one = replace(plain, rates=replace(plain.rates, value=value), engine=engine).step(load, ONE)
        return float(np.asarray(one.overhead_s)) - engine.step_s - engine.sequence_s

    at_2ghz = LAYERS * ENGINE.layer_s
    assert layers_s("V100-SXM2-32") == pytest.approx(at_2ghz * 2.0 / 1.53, rel=1e-6)
    assert layers_s("H100-SXM-80") == pytest.approx(at_2ghz * 2.0 / 1.98, rel=1e-6)
    assert layers_s("MI300X") == pytest.approx(at_2ghz, rel=1e-6)  # no measurement says so of other vendors
    assert layers_s("V100-SXM2-32", local=False) == pytest.approx(at_2ghz, rel=1e-6)


# ---- processors: the host shares the caches with what it computes


def test_what_a_step_reads_displaces_the_hosts_code_from_the_cache() -> None:
    """A layer's code is needed again after a layer's bytes, a step's after those of all; as many as fit double half."""
    plain = plain_runner()
    load, cached = StepLoad(decode_batch=3, decode_context=100), 4e6

    def overhead_s(l2_bytes: float, *, is_host: bool = True) -> tuple[float, float]:
        found = replace(plain, rates=replace(plain.rates, is_host=is_host, l2_bytes=l2_bytes)).step(load, ONE)
        return float(np.asarray(found.overhead_s)), float(np.asarray(found.read_bytes))

    (warm_s, read), (cold_s, _) = overhead_s(0.0), overhead_s(cached)
    weights = LAYERS * (2 * WIDTH * (HEADS + KV_HEADS) * DIM + 3 * WIDTH * FFN) + VOCAB * WIDTH
    assert read == pytest.approx(2 * (weights + 300 * 2 * LAYERS * KV_HEADS * DIM), rel=0.01)
    layers_s = LAYERS * ENGINE.layer_s * (read / LAYERS) / (read / LAYERS + cached)
    steps_s = (ENGINE.step_s + 3 * ENGINE.sequence_s) * read / (read + cached)
    assert cold_s - warm_s == pytest.approx(layers_s + steps_s, rel=1e-6)
    assert overhead_s(cached, is_host=False)[0] == pytest.approx(warm_s, rel=1e-9)  # a GPU's caches are its own


def test_an_engine_that_packs_weights_as_it_loads_them_packs_none_in_a_step() -> None:
    """The rate at which a library packs them anew is then of no product."""
    plain = plain_runner()
    packing = {"packed_bytes_per_s.bf16": 1e9, "packed_bytes_per_s.fp32": 1e9}
    rates = replace(plain.rates, is_host=True, value={**plain.rates.value, **packing})
    anew = replace(plain, rates=rates, engine=replace(ENGINE, cpu_packs_once=False))
    once = replace(plain, rates=rates, engine=replace(ENGINE, cpu_packs_once=True))
    device = replace(plain, rates=replace(rates, is_host=False), engine=replace(ENGINE, cpu_packs_once=True))
    load = StepLoad(decode_batch=1, decode_context=10)
    weights = LAYERS * (2 * WIDTH * (HEADS + KV_HEADS) * DIM + 3 * WIDTH * FFN) + VOCAB * WIDTH
    longer_s = float(np.asarray(anew.step(load, ONE).seconds - once.step(load, ONE).seconds))
    assert longer_s == pytest.approx(2 * weights * (1 / 1e9 - 1 / BYTES_PER_S), rel=0.05)
    assert device.own_rates.value["packed_bytes_per_s.bf16"] == 1e9


def test_ranks_that_share_nothing_but_products_are_served_one_after_another() -> None:
    """Llama-3.1-8B on four devices: seven products a layer, each of which goes to all four; no message beside them."""
    load, four = StepLoad(decode_batch=1, decode_context=100), ServingLayout(tp=4)
    rows = replace(ENGINE, split_s=20e-6)
    assert step(load, four, engine=rows).communication_s == pytest.approx(LAYERS * 7 * 4 * 20e-6, rel=1e-9)
    assert step(load, ONE, engine=rows).communication_s == 0.0


@pytest.mark.parametrize(
    ("gpu", "count", "weights", "measured"),
    [("A100-80GB-PCIe", 8, "Q4_K_M", 11.2), ("A100-80GB-PCIe", 2, "F16", 10.46), ("A10G", 4, "Q4_K_M", 13.37)],
)
def test_llama_cpp_of_2023_gains_little_from_more_devices(gpu: str, count: int, weights: str, measured: float) -> None:
    """Llama-2-70B, one stream. Source: mlc-ai/llm-perf-bench, 2023-11-14; split by rows, as it was then."""
    cells = {
        "engine": "llama.cpp", "date": "2023-11-14", "mode": "single_stream_decode", "model": "Llama-2-70B", "gpu": gpu,
        "gpus": str(count), "weights": weights, "input_tokens": "8", "output_tokens": "256", "concurrency": "1",
    }  # fmt: skip
    [found] = predict_row(cells, load_facts())
    assert found.predicted == pytest.approx(measured, rel=0.2)


def test_the_gpu_of_lunar_lake_draws_what_was_measured_there() -> None:
    """Llama-2-7B in 8 bits on 0.6 of 136.5 GB/s: 6.6e9 weights take 81 ms; OpenVINO's table of 2024.5 has 89.7 ms."""
    serve = flopwise.serve(
        "Llama-2-7B", gpu="Arc 140V", engine="openvino", weights="int8", input_tokens=32, concurrency=1
    )
    assert serve.estimate.tpot_s is not None
    assert 6.6e9 / (0.6 * 136.5e9) < serve.estimate.tpot_s.value < 1.15 * 0.0897


def test_a_scheduler_that_plans_no_step_ahead_costs_models_with_states_its_time() -> None:
    """SGLang pull request 38131: 364.3 -> 498.5 tokens/s for one sequence, once the next step is planned meanwhile."""
    before_s, after_s = 1 / 364.3, 1 / 498.5
    assert load_facts().engine("sglang-2025").recurrent_s == pytest.approx(before_s - after_s, rel=0.01)
    waits = replace(ENGINE, recurrent_s=before_s - after_s)
    load = StepLoad(decode_batch=1, decode_context=100)
    for model, added_s in ((load_model("LFM2.5-1.2B"), before_s - after_s), (load_model("Llama-3.1-8B"), 0.0)):
        found_s = seconds(load, model=model, engine=waits) - seconds(load, model=model)
        assert found_s == pytest.approx(added_s, abs=1e-9)


def test_a_cache_that_is_copied_to_be_appended_to_is_moved_many_times() -> None:
    """Four heads share one: copied as it is, in and out, read to be copied for each, written, and read by each.

    Source: transformers, DynamicCache.update (torch.cat) and repeat_kv: 2 + 1 + 4 + 4 passes; 3 where none is shared.
    """
    copying = replace(ENGINE, grouped_decode=False, copies_cache=True)
    less, more = (StepLoad(decode_batch=16, decode_context=c) for c in (1000, 3000))
    assert grown_s(less, more, engine=copying) == pytest.approx(16 * 2000 * TOKEN_BYTES * 11 / BYTES_PER_S, rel=1e-6)
    whole = grown_s(less, more, engine=copying, model=load_model("Llama-2-7B"))
    assert whole == pytest.approx(16 * 2000 * 2 * 32 * 4096 * 2 * 3 / BYTES_PER_S, rel=1e-6)


def test_steps_that_are_serialized_for_each_worker_wait_for_all_of_them() -> None:
    """vLLM of 2023: pull request 2221 gives throughputs of Llama-2-70B on eight A100s through Ray and without it.

    Of 512 waiting sequences of 1031 and 317 tokens about 370 fit; ShareGPT's answers are some 200 tokens of 256
    sequences: 0.116 x 370 / 318 = 0.135 s and 0.135 x 256 / 200 = 0.173 s a step more, for eight workers.
    """
    engine = load_facts().engine("vllm-2023")
    waiting, chats = (1 / 2.48 - 1 / 3.48) * 370 / 318, (1 / 3.01 - 1 / 5.08) * 256 / 200
    each = [waiting / 8 / 370, chats / 8 / 256]
    assert min(each) < engine.worker_sequence_s < max(each)
    calling = replace(ENGINE, worker_s=5e-4, worker_sequence_s=6.5e-5)
    for batch in (1, 200):
        load, eight = StepLoad(decode_batch=batch, decode_context=100), ServingLayout(tp=8)
        added_s = step(load, eight, engine=calling).seconds - step(load, eight).seconds
        assert added_s == pytest.approx(8 * (5e-4 + 6.5e-5 * batch), rel=1e-6)
        assert step(load, ONE, engine=calling).seconds == step(load, ONE).seconds
    mixed = StepLoad(prefill_tokens=512, prefill_context=512, prompts=2, decode_batch=3, decode_context=100)
    added_s = step(mixed, ServingLayout(tp=2), engine=calling).seconds - step(mixed, ServingLayout(tp=2)).seconds
    assert added_s == pytest.approx(2 * (5e-4 + 6.5e-5 * 5), rel=1e-6)
    assert load_facts().engine("vllm-2024").worker_s == 0.0
