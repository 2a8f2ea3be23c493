"""An engine on a device that it has no code for, and lengths that mean nothing, are refused with the way out."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from flopwise import cli
from flopwise.api.memory import memory
from flopwise.api.serve import serve
from flopwise.api.simulate import simulate
from flopwise.backtests.serving import row_device, row_engine
from flopwise.errors import SpecError, UnknownNameError
from flopwise.serving.deployment import check_platform
from named import FACTS

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth"


@pytest.mark.parametrize(
    ("engine", "gpu", "others"),
    [
        ("mlx", "h100", {"vllm", "sglang", "tensorrt-llm"}), ("neuron", "h100", {"vllm"}),
        ("openvino", "h100", {"vllm"}), ("tensorrt-llm", "mi300x", {"vllm", "sglang", "llama.cpp"}),
        ("tensorrt", "graviton4", {"onnxruntime", "tei"}), ("sglang", "trainium2", {"vllm", "neuron"}),
    ],
)  # fmt: skip
def test_an_engine_without_code_for_a_device_is_refused(engine: str, gpu: str, others: set[str]) -> None:
    model = "bge-m3" if gpu == "graviton4" else "Llama-3.1-8B"
    for ask in (serve, simulate) if model != "bge-m3" else (serve,):
        with pytest.raises(SpecError, match=rf"{re.escape(engine)} runs on .*engines that do: ") as refused:
            ask(model, gpu=gpu, engine=engine, rate=1.0)
        named = set(str(refused.value).rpartition("engines that do: ")[2].split(", "))
        assert others <= named
        assert not any(name.endswith(("-v0", "-2023", "-2024", "-2025")) for name in named)
    with pytest.raises(SpecError, match=rf"{re.escape(engine)} runs on .*engines that do: "):
        memory(model, task="serve", gpu=gpu, engine=engine)


def test_an_old_device_of_a_known_kind_is_estimated_with_a_note() -> None:
    """vLLM has CUDA code, if not for Pascal: nobody measured it, and a fork may run."""
    found = serve("Qwen2.5-0.5B", gpu="p100", engine="vllm", concurrency=1)
    assert any("not known to run on P100" in note for note in found.assumptions)


@pytest.mark.parametrize("gpu", ["sn40l", "inferentia1"])
def test_a_device_that_only_software_of_its_own_runs_on_is_estimated_with_a_note(gpu: str) -> None:
    """A refusal could name no engine that is allowed."""
    found = serve("Qwen2.5-0.5B", gpu=gpu, concurrency=1)
    assert found.estimate.requests_per_s > 0
    assert any(f"not known to run on {found.estimate.job.cluster.accelerator.name}" in n for n in found.assumptions)
    assert memory("Qwen2.5-0.5B", task="serve", gpu=gpu).fits


def test_no_measured_pair_of_engine_and_device_is_refused() -> None:
    """Every row of the backtest whose engine and device have a record."""
    checked = 0
    for row in csv.DictReader(io.StringIO((TRUTH / "serving.csv").read_text(encoding="utf-8"))):
        try:
            device, engine = row_device(row, FACTS).accelerator, row_engine(row, FACTS)
        except UnknownNameError:
            continue
        check_platform(engine, device, FACTS)
        checked += 1
    assert checked > 3_000


def test_output_tokens_of_a_single_pass_are_refused() -> None:
    asked: dict[str, Any] = {"gpu": "h100", "rate": 4.0, "output_tokens": 10}
    with pytest.raises(SpecError, match="answers in one pass, without output tokens"):
        serve("bge-large-en-v1.5", **asked)
    with pytest.raises(SpecError, match="answers in one pass, without output tokens"):
        serve("Llama-3.1-8B", encode=True, **asked)


def test_room_stands_with_its_interval_in_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "Llama-3.1-8B", "--gpu", "h100", "--gpus", "2", "--concurrency", "8"]) == 0
    text = capsys.readouterr().out
    document = serve("Llama-3.1-8B", gpu="h100", gpus=2, concurrency=8).document()
    for label, name in (("at most", "max_concurrency"), ("cache", "kv_capacity_tokens")):
        (line,) = (one for one in text.splitlines() if one.startswith(f"{label} ") and "interval" in one)
        figures = [int(word.replace(",", "")) for word in re.findall(r"\d[\d,]*(?= (?:in flight|tokens|to)|\))", line)]
        assert figures[:3] == [document[name], document[f"{name}_low"], document[f"{name}_high"]]
        assert document[f"{name}_low"] <= document[name] <= document[f"{name}_high"]
