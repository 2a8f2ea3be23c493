"""Policies that contradict one another are named, and what is said to be enough is enough."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.errors import InfeasibleError
from flopwise.fleet.model import MonthlyOption, WorkloadDemand
from flopwise.fleet.program import EFFORT
from flopwise.fleet.spec import Backup, Policies, Quota

sys.path.insert(0, str(Path(__file__).parent))
from options import RULES as NO_POLICIES
from options import allocate, demand, option

RULES = replace(NO_POLICIES, backup=Backup(share=0.5, on=True, hours=24))


def refused(options: list[MonthlyOption], demands: list[WorkloadDemand], rules: Policies) -> InfeasibleError:
    with pytest.raises(InfeasibleError) as error:
        allocate(options, demands, rules)
    return error.value


def test_a_quota_and_a_backup_are_named_together() -> None:
    """Four instances with a and two standing by with b, of which there may be one."""
    options = [option(0, "a", 10, 4), option(0, "b", 20, 4)]
    quotas = (Quota(most=1, provider="b", instance=None),)
    error = refused(options, [demand("s", backup=True)], replace(RULES, quotas=quotas))
    assert "the quota of 1 x b" in str(error)
    assert "capacity in a second provider" in str(error)
    assert allocate(options, [demand("s")], replace(RULES, quotas=quotas)).usd == 40
    assert allocate(options, [demand("s", backup=True)], replace(RULES, quotas=(replace(quotas[0], most=2),))).usd == 80


def test_policies_that_do_not_matter_are_not_named() -> None:
    options = [option(0, "a", 10, 4), option(1, "b", 20, 4)]
    quotas = (Quota(most=3, provider="a", instance=None), Quota(most=50, provider="b", instance=None))
    error = refused(options, [demand("s"), demand("t")], replace(RULES, quotas=quotas, max_spot_share=0.5))
    assert str(error).startswith("no allocation meets the quota of 3 x a. The nearest has")
    assert error.reasons == ("the quota of 3 x a: 4 are needed",)


def test_whole_machines_that_do_not_divide_are_said_to_be_the_trouble() -> None:
    """Half and half of three equal machines would do if they could be cut."""
    options = [c for w in range(3) for c in (option(w, "a", 10), option(w, "b", 10))]
    rules = replace(RULES, providers={"a": 0.5, "b": 0.5})
    error = refused(options, [demand(f"w{w}") for w in range(3)], rules)
    assert "cannot be divided that way; widen policies.share_tolerance" in str(error)
    assert {re.findall(r"[\d.]+ % is", r)[0] for r in error.reasons} <= {"33.3 % is", "66.7 % is"}
    assert allocate(options, [demand(f"w{w}") for w in range(3)], replace(rules, share_tolerance=0.17)).usd == 30


def test_a_share_that_is_missed_by_little_is_told_with_enough_digits() -> None:
    options = [option(0, "a", 1001), option(1, "b", 1000)]
    error = refused(
        options, [demand("s"), demand("t")], replace(RULES, providers={"a": 0.5, "b": 0.5}, share_tolerance=0)
    )
    assert "50.025 % is the nearest" in str(error)


def test_a_budget_beside_other_contradictions() -> None:
    options = [option(0, "a", 100)]
    rules = replace(RULES, providers={"a": 0.5, "b": 0.5}, budget_per_month=50)
    error = refused(options, [demand("s")], rules)
    assert "the budget of $50: $100 are needed" in error.reasons
    assert any("share" in reason for reason in error.reasons)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50), st.integers(1, 4)), min_size=1, max_size=3),
             min_size=1, max_size=4),
    st.tuples(st.integers(0, 5), st.integers(0, 5)),
)  # fmt: skip
def test_quotas_that_give_as_much_as_is_said_are_enough(
    jobs: list[list[tuple[str, int, int]]], most: tuple[int, int]
) -> None:
    options = [option(w, p, usd, n) for w, row in enumerate(jobs) for p, usd, n in row]
    demands = [demand(f"w{w}") for w in range(len(jobs))]
    quotas = [Quota(most=n, provider=p, instance=None) for p, n in zip("ab", most, strict=True)]
    try:
        allocate(options, demands, replace(RULES, quotas=tuple(quotas)))
    except InfeasibleError as error:
        for reason in error.reasons:
            found = re.fullmatch(r"the quota of (\d+) x (\w): (\d+) are needed", reason)
            assert found is not None
            assert int(found[3]) > int(found[1])
            quotas["ab".index(found[2])] = Quota(most=int(found[3]), provider=found[2], instance=None)
        allocate(options, demands, replace(RULES, quotas=tuple(quotas)))


def test_it_is_said_in_time() -> None:
    """Odd sums that can hardly be met to the cent: given up, with what comes nearest."""
    options = [c for w in range(60) for c in (option(w, "a", 100 + 37 * w % 91), option(w, "b", 100 + 53 * w % 89))]
    rules = replace(RULES, providers={"a": 0.5, "b": 0.5}, share_tolerance=0, max_spot_share=0.9)
    started = time.monotonic()
    try:
        allocate(options, [demand(f"w{w}") for w in range(60)], rules, effort=0.2 * EFFORT)
    except InfeasibleError as error:
        assert error.reasons  # noqa: PT017 - it may be met, too
    assert time.monotonic() - started < 10


def test_a_backup_that_stands_against_shares_is_named() -> None:
    """All of a bill with `a` within 5 %: what stands by with `b` is 11 % of it, and without it the shares are held."""
    options = [option(0, "a", 10, 8), option(0, "b", 2.5, 4)]
    whole = replace(RULES, providers={"a": 1.0}, backup=Backup(share=1.0, on=True, hours=24))
    error = refused(options, [demand("s", backup=True)], whole)
    assert "backup" in str(error) or "capacity in a second provider" in str(error)
    assert "cannot be divided" not in str(error)
    assert allocate(options, [demand("s")], whole).usd == 80


def test_a_backup_that_leaves_no_whole_machines_for_shares_is_named() -> None:
    """Half of a machine at 100 would stand by within the shares, a whole one does not; without it they hold."""
    options = [option(0, "a", 50, 1), option(1, "b", 50, 1), option(2, "a", 100, 1), option(2, "b", 5, 1)]
    half = replace(
        RULES, providers={"a": 0.5, "b": 0.5}, backup=Backup(share=0.5, on=True, hours=24), share_tolerance=0.15
    )
    assert allocate(options, [demand("s"), demand("t"), demand("u")], half).usd == 105
    error = refused(options, [demand("s"), demand("t"), demand("u", backup=True)], half)
    assert "the backup of u" in str(error)
    assert "cannot be divided" not in str(error)
