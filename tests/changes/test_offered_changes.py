"""What is offered can be asked for: remedies and sensitivities of devices x engines x formats are estimated in turn."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import flopwise
from flopwise import cli, units
from flopwise.api.memory import memory
from flopwise.changes.explanation import sensitivities
from flopwise.changes.memory import memory_remedies
from flopwise.errors import FlopwiseError
from flopwise.facts.catalog import load_facts
from named import FACTS

DEVICES = sorted(name for name, chip in load_facts().accelerators.items() if chip.hbm_bytes > 2**33)
MODELS = (
    "Llama-3.1-8B",
    "Llama-3.1-70B",
    "Mixtral-8x7B",
    "DeepSeek-V3",
    "Qwen2.5-7B",
    "gpt-oss-120b",
    "bert-base-uncased",
)
FORMATS = ("bf16", "fp16", "fp32", "fp8", "awq", "int8", "Q8_0")
WORDS = {"weights in": "weights", "KV cache in": "kv_dtype", "tp": "tp", "pp": "pp", "ep": "ep", "engine": "engine"}
OF_LOADS = re.compile(r"a context of|requests in flight|tokens x 2|[+-]\d+ %")


def change(text: str) -> dict[str, Any]:
    """The keyword of `flopwise.serve` that an offer stands for; of its load and its rates, none."""
    if layers := re.fullmatch(r"gpu layers (\d+) of \d+", text):
        return {"gpu_layers": int(layers[1])}
    if most := re.fullmatch(r"at most ([\d,]+) sequences at once", text):
        return {"max_batch": int(most[1].replace(",", ""))}
    for words, keyword in WORDS.items():
        if text.startswith(words + " "):
            value = text.removeprefix(words + " ")
            return {keyword: int(value) if value.isdigit() else value}
    assert OF_LOADS.search(text), text
    return {}


def check_accepted(how: dict[str, Any], text: str) -> None:
    """Estimate the service with the change that `text` offers."""
    if changed := change(text):
        found = flopwise.serve(**(how | changed), input_tokens=256, output_tokens=64)
        assert found.estimate.requests_per_s > 0


@settings(max_examples=40, deadline=None)
@given(
    model=st.sampled_from(MODELS), gpu=st.sampled_from(DEVICES), name=st.sampled_from(list(FACTS.engines)),
    weights=st.sampled_from(FORMATS), tp=st.sampled_from([1, 2, 4, 8]), dp=st.sampled_from([1, 4]),
)  # fmt: skip
def test_each_remedy_is_accepted(model: str, gpu: str, name: str, weights: str, tp: int, dp: int) -> None:
    how: dict[str, Any] = {"model": model, "gpu": gpu, "engine": name, "weights": weights, "tp": tp, "dp": dp}
    try:
        flopwise.serve(**how, input_tokens=256, output_tokens=64)
    except FlopwiseError:
        assume(False)  # noqa: FBT003 - hypothesis
    found = memory(task="serve", concurrency=4096, context=4096 if model != "bert-base-uncased" else 512, **how)
    for remedy in found.remedies:
        check_accepted(how, remedy.change)


@settings(max_examples=12, deadline=None)
@given(
    model=st.sampled_from(MODELS), gpu=st.sampled_from(DEVICES), name=st.sampled_from(list(FACTS.engines)),
    weights=st.sampled_from(FORMATS), tp=st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_each_sensitivity_is_accepted(model: str, gpu: str, name: str, weights: str, tp: int) -> None:
    how: dict[str, Any] = {"model": model, "gpu": gpu, "engine": name, "weights": weights, "tp": tp}
    try:
        answer = flopwise.serve(**how, input_tokens=256, output_tokens=64)
    except FlopwiseError:
        assume(False)  # noqa: FBT003 - hypothesis
    for row in sensitivities(answer):
        assert row.effects
        check_accepted(how, row.change)
    for row in sensitivities(memory(task="serve", concurrency=4, context=512, **how)):
        check_accepted(how, row.change)


@pytest.mark.parametrize(("gpu", "offered"), [("v100", set()), ("t4", {"awq"}), ("h100", {"fp8", "awq", "nvfp4"})])
def test_old_devices_are_offered_no_formats_without_kernels(gpu: str, offered: set[str]) -> None:
    found = memory("Llama-3.1-70B", task="serve", gpu=gpu, concurrency=64, context=4096)
    assert {r.change.split()[-1] for r in found.remedies if r.change.startswith("weights in")} == offered


def test_engines_are_offered_the_formats_that_they_run() -> None:
    for name, offered in (("llama.cpp", {"Q4_K_M"}), ("tgi", {"fp8", "awq"}), ("deepspeed-mii", set())):
        found = memory("Llama-3.1-70B", task="serve", gpu="h100", engine=name, concurrency=64, context=4096)
        assert {r.change.split()[-1] for r in found.remedies if r.change.startswith("weights in")} == offered
        assert (
            FACTS.engine(name).local == all(FACTS.weight_format(form).kind == "gguf" for form in offered) or not offered
        )


def test_memory_offers_as_many_layers_for_the_host_as_are_needed() -> None:
    """llama.cpp leaves a GiB of the device free: with one layer more on it, less is left."""
    how: dict[str, Any] = {"gpu": "rtx4090", "engine": "llama.cpp", "weights": "Q4_K_M", "concurrency": 1}
    found = memory("Llama-3.3-70B", task="serve", context=4096, **how)
    [offer] = [remedy for remedy in found.remedies if remedy.change.startswith("gpu layers")]
    count = change(offer.change)["gpu_layers"]

    def left(layers: int) -> float:
        served = flopwise.serve("Llama-3.3-70B", gpu_layers=layers, input=4095, output=1, **how).estimate.memory
        return float(FACTS.accelerator("rtx4090").hbm_bytes) - float(served.total_bytes)

    assert offer.fits
    assert left(count) >= 2**30 > left(count + 1)
    assert offer.total_bytes == pytest.approx(FACTS.accelerator("rtx4090").hbm_bytes - left(count), rel=1e-6)
    assert not [r for r in memory("Llama-3.3-70B", task="serve", context=4096, **(how | {"gpu": "Apple M4"})).remedies
                if r.change.startswith("gpu layers")]  # fmt: skip


def test_experts_are_spread_over_ranks_that_there_are() -> None:
    def degrees(**how: Any) -> set[str]:
        found = memory("Mixtral-8x7B", task="serve", gpu="h100", concurrency=256, context=32_768, **how)
        return {r.change for r in found.remedies if r.change[:3] in ("tp ", "pp ", "ep ")}

    assert degrees(tp=1) == {"tp 2", "pp 2"}  # one rank has no other to hold half of its experts
    assert degrees(tp=8) == {"pp 2"}


@pytest.mark.parametrize(("gpu", "priced"), [("a100-80gb", True), ("h100", False)])
def test_a_cache_that_is_read_by_software_has_its_price(
    gpu: str, capsys: pytest.CaptureFixture[str], *, priced: bool
) -> None:
    """An A100 converts fp8 in software, several times slower; an H100 has units for it. Others have no such price."""
    asked: dict[str, Any] = {"gpu": gpu, "tp": 2, "context": 32_000, "concurrency": 40}
    remedies = {one.change: one for one in memory("Llama-3.3-70B", task="serve", **asked).remedies}
    price = remedies.pop("KV cache in fp8").slower_frac
    assert (price is not None and price > 1.0) == priced
    assert {one.slower_frac for one in remedies.values()} == {None}
    line = "memory Llama-3.3-70B --task serve --tp 2 --context 32000 --concurrency 40 --gpu"
    assert cli.main([*line.split(), gpu, "--json"]) == 0
    told = {one["change"]: one for one in json.loads(capsys.readouterr().out)["remedies"]}
    assert told["KV cache in fp8"]["slower_frac"] == pytest.approx(price)
    assert cli.main([*line.split(), gpu]) == 0
    out = capsys.readouterr().out
    assert ("each token as long" in out) == priced
    assert (units.format_times(1 + (price or 0.0)) in out) == priced


def test_the_price_of_a_converted_cache_is_that_of_its_steps() -> None:
    """Against two services of a fixed batch, one with each cache: their time a token at the same context."""
    answer = memory("Llama-3.1-8B", task="serve", gpu="a100-80gb", context=8_000, concurrency=8)
    (price,) = (one.slower_frac for one in memory_remedies(answer) if one.change == "KV cache in fp8")
    how: dict[str, Any] = {"gpu": "a100-80gb", "static": True, "concurrency": 8, "input_tokens": 7_999}
    plain, converted = (
        flopwise.serve("Llama-3.1-8B", output_tokens=2, kv_dtype=cache, **how).estimate.tpot_s
        for cache in ("bf16", "fp8")
    )
    assert plain is not None
    assert converted is not None
    assert 1.0 + (price or 0.0) == pytest.approx(converted.value / plain.value, rel=1e-3)


def test_a_verdict_names_what_costs_speed_last_and_with_its_price() -> None:
    """The converted cache saves more than half of the context, and is told after it."""
    answer = memory("Llama-3.1-8B", task="serve", gpu="a100-80gb", context=8_000, concurrency=90)
    cache, half = (one for one in answer.remedies if one.change.startswith(("KV cache in fp8", "a context of")))
    text = f"KV cache in fp8 (each token takes {units.format_times(1 + (cache.slower_frac or 0.0))} as long)"
    two = replace(answer, remedies=(cache, half)).verdict
    assert two.endswith(f"It would fit with a context of 4,000 tokens or {text}."), two
    assert "KV cache" not in answer.verdict, "three others suffice"


def test_fewer_sequences_at_once_leave_what_a_sampler_would_take() -> None:
    """vLLM 0.11 started for 1,024 sequences keeps 39 bytes of 201,088 entries for each; for 8, 8,192 tokens take more.

    A layer's tokens in 16 bits: what comes in and goes out, and of each of four experts the inner and the outer width.
    """
    how: dict[str, Any] = {"task": "serve", "gpu": "h100", "engine": "vllm-2025", "context": 8192, "concurrency": 8}
    answer = memory("gpt-oss-120b", **how, max_batch=1024)
    assert not answer.fits
    (fewer,) = (one for one in memory_remedies(answer) if one.change == "at most 8 sequences at once")
    assert fewer.fits
    prompts = 8192 * 2 * (2 * 2880 + 4 * (2880 + 2880))
    assert fewer.saves_bytes == pytest.approx(1024 * 201_088 * 39 - prompts, rel=0.02)
    assert not any("at once" in one.change for one in memory_remedies(memory("gpt-oss-120b", **how)))


@pytest.mark.parametrize("load", [{"concurrency": 16}, {"rate": 4.0}, {"concurrency": 16, "simulate": True}])
def test_better_devices_never_make_a_simulated_service_slower(load: dict[str, Any]) -> None:
    """The simulated figures were compared with closed forms of the changes: TPOT was 2 % longer with more FLOP/s."""
    answer = flopwise.serve("Llama-3.1-8B", gpu="h100", **load)
    faster = [one for one in sensitivities(answer) if one.change.endswith(("+10 %", "-9 %"))]
    assert len(faster) >= 4
    for one in faster:
        for figure in ("TTFT", "TPOT"):
            effect = one.effects[figure]
            assert effect is not None
            assert effect <= 1.0 + 1e-9, (one.change, figure)


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("Llama-3.1-8B", {"gpu": "h100", "task": "train", "micro_batch": 4, "seq": 8192, "recompute": "none"}),
        ("Mixtral-8x7B", {"gpu": "a100", "task": "train", "dp": 8, "ep": 8, "seq": 4096, "recompute": "none"}),
        ("Llama-3.1-70B", {"gpu": "l40s", "task": "serve", "context": "32k", "concurrency": 16}),
        ("Llama-3.1-8B", {"gpu": "h100", "task": "serve", "context": "128k", "concurrency": 8}),
        ("whisper-large-v3", {"gpu": "t4", "task": "serve", "concurrency": 200}),
    ],
)
def test_the_gpus_of_the_verdict_hold_what_was_asked(model: str, asked: dict[str, Any]) -> None:
    verdict = flopwise.memory(model, **asked).verdict
    found = re.search(r"(\d+) GPUs \(([^.]+)\)\.$", verdict)
    assert found, verdict
    degrees = {name: int(value) for name, value in re.findall(r"(dp|tp|pp) (\d+)", found[2])}
    assert math.prod(degrees.values()) == int(found[1])
    other = {"dp": 1, "ep": 1} | degrees if asked["task"] == "train" else degrees
    wider = flopwise.memory(model, **(asked | other | ({"fsdp": True} if "FSDP" in found[2] else {})))
    assert wider.fits, wider.verdict
    assert "GPUs (" not in wider.verdict
