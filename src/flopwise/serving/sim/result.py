"""What a simulation says: times of every request, the gaps between tokens, how the replicas fared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import NamedTuple

import numpy as np

from flopwise.errors import SpecError
from flopwise.ops.types import Array
from flopwise.serving.sim.trace import PS, Column, RequestTrace
from flopwise.values import dataclass

PARTS = 128
"""Bins an octave of the histogram of gaps: each is 0.4 to 0.8 % wide, and its edges are whole picoseconds."""
BINS = 56 * PARTS
"""Bins for gaps below 2**62 ps, by the number's length and its first bits, as high-dynamic-range histograms have."""
PERCENTILES = (50, 90, 95, 99)
BEYOND_MEMORY, BEYOND_CONTEXT = 1, 2
REASONS = {BEYOND_MEMORY: "longer than the whole cache", BEYOND_CONTEXT: "longer than the context window"}
"""Why requests are dropped when they arrive, by code; 0: not dropped."""


def bin_edges_ps() -> Column:
    """Lower edge of every bin, and the upper edge of the last."""
    index = np.arange(BINS + 1)
    shift = np.maximum(index // PARTS - 1, 0)
    return np.asarray(np.left_shift(index - shift * PARTS, shift))


class Outcome(NamedTuple):
    """Columns of the requests that ran; picoseconds, -1 for what has not happened."""

    arrival_ps: Column
    start_ps: Column  # first admitted to a batch
    first_ps: Column  # first token
    finish_ps: Column
    preemptions: Column
    replica: Column  # that finished it, or was last to have it

    def spread(self, rows: Column, count: int) -> Outcome:
        """The columns of `count` requests of which these are `rows`; nothing has happened to the others."""
        whole = Outcome(*(np.full(count, 0 if name == "preemptions" else -1, dtype=np.int64) for name in self._fields))
        for column, part in zip(whole, self, strict=True):
            column[rows] = part
        return whole


class ReplicaTotals(NamedTuple):
    """One number a replica; what stands at the moment first, then sums since the start."""

    on: Column  # 1: takes requests, or still has some
    queue: Column  # requests that wait
    running: Column  # sequences in the batch
    blocks: Column  # of cache in use
    busy_ps: Column  # time in steps
    up_ps: Column  # time switched on
    steps: Column
    prompt_tokens: Column  # worked through, again after a preemption
    output_tokens: Column  # made
    reused_tokens: Column  # of prompts, found in the prefix cache
    preemptions: Column
    peak_blocks: Column


class Standing(NamedTuple):
    """The first fields of `ReplicaTotals`: what an autoscaler looks at, at every tick."""

    on: Array
    queue: Column
    running: Column
    blocks: Column
    busy_ps: Column


class Timeline(NamedTuple):
    """Samples at equal distances; sums over replicas."""

    time_s: Array
    queue: Column
    running: Column
    blocks: Column
    replicas: Column


class Percentiles(NamedTuple):
    """Seconds that this share of requests (or tokens) stays within; NaN where there are none."""

    p50: float
    p90: float
    p95: float
    p99: float


class Slo(NamedTuple):
    """The limits that a good request keeps, seconds; None: none."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


class ClassFigures(NamedTuple):
    """Latencies of the requests of one priority, and their share of all."""

    frac: float
    ttft_s: Percentiles
    tpot_s: Percentiles
    e2e_s: Percentiles


class RunSummary(NamedTuple):
    """The figures of a run; SI units."""

    requests: int
    completed: int
    dropped: int
    drop_reasons: dict[str, int]
    live: int
    duration_s: float  # first arrival to last event
    ttft_s: Percentiles
    tpot_s: Percentiles
    itl_s: Percentiles
    e2e_s: Percentiles
    wait_s: Percentiles  # reaching the scheduler to first admission
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    goodput_per_s: float  # requests that held the objective
    goodput_frac: float  # of those that arrived, dropped ones included
    preemptions: int
    reused_frac: float  # of prompt tokens, found in the prefix cache
    utilisation_frac: float  # of the time switched on, in steps
    kv_peak_frac: float  # of the fullest replica
    kv_mean_frac: float  # over the samples
    mean_queue: float  # requests that the scheduler has and has not admitted
    mean_running: float  # admitted and not answered
    replica_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A run: all columns have the rows of the trace that was given."""

    trace: RequestTrace
    reasons: Column  # why a request was dropped, 0: it was not
    outcome: Outcome
    itl: Column  # tokens after the first, by bin of the time since the one before
    timeline: Timeline
    totals: ReplicaTotals
    num_blocks: int
    end_ps: int  # when the last step ended
    request_ps: int = 0  # from arrival until the scheduler sees a request: part of TTFT, of no queue
    front_token_ps: int = 0  # and for each token of its prompt
    cached: Column = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # rows that a cache answered
    hits: Column | None = None  # tokens of each prompt that were found, beside shared prefixes; None: none
    steps: Column | None = None  # until each answer is whole; None: one a token
    fetched_tokens: Column = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # from each store of prefixes

    @property
    def ttft_s(self) -> Array:
        """Arrival to first token of every request; NaN where there is none."""
        return _between(self.outcome.arrival_ps, self.outcome.first_ps)

    @property
    def e2e_s(self) -> Array:
        """Arrival to last token; NaN where there is none."""
        return _between(self.outcome.arrival_ps, self.outcome.finish_ps)

    @property
    def wait_s(self) -> Array:
        """In the queues of the front end and of the scheduler until the first admission; NaN where there is none."""
        return _between(self.outcome.arrival_ps + self.host_ps, self.outcome.start_ps)

    @property
    def host_ps(self) -> Column:
        """The host time of each request before the scheduler where no other is before it, in ps."""
        return self.request_ps + self.front_token_ps * self.trace.prompt

    @property
    def tpot_s(self) -> Array:
        """Mean gap between tokens of every answer of more than one; NaN for the others."""
        gaps = self.trace.output - 1
        return np.where(gaps > 0, _between(self.outcome.first_ps, self.outcome.finish_ps) / np.maximum(gaps, 1), np.nan)

    @property
    def paid_s(self) -> float:
        """The paid time of a fixed number of replicas: from the start, before any request is there, in s.

        It ends with the last answer, or the last arrival if later.
        """
        return max(self.end_ps, int(self.trace.arrival_ps[-1])) / PS

    @property
    def tokens(self) -> tuple[int, int]:
        """Tokens of prompts and of answers, computed or found in a cache."""
        hits = self.cached[self.outcome.finish_ps[self.cached] >= 0]
        read = self.totals.prompt_tokens.sum() + self.reused_tokens + self.trace.prompt[hits].sum()
        made = int(self.totals.output_tokens.sum() + self.trace.output[hits].sum())
        if self.steps is not None:
            made += int((self.trace.output - self.steps)[self.outcome.finish_ps >= 0].sum())
        return int(read), made

    @property
    def reused_tokens(self) -> int:
        """Tokens of prompts that were in the cache already."""
        tokens = int(self.totals.reused_tokens.sum())
        return tokens if self.hits is None else tokens + int(self.hits[self.outcome.start_ps >= 0].sum())

    @property
    def dropped_count(self) -> int:
        """Requests that were refused or given up."""
        return int(np.count_nonzero(self.reasons))

    @property
    def preemption_count(self) -> int:
        """Sequences that made room for others."""
        return int(self.totals.preemptions.sum())

    @property
    def kv_peak_frac(self) -> float:
        """Of a replica's blocks, those in use at most."""
        return int(self.totals.peak_blocks.max()) / self.num_blocks

    def good(self, slo: Slo) -> Array:
        """A mask of the requests answered within the objective; answers of one token meet any TPOT."""
        good = self.outcome.finish_ps >= 0
        with np.errstate(invalid="ignore"):
            for name, limit in slo._asdict().items():
                if limit is not None:
                    good = good & ~(getattr(self, name) > limit)
        return np.asarray(good)

    def by_priority(self, rows: slice | Array = slice(None)) -> dict[int, ClassFigures]:
        """Figures of each class of `rows` by its priority, the first class first; none where all are of one."""
        priority = self.trace.priority[rows]
        if not priority.size or priority.min() == priority.max():
            return {}
        classes = np.unique(priority)
        seconds = {name: getattr(self, name)[rows] for name in ("ttft_s", "tpot_s", "e2e_s")}
        return {
            int(one): ClassFigures(
                frac=float(np.mean(priority == one)),
                **{name: percentiles(values[priority == one]) for name, values in seconds.items()},
            )
            for one in classes
        }

    def itl_s(self, percent: float) -> float:
        """The gap that this share of tokens stays within, to the bin (under 1 %); NaN where there are none."""
        total = int(self.itl.sum())
        if not total:
            return float("nan")
        place = int(np.searchsorted(np.cumsum(self.itl), max(percent / 100 * total, 1)))
        edges = bin_edges_ps()
        return float(edges[place] + edges[place + 1] - 1) / 2 / PS

    def summary(self, slo: Slo | None = None) -> RunSummary:
        """Percentiles, rates and shares of the whole run."""
        done = self.outcome.finish_ps >= 0
        arrived = self.outcome.arrival_ps >= 0
        first = int(self.outcome.arrival_ps[arrived].min()) if np.any(arrived) else 0
        duration = max(self.end_ps - first, 1) / PS
        inputs, outputs = self.tokens
        dropped = self.dropped_count
        completed, good = (int(np.count_nonzero(rows)) for rows in (done, self.good(slo or Slo())))
        prompts, reused = int(self.totals.prompt_tokens.sum()), self.reused_tokens
        up = int(self.totals.up_ps.sum())
        blocks = self.timeline.blocks / np.maximum(self.timeline.replicas, 1) / self.num_blocks
        waited, ran = self.wait_s, _between(self.outcome.start_ps, self.outcome.finish_ps)
        ran[self.cached] = np.nan
        return RunSummary(
            requests=len(self.trace),
            completed=completed,
            dropped=dropped,
            drop_reasons={text: int(np.count_nonzero(self.reasons == code)) for code, text in REASONS.items()},
            live=len(self.trace) - completed - dropped,
            duration_s=duration,
            **{name: percentiles(getattr(self, name)) for name in ("ttft_s", "tpot_s", "e2e_s", "wait_s")},
            itl_s=Percentiles(*(self.itl_s(p) for p in PERCENTILES)),
            requests_per_s=completed / duration,
            output_tokens_per_s=outputs / duration,
            total_tokens_per_s=(inputs + outputs) / duration,
            goodput_per_s=good / duration,
            goodput_frac=good / max(len(self.trace), 1),
            preemptions=self.preemption_count,
            reused_frac=reused / max(prompts + reused, 1),
            utilisation_frac=int(self.totals.busy_ps.sum()) / max(up, 1),
            kv_peak_frac=self.kv_peak_frac,
            kv_mean_frac=float(blocks.mean()) if len(blocks) else 0.0,
            mean_queue=float(np.nansum(waited)) / duration,
            mean_running=float(np.nansum(ran)) / duration,
            replica_hours=up / PS / 3600,
        )


def _between(start: Column, end: Column) -> Array:
    """Seconds from one column to the other; NaN where the end has not come."""
    return np.where(end >= 0, (end - start) / PS, np.nan)


def at_shares(values: Array, percents: Sequence[float]) -> list[float]:
    """The percentiles of `values`, on straight lines between neighbours: as of numpy.percentile, to the last bit.

    That imports numpy.ma, which takes 7 ms.
    """
    if not len(percents):
        return []
    if not len(values):
        return [float("nan")] * len(percents)
    places = np.asarray(percents) / 100 * (len(values) - 1)
    below = np.floor(places).astype(np.int64)
    above = np.minimum(below + 1, len(values) - 1)
    ordered = np.partition(values, sorted({*below.tolist(), *above.tolist()}))
    low, high, share = ordered[below], ordered[above], places - below
    found = np.where(share >= 0.5, high - (high - low) * (1 - share), low + (high - low) * share)
    return [float(one) for one in found]


def percentiles(seconds: Array) -> Percentiles:
    """Of the numbers that are there."""
    there = seconds[~np.isnan(seconds)]
    if not len(there):
        return Percentiles(*(float("nan"),) * len(PERCENTILES))
    return Percentiles(*at_shares(there, PERCENTILES))


class Switches:
    """Starts and drains of some replicas, and so the hours that they cost; times in picoseconds."""

    def __init__(self, replicas: int) -> None:
        """All off."""
        self.on_ps: list[int | None] = [None] * replicas  # None: off
        self.drained_ps: list[int | None] = [None] * replicas  # None: not drained since it was started
        self.before_ps = [0] * replicas  # on, up to the last drain that has ended

    def start(self, replica: int, on_ps: int, *, busy: bool, ended_ps: int) -> None:
        """A replica is on from then on.

        Raises: SpecError: it is on, or has not ended what it has.
        """
        if busy or (self.on_ps[replica] is not None and self.drained_ps[replica] is None):
            raise SpecError(f"replica {replica} is on; a replica must be drained and empty before it is started again")
        self.before_ps[replica] += self._up_ps(replica, on_ps, ended_ps, busy=False)
        self.on_ps[replica], self.drained_ps[replica] = on_ps, None

    def drain(self, replica: int, now_ps: int) -> None:
        """A replica goes off once it is empty."""
        if self.drained_ps[replica] is None:
            self.drained_ps[replica] = now_ps

    def _up_ps(self, replica: int, now_ps: int, ended_ps: int, *, busy: bool) -> int:
        """Since it was last started; a drained replica is on until its last step ends."""
        on, drained = self.on_ps[replica], self.drained_ps[replica]
        if on is None:
            return 0
        until = now_ps if drained is None or busy else max(drained, ended_ps)
        return max(until - on, 0)

    def totals(self, rows: Column, now_ps: int) -> ReplicaTotals:
        """`rows`: the fields of `ReplicaTotals` but the time on; then the end of the last step, and requests left."""
        *fields, ended, left = rows
        up = [
            before + self._up_ps(place, now_ps, int(ended[place]), busy=bool(left[place]))
            for place, before in enumerate(self.before_ps)
        ]
        return ReplicaTotals._make([*fields[:5], np.array(up, dtype=np.int64), *fields[5:]])
