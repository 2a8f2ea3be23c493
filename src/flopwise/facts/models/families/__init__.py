"""Families of architectures: one small file for each group of near-identical ones.

A family is a function from the fields of a `config.json` to a `Model`'s stacks. `FAMILIES` maps a `model_type` to its
file and function; the file is imported when a model of the family is asked for. A new family is one function and one
line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from flopwise.facts.architecture import Model
from flopwise.facts.models.fields import Fields

Family = Callable[[Fields], Model]

_BY_FILE: dict[str, dict[str, str]] = {
    "llama": {
        "llama": (
            "llama mistral ministral ministral3 qwen2 qwen3 internlm2 internlm3 granite smollm3 seed_oss arcee helium "
            "ernie4_5 exaone4 olmo olmo2 olmo3 gemma gemma2 gemma3_text phi phi3 glm glm4 cohere cohere2 nemotron "
            "starcoder2 stablelm apertus bitnet cwm granite_swa hunyuan_v1_dense hyperclovax iquestcoder jais2 "
            "nanochat persimmon vaultgemma exaone phi3small qwen2_vl_text qwen2_5_vl_text qwen3_vl_text"
        ),
        "nemotron_nas": "nemotron-nas",
    },
    "moe": {
        "mixture_model": (
            "mixtral qwen2_moe qwen3_moe phimoe olmoe granitemoe granitemoeshared gpt_oss minimax_m2 glm4_moe dots1 "
            "mimo_v2_flash qwen3_vl_moe_text minimax_m3_vl_text afmoe cohere2_moe ernie4_5_moe exaone_moe flex_olmo "
            "granitemoe_swa hunyuan_v1_moe mellum solar_open hy_v3 laguna sarvam_moe grok"
        ),
        "arctic": "arctic",
        "llama4": "llama4_text",
    },
    "deepseek": {
        "deepseek": (
            "deepseek_v2 deepseek_v3 deepseek_v32 glm4_moe_lite glm_moe_dsa kimi_k2 youtu minicpm3 sarvam_mla mistral4 "
            "axk1"
        ),
        "longcat_flash": "longcat_flash",
        "kimi_linear": "kimi_linear",
        "ling_hybrid": "bailing_hybrid",
    },
    "gpt": {
        "gpt2": "gpt2 gpt-sw3 gpt3 megatron gpt_bigcode",
        "openai_gpt": "openai-gpt",
        "ctrl": "ctrl",
        "biogpt": "biogpt xglm",
        "gpt_neo": "gpt_neo",
        "gptj": "gptj codegen",
        "gpt_neox": "gpt_neox",
        "opt": "opt",
        "bloom": "bloom",
        "mpt": "mpt",
        "falcon": "falcon RefinedWeb RefinedWebModel",
        "gpt_neox_japanese": "gpt_neox_japanese",
        "dbrx": "dbrx",
        "palm": "palm",
    },
    "bert": {
        "bert": (
            "bert roberta xlm-roberta camembert electra mpnet data2vec-text ernie esm gte ibert jina_embeddings_v3 "
            "layoutlm megatron-bert nomic_bert rembert roberta-prelayernorm roformer xlm-roberta-xl big_bird fnet "
            "roc_bert squeezebert xmod"
        ),
        "bert_generation": "bert-generation",
        "albert": "albert",
        "distilbert": "distilbert",
        "modernbert": "modernbert",
        "modernbert_decoder": "modernbert-decoder",
        "deberta": "deberta deberta-v2",
        "eurobert": "eurobert",
    },
    "hybrid": {
        "mamba": "mamba falcon_mamba",
        "mamba_two": "mamba2",
        "jamba": "jamba",
        "bamba": "bamba",
        "granite_hybrid": "granitemoehybrid",
        "falcon_h1": "falcon_h1",
        "nemotron_h": "nemotron_h",
        "qwen_next": "qwen3_next qwen3_5_text qwen3_5_moe_text",
        "minimax": "minimax minimax_text_01",
        "lfm2": "lfm2 lfm2_moe",
        "recurrent_gemma": "recurrent_gemma",
        "olmo_hybrid": "olmo_hybrid",
    },
    "differential": {"diffllama": "diffllama", "doge": "doge"},
    "zamba": {"zamba": "zamba", "zamba2": "zamba2"},
    "seq2seq": {
        "t5": "t5 mt5 umt5 switch_transformers",
        "fsmt": "fsmt",
        "bart": "bart blenderbot blenderbot-small m2m_100 marian mbart mvp pegasus plbart nllb-moe",
        "whisper": "whisper",
    },
    "vision": {
        "vit": "vit deit ijepa vit_msn",
        "beit": "beit data2vec-vision",
        "spectrogram": "audio-spectrogram-transformer",
        "clip": "clip",
        "siglip": "siglip",
        "dinov2": "dinov2 dinov2_with_registers",
        "dinov3": "dinov3_vit",
    },
    "speech": {"speech": "wav2vec2 hubert unispeech unispeech-sat"},
    "multimodal": {
        "llava": "llava llava_next",
        "mistral3": "mistral3",
        "gemma3": "gemma3 paligemma",
        "qwen_vl": "qwen2_vl qwen2_5_vl qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe",
        "llama4": "llama4",
        "internvl": "internvl",
        "kimi": "kimi_k25",
        "mllama": "mllama",
        "mllama_text": "mllama_text_model",
    },
    "gemma": {"gemma4": "gemma4", "gemma4_text": "gemma4_text", "gemma3n_text": "gemma3n_text", "gemma3n": "gemma3n"},
    "deepseek4": {"deepseek4": "deepseek_v4"},
    "step": {"step_text": "step3p5", "step": "step3p7", "step3_text": "step3_text"},
}
"""By file and function, the model types that it reads."""
FAMILIES: dict[str, tuple[str, str]] = {
    model_type: (file, function)
    for file, functions in _BY_FILE.items()
    for function, types in functions.items()
    for model_type in types.split()
}
STEERED = frozenset({
    "afmoe", "axk1", "bailing_hybrid", "deepseek_v3", "deepseek_v32", "deepseek_v4", "dots1", "ernie4_5_moe",
    "exaone_moe", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "hy_v3", "kimi_k2", "kimi_k25", "kimi_linear", "laguna",
    "lfm2_moe", "longcat_flash", "mimo_v2_flash", "minimax_m2", "minimax_m3_vl_text", "nemotron_h", "sarvam_mla",
    "sarvam_moe", "solar_open", "step3p5", "step3p7",
})  # fmt: skip
"""Families whose routers add a number an expert to the scores that select, which evened out the load in training.

Source: transformers 5.24, modeling files of these types: `e_score_correction_bias`, or `expert_bias` (AFMoE, LFM2;
Sarvam's own file too); the loss-free balance of Wang et al. 2024 (arXiv:2408.15664). Kimi K2 is built as DeepSeek V3.
Assumes: models read as one of these have it, too."""


def family(model_type: str) -> Family | None:
    """The function that reads configurations of `model_type`, or None."""
    if model_type not in FAMILIES:
        return None
    file, function = FAMILIES[model_type]
    builder: Family = getattr(import_module(f"{__name__}.{file}"), function)
    return builder
