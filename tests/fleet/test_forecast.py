"""The months to come are sums of workloads that begin and grow; runs grow with their number, machines come whole."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.fleet.schedules import month_after, months_between

sys.path.insert(0, str(Path(__file__).parent))
from small import answer, catalog


def own(name: str) -> float:
    return answer().assessment.usd_per_month.by_workload[name]


def test_months_begin_with_the_first_workload_and_end_a_year_after_the_last() -> None:
    months = answer().assessment.forecast
    assert [m.month for m in months] == [month_after("2027-01", n) for n in range(14)]
    assert [m.workloads for m in months[:2]] == [3, 4]


def test_the_first_months_by_hand() -> None:
    """January: tune, nightly and desks as they are; February adds chat, and a tenth more runs of tune."""
    first, second = answer().assessment.forecast[:2]
    assert first.usd == pytest.approx(own("tune") + own("nightly") + own("desks"))
    assert second.usd == pytest.approx(1.1 * own("tune") + own("nightly") + own("desks") + own("chat"), rel=1e-3)
    assert first.low <= first.usd <= first.high


def test_services_grow_by_whole_machines_and_only_when_those_they_have_are_full() -> None:
    months = answer().assessment.forecast
    best = next(w.best for w in answer().assessment.workloads if w.name == "chat")
    machines = sum(r.usd_per_month for r in answer().assessment.allocation if r.workload == "chat")
    storage = own("chat") - machines
    (row,) = (r for r in answer().assessment.allocation if r.workload == "chat" and r.role == "primary")
    offers = {(o.provider, o.instance, o.region): o for o in catalog().offers}
    rate = offers[row.provider, row.instance, row.region].on_demand_usd_per_hour
    assert rate is not None
    further = 730 * rate  # beyond those that are reserved
    for number, month in enumerate(months[1:]):
        rest = 1.1 ** (number + 1) * own("tune") + own("nightly") + own("desks")
        chat = month.usd - rest - storage  # what is stored stays
        whole = best["num_instances"] + (chat - machines) / further
        assert whole == pytest.approx(round(whole), abs=0.02)
        capacity = 0.85 * best["figures"]["requests_per_s"]["value"] / best["num_instances"]
        assert round(whole) >= 20 * 1.2**number / capacity - 1e-6, "fewer machines than the requests need"
        assert round(whole) <= max(best["num_instances"], 20 * 1.2**number / capacity + 1), "one idle"


@given(st.integers(1990, 2990), st.integers(1, 12), st.integers(0, 500))
def test_months_add_and_subtract(year: int, month: int, later: int) -> None:
    first = f"{year}-{month:02d}"
    then = month_after(first, later)
    assert months_between(first, then) == later
    assert 1 <= int(then[5:]) <= 12


def test_a_month_has_one_interval_and_its_mean_is_what_to_expect() -> None:
    """The bill, the drawn months and, once all have begun, the month to come with no growth: the same figures."""
    found = answer().assessment
    cost, drawn = found.usd_per_month, found.scenarios
    assert drawn is not None
    assert (cost.expected, cost.low, cost.high) == (drawn.mean, drawn.p10, drawn.p90)
    assert cost.low < cost.high
    chat = found.forecast[1]  # tune has grown by a tenth of its runs since it began, the others begin as they are
    grown = 0.1 * own("tune")
    assert chat.expected == pytest.approx(drawn.mean + grown, rel=0.02)


def test_upper_ends_rise_with_the_bill() -> None:
    """Growth is paid at one price: a further machine never lowers the upper end of a month."""
    months = answer().assessment.forecast
    assert any(later.usd > sooner.usd for sooner, later in pairwise(months[1:]))
    for sooner, later in pairwise(months):
        assert later.usd >= sooner.usd
        assert later.high >= sooner.high - 1e-9
        assert later.expected >= sooner.expected - 1e-9
