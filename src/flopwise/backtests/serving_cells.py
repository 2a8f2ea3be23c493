"""What the cells of a serving measurement mean: format, engine, layout, in the many ways people write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from flopwise.backtests.names import BRACKETS, QUANT_SUFFIX
from flopwise.backtests.prediction import number, whole
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts, Resolution
from flopwise.facts.formats import weight_format
from flopwise.facts.software import Engine

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
DEFAULT_INPUT, DEFAULT_OUTPUT, QUESTION = 512, 256, 32
"""Tokens where a row does not say: a chat turn; for a stream alone, a question of a sentence or two."""
ATTENTION_DP = "attention-dp enabled"
"""Remark on a layout whose cells say tp: ranks have their own sequences, and share the experts of a mixture."""
SENT = re.compile(r"(?<![\d-])(\d[\d,]*) (?:[A-Z]\w+ )?(?:requests?|prompts?)\b")
"""How many requests a run sent, as notes say it: "500 requests", "200 ShareGPT prompts"."""
NOMINAL = re.compile(r"lengths uniformly in (\d+)-(\d+) ?% of nominal")
OLLAMA_FORMAT = "Q4_K_M"
DIES = {"MI250": "MI250-GCD", "Intel Max 1550": "Intel Max 1550 tile"}
"""Cards that drivers show as two devices, and the row of one: engines and benchmarks count these as GPUs."""


class Place(NamedTuple):
    """How one replica is spread, and how many replicas there are."""

    tp: int
    pp: int
    ep: int
    dp: int  # attention replicas that share experts
    replicas: int


def row_device(row: Row, facts: Facts) -> Resolution:
    """The device that the row counts: one die of a card that software sees as two.

    Raises:
        UnknownNameError: no such accelerator.
    """
    found = facts.resolve(row.get("gpu", ""))
    die = DIES.get(found.accelerator.name)
    return found if die is None else replace(found, accelerator=facts.accelerator(die))


def row_requests(row: Mapping[str, str]) -> int | None:
    """Requests of the whole run, where the notes say how many."""
    found = SENT.search(row.get("notes", ""))
    return None if found is None else int(found.group(1).replace(",", ""))


def row_lengths(row: Row) -> tuple[int, int]:
    """Mean tokens of a prompt and of an answer; where a remark says that they are drawn from a range, its middle."""
    short = row.get("mode") == "single_stream_decode"
    inputs = whole(row, "input_len", QUESTION if short else DEFAULT_INPUT)
    outputs = whole(row, "output_len", DEFAULT_OUTPUT)
    drawn = NOMINAL.search(row.get("notes", ""))
    if not drawn:
        return inputs, outputs
    share = (int(drawn[1]) + int(drawn[2])) / 200
    return max(1, round(share * inputs)), max(1, round(share * outputs))


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
    return weight_format(OLLAMA_FORMAT if software.name.startswith("llama.cpp") else "bf16").name


def row_cache_dtype(row: Row, software: Engine, weights: str) -> str:
    """The type of the cache; TensorRT-LLM's own quantised checkpoints bring an fp8 cache."""
    stated = row.get("precision_kv", "").strip().lower()
    if stated and stated != "auto":
        return {"fp16": "bf16"}.get(stated, stated)
    if software.name.startswith("tensorrt-llm") and weights.startswith(_EIGHT_BIT_CACHE):
        return "fp8"
    return "bf16"


def row_place(row: Row, model: Model, software: Engine) -> Place:
    """Degrees as stated; what is left open is tensor-parallel, or split by layers where the engine does that.

    Attention replicas of a mixture share its experts; a dense model's replicas are apart.
    """
    gpus = whole(row, "n_gpus", 1)
    tp, pp, dp = whole(row, "tp", 0), whole(row, "pp", 1), whole(row, "dp", 1)
    if number(row, "tp") is None:
        by_layers = software.name.startswith("llama.cpp")
        tp, pp = (1, max(pp, gpus)) if by_layers else (max(1, gpus // (pp * dp)), pp)
    ep = whole(row, "ep", 1) if model.has_experts else 1
    if model.has_experts and dp == 1 and ATTENTION_DP in row.get("notes", "").lower():
        tp, dp, ep = 1, tp, 1
    shared = dp if model.has_experts and dp > 1 else 1
    return Place(tp=tp, pp=pp, ep=min(ep, tp * shared), dp=shared, replicas=max(1, gpus // (tp * pp * shared)))
