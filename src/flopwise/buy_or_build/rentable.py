"""Units of machines that can be rented again and again: and what months of traffic cost on them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from flopwise.cost.intervals import ErrorBand
from flopwise.ops.types import Array
from flopwise.search.answer import Candidate
from flopwise.units import HOUR_S, HOURS_PER_MONTH


@dataclass(frozen=True, slots=True)
class RentableUnits:
    """The units that can be rented: USD a month, tokens a month that each carries, and what each is; shape (units,).

    `bands` are the measured errors of what each carries; without them each carries exactly its estimate.
    """

    usd_per_month: Array
    tokens_per_month: Array
    candidates: tuple[Candidate, ...]
    instances: tuple[int, ...]  # of a unit
    bands: tuple[ErrorBand, ...] = ()

    def factor(self, probability: float) -> Array:
        """What a unit carries over its estimate, of which it carries less with this probability; (units,).

        Source: the measured errors of the throughput. Assumes: all units err alike.
        """
        if not self.bands:
            return np.ones(len(self.usd_per_month))
        return np.array([band.quantile(probability) for band in self.bands])

    def carrying(self, factor: Array) -> RentableUnits:
        """The same units where each carries so many times its estimate; `factor` of shape (units,)."""
        return replace(self, tokens_per_month=self.tokens_per_month * factor)

    def cheapest(self, volume: float) -> tuple[int, int]:
        """(index of the cheapest unit for a volume, how many of it)."""
        index = int(self._usd_by_unit(np.array([volume]))[0].argmin())
        return index, int(num_units(volume, self.tokens_per_month[index]))

    def monthly_usd(self, volumes: Array, factor: Array | None = None) -> Array:
        """What the units that are cheapest for each of `volumes` (months,) cost a month, in USD, at least one unit.

        `factor` (units,): what a unit turns out to carry over what it was chosen for; more of the same are then rented.

        Source: arithmetic. Assumes: one kind of machine carries a month's traffic; they stay on all month.
        """
        index = self._usd_by_unit(volumes).argmin(axis=1)
        carried = self.tokens_per_month if factor is None else self.tokens_per_month * factor
        usd: Array = num_units(volumes, carried[index]) * self.usd_per_month[index]
        return usd

    def _usd_by_unit(self, volumes: Array) -> Array:
        """USD a month of each kind of unit, shape (months, units)."""
        return num_units(volumes[:, None], self.tokens_per_month[None, :]) * self.usd_per_month


def num_units(volumes: Array | float, capacity: Array | float) -> Array:
    """Whole units that carry the volumes, at least one; rounding of the last digit adds none."""
    return np.maximum(np.ceil(np.round(np.divide(volumes, capacity), 9)), 1.0)


def unit_of(
    chosen: Candidate, tokens_per_request: float, peak: float, volume: float, usd_each: float | None = None
) -> tuple[float, float, int]:
    """USD a month, tokens a month and instances of the least unit of a plan that can be rented again and again.

    A unit is an instance with as many replicas as it holds, or the instances of one replica; `usd_each` is what an
    instance costs a month (None: as planned, at its list price).

    Source: arithmetic on the plan. Assumes: replicas beside each other do not slow each other; where the plan of
    `volume` takes more machines than their rate alone needs (latency targets), every unit carries as little.
    """
    layout = chosen.layout
    gpus_per_replica = int(layout["tp"]) * int(layout["pp"]) * int(layout["dp"])
    gpus_per_instance = max(1, chosen.num_gpus // chosen.num_instances)
    instances = -(-gpus_per_replica // gpus_per_instance)
    replicas = max(1, gpus_per_instance // gpus_per_replica)
    rate = (chosen.figures["requests_per_s_capacity"] or 0.0) / int(layout["replicas"])
    capacity = rate * replicas / peak * tokens_per_request * HOURS_PER_MONTH * HOUR_S
    planned = -(-chosen.num_instances // instances)
    if capacity <= 0 or np.ceil(volume / capacity) < planned:
        capacity = volume / planned
    usd = chosen.cost_usd / chosen.num_instances if usd_each is None else usd_each
    return usd * instances, capacity, instances


def monthly_volumes(first: float, growth_frac: float, months: int) -> Array:
    """Tokens of each month, shape (months,), the first as given and each next more by `growth_frac`.

    Source: definition.
    """
    return first * (1.0 + growth_frac) ** np.arange(months)


def cumulative_usd(upfront_usd: float, monthly_usd: Array) -> Array:
    """What is paid by the end of each month, shape (months + 1,), the up-front sum first. Source: definition."""
    paid: Array = upfront_usd + np.concatenate([[0.0], np.cumsum(monthly_usd)])
    return paid
