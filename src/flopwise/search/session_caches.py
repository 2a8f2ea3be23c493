"""What the caches of each layout still hold of sessions, so that layouts are judged with it before any is simulated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flopwise.cost.rates import Rates
from flopwise.ops.types import Floats
from flopwise.search.replica import DEGREES
from flopwise.search.workload import Resolved
from flopwise.serving.disaggregated import pooled_load, queue_s
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sessions import Found
from flopwise.serving.sim.stores import KvStore
from flopwise.serving.steady import closed_loop
from flopwise.serving.techniques import request_work, runner, tokens_a_round
from flopwise.values import replace

SETTLING = 4
"""Times that replicas are counted anew, at what their caches then hold."""


def kv_stores(workload: Resolved, rates: Rates, devices: int) -> tuple[KvStore, ...]:
    """The stores below the caches of a replica of so many devices."""
    if workload.sessions is None or workload.sessions.kv_stores is None:
        return ()
    return KvStore.parse_list(workload.sessions.kv_stores, rates, devices, workload.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCaches:
    """Layouts of a job in columns: the most sequences in flight on an attention replica, and room in its cache."""

    job: ServeJob
    batch: Floats
    tokens: Floats
    token_bytes: Floats  # of one token, on all devices of an attention replica

    def __call__(self, workload: Resolved, replicas: Callable[[Any], Any]) -> tuple[Floats, Floats]:
        """(share of prompt tokens that they hold, seconds until stores have brought theirs); shape of the layouts.

        `replicas`: how many carry the workload where one answers so many requests a second. The fewer tokens are found
        the more replicas it takes, each of which then has fewer sessions to hold: both are solved together. A second
        column is as full as the turns make it, whose answers are held meanwhile.

        Source: `flopwise.serving.sessions.Found.of`. Assumes: even shares.
        """
        job, batch, sessions, ranks = self.job, self.batch, workload.sessions, np.asarray(self.job.layout.dp)
        assert sessions is not None, "there are histories of sessions only"
        assert workload.requests_per_s is not None, "sessions need a rate"
        stores = [kv_stores(workload, job.cluster.rates, int(devices)) for devices in np.ravel(job.layout.num_gpus)]
        tiers = list(zip(*stores, strict=True))
        token_bytes = self.token_bytes
        capacities = [
            self.tokens,
            *(np.array([one.capacity_bytes for one in tier]) / ranks / token_bytes for tier in tiers),
        ]
        both = ServingLayout(**{name: np.tile(np.asarray(getattr(job.layout, name)), 2) for name in DEGREES})
        found_frac: Floats = np.full(ranks.shape, sessions.history_tokens / sessions.prompt_tokens / 2.0)
        running = np.asarray(batch) / 2.0
        for _ in range(SETTLING):
            hits: Any = np.tile(found_frac, 2)
            tried = replace(job, techniques=replace(job.techniques, hit_frac=hits))
            if job.techniques.prefill_gpus:
                turns_per_s, service_s = self._before_pools(found_frac, workload.requests_per_s, replicas)
            else:
                loop = closed_loop(runner(tried), both, np.concatenate([batch, running]), *request_work(tried))
                full_per_s, _ = np.split(np.asarray(loop.requests_per_s), 2)
                answer_s = loop.ttft_s + (workload.output_tokens - 1) * loop.tpot_s / tokens_a_round(job)
                turns_per_s = workload.requests_per_s / replicas(full_per_s * ranks) / ranks
                _, service_s = np.split(answer_s, 2)
            parts = Found.of(
                sessions, turns_per_s, service_s, capacities, workload.engine.block_tokens,
                prompts_only=bool(job.techniques.prefill_gpus),
            )  # fmt: skip
            found_frac = (found_frac + parts.whole_frac) / 2.0
            running = (running + np.clip(turns_per_s * service_s, 1.0, batch)) / 2.0  # Little's law
        fetch_s = np.zeros(ranks.shape)
        for frac, tier in zip(parts.store_fracs, tiers, strict=True):
            bytes_per_s = np.array([one.bytes_per_s for one in tier]) / ranks
            fetch_s = fetch_s + frac * sessions.prompt_tokens * token_bytes / bytes_per_s
        return found_frac, fetch_s

    def _before_pools(
        self, found_frac: Floats, requests_per_s: float, replicas: Callable[[Any], Any]
    ) -> tuple[Floats, Floats]:
        """(turns a second at each instance for prompts, seconds that it has each for); shape of the layouts.

        Source: `flopwise.serving.disaggregated.pools`, `queue_s`. Assumes: even shares.
        """
        ranks = np.asarray(self.job.layout.dp)
        frac: Any = np.asarray(found_frac)  # of each layout
        tried = replace(self.job, techniques=replace(self.job.techniques, hit_frac=frac))
        machine, batch = runner(tried), np.asarray(self.batch)[None]
        load = pooled_load(tried, machine, batch, None, ())
        turns_per_s = requests_per_s / replicas(np.asarray(load.sustained_per_s)[0] * ranks) / ranks
        prompts, servers = load.pools.prompts, load.pools.servers
        wait_s = queue_s(turns_per_s / load.pools.most_per_s, servers, prompts.each_s)
        return turns_per_s / servers, wait_s + prompts.latency_s
