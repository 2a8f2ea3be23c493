"""The rules that the tree is held to: room sizes, names, sources, data that somebody reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "flopwise"
MODULES = sorted(SRC.rglob("*.py"))
WRITTEN = sorted(
    path
    for path in (*MODULES, *(ROOT / "docs").rglob("*"), *(ROOT / "benchmarks").rglob("*"), *ROOT.glob("*.*"))
    if path.suffix in {".py", ".md", ".toml", ".csv", ".json", ".yaml"}
)
MOST_LINES, MOST_FUNCTION_LINES = 400, 60

LONG: dict[str, str] = {}
"""Functions longer than MOST_FUNCTION_LINES, and why one room serves better than two."""
NAMED_ELSEWHERE = {"cli/app.py get_command": "click asks for a command by this name"}
ELSEWHERE = re.compile(
    r"(?<![\w.~-])/(?:work|tmp|home|root)/|pypi\.org|pythonhosted\.org|anaconda\.org|registry\.npmjs"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path) -> str:
    return path.relative_to(SRC).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[tuple[str, Function]]:
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, Function):
                yield f"{place(path)} {node.name}", node


def says(text: str) -> bool:
    """Whether a docstring names a source and assumptions, in whichever form."""
    return ("Source:" in text and "Assumes:" in text) or "Source and assumptions:" in text


def silent(body: list[ast.stmt], docs: str = "") -> Iterator[str]:
    """Public functions, and methods of public classes, for which neither they nor their class say it."""
    for node in body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            if not says(docs) and not says(ast.get_docstring(node) or ""):
                yield node.name
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from (f"{node.name}.{name}" for name in silent(node.body, ast.get_docstring(node) or ""))


@pytest.mark.parametrize("path", MODULES, ids=place)
def test_a_module_says_what_it_is_and_stays_liveable(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "say in one sentence what the module holds"
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{lines} lines are two rooms in one: split it"


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if place(p).split("/")[0] in {"ops", "cost"}],
    ids=place,
)
def test_formulas_say_their_source_and_what_they_assume(path: Path) -> None:
    assert list(silent(tree(path).body)) == []


def test_functions_are_short() -> None:
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in functions()}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_FUNCTION_LINES and name not in LONG} == {}
    assert all(lengths.get(name, 0) > MOST_FUNCTION_LINES for name in LONG), "an exception that is none any more"


def test_names_are_nouns_of_the_field() -> None:
    found = {name for name, _ in functions() if re.match(r"_*(get|compute)_", name.split()[1])}
    assert found == set(NAMED_ELSEWHERE)
    assert {path.stem for path in MODULES} & {"util", "utils", "common", "helpers", "misc"} == set()
    classes = {node.name for path in MODULES for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)}
    assert {name for name in classes if re.match(r"_*(Base[A-Z]|.*Manager$)", name)} == set()


@pytest.mark.parametrize("path", WRITTEN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_names_a_place_that_users_do_not_have(path: Path) -> None:
    assert ELSEWHERE.findall(path.read_text(encoding="utf-8")) == []


def test_every_data_file_is_read_by_some_loader() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in MODULES)
    for path in sorted((SRC / "data").rglob("*")):
        if path.suffix in {".csv", ".json", ".jsonl"}:
            names = (path.name, path.parent.name) if path.parent.name != "data" else (path.name,)
            assert any(name in code for name in names), f"no module reads {path.name}"
