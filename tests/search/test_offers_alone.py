"""An offer costs the same whatever else is offered; plans that cost the same are told apart by their latency."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from flopwise.facts.catalog import Facts, load_facts
from flopwise.search.deployments import SIZED, _in_flight
from flopwise.search.layout_search import LayoutSearch, timed_layouts
from flopwise.search.plan import plan
from flopwise.search.plan_training import _kept_layouts, _with_memory
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import workload_from

SERVICE: dict[str, Any] = {
    "task": "serve", "model": "Llama-3.1-8B",
    "traffic": {"requests_per_s": 30, "input_tokens": 600, "output_tokens": 150},
    "targets": {"latency": {"p95": "10s"}},
}  # fmt: skip
FEW = {"g4-standard-48", "g4-standard-96", "g6e.xlarge", "g7e.2xlarge", "p5.4xlarge", "Standard_NC40ads_H100_v5"}


@cache
def facts() -> Facts:
    whole = load_facts(None)
    return whole.with_tables(offers=tuple(o for o in whole.offers if o.instance in FEW))


def workload() -> Resolved:
    return workload_from(SERVICE)


def costs(offered: Facts) -> dict[tuple[str, str], float]:
    return {(c.provider, c.instance): c.cost_usd for c in plan(workload(), offered, alone=False).plans}


@pytest.mark.parametrize("instance", sorted(FEW))
def test_an_offer_costs_what_it_costs_alone(instance: str) -> None:
    """A KV cache of half the bytes was tried only on machines within twice the least cost of all."""
    alone = costs(facts().with_tables(offers=tuple(o for o in facts().offers if o.instance == instance)))
    together = costs(facts())
    assert alone
    assert {key: together[key] for key in alone} == pytest.approx(alone)


def test_one_user_is_one_request_in_flight_and_the_faster_of_equal_plans_comes_first() -> None:
    """Two GPUs as tp 2 answer sooner than as two stages, for the same money."""
    asked = {
        "task": "serve", "model": "Llama-3.3-70B", "constraints": {"gpus": ["a100-80gb"], "max_gpus": 2},
        "traffic": {"concurrency": 1, "input_tokens": 30_000, "output_tokens": 2_000},
    }  # fmt: skip
    plans = plan(workload_from(asked), load_facts(None)).plans
    assert [p.layout["max_batch"] for p in plans[:2]] == [1, 1]
    assert plans[0].cost_usd == pytest.approx(plans[1].cost_usd)
    assert (plans[0].layout["tp"], plans[1].layout["pp"]) == (2, 2)
    for one in plans[:2]:  # alone on the machine a request takes what the simulator says
        assert one.simulated is not None
        assert one.figures["e2e_s"] == pytest.approx(one.simulated.e2e_s["p50"], rel=0.1)


@pytest.mark.parametrize("alone", [True, False])
def test_users_who_wait_need_no_more_machines_where_those_are_slower(alone: bool) -> None:
    """A month's interval is of the machines that a rate may need; for eight users it held a second one."""
    asked = SERVICE | {"traffic": {"concurrency": 8, "input_tokens": 600, "output_tokens": 150}}
    users = plan(workload_from(asked), facts(), alone=alone).plans[0]
    assert users.ends("cost_usd") == (users.cost_usd, users.cost_usd)
    paced = asked | {"targets": {"throughput": "100/s", "confidence": 0.5}}
    ends = plan(workload_from(paced), facts(), alone=alone).plans[0].ends("cost_usd")
    assert ends is not None
    assert ends[0] < ends[1]


def test_requests_in_flight_are_those_that_fit_and_no_more_than_users() -> None:
    """Ten users of two replicas are five each; where four fit, there are four; without users, all that fit."""
    most, ranks = np.array([64.0, 64.0, 4.0]), np.array([1, 2, 1])
    users = workload_from(SERVICE | {"traffic": {"concurrency": 10, "input_tokens": 600, "output_tokens": 150}})
    assert _in_flight(most, ranks, users).tolist() == [10, 5, 4]
    assert _in_flight(most, ranks, workload()).tolist() == most.tolist()


def test_a_moved_target_is_priced_against_the_best_plan() -> None:
    """Llama-3.1-8B at 30 requests/s: looser targets save, tighter ones cost; the best plan is where both start."""
    asked = SERVICE | {"targets": {"ttft": {"p95": "500ms"}, "tpot": {"p95": "40ms"}}}
    answer = plan(workload_from(asked), facts())
    best = answer.plans[0].cost_usd
    assert answer.target_costs
    for row in answer.target_costs:
        looser = row.to_s is None or row.to_s >= row.from_s
        if row.cost_usd is not None and row.saves_usd is not None:
            assert row.saves_usd == pytest.approx(best - row.cost_usd)
            assert row.saves_usd >= 0 if looser else row.saves_usd <= 0


def test_a_layout_that_may_fit_is_kept_where_nothing_is_surer() -> None:
    """Llama-7B trained on one L40S: about as likely to fit as not; at a confidence of 0.4 it is a plan like others."""
    asked = {
        "task": "pretrain", "model": "Llama-7B", "data": {"tokens": "1B", "seq_len": 2048, "global_batch": 64},
        "constraints": {"gpus": ["l40s"], "max_gpus": 1, "stack": "megatron-te"},
    }  # fmt: skip
    (risky, *_) = plan(workload_from(asked), load_facts(None)).plans
    assert 0.35 <= risky.meets["memory"] < 0.8
    assert risky.note == f"only {100 * risky.meets['memory']:.0f} % chance of fitting in memory"
    (sure, *_) = plan(workload_from(asked | {"targets": {"confidence": 0.4}}), load_facts(None)).plans
    assert (sure.instance, sure.note) == (risky.instance, "")
    late = asked | {"targets": {"deadline": "1h"}}
    assert not plan(workload_from(late), load_facts(None)).plans  # only memory is told by its odds


def test_an_answer_is_the_same_after_others_of_another_rate() -> None:
    """What fits and how fast it is in a closed loop is kept; engines, lengths, users and devices tell it apart."""
    changes: list[dict[str, Any]] = [
        {}, {"traffic": {"requests_per_s": 3, "input_tokens": 600, "output_tokens": 150}},
        {"traffic": {"requests_per_s": 3, "input_tokens": 300, "output_tokens": 150}},
        {"traffic": {"concurrency": 40, "input_tokens": 600, "output_tokens": 150}},
        {"traffic": {"concurrency": 4, "input_tokens": 600, "output_tokens": 150}},
        {"constraints": {"engine": "sglang"}}, {"constraints": {"max_gpus": 1}}, {"techniques": {"shared_prefix": 512}},
        {"constraints": {"kv_dtype": "fp8"}}, {"constraints": {"network": "1 GB/s"}},
    ]  # fmt: skip
    alone = []
    for change in changes:
        SIZED.clear()
        alone.append(plan(workload_from(SERVICE | change), facts(), alone=False).plans)
    again = [plan(workload_from(SERVICE | change), facts(), alone=False).plans for change in changes]
    assert again == alone
    assert SIZED.hits


TUNING: dict[str, Any] = {
    "task": "finetune", "model": "Llama-3.1-8B", "method": {"kind": "lora", "rank": 16}, "data": {"tokens": "20M"},
}  # fmt: skip


def test_a_run_is_the_same_after_others_of_another_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of steps are kept; what they depend on tells them apart, and a longer run times no layout again."""
    changes: list[dict[str, Any]] = [
        {}, {"data": {"tokens": "70M"}}, {"targets": {"deadline": "2h"}}, {"targets": {"budget": 5}},
        {"targets": {"confidence": 0.5}}, {"data": {"tokens": "20M", "seq_len": 512}}, {"constraints": {"max_gpus": 2}},
        {"constraints": {"network": "1 GB/s"}}, {"constraints": {"purchase": ["spot"]}},
    ]  # fmt: skip
    alone = []
    for change in changes:
        _kept_layouts.cache_clear()
        alone.append(plan(workload_from(TUNING | change), facts()).plans)
    assert len({str(plans) for plans in alone}) > len(changes) // 2  # most of them matter
    for change, plans in zip(changes, alone, strict=True):
        assert plan(workload_from(TUNING | change), facts()).plans == plans
    timed = list[object]()

    def counted(*asked: Any, **more: Any) -> Any:
        timed.append(asked)
        return timed_layouts(*asked, **more)

    monkeypatch.setattr("flopwise.search.plan_training.timed_layouts", counted)
    plan(workload_from(TUNING | {"data": {"tokens": "33M"}}), facts())
    assert not timed
    plan(workload_from(TUNING | {"data": {"tokens": "33M", "seq_len": 640}}), facts())
    assert timed


def test_precisions_that_take_the_same_memory_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is evaluated once for both, with what lies on the host; the plans are those of each alone."""
    evaluated, own = list[object](), LayoutSearch.with_memory

    def counted(search: LayoutSearch) -> LayoutSearch:
        evaluated.append(search)
        return own(search)

    monkeypatch.setattr(LayoutSearch, "with_memory", counted)
    numbers, best = list[int](), list[float]()
    for precisions in (["bf16"], ["fp8"], ["bf16", "fp8"]):
        _kept_layouts.cache_clear()
        _with_memory.cache_clear()
        evaluated.clear()
        wanted = {"constraints": {"gpus": "h100", "precision": precisions}}
        best.append(plan(workload_from(TUNING | wanted), facts()).plans[0].cost_usd)
        numbers.append(len(evaluated))
    assert numbers[2] == max(numbers[:2]) < sum(numbers[:2])
    assert best[2] == min(best[:2])


def test_a_large_search_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flopwise.search.plan_training.MOST_KEPT_BYTES", 0)
    _kept_layouts.cache_clear()
    plan(workload_from(TUNING), facts())
    assert not _kept_layouts.cache_info().currsize
    assert not _with_memory.cache_info().currsize
