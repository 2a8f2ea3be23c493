"""Monthly bills that people work out by hand, through the whole assessment: file, schedule, price, allocation, bill."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import CHAT, assess, catalog

from flopwise.facts.catalog import load_facts
from flopwise.fleet.read import fleet_from, parse_fleet

FLEET = """
name: a plan on paper
policies: {{regions: [us-east-1], purchase: [on_demand]}}
workloads:
  - name: machines
    task: develop
    hours: {hours}
    machines: {{count: {count}}}
    constraints: {{providers: [aws], instances: [{instance}]}}
"""


@pytest.mark.parametrize(
    ("count", "instance", "usd_per_hour", "hours", "stated"),
    [
        (2, "g4dn.xlarge", 0.526, "{per_day: 8, days: 22}", 185),
        (1, "p3.2xlarge", 3.06, "{per_day: 4, days: 22}", 269),
        (3, "g4dn.2xlarge", 0.752, "{per_day: 24, days: 30}", 1_624),  # stated as 1,623
        (1, "p4d.24xlarge", 32.77, "{per_day: 24, days: 4}", 3_146),
        (2, "g4dn.xlarge", 0.526, '{start: "09:00", stop: "17:00", days: 22}', 185),
        (2, "g4dn.xlarge", 0.526, "{start: 09:00, stop: 17:00, days: weekdays}", 183),  # 21.7 working days
    ],
)
def test_a_bill_of_a_published_plan(count: int, instance: str, usd_per_hour: float, hours: str, stated: int) -> None:
    """Instances and hours as such plans state them; list prices of us-east-1 (p4d: before the cut of 2025)."""
    facts = load_facts()
    if instance == "p4d.24xlarge":
        dear = [replace(o, on_demand_usd_per_hour=usd_per_hour) if o.instance == instance else o for o in facts.offers]
        facts = facts.with_tables(offers=tuple(dear))
    found = assess(parse_fleet(FLEET.format(hours=hours, count=count, instance=instance)), facts, scenarios=0)
    [row] = found.allocation
    assert (row.count, row.instance) == (count, instance)
    assert row.usd_per_hour == pytest.approx(usd_per_hour)
    assert round(found.usd_per_month.total) == stated
    assert found.usd_per_month.total == pytest.approx(sum(found.usd_per_month.by_workload.values()))


def test_what_is_taken_of_schedules_is_said() -> None:
    text = FLEET.format(hours="{per_day: 8}", count=1, instance="g4dn.xlarge") + "    starts: 2026-01\n"
    told = assess(parse_fleet(text), load_facts(), scenarios=0, today="2026-11-21").assumptions
    assert "machines: no times of day are given; machines are assumed to be on from 9:00, on working days first" in told
    assert "machines: start before the day of this assessment, and are assumed to run already" in told
    text = FLEET.format(hours="{days: [sat]}", count=1, instance="g4dn.xlarge") + "    starts: 2026-11\n"
    told = assess(parse_fleet(text), load_facts(), scenarios=0, today="2026-11-21").assumptions
    assert any("one clock for the whole fleet" in text for text in told)
    assert not any("9:00" in text or "start before" in text for text in told)


def test_machines_asked_without_memory_have_none() -> None:
    text = FLEET.format(hours="{per_day: 8}", count=1, instance="g4dn.xlarge")
    assert assess(parse_fleet(text), load_facts(), scenarios=0).workloads[0].memory_bytes is None
    asked = assess(parse_fleet(text.replace("count: 1", "count: 1, memory: 8GB")), load_facts(), scenarios=0)
    assert asked.workloads[0].memory_bytes == 8e9


def test_a_service_of_users_who_wait_costs_no_more_where_machines_are_slower() -> None:
    """Eight users on one machine: its pace decides when they get their answers, not how many machines there are."""
    users = CHAT | {"traffic": {"concurrency": 8, "input_tokens": 256, "output_tokens": 16}, "volumes": {}}
    found = assess(fleet_from({"name": "f", "workloads": [users]}), catalog(), scenarios=0)
    [row] = found.allocation
    assert row.usd_low == row.usd_per_month == row.usd_high == found.usd_per_month.high
    assert "degradation" not in {risk.kind for risk in found.risks}
