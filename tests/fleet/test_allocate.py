"""The allocation is the cheapest that holds the policies: against brute force, arithmetic, and its own constraints."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.errors import InfeasibleError
from flopwise.fleet.allocate import BudgetError
from flopwise.fleet.model import Allocation, Budget, ProviderShare
from flopwise.fleet.program import Program, Solution, solve
from flopwise.fleet.spec import Backup, Quota

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES, allocate, demand, option


def by_provider(found: Allocation) -> dict[str, float]:
    paid: dict[str, float] = {}
    for t in found.taken:
        if not t.option.is_pooled:
            paid[t.option.provider] = paid.get(t.option.provider, 0.0) + t.count * t.option.usd_each
    return paid


def test_the_solver_prints_nothing() -> None:
    """What it writes by itself would stand before the JSON of an answer; it does so once, in a fresh process."""
    program = "Program(costs=[1.0], upper=[1.0], whole=[True], rows=[])"
    code = f"from flopwise.fleet.program import Program, solve; assert solve({program}, 0.0, 1.0).columns is not None"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (ended.stdout, ended.stderr) == ("", "")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.integers(1, 3)), min_size=1, max_size=4),
             min_size=1, max_size=4),
    st.sampled_from([0, 3, 5]),
)  # fmt: skip
def test_it_is_the_best_of_all(jobs: list[list[tuple[str, int, int]]], most: int) -> None:
    """Unsplittable workloads, one quota: every combination tried."""
    caps = (Quota(most=most, provider="a", instance=None),) if most else ()
    options = [option(w, p, usd, n) for w, row in enumerate(jobs) for p, usd, n in row]
    demands = [demand(f"w{w}") for w in range(len(jobs))]
    costs = [
        sum(usd * n for _, usd, n in picked)
        for picked in product(*jobs)
        if not most or sum(n for p, _, n in picked if p == "a") <= most
    ]
    if not costs:
        with pytest.raises(InfeasibleError, match="the quota of"):
            allocate(options, demands, replace(RULES, quotas=caps))
        return
    assert allocate(options, demands, replace(RULES, quotas=caps)).usd == pytest.approx(min(costs))


def test_services_are_split_to_hold_shares() -> None:
    options = [option(0, "aws", 110, 10), option(0, "gcp", 100, 10)]
    rules = replace(RULES, providers={"aws": 0.6, "gcp": 0.4})
    found = allocate(options, [demand("s", split=True)], rules)
    paid = by_provider(found)
    assert 0.55 <= paid["aws"] / sum(paid.values()) <= 0.65
    assert sum(t.count for t in found.taken) == 10
    free = allocate(
        options,
        [demand("s", split=True)],
        rules,
        without=frozenset({ProviderShare("aws", 0.6), ProviderShare("gcp", 0.4)}),
    )
    assert free.usd == pytest.approx(1000)
    assert free.usd < found.usd


def test_shares_are_not_held_by_waste() -> None:
    """Idle machines with the dearer provider would make its share; the answer is that the policies contradict."""
    options = [option(0, "aws", 1000), option(1, "aws", 100), option(1, "gcp", 110)]
    rules = replace(RULES, providers={"aws": 0.5, "gcp": 0.5})
    with pytest.raises(InfeasibleError, match="the 50 % aws share and the 50 % gcp share together"):
        allocate(options, [demand("big"), demand("small")], rules)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99)), min_size=2, max_size=5), st.floats(0.1, 0.9))
def test_what_is_split_leaves_less_than_an_instance_over(kinds: list[tuple[int, int]], share: float) -> None:
    options = [option(0, "ab"[k % 2], usd, n, instance=f"i{k}") for k, (n, usd) in enumerate(kinds)]
    rules = replace(RULES, providers={"a": share, "b": 1 - share}, share_tolerance=0.3)
    try:
        found = allocate(options, [demand("s", split=True)], rules)
    except InfeasibleError:
        return
    carried = sum(t.count / t.option.instances for t in found.taken)
    assert 1 - 1e-6 <= carried < 1 + 1 / min(n for n, _ in kinds)


def test_runs_share_a_reserved_machine_where_that_is_cheaper() -> None:
    """Five runs of 140 h: on demand 5 x 140 x $10; one reserved machine at $4,000 holds all 700 h."""
    options = [option(w, "aws", 1400, hours=140) for w in range(5)]
    options += [option(w, "aws", 4000, hours=140, purchase="reserved_1y") for w in range(5)]
    found = allocate(options, [demand(f"w{w}", flexible=True) for w in range(5)], RULES)
    assert found.usd == pytest.approx(4000)
    assert list(found.pools.values()) == [1]
    four = allocate(options[:2] + options[5:7], [demand("w0", flexible=True), demand("w1", flexible=True)], RULES)
    assert four.usd == pytest.approx(2800)


def test_what_is_on_at_the_same_hours_needs_machines_of_its_own() -> None:
    """Two teams in office hours do not share; a night run does."""
    reserved = [option(w, "aws", 1000, hours=176, purchase="reserved_1y") for w in range(2)]
    office = [demand(f"w{w}", slots=(40 / 168, 0, 0)) for w in range(2)]
    assert allocate(reserved, office, RULES).pools[reserved[0].machine] == 2
    night = [option(2, "aws", 1000, hours=300, purchase="reserved_1y")]
    assert (
        allocate(
            reserved + night, [*office, demand("n", flexible=True, slots=(40 / 168, 80 / 168, 48 / 168))], RULES
        ).pools[reserved[0].machine]
        == 2
    )


def test_a_service_all_month_needs_a_whole_reserved_machine() -> None:
    options = [option(w, "aws", 1000, hours=730, purchase="reserved_1y") for w in range(3)]
    assert allocate(options, [demand(f"w{w}") for w in range(3)], RULES).usd == pytest.approx(3000)


@pytest.mark.parametrize("split", [False, True])
def test_a_standby_runs_the_software_of_what_it_stands_by_for(split: bool) -> None:
    """Eight GPUs at aws, $10 each; a quarter of them stands by at gcp: two GPUs at $30, not TPUs at $12."""
    gpus, dear = (replace(option(0, *machines), software="cuda") for machines in (("aws", 10, 8), ("gcp", 30, 8)))
    tpus = replace(option(0, "gcp", 12, 8, instance="tpu"), software="xla")
    found = allocate([gpus, dear, tpus], [demand("s", split=split, backup=True)], RULES, gap=0.0)
    assert {t.option.software for t in found.taken} == {"cuda"}
    assert sum(t.count for t in found.taken if t.option.provider == "gcp") == 2


def test_backup_stands_with_another_provider() -> None:
    options = [option(0, "aws", 100, 8), option(0, "gcp", 150, 8)]
    found = allocate(options, [demand("s", backup=True)], RULES)
    roles = {(t.role, t.option.provider): t.count for t in found.taken}
    assert roles == {("primary", "aws"): 8, ("backup", "gcp"): 2}
    split = allocate(options, [demand("s", split=True, backup=True)], RULES)
    assert {(t.role, t.option.provider): t.count for t in split.taken} == {("primary", "aws"): 6, ("primary", "gcp"): 2}
    assert found.usd == pytest.approx(8 * 100 + 2 * 150)


@pytest.mark.parametrize("kg_usd", [0.0, 1.0])
def test_a_budget_below_the_floor_says_the_floor(kg_usd: float) -> None:
    """The error has the allocation without it, so that nobody solves that again."""
    options, demands = [option(0, "aws", 100, 8), option(0, "gcp", 110, 8)], [demand("s")]
    rules = replace(RULES, carbon_usd_per_kg=kg_usd)
    with pytest.raises(BudgetError, match=r"at least \$800.*budget is \$500") as raised:
        allocate(options, demands, replace(rules, budget_per_month=500))
    free, found = allocate(options, demands, rules), raised.value.free
    assert found is not None
    assert (found.taken, found.usd, found.gap) == (free.taken, free.usd, free.gap)


@pytest.mark.parametrize("kg_usd", [0.0, 1.0])
def test_a_budget_that_the_best_allocation_meets_is_no_constraint(
    monkeypatch: pytest.MonkeyPatch, kg_usd: float
) -> None:
    """Else the solver, with so much effort, might not find what it found without the budget."""
    policies = list[object]()

    def seen(program: Program, *args: Any, **how: Any) -> Solution:
        policies.extend(row.policy for row in program.rows)
        return solve(program, *args, **how)

    monkeypatch.setattr("flopwise.fleet.allocate.solve", seen)
    options = [option(0, "aws", 100, kg=50), option(0, "gcp", 110, kg=5)]
    rules = replace(RULES, carbon_usd_per_kg=kg_usd)
    free = allocate(options, [demand("s")], rules)
    held = allocate(options, [demand("s")], replace(rules, budget_per_month=free.usd))
    assert (held.usd, held.taken) == (free.usd, free.taken)
    assert Budget(free.usd) not in policies
    if kg_usd:  # a budget between the two leaves the cheaper one
        bound = allocate(options, [demand("s")], replace(rules, budget_per_month=105))
        assert bound.usd == pytest.approx(100)


def test_carbon_weighs_in() -> None:
    options = [option(0, "aws", 100, kg=50), option(0, "gcp", 110, kg=5)]
    assert allocate(options, [demand("s")], RULES).taken[0].option.provider == "aws"
    green = allocate(options, [demand("s")], replace(RULES, carbon_usd_per_kg=1.0))
    assert green.taken[0].option.provider == "gcp"
    assert green.usd == pytest.approx(110)
    assert green.kg == pytest.approx(5)


def test_the_share_on_spot_is_held() -> None:
    options = [c for w in range(4) for c in (option(w, "aws", 100), option(w, "aws", 30, purchase="spot"))]
    demands = [demand(f"w{w}") for w in range(4)]
    assert allocate(options, demands, RULES).usd == pytest.approx(120)
    found = allocate(options, demands, replace(RULES, max_spot_share=0.25))
    spot = sum(t.option.usd_each for t in found.taken if t.option.purchase == "spot")
    assert spot <= 0.25 * found.usd + 1e-6
    assert found.usd == pytest.approx(2 * 100 + 2 * 30)


def test_a_workload_without_options_is_named() -> None:
    with pytest.raises(InfeasibleError, match="no offer can run lonely"):
        allocate([option(0, "aws", 1)], [demand("a"), demand("lonely")], RULES)


def test_contradicting_policies_are_named() -> None:
    rules = replace(RULES, providers={"aws": 0.5, "gcp": 0.5})
    with pytest.raises(InfeasibleError, match="the 50 % aws share and the 50 % gcp share together"):
        allocate([option(0, "aws", 100)], [demand("s")], rules)


def test_a_split_workload_is_its_own_backup() -> None:
    """8 machines with aws at 10 or with gcp at 11: shares of 60 and 40 % leave 40 % of it if aws is lost."""
    options = [option(0, "aws", 10, 8), option(0, "gcp", 11, 8)]
    shares = replace(RULES, providers={"aws": 0.6, "gcp": 0.4}, share_tolerance=0.1)
    backed = allocate(options, [demand("s", split=True, backup=True)], shares, gap=0.0)
    assert {t.role for t in backed.taken} == {"primary"}
    assert backed.usd == allocate(options, [demand("s", split=True)], shares, gap=0.0).usd


def test_a_small_part_elsewhere_counts_towards_the_backup() -> None:
    """One of 10 machines is with gcp: of the nine of aws a third are asked for, two more than it."""
    options = [option(0, "aws", 10, 10), option(0, "gcp", 50, 10)]
    caps = (Quota(most=9, provider="aws", instance=None),)
    third = replace(RULES, backup=Backup(share=1 / 3, on=False, hours=73), quotas=caps)
    found = allocate(options, [demand("s", split=True, backup=True)], third, gap=0.0)
    counted = {(t.role, t.option.provider): t.count for t in found.taken}
    assert counted == {("primary", "aws"): 9, ("primary", "gcp"): 1, ("backup", "gcp"): 2}
    assert found.usd == pytest.approx(9 * 10 + 50 + 2 * 50 * 0.1)
