"""What a figure's formula says, computed from the values of its inputs."""

from __future__ import annotations

import math
import re

from flopwise.provenance import Figure

MODELS = ("kernel model", "message model", "memory model", "queue model", "power model", "error model", "counted",
          "the figures below", "rule of thumb")  # fmt: skip
"""Formulas that begin so are no arithmetic: what stands behind them is named, not spelt out."""
_FUNCTIONS = {"max": max, "min": min, "sqrt": math.sqrt, "exp": math.exp}


def is_arithmetic(figure: Figure) -> bool:
    return figure.kind == "derived" and not figure.formula.startswith(MODELS)


def recomputed(figure: Figure) -> float:
    """The value of an arithmetic formula; fails where it names anything that is no input."""
    if figure.formula == "sum":
        return sum(float(below.value or 0.0) for below in figure.inputs)
    text, values = figure.formula, {}
    for index, below in enumerate(sorted(figure.inputs, key=lambda f: -len(f.name))):
        text = re.sub(rf"(?<![\w§]){re.escape(below.name)}(?![\w§])", f"§{index}§", text)
        values[f"v{index}"] = float(below.value or 0.0)
    text = re.sub(r"§(\d+)§", r"v\1", text).replace(" x ", " * ")
    unknown = set(re.findall(r"[A-Za-z_]\w*", text)) - set(values) - set(_FUNCTIONS) - {"e6"}
    assert not unknown, f"{figure.name} = {figure.formula}: {sorted(unknown)} are no inputs"
    return float(eval(text, {"__builtins__": {}}, {**values, **_FUNCTIONS}))  # noqa: S307 - our own formulas
