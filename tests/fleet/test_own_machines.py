"""Own machines in the allocation: a month by hand, only as many as there are, shared, kept, set beside clouds."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.allocate import allocate as allocation
from flopwise.fleet.allocate import allocation_problem
from flopwise.fleet.model import MonthlyOption, OwnPool
from flopwise.fleet.offers import OwnOffer, with_own
from flopwise.fleet.outlook import bindings
from flopwise.fleet.planned import planned_workloads
from flopwise.fleet.read import fleet_from, load_fleet, parse_fleet
from flopwise.fleet.spec import Policies
from named import FACTS

sys.path.insert(0, str(Path(__file__).parent))
from options import allocate, demand, option
from small import assess

EXAMPLE = Path(__file__).parents[2] / "examples" / "hybrid.yaml"
TUNE: dict[str, Any] = {
    "name": "tune", "task": "finetune", "model": "Llama-7B", "method": {"kind": "lora"},
    "data": {"tokens": "500M", "seq_len": 2048}, "runs_per_month": 4,
}  # fmt: skip
CHAT: dict[str, Any] = {
    "name": "chat", "task": "serve", "model": "Llama-7B", "hours": {"per_day": 10, "days": 22},
    "traffic": {"requests_per_s": 2, "input_tokens": 256, "output_tokens": 64},
}  # fmt: skip
BOX: dict[str, Any] = {
    "name": "box", "gpu": "L40S", "gpus": 4, "count": 2, "price": 60_000,
    "site": {"usd_per_kwh": 0.2, "pue": 1.5, "facility_usd_per_kw": 0, "staff_usd_per_year": 12_000,
             "gpus_per_person": 100, "support_frac_per_year": "4%", "network_frac": 0, "years": 5, "residual_frac": 0,
             "interest_per_year": 0, "maintenance_hours_per_month": 30},
}  # fmt: skip
RULES = fleet_from({"name": "f", "workloads": [TUNE]}).rules


@pytest.fixture(scope="module")
def facts() -> Facts:
    whole = load_facts(None)
    kept = [o for o in whole.offers if o.accelerator in {"L40S", "L4"} and o.provider in {"aws", "gcp"}]
    return whole.with_tables(offers=tuple(kept))


def fleet(*jobs: dict[str, Any], box: dict[str, Any] | None = None, **policies: Any) -> Any:
    return fleet_from({"name": "f", "workloads": list(jobs), "own_machines": [BOX | (box or {})], "policies": policies})


def offer(platform: Any, facts: Facts) -> OwnOffer:
    [found] = [o for o in with_own(facts, platform.fleet.own_machines).offers if isinstance(o, OwnOffer)]
    return found


def by_hand() -> tuple[float, float, float]:
    """(support and staff, power at idle, depreciation) of one box a month: four L40S of 350 W."""
    others = 60_000 * 0.04 / 12 + 4 * 12_000 / 12 / 100
    idle = 4 * (0.10 * 350 + 0.50 * 350) / 1000 * 1.5 * 730 * 0.2
    return others, idle, 60_000 / 60


def test_a_month_of_one_by_hand(facts: Facts) -> None:
    found = offer(fleet(TUNE), facts)
    others, idle, capital = by_hand()
    assert found.standing == pytest.approx(others + idle)
    assert found.capital == pytest.approx(capital)
    assert found.pool.off_usd == pytest.approx(others)
    assert found.idle_kwh * 0.2 == pytest.approx(idle)
    assert found.pool.used_usd(2) == pytest.approx(2 * (others + idle))
    more = offer(fleet(TUNE, box={"count": 1, "buy_up_to": 2}), facts)
    assert more.pool.used_usd(3) == pytest.approx(3 * (others + idle) + 2 * capital)
    counted = offer(fleet(TUNE, box={"sunk": False}), facts)
    assert counted.pool.used_usd(2) == pytest.approx(2 * (others + idle + capital))
    given_up = offer(fleet(TUNE, box={"kept": False}), facts)
    assert given_up.pool.off_usd == 0


def test_two_workloads_share_a_machine_and_pay_for_it_once(facts: Facts) -> None:
    """The bill by hand: one machine on, the other turned off but paid, and what work draws beyond idling."""
    tune, chat = TUNE | {"purchase": ["owned"]}, CHAT | {"purchase": ["owned"]}
    platform = fleet(tune, chat)
    items = planned_workloads(platform, facts)
    found = allocation(allocation_problem(platform, items, FACTS), gap=0.0)
    others, idle, _ = by_hand()
    drawn = 0.0
    for item in items:
        way = item.options[0]
        assert way.instances == 1
        runs = 4 if item.job.ends else way.busy_hours / 730
        kwh = (way.candidate.energy_joules or 0) * runs / 3.6e6 * 1.5 / DEFAULT_POWER.pue
        drawn += 0.2 * (kwh - 4 * (0.10 + 0.50) * 350 / 1000 * 1.5 * way.busy_hours)
    assert drawn > 0
    assert list(found.pools.values()) == [1]
    assert [count for count, _ in found.idle.values()] == [1]
    assert found.usd == pytest.approx(2 * others + idle + drawn)
    answer = assess(platform, facts, scenarios=50, today="2026-11-21")
    assert answer.usd_per_month.total == pytest.approx(found.usd)
    bills = {row.workload: row.usd_per_month for row in answer.allocation}
    assert bills[""] == pytest.approx(others)  # the machine that carries nothing
    hours = {i.job.name: i.options[0].busy_hours for i in items}
    share = {i.job.name: i.options[0].usd_running for i in items}
    for name in ("tune", "chat"):
        part = hours[name] / sum(hours.values())
        assert bills[name] == pytest.approx(part * (others + idle) + share[name])
    [row] = answer.own_machines
    assert row["utilisation"] == pytest.approx(sum(hours.values()) / 700)
    assert any("idle: 1 of 2 own box, paid" in note for note in answer.price_notes)


def test_clouds_carry_what_own_machines_cannot(facts: Facts) -> None:
    """A service that needs three machines, of which there are two: the rest is rented."""
    busy = CHAT | {"hours": {"always": True}, "traffic": CHAT["traffic"] | {"requests_per_s": 1500}}
    platform = fleet(busy, purchase=["on_demand"])
    [item] = planned_workloads(platform, facts)
    alone = next(w for w in item.options if w.purchase == "owned")
    needed = alone.instances
    assert needed > 2
    found = allocation(allocation_problem(platform, [item], FACTS), gap=0.0)
    own = sum(t.count for t in found.taken if t.option.purchase == "owned")
    assert 0 < own <= 2
    assert any(t.option.purchase == "on_demand" for t in found.taken)
    enough = fleet(busy, box={"buy_up_to": needed}, purchase=["on_demand"])
    more = allocation(allocation_problem(enough, planned_workloads(enough, facts), FACTS), gap=0.0)
    assert more.usd < found.usd
    [told] = [b for b in bindings(allocation_problem(platform, [item], FACTS), found) if b.constraint == "own box"]
    assert told.usd_per_month == pytest.approx(found.usd - more.usd, rel=1e-3)
    assert told.text.startswith("the number of own box costs $")
    only = fleet(busy | {"purchase": ["owned"]})
    with pytest.raises(InfeasibleError, match="the number of own box, 2: "):
        assess(only, facts, scenarios=0)


def test_the_price_of_machines_that_are_there_does_not_age(facts: Facts) -> None:
    """Bought long ago and paid: only those to be bought are at a price that may have changed."""
    h100 = {"gpu": "H100-SXM-80", "gpus": 8, "price": None}
    job = TUNE | {"purchase": ["owned"]}
    there = assess(fleet(job, box=h100), facts, scenarios=0, today="2026-11-21")
    assert {row.price_date for row in there.allocation} == {""}
    assert not any("days old" in note for note in there.price_notes)
    bought = assess(fleet(job, box=h100 | {"count": 0, "buy_up_to": 1}), facts, scenarios=0, today="2026-11-21")
    assert {row.price_date for row in bought.allocation} == {"2023-05-29"}
    assert any("on-premises box is of 2023-05-29" in note for note in bought.price_notes)


def test_less_demand_saves_nothing_on_own_machines(facts: Facts) -> None:
    answer = assess(fleet(TUNE | {"purchase": ["owned"]}), facts, scenarios=500)
    drawn = answer.scenarios
    assert drawn is not None
    assert drawn.p10 == pytest.approx(answer.usd_per_month.total)
    assert drawn.p90 > drawn.p10


def test_people_work_on_own_machines_where_those_fit(facts: Facts) -> None:
    """Two desks on two boxes, all of their hours in the bill; a third needs the cloud."""
    desks = {"name": "d", "task": "develop", "environment": "development", "machines": {"count": 2, "memory": "40GB"}}
    others, idle, _ = by_hand()
    [item] = planned_workloads(fleet(desks), facts)
    found = allocation_problem(
        fleet(desks | {"purchase": ["owned"]}), planned_workloads(fleet(desks | {"purchase": ["owned"]}), facts), FACTS
    )
    power = 4 * (0.95 - 0.10) * 350 / 1000 * 1.5 * 176 * 0.2
    assert allocation(found, gap=0.0).usd == pytest.approx(2 * (others + idle + power))
    more = fleet(desks | {"machines": {"count": 3, "memory": "40GB"}})
    taken = allocation(allocation_problem(more, planned_workloads(more, facts), FACTS), gap=0.0).taken
    assert sum(t.count for t in taken) == 3
    assert sum(t.count for t in taken if t.option.purchase == "owned") <= 2
    assert {w.purchase for w in item.options} == {"on_demand", "owned"}


def test_a_dozen_boxes_for_two_say_how_many_are_needed() -> None:
    own = OwnPool(tiers=((1, 10.0), (1, 90.0)))
    options = [held(w, "o", 10, 1, own=own) for w in range(3)]
    demands = [demand(f"w{w}") for w in range(3)]
    with pytest.raises(InfeasibleError, match=r"the number of own o.*, 2: 3 are needed"):
        allocate(options, demands, RULES)


def held(
    workload: int, instance: str, usd: float, n: int, hours: float = 730, own: OwnPool | None = None, running: float = 0
) -> MonthlyOption:
    purchase = "on_demand" if own is None else "owned"
    return option(
        workload, f"p-{instance}", usd, n, purchase=purchase, hours=hours, instance=instance, running=running, own=own
    )


JOBS = st.lists(
    st.one_of(
        st.tuples(st.just(1), st.sampled_from([100.0, 350.0]), st.integers(20, 200), st.integers(0, 5)),
        st.tuples(st.integers(1, 3), st.just(730.0), st.integers(20, 200), st.integers(0, 5)),
    ),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(JOBS, st.integers(0, 2), st.integers(0, 2), st.sampled_from([0.0, 15.0]))
def test_it_is_the_best_of_all(jobs: list[tuple[int, float, int, int]], there: int, more: int, off: float) -> None:
    """Each run goes to the cloud or to own machines: every combination, machines counted by hand.

    Runs with hours to spare are packed into the hours of the month; what needs several machines is there all month
    (`test_week` has those that are not).
    """
    own = OwnPool(tiers=((there, 30.0), (more, 95.0)), off_usd=off, hours=700.0)
    options = [held(w, "cloud", usd, n, hours) for w, (n, hours, usd, _) in enumerate(jobs)]
    options += [held(w, "o", 30, n, hours, own, running) for w, (n, hours, _, running) in enumerate(jobs)]
    demands = [demand(f"w{w}", flexible=True) for w in range(len(jobs))]
    costs = []
    for picked in product([False, True], repeat=len(jobs)):
        mine = [job for job, here in zip(jobs, picked, strict=True) if here]
        work = sum(n * min(hours / 700, 1.0) for n, hours, *_ in mine)
        machines = max([math.ceil(round(work, 9)), *(n for n, *_ in mine)], default=0)
        if machines > there + more:
            continue
        cost = there * off + min(machines, there) * 30 + max(0, machines - there) * 95
        cost += sum(n * running for n, _, _, running in mine)
        costs.append(cost + sum(n * usd for (n, _, usd, _), here in zip(jobs, picked, strict=True) if not here))
    found = allocate(options, demands, RULES, gap=0.0)
    assert found.usd == pytest.approx(min(costs))
    assert sum(found.by_provider.values()) == pytest.approx(found.usd)


def rules(**shares: float) -> Policies:
    return replace(RULES, providers=shares, share_tolerance=0.0)


def test_shares_are_of_what_is_rented() -> None:
    """Own machines for 100 a month, and clouds in halves; named among the shares they count."""
    own = OwnPool(tiers=((1, 100.0), (0, 900.0)))
    options = [held(0, "o", 100, 1, own=own), held(1, "a", 50, 1), held(2, "b", 50, 1), held(2, "a", 40, 1)]
    demands = [demand(f"w{w}") for w in range(3)]
    found = allocate(options, demands, rules(**{"p-a": 0.5, "p-b": 0.5}))
    assert found.by_provider == pytest.approx({"p-o": 100, "p-a": 50, "p-b": 50})
    named = allocate(options, demands, rules(**{"p-o": 0.5, "p-a": 0.25, "p-b": 0.25}))
    assert named.by_provider == pytest.approx(found.by_provider)
    with pytest.raises(InfeasibleError, match="p-o share"):
        allocate(options, demands, rules(**{"p-o": 0.2, "p-a": 0.4, "p-b": 0.4}))


def test_own_machines_have_their_place_and_tags(facts: Facts) -> None:
    """Residency and tags hold for them as for clouds, policies on what is rented do not."""
    here = {"region": "eu-cellar", "tags": ["Air-Gapped"]}
    alone = fleet(TUNE | {"residency": ["eu-cellar"], "tags": ["air-gapped"]}, box=here)
    assert {w.purchase for w in planned_workloads(alone, facts)[0].options} == {"owned"}
    away = fleet(TUNE | {"residency": ["us-*"]}, box=here, purchase=["on_demand"])
    assert {w.purchase for w in planned_workloads(away, facts)[0].options} == {"on_demand"}
    rented = fleet(TUNE, box=here, regions=["us-east-1"], providers={"aws": 1.0})
    assert {w.purchase for w in planned_workloads(rented, facts)[0].options} == {"on_demand", "owned"}
    with pytest.raises(UnknownNameError, match="air-gapped"):
        assess(fleet(TUNE | {"tags": ["air-gaped"]}, box=here | {"tags": ["air-gapped"]}), facts)
    limited = fleet(TUNE | {"constraints": {"instances": ["box"]}}, box=here)
    assert {w.offer.instance for w in planned_workloads(limited, facts)[0].options} == {"box"}
    cloud = fleet(TUNE | {"constraints": {"providers": ["aws"]}}, box=here)
    assert {w.offer.provider for w in planned_workloads(cloud, facts)[0].options} == {"aws"}


def test_a_workload_that_does_not_name_them_leaves_own_machines_out(facts: Facts) -> None:
    platform = fleet(TUNE | {"purchase": ["on_demand"]}, purchase=["on_demand", "spot"])
    assert {w.purchase for w in planned_workloads(platform, facts)[0].options} == {"on_demand"}


def test_the_table_says_when_clouds_are_dearer(facts: Facts) -> None:
    """Break-even with an on-demand offer solved by hand: fixed + power u = hours u price."""
    answer = assess(fleet(TUNE), facts, scenarios=0)
    [row] = answer.own_machines
    others, idle, capital = (value / 4 for value in by_hand())
    power = (0.95 - 0.10) * 350 / 1000 * 1.5 * 700 * 0.2
    cloud = next(r for r in row["against"] if r["purchase"] == "on_demand")
    even = (others + idle + capital) / (700 * cloud["usd_per_gpu_hour"] - power)
    assert cloud["break_even_utilisation"] == pytest.approx(even)
    assert cloud["keeping_break_even_utilisation"] == pytest.approx(even * (others + idle) / (others + idle + capital))
    for other in (r for r in row["against"] if r["purchase"].startswith("reserved")):
        month = others + idle + capital + power * (row["utilisation"] or 0.6)
        assert (other["break_even_utilisation"] == 0) == (month <= 730 * other["usd_per_gpu_hour"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"count": -1}, r"fleet.yaml:8: own_machines.0.count: -1 is out of range"),
        ({"count": 0}, r"fleet.yaml:\d+: own_machines.0: none exist and none may be bought"),
        ({"gpus": 0}, r"own_machines.0.gpus: 0 is out of range"),
        ({"price": 0}, r"own_machines.0.price: 0 is out of range"),
        ({"network": "0Gbps"}, r"own_machines.0.network: 0Gbps is out of range; allowed: 1.00 B/s or more"),
        ({"region": "eu-*"}, r"own_machines.0.region: 'eu-\*' is not a place"),
        ({"kg_per_kwh": 9}, r"own_machines.0.kg_per_kwh: 9 is out of range"),
        ({"site": {"pue": 0.5}}, r"fleet.yaml:\d+: own_machines.0.site.pue: 0.5 is out of range"),
        ({"site": {"puf": 1.5}}, r"unknown key 'puf'.*nearest: pue"),
        ({"site": {"colocation_usd_per_kw_month": 200}}, r"set `colocation: true`"),
        ({"gpuz": 8}, r"unknown key 'gpuz'"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(change: dict[str, Any], says: str) -> None:
    entry = {"name": "box", "gpu": "L40S", "gpus": 4, "count": 2} | change
    text = "name: f\nworkloads:\n" + "  - {name: d, task: develop, environment: development, machines: {}}\n"
    text += "own_machines:\n" + "".join(
        f"  {'-' if n == 0 else ' '} {key}: {yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}\n"
        for n, (key, value) in enumerate(sorted(entry.items(), key=lambda item: item[0] != "name"))
    )
    with pytest.raises(SpecError, match=says):
        parse_fleet(text, "fleet.yaml")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gpu": "L40SS"}, r"own_machines.0.gpu: .*nearest: L40S"),
        ({"provider": "aws"}, r"own_machines.0.provider: aws rents machines"),
        ({"gpu": "T4", "price": None}, r"own_machines.0: the purchase price of T4 is not known.*give `price`"),
    ],
)
def test_what_is_not_known_is_said(facts: Facts, change: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        assess(fleet(TUNE, box=change), facts)


def test_what_is_assumed_of_a_machine_is_told(facts: Facts) -> None:
    """The least host memory and the slowest network of clouds' machines with as many of the accelerators."""
    alike = [o for o in facts.offers if (o.accelerator, o.count) == ("L40S", 4)]
    found = offer(fleet(TUNE), facts)
    assert found.ram_bytes == min(o.ram_bytes for o in alike if o.ram_bytes)
    assert found.network_bytes_per_s == min(o.network_bytes_per_s for o in alike if o.network_bytes_per_s)
    [item] = planned_workloads(fleet(TUNE), facts)
    assert any(note.startswith("own box: ") and "as none was given" in note for note in item.notes)
    described = offer(fleet(TUNE, box={"memory": "1TB", "network": "100GB/s"}), facts)
    assert (described.ram_bytes, described.network_bytes_per_s) == (1e12, 100e9)
    assert "as none was given" not in described.assumed


def test_owned_needs_machines() -> None:
    with pytest.raises(SpecError, match=r"policies.purchase: owned needs machines"):
        fleet_from({"name": "f", "workloads": [TUNE], "policies": {"purchase": ["owned"]}})
    with pytest.raises(SpecError, match=r"workloads.0.purchase: owned needs machines"):
        fleet_from({"name": "f", "workloads": [TUNE | {"purchase": ["owned"]}]})
    with pytest.raises(SpecError, match=r"own_machines.1.name: 'box' is used twice"):
        fleet_from({"name": "f", "workloads": [TUNE], "own_machines": [BOX, BOX]})


def test_the_hybrid_example_uses_all_three() -> None:
    """Own machines for what has to stay, clouds for the rest, an API where nothing forbids it."""
    answer = assess(load_fleet(EXAMPLE), load_facts(None), scenarios=100, today="2026-11-21")
    rows = answer.allocation
    bought = {row.workload: {r.purchase for r in rows if r.workload == row.workload} for row in rows}
    assert bought["assistant"] == {"owned"}
    assert bought["questions of the public"] == {"api"}
    assert {"on_demand"} in bought.values()
    bill = answer.usd_per_month
    assert sum(row.usd_per_month for row in rows) + bill.storage + bill.traffic == pytest.approx(bill.total)
    assert answer.own_machines[0]["against"]
    assert answer.hosted
