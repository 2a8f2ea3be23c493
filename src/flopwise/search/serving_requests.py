"""The requests that a deployment is run with before it is recommended: drawn, or from the workload's own trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.search.workload_traffic import busiest
from flopwise.serving.sim.source import RequestSource
from flopwise.serving.sim.trace import PS, RequestTrace, trace
from flopwise.serving.sim.trace_file import read_trace_columns

if TYPE_CHECKING:
    from flopwise.search.workload_traffic import Arriving

SEED = 0
FEWEST, MOST = 2000, 12000
"""Requests that percentiles are taken of."""
LIFETIMES = 15
"""Requests that are measured, in those that are in flight at once."""


class Requests(NamedTuple):
    """A trace, and of which of its requests percentiles are taken: not of those that find the replicas still empty."""

    trace: RequestTrace
    first: int
    last: int
    users: int | None


def drawn(flow: Arriving, *, rate: float | None, users: int | None, lifetime_s: float, seed: int = SEED) -> Requests:
    """Requests at `rate` a second, or of so many `users`; each is answered within about `lifetime_s`.

    Raises:
        SpecError: a trace file that cannot be read any more.
    """
    if users is not None:
        count = int(np.clip(LIFETIMES * users, FEWEST, MOST))
        count = max(count, 4 * users)
        source = RequestSource(
            users=users, requests=count + users, inputs=_input(flow), outputs=_output(flow), seed=seed
        )
        return Requests(source.drawn(), users, count, users)
    assert rate is not None
    if flow.trace is not None:
        found = _stretch(flow.trace, flow, rate, seed)
        warm = int(np.searchsorted(found.arrival_ps, lifetime_s * PS))
        return Requests(found, warm if warm < len(found) // 2 else 0, len(found), None)
    warm = max(int(rate * lifetime_s * 1.5), 1)
    count = int(np.clip(LIFETIMES * rate * lifetime_s, FEWEST, MOST))
    made = RequestSource(
        rate=rate, requests=warm + count + warm // 2, arrivals=flow.arrivals, burstiness=flow.burstiness,
        inputs=_input(flow), outputs=_output(flow), seed=seed,
    ).drawn()  # fmt: skip
    return Requests(made, warm, min(warm + count, len(made)), None)


def waiting(flow: Arriving, count: int, seed: int = SEED) -> RequestTrace:
    """So many requests of a batch job, all there at the start."""
    if flow.trace is not None:
        columns = read_trace_columns(Path(flow.trace))
        rows = np.resize(np.arange(columns["arrival_s"].size), count)
        return trace(np.zeros(count), columns["prompt_tokens"][rows], columns["output_tokens"][rows])
    return RequestSource(users=1, requests=count, inputs=_input(flow), outputs=_output(flow), seed=seed).drawn()


def _input(flow: Arriving) -> str:
    return flow.inputs or str(flow.input_tokens)


def _output(flow: Arriving) -> str:
    return flow.outputs or str(flow.output_tokens)


def _stretch(path: str, flow: Arriving, rate: float, seed: int) -> RequestTrace:
    """The busiest stretch of a trace at its own times, so many of its requests (at random) that they come at `rate`."""
    columns = read_trace_columns(Path(path))
    first, last = busiest(columns["arrival_s"])
    columns = {name: column[first:last] for name, column in columns.items()}
    assert flow.requests_per_s is not None
    measured_s = columns["arrival_s"] - columns["arrival_s"][0]
    stretched = (last - first - 1) / float(measured_s[-1]) / flow.requests_per_s
    columns["arrival_s"] = measured_s * stretched
    columns.pop("deadline_s", None)
    whole = trace(**columns)
    share = min(rate / flow.requests_per_s, 1.0)
    if share < 1.0:
        kept = np.flatnonzero(np.random.default_rng(seed).random(len(whole)) < share)
        whole = whole.take(kept) if kept.size > 1 else whole
    return replace(whole)
