"""Machines to work on keep to the workload's constraints, in any case, and say which of them left nothing."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

import pytest

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.model import PlannedWorkload
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from, parse_fleet


@pytest.fixture(scope="module")
def facts() -> Facts:
    return load_facts(None)


def desks(facts: Facts, count: int = 1, policies: dict[str, Any] | None = None, **constraints: Any) -> PlannedWorkload:
    job = {"name": "d", "task": "develop", "machines": {"count": count}, "constraints": constraints}
    [item] = planned_workloads(fleet_from({"name": "f", "workloads": [job], "policies": policies or {}}), facts)
    return item


def test_only_the_accelerators_of_the_constraints(facts: Facts) -> None:
    item = desks(facts, gpus=["t4", "L4"])
    sold = (o for o in facts.offers if o.on_demand_usd_per_hour is not None and not o.retires_on)
    every = {o.key for o in sold if o.accelerator in {"T4", "L4"}}
    assert {w.offer.key for w in item.options} == every


def test_only_the_regions_of_the_constraints(facts: Facts) -> None:
    """L4 in the Netherlands alone: neither a T4 in Iowa, nor anywhere else that an L4 is."""
    item = desks(facts, regions=["Europe-West4"], gpus=["L4"])
    assert item.options
    assert all(w.offer.region in {"europe-west4", "any"} and w.offer.accelerator == "L4" for w in item.options)
    wide = desks(facts, regions=["EU-*"], providers=["AWS"])
    assert wide.options
    assert all(fnmatchcase(w.offer.region, "eu-*") for w in wide.options)


def test_names_in_any_case(facts: Facts) -> None:
    item = desks(facts, instances=["G4DN.xlarge"], providers=["AWS"])
    assert {(w.offer.provider, w.offer.instance) for w in item.options} == {("aws", "g4dn.xlarge")}


@pytest.mark.parametrize(("count", "most"), [(1, 1), (3, 6), (4, 7), (2, 16)])
def test_all_machines_together_have_at_most_max_gpus(count: int, most: int, facts: Facts) -> None:
    item = desks(facts, count, max_gpus=most, providers=["aws"])
    kinds = {o.count for o in facts.offers if o.provider == "aws" and facts.accelerators[o.accelerator].kind == "gpu"}
    assert {w.offer.count for w in item.options} == {n for n in kinds if n * count <= most}


def test_all_machines_together_cost_at_most_max_usd_per_hour(facts: Facts) -> None:
    item = desks(facts, 3, max_usd_per_hour=2.0, providers=["aws"])
    assert item.options
    assert all(3 * (w.offer.on_demand_usd_per_hour or 0) <= 2.0 for w in item.options)
    assert len(item.options) < len(desks(facts, 3, providers=["aws"]).options)


def test_only_the_ways_to_buy_of_the_constraints(facts: Facts) -> None:
    buys = {"purchase": ["on_demand", "reserved_1y"]}
    assert {w.purchase for w in desks(facts, 1, buys).options} == {"on_demand", "reserved_1y"}
    assert {w.purchase for w in desks(facts, 1, buys, purchase=["reserved_1y"]).options} == {"reserved_1y"}


@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        ({"gpus": ["T4"], "providers": ["lambda"]}, r"suitable offers are ruled out by constraints\.gpus \(T4\)"),
        ({"regions": ["paris"], "providers": ["aws"]}, r"ruled out by constraints\.regions \(paris\)"),
        ({"instances": ["g4dn.xlarge"], "providers": ["gcp"]}, r"ruled out by constraints\.instances \(g4dn\.xlarge\)"),
        ({"max_gpus": 1, "instances": ["p5.48xlarge"]}, r"ruled out by constraints\.max_gpus \(1\)"),
        ({"max_usd_per_hour": 1, "instances": ["p5.48xlarge"]}, r"ruled out by constraints\.max_usd_per_hour \(1\)"),
        ({"purchase": ["reserved_3y"]}, r"ruled out by constraints\.purchase \(reserved_3y\)"),
    ],
)
def test_where_nothing_is_left_the_constraint_is_named(constraints: dict[str, Any], says: str, facts: Facts) -> None:
    item = desks(facts, **constraints)
    assert not item.options
    told = "\n".join(item.reasons)
    assert "no machine on offer" not in told
    assert re.search(says, told), told


def test_what_nothing_on_offer_has_is_told_as_that(facts: Facts) -> None:
    job = {"name": "d", "task": "develop", "machines": {"count": 3, "memory": "9TB"}}
    [item] = planned_workloads(fleet_from({"name": "f", "workloads": [job]}), facts)
    assert item.reasons[0].startswith("no machine on offer has 1 accelerator of 9.00 TB and a known price; the largest")


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ("targets: {budget: 5}", "targets"),
        ("precision: fp8", "precision"),
        ("traffic: {requests_per_s: 1}", "traffic"),
        ("constraints: {gpus: [T4], min_gpus: 4}", r"constraints\.min_gpus"),
        ("constraints: {engine: vllm}", r"constraints\.engine"),
    ],
)
def test_what_machines_to_work_on_have_no_use_for_is_refused(more: str, where: str) -> None:
    text = f"name: f\nworkloads:\n  - name: d\n    task: develop\n    machines: {{}}\n    {more}\n"
    with pytest.raises(SpecError, match=rf"^f\.yaml:6: workloads\.0\.{where}: has no meaning for a develop workload"):
        parse_fleet(text, "f.yaml")
