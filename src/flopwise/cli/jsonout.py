"""One JSON document on stdout: any result of ours, with null for what is not finite."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any


def plain(value: Any) -> Any:
    """`value` as JSON types: records become objects, arrays lists, NaN and infinities null, paths text."""
    if hasattr(value, "tolist"):  # arrays and their scalars
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value) if not field.metadata.get("inner")}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    elif hasattr(value, "__struct_fields__"):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    match value:
        case Enum():
            return plain(value.value)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(held) for key, held in value.items()}
        case list() | tuple() | set() | frozenset():
            return [plain(held) for held in value]
        case _:
            return str(value)


def attributes(record: Any, paths: str) -> dict[str, Any]:
    """The attributes of a record by their `paths`, a blank between them; `key=path` where the last name is not the key.

    What lies behind a None is None.
    """
    found = {}
    for text in paths.split():
        key, _, path = text.rpartition("=")
        value = record
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        found[key or path.rpartition(".")[2]] = value
    return found


def entries(pairs: Iterable[tuple[str, Any]], what: str) -> list[dict[str, Any]]:
    """(name, figure) pairs as objects with `name` and `what`."""
    return [{"name": name, what: figure} for name, figure in pairs]


def interval(band: Any) -> dict[str, Any] | None:
    """The class of measurements that an interval comes from; None where nothing was measured."""
    if band is None:
        return None
    own = (
        {}
        if band.family_rows is None
        else attributes(band, "evidence architecture=family architecture_rows=family_rows")
    )
    return {"class": band.name, "rows": band.rows, **own, "source": band.source}


def notes(answer: Any) -> dict[str, Any]:
    """What was asked and what was assumed, the last keys of a document."""
    return {"settings": dict(answer.settings), "assumptions": list(answer.assumptions)}


def write_json(value: Any) -> None:
    """Write `value` to stdout as the run's one document."""
    sys.stdout.write(json.dumps(plain(value), indent=2, allow_nan=False) + "\n")
