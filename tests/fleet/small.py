"""A small fleet over a small catalog, assessed once for all tests that read the answer."""

from __future__ import annotations

from functools import cache
from typing import Any

from flopwise.facts.catalog import Facts, load_facts
from flopwise.fleet.assess import Assessed, recommended_fleet
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.assessment import Assessment
from flopwise.fleet.bill import SolvedFleet
from flopwise.fleet.model import Platform
from flopwise.fleet.read import fleet_from

TODAY = "2026-11-21"
CHAT: dict[str, Any] = {
    "name": "chat", "task": "serve", "model": "Llama-7B", "growth_per_month": "20%", "starts": "2027-02",
    "traffic": {"requests_per_s": 20, "input_tokens": 256, "output_tokens": 16}, "targets": {"latency": {"p95": "1s"}},
    "volumes": {"storage": "1TB"},
}  # fmt: skip
TUNE: dict[str, Any] = {
    "name": "tune", "task": "finetune", "model": "Llama-7B", "method": {"kind": "lora"}, "growth_per_month": "10%",
    "data": {"tokens": "50M", "seq_len": 2048}, "runs_per_month": 4, "starts": "2027-01",
}  # fmt: skip
BATCH: dict[str, Any] = {
    "name": "nightly", "task": "batch", "model": "Llama-7B", "environment": "production", "starts": "2027-01",
    "traffic": {"requests": "100k", "input_tokens": 256, "output_tokens": 64}, "targets": {"deadline": "24h"},
    "runs_per_month": 30,
}  # fmt: skip
DESKS: dict[str, Any] = {
    "name": "desks", "task": "develop", "environment": "development", "machines": {"count": 2, "gpus": ["T4"]},
    "starts": "2027-01",
}  # fmt: skip
FLEET: dict[str, Any] = {
    "name": "small", "workloads": [CHAT, TUNE, BATCH, DESKS],
    "policies": {
        "purchase": ["on_demand", "spot", "reserved_1y"], "budget_per_month": "$3000", "max_price_age_days": 100,
        "quotas": [{"provider": "aws", "instance": "g4dn*", "most": 2}, {"provider": "gcp", "most": 1000}],
    },
}  # fmt: skip


@cache
def catalog() -> Facts:
    """What three clouds sell of a few devices."""
    whole = load_facts(None)
    gpus = {"T4", "L4", "A10G", "L40S", "A100-SXM-80", "A100-PCIe-80", "H100-SXM-80"}
    kept = [o for o in whole.offers if o.accelerator in gpus and o.provider in {"aws", "gcp", "azure"}]
    return whole.with_tables(offers=tuple(kept))


@cache
def platform() -> Platform:
    """The small fleet."""
    return fleet_from(FLEET)


@cache
def answer() -> Assessed:
    """Its assessment, with plans."""
    return assess_with_plans(platform(), catalog(), scenarios=200, today=TODAY)


def assess(*args: Any, **how: Any) -> Assessment:
    """An assessment without its plans."""
    return assess_with_plans(*args, **how).assessment


def solved(platform: Platform, facts: Facts) -> SolvedFleet:
    """What an assessment starts from: the machines and their bill, without anything that is asked of them."""
    return recommended_fleet(platform, facts, lambda _stage, _done, _whole: None)
