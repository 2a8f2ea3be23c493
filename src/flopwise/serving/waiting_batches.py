"""A server that answers in one pass: each batch takes what waits when the one before it ends, up to the largest."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from flopwise.facts.software import Engine
from flopwise.ops.types import Array
from flopwise.serving.open_loop import straight_lines
from flopwise.serving.steady import LEAST_S, front_end_s

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TABLE = np.linspace(-6.0, 6.0, 481)
NORMAL_MEANS = np.array([
    x * 0.5 * (1.0 + math.erf(x / math.sqrt(2.0))) + math.exp(-x * x / 2.0) / math.sqrt(2.0 * math.pi) for x in TABLE
])  # fmt: skip
"""Mean of what a standard normal variable falls short of x by: x Phi(x) + phi(x), at each of `TABLE`."""
HALVINGS, MOST_STEPS, NEAR = 4, 60, 1e-7
"""Of the range that a percentile lies in; steps that halve it or follow a chord by turns, until all are as near: in the
share that is left beyond it, or in seconds."""
BEYOND = np.array([1.0, 0.8, 0.6, 0.4, 0.25, 0.15, 0.08, 0.04, 0.02, 0.01, 0.003])
"""Shares of waits for whole batches beyond which the next part of their exponential tail begins."""
PARTS = -np.diff(BEYOND, append=0.0)
WAITS = 1.0 + np.append(np.diff(BEYOND * np.log(BEYOND)) / PARTS[:-1], -np.log(BEYOND[-1]))
"""The mean of each part over the mean wait."""
NEVER_FULL = 2.0
"""Spare room of a batch over the spread of what comes during one, from which on one in a hundred overflows."""


class WaitingBatches(NamedTuple):
    """Replicas at an arrival rate each, in columns; the tables have shape (sizes, columns).

    An arrival finds the server idle, and is answered alone, or it waits for the rest of a batch and goes into the next,
    with all that came during that one. Where a batch cannot hold them all, whole batches come before its own.
    """

    sizes: Array  # ascending; the last is the largest that a batch takes
    step_s: Array  # of a batch of each size
    arrivals_per_s: Array

    @property
    def sustained_per_s(self) -> Array:
        """Requests a second of full batches."""
        most: Array = self.sizes[-1] / self.step_s[-1]
        return most

    @property
    def mean_batch(self) -> Array:
        """Inputs of a batch: those that come during one, k = r s(k), and one where nobody did, exp(-k).

        Source: counting of Poisson arrivals. Assumes: batches are alike; straight lines between the sizes.
        """
        due = self.arrivals_per_s * self.step_s
        more = due + np.exp(-due) - self.sizes
        columns = np.arange(more.shape[1])
        above = np.where((more <= 0.0).any(axis=0), np.argmax(more <= 0.0, axis=0), len(more) - 1)
        below = np.maximum(above - 1, 0)
        low, high = more[below, columns], more[above, columns]
        share = np.where((above > 0) & (high <= 0.0), low / np.maximum(low - high, LEAST_S), 1.0)
        start, whole = self.sizes[below, columns], self.sizes[above, columns]
        batch: Array = start + np.minimum(share, 1.0) * (whole - start)
        return batch

    @property
    def running_frac(self) -> Array:
        """Share of the time in which a batch runs.

        Source: r s(k) / k. Assumes: batches are alike, as for `mean_batch`.
        """
        batch = self.mean_batch
        step_s = straight_lines(self.sizes, batch[None])(self.step_s)
        return np.minimum(self.arrivals_per_s * step_s.ravel() / batch, 1.0)

    def latency_s(self, percentile: str, batch: Array | None = None) -> Array:
        """Seconds from arrival to answer, at a percentile or on average; infinite where a replica cannot keep up.

        Idle with probability 1 - r s / k. Else the rest of a batch is uniform; the batch that follows is normal, as the
        Poisson number of those that came; it overflows as a random walk with normal steps, whose maximum M has
        E(M) = 1 / 2b - 0.583 + b / 4 - 0.0415 b^2 and P(M = 0) = sqrt(2) b exp(-0.583 b), b the room that a batch has
        to spare over the spread of what comes during one. Batches of one: M/D/1, whose wait is a geometric number of
        rests of a service. `batch`: `mean_batch`, where it is known.

        Source: Chang and Peres 1997, Ladder heights, Gaussian random walks and the Riemann zeta function; Janssen and
        van Leeuwaarden 2007, On Lerch's transcendent and the Gaussian random walk; Pollaczek-Khinchine.
        Assumes: inputs of one length; that parts are independent of each other.
        """
        seen = self._parts(self.mean_batch if batch is None else batch)
        mean_s: Array = seen.idle * seen.alone_s + (1.0 - seen.idle) * (seen.rest_s / 2.0 + seen.own_s + seen.over_s)
        if percentile == "mean":
            return np.where(self.arrivals_per_s < self.sustained_per_s, mean_s, np.inf)
        share = SHARES[percentile] if percentile in SHARES else float(percentile.removeprefix("p")) / 100.0
        return np.where(self.arrivals_per_s < self.sustained_per_s, seen.within(share), np.inf)

    def _parts(self, batch: Array) -> _WaitParts:
        """The parts of a latency, in columns; `batch`: `mean_batch`."""
        per_s, most = self.arrivals_per_s, self.sizes[-1]

        def step_at(*sizes: Array) -> Array:
            at = np.clip(np.stack(sizes), 1.0, most)
            return np.broadcast_to(straight_lines(self.sizes, at)(self.step_s), at.shape)

        apart = np.sqrt(batch)
        step_s, below_s, above_s = step_at(batch, batch - apart, batch + apart)
        slope = np.maximum(above_s - below_s, 0.0) / (2.0 * apart)
        grows = np.minimum(per_s * slope, 0.9)  # a longer batch lets more come
        variance = per_s * step_s / (1.0 - grows**2)
        rest_s = step_s + slope**2 * variance / step_s  # long batches are met more often
        (own_s,) = step_at(1.0 + per_s * rest_s)
        sigma_s = slope * np.sqrt(variance * (0.75 + grows) ** 2 + per_s * rest_s)
        full_s = self.step_s[-1]
        busy = np.minimum(per_s * full_s / most, 0.999)
        spare = (1.0 - busy) * np.sqrt(most / np.maximum(busy, LEAST_S))
        near = np.minimum(spare, NEVER_FULL)
        ahead = np.maximum(0.5 / np.maximum(near, LEAST_S) - 0.5826 + near / 4.0 - 0.0415 * near**2, 0.0)
        overflows = np.clip(1.0 - math.sqrt(2.0) * near * np.exp(-0.5826 * near), 0.0, 1.0)
        ahead, overflows = (np.where(spare < NEVER_FULL, one, 0.0) for one in (ahead, overflows))
        over_s = full_s * ahead * np.sqrt(per_s * full_s) / most
        single = most < 2.0
        over_s = np.where(single, busy / (1.0 - busy) * full_s / 2.0, over_s)
        overflows = np.where(single, busy, overflows)
        return _WaitParts(
            idle=np.clip(1.0 - per_s * step_s / batch, 0.0, 1.0), alone_s=self.step_s[0], rest_s=rest_s, own_s=own_s,
            sigma_s=np.maximum(sigma_s, 1e-3 * step_s), overflows=overflows, over_s=over_s,
        )  # fmt: skip


def one_pass_latency_s(engine: Engine, batches: WaitingBatches, input_tokens: float, percentile: str) -> Array:
    """Seconds from a request to its answer, at a percentile or on average, in columns; infinite as `latency_s`.

    Source: `WaitingBatches.latency_s`, `front_end_s`. Assumes: as there.
    """
    batch = batches.mean_batch
    before_s = front_end_s(engine, input_tokens, batches.arrivals_per_s, batch)
    return np.asarray(engine.request_s + before_s + batches.latency_s(percentile, batch))


class _WaitParts(NamedTuple):
    """The parts of a latency, in columns: alone where the server is `idle`, else rest, overflow and own batch."""

    idle: Array  # probability
    alone_s: Array
    rest_s: Array  # of a batch, at most: uniform from 0
    own_s: Array  # the batch that a request goes into
    sigma_s: Array  # its standard deviation
    overflows: Array  # probability
    over_s: Array  # mean wait for whole batches: exponential where there is one

    def within(self, share: float) -> Array:
        """Seconds within which a share of requests is answered: from all sides of what answers alone take.

        Source: halving, then chords whose end that stays counts half (the Illinois rule; Dowell and Jarratt 1971).
        """
        busy_within = self._busy_within()
        alone_s, idle = self.alone_s, self.idle
        waiting = busy_within(alone_s)
        jumps = (waiting < share) & (share <= waiting + idle)  # answers alone reach the share at once
        after = waiting + idle < share
        low = np.where(after, alone_s, np.minimum(alone_s, self.own_s - 8.0 * self.sigma_s))
        most_s = self.own_s + self.rest_s + 8.0 * self.sigma_s
        most_s = most_s + 8.0 * self.over_s / np.maximum(self.overflows, LEAST_S)
        high = np.where(after, np.maximum(most_s, alone_s), np.minimum(alone_s, most_s))
        wanted = np.where(after, share - idle, share)
        lower, upper = -wanted, 1.0 - wanted  # how far the ends are off; these may be more than they are
        for step in range(MOST_STEPS):
            halves = step < HALVINGS or step % 3 == 0  # a tail in parts has steps, which no chord foresees
            at = (low + high) / 2.0 if halves else low + (high - low) * lower / (lower - upper)
            off = busy_within(at) - wanted
            less = off < 0.0
            kept = 1.0 if halves else 0.5
            low, high = np.where(less, at, low), np.where(less, high, at)
            lower, upper = np.where(less, off, kept * lower), np.where(less, kept * upper, off)
            upper = np.maximum(upper, LEAST_S)
            if np.all((np.abs(off) < NEAR * (1.0 - share)) | (high - low < NEAR * high)):
                break
        return np.where(jumps, alone_s, at)

    def _busy_within(self) -> Callable[[Array], Array]:
        """A function of seconds: the share of requests that find the server busy and are answered within them.

        Source: as `WaitingBatches.latency_s`; x Phi(x) + phi(x) is the integral of Phi.
        """
        sigma_s, rest = self.sigma_s, self.rest_s / self.sigma_s
        offset_s, weights = self.own_s[None], (1.0 - self.overflows)[None]
        if np.any(self.overflows > 0.0):
            waits_s = WAITS[:, None] * (self.over_s / np.maximum(self.overflows, LEAST_S))
            offset_s = np.concatenate([offset_s, self.own_s + waits_s])
            weights = np.concatenate([weights, self.overflows * PARTS[:, None]])
        weights = weights * (1.0 - self.idle) / rest
        offset = np.concatenate([offset_s / sigma_s, offset_s / sigma_s + rest])
        weights = np.concatenate([weights, -weights])

        def busy_within(seconds: Array) -> Array:
            found: Array = (weights * _normal_mean(seconds / sigma_s - offset)).sum(axis=0)
            return found

        return busy_within


def _normal_mean(x: Array) -> Array:
    return np.where(x > TABLE[-1], x, np.interp(x, TABLE, NORMAL_MEANS))
