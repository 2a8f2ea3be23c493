from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.errors import MissingFactError, SpecError, UnknownNameError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.model_card import ModelCard

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return str(tmp_path)


def test_every_public_name_loads_and_an_unknown_one_says_what_there_is() -> None:
    for name in flopwise.__all__:
        assert getattr(flopwise, name) is not None
    assert set(flopwise.__all__) <= set(dir(flopwise))
    with pytest.raises(AttributeError, match="gpus"):
        getattr(flopwise, "no_such_name")  # noqa: B009 - no checker knows it


def test_filters_narrow_the_accelerators() -> None:
    amd = flopwise.gpus(vendor="amd")
    assert {a.vendor for a in amd} == {"AMD"}
    large = flopwise.gpus(vendor="AMD", min_hbm_bytes=200e9)
    assert set(large) < set(amd)
    assert all(a.hbm_bytes >= 200e9 for a in large)
    assert {a.kind for a in flopwise.gpus(kind="cpu")} == {"cpu"}
    with pytest.raises(UnknownNameError, match="NVIDIA"):
        flopwise.gpus(vendor="nvidai")


def test_a_spelling_that_leaves_the_variant_open_says_what_was_taken() -> None:
    assert load_facts().resolve("h100").note
    assert load_facts().resolve("H100-SXM-80").note is None


def test_offers_by_instance_and_price() -> None:
    found = flopwise.instances("p5.48xlarge", provider="aws")
    assert {(o.accelerator, o.count) for o in found} == {("H100-SXM-80", 8)}
    cheap = flopwise.instances(gpu="h100", purchase="spot", max_usd_per_hour=30)
    assert all(o.spot_usd_per_hour is not None and o.spot_usd_per_hour <= 30 for o in cheap)


def test_a_model_card_counts_parameters_and_operations(llama: str) -> None:
    card = ModelCard.of(load_model(llama), 2, 1024)
    # The published count of Llama-3.1-8B (its config.json), and 2 operations for each weight of a matmul and token.
    assert card.parameters == card.active_parameters == 8_030_261_248
    assert sum(g.numel * g.layers for g in card.groups) == card.parameters
    assert card.counts is not None
    matmuls = 2 * (8_030_261_248 - 128256 * 4096 - 65 * 4096) * 2 * 1024
    scores = 32 * 2 * 2 * 2 * 4096 * 1024 * 1024  # layers x batch x (QK and PV) x 2 x width x seq x seq
    assert card.counts.forward_flops == pytest.approx(matmuls + scores, rel=1e-12)
    assert card.counts.backward_flops == pytest.approx(2 * card.counts.forward_flops, rel=1e-12)
    assert sum(float(o.flops) for o in card.counts.operations) == pytest.approx(card.counts.forward_flops)
    assert card.counts.causal_forward_flops == pytest.approx(matmuls + scores * (1024 + 1) / 2048, rel=1e-12)


def test_a_card_without_a_shape_counts_no_operations_and_half_a_shape_is_an_error(llama: str) -> None:
    model = load_model(llama)
    assert ModelCard.of(model).counts is None
    assert ModelCard.of(model, seq=128).counts == ModelCard.of(model, 1, 128).counts
    with pytest.raises(SpecError, match="--seq"):
        ModelCard.of(model, 2)


def test_missing_facts_stay_missing() -> None:
    [t4] = [a for a in flopwise.gpus(vendor="NVIDIA") if a.name == "T4"]
    with pytest.raises(MissingFactError, match="fp8"):
        t4.peak_flops_per_s("fp8")


def test_instances_by_the_name_of_an_accelerator() -> None:
    """Some clouds call an instance H100; who says h100 means all that hold one."""
    assert flopwise.instances("h100") == flopwise.instances(gpu="h100")
    assert {offer.provider for offer in flopwise.instances("h100")} >= {"aws", "gcp"}
    assert flopwise.instances("8xh100", provider="aws") == flopwise.instances(gpu="8xh100", provider="aws")


@pytest.mark.parametrize(
    ("given", "named"), [({"model_type": "llama"}, "a mapping"), (None, "nothing"), (3, "a number")]
)
@pytest.mark.parametrize("ask", [flopwise.serve, flopwise.train, flopwise.memory])
def test_what_is_no_model_is_refused_with_what_is_one(ask: Any, given: object, named: str) -> None:
    with pytest.raises(SpecError, match=f"model: a name, a hub id, .* is needed, not {named}"):
        ask(given, gpu="h100")


def test_a_model_may_be_a_path_as_well_as_its_text(llama: str) -> None:
    for path in (Path(llama), Path(llama) / "config.json"):
        assert flopwise.serve(path, gpu="h100").estimate == flopwise.serve(str(path), gpu="h100").estimate
        assert flopwise.memory(path).per_gpu_bytes == flopwise.memory(str(path)).per_gpu_bytes
