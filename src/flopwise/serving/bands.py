"""Which measured errors the figures of a serving job share, and so how wide their intervals are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.intervals import ErrorBand, error_band
from flopwise.serving.memory import generates

if TYPE_CHECKING:
    from flopwise.serving.estimate import ServeJob


def serving_class(job: ServeJob, quantity: str, *, queued: bool = False) -> str:
    """The class of predictions whose measured errors a job's quantity (ttft, tpot, throughput) shares.

    `queued`: more requests than memory holds, so that time to the first token is mostly waiting.
    """
    name = quantity.split(".", maxsplit=1)[0]
    if job.engine.local:
        return f"serving.{name}.local"
    fixed = job.static or not generates(job.model)  # one pass over a batch, as an encoder answers
    if name == "ttft":
        return f"serving.ttft.{'batch' if fixed else 'queued' if queued else 'server'}"
    how = "batch" if fixed else "rate" if job.arrivals_per_s is not None else "server"
    return f"serving.{name}.{how}.{'moe' if job.model.has_experts else 'dense'}"


def serving_band(job: ServeJob, quantity: str, *, queued: bool = False) -> ErrorBand:
    """The error band of one quantity, wider where the device's variant is a guess or its vendor has no measurements."""
    band = error_band(serving_class(job, quantity, queued=queued), job.cluster.accelerator.calibration)
    if job.cluster.ambiguous:
        band = band.wider(1.5, "the device's variant is a guess")
    if job.cluster.accelerator.vendor != "NVIDIA":
        band = band.wider(1.5, "few measurements on this vendor's devices stand behind it")
    return band
