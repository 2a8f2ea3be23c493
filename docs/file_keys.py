"""Every key of a fleet file as a page, from the structs that read it: `python docs/generate.py` writes it.

What a key means stands in the sources as a text below its field; a test refuses a field without one.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from flopwise.facts import defaults
from flopwise.fleet import spec
from flopwise.search import workload

PAGE = Path(__file__).parent / "fleet-file.md"
HEAD = """# Every key of a fleet file

A fleet is YAML (or JSON). Quantities take units (`2TB`, `500ms`, `$20k`, `40%`); an unknown key, value or name is
refused with its line and the nearest one. What it is for: [a whole platform](questions/fleet.md); for editors there is
the [JSON Schema](fleet.schema.json).
"""
SECTIONS = (
    ("Fleet", "The file"), ("Hours", "`environments.NAME`, and `hours` of a workload"), ("Policies", "`policies`"),
    ("Quota", "`policies.quotas`, each"), ("Backup", "`policies.backup`"), ("Spreads", "`policies.scenarios`"),
    ("Job", "`workloads`, each"),
    ("Data", "`data`"), ("Method", "`method`"), ("Routing", "`routing`"), ("Traffic", "`traffic`"),
    ("Techniques", "`techniques`"),
    ("Targets", "`targets`"), ("Constraints", "`constraints`"), ("Workstations", "`machines`"),
    ("Checkpoints", "`checkpoints`"), ("Volumes", "`volumes`"), ("OwnMachines", "`own_machines`, each"),
    ("SiteFigures", "`own_machines`: `site`"),
)  # fmt: skip
KINDS = {
    "Quantity": "quantity", "Name": "text", "str": "text", "bool": "true or false", "float": "number", "None": "",
    "Month": "a month", "Kind": " or ".join(spec.Kind.__args__), "Purchase": " or ".join(spec.PURCHASES),
}  # fmt: skip


def page() -> str:
    """The whole page."""
    structs = {c.name: c for module in (spec, workload) for c in _classes(module)}
    parts = [HEAD]
    for name, title in SECTIONS:
        if name in structs:
            parts += [f"## {title}\n", *_section(structs[name])]
    return "\n".join(parts)


def _classes(module: object) -> Iterator[ast.ClassDef]:
    tree = ast.parse(inspect.getsource(module))  # type: ignore[arg-type]  # a module
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def _section(struct: ast.ClassDef) -> Iterator[str]:
    """What a struct is, and its keys."""
    yield f"{ast.get_docstring(struct)}\n"
    yield "| key | value | unless given | |"
    yield "|---|---|---|---|"
    for name, kind, default, text in fields(struct):
        yield f"| `{name}` | {kind} | {default} | {text} |".replace("  ", " ")
    yield ""


def fields(struct: ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """(name, kind of value, default, meaning) of each field."""
    for node, following in zip(struct.body, [*struct.body[1:], None], strict=True):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        said = following.value if isinstance(following, ast.Expr) else None
        text = inspect.cleandoc(said.value) if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
        default = "needed" if node.value is None else ast.unparse(node.value)
        if default.startswith("defaults."):
            default = str(getattr(defaults, default.removeprefix("defaults.")))
        default = "" if default in {"None", "[]", "{}"} or default.endswith(")") else default.replace("'", "")
        yield node.target.id, _kind(node.annotation), default.lower(), " ".join(text.split()).replace("|", "\\|")


def _kind(node: ast.expr) -> str:  # noqa: PLR0911 - one for each kind of node
    """A type in words."""
    match node:
        case ast.BinOp(left=left, right=right):
            return " or ".join(dict.fromkeys(word for word in (_kind(left), _kind(right)) if word))
        case ast.Subscript(value=ast.Name(id="list"), slice=inner):
            return f"list of {_kind(inner)}"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"{_kind(value)} by {'percentile' if _kind(key) == 'Percentile' else 'name'}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=words)):
            return " or ".join(str(ast.literal_eval(word)) for word in words)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[inner, *_])):
            return _kind(inner)
        case ast.Constant(value=None):
            return ""
        case ast.Name(id=name):
            titles = dict(SECTIONS)
            return KINDS.get(name) or ("below" if name in titles else name)
    return ast.unparse(node)
