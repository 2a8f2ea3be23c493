"""Text of structured files from plain data: values quoted by the rules of the format, reproducible byte for byte."""

from __future__ import annotations

import io
import itertools
import json
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import yaml
    from yaml.emitter import ScalarAnalysis

PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
"""Text that needs no quotes in any version of YAML."""
WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})
"""Words that some YAML parsers do not read as text."""
SHELL_WIDTH = 100
"""Length from which a command is written over several lines."""


KEPT_TEXTS = 1024
"""Texts whose quotes are remembered: keys and names come again and again."""


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """A dumper with indented lists, long text as blocks, and quotes for ambiguous text."""
    import yaml  # noqa: PLC0415 - most targets of scripts write none

    analysis = lru_cache(KEPT_TEXTS)(yaml.emitter.Emitter(io.StringIO(), allow_unicode=True).analyze_scalar)

    class Dumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            del indentless
            super().increase_indent(flow, indentless=False)

        def ignore_aliases(self, data: Any) -> bool:
            del data
            return True

        def anchor_node(self, node: yaml.Node) -> None:
            """Nothing refers to anything: no walk to look for what does."""
            del node
            self.anchors = defaultdict(lambda: None)

        def analyze_scalar(self, scalar: str) -> ScalarAnalysis:
            return analysis(scalar)

    Dumper.add_representer(str, _represent_text)
    return Dumper


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    tag = "tag:yaml.org,2002:str"
    lines = text.split("\n")
    if len(lines) > 1 and text.isprintable() is False and _is_block(lines):
        return dumper.represent_scalar(tag, text, style="|")
    plain = PLAIN.fullmatch(text) is not None and text.lower() not in WORDS
    return dumper.represent_scalar(tag, text, style=None if plain else '"')


def _is_block(lines: Sequence[str]) -> bool:
    """True if text can be a literal block: printable, no trailing blanks, the first line not empty."""
    return all(line.isprintable() and line == line.rstrip() for line in lines) and lines[0] == lines[0].lstrip() != ""


def yaml_text(*documents: Any) -> str:
    """YAML of one or several documents."""
    import yaml  # noqa: PLC0415 - as in `_dumper`

    return "---\n".join(
        yaml.dump(document, Dumper=_dumper(), sort_keys=False, width=10_000, allow_unicode=True)
        for document in documents
    )


def yaml_documents(text: str) -> list[Any]:
    """The documents of a YAML text, read in C where PyYAML was built with libyaml: ten times as fast, and the same."""
    import yaml  # noqa: PLC0415 - as in `_dumper`

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


def comment_text(text: str) -> str:
    """`text` as a comment: each line after `#`, unprintable characters as blanks."""
    text = "".join(sign if sign.isprintable() or sign in "\r\n" else " " for sign in text)
    lines = (" ".join(line.split()) for line in re.split(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]", text))
    return "\n".join(f"# {line}".rstrip() for line in lines)


def markdown_text(text: str) -> str:
    """`text` for Markdown, on one line, with markup and HTML escaped."""
    line = " ".join(text.split())
    return re.sub(r"([\\`*_{}\[\]<>#|~!$&])", r"\\\1", line)
