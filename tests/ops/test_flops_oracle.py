"""Operations equal what PyTorch's counter counts in the real models."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from flopwise.facts.models import model_from_config
from flopwise.ops.flops import backward_flops, forward_flops

ORACLE = Path(__file__).parents[1] / "oracle"
RECORD: dict[str, Any] = json.loads((ORACLE / "flops.json").read_text())


def check(case: dict[str, Any]) -> None:
    model = model_from_config(dict(case["config"]), name="case")
    shape = {"encoder": case["encoder"]} if case["config"]["model_type"] == "t5" else {}
    forward = forward_flops(model, case["batch"], case["seq"], **shape)
    backward = backward_flops(model, case["batch"], case["seq"], **shape)
    assert forward == pytest.approx(case["forward"], rel=1e-3)
    assert backward == pytest.approx(case["backward"], rel=1e-3)


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
    from record_flops import record

    sys.modules.pop("record_flops", None)
    fresh = record()
    for case in fresh["cases"].values():
        check(case)
