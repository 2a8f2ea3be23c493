"""What requests see that arrive at random, by percentile, with one pool of devices or two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.serving.assisted import paced, request_work, tokens_a_round
from flopwise.serving.disaggregated import disaggregated, disaggregated_percentile, sustained_per_s
from flopwise.serving.estimate import runner
from flopwise.serving.iteration import Load
from flopwise.serving.steady import Percentile, closed_loop, open_loop, open_loop_percentile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.serving.estimate import ServeJob


def percentiles(
    job: ServeJob, most_in_flight: float, names: Sequence[str]
) -> tuple[float, float, dict[str, Percentile]]:
    """(arrivals, what is sustained, TTFT and TPOT by percentile) of one attention replica; requests per second.

    Source: `open_loop_percentile`, `disaggregated_percentile`.
    Assumes: as there; the job's arrivals are given.
    """
    assert job.arrivals_per_s is not None
    machine = runner(job)
    each = job.arrivals_per_s / int(job.layout.dp)
    if job.techniques.prefill_gpus:
        steady = disaggregated(job, machine, most_in_flight)
        apart = {p: disaggregated_percentile(job, machine, steady, each, p) for p in names}
        return each, sustained_per_s(job, machine, most_in_flight), apart
    shape = request_work(job)
    whole = open_loop(machine, job.layout, each, most_in_flight, *shape)
    sustained = float(np.asarray(closed_loop(machine, job.layout, most_in_flight, *shape).requests_per_s))
    found, middle = {}, open_loop_percentile(machine, job.layout, whole, each, *shape, "mean")
    for name in names:
        seen = open_loop_percentile(machine, job.layout, whole, each, *shape, name)
        found[name] = Percentile(seen.ttft_s, paced(job, seen.tpot_s, middle.tpot_s, name))
    return each, sustained, found


def least_tpot_s(job: ServeJob) -> float:
    """No answer's tokens come faster than a step of it alone at datasheet rates brings them.

    Source: `Runner.step`, its floor. Assumes: nothing of the answer is cached yet.
    """
    alone = Load(decode_batch=1.0, decode_context=float(job.input_tokens))
    return float(runner(job).step(alone, job.layout).floor_s) / tokens_a_round(job)
