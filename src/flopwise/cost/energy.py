"""Electricity: from the accelerator's power limit and what it is busy with, to joules at the meter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.ops.types import Floats
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.accelerators import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """Shares of the power limit that a device draws, and the draw of host and facility.

    Sources: idle, compute: an 8-way H100 node measured by Latif et al. 2024 (arXiv:2412.08602) draws at most 8.4 kW of
    its rated 10.2 kW under training, and about 70 W a GPU idle; memory: Patel et al. 2023 (arXiv:2308.12908) find token
    generation well below the limit that prompt processing reaches; host: the same node's rated power less its eight
    GPUs, scaled to the measured maximum; pue: Uptime Institute 2025 reports 1.54 on average, the large clouds publish
    1.1 to 1.2.
    """

    idle: float = 0.10
    compute: float = 0.95
    memory: float = 0.65
    communication: float = 0.40
    host: float = 0.50
    """Host, fans, network and losses, as a share of the devices' power limit."""
    pue: float = 1.2


DEFAULT_POWER = PowerModel()


def device_watts(
    tdp_w: Floats,
    compute_frac: Floats,
    memory_frac: Floats,
    communication_frac: Floats,
    power: PowerModel = DEFAULT_POWER,
) -> Floats:
    """Mean draw of one device whose time divides into these shares (the rest idles), in W; broadcasts.

    Source: `PowerModel`.
    Assumes: draw is linear in the time spent on each kind of work.
    """
    busy = compute_frac + memory_frac + communication_frac
    drawn = power.compute * compute_frac + power.memory * memory_frac + power.communication * communication_frac
    idle = power.idle * np.maximum(0.0, 1.0 - busy)
    return tdp_w * (drawn + idle)


def facility_joules(
    accelerator: Accelerator, num_devices: Floats, watts: Floats, seconds: Floats, power: PowerModel = DEFAULT_POWER
) -> Floats:
    """Energy at the meter of `num_devices` drawing `watts` each for `seconds`, hosts and cooling included, in J.

    Source: `PowerModel`.
    Assumes: a CPU is its own host.
    Raises: MissingFactError: the device's power limit is not known.
    """
    return metered_joules(num_devices, watts, host_watts(accelerator, power), seconds, power)


def host_watts(accelerator: Accelerator, power: PowerModel = DEFAULT_POWER) -> float:
    """The power of hosts, fans and network for each device, in W.

    Source: `PowerModel`. Assumes: a CPU is its own host.
    Raises: MissingFactError: the device's power limit is not known.
    """
    return 0.0 if accelerator.kind == "cpu" else power.host * accelerator.figure("tdp_w")


def metered_joules(
    num_devices: Floats, watts: Floats, host_w: Floats, seconds: Floats, power: PowerModel = DEFAULT_POWER
) -> Floats:
    """Energy at the meter of `num_devices` that draw `watts` each and their hosts `host_w`, cooling included, in J.

    Source: `PowerModel`. Assumes: as there.
    """
    return num_devices * (watts + host_w) * power.pue * seconds


def start_joules(accelerator: Accelerator, num_devices: Floats, start_s: Floats) -> Floats:
    """Energy at the meter of the start of a run, in J; broadcasts; 0 where the device's power limit is not known.

    Source: `PowerModel`: idle devices with their hosts. Assumes: what boots, loads and compiles is the host's work.
    """
    if accelerator.tdp_w is None:
        return 0.0 * start_s
    return facility_joules(accelerator, num_devices, DEFAULT_POWER.idle * accelerator.tdp_w, start_s)
