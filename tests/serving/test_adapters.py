"""Low-rank adapters on one base model: sizes by hand, which of them a step uses, what they add; a published figure."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from plain_machine import LLAMA, TOKEN_BYTES, plain_cluster, plain_job, plain_runner

from flopwise.api.serve import serve
from flopwise.cost.cluster import cluster
from flopwise.facts.models.catalog import load_model
from flopwise.serving.adapters import Adapters, adapter_bytes, distinct_adapters
from flopwise.serving.estimate import estimate, job_memory
from flopwise.serving.iteration import StepLoad, StepTime
from flopwise.serving.job import Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.engine import replica
from flopwise.serving.techniques import runner
from named import FACTS, serve_job_with

ONE = ServingLayout()
RANK = 16


def test_an_adapter_of_llama_8b_has_the_parameters_that_trainers_report() -> None:
    """41,943,040 at rank 16 on all projections of Llama-3.1-8B (PEFT, print_trainable_parameters), 2 bytes each."""
    assert float(adapter_bytes(LLAMA, 1, RANK, ONE)) == 2 * 41_943_040
    assert float(adapter_bytes(LLAMA, 7, RANK, ONE)) == 7 * 2 * 41_943_040


def test_ranks_keep_the_whole_of_one_matrix_of_each_pair() -> None:
    """vLLM: A of a column-parallel projection and B of a row-parallel one are whole on each rank; at tp 2 of q, k, v,
    o, gate, up and down 4096 + 2048, 2 x (4096 + 512), 2048 + 4096, 2 x (4096 + 7168), 7168 + 4096 numbers a rank."""
    per_layer = 6144 + 2 * 4608 + 6144 + 2 * 11_264 + 11_264
    assert float(adapter_bytes(LLAMA, 1, RANK, ServingLayout(tp=2))) == 2 * 32 * RANK * per_layer
    assert float(adapter_bytes(LLAMA, 1, RANK, ServingLayout(pp=4))) == 2 * 41_943_040 / 4


def test_sequences_share_adapters_by_chance() -> None:
    """Three sequences and four adapters: the mean over all 64 ways to draw them."""
    ways = [len(set(way)) for way in product(range(4), repeat=3)]
    assert float(distinct_adapters(4, 3)) == pytest.approx(sum(ways) / len(ways))
    assert float(distinct_adapters(1, 50)) == 1.0


def test_adapters_take_memory_from_the_cache() -> None:
    plain = plain_job(concurrency=8, max_batch=64)
    many = replace(plain, techniques=Techniques(adapters=100, adapter_rank=RANK))
    before, after = job_memory(plain), job_memory(many)
    assert float(after.items["adapters"]) == 100 * 2 * 41_943_040
    assert float(after.total_bytes - before.total_bytes) == pytest.approx(100 * 2 * 41_943_040)
    tokens = 100 * 2 * 41_943_040 / TOKEN_BYTES  # of the cache, beside logits of as many sequences
    assert float(before.kv_capacity_tokens - after.kv_capacity_tokens) == pytest.approx(tokens, rel=0.001)


def test_a_step_moves_the_matrices_of_the_adapters_that_it_uses() -> None:
    """A lone sequence on a device that computes at once: q, k and v share a pair of kernels, gate and up another. Each
    reads activations and weights in 16 bits; 16 fp32 numbers a projection go between; the second adds to results."""
    machine = plain_runner(plain_job(cluster=plain_cluster(pointwise_frac=1.0)))
    found = Adapters(1, RANK).step(machine, StepLoad(decode_batch=1, decode_context=100), ONE)
    moved = 0.0
    for inputs, outputs in ((4096, (4096, 1024, 1024)), (4096, (4096,)), (4096, (14_336, 14_336)), (14_336, (4096,))):
        parts, results = len(outputs), sum(outputs)
        moved += 2 * (inputs + RANK * inputs * parts) + 4 * RANK * parts
        moved += 4 * RANK * parts + 2 * (RANK * results + 2 * results)
    assert float(found.memory_s) == pytest.approx(32 * moved / machine.rates.hbm_bytes_per_s)
    assert float(found.launches) == 32 * 4 * 2
    assert float(found.flops) == pytest.approx(2 * 41_943_040)
    weights_s = 2 * 41_943_040 / machine.rates.hbm_bytes_per_s
    assert float(found.floor_s) == pytest.approx(weights_s)
    more = Adapters(64, RANK).step(machine, StepLoad(decode_batch=32, decode_context=100), ONE)
    assert float(more.floor_s) == pytest.approx(weights_s * 64 * (1 - (63 / 64) ** 32))
    reads = Adapters(64, RANK).step(machine, StepLoad(prefill_tokens=500, prefill_context=500), ONE)
    assert float(reads.floor_s) == pytest.approx(weights_s)  # all of one prompt


def test_adapters_displace_the_hosts_code_and_are_launched_with_the_rest() -> None:
    """On a CPU a layer reads its adapter as well: 41,943,040 numbers of 2 bytes over 32 layers, and all of a step. On
    an engine without graphs each of the 32 x 8 kernels more takes the host a launch, where the device waits for it."""
    cached, load = 4e6, StepLoad(decode_batch=1, decode_context=100)

    def found(adapters: int, **engine: Any) -> StepTime:
        job = plain_job(techniques=Techniques(adapters=adapters, adapter_rank=RANK if adapters else 0))
        machine = plain_runner(job)
        rates = replace(machine.rates, is_host=not engine, l2_bytes=cached)
        return replace(machine, rates=rates, engine=replace(machine.engine, **engine)).step(load, ONE)

    plain, one = found(0), found(1)
    before, added = float(np.asarray(plain.read_bytes)), 2 * 41_943_040
    assert float(np.asarray(one.read_bytes)) == pytest.approx(before + added)

    def host_s(read: float) -> float:
        engine = plain_runner().engine
        layers_s = LLAMA.stacks[0].num_layers * engine.layer_s * (read / 32) / (read / 32 + cached)
        return float(layers_s + (engine.step_s + engine.sequence_s) * read / (read + cached))

    more_s = float(np.asarray(one.overhead_s)) - float(np.asarray(plain.overhead_s))
    kernels_s = float(np.asarray(Adapters(1, RANK).step(plain_runner(), load, ONE).overhead_s))
    assert more_s == pytest.approx(host_s(before + added) - host_s(before) + kernels_s, rel=1e-4)
    slow = {"graphs": False, "launch_s": 1.0}  # the host is the slower of both
    waits_s = float(np.asarray(found(1, **slow).seconds)) - float(np.asarray(found(0, **slow).seconds))
    assert waits_s == pytest.approx(32 * 8 * 1.0)


def test_a_token_takes_some_two_milliseconds_more_on_an_a100() -> None:
    """Punica (arXiv:2310.18547), abstract and figure 11: many adapters on Llama 2 7B, A100-80, rank 16, batches of 32:
    2 ms a token more than without."""
    how = Techniques(adapters=32, adapter_rank=RANK)
    plain = serve_job_with(
        model=load_model("Llama-2-7B"), cluster=cluster(FACTS.accelerator("A100-SXM-80"), gpus_per_node=1),
        concurrency=32, input_tokens=512, output_tokens=256,
    )  # fmt: skip
    load = StepLoad(decode_batch=32, decode_context=640)
    with_s, without_s = (runner(j).step(load, ONE).seconds for j in (replace(plain, techniques=how), plain))
    assert 1e-3 < float(with_s - without_s) < 4e-3


def test_the_simulator_takes_the_same_steps() -> None:
    how = Techniques(adapters=64, adapter_rank=RANK)
    job = plain_job(concurrency=32, techniques=how, cluster=plain_cluster(pointwise_frac=1.0))
    cost, machine = replica(job).cost, runner(job)
    load = StepLoad(decode_batch=32, decode_context=1024)
    assert cost.seconds(batch=32, cached=32 * 1024) == pytest.approx(float(machine.step(load, ONE).seconds), rel=0.02)
    both = replace(load, prefill_tokens=512, prefill_context=512)
    mixed = cost.seconds(batch=32, cached=32 * 1024, chunk=512)
    assert mixed == pytest.approx(float(machine.step(both, ONE).seconds), rel=0.05)


def test_adapters_slow_all_answers_and_cost_memory() -> None:
    plain = plain_job(cluster=plain_cluster(pointwise_frac=1.0), concurrency=64)
    few, many = (estimate(replace(plain, techniques=Techniques(adapters=n, adapter_rank=RANK))) for n in (1, 64))
    base = estimate(plain)
    times = [found.tpot_s.value for found in (base, few, many) if found.tpot_s is not None]
    assert len(times) == 3
    assert times == sorted(times)
    assert times[2] > 1.05 * times[0]
    assert base.memory.kv_capacity_tokens > few.memory.kv_capacity_tokens > many.memory.kv_capacity_tokens


def test_what_makes_a_service_fit_counts_its_adapters() -> None:
    """80 GiB of adapters stay, whatever the format of the weights; a second stage takes half of them."""
    memory = serve("Llama-3.1-8B", gpu="h100", adapters=4, adapter_rank=4096).memory
    gib = {remedy.change: remedy.total_bytes / 2**30 for remedy in memory.remedies}
    adapters = dict(memory.items)["adapters"] / 2**30
    assert adapters > 72
    assert min(gib["weights in awq"], gib["weights in nvfp4"]) > adapters
    assert gib["pp 2"] < 0.6 * memory.per_gpu_bytes / 2**30
    assert {remedy.change for remedy in memory.remedies if remedy.fits} == {"pp 2", "tp 2"}
    assert "awq" not in memory.verdict
