"""In which format weights are published."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import named_format, published_format
from named import FACTS


@pytest.mark.parametrize(
    ("held", "form"),
    [
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "fp8-block"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "awq", "bits": 4}, "awq"),
        ({"quant_method": "gptq", "bits": 8}, "gptq-int8"),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, "nf4-dq"),
        ({"quant_method": "something new"}, None),
        ("nonsense", None),
    ],
)
def test_a_configuration_names_its_format(held: Any, form: str | None) -> None:
    assert published_format({"quantization_config": held}) == form
    assert published_format({"text_config": {"quantization_config": held}}) == form
    assert published_format({}) is None


@pytest.mark.parametrize(
    ("name", "form"),
    [("nvidia/Llama-3.1-8B-Instruct-FP8", "fp8"), ("x/Qwen3-32B-NVFP4", "nvfp4"), ("y/Mistral-7B-AWQ", "awq"),
     ("Llama-3.1-8B", None), ("fp8-thoughts/model", None), ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int8", "gptq-int8"),
     ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", "gptq"), ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "awq"),
     ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "int8"),
     ("x/Llama-3.1-8B-quantized.w8a16", "int8-weight-only"), ("RedHatAI/Qwen3-8B-FP8-dynamic", "fp8"),
     ("x/Qwen3-8B-FP8-block", "fp8-block"), ("amd/Llama-3.1-405B-FP8-KV", "fp8"),
     ("nvidia/DeepSeek-R1-FP4", "nvfp4"), ("amd/DeepSeek-R1-MXFP4-Preview", "mxfp4"),
     ("unsloth/Llama-3.2-1B-Instruct-bnb-4bit", "nf4"), ("unsloth/gemma-3-4b-it-unsloth-bnb-4bit", "nf4"),
     ("x/Llama-2-7b-bnb-8bit", "llm-int8"), ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "awq"),
     ("Intel/Qwen3-8B-int4-AutoRound", "gptq"), ("mlx-community/Qwen3-8B-4bit", "mlx-4bit"),
     ("lmstudio-community/Qwen3-30B-A3B-MLX-8bit", "mlx-8bit"), ("Qwen3-8B-4bit", None),
     ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", "Q4_K_M"), ("Qwen3-30B-A3B-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
     ("unsloth/Qwen3-8B-GGUF:IQ4_XS", "IQ4_XS"), ("Qwen3-8B-IQ4_XS", "IQ4_XS"), ("unsloth/Qwen3-8B-GGUF", None),
     ("turboderp/Llama-3.1-8B-Instruct-exl2-4.65bpw", "exl2-4.65"), ("x/Qwen3-32B-exl3-3.5", "exl3-3.5"),
     ("x/Qwen3-32B-4.0bpw", "exl2-4")],
)  # fmt: skip
def test_a_name_tells_its_format(name: str, form: str | None) -> None:
    assert named_format(name) == form
    assert form is None or FACTS.weight_format(form).name


@pytest.mark.parametrize(
    ("name", "model", "form"),
    [("bartowski/Qwen2.5-7B-Instruct-Q4_K_M.gguf", "Qwen2.5-7B", "Q4_K_M"),
     ("mlx-community/Llama-3.2-3B-Instruct-4bit", "Llama-3.2-3B", "mlx-4bit"),
     ("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w4a16", "Llama-3.1-8B", "awq"),
     ("unsloth/gemma-3-4b-it-unsloth-bnb-4bit", "Gemma-3-4B (text tower)", "nf4"),
     ("hf.co/unsloth/Qwen3.6-27B-GGUF:UD-Q4_K_XL", "Qwen3.5-27B (text)", "UD-Q4_K_XL"),
     ("gpt-oss-20b-Q4_K_M.gguf", "gpt-oss-20b", "mxfp4"),
     ("unsloth/gpt-oss-20b-unsloth-bnb-4bit", "gpt-oss-20b", "nf4"),
     ("amd/DeepSeek-R1-0528-MXFP4", "DeepSeek-R1", "mxfp4")],
)  # fmt: skip
def test_a_name_tells_architecture_and_format_together(name: str, model: str, form: str) -> None:
    found = load_model(name, offline=True)
    assert (found.name, found.checkpoint_format) == (model, form)


def test_formats_of_the_catalog_are_known() -> None:
    held = {name: load_model(name).checkpoint_format for name in FACTS.models.names}
    for form in filter(None, held.values()):
        assert FACTS.weight_format(form).name == form
    assert held["gpt-oss-120b"] == "mxfp4"
    assert held["DeepSeek-V3"] == held["DeepSeek-R1"] == held["Kimi-K2"] == "fp8-block"
    assert held["Llama-3.1-8B"] is None
