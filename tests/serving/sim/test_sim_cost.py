"""Step costs against the iteration model that they are made of."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.architecture import Attend
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.ops.work import attended_pairs
from flopwise.serving.estimate import job_memory
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import ServeJob
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.cost import StepCost, seen_pairs
from flopwise.serving.sim.engine import ReplicaLimits, replica
from flopwise.serving.sim.trace import PS
from flopwise.serving.techniques import runner
from named import serve_job_with

H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8)


def job(name: str, **layout: int) -> ServeJob:
    return serve_job_with(
        model=load_model(name), cluster=H100, layout=ServingLayout(**layout), input_tokens=1000, output_tokens=500
    )


@pytest.mark.parametrize(
    ("name", "tp"), [("Llama-3.1-8B", 1), ("Llama-3.1-70B", 8), ("gemma-3-27b-it", 2), ("Mixtral-8x7B", 4)]
)
def test_tables_agree_with_the_iteration_model(name: str, tp: int) -> None:
    asked = job(name, tp=tp)
    cost, machine, errors = replica(asked, max_tokens=16384).cost, runner(asked), []
    for batch in (1, 8, 64, 256):
        for context in (256, 1000, 4000, 12000):
            for chunk, before in ((0, 0), (100, 0), (1000, 0), (4000, 0), (4000, 8000)):
                load = StepLoad(
                    decode_batch=batch,
                    decode_context=context,
                    prefill_tokens=chunk,
                    prefill_context=chunk + before,
                )
                windowed = batch * min(context, cost.window)
                got = cost.seconds(batch=batch, cached=batch * context, windowed=windowed, chunk=chunk, start=before)
                errors.append(got / float(np.asarray(machine.step(load, asked.layout).seconds)) - 1)
    assert np.median(np.abs(errors)) < 0.01
    assert np.max(np.abs(errors)) < 0.07


@pytest.mark.parametrize(
    ("name", "gpu"), [("Llama-3.1-8B", "RTX 5090"), ("Qwen3-30B-A3B", "A100-SXM-80"), ("Llama-3.1-8B", "H100-SXM-80")]
)
@pytest.mark.parametrize("pieces", [2, 4])
def test_long_prompts_take_the_sum_of_their_steps(name: str, gpu: str, pieces: int) -> None:
    """All pieces use the whole budget; each sees itself and what is before it."""
    device = cluster(load_facts().accelerator(gpu), gpus_per_node=8)
    asked = replace(job(name), cluster=device)
    machine, piece = runner(asked), int(replica(asked).limits.step_tokens)
    cost = replica(asked, max_tokens=pieces * piece + 1000).cost
    starts = range(0, pieces * piece, piece)
    loads = [StepLoad(prefill_tokens=piece, prefill_context=start + piece) for start in starts]
    exact_s = sum(float(machine.step(load, asked.layout).seconds) for load in loads)
    assert sum(cost.seconds(chunk=piece, start=start) for start in starts) == pytest.approx(exact_s, rel=0.02)


def test_messages_of_unequal_ranks_are_longer_with_prompts_alone() -> None:
    """On four ranks a third longer with prompts (vLLM's broadcasts and reductions), and as long where all decode."""
    asked = job("Mixtral-8x7B", dp=4, ep=4)
    even = replace(asked, engine=replace(asked.engine, grouped_gathers=False))
    costs, machines = [replica(one, max_tokens=16384).cost for one in (asked, even)], [runner(asked), runner(even)]
    for chunk in (0, 1000, 4000, 8000):
        load = StepLoad(decode_batch=64, decode_context=1000, prefill_tokens=chunk, prefill_context=chunk)
        exact = [float(np.asarray(machine.step(load, asked.layout).seconds)) for machine in machines]
        found = [cost.seconds(batch=64, cached=64_000, chunk=chunk) for cost in costs]
        assert found == pytest.approx(exact, rel=0.03)
        assert found[0] - found[1] == pytest.approx(exact[0] - exact[1], rel=0.15, abs=1e-9)


def test_pairs_are_counted_as_masks_count_them() -> None:
    items = {w: next(_attention(name)) for name, w in (("Llama-3.1-8B", 0), ("Mistral-7B-v0.1", 4096))}
    for window, item in items.items():
        for start, chunk in ((0, 1), (0, 5000), (100, 4000), (4095, 2), (4096, 1), (9000, 700)):
            assert seen_pairs(start, chunk, window) == attended_pairs(item, chunk, start + chunk)


def _attention(name: str) -> Iterator[Attend]:
    return (i for k in load_model(name).stacks[0].kinds for i in k.items if isinstance(i, Attend))


def test_a_pipeline_has_a_scheduler_for_each_micro_batch() -> None:
    one, two = replica(job("Llama-3.1-8B")), replica(job("Llama-3.1-8B", pp=2))
    assert (one.schedulers, two.schedulers) == (1, 2)
    assert two.limits.max_batch == one.limits.max_batch // 2
    assert replica(job("Mixtral-8x7B", tp=2, dp=2, ep=4)).schedulers == 2


def test_blocks_are_the_tokens_that_whole_contexts_hold() -> None:
    asked = job("Llama-3.1-8B")
    held, built = job_memory(asked), replica(asked)
    assert (
        0 <= held.kv_capacity_tokens - built.limits.num_blocks * built.limits.block_tokens < built.limits.block_tokens
    )
    grown = replace(asked, output_tokens=4000)  # longer answers, and a cache as large
    assert replica(grown).limits.num_blocks == pytest.approx(built.limits.num_blocks, rel=0.02)


def test_models_that_do_not_fit_or_do_not_decode_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="does not fit"):
        replica(job("Llama-3.1-70B"))
    with pytest.raises(SpecError, match="decoder"):
        replica(job("T5-large"))


def test_costs_out_of_range_are_refused() -> None:
    column = np.arange(5, dtype=np.int64) * PS
    good: dict[str, Any] = {"tokens_ps": column, "decode_ps": column, "cached_ps": column, "window_ps": column}
    StepCost(**good)
    for wrong in (
        {"tokens_ps": 0 * column},
        {"decode_ps": -column},
        {"window_ps": column[:2]},
        {"window": -1},
        {"beside": 3},
    ):
        with pytest.raises(SpecError):
            StepCost(**(good | wrong))
    with pytest.raises(SpecError, match="the limits allow"):
        ReplicaLimits(max_batch=5, step_tokens=4).check(StepCost(**good))
    limits: tuple[dict[str, Any], ...] = (
        {"max_batch": 0},
        {"block_tokens": 0},
        {"preempt": "drop"},
        {"swap_ps_per_block": -1},
    )
    for wrong_limit in limits:
        with pytest.raises(SpecError):
            ReplicaLimits(**wrong_limit)


def test_first_tokens_are_out_when_the_second_of_two_steps_is_launched() -> None:
    """Seven picoseconds for each, where graphs hold no prompts and tokens wait for launches."""
    late = replace(replica(job("Llama-3.1-8B")).cost, beyond_ps=(7, 3), graph_tokens=0, tokens_after_launch=True)
    assert late.next_launch_ps == 14
    assert replace(late, graph_tokens=512).next_launch_ps == 0
    assert replace(late, tokens_after_launch=False).next_launch_ps == 0
