"""The types of the public names, `src/flopwise/__init__.pyi`: editors and type checkers read the stub, Python does not.

A function that takes the options of specs has them as keywords only when it runs (`flopwise.keywords`); the stub spells
them out, from the signatures that the functions have then. Everything else it takes over by its name.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import flopwise

PAGE = Path(flopwise.__file__).with_suffix(".pyi")
HEAD = '"""The public names with their types, made by `python docs/generate.py`."""\n'


def page() -> str:
    """The whole stub."""
    imports: dict[str, set[str]] = defaultdict(set)
    functions = []
    for name, home in flopwise._HOMES.items():  # noqa: SLF001 - the one list of them
        public = getattr(flopwise, name)
        if _is_declared(public):
            functions.append(_function(public, imports))
        else:
            imports[f"flopwise.{home}"].add(f"{name} as {name}")
    lines = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(imports.items())]
    every = ", ".join(f'"{name}"' for name in flopwise.__all__)
    return "\n".join([HEAD, *lines, "", "__version__: str", f"__all__ = [{every}]", "", *functions])


def _is_declared(public: Any) -> bool:
    """Whether a function shows other keywords than it is written with."""
    return inspect.isfunction(public) and hasattr(public, "__signature__")


def _function(function: Callable[..., Any], imports: dict[str, set[str]]) -> str:
    """A function's line in the stub; what its types need goes to `imports`."""
    shown = inspect.signature(function)
    home = sys.modules[function.__module__]
    sources = [home, *(sys.modules[spec.__module__] for spec in function.specs)]  # type: ignore[attr-defined]
    texts, starred = [], False
    aliases = [
        shown.parameters[field].replace(name=name)
        for name, field in function.spelled.items()  # type: ignore[attr-defined]
    ]
    for one in [*shown.parameters.values(), *aliases]:
        if one.kind is one.VAR_POSITIONAL:
            starred = True
        if one.kind is one.KEYWORD_ONLY and not starred:
            texts, starred = [*texts, "*"], True
        _find(str(one.annotation), sources, imports)
        default = "" if one.default is one.empty else " = ..."
        stars = "*" if one.kind is one.VAR_POSITIONAL else ""
        texts.append(f"{stars}{one.name}: {one.annotation}{default}")
    if function.specs:  # type: ignore[attr-defined]
        texts.append(f"**specs: {' | '.join(spec.__name__ for spec in function.specs)}")  # type: ignore[attr-defined]
    for spec in function.specs:  # type: ignore[attr-defined]
        imports[spec.__module__].add(spec.__name__)
    _find(str(shown.return_annotation), [home], imports)
    text = (inspect.getdoc(function) or "").replace("\\", "\\\\")
    separator = ",\n    "
    body = "\n".join(f"    {line}".rstrip() for line in text.splitlines())
    return (
        f"def {function.__name__}(\n    {separator.join(texts)},\n) -> {shown.return_annotation}:\n"
        f'    """{body.lstrip()}\n    """\n'
    )


def _find(annotation: str, sources: list[ModuleType], imports: dict[str, set[str]]) -> None:
    """Add to `imports` where the names of an annotation come from, as the first of `sources` that knows one says."""
    for node in ast.walk(ast.parse(annotation)):
        if isinstance(node, ast.Name) and node.id == "Sequence":
            imports["collections.abc"].add("Sequence")
            continue
        if isinstance(node, ast.Name) and not hasattr(builtins, node.id):
            module = next((place for source in sources if (place := _origins(source).get(node.id))), None)
            assert module is not None, f"{node.id} of {annotation!r} is imported nowhere"
            imports[module].add(node.id)


def _origins(module: ModuleType) -> dict[str, str]:
    """The modules that the names in a module come from, those that only types need among them."""
    found = dict(_imported(ast.parse(inspect.getsource(module))))
    return {**dict.fromkeys(vars(module), module.__name__), **found}


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((alias.asname or alias.name, node.module) for alias in node.names)
