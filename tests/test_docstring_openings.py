"""What a docstring opens with: the value that is returned, or the effect."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from house import nodes

PACKAGE = Path(__file__).parent.parent / "src" / "flopwise"
RIDDLES = {"What", "Whether", "How", "Which", "Where", "Who", "Whose", "Those", "When"}
"""First words of a docstring that alludes to the value in place of naming it."""


def definitions(path: Path) -> Iterator[tuple[str, str]]:
    """(place, docstring) of every function, class and method, private ones, too."""
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield f"{node.lineno} {node.name}", ast.get_docstring(node) or ""


def test_a_docstring_names_the_value_that_is_returned() -> None:
    found = [
        (file.relative_to(PACKAGE).as_posix(), place, text.splitlines()[0])
        for file in sorted(PACKAGE.rglob("*.py"))
        for place, text in definitions(file)
        if text and text.split()[0] in RIDDLES
    ]
    assert found == []
