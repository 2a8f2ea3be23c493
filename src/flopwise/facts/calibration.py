"""The calibrated parameters: achieved rates, fixed times, link behaviour; each with its unit, meaning, data and date.

A parameter is a name and a scope. The scope is an architecture family (`hopper`), a link kind (`nvlink4`), a vendor, a
kind of device or `any`; a question is asked of a chain of scopes, nearest first, and the first that knows answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from flopwise.data import DATA
from flopwise.errors import MissingFactError, SpecError

FIELDS = ("name", "scope", "value", "unit", "meaning", "fitted_on", "source", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One calibrated number and where it comes from."""

    name: str
    scope: str
    value: float
    unit: str
    meaning: str
    fitted_on: str
    source: str
    date: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """All parameters, asked by name along a chain of scopes."""

    parameters: tuple[Parameter, ...]
    _index: Mapping[tuple[str, str], Parameter] = field(init=False, repr=False, compare=False)
    _scopes: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index by name and scope, refusing duplicates."""
        index: dict[tuple[str, str], Parameter] = {}
        for parameter in self.parameters:
            if (parameter.name, parameter.scope) in index:
                raise SpecError(f"calibration: {parameter.name!r} for {parameter.scope!r} stands twice")
            index[parameter.name, parameter.scope] = parameter
        scopes: dict[str, tuple[str, ...]] = {}
        for name, scope in index:
            scopes[name] = (*scopes.get(name, ()), scope)
        object.__setattr__(self, "_index", index)
        object.__setattr__(self, "_scopes", scopes)

    def find(self, name: str, scopes: Sequence[str]) -> Parameter:
        """The parameter of the first scope that has it.

        Raises:
            MissingFactError: none has it.
        """
        for scope in scopes:
            if (found := self._index.get((name, scope))) is not None:
                return found
        raise MissingFactError(
            f"no calibration of {name!r} for any of: {', '.join(scopes)}; add one to data/calibration"
        )

    def names(self, *apart: str) -> tuple[str, ...]:
        """Names of all parameters but those that begin with one of `apart`, in the order of the files."""
        return tuple(name for name in self._scopes if not name.startswith(apart or ("\n",)))

    def has(self, name: str, scope: str) -> bool:
        """Whether `name` stands for exactly this scope."""
        return (name, scope) in self._index

    def scoped(self, name: str) -> bool:
        """Whether `name` differs from scope to scope (is not one value for all)."""
        return self._scopes.get(name, ()) != ("any",)

    def replaced(self, values: Mapping[tuple[str, str], float]) -> Calibration:
        """A copy in which the (name, scope) pairs of `values` have other values; unknown pairs are an error.

        Raises:
            SpecError: a pair that does not exist.
        """
        unknown = [pair for pair in values if pair not in self._index]
        if unknown:
            raise SpecError(f"calibration: no parameter {unknown[0]}")
        return Calibration(
            tuple(
                Parameter(**{**_row(p), "value": values[p.name, p.scope]}) if (p.name, p.scope) in values else p
                for p in self.parameters
            )
        )

    def overlaid(self, above: Calibration) -> Calibration:
        """A copy in which the parameters of `above` stand in for those of the same name and scope, or beside them."""
        return Calibration(tuple({(p.name, p.scope): p for p in (*self.parameters, *above.parameters)}.values()))

    def without(self, scopes: Iterable[str]) -> Calibration:
        """A copy that knows nothing of `scopes`: what a device of an unseen family gets."""
        gone = set(scopes)
        return Calibration(tuple(p for p in self.parameters if p.scope not in gone))


def _row(parameter: Parameter) -> dict[str, Any]:
    return {name: getattr(parameter, name) for name in FIELDS}


def parameters_from(text: str, where: str) -> list[Parameter]:
    """The parameters of one JSON document: a list of objects with the fields of `Parameter`.

    Raises:
        SpecError: not such a list, naming file and row.
    """
    try:
        rows = json.loads(text)
    except ValueError as error:
        raise SpecError(f"{where}: not JSON: {error}") from None
    if not isinstance(rows, list):
        raise SpecError(f"{where}: a list of parameters is expected")
    parameters = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict) or set(row) != set(FIELDS):
            raise SpecError(f"{where}, entry {number}: exactly these fields are expected: {', '.join(FIELDS)}")
        value = row["value"]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise SpecError(f"{where}, entry {number} ({row['name']}): value {value!r} is not a number >= 0")
        parameters.append(Parameter(**{**row, "value": float(value)}))
    return parameters


@lru_cache(maxsize=8)
def load_calibration(folder: Path | None = None) -> Calibration:
    """The shipped calibration, or that of the JSON files in `folder`.

    Raises:
        SpecError: a file is not what is expected, or the folder holds none.
    """
    root = DATA / "calibration" if folder is None else folder
    files = sorted((f for f in root.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    if not files:
        raise SpecError(f"{root}: no calibration (*.json) there")
    return Calibration(tuple(p for f in files for p in parameters_from(f.read_text(encoding="utf-8"), f.name)))


def calibration_page(calibration: Calibration) -> str:
    """The parameters as a Markdown page, by name and scope."""
    lines = [
        "# Calibration",
        "",
        "Every parameter of the cost model besides datasheet figures. `benchmarks/fit_kernels.py --page` writes it,",
        "the values live in `src/flopwise/data/calibration/`.",
        "",
        f"{len(calibration.parameters)} values of {len({p.name for p in calibration.parameters})} parameters.",
    ]
    for name in dict.fromkeys(p.name for p in calibration.parameters):
        rows = [p for p in calibration.parameters if p.name == name]
        lines += ["", f"## {name}", "", f"{rows[0].meaning} Unit: {rows[0].unit}.", ""]
        lines += ["| scope | value | fitted on | source | date |", "|---|---|---|---|---|"]
        lines += [f"| {p.scope} | {p.value:.4g} | {p.fitted_on} | {p.source} | {p.date} |" for p in rows]
    return "\n".join([*lines, *_stack_lines(), *_engine_lines()]) + "\n"


def _stack_lines() -> list[str]:
    """The fitted columns of the training stacks."""
    from flopwise.facts.software import FITTED, stack, stack_names  # noqa: PLC0415 - only this page needs stacks

    lines = [
        "",
        "## Training stacks",
        "",
        "Columns of `src/flopwise/data/stacks.csv` that several stacks share, fitted",
    ]
    lines += ["with the parameters of training above on published training runs (`benchmarks/fit_training.py`).", ""]
    lines += [f"- `{name}`: {meaning}" for name, meaning in FITTED.items()]
    lines += ["", f"| stack | {' | '.join(FITTED)} |", f"|---|{'---|' * len(FITTED)}"]
    for name in stack_names():
        lines.append(f"| {name} | {' | '.join(f'{getattr(stack(name), c):.4g}' for c in FITTED)} |")
    return lines


def _engine_lines() -> list[str]:
    """The fitted columns of the serving engines."""
    from flopwise.facts.software import FITTED_OF_ENGINES, engine, engine_names  # noqa: PLC0415 - only for this page

    lines = [
        "",
        "## Serving engines",
        "",
        "Columns of `src/flopwise/data/engines.csv` that several engines share, fitted",
    ]
    lines += ["on published serving results (`benchmarks/fit_serving.py`).", ""]
    lines += [f"- `{name}`: {meaning}" for name, meaning in FITTED_OF_ENGINES.items()]
    lines += ["", f"| engine | {' | '.join(FITTED_OF_ENGINES)} |", f"|---|{'---|' * len(FITTED_OF_ENGINES)}"]
    for name in engine_names():
        lines.append(f"| {name} | {' | '.join(f'{getattr(engine(name), c):.3g}' for c in FITTED_OF_ENGINES)} |")
    return lines
