"""What a run says of its sessions: how many ended, what one costs, and from where their histories came."""

from __future__ import annotations

from typing import Any

import numpy as np

from flopwise.results import attributes
from flopwise.serving.sim.prefixes import previous_turns
from flopwise.serving.sim.result import SimulatedRun, percentiles
from flopwise.serving.sim.stores import KvStore
from flopwise.units import HOUR_S
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReport:
    """The sessions of a run, or the requests of one whose prompts share beginnings. USD None without a price."""

    sessions: int  # 0: the requests are no turns of sessions
    ended: int  # all their turns are answered
    turns_per_session: float
    turn_ttft_s: dict[str, float]  # of turns after the first, by percentile; NaN where there are none
    device_frac: float  # of prompt tokens, found in the cache of the device
    store_fracs: dict[str, float]  # of prompt tokens, brought by each store
    computed_frac: float
    stores_usd: float  # during the run
    stores_usd_per_hour: float
    usd_per_session: float | None  # of those that ended: machines and stores

    def document(self) -> dict[str, Any]:
        """The report as the JSON that scripts rely on."""
        return attributes(
            self, "sessions ended turns_per_session turn_ttft_s device_frac store_fracs computed_frac stores_usd "
            "stores_usd_per_hour usd_per_session",
        )  # fmt: skip

    @classmethod
    def of(
        cls, run: SimulatedRun, stores: tuple[KvStore, ...], reader_hours: float, cost_usd: float | None
    ) -> SessionReport | None:
        """The report of a run that cost `cost_usd`; None where no prompts share beginnings.

        `reader_hours`: of the replicas that read prompts, each with stores of its own.

        Source: counting. Assumes: stores are paid for as long as their replica, whether full or not.
        """
        trace = run.trace
        turns = trace.session >= 0
        if not (np.any(turns) or trace.tree is not None or stores):
            return None
        names, place = np.unique(trace.session[turns], return_inverse=True)
        answered = run.outcome.finish_ps[turns] >= 0
        ended = int((np.bincount(place, weights=~answered, minlength=len(names)) == 0).sum()) if len(names) else 0
        later = previous_turns(trace) >= 0
        worked, reused = int(run.totals.prompt_tokens.sum()), run.reused_tokens
        whole = max(worked + reused, 1)
        brought = {store.name: int(n) / whole for store, n in zip(stores, run.fetched_tokens, strict=True)}
        usd = sum(store.usd(HOUR_S) for store in stores) * reader_hours
        return SessionReport(
            sessions=len(names), ended=ended, turns_per_session=float(turns.sum() / max(len(names), 1)),
            turn_ttft_s=percentiles(run.ttft_s[later])._asdict(),
            device_frac=max(reused / whole - sum(brought.values()), 0.0), store_fracs=brought,
            computed_frac=worked / whole, stores_usd=usd, stores_usd_per_hour=usd * HOUR_S / run.paid_s,
            usd_per_session=None if cost_usd is None or not ended else (cost_usd + usd) / ended,
        )  # fmt: skip
