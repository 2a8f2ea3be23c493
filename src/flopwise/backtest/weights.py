"""Rows of published checkpoint and file sizes, predicted: bytes of all weights in a format."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flopwise.backtest.prediction import Prediction, number, skipped
from flopwise.errors import FlopwiseError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models import load_model
from flopwise.ops.weights import weight_bytes

UNIT = "bytes"
LOW, HIGH = 0.99, 1.02
"""The 10-90 % band of measured over predicted: rounding of printed sizes, builds of a quantiser."""


def row_model(name: str, facts: Facts) -> Model:
    """The model of that name, without what stands in brackets after it."""
    return load_model(re.sub(r"\s*\(.*\)$", "", name), facts_folder=facts.folder)


def predict_row(row: Mapping[str, str], facts: Facts) -> Prediction:
    """Bytes of one row of weights_memory.csv, with its interval."""
    name, measured = row.get("id", ""), number(row, "bytes")
    if measured is None:
        return skipped(name, UNIT, "the row has no size in bytes")
    try:
        model = row_model(row.get("model", ""), facts)
        predicted = float(weight_bytes(model, row.get("format", "")))
    except FlopwiseError as error:
        return skipped(name, UNIT, str(error), measured)
    return Prediction(
        id=name, unit=UNIT, measured=measured, predicted=predicted, low=predicted * LOW, high=predicted * HIGH
    )
