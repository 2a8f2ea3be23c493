"""Plans that the tests of exports share: small searches, one of each kind of workload."""

from __future__ import annotations

from functools import cache
from typing import Any

from flopwise.api.plan import plan
from flopwise.errors import InfeasibleError
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Exported
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import exported_plan
from flopwise.facts.catalog import load_facts
from flopwise.search.answer import Plan

_CHAT = {"requests_per_s": 20, "input_tokens": 1000, "output_tokens": 250}
_LATENCY = {"ttft": {"p95": "1s"}, "tpot": {"p95": "50ms"}}


def _on(provider: str, *gpus: str, **more: Any) -> dict[str, Any]:
    return {"providers": [provider], "gpus": list(gpus), **more}


WORKLOADS: dict[str, dict[str, Any]] = {
    "pretrain": {
        "model": "Llama-3.1-8B", "task": "pretrain", "name": "base 8b",
        "data": {"tokens": "100B", "seq_len": 4096, "global_batch": 512}, "targets": {"deadline": "30d"},
        "constraints": _on("aws", "h100", min_gpus=16, max_gpus=64),
    },
    "pretrain-70b": {
        "model": "Llama-3.1-70B", "task": "pretrain", "name": "base 70b",
        "data": {"tokens": "100B", "seq_len": 8192, "global_batch": 256},
        "constraints": _on("azure", "h100", min_gpus=64, max_gpus=128),
    },
    "pretrain-moe": {
        "model": "Mixtral-8x7B", "task": "pretrain", "name": "moe",
        "data": {"tokens": "50B", "seq_len": 4096, "global_batch": 256},
        "constraints": _on("gcp", "h100", min_gpus=32, max_gpus=64),
    },
    "pretrain-spot": {
        "model": "gpt2", "task": "pretrain", "name": "small one, cheap",
        "data": {"tokens": "2B", "seq_len": 1024, "global_batch": 512},
        "constraints": _on("aws", "a10g", "l4", purchase=["spot"]),
    },
    "lora": {
        "model": "Llama-3.1-8B", "task": "finetune", "name": "support assistant",
        "method": {"kind": "lora", "rank": 16},
        "data": {"tokens": "50M", "seq_len": 2048, "global_batch": 64}, "constraints": _on("aws", "l40s"),
    },
    "qlora": {
        "model": "Llama-3.1-70B", "task": "finetune", "name": "qlora 70b", "method": {"kind": "qlora", "rank": 16},
        "data": {"tokens": "20M", "seq_len": 2048, "global_batch": 32}, "constraints": _on("gcp", "a100-80gb"),
    },
    "finetune-full": {
        "model": "Llama-3.1-8B", "task": "finetune", "name": "full tuning",
        "data": {"samples": 20000, "seq_len": 2048, "global_batch": 64}, "constraints": _on("gcp", "a100-80gb"),
    },
    "finetune-v100": {
        "model": "gpt2-xl", "task": "finetune", "name": "half precision", "precision": "fp16",
        "data": {"tokens": "50M", "seq_len": 1024, "global_batch": 64}, "constraints": _on("aws", "v100"),
    },
    "serve": {
        "model": "Llama-3.1-70B", "task": "serve", "name": "chat", "traffic": {**_CHAT, "requests_per_s": 28},
        "targets": _LATENCY,
        "constraints": _on("aws", "h100", weight_formats=["fp8"]), "simulate": False,
    },
    "serve-gcp": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "small chat", "traffic": _CHAT, "targets": _LATENCY,
        "constraints": _on("gcp", "l4"), "simulate": False,
    },
    "serve-azure": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "awq chat", "traffic": _CHAT, "targets": _LATENCY,
        "constraints": _on("azure", "a100-80gb", weight_formats=["awq"]), "simulate": False,
    },
    "serve-nodes": {
        "model": "DeepSeek-V3", "task": "serve", "name": "large mixture", "traffic": {**_CHAT, "requests_per_s": 10},
        "constraints": _on("aws", "a100-80gb", weight_formats=["bf16"]), "simulate": False,
    },
    "serve-prefix": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "shared prompt", "traffic": _CHAT, "targets": _LATENCY,
        "techniques": {"shared_prefix": 600}, "constraints": _on("aws", "l40s"), "simulate": False,
    },
    "serve-draft": {
        "model": "Llama-3.1-70B", "task": "serve", "name": "drafted", "traffic": {**_CHAT, "requests_per_s": 2},
        "techniques": {"draft": "Llama-3.2-1B", "acceptance": 0.7, "draft_tokens": 4},
        "constraints": _on("aws", "h100", weight_formats=["fp8"]), "simulate": False,
    },
    "serve-sglang": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "sglang chat", "traffic": _CHAT, "targets": _LATENCY,
        "constraints": _on("gcp", "h100", engine="sglang"), "simulate": False,
    },
    "serve-trtllm": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "tensorrt chat", "traffic": _CHAT, "targets": _LATENCY,
        "constraints": _on("aws", "h100", engine="tensorrt-llm"), "simulate": False,
    },
    "serve-tgi": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "tgi chat", "traffic": _CHAT, "targets": _LATENCY,
        "constraints": _on("aws", "l40s", engine="tgi"), "simulate": False,
    },
    "serve-llamacpp": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "one user", "traffic": {**_CHAT, "requests_per_s": 0.05},
        "constraints": _on("aws", "l4", engine="llama.cpp", weight_formats=["Q4_K_M"]), "simulate": False,
    },
    "serve-pools": {
        "model": "Llama-3.1-70B", "task": "serve", "name": "long prompts",
        "targets": {"ttft": {"p95": "3.5s"}, "tpot": {"p95": "20ms"}}, "techniques": {"prefill_gpus": 4},
        "traffic": {"requests_per_s": 5.5, "input_tokens": 6000, "output_tokens": 200},
        "constraints": _on("aws", "h100", weight_formats=["fp8"], engine="vllm", instances=["p5.48xlarge"]),
        "simulate": False,
    },
    "serve-pools-sglang": {
        "model": "Llama-3.1-8B", "task": "serve", "name": "long prompts, sglang", "targets": {"ttft": {"p95": "4s"}},
        "traffic": {"requests_per_s": 20, "input_tokens": 6000, "output_tokens": 200},
        "techniques": {"prefill_gpus": 2}, "constraints": _on("gcp", "h100", engine="sglang"), "simulate": False,
    },
    "encode": {
        "model": "roberta-base", "task": "encode", "name": "triage",
        "traffic": {"requests_per_s": 2, "input_tokens": 128}, "targets": {"latency": {"p95": "150ms"}},
        "constraints": _on("aws", "l4", "t4"), "simulate": False,
    },
    "encode-vllm": {
        "model": "roberta-base", "task": "encode", "name": "triage by vllm",
        "traffic": {"requests_per_s": 2, "input_tokens": 128}, "targets": {"latency": {"p95": "150ms"}},
        "constraints": _on("aws", "l4", "t4", engine="vllm"), "simulate": False,
    },
    "batch": {
        "model": "Llama-3.1-8B", "task": "batch", "name": "nightly summaries",
        "traffic": {"requests": 200000, "input_tokens": 2000, "output_tokens": 200}, "targets": {"deadline": "8h"},
        "constraints": _on("aws", "l40s", "l4", purchase=["on_demand", "spot"]), "simulate": False,
    },
}  # fmt: skip
"""Workloads by the names that tests call them by."""


@cache
def sample_plan(name: str) -> Plan:
    """The plan of one of WORKLOADS."""
    found = plan(WORKLOADS[name])
    assert found.plans, f"{name}: {[*found.misses, *found.ruled_out]}"
    return found


def sample_deployment(sample: str, /, **settings: Any) -> Deployment:
    """The first candidate of a sample plan, with export settings."""
    return Deployment.of_rank(sample_plan(sample), 1, load_facts(), ExportSettings(**settings))


def sample_export(target: str, sample: str, /, **settings: Any) -> Exported:
    """The files of a sample plan for a target; made once where there are no settings."""
    return exported_plan(target, sample_deployment(sample, **settings)) if settings else _plain_export(target, sample)


@cache
def _plain_export(target: str, sample: str) -> Exported:
    return exported_plan(target, sample_deployment(sample))


@cache
def expressible(target: str) -> tuple[str, ...]:
    """The samples that a target can express."""
    found = list[str]()
    for name in WORKLOADS:
        try:
            sample_export(target, name)
        except InfeasibleError:
            continue
        found.append(name)
    return tuple(found)
