"""Serving in fp32: nothing of it runs in 16 bits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.serving.deployment import replica_of
from flopwise.serving.iteration import StepLoad, layer_kinds
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.spec import ServingSpec, TechniqueRequest
from flopwise.serving.techniques import runner
from named import FACTS

LOADS = (
    StepLoad(prefill_tokens=256, prefill_context=256, prompts=1.0),
    StepLoad(decode_batch=8, decode_context=500),
)


@pytest.fixture(scope="module")
def job() -> ServeJob:
    """A small model in fp32 on a processor."""
    source = SourceSpec()
    spec = ServingSpec(engine="vllm", weights="fp32", max_batch=64)
    return replica_of(source.model("Qwen3-0.6B"), spec, MachineSpec(gpu="EPYC 9R45"), TechniqueRequest(), source)[0]


def with_bf16(job: ServeJob, flops_per_s: float) -> ServeJob:
    """On the same device with another rate in bf16."""
    rates = replace(job.cluster.rates, peak={**job.cluster.rates.peak, "bf16": flops_per_s})
    return replace(job, cluster=replace(job.cluster, rates=rates))


@pytest.mark.parametrize("load", LOADS)
def test_the_rate_of_bf16_does_not_matter(job: ServeJob, load: StepLoad) -> None:
    slow, fast = (float(runner(with_bf16(job, r)).step(load, ServingLayout()).seconds) for r in (1e9, 1e15))
    assert slow == fast


def test_attention_takes_its_operations_at_the_rate_of_fp32(job: ServeJob) -> None:
    """Of 256 tokens each query head computes scores and values of the keys that a CPU's kernel touches: all 256."""
    machine, [load, _] = runner(job), LOADS
    [(kind, _), *_] = layer_kinds(machine.model.stacks[0])
    kernels = machine.kernels_of(kind.items, load, ServingLayout(), inside=True)
    [attention] = [kernel for kernel in kernels if kernel.work.kind == "attention"]
    work, rates = attention.work, machine.own_rates
    flops = 2 * 256 * 256 * int(work.heads) * (int(work.qk_dim) + int(work.v_dim))
    least_s = flops / (rates.peak["fp32"] * rates.value["attention_frac"])
    assert attention.dtype == "fp32"
    assert float(attention.timing.compute_s) == pytest.approx(least_s, rel=0.35)  # whole rounds of heads on its cores
    assert float(attention.timing.compute_s) >= least_s


def test_head_activations_and_cache_take_four_bytes(job: ServeJob) -> None:
    machine = runner(job)
    assert (machine.plain_bytes, machine.kv_bytes, job.kv_dtype.name) == (4.0, 4.0, "fp32")
    assert ServingSpec(weights="fp32", kv_dtype="fp8").software(FACTS).kv_dtype.name == "fp8"
