"""How many machines a service needs where more or less is asked of them, or where they do more or less than planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flopwise.fleet.own import OwnOffer
from flopwise.ops.types import Array
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Allotment
    from flopwise.fleet.results import Chosen
    from flopwise.fleet.way import Way
    from flopwise.search.answer import Candidate


def unit_of(candidate: Candidate) -> int:
    """Machines that one replica takes together; 1 where a machine holds one replica or several."""
    held = candidate.layout
    if "replicas" not in held:
        return 1
    return max(1, -(-_each(candidate) // _gpus(candidate)))


def filled_frac(candidate: Candidate) -> float:
    """Share of a service's machines that its load takes; 1 where that is not known.

    Replicas count as full at `PREFILL_BUSY`; devices of a machine that hold no replica are free.
    """
    held, busy = candidate.layout, candidate.figures.get("busy_frac")
    if busy is None or "replicas" not in held:
        return 1.0
    full = held["replicas"] * min(1.0, busy / PREFILL_BUSY)
    if _each(candidate) > _gpus(candidate):
        return float(full * unit_of(candidate) / candidate.num_instances)
    return float(full / (_gpus(candidate) // _each(candidate)) / candidate.num_instances)


def _each(candidate: Candidate) -> int:
    """Devices of a replica."""
    return int(candidate.layout["tp"] * candidate.layout["pp"] * candidate.layout["dp"])


def _gpus(candidate: Candidate) -> int:
    """Devices of a machine."""
    return max(1, candidate.num_gpus // candidate.num_instances)


def needed(count: int, filled: float, unit: int, times: float | Array) -> Array:
    """Machines that `times` the load needs where `count` are planned of which it takes the share `filled`.

    More load first fills what is free; less frees whole replicas. `times` may be of any shape.

    Assumes: planned machines beyond what the load takes are there for latency, so less load frees them in proportion.
    """
    asked = np.asarray(times, dtype=float)

    def whole(share: Array) -> Array:
        return np.asarray(unit * np.ceil(np.round(count * share / unit, 6)))

    least = filled if float(whole(np.asarray(filled))) >= count else 1.0
    more = np.maximum(count, whole(asked * filled))
    less = np.minimum(count, np.maximum(unit, whole(asked * least)))
    return np.where(asked >= 1, more, less)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a service asks of the machines of one row of the bill: `count`, of which it takes the share `filled`.

    `time_low` and `time_high`: the 10-90 % interval of the time that a request takes of a machine, over what is
    planned. `usd`: a month of the row. `paid`: whether the machines are paid whatever is asked of them; `missing_usd`:
    a month of one that is then missing.
    """

    count: int
    usd: float
    filled: float = 1.0
    unit: int = 1
    time_low: float = 1.0
    time_high: float = 1.0
    paid: bool = False
    missing_usd: float = 0.0

    def usd_at(self, times: float | Array) -> Array:
        """USD a month at `times` the load; of any shape."""
        machines = needed(self.count, self.filled, self.unit, times)
        if not self.paid:
            return self.usd * machines / self.count
        return np.asarray(self.usd + np.maximum(0.0, machines - self.count) * self.missing_usd)

    def strays_usd(self, times: float) -> tuple[float, float]:
        """USD less or more than planned for `times` the load, at the ends of the interval of what machines do."""
        planned, each = needed(self.count, self.filled, self.unit, times), self.usd / self.count
        low, high = (
            float(needed(self.count, self.filled, self.unit, times * time) - planned)
            for time in (min(1.0, self.time_low), max(1.0, self.time_high))
        )
        return (0.0, high * self.missing_usd) if self.paid else (low * each, high * each)


def loads_of(rows: Sequence[Allotment], chosen: Sequence[Chosen]) -> list[Load | None]:
    """Of each row of the bill, in its order; None where it is no service's on machines.

    A backup follows what is asked, not what its machines do.
    """
    by_name = {c.item.placed.name: c for c in chosen}
    return [_load(row, by_name.get(row.workload)) for row in rows]


def _load(row: Allotment, chosen: Chosen | None) -> Load | None:
    told = None if chosen is None else chosen.figures
    if chosen is None or told is None or chosen.item.placed.ends:
        return None
    place = (row.provider, row.region, row.instance, row.purchase)
    ways = [w for w, _ in chosen.parts if (w.offer.provider, w.offer.region, w.offer.instance, w.purchase) == place]
    if row.role == "backup" or not ways:
        return Load(count=row.count, usd=row.usd_per_month)
    held = ways[0]
    own = isinstance(held.offer, OwnOffer)
    return Load(
        count=row.count, usd=row.usd_per_month, filled=filled_frac(held.candidate), unit=held.unit,
        time_low=told.time_low, time_high=told.time_high, paid=own or row.purchase.startswith("reserved"),
        missing_usd=_missing_usd(held, row.count),
    )  # fmt: skip


def _missing_usd(held: Way, count: int) -> float:
    """A month of one more machine than `count`: on demand for the hours that it is on, else as those there are.

    Assumes: own machines that are there and not in these are free for it, beyond them one is bought.
    """
    offer, rate = held.offer, held.offer.on_demand_usd_per_hour
    if isinstance(offer, OwnOffer):
        (there, used), (_, bought) = offer.tiers
        return (used if count < there else bought) + held.usd_running
    if rate is None:
        return held.usd_each
    return rate * min(held.busy_hours, HOURS_PER_MONTH)
