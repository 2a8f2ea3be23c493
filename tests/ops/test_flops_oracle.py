"""Operations equal what PyTorch's counter counts in the real models."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flopwise.facts.architecture import Convolution, Model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.flops import backward_flops, forward_flops

ORACLE = Path(__file__).parents[1] / "oracle"
RECORD: dict[str, Any] = json.loads((ORACLE / "flops.json").read_text())


# The solve of a triangular system has a backward product that the counter sees, and a first state without a gradient.
LOOSE = {"qwen3_next": 6e-3}


def depthwise_excess(model: Model, batch: int, seq: int) -> tuple[float, float]:
    """What the counter counts beyond the work of depthwise convolutions, forward and backward.

    They run over kernel - 1 padded positions, and their weight gradient is counted as if every channel saw every other.
    """
    forward = backward = 0.0
    for stack in model.stacks:
        for index, layer in enumerate(stack.kinds):
            for item in layer.items:
                if isinstance(item, Convolution) and item.outputs is None:
                    each = 2.0 * stack.order.count(index) * item.kernel * batch * item.channels
                    forward += each * (item.kernel - 1)
                    backward += each * (item.kernel - 1) + each * ((seq + item.kernel - 1) * item.channels - seq)
    return forward, backward


def check(case: dict[str, Any]) -> None:
    kind = case["config"]["model_type"]
    model = model_from_config(dict(case["config"]), name="case")
    shape = {"encoder": case["encoder"]} if kind in ("t5", "mt5", "umt5", "bart") else {}
    extra = depthwise_excess(model, case["batch"], case["seq"])
    forward = forward_flops(model, case["batch"], case["seq"], **shape) + extra[0]
    backward = backward_flops(model, case["batch"], case["seq"], **shape) + extra[1]
    assert forward == pytest.approx(case["forward"], rel=1e-3)
    assert backward == pytest.approx(case["backward"], rel=LOOSE.get(kind, 1e-3))


@pytest.mark.parametrize("name", RECORD["cases"])
def test_recorded_counts(name: str) -> None:
    check(RECORD["cases"][name])


def test_enough_families() -> None:
    assert len({case["config"]["model_type"] for case in RECORD["cases"].values()}) >= 15


@pytest.mark.oracle
@pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("FLOPWISE_ORACLE")), reason="derives afresh with CI=true"
)
def test_fresh_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers are not installed")
    monkeypatch.syspath_prepend(str(ORACLE))
    fresh = importlib.import_module("record_flops").record()
    for case in fresh["cases"].values():
        check(case)
