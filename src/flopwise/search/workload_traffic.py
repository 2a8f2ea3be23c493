"""The traffic of a workload in base units: rates, users, lengths and how requests arrive, from numbers or a trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flopwise.errors import SpecError
from flopwise.units import parse_count, parse_rate, parse_whole

if TYPE_CHECKING:
    from flopwise.search.workload import Traffic

MOST_TOKENS = 10**8
STRETCH = 5000
"""Requests of a trace that replicas are sized by: the busiest so many that follow one another."""


class Arriving(msgspec.Struct, frozen=True, kw_only=True):
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


def arriving(traffic: Traffic, task: str) -> Arriving:
    """The traffic in base units.

    Raises:
        SpecError: what cannot be, beginning with its key; of a trace file, with its line and column.
    """
    _check_shape(traffic)
    rate = _maybe(traffic.requests_per_s, parse_rate, "traffic.requests_per_s")
    concurrency = None if traffic.concurrency is None else parse_whole(traffic.concurrency, "traffic.concurrency")
    requests = _maybe(traffic.requests, parse_count, "traffic.requests")
    if traffic.trace is not None:
        return _from_trace(traffic, task, rate, concurrency, requests)
    inputs, prompt = _length(traffic.input_tokens, "traffic.input_tokens", 1024)
    outputs, answer = _length(traffic.output_tokens, "traffic.output_tokens", 256)
    if task == "serve" and rate is None and concurrency is None:
        raise SpecError(
            "traffic: a serve workload needs traffic.requests_per_s, traffic.concurrency, or a traffic.trace"
        )
    if task == "batch" and requests is None:
        raise SpecError("traffic: a batch workload needs traffic.requests, how many there are in all")
    peak = 1.0 if traffic.peak is None else traffic.peak
    return Arriving(
        requests_per_s=None if rate is None else rate * peak, concurrency=concurrency, requests=requests,
        input_tokens=prompt, output_tokens=answer, peak=peak, inputs=inputs, outputs=outputs,
        arrivals=_process(traffic), burstiness=traffic.burstiness,
    )  # fmt: skip


def _process(traffic: Traffic) -> str:
    return traffic.arrivals or ("poisson" if traffic.burstiness is None else "gamma")


def _check_shape(traffic: Traffic) -> None:
    """Refuse what contradicts itself."""
    shape = {name: getattr(traffic, name) for name in ("arrivals", "burstiness", "peak")}
    given = next((name for name, value in shape.items() if value is not None), None)
    if given is not None and traffic.trace is not None:
        raise SpecError(f"traffic.{given}: a trace says when requests arrive; leave it out")
    if given is not None and traffic.requests_per_s is None:
        raise SpecError(f"traffic.{given}: shapes traffic.requests_per_s, which is not given")
    if traffic.trace is not None and traffic.concurrency is not None:
        raise SpecError("traffic.concurrency: a trace says when requests arrive; leave one of them out")
    if traffic.requests_per_s is not None and traffic.concurrency is not None:
        raise SpecError("traffic.concurrency: requests come at requests_per_s, or as users ask; leave one of them out")
    for name in ("input_tokens", "output_tokens"):
        if traffic.trace is not None and getattr(traffic, name) is not None:
            raise SpecError(f"traffic.{name}: a trace says how long requests are; leave it out")
    if traffic.burstiness is not None and _process(traffic) != "gamma":
        raise SpecError(f"traffic.burstiness: goes with gamma arrivals, not {traffic.arrivals}")
    if traffic.burstiness is not None and not 0 < traffic.burstiness <= 100:
        raise SpecError(f"traffic.burstiness: above 0, up to 100 (1 is Poisson), not {traffic.burstiness:g}")
    if traffic.peak is not None and not 1 <= traffic.peak <= 50:
        raise SpecError(f"traffic.peak: the highest rate over the mean, 1 to 50, not {traffic.peak:g}")


def _maybe(value: Any, parse: Any, what: str) -> float | None:
    if value is None:
        return None
    number = float(parse(value, what))
    if not number > 0:
        raise SpecError(f"{what}: must be more than zero, not {number:g}")
    return number


def _length(value: Any, what: str, default: int) -> tuple[str | None, int]:
    """(text of a distribution, mean): one number, or `200:800`, `lognormal:512:cv=1.2`."""
    if value is None:
        return None, default
    if not isinstance(value, str) or ":" not in value:
        return None, parse_whole(value, what, high=MOST_TOKENS) or 1
    from flopwise.serving.sim.lengths import Lengths  # noqa: PLC0415 - few workloads have them

    try:
        return value, max(1, round(Lengths.parse(value).mean))
    except SpecError as error:
        raise SpecError(f"{what}: {error}") from None


def _from_trace(
    traffic: Traffic, task: str, rate: float | None, concurrency: int | None, requests: float | None
) -> Arriving:
    """Rates and mean lengths of a trace; times are stretched to a rate that is given besides."""
    from flopwise.serving.sim.trace_file import read_trace_columns  # noqa: PLC0415 - few workloads have one

    assert traffic.trace is not None
    try:
        columns = read_trace_columns(Path(traffic.trace))
    except SpecError as error:
        raise SpecError(f"traffic.trace: {error}") from None
    arrival_s = columns["arrival_s"]
    count, span_s = arrival_s.size, float(arrival_s[-1] - arrival_s[0])
    if task != "batch" and (count < 2 or not span_s):
        raise SpecError(f"traffic.trace: {traffic.trace} has no time between its requests, so no rate")
    mean = (count - 1) / span_s if span_s else math.inf
    first, last = busiest(arrival_s)
    peak = (last - first - 1) / float(arrival_s[last - 1] - arrival_s[first]) / mean if last - first < count else 1.0
    whole = mean if rate is None else rate
    return Arriving(
        requests_per_s=None if task == "batch" else whole * peak,
        concurrency=concurrency,
        requests=(requests or float(count)) if task == "batch" else requests,
        input_tokens=max(1, round(float(columns["prompt_tokens"].mean()))),
        output_tokens=max(1, round(float(columns["output_tokens"].mean()))),
        peak=peak,
        trace=traffic.trace,
    )


def busiest(arrival_s: Any, requests: int = STRETCH) -> tuple[int, int]:
    """First row of the busiest stretch of a trace, and the row after its last: the whole of short ones."""
    count = len(arrival_s)
    if count <= requests:
        return 0, count
    first = int((arrival_s[requests - 1 :] - arrival_s[: count - requests + 1]).argmin())
    return first, first + requests
