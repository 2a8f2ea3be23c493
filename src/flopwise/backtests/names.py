"""Model names as measurement files write them: with remarks, folders, file endings and quantisations."""

from __future__ import annotations

import re

from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts

BRACKETS = re.compile(r"\s*\((.*)\)\s*$")
"""A remark at the end, in brackets."""
QUANT_SUFFIX = re.compile(
    r"[-._:](?:UD-)?((?:I?Q\d(?:_[0-9KMSLX]+)*)|F16|BF16|F32|FP8|MXFP4|NVFP4|AWQ-INT4|AWQ|GPTQ|4bit|8bit)(?:-Fast)?$",
    re.IGNORECASE,
)
"""A format at the end of a file's or a tag's name."""


def model_spellings(text: str) -> list[str]:
    """The names under which a model may be known, most literal first: then without remarks, folders, endings."""
    plain = BRACKETS.sub("", text).strip()
    last = plain.removeprefix("hf.co/").rsplit("/", 1)[-1]
    file = re.sub(r"\.gguf$", "", last, flags=re.IGNORECASE)
    bare, before = file, ""
    while bare != before:
        before, bare = bare, QUANT_SUFFIX.sub("", bare)
        bare = re.sub(r"(-mlx|-qat|-mtp|-GGUF)$", "", bare, flags=re.IGNORECASE)
    owner = bare.split("_", 1)[-1]
    names = [text, plain, last, file, bare, bare.replace(":", "-"), owner]
    names += [
        re.sub(r"[-_](instruct|it|thinking)([-_.]\d{4}|-v[\d.]+)?$", "", n, flags=re.IGNORECASE) for n in names[4:]
    ]
    names += [n for name in plain.split("/") if (n := name.strip())]
    return list(dict.fromkeys(n for n in names if n))


def named_model(text: str, facts: Facts) -> Model:
    """The model that `text` names, offline.

    Raises:
        SpecError: none of its spellings is known; as for the first of them.
    """
    spellings = model_spellings(text)
    failure: SpecError | None = None
    for name in spellings:
        if "/" in name or name.lower().endswith(".gguf"):
            continue
        try:
            return facts.model(name, offline=True)
        except SpecError as wrong:
            failure = failure or wrong
    raise failure or SpecError("the row names no model")
