"""Record the default values of the configurations that transformers knows into `src/flopwise/data/model_defaults.json`.

A nested configuration on the hub (the `text_config` of a multimodal model) leaves out whatever equals its class's
default, and older files lack keys that came later; those defaults are facts about the classes, kept as data with the
version they are from.

Run: `python tests/oracle/record_defaults.py` where transformers is installed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

TARGET = Path(__file__).resolve().parents[2] / "src" / "flopwise" / "data" / "model_defaults.json"

TYPES = """
llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe
qwen3_5_moe_text gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text gemma4_vision phi
phi3 phimoe deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 gpt_oss glm glm4 glm4_moe glm4_moe_lite
glm_moe_dsa glm4v glm4v_text glm4v_moe glm4v_moe_text kimi_k25 kimi_linear minimax minimax_m2 minimax_m3_vl
cohere cohere2 internlm3 nemotron nemotron_h olmo olmo2 olmo3 olmoe starcoder2 gpt_bigcode granite granitemoe
granitemoeshared granitemoehybrid mamba mamba2 falcon_mamba jamba bamba zamba zamba2 falcon_h1 stablelm
smollm3 seed_oss ernie4_5 ernie4_5_moe exaone4 gpt2 opt bloom gpt_neox gptj gpt_neo falcon mpt codegen bert
roberta distilbert modernbert deberta-v2 xlm-roberta electra albert mpnet t5 mt5 umt5 bart whisper vit clip
clip_text_model clip_vision_model siglip siglip_text_model siglip_vision_model siglip2 siglip2_vision_model
dinov2 dinov2_with_registers dinov3_vit llava llava_next llava_onevision qwen2_vl qwen2_vl_text qwen2_5_vl
qwen2_5_vl_text qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text mllama mllama_text_model
mllama_vision_model llama4 llama4_text llama4_vision_model mistral3 mistral4 ministral3 pixtral internvl
internvl_vision paligemma idefics3 smolvlm smolvlm_vision qwen2_vl_vision qwen2_5_vl_vision qwen3_vl_vision
qwen3_vl_moe_vision qwen3_5_vision qwen3_5_moe_vision step3p5_vision idefics3_vision aimv2 mimo_v2_flash
step3p7 step3p5 apertus hunyuan_v1_dense hunyuan_v1_moe dots1 longcat_flash lfm2 lfm2_moe arcee helium
minimax_m3_vl_text kimi_k25_vision moonvit qwen2_audio aya_vision ovis2 ministral camembert deit
afmoe bitnet cwm granite_swa hyperclovax iquestcoder jais2 nanochat persimmon vaultgemma cohere2_moe exaone_moe
flex_olmo granitemoe_swa mellum solar_open gpt-sw3 openai-gpt ctrl biogpt xglm ernie data2vec-text ibert
megatron-bert xlm-roberta-xl roberta-prelayernorm roformer rembert nomic_bert esm eurobert gte
jina_embeddings_v3 big_bird xmod layoutlm mra nystromformer yoso deberta mbart marian pegasus mvp plbart
blenderbot blenderbot-small m2m_100 minicpm3 youtu recurrent_gemma longformer roc_bert fnet jetmoe dbrx
switch_transformers longt5 led prophetnet beit vit_msn ijepa data2vec-vision yolos vit_mae wav2vec2 hubert
gpt_neox_japanese dinov3_vit
bert-generation squeezebert modernbert-decoder exaone hy_v3 laguna sarvam_moe sarvam_mla olmo_hybrid fsmt nllb-moe
diffllama doge audio-spectrogram-transformer unispeech unispeech-sat axk1 bailing_hybrid
""".split()  # noqa: SIM905 - a table of words

SKIPPED = re.compile(
    r"_token_id$|^(output_|use_cache|return_dict|initializer|transformers_version|architectures$|dtype$|chunk_size_feed|id2label|label2id|problem_type|"
    r"_name_or_path|pretraining_tp|rope_|summary_|layer_norm_eps|rms_norm_eps|norm_eps|norm_epsilon|layer_norm_epsilon|router_|scale_|classifier_|"
    r"ctc_|apply_spec|mask_|max_source|max_target|use_weighted|init_|use_return|begin_supp|suppress|logit_scale|problem|is_encoder_decoder|"
    r"residual_mult|embedding_mult|logits_scal|attention_mult|time_step|median_|repad|sparse_pred|reference_comp|local_attention_|deterministic|"
    r"global_rope|local_rope|partial_rotary|embd_pdrop|rescale|image_mean|image_std)"
)
KEPT = re.compile(r"^(output_embedding_size|partial_rotary_factor|init_std_never|rope_theta_never)$")


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default, its factory called; None where there is neither."""
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def plain(value: Any) -> bool:
    """Whether the value is small data."""
    if isinstance(value, list | tuple):
        return len(value) <= 64 and all(plain(v) for v in value)
    if isinstance(value, dict):
        return len(value) <= 8 and all(plain(v) for v in value.values())
    return value is None or isinstance(value, bool | int | float | str)


def record(model_type: str) -> dict[str, Any] | None:
    """The defaults, attribute map and nested configurations of one model type."""
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    try:
        cls = CONFIG_MAPPING[model_type]
    except KeyError:
        return None
    defaults = {f.name: default_of(f) for f in dataclasses.fields(cls)}
    kept = {
        k: v
        for k, v in defaults.items()
        if plain(v) and (KEPT.match(k) or not SKIPPED.search(k)) and k not in (cls.sub_configs or {})
    }
    entry: dict[str, Any] = {"defaults": kept}
    if cls.attribute_map:
        entry["same"] = dict(cls.attribute_map)
    if cls.sub_configs:
        instance = AutoConfig.for_model(model_type)
        nested = {k: getattr(instance, k, None) for k in cls.sub_configs}
        entry["nested"] = {k: v.model_type for k, v in nested.items() if v is not None}
    return entry


def main() -> None:
    """Write the file."""
    import transformers

    types: dict[str, Any] = {}
    missing = []
    for model_type in dict.fromkeys(TYPES):
        entry = record(model_type)
        if entry is None:
            missing.append(model_type)
        else:
            types[model_type] = entry
    lines = [f"  {json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in sorted(types.items())]
    head = json.dumps({"transformers": transformers.__version__})[1:-1]
    TARGET.write_text("{\n  " + head + ',\n  "types": {\n' + ",\n".join(lines) + "\n  }\n}\n", encoding="utf-8")
    print(f"{len(types)} types; not in this transformers: {missing}")  # noqa: T201 - a script that reports


if __name__ == "__main__":
    main()
