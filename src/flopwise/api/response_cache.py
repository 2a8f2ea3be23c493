"""A cache of answers before the replicas of a simulation: who is answered by it, and what that saves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.api.simulate import Asked, SimulateAnswer
    from flopwise.serving.sim.caching import ResponseCache
    from flopwise.serving.sim.result import Simulated, Slo, Summary
    from flopwise.serving.sim.trace import Column, Trace

SEED_OF_PROMPTS = 1
"""Beside the seed of the traffic: which request asks what is drawn on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheReport:
    """What a cache of answers did for a run. USD None without a price."""

    cache: ResponseCache
    hits: int
    hit_frac: float  # of the requests of this run
    long_run_frac: float  # by theory, without expiry
    usd: float  # of its memory during the run
    without: Summary  # the same replicas without it
    attain: float | None  # the share that the fewest replicas hold; None without an objective
    fewest: int | None  # replicas with it, None: no number holds the objective
    fewest_without: int | None
    saved_usd: float | None  # by the replicas that it makes needless, less its memory; None where not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The requests, and those among them that a cache answers; without a cache, none."""

    whole: Trace
    makers: Column | None
    cache: ResponseCache | None

    @classmethod
    def of(cls, asked: Asked, cache: ResponseCache | None) -> Front:
        """Draw who asks the same.

        Raises:
            SpecError: users in a closed loop: when they ask depends on when they are answered.
        """
        import numpy as np

        from flopwise.serving.sim.caching import made_by, with_hits
        from flopwise.serving.sim.trace import PS

        made, flow, _ = asked
        if cache is None:
            return cls(whole=made.trace, makers=None, cache=None)
        if flow.users is not None:
            raise SpecError("a response cache goes with --trace or --rate: when --users ask depends on their answers")
        makers = made_by(cache, made.trace.arrival_ps / PS, np.random.default_rng([flow.seed, SEED_OF_PROMPTS]))
        return cls(whole=with_hits(made.trace, makers), makers=makers, cache=cache)

    @property
    def computed(self) -> Trace:
        """The requests that reach the replicas."""
        return self.whole if self.makers is None else self.whole.take(self.makers < 0)

    def seen(self, run: Simulated) -> Simulated:
        """What users see of a run of `computed`."""
        from flopwise.serving.sim.caching import merged

        if self.makers is None or self.cache is None:
            return run
        return merged(run, self.whole, self.makers, self.cache.hit_s)

    @property
    def bare(self) -> Front:
        """The same requests without the cache."""
        return Front(whole=self.whole, makers=None, cache=None)


def has_objective(slo: Slo) -> bool:
    """Whether there is anything that a request must hold."""
    return any(limit is not None for limit in slo)


def fewest_replicas(asked: Asked, front: Front, slo: Slo, attain: float, near: int) -> int | None:
    """The fewest replicas with which `attain` of the requests hold the objective; None: no number does."""
    from flopwise.api.simulate import played
    from flopwise.serving.sim.provision import MOST_REPLICAS, fewest

    def attained(count: int) -> float:
        return front.seen(played(asked, count, requests=front.computed)).summary(slo).goodput_frac

    return fewest(attained, attain, near=near, most=min(MOST_REPLICAS, len(front.computed)))


def report(asked: Asked, front: Front, answer: SimulateAnswer, replicas: int, attain: float) -> CacheReport:
    """What the cache of `front` did for the run of `answer`, and how many replicas it makes needless."""
    from flopwise.api.simulate import played
    from flopwise.serving.sim.caching import hit_rate
    from flopwise.serving.sim.trace import PS
    from flopwise.units import HOUR_S

    assert front.cache is not None
    assert front.makers is not None
    bare, slo, cache = front.bare, answer.slo, front.cache
    with_it = without = saved = None
    hours = answer.simulated.end_ps / PS / HOUR_S
    usd = cache.usd(float(front.whole.output.mean()), hours * HOUR_S)
    if has_objective(slo):
        with_it = fewest_replicas(asked, front, slo, attain, replicas)
        without = fewest_replicas(asked, bare, slo, attain, with_it or replicas)
        if with_it and without and answer.usd_per_hour is not None:
            saved = (without - with_it) * answer.usd_per_hour / answer.replicas * hours - usd
    hits = int((front.makers >= 0).sum())
    return CacheReport(
        cache=cache,
        hits=hits,
        hit_frac=hits / len(front.whole),
        long_run_frac=hit_rate(cache),
        usd=usd,
        without=played(asked, replicas, requests=bare.computed).summary(slo),
        attain=attain if has_objective(slo) else None,
        fewest=with_it,
        fewest_without=without,
        saved_usd=saved,
    )
