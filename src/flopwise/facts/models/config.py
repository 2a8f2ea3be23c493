"""From a `config.json` to a `Model`: out of a file, a folder or the Hugging Face hub, refusing what cannot be right."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from flopwise.errors import SpecError, nearest_names
from flopwise.facts.architecture import Linear, Model, Pointwise
from flopwise.facts.models.blocks import Items
from flopwise.facts.models.families import FAMILIES, family
from flopwise.facts.models.fields import SHIPPED_DEFAULTS, ClassDefaults, Fields
from flopwise.facts.models.heads import architecture, labels, sequence_classifier, task
from flopwise.values import replace

_MODIFIERS = r"\d+(?:\.\d+)?bit|g?\d+g?|int[48]|w4bit|dynamic|static|block|kv|preview|autoround|unsloth|marlin|gemm|hf"
_END = rf"(?:[-_.](?:{_MODIFIERS}))*$"
_NAMED: tuple[tuple[tuple[str, ...], str, str | None], ...] = (
    (("gptq",), r"gptq[-_.]?(?:int8|8bit|w8a16)", "gptq-int8"),
    (("gptq",), r"(?:w4a16|int4)[-_.]gptq|gptq", "gptq"),
    (("round",), r"(?:int4[-_.])?auto[-_]?round(?:[-_.]gptq)?", "gptq"),
    (("awq",), r"awq", "awq"),
    (("w4a16",), r"(?:quantized[-_.])?w4a16", "awq"),
    (("w8a16",), r"(?:quantized[-_.])?w8a16", "int8-weight-only"),
    (("w8a8",), r"w8a8[-_.]fp8|fp8[-_.]w8a8", "fp8"),
    (("w8a8",), r"(?:quantized[-_.])?w8a8", "int8"),
    (("fp8",), r"fp8[-_.]block", "fp8-block"),
    (("fp8",), r"fp8", "fp8"),
    (("fp4",), r"nvfp4(?:a16)?|fp4", "nvfp4"),
    (("mxfp4",), r"mxfp4", "mxfp4"),
    (("bnb", "bitsandbytes"), r"(?:bnb|bitsandbytes)[-_.](?:nf4|4bit)", "nf4"),
    (("bnb", "bitsandbytes"), r"(?:bnb|bitsandbytes)[-_.](?:int8|8bit)", "llm-int8"),
    (("_",), r"((?:ud[-_])?(?:i?q\d_\w+?|q8_0|tq[12]_0|mxfp4_moe))(?:\.gguf)?", None),
)
"""How names end, as regular expressions: words of which one is in each such name, the expression, the format that it
tells; None: the one that it spells."""
_MLX = re.compile(r"mlx.*[-_](?P<bits>\d)[-_]?bit(?:[-_]dwq)?$", re.IGNORECASE)
_RATE = re.compile(
    r"(?:exl(?P<kind>[23])[-_.])?(?P<before>\d+(?:\.\d+)?)[-_.]?bpw|exl(?P<late>[23])[-_.](?P<after>\d+(?:\.\d+)?)$",
    re.IGNORECASE,
)
_METHODS = {"mxfp4": "mxfp4", "fbgemm_fp8": "fp8-meta", "awq": "awq", "quark": "fp8-quark", "nvfp4": "nvfp4"}
_COMPRESSED = {
    "float-quantized": "fp8", "naive-quantized": "fp8", "nvfp4-pack-quantized": "nvfp4", "int-quantized": "int8",
    "pack-quantized": "gptq", "mxfp4-pack-quantized": "mxfp4",
}  # fmt: skip
"""Formats of the compressed-tensors library."""
_ASSUME = "--assume-family llama (assume_family='llama')"


def model_from_config(
    config: Mapping[str, Any], *, name: str, assume_family: str | None = None, classes: ClassDefaults = SHIPPED_DEFAULTS
) -> Model:
    """The model that a configuration in Hugging Face's layout describes.

    Raises: SpecError: the model type is not known (the message says how to assume a family), or a value is missing or
    cannot be.
    """
    given = config.get("model_type")
    if given is not None and not isinstance(given, str):
        raise SpecError(f"{name}: model_type is {given!r}; a text is needed")
    chosen = assume_family or given
    if not chosen:
        raise SpecError(f"{name}: the key 'model_type' is missing; add it, or name the family it is like: {_ASSUME}")
    build = family(chosen)
    if build is None:
        near = nearest_names(chosen, FAMILIES)
        raise SpecError(
            f"{name}: model_type {chosen[:80]!r} is not known{'; nearest: ' + ', '.join(near) if near else ''}. "
            f"If it is built like a known one, say so: {_ASSUME}"
        )
    fields = Fields(config, chosen, name, classes=classes)
    model = _decoder_head(fields, build(fields))
    notes = model.notes
    if assume_family and assume_family != given:
        notes = (*notes, f"model_type {given!r} read as {assume_family!r} (assume_family)")
    stored_as = published_format(config) or named_format(name)
    return replace(model, name=name, model_type=given or chosen, notes=notes, checkpoint_format=stored_as)


def published_format(config: Mapping[str, Any]) -> str | None:
    """The weight format that a `config.json` names under `quantization_config`; None: 16 bits, or one not known.

    Source: quantisation methods of transformers, and the compressed-tensors and ModelOpt libraries.
    """
    own, key = config.get("text_config"), "quantization_config"
    settings = config.get(key) or (own.get(key) if isinstance(own, Mapping) else None)
    if not isinstance(settings, Mapping):
        return None
    method = str(settings.get("quant_method") or settings.get("quant_algo") or "").lower().replace("-", "_")
    four_bit = "nf4-dq" if settings.get("bnb_4bit_use_double_quant") else "nf4"
    eight_bit = "llm-int8" if settings.get("load_in_8bit") else None
    known: dict[str, str | None] = {
        **_METHODS,
        "fp8": "fp8-block" if settings.get("weight_block_size") else "fp8",
        "gptq": "gptq-int8" if settings.get("bits") == 8 else "gptq",
        "bitsandbytes": four_bit if settings.get("load_in_4bit") else eight_bit,
        "compressed_tensors": _COMPRESSED.get(str(settings.get("format") or "").lower()),
        "modelopt": {"FP8": "fp8-tensor", "NVFP4": "nvfp4"}.get(str(settings.get("quant_algo") or "").upper()),
    }
    return known.get(method)


def named_format(name: str) -> str | None:
    """The weight format in a checkpoint's name (`...-FP8`, `...-AWQ`, `...-bnb-4bit`, `...-Q4_K_M.gguf`), or None.

    Source: how the tools and publishers name what they write: AutoAWQ, GPTQModel, llm-compressor (`w4a16`), ModelOpt,
    bitsandbytes, MLX, ExLlama (`4.0bpw`), llama.cpp.
    """
    match = _MLX.search(name)
    if match is not None:
        return f"mlx-{match['bits']}bit"
    lower = name.lower()
    for words, ending, stored_as in _NAMED:
        if not any(word in lower for word in words):
            continue
        match = re.search(rf"[-_./:](?:{ending}){_END}", name, re.IGNORECASE)  # compiled once each, when first needed
        if match is not None:
            return stored_as or match.group(1).upper()
    match = _RATE.search(name)
    if match is None:
        return None
    return f"exl{match['kind'] or match['late'] or 2}-{float(match['before'] or match['after']):g}"


_WITH_HEADS = ("LMHead", "DoubleHeads", "MTModel")
"""What the name of a class has that ends in Model and stands for a model with a head all the same."""


def _decoder_head(c: Fields, model: Model) -> Model:
    """A text decoder with what `architectures` puts in place of its vocabulary-sized head, or nothing (base models)."""
    first = architecture(c)
    kind, base = task(c), first.endswith("Model") and not any(w in first for w in _WITH_HEADS)
    stack = model.stacks[0]
    at = next((i for i, item in enumerate(stack.after) if item.name == "lm_head"), None)
    if at is None or not (base or kind.endswith(("Classification", "Answering"))):
        return model
    if model.kind == "encoder-decoder" and kind == "SequenceClassification":
        dense = Linear("head/dense", stack.width, stack.width, bias=True, stream="samples")
        return _with_end(
            model,
            at,
            (
                dense,
                Pointwise("head/act", stack.width, "tanh", stream="samples"),
                sequence_classifier(stack.width, labels(c)),
            ),
        )
    bias = kind != "SequenceClassification"
    outputs = 2 if kind == "QuestionAnswering" else labels(c)
    score: Items = () if base else (Linear("score", stack.width, outputs, bias=bias),)
    return _with_end(model, at, score)


def _with_end(model: Model, at: int, items: Items) -> Model:
    """The model with `items` in place of the item `at` after its first stack."""
    stack = model.stacks[0]
    ended = replace(stack, after=(*stack.after[:at], *items, *stack.after[at + 1 :]))
    return replace(model, stacks=(ended, *model.stacks[1:]))
