"""Training plans, made once, and what trainers make of their candidates with other layouts."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from flopwise.api.plan import plan
from flopwise.exports.deployment import Deployment
from flopwise.exports.spec import ExportSettings
from flopwise.facts.catalog import load_facts
from flopwise.search.answer import Plan

FINETUNE: dict[str, Any] = {
    "model": "Llama-3.1-8B", "task": "finetune", "name": "assistant",
    "data": {"tokens": "50M", "seq_len": 2048, "global_batch": 64}, "method": {"kind": "lora"},
    "constraints": {"providers": ["aws"], "gpus": ["L40S"], "purchase": ["on_demand"]},
}  # fmt: skip
FULL = FINETUNE | {"method": {"kind": "full"}, "constraints": {"providers": ["aws"], "gpus": ["H100"], "max_gpus": 16}}
PRETRAIN: dict[str, Any] = {
    "model": "7B", "task": "pretrain", "name": "base",
    "data": {"tokens": "100B", "seq_len": 4096, "global_batch_tokens": "4M"}, "targets": {"deadline": "30d"},
    "constraints": {"providers": ["aws"], "gpus": ["H100"], "purchase": ["on_demand"], "max_gpus": 64},
}  # fmt: skip
DATA_PARALLEL = {"dp": 8, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "micro_batch": 2, "zero": 3, "stack": "fsdp-compile"}
EIGHT = {"num_gpus": 8, "num_instances": 1}


@cache
def _plan(document: bytes) -> Plan:
    return plan(msgspec.json.decode(document))


def deployment_of(document: dict[str, Any], changes: dict[str, Any] | None = None, **settings: Any) -> Deployment:
    """The first candidate of a workload's plan with `changes` to its fields (`layout` merged), with settings."""
    found = _plan(msgspec.json.encode(document))
    chosen, new = found.plans[0], dict(changes or {})
    if "layout" in new:
        new["layout"] = chosen.layout | new["layout"]
    chosen = msgspec.structs.replace(chosen, **new)
    return Deployment.of(found, chosen, load_facts(), ExportSettings(**settings))


def spread(layout: dict[str, Any], document: dict[str, Any] = FULL, **settings: Any) -> Deployment:
    """A run on eight accelerators of one machine."""
    plain = DATA_PARALLEL | {"recompute": "none", "recompute_first": 0}
    return deployment_of(document, EIGHT | {"layout": plain | layout}, **settings)
