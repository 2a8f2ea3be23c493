"""Cached bytes against published figures, by attention type."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.errors import SpecError
from flopwise.facts.architecture import Attend, Model
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.cache import kv_bytes_per_token, kv_cache_bytes
from flopwise.ops.shapes import Shape, Split
from flopwise.ops.work import item_work


def model(model_type: str, width: int, layers: int, heads: int, kv_heads: int, **more: Any) -> Model:
    base = {
        "model_type": model_type,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": 1000,
        "max_position_embeddings": 131072,
    }
    return model_from_config({**base, **more}, name=model_type)


def attends(spec: Model) -> list[Attend]:
    """Every attention of the generating stack, layer by layer."""
    stack = spec.stacks[0]
    return [i for k in stack.order for i in stack.kinds[k].items if isinstance(i, Attend)]


def deepseek() -> Model:
    heads = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    latent = {"kv_lora_rank": 512, "q_lora_rank": 1536, **heads}
    experts = {"n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048}
    groups = {"first_k_dense_replace": 3, "n_group": 8, "topk_group": 4}
    return model("deepseek_v3", 7168, 61, 128, 128, **latent, **experts, **groups)


# 16-bit bytes a token. Llama 2: 2 * L * D elements; DeepSeek-V3: 61 layers of 576; OPT-13B: 800 KB in Kwon et al. 2023.
GOLDEN = {
    "llama-2-7b": (model("llama", 4096, 32, 32, 32), 524_288),
    "llama-3-8b": (model("llama", 4096, 32, 32, 8), 131_072),
    "llama-3-70b": (model("llama", 8192, 80, 64, 8), 327_680),
    "deepseek-v3": (deepseek(), 70_272),
    "opt-13b": (model("opt", 5120, 40, 40, 40, ffn_dim=20480, word_embed_proj_dim=5120), 819_200),
    "falcon-7b": (model("falcon", 4544, 32, 71, 1, multi_query=True, new_decoder_architecture=False), 8_192),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_bytes_per_token(name: str) -> None:
    spec, expected = GOLDEN[name]
    assert kv_bytes_per_token(spec, 2.0) == expected
    assert kv_cache_bytes(spec, 1000, 3, 2.0) == 3000 * expected


def test_mistral_7b_keeps_its_window() -> None:
    mistral = model("mistral", 4096, 32, 32, 8, sliding_window=4096)
    assert kv_bytes_per_token(mistral, 2.0) == 0  # rolls over
    assert kv_cache_bytes(mistral, 1024, 1, 2.0) == 1024 * 131_072
    assert kv_cache_bytes(mistral, 32768, 1, 2.0) == 4096 * 131_072
    assert kv_cache_bytes(mistral, 32768, 1, 2.0, full_windows=True) == 32768 * 131_072


def test_gemma_2_alternates_and_gemma_3_keeps_one_in_six() -> None:
    two = model("gemma2", 3584, 42, 16, 8, head_dim=256, sliding_window=4096)
    each = 2 * 8 * 256 * 2
    assert kv_bytes_per_token(two, 2.0) == 21 * each
    assert kv_cache_bytes(two, 8192, 1, 2.0) == 21 * each * (8192 + 4096)
    three = model("gemma3_text", 5376, 62, 32, 16, head_dim=128, sliding_window=1024)
    each = 2 * 16 * 128 * 2
    assert kv_bytes_per_token(three, 2.0) == 10 * each
    assert kv_cache_bytes(three, 131072, 1, 2.0) == each * (10 * 131072 + 52 * 1024)


def test_gpt_oss_alternates_windows_of_128() -> None:
    oss = model(
        "gpt_oss", 2880, 24, 64, 8, head_dim=64, sliding_window=128, num_local_experts=32, num_experts_per_tok=4
    )
    each = 2 * 8 * 64 * 2
    assert kv_cache_bytes(oss, 100_000, 1, 2.0) == 12 * each * (100_000 + 128)


def test_tensor_parallel_ranks_replicate_heads_and_latents() -> None:
    tp = np.array([1, 2, 4, 8, 16, 64])
    llama, expected = GOLDEN["llama-3-70b"]
    assert np.all(kv_bytes_per_token(llama, 2.0, tp=tp) == expected / np.array([1, 2, 4, 8, 8, 8]))
    assert np.all(kv_cache_bytes(deepseek(), 10, 1, 2.0, tp=tp) == 10 * 70_272)


def test_deepseek_v4_keeps_a_window_and_compressed_keys() -> None:
    spec = load_model("DeepSeek-V4-Flash")
    ratios = [item.compress for item in attends(spec) if not item.name.startswith("indexer")]
    assert set(ratios) == {0, 4, 128}
    per_key = 512 * 2  # one head of 512 as key and value
    index = 128 * 2  # the indexer's own keys, beside every key that stands for 4 tokens
    grown = sum({0: 0.0, 4: (per_key + index) / 4, 128: per_key / 128}[ratio] for ratio in ratios)
    assert kv_bytes_per_token(spec, 2.0) == pytest.approx(grown)
    context = 131_072
    assert kv_cache_bytes(spec, context, 1, 2.0) == pytest.approx(grown * context + len(ratios) * 128 * per_key)
    assert kv_cache_bytes(spec, 1000, 1, 2.0, full_windows=True) > kv_cache_bytes(spec, 1000, 1, 2.0)
    v32 = load_model("DeepSeek-V3.2")
    assert 0.05 < kv_cache_bytes(spec, 2**20, 1, 2.0) / kv_cache_bytes(v32, 2**20, 1, 2.0) < 0.2


def test_an_encoder_has_no_cache() -> None:
    bert = model("bert", 768, 12, 12, 12)
    with pytest.raises(SpecError, match="keeps no cache"):
        kv_cache_bytes(bert, 10, 1, 2.0)


@given(
    context=st.integers(1, 10_000),
    batch=st.integers(1, 64),
    tp=st.sampled_from([1, 2, 8, 32]),
    bits=st.sampled_from([1.0, 2.0]),
)
def test_grid_equals_scalar(context: int, batch: int, tp: int, bits: float) -> None:
    spec = model("gemma2", 512, 6, 8, 4, head_dim=64, sliding_window=512)
    grid = kv_cache_bytes(spec, np.array([[context], [7]]), np.array([batch, 3]), bits, tp=np.array([tp, 1]))
    assert grid.shape == (2, 2)  # type: ignore[union-attr]
    assert grid[0, 0] == kv_cache_bytes(spec, context, batch, bits, tp=tp)  # type: ignore[index]


@given(context=st.integers(1, 20_000))
def test_a_longer_context_never_needs_less(context: int) -> None:
    spec = model("gemma2", 512, 6, 8, 4, head_dim=64, sliding_window=512)
    assert kv_cache_bytes(spec, context + 1, 1, 2.0) >= kv_cache_bytes(spec, context, 1, 2.0)


def test_minimax_m3_reads_the_best_blocks_and_caches_one_key_for_its_indexer() -> None:
    spec = load_model("MiniMax-M3")
    # K and V of 4 heads of 128 in 60 layers, one key of 128 beside them in the 57 that choose
    assert kv_bytes_per_token(spec, 2.0) == 2 * (60 * 2 * 4 * 128 + 57 * 128) == 137_472
    shape, whole = Shape(batch=1, query=1, context=100_000), Split()
    read = dict.fromkeys(("attention/attend", "indexer/scores"), 0.0)
    for item in attends(spec):
        work = item_work(item, shape, whole)
        assert work is not None
        read[item.name] += float(work.kv_elems)
    # 3 layers see all keys, 57 the best 16 blocks of 128; their indexer sees every key of its own
    assert read["attention/attend"] == (3 * 100_000 + 57 * 16 * 128) * 2 * 4 * 128
    assert read["indexer/scores"] == 57 * 100_000 * 128


def test_minimax_m3_s_checkpoint_names_the_same_layers() -> None:
    small: dict[str, Any] = {
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "dense_intermediate_size": 64,
    }
    small |= {"shared_intermediate_size": 32, "mlp_layer_types": ["dense", "sparse", "sparse"], "rotary_dim": 8}
    numbers = {"sparse_num_index_heads": 2, "sparse_index_dim": 16, "sparse_topk_blocks": 4, "sparse_block_size": 32}
    published = {"sparse_attention_config": {**numbers, "sparse_attention_freq": [0, 1, 1]}}
    flat: dict[str, Any] = {"index_n_heads": 2, "index_head_dim": 16, "index_topk_blocks": 4, "index_block_size": 32}
    flat |= {"layer_types": ["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]}
    theirs, ours = (model("minimax_m3_vl_text", 64, 3, 4, 2, **small, **more) for more in (published, flat))
    assert [i.select for i in attends(theirs) if i.name == "attention/attend"] == [None, 128, 128]
    assert theirs.stacks == ours.stacks


@pytest.mark.parametrize("name", ["microsoft/Phi-3-mini-128k-instruct", "microsoft/Phi-3.5-mini-instruct"])
def test_long_variants_of_phi_3_keep_their_whole_context(name: str) -> None:
    """Their windows of 262,144 tokens (config.json) are longer than their 131,072 positions; those of 4k have 2,047."""
    assert kv_cache_bytes(load_model(name), 100_000, 1, 2) == 100_000 * 32 * 2 * 3072 * 2
    assert kv_cache_bytes(load_model("Phi-3-mini-4k"), 4096, 1, 2) == 2047 * 32 * 2 * 3072 * 2
