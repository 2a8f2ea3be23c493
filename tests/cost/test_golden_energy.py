"""Watts, joules and dollars of devices, each worked out by hand from datasheet figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from flopwise.cost import energy, money
from flopwise.errors import MissingFactError
from flopwise.facts.catalog import load_facts

FACTS = load_facts()
H100 = FACTS.accelerators["H100-SXM-80"]
CPU = next(a for a in FACTS.accelerators.values() if a.kind == "cpu" and a.tdp_w)


def test_a_device_draws_by_what_its_time_goes_into() -> None:
    """700 W: 30 % of the time computing at 95 % of it, 40 % in memory at 65 %, 10 % talking at 40 %, the rest idle."""
    assert H100.tdp_w == 700
    watts = 0.3 * 0.95 * 700 + 0.4 * 0.65 * 700 + 0.1 * 0.40 * 700 + 0.2 * 0.10 * 700
    assert energy.device_watts(700.0, 0.3, 0.4, 0.1) == pytest.approx(watts)
    assert energy.device_watts(700.0, 0.0, 0.0, 0.0) == pytest.approx(70), "idle: about 70 W (arXiv:2412.08602)"
    assert energy.device_watts(700.0, 1.0, 0.3, 0.0) == pytest.approx(0.95 * 700 + 0.3 * 0.65 * 700), (
        "none left to idle"
    )


def test_a_node_at_full_use_draws_what_was_measured() -> None:
    """Latif et al. 2024 (arXiv:2412.08602): an 8-way H100 node draws at most 8.4 kW under training."""
    power = replace(energy.DEFAULT_POWER, pue=1.0)
    watts = energy.facility_joules(H100, 8, energy.device_watts(700.0, 1.0, 0.0, 0.0, power), 1.0, power)
    assert watts == pytest.approx(8 * (0.95 * 700 + 0.50 * 700))
    assert watts == pytest.approx(8400, rel=0.05)


def test_the_meter_sees_hosts_and_cooling_too() -> None:
    """16 devices at 500 W with half of 700 W of host each, for an hour, in a building with a PUE of 1.2."""
    assert energy.facility_joules(H100, 16, 500.0, 3600.0) == pytest.approx(16 * (500 + 350) * 1.2 * 3600)
    assert CPU.tdp_w is not None
    assert energy.facility_joules(CPU, 2, 150.0, 60.0) == pytest.approx(2 * 150 * 1.2 * 60), "a CPU is its own host"
    unknown = replace(H100, tdp_w=None)
    with pytest.raises(MissingFactError):
        energy.facility_joules(unknown, 1, 1.0, 1.0)


def test_dollars_of_a_run_and_of_a_million_tokens() -> None:
    assert [int(money.num_instances(n, 8)) for n in (1, 8, 9, 64)] == [1, 1, 2, 8]
    assert money.run_usd(5400.0, 98.32) == pytest.approx(1.5 * 98.32)
    # 20 USD an hour at 1,000 tokens/s: 3.6 million tokens an hour
    assert money.usd_per_million_tokens(20.0, 1000.0) == pytest.approx(20 / 3.6)
    assert money.run_usd(np.array([3600.0, 7200.0]), 2.0) == pytest.approx([2.0, 4.0])
