"""What a fit may move: constants of the facts, each with what is known beforehand, its bounds, and who shares it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from flopwise.facts.calibration import Calibration
from flopwise.facts.catalog import Facts
from flopwise.facts.software import Software
from flopwise.values import dataclass

Array = NDArray[np.float64]
Record = TypeVar("Record", bound=Software)


@dataclass(frozen=True)
class Constant:
    """One number that all of `scopes` share: scopes of a calibrated parameter, or records of stacks or engines."""

    name: str
    scopes: tuple[str, ...]
    prior: float  # what is known of it without these measurements
    low: float
    high: float
    spread: float = 0.5  # how far (of a logarithm) it strays from the prior freely
    table: Literal["calibration", "stacks", "engines"] = "calibration"

    def present_value(self, facts: Facts) -> float:
        """The value in the facts, within the bounds."""
        if self.table == "calibration":
            value = facts.calibration.find(self.name, self.scopes[:1]).value
        else:
            value = float(getattr(getattr(facts, self.table)[self.scopes[0]], self.name))
        return min(max(value, self.low), self.high)


Values = Mapping[Constant, float]


def start(constants: Sequence[Constant], facts: Facts, *, fresh: bool) -> Array:
    """Logarithms of the shipped values, or of the priors for a `fresh` fit."""
    return np.log([c.prior if fresh else c.present_value(facts) for c in constants])


def moved_calibration(calibration: Calibration, values: Values) -> Calibration:
    """The calibration with the values of its constants."""
    own = {(c.name, scope): v for c, v in values.items() if c.table == "calibration" for scope in c.scopes}
    return calibration.with_values(own) if own else calibration


def moved_records(records: Mapping[str, Record], table: str, values: Values) -> dict[str, Record]:
    """The records of `table` with the values of its constants."""
    moved = {}
    for name, record in records.items():
        own: dict[str, Any] = {c.name: v for c, v in values.items() if c.table == table and name in c.scopes}
        moved[name] = replace(record, **own) if own else record
    return moved


def write_values(folder: Path, values: Values, source: str, fitted_on: Callable[[Constant], str], date: str) -> None:
    """Write values into the tables of a folder of facts, each with its source and date; nothing else changes.

    A record that is like another says only what differs from it, before and after.
    """
    for path in sorted((folder / "calibration").glob("*.json")):
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        changed = False
        for constant, value in values.items():
            for row in rows:
                if constant.table == "calibration" and row["name"] == constant.name and row["scope"] in constant.scopes:
                    row |= {
                        "value": _four_digits(value),
                        "fitted_on": fitted_on(constant),
                        "source": source,
                        "date": date,
                    }
                    changed = True
        if changed:
            path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    for table in ("stacks", "engines"):
        own = {c: v for c, v in values.items() if c.table == table}
        if own:
            _write_records(folder / f"{table}.json", own, source, date)


def _write_records(path: Path, values: Values, source: str, date: str) -> None:
    records: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    whole: dict[str, dict[str, Any]] = {}
    for name, record in records.items():
        whole[name] = whole.get(record.get("like", ""), {}) | record.get("fitted", {})
    for constant, value in values.items():
        for name in constant.scopes:
            whole[name] = whole[name] | {"source": source, "date": date, constant.name: _four_digits(value)}
    for name, record in records.items():
        above = whole.get(record.get("like", ""), {})
        own = {k: v for k, v in whole[name].items() if k in ("source", "date") or above.get(k) != v}
        record.pop("fitted", None)
        if own.keys() - {"source", "date"}:
            record["fitted"] = own
    path.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _four_digits(value: float) -> float:
    return float(f"{value:.4g}")
