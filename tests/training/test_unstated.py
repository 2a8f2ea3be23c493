"""Inputs that nobody stated: their ends, what each widens, and intervals that hold them; the bound above all steps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwise import cli
from flopwise.backtests.kinds import KINDS
from flopwise.backtests.prediction import number
from flopwise.backtests.run import measurements
from flopwise.backtests.training import RUNS_WITH, absent_inputs, row_job
from flopwise.cost.cluster import cluster
from flopwise.errors import FlopwiseError
from flopwise.facts.models.catalog import load_model
from flopwise.training.alternatives import UnstatedInput, other_settings
from flopwise.training.estimate import estimate, job_memory
from flopwise.training.job import TrainJob
from flopwise.training.layout import TARGET_SETS, Layout
from flopwise.training.memory import memory_band
from flopwise.training.spec import CHOSEN_MICRO_BATCH
from flopwise.training.unstated import other_jobs, unstated_inputs, with_unstated_inputs
from named import FACTS, lora_with, recipe_with

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth" / "training.csv"
NODES = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)


def job(model: str = "Llama-3.1-8B", **layout: Any) -> TrainJob:
    recipe = recipe_with(seq_len=4096, global_batch=64, stack="megatron-te")
    return TrainJob(model=load_model(model), recipe=recipe, layout=Layout(**layout), cluster=NODES)


def test_each_input_is_taken_at_the_ends_of_what_people_do() -> None:
    given = job(dp=4, tp=2, pp=4, zero=1, micro_batch=1)
    others = other_jobs(given, {"micro-batch", "recompute", "interleave", "sharding", "network"})
    assert [one.layout.micro_batch for one in others["micro-batch"]] == [1, 2, 4]
    assert [one.layout.recompute for one in others["recompute"]] == [0, 1]
    assert [one.layout.interleave for one in others["interleave"]] == [1, 8]  # 32 layers on four stages
    assert [one.layout.zero for one in others["sharding"]] == [0, 1]  # Megatron has no more
    assert [one.cluster.fabric.levels[-1].bytes_per_s for one in others["network"]] == [
        0.5 * NODES.fabric.levels[-1].bytes_per_s
    ]
    alone = other_jobs(job(dp=1), {"interleave", "sharding", "network", "adapters"})
    assert not alone  # nothing of it is there to be done otherwise


def test_lengths_reach_from_half_the_default_to_8k_with_the_tokens_of_a_step() -> None:
    """64 sequences of 4,096 tokens are 128 of 2,048 or 32 of 8,192; a micro-batch that was chosen keeps its tokens."""
    given = job(dp=4, tp=2, pp=4, zero=1, micro_batch=2)
    fixed = other_jobs(given, {"sequence length"})["sequence length"]
    shapes = [(one.recipe.seq_len, one.recipe.global_batch, one.layout.micro_batch) for one in fixed]
    assert shapes == [(2048, 128, 2), (8192, 32, 2)]
    chosen = other_jobs(given, {"sequence length", CHOSEN_MICRO_BATCH})["sequence length"]
    assert [one.layout.micro_batch for one in chosen] == [4, 1]
    once = replace(given, recipe=replace(given.recipe, global_batch=8))
    assert [one.recipe.global_batch for one in other_jobs(once, {"sequence length"})["sequence length"]] == [8, 8]
    gpt = job("GPT-2", dp=4)
    short = replace(gpt, recipe=replace(gpt.recipe, seq_len=1024))
    lengths = [one.recipe.seq_len for one in other_jobs(short, {"sequence length"})["sequence length"]]
    assert lengths == [512, 1024]  # as far as the model goes


@pytest.mark.parametrize(("told", "open_"), [((), True), (("--seq", "4k"), False)])
def test_train_names_the_length_of_sequences_where_nobody_states_it(
    told: tuple[str, ...], *, open_: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "Llama-3.2-1B", "--gpu", "h100-sxm", "--gpus", "8", "--micro-batch", "1", *told, "--json"]
    assert cli.main(command) == 0
    shown = json.loads(capsys.readouterr().out)
    named = {one["name"]: one for one in shown["unstated"]}
    assert ("sequence length" in named) is open_
    if not open_:
        return
    for length in ("2k", "8k"):
        assert cli.main([*command[:-1], "--seq", length, "--json"]) == 0
        other = json.loads(capsys.readouterr().out)["tokens_per_s_per_gpu"]
        assert shown["low"] <= other <= shown["high"]


def test_adapters_range_from_small_to_all_products() -> None:
    recipe = recipe_with(seq_len=2048, global_batch=16, stack="hf-trainer", lora=lora_with(rank=16, targets=("q", "v")))
    one = TrainJob(model=load_model("Llama-3.1-8B"), recipe=recipe, layout=Layout(), cluster=NODES)
    found = [other.recipe.lora for other in other_jobs(one, {"adapters"})["adapters"]]
    assert [lora.rank for lora in found if lora] == [8, 64]


def test_an_interval_holds_the_ends_and_says_what_widens_it() -> None:
    given = job(dp=4, tp=2, pp=4, zero=1, micro_batch=1)
    found = estimate(given)
    others = other_jobs(given, {"interleave", "recompute"})
    inputs = {one.name: one for one in unstated_inputs(found, others)}
    deep = estimate(others["interleave"][1])
    assert inputs["interleave"].high == pytest.approx(deep.tokens_per_s_per_gpu / found.tokens_per_s_per_gpu)
    assert inputs["interleave"].low == 1.0
    assert inputs["recompute"].low < 1.0 == inputs["recompute"].high
    wide = with_unstated_inputs(found, list(inputs.values()))
    assert wide.low < found.tokens_per_s_per_gpu * inputs["recompute"].low
    assert wide.high > found.tokens_per_s_per_gpu * inputs["interleave"].high
    assert wide.tokens_per_s_per_gpu == found.tokens_per_s_per_gpu
    assert wide.upper_bound_s == pytest.approx(found.upper_bound_s * found.band.low / wide.band.low)
    widening = "interleave not stated: other common values change the speed by +0.0 % to +"
    assert any(note.startswith(widening) for note in wide.assumptions)
    assert with_unstated_inputs(found, ()) is found


def test_the_ends_multiply_the_band_and_the_reach() -> None:
    band = estimate(job(dp=8)).band
    wide = band.between(0.8, 1.1).between(0.5, 1.0)
    assert wide.low == pytest.approx(0.4 * band.low)
    assert wide.high == pytest.approx(1.1 * band.high)
    assert wide.reach == pytest.approx((0.4, 1.1))
    assert UnstatedInput(name="micro-batch", low=0.9, high=1.2).text("speed") == (
        "micro-batch not stated: other common values change the speed by -10.0 % to +20.0 %"
    )


def answer(capsys: pytest.CaptureFixture[str], line: str) -> dict[str, Any]:
    assert cli.main([*line.split(), "--json"]) == 0
    return dict(json.loads(capsys.readouterr().out))


def test_a_job_that_says_everything_is_surer_than_one_that_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    line = "train Llama-3.1-8B --gpu h100 --gpus 16 --dp 16 --zero 3 --global-batch 64 --seq 4096"
    vague = answer(capsys, line)
    whole = f"{line} --micro-batch 1 --recompute none --stack fsdp-compile --network 50GB/s"
    said = answer(capsys, whole)
    assert vague["high"] / vague["low"] > said["high"] / said["low"]
    notes = " ".join(vague["assumptions"])
    assert "stack not stated" in notes
    assert "not stated" not in " ".join(said["assumptions"])


@pytest.mark.parametrize(("options", "name"), [
    (["--qlora"], "adapters"),
    (["--lora", "16"], "adapter targets"),
    (["--qlora", "--lora-targets", "attention"], "adapter rank"),
    (["--lora", "16", "--lora-targets", "attention"], None),
])  # fmt: skip
@pytest.mark.parametrize("layout", [[], ["--dp", "8", "--zero", "3"]])
def test_adapters_are_assumed_as_far_as_nobody_states_them(
    options: list[str], name: str | None, layout: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether the layout is searched or stated; in the interval of the memory, too."""
    named = {name} if name else set()
    assert cli.main(["train", "Llama-3.1-8B", "--gpu", "h100-sxm", "--gpus", "8", "--json", *options, *layout]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in shown["unstated"] if one["name"].startswith("adapter")} == named
    assert {one["name"] for one in shown["memory"]["unstated"] if one["name"].startswith("adapter")} == named


def test_what_is_stated_of_adapters_stays() -> None:
    own = lora_with(rank=16, targets=("q", "v"))
    recipe = recipe_with(seq_len=2048, global_batch=16, stack="hf-trainer", lora=own)
    one = TrainJob(model=load_model("Llama-3.1-8B"), recipe=recipe, layout=Layout(), cluster=NODES)
    ranks, targets = (
        [other.recipe.lora for other in other_jobs(one, {name})[name]] for name in ("adapter rank", "adapter targets")
    )
    assert [(lora.rank, lora.targets) for lora in ranks if lora] == [(8, own.targets), (64, own.targets)]
    assert [(lora.rank, lora.targets) for lora in targets if lora] == [
        (16, TARGET_SETS["qv"]), (16, TARGET_SETS["all-linear"])
    ]  # fmt: skip


def test_nineteen_of_twenty_measured_steps_lie_below_the_upper_bound() -> None:
    """Of every fourth row, which are of all sources."""
    below = rows = 0
    for row in list(measurements(KINDS["training"], TRUTH))[::4]:
        try:
            given = row_job(row, FACTS)
            found = estimate(given)
        except FlopwiseError:
            continue
        measured = number(row, "tokens_per_s_per_gpu")
        assert measured is not None
        found = with_unstated_inputs(found, unstated_inputs(found, other_jobs(given, absent_inputs(row, given))))
        step_s = found.step_s * found.tokens_per_s_per_gpu / measured
        rows, below = rows + 1, below + (step_s <= found.upper_bound_s)
    assert rows > 300
    assert below / rows >= 0.95


def test_what_ran_is_not_refused() -> None:
    """Of rows that state batch, micro-batch and recompute; what else was set is stated where its publisher says so."""
    rows = fits = 0
    for row in measurements(KINDS["training"], TRUTH):
        if not all(row.get(column) for column in ("micro_batch", "global_batch", "recompute")):
            continue
        try:
            made = row_job(row, FACTS)
        except FlopwiseError:
            continue
        chip = made.cluster.accelerator
        band = memory_band(made.recipe, chip.calibration, chip)
        needs = float(job_memory(made).total_bytes)
        rows, fits = rows + 1, fits + (float(band.probability_at_most(needs, chip.hbm_bytes)) > RUNS_WITH)
    assert rows > 700
    assert fits / rows >= 0.998


def test_what_a_row_leaves_open_is_what_would_have_run() -> None:
    """Llama-3.1-8B on one card of 198 GB: 5 sequences of 4,096 do not fit beside fp32 weights and states, 1 does.

    48 layers of Qwen2.5-32B are 25e9 parameters: 18 bytes of each over four cards are 112 GB, over eight 56 GB.
    """
    row = {
        "model": "Llama-3.1-8B", "seq_len": "4096", "task": "pretrain", "gpu": "GB200", "gpus": "1", "year": "2026",
        "recompute": "none", "precision": "bf16", "software": "fsdp-eager", "tokens_per_s_per_gpu": "1",
    }  # fmt: skip
    one, five = (row_job({**row, "micro_batch": n, "global_batch": n}, FACTS).recipe for n in ("1", "5"))
    assert (one.weights_dtype, one.states_dtype) == (None, None)
    assert (five.weights_dtype, five.grad_dtype, five.states_dtype) == ("bf16", "bf16", "bf16")
    stated = row_job({**row, "micro_batch": "6", "global_batch": "6", "weights_dtype": "fp32"}, FACTS).recipe
    assert (stated.weights_dtype, stated.states_dtype) == ("fp32", None)
    megatron = {
        "model": "Qwen2.5-32B", "seq_len": "4096", "task": "pretrain", "gpu": "H100-SXM-80GB", "gpus": "4", "tp": "4",
        "num_layers": "48", "micro_batch": "1", "global_batch": "256", "recompute": "full", "precision": "bf16",
        "software": "megatron-te", "tokens_per_s_per_gpu": "1",
    }  # fmt: skip
    assert row_job(megatron, FACTS).recipe.grad_dtype == "bf16"
    assert row_job({**megatron, "tp": "8", "gpus": "8"}, FACTS).recipe.grad_dtype is None


def test_json_names_each_assumed_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "Llama-3.1-8B", "--gpu", "h100-sxm", "--gpus", "64", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    named = {one["name"]: (one["low"], one["high"]) for one in shown["unstated"]}
    assert {"stack", "network"} <= set(named)
    assert all(low <= 1 <= high for low, high in named.values())
    assert named["stack"][0] < named["stack"][1]
    told = ["--stack", "fsdp-compile", "--instance", "p5.48xlarge", "--micro-batch", "1", "--recompute", "none"]
    assert cli.main(["train", "Llama-3.1-8B", "--gpus", "64", *told, "--json"]) == 0
    assert not {"stack", "network"} & {one["name"] for one in json.loads(capsys.readouterr().out)["unstated"]}


@pytest.mark.parametrize(
    ("own", "zero", "expected"),
    [
        ("fsdp-compile", 2, {"fsdp-eager": 2, "megatron-te": 1}),
        ("megatron-te", 1, {"fsdp-eager": 2, "megatron-te": 1}),
        ("fsdp-compile", 3, {"fsdp-eager": 2, "megatron-te": 1}),
        ("fsdp-compile", 0, {"fsdp-eager": 0, "megatron-te": 0}),
    ],
)
def test_on_another_stack_a_pipeline_shards_what_it_may(own: str, zero: int, expected: dict[str, int]) -> None:
    """Megatron Core has ZeRO 1 alone; torchtitan shards weights in a pipeline, too, and gathers them once a step."""
    given = job(dp=4, pp=2, zero=zero)
    recipe = replace(given.recipe, stack=FACTS.stack(own))
    stacks = [FACTS.stack(name) for name in ("fsdp-eager", "megatron-te")]
    found = other_settings(given.layout, recipe, given.model, ["stack"], stacks)["stack"]
    assert {other.stack.name: int(layout.zero) for layout, other in found} == expected
    alone = other_settings(replace(given.layout, pp=1), recipe, given.model, ["stack"], stacks)["stack"]
    assert {int(layout.zero) for layout, _ in alone} == {zero}


def test_sharding_that_nobody_stated_is_what_a_pipeline_of_the_stack_may_have() -> None:
    given = job(dp=4, pp=2)
    for name, stages in (("fsdp-eager", [0, 2]), ("megatron-te", [0, 1])):
        recipe = replace(given.recipe, stack=FACTS.stack(name))
        others = other_settings(given.layout, recipe, given.model, ["sharding"])["sharding"]
        assert [int(layout.zero) for layout, _ in others] == stages


@pytest.mark.parametrize(
    ("pp", "batch", "sizes"), [(4, 64, [1, 2, 4]), (4, 32, [1, 2]), (8, 32, [1]), (1, 4, [1, 2, 4])]
)
def test_no_micro_batch_leaves_a_pipeline_fewer_than_stages(pp: int, batch: int, sizes: list[int]) -> None:
    """Four replicas: 64 sequences are 16 of 1 or 4 of 4; 32 are 8 of 1, 4 of 2 and 2 of 4, too few for four stages."""
    given = job(dp=4, pp=pp)
    recipe = replace(given.recipe, global_batch=batch)
    others = other_settings(given.layout, recipe, given.model, ["micro-batch"])["micro-batch"]
    assert [int(layout.micro_batch) for layout, _ in others] == sizes
