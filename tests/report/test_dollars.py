"""Each amount of the report's tables and pictures is the figure of its own row and column in assessment.json."""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.fleet.assess import Assessed
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.read import fleet_from
from flopwise.report.words import between, change_text, digits, hourly, usd
from flopwise.units import HOURS_PER_MONTH, format_cost, format_usd

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from small import BATCH, CHAT, FLEET, TODAY, TUNE, catalog
from test_statements import data, report, sections


def tables(title: str, parts: Mapping[str, str] | None = None) -> Iterator[tuple[list[str], list[list[str]]]]:
    """The tables of a section, of the small fleet's report or of `parts`: the columns' names, and the rows' cells."""
    for block in re.findall(r"(?:^\|.*\n)+", (parts or report())[title] + "\n", re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        yield head, rows


def columns(title: str, *names: str, parts: Mapping[str, str] | None = None) -> list[tuple[str, ...]]:
    """The cells of the one table of a section that has these columns."""
    (found,) = [
        [tuple(row[head.index(name)] for name in names) for row in rows]
        for head, rows in tables(title, parts)
        if set(names) <= set(head)
    ]
    assert found
    return found


def bars(title: str, *names: str) -> dict[str, list[str]]:
    """Amounts (and intervals) of the bars with these names, of all pictures of a section."""
    found = {row[0]: row[2:] for head, rows in tables(title) if not head[0] for row in rows}
    return {name: found[name] for name in names}


def amount(value: float | None) -> str:
    """An amount of which a cent may be much."""
    return usd(value) if value is None or value >= 1 else format_cost(value) or ""


def test_allocation() -> None:
    found = columns("Allocation over providers", "workload", "list price/h", "paid/h", "a month")
    assert found == [
        (
            row["workload"] + (f" ({row['role']})" if row["role"] != "primary" else ""), hourly(row["usd_per_hour"]),
            hourly(row["usd_per_hour_effective"]), usd(row["usd_per_month"]),
        )
        for row in data()["allocation"]
    ]  # fmt: skip
    assert any(listed != paid for _, listed, paid, _ in found), "else the columns could be exchanged"


def test_bill_of_each_workload() -> None:
    ends: dict[str, list[float]] = {w: [cost, cost] for w, cost in data()["usd_per_month"]["by_workload"].items()}
    for row in data()["allocation"]:
        for n, key in enumerate(("usd_low", "usd_high")):
            ends[row["workload"]][n] += row[key] - row["usd_per_month"]
    of_name = {w["name"]: w for w in data()["workloads"]}
    found = columns("Monthly cost", "workload", "a month", "80 % interval", "kWh", "kg CO2")
    assert {name: cells for name, *cells in found} == {
        name: [
            usd(cost), between(*ends[name]),
            *("-" if of_name[name][key] is None else digits(of_name[name][key])
              for key in ("energy_kwh_per_month", "carbon_kg_per_month")),
        ]
        for name, cost in data()["usd_per_month"]["by_workload"].items()
    }  # fmt: skip
    drawn = bars("Monthly cost", *ends)
    assert drawn == {name: [usd(data()["usd_per_month"]["by_workload"][name]), between(*ends[name])] for name in ends}


def test_unit_costs() -> None:
    names = {
        "run": "a run", "epoch": "an epoch", "million_requests": "a million requests", "hour": "an hour",
        "million_tokens": "a million tokens", "million_input_tokens": "a million tokens in",
        "million_output_tokens": "a million tokens out",
    }  # fmt: skip
    found = columns("Monthly cost", "workload", *names.values())
    assert found == [
        (w["name"], *(amount(w["unit_usd"].get(unit)) for unit in names)) for w in data()["workloads"]
    ]  # fmt: skip


def test_machines_of_each_provider() -> None:
    found = columns("What runs where", "workload", "provider", "a month", "against the plan")
    assert found == [
        (
            choice["workload"], choice["provider"], usd(choice["usd_per_month"]),
            "-" if choice["taken"] else change_text(choice["change_usd"]),
        )
        for choice in data()["by_provider"]
    ]  # fmt: skip


@cache
def portable() -> Assessed:
    """Runs that TPUs and Inferentia could do, too."""
    whole = load_facts(None)
    more = [o for o in whole.offers if o.instance in {"tpu-v6e-1", "inf2.xlarge"} and o.region[:2] == "us"]
    facts = whole.with_tables(offers=(*catalog().offers, *more))
    return assess_with_plans(fleet_from({**FLEET, "workloads": [TUNE, BATCH]}), facts, scenarios=0, today=TODAY)


def test_ports() -> None:
    """Dearer and cheaper ones, by what the plan pays."""
    made = portable()
    found = columns(
        "If you port", "workload", "software", "a month", "against the plan", "measured rows",
        parts=sections(made),
    )  # fmt: skip
    assert {software for _, software, *_ in found} == {"xla", "neuron"}
    paid: dict[str, float] = defaultdict(float)
    for row in made.assessment.allocation:
        paid[row.workload] += row.usd_per_month
    assert found == [
        (port.workload, port.software, usd(port.cost_usd), change_text(port.cost_usd - paid[port.workload]),
         f"{port.rows:,}")
        for port in made.assessment.if_you_port
    ]  # fmt: skip


def test_savings() -> None:
    saved = sorted((s for s in data()["savings"] if s["counted"]), key=lambda s: -abs(s["usd_per_month"]))
    found = columns("Savings", "saving", "workload", "a month", "in this plan")
    listed = [row for row in found if row[0] != "others"]
    assert listed == [(s["what"], s["workload"], usd(s["usd_per_month"]), s["how"]) for s in saved[: len(listed)]]
    rest = saved[len(listed) :]
    more = [("others", f"{len(rest)} smaller ones", usd(sum(s["usd_per_month"] for s in rest)), "in assessment.json")]
    assert found[len(listed) :] == (more if rest else [])
    kinds = {s["what"] for s in saved}
    of_kind = {kind: [usd(sum(s["usd_per_month"] for s in saved if s["what"] == kind))] for kind in kinds}
    assert bars("Savings", *kinds) == of_kind


def test_what_ifs_and_simulated_months() -> None:
    assert columns("If things change", "what if", "a month", "change") == [
        (w["name"], usd(w["usd_per_month"]) if w["feasible"] else "no allocation", change_text(w["change_usd"]))
        for w in data()["whatif"]
    ]
    drawn, bill = data()["scenarios"], data()["usd_per_month"]["total"]
    assert all(w["change_usd"] == pytest.approx(w["usd_per_month"] - bill) for w in data()["whatif"] if w["feasible"])
    points = {"10 % stay below": "p10", "half stay below": "p50", "on average": "mean", "90 % stay below": "p90",
              "95 % stay below": "p95"}  # fmt: skip
    assert bars("If things change", *points) == {name: [usd(drawn[key])] for name, key in points.items()}
    assert drawn["p10"] <= drawn["p50"] <= drawn["p90"] <= drawn["p95"]


def test_roadmap_and_forecast() -> None:
    phases = data()["roadmap"]
    found = columns("Roadmap", "from", "workloads", "adds a month", "then", "bill until the next")
    assert found == [
        (
            p["start"], ", ".join(p["workloads"]), usd(p["usd_per_month"]), p["text"].split("; ")[-1],
            "-" if p["usd"] is None else usd(p["usd"]),
        )
        for p in phases
    ]  # fmt: skip
    months = data()["forecast"]
    names = [f"{m['month']} ({m['workloads']} workload{'s' if m['workloads'] > 1 else ''})" for m in months]
    expected = {name: [usd(m["expected"]), between(m["low"], m["high"])] for name, m in zip(names, months, strict=True)}
    assert bars("Roadmap", *names) == expected
    first, last = months[0], months[-1]
    text = f"{usd(first['usd'])} in {first['month']}, {usd(last['usd'])} in {last['month']}."
    assert f"As planned, at list prices: {text}" in report()["Roadmap"]
    assert any(usd(m["usd"]) != usd(m["expected"]) for m in months), "else one could stand for the other"


def test_prices_of_devices() -> None:
    def ends(low: float | None, high: float | None) -> str:
        return hourly(low) if high is None or hourly(low) == hourly(high) else f"{hourly(low)} to {hourly(high)}"

    def cost(value: float | None) -> str:
        return "-" if not value else format_usd(value, 2)

    assert columns("Accelerators compared", "GPU", "on demand, each", "spot, each") == [
        (
            row["gpu"], ends(row.get("usd_per_gpu_hour"), row.get("usd_per_gpu_hour_most")),
            ends(row.get("spot_usd_per_gpu_hour"), row.get("spot_usd_per_gpu_hour_most")),
        )
        for row in data()["gpus"]
    ]  # fmt: skip
    assert columns("Accelerators compared", "GPU", "price of a PFLOP-hour", "of a GB/s and month") == [
        (
            row["gpu"], cost(row["usd_per_pflop_hour"]),
            cost(row["usd_per_gb_per_s_hour"] and row["usd_per_gb_per_s_hour"] * HOURS_PER_MONTH),
        )
        for row in data()["gpus"]
    ]  # fmt: skip


def test_prices_of_instances() -> None:
    """Of an instance type in several regions those of its first row: used, else the cheapest."""
    keys = ("on_demand_usd_per_hour", "spot_usd_per_hour", "reserved_1y_usd_per_hour", "reserved_3y_usd_per_hour")
    known = [(row["instance"], row["region"], *(hourly(row.get(key)) for key in keys)) for row in data()["instances"]]
    names = ("instance", "region", "on demand", "spot", "1 year", "3 years")
    found = [
        [row[head.index(name)] for name in names]
        for head, rows in tables("Instances considered")
        if set(names) <= set(head)
        for row in rows
    ]
    assert len(found) >= len({row["provider"] for row in data()["instances"]})
    for instance, where, *prices in found:
        regions = re.sub(r" \(\+ \d+\)$", "", where).split(" and ")
        assert any((instance, region, *prices) in known for region in regions), (instance, where)


def test_each_price_of_an_instance_has_its_day() -> None:
    """Reserved prices stood under the day of those on demand."""
    days, keys = dict[tuple[str, str], set[str]](), ("price", "spot", "reserved_1y", "reserved_3y")
    for row in data()["instances"]:
        days[row["instance"], row["region"]] = {row[f"{key}_date"] for key in keys} - {None}
    shown = columns("Instances considered", "instance", "region", "price date", parts=one_table())
    assert any(len(days[instance, region]) > 2 for instance, region, _ in shown if (instance, region) in days)
    for instance, where, text in shown:
        regions = re.sub(r" \(\+ \d+\)$", "", where).split(" and ")
        assert any(all(day in text for day in days[instance, region]) for region in regions), (instance, text)


def one_table() -> dict[str, str]:
    """The instances of all providers under one head."""
    head, rule, *lines = [line for line in report()["Instances considered"].splitlines() if line.startswith("|")]
    return {"Instances considered": "\n".join([head, rule, *(line for line in lines if line not in {head, rule})])}


def test_thresholds_of_spending() -> None:
    after = {"spend per run": " a run", "spend per day": " a day", "spend this month": " this month"}
    of_workload: dict[str, list[str]] = {}
    for alert in data()["monitoring"]:
        if alert["unit"] == "USD":
            text = f"above {usd(alert['threshold'])}{after[alert['metric']]}"
            of_workload.setdefault(alert["workload"] or "the fleet", []).append(text)
    found = {name: spend for name, spend in columns("Monitoring", "workload", "spend") if spend != "-"}
    assert found == {name: "; ".join(texts) for name, texts in of_workload.items()}


def test_no_table_with_dollars_is_left_out() -> None:
    """A table that is added gets a test of its own: one of these columns names it."""
    known = {
        "list price/h", "kWh", "an hour", "its best machines", "measured rows", "saving", "what if", "adds a month",
        "spot, each", "price of a PFLOP-hour", "3 years", "spend", "", "why not a cheaper one", "evidence", "advice",
    }  # fmt: skip
    dollars: dict[str, list[Any]] = {}
    for title in report():
        for head, rows in tables(title):
            if any("$" in cell for row in rows for cell in row) and not known & set(head):
                dollars.setdefault(title, []).append(head)
    assert dollars == {}


@cache
def mixed() -> Assessed:
    """A service that follows its traffic, one that an API may answer, and runs on machines of one's own."""
    follows = {k: v for k, v in CHAT.items() if k != "volumes"} | {"name": "follows", "constraints": {"gpus": ["L4"]}}
    follows["traffic"] = CHAT["traffic"] | {"profile": "office"}
    asked = {
        "name": "asked", "task": "serve", "model": "Llama-3.1-8B", "purchase": ["on_demand", "api"],
        "traffic": {"requests_per_s": 0.5, "input_tokens": 700, "output_tokens": 200},
    }  # fmt: skip
    own = {"name": "rack", "gpu": "L40S", "gpus": 4, "count": 1, "price": "$60k", "region": "home"}
    workloads = [follows, asked, {**TUNE, "purchase": ["owned", "on_demand"]}]
    platform = fleet_from({"name": "mixed", "workloads": workloads, "own_machines": [own]})
    return assess_with_plans(platform, catalog(), scenarios=0, today=TODAY)


def test_services_that_follow_their_traffic() -> None:
    made = mixed().assessment
    names = ("service", "a month", "with a fixed number", "saved")
    found = columns("Autoscaling", *names, parts=sections(mixed()))
    assert found == [
        (s.workload, usd(s.usd_per_month), f"{usd(s.usd_fixed)}: {s.fixed}", usd(s.usd_fixed - s.usd_per_month))
        for s in made.scaled
    ]  # fmt: skip
    assert [name for name, *_ in found] == ["follows"]
    assert made.scaled[0].usd_per_month == pytest.approx(
        sum(row.usd_per_month for row in made.allocation if row.workload == "follows")
    )


def test_own_machines() -> None:
    (row,), parts = mixed().assessment.own_machines, sections(mixed())
    names = ("machine", "standing", "capital", "power at work", "a month")
    paid = sum(r.usd_per_month for r in mixed().assessment.allocation if r.instance == row["machine"])
    assert columns("Own machines", *names, parts=parts) == [
        (
            row["machine"], usd(row["usd_per_month_standing"]), usd(row["usd_per_month_capital"]),
            usd(row["usd_per_month_full_power"]), usd(paid),
        )
    ]  # fmt: skip
    compared = ("instead of", "region", "GPU-hour there", "own GPU-hour")
    assert columns("Own machines", *compared, parts=parts) == [
        (
            f"{cloud['provider']} {cloud['instance']}", cloud["region"], format_usd(cloud["usd_per_gpu_hour"], 2),
            format_usd(cloud["own_usd_per_gpu_hour"], 2),
        )
        for cloud in row["against"][:12]
    ]  # fmt: skip


def test_hosted_apis() -> None:
    """What an API costs stands beside what the cheapest machines do: the two amounts of a row are not exchanged."""
    (rows,) = [rows for head, rows in tables("Hosted APIs", sections(mixed())) if "API" in head]
    assert [(row[0], row[1], row[4], row[7]) for row in rows] == [
        (api["workload"], f"{api['provider']} {api['model']}", usd(api["usd_per_month"]),
         usd(api["machines_usd_per_month"]))
        for api in mixed().assessment.hosted
    ]  # fmt: skip
    taken = [api for api in mixed().assessment.hosted if api["taken"]]
    paid = [row.usd_per_month for row in mixed().assessment.allocation if row.purchase == "api"]
    assert [api["usd_per_month"] for api in taken] == pytest.approx(paid)


def test_summary() -> None:
    bill, found = data()["usd_per_month"], dict(tiles())
    assert found["expected bill a month"][0] == usd(bill["expected"])
    assert found["expected bill a month"][1].endswith(f"{usd(bill['total'])} at list prices")
    assert found["of the budget"][1].startswith(f"of {usd(data()['budget_per_month'])} a month")
    saved = sum(s["usd_per_month"] for s in data()["savings"] if s["counted"])
    assert found["saved a month"][0] == usd(saved)
    last = data()["forecast"][-1]
    assert f"{usd(last['expected'])} is expected in {last['month']}" in report()["Summary"]


def tiles() -> Iterator[tuple[str, tuple[str, str]]]:
    """The figures of the first page: name, value and note."""
    (rows,) = [rows for head, rows in tables("Summary") if not head[0]]
    for name, value, note in rows:
        yield name, (value, note)
