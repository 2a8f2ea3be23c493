"""Where a figure comes from: a tree of formulas over facts, calibrations, assumptions and what the user gave.

Any estimate can hand out its tree; `flopwise explain` and `--explain` print it. The kind of a figure says what it owes:
a derived one its formula and inputs, a fact its source, a calibration what it was fitted on, an assumption its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, Literal

from flopwise import units

Kind = Literal["derived", "fact", "calibration", "assumption", "given"]

_OWED: dict[Kind, tuple[str, ...]] = {
    "derived": ("formula",),
    "fact": ("source",),
    "calibration": ("fitted_on", "source"),
    "assumption": ("note",),
    "given": (),
}

_FORMATS: dict[str, Callable[[float], str]] = {
    "s": units.format_seconds,
    "B": units.format_bytes,
    "B/s": units.format_rate,
    "FLOP": units.format_flops,
    "FLOP/s": lambda value: units.format_rate(value, "FLOP/s"),
    "USD": units.format_usd,
    "USD/h": lambda value: f"{units.format_usd(value)}/h",
    "J": units.format_joules,
    "W": lambda value: units.format_rate(value, "W"),
    "Hz": lambda value: units.format_rate(value, "Hz"),
    "frac": units.format_percent,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One value with its origin; `value` in the SI base unit named by `unit` (`s`, `B`, `FLOP/s`, `frac`, `USD/h` ...).

    Raises:
        ValueError: the figure lacks what its kind owes (a derived one its formula, a fact its source ...).
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
    number = f"{value:,.0f}" if whole else units.format_count(value) if abs(value) >= 1e7 else f"{value:.4g}"
    return f"{number} {unit}".rstrip()


def to_json(figure: Figure) -> dict[str, Any]:
    """The tree as plain dictionaries; empty fields are left out, `value` never is."""
    plain: dict[str, Any] = {field.name: getattr(figure, field.name) for field in fields(figure)}
    plain["inputs"] = [to_json(below) for below in figure.inputs]
    return {name: value for name, value in plain.items() if value or name == "value"}
