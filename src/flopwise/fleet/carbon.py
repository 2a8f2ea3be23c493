"""Electricity and carbon of machines: power of the devices and what stands around them, grid of the region."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flopwise.cost.energy import DEFAULT_POWER, PowerModel, device_watts, facility_joules
from flopwise.ops.types import Floats
from flopwise.units import HOUR_S

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.catalog import Facts

JOULES_PER_KWH = 3.6e6


def kwh_on(
    accelerator: Accelerator, num_devices: Floats, hours: Floats, busy_frac: Floats, power: PowerModel = DEFAULT_POWER
) -> Floats:
    """Electricity at the meter of devices that are on for `hours`, busy with compute for a share of them; broadcasts.

    Source: `flopwise.cost.energy`. Assumes: as there; what is not busy idles, its host draws as always.
    Raises: MissingFactError: the device's power limit is not known.
    """
    watts = device_watts(accelerator.known("tdp_w"), busy_frac, 0.0, 0.0, power)
    return facility_joules(accelerator, num_devices, watts, hours * HOUR_S, power) / JOULES_PER_KWH


def metered_kwh(joules: Floats, pue: float | None) -> Floats:
    """Electricity at the meter of a building with this `pue`; `joules` have the search's, the usual one; broadcasts.

    Source: arithmetic; data/carbon.csv has what providers publish of their buildings. Assumes: None: the usual one.
    """
    return joules / JOULES_PER_KWH * (DEFAULT_POWER.pue if pue is None else pue) / DEFAULT_POWER.pue


def carbon_kg(kwh: Floats, provider: str, region: str, facts: Facts) -> Floats:
    """What electricity at the meter emits in a region, in kg of CO2 equivalent; broadcasts.

    Source: data/carbon.csv: averages of a year; neither hours nor certificates that a provider buys are counted.
    Assumes: the load is spread over the year.
    """
    return kwh * facts.grid(provider, region).kg_per_kwh
