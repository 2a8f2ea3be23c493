"""Workload files: reading YAML safely, and complaints that name the line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import yaml

from flopwise.errors import SpecError, nearest_names
from flopwise.search.workload import Resolved, Workload, resolve

MAX_FILE_BYTES = 1_000_000
MAX_DEPTH = 50
"""Of brackets in brackets: a workload has six, and thousands take a parser hours."""


def read_text(path: Path | str) -> str:
    """The text of a workload file.

    Raises:
        SpecError: it cannot be read, is too large or is no text.
    """
    file = Path(path)
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise SpecError(f"{file}: larger than {MAX_FILE_BYTES:,} bytes; a workload file is a page of YAML")
        return file.read_bytes().decode("utf-8")
    except OSError as error:
        raise SpecError(
            f"{file}: cannot be read ({error.strerror or error}); give the path of a YAML workload"
        ) from None
    except UnicodeDecodeError:
        raise SpecError(f"{file}: not a text file; a workload is YAML in UTF-8") from None


def load_workload(path: Path | str, changes: dict[str, Any] | None = None) -> Resolved:
    """Read, validate and resolve a workload file (YAML, or JSON, which is YAML too), with `changes` laid over it.

    Raises:
        SpecError: with file and line, what was given and what is allowed.
    """
    return parse_workload(read_text(path), str(path), changes)


def parse_workload(text: str, where: str = "workload", changes: dict[str, Any] | None = None) -> Resolved:
    """Validate and resolve the text of a workload; `where` names it in messages.

    Raises:
        SpecError: as `load_workload`.
    """
    node, data = document(text, where)
    if not isinstance(data, dict):
        raise SpecError(f"{where}:1: a workload is a mapping with `model` and `task`, not {kind_of(data)}")
    return resolved(merged_onto(data, changes or {}), node, where)


def workload_from(data: dict[str, Any], where: str = "workload") -> Resolved:
    """Validate and resolve a workload given as plain data.

    Raises:
        SpecError: as `load_workload`, without a line.
    """
    return resolved(data, None, where)


def merged_onto(data: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`data` with `changes` laid over it, section by section."""
    merged = dict(data)
    for key, value in changes.items():
        below = merged.get(key)
        merged[key] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def resolved(data: dict[str, Any], node: yaml.Node | None, where: str) -> Resolved:
    """Validate and resolve plain data; `node`, the composed document, gives messages their lines.

    Raises:
        SpecError: as `load_workload`.
    """
    try:
        workload = msgspec.convert(data, Workload)
    except msgspec.ValidationError as error:
        raise SpecError(located(str(error), node, where, data, Workload)) from None
    try:
        return resolve(workload)
    except SpecError as error:
        path = str(error).split(":", 1)[0]
        raise SpecError(f"{place(node, where, path.split('.'))}: {error}") from None


def place(node: yaml.Node | None, where: str, path: list[str]) -> str:
    """File and line of a key, or just what was read where there are no lines."""
    return where if node is None else f"{where}:{_line(node, path)}"


def document(text: str, where: str) -> tuple[yaml.Node | None, Any]:
    """The composed tree (for line numbers) and the plain data of a YAML text."""
    if "\0" in text:
        raise SpecError(f"{where}: holds null bytes; a workload is YAML text")
    try:
        _check_events(text, where)
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        _check_words(node, where)
        twice = _key_given_twice(node)
        data = loader.construct_document(node) if node is not None else None
    except SpecError:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise SpecError(f"{where}:{line}: not valid YAML: {problem}") from None
    except (ValueError, RecursionError, TypeError) as error:
        raise SpecError(f"{where}: not valid YAML: {str(error)[:120]}") from None
    if twice is not None:
        raise SpecError(f"{where}:{twice[0]}: the key {twice[1]!r} is given twice; which one is meant?")
    return node, data


def _check_events(text: str, where: str) -> None:
    """Refuse aliases, which have no use in a workload and can make a small file huge, and brackets without end."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark is not None else 1
        if isinstance(event, yaml.AliasEvent):
            raise SpecError(f"{where}:{line}: YAML aliases (*name) are not allowed in a workload")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise SpecError(f"{where}:{line}: more than {MAX_DEPTH} levels deep; no workload is")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_words(node: yaml.Node | None, where: str) -> None:
    """Refuse what no text has: control characters, which a name could steer a terminal with."""
    if isinstance(node, yaml.ScalarNode):
        found = _CONTROL.search(node.value)
        if found:
            line = node.start_mark.line + 1 if node.start_mark is not None else 1
            raise SpecError(f"{where}:{line}: holds the control character U+{ord(found[0]):04X}; leave it out")
    elif isinstance(node, yaml.CollectionNode):
        for below in node.value:
            for part in below if isinstance(below, tuple) else (below,):
                _check_words(part, where)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


def kind_of(data: object) -> str:
    """What a document is, in words."""
    names = {
        type(None): "an empty file",
        list: "a list",
        str: "text",
        bool: "yes or no",
        int: "a number",
        float: "a number",
    }
    return names.get(type(data), type(data).__name__)


def _key_given_twice(node: yaml.Node | None) -> tuple[int, str] | None:
    """(line, key) of the first key that its mapping already has: YAML would silently take the last."""
    if isinstance(node, yaml.SequenceNode):
        return next((found for below in node.value if (found := _key_given_twice(below))), None)
    if not isinstance(node, yaml.MappingNode):
        return None
    seen = set[str]()
    for key, value in node.value:
        name = str(key.value)
        if name in seen:
            return key.start_mark.line + 1, name
        seen.add(name)
        if found := _key_given_twice(value):
            return found
    return None


def _line(node: yaml.Node | None, path: list[str]) -> int:
    """The line of the deepest part of `path` that exists in the tree, from 1."""
    line = 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return line


def located(message: str, node: yaml.Node | None, where: str, data: dict[str, Any], root: type[msgspec.Struct]) -> str:
    """Msgspec's message on a document of `root` with file and line in front, the nearest name behind an unknown key."""
    text, _, at = message.partition(" - at `")
    key = at.startswith("key` in `")
    at = at.removeprefix("key` in `").removeprefix("$")
    path = [p for p in re.split(r"[.\[\]`]+", at.rstrip("`")) if p and p != "..."]
    if key:
        text = "keys are text of 1 to 200 letters"
    unknown = re.search(r"unknown field `([^`]*)`", text)
    if unknown:
        struct = _struct_at(root, path)
        allowed = [f.name for f in msgspec.structs.fields(struct)]
        near = nearest_names(unknown[1], allowed)
        text = f"unknown key {unknown[1][:60]!r}; allowed: {', '.join(allowed)}" + (
            f"; nearest: {near[0]}" if near else ""
        )
        path = [*path, unknown[1]]
    elif "enum value" in text and path:
        names = _literals(get_type_hints(_struct_at(root, path[:-1])).get(path[-1]))
        names = names or _literals(get_type_hints(_struct_at(root, path[:-2])).get(path[-2] if path[1:] else ""))
        near = nearest_names(str(_value_at(data, path)), names)
        text = f"not one of {', '.join(names)}" + (f"; nearest: {near[0]}" if near else "") if names else text
    else:
        text = _plainly(text, _hint(root, path))
    given = _value_at(data, path)
    shown = f"{'.'.join(path)}: " if path else ""
    what = "" if given is None or unknown else f" (given: {str(given)[:60]!r})"
    return f"{place(node, where, path)}: {shown}{text}{what}"


def _plainly(text: str, hint: Any) -> str:
    """Msgspec's complaint in the words of someone who writes YAML; what is meant where a type says it."""
    meant = next((m.description for m in _metas(hint) if m.description and m.pattern), None)
    if meant is not None and text.startswith("Expected"):
        return f"expected {meant}"
    text = re.sub(r"`([^`]*)`", lambda found: _words(found[1]), text)
    text = text.replace("of length >= 1", "that is not empty").replace("of length <=", "of a length up to")
    return text[:1].lower() + text[1:] if text.startswith("Expected") else text


_WORDS = {
    "array": "a list", "object": "a mapping", "str": "text", "null": "nothing", "bool": "true or false",
    "int": "a number", "float": "a number", "date": "a date", "datetime": "a time", "bytes": "binary data",
}  # fmt: skip


def _words(types: str) -> str:
    """Types of msgspec, `int | float | null`, in words; nothing is mentioned where it stands alone."""
    parts = types.split(" | ")
    told = dict.fromkeys(_WORDS.get(part, f"`{part}`") for part in parts if part != "null" or len(parts) == 1)
    return " or ".join(told)


def _hint(root: type[msgspec.Struct], path: list[str]) -> Any:
    """The type of the field that `path` leads to."""
    return get_type_hints(_struct_at(root, path[:-1]), include_extras=True).get(path[-1]) if path else None


def _metas(hint: Any) -> list[msgspec.Meta]:
    """All notes on a type and its parts."""
    own = [m for m in getattr(hint, "__metadata__", ()) if isinstance(m, msgspec.Meta)]
    return own + [m for part in get_args(hint) if not isinstance(part, str | msgspec.Meta) for m in _metas(part)]


def _struct_at(root: type[msgspec.Struct], path: list[str]) -> type[msgspec.Struct]:
    """The struct that `path` leads to, through sections, lists and mappings of structs."""
    struct = root
    for part in path:
        hint = get_type_hints(struct).get(part)
        below = None if hint is None else _struct_in(hint)
        struct = struct if below is None else below
    return struct


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    """The struct in a type such as `Data`, `list[Data]`, `dict[str, Data]` or `Data | None`."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next((found for part in get_args(hint) if (found := _struct_in(part))), None)


def _literals(hint: Any) -> list[str]:
    """The words in a type such as `Literal["a", "b"] | None` or a list of it."""
    parts = get_args(hint)
    words = [part for part in parts if isinstance(part, str)]
    return words or [word for part in parts for word in _literals(part)]


def _value_at(data: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(data, dict):
            data = data.get(part)
        elif isinstance(data, list) and part.isdigit() and int(part) < len(data):
            data = data[int(part)]
        else:
            return None
    return data
