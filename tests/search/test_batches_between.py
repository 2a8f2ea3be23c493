"""Services on many replicas are tried at batches in between: none could do with fewer machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise.search import deployments as deployments_file
from flopwise.search import plan_serving as plan_file
from flopwise.search.plan_serving import BETWEEN, _batches_between
from flopwise.serving.open_loop import batch_sizes


def service(model: str, traffic: dict[str, float], targets: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model, "task": "serve", "simulate": False, "targets": targets,
        "traffic": {**traffic, "input_tokens": 800, "output_tokens": 200},
        "constraints": {"gpus": ["H100-SXM-80", "A100-SXM-80"], "memory_fraction": 0.9},
    }  # fmt: skip


def every_batch(most: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Batches one in forty apart."""
    return np.union1d(batch_sizes(most), np.round(np.geomspace(1.0, max(most, 1.0), 280)))


@pytest.mark.parametrize(
    ("traffic", "targets", "saved"),
    [
        ({"concurrency": 540}, {"latency": {"p95": "12s"}}, 0.05),
        ({"requests_per_s": 200}, {"tpot": {"p95": "28ms"}}, 0.05),
        ({"requests_per_s": 155}, {}, 0.1),
        ({"requests_per_s": 310}, {}, 0.05),
        ({"requests_per_s": 1}, {"tpot": {"p95": "30ms"}}, 0.0),  # a few replicas
    ],
)
def test_a_service_costs_as_little_as_at_every_batch(
    traffic: dict[str, float], targets: dict[str, Any], saved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = service("Llama-3.1-70B", traffic, targets)
    found = flopwise.plan(asked).plans[0]
    monkeypatch.setattr(plan_file, "_with_batches_between", lambda options, *_: options)
    deployments_file.SIZED.clear()
    coarse = flopwise.plan(asked).plans[0]
    monkeypatch.setattr(deployments_file, "batch_sizes", every_batch)
    deployments_file.SIZED.clear()
    least = flopwise.plan(asked).plans[0]
    deployments_file.SIZED.clear()
    assert found.cost_usd == pytest.approx(least.cost_usd)
    assert coarse.cost_usd * (1 - saved) >= found.cost_usd


def test_batches_lie_between_the_largest_that_meets_the_targets_and_its_neighbours() -> None:
    sizes = np.array([[1.0, 1.0], [64.0, 64.0], [96.0, 96.0], [128.0, 96.0]])
    meets = np.array([[True, True], [True, True], [True, True], [False, True]])
    found = _batches_between(sizes.ravel(), meets.ravel(), 2)
    assert found.shape == (2 * BETWEEN, 2)
    assert (found[:BETWEEN, 0] > 64).all() and (found[:BETWEEN, 0] < 96).all()  # noqa: PT018 - one interval
    assert (found[BETWEEN:, 0] > 96).all() and (found[BETWEEN:, 0] < 128).all()  # noqa: PT018 - one interval
    assert (found[:BETWEEN, 1] > 64).all() and (found[:BETWEEN, 1] < 96).all()  # noqa: PT018 - of what fits the largest
    assert (found[BETWEEN:, 1] == 96).all()  # nothing larger fits
