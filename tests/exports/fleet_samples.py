"""A small fleet that the tests of exports share: services, some of them for hours, machines of people, and a run."""

from __future__ import annotations

from functools import cache
from typing import Any

from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.spec import ExportSettings
from flopwise.facts.catalog import load_facts
from flopwise.fleet.assess import assess
from flopwise.fleet.read import fleet_from

_TRAFFIC = {"requests_per_s": 2, "input_tokens": 500, "output_tokens": 150}


def _service(name: str, **more: Any) -> dict[str, Any]:
    place = {"providers": ["aws"], "gpus": ["l4"]}
    return {"name": name, "task": "serve", "model": "Llama-3.1-8B", "traffic": _TRAFFIC, "constraints": place, **more}


FLEET: dict[str, Any] = {
    "name": "small ${platform}",
    "policies": {"budget_per_month": 5000, "purchase": ["on_demand", "spot"]},
    "workloads": [
        _service("chat", environment="production", hours={"always": True}),
        _service("mornings", environment="staging", hours={"start": "08:00", "stop": "12:00", "days": "mon-fri"}),
        _service("evenings", environment="staging", hours={"start": "18:00", "stop": "02:00", "days": "daily"}),
        {
            "name": "desks", "task": "develop", "environment": "development",
            "machines": {"count": 2, "gpus": ["T4"]}, "constraints": {"providers": ["azure"]},
        },
        {
            "name": "weekly run", "task": "pretrain", "environment": "training", "model": "gpt2",
            "data": {"tokens": "1B", "seq_len": 1024, "global_batch": 512},
            "constraints": {"providers": ["gcp"], "gpus": ["l4"]}, "purchase": ["spot"],
        },
    ],
}  # fmt: skip


@cache
def sample_fleet(**settings: Any) -> FleetDeployment:
    """The small fleet, ready to be written down."""
    found = assess(fleet_from(FLEET), load_facts(), scenarios=0, today="2026-11-21")
    return FleetDeployment.of(found.assessment, found.plans, load_facts(), ExportSettings(**settings))
