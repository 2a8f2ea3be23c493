"""Workload files: reading YAML safely, and complaints that name the line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from flopwise.errors import SpecError
from flopwise.files import read_limited
from flopwise.options import kind_of
from flopwise.search.workload import Resolved, merged_onto, resolve

MAX_FILE_BYTES = 1_000_000
MAX_DEPTH = 50
"""Of brackets in brackets: a workload has six, and thousands take a parser hours."""


def read_text(path: Path | str, kind: str = "YAML") -> str:
    """The text of a workload file, or of another of such a kind.

    Raises: SpecError: it cannot be read, is too large or is no text.
    """
    if not isinstance(path, Path | str):
        raise SpecError(f"{str(path)[:40]!r} is {kind_of(path)}; give the path of a {kind} file")
    file, remedy = Path(path), f"; give the path of a {kind} file"
    try:
        data = read_limited(file, MAX_FILE_BYTES, remedy=remedy, too_large=f"such a file is a page of {kind}")
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{file}: not a text file; it has to be {kind} in UTF-8") from None


def read_workload(source: str | Path | Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> Resolved:
    """A workload from a YAML or JSON file, or from plain data with the same keys, with `changes` laid over it.

    Raises: SpecError: what is wrong, and where.
    """
    if isinstance(source, Mapping):
        return workload_from({**source, **(changes or {})})
    return parse_workload(read_text(source), str(source), changes)


def parse_workload(text: str, where: str = "workload", changes: Mapping[str, Any] | None = None) -> Resolved:
    """Read, validate and resolve a workload (YAML, or JSON, which is YAML too), with `changes` laid over it.

    `where` names it in messages.

    Raises: SpecError: with place and line, what was given and what is allowed.
    """
    node, data = document(text, where)
    if not isinstance(data, dict):
        raise SpecError(f"{where}:1: a workload is a mapping with `model` and `task`, not {kind_of(data)}")
    return workload_from(merged_onto(data, changes or {}), where, node)


def workload_from(data: Mapping[str, Any], where: str = "workload", node: yaml.Node | None = None) -> Resolved:
    """Validate and resolve plain data; `node`, the composed document, gives messages their lines.

    Raises: SpecError: as `parse_workload`.
    """
    try:
        return resolve(data)
    except SpecError as error:
        raise error_with_place(error, node, where) from None


def error_with_place(error: SpecError, node: yaml.Node | None, where: str) -> SpecError:
    """A complaint that starts with a key's place in the document, with file and line in front."""
    path = str(error).split(":", 1)[0]
    return SpecError(f"{place(node, where, path.split('.'))}: {error}")


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
        match = _CONTROL.search(node.value)
        if match:
            line = node.start_mark.line + 1 if node.start_mark is not None else 1
            raise SpecError(f"{where}:{line}: holds the control character U+{ord(match[0]):04X}; leave it out")
    elif isinstance(node, yaml.CollectionNode):
        for below in node.value:
            for part in below if isinstance(below, tuple) else (below,):
                _check_words(part, where)


_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


def _key_given_twice(node: yaml.Node | None) -> tuple[int, str] | None:
    """(line, key) of the first key that its mapping already has: YAML would silently take the last."""
    if isinstance(node, yaml.SequenceNode):
        return next((repeated for below in node.value if (repeated := _key_given_twice(below))), None)
    if not isinstance(node, yaml.MappingNode):
        return None
    seen = set[str]()
    for key, value in node.value:
        name = str(key.value)
        if name in seen:
            return key.start_mark.line + 1, name
        seen.add(name)
        if repeated := _key_given_twice(value):
            return repeated
    return None


def _line(node: yaml.Node | None, path: list[str]) -> int:
    """The line of the deepest part of `path` that exists in the tree, from 1."""
    line = 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == part), None)
            if pair is None:
                break
            line, node = pair[0].start_mark.line + 1, pair[1]
        elif isinstance(node, yaml.SequenceNode) and part.isdigit() and int(part) < len(node.value):
            node = node.value[int(part)]
            line = node.start_mark.line + 1
        else:
            break
    return line
