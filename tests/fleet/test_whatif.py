"""Each question's answer against a calculation by hand, from listed prices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from small import assess

from flopwise.facts.catalog import Facts, load_facts
from flopwise.facts.currencies import amounts_in
from flopwise.fleet.allocate import allocate as allocation
from flopwise.fleet.allocate import allocation_problem
from flopwise.fleet.assessment import WhatIf
from flopwise.fleet.model import Platform
from flopwise.fleet.outlook import bindings, what_ifs
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.program import AllocationProblem
from flopwise.fleet.read import fleet_from
from named import FACTS

MONTH = 730.0
TB = 1e12
AWS, GCP = ("aws", "us-east-1", "g4dn.xlarge"), ("gcp", "us-central1", "g2-standard-4")


@pytest.fixture(scope="module")
def facts() -> Facts:
    """Two offers: aws g4dn.xlarge at $0.50 on demand and $0.20 on spot, gcp g2-standard-4 at $0.60."""
    whole = load_facts(None)
    held = {(o.provider, o.region, o.instance): o for o in whole.offers}
    aws = replace(held[AWS], on_demand_usd_per_hour=0.5, spot_usd_per_hour=0.2)
    gcp = replace(held[GCP], on_demand_usd_per_hour=0.6, spot_usd_per_hour=None)
    return whole.with_tables(offers=(aws, gcp))


def desks(**more: Any) -> dict[str, Any]:
    job = {"name": "d", "task": "develop", "environment": "production", "machines": {"count": 4, "gpus": ["T4", "L4"]}}
    return job | more


def asked(facts: Facts, *jobs: dict[str, Any], **policies: Any) -> tuple[float, dict[str, WhatIf]]:
    """The bill, and the answers by name."""
    platform, made = solvable(facts, *jobs, **policies)
    found = allocation(made, gap=0.0)
    return found.usd, {row.name: row for row in what_ifs(platform, made, found, FACTS)}


def solvable(facts: Facts, *jobs: dict[str, Any], **policies: Any) -> tuple[Platform, AllocationProblem]:
    platform = fleet_from({"name": "f", "workloads": list(jobs), "policies": policies})
    return platform, allocation_problem(platform, planned_workloads(platform, facts), FACTS)


def test_a_price_rise_is_met_by_other_machines_where_those_are_cheaper_then(facts: Facts) -> None:
    """4 x $0.50 become 4 x $0.60, which gcp asks as well: no more than that, volumes at the raised price."""
    usd, rows = asked(facts, desks())
    assert usd == pytest.approx(4 * 0.5 * MONTH)
    assert rows["prices of aws rise 20 %"].usd_per_month == pytest.approx(4 * 0.6 * MONTH)
    dear = facts.with_tables(offers=(replace(facts.offers[0], on_demand_usd_per_hour=0.58), facts.offers[1]))
    assert asked(dear, desks())[1]["prices of aws rise 20 %"].usd_per_month == pytest.approx(4 * 0.6 * MONTH)


def test_amounts_are_in_the_currency_that_is_asked_for(facts: Facts) -> None:
    """Answers that are solved side by side, too: two dollars for one euro."""
    growing = desks(growth_per_month=0.05)
    with amounts_in("EUR=2", load_facts(None).currencies):
        _, rows = asked(facts, growing, budget_per_month=2000)
        _, problem = solvable(facts, growing, providers={"aws": 0.5, "gcp": 0.5})
        costs = bindings(problem, allocation(problem, gap=0.0))
    texts = [row.text for row in rows.values()] + [row.text for row in costs]
    assert sum("€" in text for text in texts) >= 4
    assert not any("$" in text for text in texts)
    assert f"€{4 * 0.5 * MONTH * 1.2 / 2:,.0f} a month" in rows["all prices rise 20 %"].text


def test_prices_of_volumes_rise_too(facts: Facts) -> None:
    """10 TB stored with aws at $0.023 a GiB: 20 % more of machines and storage, for aws and for all."""
    stored = 10 * TB / 2**30 * 0.023
    usd, rows = asked(facts, desks(volumes={"storage": "10TB"}, constraints={"providers": ["aws"]}))
    assert usd == pytest.approx(4 * 0.5 * MONTH + stored)
    for name in ("prices of aws rise 20 %", "all prices rise 20 %"):
        assert rows[name].usd_per_month == pytest.approx(1.2 * usd)
        assert "storage and traffic" in rows[name].text


def test_a_lost_provider_is_replaced_with_its_volumes(facts: Facts) -> None:
    """gcp: 4 x $0.60, 10 TB at $0.020 a GiB; nothing replaces the only one that a workload may use."""
    job = desks(volumes={"storage": "10TB"})
    _, rows = asked(facts, job)
    assert rows["aws is lost"].usd_per_month == pytest.approx(4 * 0.6 * MONTH + 10 * TB / 2**30 * 0.020)
    _, alone = asked(facts, job | {"constraints": {"providers": ["aws"]}})
    assert not alone["aws is lost"].feasible
    assert "no offer can run d" in alone["aws is lost"].text


def test_a_week_without_spot_is_bought_on_demand(facts: Facts) -> None:
    """Seven of 30.4 days at $0.50 instead of what spot costs; the bill is told over the budget where it is."""
    policies = {"purchase": ["on_demand", "spot"], "budget_per_month": 900}
    usd, rows = asked(facts, desks(interruptible=True), **policies)
    row = rows["no spot capacity for a week"]
    assert row.usd_per_month == pytest.approx(usd + 7 * 24 / MONTH * (4 * 0.5 * MONTH - usd), rel=1e-4)
    assert 4 * 0.2 * MONTH <= usd < 4 * 0.21 * MONTH
    assert "over the budget" not in row.text
    assert "over the budget" in rows["aws is lost"].text


CHAT: dict[str, Any] = {
    "name": "chat", "task": "encode", "model": "bert-base-uncased", "targets": {"latency": {"p95": "1s"}},
    "traffic": {"requests_per_s": 800, "input_tokens": 256}, "volumes": {"storage": "1TB", "egress": "5TB"},
    "constraints": {"providers": ["aws"]},
}  # fmt: skip


def test_twice_the_traffic_fills_the_replicas_first_and_doubles_what_they_send(facts: Facts) -> None:
    """As many machines as 1,600 requests/s need at 85 % busy; 5 TB out become 10 TB, 1 TB stored stays."""
    platform, made = solvable(facts, CHAT)
    found = allocation(made, gap=0.0)
    count = sum(t.count for t in found.taken)

    def sent(nbytes: float) -> float:
        gib = nbytes / 2**30
        return 0.09 * (min(gib, 10240) - 100)

    stored = TB / 2**30 * 0.023
    assert found.usd == pytest.approx(count * 0.5 * MONTH + sent(5 * TB) + stored)
    rows = {row.name: row for row in what_ifs(platform, made, found, FACTS)}
    twice = rows["traffic and runs x 2"]
    (held,) = {t.option.candidate.figures["requests_per_s_capacity"] for t in found.taken}
    machines = math.ceil(1600 / (0.85 * (held or 0.0) / count))
    assert count < machines < 2 * count, "what is free is filled first"
    assert twice.usd_per_month == pytest.approx(machines * 0.5 * MONTH + sent(10 * TB) + stored)
    assert "stored data does not" in twice.text


@pytest.mark.parametrize("growth", ["2%", "5%", "9%"])
def test_growth_of_a_year_is_the_forecast_of_that_month(facts: Facts, growth: str) -> None:
    """Where only one machine is on offer, the question and the forecast have nothing to differ in."""
    chat = CHAT | {"growth_per_month": growth, "volumes": {"storage": "1TB"}}
    platform = fleet_from({"name": "f", "workloads": [chat]})
    found = assess(platform, facts.with_tables(offers=facts.offers[:1]), scenarios=0, today="2026-11-21")
    (row,) = [w for w in found.whatif if w.name.startswith("growth")]
    assert row.usd_per_month == pytest.approx(found.forecast[12].usd)
    assert "the forecast keeps today's" in row.text


def test_policies_that_stand_in_for_one_another_cost_something_together(facts: Facts) -> None:
    """Half of it with gcp: either share alone implies the other, so each costs nothing and both $146."""
    _, made = solvable(facts, desks(), providers={"aws": "50%", "gcp": "50%"}, share_tolerance="10%")
    found = allocation(made, gap=0.0)
    costs = {row.constraint: row for row in bindings(made, found)}
    assert set(costs) == {"all shares"}
    assert costs["all shares"].usd_per_month == pytest.approx(found.usd - 4 * 0.5 * MONTH)
    assert costs["all shares"].text == (
        "the shares of aws, gcp together cost $146 a month: without them d would run on 4 x aws g4dn.xlarge on demand "
        "for $1,460 instead of $1,606 on 2 x aws g4dn.xlarge on demand and 2 x gcp g2-standard-4 on demand; the bill "
        "is then aws 100 %, gcp 0 %"
    )
    (move,) = costs["all shares"].moves
    assert move.workload == "d"
    assert move.usd_per_month_without == pytest.approx(4 * 0.5 * MONTH)
    assert move.usd_per_month == pytest.approx(2 * (0.5 + 0.6) * MONTH)
    quota = {"quotas": [{"provider": "aws", "most": 3}]}
    _, made = solvable(facts, desks(), providers={"aws": "50%", "gcp": "50%"}, share_tolerance="10%", **quota)
    found = allocation(made, gap=0.0)
    both = {row.constraint: row.usd_per_month for row in bindings(made, found)}
    assert both["all policies"] == pytest.approx(found.usd - 4 * 0.5 * MONTH)
    assert both["all shares"] == pytest.approx(found.usd - (3 * 0.5 + 0.6) * MONTH)


def test_the_policy_that_rules_cheaper_machines_out_is_named_with_its_cost(facts: Facts) -> None:
    """Four T4 that only aws has, and one desk that gcp has to have for a share of 23 %: $438 instead of $365."""
    large, small = (desks(name=name, machines={"count": n, "gpus": gpus}) for name, n, gpus in
                    (("d", 4, ["T4"]), ("e", 1, ["T4", "L4"])))  # fmt: skip
    policies = {"providers": {"aws": "80%", "gcp": "20%"}, "share_tolerance": "5%"}
    platform = fleet_from({"name": "f", "workloads": [large, small], "policies": policies})
    found = assess(platform, facts, scenarios=0)
    rule = "a policy rules it out (the shares of aws, gcp together cost $73 a month)"
    assert {w.name: rule in w.why_not_cheaper for w in found.workloads} == {"d": False, "e": True}
    assert {r.why for r in found.by_provider if r.workload == "e" and r.provider == "aws"} == {f"cheaper, but {rule}"}


@pytest.mark.parametrize("price", [0.45, 0.6, 0.9])
@pytest.mark.parametrize("counts", [(4, 3), (5, 5, 2), (7, 2, 2, 1)])
def test_a_price_rise_under_shares_is_no_less_than_nothing_and_no_more_than_the_same_machines(
    facts: Facts, price: float, counts: tuple[int, ...]
) -> None:
    """Shares are of the bill at the prices before: what held them still does, and nothing else comes to hold them."""
    dear = facts.with_tables(offers=(facts.offers[0], replace(facts.offers[1], on_demand_usd_per_hour=price)))
    jobs = [desks(name=f"d{n}", machines={"count": c, "gpus": ["T4", "L4"]}) for n, c in enumerate(counts)]
    shares: dict[str, Any] = {"providers": {"aws": "60%", "gcp": "40%"}, "share_tolerance": "8%"}
    platform, made = solvable(dear, *jobs, **shares)
    found = allocation(made, gap=0.0)
    row = what_ifs(platform, made, found, FACTS)[0]
    first = max(found.by_provider, key=lambda p: found.by_provider[p])
    assert row.name == f"prices of {first} rise 20 %"
    assert row.change_usd is not None
    assert 0 <= row.change_usd <= 0.2 * found.by_provider[first] + 1e-6
    assert "held at the prices before" in row.text
    a, g = 0.5 * (1.2 if first == "aws" else 1), price * (1.2 if first == "gcp" else 1)
    whole = sum(counts)
    allowed = [n for n in range(whole + 1) if abs(0.5 * n / (0.5 * n + price * (whole - n)) - 0.6) <= 0.08]
    assert found.usd == pytest.approx(min(0.5 * n + price * (whole - n) for n in allowed) * MONTH)
    assert row.usd_per_month == pytest.approx(min(a * n + g * (whole - n) for n in allowed) * MONTH)


def test_an_answer_with_other_machines_names_what_it_changes_most(facts: Facts) -> None:
    """The machines to work on that were aws's go to gcp; a workload that stays where it was is not named."""
    stays = desks(name="stays", constraints={"providers": ["gcp"]})
    _, rows = asked(facts, desks(), stays)
    now, then = 4 * 0.5 * MONTH, 4 * 0.6 * MONTH
    change = (
        f"; the largest changes: d on 4 x gcp g2-standard-4 on demand for ${then:,.0f} instead of ${now:,.0f} on "
        "4 x aws g4dn.xlarge on demand"
    )
    assert rows["aws is lost"].text.endswith(change)
    assert "stays" not in rows["aws is lost"].text
    assert "the largest changes" not in rows["gcp is lost"].text  # nothing is left for `stays`
