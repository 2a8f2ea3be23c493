"""From a `config.json` to a `Model`: out of a file, a folder or the Hugging Face hub, refusing what cannot be right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError, nearest_names
from flopwise.facts.architecture import Model
from flopwise.facts.models.checkpoints import named_format, published_format
from flopwise.facts.models.families import FAMILIES, family
from flopwise.facts.models.fields import SHIPPED_DEFAULTS, ClassDefaults, Fields

MAX_CONFIG_BYTES = 16 * 2**20
_ASSUME = "--assume-family llama (assume_family='llama')"


def model_from_config(
    config: Mapping[str, Any],
    *,
    name: str,
    assume_family: str | None = None,
    classes: ClassDefaults = SHIPPED_DEFAULTS,
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
    model = build(Fields(config, chosen, name, classes=classes))
    notes = model.notes
    if assume_family and assume_family != given:
        notes = (*notes, f"model_type {given!r} read as {assume_family!r}, as asked")
    held_in = published_format(config) or named_format(name)
    return replace(model, name=name, model_type=given or chosen, notes=notes, checkpoint_format=held_in)


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises SpecError for anything else, naming the file and the place."""
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            raise SpecError(f"{path}: {size:,} bytes is too large for a config.json")
        text = path.read_bytes().decode("utf-8-sig")
        value = json.loads(text)
    except OSError as problem:
        raise SpecError(f"{path}: cannot be read ({problem.strerror})") from problem
    except UnicodeDecodeError as problem:
        raise SpecError(f"{path}: not a text file (byte {problem.start} is not UTF-8)") from problem
    except json.JSONDecodeError as problem:
        raise SpecError(
            f"{path}: not valid JSON (line {problem.lineno}: {problem.msg}); is the file complete?"
        ) from problem
    except (RecursionError, ValueError) as problem:
        raise SpecError(f"{path}: not a config.json ({problem or 'nested too deep'})") from problem
    if not isinstance(value, dict):
        raise SpecError(f"{path}: holds a JSON {type(value).__name__}, not an object with keys such as model_type")
    return value
