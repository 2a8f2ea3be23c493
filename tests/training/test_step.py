"""The step against papers, and against what must hold for any model of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.cost.collectives import all_gather_s
from flopwise.cost.sustained import training_rates
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.training import estimate as training_step
from flopwise.training.estimate import TrainEstimate, estimate
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from named import lora_with, recipe_with

FACTS = load_facts()
A100 = cluster(FACTS.accelerator("A100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=25e9)
H100 = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)

# Narayanan et al. 2021 (arXiv:2104.04473) table 1: layers, width, heads, tp, pp, GPUs, batch, achieved TFLOP/s per GPU,
# which count the recomputed forward pass. Micro-batch 1 (paper section 5.1: chosen per model; 1 for the large ones).
NARAYANAN = [
    (24, 2304, 24, 1, 1, 32, 512, 137),
    (30, 3072, 32, 2, 1, 64, 512, 138),
    (36, 4096, 32, 4, 1, 128, 512, 142),
    (48, 8192, 64, 8, 2, 512, 1536, 138),
    (60, 10240, 80, 8, 4, 1024, 1792, 140),
    (80, 12288, 96, 8, 8, 1536, 2304, 148),
    (105, 20480, 128, 8, 35, 2520, 2520, 163),
]


@pytest.mark.parametrize(("layers", "width", "heads", "tp", "pp", "gpus", "batch", "tflops"), NARAYANAN)
def test_narayanan_table_1(
    layers: int, width: int, heads: int, tp: int, pp: int, gpus: int, batch: int, tflops: float
) -> None:
    model = model_from_config(
        {
            "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": 51200,
            "n_positions": 2048,
        },
        name=f"GPT {layers}x{width}",
    )  # fmt: skip
    dp = gpus // (tp * pp)
    layout = Layout(dp=dp, tp=tp, pp=pp, micro_batch=1, recompute=2, sequence_parallel=False)
    recipe = recipe_with(seq_len=2048, global_batch=batch, precision="fp16", stack="megatron-2021", attention="eager")
    result = estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=A100))
    s, h, v = 2048, width, 51200
    paper_flops = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))  # equation 3
    assert paper_flops / result.step_s / gpus / 1e12 == pytest.approx(tflops, rel=0.25)


def job(**layout: Any) -> TrainJob:
    shape: dict[str, Any] = {"dp": 4, "tp": 2, "pp": 1, "zero": 1, **layout}
    recipe = recipe_with(seq_len=4096, global_batch=64, stack="megatron-te")
    return TrainJob(model=load_model("Llama-3.1-8B"), recipe=recipe, layout=Layout(**shape), cluster=H100, tokens=1e9)


def test_breakdown_adds_up_and_lies_between_its_bounds() -> None:
    for layout in ({}, {"pp": 4, "dp": 1}, {"tp": 8, "dp": 1}, {"zero": 3, "tp": 1, "dp": 8}, {"cp": 2, "dp": 2}):
        result = estimate(job(**layout))
        assert sum(seconds for _, seconds in result.breakdown) == pytest.approx(result.step_s, rel=1e-12)
        assert result.lower_bound_s <= result.step_s <= result.upper_bound_s
        assert result.low < result.tokens_per_s_per_gpu < result.high
        assert 0 < result.mfu_frac < 1
        assert result.mfu_frac < result.mfu_full_attention_frac
        assert result.hfu_frac >= result.mfu_frac


def test_no_end_of_an_interval_is_faster_than_the_device() -> None:
    """A TPU near its peak: 64 at 459 TFLOP/s each are the most, and time and cost follow from it.

    70.6e9 x 6 x 1e12 operations take 167 days there, and attention adds to them: no deadline of 160 days is met.
    """
    found = flopwise.train("Llama-3.1-70B", gpu="tpu-v5p", gpus=64, tokens="1T").document()
    high, least_s = found["high"], found["lower_bound_s"]
    assert high == pytest.approx(found["tokens_per_s_per_gpu"] * found["step_s"] / least_s)
    assert found["mfu_frac"] * high / found["tokens_per_s_per_gpu"] <= 1.0
    run = found["run"]
    assert run["seconds_low"] == pytest.approx(run["seconds"] * least_s / found["step_s"])
    late = {"model": "Llama-3.1-70B", "task": "pretrain", "data": {"tokens": "1T"}, "targets": {"deadline": "160d"}}
    limits = {"gpus": ["64xtpu-v5p"], "stack": "xla"}
    (nearest, *_) = flopwise.plan(late | {"constraints": limits}).misses
    assert nearest.meets["deadline"] == 0.0
    assert (nearest.seconds_low or 0.0) > 6 * 24 * 3600


def test_a_wide_band_of_complete_inputs_ends_there_too(monkeypatch: pytest.MonkeyPatch) -> None:
    job = flopwise.train("Llama-3.1-8B", gpu="h100", gpus=8).estimate.job
    assert isinstance(job, TrainJob)
    real = training_step.training_band
    monkeypatch.setattr(training_step, "training_band", lambda one: replace(real(one), high=10.0))
    found = estimate(job)
    assert found.high == pytest.approx(found.tokens_per_s_per_gpu * found.step_s / found.lower_bound_s)


def test_pipeline_bubble_is_narayanans() -> None:
    """(p - 1) / (v m) of the time of useful work, for stages that are alike."""
    model = model_from_config(
        {
            "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
            "intermediate_size": 11008, "vocab_size": 64, "max_position_embeddings": 4096,
        },
        name="no vocabulary to speak of",
    )  # fmt: skip
    recipe = recipe_with(seq_len=4096, global_batch=64, stack="megatron-te")
    for interleave in (1, 2, 4):
        layout = Layout(pp=4, micro_batch=1, interleave=interleave)
        lines = dict(estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=H100)).breakdown)
        useful = lines["forward"] + lines["backward"]
        assert lines["pipeline_bubble"] / useful == pytest.approx(3 / (interleave * 64), rel=0.02)


def test_full_recompute_runs_the_layers_again() -> None:
    """All of the forward pass but the embedding, the head and the loss."""
    lines = dict(estimate(job(recompute=2)).breakdown)
    assert 0.8 < lines["recompute"] / lines["forward"] < 1.0


def test_adapters_need_a_third_less_than_all_weights() -> None:
    """No weight gradients: about 4 N instead of 6 N per token."""
    whole = estimate(job())
    light = replace(job(), recipe=replace(job().recipe, lora=lora_with(rank=16, targets=("q", "v"))))
    ratio = sum(s for n, s in estimate(light).breakdown if n in ("forward", "backward")) / sum(
        s for n, s in whole.breakdown if n in ("forward", "backward")
    )
    assert 0.6 < ratio < 0.8


def slower(cause: TrainJob) -> TrainEstimate:
    return estimate(cause)


@settings(max_examples=25, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]), pp=st.sampled_from([1, 2, 4]), zero=st.integers(0, 1),
    factor=st.floats(1.1, 8.0),
)  # fmt: skip
def test_more_bandwidth_never_hurts(tp: int, pp: int, zero: int, factor: float) -> None:
    base = job(tp=tp, pp=pp, zero=zero, dp=16 // tp)
    device = FACTS.accelerator("H100-SXM-80")
    for change in (
        {"hbm_bytes_per_s": device.hbm_bytes_per_s * factor},
        {"link_bytes_per_s": (device.link_bytes_per_s or 1) * factor},
        {"peak": {k: v * factor for k, v in device.peak.items()}},
    ):
        better = cluster(replace(device, **change), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
        assert estimate(replace(base, cluster=better)).step_s <= estimate(base).step_s * (1 + 1e-9)
    wider = cluster(device, gpus_per_node=8, network_bytes_per_s_per_gpu=50e9 * factor)
    assert estimate(replace(base, cluster=wider)).step_s <= estimate(base).step_s * (1 + 1e-9)


@settings(max_examples=20, deadline=None)
@given(batch=st.sampled_from([16, 32, 64, 128]), seq=st.sampled_from([1024, 2048, 4096, 8192]))
def test_more_work_never_takes_less_time(batch: int, seq: int) -> None:
    def step(b: int, s: int) -> float:
        recipe = recipe_with(seq_len=s, global_batch=b, stack="megatron-te")
        return estimate(replace(job(), recipe=recipe)).step_s

    assert step(2 * batch, seq) >= step(batch, seq)
    assert step(batch, 2 * seq) >= step(batch, seq)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ({"dp": 3}, "does not divide into dp"),
        ({"pp": 64}, "more than the 32 layers"),
        ({"ep": 3}, "ep 3 does not divide"),
        ({"pp": 4, "interleave": 16, "dp": 1}, "interleave"),
    ],
)
def test_layouts_that_cannot_be(layout: dict[str, int], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        estimate(job(**layout))


def test_run_adds_up() -> None:
    priced = replace(job(), cluster=cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8, usd_per_gpu_hour=2.0))
    result = estimate(priced)
    run = result.run
    assert run is not None
    assert run.seconds == pytest.approx(1e9 / result.tokens_per_s / run.goodput_frac)
    assert run.gpu_hours == pytest.approx(run.seconds / 3600 * 8)
    assert run.cost_usd == pytest.approx(run.gpu_hours * 2.0)
    assert run.energy_joules is not None
    watts = run.energy_joules / run.seconds / 8
    assert 500 < watts < 2 * 700  # between most of the limit alone and the limit with host and cooling
    assert np.isfinite(run.goodput_frac)


@pytest.mark.parametrize(("kept", "least", "most"), [("operations", 0.4, 0.7), ("alternate", 0.49, 0.51)])
def test_selective_recompute_runs_what_the_stack_gives_up(kept: Any, least: float, most: float) -> None:
    """Every other product again, or every other layer: about half of the layers' forward pass."""
    base, whole = job(recompute=1), dict(estimate(job(recompute=2)).breakdown)
    lines = dict(estimate(replace(base, recipe=replace(base.recipe, selective=kept))).breakdown)
    assert least <= lines["recompute"] / whole["recompute"] <= most


def test_scaled_rows_are_slower_than_scaled_tensors() -> None:
    base = job()
    tensor, row = (
        estimate(replace(base, recipe=replace(base.recipe, precision=p))).step_s for p in ("fp8", "fp8_rowwise")
    )
    assert tensor < row


def test_routing_takes_the_host_a_fixed_time_a_layer_with_experts() -> None:
    """Small micro-batches of a mixture wait for the host; a dense model of the same stack does not."""

    def launch_frac(name: str, micro_batch: int) -> float:
        recipe = recipe_with(seq_len=1024, global_batch=64, stack="megatron-te")
        layout = Layout(dp=8, ep=8 if "A3B" in name else 1, zero=1, micro_batch=micro_batch)
        found = estimate(TrainJob(model=load_model(name), recipe=recipe, layout=layout, cluster=H100))
        return dict(found.breakdown)["launch"] / found.step_s

    assert launch_frac("Qwen3-30B-A3B", 1) > 0.2
    assert launch_frac("Qwen3-30B-A3B", 8) < launch_frac("Qwen3-30B-A3B", 1)
    assert launch_frac("Llama-3.1-8B", 1) == 0


def test_weights_that_are_gathered_after_the_step_hide_behind_nothing() -> None:
    """DeepSpeed's ZeRO 1 and 2: of a message of m seconds, stacks that gather beside the next forward pass show a
    layer's share and, of the rest, what it slows computing by."""
    model, stack = load_model("Llama-3.1-8B"), FACTS.stack("megatron-te")
    assert (stack.gathers_after_step, FACTS.stack("deepspeed-zero2").gathers_after_step) == (False, True)
    shown = []
    for software in (replace(stack, gathers_after_step=True), stack):
        recipe = recipe_with(seq_len=4096, global_batch=64, stack=software)
        found = estimate(TrainJob(model=model, recipe=recipe, layout=Layout(dp=8, zero=1), cluster=H100))
        shown.append(dict(found.breakdown)["data_parallel"])
    whole = 32 * float(all_gather_s(H100.fabric, 2 * 8.03e9 / 32, 8))
    contention = training_rates(H100.rates, stack, "bf16").value["train_contention"]
    assert shown[0] - shown[1] == pytest.approx(whole * (1 - 1 / 32) * (1 - contention), rel=0.02)
