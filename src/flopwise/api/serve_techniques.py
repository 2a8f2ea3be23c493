"""What `serve` says of the techniques that a deployment uses, and of how it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.serving.job import ServeEstimate, ServeJob
    from flopwise.serving.spec import StartSpec
    from flopwise.serving.startup import ColdStart

LARGEST_BATCH = 4096
"""Up to which it is looked up where speculation stops paying."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafted:
    """What speculative decoding does at this load, and how far it pays."""

    name: str
    tokens_per_step: float
    speedup: float  # of decoding, at this batch
    pays_up_to: int  # sequences decoding at once on one attention replica, looked up at powers of two; 0: never


def drafted(job: ServeJob, found: ServeEstimate) -> Drafted | None:
    """How much drafts gain at this load, and up to which batch; None without them."""
    import numpy as np

    from flopwise.serving.iteration import StepLoad
    from flopwise.serving.techniques import request_work, runner, tokens_a_round

    how = job.techniques.speculation
    if how is None:
        return None
    without = replace(job, techniques=replace(job.techniques, speculation=None))
    now = max(found.concurrency / int(job.layout.dp), 1.0)
    batch = np.concatenate([[now], 2.0 ** np.arange(int(np.log2(LARGEST_BATCH)) + 1)])

    def token_s(one: ServeJob) -> np.ndarray:
        tokens, rounds = request_work(one)
        load = StepLoad(decode_batch=batch, decode_context=tokens + rounds / 2.0)
        return np.asarray(runner(one).step(load, one.layout).seconds) / tokens_a_round(one)

    gain = token_s(without) / token_s(job)
    stops = np.flatnonzero(gain[1:] <= 1.0)
    last = len(gain) - 1 if not len(stops) else int(stops[0])
    return Drafted(
        name=how.name,
        tokens_per_step=tokens_a_round(job),
        speedup=float(gain[0]),
        pays_up_to=int(batch[last]) if last else 0,
    )


def started(job: ServeJob, start: StartSpec, facts: Facts) -> ColdStart:
    """How long a replica takes to start."""
    from flopwise.serving.startup import cold_start

    storage = start.kind_of_storage(facts)
    return cold_start(job, storage, image_bytes=start.image_size or 0.0, image_bytes_per_s=start.image_bandwidth or 0.0)


def unsupported(job: ServeJob) -> Iterator[str]:
    """What is said where the engine is not documented to run the format, or on the device."""
    yield from job.engine.unsupported_note(job.cluster.accelerator)
    if not job.engine.runs(job.weights):
        runs = ", ".join(sorted(job.engine.formats))
        yield f"{job.engine.name} is not documented to run {job.weights.name} weights; it runs {runs}"
