"""What a port to other software would bring, and what it takes."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.errors import UnknownNameError
from flopwise.search.allowed import PORTED_SOFTWARE, software_of
from flopwise.search.plan import plan
from flopwise.search.porting import MEASURED
from flopwise.search.workload import resolve
from named import FACTS

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"
SERVICE: dict[str, Any] = {
    "model": "Llama-3.1-8B", "task": "serve", "simulate": False,
    "traffic": {"requests_per_s": 2, "input_tokens": 300, "output_tokens": 60},
}  # fmt: skip


def _software(device: str) -> str | None:
    """None of a device that is not in the catalog: its rows are predicted by nothing."""
    try:
        return software_of(FACTS.accelerator(device))
    except UnknownNameError:
        return None


@pytest.mark.parametrize(("file", "place"), [("training.csv", 0), ("serving.csv", 1)])
def test_measured_rows_are_those_of_the_truth(file: str, place: int) -> None:
    with (TRUTH / file).open(encoding="utf-8") as lines:
        devices = [row["gpu"] for row in csv.DictReader(lines)]
    rows = Counter(map(_software, devices))
    assert {name: counts[place] for name, counts in MEASURED.items()} == {name: rows[name] for name in PORTED_SOFTWARE}


def test_a_plan_tells_what_each_port_would_cost() -> None:
    """Each is the cheapest of a plan with that software alone, against the first of the plan without a port."""
    answer = flopwise.plan(SERVICE)
    assert {port.software for port in answer.if_you_port} == set(PORTED_SOFTWARE)
    for port in answer.if_you_port:
        alone = plan(resolve({**SERVICE, "software": [port.software]}), FACTS, alone=False)
        assert port.cost_usd == pytest.approx(min(c.cost_usd for c in alone.plans))
        assert port.saves_usd == pytest.approx(answer.plans[0].cost_usd - port.cost_usd)
        assert port.rows == MEASURED[port.software][1]
        said = " ".join(port.work)
        assert "framework" in said
        assert "kernels" in said
        assert "formats" in said
    assert [p.cost_usd for p in answer.if_you_port] == sorted(p.cost_usd for p in answer.if_you_port)


@pytest.mark.parametrize("said", [{"software": ["cuda"]}, {"constraints": {"gpus": ["l4"]}}])
def test_who_says_the_software_or_names_devices_asks_for_no_port(said: dict[str, Any]) -> None:
    assert flopwise.plan({**SERVICE, **said}).if_you_port == []


def test_a_service_with_stores_of_caches_is_planned_over_all_devices() -> None:
    """The search for ports refused it: nothing that is not shown has such stores."""
    traffic = {"requests_per_s": 0.2, "turns": 3, "think": 20, "kv_stores": "host=20GB"}
    answer = flopwise.plan({**SERVICE, "traffic": {**SERVICE["traffic"], **traffic}, "constraints": {"max_gpus": 1}})
    assert answer.plans
    assert answer.if_you_port == []


def test_ports_of_a_training_run_are_the_cheapest_of_each_software() -> None:
    """Searches for it leave out machines that cannot be the cheapest; none of those would have been."""
    document = {"model": "Llama-3.2-1B", "task": "finetune", "data": {"tokens": "20M"}, "constraints": {"max_gpus": 8}}
    answer = flopwise.plan(document)
    assert answer.if_you_port
    for port in answer.if_you_port:
        alone = plan(resolve({**document, "software": [port.software]}), FACTS, alone=False)
        assert port.cost_usd == pytest.approx(min(c.cost_usd for c in alone.plans))
