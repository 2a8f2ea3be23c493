"""Large expert parallelism against what LMSYS and DeepSeek published; nothing is fitted to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.models.catalog import load_model
from flopwise.serving.estimate import check, job_memory
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import ServeJob, Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.techniques import runner
from named import FACTS, serve_job_with

HOTTEST = 11.9
"""Tokens of DeepSeek-R1's most popular expert over the mean (TensorRT-LLM, tech blog 4, table 1)."""


def spread(ranks: int, **techniques: float) -> ServeJob:
    """DeepSeek-V3 in fp8 blocks on SGLang: an attention replica on each of so many H100s, eight with 400 Gb/s each a
    node."""
    return serve_job_with(
        model=load_model("DeepSeek-V3"), engine=FACTS.engine("sglang"), weights=FACTS.weight_format("fp8-block"),
        cluster=cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9),
        input_tokens=2000, output_tokens=100, layout=ServingLayout(dp=ranks, ep=ranks),
        techniques=Techniques(**techniques),  # type: ignore[arg-type]
    )  # fmt: skip


def tokens_per_s(job: ServeJob, load: StepLoad) -> float:
    """Of a node of eight devices."""
    check(job)
    return 8 * float(load.decode_batch + load.prefill_tokens) / float(runner(job).step(load, job.layout).seconds)


DECODE_256, DECODE_128 = (
    StepLoad(decode_batch=256, decode_context=2050),
    StepLoad(decode_batch=128, decode_context=4096),
)
PROMPTS_4K = StepLoad(prefill_tokens=16_384, prefill_context=4096, prompts=4)


@pytest.mark.parametrize(
    ("ranks", "techniques", "load", "measured"),
    [
        (72, {"redundant_experts": 32, "expert_skew": HOTTEST}, DECODE_256, 22_282),  # LMSYS, 9 nodes for answers
        (32, {"redundant_experts": 32, "expert_skew": 1}, PROMPTS_4K, 59_337),  # LMSYS, 4 nodes, experts at random
        (32, {"expert_skew": 1}, PROMPTS_4K, 62_713),  # DeepSeek, profile of prompts, experts balanced
        (128, {"expert_skew": 1}, DECODE_128, 18_598),  # DeepSeek, profile of answers, experts balanced
    ],
)
def test_nodes_are_as_fast_as_published(
    ranks: int, techniques: dict[str, float], load: StepLoad, measured: float
) -> None:
    """LMSYS, Large-scale expert parallelism on 96 H100 (2025-05-05), "Overall Throughput"; two-batch overlap."""
    assert tokens_per_s(spread(ranks, overlap=True, **techniques), load) == pytest.approx(measured, rel=0.2)


def test_two_micro_batches_hide_messages() -> None:
    """LMSYS measured 27 to 40 % for prompts, and 25.5 % for answers of 256 sequences a device."""
    for ranks, load, least in ((32, PROMPTS_4K, 1.25), (72, DECODE_256, 1.2)):
        plain, both = (tokens_per_s(spread(ranks, redundant_experts=32, overlap=o), load) for o in (False, True))
        assert least < both / plain < 1.6
    few = StepLoad(decode_batch=16, decode_context=2050)
    assert tokens_per_s(spread(72, redundant_experts=32, overlap=True), few) < tokens_per_s(
        spread(72, redundant_experts=32), few
    )  # LMSYS: -27 % at 32 tokens a device


def test_a_popular_expert_slows_all_ranks_unless_it_has_copies() -> None:
    """LMSYS: placing and copying experts made prompts 1.49 times, and answers 2.54 times as fast."""
    skewed = tokens_per_s(spread(32, expert_skew=HOTTEST, overlap=True), PROMPTS_4K)
    copied = tokens_per_s(spread(32, expert_skew=HOTTEST, redundant_experts=32, overlap=True), PROMPTS_4K)
    assert 1.2 < copied / skewed < 1.8


def test_engines_without_kernels_for_it_gather_all_tokens() -> None:
    """All 32 x 16,384 tokens reach every rank, where a token has at most eight experts."""
    job = spread(32, expert_skew=1)
    gathered = replace(job, engine=replace(job.engine, dispatch_kernels=False))
    assert tokens_per_s(gathered, PROMPTS_4K) < 0.7 * tokens_per_s(job, PROMPTS_4K)


def test_copies_of_experts_take_memory() -> None:
    """32 copies on 32 ranks: one expert more in each of 58 layers, 3 x 7168 x 2048 weights of 8 bits and scales."""
    more = float(job_memory(spread(32, redundant_experts=32), concurrency=1).items["weights"])
    more -= float(job_memory(spread(32), concurrency=1).items["weights"])
    assert more == pytest.approx(58 * 3 * 7168 * 2048 * 1.0002, rel=0.01)


def test_what_cannot_be() -> None:
    with pytest.raises(SpecError, match="ep 72 does not divide the 256 experts of DeepSeek-V3"):
        check(spread(72))
    with pytest.raises(SpecError, match="go with experts that are spread"):
        check(spread(1, redundant_experts=32))
    with pytest.raises(SpecError, match="does not overlap two micro-batches; engines that do: sglang"):
        check(replace(spread(32, overlap=True), engine=FACTS.engine("tensorrt-llm")))


def test_copies_of_experts_may_make_ranks_that_experts_alone_do_not() -> None:
    """LMSYS: 256 experts and 32 copies on 72 ranks, four on each; 72 does not divide 256."""
    asked: dict[str, Any] = {"gpu": "h100", "dp": 72, "ep": 72, "concurrency": 9000, "engine": "sglang"}
    assert flopwise.serve("DeepSeek-V3", redundant_experts=32, **asked).estimate.throughput.value > 0
    with pytest.raises(SpecError, match="ep 72 does not divide the 256 experts"):
        flopwise.serve("DeepSeek-V3", **asked)
