"""Embedding and head as units of a pipeline: chunks without a layer, deep interleaving, uneven chunks, their search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flopwise
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.run import measurements
from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.models.catalog import load_model
from flopwise.search.layout_search import GivenSettings, fastest_layout, layout_search
from flopwise.training.estimate import estimate, single_parts, single_table
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import Layout, Lora
from flopwise.training.memory import confident_capacity_bytes, memory_band
from flopwise.training.stage_memory import pipeline_stages
from flopwise.training.stages import cuts_alike, even_layers
from named import FACTS, recipe_with, train_answer

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth" / "training.csv"
LLAMA = FACTS.model("Llama-3.1-405B")
PUBLISHED = Layout(dp=128, tp=8, pp=16, interleave=8, zero=1, micro_batch=1)  # Llama 3 (arXiv:2407.21783) table 4


MEASURED_MFU = 400 / 989.4
"""TFLOP/s of a GPU in the published layout, table 4, over the peak in bf16."""


def job(
    model: Model, layout: Layout, gpu: str = "H100-SXM-80", batch: int = 2048, stack: str = "megatron-te"
) -> TrainJob:
    recipe = recipe_with(seq_len=8192, global_batch=batch, stack=stack)
    machines = cluster(FACTS.accelerator(gpu), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
    return TrainJob(model=model, recipe=recipe, layout=layout, cluster=machines)


def test_llama_3_lies_as_published() -> None:
    """126 layers with embedding and head are 128 = 16 x 8 units: one less on the first rank and on the last."""
    assert even_layers(126, 16).tolist() == [7, *[8] * 14, 7]
    stages = pipeline_stages(MemoryTable(LLAMA, job(LLAMA, PUBLISHED).recipe), PUBLISHED)
    assert [int(stage.layers) for stage in stages] == [7, 8, 7]
    flopwise.train("Llama-3.1-405B", gpu="h100", gpus=128, tp=8, pp=16, interleave=8, global_batch=16)


@pytest.mark.parametrize(("stages", "expected"), [
    (1, [62]), (4, [16, 16, 16, 14]), (8, [*[8] * 7, 6]), (16, [*[4] * 15, 2]), (31, [2, 3, 3, *[2] * 27, 0]),
    (64, [0, *[1] * 62, 0]),
])  # fmt: skip
def test_layers_for_multi_token_prediction_come_with_a_head_of_their_own(stages: int, expected: list[int]) -> None:
    """Megatron-Bridge, deepseek_v3.py: [E, 4 d] + 14 x [4 d] + [d, mtp, loss] and so on; too many stages: as others."""
    assert even_layers(62, stages, output_heads=2).tolist() == expected
    predicting, layout = load_model("DeepSeek-V3").with_predictors(), Layout(pp=stages, dp=1)
    memory = pipeline_stages(MemoryTable(predicting, job(predicting, layout).recipe), layout)
    assert [int(stage.stop - stage.start) for stage in (memory[0], memory[-1])] == [expected[0], expected[-1]]


def test_the_bubble_of_the_published_layout() -> None:
    """(all stages - the busiest) / v for 16 micro-batches on 16 stages; by hand about 15 / (8 x 16) of the work."""
    one = job(LLAMA, PUBLISHED)
    table = single_table(one)
    lines = single_parts(table, PUBLISHED)
    busiest = float(table.stage_parts[:, 0, 0, 0].sum())
    assert lines["pipeline_bubble"] == pytest.approx((float(table.model_s[0, 0]) - busiest) / 8)
    work = sum(lines[name] for name in table.lines)
    assert lines["pipeline_bubble"] / work == pytest.approx(15 / (8 * 16), rel=0.01)
    assert lines["stage_imbalance"] < 0.02 * work  # embedding and head even out


@pytest.mark.parametrize(("layers", "pp", "chunks"), [(126, 16, 8), (94, 32, 3), (30, 4, 8), (32, 4, 8), (96, 12, 8)])
def test_chunks_come_out_alike(layers: int, pp: int, chunks: int) -> None:
    assert cuts_alike(layers, pp, chunks)
    assert layers + 2 >= pp * chunks
    assert max(even_layers(layers, pp)) % chunks == 0


@pytest.mark.parametrize(("layers", "pp", "chunks"), [(126, 16, 3), (126, 16, 16), (32, 4, 3), (61, 16, 8)])
def test_chunks_that_do_not(layers: int, pp: int, chunks: int) -> None:
    assert not cuts_alike(layers, pp, chunks)


def test_the_search_has_the_published_layout_and_says_what_it_leaves_out() -> None:
    space = layout_search(LLAMA, job(LLAMA, PUBLISHED).recipe, most=16_384, least=16_384).space
    found = 0
    for family in space.families:
        columns = space.columns(family)
        same = np.ones(columns.shape(), dtype=bool)
        for name in ("dp", "tp", "pp", "interleave", "zero", "micro_batch", "recompute"):
            same &= np.asarray(getattr(columns, name)) == getattr(PUBLISHED, name)
        found += int(same.sum())
    assert found == 1
    left_out = {reason: count for reason, count in space.ruled_out.items() if "virtual stages" in reason}
    assert len(left_out) == 2
    assert min(left_out.values()) > 0


@pytest.mark.parametrize("stack", ["nemo", "in-house", "megatron-te", "fsdp-compile"])
def test_the_fastest_layout_is_as_fast_as_what_was_measured(stack: str) -> None:
    """On stacks that stand in for that of the report, which has no name, and on those that anyone has."""
    one = job(LLAMA, PUBLISHED, stack=stack)
    found = fastest_layout(LLAMA, one.recipe, one.cluster, 16_384)
    assert found is not None
    assert estimate(replace(one, layout=found[0])).mfu_full_attention_frac > 0.95 * MEASURED_MFU


def test_a_plan_that_names_no_software_is_as_fast_as_what_was_measured() -> None:
    """Tokens that 400 TFLOP/s are with attention counted causal, as in training.csv: 157.7 a second."""
    [row] = [
        row for row in measurements(KINDS["training"], TRUTH)
        if row["id"] == "llama3-405b-llama-3.1-405b-h100-sxm-80gb-n16384-s8192-bf16"
    ]  # fmt: skip
    measured = float(row["tokens_per_s_per_gpu"])
    assert measured == pytest.approx(157.7, rel=0.001)
    data = {"seq_len": 8192, "global_batch": 2048, "tokens": 15.6e12}
    limits = {"gpus": ["H100-SXM-80"], "instances": ["p5.48xlarge"], "min_gpus": 16_384, "max_gpus": 16_384}
    best = flopwise.plan({"model": "Llama-3.1-405B", "task": "pretrain", "data": data, "constraints": limits}).plans[0]
    assert (best.figures["tokens_per_s_per_gpu"] or 0.0) > 0.95 * measured


@pytest.mark.parametrize(("asked", "stack"), [
    ({}, "megatron-te"), ({"model": "Llama-3.1-70B"}, "fsdp-compile"), ({"fsdp": True}, "fsdp-compile"),
    ({"zero": 2}, "fsdp-compile"),
    ({"schedule": "zb-v", "pp": 8}, "fsdp-compile"), ({"finetune": True}, "fsdp-compile"),
    ({"lora": 16}, "hf-trainer"), ({"stack": "nemo"}, "nemo"), ({"gpu": "tpu-v5p"}, "xla"),
])  # fmt: skip
def test_large_models_are_trained_from_the_start_on_what_people_train_them_on(
    asked: dict[str, Any], stack: str
) -> None:
    options: dict[str, Any] = {"model": "Llama-3.1-405B", "gpu": "h100", "gpus": 512} | asked
    assert train_answer(options.pop("model"), **options).estimate.job.recipe.stack.name == stack


@pytest.mark.parametrize("stack", ["megatron-te", "fsdp-compile", "fsdp-te"])
def test_the_published_layout_is_as_fast_as_measured_on_stacks_that_anyone_has(stack: str) -> None:
    """The report's own stack is not theirs: 400 TFLOP/s are known of the layout, and none of these is off by 5 %."""
    one = job(LLAMA, PUBLISHED, stack=stack)
    assert estimate(one).mfu_full_attention_frac == pytest.approx(MEASURED_MFU, rel=0.05)


@pytest.mark.parametrize(("stack", "zero"), [("megatron-te", 1), ("fsdp-compile", 2)])
def test_plans_on_such_stacks_cut_sequences_in_two_where_their_own_whole_ones_would_not_fit(
    stack: str, zero: int
) -> None:
    """Llama 3.1 405B as Megatron-Bridge runs it on H100: tp 8, cp 2, interleave 8, 8,192 tokens; nothing again.

    Half the activations of a rank, twice the micro-batches of a pipeline: the bubble halves. FSDP keeps shards of fp32
    weights beside whole ones in 16 bits (torchtitan, `reshard_after_forward` off in pipelines), not whole ones in fp32.
    """
    one = job(LLAMA, PUBLISHED, stack=stack)
    found = fastest_layout(LLAMA, one.recipe, one.cluster, 16_384)
    assert found is not None
    layout = found[0]
    mesh = (layout.dp, layout.tp, layout.pp, layout.cp, layout.interleave, layout.micro_batch, layout.zero)
    assert mesh == (64, 8, 16, 2, 8, 1, zero)
    assert layout.recompute == 0
    published, halved = estimate(one), estimate(replace(one, layout=layout))
    sure = confident_capacity_bytes(one.recipe, one.cluster.accelerator)
    assert float(published.memory.total_bytes) > sure > float(halved.memory.total_bytes)
    bubbles = [dict(each.breakdown)["pipeline_bubble"] for each in (published, halved)]
    assert bubbles[1] / bubbles[0] == pytest.approx(0.5, rel=0.05)


def test_fsdp_in_pipelines_keeps_shards_where_zero_1_keeps_whole_weights() -> None:
    """By hand: 3.19 G parameters a rank, 12.8 GB in fp32 with ZeRO 1; a shard of 1/128 with FSDP. Time is the same."""
    of_stage = [job(LLAMA, replace(PUBLISHED, zero=zero), stack="fsdp-compile") for zero in (1, 2, 3)]
    assert of_stage[0].recipe.zero_stages(piped=True) == (0, 2)
    found = [estimate(one) for one in of_stage]
    weights = [dict(each.memory.items)["weights"] for each in found]
    assert weights[0] == pytest.approx(12.8e9, rel=0.01)
    assert weights[1] == weights[2] == pytest.approx(weights[0] / 128, rel=0.01)
    assert [each.step_s for each in found] == pytest.approx([found[0].step_s] * 3, rel=1e-6)


@pytest.mark.parametrize(
    ("stack", "sync", "stages"),
    [
        ("megatron-te", None, (0, 1)), ("fsdp-compile", None, (0, 2)), ("fsdp-compile", "each", (0, 1)),
        ("fsdp-compile", "round", (0, 1, 2)), ("in-house", None, (0, 1, 2)), ("in-house", "each", (0, 1)),
    ],
)  # fmt: skip
def test_pipelines_shard_what_their_software_reduces_once(stack: str, sync: Any, stages: tuple[int, ...]) -> None:
    """torchtitan always shards; Megatron Core keeps whole gradients; Llama 3's own software reduces once a round."""
    recipe = replace(job(LLAMA, PUBLISHED, stack=stack).recipe, grad_sync=sync)
    assert recipe.zero_stages(piped=True) == stages
    assert replace(recipe, lora=Lora()).zero_stages(piped=True) == (0, 1)
    families = layout_search(LLAMA, recipe, most=1024, least=1024, given=GivenSettings(micro_batch=1)).space.families
    assert {family.zeros for family in families if len(family.turns) > 1} == {(0,), stages}


def test_the_published_layout_fits_and_is_as_fast_as_measured() -> None:
    """Sharded states and gradients, weights gathered once, nothing computed again (section 3.3.2): it ran."""
    one = job(LLAMA, replace(PUBLISHED, zero=2), stack="in-house")
    found = estimate(one)
    odds = memory_band(one.recipe, FACTS.calibration).probability_at_most(
        found.memory.total_bytes, float(one.cluster.accelerator.hbm_bytes)
    )
    assert odds > 0.1
    scale = found.mfu_full_attention_frac / found.tokens_per_s_per_gpu
    assert found.low * scale < MEASURED_MFU < found.high * scale


def test_uneven_pipelines_that_ran_are_estimated() -> None:
    """94 layers on pp 32 x interleave 3; 30 layers on pp 4 x interleave 8."""
    found = estimate(job(FACTS.model("Qwen3-235B-A22B"), Layout(dp=8, pp=32, interleave=3, ep=8, zero=1), batch=512))
    assert found.step_s > 0
    small = FACTS.model("SmolLM2-135M")  # 30 layers
    assert small.stacks[0].num_layers == 30
    assert estimate(job(small, Layout(pp=4, interleave=8), batch=32)).step_s > 0


def test_a_stage_may_hold_the_embedding_or_the_head_alone() -> None:
    """Named layers of 0: the first stage waits for the others with its embedding, the others take what they take."""
    model = FACTS.model("Llama-3.2-1B")  # 16 layers
    named = job(model, Layout(pp=4, stage_layers=(0, 8, 8, 0)), batch=32)
    even = job(model, Layout(pp=2, stage_layers=(8, 8)), batch=32)
    table = single_table(named)
    assert float(table.stage_parts[:2, 0, 0, 0].sum()) < float(single_table(even).stage_parts[:2, 0, 0, 0].sum())
    most = estimate(named).memory
    assert float(most.total_bytes) > 0
    flopwise.train("Llama-3.2-1B", gpu="h100", gpus=4, pp=4, stage_layers="0,8,8,0", global_batch=32)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"pp": 16, "interleave": 9}, "more than the 126 layers"),
        ({"pp": 256}, "at most 128"),
        ({"pp": 2, "stage_layers": (127, -1)}, "add up to the 126 layers"),
    ],
)
def test_pipelines_that_cannot_be(layout: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        estimate(replace(job(LLAMA, Layout(**layout)), model=LLAMA))
