"""The page of calibrated parameters, docs/calibration.md: `python docs/generate.py` writes it."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

from flopwise.facts.calibration import Parameter
from flopwise.facts.catalog import load_facts
from flopwise.facts.software import Engine, Software, TrainingStack

PAGE = Path(__file__).parent / "calibration.md"
MOVED = Path(__file__).parents[1] / "benchmarks" / "accuracy" / "training_constants.csv"
ASSUMED, UNMEASURED = "assumed", "no measurement"
"""Beginnings of a source that is none, and of what nothing was fitted on."""
KINDS: dict[type[Software], tuple[str, str, str, str]] = {
    TrainingStack: (
        "Training stacks", "stacks.json", "stack",
        "with the parameters of training above on published training runs (`benchmarks/fit_training.py`).",
    ),
    Engine: (
        "Serving engines", "engines.json", "engine", "on published serving results (`benchmarks/fit_serving.py`).",
    ),
}  # fmt: skip
"""Title, data file and noun of what has fitted columns, and what they are fitted on."""


def page() -> str:
    """The parameters as a Markdown page, by name and scope."""
    facts = load_facts()
    calibration = facts.calibration
    lines = [
        "# Calibration",
        "",
        "Every parameter of the cost model besides datasheet figures. `docs/generate.py` writes it,",
        "the values live in `src/flopwise/data/calibration/`.",
        "",
        f"{len(calibration.parameters)} values of {len({p.name for p in calibration.parameters})} parameters.",
        *_assumed_lines(calibration.parameters),
    ]
    for name in dict.fromkeys(p.name for p in calibration.parameters):
        rows = [p for p in calibration.parameters if p.name == name]
        lines += ["", f"## {name}", "", f"{rows[0].meaning} Unit: {rows[0].unit}.", ""]
        lines += ["| scope | value | fitted on | source | date |", "|---|---|---|---|---|"]
        lines += [f"| {p.scope} | {p.value:.4g} | {p.fitted_on} | {p.source} | {p.date} |" for p in rows]
    stacks = _fitted_lines(TrainingStack, facts.stacks.values(), digits=4)
    engines = _fitted_lines(Engine, facts.engines.values(), digits=3)
    return "\n".join([*lines, *_moved_lines(), *stacks, *engines]) + "\n"


def _assumed_lines(parameters: Iterable[Parameter]) -> list[str]:
    """The values that no measurement and no publication gives, with what they rest on."""
    lines = [
        "",
        "## Values that nothing measured",
        "",
        "Nothing was fitted for these, and nobody published them.",
        "",
        "| parameter | scope | value | grounds | why there is none |",
        "|---|---|---|---|---|",
    ]
    assumed = (p for p in parameters if p.source.startswith(ASSUMED) or p.fitted_on.startswith(UNMEASURED))
    return lines + [f"| {p.name} | {p.scope} | {p.value:.4g} | {p.source} | {_reason(p)} |" for p in assumed]


def _reason(parameter: Parameter) -> str:
    reason = parameter.fitted_on.removeprefix(UNMEASURED).removeprefix(": ")
    return "-" if reason == parameter.fitted_on else reason


def _moved_lines() -> list[str]:
    """What decides each constant of training: rows and publishers, and the value without the weightiest of these."""
    with MOVED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [
        "",
        "## What moves the constants of training",
        "",
        "Rows whose error a constant changes, their publishers, and where it goes without the publisher that moves it",
        "most (`benchmarks/fit_training.py`). A constant that one publisher decides is drawn to its prior.",
        "",
        "| constant | shared by | value | prior | rows | publishers | moved most by | value without it | change |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    columns = ("constant", "scopes", "value", "prior", "rows", "publishers", "moved_most_by", "value_without")
    return [*lines, *(f"| {' | '.join(row[c] for c in columns)} | {row['change_percent']} % |" for row in rows)]


def _fitted_lines(kind: type[Software], rows: Iterable[Software], digits: int) -> list[str]:
    """The fitted columns of the training stacks, or of the serving engines."""
    title, file, name, fitted_on = KINDS[kind]
    columns = kind.fitted_columns()
    lines = [
        "",
        f"## {title}",
        "",
        f"Columns of `src/flopwise/data/{file}` that several {name}s share, fitted",
        fitted_on,
        "",
    ]
    lines += [f"- `{column}`: {meaning}" for column, meaning in columns.items()]
    lines += ["", f"| {name} | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {row.name} | {' | '.join(f'{getattr(row, c):.{digits}g}' for c in columns)} |" for row in rows]
    return lines
