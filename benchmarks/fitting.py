"""What the commands that fit have in common: their options, the published rows, and where values and errors go."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from flopwise.backtests.kinds import KINDS
from flopwise.backtests.prediction import Row
from flopwise.backtests.run import measurements
from flopwise.facts.calibration import Calibration
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fitting.robust import Array, Constant, Values, error_text

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "src" / "flopwise" / "data"


def start(constants: Sequence[Constant], facts: Facts, *, fresh: bool) -> Array:
    """Logarithms of the shipped values, or of the priors for a `fresh` fit."""
    return np.log([c.prior if fresh else c.present_value(facts) for c in constants])


def moved_calibration(calibration: Calibration, values: Values) -> Calibration:
    """The calibration with the values of its constants."""
    own = {(c.name, scope): v for c, v in values.items() if c.table == "calibration" for scope in c.scopes}
    return calibration.with_values(own) if own else calibration


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of all fits."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write values to src/flopwise/data, errors to accuracy/")
    options.add_argument("--fresh", action="store_true", help="start from the priors, not from the present values")
    return options


def published_rows(kind: str) -> tuple[list[Row], Facts]:
    """The rows of benchmarks/truth, and the facts."""
    return measurements(KINDS[kind], HERE / "truth" / f"{kind}.csv"), load_facts()


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


def write(values: Values, script: str, fitted_on: str | Callable[[Constant], str]) -> None:
    """Put values where the package reads them; `script` is their source."""
    origin = fitted_on if callable(fitted_on) else lambda _: fitted_on
    write_values(DATA, values, f"benchmarks/{script}", origin, f"{datetime.now(UTC):%Y-%m-%d}")


def write_left_out(kind: str, ids: Sequence[str], columns: Mapping[str, Array]) -> None:
    """Put relative errors of constants that have not seen a row's group where the accuracy report reads them."""
    lines = [",".join(("id,quantity" if "," in ids[0] else "id", *columns))]
    errors = np.expm1(np.column_stack(list(columns.values())))
    lines += [f"{name},{','.join(f'{e:.4f}' for e in row)}" for name, row in zip(ids, errors, strict=True)]
    (HERE / "accuracy" / f"{kind.replace('-', '_')}_left_out.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def show_values(values: Values) -> None:
    """Each constant with its prior."""
    for constant, value in values.items():
        print(f"  {constant.name:28s} {','.join(constant.scopes)[:40]:40s} {value:.4g} (prior {constant.prior:.4g})")


def group_lines(groups: Mapping[str, Sequence[int]], columns: Mapping[str, Array]) -> list[str]:
    """The errors of each group, a line for each way in which they were found."""
    return [
        f"{name if index == 0 else '':62s} {len(members):4d} {label:12s} {error_text(errors[list(members)])}"
        for name, members in groups.items()
        for index, (label, errors) in enumerate(columns.items())
    ]
