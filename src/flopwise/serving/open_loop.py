"""Requests that arrive at random at replicas in steady state: their latencies by percentile.

All quantities may be columns of candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flopwise.ops.types import Array, Floats
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.iteration import Prompt, Runner, StepTime, prompt
from flopwise.serving.memory import ServingLayout
from flopwise.serving.steady import (
    LEAST_S,
    STEP_IN_PROGRESS,
    Steady,
    chunk_tokens,
    front_end_s,
    launch_wait_s,
    micro_batches,
    prefill_budget,
    steps_unseen,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PERCENTILES = {"mean": 0.0, "p50": 0.0, "p90": 1.2816, "p95": 1.6449, "p99": 2.3263}
"""Standard normal quantiles."""
USUAL_SIZES = np.concatenate([[1.0], np.outer(2.0 ** np.arange(1, 63), [1.0, 1.5]).ravel()])
"""Powers of two, and half way between them from 2 on."""


def batch_sizes(most: float) -> Array:
    """Sizes of a batch up to `most` that figures are looked up between: powers of two, half way between, and `most`.

    Source: no formula; between neighbours, at most half apart, the rate is nearly straight. Assumes: nothing more.
    """
    top = max(1.0, float(most))
    return np.append(USUAL_SIZES[: np.searchsorted(USUAL_SIZES, top)], top)


def in_flight_at(sizes: Array, rates: Array, arrivals_per_s: Array) -> Array:
    """Sequences in flight at an arrival rate, from the rates that batches of `sizes` sustain: shape of the arrivals.

    `sizes` and `rates` have shape (sizes, layouts), ascending; `arrivals_per_s` (any, layouts). Straight between the
    sizes; below the first its share, above the last as the last.

    Source: Little's law, with the response times of `closed_loop`.
    Assumes: a larger batch sustains no lower rate.
    """
    rising = np.maximum.accumulate(rates, axis=0)
    rows, columns = rising.shape
    below = (rising[:, None, :] <= arrivals_per_s[None]).sum(axis=0) - 1
    lower = np.clip(below, 0, rows - 1)
    upper = np.minimum(lower + 1, rows - 1)
    low, high = lower * columns + np.arange(columns), upper * columns + np.arange(columns)
    least, start = sizes.ravel()[low], rising.ravel()[low]
    apart = rising.ravel()[high] - start
    slope = np.where(apart > 0, (sizes.ravel()[high] - least) / np.where(apart > 0, apart, 1.0), 0.0)
    size: Array = slope * np.maximum(arrivals_per_s - start, 0.0) + least
    return size * np.minimum(arrivals_per_s / rising[:1], 1.0)


class Percentile(NamedTuple):
    """The latencies of a percentile of requests."""

    ttft_s: Floats
    tpot_s: Floats


class _Spread(NamedTuple):
    """Mean, variance and third central moment of a time; those of independent parts add up. Broadcasts."""

    mean: Floats
    variance: Floats
    third: Floats

    def plus(self, other: _Spread) -> _Spread:
        """The spread of the sum of both."""
        return _Spread(*(a + b for a, b in zip(self, other, strict=True)))

    def at(self, percentile: str) -> Floats:
        """The value at a percentile.

        Source: Cornish and Fisher 1938, the first two terms. Assumes: it is no further from a normal variable than an
        exponential one is.
        """
        if percentile == "mean":
            return self.mean
        sigma, z = np.sqrt(np.maximum(self.variance, LEAST_S**2)), PERCENTILES[percentile]
        skew = np.minimum(self.third / sigma**3, 2.0)
        normals = skew * (z * z - 1.0) / 6.0 + z
        value: Floats = self.mean + sigma * normals
        return value


def _poisson_sum(count: Floats, each: Floats) -> _Spread:
    """A Poisson number, `count` on average, of equal times."""
    return _Spread(count * each, count * each**2, count * each**3)


def _queue_wait(busy: Floats, service_s: Floats) -> _Spread:
    """The wait before a server with constant service, busy for this share of the time, under Poisson arrivals.

    A wait is a geometric number of residual services, whose n-th moment is s^n / (n + 1).

    Source: Pollaczek-Khinchine, as a geometric sum (Asmussen 2003, Applied probability and queues, VIII.5).
    Assumes: first come, first served.
    """
    odds = busy / (1.0 - busy)
    one, two, three = service_s / 2.0, service_s**2 / 3.0, service_s**3 / 4.0
    return _Spread(
        odds * one, odds * two + (odds * one) ** 2, odds * three + 3.0 * odds**2 * one * two + 2.0 * (odds * one) ** 3
    )


class SteadyCurves(NamedTuple):
    """Replicas in closed loops of several sizes, read between them at any arrival rate; arrays of (sizes, layouts).

    Services alike differ in their rate alone: no step is computed again for another one. What arrives at random decodes
    in batches of all sizes around the mean, so that a step which takes another wave of tiles from some size on comes to
    a value between those of its neighbours.

    Source: `closed_loop` at each size; straight lines between neighbours, which `batch_sizes` keeps close.
    Assumes: times of steps, averaged over the batches of a Poisson number, are nearly straight there and beyond.
    """

    runner: Runner
    layout: ServingLayout  # one row
    input_tokens: Floats
    output_tokens: Floats
    sizes: Array  # ascending
    steady: Steady  # its columns are arrays

    @classmethod
    def of(
        cls, runner: Runner, layout: ServingLayout, sizes: Array, steady: Steady, input_tokens: Floats,
        output_tokens: Floats,
    ) -> SteadyCurves:  # fmt: skip
        """The curves of `steady`, closed loops of `sizes`; `layout` and `steady` in columns: all sizes in turn."""
        shape = sizes.shape
        degrees = {
            name: np.broadcast_to(getattr(layout, name), sizes.size).reshape(shape)[:1]
            for name in ("tp", "pp", "ep", "dp")
        }
        tables = _each(steady, lambda column: np.broadcast_to(column, sizes.size).reshape(shape))
        return cls(runner, ServingLayout(**degrees), input_tokens, output_tokens, sizes, tables)

    @classmethod
    def up_to(
        cls, runner: Runner, layout: ServingLayout, most_in_flight: float, input_tokens: Floats, output_tokens: Floats
    ) -> SteadyCurves:
        """The curves of one layout, up to `most_in_flight` at once."""
        sizes = batch_sizes(most_in_flight)
        steady = closed_loop(runner, layout, sizes, input_tokens, output_tokens)
        return cls.of(runner, layout, sizes[:, None], steady, input_tokens, output_tokens)

    @property
    def most_per_s(self) -> float:
        """Requests per second that the best of all sizes and layouts sustains."""
        return float(np.max(self.steady.requests_per_s))

    def at(self, arrivals_per_s: Array) -> OpenLoop:
        """Replicas at an arrival rate each: shape (any, layouts)."""
        table = self.steady
        rates = np.asarray(table.batch / (self.output_tokens * table.mean_step_s))
        batch = in_flight_at(np.asarray(table.batch), rates, arrivals_per_s)
        points, apart = np.asarray(table.batch), np.sqrt(batch)
        below, above = (straight_lines(points, np.maximum(batch + way * apart, points[:1])) for way in (-1.0, 1.0))
        steady = _each(table, lambda column: (below(column) + above(column)) / 2.0)
        more_s = (above(table.decode.seconds) - below(table.decode.seconds)) / (2.0 * np.maximum(apart, LEAST_S))
        return OpenLoop(self, arrivals_per_s, steady._replace(batch=batch), more_s)


class OpenLoop(NamedTuple):
    """Replicas of `curves` at an arrival rate each; arrays of (any, layouts)."""

    curves: SteadyCurves
    arrivals_per_s: Array
    steady: Steady  # means over the batches that decode, as many as the rate asks for
    more_s: Array  # by which one more sequence makes a step longer

    def percentile(self, percentile: str) -> Percentile:
        """TTFT and TPOT at a percentile under Poisson arrivals; infinite where a replica cannot keep up.

        Source: `_first_token`, `_each_token`, their moments. Assumes: as there.
        """
        behind = self._busy >= 1.0
        times = (self._first_token.at(percentile), self._each_token.at(percentile))
        return Percentile(*(np.where(behind, np.inf, time) for time in times))

    @property
    def running_frac(self) -> Floats:
        """Share of the time in which an attention replica runs steps: it reads prompts, or answers are under way.

        Source: M/D/1, whose server is busy for its load; M/G/infinity, where the number of answers is Poisson.
        Assumes: both are independent; a prompt finds no steps but its own.
        """
        decode_s, per_s = self.steady.decode.seconds, self.arrivals_per_s
        reading = np.minimum(per_s * self._pieces * (self.steady.added_s + decode_s), 1.0)
        return 1.0 - (1.0 - reading) * np.exp(-per_s * (self.curves.output_tokens - 1.0) * decode_s)

    @property
    def _one(self) -> Prompt:
        return prompt(self.curves.runner.model, self.curves.input_tokens)

    @property
    def _parts(self) -> Floats:
        return micro_batches(self.curves.runner, self.curves.layout, self.steady.batch)

    @property
    def _busy(self) -> Floats:
        """Share of the engine's prefill budget that is asked for."""
        budget = prefill_budget(self.curves.runner, self.curves.layout, self._one)
        return self.arrivals_per_s / self._parts * self._one.tokens / budget * self.steady.full_s

    @property
    def _pieces(self) -> Floats:
        """Steps that a prompt goes through."""
        return np.ceil(self._one.tokens / chunk_tokens(self.curves.runner, self.curves.layout, self._one.tokens))

    @property
    def _queue(self) -> _Spread:
        """The wait for prompts before one: M/D/1, where the budget of a step is what serves.

        Source: `_queue_wait`. Assumes: prompts of one length.
        """
        budget = prefill_budget(self.curves.runner, self.curves.layout, self._one)
        return _queue_wait(np.minimum(self._busy, 0.999), self.steady.full_s * self._one.tokens / budget)

    @property
    def _first_token(self) -> _Spread:
        """The time to a first token: it waits for steps that are planned, and for prompts before it.

        Where a prompt finds none before it, it waits for the rest of a step and for the one that is planned, if any
        answer is under way. In these and in its own step are the prompts that came during a step each, of which it
        meets a longer one than most. What else the engine is ahead of a request, it waits in any case.

        Source: `_queue`; `steps_unseen`. Assumes: a request comes at any moment of a step.
        """
        curves, steady, one = self.curves, self.steady, self._one
        engine, per_s = curves.runner.engine, self.arrivals_per_s / self._parts
        chunk = chunk_tokens(curves.runner, curves.layout, one.tokens)
        alone = 1.0 - chunk / prefill_budget(curves.runner, curves.layout, one)
        decode_s, mean_s = steady.decode.seconds, steady.mean_step_s
        under_way = -np.expm1(-steady.batch)
        planned = STEP_IN_PROGRESS + engine.plans_ahead
        waits = under_way * (1.0 - np.minimum(self._busy, 0.999)) * planned
        own_s = engine.request_s + front_end_s(engine, one.tokens, per_s, steady.batch / self._parts)
        lone_s = np.minimum(np.asarray(curves.steady.added_s)[:1], steady.added_s)  # a prompt that shares no step
        own_s = own_s + self._pieces * (lone_s + decode_s * engine.mixes) + waits * decode_s
        own_s = own_s + under_way * (steps_unseen(engine, per_s * mean_s) - planned) * mean_s
        launching_s = launch_wait_s(curves.runner, curves.layout, one, steady.mixed.seconds - decode_s)
        own_s = own_s + under_way * steady.prefill_share * launching_s
        step = _Spread(own_s, under_way * decode_s**2 / 12.0, 0.0)
        squares = steady.mixed.seconds**2 - decode_s**2
        longer_s = decode_s**2 + steady.prefill_share * squares
        beside = per_s * (waits + under_way) * longer_s / mean_s * alone
        another_s = steady.added_s
        if not engine.mixes:  # weights are read once for all prompts of a step of their own
            budget = prefill_budget(curves.runner, curves.layout, one)
            another_s = np.minimum(another_s, self.steady.full_s * one.tokens / budget)
        return step.plus(_poisson_sum(beside, another_s)).plus(self._queue)

    @property
    def _each_token(self) -> _Spread:
        """The mean time of a further token of an answer, which depends on the batch and the prompts that it meets.

        Both come from the same arrivals: of those within an answer's time before its first token and until its last, at
        a distance u of that time, each makes the steps of 1 - u of it longer by `more_s`; of those until its last, each
        adds its prompt besides. Those that came while its own prompt waited and was read follow at once. Answers that
        meet more prompts last longer, and so meet more.

        Source: M/G/infinity (Campbell's theorem for sums over Poisson arrivals); busy periods for what meets more.
        Assumes: answers of one length; an answer sees one sequence more than there are on average, itself.
        """
        steady, steps = self.steady, np.maximum(self.curves.output_tokens - 1.0, 1.0)
        prompt_s, per_s, waits = self._pieces * steady.added_s, self.arrivals_per_s / self._parts, self._queue
        longer = 1.0 / (1.0 - np.minimum(per_s * prompt_s, 0.95))
        batch, slope, each_s = steady.batch / self._parts, self.more_s, prompt_s / steps
        longer_s = steady.mixed.seconds - steady.decode.seconds
        mean = steady.decode.seconds + slope + steady.prefill_share * longer_s
        square = slope**2 * 2 / 3 + slope * each_s + each_s**2
        cube = slope**3 / 2 + slope**2 * each_s + slope * each_s**2 * 3 / 2 + each_s**3
        met = _Spread(mean, batch * square * longer**2, batch * cube * longer**3)
        behind, come = _poisson_sum(per_s * (waits.mean + prompt_s), each_s * longer), per_s * each_s * longer
        return met.plus(behind).plus(_Spread(0.0, waits.variance * come**2, waits.third * come**3))


def _each(steady: Steady, change: Callable[[Floats], Array]) -> Steady:
    """The steady state with `change` applied to every column, those of its steps included."""
    changed: dict[str, Any] = {
        name: StepTime(*map(change, value)) if isinstance(value, StepTime) else change(value)
        for name, value in steady._asdict().items()
    }
    return Steady(**changed)


def straight_lines(points: Array, at: Array) -> Callable[[Floats], Array]:
    """A function from tables of values at `points` (points, columns), ascending, to values at `at`, on straight lines.

    `at` has shape (any, columns). Before the first point the first value; beyond the last the last line goes on.
    """
    rows, columns = points.shape
    below = (points[:, None, :] <= at[None]).sum(axis=0) - 1
    last = (points < points[-1:]).sum(axis=0) - 1  # of the points that differ from the last
    lower = np.clip(np.minimum(below, last), 0, None)
    upper = np.minimum(lower + 1, rows - 1)
    low, high = lower * columns + np.arange(columns), upper * columns + np.arange(columns)
    start, whole = points.ravel()[low], points.ravel()[high] - points.ravel()[low]
    share = np.where(whole > 0, np.maximum(at - start, 0.0) / np.where(whole > 0, whole, 1.0), 0.0)

    def value_table(values: Floats) -> Array:
        if np.size(values) == 1:
            return np.ravel(values)
        flat = np.ravel(values)
        curve: Array = flat[low] + share * (flat[high] - flat[low])
        return curve

    return value_table
