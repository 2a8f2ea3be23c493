"""How an engine is started: looks for requests, streamed pieces, eager steps, its front end, pools of states."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plain_machine import ENGINE, LLAMA, plain_job, plain_runner

import flopwise
from flopwise.cost.cluster import cluster
from flopwise.cost.rates import rates
from flopwise.errors import MissingFactError
from flopwise.facts.architecture import Recurrence
from flopwise.facts.models.catalog import load_model
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.deployment import on_its_engine
from flopwise.serving.iteration import StepLoad, layer_kinds
from flopwise.serving.job import PLAIN, Techniques
from flopwise.serving.memory import Changes, ServingLayout, default_batch
from flopwise.serving.precision import product_path
from flopwise.serving.sim.engine import replica
from flopwise.serving.sim.trace import PS
from flopwise.serving.spec import ServingSpec
from flopwise.serving.steady import chunk_tokens, steps_unseen
from flopwise.serving.techniques import runner
from named import FACTS, serve_job_with, serving_memory, weight_bytes

ONE = ServingLayout()
INPUT, OUTPUT, USERS = 1024, 256, 32


def _machine(**engine: Any) -> Any:
    machine = plain_runner()
    return replace(machine, engine=replace(machine.engine, **engine))


@pytest.mark.parametrize(("engine", "most"), [("vllm", 2), ("vllm-2024", 2), ("sglang", 2), ("tensorrt-llm", np.inf)])
def test_all_reduce_kernels_of_vllm_and_sglang_join_no_more_than_two_devices_over_pcie(
    engine: str, most: float
) -> None:
    """vLLM issue 56128: "not supported on more than two PCIe-only GPUs"; NVLink has no such limit."""
    card = cluster(FACTS.accelerator("RTX A6000"), gpus_per_node=4, intra_node="pcie")
    over_pcie, over_nvlink = (
        runner(serve_job_with(model=LLAMA, cluster=machine, engine=FACTS.engine(engine))).fabric.levels[0]
        for machine in (card, cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8))
    )
    assert (over_pcie.direct_devices, over_nvlink.direct_devices) == (most, np.inf)


def test_a_scheduler_that_looks_every_thirty_steps_leaves_a_request_for_half_of_them() -> None:
    """SGLang, --scheduler-recv-interval 30: at any of 30 steps with equal chances, 0 to 29 more: 14.5 on average; those
    who came in these steps, too, are read with it."""
    often, seldom = (closed_loop(_machine(recv_interval=n), ONE, float(USERS), INPUT, OUTPUT) for n in (1, 30))
    mean_s = seldom.decode.seconds + seldom.prefill_share * (seldom.mixed.seconds - seldom.decode.seconds)
    waited_s = 14.5 * mean_s * (USERS - 1) / USERS
    before_s = often.decode.seconds + often.prefill_share * (often.mixed.seconds - often.decode.seconds)
    waited_s -= 1.5 * (before_s - mean_s) * (USERS - 1) / USERS  # fewer decode, so that steps are shorter
    room = 1.0 - INPUT / ENGINE.prefill_tokens
    for looks, steady, sign in ((30, seldom, 1.0), (1, often, -1.0)):
        decode_s, mixed_s, share = (
            float(x) for x in (steady.decode.seconds, steady.mixed.seconds, steady.prefill_share)
        )
        squares = (1.0 - share) * decode_s**2 + share * mixed_s**2
        longer = squares / ((1.0 - share) * decode_s + share * mixed_s) ** 2  # steps that it comes in
        part = steady.added_s + INPUT / ENGINE.prefill_tokens * decode_s  # of a full step, for one prompt
        idle = 1.0 - steady.requests_per_s * part  # who waits for prompts has counted their steps
        beside = (looks - 1 + longer) * (USERS - 1) / USERS * steady.batch / OUTPUT
        waited_s += sign * idle * beside * steady.added_s * room
    assert float(seldom.ttft_s - often.ttft_s) == pytest.approx(float(waited_s), rel=0.02)
    assert float(seldom.batch) < float(often.batch)  # who waits does not decode
    assert float(seldom.tpot_s) == pytest.approx(float(often.tpot_s), rel=0.05)


def test_the_simulator_waits_as_long() -> None:
    job = plain_job(input_tokens=INPUT, output_tokens=OUTPUT, concurrency=USERS)
    often, seldom = (replica(replace(job, recv_interval=n)).cost.request_ps / PS for n in (1, 30))
    steady = closed_loop(_machine(recv_interval=30), ONE, float(USERS), INPUT, OUTPUT)
    mean_s = float(steady.decode.seconds + steady.prefill_share * (steady.mixed.seconds - steady.decode.seconds))
    assert seldom - often == pytest.approx(14.5 * mean_s, rel=1e-6)
    alone = replica(replace(job, recv_interval=30, concurrency=1)).cost.request_ps
    assert alone == round(job.engine.request_s * PS)  # nobody's step to wait for


def test_prompts_wait_for_others_for_as_many_steps_as_the_engine_is_started_with() -> None:
    """TensorRT-LLM, batch_wait_timeout_iters 20: of 32 / 256 prompts a step 2.5 come within 20 steps of the first, and
    wait for half of these on average: (20 + 2.5 x 10) / 3.5 steps."""
    job = plain_job(input_tokens=INPUT, output_tokens=OUTPUT, concurrency=USERS)
    steady = closed_loop(_machine(batch_wait=20), ONE, float(USERS), INPUT, OUTPUT)
    mean_s = float(steady.decode.seconds + steady.prefill_share * (steady.mixed.seconds - steady.decode.seconds))
    held_s = 45 / 3.5 * mean_s
    soon, late = (replica(replace(job, batch_wait=n)).cost.request_ps / PS for n in (0, 20))
    assert late - soon == pytest.approx(held_s, rel=1e-6)
    eager = closed_loop(_machine(), ONE, float(USERS), INPUT, OUTPUT)
    few_s = float(eager.decode.seconds + eager.prefill_share * (eager.mixed.seconds - eager.decode.seconds))
    expected = (held_s - 1.5 * (few_s - mean_s)) * (USERS - 1) / USERS
    assert float(steady.ttft_s - eager.ttft_s) == pytest.approx(expected, rel=0.03)
    alone = replica(replace(job, batch_wait=20, concurrency=1)).cost.request_ps
    assert alone == round(job.engine.request_s * PS)


def test_tokens_handed_out_together_cost_the_front_end_one_turn() -> None:
    row = replace(ENGINE, stream_s=40e-6)
    job = replace(plain_job(), engine=row, stream_interval=10)
    assert job.software.stream_s == pytest.approx(4e-6)
    assert replace(job, stream_interval=None).software == row.on(job.cluster.accelerator)


def test_a_front_end_in_the_engines_process_takes_its_turns_between_steps() -> None:
    """32 sequences at 0.24 ms a token: 7.7 ms a step; a fixed batch calls the engine without a front end."""
    row = replace(ENGINE, stream_s=240e-6, one_process=True)
    job = replace(plain_job(), engine=row)
    served, called = job.software, replace(job, static=True).software
    assert (served.stream_s, called.stream_s) == (0.0, 0.0)
    assert served.sequence_s - row.sequence_s == pytest.approx(240e-6)
    assert called.sequence_s == row.sequence_s


def test_an_eager_step_lasts_as_long_as_the_host_launches_it() -> None:
    """One sequence on 32 layers and the ends: the host takes 1 ms for each operation, longer than they run."""
    load = StepLoad(decode_batch=1, decode_context=INPUT)
    bare = {"launch_s": 1e-3, "layer_s": 0.0, "step_s": 0.0}
    graphs, eager = (_machine(graphs=captured, **bare).step(load, ONE) for captured in (True, False))
    per_layer = (float(graphs.launches) - 3) / LLAMA.stacks[0].num_layers
    assert 7 <= per_layer <= 12  # two norms, three products in and out of attention, attention, the gated MLP
    assert float(eager.seconds) == pytest.approx(1e-3 * float(graphs.launches))
    quick = _machine(graphs=False, **(bare | {"launch_s": 1e-9})).step(load, ONE)
    assert float(quick.seconds) == pytest.approx(float(graphs.seconds))


def test_a_slower_host_takes_twice_as_long_for_all_that_the_engine_does() -> None:
    """Kunpeng 920 of Ascend 910B: 26 points of SPECint 2006 a core; hosts of the fitted times 1.3 times the 45 of an
    EPYC 7601 at most. What the device does takes as long, and a device says nothing of another's host."""
    assert 45 / 26 < 2.0 < 1.3 * 45 / 26
    npu = cluster(FACTS.accelerator("Ascend 910B3"), gpus_per_node=8)
    job = plain_job(cluster=npu, engine=FACTS.engine("vllm"))
    mine, plain = job.software, FACTS.engine("vllm").on(npu.accelerator)
    times = ("step_s", "layer_s", "sequence_s", "launch_s", "request_s", "front_s", "front_token_s", "stream_s")
    assert [getattr(mine, name) for name in times] == pytest.approx([2.0 * getattr(plain, name) for name in times])
    assert (mine.pointwise_traffic, mine.hidden_frac) == (plain.pointwise_traffic, plain.hidden_frac)
    load = StepLoad(decode_batch=1, decode_context=INPUT)
    eager = runner(replace(job, eager=True)).step(load, ONE)
    assert float(eager.seconds) == pytest.approx(
        2.0 * plain.launch_s * float(eager.launches) + 2.0 * plain.step_s, rel=1e-3
    )
    h100 = plain_job(engine=FACTS.engine("vllm"))
    assert h100.software.launch_s == FACTS.engine("vllm").launch_s


@pytest.mark.parametrize("gpu", ["Ascend 910B3", "Ascend 910C die"])
def test_ascend_has_no_all_reduce_kernels_beside_hccls(gpu: str) -> None:
    """vLLM Ascend, communicator.py: torch.distributed over HCCL alone, whatever the engine has on other devices."""
    node = cluster(FACTS.accelerator(gpu), gpus_per_node=8)
    machine = runner(plain_job(cluster=node, engine=FACTS.engine("vllm")))
    by_library = replace(machine, direct=False)
    split, load = ServingLayout(tp=4), StepLoad(decode_batch=1, decode_context=INPUT)
    assert machine.direct
    assert float(machine.sent_s(load, split)) == float(by_library.sent_s(load, split)) > 0


def test_a_kernel_that_quantises_is_launched_with_each_product() -> None:
    """Four of a layer (queries, keys and values; output; gate and up; down), none of the head, and none where scales
    are static; what is weight-only is not quantised."""
    load, layers = StepLoad(decode_batch=1, decode_context=INPUT), LLAMA.stacks[0].num_layers
    job = plain_job()
    for static in (False, True):
        row = replace(job.engine, static_scales=static)
        launches = {
            form: float(runner(replace(job, engine=row, weights=FACTS.weight_format(form))).step(load, ONE).launches)
            for form in ("bf16", "fp8", "awq")
        }
        assert launches["fp8"] - launches["bf16"] == (0 if static else 4 * layers)
        assert launches["awq"] == launches["bf16"]


def test_an_engine_that_captures_decoding_alone_launches_prompts_one_by_one() -> None:
    """1 ms for each of the operations of a step with a prompt; a step without one is as it was. As the simulator has
    it: attention of decoding sequences is one more operation a layer."""
    bare: dict[str, Any] = {"launch_s": 1e-3, "layer_s": 0.0, "step_s": 0.0}
    captured, launched = (_machine(prompt_graphs=p, **bare) for p in (True, False))
    reads = StepLoad(prefill_tokens=64, prefill_context=64)
    mixed = replace(reads, decode_batch=4, decode_context=INPUT)
    decodes = StepLoad(decode_batch=4, decode_context=INPUT)
    assert float(launched.step(decodes, ONE).seconds) == float(captured.step(decodes, ONE).seconds)
    for load in (reads, mixed):
        step = launched.step(load, ONE)
        assert float(step.seconds) == pytest.approx(1e-3 * float(step.launches))
    more = launched.step(mixed, ONE).launches - launched.step(reads, ONE).launches
    assert float(more) == LLAMA.stacks[0].num_layers
    job = plain_job(input_tokens=INPUT, output_tokens=OUTPUT, concurrency=1)
    cost = replica(replace(job, engine=replace(job.engine, prompt_graphs=False, **bare))).cost
    plain = replica(replace(job, engine=replace(job.engine, **bare))).cost
    assert cost.seconds(chunk=64) == pytest.approx(float(launched.step(reads, ONE).seconds))
    assert cost.seconds(chunk=64, batch=4, cached=4 * INPUT) == pytest.approx(float(launched.step(mixed, ONE).seconds))
    assert cost.seconds(batch=4, cached=4 * INPUT) == plain.seconds(batch=4, cached=4 * INPUT)


def test_what_nothing_hides_follows_the_launches_of_the_simulator_too() -> None:
    """0.1 ms an operation; 5 ms a step, 7 more with recurrent states, and the hop between two stages."""
    model, two = load_model("Nemotron-H-8B"), ServingLayout(pp=2)
    job = plain_job(input_tokens=INPUT, output_tokens=OUTPUT, concurrency=1)
    row = replace(job.engine, prompt_graphs=False, launch_s=1e-4, layer_s=0.0, step_s=5e-3, recurrent_s=7e-3)
    load = StepLoad(prefill_tokens=64, prefill_context=64, prompts=1)
    for layout in (ONE, two):
        staged = replace(job, model=model, engine=row, layout=layout)
        step = runner(staged).step(load, layout)
        hop_s = float(np.ravel(runner(staged).pipeline_s(load, layout, model.stacks[0].width))[0])
        assert (hop_s > 5e-6) == (layout is two)
        assert float(step.seconds) == pytest.approx(1e-4 * float(step.launches) + 12e-3 + hop_s)
        assert replica(staged).cost.seconds(chunk=64) == pytest.approx(float(step.seconds), rel=3e-5)


@pytest.mark.parametrize(("tokens", "held"), [(512, True), (513, False)])
def test_graphs_of_steps_with_prompts_hold_so_many_tokens(tokens: int, *, held: bool) -> None:
    """vLLM captures steps of up to 512 tokens in pieces between its attention: 1 ms for each of 32 layers' attention;
    beyond that for every operation, those of compiled code at 0.3. As the simulator has it, and decoding as it was."""
    bare: dict[str, Any] = {"launch_s": 1e-3, "layer_s": 0.0, "step_s": 0.0}
    pieces = {"prompt_graph_tokens": 512, "piecewise": True, "compiled_launch_frac": 0.3}
    machine, layers = _machine(**bare, **pieces), LLAMA.stacks[0].num_layers
    reads = StepLoad(prefill_tokens=tokens, prefill_context=tokens)
    operations = float(_machine(**bare).step(reads, ONE).launches)
    expected = 1e-3 * (layers if held else layers + 0.3 * (operations - layers))
    assert float(machine.step(reads, ONE).seconds) == pytest.approx(expected)
    mixed = replace(reads, prefill_tokens=tokens - 4, prefill_context=tokens - 4, decode_batch=4, decode_context=INPUT)
    assert float(machine.step(mixed, ONE).seconds) == pytest.approx(expected + 1e-3 * layers)  # decode attention, too
    decodes = StepLoad(decode_batch=4, decode_context=INPUT)
    assert float(machine.step(decodes, ONE).seconds) == float(_machine(**bare).step(decodes, ONE).seconds)
    job = plain_job(input_tokens=INPUT, output_tokens=OUTPUT, concurrency=1)
    cost = replica(replace(job, engine=machine.engine)).cost
    assert cost.seconds(chunk=tokens) == pytest.approx(expected)
    assert cost.seconds(chunk=tokens - 4, batch=4, cached=4 * INPUT) == pytest.approx(expected + 1e-3 * layers)


def test_steps_that_decode_more_sequences_than_graphs_hold_are_launched() -> None:
    """SGLang captures up to so many of an attention replica: 4 of them here, 8 where ranks are four; 1 ms for each
    operation of what it did not capture. As the simulator has it at 1024 tokens each."""
    bare: dict[str, Any] = {"launch_s": 1e-3, "layer_s": 0.0, "step_s": 0.0}
    limited, free = _machine(**bare, graph_batch=4, wide_graph_batch=8), _machine(**bare)
    layouts = (ONE, ServingLayout(tp=2), ServingLayout(tp=4), ServingLayout(tp=2, dp=2))
    for layout, most in zip(layouts, (4, 4, 8, 8), strict=True):
        for batch in (most, most + 1):
            load = StepLoad(decode_batch=batch, decode_context=INPUT)
            step = free.step(load, layout)
            expected = 1e-3 * float(step.launches) if batch > most else float(step.seconds)
            assert float(limited.step(load, layout).seconds) == pytest.approx(expected)
    columns = limited.step(StepLoad(decode_batch=np.array([4, 5]), decode_context=INPUT), ONE).seconds
    assert columns[1] > 10 * columns[0]
    reads = StepLoad(prefill_tokens=64, prefill_context=64, decode_batch=5, decode_context=INPUT)
    assert float(limited.step(reads, ONE).seconds) == float(free.step(reads, ONE).seconds)  # of prompts: another rule
    job = plain_job(input_tokens=INPUT, output_tokens=OUTPUT, concurrency=8)
    rows = [replace(one.engine, step_limits=()) for one in (free, limited)]
    held, beyond = (replica(replace(job, engine=row)).cost for row in rows)
    assert beyond.seconds(batch=4, cached=4 * INPUT) == held.seconds(batch=4, cached=4 * INPUT)
    launched_s = float(limited.step(StepLoad(decode_batch=5, decode_context=INPUT), ONE).seconds)
    assert beyond.seconds(batch=5, cached=5 * INPUT) == pytest.approx(launched_s, rel=1e-3)


@pytest.mark.parametrize("tokens", [256, 512, 513])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Qwen3-30B-A3B", "Qwen3.6-35B-A3B", "Mamba-2.8B"])
def test_a_lone_users_prompt_is_launched_once(model: str, tokens: int) -> None:
    """Nobody decodes beside it: the closed form takes as long as the simulator, within the graphs and beyond."""
    asked: dict[str, Any] = {"gpu": "h100", "input_tokens": tokens, "output_tokens": 64}
    served = flopwise.serve(model, concurrency=1, closed_form=True, **asked).estimate.ttft_s.value
    played = flopwise.simulate(model, users=1, requests=30, **asked).summary.ttft_s.p50
    assert served == pytest.approx(played, rel=0.03)


def test_a_small_batch_has_small_graphs() -> None:
    """vLLM, VllmConfig._set_cudagraph_sizes: up to twice as many tokens as sequences, 512 at most."""
    for most, tokens in ((8, 16), (256, 512), (1024, 512)):
        job = serve_job_with(
            model=LLAMA, cluster=cluster(FACTS.accelerator("H100-SXM-80")), engine="vllm", max_batch=most
        )
        assert job.software.prompt_graph_tokens == tokens


def test_what_is_compiled_whole_or_runs_on_the_host_is_launched_by_nobody() -> None:
    """XLA's programs have no pieces, and a processor computes where it would launch; eager code is not compiled.

    Ascend's operations are launched as a GPU's are (vLLM Ascend, graph mode guide: ACLGraph captures and replays).
    """
    engine = replace(FACTS.engine("vllm"), launch_s=1.0)
    load = StepLoad(prefill_tokens=2048, prefill_context=2048)
    whole = replace(FACTS.engine("sglang"), launch_s=1.0)
    tpu = runner(serve_job_with(model=LLAMA, cluster=cluster(FACTS.accelerator("TPU v6e")), engine=whole))
    assert float(np.max(tpu.step(load, ONE).overhead_s)) < 1.0
    devices = {"H100-SXM-80": True, "Ascend 910B2": True, "TPU v6e": False, "Gaudi3": False, "Xeon 6975P-C": False}
    for device, launched in devices.items():
        machine = runner(serve_job_with(model=LLAMA, cluster=cluster(FACTS.accelerator(device)), engine=engine))
        assert (float(np.max(machine.step(load, ONE).overhead_s)) > 100.0) is launched
    job = serve_job_with(model=LLAMA, cluster=cluster(FACTS.accelerator("H100-SXM-80")), engine=engine, eager=True)
    assert job.software.compiled_launch_frac == 1.0


@pytest.mark.parametrize(("tp", "dp", "more"), [(1, 1, 0), (2, 1, 2), (1, 2, 2), (2, 2, 3)])
def test_attention_replicas_launch_what_they_send(tp: int, dp: int, more: int) -> None:
    """Of a layer with experts two all-reduces over tensor ranks; replicas gather tokens for experts and scatter what
    comes out, in place of the experts' all-reduce and one message besides."""
    model = load_model("Qwen3-30B-A3B")
    load = StepLoad(prefill_tokens=2048, prefill_context=2048)
    machine = replace(_machine(), model=model)
    alone, several = (
        machine.step(load, ServingLayout(tp=tp_, dp=dp_, ep=tp_ * dp_)) for tp_, dp_ in ((1, 1), (tp, dp))
    )
    assert float(np.ravel(several.launches)[0] - np.ravel(alone.launches)[0]) == more * model.stacks[0].num_layers


def test_prompts_that_came_between_two_looks_share_a_step() -> None:
    """32 users, answers of 256: in 30 steps 3.7 prompts come, so that one step of 30 carries prompts with a probability
    of 1 - (1 - 3.7 / 32)^32, not one of 8. Where the host launches prompts, each of these steps is as long as any."""
    launched = {"prompt_graphs": False, "launch_s": 1e-3, "mixes": False}
    loops = {n: closed_loop(_machine(recv_interval=n, **launched), ONE, float(USERS), INPUT, OUTPUT) for n in (1, 30)}
    for n, steady in loops.items():
        due = float(steady.batch) / OUTPUT
        assert float(steady.prefill_share) == pytest.approx((1.0 - (1.0 - n * due / USERS) ** USERS) / n)
    assert float(loops[30].tpot_s) < 0.5 * float(loops[1].tpot_s)


def test_sglang_launches_prompts_of_checkpoints_that_see() -> None:
    """SGLang, server_args.py, _handle_piecewise_cuda_graph: models that see have no graphs for prompts. Of
    Qwen3.5-397B-A17B on four B300 1,024 tokens take a lone user of four 160 to 170 ms (InferenceMAX, 2026-04)."""
    four, layout = cluster(FACTS.accelerator("B300-SXM"), gpus_per_node=8), ServingLayout(tp=4)
    whole, part = (
        serve_job_with(model=load_model(name), engine="sglang", cluster=four, layout=layout, weights="fp8")
        for name in ("Qwen3-235B-A22B", "Qwen3.5-397B-A17B")
    )
    assert (whole.software.prompt_graphs, part.software.prompt_graphs) == (True, False)


def test_a_prompt_beyond_the_graphs_takes_as_long_as_was_measured() -> None:
    """Steps of Qwen3.6-35B-A3B on four B300, vLLM 0.20.1 (aiconfigurator, fpm_golden_runs/fpm_upfront_qwen36_moe...):
    496 tokens of a prompt in 15.8 ms, 528 in 39.4; Qwen3-32B on eight reads 1,024 in 17.6."""
    four = cluster(FACTS.accelerator("B300-SXM"), gpus_per_node=8)
    for name, tp, tokens, measured_s in (
        ("Qwen3.6-35B-A3B", 4, 496, 15.8e-3), ("Qwen3.6-35B-A3B", 4, 528, 39.4e-3), ("Qwen3-32B", 8, 1024, 17.6e-3),
    ):  # fmt: skip
        layout = ServingLayout(tp=tp)
        job = serve_job_with(model=load_model(name), cluster=four, layout=layout, weights="bf16", engine="vllm")
        step = runner(job).step(StepLoad(prefill_tokens=tokens, prefill_context=tokens), layout)
        assert float(np.max(step.seconds)) == pytest.approx(measured_s, rel=0.2)


def test_experts_and_recurrences_are_launched_as_several_kernels() -> None:
    """A layer of experts has a router's product, its softmax, three kernels that sort, and a sum where a dense one adds
    the residual, besides two products and the activation; a recurrence is eight kernels."""
    load = StepLoad(prefill_tokens=64, prefill_context=64)

    def launches(name: str) -> float:
        model = load_model(name)
        step = replace(_machine(composed=True), model=model).step(load, ONE)
        return float(step.launches) / model.stacks[0].num_layers

    dense, mixture = launches("Qwen3-32B"), launches("Qwen3-30B-A3B")
    assert mixture - dense == pytest.approx(5.0, abs=0.1)
    hybrid = load_model("Qwen3-Next-80B-A3B").stacks[0]
    kinds = [kind for kind, count in layer_kinds(hybrid) for _ in range(count)]
    scans = sum(any(isinstance(item, Recurrence) for item in kind.items) for kind in kinds)
    counted = replace(_machine(composed=True), model=load_model("Qwen3-Next-80B-A3B"))
    works = [counted.kernels_of(kind.items, load, ONE, inside=True) for kind in kinds]
    single = sum(1 for kernels in works for kernel in kernels if kernel.work.kind != "recurrence")
    ends = float(counted.step(load, ONE).launches) - (single + 3 * len(kinds) + 8 * scans)
    assert 2 <= ends <= 4  # embedding, last norm, head
    called = replace(_machine(composed=False), model=counted.model).step(load, ONE).launches
    assert float(counted.step(load, ONE).launches - called) == 3 * len(kinds) + 7 * scans


@pytest.mark.parametrize(
    ("gpu", "model", "layout", "adapters", "captured"),
    [
        ("H100-SXM-80", "Llama-3.1-8B", ServingLayout(), 0, True),
        ("H100-SXM-80", "Llama-3.1-8B", ServingLayout(tp=8), 0, True),
        ("MI300X", "Llama-3.1-8B", ServingLayout(), 0, False),
        ("H100-SXM-80", "Llama-3.1-8B", ServingLayout(pp=2), 0, False),
        ("B200", "DeepSeek-V3", ServingLayout(tp=1, dp=8, ep=8), 0, False),
        ("H100-SXM-80", "Qwen3-VL-8B", ServingLayout(), 0, False),
        ("B200", "DeepSeek-V3.2", ServingLayout(tp=8), 0, False),
        ("H100-SXM-80", "Llama-3.1-8B", ServingLayout(), 4, False),
    ],
)
def test_sglang_captures_prompts_where_its_documentation_says(
    gpu: str, model: str, layout: ServingLayout, adapters: int, *, captured: bool
) -> None:
    """SGLang documentation, piecewise CUDA graph, compatibility: where it is switched off."""
    techniques = Techniques(adapters=adapters, adapter_rank=16) if adapters else PLAIN
    machines = cluster(FACTS.accelerator(gpu), gpus_per_node=8)
    job = serve_job_with(
        model=load_model(model), engine="sglang", cluster=machines, layout=layout, techniques=techniques, weights="fp8"
    )
    assert bool(runner(job).launches_prompts(layout)) is not captured
    assert runner(replace(job, engine=FACTS.engine("sglang-2025"))).launches_prompts(layout)
    assert not runner(replace(job, engine=FACTS.engine("vllm"))).launches_prompts(layout)
    few_s, _ = replica(job).cost.launch_ps
    assert (few_s > 0) is not captured


@pytest.mark.parametrize(
    ("engine", "gpu", "triton"), [("vllm", "MI300X", True), ("vllm", "MI355X", False), ("sglang", "MI300X", False)]
)
def test_only_experts_in_triton_kernels_take_the_time_of_amds_devices(engine: str, gpu: str, *, triton: bool) -> None:
    """vLLM's without AITER; AITER's fused ones have kernels for CDNA 4, and SGLang's images switch them on."""
    model = load_model("Qwen3-30B-A3B")
    job = serve_job_with(model=model, engine=engine, cluster=cluster(FACTS.accelerator(gpu)))
    machine, load = runner(job), StepLoad(decode_batch=1, decode_context=INPUT)
    none = replace(machine, rates=replace(machine.rates, value=dict(machine.rates.value) | {"experts_s": 0.0}))
    added_s = float(machine.step(load, ONE).seconds - none.step(load, ONE).seconds)
    assert added_s == pytest.approx(48 * machine.rates.value["experts_s"] if triton else 0.0, abs=1e-6)
    assert (machine.rates.value["experts_s"] > 1e-6) is gpu.startswith("MI300")


@pytest.mark.parametrize(("engine", "weights", "triton"), [
    ("sglang", "bf16", True), ("sglang-2025", "bf16", True), ("sglang", "fp8-block", False), ("sglang", "mxfp4", False),
    ("vllm-2025", "fp8-block", True),
])  # fmt: skip
def test_only_unquantised_experts_of_sglang_run_in_triton_kernels(engine: str, weights: str, *, triton: bool) -> None:
    """SGLang, layers/quantization/unquant.py; FlashInfer's, DeepGEMM's and Marlin's kernels have the narrower ones."""
    model, nodes = load_model("Qwen3-30B-A3B"), cluster(FACTS.accelerator("B200"))
    machine = runner(serve_job_with(model=model, engine=engine, weights=weights, cluster=nodes))
    none = replace(machine, engine=replace(machine.engine, experts_s=0.0))
    load = StepLoad(decode_batch=1, decode_context=INPUT)
    added_s = float(machine.step(load, ONE).seconds - none.step(load, ONE).seconds)
    assert machine.engine.experts_s > 1e-5
    assert added_s == pytest.approx(48 * machine.engine.experts_s if triton else 0.0, abs=1e-9)


def test_sglang_divides_the_budget_of_a_step_among_its_attention_replicas() -> None:
    """SGLang, arg_groups/parallel_hook.py: chunked_prefill_size // attn_dp_size; in vLLM each has its own budget."""
    model, nodes = load_model("Qwen3-30B-A3B"), cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8)
    for engine, parts in (("sglang", 4), ("vllm", 1)):
        one = serve_job_with(model=model, engine=engine, cluster=nodes)
        four = replace(one, layout=ServingLayout(dp=4, ep=4))
        assert four.software.prefill_tokens == 8192
        assert replica(four).limits.step_tokens == 8192 // parts
        assert float(chunk_tokens(runner(four), four.layout, 10_000)) == 8192 / parts
        assert float(chunk_tokens(runner(one), one.layout, 10_000)) == 8192


def _replicas(**how: Any) -> Any:
    nodes = cluster(FACTS.accelerator("H200-SXM-141"), gpus_per_node=8)
    job = serve_job_with(
        model=load_model("DeepSeek-V3"), engine="sglang", cluster=nodes, layout=ServingLayout(dp=8, ep=8),
        weights="fp8-block", input_tokens=INPUT, output_tokens=OUTPUT, concurrency=8 * USERS,
    )  # fmt: skip
    return replace(job, **how)


def test_a_replica_that_decodes_waits_for_the_prompts_of_those_it_shares_experts_with() -> None:
    """One of eight replicas: a step is as long as its own prompts' where any of the seven others reads one."""
    job = _replicas()
    steady = closed_loop(runner(job), job.layout, float(USERS), INPUT, OUTPUT)
    own = 1.0 - (1.0 - steady.prefill_share) ** (1 / 8)
    longer_s = (1.0 - (1.0 - own) ** 7) * (steady.mixed.seconds - steady.decode.seconds)
    alone, loaded = replica(replace(job, concurrency=None)).cost, replica(job).cost
    assert float(longer_s) > 0.3 * float(steady.decode.seconds)
    every, few = (StepLoad(prefill_tokens=INPUT, prefill_context=INPUT, prefill_ranks=n)
                  for n in (8, float(8 * own / steady.prefill_share)))  # fmt: skip
    machine, batch = runner(job), np.arange(1, len(alone.decode_ps))
    less_s = float(machine.step(every, job.layout).seconds - machine.step(few, job.layout).seconds) / INPUT
    assert 0.01 < less_s * INPUT / float(machine.step(every, job.layout).seconds) < 0.9
    added_s = (loaded.decode_ps[1:] - alone.decode_ps[1:]) / PS
    assert added_s == pytest.approx(float(longer_s) + less_s * batch, rel=1e-6)
    assert (alone.tokens_ps - loaded.tokens_ps)[500] / PS == pytest.approx(500 * less_s, rel=1e-6)
    assert loaded.decode_ps[0] == alone.decode_ps[0]
    dense = replace(job, model=LLAMA, layout=ServingLayout(dp=8))
    assert np.array_equal(replica(dense).cost.decode_ps, replica(replace(dense, concurrency=None)).cost.decode_ps)


def test_replicas_whose_prompts_are_joined_read_them_in_the_same_steps_and_wait_for_the_last_one() -> None:
    """SGLang, managers/prefill_delayer.py; the last of n comes at 1 + 1/2 ... 1/n times the mean: 2.718 of eight."""
    apart, joined = _replicas(), _replicas(prefill_delayer=True)
    steady, together = (closed_loop(runner(j), j.layout, float(USERS), INPUT, OUTPUT) for j in (apart, joined))
    own = 1.0 - (1.0 - steady.prefill_share) ** (1 / 8)
    assert float(together.prefill_share) == pytest.approx(float(own), rel=0.15)
    assert float(together.output_tokens_per_s) > 1.2 * float(steady.output_tokens_per_s)
    alone = replica(replace(joined, concurrency=None)).cost
    assert np.array_equal(replica(joined).cost.decode_ps, alone.decode_ps)
    assert replica(joined).cost.request_ps > alone.request_ps
    rows = [steps_unseen(j.software, 0.25, 8) for j in (joined, apart)]
    assert float(rows[0] - rows[1]) == pytest.approx((sum(1 / n for n in range(1, 9)) - 1) / 0.25, rel=1e-9)
    assert float(steps_unseen(joined.software, 0.01, 8) - rows[1]) == pytest.approx(30.0)


def test_who_calls_the_engine_has_no_front_end() -> None:
    """A list of requests: nobody's tokens pass through an API server, in the engine's process or in one of its own."""
    row = replace(ENGINE, stream_s=240e-6, front_s=1e-3, front_token_s=1e-6)
    for one_process in (True, False):
        job = replace(plain_job(), engine=replace(row, one_process=one_process))
        called = replace(job, called=True).software
        assert (called.stream_s, called.front_s, called.front_token_s) == (0.0, 0.0, 0.0)
        assert called.sequence_s == row.sequence_s


def test_layouts_of_a_search_launch_their_prompts_each_by_its_own() -> None:
    layouts = ServingLayout(tp=np.array([1, 1, 2]), pp=np.array([1, 2, 1]))
    job = serve_job_with(model=LLAMA, engine="sglang", cluster=cluster(FACTS.accelerator("H100-SXM-80")))
    assert runner(job).launches_prompts(layouts).tolist() == [False, True, False]


def test_an_all_reduce_is_launched_too() -> None:
    """Two row-parallel products a layer, whose results two ranks add up."""
    load = StepLoad(decode_batch=1, decode_context=INPUT)
    alone, two = (plain_runner().step(load, ServingLayout(tp=tp)).launches for tp in (1, 2))
    assert float(two - alone) == 2 * LLAMA.stacks[0].num_layers


def test_sglang_runs_256_sequences_of_deepseek_v4_over_all_attention_replicas() -> None:
    """SGLang, server arguments: max_running_requests of 256 for DeepSeek-V4 unless it is set."""
    sglang, flash = FACTS.engine("sglang"), load_model("DeepSeek-V4-Flash")
    assert [int(default_batch(flash, sglang, dp)) for dp in (1, 4, 8)] == [256, 64, 32]
    assert default_batch(LLAMA, sglang, 8) == sglang.max_batch
    assert default_batch(flash, FACTS.engine("vllm"), 8) == FACTS.engine("vllm").max_batch


def test_recurrent_states_have_a_pool_of_their_own_in_sglang() -> None:
    """0.9 parts of 1.9 of the room, three states a running request; what is left is for keys and values."""
    model, engine = load_model("Qwen3-Next-80B-A3B"), FACTS.engine("sglang")
    room: dict[str, Any] = {"context": 4096, "concurrency": None, "weights": FACTS.weight_format("fp8")}
    room["layout"] = ServingLayout(tp=2)
    pools = serving_memory(model, hbm_bytes=141e9, engine=engine, **room)
    none = serving_memory(model, hbm_bytes=141e9, engine=replace(engine, state_frac=0.0), **room)
    per_request = _state_bytes(model, 2)
    free = 0.88 * 141e9 - sum(
        none.items[name] for name in ("weights", "captured graphs", "driver context and communicators")
    )
    places = np.floor((free - engine.workspace_bytes) * 0.4737 / (3 * per_request))
    assert pools.max_states == pytest.approx(places, abs=1)
    assert pools.max_concurrency <= pools.max_states < none.max_concurrency
    assert none.max_states == np.inf
    assert serving_memory(LLAMA, hbm_bytes=141e9, engine=engine, context=4096).max_states == np.inf


def _state_bytes(model: Any, tp: int) -> float:
    """States of Qwen3-Next's 36 gated delta nets on one of `tp` ranks: 32 heads of 128 x 128 in 32 bits, and three
    tokens of 2 x 2,048 + 4,096 channels before the convolution in 16."""
    assert len(model.stacks[0].order) == 48
    return 36 * (32 * 128 * 128 * 4.0 + 3 * 8192 * 2.0) / tp


@pytest.mark.parametrize(
    ("name", "cache", "tp", "block"),
    [
        ("Nemotron-Nano-9B-v2", "bf16", 1, 1312),  # 672 when its scans had 16 bits (vLLM issue 24280)
        ("Nemotron-3-Super-120B-A12B", "fp8", 1, 8320),  # kaito pull request 2049
        ("Qwen3.5-27B (text)", "fp8", 2, 1568),  # Qwen3.8-27B: mitchross/talos-argocd-proxmox pull request 1995
        ("Qwen3-Next-80B-A3B", "bf16", 1, 544),
        ("Jamba-v0.1", "bf16", 1, 80),
        ("Falcon-H1-7B", "bf16", 1, 1568),
    ],
)
def test_blocks_grow_to_a_page_of_states_in_vllm(name: str, cache: str, tp: int, block: int) -> None:
    """As its logs say: "Setting attention block size to 8320 tokens"; one token more takes a block of every layer."""
    engine, dtype = FACTS.engine("vllm"), FACTS.cache_format(cache)
    room: dict[str, Any] = {"layout": ServingLayout(tp=tp), "engine": engine, "kv_dtype": dtype, "concurrency": 1}

    def cached(tokens: int) -> float:
        return float(serving_memory(load_model(name), hbm_bytes=10e12, context=tokens, **room).items["KV cache"])

    assert cached(1) == cached(block) < cached(block + 1) == cached(2 * block)


NEMOTRON = {
    "layers": 24, "attention": 4, "scan": 128 * 64 * 128, "window": 3 * (128 * 64 + 2 * 8 * 128), "token": 2 * 8 * 128,
}  # fmt: skip
"""Nemotron-H-8B: 24 Mamba 2 and 4 attention layers; elements of a scan, of its window, of a token's keys and values."""


@pytest.mark.parametrize(("cache", "elem"), [("bf16", 2), ("fp8", 1)])
def test_states_take_pages_beside_the_blocks_of_a_sequence_in_vllm(cache: str, elem: int) -> None:
    """By hand from vLLM's sources: pages of one size, groups of four layers, scans in 32 bits whatever the cache is."""
    state = NEMOTRON["scan"] * 4 + NEMOTRON["window"] * 2
    block = 16 * math.ceil(state / (16 * NEMOTRON["token"] * elem))
    page, groups = block * NEMOTRON["token"] * elem, NEMOTRON["layers"] // NEMOTRON["attention"]
    engine, model = FACTS.engine("vllm"), load_model("Nemotron-H-8B")
    room: dict[str, Any] = {"engine": engine, "kv_dtype": FACTS.cache_format(cache), "hbm_bytes": 80e9}
    tokens = 3 * block + 5
    one = serving_memory(model, context=tokens, concurrency=1, **room)
    assert one.items["KV cache"] == NEMOTRON["attention"] * (4 + groups) * page
    full = serving_memory(model, context=tokens, concurrency=None, **room)
    assert full.max_whole_contexts == pytest.approx(full.kv_budget_bytes / one.items["KV cache"], abs=1)
    kept = serving_memory(model, context=tokens, concurrency=1, changes=Changes(keeps_prefixes=True), **room)
    assert kept.items["KV cache"] == NEMOTRON["attention"] * (4 + 2 * groups) * page  # mamba_cache_mode "align"


def test_groups_of_layers_are_full_in_vllm() -> None:
    """Nemotron-3-Nano's 23 Mamba layers stand in four groups of as many as its six attention layers: one is empty."""
    engine, model = FACTS.engine("vllm"), load_model("Nemotron-3-Nano-30B-A3B")
    state = 64 * 64 * 128 * 4 + 3 * (64 * 64 + 2 * 8 * 128) * 2
    block = 16 * math.ceil(state / (16 * 2 * 2 * 128 * 2))
    one = serving_memory(model, engine=engine, context=block, concurrency=1, hbm_bytes=80e9)
    assert one.items["KV cache"] == (24 + 6) * block * 2 * 2 * 128 * 2


def test_an_8_bit_cache_leaves_states_as_they_are() -> None:
    """It doubles what fits of keys and values, not of states: in SGLang as many places as before."""
    engine, model = FACTS.engine("sglang"), load_model("Falcon-H1-7B")
    room: dict[str, Any] = {"engine": engine, "hbm_bytes": 80e9, "context": 2048, "concurrency": None}
    wide, narrow = (
        serving_memory(model, kv_dtype=FACTS.cache_format(name), **room).max_states for name in ("bf16", "fp8")
    )
    assert wide == narrow
    scan, window = 24 * 128 * 256, 3 * (24 * 128 + 2 * 256)
    free = 0.88 * 80e9 - sum(
        serving_memory(model, **room).items[name]
        for name in ("weights", "captured graphs", "driver context and communicators")
    )
    places = (free - engine.workspace_bytes) * 0.4737 / (3 * 44 * (scan * 4 + window * 2))
    assert wide == pytest.approx(places, abs=1)


def test_running_sequences_are_the_least_of_cache_states_and_scheduler() -> None:
    sglang, model = FACTS.engine("sglang"), load_model("Qwen3-Next-80B-A3B")
    room: dict[str, Any] = {"layout": ServingLayout(tp=8), "engine": sglang, "hbm_bytes": 141e9, "concurrency": None}
    short, long = (serving_memory(model, context=tokens, **room) for tokens in (1_000, 250_000))
    capped = serving_memory(model, context=1_000, max_batch=32, **room)
    assert short.max_concurrency == np.floor(short.max_states)
    assert long.max_concurrency < long.max_states == short.max_states
    assert capped.max_concurrency == 32


@pytest.mark.parametrize(
    ("name", "engine", "device", "form"),
    [
        ("tabbyapi", "exllamav2", "RTX 4090", "exl2-4.0"),
        ("mlc-llm", "mlc", "Apple M2 Ultra", "awq"),
        ("nxd-inference", "neuron", "Trainium1", "bf16"),
        ("openvino model server", "openvino", "Arc 140V", "awq"),
        ("ollama", "llama.cpp", "Apple M4", "Q4_K_M"),
    ],
)
def test_engines_that_users_name_run_where_their_pages_say(name: str, engine: str, device: str, form: str) -> None:
    row, chip = FACTS.engine(name), FACTS.accelerator(device)
    assert row.name == engine
    assert row.runs_on(chip)
    assert row.runs(FACTS.weight_format(form), chip)
    assert row.answers


@pytest.mark.parametrize(
    ("engine", "device", "form"),
    [
        ("mlx", "Apple M4 Max", "mxfp4"),
        ("llama.cpp", "V100-SXM2-32", "MXFP4_MOE"),
        ("llama.cpp-2025", "T4", "MXFP4_MOE"),
        ("vllm", "RTX 3090", "mxfp4"),
        ("vllm", "V100-SXM2-32", ""),
    ],
)
def test_experts_in_4_bits_run_where_the_engine_has_kernels_for_them(engine: str, device: str, form: str) -> None:
    """MLX and llama.cpp have their own on every device, the latter in files; vLLM's need NVIDIA's units for bf16."""
    spec = ServingSpec(engine=engine)
    model, chip = load_model("gpt-oss-20b"), FACTS.accelerator(device)
    settled, _ = on_its_engine(spec, model, chip, FACTS)
    assert settled.weights == (form or "mxfp4")
    weights = FACTS.weight_format(str(settled.weights))
    if not form:
        with pytest.raises(MissingFactError, match="no kernels for mxfp4 weights"):
            product_path(model, weights, rates(chip))
        return
    assert product_path(model, weights, rates(chip)).weight_bits < 5
    given, notes = on_its_engine(replace(spec, weights="mxfp4"), model, chip, FACTS)
    assert given.weights == form
    assert bool(notes) == engine.startswith("llama.cpp")


def test_exl2_is_as_many_bits_as_its_name_says() -> None:
    """2.5 bits a weight on average, scales included: what brings 70B onto one card of 24 GB (ExLlamaV2 README)."""
    model = load_model("Llama-2-70B")
    ends = 2 * 32_000 * 8192 * 2.0  # embedding and head, 16 bits
    linear = 80 * (2 * 8192 * 8192 + 2 * 8192 * 1024 + 3 * 8192 * 28_672)
    nbytes = float(weight_bytes(model, "exl2-2.5"))
    assert nbytes == pytest.approx(linear * 2.5 / 8 + ends, rel=1e-3)
    assert nbytes < 24e9


def test_sglang_caches_deepseek_v4_in_eight_bits() -> None:
    """SGLang 0.5.23, _deepseek_v4_kv_cache_dtype: `auto` is fp8_e4m3, bfloat16 is taken where one says so."""
    how: dict[str, Any] = {"gpu": "b200", "tp": 4, "engine": "sglang", "concurrency": 8}
    usual = flopwise.serve("DeepSeek-V4-Flash", **how).estimate
    stated = flopwise.serve("DeepSeek-V4-Flash", **how, kv_dtype="fp8").estimate
    plain = flopwise.serve("DeepSeek-V4-Flash", **how, kv_dtype="bf16").estimate
    assert usual.job.kv_dtype.name == "fp8"
    assert usual.memory.items == stated.memory.items
    assert usual.tpot_s == stated.tpot_s
    assert float(plain.memory.kv_capacity_tokens) < float(usual.memory.kv_capacity_tokens)
    assert plain.job.kv_dtype.name == "bf16"
    assert flopwise.serve("DeepSeek-V3", **how | {"gpu": "b200", "tp": 8}).estimate.job.kv_dtype.name == "bf16"
    assert flopwise.serve("DeepSeek-V4-Flash", **how | {"engine": "vllm"}).estimate.job.kv_dtype.name == "bf16"


def test_plans_cache_it_so_too_and_offer_16_bits() -> None:
    found = flopwise.plan(
        "DeepSeek-V4-Flash", task="serve", rate=5, gpus=("b200",), providers=("lambda",), engine="sglang",
        weights=("fp8",),
    )  # fmt: skip
    assert {one.layout["kv_dtype"] for one in found.plans} == {"fp8"}
    assert any("fp8, as sglang keeps it" in text for text in found.assumptions)
