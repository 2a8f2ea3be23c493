"""What the cells of a serving measurement mean: format, engine, layout, in the many ways people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from flopwise.backtests.names import BRACKETS, QUANT_SUFFIX
from flopwise.backtests.prediction import number, whole
from flopwise.errors import UnknownNameError
from flopwise.facts.architecture import Experts, Model
from flopwise.facts.formats import weight_format
from flopwise.facts.software import Engine, engine

Row = Mapping[str, str]

_SPELLED = {
    "fp16/bf16": "bf16",
    "fp4": "nvfp4",
    "int4": "awq",
    "awq-int4": "awq",
    "4bit": "Q4_0",
    "8bit": "Q8_0",
    "auto": "bf16",
}
"""Spellings of weight formats in measurement files."""
_EIGHT_BIT_CACHE = ("fp8", "nvfp4")
DEFAULT_INPUT, DEFAULT_OUTPUT = 512, 256
"""Tokens where a row does not say: a chat turn."""
OLLAMA_FORMAT = "Q4_K_M"
V1_ENGINE = (0, 8)
"""vLLM runs its V1 engine by default from this release on."""


class Place(NamedTuple):
    """How one replica is spread, and how many replicas there are."""

    tp: int
    pp: int
    ep: int
    dp: int  # attention replicas that share experts
    replicas: int


def row_engine(row: Row) -> Engine:
    """The engine, as in `TensorRT-LLM (Triton backend)` or `NIM (TRT-LLM)`; old releases of vLLM are apart.

    Raises:
        UnknownNameError: no such engine.
    """
    text = row.get("engine", "")
    inner = BRACKETS.search(text)
    found: Engine | None = None
    for name in (text, BRACKETS.sub("", text), inner[1] if inner else text):
        try:
            found = engine(name)
            break
        except UnknownNameError:
            continue
    if found is None:
        return engine(text)
    version = re.match(r"v?(\d+)\.(\d+)", row.get("engine_version", ""))
    if found.name == "vllm" and version and (int(version[1]), int(version[2])) < V1_ENGINE:
        return engine("vllm-v0")
    return found


def row_format(row: Row, software: Engine) -> str:
    """The weight format: as stated, else as the model's name ends, else what the engine loads by default.

    Raises:
        UnknownNameError: no such format.
    """
    stated = row.get("precision_weights", "").strip()
    if stated:
        inner = BRACKETS.search(stated)
        if inner and "fp8_block" in inner[1]:
            return "fp8-block"
        plain = BRACKETS.sub("", stated).strip()
        return weight_format(_SPELLED.get(plain.lower(), plain)).name
    name = re.sub(r"\.gguf$", "", row.get("model", "").strip(), flags=re.IGNORECASE)
    suffix = QUANT_SUFFIX.search(name)
    if suffix:
        plain = suffix[1]
        return weight_format(_SPELLED.get(plain.lower(), plain)).name
    return weight_format(OLLAMA_FORMAT if software.name == "llama.cpp" else "bf16").name


def row_cache_dtype(row: Row, software: Engine, weights: str) -> str:
    """The type of the cache; TensorRT-LLM's own quantised checkpoints bring an fp8 cache."""
    stated = row.get("precision_kv", "").strip().lower()
    if stated and stated != "auto":
        return {"fp16": "bf16"}.get(stated, stated)
    if software.name == "tensorrt-llm" and weights.startswith(_EIGHT_BIT_CACHE):
        return "fp8"
    return "bf16"


def row_place(row: Row, model: Model, software: Engine) -> Place:
    """Degrees as stated; what is left open is tensor-parallel, or split by layers where the engine does that.

    Attention replicas of a mixture share its experts; a dense model's replicas are apart.
    """
    gpus = whole(row, "n_gpus", 1)
    tp, pp, dp = whole(row, "tp", 0), whole(row, "pp", 1), whole(row, "dp", 1)
    if number(row, "tp") is None:
        by_layers = software.name == "llama.cpp"
        tp, pp = (1, max(pp, gpus)) if by_layers else (max(1, gpus // (pp * dp)), pp)
    mixture = any(isinstance(i, Experts) for s in model.stacks for k in s.kinds for i in k.items)
    ep = whole(row, "ep", 1) if mixture else 1
    shared = dp if mixture and ep > 1 else 1
    return Place(tp=tp, pp=pp, ep=min(ep, tp * shared), dp=shared, replicas=max(1, gpus // (tp * pp * shared)))
