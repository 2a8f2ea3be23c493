"""A batch job has the machines that its deadline takes with the confidence that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

import flopwise


def nightly(**constraints: Any) -> dict[str, Any]:
    return {
        "model": "Llama-3.1-8B", "task": "batch", "simulate": False, "targets": {"deadline": "4h"},
        "traffic": {"requests": 200_000, "input_tokens": 1000, "output_tokens": 250},
        "constraints": {"providers": ["gcp"], "gpus": ["L4"], "purchase": ["spot"], **constraints},
    }  # fmt: skip


def test_machines_are_counted_with_the_confidence() -> None:
    """One L4 a replica: one machine fewer would miss the confidence, and a pipeline is no way around it."""
    best = flopwise.plan(nightly()).plans[0]
    assert (best.layout["tp"], best.layout["pp"]) == (1, 1)
    assert best.meets["deadline"] >= 0.8
    assert best.num_instances > 1
    fewer = flopwise.plan(nightly(max_gpus=best.num_instances - 1))
    assert not any(one.layout["pp"] == 1 and one.instance == best.instance for one in fewer.plans)


@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_more_confidence_takes_more_machines(confidence: float) -> None:
    usual, other = (
        flopwise.plan({**nightly(), **more}).plans[0]
        for more in ({}, {"targets": {"deadline": "4h", "confidence": confidence}})
    )
    assert (other.num_instances > usual.num_instances) == (confidence > 0.8)
    assert other.meets["deadline"] >= confidence
