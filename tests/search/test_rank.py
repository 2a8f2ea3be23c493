"""What candidates are ranked by, against calculations by hand: money, odds of targets, energy, and the order."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from measured_errors import at_most, class_on, spread_on, whole_at_most

import flopwise
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.search import plan_serving, serving_option
from flopwise.search.answer import Candidate, Plan, RejectionLog
from flopwise.search.deployments import PREFILL_BUSY
from flopwise.search.layout_search import StepTables, layout_search, timed_layouts
from flopwise.search.nodes import node_kinds
from flopwise.search.plan import plan
from flopwise.search.rank import cheaper_misses, likeliest
from flopwise.search.workload import merged_onto
from flopwise.search.workload_file import workload_from
from named import recipe_with

TRAIN: dict[str, Any] = {
    "model": "gpt2-xl", "task": "pretrain", "data": {"tokens": "20G", "seq_len": 1024, "global_batch": 64},
    "constraints": {"instances": ["p5.48xlarge", "p4d.24xlarge"], "providers": ["aws"], "max_gpus": 64},
    "targets": {"confidence": 0.05},
}  # fmt: skip
SERVE: dict[str, Any] = {
    "model": "Llama-3.1-8B", "task": "serve", "simulate": False,
    "traffic": {"requests_per_s": 40, "input_tokens": 500, "output_tokens": 100},
    "constraints": {"gpus": ["l4", "a10g"], "providers": ["aws"], "weight_formats": ["bf16"], "kv_dtype": "bf16"},
    "targets": {"confidence": 0.05},
}  # fmt: skip
BATCH: dict[str, Any] = {
    **SERVE, "task": "batch", "traffic": {"requests": 500_000, "input_tokens": 500, "output_tokens": 100},
}  # fmt: skip
MEMORY = "memory.full.framework.seen"
"""The class of full training by fsdp-compile, whose memory torchtitan reports."""


@cache
def facts() -> Facts:
    return load_facts()


def planned(workload: dict[str, Any], **changes: Any) -> Plan:
    return plan(workload_from(merged_onto(workload, changes)), facts())


def shown(answer: Plan) -> list[Candidate]:
    return [*answer.plans, *answer.front]


def price(one: Candidate) -> float:
    """Dollars of an instance of a candidate an hour, from the offer's row."""
    offers = facts().offers
    offer = next(o for o in offers if (o.provider, o.instance, o.region) == (one.provider, one.instance, one.region))
    found = offer.price_usd_per_hour(one.purchase)
    assert found is not None
    return found


@pytest.mark.parametrize("workload", [TRAIN, BATCH], ids=["training", "batch"])
def test_a_job_costs_its_hours_on_all_of_its_instances(workload: dict[str, Any]) -> None:
    """From the start of its machines on, by the second, as aws bills."""
    for one in shown(planned(workload)):
        assert one.usd_per_hour == pytest.approx(price(one) * one.num_instances, rel=1e-12)
        billed_s = math.ceil(round(one.start_s + one.seconds, 6))
        assert one.cost_usd == pytest.approx(billed_s / 3600 * price(one) * one.num_instances, rel=1e-12)
        assert one.start_s > 60 + 270


def test_a_service_costs_a_month_of_all_of_its_instances() -> None:
    """A year of 8,760 hours has twelve months of 730."""
    for one in shown(planned(SERVE)):
        assert one.cost_usd == pytest.approx(8760 / 12 * price(one) * one.num_instances, rel=1e-12)
        tokens_per_hour = 3600 * 40 * 100
        assert one.figures["output_tokens_per_s"] == pytest.approx(40 * 100)
        per_million = price(one) * one.num_instances / tokens_per_hour * 1e6
        assert one.figures["usd_per_million_tokens"] == pytest.approx(per_million, rel=1e-9)


def test_a_run_is_all_tokens_at_its_pace_and_its_gpu_hours_follow() -> None:
    for one in shown(planned(TRAIN))[::5]:
        step_s, rate = one.figures["step_s"] or 0.0, one.figures["tokens_per_s"] or 0.0
        assert rate == pytest.approx(64 * 1024 / step_s)
        assert one.figures["tokens_per_s_per_gpu"] == pytest.approx(64 * 1024 / step_s / one.num_gpus)
        assert one.seconds > 20e9 / rate  # interruptions and checkpoints come on top
        assert one.seconds < 1.2 * 20e9 / rate
        assert one.figures["gpu_hours"] == pytest.approx(one.seconds / 3600 * one.num_gpus)


def test_training_targets_have_the_odds_of_the_measured_errors() -> None:
    """Time t is held where throughput is at least run / t of what was predicted; so for tokens a second.

    So it is for money; both of what is left of them after the start of the machines. All inputs are stated.
    """
    stated = TRAIN | {"constraints": TRAIN["constraints"] | {"stack": "fsdp-compile"}}
    best = planned(stated).plans[0]
    limits = {"deadline": 0.95 * best.seconds, "budget": 1.1 * best.cost_usd}
    rate = 0.9 * (best.figures["tokens_per_s"] or 0.0)
    answer = planned(stated, targets={"confidence": 0.05, "throughput": rate, **limits})
    assert len(shown(answer)) > 4
    unsure = 0
    for one in shown(answer):
        predicted = one.figures["tokens_per_s"] or 0.0
        start = one.start_s / 3600 * price(one) * one.num_instances
        odds = {
            "memory": at_most(one.capacity_bytes / one.memory_bytes, MEMORY),
            "deadline": 1 - at_most(one.seconds / (limits["deadline"] - one.start_s), "training.dense.complete"),
            "budget": 1 - at_most((one.cost_usd - start) / (limits["budget"] - start), "training.dense.complete"),
            "throughput": 1 - at_most(rate / predicted, "training.dense.complete"),
        }
        assert one.meets == pytest.approx(odds, abs=2e-4)
        assert one.shortfall == pytest.approx({
            "deadline": (one.start_s + one.seconds) / limits["deadline"],
            "budget": one.cost_usd / limits["budget"],
            "throughput": rate / predicted,
        })  # fmt: skip
        unsure += any(0.05 < p < 0.95 for p in odds.values())
    assert unsure > 2


def test_layouts_that_may_run_out_of_memory_are_left_out() -> None:
    """Of every plan the memory holds with the confidence asked for; surer plans need not be cheaper."""
    tight = merged_onto(TRAIN, {"model": "Llama-3.1-8B", "data": {"tokens": "1G", "seq_len": 4096, "global_batch": 64}})
    costs = []
    for confidence in (0.2, 0.5, 0.9):
        answer = planned(tight, targets={"confidence": confidence})
        assert all(one.meets["memory"] >= confidence for one in answer.plans)
        for one in shown(answer):
            likely = at_most(one.capacity_bytes / one.memory_bytes, MEMORY)
            assert one.meets["memory"] == pytest.approx(likely, abs=1e-4)
        room = max(one.memory_bytes / one.capacity_bytes for one in shown(answer))
        # the largest prediction that still fits with this confidence: capacity / quantile
        ratios = np.linspace(0.5, 2, 150_001)
        quantile = ratios[np.searchsorted([at_most(r, MEMORY) for r in ratios[::100]], confidence) * 100]
        assert room <= 1 / quantile * 1.001
        costs.append(answer.plans[0].cost_usd)
    assert costs == sorted(costs)


def _pace_within(budget_usd: float, one: Candidate) -> float:
    """Throughput over the estimate at which the machines that carry the load cost no more: full at 0.85 of the time."""
    machine, each = one.num_gpus // one.num_instances, one.layout["tp"] * one.layout["pp"] * one.layout["dp"]
    unit = max(1, -(-each // machine))  # machines of a replica, or else a machine that has several
    full = one.layout["replicas"] * min(1.0, (one.figures["busy_frac"] or 0.0) / PREFILL_BUSY) * each / machine
    machines = unit * math.floor(budget_usd / (one.cost_usd / one.num_instances) / unit + 1e-9)
    return full / machines if machines >= one.num_instances else math.inf


def test_the_machines_that_a_service_may_come_to_need_count_in_the_odds_of_a_budget() -> None:
    """Errors of mixtures under a rate are wide: a budget for one machine holds in as many cases as one is enough."""
    found = flopwise.plan({
        "model": "gpt-oss-120b", "task": "serve", "traffic": {"requests_per_s": 8},
        "targets": {"budget": 2500, "confidence": 0.5}, "constraints": {"gpus": ["H100-PCIe-80"]},
    }).plans[0]  # fmt: skip
    assert found.cost_usd < 2500 < (found.cost_usd_high or 0.0)
    assert 0.5 <= found.meets["budget"] < 0.9


def test_service_targets_have_the_odds_of_the_measured_errors() -> None:
    best = planned(SERVE).plans[0]
    ttft, tpot, e2e = (best.figures[f"{name}_s"] or 0.0 for name in ("ttft", "tpot", "e2e"))
    targets = {"ttft": 1.05 * ttft, "tpot": 1.1 * tpot, "latency": 0.95 * e2e, "throughput": 3900}
    answer = planned(SERVE, targets={"confidence": 0.05, "budget": 1.5 * best.cost_usd, **targets})
    assert len(shown(answer)) > 2
    for one in shown(answer):
        figures = {name: one.figures[f"{name}_s"] or 0.0 for name in ("ttft", "tpot", "e2e")}
        first, each = class_on(one.gpu, "serving.ttft.server"), class_on(one.gpu, "serving.tpot.rate.dense")
        rate, spread = class_on(one.gpu, "serving.throughput.rate.dense"), spread_on(one.gpu, "serving")
        parts = ((first, figures["ttft"]), (each, figures["e2e"] - figures["ttft"]))
        odds = {
            "ttft": at_most(targets["ttft"] / figures["ttft"], first, spread),
            "tpot": at_most(targets["tpot"] / figures["tpot"], each, spread),
            "latency": whole_at_most(targets["latency"], parts, spread),
            "throughput": 1 - at_most(3900 / 4000, rate, spread),
            "budget": 1 - at_most(_pace_within(1.5 * best.cost_usd, one), rate, spread),
        }
        assert one.meets == pytest.approx(odds, abs=2e-4)
        assert one.shortfall["latency"] == pytest.approx(figures["e2e"] / targets["latency"])


def test_a_batch_job_has_the_odds_of_its_deadline() -> None:
    answer = planned(BATCH, targets={"confidence": 0.3, "deadline": "5h"})
    assert len(answer.plans) > 1
    for one in shown(answer):
        spread = spread_on(one.gpu, "serving")
        band = class_on(one.gpu, "serving.throughput.server.dense")
        likely = 1 - at_most(one.seconds / (5 * 3600 - one.start_s), band, spread)
        assert one.meets["deadline"] == pytest.approx(likely, abs=2e-4)
        capacity = one.figures["requests_per_s_capacity"]
        assert capacity is not None
        assert one.seconds == pytest.approx(500_000 / capacity, rel=1e-9)


@pytest.mark.parametrize(("workload", "objective"), list(product((TRAIN, BATCH), ("cost", "time", "energy"))))
def test_plans_come_in_the_order_of_the_objective(workload: dict[str, Any], objective: str) -> None:
    """And no plan is worse than a candidate of the front on the same machines, bought so."""
    answer = planned({**workload, "objective": objective})
    by = {"cost": "cost_usd", "time": "seconds", "energy": "energy_joules"}[objective]
    values = [getattr(one, by) for one in answer.plans]
    assert len(values) > 1
    assert values == sorted(values)
    for point in answer.front:
        same = [one for one in answer.plans if one.instance == point.instance]
        assert getattr(same[0], by) <= getattr(point, by) * (1 + 1e-9)


def test_an_hourly_limit_is_kept_and_what_misses_it_says_by_how_much() -> None:
    for workload in (TRAIN, SERVE):
        cheapest = min(one.usd_per_hour for one in planned(workload).plans)
        within = planned(workload, constraints={**workload["constraints"], "max_usd_per_hour": 1.01 * cheapest})
        assert within.plans
        assert all(one.usd_per_hour <= 1.01 * cheapest for one in within.plans)
        beyond = planned(workload, constraints={**workload["constraints"], "max_usd_per_hour": 0.01 * cheapest})
        assert not beyond.plans
        for one in beyond.misses:
            assert one.shortfall["max_usd_per_hour"] == pytest.approx(one.usd_per_hour / (0.01 * cheapest))


def test_a_service_draws_what_its_steps_do_at_the_meter() -> None:
    """Watts at the meter: device and host (half the limit), times 1.2 for cooling; the device draws 10 to 95 %.

    Source: the assumptions of `cost.energy.PowerModel`.
    """
    for one in planned(SERVE).plans:
        device = facts().accelerator(one.gpu)
        assert device.tdp_w is not None
        assert one.energy_joules is not None
        month_s = 8760 / 12 * 3600
        each_w = one.energy_joules / month_s / one.num_gpus / 1.2
        drawn = each_w / device.tdp_w - 0.5
        assert 0.1 <= drawn <= 0.95
        busy = one.figures["busy_frac"] or 0.0
        assert drawn <= 0.95 * busy + 0.1 * (1 - busy) + 1e-9
        assert drawn >= 0.4 * busy + 0.1 * (1 - busy) - 1e-9


def test_spot_runs_take_longer_by_what_interruptions_leave() -> None:
    """Daly 2006, section 3: the share of progress t / (M e^(R/M) (e^((t+d)/M) - 1)), t chosen by his first order."""
    spot = merged_onto(TRAIN["constraints"], {"instances": ["p5.48xlarge"], "min_gpus": 64})
    runs = {p: planned({**TRAIN, "constraints": {**spot, "purchase": [p]}}).plans[0] for p in ("on_demand", "spot")}
    record = facts().spot("aws", "H100-SXM-80")
    gpus, parameters = 64, 1_557_611_200
    write_s = 14 * parameters / (gpus * 1e9)  # 2 + 12 bytes a parameter, 1 GB/s a GPU

    def progress(rate_per_s: float) -> float:
        between = 1 / rate_per_s
        interval = (
            math.sqrt(2 * write_s * between)
            * (1 + math.sqrt(write_s / (2 * between)) / 3 + write_s / (2 * between) / 9)
            - write_s
        )
        restart = 120 + 240 + 240 + write_s
        return interval / (between * math.exp(restart / between) * math.expm1((interval + write_s) / between))

    failures = gpus / (16384 * 54 * 86400 / 419)
    taken = failures + gpus / 8 * record.interruptions_per_s
    ratio = runs["spot"].seconds / runs["on_demand"].seconds
    assert ratio == pytest.approx(progress(failures) / progress(taken), rel=2e-5)
    assert ratio > 1.0003


def test_the_plan_is_the_best_row_of_a_space_that_is_tried_whole() -> None:
    """Every layout of up to 24 devices, one by one: the cheapest that holds memory and deadline with the confidence."""
    limits = {"instances": ["p5.48xlarge"], "providers": ["aws"], "regions": ["us-east-1"], "max_gpus": 24}
    held = {"deadline": "6h", "budget": "$1M", "confidence": 0.8}
    data = {"tokens": "2G", "seq_len": 4096, "global_batch": 24}
    wanted = workload_from({
        "model": "Llama-3.1-8B", "task": "pretrain", "data": data, "targets": held,
        "constraints": limits | {"stack": "megatron-te"},
    })  # fmt: skip
    node = node_kinds(wanted, facts(), RejectionLog())[0]
    recipe = recipe_with(seq_len=4096, global_batch=24, stack="megatron-te")
    search = layout_search(load_model("Llama-3.1-8B"), recipe, most=24)
    every = timed_layouts(search, node, 2e9, StepTables(), every=True)
    assert every.rows.size > 500
    best, cheapest = math.inf, math.inf
    for gpus, run_s, memory in zip(every.num_gpus, every.run_s, every.memory_bytes, strict=True):
        fits = at_most(node.cluster.accelerator.hbm_bytes / memory, "memory.full")
        start_s = 60 + 270 + 24 + 2e9 * 4 / (8e9 * gpus / 8)
        usd = math.ceil(round(start_s + run_s, 6)) / 3600 * node.priced[0].usd_per_hour * gpus / 8
        cheapest = min(cheapest, usd if fits >= 0.8 else math.inf)
        if fits >= 0.8 and 1 - at_most(run_s / (6 * 3600), "training.dense.complete") >= 0.8:
            best = min(best, usd)
    chosen = plan(wanted, facts()).plans[0]
    assert chosen.cost_usd == pytest.approx(best, rel=1e-9)
    assert best > cheapest, "the deadline takes more devices than are cheapest"


def test_no_plan_takes_more_accelerators_than_allowed() -> None:
    """Three instances of four carry the load, or two of eight: these are more than 14."""
    limits = {**SERVE["constraints"], "instances": ["g6.12xlarge", "g6.48xlarge"]}
    asked = {**SERVE, "traffic": {**SERVE["traffic"], "requests_per_s": 36}}
    taken = {one.instance: one.num_gpus for one in planned(asked, constraints=limits).plans}
    assert taken == {"g6.12xlarge": 12, "g6.48xlarge": 16}
    within = planned(asked, constraints={**limits, "max_gpus": 14})
    assert {one.instance: one.num_gpus for one in within.plans} == {"g6.12xlarge": 12}
    assert any(r.reason == "needs more GPUs than --max-gpus allows" for r in within.ruled_out)


@pytest.mark.parametrize(
    "targets",
    [{"ttft": {"p95": "1s"}}, {"ttft": {"p95": "1s"}, "budget": 9000}, {"ttft": {"p95": "30ms"}}],
    ids=["targets", "budget", "missed"],
)
def test_ways_to_buy_share_what_prices_do_not_change(targets: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether each way is looked at by itself or one stands for those of the same deployments: the same plan."""
    workload = {
        **merged_onto(SERVE, {"targets": {"confidence": 0.5, **targets}}),
        "constraints": {"gpus": ["l4", "l40s"], "purchase": ["reserved_3y", "on_demand", "spot", "reserved_1y"]},
    }
    shared = planned(workload)
    monkeypatch.setattr(serving_option.ServingOption, "alike", None)
    monkeypatch.setattr(plan_serving, "_cheapest_ways", list)
    apart = planned(workload)
    for name in ("plans", "front", "fronts", "misses", "target_costs", "ruled_out", "levers"):
        assert getattr(shared, name) == getattr(apart, name), name
    assert len({one.purchase for one in shown(shared) or shared.misses}) > 1 or not shared.plans


def test_machines_that_hold_too_little_are_neither_likeliest_nor_cheaper_misses() -> None:
    """The first of three rows is the likeliest and the cheapest, and its machine holds two thirds of what it needs."""
    one, device = np.ones(3), SimpleNamespace(accelerator=SimpleNamespace(name="some"))
    option: Any = SimpleNamespace(
        odds=lambda: {"ttft": np.array([0.7, 0.5, 0.4])}, host_frac=np.array([1.5, 1.0, 0.0]), num_gpus=one,
        instances=one, seconds=one, capacity=one, cost_usd=np.array([1.0, 2.0, 3.0]),
        workload=SimpleNamespace(max_gpus=8, confidence=0.8), node=SimpleNamespace(cluster=device),
        allowed_rows=lambda _: np.empty(0, dtype=int), candidate=lambda row, *_: row,
    )  # fmt: skip
    assert [pick.row for pick in likeliest([option])] == [1]
    assert list[Any](cheaper_misses([option], cost_usd=4.0)) == [1]
    option.host_frac = 0.0
    assert [pick.row for pick in likeliest([option])] == [0]
    assert list[Any](cheaper_misses([option], cost_usd=4.0)) == [0]
