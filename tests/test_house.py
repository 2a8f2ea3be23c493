"""The rules that the tree is held to: room sizes, names, sources, data that somebody reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import house
from house import MODULES, NAMES, ROOT, SRC, Function, functions, nodes, place, tree

WRITTEN = sorted(
    path
    for path in (*MODULES, *(ROOT / "docs").rglob("*"), *(ROOT / "benchmarks").rglob("*"), *ROOT.glob("*.*"))
    if path.suffix in {".py", ".md", ".toml", ".csv", ".json", ".yaml"}
)
MOST_FAR_HELPERS = 40
"""Functions with one caller, in another file: seams between packages and stages of one answer. Only ever lower it."""
NAMED_ELSEWHERE = {"cli/app.py get_command": "click asks for a command by this name"}
ELSEWHERE = re.compile(
    r"(?<![\w.~-])/(?:work|tmp|home|root)/|pypi\.org|pythonhosted\.org|anaconda\.org|registry\.npmjs"
)


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


def test_every_module_says_what_it_is() -> None:
    assert [place(path) for path in MODULES if not ast.get_docstring(tree(path))] == []


def test_every_module_that_is_imported_is_there() -> None:
    """Also in functions: type checkers may find a module that is gone in a package that is installed beside."""
    packages = {name.rpartition(".")[0] for name in NAMES} | {"flopwise"}
    gone = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*MODULES, *(p for p in WRITTEN if p.suffix == ".py"), *(ROOT / "tests").rglob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (name := node.module or "").split(".")[0] == "flopwise"
        if name not in NAMES and name not in packages
    }
    assert gone == set()


def test_modules_import_in_one_direction() -> None:
    """Imports inside functions and for annotations count: import-linter sees neither."""
    assert house.circles() == []


def test_a_class_name_has_one_meaning() -> None:
    assert house.repeated_classes() == {}


def test_helpers_live_in_the_file_of_their_only_caller() -> None:
    assert house.borrowed_privates() == []
    assert len(far := house.far_helpers()) <= MOST_FAR_HELPERS, far


def test_a_question_of_the_api_takes_at_most_40_lines() -> None:
    """Without its docstring: it reads the request and asks the domain once."""
    assert house.long_questions() == []


def test_no_module_merely_passes_through() -> None:
    assert house.pass_through_modules() == []


def test_functions_are_named_by_what_they_return_or_do() -> None:
    assert house.odd_names() == []


def test_variables_are_named_by_what_they_are() -> None:
    assert house.odd_variables() == []


def test_formulas_say_their_source_and_what_they_assume() -> None:
    formulas = [path for path in MODULES if place(path).split("/")[0] in {"ops", "cost"}]
    assert {place(path): names for path in formulas if (names := list(silent(tree(path).body)))} == {}


def test_names_are_nouns_of_the_field() -> None:
    found = {name for name, _ in functions() if re.match(r"_*(get|compute)_(?!_)", name.split()[1])}
    assert found == set(NAMED_ELSEWHERE)
    assert {path.stem for path in MODULES} & {"util", "utils", "common", "helpers", "misc"} == set()
    classes = {node.name for path in MODULES for node in nodes(path) if isinstance(node, ast.ClassDef)}
    assert {name for name in classes if re.match(r"_*(Base[A-Z]|.*Manager$)", name)} == set()


def test_nothing_names_a_place_that_users_do_not_have() -> None:
    named = {path: ELSEWHERE.findall(path.read_text(encoding="utf-8")) for path in WRITTEN}
    assert {path.relative_to(ROOT).as_posix(): places for path, places in named.items() if places} == {}


def test_every_data_file_is_read_by_some_loader() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in MODULES)
    for path in sorted((SRC / "data").rglob("*")):
        if path.suffix in {".csv", ".json", ".jsonl"}:
            names = (path.name, path.parent.name) if path.parent.name != "data" else (path.name,)
            assert any(name in code for name in names), f"no module reads {path.name}"
