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
    """Each query head computes scores and values of the keys that a CPU's kernel touches: all 256.

    Its 256 queries are two blocks of 128; 16 heads make 32 blocks, each on a core of its own.
    """
    machine, [load, _] = runner(job), LOADS
    [(kind, _), *_] = layer_kinds(machine.model.stacks[0])
    kernels = machine.kernels_of(kind.items, load, ServingLayout(), inside=True)
    [attention] = [kernel for kernel in kernels if kernel.work.kind == "attention"]
    rates = machine.own_rates
    assert (attention.dtype, int(attention.work.heads), rates.num_sms >= 32) == ("fp32", 16, True)
    block_flops = 2 * 128 * 256 * (int(attention.work.qk_dim) + int(attention.work.v_dim))
    core_flops_per_s = rates.peak["fp32"] * rates.value["attention_frac"] / rates.num_sms
    assert float(attention.timing.compute_s) == pytest.approx(block_flops / core_flops_per_s, rel=0.05)


def test_head_activations_and_cache_take_four_bytes(job: ServeJob) -> None:
    machine = runner(job)
    assert (machine.plain_bytes, machine.kv_bytes, machine.kv_dtype.name) == (4.0, 4.0, "fp32")
