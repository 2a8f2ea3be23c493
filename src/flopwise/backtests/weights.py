"""Rows of published checkpoint and file sizes, predicted: bytes of all weights in a format."""

from __future__ import annotations

from flopwise.backtests.names import named_model
from flopwise.backtests.prediction import Prediction, Row, no_prediction, number, with_interval
from flopwise.cost.intervals import error_band
from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import Facts
from flopwise.ops.weights import weight_bytes

UNIT = "bytes"


def predict_row(row: Row, facts: Facts) -> Prediction:
    """Bytes of one row, with their interval."""
    name, measured = row.get("id", ""), number(row, "stored_bytes")
    try:
        model = named_model(row.get("model", ""), facts)
        predicted = float(weight_bytes(model, facts.weight_format(row.get("format", ""))))
    except FlopwiseError as error:
        return no_prediction(name, UNIT, str(error), measured)
    return with_interval(name, UNIT, measured, predicted, error_band("weights", facts.calibration))
