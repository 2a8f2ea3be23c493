"""The calibrated parameters: achieved rates, fixed times, link behaviour; each with its unit, meaning, data and date.

A parameter is a name and a scope. The scope is an architecture family (`hopper`), a link kind (`nvlink4`), a vendor, a
kind of device or `any`; a question is asked of a chain of scopes, nearest first, and the first that knows answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from flopwise.errors import MissingFactError, SpecError
from flopwise.facts import tables
from flopwise.values import dataclass, replace

STAND_INS = {"matmul_frac.fp32": ("matmul_frac.bf16",)}
"""Parameters that others of a nearer scope stand in for: of a machine that was measured, or of a family."""
FIELDS = ("name", "scope", "value", "unit", "meaning", "fitted_on", "source", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One calibrated number and its source."""

    name: str
    scope: str
    value: float
    unit: str
    meaning: str
    fitted_on: str
    source: str
    date: str
    profile: str = ""  # of the user's own measurements, where it is from one


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorQuantiles:
    """Measured / predicted of one class of prediction: 10th percentile, median, 90th percentile over `rows` of them.

    `stacks`: of training, what a user's own rows ran on.
    """

    name: str
    low: float
    median: float
    high: float
    rows: int
    source: str
    date: str
    stacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyRows:
    """Measured rows of one family of devices; `spread`: the factor on its classes' bands that covers 80 % of them.

    `maker`: vendor and kind of device, as a vendor's CPUs tell nothing of its GPUs. `classes`: rows of each class of
    predictions, and of those above it.
    """

    maker: str
    rows: int
    sources: int
    spread: float
    classes: Mapping[str, int] = field(default_factory=dict)


FEW_ROWS, FEW_SOURCES = 8, 2
"""A class of predictions, or a family of devices, with less rests on what is known of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredFamilies:
    """The families of devices that one kind of prediction was measured on, and what it costs to leave one out.

    `family_out` and `maker_out`: how many times wider bands hold 80 % of rows whose family, or whose maker's families,
    the calibration has not seen. `stacks`: rows of each training stack; `large`: as `family_out`, of rows on more than
    a thousand devices.
    """

    families: Mapping[str, FamilyRows]
    family_out: float
    maker_out: float
    stacks: Mapping[str, int] = field(default_factory=dict)
    large: float = 1.0

    def spread(self, family: str, maker: str) -> float:
        """The factor that widens the band of a prediction for such a device over its class; 1 where it was measured.

        What a family's own rows say counts from `FEW_ROWS` on, and less than leaving it out only from `FEW_SOURCES` on;
        from one more for makers whose software is not that which most rows ran.
        """
        own = self.families.get(family)
        known = any(f.maker == maker and self._vouches(f) for f in self.families.values())
        unseen = self.family_out if known else max(self.family_out, self.maker_out)
        if own is None or own.rows < FEW_ROWS:
            return unseen
        if self._vouches(own):
            return 1.0
        return max(own.spread, unseen)

    def _vouches(self, family: FamilyRows) -> bool:
        """True if a family's rows are enough, and of sources enough, for the band of their class."""
        usual = max(self.families.values(), key=lambda f: f.rows).maker
        least = FEW_SOURCES if family.maker == usual else FEW_SOURCES + 1
        return family.rows >= FEW_ROWS and family.sources >= least and family.spread <= self.family_out

    @classmethod
    def by_kind(cls, path: Path) -> dict[str, MeasuredFamilies]:
        """The measured families of each kind of prediction in a JSON file with `source`, `date` and `kinds`.

        Raises: SpecError: the file is not what is expected.
        """
        kinds = tables.read_json_object(path).get("kinds")
        try:
            return {
                kind: cls(**{**row, "families": {n: FamilyRows(**f) for n, f in row["families"].items()}})
                for kind, row in kinds.items()  # type: ignore[union-attr]  # anything else is refused below
            }
        except (AttributeError, KeyError, TypeError) as error:
            raise SpecError(f"{path}: not what benchmarks/accuracy/fit_coverage.py writes: {error}") from None


@dataclass(frozen=True, slots=True)
class Calibration:
    """All parameters, found by name along a chain of scopes, and the errors that predictions with them have."""

    parameters: tuple[Parameter, ...]
    errors: Mapping[str, ErrorQuantiles] = field(default_factory=dict, repr=False)  # by class of prediction
    measured: Mapping[str, MeasuredFamilies] = field(default_factory=dict, repr=False)  # by kind of prediction
    _index: Mapping[tuple[str, str], Parameter] = field(init=False, repr=False, compare=False)
    scopes: Mapping[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)  # by name, in order

    def __post_init__(self) -> None:
        """Index by name and scope, refusing duplicates."""
        index: dict[tuple[str, str], Parameter] = {}
        for parameter in self.parameters:
            if (parameter.name, parameter.scope) in index:
                raise SpecError(f"calibration: {parameter.name!r} for {parameter.scope!r} appears twice")
            index[parameter.name, parameter.scope] = parameter
        scopes: dict[str, tuple[str, ...]] = {}
        for name, scope in index:
            scopes[name] = (*scopes.get(name, ()), scope)
        object.__setattr__(self, "_index", index)
        object.__setattr__(self, "scopes", scopes)

    def find(self, name: str, scopes: Sequence[str]) -> Parameter:
        """The parameter of the first scope that has it or its stand-in. Raises MissingFactError: none has it."""
        names = (name, *STAND_INS.get(name, ()))
        for each, scope in ((each, scope) for scope in scopes for each in names):
            if (fraction := self._index.get((each, scope))) is not None:
                return fraction
        raise MissingFactError(
            f"no calibration of {name!r} for any of: {', '.join(scopes)}; add one to data/calibration"
        )

    def names(self, *apart: str) -> tuple[str, ...]:
        """Names of all parameters but those that begin with one of `apart`, in the order of the files."""
        return tuple(name for name in self.scopes if not name.startswith(apart or ("\n",)))

    def has(self, name: str, scope: str) -> bool:
        """True if `name` has a value for exactly this scope."""
        return (name, scope) in self._index

    def with_values(self, values: Mapping[tuple[str, str], float]) -> Calibration:
        """A copy in which the (name, scope) pairs of `values` have other values; unknown pairs are an error.

        Raises: SpecError: a pair that does not exist.
        """
        unknown = [pair for pair in values if pair not in self._index]
        if unknown:
            raise SpecError(f"calibration: no parameter {unknown[0]}")
        return self._with(
            replace(p, value=values[p.name, p.scope]) if (p.name, p.scope) in values else p for p in self.parameters
        )

    def overlay(self, above: Iterable[Parameter]) -> Calibration:
        """A copy in which the parameters of `above` replace those of the same name and scope, or are added."""
        return self._with({(p.name, p.scope): p for p in (*self.parameters, *above)}.values())

    def without(self, scopes: Iterable[str]) -> Calibration:
        """A copy without the parameters of `scopes`: the calibration of a device of an unseen family."""
        gone = set(scopes)
        return self._with(p for p in self.parameters if p.scope not in gone)

    def _with(self, parameters: Iterable[Parameter]) -> Calibration:
        return Calibration(tuple(parameters), self.errors, self.measured)


NOT_CALIBRATED = Calibration(())
"""Of a device that stands in no catalog."""


def parameters_from(text: str, where: str) -> list[Parameter]:
    """The parameters of one JSON document: a list of objects with the fields of `Parameter`.

    Raises: SpecError: not such a list, naming file and row.
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


def read_parameters(folder: Path) -> list[Parameter]:
    """The parameters of all JSON files in a folder, in the order of their names.

    Raises: SpecError: a file is not what is expected; names file and entry.
    """
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".json")), key=lambda f: f.name)
    return [p for f in files for p in parameters_from(f.read_text(encoding="utf-8"), f.name)]


def read_errors(path: Path) -> dict[str, ErrorQuantiles]:
    """The quantiles of errors in a JSON file: `source`, `date` and, by class of prediction, `bands`.

    Raises: SpecError: the file is not what is expected; names file and class.
    """
    document = tables.read_json_object(path)
    bands = document.get("bands")
    if set(document) != {"source", "date", "bands"} or not isinstance(bands, dict):
        raise SpecError(f"{path}: exactly these fields are expected: source, date, bands")
    errors = {}
    for name, band in bands.items():
        fields = ("low", "median", "high", "rows")
        stacks = band.pop("stacks", []) if isinstance(band, dict) else []
        numbers = isinstance(band, dict) and all(isinstance(v, int | float) for v in band.values())
        if not numbers or set(band) != set(fields) or not 0 < band["low"] <= band["median"] <= band["high"]:
            raise SpecError(f"{path}, {name}: numbers above 0 are needed, low <= median <= high, and how many rows")
        if not isinstance(stacks, list) or not all(isinstance(stack, str) for stack in stacks):
            raise SpecError(f"{path}, {name}: stacks is a list of names")
        origin = {"source": document["source"], "date": document["date"]}
        errors[name] = ErrorQuantiles(name=name, stacks=tuple(stacks), **origin, **band)
    return errors
