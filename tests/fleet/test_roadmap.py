"""The roadmap in weeks: tasks after one another, counted back from a phase's month; quotas by their day; dollars."""

from __future__ import annotations

import datetime as dt
import sys
from pathlib import Path

import pytest

from flopwise.fleet.assessment import Phase
from flopwise.fleet.read import fleet_from

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, DESKS, TODAY, TUNE, answer, assess, catalog


def phases() -> list[Phase]:
    return answer().assessment.roadmap


def test_tasks_follow_what_they_wait_for() -> None:
    for phase in phases():
        ends = {task.name: task.week + task.weeks for task in phase.tasks}
        for task in phase.tasks:
            assert task.week == max((ends[name] for name in task.after), default=0)
        assert phase.weeks == max(ends.values())


def test_weeks_are_counted_back_from_the_month_by_hand() -> None:
    """A service from February 2027: accounts 2 weeks, a quota of small devices 1, measured 1, load test 2: 6 weeks.

    2027-02-01 is a Monday; six weeks before is 2026-12-21, and the quota is asked for two weeks later, 2027-01-04.
    """
    small = CHAT | {"constraints": {"gpus": ["L4"]}}
    fleet = fleet_from({"name": "f", "workloads": [small]})
    (phase,) = assess(fleet, catalog(), scenarios=0, today=TODAY).roadmap
    assert (phase.weeks, phase.begins, phase.weeks_late) == (6, "2026-12-21", 0)
    (quota,) = phase.quotas
    assert (quota.weeks, quota.ask_by) == (1, "2027-01-04")
    assert quota.count_in_a_year == -(-round(quota.count * 1.2**12, 6) // 1)
    (late,) = assess(fleet, catalog(), scenarios=0, today="2027-01-12").roadmap
    assert late.weeks_late == 3  # Mondays: 2027-01-11 is three weeks after 2026-12-21


def test_large_accelerators_are_asked_for_earlier() -> None:
    """Four weeks for an H100, of 80 GB: 2 + 4 + 1 + 2 = 9 weeks."""
    (phase,) = assess(
        fleet_from({"name": "f", "workloads": [CHAT | {"constraints": {"gpus": ["H100-SXM-80"]}}]}), catalog(),
        scenarios=0, today=TODAY,
    ).roadmap  # fmt: skip
    assert phase.weeks == 9
    assert phase.begins == (dt.date(2027, 2, 1) - dt.timedelta(weeks=9)).isoformat()


def test_a_provider_has_its_accounts_once() -> None:
    accounts = [task.name for phase in phases() for task in phase.tasks if task.name.startswith("accounts")]
    named = [name for task in accounts for name in task.split(" with ")[1].split(", ")]
    assert len(named) == len(set(named)) > 0


def test_phases_have_the_dollars_until_the_next() -> None:
    """January's phases add up to February's: a month of what runs by then; the last has no end."""
    found = answer().assessment
    assert sum(phase.usd_per_month for phase in found.roadmap) == pytest.approx(
        sum(v for name, v in found.usd_per_month.by_workload.items() if name in {w.name for w in found.workloads})
    )
    assert found.roadmap[-1].usd is None
    later = fleet_from({"name": "f", "workloads": [TUNE, CHAT | {"starts": "2027-04"}]})
    first, second = assess(later, catalog(), scenarios=0, today=TODAY).roadmap
    assert first.usd == pytest.approx(3 * first.usd_per_month)
    assert second.usd is None


def test_phases_without_a_month_follow_one_another() -> None:
    jobs = [{k: v for k, v in job.items() if k != "starts"} for job in (TUNE, DESKS)]
    found = assess(fleet_from({"name": "f", "workloads": jobs}), catalog(), scenarios=0, today=TODAY).roadmap
    first, second = found
    assert (first.name, first.begins) == ("development", "2026-11-16")  # the Monday of that week
    assert second.begins == (dt.date(2026, 11, 16) + dt.timedelta(weeks=first.weeks)).isoformat()


def test_every_machine_of_the_bill_is_asked_for() -> None:
    found = answer().assessment
    asked = sum(quota.count for phase in found.roadmap for quota in phase.quotas)
    assert asked == sum(row.count for row in found.allocation if row.purchase not in {"owned", "api"})
