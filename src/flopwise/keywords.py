"""Keywords of Python functions, from the declarations that the command line is made of.

A function that takes the options of several specs has `**options`; `takes` gives it the signature and the docstring
that name each of them, reads its own parameters with units, and understands the names of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from inspect import Parameter, signature
from keyword import iskeyword
from re import MULTILINE, finditer, sub
from typing import Any, ParamSpec, TypeVar

from flopwise.aliases import ALIASES, as_context
from flopwise.errors import SpecError, nearest_names
from flopwise.options import NEEDED, Option, ValueKind, defaults_of, options_of

P = ParamSpec("P")
R = TypeVar("R")
ARGUMENTS = {
    "model": 'a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.',
    "gpus": "number of accelerators.",
    "facts": "folder of rows that override the shipped ones.",
    "calibration": "name of a profile that `flopwise calibrate` made.",
    "assume_family": "read an unknown model_type as this known family.",
    "store": "a path or a postgresql:// URL (default: FLOPWISE_RUNS, else the file in your data folder).",
    "static": "a fixed batch: all prompts first, then all answers.",
    "encode": "one pass over each input, without an answer.",
    "simulate": "latencies of `concurrency` users or under `rate` by simulated requests, not in closed form.",
    "closed_form": "latencies in closed form, also where it is known to be off and requests would be simulated.",
    "replicas": "behind the balancer.",
    "slo": "what a request must hold to count into the goodput; or by its parts, `ttft`, `tpot` and `latency`.",
    "ttft": 'time to the first token ("500ms").',
    "tpot": "time per further token.",
    "latency": "the whole request.",
    "cache": "answers that are given again.",
    "page": "write the same as HTML there.",
    "advance": "called with (units of work done, units in all) as it goes.",
    "on_compile": "called before the simulator is compiled for the first time.",
}
"""What arguments mean that many functions have, where a function's own docstring does not say it."""


def takes(
    *specs: type, spellings: Mapping[str, str] | None = None, **own: ValueKind
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare that a function's `**` keywords are the options of `specs`; `own` parameters are read as these kinds.

    `spellings`: own parameters that go by another name on the command line, by that name.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        shown = signature(function)
        named = [p for p in shown.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        fields = _fields(specs, {p.name for p in named})
        spelled = {**_spellings(fields, {p.name for p in named}), **(spellings or {})}

        @wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> R:
            known, values = {*fields, *shown.parameters}, dict[str, Any]()
            for name, value in keywords.items():
                field = _field(name, spelled, known, keywords)
                is_alias = field != name and name not in spelled
                values[field] = _of_alias(name, value, one=fields.get(field)) if is_alias else value
            for name in own.keys() & values.keys():
                if values[name] is not None:
                    values[name] = own[name].parse(values[name], name.replace("_", " "))
            try:
                return function(*args, **values)  # the same keywords, read
            except SpecError as error:
                raise _with_nearest(error, function.__name__, values, {*known, *spelled}) from error.__cause__

        named = [p.replace(annotation=f"{p.annotation} | str") if p.name in own else p for p in named]
        extra = [_parameter(name, specs) for name in fields]
        call.__signature__ = shown.replace(parameters=[*named, *extra])  # type: ignore[attr-defined] # inspect reads it
        call.specs, call.spelled = specs, spelled  # type: ignore[attr-defined] # the stub is made from them
        call.__doc__ = _docstring(function.__doc__ or "", [p.name for p in named], fields, spelled)
        return call

    return declare


def _with_nearest(error: SpecError, function: str, given: Mapping[str, Any], known: set[str]) -> SpecError:
    """The error, with the nearest of all arguments where it is about one that the function does not have."""
    for name in given:
        if name in known or not str(error).startswith(f"unknown argument {name!r}"):
            continue
        if near := nearest_names(name, known, limit=1):
            return SpecError(f"unknown argument {name!r}; nearest: {near[0]}. help(flopwise.{function}) lists all")
    return error


def _fields(specs: tuple[type, ...], taken: set[str]) -> dict[str, Option]:
    """The options of the specs by name, without those that the function itself names."""
    fields: dict[str, Option] = {}
    for spec in specs:
        for name, one in options_of(spec).items():
            if name not in taken:
                fields.setdefault(name, one)
    return fields


def _spellings(fields: Mapping[str, Option], taken: set[str]) -> dict[str, str]:
    """The fields that go by another name on the command line, by that name: `--kv-dtype` is kv_dtype."""
    spellings = dict[str, str]()
    for name, one in fields.items():
        for flag in one.flags:
            spelling = flag.partition("/")[0].removeprefix("--").replace("-", "_")
            if spelling.isidentifier() and not iskeyword(spelling) and spelling not in {*fields, *taken}:
                spellings.setdefault(spelling, name)
    return spellings


def _field(name: str, spelled: Mapping[str, str], known: set[str], keywords: Mapping[str, Any]) -> str:
    """The field that a keyword means: itself, or the one whose flag has this name."""
    field = name if name in known else spelled.get(name) or _alias(name, spelled, known)
    if field != name and field in keywords:
        raise SpecError(f"{name} and {field} are the same argument; give one of them")
    return field


def _alias(name: str, spelled: Mapping[str, str], known: set[str]) -> str:
    """The field that the name of another tool's option means, as on the command line; the name where it means none."""
    for option in ALIASES.get(f"--{name.replace('_', '-')}", ()):
        own = option.removeprefix("--").replace("-", "_")
        if (field := own if own in known else spelled.get(own)) is not None:
            return field
    return name


def _of_alias(name: str, value: Any, one: Option | None) -> Any:
    """The value of an alias; the k of a context length is 1,024 whatever the option counts in."""
    if not isinstance(value, str) or one is None or one.flags[:1] != ("--input",):
        return value
    return as_context(f"--{name.replace('_', '-')}", value)


def _parameter(name: str, specs: tuple[type, ...]) -> Parameter:
    """A field as a parameter by keyword, with its default and its type."""
    spec: Any = next(spec for spec in specs if name in options_of(spec))
    default = defaults_of(spec)[name]
    kind = spec.__dataclass_fields__[name].type
    unset = Parameter.empty if default is NEEDED else default
    return Parameter(name, Parameter.KEYWORD_ONLY, default=unset, annotation=_annotation(kind, options_of(spec)[name]))


def _annotation(kind: Any, one: Option) -> str:
    """The type of a field; a quantity may be text with its unit, a path may be text, and a list one text."""
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    text = sub(r"tuple\[(.*?), \.\.\.\]", r"Sequence[\1]", text)
    as_text = one.repeated or one.kind.words.removeprefix("list of ").startswith("quantity") or "Path" in text
    return f"{text} | str" if as_text and "str" not in text else text


def _docstring(text: str, own: Iterable[str], fields: Mapping[str, Option], spelled: Mapping[str, str]) -> str:
    """A docstring whose `Args:` say what each argument of the function's `own` and each option is.

    What its author wrote comes first, in the order of the signature; then `ARGUMENTS`, then the options' own help.
    """
    head, heading, rest = text.partition("    Args:\n")
    if not heading:
        head, heading, rest = text.partition("    Raises:\n")
        written, rest = "", f"\n\n{heading}{rest}" if heading else f"\n\n{rest}"
    else:
        written, gap, rest = rest.partition("\n\n")
        rest = f"{gap}{rest}"
    entries = {m[1]: m[0] for m in finditer(r"^ {8}(\w+):.*(?:\n {12}.*)*", written, MULTILINE)}
    lines = [
        entries.get(name) or f"        {name}: {ARGUMENTS[name]}" for name in own if name in {*entries, *ARGUMENTS}
    ]
    for name, one in fields.items():
        others = ", ".join(other for other, field in spelled.items() if field == name)
        lines.append(f"        {name}{f' (or {others})' if others else ''}: {one.help}")
    return f"{head}    Args:\n" + "\n".join(lines) + rest
