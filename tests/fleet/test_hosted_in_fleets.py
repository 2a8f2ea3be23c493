"""APIs in the allocation: paid by the token, only where they are asked for, and never where something forbids them."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cli.plan_text import blocks
from flopwise.cli.render import Screen
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.model import PlannedWorkload
from flopwise.fleet.months import Z90
from flopwise.fleet.offers import monthly_tokens
from flopwise.fleet.outlook import scaled_workload
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from
from flopwise.fleet.spec import MonthSpreads, Quota
from flopwise.report.pages import html
from flopwise.report.plan_page import plan_document
from named import FACTS

sys.path.insert(0, str(Path(__file__).parent))
from options import allocate, demand, option
from small import assess

HELP: dict[str, Any] = {
    "name": "help", "task": "serve", "model": "Llama-3.1-8B",
    "traffic": {"requests_per_s": 0.5, "input_tokens": 700, "output_tokens": 200, "peak": 4},
    "purchase": ["on_demand", "api"],
}  # fmt: skip
NIGHT: dict[str, Any] = {
    "name": "night", "task": "batch", "model": "Llama-3.1-8B", "runs_per_month": 30, "purchase": ["api", "on_demand"],
    "traffic": {"requests": "2k", "input_tokens": 700, "output_tokens": 200},
}  # fmt: skip
CHECK = NIGHT | {"name": "check", "task": "validate", "runs_per_month": 4}
RULES = fleet_from({"name": "f", "workloads": [HELP]}).rules


@pytest.fixture(scope="module")
def facts() -> Facts:
    whole = load_facts(None)
    kept = [o for o in whole.offers if o.accelerator == "L40S" and o.provider == "aws"]
    return whole.with_tables(offers=tuple(kept))


def fleet(*jobs: dict[str, Any], **policies: Any) -> Any:
    return fleet_from({"name": "f", "workloads": list(jobs), "policies": policies})


def one(facts: Facts, job: dict[str, Any], **policies: Any) -> PlannedWorkload:
    [found] = planned_workloads(fleet(job, **policies), facts)
    return found


def apis(item: PlannedWorkload) -> list[str]:
    return [w.offer.provider for w in item.options if w.purchase == "api"]


@pytest.fixture(scope="module")
def answer(facts: Facts) -> Assessment:
    return assess(fleet(HELP, NIGHT, CHECK), facts, scenarios=200, today="2026-11-21")


def test_tokens_of_a_month_by_hand() -> None:
    """The mean rate, not that of the peak, for 730 h; all requests of all runs."""
    service, batch, check = (monthly_tokens(p) for p in fleet(HELP, NIGHT, CHECK).jobs)
    assert service is not None
    assert service[0] == pytest.approx(0.5 * 730 * 3600 * 700)
    assert service[1] == pytest.approx(0.5 * 730 * 3600 * 200)
    assert batch is not None
    assert batch == pytest.approx((30 * 2000 * 700, 30 * 2000 * 200))
    assert check is not None
    assert check[1] == pytest.approx(4 * 2000 * 200)
    part = HELP | {"hours": {"per_day": 8, "days": 22}}
    [some] = (monthly_tokens(p) for p in fleet(part).jobs)
    assert some is not None
    assert some[1] == pytest.approx(service[1] * 176 / 730)


def test_the_bill_is_tokens_times_prices(answer: Assessment) -> None:
    cheapest = min(0.7 * p.input_usd_per_mtok + 0.2 * p.output_usd_per_mtok for p in FACTS.hosted_for("Llama-3.1-8B"))
    row = next(r for r in answer.allocation if r.workload == "help")
    assert (row.purchase, row.count, row.gpu, row.usd_per_hour) == ("api", 1, "", None)
    assert row.usd_per_month == pytest.approx(0.5 * 730 * 3600 / 1000 * cheapest)
    assert answer.usd_per_month.by_purchase["api"] >= row.usd_per_month
    assert answer.usd_per_month.total == pytest.approx(sum(r.usd_per_month for r in answer.allocation))
    [told] = [w for w in answer.workloads if w.name == "help"]
    assert (told.size, told.memory_bytes, told.energy_kwh_per_month) == ("medium", None, None)
    assert told.parameters == 8_030_261_248


def test_each_workload_takes_what_is_cheapest(answer: Assessment) -> None:
    for row in answer.hosted:
        mine = [r for r in answer.hosted if r["workload"] == row["workload"]]
        least = min(r["usd_per_month"] for r in mine)
        taken = [r for r in mine if r["taken"]]
        if least < row["machines_usd_per_month"]:
            assert [r["usd_per_month"] for r in taken] == [least]
        else:
            assert not taken


def test_the_break_even_volume_is_where_bills_meet(facts: Facts) -> None:
    """At the volume told, the API costs what the machine does; L40S by the hour, at a small volume."""
    even = HELP | {"traffic": {key: value for key, value in HELP["traffic"].items() if key != "peak"}}
    answer = assess(fleet(even), facts, scenarios=0)
    found = [r for r in answer.hosted if r["break_even_tokens"] is not None]
    assert found
    prices = {p.provider: p for p in FACTS.hosted_for("Llama-3.1-8B")}
    cheapest_last = sorted(facts.offers, key=lambda o: -(o.on_demand_usd_per_hour or 0))
    machines = {o.instance: o.on_demand_usd_per_hour for o in cheapest_last}
    for row in found:
        price = prices[row["provider"]]
        each = (price.input_usd_per_mtok * 3.5 + price.output_usd_per_mtok) / 1e6
        instance = row["why"].split(",")[0].rsplit(" ", 1)[-1]
        rate = machines[instance]
        assert rate is not None
        assert row["break_even_tokens"] * each == pytest.approx(730 * rate, rel=0.01)


def test_nothing_leaves_the_house_unasked(facts: Facts) -> None:
    silent = {key: value for key, value in HELP.items() if key != "purchase"}
    assert not apis(one(facts, silent))
    assert not apis(one(facts, HELP | {"purchase": ["on_demand"]}, purchase=["on_demand", "api"]))
    assert apis(one(facts, silent, purchase=["on_demand", "api"]))
    assert apis(one(facts, HELP, purchase=["on_demand"]))
    tune = {"name": "t", "task": "finetune", "model": "Llama-3.1-8B", "data": {"tokens": "1M"}}
    assert not apis(one(facts, tune, purchase=["on_demand", "api"]))
    with pytest.raises(InfeasibleError, match="any of the 1 workloads: t") as error:
        assess(fleet(tune, purchase=["api"]), facts)
    [reason] = error.value.reasons
    assert reason == "t: api is its only purchase option, and answers requests: it cannot finetune"
    with pytest.raises(SpecError, match=r"workloads\.0\.purchase: an api answers requests"):
        fleet(tune | {"purchase": ["api"]})


@pytest.mark.parametrize(
    ("change", "policies", "says"),
    [
        ({"residency": ["us-*"]}, {}, "its data may not be there .region not known"),
        ({"tags": ["hipaa"]}, {}, "the provider is not known to have hipaa"),
        ({"constraints": {"providers": ["aws"]}}, {}, "provider not allowed"),
        ({"constraints": {"regions": ["us-east-1"]}}, {}, "region not allowed"),
        ({}, {"regions": ["us-east-1"]}, "the region is not among the policies'"),
        ({"targets": {"latency": {"p95": "60s"}}}, {}, "no API: whether it meets the target of latency is not known"),
        ({"targets": {"ttft": "60s", "tpot": "1s"}}, {}, "the target of ttft, tpot"),
        ({"targets": {"budget": 1}}, {}, "above its budget"),
        ({"traffic": {"concurrency": 4}}, {}, "needs traffic.requests_per_s"),
        ({"model": "Llama-7B"}, {}, "no price of LLaMA-7B is known"),
    ],
)
def test_what_forbids_an_api_is_said(facts: Facts, change: dict[str, Any], policies: dict[str, Any], says: str) -> None:
    item = one(facts, HELP | change, **policies)
    assert not apis(item)
    assert any(says.replace(".region", "(region") in note for note in item.notes), item.notes


def test_a_price_that_says_where_and_a_provider_that_has_the_tag_are_taken(tmp_path: Path, facts: Facts) -> None:
    row = "here,Llama-3.1-8B,small,0.1,0.1,eu-central-1,own contract,2026-11-01"
    header = "provider,model,name,input_usd_per_mtok,output_usd_per_mtok,regions,source,date"
    (tmp_path / "api_prices.csv").write_text(f"{header}\n{row}\n")
    (tmp_path / "compliance.csv").write_text("provider,tag,source,date\nhere,hipaa,contract,2026-11-01\n")
    known = load_facts(tmp_path).with_tables(offers=facts.offers)
    assert apis(one(known, HELP | {"residency": ["eu-*"], "tags": ["hipaa"]})) == ["here"]
    assert "here" not in apis(one(known, HELP | {"residency": ["us-*"]}))


def test_an_api_alone_carries_what_nothing_else_may(facts: Facts) -> None:
    found = assess(fleet(HELP | {"purchase": ["api"]}), facts, scenarios=50)
    assert {r.purchase for r in found.allocation} == {"api"}
    (row,) = found.allocation
    assert row.usd_low == found.usd_per_month.total == row.usd_high
    assert any(r.kind == "availability" and r.workload == "help" for r in found.risks)
    with pytest.raises(InfeasibleError, match="help") as error:
        assess(fleet(HELP | {"purchase": ["api"], "residency": ["us-*"]}), facts)
    assert any("its data may not be there" in reason for reason in error.value.reasons)


def test_drawn_months_of_an_api_follow_demand_without_steps(facts: Facts) -> None:
    """Demand and prices are lognormal, and so is their product: its percentiles are known."""
    drawn = assess(fleet(HELP | {"purchase": ["api"]}), facts, scenarios=20_000).scenarios
    assert drawn is not None
    spread = math.hypot(MonthSpreads().demand, MonthSpreads().list_price)
    assert drawn.p90 / drawn.p10 == pytest.approx(math.exp(2 * Z90 * spread), rel=0.02)


def test_twice_the_traffic_is_twice_the_tokens(facts: Facts) -> None:
    item = one(facts, HELP | {"purchase": ["api"]})
    assert [w.usd for w in scaled_workload(item, 2.0, FACTS).options] == pytest.approx(
        [2 * w.usd for w in item.options]
    )


def test_an_api_s_provider_is_a_name_where_apis_are_asked_for(facts: Facts) -> None:
    named = HELP | {"constraints": {"providers": ["groq"]}, "purchase": ["api"]}
    assert {r.provider for r in assess(fleet(named), facts, scenarios=0).allocation} == {"groq"}
    with pytest.raises(UnknownNameError, match=r"workloads\.0\.constraints\.providers"):
        assess(fleet(named | {"purchase": ["on_demand"]}), facts)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(5, 90), st.integers(1, 4), st.integers(5, 300)), min_size=1, max_size=4),
    st.integers(0, 6),
)
def test_apis_take_workloads_whole(jobs: list[tuple[int, int, int]], spare: int) -> None:
    """Machines of one kind are limited, an API is not: every split of every workload tried."""
    most = max(0, sum(n for _, n, _ in jobs) - spare)
    options = [option(w, "a", usd, n, instance="m") for w, (usd, n, _) in enumerate(jobs)]
    options += [option(w, "x", usd, instance="api", purchase="api") for w, (*_, usd) in enumerate(jobs)]
    demands = [demand(f"w{w}", split=True) for w in range(len(jobs))]
    costs = [
        sum(api if there else n * usd for (usd, n, api), there in zip(jobs, picked, strict=True))
        for picked in product([False, True], repeat=len(jobs))
        if sum(n for (_, n, _), there in zip(jobs, picked, strict=True) if not there) <= most
    ]
    rules = replace(RULES, quotas=(Quota(most=most, provider="a", instance=None),))
    found = allocate(options, demands, rules, gap=0.0)
    assert found.usd == pytest.approx(min(costs))
    assert all(t.count == 1 for t in found.taken if t.option.purchase == "api")


def test_the_plan_of_an_api_has_the_cost_of_one_run_and_no_devices(facts: Facts) -> None:
    """30 runs a month of 2,000 requests: a thirtieth of the tokens that the bill pays."""
    assessed = assess_with_plans(fleet(HELP, NIGHT), facts, scenarios=200, today="2026-11-21")
    plans, bill = assessed.plans, {row.workload: row.usd_per_month for row in assessed.assessment.allocation}
    for name, runs in (("help", 1), ("night", 30)):
        best = plans[name].plans[0]
        assert best.is_hosted
        assert best.cost_usd * runs == pytest.approx(bill[name])
        texts = [*blocks(plans[name], Screen(), 10), html(plan_document(plans[name], name))]
        for text in texts:
            assert "0.00 µs" not in text
            assert "0 x " not in text.replace("10 x ", "")
            assert f"the API of {best.provider}" in text or "API" not in text
        assert plans[name].verdict.startswith(f"the API of {best.provider}, {best.instance}: ")
