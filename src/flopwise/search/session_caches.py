"""What the caches of each layout still hold of sessions, so that layouts are judged with it before any is simulated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np

from flopwise.cost.rates import Rates
from flopwise.ops.types import Array
from flopwise.search.joined_replicas import JoinedReplicas, TimedReplicas
from flopwise.search.replica import DEGREES
from flopwise.search.workload import Resolved
from flopwise.serving.disaggregated import PooledReplicas, queue_s
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sessions import Found, SessionTraffic
from flopwise.serving.sim.stores import KvStore
from flopwise.serving.steady import Steady
from flopwise.serving.techniques import runner, tokens_a_round
from flopwise.values import dataclass, replace

SETTLING = 4
"""Times that replicas are counted anew, at what their caches then hold."""


def kv_stores(workload: Resolved, rates: Rates, devices: int) -> tuple[KvStore, ...]:
    """The stores below the caches of a replica of so many devices."""
    if workload.sessions is None or workload.sessions.kv_stores is None:
        return ()
    return KvStore.parse_list(workload.sessions.kv_stores, rates, devices, workload.facts)


class CacheHits(NamedTuple):
    """The share of tokens of prompts that caches hold, by layout, and seconds until stores have brought theirs."""

    found_frac: Array
    fetch_s: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCaches:
    """Layouts of a job in columns: the most sequences in flight on an attention replica, and room in its cache."""

    job: ServeJob
    workload: Resolved
    batch: Array
    tokens: Array
    token_bytes: Array  # of one token, on all devices of an attention replica
    replicas: Callable[[Array], Array]  # that carry the workload where one answers so many requests a second

    @property
    def sessions(self) -> SessionTraffic:
        """The sessions whose turns come."""
        sessions = self.workload.sessions
        assert sessions is not None, "there are histories of sessions only"
        return sessions

    @property
    def requests_per_s(self) -> float:
        """The turns that come, of all replicas."""
        per_s = self.workload.requests_per_s
        assert per_s is not None, "sessions need a rate"
        return per_s

    def stores(self) -> list[tuple[KvStore, ...]]:
        """Of each tier below the caches the stores of all layouts."""
        rates, gpus = self.job.cluster.rates, np.ravel(self.job.layout.num_gpus)
        return list(zip(*(kv_stores(self.workload, rates, int(devices)) for devices in gpus), strict=True))

    def twice(self) -> TimedReplicas:
        """The layouts in two columns, one after the other."""
        both = ServingLayout(**{name: np.tile(np.asarray(getattr(self.job.layout, name)), 2) for name in DEGREES})
        no_hits: Any = np.zeros(2 * self.tokens.size)
        job = replace(self.job, layout=both, techniques=replace(self.job.techniques, hit_frac=no_hits))
        return TimedReplicas(job, runner(job))

    def turns(self, loop: Steady) -> tuple[Array, Array]:
        """(turns a second at each attention replica, seconds that it has each for), in a `loop` of `twice`.

        The first column is as full as it gets, the second as full as the turns make it, whose answers are held.
        """
        ranks = np.asarray(self.job.layout.dp)
        full_per_s, _ = np.split(np.asarray(loop.requests_per_s), 2)
        answer_s = loop.ttft_s + (self.workload.output_tokens - 1) * loop.tpot_s / tokens_a_round(self.job)
        return self.requests_per_s / self.replicas(full_per_s * ranks) / ranks, np.split(np.asarray(answer_s), 2)[1]

    def turns_before_pools(self, found_frac: Array) -> tuple[Array, Array]:
        """(turns a second at each instance for prompts, seconds that it has each for); shape of the layouts.

        Source: `flopwise.serving.disaggregated.pools`, `queue_s`. Assumes: even shares.
        """
        ranks, frac = np.asarray(self.job.layout.dp), cast("Any", found_frac)  # of each layout
        tried = replace(self.job, techniques=replace(self.job.techniques, hit_frac=frac))
        pooled = PooledReplicas.of(tried, runner(tried), self.batch[None])
        turns_per_s = self.requests_per_s / self.replicas(pooled.sustained_per_s[0] * ranks) / ranks
        prompts, servers = pooled.pools.prompts, pooled.pools.servers
        wait_s = queue_s(turns_per_s / pooled.pools.most_per_s, servers, prompts.each_s)
        return np.asarray(turns_per_s / servers), np.asarray(wait_s + prompts.latency_s)


def cache_hits(several: Sequence[LayoutCaches]) -> list[CacheHits]:
    """The hits of the caches of layouts, of the same sessions, in one column; the same formulas hold for all.

    The fewer tokens are found the more replicas it takes, each of which then has fewer sessions to hold: both are
    solved together.

    Source: `flopwise.serving.sessions.Found.of`. Assumes: even shares.
    """
    first, ends = several[0], np.cumsum([one.tokens.size for one in several])[:-1]
    sessions, pooled = first.sessions, bool(first.job.techniques.prefill_gpus)
    batch, ranks, token_bytes, tokens = (
        np.concatenate([np.asarray(column) for column in columns])
        for columns in zip(*((c.batch, c.job.layout.dp, c.token_bytes, c.tokens) for c in several), strict=True)
    )
    tiers = [list(chain.from_iterable(tier)) for tier in zip(*(one.stores() for one in several), strict=True)]
    stored = (np.array([one.capacity_bytes for one in tier]) / ranks / token_bytes for tier in tiers)
    capacities = [tokens, *stored]
    found_frac, running = np.full(ranks.shape, sessions.history_tokens / sessions.prompt_tokens / 2.0), batch / 2.0
    joined = (
        None if pooled else JoinedReplicas([one.twice() for one in several], [np.tile(c.batch, 2) for c in several])
    )
    for _ in range(SETTLING):
        fracs = np.split(found_frac, ends)
        if joined is None:
            turns = [one.turns_before_pools(frac) for one, frac in zip(several, fracs, strict=True)]
        else:
            in_flight = [
                np.concatenate([one.batch, few]) for one, few in zip(several, np.split(running, ends), strict=True)
            ]
            loops = joined.closed_loops(in_flight, [np.tile(frac, 2) for frac in fracs])
            turns = [one.turns(loop) for one, loop in zip(several, loops, strict=True)]
        turns_per_s, service_s = (np.concatenate(column) for column in zip(*turns, strict=True))
        parts = Found.of(
            sessions, turns_per_s, service_s, capacities, first.job.engine.block_tokens, prompts_only=pooled
        )
        found_frac = (found_frac + parts.whole_frac) / 2.0
        running = (running + np.clip(turns_per_s * service_s, 1.0, batch)) / 2.0  # Little's law
    fetch_s = np.zeros(ranks.shape)
    for frac, tier in zip(parts.store_fracs, tiers, strict=True):
        bytes_per_s = np.array([one.bytes_per_s for one in tier]) / ranks
        fetch_s = fetch_s + frac * sessions.prompt_tokens * token_bytes / bytes_per_s
    return [CacheHits(*both) for both in zip(np.split(found_frac, ends), np.split(fetch_s, ends), strict=True)]
