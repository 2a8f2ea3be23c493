"""Rows of storage benchmarks, predicted: bytes/s that one accelerator reads while it trains without waiting."""

from __future__ import annotations

from flopwise.backtests.prediction import Prediction, Row, named_model, number, prediction_of, whole
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.training.sample_rate import device_rate
from flopwise.training.samples import SampledWorkload, workload_of_model, workload_of_sample

UNIT = "B/s"
REFERENCE_PRECISION = "tf32"
"""Precision of the reference implementations whose computing times storage benchmarks replay: 360
images/s of ResNet-50 on a V100 and 800 to 950 on an A100 are NVIDIA's fp32 and TF32 figures (DeepLearningExamples), a
third of those with mixed precision."""


def row_workload(row: Row, facts: Facts) -> SampledWorkload:
    """The benchmark workload or the model that the row names.

    Raises: FlopwiseError: there is none, or its figures are not known.
    """
    name = row.get("workload", "")
    known = facts.sample(name)
    if known is None:
        return workload_of_model(named_model(name, facts), facts, seq=whole(row, "seq_len", 2048))
    model = facts.model(known.model, offline=True)
    return workload_of_sample(known, model, facts)


def predict_row(row: Row, facts: Facts) -> Prediction:
    """Bytes/s of one row, with their interval."""

    def figure() -> tuple[float, ErrorBand]:
        record = number(row, "record_bytes")
        if record is None:
            raise SpecError("record_bytes is missing")
        work, gpu = row_workload(row, facts), facts.resolve(row.get("gpu", ""))
        machine = cluster(gpu.accelerator, ambiguous=gpu.note)
        usual = None if work.layers is None else REFERENCE_PRECISION
        batch, precision = whole(row, "batch", work.batch or 1), (row.get("precision") or "").lower() or usual
        rate = device_rate(work, machine, facts, batch=batch, precision=precision)
        return rate.samples_per_s * record, error_band("io", facts.calibration)

    return prediction_of(row, UNIT, "read_bytes_per_s", figure)
