"""Options, each declared once: from a declaration come command line, file keys, JSON Schema, pages and keywords.

A `Spec` is a frozen dataclass whose fields are options (`option`): how each is written, what it may be, what it means
and what holds when nobody says it. `take` lays Python keywords over specs, a `FileFormat` reads specs from the mapping
of a file, and `flopwise.cli.options` makes flags of the same fields.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

from flopwise import units
from flopwise.errors import SpecError, fold, nearest_hint
from flopwise.values import dataclass, replace

JsonSchema = dict[str, Any]
NEEDED: Any = object()
"""Default of an option that is required."""
FIELD = "."
"""At the end of a key: the name of the field."""


@dataclass(frozen=True, slots=True)
class ValueKind:
    """The syntax and the bounds of a value.

    `parse(value, what)` gives it in base units, or raises SpecError with a message that starts with `what`.
    """

    metavar: str  # behind the flag in the help
    parse: Callable[[object, str], Any]
    words: str = "text"  # in the pages
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "string", "minLength": 1})
    choices: tuple[str, ...] = ()
    is_flag: bool = False


def quantity(
    metavar: str, reads: Callable[[object, str], float], *, low: float = 0.0, high: float = 1e24, closed: bool = False
) -> ValueKind:
    """A number above `low` (`closed`: or equal to it) up to `high`; `reads` is a function of `flopwise.units`."""

    def bound_text(value: float) -> str:
        return "0" if value == 0 else BOUND_TEXTS.get(metavar, _plain_number)(value)

    def parse(value: object, what: str) -> float:
        number = reads(value, what)
        if not (math.isfinite(number) and (low < number <= high or (closed and number == low))):
            above = f"{bound_text(low)} or more" if closed else f"above {bound_text(low)}"
            raise SpecError(f"{what}: {str(value)[:60]} is out of range; allowed: {above}, up to {bound_text(high)}")
        return number

    return ValueKind(metavar, parse, "quantity", {"type": ["number", "string"]})


def _plain_number(value: float) -> str:
    """12, 0.001, -1,000,000 or 1e24, as people write them."""
    if abs(value) < 1e6:
        return f"{value:,g}"
    return f"{value:,.0f}" if abs(value) < 1e13 else f"{value:g}".replace("e+", "e")


def _long_time(value: float) -> str:
    """Years, for the bounds of times; below those the usual units, and 0 for less than a nanosecond."""
    years = value / (365.25 * units.DAY_S)
    if years >= 2:
        return f"{years:,.0f} years"
    return units.format_seconds(value) if value >= 1e-9 else "0"


def _dollars(value: float) -> str:
    """`$1,000,000,000,000,000`, and 0 for less than a thousandth of a cent."""
    return f"${value:,.0f}" if value >= 1 else f"${value:g}" if value >= 1e-5 else "0"


def _frequency(value: float) -> str:
    """`1,000,000,000,000/s`, or `1 in 31,688 years`."""
    return f"{_plain_number(value)}/s" if value >= 1e-3 else f"1 in {_long_time(1 / value)}"


BOUND_TEXTS: Mapping[str, Callable[[float], str]] = {
    "bandwidth": units.format_rate, "bytes": partial(units.format_rate, unit="B"), "flop": units.format_flops,
    "power": "{:,.0f} W".format, "rate": _frequency, "time": _long_time, "usd": _dollars,
}  # fmt: skip
"""Formats of bounds, by the metavar of their kind; others are plain numbers."""


def whole(low: int = 1, high: int = 10**9) -> ValueKind:
    """A whole number from `low` to `high`; `8k` and `1e6` are fine."""

    def parse(value: object, what: str) -> int:
        return units.parse_whole(value, what, low=low, high=high)

    return ValueKind("n", parse, "quantity", {"type": ["number", "string"]})


def name(metavar: str, longest: int = 200) -> ValueKind:
    """A name of something known: it is looked up by the function that uses it."""

    def parse(value: object, what: str) -> str:
        if not isinstance(value, str):
            raise _wrong_value("text", value, what)
        text = value.strip()
        if not text or "\0" in text:
            raise SpecError(f"{what}: {value[:60]!r} is not a name")
        if len(text) > longest:
            raise SpecError(f"{what}: expected text of a length up to {longest}, not of {len(text):,}")
        return text

    return ValueKind(metavar, parse, schema={"type": "string", "minLength": 1, "maxLength": longest})


PROVIDER_ALIASES = {
    alias: provider
    for provider, aliases in {
        "aws": "amazon amazonwebservices ec2",
        "azure": "microsoft microsoftazure msazure",
        "gcp": "google googlecloud googlecloudplatform gce",
        "lambda": "lambdalabs lambdacloud lambdaai",
        "massedcompute": "massed",
        "oci": "oracle oraclecloud",
        "vast": "vastai",
    }.items()
    for alias in aliases.split()
}
"""Other names of providers, folded, by their name in offers."""


def provider_name(given: str) -> str:
    """The name in offers of the provider `given`, which may be one of `PROVIDER_ALIASES`."""
    return PROVIDER_ALIASES.get(fold(given), given)


def _provider(value: object, what: str) -> str:
    return provider_name(name("provider").parse(value, what))


PROVIDER = replace(name("provider"), parse=_provider)


def choice(*allowed: str) -> ValueKind:
    """One of a few names."""

    def parse(value: object, what: str) -> str:
        if not isinstance(value, str) or value not in allowed:
            near = nearest_hint(value, allowed)
            raise SpecError(f"{what}: {str(value)[:60]!r} is not one of {', '.join(allowed)}{near}")
        return value

    return ValueKind("|".join(allowed), parse, " or ".join(allowed), {"enum": list(allowed)}, allowed)


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong_value("true or false", value, what)
    return value


def _wholes(value: object, what: str, *, low: int = 1) -> tuple[int, ...]:
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(units.parse_whole(str(part).strip(), what, low=low, high=10**6) for part in parts)


def _names(value: object, what: str) -> tuple[str, ...]:
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(name("name").parse(part, what) for part in parts)


def _path(value: object, what: str) -> Path:
    if not isinstance(value, str | Path):
        raise _wrong_value("the path of a file", value, what)
    if "\0" in str(value):
        raise SpecError(f"{what}: {str(value)[:60]!r} is not a path")
    return Path(value)


_MONTH_PATTERN = r"20\d\d-(0[1-9]|1[0-2])(-(0[1-9]|[12]\d|3[01]))?"


def _month(value: object, what: str) -> str:
    text = str(value).strip()
    if not re.fullmatch(_MONTH_PATTERN, text):
        raise SpecError(f"{what}: {text[:60]!r} is no month; allowed: a month or a day, such as 2025-06 or 2025-06-30")
    return text


def _wrong_value(wanted: str, value: object, what: str) -> SpecError:
    return SpecError(f"{what}: expected {wanted}, not {kind_of(value)} (given: {str(value)[:60]!r})")


def kind_of(value: object) -> str:
    """The type of a file's value, in words."""
    words = {type(None): "nothing", list: "a list", tuple: "a list", dict: "a mapping", str: "text"}
    words |= {bool: "true or false", int: "a number", float: "a number"}
    return words.get(type(value), f"a {type(value).__name__}")


COUNT = quantity("count", units.parse_count)
COUNT_OR_ZERO = quantity("count", units.parse_count, closed=True)
RATIO = quantity("x", units.parse_count)
CAPACITY = quantity("x", units.parse_count, low=0.01, high=1000.0, closed=True)
HOUR = quantity("hour", units.parse_count, high=24.0, closed=True)
FLOPS = quantity("flop", units.parse_flops, high=1e36)
BYTES = quantity("bytes", units.parse_bytes, high=1e21)
SECONDS = quantity("time", units.parse_seconds, low=1e-12, high=1e12)
SECONDS_OR_ZERO = quantity("time", units.parse_seconds, high=1e12, closed=True)
RATE = quantity("rate", units.parse_rate, low=1e-12, high=1e12)
RATE_OR_ZERO = quantity("rate", units.parse_rate, high=1e12, closed=True)
BANDWIDTH = quantity("bandwidth", units.parse_bytes_per_s, low=1.0, high=1e18, closed=True)
WATTS = quantity("power", units.parse_watts, high=1e6)
USD = quantity("usd", units.parse_usd, low=1e-9, high=1e15)
USD_OR_ZERO = quantity("usd", units.parse_usd, high=1e15, closed=True)
FRACTION = quantity("share", units.parse_share, high=1.0)
FRACTION_OR_ZERO = quantity("share", units.parse_share, high=1.0, closed=True)
CHANGE = quantity("share", units.parse_share, low=-1e9, high=1e9)
WHOLE = whole()
WHOLE_OR_ZERO = whole(low=0)
BATCH = whole(high=10**7)
TOKENS = whole(high=10**8)
CONTEXT = ValueKind("n", partial(units.parse_whole, high=10**8, k=1024), "quantity", {"type": ["number", "string"]})
"""Tokens of a sequence as models are named by them: 32k is 32,768."""
DEGREE = whole(high=10**6)
WHOLES = ValueKind("n,n,...", _wholes, "list of quantity", {"type": ["string", "array"]})
WHOLES_OR_ZERO = replace(WHOLES, parse=partial(_wholes, low=0))
NAMES = ValueKind("name,name,...", _names, "list of text", {"type": ["string", "array"]})
FLAG = ValueKind("", _flag, "true or false", {"type": "boolean"}, is_flag=True)
FILE = ValueKind("path", _path)
MONTH = ValueKind("month", _month, "month, such as 2025-06", {"type": "string", "pattern": f"^{_MONTH_PATTERN}$"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option: its spelling on the command line and in files, its kind, and its meaning."""

    flags: tuple[str, ...]  # none where only files say it; `--x/--no-x` where it can be denied
    kind: ValueKind
    help: str
    key: str = ""  # in a file, behind its section and a dot; none where files do not say it; see FIELD
    section: str = ""  # heading in the help
    metavar: str = ""  # in the help, instead of the kind's
    repeated: bool = False  # a flag that may be given several times, a list in a file

    def parse(self, value: object, what: str) -> Any:
        """The value of a file or a keyword in base units; one text stands for a list of it.

        Raises: SpecError: it cannot be; the message starts with `what`.
        """
        if not self.repeated:
            return self.kind.parse(value, what)
        if isinstance(value, str):
            return (self.kind.parse(value, what),)
        if not isinstance(value, list | tuple):
            raise _wrong_value("a list", value, what)
        return tuple(self.kind.parse(part, f"{what}.{number}") for number, part in enumerate(value))

    def arguments(self, value: Any) -> list[str]:
        """The words of a command line that say `value`, in base units; none for None."""
        if value is None or not self.flags:
            return []
        on, _, off = self.flags[0].partition("/")
        if self.kind.is_flag:
            return [on] if value else [off] if off else []
        return [word for one in (value if self.repeated else (value,)) for word in (on, argument_text(one))]

    @property
    def words(self) -> str:
        """The allowed values, for the pages."""
        return f"list of {self.kind.words}" if self.repeated else self.kind.words

    @property
    def schema(self) -> JsonSchema:
        """The allowed values, as JSON Schema."""
        one = dict(self.kind.schema)
        if not self.repeated:
            return {"description": self.help} | one
        if one.get("type") == "object":
            return {"description": self.help, "type": "array", "items": one}
        text_alone = [one] if one.get("type") == "string" or "enum" in one else [{"type": "string", "minLength": 1}]
        return {"description": self.help, "anyOf": [{"type": "array", "items": one}, *text_alone]}


def argument_text(value: Any) -> str:
    """A value in base units as text for a command line, which parses to the same value."""
    if isinstance(value, tuple):
        return ",".join(map(argument_text, value))
    if isinstance(value, float):
        text = next(text for text in (f"{value:g}", f"{value:.12g}", repr(value)) if float(text) == value)
        return re.sub(r"e\+0*", "e", text)
    return str(value)


def option(flags: str, kind: ValueKind, text: str, *, default: Any = None, **parts: Any) -> Any:
    """A field of a spec: `flags` with a blank between them, kind, help `text`, and what holds when it is not said.

    `parts` are the other fields of its `Option`: `key`, `section`, `metavar`, `repeated`.
    """
    return _field(Option(flags=tuple(flags.split()), kind=kind, help=text, **parts), default)


def same(spec: type, named: str, *, default: Any = None, **changes: Any) -> Any:
    """A field of a spec: what `spec` declares as `named`, with `changes`: another key, heading, or being repeated."""
    return _field(replace(options_of(spec)[named], **changes), default)


def _field(declared: Option, default: Any) -> Any:
    if default is NEEDED:
        return field(metadata={"option": declared})
    return field(default=() if declared.repeated and default is None else default, metadata={"option": declared})


class OptionError(SpecError):
    """An option that does not go with others; `name` is that of its field, `reason` what is wrong with it."""

    def __init__(self, name: str, reason: str) -> None:
        """The message starts with the name."""
        self.name, self.reason = name, reason
        super().__init__(f"{name.replace('_', ' ')}: {reason}")


class Spec:
    """A frozen dataclass of options. Values are read as their kinds have it, so that text with units will do."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Read the values that are said; SpecError for one that cannot be."""
        spec: Any = type(self)
        defaults = defaults_of(spec)
        for name, declared in options_of(spec).items():
            value = getattr(self, name)
            if value is not None and value is not defaults[name]:
                value = (value,) if declared.repeated and isinstance(value, str) else value
                object.__setattr__(self, name, declared.parse(value, name.replace("_", " ")))


@cache
def options_of(spec: type) -> Mapping[str, Option]:
    """The options of a spec by the names of its fields."""
    declared = {f.name: f.metadata["option"] for f in fields(spec) if "option" in f.metadata}
    keys = {name: f"{o.key}{name if o.key.endswith(FIELD) else ''}".lstrip(FIELD) for name, o in declared.items()}
    return {name: replace(o, key=keys[name]) for name, o in declared.items()}


@cache
def defaults_of(spec: type) -> Mapping[str, Any]:
    """The defaults, by the names of a spec's fields."""
    needed = {f.name: NEEDED if f.default_factory is MISSING else None for f in fields(spec)}
    return {f.name: needed[f.name] if f.default is MISSING else f.default for f in fields(spec)}


def changed_options(spec: Any) -> list[str]:
    """The options of a spec that are not at their defaults."""
    kind: Any = type(spec)
    return [name for name, default in defaults_of(kind).items() if getattr(spec, name) != default]


def without_none(**values: Any) -> dict[str, Any]:
    """The `values` that are not None: those stand for the defaults of the function that takes the rest."""
    return {name: value for name, value in values.items() if value is not None}


def take(options: Mapping[str, Any], *specs: type) -> tuple[Any, ...]:
    """The `specs` of a question: each the one that `options` hold whole, under any name, with its single options.

    An option of None says nothing. A whole spec of a class that one of `specs` extends stands for it, too.

    Raises: SpecError: an option that none of them has; names the nearest.
    """
    kinds = {kind: spec for spec in specs for kind in reversed(spec.__mro__) if issubclass(kind, Spec)}
    whole = {kinds[kind]: value for value in options.values() if (kind := type(value)) in kinds}
    single = {name: value for name, value in options.items() if type(value) not in kinds}
    every = dict.fromkeys(name for spec in specs for name in defaults_of(spec))
    for name in single:
        if name not in every:
            near = nearest_hint(name, every).removeprefix("; ")
            raise SpecError(f"unknown argument {name!r}; {near and near + '; '}there are {', '.join(every)}")
    values = {name: value for name, value in single.items() if value is not None}
    return tuple(
        replace(_spec_of_class(whole.get(spec), spec), **{n: v for n, v in values.items() if n in defaults_of(spec)})
        for spec in specs
    )


def _spec_of_class(given: Any, spec: type) -> Any:
    """A spec of the class `spec` with the options of `given`, which is of it or of one that it extends, if any is."""
    if isinstance(given, spec):
        return given
    kind: Any = type(given)
    return spec() if given is None else spec(**{name: getattr(given, name) for name in defaults_of(kind)})


@dataclass(frozen=True, eq=False)
class FileFormat:
    """The allowed keys of a mapping in a file: options of `specs`.

    `sections`: what each section of it is about, by name. `order`: of its keys and sections, where it matters.
    """

    specs: tuple[type, ...]
    sections: Mapping[str, str] = field(default_factory=dict)
    order: tuple[str, ...] = ()

    @cached_property
    def options(self) -> dict[str, Option]:
        """The options with a key, by key."""
        return {o.key: o for spec in self.specs for o in options_of(spec).values() if o.key}

    @cached_property
    def keys(self) -> dict[str, list[str]]:
        """The keys of each section; those of the mapping itself under an empty name."""
        known = dict.fromkeys(key.partition(".")[0] for key in self.options)
        top = dict.fromkeys((*(key for key in self.order if key in known), *known))
        within = {name: [k.partition(".")[2] for k in self.options if k.startswith(f"{name}.")] for name in top}
        return {"": list(top), **within}

    def parse(self, data: object, at: str = "") -> tuple[Any, ...]:
        """The specs with the values of a mapping, which stands `at` this place of a file ("workloads.3.").

        Raises: SpecError: an unknown key, a value that cannot be, a missing one; starts with the place.
        """
        options, values = self.options, dict[str, Any]()
        for key, value in self._flat(data, at):
            if value is not None:
                values[key] = options[key].parse(value, f"{at}{key}")
        return tuple(self._spec(spec, values, at) for spec in self.specs)

    def _key_of_flag(self, word: object) -> str:
        """The key of the option whose flag is `--word`; empty where there is none."""
        flag = f"--{str(word).replace('_', '-')}"
        return next((key for key, option in self.options.items() if flag in option.flags), "")

    def _spec(self, spec: type, values: Mapping[str, Any], at: str) -> Any:
        named = {name: values[o.key] for name, o in options_of(spec).items() if o.key in values}
        for name, default in defaults_of(spec).items():
            if default is NEEDED and name not in named:
                raise SpecError(f"{at.rstrip('.')}: needs `{name}`".removeprefix(": "))
        return spec(**named)

    def _flat(self, data: object, at: str) -> Iterator[tuple[str, Any]]:
        """Keys, behind their section and a dot, and values as they are written."""
        for key, value in _mapping(data, at).items():
            if key not in self.keys[""]:
                raise _unknown(key, self.keys[""], at, self._key_of_flag(key))
            if key not in self.sections:
                yield key, value
                continue
            for part, inner in _mapping({} if value is None else value, f"{at}{key}.").items():
                if part not in self.keys[key]:
                    raise _unknown(part, self.keys[key], f"{at}{key}.", self._key_of_flag(part))
                yield f"{key}.{part}", inner

    def without_defaults(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A mapping that can be read, with its keys in order and without those that say what holds anyway."""
        defaults = {o.key: defaults_of(s)[n] for s in self.specs for n, o in options_of(s).items() if o.key}
        values = {k: v for k, v in self._flat(data, "") if v is not None and v != [] and v != defaults[k]}
        top = self.keys[""]
        document: dict[str, Any] = {}
        for key in sorted(defaults, key=lambda key: top.index(key.partition(".")[0])):
            if key in values:
                section, dot, part = key.rpartition(".")
                (document.setdefault(section, {}) if dot else document)[part] = values[key]
        return document

    def schema(self) -> JsonSchema:
        """JSON Schema of the mapping."""
        properties: JsonSchema = {
            name: {"description": text, "type": "object", "properties": {}, "additionalProperties": False}
            for name, text in self.sections.items()
        }
        for key, declared in self.options.items():
            section, dot, part = key.rpartition(".")
            (properties[section]["properties"] if dot else properties)[part] = declared.schema
        needed = [n for s in self.specs for n, default in defaults_of(s).items() if default is NEEDED]
        return {"type": "object", "properties": properties, "additionalProperties": False, "required": needed}


def record(spec: type) -> ValueKind:
    """A mapping that says a spec."""
    form = FileFormat((spec,))

    def parse(value: object, what: str) -> Any:
        return value if isinstance(value, spec) else form.parse(value, f"{what}.")[0]

    return ValueKind("", parse, "below", form.schema())


def by_name(kind: ValueKind) -> ValueKind:
    """A mapping from names to values of a kind."""

    def parse(value: object, what: str) -> dict[str, Any]:
        return {_key(name, what): kind.parse(entry, f"{what}.{name}") for name, entry in _mapping(value, what).items()}

    schema = {"type": "object", "additionalProperties": dict(kind.schema)}
    return ValueKind("", parse, f"{kind.words} by name", schema)


def _key(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError(f"{what}: keys are text, not {kind_of(value)} (given: {str(value)[:60]!r})")
    return value


def _mapping(data: object, at: str) -> Mapping[Any, Any]:
    if not isinstance(data, dict):
        raise _wrong_value("a mapping", data, at.rstrip(".") or "the file")
    return data


def _unknown(key: object, allowed: Sequence[str], at: str, of_flag: str) -> SpecError:
    """The error of a key that a mapping does not have; `of_flag`: that of the command's flag of this name."""
    shown = str(key)[:60]
    near = f"; nearest: {of_flag} (--{shown.replace('_', '-')} of commands)" if of_flag else nearest_hint(key, allowed)
    return SpecError(f"{at}{shown}: unknown key {shown!r}; allowed: {', '.join(allowed)}{near}")
