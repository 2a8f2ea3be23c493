"""Each family that flopwise promises to read has configurations whose parameters are held against transformers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.architecture import Experts, Linear
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.facts.models.families import FAMILIES, STEERED
from flopwise.ops.cache import kv_bytes_per_token
from flopwise.ops.tensors import item_parameters, parameters

ORACLE = Path(__file__).resolve().parents[1] / "oracle"
RECORD = json.loads((ORACLE / "parameters.json").read_text(encoding="utf-8"))

# family: (small configurations by their names in the record, models of the catalog)
PROMISED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "GPT-2": (("gpt2", "gpt2-inner"), ("GPT-2",)),
    "OPT": (("opt", "opt-projected"), ("OPT-1.3b", "OPT-13b")),
    "BLOOM": (("bloom",), ("bloom",)),
    "GPT-NeoX": (("gpt_neox", "gpt_neox-sequential"), ("GPT-NeoX-20B",)),
    "GPT-J": (("gptj",), ("GPT-J-6B",)),
    "Falcon": (("falcon-mqa", "falcon-new", "falcon-sequential"), ("Falcon-7B",)),
    "MPT": (("mpt",), ("MPT-7B",)),
    "Llama 1 to 3": (("llama", "llama-bias-tied", "llama-head-dim"), ("Llama-2-7B", "Llama-3.1-8B")),
    "Llama 4": (("llama4_text", "llama4"), ("Llama-4-Scout",)),
    "Mistral": (("mistral", "ministral", "ministral3", "mistral3"), ("Mistral-7B",)),
    "Mixtral": (("mixtral",), ("Mixtral-8x7B",)),
    "Gemma 1 to 3": (("gemma", "gemma2", "gemma3_text", "gemma3", "gemma3n_text"), ("Gemma-2-9B", "Gemma-3-27B")),
    "Phi 2 to 4": (("phi", "phi3", "phi3-tied", "phimoe"), ("Phi-2", "Phi-4")),
    "Qwen 1.5 to 3": (("qwen2", "qwen2-tied", "qwen3", "qwen3-bias"), ("Qwen1.5-7B", "Qwen2.5-7B", "Qwen3-8B")),
    "Qwen with experts": (("qwen2_moe", "qwen3_moe", "qwen3_next"), ("Qwen3-30B-A3B",)),
    "DeepSeek V2, V3": (("deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4"), ("DeepSeek-V2", "DeepSeek-V3")),
    "gpt-oss": (("gpt_oss",), ("gpt-oss-20b", "gpt-oss-120b")),
    "GLM 4": (("glm4", "glm4_moe", "glm4_moe_lite"), ("GLM-4.5",)),
    "Kimi K2": (("kimi_k2", "kimi_k25"), ("Kimi-K2",)),
    "MiniMax": (("minimax", "minimax_m2"), ("MiniMax-Text-01",)),
    "Command R": (("cohere", "cohere2", "cohere-qk-norm"), ("Command-R", "Command-R+")),
    "InternLM": (("internlm3",), ("InternLM2-7B",)),
    "Nemotron": (("nemotron", "nemotron_h", "nemotron_h-latent"), ("Nemotron-4-340B",)),
    "OLMo": (("olmo", "olmo2", "olmo3", "olmoe"), ("OLMo-2-7B",)),
    "StarCoder 2": (("starcoder2", "starcoder2-untied"), ("StarCoder2-15B",)),
    "Granite": (("granite", "granitemoe", "granitemoehybrid"), ("Granite-3.1-8B",)),
    "Mamba 1, 2": (("mamba", "mamba2", "falcon_mamba"), ("Mamba-2.8B",)),
    "Jamba and other hybrids": (("jamba", "bamba", "falcon_h1", "zamba", "zamba2", "lfm2"), ("Jamba-v0.1",)),
    "BERT and kin": (("bert", "roberta", "distilbert", "modernbert", "albert", "deberta-v2"), ("bert-base-uncased",)),
    "T5": (("t5", "t5-gated", "mt5", "umt5"), ("T5-base",)),
    "Whisper": (("whisper",), ("whisper-large-v3",)),
    "ViT, CLIP": (("vit", "clip", "siglip", "dinov2"), ("ViT-B/16", "CLIP ViT-L/14")),
    "text with images": (("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "mllama", "internvl"), ()),
}


@pytest.mark.parametrize("family", PROMISED)
def test_a_promised_family_is_counted(family: str) -> None:
    small, catalog = PROMISED[family]
    assert set(small) <= set(RECORD["small"])
    for name in catalog:
        assert parameters(load_model(name, offline=True)) > 0


def test_no_family_is_left_without_a_count() -> None:
    # spellings of others; types of ours that transformers lacks (held against published sizes in the catalog)
    other_names = {"RefinedWeb", "RefinedWebModel", "minimax_text_01", "gemma3n", "qwen3_5_moe", "deit"}
    ours = {"gpt3", "megatron", "palm", "internlm2", "grok", "arctic", "nemotron-nas", "step3_text", "phi3small"}
    configurations = (ORACLE / "configurations.py").read_text(encoding="utf-8")
    configurations += (ORACLE / "random.json").read_text(encoding="utf-8")
    ours.add("dbrx")  # tests/ops/test_random_configurations.py
    for kind in set(FAMILIES) - other_names - ours:
        assert f'"{kind}"' in configurations, kind


def test_a_shared_block_has_one_set_of_weights_and_its_own_cache() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100}
    scan = {"mamba_d_state": 8, "n_mamba_heads": 4, "adapter_rank": 4, "intermediate_size": 128}
    one = {"layers_block_type": ["mamba", "hybrid", "mamba", "mamba"]}
    three = {"layers_block_type": ["hybrid", "hybrid", "mamba", "hybrid"]}
    base = {"model_type": "zamba2", **sizes, **scan}
    few, many = (model_from_config({**base, **kinds}, name="z") for kinds in (one, three))
    adapters = 64 * 4 + 4 * 2 * 128
    assert parameters(many) - parameters(few) == 2 * (64 * 64 + adapters)  # what each use has of its own


@pytest.mark.parametrize("kinds", [["mamba"], ["mamba", "hybrid", "attention", "mamba"], []])
def test_kinds_of_layers_that_cannot_be(kinds: list[str]) -> None:
    config = {"model_type": "zamba2", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    with pytest.raises(SpecError, match="layers_block_type"):
        model_from_config({**config, "vocab_size": 100, "layers_block_type": kinds}, name="z")


def test_layers_of_a_pruned_llama_have_what_their_blocks_say() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 4}, "ffn": {"ffn_mult": 2.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.5}},
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        {"attention": {"no_op": True}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 2}, "ffn": {"replace_with_linear": True}},
    ]
    sizes = {"hidden_size": 384, "num_hidden_layers": 5, "num_attention_heads": 8, "vocab_size": 100}
    model = model_from_config({"model_type": "nemotron-nas", **sizes, "block_configs": blocks}, name="n")
    attend = 2 * 384 * 384
    layers = (
        (attend + 2 * 384 * 2 * 48 + 384) + (3 * 384 * 512 + 384),  # 2 x 2 x 384 / 3 columns are a multiple of 256
        3 * 384 * 256 + 384,  # 128 columns are rounded up
        384 * 384 + 384,
        (attend + 2 * 384 * 4 * 48 + 384) + (384 * 384 + 384),
    )
    assert parameters(model) == 2 * 100 * 384 + 384 + sum(layers)
    assert model.stacks[0].num_layers == len(layers)
    assert kv_bytes_per_token(model, 2) == 2 * 2 * (2 + 4) * 48


@pytest.mark.parametrize(
    "blocks", [[], ["attention"], [{"attention": {"n_heads_in_group": 3}, "ffn": {"ffn_mult": 1.0}}]]
)
def test_blocks_of_a_pruned_llama_that_cannot_be(blocks: list[object]) -> None:
    sizes = {"hidden_size": 384, "num_hidden_layers": 1, "num_attention_heads": 8, "vocab_size": 100}
    with pytest.raises(SpecError, match=r"block_configs|n_heads_in_group"):
        model_from_config({"model_type": "nemotron-nas", **sizes, "block_configs": blocks}, name="n")


def test_neighbours_that_share_keys_and_values_cache_them_once() -> None:
    """Hunyuan-Large: 32 of 64 layers keep 8 keys and values of 80 elements, in 16 bits."""
    assert kv_bytes_per_token(load_model("Hunyuan-Large-389B"), 2) == 32 * 2 * 8 * 80 * 2


def test_experts_that_return_their_input_do_no_work() -> None:
    """LongCat-Flash: a third of 12 choices; the router chooses among all 768, and two attentions a layer are cached."""
    model = load_model("LongCat-Flash-560B")
    experts = [i for layer in model.stacks[0].kinds for i in layer.items if isinstance(i, Experts)]
    routers = [i for layer in model.stacks[0].kinds for i in layer.items if i.name == "router"]
    assert {(e.experts, e.top_k) for e in experts} == {(512, 8)}
    assert {r.outputs for r in routers if isinstance(r, Linear)} == {768}
    assert kv_bytes_per_token(model, 2) == 2 * 28 * (512 + 64) * 2


def test_queries_of_low_rank_and_one_key() -> None:
    """Step 3, a layer's attention by hand (arXiv 2507.19427, table 2): 64 heads of 256 through a rank of 2,048."""
    model = load_model("Step3")
    items = model.stacks[0].kinds[0].items
    attend = sum(item_parameters(i) for i in items if i.name.startswith("attention/"))
    assert attend == 7168 * 2048 + 2048 + 2048 * 64 * 256 + 2 * 7168 * 256 + 64 * 256 * 7168
    assert kv_bytes_per_token(model, 2) == 61 * 2 * 256 * 2


def test_the_last_of_each_group_of_layers_caches_a_latent() -> None:
    """Ling 3: one of six of 42 layers, a vector of 512 and 64 rotated elements a token, in 16 bits."""
    assert kv_bytes_per_token(load_model("Ling-3.0-Flash"), 2) == 7 * (512 + 64) * 2


def test_families_whose_routers_add_a_bias_are_those_of_transformers() -> None:
    """A modeling file names the numbers that a router adds before it selects, or it has none."""
    where = find_spec("transformers")
    if where is None or not where.submodule_search_locations:
        pytest.skip("transformers is the witness")
    folder = Path(where.submodule_search_locations[0]) / "models"
    files = {name: folder / name / f"modeling_{name}.py" for name in FAMILIES}
    texts = {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.is_file()}
    named = {name for name, text in texts.items() if "e_score_correction_bias" in text or "expert_bias" in text}
    assert len(named) > 15
    assert named - STEERED == set()
    assert STEERED.intersection(texts) - named == {"kimi_k25"}  # its language model is a DeepSeek V3
    assert set(FAMILIES) >= STEERED
