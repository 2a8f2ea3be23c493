"""Every statement of a report against assessment.json: sums, machines, prices with their dates, and each dollar."""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flopwise.fleet.assess import Assessed
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.read import fleet_from
from flopwise.report.content import document
from flopwise.report.pages import markdown
from flopwise.report.words import hourly, usd
from flopwise.report.write import to_json, with_plan_files, write_report

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from small import FLEET, TODAY, answer, catalog

DOLLARS = re.compile(r"\$(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e-?\d+)?")
MACHINES = re.compile(r"(\d[\d,]*) x (aws|gcp|azure) ([\w.+-]+)")


def json_of(made: Assessed) -> dict[str, Any]:
    """assessment.json of a fleet."""
    found: dict[str, Any] = json.loads(to_json(with_plan_files(made.assessment, made.plans)))
    return found


@cache
def data() -> dict[str, Any]:
    """assessment.json of the small fleet."""
    return json_of(answer())


def sections(made: Assessed) -> dict[str, str]:
    """report.md by the titles of its sections, without what escapes Markdown."""
    text = markdown(document(with_plan_files(made.assessment, made.plans))).replace("\\", "")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


@cache
def report() -> dict[str, str]:
    """The sections of the small fleet's report."""
    return sections(answer())


def numbers(value: Any) -> Iterator[float]:
    """All numbers of a JSON document, and those that its sentences hold."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, str):
        yield from (float(found.strip("$").replace(",", "")) for found in DOLLARS.findall(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def test_every_split_of_the_bill_adds_up_to_it() -> None:
    bill = data()["usd_per_month"]
    for split in ("by_provider", "by_environment", "by_workload", "by_purchase"):
        assert sum(bill[split].values()) == pytest.approx(bill["total"]), split
    assert bill["compute"] + bill["storage"] + bill["traffic"] == pytest.approx(bill["total"])
    assert sum(row["usd_per_month"] for row in data()["allocation"]) == pytest.approx(bill["compute"])
    for field in ("provider", "workload", "environment"):
        sums: dict[str, float] = defaultdict(float)
        for row in data()["allocation"]:
            sums[row[field]] += row["usd_per_month"]
        for name, value in sums.items():
            assert value <= bill[f"by_{field}"][name] + 0.005, name
    assert bill["low"] <= bill["total"] <= bill["high"]


def test_prices_and_their_dates_are_those_of_the_price_book() -> None:
    book = {offer.key: offer for offer in catalog().offers}
    for row in data()["allocation"]:
        offer = book[row["provider"], row["instance"], row["region"]]
        assert row["usd_per_hour"] == offer.price_usd_per_hour(row["purchase"])
        assert row["price_date"] == offer.price_date_of(row["purchase"])
        assert (row["gpu"], row["num_gpus"]) == (offer.accelerator, row["count"] * offer.count)
    for row in data()["instances"]:
        offer = book[row["provider"], row["instance"], row["region"]]
        for purchase in ("on_demand", "spot", "reserved_1y", "reserved_3y"):
            price = offer.price_usd_per_hour(purchase)
            assert row[f"{purchase}_usd_per_hour"] == price
            if purchase != "on_demand":
                assert row[f"{purchase}_date"] == (None if price is None else offer.price_date_of(purchase))
        assert (row["price_date"], row["source"]) == (offer.price_date, offer.source)
    for row in data()["by_provider"]:
        if row["usd_per_month"] is not None:
            offer = book[row["provider"], row["instance"], row["region"]]
            bought = row["purchase"]
            assert row["price_date"] == offer.price_date_of(bought)
            assert row["price_source"] == offer.price_source_of(bought)
            assert offer.price_usd_per_hour(bought) is not None


def test_machines_of_the_allocation_are_first_in_their_plans(tmp_path: Path) -> None:
    write_report(answer().assessment, tmp_path, plans=answer().plans)
    for w in data()["workloads"]:
        rows = [r for r in data()["allocation"] if r["workload"] == w["name"] and r["role"] == "primary"]
        assert (w["best"]["provider"], w["best"]["instance"]) in {(r["provider"], r["instance"]) for r in rows}
        if w["plan_file"] is None:
            continue
        plan = json.loads((tmp_path / w["plan_file"]).read_text(encoding="utf-8"))
        taken = {(r["provider"], r["instance"], r["purchase"]) for r in rows}
        first = {(c["provider"], c["instance"], c["purchase"]) for c in plan["plans"][: len(taken)]}
        assert first == taken


def test_every_machine_that_the_report_names_is_in_the_assessment() -> None:
    known = {(offer.provider, offer.instance) for offer in catalog().offers}
    taken = {(row["provider"], row["instance"]) for row in data()["allocation"]}
    for title, text in report().items():
        for _, provider, instance in MACHINES.findall(text):
            assert (provider, instance.rstrip(".")) in known, (title, provider, instance)
    for title in ("Summary", "Monthly cost"):
        for _, provider, instance in MACHINES.findall(report()[title]):
            assert (provider, instance.rstrip(".,")) in taken, (title, instance)


def test_every_dollar_of_the_report_is_a_figure_of_the_assessment() -> None:
    values = set(numbers(data()))
    rows = data()["allocation"]
    for field in ("provider", "workload", "environment", "purchase"):  # sums of the rows that a sentence is about
        for name in {row[field] for row in rows}:
            mine = sum(row["usd_per_month"] for row in rows if row[field] == name)
            values |= {mine, 12 * mine, 36 * mine}
    saved = [s for s in data()["savings"] if s["counted"]]
    values |= {sum(s["usd_per_month"] for s in saved), 0.0}
    for field in ("what", "workload", "purchase"):
        for name in {s[field] for s in data()["savings"]}:
            apart = [s for s in data()["savings"] if not s["counted"]]
            for some in (saved, apart, data()["savings"]):
                values.add(sum(s["usd_per_month"] for s in some if s[field] == name))
    for kind in {s["what"] for s in data()["savings"]}:
        mine = [s["usd_per_month"] for s in data()["savings"] if s["what"] == kind]
        values |= {sum(v for v in mine if v > 0), sum(v for v in mine if v < 0)}
    values |= {730 * row["usd_per_gb_per_s_hour"] for row in data()["gpus"] if row["usd_per_gb_per_s_hour"]}
    for w in data()["workloads"]:  # a million requests, or a run
        cost = data()["usd_per_month"]["by_workload"][w["name"]]
        rate = w["targets"].get("requests_per_s", {}).get("mean")
        values.add(cost / (w["runs_per_month"] or 1.0))
        values |= {cost / (rate * w["hours_per_month"] * 3600 / 1e6)} if rate else set()
    shown = {text for v in values for text in (usd(abs(v)), hourly(abs(v)), f"${abs(v):,.2f}", f"${abs(v):,.0f}",
                                               f"${abs(v):,.4f}", f"${abs(v):.3g}", f"${abs(v):,.3f}")}  # fmt: skip
    unknown = {(title, one) for title, text in report().items() for one in DOLLARS.findall(text) if one not in shown}
    assert unknown == set()


PERCENT = re.compile(r"([a-z][a-z0-9 ]*?),? (\d+(?:\.\d+)?) %")


def near(text: str, value: float) -> bool:
    """Whether a percentage that is written with so many digits is this one."""
    digits = len(text.partition(".")[2])
    return bool(abs(float(text) - value) <= 0.5 * 10.0**-digits + 1e-9)


def test_shares_counts_and_chances_of_the_summary_are_those_of_the_assessment() -> None:
    found, bill, rows, summary = data(), data()["usd_per_month"], data()["allocation"], report()["Summary"]
    shares = dict(PERCENT.findall(found["verdict"].rpartition("): ")[2].replace(", ", ",")))
    assert shares.keys() == bill["by_provider"].keys()
    assert all(near(text, 100 * bill["by_provider"][p] / bill["total"]) for p, text in shares.items())
    ((used,),) = [re.findall(r"of the budget \| ([\d.]+) %", summary)]
    assert near(used, 100 * bill["expected"] / found["budget_per_month"])
    ((above,),) = [re.findall(r"; ([\d.]+) % chance of exceeding it", summary)]
    assert near(above, 100 * found["scenarios"]["over_budget"])
    primary = [row for row in rows if row["role"] == "primary"]
    counted = r"accelerators \| (\d+) \| on (\d+) machines of (\d+) providers"
    ((devices, machines, providers),) = re.findall(counted, summary)
    assert int(devices) <= sum(row["num_gpus"] for row in rows)
    assert int(machines) <= sum(row["count"] for row in rows)
    assert int(providers) == len({row["provider"] for row in rows})
    assert f"all {len(found['workloads'])} workloads" in summary
    for name, usd_text, share in re.findall(r"([\w ]+) (\$[\d.,]+) \((\d+(?:\.\d+)?) %\) on", summary):
        assert near(share, 100 * bill["by_workload"][name.strip()] / bill["total"]), name
        assert usd_text == usd(bill["by_workload"][name.strip()])
    bought = summary.partition("How it is bought.** ")[2].partition("\n")[0].lower().replace(" and ", ", ")
    parts = {"storage traffic": bill["storage"] + bill["traffic"], **bill["by_purchase"]}
    for what, text in PERCENT.findall(bought.replace("storage, traffic", "storage traffic")):
        key = {"reserved 1 year": "reserved_1y", "on demand": "on_demand"}.get(what, what)
        assert near(text, 100 * parts[key] / bill["total"]), what
    for term in re.findall(r"(\d+) x (\w+) (\S+) for a year, (\$[\d,]+) in all", summary):
        mine = [r for r in primary if r["purchase"] == "reserved_1y" and (r["provider"], r["instance"]) == term[1:3]]
        assert int(term[0]) == sum(r["count"] for r in mine)
        assert term[3] == usd(12 * sum(r["usd_per_month"] for r in mine))


@cache
def bound() -> Assessed:
    """The small fleet with shares of the bill that bind."""
    policies = {"providers": {"aws": "70%", "azure": "30%"}, "share_tolerance": "10%"}
    return assess_with_plans(fleet_from({**FLEET, "policies": policies}), catalog(), scenarios=0, today=TODAY)


def test_what_a_policy_moves_is_what_the_workload_costs() -> None:
    """Of a fleet whose shares bind: the machines it has cost what the allocation says, the bill falls by as much."""
    made = bound().assessment
    costs: dict[str, float] = defaultdict(float)
    for row in made.allocation:
        costs[row.workload] += row.usd_per_month if row.role == "primary" else 0.0
    moved = [(binding, move) for binding in made.binding for move in binding.moves]
    assert moved
    for binding, move in moved:
        assert move.usd_per_month == pytest.approx(costs[move.workload])
        assert move.usd_per_month_without < move.usd_per_month
        assert move.usd_per_month - move.usd_per_month_without <= binding.usd_per_month * 1.001 + 0.01
    assert f": without them {made.binding[0].moves[0].text}" in made.binding[0].text


def test_the_costs_of_policies_and_of_other_shares_are_those_of_the_assessment() -> None:
    """Row by row: what each policy costs, what would run without it, the shares then, and the bill at other bounds."""
    made = bound().assessment
    section = sections(bound())["What the policies cost"]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if "| " in line]
    policies = [row for row in rows if len(row) == 3 and not row[0].startswith(("policy", "---", "binding", made.name))]
    steps = [row for row in policies if re.search(r": at (least|most) ", row[0])]
    costs = [row for row in policies if row not in steps]
    assert [cost for _, cost, _ in costs] == [usd(row.usd_per_month) for row in made.binding]
    for (name, _, without), row in zip(costs, made.binding, strict=True):
        assert row.text.startswith(name)
        assert all(move.text in without for move in row.moves[:2])
        parts = dict(PERCENT.findall(without.rpartition("the bill is then ")[2].replace(", ", ",")))
        assert parts.keys() == row.shares_without.keys()
        assert all(near(part, 100 * row.shares_without[provider]) for provider, part in parts.items())
    assert any(row.shares_without for row in made.binding)
    found = [(s.provider, s.bound, s.share, s.usd_per_month) for row in made.binding for s in row.steps]
    expected = [(f"{p}: at {bound} {100 * share:g} %", usd(cost)) for p, bound, share, cost in found if cost]
    assert expected
    assert [(name, cost) for name, cost, _ in steps if "none" not in cost] == expected
