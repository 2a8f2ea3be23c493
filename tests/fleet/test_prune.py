"""What is left out of a large allocation does not make it dearer, but by little."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flopwise.fleet import allocate as allocation
from flopwise.fleet.allocate import weighed_options
from flopwise.fleet.model import MonthlyOption, WorkloadDemand
from flopwise.fleet.spec import Backup, Quota

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES as NO_POLICIES
from options import allocate, demand, option

RULES = replace(
    NO_POLICIES, providers={"aws": 0.6, "gcp": 0.4}, share_tolerance=0.1, backup=Backup(share=0.25, on=False, hours=24),
    quotas=(Quota(most=30, provider="aws", instance="aws.1"),),
)  # fmt: skip


def fleet(seed: int) -> tuple[list[MonthlyOption], list[WorkloadDemand]]:
    draw = random.Random(seed)  # noqa: S311 - figures for a test
    sold = [(draw.uniform(0.5, 4), draw.uniform(0.8, 1.2)) for _ in range(80)]  # speed, USD for it
    options, demands = [], []
    for number in range(6):
        work, runs = draw.uniform(2, 30), number % 2 == 0
        hours = draw.uniform(20, 200) if runs else 730.0
        demands.append(demand(f"w{number}", split=not runs, flexible=runs))
        for n in range(80):
            provider, reserved = ("aws", "gcp")[n % 2], n % 4 > 1
            speed = sold[n][0] * draw.uniform(0.8, 1.2)
            rate = sold[n][0] * sold[n][1] * (0.65 if reserved else 1.0)
            options.append(
                option(
                    number, provider, rate * (730.0 if reserved else hours), max(1, round(work / speed)), hours=hours,
                    instance=f"{provider}.{n}", purchase="reserved_1y" if reserved else "on_demand",
                )
            )  # fmt: skip
    return options, demands


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_little_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    options, demands = fleet(seed)
    whole = allocate(options, demands, RULES, gap=1e-4)
    monkeypatch.setattr(allocation, "LARGE", 0)
    kept = weighed_options(options, RULES)
    assert len(kept) < len(options)
    assert {c.workload for c in kept} == set(range(6))
    fewer = allocate(options, demands, RULES, gap=1e-4)
    assert whole.usd * (1 - 1e-3) <= fewer.usd <= whole.usd * 1.03


def test_a_small_allocation_weighs_everything() -> None:
    options, _ = fleet(0)
    assert weighed_options(options, RULES) == tuple(options)
