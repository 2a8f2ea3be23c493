"""Replicas that are timed together come out as each by itself: devices alike, links and layouts of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flopwise.errors import MissingFactError
from flopwise.facts.catalog import load_facts
from flopwise.search import deployments as deployments_file
from flopwise.search import joined_replicas
from flopwise.search.answer import RejectionLog
from flopwise.search.deployments import (
    SIZED,
    KeptAnswers,
    ReplicaQuestion,
    SizedReplicas,
    deployments,
    deployments_together,
    size_together,
    sized_replicas,
)
from flopwise.search.joined_replicas import JoinedReplicas, JoinedRunner
from flopwise.search.nodes import NodeKind, node_kinds
from flopwise.search.plan_serving import nodes_with_engine
from flopwise.search.replica import with_facts
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import workload_from
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.sessions import SessionTraffic
from flopwise.serving.techniques import request_work, runner

FACTS = load_facts()
MODELS = ("Llama-3.1-8B", "Mixtral-8x7B")


def asked(model: str, gpu: str, rate: float = 7.0, **techniques: Any) -> tuple[Resolved, list[NodeKind]]:
    """A service, and the nodes with one device that it may run on."""
    workload = with_facts(
        workload_from({
            "model": model, "task": "serve", "constraints": {"gpus": [gpu], "max_gpus": 16}, "techniques": techniques,
            "traffic": {"requests_per_s": rate, "input_tokens": 700, "output_tokens": 150},
        }), FACTS,
    )  # fmt: skip
    log = RejectionLog()
    return workload, nodes_with_engine(node_kinds(workload, FACTS, log), workload, FACTS.model(model), log)


def questions(
    model: str, gpu: str, weights: str = "bf16", kv_dtype: str = "bf16", **techniques: Any
) -> list[ReplicaQuestion]:
    workload, nodes = asked(model, gpu, **techniques)
    forms = FACTS.weight_format(weights), FACTS.cache_format(kv_dtype)
    return [ReplicaQuestion.of(FACTS.model(model), workload, node, *forms) for node in nodes]


def same(one: Any, other: Any) -> None:
    """Every column of two tuples of columns is the same, to the last digits."""
    for mine, theirs in zip(one, other, strict=True):
        if isinstance(mine, tuple):
            same(mine, theirs)
        else:
            np.testing.assert_allclose(mine, theirs, rtol=1e-12)


@pytest.mark.parametrize("model", MODELS)
def test_rows_of_several_nodes_are_timed_as_each_alone(model: str) -> None:
    """Nodes of 1 to 16 A100 with networks of several speeds: messages of each go over its own links."""
    SIZED.clear()
    group = questions(model, "A100-SXM-80")
    assert len({asked.node.cluster.rates.key for asked in group}) == 1
    assert len({asked.node.cluster.fabric for asked in group}) > 3
    size_together(group)
    sized = [SIZED[asked] for asked in group]
    some = [one for one in sized if isinstance(one, SizedReplicas)]
    assert len(some) > 3
    for one in some:
        machine, layout, work = runner(one.job), one.job.layout, request_work(one.job)
        assert one.steady is not None
        same(one.steady, closed_loop(machine, layout, one.batch, *work, only_seconds=True))


def test_batches_in_between_are_sized_together_as_each_alone() -> None:
    """They are not kept for other searches; two questions of one key are left to be sized one by one."""
    SIZED.clear()
    group = []
    for place, one in enumerate(questions(MODELS[0], "A100-SXM-80")):
        plain = sized_replicas(one)
        if isinstance(plain, SizedReplicas):
            further = np.array([[3.0 + place], [11.0 + place]]) * np.ones(plain.num_layouts)
            group.append(replace(one, between=further))
    SIZED.clear()
    found = size_together(group)
    assert len(found) == len(group) > 3
    assert not any(one in SIZED for one in group)
    for one in group:
        together, alone = found[one], sized_replicas(one)
        assert isinstance(together, SizedReplicas)
        assert isinstance(alone, SizedReplicas)
        np.testing.assert_array_equal(together.batch, alone.batch)
        assert together.steady is not None
        assert alone.steady is not None
        same(together.steady, alone.steady)
    twice = [group[0], replace(group[0], between=group[0].between)]
    assert not size_together(twice)


def test_kernels_of_rows_that_differ_in_their_links_alone_are_timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit as without: nodes of A100 differ in their networks, and their devices in nothing."""
    joined: list[JoinedReplicas] = []

    class Counted(JoinedReplicas):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            joined.append(self)

    monkeypatch.setattr(deployments_file, "JoinedReplicas", Counted)
    for model in ("Llama-3.1-8B", "MiniMax-M2"):
        found = []
        for few in (0, 10**9):
            monkeypatch.setattr(joined_replicas, "FEW_ROWS", few)
            SIZED.clear()
            joined.clear()
            group = questions(model, "A100-SXM-80")
            size_together(group)
            found.append([SIZED[asked] for asked in group])
            for one in joined:
                rows = one.machine.once
                assert (rows is None) == bool(few)
                assert rows is None or rows.first.size < 0.8 * one.in_flight.size
            assert joined
        for once, each in zip(*found, strict=True):
            if isinstance(once, SizedReplicas) and isinstance(each, SizedReplicas):
                assert once.steady is not None
                assert each.steady is not None
                steady = once.steady, each.steady
                columns = ([*one[:-2], *one.decode, *one.mixed] for one in steady)
                for mine, theirs in zip(*columns, strict=True):
                    np.testing.assert_array_equal(mine, theirs)


def test_replicas_on_several_devices_are_timed_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with other figures stand in one column, one without bf16 (T4) among them; a CPU in one of its own."""
    calls: list[int] = []
    together = deployments_file._in_closed_loops

    def counted(some: Any) -> Any:
        calls.append(len(some))
        return together(some)

    monkeypatch.setattr(deployments_file, "_in_closed_loops", counted)
    gpus = ("A100-SXM-80", "h100", "l4", "l40s", "t4", "Xeon Platinum 8488C")
    group = [question for gpu in gpus for question in questions("Llama-3.1-8B", gpu)]
    SIZED.clear()
    found = size_together(group)
    sized = [one for one in found.values() if isinstance(one, SizedReplicas)]
    keys = {one.job.cluster.rates.key for one in sized}
    assert len(keys) >= len(gpus) > len(calls) > 1
    assert max(calls) > 2
    for one in sized:
        machine, layout, work = runner(one.job), one.job.layout, request_work(one.job)
        assert one.steady is not None
        same(one.steady, closed_loop(machine, layout, one.batch, *work, only_seconds=True))


@pytest.mark.parametrize(("model", "kv_dtype"), [("Llama-3.1-8B", "fp8"), ("MiniMax-M2", "bf16")])
def test_replicas_in_several_formats_are_timed_as_each_alone(model: str, kv_dtype: str) -> None:
    """Formats that are multiplied alike stand in one column, with the bits, rates and limits of each."""
    gpus, formats = ("A100-SXM-80", "h200", "l40s", "mi300x"), ("bf16", "fp8", "int8", "awq", "gptq")
    SIZED.clear()
    found = size_together(
        question for gpu in gpus for weights in formats for question in questions(model, gpu, weights, kv_dtype)
    )
    sized = [one for one in found.values() if isinstance(one, SizedReplicas)]
    assert len({(one.timed.machine.dtype, one.timed.machine.weight_bits) for one in sized}) > 3
    assert (
        len({JoinedRunner.formulas([one.timed]) for one in sized})
        < len({one.timed.machine.rates.key for one in sized}) * 4
    )
    for one in sized[::11]:
        machine, layout, work = runner(one.job), one.job.layout, request_work(one.job)
        assert one.steady is not None
        same(one.steady, closed_loop(machine, layout, one.batch, *work, only_seconds=True))


@pytest.mark.parametrize("formats", [("fp8", "int8"), ("int8", "fp8")])
@pytest.mark.parametrize(("model", "gpus"), [("Mixtral-8x7B", ("h200",)), ("Llama-3.1-8B", ("mi300x", "l40s"))])
def test_figures_of_fp8_are_those_of_fp8_alone_whichever_comes_first(
    model: str, gpus: Sequence[str], formats: Sequence[str]
) -> None:
    """Experts' tiles of 64 rows in fp8 (Hopper), products in fp8 that split k (MI300X): in int8 there are neither."""
    SIZED.clear()
    group = [question for weights in formats for gpu in gpus for question in questions(model, gpu, weights)]
    found = size_together(group)
    SIZED.clear()
    for one in group[:: max(1, len(group) // 12)]:
        together, alone = found[one], sized_replicas(one)
        assert isinstance(together, SizedReplicas) == isinstance(alone, SizedReplicas)
        if isinstance(together, SizedReplicas) and isinstance(alone, SizedReplicas):
            same(together.steady, alone.steady)


TECHNIQUES: dict[str, tuple[str, dict[str, Any]]] = {
    "images": ("Qwen2.5-VL-7B", {"images": 2, "image_tokens": 200}),
    "a draft of its own": ("Llama-3.1-70B", {"draft": "Llama-3.2-1B", "acceptance": 0.6}),
    "a block that drafts": ("MiniMax-M2", {"draft": "eagle", "acceptance": 0.6}),
    "adapters and grammars": ("Llama-3.1-8B", {"adapters": 8, "structured": 0.5}),
    "two halves of a step": ("DeepSeek-V3", {"overlap": True, "redundant_experts": 32}),
    "cached prefixes": ("Mixtral-8x7B", {"shared_prefix": 200, "kv_keep": 0.5}),
}


@pytest.mark.parametrize("used", TECHNIQUES)
def test_replicas_with_techniques_are_timed_as_each_alone(used: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan with images timed every node by itself and took six times as long; nothing of it is kept for others."""
    model, techniques = TECHNIQUES[used]
    calls: list[int] = []
    together = deployments_file._in_closed_loops

    def counted(some: Any) -> Any:
        calls.append(len(some))
        return together(some)

    monkeypatch.setattr(deployments_file, "_in_closed_loops", counted)
    SIZED.clear()
    group = [
        question for gpu in ("h100", "h200", "A100-SXM-80") for question in questions(model, gpu, "fp8", **techniques)
    ]
    found = size_together(group)
    assert not any(question in SIZED for question in group)
    sized = [one for one in found.values() if isinstance(one, SizedReplicas)]
    assert len(calls) < len(sized) / 3
    for one in sized[::5]:
        machine, layout, work = runner(one.job), one.job.layout, request_work(one.job)
        assert one.steady is not None
        same(one.steady, closed_loop(machine, layout, one.batch, *work, only_seconds=True))
    answers = [(question, answer) for question, answer in found.items() if isinstance(answer, SizedReplicas)]
    for answer, seen in list(zip(answers, deployments_together(answers), strict=True))[::5]:
        (alone,) = deployments_together([answer])
        assert seen is not None
        assert alone is not None
        same((seen.ttft_s, seen.tpot_s, seen.watts_frac), (alone.ttft_s, alone.tpot_s, alone.watts_frac))


def test_sessions_are_settled_together_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The share of histories that caches hold, and replicas with it, node by node and in one column."""
    calls: list[int] = []
    together = deployments_file._in_closed_loops

    def counted(some: Any) -> Any:
        calls.append(len(some))
        return together(some)

    monkeypatch.setattr(deployments_file, "_in_closed_loops", counted)
    plain, _ = asked("Llama-3.1-8B", "h100")
    sessions = SessionTraffic(turns=5, input_tokens=400, output_tokens=150, think_s=30.0, kv_stores="host=30GB")
    workload, model = replace(plain, sessions=sessions, input_tokens=1500), FACTS.model("Llama-3.1-8B")
    forms = FACTS.weight_format("bf16"), FACTS.cache_format("bf16")
    nodes = [node for gpu in ("h100", "A100-SXM-80") for node in asked("Llama-3.1-8B", gpu)[1]]
    found = size_together([ReplicaQuestion.of(model, workload, node, *forms) for node in nodes])
    answers = [(question, one) for question, one in found.items() if isinstance(one, SizedReplicas)]
    assert len(calls) < len(answers) / 3
    for (question, one), seen in list(zip(answers, deployments_together(answers), strict=True))[::4]:
        alone = sized_replicas(question)
        assert isinstance(alone, SizedReplicas)
        assert one.steady is not None
        assert alone.steady is not None
        hits = np.asarray(one.known["found_frac"])
        assert hits.max() > hits.min() > 0
        np.testing.assert_allclose(hits, alone.known["found_frac"], rtol=1e-9)
        np.testing.assert_allclose(one.fetch_s, alone.fetch_s, rtol=1e-9)
        np.testing.assert_allclose(one.steady.ttft_s, alone.steady.ttft_s, rtol=1e-9)
        (other,) = deployments_together([(question, alone)])
        assert seen is not None
        assert other is not None
        for name in ("ttft_s", "tpot_s", "replicas", "found_frac"):
            np.testing.assert_allclose(getattr(seen, name), getattr(other, name), rtol=1e-9, err_msg=name)


def test_layers_in_the_memory_of_the_host_are_timed_node_by_node() -> None:
    assert not size_together(questions("Llama-3.1-8B", "h100", offload_weights=0.5))


@pytest.mark.parametrize("less", ["adapters", "share"])
def test_a_workload_with_less_memory_has_a_room_of_its_own(less: str) -> None:
    """Adapters, and a smaller share for the engine, take memory that the cache lacks, whatever was sized before."""
    model, forms = FACTS.model("Llama-3.1-8B"), (FACTS.weight_format("bf16"), FACTS.cache_format("bf16"))
    plain, nodes = asked("Llama-3.1-8B", "l40s")
    smaller = {
        "adapters": replace(plain, techniques=replace(plain.techniques, adapters=32, adapter_rank=64)),
        "share": replace(plain, limits=replace(plain.limits, memory_fraction=0.6)),
    }[less]
    both = [ReplicaQuestion.of(model, workload, nodes[0], *forms) for workload in (plain, smaller)]
    most = []
    for question in both:
        SIZED.clear()
        alone = sized_replicas(question)
        SIZED.clear()
        size_together(both)
        after = sized_replicas(question)
        assert isinstance(alone, SizedReplicas)
        assert isinstance(after, SizedReplicas)
        np.testing.assert_array_equal(after.batch, alone.batch)
        most.append(int(alone.batch.reshape(-1, alone.num_layouts)[-1, 0]))
    assert most[0] > 1.5 * most[1]


def test_rates_that_are_kept_hold_no_columns_of_a_question() -> None:
    SIZED.clear()
    found = size_together(
        question for weights in ("bf16", "fp8", "int8", "awq", "gptq", "mxfp4", "Q8_0", "Q4_K_M")
        for question in questions("Llama-3.1-8B", "A100-SXM-80", weights)
    )  # fmt: skip
    machines = [one.timed.machine for one in found.values() if isinstance(one, SizedReplicas)]
    assert len({one.weight_bits for one in machines}) > 3
    figures = [figure for one in machines for way in one.own_rates.products.values() for figure in way]
    assert not any(isinstance(figure, np.ndarray) for figure in figures)


def test_deployments_do_not_depend_on_what_was_sized_before_them() -> None:
    model, forms = FACTS.model("Llama-3.1-8B"), (FACTS.weight_format("fp8"), FACTS.cache_format("fp8"))
    workload, nodes = asked("Llama-3.1-8B", "h100")
    alone = []
    for node in nodes:
        SIZED.clear()
        alone.append(deployments(model, workload, node, *forms))
    SIZED.clear()
    size_together(ReplicaQuestion.of(model, workload, node, *forms) for node in nodes)
    assert all(ReplicaQuestion.of(model, workload, node, *forms) in SIZED for node in nodes)
    for node, other in zip(nodes, alone, strict=True):
        found = deployments(model, workload, node, *forms)
        assert (found is None) == (other is None)
        if found is None or other is None:
            continue
        for name in ("ttft_s", "tpot_s", "e2e_s", "requests_per_s", "replicas", "watts_frac", "least_tpot_s"):
            np.testing.assert_allclose(getattr(found, name), getattr(other, name), rtol=1e-12)


def test_what_does_not_fit_names_the_share_that_the_engine_was_given() -> None:
    workload, nodes = asked("Llama-3.1-70B", "l4")
    smaller = replace(workload, limits=replace(workload.limits, memory_fraction=0.5))
    forms = FACTS.weight_format("bf16"), FACTS.cache_format("bf16")
    found = deployments(FACTS.model("Llama-3.1-70B"), smaller, nodes[0], *forms)
    assert found is not None
    assert found.room_text().endswith("vllm takes 50 % of 22.5 GiB")


@pytest.mark.parametrize("model", MODELS)
def test_curves_of_several_devices_side_by_side_are_read_as_each_alone(model: str) -> None:
    """Devices hold different batches, so that their tables have different numbers of sizes."""
    SIZED.clear()
    group = [question for gpu in ("A100-SXM-80", "l40s", "h100") for question in questions(model, gpu)]
    answers = [(question, sized_replicas(question)) for question in group]
    some = [(one.batch.size // one.num_layouts) for _, one in answers if isinstance(one, SizedReplicas)]
    assert len(set(some)) > 1
    for (question, sized), found in zip(answers, deployments_together(answers), strict=True):
        (alone,) = deployments_together([(question, sized)])
        assert (found is None) == (alone is None)
        if found is None or alone is None:
            continue
        for name in ("ttft_s", "tpot_s", "e2e_s", "replicas", "watts_frac", "least_tpot_s", "busy_frac", "batch", "dp"):
            np.testing.assert_array_equal(getattr(found, name), getattr(alone, name), err_msg=name)


def test_a_format_that_a_device_lacks_is_left_to_the_search_that_says_so() -> None:
    """No kernels for fp8 run on a T4: nothing is kept, nothing raised before `deployments` says so."""
    model, forms = FACTS.model("Llama-3.1-8B"), (FACTS.weight_format("fp8"), FACTS.cache_format("bf16"))
    workload, nodes = asked("Llama-3.1-8B", "t4")
    group = [ReplicaQuestion.of(model, workload, node, *forms) for node in nodes]
    SIZED.clear()
    size_together(group)
    assert not any(question in SIZED for question in group)
    with pytest.raises(MissingFactError, match="no kernels for fp8 weights"):
        deployments(model, workload, nodes[0], *forms)


def test_a_group_of_which_some_are_known_and_others_push_them_out_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    group = questions("Llama-3.1-8B", "A100-SXM-80")
    alone = [sized_replicas(question) for question in group]
    monkeypatch.setattr(deployments_file, "SIZED", kept := KeptAnswers(2))
    kept.clear()
    size_together(group[:2])
    size_together(group)
    assert kept.hits == 2
    for question, other in zip(group, alone, strict=True):
        found = sized_replicas(question)
        assert isinstance(found, SizedReplicas) == isinstance(other, SizedReplicas)
        if isinstance(found, SizedReplicas) and isinstance(other, SizedReplicas):
            same(found.steady, other.steady)


def test_no_more_answers_are_kept_than_there_is_room_for() -> None:
    kept, group = KeptAnswers(2), questions("Llama-3.1-8B", "h100")[:3]
    for question in group:
        kept[question] = None
    assert [question in kept for question in group] == [False, True, True]


def test_encoders_on_several_devices_are_timed_as_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step for the batches of all that follow the same formulas: a plan had one for each kind of node."""
    workload = with_facts(
        workload_from({
            "model": "bge-m3", "task": "encode", "constraints": {"max_gpus": 16},
            "traffic": {"requests_per_s": 300.0, "input_tokens": 300}, "targets": {"latency": "p95=500ms"},
        }), FACTS,
    )  # fmt: skip
    log, model = RejectionLog(), FACTS.model("bge-m3")
    nodes = nodes_with_engine(node_kinds(workload, FACTS, log), workload, model, log)
    some = [node for node in nodes if node.cluster.accelerator.name in {"A10G", "L4", "A100-SXM-80", "H100-SXM-80"}]
    form, cache = FACTS.weight_format("bf16"), FACTS.cache_format("bf16")
    group = [ReplicaQuestion.of(model, workload, node, form, cache) for node in some]
    answers = [(question, sized_replicas(question)) for question in group]
    alone = [deployments_together([answer])[0] for answer in answers]
    steps: list[JoinedRunner] = []
    of_joined = JoinedRunner.kernels_times

    def counted(self: JoinedRunner, *given: Any, **named: Any) -> Any:
        steps.append(self)
        return of_joined(self, *given, **named)

    monkeypatch.setattr(JoinedRunner, "kernels_times", counted)
    together = deployments_together(answers)
    assert 0 < len(set(map(id, steps))) < len(group) / 2
    for found, other in zip(together, alone, strict=True):
        assert found is not None
        assert other is not None
        for name in ("ttft_s", "e2e_s", "requests_per_s", "replicas", "watts_frac", "busy_frac"):
            np.testing.assert_allclose(getattr(found, name), getattr(other, name), rtol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("instances", "num_gpus", "pool", "expected"), [(2, 2, 0, 8), (3, 12, 0, 1), (3, 8, 4, 2), (1, 12, 0, 0)]
)
def test_instances_of_eight_hold_whole_replicas(instances: int, num_gpus: int, pool: int, expected: int) -> None:
    """Twelve devices take two instances of their own; of replicas with pools, two share three instances."""
    assert float(deployments_file._replicas_on(instances, 8, num_gpus, pool)) == expected
