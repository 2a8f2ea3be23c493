"""Pipeline schedules against a simulation, event by event, of the order in which each stage runs its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models import load_model
from flopwise.training.estimate import TrainJob, estimate
from flopwise.training.layout import Layout, Recipe
from flopwise.training.memory import step_memory
from flopwise.training.schedules import (
    NAMES,
    SCHEDULES,
    Others,
    Pipe,
    bubble_s,
    in_flight,
    schedule_code,
)

Pass = tuple[str, int, int]  # F, B (towards the input), W (towards the weights) or both as one (BW); chunk; micro-batch
Order = list[list[Pass]]
H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, node_bytes_per_s=50e9)


def simulated(order: Order, seconds: dict[str, float]) -> tuple[float, list[int]]:
    """(makespan, most chunks of activations on each rank) of ranks that run their passes in `order`.

    Chunk c of the model lies on rank c mod p. A pass starts when its rank is free and what it needs is there.
    """
    chunks = 1 + max(chunk for passes in order for _, chunk, _ in passes)
    ends: dict[Pass, float] = {}
    clock, held, most = [0.0] * len(order), [0] * len(order), [0] * len(order)
    places = [iter(passes) for passes in order]
    waiting: list[Pass | None] = [next(place, None) for place in places]
    while any(waiting):
        before = len(ends)
        for rank, place in enumerate(places):
            while (now := waiting[rank]) is not None:
                kind, chunk, micro = now
                needs: Pass | None = None
                if kind == "F" and chunk > 0:
                    needs = ("F", chunk - 1, micro)
                elif kind in {"B", "BW"}:
                    needs = ("B", chunk + 1, micro) if chunk + 1 < chunks else ("F", chunk, micro)
                elif kind == "W":
                    needs = ("B", chunk, micro)
                if needs is not None and needs not in ends:
                    break
                start = max(clock[rank], 0.0 if needs is None else ends[needs])
                clock[rank] = ends["B" if kind == "BW" else kind, chunk, micro] = start + seconds[kind]
                held[rank] += (kind == "F") - (kind in {"W", "BW"})
                most[rank] = max(most[rank], held[rank])
                waiting[rank] = next(place, None)
        assert len(ends) > before, "deadlock"
    return max(clock), most


def gpipe(stages: int, micros: int, chunks: int) -> Order:
    assert chunks == 1
    return [[(k, s, m) for k in ("F", "BW") for m in range(micros)] for s in range(stages)]


def one_f_one_b(stages: int, micros: int, chunks: int) -> Order:
    """Megatron-LM's order: groups of `stages` micro-batches go through one chunk after the other."""

    def walk(kind: str, rank: int) -> Iterator[Pass]:
        for group in range(0, micros, stages):
            turns = range(chunks) if kind == "F" else range(chunks - 1, -1, -1)
            for turn in turns:
                for micro in range(group, min(group + stages, micros)):
                    yield kind, turn * stages + rank, micro

    order = []
    for rank in range(stages):
        ahead = stages - 1 - rank if chunks == 1 else 2 * (stages - 1 - rank) + (chunks - 1) * stages
        forward, backward = list(walk("F", rank)), list(walk("BW", rank))
        ahead = min(ahead, len(forward))
        passes = forward[:ahead]
        for one, back in zip(forward[ahead:], backward, strict=False):
            passes += [one, back]
        order.append(passes + backward[len(forward) - ahead :])
    return order


def zero_bubble(stages: int, micros: int, chunks: int) -> Order:
    """ZB-H1 of Qi et al.: 1F1B in which stage s puts off the weight gradients of s micro-batches."""
    assert chunks == 1
    order = []
    for stage in range(stages):
        ahead, passes, undone = min(stages - 1 - stage, micros), [], 0
        passes += [("F", stage, m) for m in range(ahead)]
        for micro in range(micros):
            if ahead + micro < micros:
                passes.append(("F", stage, ahead + micro))
            passes.append(("B", stage, micro))
            if micro >= stage:
                passes.append(("W", stage, undone))
                undone += 1
        order.append(passes + [("W", stage, m) for m in range(undone, micros)])
    return order


ORDERS: dict[str, Callable[[int, int, int], Order]] = {
    "1f1b": one_f_one_b, "gpipe": gpipe, "zero-bubble": zero_bubble
}  # fmt: skip


def expected(name: str, stages: int, micros: int, chunks: int, times: tuple[float, float, float]) -> float:
    forward, inputs, weights = times
    others = Others((stages - 1) * sum(times), (stages - 1) * weights)
    waits = bubble_s(schedule_code(name), others, Pipe(stages, chunks, float(micros)))
    return micros * (forward + inputs + weights) + float(waits)


def test_every_schedule_has_an_order_to_be_held_against() -> None:
    assert set(ORDERS) == set(SCHEDULES)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(list(SCHEDULES)), stages=st.integers(2, 9), micros=st.integers(1, 30),
    chunks=st.integers(1, 4), inputs=st.floats(1.0, 3.0), weights=st.floats(0.0, 1.0),
)  # fmt: skip
def test_makespan_and_activations_are_those_of_the_events(
    name: str, stages: int, micros: int, chunks: int, inputs: float, weights: float
) -> None:
    """For stages alike: to the last digit."""
    if name != "1f1b":
        chunks = 1
    assume(chunks == 1 or micros <= stages or micros % stages == 0)
    times = (1.0, inputs, weights)
    order = ORDERS[name](stages, micros, chunks)
    each = {"F": 1.0, "B": inputs, "W": weights, "BW": inputs + weights}
    makespan, held = simulated(order, {k: v / chunks for k, v in each.items()})
    assert expected(name, stages, micros, chunks, times) == pytest.approx(makespan, rel=1e-9)
    pipe = Pipe(stages, chunks, float(micros))
    kept = [float(in_flight(schedule_code(name), float(stages - 1 - s), pipe)) for s in range(stages)]
    assert kept == pytest.approx([h / chunks for h in held])


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("name", "chunks"), [("1f1b", 2), ("1f1b", 3), ("zero-bubble", 1), ("zero-bubble", 2), ("zero-bubble", 4)]
)
def test_formulas_hold_for_the_orders_that_pytorch_runs(name: str, chunks: int) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = {"1f1b": schedules.ScheduleInterleaved1F1B, "zero-bubble": schedules.ScheduleInterleavedZeroBubble}[name]
    words = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "BW"}
    for stages, micros in ((2, 4), (4, 8), (4, 16), (6, 30)):
        made: Any = object.__new__(kind)
        made.__dict__ |= {
            "pp_group_size": stages, "n_local_stages": chunks, "_n_microbatches": micros, "rank": 0,
            "_num_stages": stages * chunks, "number_of_rounds": micros // stages, "microbatches_per_round": stages,
        }  # fmt: skip
        order = [
            [
                (words[act.computation_type.name], act.stage_index, act.microbatch_index)
                for act in made._calculate_single_rank_operations(rank)
                if act is not None
            ]
            for rank in range(stages)
        ]
        for inputs, weights in ((1.0, 1.0), (1.7, 0.8), (2.5, 0.4), (1.2, 0.0)):
            each = {"F": 1.0, "B": inputs, "W": weights, "BW": inputs + weights}
            makespan, held = simulated(order, {k: v / chunks for k, v in each.items()})
            assert expected(name, stages, micros, chunks, (1.0, inputs, weights)) == pytest.approx(makespan, rel=1e-9)
            pipe = Pipe(stages, chunks, float(micros))
            kept = [float(in_flight(schedule_code(name), float(stages - 1 - s), pipe)) for s in range(stages)]
            if name == "zero-bubble":
                assert kept == pytest.approx([h / chunks for h in held])
            else:  # PyTorch starts one chunk earlier than Megatron-LM
                assert np.all(np.abs(np.array(kept) - np.array(held) / chunks) <= 1 / chunks + 1e-9)


def test_columns_of_schedules_equal_single_ones() -> None:
    codes = np.array([0, 1, 2, 0, 2])
    chunks, micros = np.array([1, 1, 1, 4, 1]), np.array([8.0, 4.0, 3.0, 16.0, 64.0])
    others, pipe = Others(np.full(5, 7.0), np.full(5, 2.0)), Pipe(np.full(5, 4), chunks, micros)
    waits = np.asarray(bubble_s(codes, others, pipe))
    kept = np.asarray(in_flight(codes, np.full(5, 2.0), pipe))
    for i, code in enumerate(codes.tolist()):
        one = Pipe(4, int(chunks[i]), float(micros[i]))
        assert bubble_s(code, Others(7.0, 2.0), one) == pytest.approx(waits[i])
        assert in_flight(code, 2.0, one) == pytest.approx(kept[i])


def job(**layout: Any) -> TrainJob:
    recipe = Recipe(seq_len=4096, global_batch=64, stack="megatron-te")
    shape: dict[str, Any] = {"dp": 2, "tp": 2, "pp": 8, **layout}
    return TrainJob(model=load_model("Llama-3.1-8B"), recipe=recipe, layout=Layout(**shape), cluster=H100)


def test_a_schedule_changes_the_bubble_and_nothing_else_of_the_step() -> None:
    lines = {name: dict(estimate(job(schedule=schedule_code(name))).breakdown) for name in SCHEDULES}
    rest = {n: {k: v for k, v in found.items() if k != "pipeline_bubble"} for n, found in lines.items()}
    assert rest["gpipe"] == rest["1f1b"] == rest["zero-bubble"]
    bubbles = {name: found["pipeline_bubble"] for name, found in lines.items()}
    assert bubbles["gpipe"] == bubbles["1f1b"]
    assert 0.25 < bubbles["zero-bubble"] / bubbles["1f1b"] < 0.6  # a third, and more where attention has its part


def test_what_each_schedule_keeps() -> None:
    """GPipe all micro-batches, zero-bubble on every stage what 1F1B has on the first."""
    whole = {
        name: step_memory(j.model, j.recipe, j.layout) for name in SCHEDULES if (j := job(schedule=schedule_code(name)))
    }
    kept = {name: float(memory.items["activations"]) for name, memory in whole.items()}
    assert kept["gpipe"] > 3.5 * kept["1f1b"]  # 32 micro-batches, against 8
    assert float(whole["zero-bubble"].total_bytes) >= float(whole["1f1b"].total_bytes)
    few = [float(step_memory(j.model, replace(j.recipe, global_batch=2), j.layout).total_bytes)
           for name in SCHEDULES if (j := job(schedule=schedule_code(name)))]  # fmt: skip
    assert few == pytest.approx([few[0]] * len(few))  # one micro-batch is one micro-batch


def test_memory_of_columns_of_schedules_equals_single_layouts() -> None:
    base = job()
    column = Layout(dp=2, tp=2, pp=np.array([8, 8, 8, 1, 4, 4]), interleave=np.array([1, 1, 1, 1, 2, 1]),
                    schedule=np.array([0, 1, 2, 1, 0, 1]))  # fmt: skip
    many = step_memory(base.model, base.recipe, column)
    for i in range(6):
        single = step_memory(base.model, base.recipe, column.at(i))
        assert float(np.asarray(many.total_bytes)[i]) == pytest.approx(float(single.total_bytes))


def test_names() -> None:
    assert [schedule_code(name) for name in NAMES] == list(range(len(NAMES)))
    assert schedule_code("ZB_H1") == schedule_code("zero-bubble")
    with pytest.raises(SpecError, match="nearest: gpipe"):
        schedule_code("gpip")
    with pytest.raises(SpecError, match="one chunk"):
        estimate(job(schedule=1, interleave=2))
