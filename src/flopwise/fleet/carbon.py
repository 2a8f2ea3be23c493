"""Energy and carbon of machines that are on: power of the devices and what stands around them, grid of the region."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from flopwise.cost.energy import DEFAULT_POWER, PowerModel, device_watts, facility_joules
from flopwise.facts.catalog import Facts
from flopwise.facts.regions import GridRecord
from flopwise.ops.types import Floats
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator

JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Electricity at the meter and what it emits, kWh and kg of CO2 equivalent."""

    kwh: float
    kg: float
    grid: GridRecord


def kwh_on(
    accelerator: Accelerator, num_devices: Floats, hours: Floats, busy_frac: Floats, power: PowerModel = DEFAULT_POWER
) -> Floats:
    """Electricity at the meter of devices that are on for `hours`, busy with compute for a share of them; broadcasts.

    Source: `flopwise.cost.energy`. Assumes: as there; what is not busy idles, its host draws as always.
    Raises: MissingFactError: the device's power limit is not known.
    """
    watts = device_watts(accelerator.known("tdp_w"), busy_frac, 0.0, 0.0, power)
    return facility_joules(accelerator, num_devices, watts, hours * HOUR_S, power) / JOULES_PER_KWH


def footprint(joules: float, provider: str, region: str, facts: Facts) -> Footprint:
    """What `joules` at the meter emit in a region; the building's overhead is that of the joules.

    Source: data/carbon.csv: averages of a year; neither hours nor certificates that a provider buys are counted.
    Assumes: the load is spread over the year.
    """
    grid, kwh = facts.grid(provider, region), joules / JOULES_PER_KWH
    return Footprint(kwh=kwh, kg=kwh * grid.kg_per_kwh, grid=grid)


def power_of(grid: GridRecord, power: PowerModel = DEFAULT_POWER) -> PowerModel:
    """`power` with the overhead of the provider's buildings there, where that is known."""
    return power if grid.pue is None else replace(power, pue=grid.pue)
