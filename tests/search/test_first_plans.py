"""Plans of a few machines that are told of before all others are searched."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.search.answer import Candidate, Listeners, Plan, RejectionLog
from flopwise.search.deployments import SIZED
from flopwise.search.nodes import node_kinds
from flopwise.search.plan import plan
from flopwise.search.plan_serving import floor_usd
from flopwise.search.plan_training import _kept_layouts
from flopwise.search.replica import with_facts, with_lengths
from flopwise.search.workload_file import workload_from
from flopwise.units import HOURS_PER_MONTH

FACTS = load_facts()
TASKS: dict[str, dict[str, Any]] = {
    "serve": {"simulate": False, "task": "serve", "traffic": {"requests_per_s": 2, "input_tokens": 512}},
    "encode": {"task": "encode", "traffic": {"requests_per_s": 20, "input_tokens": 256}},
    "finetune": {"task": "finetune", "method": {"kind": "lora", "rank": 16}, "data": {"tokens": "20M"}},
}


def asked(workload: dict[str, Any]) -> tuple[Plan, list[Plan], list[Plan]]:
    """The answer, the first plans, and the ranking, in the order of their calls."""
    first, ranked = list[Plan](), list[Plan]()

    def take_first(one: Plan) -> None:
        assert not ranked
        first.append(one)

    resolved = workload_from({"model": "Llama-3.2-1B", **workload})
    return plan(resolved, FACTS, Listeners(on_first=take_first, on_ranked=ranked.append)), first, ranked


def place(one: Candidate) -> tuple[str, ...]:
    return one.provider, one.instance, one.region, one.purchase


@pytest.mark.parametrize("task", TASKS)
def test_first_plans_are_plans_of_the_answer_and_come_once(task: str) -> None:
    SIZED.clear()
    _kept_layouts.cache_clear()
    answer, (first,), (ranked,) = asked(TASKS[task])
    assert 0 < len(first.plans) < len(answer.plans)
    assert [one.rank for one in first.plans] == [*range(1, len(first.plans) + 1)]
    costs = [one.cost_usd for one in first.plans]
    assert costs == sorted(costs)
    assert [place(one) for one in ranked.plans] == [place(one) for one in answer.plans]
    whole = {place(one): one for one in answer.plans}
    for one in first.plans:
        assert one.gpu == whole[place(one)].gpu
        assert one.cost_usd >= whole[place(one)].cost_usd  # where it serves with another format, for less
    assert place(first.plans[0]) == place(answer.plans[0])
    again, told, _ = asked(TASKS[task])
    assert not told, "all are known, so none is shown ahead"
    assert [(place(one), one.cost_usd) for one in again.plans] == [(place(one), one.cost_usd) for one in answer.plans]


def test_a_small_search_has_no_first_plans() -> None:
    _, first, ranked = asked({**TASKS["serve"], "constraints": {"gpus": ["l4", "l40s"], "providers": ["aws"]}})
    assert not first
    assert ranked


def test_no_service_in_16_bits_costs_less_than_its_floor() -> None:
    serve = {**TASKS["serve"], "constraints": {"weight_formats": ["bf16"]}}
    for model, rate in (("Llama-3.2-1B", 400.0), ("Llama-3.1-70B", 0.5)):
        traffic = {"requests_per_s": rate, "input_tokens": 512}
        workload = workload_from({"model": model, **serve, "traffic": traffic})
        resolved, _ = with_lengths(with_facts(workload, FACTS), FACTS.model(model))
        floors: dict[tuple[str, ...], float] = {}
        for node in node_kinds(resolved, FACTS, RejectionLog()):
            for one in node.priced:
                key = one.offer.provider, one.offer.instance, one.offer.region, one.purchase
                floors[key] = floor_usd(resolved, FACTS.model(model), node)
        plans = plan(workload, FACTS).plans
        assert len(plans) > 20
        shares = [floors[place(one)] * HOURS_PER_MONTH / one.cost_usd for one in plans]
        assert 0.1 < max(shares) <= 1.0
