"""How simple the package is to live in, from its syntax trees: `make house` prints it, test_house.py holds it."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SRC = ROOT / "src" / "flopwise"
PROGRAMS = SRC / "exports" / "programs"
"""Programs that are exported as they are: no part of the package."""
MODULES = sorted(path for path in SRC.rglob("*.py") if path.parent != PROGRAMS)
LONG_FILE, LONG_FUNCTION = 600, 80
"""Lines from which a second look is worth it; no caps."""
MOST_QUESTION_LINES = 40
"""Of a function of the api, which holds nothing of the domain: a cap."""
BARE = {
    "told", "said", "held", "asked", "found", "known", "given", "taken", "laid", "begun", "done", "kept", "left",
    "meant", "read", "seen", "beside", "around", "again", "still", "apart", "here", "there",
}  # fmt: skip
"""Irregular participles, and adverbs."""
SPOKEN = {"told", "said", "unsaid", "held", "asked"}
"""Names of variables that say nothing about the value."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path) -> str:
    """The path as reports show it."""
    return path.relative_to(SRC).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree."""
    return tuple(ast.walk(tree(path)))


@cache
def module_name(path: Path) -> str:
    """`flopwise.cost.kernels` of its file."""
    return ".".join(path.relative_to(SRC.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES = {module_name(path) for path in MODULES}


def functions() -> Iterator[tuple[str, Function]]:
    """Every function and method with its place."""
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, Function):
                yield f"{place(path)} {node.name}", node


def imports(path: Path) -> Iterator[str]:
    """Modules of the package that a file imports anywhere: in functions and for annotations, too."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in NAMES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def circles() -> list[list[str]]:
    """Groups of modules that import one another, directly or through others (Tarjan's components)."""
    names = {module_name(p): p for p in MODULES}
    edges = {name: {m for m in imports(p) if m in names} - {name} for name, p in names.items()}
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in edges[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                groups.append(sorted(group))

    sys.setrecursionlimit(max(sys.getrecursionlimit(), 10_000))
    for name in edges:
        if name not in order:
            visit(name)
    return groups


def repeated_classes() -> Mapping[str, list[str]]:
    """Classes, private ones too, whose name stands in several files."""
    homes = defaultdict(list)
    for path in MODULES:
        for node in tree(path).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name.lstrip("_")].append(place(path))
    return {name: files for name, files in homes.items() if len(files) > 1}


@cache
def _uses(path: Path) -> Counter[str]:
    """How often a file uses a name, its definition and imports apart."""
    return Counter(
        n.id if isinstance(n, ast.Name) else n.attr for n in nodes(path) if isinstance(n, ast.Name | ast.Attribute)
    )


def public_names() -> set[str]:
    """What `flopwise` offers: the words of the table in its `__init__.py`."""
    table = next(node for node in tree(SRC / "__init__.py").body if isinstance(node, ast.Assign | ast.AnnAssign)
                 and "_HOMES" in ast.unparse(node))  # fmt: skip
    texts = (node.value for node in ast.walk(table) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {word for text in texts for word in text.split()}


def far_helpers() -> list[str]:
    """Functions whose only use is in another file; public ones are apart: commands and people ask them."""
    uses, public = Counter[str](), public_names()
    for path in MODULES:
        uses.update(_uses(path))
    defined = [(path, node) for path in MODULES for node in nodes(path) if isinstance(node, Function)]
    times = Counter(node.name for _, node in defined)
    return [
        f"{place(path)} {node.name}"
        for path, node in defined
        if times[node.name] == uses[node.name] == 1
        and not node.decorator_list
        and not node.name.startswith("__")
        and not _uses(path)[node.name]
        and not place(path).startswith("api/")
        and node.name not in public
        and "/migrations/" not in place(path)  # Alembic calls them by their names
        and (place(path), node.name) != ("telemetry/exposition.py", "collect")  # prometheus-client does
    ]


def long_questions() -> list[str]:
    """Functions of the api of more than 40 lines, docstrings left out."""
    return [
        f"{where} {lines}"
        for where, node in functions()
        if where.startswith("api/")
        and (lines := (node.end_lineno or 0) - node.lineno + 1 - len((ast.get_docstring(node) or "").splitlines()))
        > MOST_QUESTION_LINES
    ]


def borrowed_privates() -> list[str]:
    """Imports of another module's private name."""
    return [
        f"{place(path)} imports {alias.name} of {node.module}"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flopwise")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]


def _forwards(node: ast.stmt) -> bool:
    """Whether a definition only hands its arguments to one call."""
    if not isinstance(node, Function):
        return False
    body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    body = [s for s in body if not isinstance(s, ast.ImportFrom)]
    if len(body) != 1 or not isinstance(body[0], ast.Return) or not isinstance(body[0].value, ast.Call):
        return False
    call = body[0].value
    return all(isinstance(a, ast.Name) for a in call.args) and all(isinstance(k.value, ast.Name) for k in call.keywords)


def _renames(node: ast.stmt) -> bool:
    """Whether a statement gives another name to something imported, or lists names."""
    if not isinstance(node, ast.Assign):
        return False
    listed = [t.id for t in node.targets if isinstance(t, ast.Name)] == ["__all__"]
    return listed or isinstance(node.value, ast.Name | ast.Attribute)


def pass_through_modules() -> list[str]:
    """Modules that define nothing of their own: re-exports, or functions that hand on their arguments."""
    result = []
    for path in MODULES:
        if path.name in {"__init__.py", "__main__.py"}:
            continue
        rest = (n for n in tree(path).body if not isinstance(n, ast.Import | ast.ImportFrom | ast.Expr | ast.If))
        if all(_forwards(node) or _renames(node) for node in rest):
            result.append(place(path))
    return result


def odd_names() -> list[str]:
    """Functions named by one bare participle or adverb."""
    words = sorted({node.name.strip("_") for _, node in functions() if "_" not in node.name.strip("_")})
    return [word for word in words if word in BARE or re.fullmatch(r"[a-z]{3,}ed", word)]


def odd_variables() -> list[str]:
    """Variables, parameters and fields named by what somebody did with them, and not by what they are."""
    rows = []
    for path in MODULES:
        for node in nodes(path):
            name = ""
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name = node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            elif isinstance(node, ast.arg):
                name = node.arg
            if name.strip("_") in SPOKEN:
                rows.append(f"{place(path)} {name}")
    return sorted(set(rows))


def long_rooms() -> list[str]:
    """Files and functions that deserve a second look."""
    files = {place(p): len(p.read_text(encoding="utf-8").splitlines()) for p in MODULES}
    rooms = [f"{name}: {lines} lines" for name, lines in files.items() if lines > LONG_FILE]
    for name, node in functions():
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > LONG_FUNCTION:
            rooms.append(f"{name}: {lines} lines")
    return rooms


def packages() -> Counter[str]:
    """Lines by package."""
    lines = Counter[str]()
    for path in MODULES:
        parts = path.relative_to(SRC).parts
        lines[parts[0] if len(parts) > 1 else "."] += len(path.read_text(encoding="utf-8").splitlines())
    return lines


def main() -> None:
    """Print all of it."""
    lines = packages()
    by_package = ", ".join(f"{name} {count:,}" for name, count in lines.most_common())
    print(f"{sum(lines.values()):,} lines in {len(MODULES)} files: {by_package}")
    for title, rows in (
        ("circles of imports", [" ".join(group) for group in circles()]),
        ("class names in several files", [f"{name}: {' '.join(files)}" for name, files in repeated_classes().items()]),
        ("functions whose only caller is in another file", far_helpers()),
        ("private names imported elsewhere", borrowed_privates()),
        ("modules that pass through", pass_through_modules()),
        ("functions named by a participle or adverb", odd_names()),
        ("variables named by a participle", odd_variables()),
        (f"files over {LONG_FILE} lines, functions over {LONG_FUNCTION}: look twice", long_rooms()),
    ):
        print(f"{title}: {len(rows)}")
        print("".join(f"    {row}\n" for row in rows), end="")


if __name__ == "__main__":
    main()
