"""Pipeline schedules against a simulation, event by event, of the order in which each stage runs its passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flopwise.cost.cluster import cluster
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from flopwise.training.memory import step_memory
from flopwise.training.schedules import (
    NAMES,
    SCHEDULES,
    Others,
    Pipe,
    bubble_s,
    in_flight,
    paired_frac,
    schedule_code,
)
from flopwise.training.step import own_paired_frac
from named import FACTS, recipe_with

Pass = tuple[str, int, int]  # F, B (towards the input), W (towards the weights) or both as one (BW); chunk; micro-batch
Turn = tuple[Pass, ...]  # passes that run as one: all of them start when what each needs is there
Order = list[list[Turn]]
H100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)


def simulated(order: Order, seconds: dict[str, float]) -> tuple[float, list[int]]:
    """(makespan, most chunks of activations on each rank) of ranks that run their passes in `order`.

    A micro-batch goes through all chunks in turn, wherever they lie. A pass starts when its rank is free and what it
    needs is there.
    """
    chunks = 1 + max(chunk for turns in order for turn in turns for _, chunk, _ in turn)
    ends: dict[Pass, float] = {}
    clock, held, most = [0.0] * len(order), [0] * len(order), [0] * len(order)
    places = [iter(passes) for passes in order]
    waiting: list[Turn | None] = [next(place, None) for place in places]
    while any(waiting):
        before = len(ends)
        for rank, place in enumerate(places):
            while (now := waiting[rank]) is not None:
                needs = [need for one in now if (need := needed(one, chunks)) is not None]
                if any(need not in ends for need in needs):
                    break
                clock[rank] = max(clock[rank], *(ends[need] for need in needs), 0.0) + sum(
                    seconds[k] for k, _, _ in now
                )
                for kind, chunk, micro in now:
                    ends["B" if kind == "BW" else kind, chunk, micro] = clock[rank]
                    held[rank] += (kind == "F") - (kind in {"W", "BW"})
                    most[rank] = max(most[rank], held[rank])
                waiting[rank] = next(place, None)
        assert len(ends) > before, "deadlock"
    return max(clock), most


def needed(one: Pass, chunks: int) -> Pass | None:
    """The pass that has to end before `one` starts."""
    kind, chunk, micro = one
    if kind == "W":
        return "B", chunk, micro
    if kind == "F":
        return ("F", chunk - 1, micro) if chunk else None
    return ("B", chunk + 1, micro) if chunk + 1 < chunks else ("F", chunk, micro)


def alone(order: list[list[Pass]]) -> Order:
    """Every pass by itself."""
    return [[(one,) for one in passes] for passes in order]


def gpipe(stages: int, micros: int, chunks: int) -> Order:
    assert chunks == 1
    return alone([[(k, s, m) for k in ("F", "BW") for m in range(micros)] for s in range(stages)])


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
    return alone(order)


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
    return alone(order)


class Rank:
    """One rank that two streams of micro-batches pass: its chunk of each, what it has run, what it has put off."""

    def __init__(self, chunks: tuple[int, int], names: tuple[Callable[[int], int], Callable[[int], int]]) -> None:
        self.chunks, self.names = chunks, names
        self.turns: list[Turn] = []
        self.forward, self.backward, self.late = [0, 0], [0, 0], list[Pass]()

    def f(self, stream: int) -> Pass:
        self.forward[stream] += 1
        return "F", self.chunks[stream], self.names[stream](self.forward[stream] - 1)

    def b(self, stream: int, *, whole: bool = True) -> Pass:
        self.backward[stream] += 1
        one = self.chunks[stream], self.names[stream](self.backward[stream] - 1)
        if not whole:
            self.late.append(("W", *one))
        return "BW" if whole else "B", *one

    def run(self, *passes: Pass) -> None:
        self.turns.append(passes)

    def both(self, stream: int) -> None:
        self.run(self.b(stream, whole=False))
        self.run(self.late.pop())


def v_shaped(stages: int, micros: int, chunks: int) -> Order:
    """ZB-V, in the order of PyTorch's ScheduleZBVZeroBubble."""
    assert chunks == 1
    order = []
    for place in range(stages):
        rank = Rank((place, 2 * stages - 1 - place), (int, int))
        steady = micros - stages  # of the second chunk, while the first has some left
        for _ in range(2 * (stages - place) - 1):
            rank.run(rank.f(0))
        for stream in (1, 0) * place:
            rank.run(rank.f(stream))
        for _ in range(stages - place):
            rank.run(rank.f(1))
            rank.both(1)
        for turn in range(steady):
            if turn < micros - 2 * stages + place + 1:
                rank.run(rank.f(0))
            rank.both(0)
            rank.run(rank.f(1))
            rank.both(1)
        for stream in (0, 1) * place:
            rank.run(rank.b(stream, whole=False))
        for _ in range(stages - place):
            rank.run(rank.b(0, whole=False))
            rank.run(rank.late.pop(next(i for i, w in enumerate(rank.late) if w[1] == place)))
        for late in sorted(rank.late, key=lambda w: -w[1]):
            rank.run(late)
        order.append(rank.turns)
    return order


def evens(count: int) -> int:
    return 2 * count


def odds(count: int) -> int:
    return 2 * count + 1


def both_ways(stages: int, micros: int, chunks: int, *, folded: bool = False) -> Order:
    """DualPipe, in the order of github.com/deepseek-ai/DualPipe; `folded`: its half with a V-shaped model."""
    assert chunks == 1
    length, half = (2 * stages, stages) if folded else (stages, stages // 2)
    each, order = micros if folded else micros // 2, []
    for place in range(stages):
        near = min(place, length - 1 - place)
        names = (int, int) if folded else (evens, odds) if place == near else (odds, evens)
        rank = Rank((near, length - 1 - near), names)
        ahead, late = half - near - 1, False
        for _ in range(2 * ahead):
            rank.run(rank.f(0))
        for stream in (0, 1) * (near + 1):
            rank.run(rank.f(stream))
        for _ in range(ahead):
            rank.run(rank.b(1, whole=False))
            rank.run(rank.late.pop(0))
            rank.run(rank.f(1))
        for turn in range(each - length + near + 1):
            first = rank.f(0), rank.b(1)
            for one in [first] if turn or ahead else [(one,) for one in first]:
                rank.run(*one)
            rank.run(rank.f(1), rank.b(0))
        for _ in range(ahead):
            rank.run(rank.b(1))
            rank.run(rank.f(1), rank.b(0))
        for turn in range(near + 1):
            late = late or (turn == (near + 1) // 2 and near % 2 == 1)
            rank.run(rank.b(1, whole=not late))
            late = late or turn == (near + 1) // 2
            rank.run(rank.b(0, whole=not late))
        for _ in range(ahead):
            rank.run(rank.late.pop(0))
            rank.run(rank.b(0, whole=False))
        rank.turns += [(one,) for one in rank.late]
        assert rank.forward == rank.backward == [each, each]
        order.append(rank.turns)
    return order


ORDERS: dict[str, Callable[[int, int, int], Order]] = {
    "1f1b": one_f_one_b, "gpipe": gpipe, "zero-bubble": zero_bubble, "zb-v": v_shaped, "dualpipe": both_ways,
    "dualpipe-v": partial(both_ways, folded=True),
}  # fmt: skip


def expected(name: str, stages: int, micros: int, chunks: int, times: tuple[float, float, float]) -> float:
    forward, inputs, weights = times
    others = Others(*((stages - 1) * seconds for seconds in (sum(times), weights, forward)))
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
    """For stages alike: to the last digit; DualPipe's paper counts passes towards the input too long by a little."""
    if name != "1f1b":
        chunks = 1
    own, paired = SCHEDULES[name].chunks, SCHEDULES[name].pairs
    if SCHEDULES[name].copies > 1:
        stages, micros = stages + stages % 2, micros + micros % 2
    micros = max(micros, SCHEDULES[name].fill * stages)
    assume(chunks == 1 or micros <= stages or micros % stages == 0)
    times = (1.0, inputs, weights)
    order = ORDERS[name](stages, micros, chunks)
    each = {"F": 1.0, "B": inputs, "W": weights, "BW": inputs + weights}
    makespan, held = simulated(order, {k: v / chunks / own for k, v in each.items()})
    found = expected(name, stages, micros, chunks, times)
    if not paired:
        assert found == pytest.approx(makespan, rel=1e-9)
    else:
        slack = (inputs - 1.0) * (stages - 1) / 2
        assert found - slack - 1e-9 <= makespan <= found * (1 + 1e-9)
        assert expected(name, stages, micros, 1, (inputs, inputs, weights)) >= found
    pipe = Pipe(stages, chunks, float(micros))
    kept = [float(in_flight(schedule_code(name), float(stages - 1 - s), pipe)) for s in range(stages)]
    assert kept == pytest.approx([h / chunks / own for h in held])


@pytest.mark.parametrize("name", ["dualpipe", "dualpipe-v"])
@pytest.mark.parametrize(("stages", "micros"), [(2, 4), (4, 8), (4, 30), (8, 64), (16, 120)])
def test_as_many_passes_run_side_by_side_as_the_orders_have(name: str, stages: int, micros: int) -> None:
    order = ORDERS[name](stages, micros, 1)
    pairs = sum(len(turn) == 2 for turns in order for turn in turns) / stages / SCHEDULES[name].chunks
    found = float(paired_frac(schedule_code(name), Pipe(stages, 1, float(micros)))) * micros
    assert found == pytest.approx(pairs, abs=0.51)
    assert float(paired_frac(schedule_code("1f1b"), Pipe(stages, 1, float(micros)))) == 0.0


@pytest.mark.parametrize(("stages", "chunks", "micros"), [(2, 2, 8), (4, 3, 16), (8, 2, 64), (8, 4, 16), (1, 1, 16)])
def test_a_stack_that_pairs_passes_runs_those_alone_that_fill_the_pipeline(
    stages: int, chunks: int, micros: int
) -> None:
    """The first rank's forward passes before its first backward pass, in the order of interleaved 1F1B."""
    order = ORDERS["1f1b"](stages, micros, chunks) if stages > 1 else [[(("F", 0, 0),), (("B", 0, 0),)]]
    alone = next(place for place, turn in enumerate(order[0]) if not turn[0][0].startswith("F"))
    found = float(own_paired_frac(Pipe(stages, chunks, float(micros))))
    assert found == pytest.approx(1 - alone / (micros * chunks))
    assert float(own_paired_frac(Pipe(4, 1, 64.0))) == 0.0  # Megatron-Core wants virtual stages
    assert float(own_paired_frac(Pipe(1, 1, 1.0))) == 0.0  # nothing to stand beside


@pytest.mark.parametrize("times", [(1.0, 1.0, 1.0), (1.0, 1.0, 0.0), (1.0, 1.0, 0.6)])
def test_dualpipe_waits_as_long_as_its_paper_says(times: tuple[float, float, float]) -> None:
    """(p/2 - 1)(F&B + B - 3W) with B the whole backward pass: DeepSeek-V3 report, table 2."""
    forward, inputs, weights = times
    whole = inputs + weights
    for stages, micros in ((2, 4), (4, 16), (8, 20)):
        makespan, _ = simulated(both_ways(stages, micros, 1), {"F": forward, "B": inputs, "W": weights, "BW": whole})
        said = (stages / 2 - 1) * (forward + whole + whole - 3 * weights)
        assert makespan - micros * (forward + whole) == pytest.approx(said)
        assert expected("dualpipe", stages, micros, 1, times) == pytest.approx(makespan)


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
        order: Order = [
            [
                ((words[act.computation_type.name], act.stage_index, act.microbatch_index),)
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


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["zb-v", "dualpipe-v"])
def test_the_orders_of_folded_models_are_those_that_pytorch_runs(name: str) -> None:
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kind = {"zb-v": schedules.ScheduleZBVZeroBubble, "dualpipe-v": schedules.ScheduleDualPipeV}[name]
    words = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "BW"}
    for stages, micros in ((2, 4), (3, 9), (4, 8), (6, 30)):
        made: Any = object.__new__(kind)
        made.__dict__ |= {"pp_group_size": stages, "_num_stages": 2 * stages, "_n_microbatches": micros, "rank": 0}
        made.__dict__ |= {"num_stages": 2 * stages}
        order = [
            [
                tuple(
                    (words[one.computation_type.name], one.stage_index, one.microbatch_index)
                    for one in act.sub_actions or (act,)
                )
                for act in made._calculate_single_rank_operations(rank)
                if act is not None
            ]
            for rank in range(stages)
        ]
        assert ORDERS[name](stages, micros, 1) == order


def test_columns_of_schedules_equal_single_ones() -> None:
    codes = np.array([0, 1, 2, 0, 2, 3, 4, 5])
    chunks, micros = np.array([1, 1, 1, 4, 1, 1, 1, 1]), np.array([8.0, 4.0, 3.0, 16.0, 64.0, 8.0, 64.0, 10.0])
    others = Others(np.full(8, 7.0), np.full(8, 2.0), np.full(8, 2.2))
    pipe = Pipe(np.full(8, 4), chunks, micros)
    waits = np.asarray(bubble_s(codes, others, pipe))
    kept = np.asarray(in_flight(codes, np.full(8, 2.0), pipe))
    beside = np.asarray(paired_frac(codes, pipe))
    for i, code in enumerate(codes.tolist()):
        one = Pipe(4, int(chunks[i]), float(micros[i]))
        assert bubble_s(code, Others(7.0, 2.0, 2.2), one) == pytest.approx(waits[i])
        assert in_flight(code, 2.0, one) == pytest.approx(kept[i])
        assert paired_frac(code, one) == pytest.approx(beside[i])


def job(**layout: Any) -> TrainJob:
    recipe = recipe_with(seq_len=4096, global_batch=64, stack="megatron-te")
    shape: dict[str, Any] = {"dp": 2, "tp": 2, "pp": 8, **layout}
    return TrainJob(model=load_model("Llama-3.1-8B"), recipe=recipe, layout=Layout(**shape), cluster=H100)


def test_a_schedule_changes_the_bubble_and_nothing_else_of_the_step() -> None:
    lines = {name: dict(estimate(job(schedule=schedule_code(name))).breakdown) for name in SCHEDULES}
    depends = {"pipeline_bubble", "stragglers"}  # a share of the step
    rest = {n: {k: v for k, v in found.items() if k not in depends} for n, found in lines.items()}
    assert rest["gpipe"] == rest["1f1b"] == rest["zero-bubble"]
    bubbles = {name: found["pipeline_bubble"] for name, found in lines.items()}
    assert bubbles["gpipe"] == bubbles["1f1b"]
    assert 0.25 < bubbles["zero-bubble"] / bubbles["1f1b"] < 0.6  # a third, and more where attention has its part
    assert bubbles["zb-v"] < bubbles["dualpipe"] < bubbles["zero-bubble"] * 1.2
    hops = {name: found["pipeline_p2p"] for name, found in lines.items()}
    assert hops["zb-v"] > 1.5 * hops["1f1b"]  # through the ranks and back
    assert hops["dualpipe"] < hops["1f1b"]  # beside other passes
    assert lines["dualpipe"]["data_parallel"] == pytest.approx(2 * lines["1f1b"]["data_parallel"])  # two stages a rank


def mixture(schedule: str, **layout: Any) -> dict[str, float]:
    recipe = recipe_with(seq_len=4096, global_batch=512, stack="megatron-te")
    shape: dict[str, Any] = {"dp": 8, "pp": 8, "ep": 8, "schedule": schedule_code(schedule), **layout}
    here = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=4, network_bytes_per_s_per_gpu=50e9)
    model = load_model("DeepSeek-V2-Lite")
    return dict(estimate(TrainJob(model=model, recipe=recipe, layout=Layout(**shape), cluster=here)).breakdown)


def test_passes_side_by_side_hide_what_experts_send() -> None:
    """In as many micro-batches as run side by side: all that is no longer than compute, less what it slows."""
    plain, beside = mixture("zero-bubble"), mixture("dualpipe")
    assert plain["expert_parallel"] > 1.5 * beside["expert_parallel"] > 0
    assert sum(beside.values()) < sum(plain.values())
    few, many = mixture("dualpipe", dp=32, ep=8), mixture("dualpipe", dp=8, ep=8)  # 16 micro-batches, 64
    assert few["expert_parallel"] > 0.25 * many["expert_parallel"] * 1.2
    assert few["pipeline_bubble"] == pytest.approx(many["pipeline_bubble"], rel=0.02)
    parts = mixture("dualpipe", pp=1)
    assert parts["pipeline_bubble"] == parts["pipeline_p2p"] == 0.0


@pytest.mark.parametrize(("name", "layout", "message"), [
    ("dualpipe", {"pp": 7, "tp": 1, "dp": 1}, "even numbers of stages"),
    ("dualpipe-v", {"dp": 8}, "at least 2 micro-batches for each of the 8 stages"),
    ("zb-v", {"interleave": 2}, "2 chunks of layers per stage, not interleave 2"),
    ("zb-v", {"pp": 32, "dp": 1}, "64 pieces, more than its 32 layers"),
])  # fmt: skip
def test_pipelines_that_a_schedule_cannot_run(name: str, layout: dict[str, int], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        estimate(job(schedule=schedule_code(name), **layout))


def test_what_each_schedule_keeps() -> None:
    """GPipe all micro-batches, zero-bubble on every stage what 1F1B has on the first."""
    whole = {
        name: step_memory(j.model, j.recipe, j.layout) for name in SCHEDULES if (j := job(schedule=schedule_code(name)))
    }
    kept = {name: float(memory.items["activations"]) for name, memory in whole.items()}
    assert kept["gpipe"] > 3.5 * kept["1f1b"]  # 32 micro-batches, against 8
    assert float(whole["zero-bubble"].total_bytes) >= float(whole["1f1b"].total_bytes)
    few = [float(step_memory(j.model, replace(j.recipe, global_batch=2), j.layout).total_bytes)
           for n, one in SCHEDULES.items() if one.copies == 1 and (j := job(schedule=schedule_code(n)))]  # fmt: skip
    assert few == pytest.approx([few[0]] * len(few))  # one micro-batch is one micro-batch
    held = {name: {k: float(v) for k, v in memory.items.items()} for name, memory in whole.items()}
    assert held["dualpipe"]["weights"] == pytest.approx(2 * held["1f1b"]["weights"], rel=1e-4)
    assert held["dualpipe-v"]["weights"] == held["zb-v"]["weights"] == pytest.approx(held["1f1b"]["weights"], rel=1e-4)
    for zero in (0, 1):  # who holds the same stage shares its states
        both = [step_memory(j.model, j.recipe, j.layout).items["optimizer states"]
                for code in (0, 4) if (j := job(schedule=code, zero=zero))]  # fmt: skip
        assert float(both[1]) == pytest.approx((2 - zero) * float(both[0]), rel=1e-4)


def test_memory_of_columns_of_schedules_equals_single_layouts() -> None:
    base = job()
    column = Layout(dp=2, tp=2, pp=np.array([8, 8, 8, 1, 4, 4, 4, 4, 1]),
                    interleave=np.array([1, 1, 1, 1, 2, 1, 1, 1, 1]),
                    schedule=np.array([0, 1, 2, 1, 0, 1, 3, 4, 4]))  # fmt: skip
    many = step_memory(base.model, base.recipe, column)
    for i in range(9):
        single = step_memory(base.model, base.recipe, column.at(i))
        assert float(np.asarray(many.total_bytes)[i]) == pytest.approx(float(single.total_bytes))


def test_names() -> None:
    assert [schedule_code(name) for name in NAMES] == list(range(len(NAMES)))
    assert schedule_code("ZB_H1") == schedule_code("zero-bubble")
    with pytest.raises(SpecError, match="nearest: gpipe"):
        schedule_code("gpip")
    with pytest.raises(SpecError, match="one chunk"):
        estimate(job(schedule=1, interleave=2))


def test_gradients_that_every_tensor_rank_sends_whole() -> None:
    """Forward a share of tp, back all of it: (1 / tp + 1) / 2 of what one rank alone would send both ways."""
    base = job(tp=4, pp=4)
    hops = []
    for software in ("megatron-2021", "megatron-deepspeed"):
        moved = replace(base, recipe=replace(base.recipe, stack=FACTS.stack(software)))
        hops.append(dict(estimate(moved).breakdown)["pipeline_p2p"])
    most = (1 / 4 + 1) / (2 / 4)  # without what each message takes beside its bytes
    assert 0.9 * most < hops[1] / hops[0] < most
