"""Each family that flopwise promises to read has configurations whose parameters are held against transformers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.facts.models.families import FAMILIES, STEERED
from flopwise.ops.tensors import parameters

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
    ours = {"gpt3", "megatron", "palm", "internlm2"}
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
