"""Steps that read prompts and decode: what one call of attention, or one kernel of a delta rule, costs who decodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plain_machine import (
    BYTES_PER_S,
    DIM,
    FLOPS_PER_S,
    HEADS,
    LAYERS,
    decode_attention_s,
    plain_cluster,
    plain_job,
    plain_runner,
)

from flopwise.cost.cluster import cluster
from flopwise.cost.kernels import Elements, one_call_attention_s, work_s
from flopwise.cost.rates import rates
from flopwise.facts.architecture import Attend, Recurrence
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.shapes import Shape, Split
from flopwise.ops.work import item_work
from flopwise.serving.iteration import Runner, StepLoad
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.engine import replica
from flopwise.serving.techniques import runner
from named import serve_job_with

ONE = ServingLayout()
ALONE = StepLoad(decode_batch=16, decode_context=4096)
MIXED = replace(ALONE, prefill_tokens=512, prefill_context=512)
SLOW = plain_cluster(attention_frac=0.25)
NEXT = load_model("Qwen3-Next-80B-A3B")
H200 = load_facts().accelerator("H200-SXM-141")


def seconds(machine: Runner, load: StepLoad) -> float:
    return float(np.asarray(machine.step(load, ONE).seconds))


def longer_s(load: StepLoad, column: str, **changes: Any) -> float:
    """What a column of the engine adds to a step of the plain machine with attention at a quarter of its peak."""
    job = plain_job(**({"cluster": SLOW} | changes))
    return seconds(plain_runner(job, **{column: True}), load) - seconds(plain_runner(job, **{column: False}), load)


def test_a_query_head_fills_no_block_of_64_where_prompts_share_its_call() -> None:
    """FlashAttention 2: each of 16 x 32 query heads computes 64 rows against 4,096 keys of 128, scores and sums."""
    blocks = 16 * HEADS * 64 * 4096 * 4 * DIM / (FLOPS_PER_S / 4)
    assert longer_s(MIXED, "one_call") == pytest.approx(LAYERS * (blocks - decode_attention_s(16, 4096)), rel=1e-6)
    assert longer_s(ALONE, "one_call") == 0.0
    assert longer_s(replace(MIXED, decode_batch=0), "one_call") == 0.0
    columns = replace(ALONE, prefill_tokens=np.array([0, 512]), prefill_context=512)
    one_call, two = (plain_runner(plain_job(cluster=SLOW), one_call=one).step(columns, ONE) for one in (True, False))
    assert np.subtract(one_call.seconds, two.seconds).tolist() == pytest.approx([0.0, longer_s(MIXED, "one_call")])


def test_drafts_and_windows_have_no_packed_heads_at_all() -> None:
    """mha_varlen_fwd packs heads that share keys, for one query a sequence and no window."""
    drafts = replace(ALONE, decode_tokens=4)
    blocks = 16 * HEADS * 64 * 4096 * 4 * DIM / (FLOPS_PER_S / 4)  # as many rows of a block as one query
    expected = LAYERS * (blocks - decode_attention_s(16, 4096, tokens=4))
    assert longer_s(drafts, "one_call") == pytest.approx(expected, rel=1e-6)
    assert longer_s(ALONE, "one_call", model=load_model("Mistral-7B-v0.1")) > 0.0


def test_heads_with_keys_of_their_own_have_nothing_to_pack() -> None:
    """Llama 2 7B, 32 heads with as many of keys: blocks of 64 rows beside prompts and alone."""
    changes: dict[str, Any] = {"model": load_model("Llama-2-7B"), "cluster": plain_cluster(attention_frac=1 / 32)}
    blocks = 16 * 32 * 64 * 4096 * 4 * 128 / (FLOPS_PER_S / 32)
    read_s = 16 * 32 * (4096 * 2 * 128 + 2 * 128) * 2 / BYTES_PER_S  # keys and values, query and result
    for load in (ALONE, MIXED):
        assert longer_s(load, "one_call", **changes) == pytest.approx(32 * (blocks - read_s), rel=1e-6)


@pytest.mark.parametrize(("model", "column"), [("Llama-3.1-8B", "one_call"), ("Qwen3-Next-80B-A3B", "chunks_decoding")])
def test_steps_in_a_column_take_what_they_take_alone(model: str, column: str) -> None:
    """Prompts of as few tokens as a sequence that decodes has among them, as ends of long ones are."""
    machine = plain_runner(plain_job(model=load_model(model), cluster=SLOW), **{column: True})
    tokens = np.array([0, 1, 8, 16, 17, 512])
    for batch in (0, 16):
        load = StepLoad(decode_batch=batch, decode_context=4096, prefill_tokens=tokens, prefill_context=tokens + 3000)
        each = [replace(load, prefill_tokens=int(n), prefill_context=int(n) + 3000) for n in tokens]
        for figure in ("seconds", "flops"):
            column_figures = getattr(machine.step(load, ONE), figure)
            alone = [float(np.asarray(getattr(machine.step(one, ONE), figure))) for one in each]
            assert column_figures == pytest.approx(alone, rel=1e-9), (batch, figure)


@pytest.mark.parametrize("heads", [8, 32])
def test_one_core_walks_a_long_cache_alone_as_long_as_measured(heads: int) -> None:
    """vllm-project/flash-attention, pull request 190: 1.4 ms for two queries against 31,000 keys on an RTX 3090 Ti,
    whatever the heads."""
    item = Attend("attention", heads=heads, kv_heads=heads // 4, qk_dim=128, v_dim=128)
    work = item_work(item, Shape(batch=1, query=2, context=31_000), Split())
    assert work is not None
    found = one_call_attention_s(rates(load_facts().accelerator("RTX 3090 Ti")), work)
    assert float(np.asarray(found.seconds)) == pytest.approx(1.4e-3, rel=0.15)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"kv_dtype": "fp8"}, id="FlashAttention 2 has no cache in 8 bits"),
        pytest.param({"model": load_model("gpt-oss-20b")}, id="nor sinks"),
        pytest.param({"model": load_model("gemma-4-31B-it")}, id="nor heads of 512, so that Triton has all layers"),
        pytest.param({"model": load_model("DeepSeek-V2-Lite")}, id="nor latents"),
    ],
)
def test_other_kernels_take_prompts_and_decoding_apart(changes: dict[str, Any]) -> None:
    if "kv_dtype" in changes:
        changes = {"kv_dtype": load_facts().cache_format(changes["kv_dtype"])}
    assert longer_s(MIXED, "one_call", **changes) == 0.0


@pytest.mark.parametrize(
    ("chip", "engine", "joined"),
    [
        ("A100-SXM-80", "vllm", True),
        ("L40S", "vllm-2025", True),
        ("RTX 3090", "vllm-2026", True),
        ("A100-SXM-80", "vllm-v0", False),
        ("A100-SXM-80", "sglang", False),
        ("H100-SXM-80", "vllm", False),
        ("RTX 5090", "vllm", False),
        ("MI300X", "vllm", False),
    ],
)
def test_where_one_call_has_both(chip: str, engine: str, joined: bool) -> None:
    device = load_facts().accelerator(chip)
    assert load_facts().engine(engine).on(device).one_call == joined


@pytest.mark.parametrize(
    ("chip", "engine", "grouped"),
    [
        ("H100-SXM-80", "vllm", True),
        ("RTX 5090", "vllm-2025", True),
        ("MI355X", "atom", True),
        ("B200", "tensorrt-llm", True),
        ("RTX-PRO-6000-Server", "tensorrt-llm", False),
        ("H200-SXM-141", "sglang", False),
    ],
)
def test_where_ranks_with_unequal_tokens_group_broadcasts(chip: str, engine: str, grouped: bool) -> None:
    """TensorRT-LLM fills all ranks up on compute capability 12.0 (pull request 7965); SGLang adds up buffers of all."""
    device = load_facts().accelerator(chip)
    assert load_facts().engine(engine).on(device).grouped_gathers == grouped


RULES = [i for kind in NEXT.stacks[0].kinds for i in kind.items if isinstance(i, Recurrence)]


def rule_flops(rule: Recurrence, load: StepLoad, *, chunks: bool) -> float:
    """Operations of one layer's rule, where sequences that decode beside prompts are blocks or not."""
    machine = plain_runner(plain_job(model=NEXT), chunks_decoding=chunks)
    kernels = machine.kernels_of((rule,), load, ONE, inside=True)
    return sum(float(np.asarray(kernel.work.causal_flops)) for kernel in kernels)


def test_a_delta_rule_computes_a_block_for_each_sequence_that_decodes_beside_prompts() -> None:
    """64 tokens instead of one: per token and head three products with a state of 128 x 128, and half of the pairs."""
    apart, blocks = (rule_flops(RULES[0], MIXED, chunks=chunks) for chunks in (False, True))
    token = 3 * 2 * 128 * 128
    assert blocks - apart == pytest.approx(16 * 32 * (64 * (token + 63 * 3 * 128) - token))
    assert longer_s(MIXED, "chunks_decoding", model=NEXT) > 0.0
    assert longer_s(ALONE, "chunks_decoding", model=NEXT) == 0.0
    assert longer_s(MIXED, "chunks_decoding") == 0.0


def test_blocks_of_sequences_that_decode_take_as_long_as_measured() -> None:
    """vLLM pull request 44700: 464 us for 8,192 tokens of prompts, 4,362 us for 7,239 and 953 sequences that decode."""
    prompts, mixed = (
        StepLoad(prefill_tokens=8192, prefill_context=8192),
        StepLoad(prefill_tokens=7239, prefill_context=7239, decode_batch=953, decode_context=1),
    )
    ratio = rule_flops(RULES[0], mixed, chunks=True) / rule_flops(RULES[0], prompts, chunks=True)
    assert ratio == pytest.approx(4361.6 / 464.1, rel=0.15)


@pytest.mark.parametrize(
    ("chip", "tp", "batch", "measured_us"),
    [
        ("H200-SXM-141", 4, 256, 60.29),
        ("H200-SXM-141", 4, 1024, 215.12),
        ("H200-SXM-141", 2, 1024, 420.22),
        ("B200", 4, 512, 80.80),
        ("B200", 2, 256, 80.29),
    ],
)
def test_a_step_reads_a_state_and_writes_it(chip: str, tp: int, batch: int, measured_us: float) -> None:
    """vLLM pull request 31722: fused_recurrent_gated_delta_rule_fwd with Qwen3-Next's shapes and states in 16 bits."""
    work = item_work(RULES[0], Shape(batch=batch, query=1, context=1), Split(tp=tp))
    assert work is not None
    found = work_s(rates(load_facts().accelerator(chip)), work, Elements("bf16", 16.0, 2.0, 2.0)).seconds
    assert float(np.asarray(found)) * 1e6 == pytest.approx(measured_us, rel=0.2)


def read_bytes(engine: str, cache: str) -> float:
    """What a step that decodes 64 sequences of one token reads; memory is not asked."""
    job = serve_job_with(
        model=NEXT, cluster=cluster(H200), engine=load_facts().engine(engine),
        kv_dtype=load_facts().cache_format(cache), input_tokens=512, output_tokens=128,
    )  # fmt: skip
    step, _ = runner(job).device_step(StepLoad(decode_batch=64, decode_context=1), ONE)
    return float(np.asarray(step.read_bytes))


def test_states_have_the_bytes_of_the_engine_not_of_the_cache() -> None:
    """SGLang and llama.cpp: 32 bits, vLLM: 16, of 36 layers, read and written; a cache in 8 bits changes 12 layers."""
    two_bytes_s = 64 * 36 * 2 * RULES[0].state * 2
    for engine in ("sglang", "llama.cpp"):
        assert read_bytes(engine, "bf16") - read_bytes("vllm", "bf16") == pytest.approx(two_bytes_s, rel=1e-9)
    keys = 64 * 12 * 2 * 2 * 256  # 2 heads of 256
    assert read_bytes("vllm", "bf16") - read_bytes("vllm", "fp8") == pytest.approx(keys, rel=1e-9)


@pytest.mark.parametrize(
    ("chip", "engine", "model", "tp"),
    [
        ("A100-SXM-80", "vllm", "Llama-3.1-8B", 1),
        ("RTX 3090", "vllm", "Llama-3.1-8B", 2),
        ("A100-SXM-80", "vllm", "gemma-3-27b-it", 2),
        ("H200-SXM-141", "vllm-2026", "Qwen3-Next-80B-A3B", 2),
    ],
)
def test_the_simulator_has_both_kinds_of_step(chip: str, engine: str, model: str, tp: int) -> None:
    job = serve_job_with(
        model=load_model(model), cluster=cluster(load_facts().accelerator(chip), gpus_per_node=8),
        layout=ServingLayout(tp=tp), engine=load_facts().engine(engine), input_tokens=1000, output_tokens=500,
    )  # fmt: skip
    cost, machine, errors = replica(job, max_tokens=16384).cost, runner(job), []
    assert cost.beside == cost.batches == len(cost.decode_ps) // 2
    for batch in (1, 8, min(64, cost.batches - 1)):
        for context in (256, 1000, 4000):
            for chunk in (0, 100, 1000, 1900):
                load = StepLoad(
                    decode_batch=batch, decode_context=context, prefill_tokens=chunk, prefill_context=chunk
                )  # fmt: skip
                windowed = batch * min(context, cost.window)
                got = cost.seconds(batch=batch, cached=batch * context, windowed=windowed, chunk=chunk)
                errors.append(got / float(np.asarray(machine.step(load, job.layout).seconds)) - 1)
    assert np.median(np.abs(errors)) < 0.01
    assert np.max(np.abs(errors)) < 0.07


def test_replicas_that_share_experts_add_as_much_to_both_kinds_of_step() -> None:
    """What a step waits for others' prompts goes by its sequences, whether it reads prompts itself or not."""
    job = serve_job_with(
        model=load_model("Qwen3-30B-A3B"), cluster=cluster(load_facts().accelerator("A100-SXM-80"), gpus_per_node=8),
        layout=ServingLayout(dp=2, ep=2), engine=load_facts().engine("vllm"), input_tokens=1000, output_tokens=500,
        concurrency=32,
    )  # fmt: skip
    loaded, alone = (replica(each).cost for each in (job, replace(job, concurrency=None)))
    added_ps = (loaded.decode_ps - alone.decode_ps).reshape(2, loaded.batches)
    assert loaded.beside == loaded.batches
    assert added_ps[0, 16] > 0
    assert np.array_equal(*added_ps)
