"""The traffic of a workload in base units: rates, users, lengths and how requests arrive, from numbers or a trace."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from flopwise.errors import SpecError
from flopwise.options import OptionError
from flopwise.search.spec import TrafficSpec
from flopwise.serving.spec import DEFAULT_INPUT, DEFAULT_OUTPUT, mean_tokens

STRETCH = 5000
"""Requests of a trace that replicas are sized by: the busiest so many that follow one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arriving:
    """What arrives. `requests_per_s` is the rate that replicas are sized for; the mean is that over `peak`.

    `inputs`, `outputs`: lengths as `flopwise.serving.sim.lengths.Lengths.parse` reads them, None where all are alike.
    """

    requests_per_s: float | None
    concurrency: int | None
    requests: float | None
    input_tokens: int  # on average
    output_tokens: int
    peak: float = 1.0
    inputs: str | None = None
    outputs: str | None = None
    arrivals: str = "poisson"
    burstiness: float | None = None  # standard deviation of the gaps over their mean
    trace: str | None = None


def arriving(traffic: TrafficSpec, task: str) -> Arriving:
    """The traffic of a workload.

    Raises:
        SpecError: what cannot be; of a trace file, with its line and column.
    """
    _check_shape(traffic)
    if traffic.trace is not None:
        return _from_trace(traffic, task)
    if task == "serve" and traffic.rate is None and traffic.concurrency is None:
        raise SpecError(
            "traffic: a serve workload needs traffic.requests_per_s, traffic.concurrency, or a traffic.trace"
        )
    if task == "batch" and traffic.requests is None:
        raise SpecError("traffic: a batch workload needs traffic.requests, how many there are in all")
    lengths = (traffic.input_tokens or DEFAULT_INPUT, traffic.output_tokens or DEFAULT_OUTPUT)
    inputs, outputs = (length if isinstance(length, str) else None for length in lengths)
    prompt, answer = map(mean_tokens, lengths)
    peak = 1.0 if traffic.peak is None else traffic.peak
    return Arriving(
        requests_per_s=None if traffic.rate is None else traffic.rate * peak, concurrency=traffic.concurrency,
        requests=traffic.requests, input_tokens=prompt, output_tokens=answer, peak=peak, inputs=inputs,
        outputs=outputs, arrivals=_process(traffic), burstiness=traffic.burstiness,
    )  # fmt: skip


def _process(traffic: TrafficSpec) -> str:
    return traffic.arrivals or ("poisson" if traffic.burstiness is None else "gamma")


def _check_shape(traffic: TrafficSpec) -> None:
    """Refuse what contradicts itself."""
    shape = next((n for n in ("arrivals", "burstiness", "peak") if getattr(traffic, n) is not None), None)
    for name in (shape, "concurrency", "input_tokens", "output_tokens") if traffic.trace is not None else ():
        if name is not None and getattr(traffic, name) is not None:
            what = "how long requests are" if name.endswith("tokens") else "when requests arrive"
            raise OptionError(name, f"a trace says {what}; leave it out")
    if shape is not None and traffic.rate is None:
        raise OptionError(shape, "shapes the rate of requests (--rate, traffic.requests_per_s), which is not given")
    if traffic.rate is not None and traffic.concurrency is not None:
        raise OptionError("concurrency", "requests come at their rate, or as users ask; leave one of them out")
    if traffic.burstiness is not None and _process(traffic) != "gamma":
        raise OptionError("burstiness", f"goes with gamma arrivals, not {traffic.arrivals}")
    if traffic.arrivals == "diurnal":
        raise OptionError("arrivals", "a plan is sized for the highest rate of a day: give peak instead of diurnal")


def _from_trace(traffic: TrafficSpec, task: str) -> Arriving:
    """Rates and mean lengths of a trace; times are stretched to a rate that is given besides."""
    from flopwise.serving.sim.trace import read_trace_columns  # noqa: PLC0415 - few workloads have one

    requests = traffic.requests
    try:
        columns = read_trace_columns(traffic.trace)
    except SpecError as error:
        raise OptionError("trace", str(error)) from None
    arrival_s = columns["arrival_s"]
    count, span_s = arrival_s.size, float(arrival_s[-1] - arrival_s[0])
    if task != "batch" and (count < 2 or not span_s):
        raise OptionError("trace", f"{traffic.trace} has no time between its requests, so no rate")
    mean = (count - 1) / span_s if span_s else math.inf
    first, last = busiest(arrival_s)
    peak = (last - first - 1) / float(arrival_s[last - 1] - arrival_s[first]) / mean if last - first < count else 1.0
    whole = mean if traffic.rate is None else traffic.rate
    return Arriving(
        requests_per_s=None if task == "batch" else whole * peak,
        concurrency=None,
        requests=(requests or float(count)) if task == "batch" else requests,
        input_tokens=max(1, round(float(columns["prompt_tokens"].mean()))),
        output_tokens=max(1, round(float(columns["output_tokens"].mean()))),
        peak=peak,
        trace=str(traffic.trace),
    )


def busiest(arrival_s: Any, requests: int = STRETCH) -> tuple[int, int]:
    """First row of the busiest stretch of a trace, and the row after its last: the whole of short ones."""
    count = len(arrival_s)
    if count <= requests:
        return 0, count
    first = int((arrival_s[requests - 1 :] - arrival_s[: count - requests + 1]).argmin())
    return first, first + requests
