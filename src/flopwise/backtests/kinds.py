"""The kinds of measurement files: which columns they need, which of these measure, and who predicts their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flopwise.backtests import gpu_hours, io, memory, serving, training
from flopwise.backtests.kernels import Predictor
from flopwise.backtests.prediction import Prediction, Row, prediction_of, stated_model
from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.errors import UnknownNameError
from flopwise.facts.catalog import Facts
from flopwise.ops.weights import weight_bytes
from flopwise.values import dataclass

Predict = Callable[[Row], Sequence[Prediction]]


@dataclass(frozen=True, slots=True)
class MeasurementKind:
    """One kind of measurement file; columns are ours (`flopwise.backtests.columns`)."""

    name: str
    needed: tuple[str, ...]  # columns without which no row can be predicted
    measured: tuple[str, ...]  # columns that measure: no prediction depends on what they hold
    source: tuple[str, ...]  # columns that say where a row is from; the first that is filled in is used
    classes: tuple[str, ...]  # columns that split rows into classes with errors of their own
    predictor: Callable[[Facts], Predict]


def _single(predict_row: Callable[[Row, Facts], Prediction]) -> Callable[[Facts], Predict]:
    """The predictor of a kind whose rows have one quantity."""
    return lambda facts: lambda row: [predict_row(row, facts)]


def _kernels(facts: Facts) -> Predict:
    predictor = Predictor(facts)
    return lambda row: [predictor.predict(row)]


def predict_weights(row: Row, facts: Facts) -> Prediction:
    """Bytes of all weights of one row in its format, with their interval."""

    def figure() -> tuple[float, ErrorBand]:
        model = stated_model(row, facts)
        nbytes = float(weight_bytes(model, facts.weight_format(row.get("format", ""))))
        return nbytes, error_band("weights", facts.calibration)

    return prediction_of(row, "bytes", "stored_bytes", figure)


_KINDS = (
    MeasurementKind(
        "weights", ("model", "format"), ("stored_bytes",), ("source",), ("form",), _single(predict_weights),
    ),
    MeasurementKind(
        "memory", ("model",), ("peak_bytes",), ("study", "source"), ("method",), _single(memory.predict_row),
    ),
    MeasurementKind("kernels", ("op", "gpu"), ("seconds",), ("gpu",), ("op",), _kernels),
    MeasurementKind(
        "training", ("model", "gpu", "gpus", "seq_len"), ("tokens_per_s_per_gpu",), ("study", "source"),
        ("software", "precision"), _single(training.predict_row),
    ),
    MeasurementKind(
        "gpu-hours", ("model", "gpu", "tokens"), ("gpu_hours",), ("source",), ("gpu",), _single(gpu_hours.predict_row),
    ),
    MeasurementKind(
        "io", ("workload", "gpu", "record_bytes"), ("read_bytes_per_s",), ("source",), ("workload",),
        _single(io.predict_row),
    ),
    MeasurementKind(
        "serving", ("model", "gpu", "mode", "engine"), ("output_tokens_per_s", "tpot_s", "ttft_s"), ("study", "source"),
        ("mode",), lambda facts: lambda row: serving.predict_row(row, facts),
    ),
)  # fmt: skip
KINDS: dict[str, MeasurementKind] = {kind.name: kind for kind in _KINDS}


def kind_of(name: str) -> MeasurementKind:
    """The kind of that name. Raises UnknownNameError: there is none; names all."""
    kind = KINDS.get(name.strip().lower().replace("_", "-"))
    if kind is None:
        raise UnknownNameError("kind of measurement", name, KINDS, f"allowed: {', '.join(KINDS)}")
    return kind
