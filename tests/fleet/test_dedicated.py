"""Dedicated machines: a pool that others may not share, reserved or owned, by hand and from a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flopwise.errors import InfeasibleError
from flopwise.fleet.model import OwnPool
from flopwise.fleet.read import fleet_from

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES, allocate, demand, option
from small import DESKS, TODAY, assess, catalog

DAY, NIGHT = (0.5, 0.0), (0.0, 0.5)
OWNED = {"purchase": "owned", "hours": 365.0, "instance": "rack"}


def test_what_is_dedicated_is_not_shared() -> None:
    """By day and by night on one reserved machine, $100; one dedicated: two machines, $200; both in one pool: one."""
    demands = [demand("day", slots=DAY), demand("night", slots=NIGHT)]
    how: dict[str, Any] = {"purchase": "reserved_1y", "hours": 365.0}
    together = allocate([option(n, "a", 100, **how) for n in (0, 1)], demands, RULES)
    assert together.usd == pytest.approx(100)
    apart = allocate([option(0, "a", 100, pool="bank", **how), option(1, "a", 100, **how)], demands, RULES)
    assert apart.usd == pytest.approx(200)
    assert sum(apart.pools.values()) == 2
    pooled = allocate([option(n, "a", 100, pool="bank", **how) for n in (0, 1)], demands, RULES)
    assert pooled.usd == pytest.approx(100)


def test_own_machines_of_all_pools_are_no_more_than_there_are() -> None:
    """Two are there, at $50 a month and $10 each even if unused; a third workload's own has to be bought, at $300."""
    own = OwnPool(tiers=((2, 50.0), (1, 300.0)), off_usd=10.0)
    demands = [demand(name, slots=(1.0,)) for name in ("x", "y", "z")]
    always: dict[str, Any] = OWNED | {"hours": 730.0, "own": own}
    options = [option(0, "o", 50, pool="p", **always), option(1, "o", 50, pool="q", **always),
               option(2, "o", 50, **always)]  # fmt: skip
    found = allocate(options, demands, RULES)
    assert found.usd == pytest.approx(2 * 10 + 2 * 50 + 300)
    assert sum(t.usd for t in found.taken) == pytest.approx(found.usd)
    fewer = allocate(options[:2], demands[:2], RULES)
    assert fewer.usd == pytest.approx(2 * 10 + 2 * 50)
    assert not fewer.idle
    single = allocate(options[:1], demands[:1], RULES)
    assert {machine[:4]: idle for machine, idle in single.idle.items()} == {("o", "r", "rack", "owned"): (1, 10.0)}
    two: dict[str, Any] = OWNED | {"own": OwnPool(tiers=((1, 50.0), (1, 60.0)))}
    short = [option(n, "o", 50, pool=str(n), **two) for n in range(3)]
    with pytest.raises(InfeasibleError, match="the number of own rack, 2: 3 are needed"):
        allocate(short, [demand(str(n), slots=DAY if n else NIGHT) for n in range(3)], RULES)


def desks(**more: Any) -> list[Any]:
    """Two workloads by day and by night on machines reserved for a year; rows of the bill."""
    day, night = ({"start": a, "stop": b, "days": "daily"} for a, b in (("08:00", "20:00"), ("20:00", "08:00")))
    jobs = [DESKS | {"hours": day} | more, DESKS | {"name": "nights", "hours": night}]
    fleet = {"name": "f", "workloads": jobs, "policies": {"purchase": ["reserved_1y"], "providers": {"aws": 1.0}}}
    return assess(fleet_from(fleet), catalog(), scenarios=0, today=TODAY).allocation


def test_a_file_says_it_and_the_bill_shows_it() -> None:
    shared, alone = desks(), desks(dedicated=True)
    assert all(row.pool and not row.dedicated for row in shared)
    assert sum(r.usd_per_month for r in alone) == pytest.approx(2 * sum(r.usd_per_month for r in shared))
    (mine,) = [row for row in alone if row.workload == "desks"]
    assert (mine.dedicated, mine.pool) == (True, "desks")
    (named,) = [row for row in desks(dedicated="acme") if row.workload == "desks"]
    assert named.pool == "acme"


def test_an_api_is_not_dedicated() -> None:
    batch = {
        "name": "b", "task": "batch", "model": "Llama-3.1-8B", "purchase": ["api"], "dedicated": True,
        "traffic": {"requests": "1k", "input_tokens": 64, "output_tokens": 8}, "targets": {"deadline": "24h"},
    }  # fmt: skip
    with pytest.raises(InfeasibleError) as refused:
        assess(
            fleet_from({"name": "f", "workloads": [batch], "policies": {"purchase": ["api"]}}), catalog(), scenarios=0
        )
    assert "the workload is dedicated" in str(refused.value.reasons)
