"""SetupNote: what formats, fp16, machines and data of the plan ask for, with the figures that it rests on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.fleet.assess import assess as assess_with_plans
from flopwise.fleet.assessment import SetupNote
from flopwise.fleet.read import fleet_from
from flopwise.report.content import document
from flopwise.report.pages import markdown

sys.path.insert(0, str(Path(__file__).parent))
from small import CHAT, TODAY, TUNE, answer, assess, catalog

TRAIN: dict[str, Any] = {
    "name": "train", "task": "pretrain", "model": "gpt2",
    "data": {"tokens": "2B", "seq_len": 1024, "global_batch_tokens": "0.5M"},
}  # fmt: skip


def of(kind: str, workload: dict[str, Any]) -> list[SetupNote]:
    """The advice of one kind on a workload alone."""
    fleet = fleet_from({"name": "f", "workloads": [workload], "policies": {"purchase": ["on_demand"]}})
    return [note for note in assess(fleet, catalog(), scenarios=0, today=TODAY).advice if note.kind == kind]


@pytest.mark.parametrize(("format", "kept"), [("gptq", "98.9 %"), ("int8", "100.3 %")])
def test_quantised_weights_come_with_what_evaluations_found(format: str, kept: str) -> None:  # noqa: A002
    (note,) = of("quantisation", CHAT | {"constraints": {"weight_formats": [format], "gpus": ["L4"]}})
    assert kept in note.text
    assert "huggingface.co" in note.source
    assert "2024-07" in note.source


def test_formats_that_lose_much_ask_for_training_with_the_quantisation() -> None:
    (note,) = of("quantisation", CHAT | {"constraints": {"weight_formats": ["gptq"], "gpus": ["L4"]}})
    assert "96.1 %" in note.text  # of OpenLLM v2: below 98 %
    assert "QAT" in note.text
    (note,) = of("quantisation", CHAT | {"constraints": {"weight_formats": ["int8"], "gpus": ["L4"]}})
    assert "QAT" not in note.text


def test_a_format_without_evaluations_says_so() -> None:
    (note,) = of("quantisation", CHAT | {"constraints": {"weight_formats": ["nf4"], "gpus": ["L4"]}})
    assert "no public evaluation of nf4: compare" in note.text
    assert not note.source
    assert of("quantisation", CHAT | {"constraints": {"weight_formats": ["bf16"], "gpus": ["L40S"]}}) == []


def test_a_format_that_was_only_evaluated_with_training_says_so() -> None:
    """QLoRA, table 4: mean of adapters trained on 4 bits over that of 16 bits, 53.1 / 53.0."""
    (note,) = of("quantisation", CHAT | {"constraints": {"weight_formats": ["nf4-dq"], "gpus": ["L4"]}})
    assert "no public evaluation of nf4-dq without training" in note.text
    assert f"{100 * 53.1 / 53.0:.1f} % kept by LLaMA 7B to 65B" in note.text
    assert "2305.14314" in note.source


def test_evaluations_of_mxfp4_are_of_rounding_without_calibration() -> None:
    kept = {row.model: row.kept for row in load_facts().quality if row.format == "mxfp4"}
    assert kept == {
        "Llama-3.1-8B-Instruct": pytest.approx(0.6626 / 0.7076, abs=5e-5),
        "Qwen3-32B": pytest.approx(0.6901 / 0.7321, abs=5e-5),
    }


def test_fp16_gets_loss_scaling_and_only_fp16() -> None:
    (note,) = of("fp16", TRAIN | {"constraints": {"gpus": ["T4"], "precision": ["fp16"]}})
    assert "65,536" in note.text
    assert "clipping gradients" in note.text
    assert of("fp16", TRAIN | {"constraints": {"gpus": ["A10G"]}}) == []


def test_several_devices_on_pcie_are_placed_under_one_switch() -> None:
    g4dn = [o for o in catalog().offers if o.instance == "g4dn.12xlarge" and o.region == "us-east-1"]
    fleet = fleet_from({"name": "f", "workloads": [TRAIN | {"constraints": {"gpus": ["T4"], "min_gpus": 4}}]})
    found = assess(fleet, catalog().with_tables(offers=tuple(g4dn)), scenarios=0, today=TODAY)
    (note,) = [note for note in found.advice if note.kind == "placement"]
    assert "its 4 T4 are connected by PCIe alone, 15.8 GB/s each way" in note.text
    assert "12 vCPUs for each device" in note.text  # 48 of four


def test_the_corpus_is_stored_at_the_price_of_its_provider() -> None:
    # gpt2's vocabulary of 50,257 has ids of 2 bytes: 2e9 tokens are 4 GB, as text 8 GB
    (note,) = of("corpus", TRAIN | {"constraints": {"providers": ["aws"], "gpus": ["A10G"]}})
    assert "3.73 GiB as ids of 2 bytes, about 7.45 GiB as text" in note.text
    price = load_facts().volume_prices["aws", "storage"]
    assert f"${12e9 * price.tiers[0][1]:.2f} a month" in note.text


def test_the_report_shows_all_advice_once() -> None:
    text = markdown(document(answer().assessment)).replace("\\", "")
    assert "## Setting it up" in text
    for note in answer().assessment.advice:
        assert note.workload in text
        assert text.count(note.text[1:]) == 1


def test_every_format_of_the_evaluations_is_known() -> None:
    facts = load_facts()
    for row in facts.quality:
        assert facts.weight_format(row.format).name == row.format
        assert (row.kept is None) != (row.perplexity_ratio is None), row
        assert 0.5 < row.score < 1.1


def test_trained_formats_are_named_beside_those_that_are_not() -> None:
    rows = [row for row in load_facts().quality if row.format == "nvfp4"]
    assert {row.trained for row in rows} == {True, False}
    assert max(r.score for r in rows if not r.trained) < min(r.score for r in rows if r.trained)


def test_two_workloads_of_one_plan_are_advised_each() -> None:
    fleet = fleet_from({"name": "f", "workloads": [TUNE, TUNE | {"name": "again"}]})
    found = assess_with_plans(fleet, catalog(), scenarios=0, today=TODAY).assessment
    names = [note.workload for note in found.advice if note.kind == "corpus"]
    assert sorted(names) == ["again", "tune"]


@pytest.mark.parametrize(("gpu", "says"), [("T4G", True), ("T4", False)])
def test_machines_with_arm_processors_ask_for_images_of_their_own(gpu: str, says: bool) -> None:
    whole = load_facts(None)
    facts = whole.with_tables(offers=tuple(o for o in whole.offers if o.accelerator == gpu and o.provider == "aws"))
    workload = CHAT | {"model": "Qwen2.5-1.5B", "constraints": {"gpus": [gpu]}}
    fleet = fleet_from({"name": "f", "workloads": [workload], "policies": {"purchase": ["on_demand"]}})
    notes = [note for note in assess(fleet, facts, scenarios=0, today=TODAY).advice if note.kind == "arm"]
    assert len(notes) == says
    for note in notes:
        assert note.text.startswith("g5g.")
        assert "linux/arm64" in note.text
        assert "`policies.exclude`" in note.text
