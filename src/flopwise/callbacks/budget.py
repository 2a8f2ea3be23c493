"""What a run may cost and how long it may take, and how all of its ranks end after the same step."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from typing import Any

from flopwise.callbacks.settings import RecordingSpec
from flopwise.units import HOUR_S, format_seconds, format_usd

ALERTS = (0.5, 0.8, 0.95, 1.0)
"""Shares of a budget at which an event says so."""
ASK_EVERY = 10
"""Steps after which a rank asks whether the run is to end; ranks are never as many steps apart."""


class RunBudget:
    """Money and hours, whichever is used up first."""

    def __init__(
        self, spec: RecordingSpec, usd_per_hour: float | None, *, earlier_usd: float = 0.0, earlier_s: float = 0.0
    ) -> None:
        """`earlier_usd`, `earlier_s`: what processes before this one used up of it.

        A budget in money without a price only warns: nobody knows what is spent.
        """
        self.stops = spec.on_budget in ("stop", "checkpoint")
        self._usd, self._hours, self._price = spec.budget_usd, spec.budget_hours, usd_per_hour
        self._earlier_usd, self._earlier_s = earlier_usd, earlier_s
        used = self.used_frac(0.0)
        self._ahead = (
            [] if spec.on_budget == "ignore" else [share for share in ALERTS if share > used or share == ALERTS[-1]]
        )
        if self._usd is not None and usd_per_hour is None and spec.on_budget != "ignore":
            text = "flopwise: the budget in US dollars is not watched, as no price is known; give price_usd_per_hour"
            warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _used(self, elapsed_s: float) -> Iterator[tuple[float, str]]:
        if self._usd is not None and self._price is not None:
            spent = self._earlier_usd + self._price * elapsed_s / HOUR_S
            yield spent / self._usd, f"{format_usd(spent)} of {format_usd(self._usd)}"
        if self._hours is not None:
            used_s, limit_s = self._earlier_s + elapsed_s, self._hours * HOUR_S
            yield used_s / limit_s, f"{format_seconds(used_s)} of {format_seconds(limit_s)}"

    def used_frac(self, elapsed_s: float) -> float:
        """The share of the budget that is used up; 0 without one."""
        return max((frac for frac, _ in self._used(elapsed_s)), default=0.0)

    def alerts(self, elapsed_s: float) -> list[str]:
        """A sentence for the highest share that was passed since the last call."""
        if not self._ahead:
            return []
        frac, text = max(self._used(elapsed_s), default=(0.0, ""))
        passed = [share for share in self._ahead if frac >= share]
        self._ahead = [share for share in self._ahead if frac < share]
        return [f"{100 * passed[-1]:.0f} % of the budget is used up: {text}"] if passed else []


class Agreement:
    """All ranks end after the same step: one that stopped alone would leave the others waiting for it for ever.

    Rank 0 writes the number of a step that none has reached into the store that ranks met at; every rank asks for it
    now and then. That costs a message of the host, and no GPU waits.
    """

    _made = 0

    def __init__(self, num_ranks: int, rank: int) -> None:
        """Alone, a rank agrees with itself at once."""
        self._num_ranks, self._rank = num_ranks, rank
        Agreement._made += 1  # alike on all ranks, which make theirs in the same order
        self._key = f"flopwise/last_step/{Agreement._made}"
        self.last_step: int | None = None
        """Of all ranks, once they have agreed."""

    def _store(self) -> Any | None:
        """Where the ranks met; None where they do not talk to one another."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
            return None
        return torch.distributed.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no other way to it

    def agree(self, step: int, *, wants_end: bool) -> None:
        """After `step`: rank 0 names the last step where it wants the end, the others hear of it now and then."""
        if self.last_step is not None:
            return
        if self._rank == 0 and wants_end:
            store = self._store() if self._num_ranks > 1 else None
            if store is None:
                self.last_step = step
            else:
                self.last_step = (step // ASK_EVERY + 2) * ASK_EVERY
                store.set(self._key, str(self.last_step))
        elif self._rank and step % ASK_EVERY == 0:
            store = self._store()
            if store is not None and store.check([self._key]):
                self.last_step = int(store.get(self._key))
