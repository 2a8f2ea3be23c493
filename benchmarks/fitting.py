"""What the commands that fit have in common: their options, the published rows, and where values and errors go."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from flopwise.backtests.kinds import KINDS
from flopwise.backtests.prediction import Row
from flopwise.backtests.run import measurements
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fitting.constants import Array, Constant, Values, write_values

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "src" / "flopwise" / "data"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """The options of all fits."""
    options = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--write", action="store_true", help="write values to src/flopwise/data, errors to accuracy/")
    options.add_argument("--fresh", action="store_true", help="start from the priors, not from the present values")
    return options


def published_rows(kind: str) -> tuple[list[Row], Facts]:
    """The rows of benchmarks/truth, and the facts."""
    return measurements(KINDS[kind], HERE / "truth" / f"{kind}.csv"), load_facts()


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
