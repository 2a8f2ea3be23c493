"""What a docstring opens with: the value that is returned, or the effect."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "flopwise"
RIDDLES = {"What", "Whether", "How", "Which", "Where", "Who", "Whose", "Those", "When"}
"""First words of a docstring that alludes to the value in place of naming it."""


def public(node: ast.AST, path: str) -> Iterator[tuple[str, str]]:
    """(place, docstring) of every public function, class and method."""
    for child in getattr(node, "body", []):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and child.name[0] != "_":
            yield f"{path}:{child.name}", ast.get_docstring(child) or ""
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{path}:{child.name}")


def test_a_docstring_names_the_value_that_is_returned() -> None:
    found = [
        (place, text.splitlines()[0])
        for file in sorted(PACKAGE.rglob("*.py"))
        for place, text in public(ast.parse(file.read_text(encoding="utf-8")), str(file.relative_to(PACKAGE)))
        if text and text.split()[0] in RIDDLES
    ]
    assert found == []
