"""Every number of a report is a figure of assessment.json: of the row's own workload, device or month, in its unit."""

from __future__ import annotations

import inspect
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from flopwise.fleet import roadmap
from flopwise.fleet.bill import SIZES
from flopwise.fleet.outlook import MONTHS
from flopwise.fleet.risks import UNKNOWN
from flopwise.fleet.tables import WELL
from flopwise.fleet.workload_alerts import MEMORY_SLACK, SELDOM, SPEND_SLACK
from flopwise.report.content import document
from flopwise.report.words import digits, hours, purchase_text, share, usd
from flopwise.search.model_sizes import CONDITIONS
from flopwise.storage.spec import STALL_FRAC
from flopwise.units import format_bytes, format_cost, format_count, format_percent, format_rate, format_seconds

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from small import answer
from test_dollars import mixed, portable
from test_statements import DOLLARS, data, json_of, report, sections

UNITS = "%|[KMGT]iB|[kMGT]B/s|[TP]FLOP/s|ms|s|min|h|days|W|kg|kWh|[kMBT]"
NUMBER = re.compile(rf"(?<![\w.$-])(\d+(?:,\d{{3}})*(?:\.\d+)?)(?: ({UNITS})(?![\w/]))?(?![\w-])")
SHARES = "probability|impact|score|meets|over_budget|drivers|.*break_even_utilisation"
KEYS = ("name", "workload", "gpu", "instance", "month", "phase", "model")
DURATIONS = (
    f"accounts {roadmap.ACCOUNT_WEEKS} weeks, a quota {roadmap.QUOTA_WEEKS} ({roadmap.SCARCE_WEEKS} for accelerators "
    f"of {roadmap.SCARCE_BYTES / 1e9:.0f} GB and more, or for {roadmap.MANY} of them), own machines "
    f"{roadmap.ORDER_WEEKS}, data {roadmap.DATA_WEEKS}, a measurement {roadmap.MEASURE_WEEKS}, short runs "
    f"{roadmap.TRIAL_WEEKS}, a load test {roadmap.LOAD_WEEKS}, contracts {roadmap.SIGN_WEEKS}."
)
CONSTANTS = (
    "80 % interval", CONDITIONS, "10 % stay below", "90 % stay below", "95 % stay below",
    DURATIONS,
    f"below {SIZES[0][0] / 1e9:.0f} B parameters; medium: below {SIZES[1][0] / 1e9:.0f} B.",
    f"(within {100 * (WELL - 1):.0f} %)", f"assumed to be {100 * UNKNOWN:.0f} %",
    f"at least {100 * (SPEND_SLACK - 1):.0f} % above the plan", f"{100 * MEMORY_SLACK:.0f} points above the engine",
    f"more than {1 / SELDOM - 1:.0f} months in {1 / SELDOM:.0f}", f"in {1 / SELDOM - 1:.0f} of {1 / SELDOM:.0f} months",
    "p95: 95 % of the requests", "ZeRO 1, 2, 3", f"keeps writing to {100 * STALL_FRAC:.0f} % of the time",
)  # fmt: skip
"""What reports say whatever the fleet: definitions, and the constants of the code by their values."""
AS_THEY_ARE = ("Risks", "Monitoring", "Model sizes", "Accelerators compared", "Workloads", "Savings")
"""Sections that compute nothing of the figures."""
COUNTED = re.compile(r"(\d[\d,]*) x (?:(?:aws|gcp|azure) )?([A-Za-z][\w.+-]*)")
Leaf = tuple[str, float]
FLEETS = {"small": answer, "mixed": mixed, "portable": portable}
"""Fleets whose reports together have all sections but that of what changed since an earlier assessment."""


@cache
def parts(fleet: str) -> dict[str, str]:
    """The sections of a fleet's report."""
    return sections(FLEETS[fleet]())


@cache
def figures(fleet: str) -> dict[str, Any]:
    """assessment.json of a fleet."""
    return json_of(FLEETS[fleet]())


def leaves(value: Any, path: str = "") -> Iterator[Leaf]:
    """The numbers of a JSON value with their paths."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, path)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, float(value)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects of a JSON value, the outer ones first."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(inner)


@cache
def strings(fleet: str) -> list[str]:
    """What assessment.json says in words with digits, longest first: names, dates and sentences, as reports write
    them."""
    found: set[str] = set()

    def gather(value: Any) -> None:
        if isinstance(value, str) and re.search(r"\d", value):
            found.update((value, value[:1].upper() + value[1:], value.rstrip(".")))
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            gather(inner)

    gather(figures(fleet))
    names = [phase["name"] for phase in figures(fleet)["roadmap"]]
    found.update(f"{name} ({names[: n + 1].count(name)} of {names.count(name)})" for n, name in enumerate(names))
    return sorted(found, key=len, reverse=True)


WRITTEN: tuple[tuple[re.Pattern[str], Callable[[float], set[str]]], ...] = tuple(
    (re.compile(rf"(.*\.)?({pattern})"), write)
    for pattern, write in (
        (r".*bytes_per_s", lambda v: {format_rate(v), f"{v / 1e9:,.0f} GB/s"}),
        (r".*flops_per_s", lambda v: {format_rate(v, "FLOP/s")}),
        (r".*bytes.*", lambda v: {format_bytes(v)}),
        (r"(?!.*_per_s$).*_s", lambda v: {format_seconds(v), f"{v / 60:g} min"}),
        (rf".*_frac|.*\b({SHARES})\b.*", lambda v: {format_percent(v), format_percent(v, 0), f"{v:.2f}"}),
        (r".*\brequests?", lambda v: {format_cost(v) or ""}),
        (r".*_w", lambda v: {f"{v:.0f} W"}),
        (r".*_kg_.*", lambda v: {digits(v), f"{digits(v)} kg"}),
        (r".*", lambda v: {digits(v), hours(v), format_count(v), f"{v:,.1f}", f"{v:,g}", f"{v:.0f}"}),
    )
)
"""How a report writes a figure, by the end of its path: the first that matches."""


@cache
def writer(path: str) -> Callable[[float], set[str]]:
    """What writes the figures of a path."""
    name = re.sub(r"\.(value|low|high|mean)$", "", path)
    return next(write for pattern, write in WRITTEN if pattern.fullmatch(name))


@cache
def texts(path: str, value: float) -> frozenset[str]:
    """A figure as a report may write it, in the unit that its name says."""
    sure = {"99 %"} if ".meets." in path and value > 0.99 else set()  # ">99 %"
    return frozenset(writer(path)(value) | sure)


@cache
def own_texts(fleet: str) -> dict[int, frozenset[str]]:
    """The figures of each object of a fleet's assessment as a report may write them, by the object's identity."""
    return {id(o): frozenset().union(*itertools.starmap(texts, leaves(o))) for o in objects(figures(fleet))}


def scope(whole: dict[str, Any], cells: list[str], above: str) -> list[dict[str, Any]]:
    """The objects that a row is about: those which one of its cells names, or the first cell above where it is empty.

    Sizes of models have no name but their number of parameters.
    """
    names = set(cells) | {name for cell in cells for name in re.split(r", | and ", cell)} | {above}
    names -= {"", "-"}
    inner = (o for o in objects(whole) if o is not whole and o is not whole["fleet"])
    mine = [o for o in inner if any(o.get(key) in names for key in KEYS if isinstance(o.get(key), str))]
    return mine or [o for o in whole["size_classes"] if format_count(o["parameters"]) in names]


@cache
def shares_and_sums(fleet: str) -> set[str]:
    """What reports compute of the assessment's figures: parts of the bill and of time allowed, machines and hours."""
    found = figures(fleet)
    bill, rows = found["usd_per_month"], found["allocation"]
    splits = ("by_provider", "by_environment", "by_workload", "by_purchase")
    parts = [value for split in splits for value in bill[split].values()]
    parts += [bill["compute"], bill["storage"], bill["traffic"], bill["storage"] + bill["traffic"]]
    made = {share(part, bill["total"]) for part in parts} | {format_percent(part / bill["total"], 0) for part in parts}
    if found["budget_per_month"]:
        made.add(format_percent((bill["expected"] or bill["total"]) / found["budget_per_month"]))
    for w in found["workloads"]:
        for name, target in w["targets"].items():
            figure = w["best"]["figures"].get(name)
            made |= {format_percent(figure["value"] / target["value"], 0)} if figure and "value" in target else set()
    for bought in {(r["provider"], r["instance"], r["purchase"]) for r in rows}:
        mine = [r for r in rows if (r["provider"], r["instance"], r["purchase"]) == bought]
        made |= {f"{sum(r['count'] for r in mine)}", hours(sum(r["count"] * r["hours_per_month"] for r in mine))}
        made.add(digits(sum(r["num_gpus"] * r["hours_per_month"] for r in mine)))
    for provider in {o["provider"] for o in found["instances"]}:
        mine = [o for o in found["instances"] if o["provider"] == provider]
        made |= {f"{len({o[key] for o in mine})}" for key in ("instance", "region")} | {f"{len(mine)}"}
    made |= {f"{n + 1}" for n, _ in enumerate({o["source"] for o in found["instances"]})}  # of notes on prices
    growth = [w.get("growth_per_month", "0 %") for w in found["fleet"]["workloads"]]
    made |= {f"{(1 + float(text.strip('% ')) / 100) ** MONTHS:.3g}" for text in growth}
    days = [service["simulated"] for service in found["scaled"] if service["simulated"]]
    made |= {f"{target['worst_hour'] % 24} h" for day in days for target in day["targets"].values()}
    known = [w["carbon_kg_per_month"] for w in found["workloads"] if w["carbon_kg_per_month"] is not None]
    made |= {f"{digits(sum(known))} kg", f"{len(known)}", f"{len(found['workloads'])}", f"{len(rows)}"}
    return made


def plan_of_weeks(whole: dict[str, Any]) -> set[str]:
    """Weeks of the roadmap's tasks from a phase's first, and the numbers of tasks."""
    made = set()
    for phase in whole["roadmap"]:
        for n, task in enumerate(phase["tasks"], 1):
            first, last = task["week"] + 1, task["week"] + task["weeks"]
            made |= {f"{n}", f"{first}" if first == last else f"{first}-{last}"}
    return made


def in_words(alert: dict[str, Any]) -> set[str]:
    """The threshold of an alert, in its unit."""
    value = alert["threshold"]
    of_unit = {"B": format_bytes(value), "s": format_seconds(value)}.get(alert["unit"])
    return {of_unit} if of_unit else {digits(value), format_percent(value, 0)}


def unknown_figures(title: str, text: str, fleet: str = "small") -> list[tuple[str, str]]:
    """Numbers of a section, with their units, which assessment.json does not have for the row that they stand in."""
    unknown, above, whole, known_strings = list[tuple[str, str]](), "", figures(fleet), strings(fleet)
    computed = set[str]() if title in AS_THEY_ARE else shares_and_sums(fleet)
    if title == "Roadmap":
        computed = plan_of_weeks(whole)
    for line in text.splitlines():
        row = line.startswith("|")
        cells = [cell.strip() for cell in line.strip("|").split("|")] if row else []
        above = (cells[0] or above) if row else ""
        mine = scope(whole, cells, above) or [whole]
        shown = computed.union(*(own_texts(fleet)[id(o)] for o in mine))
        shown = shown.union(*(in_words(o) for o in mine if "threshold" in o))
        rest = line
        for constant in CONSTANTS:
            rest = rest.replace(constant, "§")
        for cell in cells:
            if len(cell) > 20 and any(cell in known for known in known_strings):
                rest = rest.replace(cell, "§")  # a part of a sentence of the assessment
        for known in known_strings:
            rest = rest.replace(known, "§")
        rest = DOLLARS.sub("§", rest)
        for number, unit in NUMBER.findall(rest):
            if f"{number} {unit}".strip() not in shown:
                unknown.append((f"{number} {unit}".strip(), line[:150]))
    return unknown


@pytest.mark.parametrize("fleet", FLEETS)
def test_every_number_of_the_report_is_a_figure_of_the_assessment(fleet: str) -> None:
    unknown = {t: found for t, text in parts(fleet).items() if (found := unknown_figures(t, text, fleet))}
    assert unknown == {}


def test_the_reports_of_these_fleets_have_all_sections() -> None:
    """As `report.content.document` lists them; the one on changes needs an earlier assessment."""
    listed = set(re.findall(r'Section\("([^"]+)"', inspect.getsource(document)))
    assert {title for fleet in FLEETS for title in parts(fleet)} == (listed - {"Since the last assessment"}) | {""}


def tables(title: str) -> Iterator[list[str]]:
    """Rows of a section's tables by their cells."""
    for line in report()[title].splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_every_part_of_the_bill_has_its_own_share() -> None:
    bill = data()["usd_per_month"]
    names = {purchase_text(k): v for k, v in bill["by_purchase"].items()} | {"machines": bill["compute"]}
    for split in ("by_provider", "by_environment", "by_workload"):
        names |= bill[split]
    names |= {"storage": bill["storage"], "traffic": bill["traffic"]}
    of_name = [(cells[0], cells[-1]) for cells in tables("Monthly cost") if re.search(r"\(\d.* %\)$", cells[-1])]
    assert {name for name, _ in of_name} >= set(bill["by_provider"]) | set(bill["by_environment"])
    for name, text in of_name:
        assert text == f"{usd(names[name])} ({share(names[name], bill['total'])})", name
    rows = [cells for cells in tables("Monthly cost") if cells[0] in bill["by_workload"] and cells[2].endswith("%")]
    assert {cells[0] for cells in rows} == set(bill["by_workload"])
    assert all(cells[2] == share(bill["by_workload"][cells[0]], bill["total"]) for cells in rows)


def test_every_number_of_machines_is_one_of_the_assessment() -> None:
    """Of a row's own workload, where it names one: so many machines or devices of this kind are in the JSON."""
    pairs = set[tuple[str, str, str]]()
    for row in [*data()["allocation"], *data()["by_provider"]]:
        if row["count"]:
            pairs |= {(row["workload"], f"{row['count']:,}", row[key]) for key in ("instance", "gpu")}
            pairs.add((row["workload"], f"{row.get('num_gpus', row['count']):,}", row["gpu"]))
    for w in data()["workloads"]:
        best = w["best"]
        pairs |= {(w["name"], f"{best['num_gpus']:,}", best["gpu"])} if best.get("num_gpus") else set()
    anywhere = {(count, name) for _, count, name in pairs}
    anywhere |= {(f"{o['count']}", o["gpu"]) for o in data()["instances"]}
    words = strings("small")
    for title in ("Summary", "Recommendations", "What runs where", "Instances considered"):
        for cells in tables(title):
            for cell in (cell for cell in cells if cell not in words):
                for count, name in COUNTED.findall(cell):
                    mine = {(c, n) for w, c, n in pairs if w == cells[0]} or anywhere
                    assert (count, name.rstrip(".,")) in mine, (title, cell)


def test_the_allocation_s_rows_and_the_capacity_to_secure() -> None:
    """Counts, hours and dates of each row; machines and accelerator-hours of each kind, bought in one way."""
    rows = data()["allocation"]
    shown = [cells for cells in tables("Allocation over providers") if len(cells) == 12][1:]
    assert len(shown) == len(rows)
    for cells, row in zip(shown, rows, strict=True):
        assert cells[:5] == [row[key] for key in ("workload", "provider", "region", "instance", "gpu")]
        bought, count, at = purchase_text(row["purchase"]), f"{row['count']:,}", hours(row["hours_per_month"])
        assert cells[5:8] == [bought, count, at]
        assert cells[10:] == [
            usd(row["usd_per_month"]),
            ", ".join(filter(None, [row["price_date"], row["price_note"]])),
        ]
    kinds = [cells for cells in tables("Allocation over providers") if len(cells) == 6][1:]
    assert sum(int(cells[3]) for cells in kinds) == sum(row["count"] for row in rows)
    for cells in kinds:
        bought = {purchase_text(row["purchase"]): row["purchase"] for row in rows}[cells[2]]
        mine = [r for r in rows if (f"{r['provider']} {r['instance']}", r["region"], r["purchase"]) ==
                (cells[0], cells[1], bought)]  # fmt: skip
        assert int(cells[3]) == sum(r["count"] for r in mine)
        assert cells[4] == digits(sum(r["num_gpus"] * r["hours_per_month"] for r in mine))
        assert cells[5] == ", ".join(r["workload"] for r in mine)


def test_the_roadmap_s_tasks_and_quotas() -> None:
    tasks = [cells for cells in tables("Roadmap") if len(cells) == 5][1:]
    wanted = [(phase, n, task) for phase in data()["roadmap"] for n, task in enumerate(phase["tasks"], 1)]
    assert len(tasks) == len(wanted)
    for cells, (phase, n, task) in zip(tasks, wanted, strict=True):
        assert cells[1].split(",")[0] == (phase["begins"] if n == 1 else "")
        assert cells[2] == f"{n}. {task['name']}"
        assert cells[3] == "-".join(f"{v}" for v in dict.fromkeys((task["week"] + 1, task["week"] + task["weeks"])))
        before = [f"{m}." for m, other in enumerate(phase["tasks"], 1) if other["name"] in task["after"]]
        assert cells[4] == (", ".join(before) or "-")
    quotas = [cells for cells in tables("Roadmap") if len(cells) == 10][1:]
    asked = sorted(
        [
            q["ask_by"], q["provider"], q["region"], q["instance"], purchase_text(q["purchase"]), f"{q['count']}",
            f"{q['count_in_a_year']}", f"{q['num_gpus']} {q['gpu']}", f"{q['weeks']}", ", ".join(q["workloads"]),
        ]
        for phase in data()["roadmap"] for q in phase["quotas"]
    )  # fmt: skip
    assert quotas == asked


def test_a_figure_that_is_not_in_the_assessment_is_found() -> None:
    """Hours, memory, a rate and a probability that are another row's, or nobody's."""
    for title, right, wrong in (
        ("Workloads", "45.2 GiB", "45.3 GiB"),
        ("Performance expected", "3.43 h", "4.43 h"),
        ("Performance expected", "4,078", "2,277"),
        ("Accelerators compared", "320 GB/s", "300 GB/s"),
        ("Risks", "70 %", "71 %"),
        ("Model sizes", "3.04 GiB", "3.14 TiB"),
    ):
        text = report()[title]
        assert right in text, (title, right)
        assert unknown_figures(title, text.replace(right, wrong)), (title, wrong)
