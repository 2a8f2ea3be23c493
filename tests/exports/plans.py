"""Small plans, made once, and the deployments that targets make of them."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from flopwise.api.plan import plan
from flopwise.exports.deployment import Deployment
from flopwise.exports.spec import ExportSettings
from flopwise.facts.catalog import load_facts
from flopwise.search.answer import Plan

SERVE = {
    "model": "Llama-3.1-8B", "task": "serve", "name": "chat", "simulate": False,
    "traffic": {"requests_per_s": 8, "input_tokens": 1000, "output_tokens": 250},
    "targets": {"ttft": {"p95": "1s"}, "tpot": {"p95": "50ms"}},
    "constraints": {"providers": ["aws"], "gpus": ["L40S"], "purchase": ["on_demand"]},
}  # fmt: skip
FINETUNE = {
    "model": "Llama-3.1-8B", "task": "finetune", "name": "assistant",
    "data": {"tokens": "50M", "seq_len": 2048, "global_batch": 64}, "method": {"kind": "lora"},
    "constraints": {"providers": ["aws"], "gpus": ["L40S"], "purchase": ["on_demand"]},
}  # fmt: skip
PRETRAIN = {
    "model": "7B", "task": "pretrain", "name": "base",
    "data": {"tokens": "100B", "seq_len": 4096, "global_batch_tokens": "4M"}, "targets": {"deadline": "30d"},
    "constraints": {"providers": ["aws"], "gpus": ["H100"], "purchase": ["on_demand"], "max_gpus": 64},
}  # fmt: skip
BATCH = {
    "model": "Llama-3.1-8B", "task": "batch", "name": "summaries", "simulate": False,
    "traffic": {"requests": 200000, "input_tokens": 1000, "output_tokens": 250}, "targets": {"deadline": "2h"},
    "constraints": {"providers": ["gcp"], "gpus": ["L4"], "purchase": ["spot"]},
}  # fmt: skip
ENCODE = {
    "model": "roberta-base", "task": "encode", "name": "triage", "simulate": False,
    "traffic": {"requests_per_s": 2, "input_tokens": 128}, "targets": {"latency": {"p95": "150ms"}},
    "constraints": {"providers": ["aws"], "gpus": ["Xeon Platinum 8488C"], "purchase": ["on_demand"]},
}  # fmt: skip


def plan_of(document: dict[str, Any]) -> Plan:
    """The plan of a workload, made once."""
    return _plan(msgspec.json.encode(document))


@cache
def _plan(document: bytes) -> Plan:
    return plan(msgspec.json.decode(document))


def deployment_of(document: dict[str, Any], changes: dict[str, Any] | None = None, **settings: Any) -> Deployment:
    """The first candidate of a workload's plan with `changes` to its fields (`layout` merged), with settings."""
    found = plan_of(document)
    chosen, new = found.plans[0], dict(changes or {})
    if "layout" in new:
        new["layout"] = chosen.layout | new["layout"]
    chosen = msgspec.structs.replace(chosen, **new)
    return Deployment.of(found, chosen, load_facts(), ExportSettings(**settings))


def constrained(document: dict[str, Any], **constraints: Any) -> dict[str, Any]:
    """A workload with other constraints."""
    return document | {"constraints": document["constraints"] | constraints}
