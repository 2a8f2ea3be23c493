"""Fleet files: what is written is what is meant, and what is wrong is named with its line."""

from __future__ import annotations

import json
import re
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flopwise.errors import SpecError
from flopwise.fleet.model import Platform
from flopwise.fleet.read import fleet_of, load_fleet, parse_fleet
from flopwise.fleet.spec import schema

GOOD = """
name: platform
policies: {providers: {aws: 60%, gcp: 40%}, budget_per_month: $20k, purchase: [on_demand, spot]}
environments:
  weekly: {per_day: 24, days: 4.35}
workloads:
  - name: chat
    task: serve
    model: Llama-3.1-8B
    traffic: {requests_per_s: 5}
    volumes: {egress: 2TB}
  - {name: tune, task: finetune, model: Llama-3.1-8B, environment: weekly, data: {tokens: 10M}, runs_per_month: 4}
  - {name: desks, task: develop, environment: development, machines: {count: 2, memory: 16GB}}
"""


def read(text: str) -> Platform:
    return parse_fleet(text, "fleet.yaml")


def test_a_fleet_in_base_units() -> None:
    chat, tune, desks = read(GOOD).jobs
    rules = read(GOOD).rules
    assert rules.providers == {"aws": 0.6, "gcp": 0.4}
    assert rules.budget_per_month == 20_000
    assert (chat.hours_per_month, chat.volumes.egress, chat.ends, chat.interruptible) == (730, 2e12, False, False)
    assert tune.hours_per_month == pytest.approx(104.4)
    assert (tune.runs_per_month, tune.interruptible) == (4, True)
    assert chat.purchase == ("on_demand", "spot")
    assert desks.workload is None
    assert desks.spec.machines is not None
    assert (desks.spec.machines.count, desks.spec.machines.memory, desks.hours_per_month) == (2, 16e9, 176)


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(GOOD)
    assert load_fleet(path) == read(GOOD)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("egress: 2TB", "egres: 2TB", r"fleet.yaml:11: .*unknown key 'egres'.*nearest: egress"),
        ("gcp: 40%", "gcp: 60%", "fleet.yaml:3: policies.providers: the shares add up to 120 %"),
        ("aws: 60%", "aws: 160%", "fleet.yaml:3: policies.providers.aws: 160%"),
        ("$20k", "$0", "fleet.yaml:3: policies.budget_per_month"),
        ("requests_per_s: 5", "requests_per_s: -5", "fleet.yaml:10: workloads.0.traffic.requests_per_s"),
        ("task: serve", "task: server", "fleet.yaml:8: .*not one of pretrain.*nearest: serve"),
        ("per_day: 24", "per_day: 25", "fleet.yaml:5: environments.weekly.per_day: 25"),
        ("environment: weekly", "environment: monthly", "fleet.yaml:12: .*'monthly' has no hours"),
        ("name: tune", "name: chat", "fleet.yaml:12: workloads.1.name: 'chat' is used twice"),
        ("runs_per_month: 4", "runs_per_month: 0", "fleet.yaml:12: workloads.1.runs_per_month"),
        ("machines: {count: 2, memory: 16GB}", "model: x", "fleet.yaml:13: .*describe those under"),
        ("    model: Llama-3.1-8B\n", "", "fleet.yaml:7: workloads.0: needs `model`"),
        ("runs_per_month: 4", "purchase: [reserved_1y]", "is not among the fleet's"),
        ("workloads:", "work:", "fleet.yaml:6: .*unknown key 'work'"),
        ("gcp: 40%", "gcp: 20%", "fleet.yaml:3: policies.providers: the shares add up to 80 %"),
        ("gcp: 40%", "gcp: -40%", "fleet.yaml:3: policies.providers.gcp: -40%"),
        ("gcp: 40%", "7: 40%", "fleet.yaml:3: policies.providers: keys are text"),
        ("egress: 2TB", "egress: -2TB", "fleet.yaml:11: workloads.0.volumes.egress: -2TB is out of range"),
        ("egress: 2TB", "egress: 1e300", "fleet.yaml:11: workloads.0.volumes.egress: 1e300 is out of range"),
        ("egress: 2TB", "egress: .inf", "fleet.yaml:11: workloads.0.volumes.egress"),
        ("{egress: 2TB}", "5", "fleet.yaml:11: workloads.0.volumes: expected a mapping, not a number"),
        (
            "{egress: 2TB}",
            "{egress: 2TB}\n    starts: 2027-13",
            "fleet.yaml:12: .*not a month; give one such as 2027-01",
        ),
        ("{egress: 2TB}", "{egress: 2TB}\n    starts: 2027-01-05", "fleet.yaml:12: .*not a month"),
        ("name: tune", 'name: "a\\eb"', r"fleet.yaml:12: holds the control character U\+001B"),
        ("name: tune", 'name: "a\\0b"', r"fleet.yaml:12: holds the control character U\+0000"),
        ("name: tune", 'name: "\\ud800"', r"fleet.yaml:12: holds the control character U\+D800"),
        ("name: tune", f"name: {'x' * 201}", "fleet.yaml:12: workloads.1.name: expected text of a length up to 200"),
        ("name: platform", f"name: p\ndescription: {'x' * 10_000}", "fleet.yaml:3: description: .*up to 5000"),
        ("name: platform", "name: 7", "fleet.yaml:2: name: expected text, not a number"),
        ("[on_demand, spot]", "[spotty]", "fleet.yaml:3: policies.purchase.0: .*not one of on_demand.*nearest: spot"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(SpecError, match=says):
        read(GOOD.replace(old, new))


@pytest.mark.parametrize(("given", "said"), [(5, "'5' is a number"), (["a.yaml"], "is a list")])
def test_what_is_no_path_is_named(given: Any, said: str) -> None:
    with pytest.raises(SpecError, match=f"{said}; give the path of a YAML file"):
        fleet_of(given)


def test_growth_follows_another_workload() -> None:
    text = GOOD.replace("requests_per_s: 5}", "requests_per_s: 5}\n    growth_per_month: 7%")
    followed = text.replace("runs_per_month: 4", "runs_per_month: 4, grows_with: desks").replace(
        "count: 2, memory: 16GB}", "count: 2, memory: 16GB}, grows_with: chat"
    )
    assert [w.growth_per_month for w in read(followed).jobs] == [0.07, 0.07, 0.07]
    assert [w.growth_per_month for w in read(text).jobs] == [0.07, 0.0, 0.0]


@pytest.mark.parametrize(
    ("tune", "desks", "says"),
    [
        ("desks", "tune", r"fleet.yaml:13: workloads.2.grows_with: .*circular growth: tune -> desks -> tune;"),
        ("tune", "chat", r"fleet.yaml:12: workloads.1.grows_with: .*circular growth: tune -> tune;"),
        ("chta", "chat", r"fleet.yaml:12: workloads.1.grows_with: unknown workload 'chta'; nearest: chat"),
        ("chat, growth_per_month: 3%", "chat", r"fleet.yaml:12: .*growth_per_month already gives it"),
    ],
)
def test_growth_that_leads_nowhere_is_refused(tune: str, desks: str, says: str) -> None:
    text = GOOD.replace("runs_per_month: 4", f"runs_per_month: 4, grows_with: {tune}").replace(
        "memory: 16GB}", f"memory: 16GB}}, grows_with: {desks}"
    )
    with pytest.raises(SpecError, match=says):
        read(text)


@pytest.mark.parametrize("text", ["", "- x", "name: [", "a: &x 1\nb: *x", "name: x\nname: y", "\0", "null", "- 5"])
def test_what_is_no_fleet_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match=r"fleet\.yaml"):
        read(text)


@pytest.mark.parametrize("text", ["[" * 100_000, "{a: " * 50_000, "x: " + "[" * 60 + "]" * 60])
def test_brackets_without_end_are_refused_at_once(text: str) -> None:
    start = time.perf_counter()
    with pytest.raises(SpecError, match=r"fleet\.yaml:1: more than 50 levels deep"):
        read(text)
    assert time.perf_counter() - start < 30.0  # a parser that recurses or backtracks takes minutes


def test_a_bomb_of_aliases_is_refused_at_its_line() -> None:
    lines = ["a: &a [x, x, x, x]", *(f"{b}: &{b} [*{a}, *{a}, *{a}, *{a}]" for a, b in pairwise("abcdefghijklmnop"))]
    with pytest.raises(SpecError, match=r"fleet\.yaml:2: YAML aliases"):
        read("\n".join(lines))


def test_the_schema_names_every_key() -> None:
    job = schema()["properties"]["workloads"]["items"]["properties"]
    assert {"name", "task", "traffic", "residency", "tags", "backup", "volumes"} <= set(job)


def test_the_published_schema_is_this_one_and_the_page_s_example_is_a_fleet() -> None:
    docs = Path(__file__).parents[2] / "docs"
    published = json.loads((docs / "fleet.schema.json").read_text(encoding="utf-8"))
    assert published == schema(), "run: python docs/generate.py"
    examples = re.findall(
        r"```yaml\n(.*?)```", (docs / "questions" / "fleet.md").read_text(encoding="utf-8"), re.DOTALL
    )
    assert [parse_fleet(text).fleet.name for text in examples] == ["Two services", "Own machines first"]


def test_a_list_of_providers_without_shares_says_where_it_belongs() -> None:
    listed = GOOD.replace("{aws: 60%, gcp: 40%}", "[aws, gcp]")
    with pytest.raises(SpecError, match=r"policies\.providers: each provider has a share.*constraints\.providers"):
        parse_fleet(listed, "f")
