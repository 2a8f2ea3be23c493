"""An assessment is what its parts say: bills add up, policies cost, more traffic is never cheaper, names are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import assess

from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.offers import Offer
from flopwise.fleet.allocate import allocate as allocation
from flopwise.fleet.allocate import allocation_problem
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.outlook import scaled_workload
from flopwise.fleet.planned import planned_workloads, promising
from flopwise.fleet.read import fleet_from, load_fleet
from named import FACTS

EXAMPLE = Path(__file__).parents[2] / "examples" / "textnlp.yaml"
CHAT: dict[str, Any] = {
    "name": "chat", "task": "serve", "model": "Llama-7B",
    "traffic": {"requests_per_s": 15, "input_tokens": 256, "output_tokens": 16}, "targets": {"latency": {"p95": "1s"}},
}  # fmt: skip
TUNE: dict[str, Any] = {
    "name": "tune", "task": "finetune", "model": "Llama-7B", "method": {"kind": "lora"},
    "data": {"tokens": "50M", "seq_len": 2048}, "runs_per_month": 4,
}  # fmt: skip
DESKS: dict[str, Any] = {
    "name": "desks", "task": "develop", "environment": "development", "machines": {"count": 2, "gpus": ["T4"]},
}  # fmt: skip
POLICIES: dict[str, Any] = {"purchase": ["on_demand", "spot", "reserved_1y"], "budget_per_month": "$20k"}


@pytest.fixture(scope="module")
def facts() -> Facts:
    """A small catalog: what three clouds sell of a few devices."""
    whole = load_facts(None)
    gpus = {"T4", "L4", "A10G", "L40S", "A100-SXM-80", "A100-PCIe-80", "H100-SXM-80"}
    kept = [o for o in whole.offers if o.accelerator in gpus and o.provider in {"aws", "gcp", "azure"}]
    return whole.with_tables(offers=tuple(kept))


@pytest.fixture(scope="module")
def answer(facts: Facts) -> Assessment:
    """The assessment of three workloads with shares; Google sells its T4 until its retirement date."""
    shares = POLICIES | {"providers": {"aws": 0.75, "gcp": 0.25}, "share_tolerance": 0.1, "include_retired": True}
    fleet = fleet_from({"name": "f", "workloads": [CHAT, TUNE, DESKS], "policies": shares})
    return assess(fleet, facts, scenarios=300, today="2026-11-21")


def test_the_bill_adds_up(answer: Assessment) -> None:
    bill = answer.usd_per_month
    assert bill.total == pytest.approx(
        sum(row.usd_per_month for row in answer.allocation) + bill.storage + bill.traffic
    )
    for sums in (bill.by_provider, bill.by_environment, bill.by_workload):
        assert sum(sums.values()) == pytest.approx(bill.total)
    assert bill.low <= bill.total <= bill.high
    assert {w.name for w in answer.workloads} == set(bill.by_workload)


def test_shares_are_held(answer: Assessment) -> None:
    bill = answer.usd_per_month
    assert 0.65 - 1e-6 <= bill.by_provider["aws"] / bill.compute <= 0.85 + 1e-6
    assert bill.by_provider["gcp"] > 0


def test_development_machines_cost_what_arithmetic_says(facts: Facts) -> None:
    """Issue's golden figure: 2 x g4dn.xlarge x 8 h x 22 d at $0.526 = $185."""
    desks = DESKS | {"constraints": {"instances": ["g4dn.xlarge"]}, "residency": ["us-east-1"]}
    found = assess(fleet_from({"name": "f", "workloads": [desks]}), facts, scenarios=0)
    assert found.usd_per_month.total == pytest.approx(2 * 0.526 * 8 * 22)
    assert found.scenarios is None


def test_a_price_of_a_day_that_does_not_exist_is_of_the_last_of_its_month(facts: Facts) -> None:
    """2026-02-31 is 2026-02-28: 266 days before 2026-11-21 (0 + 31 + 30 + 31 + 30 + 31 + 31 + 30 + 31 + 21)."""
    wrong = facts.with_tables(offers=tuple(replace(o, price_date="2026-02-31") for o in facts.offers))
    found = assess(fleet_from({"name": "f", "workloads": [DESKS]}), wrong, scenarios=0, today="2026-11-21")
    assert any("2026-02-31, 266 days old" in note for note in found.price_notes)


def test_a_policy_never_saves_money(facts: Facts, answer: Assessment) -> None:
    free = assess(fleet_from({"name": "f", "workloads": [CHAT, TUNE, DESKS], "policies": POLICIES}), facts, scenarios=0)
    assert free.usd_per_month.total <= answer.usd_per_month.total * (1 + 2e-3)
    assert all(row.usd_per_month > 0 for row in answer.binding)


def test_alone_a_workload_takes_its_cheapest_way(facts: Facts) -> None:
    """Without policies nothing couples workloads that share no reserved machine: brute force over all ways."""
    fleet = fleet_from({"name": "f", "workloads": [CHAT, TUNE], "policies": {"purchase": ["on_demand"]}})
    items = planned_workloads(fleet, facts)
    assert allocation(allocation_problem(fleet, items, FACTS), gap=0.0).usd == pytest.approx(
        sum(min(w.usd for w in i.options) for i in items)
    )


def test_more_traffic_is_never_cheaper(facts: Facts) -> None:
    fleet = fleet_from({"name": "f", "workloads": [CHAT, TUNE], "policies": {"purchase": ["on_demand"]}})
    items = planned_workloads(fleet, facts)
    bills = [
        allocation(allocation_problem(fleet, [scaled_workload(i, f, FACTS) for i in items], FACTS), gap=0.0).usd
        for f in (1.0, 1.5, 2.0, 7.0)
    ]
    assert bills == sorted(bills)
    assert bills[2] <= 2 * bills[0] * (1 + 1e-9) + 1  # twice the machines always do


def test_scenarios_are_seeded(facts: Facts, answer: Assessment) -> None:
    drawn = answer.scenarios
    assert drawn is not None
    assert drawn.p10 <= drawn.p50 <= drawn.p90 <= drawn.p95
    assert sum(drawn.drivers.values()) == pytest.approx(1.0)
    assert drawn.over_budget == 0.0
    del facts


def test_what_nothing_runs_takes_no_report_away(facts: Facts) -> None:
    """The rest is planned as if it were alone; the reason and the nearest miss stand on the workload's row."""
    slow = CHAT | {"name": "impossible", "targets": {"latency": {"p95": "1ms"}}}
    found = assess(fleet_from({"name": "f", "workloads": [slow, TUNE]}), facts, scenarios=0)
    alone = assess(fleet_from({"name": "f", "workloads": [TUNE]}), facts, scenarios=0)
    assert [(w.name, w.feasible) for w in found.workloads] == [("impossible", False), ("tune", True)]
    assert any("the nearest is" in reason for reason in found.workloads[0].reasons)
    assert found.usd_per_month.total == pytest.approx(alone.usd_per_month.total)
    assert {row.workload for row in found.allocation} == {"tune"}
    with pytest.raises(InfeasibleError, match="any of the 1 workloads: impossible") as error:
        assess(fleet_from({"name": "f", "workloads": [slow]}), facts)
    assert any("nearest" in reason for reason in error.value.reasons)


def test_shares_that_need_what_cannot_run_are_left_out(facts: Facts) -> None:
    slow = CHAT | {"name": "impossible", "targets": {"latency": {"p95": "1ms"}}}
    shares = {"providers": {"aws": "50%", "gcp": "50%"}, "share_tolerance": "1%"}
    found = assess(fleet_from({"name": "f", "workloads": [slow, TUNE], "policies": shares}), facts, scenarios=0)
    assert {row.workload for row in found.allocation} == {"tune"}
    ignored = "shares of the bill are ignored, as workloads without machines are not in it; if they are held, "
    assert found.warnings[0].startswith(ignored)
    with pytest.raises(InfeasibleError, match="share"):
        assess(fleet_from({"name": "f", "workloads": [TUNE], "policies": shares}), facts, scenarios=0)


def test_shares_of_a_bill_without_some_of_its_workloads_go_before_the_budget() -> None:
    """No machines are reserved for three years for runs of hours, so that shares of what is left of the bill hold."""
    runs = {"task": "pretrain", "data": {"tokens": "100M", "seq_len": 2048, "global_batch": 16}}
    small, large = (["p4d.24xlarge", f"a2-highgpu-{count}g"] for count in (1, 8))
    workloads = [
        runs | {"name": "medium", "model": "gpt-j-6b", "constraints": {"instances": small, "max_gpus": 8}},
        runs | {"name": "large", "model": "Llama-65B", "constraints": {"instances": large, "max_gpus": 8}},
        CHAT | {"name": "impossible", "targets": {"latency": {"p95": "1ms"}}},
    ]
    policies = {
        "providers": {"aws": "60%", "gcp": "40%"}, "share_tolerance": "15%", "budget_per_month": "$7k",
        "purchase": ["on_demand", "spot", "reserved_3y"],
    }  # fmt: skip
    found = assess(fleet_from({"name": "f", "workloads": workloads, "policies": policies}), FACTS, scenarios=0)
    assert found.warnings[0].startswith("shares of the bill are ignored")
    assert {row.purchase for row in found.allocation} == {"spot"}
    assert found.usd_per_month.total < 2000


def test_a_budget_below_the_floor_says_the_floor(facts: Facts) -> None:
    fleet = fleet_from({"name": "f", "workloads": [DESKS], "policies": {"budget_per_month": 1}})
    found = assess(fleet, facts)
    (warning,) = found.warnings
    floor = re.fullmatch(r"a month costs at least \$([0-9,]+) under these policies; the budget is \$1", warning)
    assert floor is not None
    assert float(floor[1].replace(",", "")) == pytest.approx(found.usd_per_month.total, abs=0.5)
    assert found.scenarios is not None
    assert found.scenarios.over_budget == 1.0
    assert found.verdict.endswith(", above the budget of $1.00.")
    free = assess(fleet_from({"name": "f", "workloads": [DESKS]}), facts)
    assert found.allocation == free.allocation
    assert not free.warnings


def test_a_budget_takes_no_blame_for_shares_that_contradict(facts: Facts) -> None:
    policies = {"providers": {"aws": "50%", "gcp": "50%"}, "share_tolerance": "1%", "budget_per_month": 1}
    with pytest.raises(InfeasibleError, match="share"):
        assess(fleet_from({"name": "f", "workloads": [TUNE], "policies": policies}), facts, scenarios=0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"policies": {"regions": ["us-eats-1"]}}, r"policies\.regions\.0.*nearest: us-east-1"),
        ({"policies": {"providers": {"awss": 1.0}}}, r"policies\.providers\.awss.*nearest: aws"),
        ({"policies": {"quotas": [{"instance": "p9.48xlarge", "most": 1}]}}, r"policies\.quotas\.0"),
        ({"workloads": [DESKS | {"tags": ["hippa"]}]}, r"workloads\.0\.tags\.0.*nearest: hipaa"),
    ],
)
def test_unknown_names_come_with_the_nearest(facts: Facts, change: dict[str, Any], told: str) -> None:
    with pytest.raises(UnknownNameError, match=told):
        assess(fleet_from({"name": "f", "workloads": [DESKS]} | change), facts)


def test_growth_without_end_is_refused() -> None:
    with pytest.raises(SpecError, match=r"growth_per_month: 1000% is out of range; allowed: 0 or more, up to 1"):
        fleet_from({"name": "f", "workloads": [DESKS], "policies": {"growth_per_month": "1000%"}})


def test_residency_and_tags_choose_the_place(facts: Facts) -> None:
    here = DESKS | {"residency": ["eu-*", "europe-*"], "tags": ["sagemaker"]}
    found = assess(fleet_from({"name": "f", "workloads": [here]}), facts, scenarios=0)
    assert {(r.provider, r.region[:3]) for r in found.allocation} == {("aws", "eu-")}


def test_spot_only_where_it_may_be_interrupted(facts: Facts) -> None:
    steady = TUNE | {"interruptible": False}
    fleet = fleet_from({"name": "f", "workloads": [steady], "policies": {"purchase": ["on_demand", "spot"]}})
    assert {r.purchase for r in assess(fleet, facts, scenarios=0).allocation} == {"on_demand"}


def kinds_of(offers: Sequence[Offer]) -> dict[str, set[tuple[str, int, float]]]:
    found: dict[str, set[tuple[str, int, float]]] = {}
    for o in offers:
        found.setdefault(o.provider, set()).add((o.accelerator, o.count, o.accelerator_share))
    return found


def test_promising_machines_are_of_several_providers() -> None:
    """No provider has more than a third of them."""
    kinds = kinds_of(promising(load_facts(None), 9, ["on_demand", "spot"]))
    assert sum(map(len, kinds.values())) == 9
    assert max(map(len, kinds.values())) <= 3


def test_promising_machines_are_of_every_provider_with_a_share() -> None:
    kinds = kinds_of(promising(load_facts(None), 4, ["on_demand"], ["aws", "GCP"]))
    assert min(len(kinds["aws"]), len(kinds["gcp"])) >= 3


def test_promising_machines_can_be_bought_as_allowed() -> None:
    """A spot price that nothing else comes near does not count for what may not be interrupted."""
    whole = load_facts(None)
    cheap = whole.with_tables(
        offers=tuple(replace(o, spot_usd_per_hour=1e-6 * n) for n, o in enumerate(whole.offers, 1))
    )
    steady, plain = (promising(f, 8, ["on_demand"]) for f in (cheap, whole))
    assert [o.key for o in steady] == [o.key for o in plain]
    assert all(any(o.on_demand_usd_per_hour for o in steady if o.provider == p) for p in kinds_of(steady))


def test_the_example_is_a_fleet() -> None:
    fleet = load_fleet(EXAMPLE)
    assert {p.spec.task for p in fleet.jobs} == {
        "pretrain", "finetune", "serve", "encode", "batch", "validate", "develop",
    }  # fmt: skip
