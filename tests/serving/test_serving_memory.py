from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.errors import FlopwiseError, SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.config import model_from_config
from flopwise.serving.memory import ServingLayout
from named import (
    FACTS,
    kv_capacity_tokens,
    max_concurrency,
    runnable_formats,
    serving_memory,
    serving_remedies,
    weight_bytes,
    weights_per_gpu,
)


def model_of(model_type: str = "llama", **config: Any) -> Model:
    base = {
        "model_type": model_type, "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
        "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "tie_word_embeddings": False,
    }  # fmt: skip
    return model_from_config(base | config, name=model_type)


LLAMA_70B = model_of()
LLAMA_8B = model_of(hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=14336)
MIXTRAL = model_of(
    "mixtral", hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, intermediate_size=14336,
    vocab_size=32000, num_local_experts=8, num_experts_per_tok=2,
)  # fmt: skip


@pytest.mark.parametrize(
    ("model", "bytes_per_token"),
    [(LLAMA_8B, 131072), (LLAMA_70B, 327680), (MIXTRAL, 131072)],  # 2 K H L of 2 bytes
)
def test_cache_bytes_of_grouped_heads(model: Model, bytes_per_token: int) -> None:
    memory = serving_memory(model, concurrency=4, context=4096)
    assert float(memory.items["KV cache"]) == 4 * 4096 * bytes_per_token


def test_fp8_cache_is_half_and_blocks_are_whole() -> None:
    wide = serving_memory(LLAMA_8B, concurrency=1, context=4096)
    slim = serving_memory(LLAMA_8B, concurrency=1, context=4096, kv_dtype="fp8")
    assert float(slim.items["KV cache"]) == float(wide.items["KV cache"]) / 2
    odd = serving_memory(LLAMA_8B, concurrency=1, context=4081)
    assert float(odd.items["KV cache"]) == float(wide.items["KV cache"])  # 16-token blocks


def test_layers_with_windows_have_a_pool_of_their_own_in_sglang() -> None:
    """swa_full_tokens_ratio: each of 12 windowed layers has 0.8 of the places that each of the 12 others has."""
    model = FACTS.model("gpt-oss-20b")
    shape: dict[str, Any] = {"concurrency": 1, "context": 9216, "answer": 1024, "weights": "mxfp4"}
    token = 2 * 8 * 64 * 2  # keys and values of a layer: 8 heads of 64, 16 bits
    cached = 9216 - 1024 / 2  # half of an answer, on average
    pools = serving_memory(model, engine="sglang", **shape).items["KV cache"]
    assert pools == pytest.approx(cached * token * (12 + 0.8 * 12))
    windows = serving_memory(model, engine="vllm", **shape).items["KV cache"]
    assert windows == pytest.approx(token * (12 * cached + 12 * 128), rel=0.01)  # whole blocks
    gemma = FACTS.model("Gemma-3-27B")  # is not among the models that have such pools there
    whole = serving_memory(gemma, engine="sglang", concurrency=1, context=9216).items["KV cache"]
    assert whole == 9216 * 62 * 2 * 16 * 128 * 2


def test_prompts_that_stay_in_a_pool_of_windows_are_what_it_is_full_of() -> None:
    """DeepSeek-V4 until the summer of 2026: 0.1 of the places, and each prompt of 8,192 tokens takes as many."""
    model = FACTS.model("DeepSeek-V4-Pro")
    shape: dict[str, Any] = {"concurrency": 1, "weights": "mxfp4", "kv_dtype": "fp8"}
    window, compressed = 61 * 512, 30 * (512 + 128) / 4 + 31 * 512 / 128  # bytes of a token, in 8 bits
    each = serving_memory(model, engine="sglang-2026", context=8192, **shape).items["KV cache"]
    assert each == pytest.approx(10 * 8192 * (compressed + 0.1 * window), rel=0.01)
    longer = serving_memory(model, engine="sglang-2026", context=8192 + 1024, answer=1024, **shape).items["KV cache"]
    assert longer == pytest.approx(each, rel=0.01)  # answers leave what is past their window
    now = serving_memory(model, engine="sglang", context=8192, **shape).items["KV cache"]
    assert now == pytest.approx(8192 * compressed + 128 * window, rel=0.01)


def test_pools_of_windows_are_read_or_refused(tmp_path: Path) -> None:
    def overlay(*pools: str) -> None:
        facts = {"source": "ours", "window_pools": pools}
        (tmp_path / "engines.json").write_text(json.dumps({"mine": {"like": "sglang", "facts": facts}}))

    overlay("gemma4: 0.5 with prompts")
    engine = load_facts(tmp_path).engine("mine")
    pool = engine.window_pool("gemma4")
    assert pool is not None
    assert (pool.tokens_frac, pool.holds_prompts) == (0.5, True)
    assert engine.window_pool("gpt_oss") is None
    overlay("gemma4: half")
    with pytest.raises(FlopwiseError, match="TYPE: SHARE"):
        load_facts(tmp_path).engine("mine")


def test_published_rule_of_vllm_leaves_about_what_it_logs() -> None:
    # vLLM on one 80 GB A100 or H100 with Llama-3.1-8B in bf16 logs room for roughly 420 to 450 thousand tokens
    tokens = float(kv_capacity_tokens(LLAMA_8B, 8192, 85.0e9))
    assert 390_000 < tokens < 470_000


def test_heads_are_replicated_when_tp_exceeds_them() -> None:
    eight = serving_memory(LLAMA_70B, ServingLayout(tp=8), concurrency=8, context=2048)
    sixteen = serving_memory(LLAMA_70B, ServingLayout(tp=16), concurrency=8, context=2048)
    assert float(sixteen.items["KV cache"]) == float(eight.items["KV cache"])


@settings(max_examples=20, deadline=None)
@given(
    tp=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=5),
    pp=st.sampled_from([1, 2, 3, 4]),
    concurrency=st.integers(1, 64),
    engine=st.sampled_from(["vllm", "tensorrt-llm", "sglang", "llama.cpp"]),
)
def test_a_column_is_the_same_as_one_by_one(tp: list[int], pp: int, concurrency: int, engine: str) -> None:
    def ask(degree: Any) -> Any:
        layout = ServingLayout(tp=degree, pp=pp)
        return serving_memory(
            MIXTRAL, layout, concurrency=concurrency, context=2048, hbm_bytes=85e9, weights="fp8", engine=engine
        )

    column = ask(np.array(tp))
    for i, degree in enumerate(tp):
        one = ask(degree)
        assert np.asarray(column.total_bytes)[i] == pytest.approx(one.total_bytes, rel=1e-12)
        assert np.asarray(column.max_concurrency)[i] == one.max_concurrency


@pytest.mark.parametrize("name", ["bf16", "fp8", "awq", "Q4_K_M"])
def test_stages_and_shards_together_hold_the_whole_model(name: str) -> None:
    whole = weight_bytes(LLAMA_70B, name)
    assert float(weights_per_gpu(LLAMA_70B, name, ServingLayout())) == pytest.approx(whole, rel=1e-9)
    eighth = float(weights_per_gpu(LLAMA_70B, name, ServingLayout(tp=8)))
    assert whole / 8 <= eighth < 1.001 * whole / 8  # norms stand on every rank
    staged = float(weights_per_gpu(LLAMA_70B, name, ServingLayout(pp=4)))
    assert whole / 4 <= staged < whole / 4 + 2.2e9  # a stage with the embedding or the head


def test_longer_contexts_leave_room_for_fewer_sequences_and_none_below_the_weights() -> None:
    counts = [float(max_concurrency(LLAMA_8B, c, 85e9)) for c in (2048, 8192, 32768, 131072)]
    assert counts == sorted(counts, reverse=True)
    assert float(max_concurrency(LLAMA_70B, 2048, 85e9)) == 0
    assert serving_memory(LLAMA_70B, context=2048, hbm_bytes=85e9).fits is False


def test_remedies_fit_when_they_say_so() -> None:
    layout = ServingLayout(tp=2)
    h100 = load_facts().accelerator("H100-SXM-80")
    found = serving_remedies(LLAMA_70B, layout, concurrency=32, context=4096, device=h100)
    named = {r.change: r for r in found}
    assert named["weights in fp8"].fits
    assert [r.fits for r in found] == sorted((r.fits for r in found), reverse=True)
    after = serving_memory(LLAMA_70B, ServingLayout(tp=4), concurrency=32, context=4096, hbm_bytes=85e9)
    assert named["tp 4"].total_bytes == pytest.approx(float(after.total_bytes))


def test_fractions_outside_the_card_are_refused() -> None:
    with pytest.raises(SpecError, match="fraction"):
        serving_memory(LLAMA_8B, context=1024, memory_frac=1.5)


def test_more_sequences_than_the_engine_runs_at_once_are_told() -> None:
    asked = serving_memory(LLAMA_8B, concurrency=5000, context=1024)
    assert "of 5,000 sequences requested, 1,024 run at once" in asked.assumptions[0]
    assert serving_memory(LLAMA_8B, concurrency=1024, context=1024).assumptions == ()
    assert asked.items["KV cache"] == serving_memory(LLAMA_8B, concurrency=1024, context=1024).items["KV cache"]
    assert serving_memory(LLAMA_8B, concurrency=5000, context=1024, max_batch=5000).assumptions == ()


@given(
    context=st.integers(64, 100_000),
    tp=st.sampled_from([1, 2, 4]),
    asked=st.integers(1, 5000),
    engine=st.sampled_from(["vllm", "tensorrt-llm", "sglang", "llama.cpp", "hf"]),
)
def test_one_capacity_whatever_is_asked_and_it_is_the_most_that_fits(
    context: int, tp: int, asked: int, engine: str
) -> None:
    def ask(concurrency: int | None) -> Any:
        return serving_memory(
            LLAMA_8B, ServingLayout(tp=tp), concurrency=concurrency, context=context, hbm_bytes=48e9,
            engine=engine, max_batch=4096,
        )  # fmt: skip

    most = ask(None)
    some = ask(asked)
    assert some.max_concurrency == most.max_concurrency
    assert some.kv_capacity_tokens == most.kv_capacity_tokens
    held = int(most.max_concurrency)
    assert some.fits == (asked <= held or held == 4096)
    if 0 < held < 4096:
        assert ask(held).fits
        assert not ask(held + 1).fits
        assert ask(held).total_bytes <= ask(held).usable_bytes * (1 + 1e-9)


@pytest.mark.parametrize(("kind", "items"), [("gpu", 5), ("npu", 5), ("cpu", 3), ("tpu", 3), ("soc", 3)])
def test_devices_without_graphs_or_contexts_are_charged_for_none(kind: str, items: int) -> None:
    held = serving_memory(LLAMA_8B, context=1024, device_kind=kind)
    assert sum(float(size) > 0 for size in held.items.values()) == items


def test_remedies_take_formats_that_the_device_has_kernels_for() -> None:
    volta, old, new = (load_facts().accelerator(name) for name in ("V100-SXM2-32", "T4", "H100-SXM-80"))
    assert "fp8" in runnable_formats(LLAMA_8B, "vllm", new)
    assert set(runnable_formats(LLAMA_8B, "vllm", old)).isdisjoint({"fp8", "nvfp4"})
    assert "awq" in runnable_formats(LLAMA_8B, "vllm", old)
    assert set(runnable_formats(LLAMA_8B, "vllm", volta)).isdisjoint({"awq", "int8"})


def test_engines_run_the_formats_that_their_pages_name_for_a_device() -> None:
    volta, ampere, hopper, amd = (
        load_facts().accelerator(name) for name in ("V100-SXM2-32", "A100-SXM-80", "H100-SXM-80", "MI300X")
    )
    for name, device, without in (
        ("tensorrt-llm", ampere, {"fp8", "nvfp4", "mxfp4", "mxfp8", "w4a8"}),
        ("lmdeploy", volta, {"fp8", "int8", "mxfp4"}),
        ("tgi", amd, {"awq"}),
    ):  # fmt: skip
        engine = load_facts().engine(name)
        assert engine.formats_on(hopper) == engine.formats
        assert engine.formats - engine.formats_on(device) == without
        assert engine.ports_source
        assert engine.ports_date >= "2026-11-22"
