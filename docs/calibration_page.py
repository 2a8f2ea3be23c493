"""The page of calibrated parameters, docs/calibration.md: `python docs/generate.py` writes it."""

from __future__ import annotations

from pathlib import Path

from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.software import Engine, TrainingStack

PAGE = Path(__file__).parent / "calibration.md"


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
    ]
    for name in dict.fromkeys(p.name for p in calibration.parameters):
        rows = [p for p in calibration.parameters if p.name == name]
        lines += ["", f"## {name}", "", f"{rows[0].meaning} Unit: {rows[0].unit}.", ""]
        lines += ["| scope | value | fitted on | source | date |", "|---|---|---|---|---|"]
        lines += [f"| {p.scope} | {p.value:.4g} | {p.fitted_on} | {p.source} | {p.date} |" for p in rows]
    return "\n".join([*lines, *_stack_lines(facts), *_engine_lines(facts)]) + "\n"


def _stack_lines(facts: Facts) -> list[str]:
    """The fitted columns of the training stacks."""
    lines = [
        "",
        "## Training stacks",
        "",
        "Columns of `src/flopwise/data/stacks.json` that several stacks share, fitted",
    ]
    lines += ["with the parameters of training above on published training runs (`benchmarks/fit_training.py`).", ""]
    lines += [f"- `{name}`: {meaning}" for name, meaning in TrainingStack.fitted_columns().items()]
    lines += [
        "",
        f"| stack | {' | '.join(TrainingStack.fitted_columns())} |",
        f"|---|{'---|' * len(TrainingStack.fitted_columns())}",
    ]
    for name, stack in facts.stacks.items():
        lines.append(f"| {name} | {' | '.join(f'{getattr(stack, c):.4g}' for c in TrainingStack.fitted_columns())} |")
    return lines


def _engine_lines(facts: Facts) -> list[str]:
    """The fitted columns of the serving engines."""
    lines = [
        "",
        "## Serving engines",
        "",
        "Columns of `src/flopwise/data/engines.json` that several engines share, fitted",
    ]
    lines += ["on published serving results (`benchmarks/fit_serving.py`).", ""]
    lines += [f"- `{name}`: {meaning}" for name, meaning in Engine.fitted_columns().items()]
    lines += [
        "",
        f"| engine | {' | '.join(Engine.fitted_columns())} |",
        f"|---|{'---|' * len(Engine.fitted_columns())}",
    ]
    for name, engine in facts.engines.items():
        lines.append(f"| {name} | {' | '.join(f'{getattr(engine, c):.3g}' for c in Engine.fitted_columns())} |")
    return lines
