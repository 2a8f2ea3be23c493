"""What is left out of a large allocation does not make it dearer, but by little."""

from __future__ import annotations

import random

import pytest

from flopwise.fleet import prune
from flopwise.fleet.allocate import Choice, Demand, allocate
from flopwise.fleet.file import Cap, Rules

RULES = Rules(
    budget_per_month=None, providers={"aws": 0.6, "gcp": 0.4}, share_tolerance=0.1, regions=(),
    purchase=("on_demand", "reserved_1y"), max_spot_share=1.0, caps=(Cap(most=30, provider="aws", instance="aws.1"),),
    backup_share=0.25, backup_on=False, backup_hours=24, growth_per_month=0.0, carbon_usd_per_kg=0.0,
    max_price_age_days=180,
)  # fmt: skip


def fleet(seed: int) -> tuple[list[Choice], list[Demand]]:
    draw = random.Random(seed)  # noqa: S311 - figures for a test
    sold = [(draw.uniform(0.5, 4), draw.uniform(0.8, 1.2)) for _ in range(80)]  # speed, USD for it
    choices, demands = [], []
    for number in range(6):
        work, runs = draw.uniform(2, 30), number % 2 == 0
        hours = draw.uniform(20, 200) if runs else 730.0
        demands.append(Demand(name=f"w{number}", splittable=not runs, flexible=runs))
        for n in range(80):
            provider, reserved = ("aws", "gcp")[n % 2], n % 4 > 1
            speed = sold[n][0] * draw.uniform(0.8, 1.2)
            rate = sold[n][0] * sold[n][1] * (0.65 if reserved else 1.0)
            choices.append(
                Choice(
                    workload=number, provider=provider, region="r", instance=f"{provider}.{n}",
                    purchase="reserved_1y" if reserved else "on_demand", instances=max(1, round(work / speed)),
                    usd_each=rate * (730.0 if reserved else hours), busy_hours=hours,
                )
            )  # fmt: skip
    return choices, demands


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_little_is_lost(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    choices, demands = fleet(seed)
    whole = allocate(choices, demands, RULES, gap=1e-4)
    monkeypatch.setattr(prune, "LARGE", 0)
    kept = prune.undominated(choices, RULES)
    assert len(kept) < len(choices)
    assert {c.workload for c in kept} == set(range(6))
    fewer = allocate(choices, demands, RULES, gap=1e-4)
    assert whole.usd * (1 - 1e-3) <= fewer.usd <= whole.usd * 1.03


def test_a_small_allocation_weighs_everything() -> None:
    choices, _ = fleet(0)
    assert prune.undominated(choices, RULES) == choices
