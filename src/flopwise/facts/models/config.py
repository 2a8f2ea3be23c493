"""From a `config.json` to a `Model`: out of a file, a folder or the Hugging Face hub, refusing what cannot be right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flopwise.errors import SpecError, nearest_names
from flopwise.facts.architecture import Model
from flopwise.facts.models.checkpoints import named_format, published_format
from flopwise.facts.models.families import FAMILIES, family
from flopwise.facts.models.fields import SHIPPED_DEFAULTS, ClassDefaults, Fields

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
    model = build(Fields(config, chosen, name, classes=classes))
    notes = model.notes
    if assume_family and assume_family != given:
        notes = (*notes, f"model_type {given!r} read as {assume_family!r}, as asked")
    held_in = published_format(config) or named_format(name)
    return replace(model, name=name, model_type=given or chosen, notes=notes, checkpoint_format=held_in)
