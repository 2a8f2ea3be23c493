"""Low-rank adapters of a plan as PEFT has them, and the frozen weights below as bitsandbytes has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flopwise.exports.deployment import Deployment
from flopwise.exports.step_counts import train_job

SIXTEEN_OR_MORE = ("bf16", "fp16", "fp32")
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
QUANTIZED: Mapping[str, Mapping[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": False},
    "nf4-dq": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
    "llm-int8": {"load_in_8bit": True},
}
"""Formats of data/weight_formats.csv that bitsandbytes quantises weights into as they are loaded."""
SEPARATE = {
    "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "o_proj", "gate": "gate_proj", "up": "up_proj",
    "down": "down_proj",
}  # fmt: skip
_FUSED = {**dict.fromkeys("qkv", "query_key_value"), "o": "dense", "up": "dense_h_to_4h", "down": "dense_4h_to_h"}
_BERT = {
    "q": "query", "k": "key", "v": "value", "o": "attention.output.dense", "up": "intermediate.dense",
    "down": "output.dense",
}  # fmt: skip
MODULES: Mapping[str, Mapping[str, str]] = {
    "gpt2": {**dict.fromkeys("qkv", "c_attn"), "o": "attn.c_proj", "up": "c_fc", "down": "mlp.c_proj"},
    "gptj": {**SEPARATE, "o": "out_proj", "up": "fc_in", "down": "fc_out"},
    "gpt_neox": _FUSED, "falcon": _FUSED, "bloom": _FUSED,
    "phi3": {
        **dict.fromkeys("qkv", "qkv_proj"), "o": "o_proj", **dict.fromkeys(("gate", "up"), "gate_up_proj"),
        "down": "down_proj",
    },
    "phi": {**SEPARATE, "o": "dense", "up": "fc1", "down": "fc2"},
    "opt": {**SEPARATE, "o": "out_proj", "up": "fc1", "down": "fc2"},
    "bert": _BERT, "roberta": _BERT, "xlm-roberta": _BERT,
    **dict.fromkeys(
        ("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2", "olmo2",
         "gpt_oss", "granite", "smollm3"),
        SEPARATE,
    ),
}  # fmt: skip
"""Names of the projections in transformers' modules, by model type."""


def refusals(deployment: Deployment) -> Iterator[str]:
    """Why PEFT cannot have the plan's adapters; nothing where it has none."""
    job, model = train_job(deployment), deployment.model
    if (lora := job.recipe.lora) is None:
        return
    if model.model_type not in MODULES:
        yield (
            f"the names of the projections of {model.model_type or model.name} are not known here; known: "
            f"{', '.join(sorted(MODULES))}"
        )
    if lora.base.name not in (*SIXTEEN_OR_MORE, *QUANTIZED):
        yield f"bitsandbytes has no {lora.base.name}; plan again with --base-format {' or '.join(QUANTIZED)}"
    if lora.method == "lora-fa" or lora.scales_outputs:
        yield "PEFT's LoRA trains both matrices and scales no results; plan again with --lora"
    down, out = "down" in lora.targets, "o" in lora.targets
    if MODULES.get(model.model_type) is _BERT and down and not out:
        yield "PEFT tells modules apart by the ends of their names: down (output.dense) takes o with it; target both"


def adapter_config(deployment: Deployment) -> dict[str, Any]:
    """PEFT's adapter_config.json of the plan's adapters."""
    job = train_job(deployment)
    lora = job.recipe.lora
    assert lora is not None
    names = MODULES[deployment.model.model_type]
    masked = deployment.model.kind == "encoder"
    whole = [{"embedding": "embed_tokens", "head": "lm_head"}[part] for part in lora.extra_trainable]
    return {
        "peft_type": "LORA",
        "task_type": None if masked else "CAUSAL_LM",
        "base_model_name_or_path": deployment.model_id,
        "r": lora.rank,
        "lora_alpha": lora.rank,
        "lora_dropout": 0.0,
        "use_dora": lora.method == "dora",
        "target_modules": sorted({names[target] for target in lora.targets if target in names}),
        "modules_to_save": whole or None,
        "bias": "none",
        "fan_in_fan_out": deployment.model.model_type == "gpt2",  # whose layers are convolutions of width 1
    }


def quantization(deployment: Deployment, *, sharded: bool) -> dict[str, Any] | None:
    """BitsAndBytesConfig of the frozen weights, None where they stay in 16 bits or more.

    `sharded`: FSDP cuts them, and so has to see them in the type that is computed in.
    """
    job = train_job(deployment)
    lora = job.recipe.lora
    if lora is None or lora.base.name not in QUANTIZED:
        return None
    config = {"quant_method": "bitsandbytes", **QUANTIZED[lora.base.name]}
    if "load_in_4bit" in config:
        dtype = DTYPES[deployment.candidate.layout["precision"]]
        config["bnb_4bit_compute_dtype"] = dtype
        config["bnb_4bit_quant_storage"] = dtype if sharded else "uint8"
    return config


def assumptions(deployment: Deployment) -> tuple[str, ...]:
    """What is chosen of adapters beyond the plan."""
    job = train_job(deployment)
    if job.recipe.lora is None:
        return ()
    why = "so that adapters count as they are (Hu et al. 2021, arXiv:2106.09685, section 4.1)"
    return (f"lora_alpha is the rank, {why}; the plan has neither it nor a dropout",)
