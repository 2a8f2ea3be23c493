"""Rows of storage benchmarks, predicted: bytes/s that one accelerator reads while it trains without waiting."""

from __future__ import annotations

from flopwise.backtests.names import named_model
from flopwise.backtests.prediction import Prediction, Row, no_prediction, number, whole, with_interval
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import error_band
from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import Facts
from flopwise.storage.samples import SampledWorkload, device_rate, workload_of_model, workload_of_sample

UNIT = "B/s"


def row_workload(row: Row, facts: Facts) -> SampledWorkload:
    """The benchmark workload or the model that the row names.

    Raises:
        FlopwiseError: there is none, or its figures are not known.
    """
    name = row.get("workload", "")
    known = facts.sample(name)
    if known is None:
        return workload_of_model(named_model(name, facts), facts, seq=whole(row, "seq_len", 2048))
    model = facts.model(known.model, offline=True)
    return workload_of_sample(known, model, facts)


def predict_row(row: Row, facts: Facts) -> Prediction:
    """Bytes/s of one row, with their interval."""
    name, measured, record = row.get("id", ""), number(row, "read_bytes_per_s"), number(row, "record_bytes")
    if record is None:
        return no_prediction(name, UNIT, "record_bytes is missing", measured)
    try:
        work = row_workload(row, facts)
        gpu = facts.resolve(row.get("gpu", ""))
        machine = cluster(gpu.accelerator, ambiguous=gpu.note)
        batch = whole(row, "batch", work.batch or 1)
        rate = device_rate(work, machine, facts, batch=batch, precision=(row.get("precision") or "").lower() or None)
        band = error_band("io", facts.calibration)
    except FlopwiseError as error:
        return no_prediction(name, UNIT, str(error), measured)
    return with_interval(name, UNIT, measured, rate.samples_per_s * record, band)
