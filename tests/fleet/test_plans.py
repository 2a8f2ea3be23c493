"""The plan of each workload: what the fleet takes comes first, and the whole stays small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flopwise.api.plan import explain_candidate
from flopwise.fleet import plans
from flopwise.fleet.candidates import carried
from flopwise.fleet.file import fleet_from
from flopwise.fleet.results import Chosen
from flopwise.search.answer import from_json, to_json

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, FLEET, answer, catalog, platform


def test_every_planned_workload_has_a_plan_and_its_choice_comes_first() -> None:
    found = answer()
    assert set(found.plans) == {"chat", "tune", "nightly"}
    for w in found.assessment.workloads:
        if w.name in found.plans:
            first = found.plans[w.name].plans[0]
            assert (first.provider, first.instance, first.region) == (
                w.best["provider"], w.best["instance"], w.best["region"],
            )  # fmt: skip
            assert first.layout == w.best["layout"]
            assert [c.rank for c in found.plans[w.name].plans] == list(range(1, len(found.plans[w.name].plans) + 1))


def _chosen() -> list[Chosen]:
    """The workloads with the cheapest way of each, without an allocation."""
    items = [item for item in carried(platform(), catalog()) if item.plan is not None]
    return [Chosen(item=i, way=i.ways[0], count=1, figures=None, parts=((i.ways[0], 1),)) for i in items]


@pytest.mark.parametrize("name", ["chat", "tune"])
def test_a_plan_can_be_read_back_and_explained(name: str) -> None:
    read = from_json(to_json(answer().plans[name]))
    assert read == answer().plans[name]
    figure = explain_candidate(read, read.plans[0], facts=None)
    first = read.plans[0]
    devices = first.num_gpus // first.layout.get("replicas", 1)  # a service is explained by one of its replicas
    assert figure.value == f"LLaMA-7B on {devices} x {first.gpu}"


def test_others_are_of_different_machines_and_few_in_large_fleets() -> None:
    for plan in answer().plans.values():
        kinds = [(c.provider, c.instance, c.purchase) for c in plan.plans[1:]]
        assert len(kinds) == len(set(kinds))
        assert 1 < len(plan.plans) <= plans.MOST
    whole = answer().plans["chat"]
    assert len(to_json(whole)) < 60_000
    few = [len(p.plans) for p in plans.plans_of(_chosen() * 1000).values()]
    assert few == [plans.LEAST] * 3


def test_techniques_of_a_workload_reach_its_plan_and_make_it_no_dearer() -> None:
    chat = {"purchase": ["on_demand"]}
    plain = {**FLEET, "workloads": [CHAT | {"constraints": chat}], "policies": {"purchase": ["on_demand"]}}
    held = {"shared_prefix": 128, "draft": "ngram", "acceptance": 0.5, "draft_tokens": 2}
    helped = {**plain, "workloads": [CHAT | {"constraints": chat, "techniques": held}]}
    (before,), (after,) = (carried(fleet_from(fleet), catalog()) for fleet in (plain, helped))
    assert before.plan is not None
    assert after.plan is not None
    assert after.plan.workload["techniques"] == held
    assert after.ways[0].usd <= before.ways[0].usd
    assert any("2 tokens by n-grams" in told for told in after.plan.assumptions)
