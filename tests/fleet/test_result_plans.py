"""The plan of each workload: what the fleet takes comes first, and the whole stays small."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.fleet import assess
from flopwise.fleet.model import ChosenWorkload, Taken
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from
from flopwise.search.answer import Plan, to_json
from flopwise.search.plan import candidate_figure

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


def _chosen() -> list[ChosenWorkload]:
    """The workloads with the cheapest option of each, without an allocation."""
    items = [item for item in planned_workloads(platform(), catalog()) if item.plan is not None]
    taken = [Taken(option=item.options[0], count=1, usd=0.0) for item in items]
    return [ChosenWorkload(planned=i, main=t, parts=(t,), figures=None) for i, t in zip(items, taken, strict=True)]


@pytest.mark.parametrize("name", ["chat", "tune"])
def test_a_plan_can_be_read_back_and_explained(name: str) -> None:
    read = Plan.from_json(to_json(answer().plans[name]))
    assert read == answer().plans[name]
    figure = candidate_figure(read, read.plans[0], load_facts())
    first = read.plans[0]
    devices = first.num_gpus // first.layout.get("replicas", 1)  # a service is explained by one of its replicas
    assert figure.value == f"LLaMA-7B on {devices} x {first.gpu}"


def test_others_are_of_different_machines_and_few_in_large_fleets() -> None:
    for plan in answer().plans.values():
        kinds = [(c.provider, c.instance, c.purchase) for c in plan.plans[1:]]
        assert len(kinds) == len(set(kinds))
        assert 1 < len(plan.plans) <= assess.MOST
    whole = answer().plans["chat"]
    assert len(to_json(whole)) < 60_000
    few = [len(p.plans) for p in assess.plans_by_workload(_chosen() * 1000).values()]
    assert few == [assess.LEAST] * 3


def test_techniques_of_a_workload_reach_its_plan_and_make_it_no_dearer() -> None:
    chat = {"purchase": ["on_demand"]}
    plain = {**FLEET, "workloads": [CHAT | {"constraints": chat}], "policies": {"purchase": ["on_demand"]}}
    held = {"shared_prefix": 128, "draft": "ngram", "acceptance": 0.5, "draft_tokens": 2}
    helped = {**plain, "workloads": [CHAT | {"constraints": chat, "techniques": held}]}
    (before,), (after,) = (planned_workloads(fleet_from(fleet), catalog()) for fleet in (plain, helped))
    assert before.plan is not None
    assert after.plan is not None
    assert after.plan.workload["techniques"] == held
    assert after.options[0].usd <= before.options[0].usd
    assert any("2 tokens by n-grams" in told for told in after.plan.assumptions)


def test_a_plan_says_what_its_cost_is_of() -> None:
    """A month around the clock is not the bill of a service that is on for some hours, nor one run that of four."""
    rows = {r.workload: r.usd_per_month for r in answer().assessment.allocation if r.role == "primary"}
    chat, tune = answer().plans["chat"].cost_scope, answer().plans["tune"].cost_scope
    assert chat.startswith("a month of service around the clock, 730 hours; the fleet pays for 730 h a month, ")
    assert chat.endswith(f"${rows['chat']:,.2f} for these machines")
    assert tune == f"one run; the fleet pays for 4 runs a month, ${rows['tune']:,.2f} for these machines"
