"""What a run may cost and how long it may take, and how all of its ranks end after the same step."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from flopwise.callbacks.settings import RecordingSpec
from flopwise.units import HOUR_S, format_seconds, format_usd

ALERTS = (0.5, 0.8, 0.95, 1.0)
"""Shares of a budget at which an event is recorded."""


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

    def _used_shares(self, elapsed_s: float) -> Iterator[tuple[float, str]]:
        if self._usd is not None and self._price is not None:
            spent = self._earlier_usd + self._price * elapsed_s / HOUR_S
            yield spent / self._usd, f"{format_usd(spent)} of {format_usd(self._usd)}"
        if self._hours is not None:
            used_s, limit_s = self._earlier_s + elapsed_s, self._hours * HOUR_S
            yield used_s / limit_s, f"{format_seconds(used_s)} of {format_seconds(limit_s)}"

    def used_frac(self, elapsed_s: float) -> float:
        """The share of the budget that is used up; 0 without one."""
        return max((frac for frac, _ in self._used_shares(elapsed_s)), default=0.0)

    def alerts(self, elapsed_s: float) -> list[str]:
        """A sentence for the highest share that was passed since the last call."""
        if not self._ahead:
            return []
        frac, text = max(self._used_shares(elapsed_s), default=(0.0, ""))
        passed = [share for share in self._ahead if frac >= share]
        self._ahead = [share for share in self._ahead if frac < share]
        return [f"{100 * passed[-1]:.0f} % of the budget is used up: {text}"] if passed else []
