"""Where a figure comes from: a tree of formulas over facts, calibrations, assumptions and what the user gave.

Any estimate can hand out its tree; `flopwise explain` and `--explain` print it. The kind of a figure says what it owes:
a derived one its formula and inputs, a fact its source, a calibration what it was fitted on, an assumption its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import KW_ONLY, fields
from decimal import Decimal
from typing import Any, Literal

from flopwise import units
from flopwise.values import dataclass, replace

Kind = Literal["derived", "fact", "calibration", "assumption", "given", "default", "chosen"]

_OWED: dict[Kind, tuple[str, ...]] = {
    "derived": ("formula",),
    "fact": ("source",),
    "calibration": ("fitted_on", "source"),
    "assumption": ("note",),
    "given": (),
    "default": (),
    "chosen": (),
}

_FORMATS: dict[str, Callable[[float], str]] = {
    "s": lambda value: units.format_seconds(value) if value else "0 s",
    "B": units.format_bytes,
    "B/s": units.format_rate,
    "FLOP": units.format_flops,
    "FLOP/s": lambda value: units.format_rate(value, "FLOP/s"),
    "USD": units.format_usd,
    "USD/h": lambda value: f"{units.format_usd(value)}/h",
    "J": lambda value: f"{plain_number(value)} J" if value < units.HOUR_S else units.format_joules(value),
    "W": lambda value: units.format_rate(value, "W"),
    "Hz": lambda value: units.format_rate(value, "Hz"),
    "frac": units.format_percent,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One value with its origin; `value` in the SI base unit named by `unit` (`s`, `B`, `FLOP/s`, `frac`, `USD/h` ...).

    Raises: ValueError: the figure lacks what its kind owes (a derived one its formula, a fact its source ...).
    """

    name: str
    value: float | int | str | None
    unit: str = ""
    formula: str = ""  # how the value follows from the inputs, in words or symbols
    source: str = ""  # the paper, page or file it was read in
    inputs: tuple[Figure, ...] = ()
    note: str = ""  # why it was assumed; what does not hold here
    _: KW_ONLY
    kind: Kind = "derived"
    date: str = ""
    confidence: str = ""
    fitted_on: str = ""  # calibrations: the measurements behind the value

    def __post_init__(self) -> None:
        """Turn array scalars into plain numbers and hold the figure to what its kind owes."""
        plain = getattr(self.value, "item", None)
        if plain is not None:
            object.__setattr__(self, "value", plain())
        missing = [owed for owed in _OWED[self.kind] if not getattr(self, owed)]
        if missing:
            raise ValueError(f"the {self.kind} figure {self.name!r} lacks its {' and '.join(missing)}")


def term(
    name: str, value: float | None, unit: str, formula: str, *inputs: Figure, source: str = "", note: str = ""
) -> Figure:
    """Return a figure that follows from its `inputs` by `formula`."""
    return Figure(name, value, unit, formula, source, inputs, note)


def fact(
    name: str,
    value: float | str | None,
    unit: str,
    *,
    source: str,
    date: str = "",
    confidence: str = "",
    note: str = "",
) -> Figure:  # fmt: skip
    """Return a figure read from a datasheet, a price list or a model's config."""
    return Figure(name, value, unit, source=source, note=note, kind="fact", date=date, confidence=confidence)


def calibration(
    name: str, value: float, unit: str, *, fitted_on: str, source: str, date: str = "", note: str = ""
) -> Figure:
    """Return a figure fitted to measurements, which `fitted_on` names."""
    return Figure(name, value, unit, source=source, note=note, kind="calibration", date=date, fitted_on=fitted_on)


def assumption(name: str, value: float | str | None, unit: str, note: str) -> Figure:
    """Return a figure that nobody gave or measured here; `note` says why this value."""
    return Figure(name, value, unit, note=note, kind="assumption")


def setting(name: str, value: float | str | None, unit: str = "") -> Figure:
    """Return a figure that the user gave."""
    return Figure(name, value, unit, kind="given")


def implied_kinds(
    settings: Mapping[str, Collection[str]], stated_options: Collection[str], kind: Kind
) -> dict[str, Kind]:
    """The `kind` of each of `settings`, options by the names of their figures, of whose options none is said."""
    return {name: kind for name, options in settings.items() if not set(options).intersection(stated_options)}


def with_kinds(figure: Figure, kinds: Mapping[str, Kind]) -> Figure:
    """The tree with the kind that `kinds` names for what it calls given: what nobody said, or a search chose."""
    made: dict[int, Figure] = {}

    def tree(here: Figure) -> Figure:
        if id(here) not in made:
            kind = kinds.get(here.name, here.kind) if here.kind == "given" else here.kind
            inputs = tuple(map(tree, here.inputs))
            same = kind == here.kind and all(a is b for a, b in zip(inputs, here.inputs, strict=True))
            made[id(here)] = here if same else replace(here, kind=kind, inputs=inputs)
        return made[id(here)]

    return tree(figure)


def walk(figure: Figure) -> Iterator[Figure]:
    """Yield `figure` and all it rests on, each once, in the order in which the tree prints them."""
    seen: set[int] = set()
    stack = [figure]
    while stack:
        here = stack.pop()
        if id(here) not in seen:
            seen.add(id(here))
            yield here
            stack.extend(reversed(here.inputs))


def assumptions(figure: Figure) -> tuple[str, ...]:
    """Sentences about everything assumed below `figure`, each once."""
    return tuple(dict.fromkeys(f"{f.name}: {f.note}" for f in walk(figure) if f.kind == "assumption"))


def format_value(figure: Figure) -> str:
    """Value and unit as people read them; `unknown` where there is no value."""
    value, unit = figure.value, figure.unit
    if value is None:
        return "unknown"
    if isinstance(value, str):
        return f"{value} {unit}".rstrip()
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    whole = float(value).is_integer() and abs(value) < 1e7
    if unit.startswith("J/") and 0 < abs(value) < 1e-6:
        return f"{plain_number(value * 1e12)} p{unit}"
    number = f"{value:,.0f}" if whole else units.format_count(value) if abs(value) >= 1e7 else plain_number(value)
    if number == "1" and len(unit) > 1 and unit.isalpha():  # 1 GPU, 2 GPUs
        unit = unit.removesuffix("s")
    return f"{number} {unit}".rstrip()


def plain_number(value: float) -> str:
    """A number of four digits, or as many as stand before its point; never with a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{Decimal(f'{value:.4g}'):f}"


def to_json(figure: Figure) -> dict[str, Any]:
    """The tree as plain dictionaries; empty fields are left out, `value` never is."""
    plain: dict[str, Any] = {field.name: getattr(figure, field.name) for field in fields(figure)}
    plain["inputs"] = [to_json(below) for below in figure.inputs]
    return {name: value for name, value in plain.items() if value or name == "value"}
