"""The format in which a checkpoint's weights are published: from its configuration, or from its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_NAMED = re.compile(r"[-_.](nvfp4|mxfp4|fp8|awq|gptq)([-_.](int[48]|w?4bit|dynamic|block))*$", re.IGNORECASE)
_METHODS = {"mxfp4": "mxfp4", "fbgemm_fp8": "fp8-meta", "awq": "awq", "quark": "fp8-quark", "nvfp4": "nvfp4"}
_COMPRESSED = {
    "float-quantized": "fp8", "naive-quantized": "fp8", "nvfp4-pack-quantized": "nvfp4", "int-quantized": "int8",
    "pack-quantized": "gptq", "mxfp4-pack-quantized": "mxfp4",
}  # fmt: skip
"""Formats of the compressed-tensors library."""


def published_format(config: Mapping[str, Any]) -> str | None:
    """The weight format that a `config.json` names under `quantization_config`; None: 16 bits, or one not known.

    Source: quantisation methods of transformers, and the compressed-tensors and ModelOpt libraries.
    """
    inner = config.get("text_config")
    held = config.get("quantization_config") or (
        inner.get("quantization_config") if isinstance(inner, Mapping) else None
    )
    if not isinstance(held, Mapping):
        return None
    method = str(held.get("quant_method") or held.get("quant_algo") or "").lower().replace("-", "_")
    known: dict[str, str | None] = {
        **_METHODS,
        "fp8": "fp8-block" if held.get("weight_block_size") else "fp8",
        "gptq": "gptq-int8" if held.get("bits") == 8 else "gptq",
        "bitsandbytes": "nf4" if held.get("load_in_4bit") else "llm-int8" if held.get("load_in_8bit") else None,
        "compressed_tensors": _COMPRESSED.get(str(held.get("format") or "").lower()),
        "modelopt": {"FP8": "fp8-tensor", "NVFP4": "nvfp4"}.get(str(held.get("quant_algo") or "").upper()),
    }
    return known.get(method)


def named_format(name: str) -> str | None:
    """The format that the end of a checkpoint's name tells (`...-FP8`, `...-NVFP4`, `...-AWQ`), or None."""
    found = _NAMED.search(name)
    return None if found is None else found.group(1).lower()
