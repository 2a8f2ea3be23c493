"""How many machines a service needs where more or less is asked of them, or where they do more or less than planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from flopwise.ops.types import Array
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.fleet.model import ChosenWorkload, MonthlyOption, Taken
    from flopwise.search.answer import Candidate


def replica_machines(candidate: Candidate) -> int:
    """Machines that one replica takes together; 1 where a machine holds one replica or several."""
    if "replicas" not in candidate.layout:
        return 1
    return max(1, -(-_replica_gpus(candidate) // _machine_gpus(candidate)))


def filled_frac(candidate: Candidate) -> float:
    """Share of a service's machines that its load takes; 1 where that is not known.

    Replicas count as full at `PREFILL_BUSY`; devices of a machine that hold no replica are free.
    """
    layout, busy = candidate.layout, candidate.figures.get("busy_frac")
    if busy is None or "replicas" not in layout:
        return 1.0
    full = layout["replicas"] * min(1.0, busy / PREFILL_BUSY)
    each, inside = _replica_gpus(candidate), _machine_gpus(candidate)
    machines = full * replica_machines(candidate) if each > inside else full / (inside // each)
    return float(machines / candidate.num_instances)


def _replica_gpus(candidate: Candidate) -> int:
    return int(candidate.layout["tp"] * candidate.layout["pp"] * candidate.layout["dp"])


def _machine_gpus(candidate: Candidate) -> int:
    return max(1, candidate.num_gpus // candidate.num_instances)


def machines_needed(count: int, filled: float, unit: int, times: float | Array) -> Array:
    """Machines that `times` the load needs where `count` are planned of which it takes the share `filled`.

    More load first fills what is free; less frees whole replicas. `times` may be of any shape.

    Assumes: planned machines beyond what the load takes are there for latency, so less load frees them in proportion.
    """
    load = np.asarray(times, dtype=float)

    def whole(share: Array) -> Array:
        return np.asarray(unit * np.ceil(np.round(count * share / unit, 6)))

    least = filled if float(whole(np.asarray(filled))) >= count else 1.0
    more = np.maximum(count, whole(load * filled))
    less = np.minimum(count, np.maximum(unit, whole(load * least)))
    return np.where(load >= 1, more, less)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
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

    def machines(self, times: float | Array) -> Array:
        """Machines at `times` the load; of any shape."""
        return machines_needed(self.count, self.filled, self.unit, times)

    def usd_at(self, times: float | Array) -> Array:
        """USD a month at `times` the load; of any shape."""
        machines = self.machines(times)
        if not self.paid:
            return self.usd * machines / self.count
        return np.asarray(self.usd + np.maximum(0.0, machines - self.count) * self.missing_usd)

    def interval_usd(self, times: float) -> tuple[float, float]:
        """USD less or more than planned for `times` the load, at the ends of the interval of what machines do."""
        planned, each = self.machines(times), self.usd / self.count
        low, high = (
            float(self.machines(times * time) - planned) for time in (min(1.0, self.time_low), max(1.0, self.time_high))
        )
        return (0.0, high * self.missing_usd) if self.paid else (low * each, high * each)


def replica_load(taken: Taken, chosen: ChosenWorkload) -> ReplicaLoad | None:
    """The load on machines that are taken; None where they are no service's. A backup follows what is asked alone."""
    figures, option = chosen.figures, taken.option
    if figures is None or chosen.job.ends:
        return None
    if taken.role == "backup":
        return ReplicaLoad(count=taken.count, usd=taken.usd)
    return ReplicaLoad(
        count=taken.count, usd=taken.usd, filled=filled_frac(option.candidate), unit=option.unit,
        time_low=figures.time_low, time_high=figures.time_high, paid=option.pooled,
        missing_usd=_missing_usd(option, taken.count),
    )  # fmt: skip


def _missing_usd(option: MonthlyOption, count: int) -> float:
    """USD a month of one machine beyond `count`: on demand for its hours, at the option's price where that is unknown.

    Assumes: own machines that are there and not in these are free for it, beyond them one is bought.
    """
    rate = option.offer.on_demand_usd_per_hour
    if option.own is not None:
        (there, used), (_, bought) = option.own.tiers
        return (used if count < there else bought) + option.usd_running
    return option.usd_each if rate is None else rate * min(option.busy_hours, HOURS_PER_MONTH)
