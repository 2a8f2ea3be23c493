"""Text of structured files from plain data: values quoted by the rules of the format, reproducible byte for byte."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
"""Text that needs no quotes in any version of YAML."""
WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
"""Words that some YAML parsers do not read as text."""
SHELL_WIDTH = 100
"""Length from which a command is written over several lines."""
ESCAPED = re.compile(r"[^ !#-\[\]-~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]")
"""Signs that stand in quoted text of YAML as escapes."""
LONGEST_KEY = 122
"""Signs of a key that stands on one line with its value."""
NOT_FINITE = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}


def yaml_text(*documents: Any) -> str:
    """YAML of one or several documents: indented lists, long text as blocks, and quotes for ambiguous text.

    PyYAML writes the same, eight times as slowly: it makes objects of every value, and events of these.
    """
    return "---\n".join("".join(f"{line}\n" for line in _yaml_lines(document)) for document in documents)


def _yaml_lines(value: Any) -> list[str]:
    """The lines of a value, as they stand behind the key or the dash that it belongs to."""
    if not value or not isinstance(value, (list, tuple, dict)):
        return _block(value) if isinstance(value, str) and _is_block(value) else [_scalar(value)]
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    lines = []
    for key, one in pairs:
        first, *rest = _yaml_lines(one)
        head = f"{_scalar(key)}:" if isinstance(value, dict) else "-"
        if len(str(key)) > LONGEST_KEY:
            lines.append(f"? {head[:-1]}")
            head = ":"
        below = len(head) > 1 and one and isinstance(one, (list, tuple, dict))
        lines += [head, f"  {first}"] if below else [f"{head} {first}"]
        lines += (f"  {line}" if line else "" for line in rest)
    return lines


def _scalar(value: Any) -> str:
    """A value on one line."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            text = repr(value)
            return NOT_FINITE.get(text, text if "." in text else text.replace("e", ".0e"))
        case str():
            plain = PLAIN.fullmatch(value) and value.lower() not in WORDS
            return value if plain else f'"{ESCAPED.sub(_escape, value)}"'
        case dict() | list() | tuple() if not value:
            return "{}" if isinstance(value, dict) else "[]"
    raise TypeError(f"{value!r} is no plain data")


def _escape(sign: re.Match[str]) -> str:
    """A sign as an escape of a quoted text."""
    from yaml.emitter import Emitter  # noqa: PLC0415 - most texts have none

    code = ord(sign[0])
    wide = f"x{code:02X}" if code <= 0xFF else f"u{code:04X}" if code <= 0xFFFF else f"U{code:08X}"
    return "\\" + Emitter.ESCAPE_REPLACEMENTS.get(sign[0], wide)


def _block(text: str) -> list[str]:
    """Text of several lines as a literal block."""
    body = text.removesuffix("\n")
    return ["|" + ("-" if body == text else "+" if body.endswith("\n") else ""), *body.split("\n")]


def _is_block(text: str) -> bool:
    """True if text can be a literal block: printable lines, no trailing blanks, the first line not empty."""
    lines = text.split("\n")
    whole = len(lines) > 1 and all(line.isprintable() and line == line.rstrip() for line in lines)
    return whole and lines[0] == lines[0].lstrip() != ""


def yaml_documents(text: str) -> list[Any]:
    """The documents of a YAML text, read in C where PyYAML was built with libyaml: ten times as fast, and the same."""
    import yaml  # noqa: PLC0415 - most targets of scripts read none

    return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def json_text(document: Any) -> str:
    """JSON, indented."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def command_text(args: Iterable[str], env: Mapping[str, str] | None = None) -> str:
    """A shell command with quoted words; a long one has an option and its value on each line."""
    words = [f"{key}={shlex.quote(value)}" for key, value in (env or {}).items()]
    words += [shlex.quote(arg) for arg in args]
    whole = " ".join(words)
    if len(whole) <= SHELL_WIDTH:
        return whole
    lines = [words[0]]
    for before, word in itertools.pairwise(words):
        new = word.startswith("-") or not before.startswith("-") or "=" in before
        lines[-1:] = [lines[-1], word] if new else [f"{lines[-1]} {word}"]
    return " \\\n  ".join(lines)


def script_text(*parts: str) -> str:
    """A bash script that stops at the first error, from parts separated by empty lines."""
    return "\n".join(["#!/usr/bin/env bash", "set -euo pipefail", *(f"\n{part}" for part in parts)]) + "\n"


def comment_text(text: str, mark: str = "#") -> str:
    """`text` as a comment: each line after the `mark`, unprintable characters as blanks."""
    text = "".join(sign if sign.isprintable() or sign in "\r\n" else " " for sign in text)
    lines = (" ".join(line.split()) for line in re.split(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", text))
    return "\n".join(f"{mark} {line}".rstrip() for line in lines)


def markdown_text(text: str) -> str:
    """`text` for Markdown, on one line, with markup and HTML escaped."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>#|~!$&])", r"\\\1", line)
