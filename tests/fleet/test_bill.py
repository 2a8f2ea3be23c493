"""The bill that is reported is what the program minimised, and adds up however it is split."""

from __future__ import annotations

import random
from typing import Any

import pytest

from flopwise.cost.money import tiered_usd
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.allocate import allocate as allocation
from flopwise.fleet.allocate import allocation_problem
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import VOLUMES, Platform
from flopwise.fleet.outlook import scaled_workload
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.program import AllocationProblem
from flopwise.fleet.read import fleet_from
from named import FACTS

GB = 2**30


@pytest.fixture(scope="module")
def facts() -> Facts:
    """What three clouds and one smaller sell of a few devices."""
    whole = load_facts(None)
    gpus = {"T4", "L4", "A10G", "L40S", "A100-SXM-80"}
    names = {"aws", "gcp", "azure", "nebius"}
    return whole.with_tables(offers=tuple(o for o in whole.offers if o.accelerator in gpus and o.provider in names))


def desks(name: str, gpus: list[str], count: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "task": "develop", "machines": {"count": count, "gpus": gpus}, **more}


def fleet(seed: int) -> Platform:
    """Machines to work on, in several environments, with volumes, under all policies."""
    draw = random.Random(seed)  # noqa: S311 - figures for a test
    jobs = [
        desks(
            f"w{n}", draw.choice([["T4"], ["T4", "L4"], ["T4", "A10G", "A100-SXM-80"]]), draw.randint(2, 9),
            interruptible=True,
            environment=draw.choice(["development", "staging", "production"]), backup=n == 1,
            volumes={"storage": f"{draw.randint(1, 90)}TB", "egress": f"{draw.randint(0, 40)}TB",
                     "inter_zone": f"{draw.randint(0, 9)}TB"} if draw.random() < 0.7 else {},
        )
        for n in range(5)
    ]  # fmt: skip
    policies: dict[str, Any] = {
        "purchase": ["on_demand", "spot", "reserved_1y"], "max_spot_share": "40%", "share_tolerance": "10%",
        "providers": {"aws": "50%", "gcp": "30%", "azure": "20%"}, "budget_per_month": "$90k",
        "quotas": [{"provider": "aws", "most": 16}], "backup": {"share": "50%", "hours": 100}, "include_retired": True,
    }  # fmt: skip
    return fleet_from({"name": "f", "workloads": jobs, "policies": policies})


@pytest.mark.parametrize("seed", range(6))
def test_every_way_to_split_the_bill_adds_up_and_holds_the_policies(seed: int, facts: Facts) -> None:
    platform = fleet(seed)
    made = allocation_problem(platform, planned_workloads(platform, facts), FACTS)
    found = allocation(made, gap=1e-4)
    solved = SolvedFleet.of(platform, FACTS, made, found)
    rows, bill = solved.rows, solved.cost
    for sums in (bill.by_provider, bill.by_environment, bill.by_workload, bill.by_purchase):
        assert sum(sums.values()) == pytest.approx(bill.total, abs=1e-6)
    assert bill.total == pytest.approx(found.usd, abs=1e-6)
    assert found.objective == found.usd
    assert bill.total == pytest.approx(sum(r.usd_per_month for r in rows) + bill.storage + bill.traffic, abs=1e-6)
    assert bill.by_purchase[VOLUMES] == pytest.approx(bill.storage + bill.traffic)
    assert bill.by_provider == pytest.approx(found.by_provider)
    rules = platform.rules
    for name, share in rules.shares.items():
        assert abs(bill.by_provider.get(name, 0.0) / bill.total - share) <= rules.share_tolerance + 1e-6
    assert bill.by_purchase.get("spot", 0.0) <= rules.max_spot_share * bill.total + 1e-6
    assert bill.total <= (rules.budget_per_month or 0.0)
    assert sum(r.count for r in rows if r.provider == "aws") <= 16
    main = {r.provider for r in rows if r.workload == "w1" and r.role == "primary"}
    assert main.isdisjoint({r.provider for r in rows if r.workload == "w1" and r.role == "backup"})
    assert solved.price_notes


def one(facts: Facts, **more: Any) -> AllocationProblem:
    """One machine on one provider with volumes."""
    job = desks("d", ["T4"], 1, constraints={"instances": ["g4dn.xlarge"]}, residency=["us-east-1"], **more)
    platform = fleet_from({"name": "f", "workloads": [job, job | {"name": "e"}]})
    return allocation_problem(platform, planned_workloads(platform, facts), FACTS)


def test_volumes_cost_what_the_tiers_say_of_all_of_them_together(facts: Facts) -> None:
    """Two workloads of 200 GB on aws: the first 100 GB go out free once, not twice."""
    made = one(facts, volumes={"egress": 200 * GB, "storage": 500 * GB})
    found = allocation(made)
    bill = SolvedFleet.of(fleet(0), FACTS, made, found).cost
    assert bill.traffic == pytest.approx((2 * 200 - 100) * 0.09)
    assert bill.storage == pytest.approx(2 * 500 * 0.023)
    price = FACTS.volume_prices["aws", "egress"]
    assert bill.traffic == pytest.approx(float(tiered_usd(400.0 * GB, price.tiers)))


def test_a_price_that_is_not_known_counts_as_the_dearest_that_is(facts: Facts) -> None:
    """Else a provider that nobody has looked up would be the cheapest; whichever others the fleet may use."""
    job = desks("d", ["L40S"], 1, volumes={"storage": "10TB"})
    known = {name: tiered_usd(1e13, p.tiers) for (name, kind), p in FACTS.volume_prices.items() if kind == "storage"}
    dearest = max(known, key=known.__getitem__)
    for others in ({"aws": 0}, {}):
        platform = fleet_from({"name": "f", "workloads": [job], "policies": {"providers": {"nebius": 1, **others}}})
        made = allocation_problem(platform, planned_workloads(platform, facts), FACTS)
        assert made.volumes[0, "nebius"].usd == pytest.approx(known[dearest])
        assert f"not known; counted at the price of {dearest}" in made.volumes[0, "nebius"].notes[0]


def test_what_is_sent_grows_with_the_traffic_and_what_is_stored_does_not(facts: Facts) -> None:
    job = {
        "name": "chat", "task": "encode", "model": "bert-base-uncased", "targets": {"latency": {"p95": "1s"}},
        "traffic": {"requests_per_s": 20, "input_tokens": 128}, "volumes": {"storage": "1TB", "egress": "1TB"},
        "constraints": {"gpus": ["L4"], "providers": ["gcp"]},
    }  # fmt: skip
    platform = fleet_from({"name": "f", "workloads": [job]})
    items = planned_workloads(platform, facts)
    once, twice = (
        allocation_problem(platform, items, FACTS),
        allocation_problem(platform, [scaled_workload(i, 2.0, FACTS) for i in items], FACTS),
    )
    assert twice.volumes[0, "gcp"].storage == pytest.approx(once.volumes[0, "gcp"].storage)
    price = FACTS.volume_prices["gcp", "egress"]
    assert twice.volumes[0, "gcp"].traffic == pytest.approx(float(tiered_usd(2e12, price.tiers)))
