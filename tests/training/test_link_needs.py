"""The network that layouts need, by hand: rings, pipelines, and what hides beside compute."""

from __future__ import annotations

from typing import Any

import pytest

from flopwise import plan
from flopwise.ops.tensors import parameters
from flopwise.training.network import LinkNeed
from named import train_answer

LAYERS, WIDTH, SEQ = 32, 4096, 2048  # of Llama-7B, and of a sequence here


def needs(**how: Any) -> tuple[tuple[LinkNeed, ...], Any]:
    found = train_answer("Llama-7B", gpu="h100", seq=SEQ, global_batch=64, micro_batch=1, **how)
    return found.network, found.estimate


def test_gradients_round_rings_by_hand() -> None:
    """16 replicas in 2 nodes of 8: inside 2 x 7/8 of the gradients, between nodes 2 x 1/2 of the eighth of each rank.

    Gradients have 4 bytes a parameter here (autocast keeps fp32 weights).
    """
    (inside, between), estimate = needs(gpus=16, dp=16, tp=1, pp=1, zero=0)
    grads = 4.0 * float(parameters(estimate.job.model))
    assert inside.step_bytes == {"data_parallel": pytest.approx(2 * 7 / 8 * grads, rel=1e-3)}
    assert between.step_bytes == {"data_parallel": pytest.approx(grads / 8, rel=1e-3)}
    assert (inside.between_nodes, between.between_nodes) == (False, True)
    assert between.average_bytes_per_s == pytest.approx(grads / 8 / estimate.step_s, rel=1e-3)
    assert between.node_average_bytes_per_s == pytest.approx(8 * between.average_bytes_per_s)


def test_tensor_parallelism_by_hand() -> None:
    """Two all-reduces a layer and pass of 2,048 x 4,096 activations of 2 bytes: 2 x 7/8 of 16.8 MB, both ways."""
    (inside, between), _ = needs(gpus=16, dp=2, tp=8, pp=1, zero=1)
    each = 2 * 7 / 8 * SEQ * WIDTH * 2
    assert inside.step_bytes["tensor_parallel"] == pytest.approx(2 * LAYERS * 2 * each * 32, rel=1e-6)  # 64 / 2 batches
    assert "tensor_parallel" not in between.step_bytes
    assert between.step_bytes["data_parallel"] > 0


def test_a_pipeline_by_hand() -> None:
    """Activations on and gradients back, a rank's eighth of 16.8 MB each, for 32 micro-batches, between nodes."""
    (_, between), _ = needs(gpus=32, dp=2, tp=8, pp=2, zero=1)
    assert between.step_bytes["pipeline_p2p"] == pytest.approx(32 * 2 * SEQ * WIDTH * 2 / 8)


def test_zero_3_gathers_weights_for_both_passes_of_each_micro_batch() -> None:
    """Per micro-batch 2 all-gathers of 2 bytes and a reduce-scatter of the gradients; four of them a rank."""
    (inside, _), estimate = needs(gpus=8 * 2, dp=16, zero=3)
    (stays, _), _ = needs(gpus=16, dp=16, zero=1)
    weights = float(parameters(estimate.job.model))
    gathered = 2 * 2.0 * 7 / 8 * weights
    scattered = stays.step_bytes["data_parallel"] - 2.0 * 7 / 8 * weights  # ZeRO 1: one of each a step
    assert inside.step_bytes["data_parallel"] == pytest.approx(4 * (gathered + scattered), rel=1e-2)


def test_what_is_needed_fits_beside_the_work() -> None:
    (inside, between), estimate = needs(gpus=16, dp=2, tp=8, pp=1, zero=1)
    work = sum(s for name, s in estimate.breakdown if name in {"forward", "backward", "recompute", "optimizer"})
    for need in (inside, between):
        assert need.needed_bytes_per_s == pytest.approx(sum(need.step_bytes.values()) / work)
        assert need.needed_bytes_per_s > need.average_bytes_per_s
    assert inside.link_bytes_per_s == pytest.approx(450e9)


def test_one_device_needs_none() -> None:
    assert train_answer("gpt2", gpu="h100").network == ()


def test_plans_have_it_too() -> None:
    workload = {
        "model": "Llama-7B", "task": "finetune", "data": {"tokens": "50M", "seq_len": 2048},
        "constraints": {"gpus": ["A100-SXM-80"], "min_gpus": 8, "max_gpus": 8},
    }  # fmt: skip
    best = plan(workload).plans[0]
    assert best.network
    assert best.network[0]["average_bytes_per_s"] > 0
