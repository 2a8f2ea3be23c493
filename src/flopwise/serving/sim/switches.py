"""When replicas were on: for the hours that they cost."""

from __future__ import annotations

import numpy as np

from flopwise.errors import SpecError
from flopwise.serving.sim.result import ReplicaTotals
from flopwise.serving.sim.trace import Column


class Switches:
    """Starts and drains of some replicas; times in picoseconds."""

    def __init__(self, replicas: int) -> None:
        """All off."""
        self.on_ps: list[int | None] = [None] * replicas  # None: off
        self.drained_ps: list[int | None] = [None] * replicas  # None: not drained since it was started
        self.before_ps = [0] * replicas  # on, up to the last drain that has ended

    def start(self, replica: int, on_ps: int, *, busy: bool, ended_ps: int) -> None:
        """A replica is on from then on.

        Raises:
            SpecError: it is on, or has not ended what it has.
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
