"""Families of architectures: one small file for each group of near-identical ones.

A family is a function from the fields of a `config.json` to a `Model`'s stacks. `FAMILIES` maps a `model_type` to its file and
function; the file is imported when a model of the family is asked for. A new family is one function and one line here.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from flopwise.facts.architecture import Model
from flopwise.facts.models.fields import Fields

Family = Callable[[Fields], Model]

_BY_FILE: dict[str, dict[str, tuple[str, ...]]] = {
    "llama": {
        "llama": (
            "llama",
            "mistral",
            "qwen2",
            "qwen3",
            "internlm3",
            "granite",
            "smollm3",
            "seed_oss",
            "ministral",
            "ministral3",
            "yi",
            "internlm2",
            "arcee",
            "helium",
            "code_llama",
        ),
    },
    "gpt": {"gpt2": ("gpt2",)},
    "bert": {"bert": ("bert", "roberta", "xlm-roberta", "camembert", "electra")},
}

FAMILIES: dict[str, tuple[str, str]] = {
    model_type: (file, function)
    for file, functions in _BY_FILE.items()
    for function, types in functions.items()
    for model_type in types
}


def family(model_type: str) -> Family | None:
    """The function that reads configurations of `model_type`, or None."""
    if model_type not in FAMILIES:
        return None
    file, function = FAMILIES[model_type]
    found: Family = getattr(import_module(f"{__name__}.{file}"), function)
    return found
