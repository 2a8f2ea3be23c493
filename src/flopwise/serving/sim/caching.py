"""A cache of whole answers in front of the replicas: which requests it answers, and what holding it costs."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from flopwise.errors import SpecError
from flopwise.serving.sim.result import Outcome, SimulatedRun
from flopwise.serving.sim.trace import PS, RequestTrace
from flopwise.units import HOUR_S

Rng = np.random.Generator
MOST_PROMPTS = 10_000_000
"""Distinct prompts that a popularity may have."""
BYTES_PER_TOKEN = 4.0
"""Text of a token: about four characters of English in UTF-8."""
ENTRY_BYTES = 500.0
"""Key, pointers and expiry beside an answer's text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCache:
    """Answers of the latest prompts, by the least recently used; how often prompts repeat is their popularity.

    A share `repeated` of requests asks one of `prompts` prompts, the k-th of them with a weight k^-`skew` (Zipf); all
    others ask what nobody asked before. An answer is served again for `ttl_s` seconds after it was made.
    """

    entries: int
    prompts: int
    skew: float = 1.0
    repeated: float = 1.0
    ttl_s: float = math.inf
    hit_s: float = 0.005  # from the request to the cached answer
    usd_per_gb_hour: float = 0.0  # of the memory that holds it

    def __post_init__(self) -> None:
        """Raise SpecError for figures that cannot be."""
        for name, value, low, high in (
            ("cache entries", self.entries, 1, MOST_PROMPTS),
            ("distinct prompts", self.prompts, 1, MOST_PROMPTS),
            ("skew", self.skew, 0, 10),
            ("repeated share", self.repeated, 0, 1),
            ("cache time to live", self.ttl_s, 0, math.inf),
            ("cache latency", self.hit_s, 0, 3600),
            ("price of cache memory", self.usd_per_gb_hour, 0, 1e6),
        ):
            if not low <= value <= high:
                raise SpecError(f"{name} {value:g} is out of range; allowed: {low:g} to {high:g}")

    def popularity(self) -> NDArray[np.float64]:
        """Shares of all requests that ask each of the prompts; shape (prompts,), their sum is `repeated`."""
        weights = np.arange(1, self.prompts + 1, dtype=float) ** -self.skew
        shares: NDArray[np.float64] = weights / weights.sum() * self.repeated
        return shares

    def usd(self, mean_output_tokens: float, duration_s: float) -> float:
        """What the memory of a full cache costs over `duration_s`, in USD.

        Source: text of the answers and what stands beside it. Assumes: the whole capacity is paid for all the time.
        """
        held = self.entries * (ENTRY_BYTES + BYTES_PER_TOKEN * mean_output_tokens)
        return held / 1e9 * self.usd_per_gb_hour * duration_s / HOUR_S


def hit_rate(cache: ResponseCache) -> float:
    """Share of requests that the cache answers in the long run, without regard to expiry.

    Source: Che, Tung and Wang 2002 (IEEE JSAC 20(7)), the characteristic time T of a least-recently-used cache: the
    entries that were asked for within T fill it, sum(1 - exp(-p T)) = entries.
    Assumes: independent requests; those that ask what nobody asked before pass through the cache as well.
    """
    shares = cache.popularity()
    unique = 1.0 - cache.repeated

    def cached_entries(asked: float) -> float:
        return float(-np.expm1(-shares * asked).sum()) + unique * asked

    if unique == 0 and cache.entries >= cache.prompts:
        return 1.0
    low, high = 0.0, 1.0
    while cached_entries(high) < cache.entries and high < 1e18:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if cached_entries(middle) < cache.entries else (low, middle)
    return float((shares * -np.expm1(-shares * high)).sum())


def made_by(cache: ResponseCache, arrival_s: NDArray[np.float64], rng: Rng) -> NDArray[np.int64]:
    """For each request the earlier one whose answer it gets, -1 where it is computed; `arrival_s` ascends.

    Source: the policy itself, request by request: a miss stores its answer and drops the least recently used.
    Assumes: a request that asks what is being computed right now gets those tokens as they come: it is a hit.
    """
    count = arrival_s.size
    ends = np.cumsum(cache.popularity())
    asked = np.searchsorted(ends, rng.random(count), side="right")
    fresh = asked >= cache.prompts
    asked[fresh] = cache.prompts + np.arange(np.count_nonzero(fresh))
    made: OrderedDict[int, int] = OrderedDict()  # prompt -> row that computed the answer
    makers = np.full(count, -1, dtype=np.int64)
    times = arrival_s.tolist()
    for row, prompt in enumerate(asked.tolist()):
        maker = made.get(prompt, -1)
        if maker >= 0 and times[row] - times[maker] <= cache.ttl_s:
            makers[row] = maker
        else:
            made[prompt] = row
            if len(made) > cache.entries:
                made.popitem(last=False)
        made.move_to_end(prompt)
    return makers


def with_hits(trace: RequestTrace, makers: NDArray[np.int64]) -> RequestTrace:
    """The same requests, those that the cache answers as long as the one whose answer they get."""
    source = np.where(makers >= 0, makers, np.arange(len(trace)))
    return replace(trace, prompt=trace.prompt[source], output=trace.output[source])


def merge_hits(run: SimulatedRun, trace: RequestTrace, makers: NDArray[np.int64], hit_s: float) -> SimulatedRun:
    """A run of the requests that were computed, and those that the cache answered laid between them; rows of `trace`.

    An answer comes whole, `hit_s` after it was asked for; one that is still being computed comes as its tokens do. The
    answer of a request that was dropped is none: who asks the same is dropped, too.

    Source: definition. Assumes: the cache itself is never the bottleneck. Gaps between tokens that come as they are
    computed are counted once, for the request that computes them.
    """
    computed, hits = np.flatnonzero(makers < 0), np.flatnonzero(makers >= 0)
    reasons = np.zeros(len(trace), dtype=np.int64)
    reasons[computed] = run.reasons
    outcome = Outcome.empty(len(trace))
    for whole, part in zip(outcome, run.outcome, strict=True):
        whole[computed] = part
    reasons[hits] = reasons[makers[hits]]
    come = outcome.arrival_ps[hits] = trace.arrival_ps[hits]
    for column in (outcome.first_ps, outcome.finish_ps):
        made = column[makers[hits]]
        column[hits] = np.where(made >= 0, np.maximum(come, made) + round(hit_s * PS), -1)
    itl = run.itl.copy()
    done = outcome.finish_ps[makers[hits]]
    itl[0] += int((trace.output[hits] - 1)[(done >= 0) & (done <= come)].sum())
    end = max(run.end_ps, int(outcome.finish_ps.max(initial=0)))
    found = steps = None
    if run.hits is not None:
        found = np.zeros(len(trace), dtype=np.int64)
        found[computed] = run.hits
    if run.steps is not None:
        steps = trace.output.copy()
        steps[computed] = run.steps
    return replace(
        run, trace=trace, reasons=reasons, outcome=outcome, itl=itl, end_ps=end, cached=hits, hits=found, steps=steps
    )
