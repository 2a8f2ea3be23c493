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
     ("Llama-3.1-8B", None), ("fp8-thoughts/model", None)],
)  # fmt: skip
def test_a_name_tells_its_format(name: str, form: str | None) -> None:
    assert named_format(name) == form


def test_formats_of_the_catalog_are_known() -> None:
    held = {name: load_model(name).checkpoint_format for name in FACTS.models.names}
    for form in filter(None, held.values()):
        assert FACTS.weight_format(form).name == form
    assert held["gpt-oss-120b"] == "mxfp4"
    assert held["DeepSeek-V3"] == held["DeepSeek-R1"] == held["Kimi-K2"] == "fp8-block"
    assert held["Llama-3.1-8B"] is None
