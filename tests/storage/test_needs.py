"""What a plan needs of storage, by hand: data as it trains, checkpoints by Daly's interval, weights at a start."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flopwise.api.plan import plan
from flopwise.facts.catalog import load_facts

STEPS_STATE_BYTES = 12
"""Of a parameter in a checkpoint of PyTorch's AdamW on fp32 weights: the weight and two moments."""
MTBF_S = 16384 * 54 * 86400 / 419
"""Of one GPU: 419 interruptions in 54 days on 16,384 (Llama 3, section 3.3.4)."""

SIXTEEN = {"gpus": ["H100-SXM-80"], "min_gpus": 16, "max_gpus": 16}


def needs(**workload: Any) -> dict[str, dict[str, Any]]:
    """The storage needs of the first plan, by purpose."""
    first = plan(workload).plans[0]
    assert len({need["purpose"] for need in first.storage}) == len(first.storage)
    return {need["purpose"]: need for need in first.storage} | {"figures": dict(first.figures, gpus=first.num_gpus)}


def test_data_are_read_as_fast_as_they_are_trained_on() -> None:
    """GPT-2's 50,257 tokens have ids of 2 bytes."""
    found = needs(model="gpt2", task="pretrain", data={"tokens": 3e9}, constraints=SIXTEEN)
    data, rate = found["training data"], found["figures"]["tokens_per_s"]
    assert data["nbytes"] == 2 * 3e9
    assert data["needed_bytes_per_s"] == pytest.approx(2 * rate)
    assert data["node_needed_bytes_per_s"] == pytest.approx(2 * rate / 2)
    assert data["assumed_bytes_per_s"] is None


def test_checkpoints_are_written_as_often_as_loses_least() -> None:
    """A billion bytes a second and GPU are written; Daly's interval of the stall and of 16 GPUs' failures."""
    found = needs(model="gpt2", task="pretrain", data={"tokens": 3e9}, constraints=SIXTEEN)
    saved = found["checkpoints"]
    parameters = 124_439_808
    assert saved["nbytes"] == pytest.approx(STEPS_STATE_BYTES * parameters, rel=0.01)
    assert saved["assumed_bytes_per_s"] == 16e9
    stall, mtbf = saved["nbytes"] / 16e9, MTBF_S / 16
    half = stall / (2 * mtbf)
    every = math.sqrt(2 * stall * mtbf) * (1 + math.sqrt(half) / 3 + half / 9) - stall
    assert saved["every_s"] == pytest.approx(every)
    assert saved["needed_bytes_per_s"] == pytest.approx(saved["nbytes"] / (0.05 * every))
    assert saved["node_needed_bytes_per_s"] == pytest.approx(saved["needed_bytes_per_s"] / 2)


def test_a_service_loads_its_weights_when_a_machine_starts() -> None:
    """16.06 GB in bf16 over an object store's connections, or as fast as vLLM loads them."""
    place = {"gpus": ["A100-SXM-80"], "weight_formats": ["bf16"]}
    found = needs(model="Llama-3.1-8B", task="serve", traffic={"requests_per_s": 1}, constraints=place)
    loaded, facts = found["weights at a start"], load_facts()
    assert loaded["nbytes"] == pytest.approx(2 * 8_030_261_248, rel=1e-3)
    store, engine = facts.storage("s3").read_bytes_per_s * 16, facts.engine("vllm").loader_bytes_per_s
    assert engine is not None
    assert loaded["node_needed_bytes_per_s"] == pytest.approx(min(store, engine * found["figures"]["gpus"]))
    assert loaded["assumed_bytes_per_s"] == loaded["needed_bytes_per_s"]
