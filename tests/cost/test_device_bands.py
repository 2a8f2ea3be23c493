"""Bands are as wide as the measurements of a device's architecture allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import OTHER_SOFTWARE, ErrorBand, device_band
from flopwise.errors import InfeasibleError, MissingFactError, SpecError
from flopwise.facts.calibration import FamilyRows, MeasuredFamilies
from flopwise.training.alternatives import BEST_MEASURED
from named import FACTS

CLASSES = (
    "training.dense", "training.moe", "serving.ttft.server", "serving.tpot.server.dense",
    "serving.throughput.batch.moe",
)  # fmt: skip


def width(band: ErrorBand) -> float:
    """Of a band, as a logarithm."""
    return math.log(band.high / band.low)


def device(name: str, what: str = "training.dense") -> ErrorBand:
    """The band of a device by its name."""
    found = FACTS.resolve(name)
    return device_band(what, cluster(found.accelerator, ambiguous=found.note))


@pytest.mark.parametrize(
    ("name", "what"),
    list(product(("TPU v5e", "TPU v6e", "TPU v4", "Gaudi2", "Gaudi3", "Trainium1", "Trainium2"), CLASSES)),
)
def test_no_band_of_another_maker_is_narrower_than_an_h100s(name: str, what: str) -> None:
    for h100 in ("H100", "H100-SXM-80"):
        assert width(device(name, what)) >= width(device(h100, what))


@pytest.mark.parametrize("name", ["K80", "P100-SXM2-16", "RX 6800 XT"])
def test_training_on_an_architecture_that_nobody_measured_is_wider_and_says_so(name: str) -> None:
    band, seen = device(name), device("A100-SXM-80")
    assert band.family_rows == 0
    assert band.evidence.startswith("no measured run of this kind on this architecture")
    assert "no measured run of this kind on this architecture" in band.source
    measured = FACTS.calibration.measured["training"]
    assert band.spread == pytest.approx(measured.family_out)
    assert width(band) == pytest.approx(measured.family_out * width(seen))


def test_the_rows_that_are_named_are_those_of_the_architecture() -> None:
    """Those of a TPU are not the 250 of all dense runs."""
    families = FACTS.calibration.measured["training"].families
    tpu, h100 = device("TPU v6e"), device("H100-SXM-80")
    assert tpu.family_rows == families["tpu-v6e"].classes["training.dense"] < tpu.rows / 10
    assert h100.family_rows == families["hopper"].classes["training.dense"] < h100.rows
    assert h100.family_rows < families["hopper"].rows  # its mixtures are of another class
    assert (h100.spread, tpu.evidence[:2]) == (1.0, str(tpu.family_rows))
    assert device("Gaudi3").spread >= FACTS.calibration.measured["training"].maker_out  # rows of one publisher alone


def test_a_variant_with_few_measured_runs_errs_as_its_family() -> None:
    h20, h100 = device("H20"), device("H100-SXM-80")
    assert (h20.family_rows, h20.spread, h20.low, h20.high) == (h100.family_rows, h100.spread, h100.low, h100.high)


def family(rows: int, sources: int, spread: float, maker: str = "A gpu") -> FamilyRows:
    """Rows of a family."""
    return FamilyRows(maker=maker, rows=rows, sources=sources, spread=spread)


def test_what_a_familys_rows_vouch_for() -> None:
    """Enough rows of several sources that the band holds: 1. One source, or a bad fit: no less than leaving it out."""
    known = MeasuredFamilies(
        families={
            "good": family(40, 5, 1.1), "bad": family(40, 5, 4.0), "single": family(40, 1, 1.0),
            "few": family(3, 3, 1.0), "foreign": family(30, 1, 2.5, "B tpu"), "far": family(30, 1, 9.0, "B tpu"),
        },
        family_out=2.0, maker_out=3.0,
    )  # fmt: skip
    spreads = {name: known.spread(name, one.maker) for name, one in known.families.items()}
    assert spreads == {"good": 1.0, "bad": 4.0, "single": 2.0, "few": 2.0, "foreign": 3.0, "far": 9.0}
    assert (known.spread("new", "A gpu"), known.spread("new", "B tpu"), known.spread("new", "C npu")) == (2.0, 3.0, 3.0)


def test_a_file_that_is_not_one_of_coverage_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "coverage.json"
    for text in ("{}", '{"kinds": {"training": {"families": {"x": {"rows": 1}}}}}', '{"kinds": [1]}'):
        file.write_text(text)
        with pytest.raises(SpecError, match="fit_coverage"):
            MeasuredFamilies.by_kind(file)


TRAINED: dict[str, dict[str, Any]] = {
    "dense": {"model": "Llama-3.1-8B", "gpus": 8, "tokens": "1B"}, "one device": {"model": "gpt2", "gpus": 1},
    "adapters": {"model": "Llama-3.1-8B", "gpus": 8, "lora": 16, "tokens": "50M"},
    "mixture": {"model": "Mixtral-8x7B", "gpus": 64, "tokens": "1B"}, "sampled": {"model": "resnet50", "gpus": 1},
    "large": {"model": "Llama-3.1-70B", "gpus": 2048, "tokens": "1B"},
}  # fmt: skip
SERVED: dict[str, dict[str, Any]] = {
    "a server": {"model": "Llama-3.1-8B", "concurrency": 16},
    "8 bits": {"model": "Llama-3.1-8B", "weights": "int8", "concurrency": 4},
    "a mixture": {"model": "Mixtral-8x7B", "concurrency": 8, "gpus": 8, "tp": 8},
}
HELD: dict[str, dict[str, Any]] = {
    "a cache": {"model": "Llama-3.1-8B", "context": 4096},
    "a step": {"model": "Llama-3.1-8B", "task": "train"},
    "adapters": {"model": "Llama-3.1-8B", "task": "train", "lora": 16},
    "a 4-bit base": {"model": "Llama-3.1-8B", "task": "train", "qlora": True},
    "samples": {"model": "resnet50", "task": "train"},
}
PLANNED: dict[str, dict[str, Any]] = {
    "a run": {"task": "pretrain", "tokens": "1B"}, "adapters": {"task": "finetune", "tokens": "50M", "lora": 16},
    "a service": {"task": "serve", "rate": 5, "input": 600, "output": 150, "latency": "p95=10s"},
    "a queue": {"task": "batch", "requests": 100_000, "input": 600, "output": 150, "deadline": "24h"},
}  # fmt: skip
FOREIGN = [name for name, device in FACTS.accelerators.items() if device.kind in OTHER_SOFTWARE]
PRICED = [name for name in FOREIGN if any(offer.accelerator == name for offer in FACTS.offers)]
H100S = ("h100", "H100-SXM-80", "H100-PCIe-80")
ALTERNATING = [pytest.param(question, number % 2, id=question) for number, question in enumerate(TRAINED)]
"""Questions about runs, each for every other device: all are asked three of these about their speed, or about memory in
a given layout."""
RELATIVE, ABSOLUTE = 1 - 1e-9, ("kv_capacity_tokens_low",)
"""What is left for a cache is as unsure as what else is in memory, in bytes: not in shares of a larger memory."""


def widths(answer: object, path: str = "") -> dict[str, float]:
    """Of the intervals of all figures in an answer's JSON, by path: the logarithm of both ends' ratio.

    Left out: what an input that nobody stated does, batches that are capped, a start's energy, as sure everywhere, and
    speeds whose upper end is the most that the device can do.
    """
    found: dict[str, float] = {}
    left_out = {"unstated", "interval"}
    if isinstance(answer, dict) and "lower_bound_s" in answer:
        each = answer.get("tokens_per_s_per_gpu") or answer.get("samples_per_s_per_gpu")
        if each and answer["high"] / each >= answer["step_s"] / answer["lower_bound_s"] * RELATIVE:
            left_out |= {"low", "run"}
    if isinstance(answer, list):
        answer = {str(number): entry for number, entry in enumerate(answer)}
    if not isinstance(answer, dict):
        return found
    for name, value in answer.items():
        if name in left_out:
            continue
        if isinstance(value, dict | list):
            found |= widths(value, f"{path}.{name}")
        high = answer.get(name.replace("low", "high"))
        if "low" in name.split("_") and value and high and not name.startswith("max_concurrency"):
            start = answer.get("start_joules") or 0.0 if name == "energy_joules_low" else 0.0
            for percentile, below, above in by_percentile(value, high):
                ratio = math.log((above - start) / (below - start))
                found[f"{path}.{name}{percentile}"] = above - below if name in ABSOLUTE else ratio
    return found


def by_percentile(low: Any, high: Any) -> list[tuple[str, float, float]]:
    """Both ends of each percentile's interval, with its name; of one figure, with none."""
    return [(name, low[name], high[name]) for name in low] if isinstance(low, dict) else [("", low, high)]


def none_narrower(
    ask: Callable[[str], dict[str, Any]], devices: Iterable[str], references: Iterable[str] = H100S
) -> int:
    """How many of the devices have an answer; fails where one of its intervals is narrower than the widest there."""
    least: dict[str, float] = {}
    for name in references:
        for path, width in widths(ask(name)).items():
            least[path] = max(width, least.get(path, 0.0))
    assert least
    seen = 0
    for name in devices:
        try:
            answer = ask(name)
        except (MissingFactError, SpecError, InfeasibleError):  # a rate or a link that nobody knows, or no such offer
            continue
        if answer.get("kv_capacity_tokens") == 0.0:
            continue  # another load than that on an H100
        seen += 1
        own = widths(answer)
        narrow = {path: (own[path], least[path]) for path in own.keys() & least if own[path] < least[path] * RELATIVE}
        assert not narrow, f"{name}: {narrow}"
    return seen


@pytest.mark.parametrize(("question", "first"), ALTERNATING)
def test_no_run_on_other_software_is_surer_than_on_an_h100(question: str, first: int) -> None:
    """Speed, time, cost, energy and memory on TPUs, Gaudis, Trainiums and their like, whatever nobody stated.

    Each device has the layout that is best there, as people ask.
    """
    devices = FOREIGN[first::2]
    assert none_narrower(lambda name: flopwise.train(gpu=name, **TRAINED[question]).to_dict(), devices) >= 8


@pytest.mark.parametrize(("question", "first"), [one for one in ALTERNATING if one.id != "sampled"])
def test_no_runs_memory_on_other_software_is_surer_than_on_an_h100_laid_out_alike(question: str, first: int) -> None:
    layout = flopwise.train(gpu="H100-SXM-80", **TRAINED[question]).to_dict()["layout"]
    alike = TRAINED[question] | {name: layout[name] for name in ("tp", "pp", "zero", "micro_batch")}
    alike |= {"recompute": ("none", "selective", "full")[layout["recompute"]]}
    devices = FOREIGN[1 - first :: 2]  # those that the test of runs leaves out
    assert none_narrower(lambda name: flopwise.train(gpu=name, **alike).to_dict()["memory"], devices) >= 8


def test_what_nobody_stated_makes_no_run_on_other_software_surer() -> None:
    for name in FOREIGN:
        try:
            stated = flopwise.train("Llama-3.1-8B", gpu=name, gpus=8, stack="xla")
        except (MissingFactError, SpecError):
            continue
        answers = stated, flopwise.train("Llama-3.1-8B", gpu=name, gpus=8)
        width, open_width = (math.log(one.estimate.high / one.estimate.low) for one in answers)
        assert open_width >= width


@pytest.mark.parametrize("question", SERVED)
def test_no_service_on_other_software_is_surer_than_on_an_h100(question: str) -> None:
    assert none_narrower(lambda name: flopwise.serve(gpu=name, **SERVED[question]).to_dict(), FOREIGN) >= 5


@pytest.mark.parametrize("question", HELD)
def test_no_memory_on_other_software_is_surer_than_on_an_h100(question: str) -> None:
    """Nobody published a measured peak there."""
    assert none_narrower(lambda name: flopwise.memory(gpu=name, **HELD[question]).to_dict(), FOREIGN) >= 8


@pytest.mark.parametrize("question", PLANNED)
def test_no_plan_on_other_software_is_surer_than_on_an_h100(question: str) -> None:
    """The first plan of each device that has a price: time, cost and energy."""

    def best(name: str) -> dict[str, Any]:
        plans = flopwise.plan("Llama-3.1-8B", gpu=name, software="any", **PLANNED[question]).to_dict()["plans"]
        return {"plan": plans[0] if plans else {}}

    assert none_narrower(best, PRICED, H100S[1:2]) >= 3


def test_no_workload_of_a_fleet_on_other_software_is_surer_than_on_an_h100() -> None:
    def assessed(name: str) -> dict[str, Any]:
        workloads = [
            {"name": "tune", "task": "finetune", "method": {"kind": "lora", "rank": 16}, "data": {"tokens": "50M"}},
            {"name": "api", "task": "serve", "traffic": {"requests_per_s": 5}, "targets": {"latency": "p95=20s"}},
        ]
        common = {"model": "Llama-3.1-8B", "software": "any", "constraints": {"gpus": name}}
        fleet = {"name": "fleet", "workloads": [one | common for one in workloads]}
        return {"workloads": flopwise.assess(fleet).to_dict()["workloads"]}

    assert none_narrower(assessed, PRICED, H100S[1:2]) >= 3


def test_the_best_measured_device_is_of_the_family_with_the_most_runs() -> None:
    families = FACTS.calibration.measured["training"].families
    most = max(families, key=lambda name: families[name].rows)
    assert {FACTS.accelerator(name).architecture.lower() for name in BEST_MEASURED} == {most}
    assert {*BEST_MEASURED} <= {*H100S}
