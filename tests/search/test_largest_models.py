"""The largest model that one device holds, by format: what fits by the memory model, and little more would not."""

from __future__ import annotations

from typing import Any

import pytest

import flopwise
from flopwise.facts.catalog import load_facts
from flopwise.ops.tensors import parameters
from flopwise.search.model_sizes import SERVED, TOKENS, TRAINED, LargestModels, largest_models, memory_by_size


@pytest.fixture(scope="module")
def rows() -> dict[str, LargestModels]:
    facts = load_facts()
    return {row.gpu: row for row in largest_models(map(facts.accelerator, ("t4", "l4", "a100-80gb", "b200")), facts)}


@pytest.mark.parametrize(("gpu", "name"), [("T4", "t4"), ("A100-SXM-80", "a100-80gb"), ("B200", "b200")])
@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("train 16 bits", {"task": "train", "seq": TOKENS, "recompute": "full"}),
        ("QLoRA INT4", {"task": "train", "seq": TOKENS, "recompute": "full", "lora": 16, "qlora": True}),
        ("serve FP16", {"task": "serve", "context": TOKENS, "weights": "fp16"}),
        ("serve INT4", {"task": "serve", "context": TOKENS, "weights": "awq"}),
    ],
)
def test_smaller_models_fit_and_larger_ones_do_not(
    rows: dict[str, LargestModels], gpu: str, name: str, way: str, options: dict[str, Any]
) -> None:
    size = rows[gpu].parameters[way]
    assert size is not None
    seen = set()
    for times in (0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5):
        found = flopwise.memory(f"{times * size / 1e6:.0f}M", gpu=name, **options)
        over = parameters(found.model) / size
        if not 0.93 < over < 1.13:  # two digits of the size, and a power between two sizes
            assert found.fits == (over < 1), over
            seen.add(found.fits)
    assert seen == {True, False}


def test_states_of_training_and_weights_of_serving_by_hand() -> None:
    # weights of 1 T parameters dwarf all else: in fp32 they, gradients and two moments take 4 x 4 bytes; in fp16 2
    # bytes, in INT4 half a byte and 2 bytes of scale for 128 weights
    ((count, held),) = memory_by_size(load_facts(), (1e12,)).items()
    assert held["train FP32"] / count == pytest.approx(16.0, rel=0.15)
    assert held["serve FP32"] / count == pytest.approx(4.0, rel=0.02)
    assert held["serve FP16"] / count == pytest.approx(2.0, rel=0.02)
    assert held["serve INT4"] / count == pytest.approx(0.5 + 2 / 128, rel=0.05)


def test_fewer_bits_hold_larger_models_and_larger_devices_too(rows: dict[str, LargestModels]) -> None:
    for row in rows.values():
        served = [row.parameters[way] or 0.0 for way in SERVED]
        assert served == sorted(served)
        assert set(row.parameters) == {*TRAINED, *SERVED}
    for way in (*TRAINED, *SERVED):
        sizes = [rows[gpu].parameters[way] or 0.0 for gpu in ("T4", "L4", "A100-SXM-80", "B200")]
        assert sizes == sorted(sizes), way


def test_an_engine_has_its_share_of_the_device_and_training_all_of_it() -> None:
    """Ten bytes a parameter whatever is done: 20 GB train 2 B, an engine's 92 % serve 1.84 B, 1.8 in two digits."""
    device = load_facts().accelerator("custom:fp16=1T,memory=20GB,bandwidth=1GB/s")
    table = {size: dict.fromkeys((*TRAINED, *SERVED), 10.0 * size) for size in (1e9, 4e9)}
    (row,) = largest_models([device], load_facts(), table)
    assert row.parameters["train 16 bits"] == pytest.approx(2e9, rel=0.01)
    assert row.parameters["serve FP16"] == pytest.approx(1.8e9, rel=1e-9)


def test_a_device_that_holds_nothing_says_so() -> None:
    tiny = load_facts().accelerator("custom:fp16=1T,memory=1GB,bandwidth=1GB/s")
    (row,) = largest_models([tiny], load_facts())
    assert row.parameters["train 16 bits"] is None
