"""Machines that a service needs: by hand, and against counting replicas one by one."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.fleet.months import _row_bill
from flopwise.fleet.option import ReplicaLoad
from flopwise.fleet.read import fleet_from
from flopwise.search.service_machines import filled_frac, machines_needed, replica_machines

sys.path.insert(0, str(Path(__file__).parent))
from small import TODAY, answer, assess, catalog

ENCODE: dict[str, Any] = {
    "name": "classifier", "task": "encode", "model": "bert-base-uncased", "targets": {"latency": {"p95": "1s"}},
    "traffic": {"requests_per_s": 100, "input_tokens": 256}, "constraints": {"gpus": ["L4"], "max_gpus": 4},
}  # fmt: skip


def candidate(replicas: int, machines: int, gpus: int, tp: int, busy: float | None, pool: int = 0) -> Any:
    layout = {"replicas": replicas, "tp": tp, "pp": 1, "dp": 1} | ({"prefill_gpus": pool} if pool else {})
    return SimpleNamespace(layout=layout, figures={"busy_frac": busy}, num_gpus=machines * gpus, num_instances=machines)


@pytest.mark.parametrize(
    ("replicas", "machines", "gpus", "tp", "busy", "filled", "unit"),
    [
        (3, 3, 1, 1, 0.85, 1.0, 1),
        (3, 3, 1, 1, 0.68, 0.8, 1),
        (3, 1, 8, 1, 0.85, 3 / 8, 1),  # five devices hold no replica
        (2, 4, 8, 16, 0.425, 0.5, 2),  # a replica of two machines
        (2, 2, 1, 1, None, 1.0, 1),
        (2, 2, 1, 1, 0.99, 1.0, 1),  # busier than it should be: full, not more
    ],
)
def test_how_full_machines_are(
    replicas: int, machines: int, gpus: int, tp: int, busy: float | None, filled: float, unit: int
) -> None:
    held = candidate(replicas, machines, gpus, tp, busy)
    assert filled_frac(held) == pytest.approx(filled)
    assert replica_machines(held) == unit


@pytest.mark.parametrize(
    ("machines", "gpus", "pool", "filled", "unit"),
    [(3, 8, 4, 1.0, 1), (3, 16, 4, 0.5, 1), (6, 8, 12, 1.0, 2), (5, 4, 2, 1.0, 2)],
)
def test_devices_for_prompts_fill_machines_too(machines: int, gpus: int, pool: int, filled: float, unit: int) -> None:
    """Three replicas of four devices that answer, and `pool` that read their prompts."""
    held = candidate(3, machines, gpus, 4, 0.85, pool)
    assert filled_frac(held) == pytest.approx(filled)
    assert replica_machines(held) == unit


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(1, 4), st.floats(0.05, 20.0))
def test_needed_carries_the_load_and_no_replica_is_idle(replicas: int, full: float, unit: int, times: float) -> None:
    """Replicas are added one by one from one until they hold `times` the load; none planned is lost to more load."""
    count = replicas * unit
    found = float(machines_needed(count, full, unit, times))
    takes = replicas * full * times
    if times < 1 and math.ceil(round(replicas * full, 6)) < replicas:
        takes = replicas * times  # the others are there for latency
    fewest = 1
    while fewest < takes - 1e-6:
        fewest += 1
    expected = max(replicas, fewest) if times >= 1 else min(replicas, fewest)
    assert found == pytest.approx(unit * expected, abs=unit if abs(takes - round(takes)) < 2e-6 else 1e-9)


def test_needed_of_nothing_more_is_what_is_planned_and_never_falls() -> None:
    times = np.linspace(0.05, 6, 400)
    for count, filled, unit in ((1, 0.06, 1), (3, 0.9, 1), (8, 0.3, 2), (10, 1.0, 1)):
        assert float(machines_needed(count, filled, unit, 1.0)) == count
        assert (np.diff(machines_needed(count, filled, unit, times)) >= 0).all()


def test_a_reserved_service_that_may_lack_machines_costs_more_at_the_high_end() -> None:
    """5 asked; three machines take 5.9 x 0.85 = 5, at the low end 4.3 x 0.85 = 3.66: four and a bit are needed."""
    load = ReplicaLoad(count=3, usd=300.0, filled=1.0, time_high=5.9 / 4.3, time_low=0.8, paid=True, missing_usd=250.0)
    assert float(load.usd_at(load.time_high)) == 300 + 2 * 250
    assert float(load.usd_at(load.time_low)) == 300


def test_a_grown_load_is_paid_at_least_as_planned_and_never_less_than_a_lower_one() -> None:
    """Four machines, 0.8 full; 1.5 times the load needs five of 4.8; at 1.3 times the time 7, at 1 / 1.3 still four.

    Reserved machines cost 100 each, a missing one 170: beyond today's four all are missing ones, so that no month
    costs less than one with a lower load.
    """
    load = ReplicaLoad(count=4, usd=400.0, filled=0.8)
    row: Any = SimpleNamespace(usd_per_month=400.0, purchase="on_demand")
    still = {"demand": 1.0, "prices": 1.0, "interruptions": 1.0, "prediction": 1.0}
    for slower, usd in ((1.0, 500.0), (1.3, 700.0), (1 / 1.3, 400.0)):
        assert float(_row_bill(row, load, still | {"prediction": slower}, 1.5, 5 / 4)) == usd
    assert float(_row_bill(row, None, still | {"prediction": 1.2}, 1.5, 1.5)) == pytest.approx(720.0)
    reserved = ReplicaLoad(count=4, usd=400.0, filled=0.8, paid=True, missing_usd=170.0)
    row = SimpleNamespace(usd_per_month=400.0, purchase="reserved_1y")
    assert float(_row_bill(row, reserved, still, 1.5, 5 / 4)) == 400 + 170
    bills = [
        float(_row_bill(row, reserved, still | {"prediction": 1.3}, grown, math.ceil(3.2 * grown) / 4))
        for grown in np.linspace(1.25, 4.0, 60)
    ]
    assert np.all(np.diff(bills) >= 0)


def test_spare_capacity_is_no_need() -> None:
    """An L4 takes over a thousand short requests a second: with 100 asked one is enough at either end."""
    found = assess(fleet_from({"name": "f", "workloads": [ENCODE]}), catalog(), scenarios=200, today=TODAY)
    (row,) = found.allocation
    figures = found.workloads[0].best["figures"]["requests_per_s"]
    assert row.count == 1
    assert figures["low"] * 0.85 > 100
    assert row.usd_low == row.usd_per_month == row.usd_high
    assert found.scenarios is not None
    assert found.scenarios.drivers["prediction"] == pytest.approx(0.0, abs=1e-12)


def test_intervals_of_a_service_are_the_machines_at_either_end() -> None:
    """Asked requests over what one machine takes at that end, whole machines, by hand from the report's figures."""
    found = answer().assessment
    rows = [r for r in found.allocation if r.workload == "chat" and r.role == "primary"]
    best = next(w.best for w in found.workloads if w.name == "chat")
    told, count = best["figures"]["requests_per_s"], sum(r.count for r in rows)
    (row,) = rows
    assert row.count == count
    at_low = max(count, math.ceil(20 / (0.85 * told["low"] / count) - 1e-6))
    offer = next(
        o for o in catalog().offers if (o.provider, o.region, o.instance) == (row.provider, row.region, row.instance)
    )
    each = (offer.on_demand_usd_per_hour or 0.0) * 730 if row.purchase == "reserved_1y" else row.usd_per_month / count
    assert row.usd_high == pytest.approx(row.usd_per_month + (at_low - count) * each)
    if row.purchase == "reserved_1y":
        assert row.usd_low == row.usd_per_month
