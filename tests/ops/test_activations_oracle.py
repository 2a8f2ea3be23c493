"""Bytes kept for the backward pass equal what autograd keeps in the real models."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from flopwise.facts.models.config import model_from_config
from flopwise.ops.activations import model_activation_bytes
from flopwise.ops.shapes import Trainable

ORACLE = Path(__file__).parents[1] / "oracle"
RECORD: dict[str, Any] = json.loads((ORACLE / "activations.json").read_text())
TARGETS: dict[str, Trainable] = {
    "": "all",
    "qv": frozenset({"q_proj", "v_proj"}),
    "all": frozenset({"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}),
    "mlp": frozenset({"gate_proj", "up_proj", "down_proj"}),
}
OFF = {"gpt2": "attn_pdrop", "bert": "attention_probs_dropout_prob"}


def predicted(record: dict[str, Any], row: dict[str, Any]) -> float:
    config = dict(record["configs"][row["case"]])
    if row["attention"] == "sdpa" and row["case"] in OFF:
        config[OFF[row["case"]]] = 0.0
    total = model_activation_bytes(
        model_from_config(config, name=row["case"]),
        record["batch"],
        record["seq"],
        implementation=row["attention"],
        recompute="full" if row["full"] else "none",
        elem_bytes=row["elem_bytes"],
        cpu=True,
        trainable=TARGETS[row["lora"]],
        rank=record["rank"],
    )
    return float(total)


@pytest.mark.parametrize("row", RECORD["rows"], ids=lambda r: "-".join(str(v) for v in r.values()))
def test_recorded_bytes(row: dict[str, Any]) -> None:
    assert predicted(RECORD, row) == pytest.approx(row["bytes"], rel=0.01)


def test_enough_families() -> None:
    kinds = {(r["case"], r["attention"], r["full"]) for r in RECORD["rows"]}
    both = [n for n in RECORD["configs"] if all((n, a, f) in kinds for a in ("eager", "sdpa") for f in (True, False))]
    assert len(both) >= 5


@pytest.mark.oracle
@pytest.mark.skipif(
    not (os.environ.get("CI") or os.environ.get("FLOPWISE_ORACLE")), reason="derives afresh with CI=true"
)
def test_fresh_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("transformers") is None:
        pytest.skip("torch and transformers are not installed")
    monkeypatch.syspath_prepend(str(ORACLE))
    fresh = importlib.import_module("record_activations").record()
    for row in fresh["rows"]:
        assert predicted(fresh, row) == pytest.approx(row["bytes"], rel=0.01), row
