"""The interval of a deployment's memory: weights and cache are exact, and what the engine adds is not."""

from __future__ import annotations

import json
from typing import Any

import pytest

import flopwise
from flopwise import cli
from flopwise.facts.models.catalog import load_model
from flopwise.serving.memory import OWN_ENDS, ServingLayout, serving_memory
from named import FACTS


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert cli.main([*arguments, "--json"]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def test_the_low_end_holds_weights_and_cache_and_half_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3 over eight GPUs, one sequence of 4,096 tokens: 85.4 GB of weights and cache stand in any case."""
    found = answer(
        capsys, "memory", "DeepSeek-V3", "--task", "serve", "--tp", "8", "--gpu", "h200", "--context", "4096"
    )
    items = {item["name"]: item["bytes"] for item in found["items"]}
    exact = items["weights"] + items["KV cache"]
    own = found["per_gpu_bytes"] - exact
    assert exact == pytest.approx(85.4e9, rel=0.01)
    assert found["low_bytes"] == pytest.approx(exact + 0.5 * own)
    assert found["high_bytes"] == pytest.approx(exact + 1.5 * own)


def test_weights_without_a_published_rule_widen_both_ends(capsys: pytest.CaptureFixture[str]) -> None:
    """Dynamic mixtures of GGUF: a tenth of the weights is open, below what is exact and above it."""
    question = ("memory", "Qwen3-8B", "--gpu", "4090", "--context", "4096", "--weights")
    plain, dynamic = (answer(capsys, *question, form) for form in ("Q4_K_M", "UD-Q4_K_XL"))
    weights = next(item["bytes"] for item in plain["items"] if item["name"] == "weights")
    assert dynamic["per_gpu_bytes"] == plain["per_gpu_bytes"]
    assert plain["low_bytes"] - dynamic["low_bytes"] == pytest.approx(0.1 * weights)
    assert dynamic["high_bytes"] - plain["high_bytes"] == pytest.approx(0.1 * weights)
    assert dynamic["kv_capacity_tokens_low"] < plain["kv_capacity_tokens_low"]
    assert any("Q4_K_M are assumed" in text for text in dynamic["assumptions"])
    assert not any("are assumed" in text for text in plain["assumptions"])
    served = answer(capsys, "serve", "Qwen3-8B", "--gpu", "4090", "--weights", "UD-Q4_K_XL")
    assert any("Q4_K_M are assumed" in text for text in served["assumptions"])


def test_the_cache_has_what_the_engine_leaves() -> None:
    """Llama-3-8B in vLLM on an H100: 1.5 times what the engine takes is half of that less for the cache."""
    model, vllm = load_model("Llama-3-8B"), FACTS.engine("vllm")
    memory = serving_memory(
        model, ServingLayout(), concurrency=8, context=4096, hbm_bytes=85.5e9, engine=vllm, memory_frac=0.9
    )
    own = float(memory.total_bytes) - memory.exact_bytes
    budget = float(memory.kv_budget_bytes)
    least, most = memory.capacity_ends()
    assert least == pytest.approx(1 - (OWN_ENDS[1] - 1) * own / budget)
    assert most == pytest.approx(1 + (1 - OWN_ENDS[0]) * own / budget)


def test_capacities_have_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    for question in (["memory", "Llama-3.1-8B", "--context", "8k"], ["serve", "Llama-3.1-8B"]):
        found = answer(capsys, *question, "--gpu", "h100")
        memory = found if question[0] == "memory" else found["memory"]
        for name in ("kv_capacity_tokens", "max_concurrency"):
            assert memory[f"{name}_low"] <= memory[name] <= memory[f"{name}_high"], name
        assert found["kv_capacity_tokens_low"] < found["kv_capacity_tokens"] < found["kv_capacity_tokens_high"]


def test_ends_of_a_service_are_of_all_its_replicas(capsys: pytest.CaptureFixture[str]) -> None:
    """Four attention replicas, two of them a deployment, take four times as many as one."""
    one, four = (
        answer(capsys, "serve", "Llama-3.1-8B", "--gpu", "h100", *more)
        for more in (["--concurrency", "1"], ["--concurrency", "4", "--gpus", "4", "--dp", "2"])
    )
    assert one["max_concurrency_low"] < one["max_concurrency"] < one["max_concurrency_high"]
    for end in ("low", "high"):
        assert four[f"max_concurrency_{end}"] == pytest.approx(4 * one[f"max_concurrency_{end}"], rel=0.01)
    encoder = answer(capsys, "serve", "bge-m3", "--gpu", "h100")
    assert encoder["max_concurrency_low"] is encoder["kv_capacity_tokens_low"] is None


def test_a_batch_that_is_capped_stays_capped(capsys: pytest.CaptureFixture[str]) -> None:
    question = ("memory", "Llama-3.1-8B", "--context", "256", "--gpu", "h100", "--max-batch", "64")
    found = answer(capsys, *question)
    assert found["max_concurrency"] == found["max_concurrency_low"] == found["max_concurrency_high"] == 64


def test_nothing_is_left_where_the_weights_do_not_fit() -> None:
    memory = serving_memory(load_model("Llama-3.1-70B"), context=4096, hbm_bytes=24e9, engine=FACTS.engine("vllm"))
    assert memory.capacity_ends() == (0.0, 1.0)


def test_adapters_are_counted_exactly() -> None:
    """120 adapters beside the weights are above what a card has, whatever the engine takes of its own."""
    found = flopwise.serve("Llama-3.1-8B", gpu="a10g", adapters=120, adapter_rank=16, concurrency=1).memory
    items, usable = dict(found.items), found.usable_bytes
    assert usable is not None
    assert items["weights"] + items["adapters"] > usable
    assert found.low_bytes > usable
    assert found.fits_probability == 0.0
