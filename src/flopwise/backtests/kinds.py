"""The kinds of measurement files: which columns they need, which of these measure, and who predicts their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from flopwise.backtests import gpu_hours, io, memory, serving, training, weights
from flopwise.backtests.kernels import Predictor
from flopwise.backtests.prediction import Prediction
from flopwise.errors import UnknownNameError
from flopwise.facts.catalog import Facts

Row = Mapping[str, str]
Predict = Callable[[Row], Sequence[Prediction]]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of measurement file."""

    name: str
    needed: tuple[str, ...]  # columns without which no row can be predicted
    measured: tuple[str, ...]  # columns that measure: no prediction depends on what they hold
    source: tuple[str, ...]  # columns that say where a row is from; the first that the file has is used
    classes: tuple[str, ...]  # columns that split rows into classes with errors of their own
    predictor: Callable[[Facts], Predict]


def _single(predict_row: Callable[[Row, Facts], Prediction]) -> Callable[[Facts], Predict]:
    """The predictor of a kind whose rows have one quantity."""
    return lambda facts: lambda row: [predict_row(row, facts)]


def _kernels(facts: Facts) -> Predict:
    predictor = Predictor(facts)
    return lambda row: [predictor.predict(row)]


def _serving(facts: Facts) -> Predict:
    return lambda row: serving.predict_row(row, facts)


_LATENCIES = tuple(f"{kind}_ms_{how}" for kind in ("ttft", "tpot") for how in ("mean", "p50", "p99"))
KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "weights",
            ("model", "format"),
            ("bytes", "bytes_per_param"),
            ("source",),
            ("kind",),
            _single(weights.predict_row),
        ),
        Kind(
            "memory",
            ("model", "memory_unit"),
            ("peak_memory_gb_per_gpu", "speed_reported"),
            ("source_key", "source"),
            ("method",),
            _single(memory.predict_row),
        ),
        Kind(
            "kernels",
            ("op", "gpu"),
            ("measured_time_us", "achieved_tflops", "achieved_gbs", "frac_of_peak"),
            ("gpu",),
            ("op",),
            _kernels,
        ),
        Kind(
            "training",
            ("model", "gpu", "n_gpus", "seq_len"),
            (
                "measured_value",
                "peak_memory_gb_per_gpu",
                *(f"reported_{what}" for what in ("tokens_per_sec_per_gpu", "tflops_per_gpu", "mfu", "step_time_s")),
                "derived_tokens_per_sec_per_gpu",
                "derived_mfu_uniform",
            ),
            ("source_key", "source"),
            ("stack", "precision"),
            _single(training.predict_row),
        ),
        Kind(
            "gpu-hours",
            ("model", "gpu", "tokens_b"),
            ("gpu_hours", "implied_tokens_per_sec_per_gpu", "implied_mfu_6N"),
            ("source",),
            ("gpu",),
            _single(gpu_hours.predict_row),
        ),
        Kind(
            "io",
            ("workload", "accelerator", "record_bytes"),
            io.MEASURED,
            ("source",),
            ("workload",),
            _single(io.predict_row),
        ),
        Kind(
            "serving",
            ("model", "gpu", "mode", "engine"),
            (
                *(f"output_tokens_per_s_{per}" for per in ("total", "per_gpu")),
                "total_tokens_per_s",
                "requests_per_s",
                *_LATENCIES,
                "itl_ms_mean",
                "e2e_latency_ms",
            ),
            ("source",),
            ("mode",),
            _serving,
        ),
    )
}


def kind_of(name: str) -> Kind:
    """The kind of that name.

    Raises:
        UnknownNameError: there is none; names all.
    """
    found = KINDS.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise UnknownNameError("kind of measurement", name, KINDS, f"allowed: {', '.join(KINDS)}")
    return found
