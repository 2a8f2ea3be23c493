"""Which engine, and which generation of it, a serving measurement was taken with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flopwise.backtests.names import BRACKETS
from flopwise.errors import UnknownNameError
from flopwise.facts.catalog import Facts
from flopwise.facts.software import Engine

Row = Mapping[str, str]
Release = tuple[int, int]

DATE = re.compile(r"\b(20[2-9]\d)-\d\d-\d\d\b")
GENERATIONS: dict[str, tuple[tuple[str, Release, int], ...]] = {
    "vllm": (("vllm-v0", (0, 8), 2025),),
    "tensorrt-llm": (("tensorrt-llm-2023", (0, 7), 2024), ("tensorrt-llm-v0", (1, 0), 2025)),
    "llama.cpp": (("llama.cpp-2024", (0, 0), 2025),),
}
"""Older generations of an engine, oldest first: row, first release after it, year of that release."""
MODEL_YEARS = {
    "qwen3_5": 2026, "gemma4": 2026, "step3p": 2026, "glm_moe_dsa": 2026, "deepseek_v4": 2026,
    "qwen3": 2025, "gemma3": 2025, "llama4": 2025, "gpt_oss": 2025, "glm4": 2025, "minimax": 2025, "nemotron_h": 2025,
    "smollm3": 2025, "deepseek_v3": 2025, "lfm2": 2025, "ernie4_5": 2025, "qwen2": 2024, "gemma2": 2024,
}  # fmt: skip
"""Years before which no model of a family (by the beginning of its type) could be run, where that tells generations."""


def row_engine(row: Row, facts: Facts, *, device_year: int | None = None, model_type: str = "") -> Engine:
    """The engine, as in `TensorRT-LLM (Triton backend)` or `NIM (TRT-LLM)`, in the generation that was run.

    The version decides (that of a product around the engine says nothing). Without one the year of a date in the
    remarks does, else that of the device or of the model's family, whichever is later: what is measured on old devices
    with old models was mostly measured at their time.

    Raises:
        UnknownNameError: no such engine.
    """
    text = row.get("engine", "")
    inner = BRACKETS.search(text)
    named = _known(text, facts) or _known(BRACKETS.sub("", text), facts)
    found = named or (_known(inner[1], facts) if inner else None) or facts.engine(text)
    older = GENERATIONS.get(found.name, ())
    version = re.match(r"v?(\d+)\.(\d+)", row.get("engine_version", "")) if named else None
    if version:
        release = int(version[1]), int(version[2])
        return next((facts.engine(name) for name, first, _ in older if release < first), found)
    dated = DATE.search(row.get("notes", ""))
    family = next((year for start, year in MODEL_YEARS.items() if model_type.startswith(start)), 0)
    year = int(dated[1]) if dated else max(device_year or 0, family)
    return next((facts.engine(name) for name, _, since in older[-1:] if 0 < year < since), found)


def _known(name: str, facts: Facts) -> Engine | None:
    try:
        return facts.engine(name)
    except UnknownNameError:
        return None
