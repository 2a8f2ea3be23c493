"""A looser policy never costs more: random allocations against those with less to choose from, and with quotas.

Limits of parts of the bill are those of `test_random_fleets` and `test_waste`: what counts towards them depends on what
is on offer.
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from flopwise.errors import InfeasibleError
from flopwise.fleet.load_levels import LoadLevels
from flopwise.fleet.model import MonthlyOption, WorkloadDemand
from flopwise.fleet.schedules import USUAL
from flopwise.fleet.spec import Quota

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES, allocate, demand, option

ALWAYS = USUAL["production"]
PROVIDERS = ("aws", "gcp", "azure", "lambda")
WEEK = ([2.0] * 8 + [15.0] * 12 + [8.0] * 4) * 7
"""Rates by the hour of a week."""


def fleet(seed: int) -> tuple[list[MonthlyOption], list[WorkloadDemand]]:
    """Services, some of which follow their traffic, and runs, on machines of four providers, bought in three ways."""
    draw = random.Random(seed)  # noqa: S311 - figures for a test
    sold = [(draw.uniform(0.5, 9.0), draw.uniform(0.8, 1.3)) for _ in range(8)]  # speed, USD for it
    options, demands = list[MonthlyOption](), list[WorkloadDemand]()
    for number in range(draw.randint(2, 5)):
        runs, follows = draw.random() < 0.3, draw.random() < 0.7
        levels = LoadLevels.of_traffic(WEEK, ALWAYS) if follows and not runs else None
        volumes = {name: draw.uniform(0, 60) for name in PROVIDERS} if draw.random() < 0.5 else {}
        more = {"levels": levels, "volumes_usd": volumes, "backup": not runs and draw.random() < 0.2}
        demands.append(demand(f"w{number}", split=not runs, flexible=runs, **more))
        work, hours = draw.uniform(2, 25), draw.uniform(20, 300) if runs else 730.0
        for n, (speed, rate) in enumerate(sold):
            count, provider = max(1, round(work / speed / draw.uniform(0.8, 1.2))), PROVIDERS[n % 4]
            for purchase, share in {"on_demand": 1.0, "spot": 0.5, "reserved_1y": 0.65}.items():
                if (purchase == "spot" and not runs) or draw.random() < 0.3:
                    continue
                on = 730.0 if purchase == "reserved_1y" else hours
                if levels is not None and purchase == "on_demand":
                    on = levels.paid_hours(levels.machines(count)) / count
                usd = 100 * speed * rate * share * on / 730
                made = option(number, provider, usd, count, purchase=purchase, hours=on, instance=f"{provider}.{n}")
                options.append(replace(made, busy_hours=hours if runs else made.busy_hours))
    return options, demands


@pytest.mark.parametrize("seed", range(16))
def test_less_to_choose_from_never_costs_less(seed: int) -> None:
    """Only what the answer uses, all but one provider, fewer ways to buy; quotas of what is used, and a budget."""
    options, demands = fleet(seed)
    whole = allocate(options, demands, RULES)
    used = [taken.option for taken in whole.taken]
    kinds = {(o.provider, o.purchase) for o in used}
    counts: dict[str, int] = {}
    for taken in whole.taken:
        counts[taken.option.provider] = counts.get(taken.option.provider, 0) + taken.count
    quotas = tuple(Quota(provider=name, most=counts.get(name, 0)) for name in PROVIDERS)
    held = [
        (used, RULES),
        ([o for o in options if (o.provider, o.purchase) in kinds], RULES),
        (options, replace(RULES, quotas=quotas)),
        (options, replace(RULES, budget_per_month=whole.usd * 1.000001)),
    ]
    stricter = [
        ([o for o in options if o.provider != PROVIDERS[seed % 4]], RULES),
        ([o for o in options if o.purchase != "reserved_1y"], RULES),
        (options, replace(RULES, quotas=tuple(replace(q, most=q.most // 2) for q in quotas))),
    ]
    for some, policies in held:  # what the answer meets
        fewer = allocate(some, demands, policies)
        assert whole.usd * (1 - whole.gap) - 1e-6 <= fewer.usd <= whole.usd / (1 - fewer.gap) + 1e-6
    for some, policies in stricter:
        try:
            fewer = allocate(some, demands, policies)
        except InfeasibleError:
            continue
        assert whole.usd * (1 - whole.gap) - 1e-6 <= fewer.usd


def test_a_machine_beside_others_is_worth_its_price_of_an_hour() -> None:
    """Three L4, one L40S and one of two A6000, by the hour: the L40S with the A6000 cost less than the L4 alone.

    By itself the L40S is on all month, and costs more than the L4, which follow the traffic; but it need not be on at
    night beside an A6000, and for the hours that both are on the L4 are no cheaper.
    """
    levels = LoadLevels.of_traffic(WEEK, ALWAYS)
    names = {"L4": (0.8048, 3, "aws"), "L40S": (1.861, 1, "aws"), "A6000": (0.53, 2, "runpod")}
    options = []
    for name, (usd, count, provider) in names.items():
        hours = levels.paid_hours(levels.machines(count)) / count
        options.append(option(0, provider, usd * hours, count, hours=hours, instance=name))
    by_itself = {o.instance: o.usd for o in options}
    assert by_itself["L4"] < by_itself["L40S"]
    volumes = {"aws": 600.0, "runpod": 1500.0}
    found = allocate(options, [demand("w", split=True, levels=levels, volumes_usd=volumes)], RULES, gap=1e-6)
    low, middle, high = levels.hours
    assert {t.option.instance: t.by_level for t in found.taken} == {"L40S": (0, 1, 1), "A6000": (1, 0, 1)}
    usd = 0.53 * (low + high) + 1.861 * (middle + high)
    assert found.usd == pytest.approx(volumes["aws"] + usd)
    assert usd < by_itself["L4"] - 30
