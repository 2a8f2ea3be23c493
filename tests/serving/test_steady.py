"""A replica in steady state: conservation, limits, and what must hold for any model of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.cluster import cluster
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.closed_loop import closed_loop
from flopwise.serving.estimate import estimate
from flopwise.serving.iteration import StepLoad, prompt
from flopwise.serving.memory import ServingLayout
from flopwise.serving.open_loop import SteadyCurves, straight_lines
from flopwise.serving.steady import fixed_batch, launch_wait_s
from flopwise.serving.techniques import runner
from named import head_weight_bits, layer_weight_bits, product_path, serve_job_with

FACTS = load_facts()
H100 = cluster(FACTS.accelerator("H100-SXM-80"), gpus_per_node=8)
LLAMA = load_model("Llama-3.1-8B")
JOB = serve_job_with(model=LLAMA, cluster=H100, input_tokens=1000, output_tokens=200, concurrency=32)
MACHINE = runner(JOB)
ONE = ServingLayout()


def test_one_stream_reads_the_weights_once_a_token() -> None:
    """Batch 1 can be no faster than reading 15 GB of weights (16.06 GB less the embedding) at 3.35 TB/s."""
    result = estimate(replace(JOB, concurrency=1))
    assert result.tpot_s is not None
    floor = (16.06e9 - 128256 * 4096 * 2) / 3.35e12
    assert floor < result.tpot_s.value < 2.0 * floor


@settings(max_examples=30, deadline=None)
@given(users=st.integers(1, 200), inputs=st.integers(16, 8000), outputs=st.integers(2, 2000))
def test_littles_law_holds(users: int, inputs: int, outputs: int) -> None:
    steady = closed_loop(MACHINE, ONE, float(users), inputs, outputs)
    whole = float(steady.ttft_s) + (outputs - 1) * float(steady.tpot_s)
    assert float(steady.requests_per_s) * whole == pytest.approx(users, rel=1e-6)


@settings(max_examples=20, deadline=None)
@given(users=st.integers(1, 200))
def test_more_users_never_see_less_latency(users: int) -> None:
    less, more = (closed_loop(MACHINE, ONE, float(u), 1000, 200) for u in (users, 2 * users))
    assert float(more.tpot_s) >= float(less.tpot_s) * (1 - 1e-9)
    assert float(more.ttft_s) >= float(less.ttft_s) * (1 - 1e-9)
    assert float(more.output_tokens_per_s) >= float(less.output_tokens_per_s) * (1 - 1e-9)


def test_columns_equal_single_calls() -> None:
    users = np.array([1.0, 7.0, 64.0, 300.0])
    column = closed_loop(MACHINE, ServingLayout(tp=np.array([1, 2, 4, 8])), users, 1000, 200)
    for index, (user, tp) in enumerate(zip(users, (1, 2, 4, 8), strict=True)):
        single = closed_loop(MACHINE, ServingLayout(tp=tp), float(user), 1000, 200)
        for name in ("ttft_s", "tpot_s", "requests_per_s", "output_tokens_per_s"):
            assert np.ravel(getattr(column, name))[index] == pytest.approx(float(np.ravel(getattr(single, name))[0]))


def test_steps_lie_above_their_floor() -> None:
    for load in (
        StepLoad(decode_batch=1, decode_context=500),
        StepLoad(decode_batch=64, decode_context=2000, prefill_tokens=2048, prefill_context=2048),
    ):
        step = MACHINE.step(load, ONE)
        assert float(step.floor_s) <= float(step.seconds)
        parts = step.compute_s + step.memory_s + step.communication_s + step.overhead_s
        assert float(parts) == pytest.approx(float(step.seconds), rel=1e-9)


def test_a_fixed_batch_prefills_then_decodes() -> None:
    steady = fixed_batch(MACHINE, ONE, 16.0, 1000, 200)
    whole = float(steady.ttft_s) + 199 * float(steady.tpot_s)
    assert float(steady.requests_per_s) == pytest.approx(16 / whole)


def test_percentiles_order_and_saturation() -> None:
    curves = SteadyCurves.up_to(MACHINE, ONE, 32.0, 1000, 200)
    loop = curves.at(np.array([[0.7 * curves.most_per_s]]))
    seen = [loop.percentile(p) for p in ("p50", "p90", "p95", "p99")]
    assert (times := [np.asarray(s.ttft_s).item() for s in seen]) == sorted(times)
    assert (times := [np.asarray(s.tpot_s).item() for s in seen]) == sorted(times)
    flooded = curves.at(np.array([[1e6]])).percentile("p95")
    assert np.isinf(flooded.ttft_s)


def test_straight_lines_by_hand() -> None:
    """Between points, before the first, and beyond the last along the last line that rises, column by column."""
    points = np.array([[1.0, 1.0], [2.0, 1.5], [4.0, 1.5]])
    read = straight_lines(points, np.array([[0.5, 1.25], [3.0, 1.5], [6.0, 2.5]]))
    values = np.array([[10.0, 1.0], [20.0, 2.0], [24.0, 2.0]])
    assert read(values).tolist() == [[10.0, 1.5], [22.0, 2.0], [28.0, 4.0]]


def test_an_open_loop_is_the_mean_over_the_batches_of_random_arrivals() -> None:
    """A Poisson number is in flight: closed loops of each number, weighted; on one GPU and on eight."""
    layout = ServingLayout(tp=np.array([1, 8]))
    sizes = np.array([1.0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64])[:, None] * np.ones(2)
    columns = ServingLayout(tp=np.tile(layout.tp, 12))
    whole = closed_loop(MACHINE, columns, sizes.ravel(), 1000, 200)
    curves = SteadyCurves.of(MACHINE, columns, sizes, whole, 1000, 200)
    rates = np.asarray(whole.requests_per_s).reshape(12, 2)
    users = np.arange(1.0, 140.0)
    each = closed_loop(MACHINE, ServingLayout(tp=np.repeat(layout.tp, users.size)), np.tile(users, 2), 1000, 200)
    for share in (1.0, 0.97, 0.93, 0.8, 0.6, 0.45):
        arrivals = share * rates[2:]
        found = curves.at(arrivals).steady
        for column in range(2):
            for row, mean in enumerate(np.asarray(found.batch)[:, column]):
                odds = np.exp(users * np.log(mean) - mean - np.cumsum(np.log(users)))
                weights = odds / odds.sum()
                for exact, read in ((each.decode, found.decode), (each.mixed, found.mixed)):
                    expected = weights @ np.reshape(exact.seconds, (2, -1))[column]
                    assert np.asarray(read.seconds)[row, column] == pytest.approx(expected, rel=0.06)
                assert np.asarray(found.tpot_s)[row, column] == pytest.approx(
                    weights @ np.reshape(each.tpot_s, (2, -1))[column], rel=0.06
                )


def test_columns_of_curves_do_not_depend_on_each_other() -> None:
    layout = ServingLayout(tp=np.array([1, 8]))
    sizes = np.array([1.0, 4, 16, 64])[:, None] * np.ones(2)
    columns = ServingLayout(tp=np.tile(layout.tp, 4))
    whole = closed_loop(MACHINE, columns, sizes.ravel(), 1000, 200)
    rates = 0.9 * np.asarray(whole.requests_per_s).reshape(4, 2)
    loop = SteadyCurves.of(MACHINE, columns, sizes, whole, 1000, 200).at(rates)
    own = closed_loop(MACHINE, ServingLayout(tp=8), sizes[:, 1], 1000, 200)
    alone = SteadyCurves.of(MACHINE, ServingLayout(tp=8), sizes[:, 1:], own, 1000, 200).at(rates[:, 1:])
    for name in ("mean", "p50", "p99"):
        for both, one in zip(loop.percentile(name), alone.percentile(name), strict=True):
            assert np.asarray(both)[:, 1:] == pytest.approx(np.asarray(one), rel=1e-12)


def test_requests_beyond_the_memory_wait() -> None:
    crowded = estimate(replace(JOB, concurrency=5000))
    assert crowded.max_concurrency < 5000
    full = estimate(replace(JOB, concurrency=crowded.max_concurrency))
    assert crowded.throughput.value == pytest.approx(full.throughput.value, rel=0.01)
    assert crowded.ttft_s.value > full.ttft_s.value


def test_products_beside_experts_in_four_bits_are_in_eight() -> None:
    """DeepSeek-V4: attention, shared experts and the indexer by their own format, where experts have another."""
    model, a100 = load_model("DeepSeek-V4-Flash"), cluster(FACTS.accelerator("A100-SXM-80"))
    for where, experts, beside in ((H100, "int4_wo", "fp8_block"), (a100, "int4_wo", "int8_wo")):
        path = product_path(model, "mxfp4", where.rates)
        assert (path.dtype, path.weight_bits) == (experts, 4.25)
        assert path.eight is not None
        assert path.eight.parts == {"attention", "shared", "indexer"}
        assert path.eight.dtype == beside
        assert path.eight.weight_bits == pytest.approx(8.09, abs=0.01)  # some of the indexer's are in 16
    assert product_path(model, "nvfp4", H100.rates).eight is None
    assert product_path(load_model("gpt-oss-20b"), "mxfp4", H100.rates).eight is None
    job = serve_job_with(model=model, cluster=H100, weights="mxfp4", layout=ServingLayout(tp=4))
    machine, load = runner(job), StepLoad(decode_batch=8, decode_context=1024)
    path = product_path(model, "mxfp4", H100.rates)
    assert path.eight is not None
    kernels = machine.kernels_of(model.stacks[0].kinds[1].items, load, ServingLayout(tp=4), inside=True)
    bits = {k.work.name: machine._format(k.work, inside=True) for k in kernels if k.work.kind in {"matmul", "grouped"}}
    found = {name.split("/")[0]: how for name, how in bits.items()}
    assert found == {
        "attention": tuple(path.eight[1:]), "shared": tuple(path.eight[1:]), "indexer": tuple(path.eight[1:]),
        "experts": ("int4_wo", 4.25), "router": ("bf16", 16.0), "mlp": ("bf16", 16.0),
    }  # fmt: skip


def test_formats_and_the_units_they_run_on() -> None:
    a100 = cluster(FACTS.accelerator("A100-SXM-80"))
    assert product_path(LLAMA, "fp8", H100.rates).dtype == "fp8"
    path = product_path(LLAMA, "fp8", a100.rates)
    assert path.dtype == "int8_wo"
    assert path.note is not None
    assert "fp8" in path.note
    old, older = (cluster(FACTS.accelerator(name)).rates for name in ("V100-SXM2-16", "GTX 1080"))
    assert (old.peak_dtype("bf16"), older.peak_dtype("bf16")) == ("fp16", "fp32")
    with pytest.raises(MissingFactError, match="no fp4 rate"):
        a100.rates.peak_flops_per_s("nvfp4")
    assert layer_weight_bits(LLAMA, "bf16") == 16
    assert 8 < layer_weight_bits(LLAMA, "fp8") < 8.1
    assert 4 < layer_weight_bits(LLAMA, "awq") < 4.6


def test_formats_of_experts_leave_attention_in_16_bits() -> None:
    """By hand: MXFP4 is 4 bits and an 8-bit scale for 32 weights, 4.25; gpt-oss keeps the rest in bf16."""
    model, b200 = load_model("gpt-oss-120b"), cluster(FACTS.accelerator("B200"))
    job = serve_job_with(model=model, cluster=b200, weights="mxfp4", input_tokens=512, output_tokens=64, concurrency=4)
    load = StepLoad(decode_batch=4.0, decode_context=512.0)
    kernels = {k.work.name: k for k in runner(job).kernels_of(model.stacks[0].kinds[0].items, load, ONE, inside=True)}
    assert kernels["attention/o_proj"].weight_bits == kernels["router"].weight_bits == 16
    assert kernels["attention/o_proj"].dtype == "bf16"
    experts = kernels["experts/down_proj"]
    assert experts.weight_bits == pytest.approx(4.25, rel=0.01)
    assert experts.dtype == "w4a8_mxfp4_mxfp8"  # Blackwell multiplies 8-bit activations by them
    path = product_path(model, "mxfp4", H100.rates)
    assert path.dtype == "int4_wo"
    assert path.note is not None
    assert "no fp4 units" in path.note  # though it has those for 8 bits
    assert path.wide >= {"attention", "router"}
    assert not product_path(LLAMA, "awq", H100.rates).wide & {"attention", "mlp"}


def test_a_format_may_shorten_one_product_of_attention() -> None:
    """By hand: NVFP4 is 4 bits and an 8-bit scale for 16 weights, 4.5; the other projections stay in bf16."""
    model, b200 = load_model("DeepSeek-R1"), cluster(FACTS.accelerator("B200"))
    job = serve_job_with(
        model=model, cluster=b200, weights="nvfp4-mlp-o", input_tokens=512, output_tokens=64, concurrency=4
    )
    load = StepLoad(decode_batch=4.0, decode_context=512.0)
    kernels = {k.work.name: k for k in runner(job).kernels_of(model.stacks[0].kinds[-1].items, load, ONE, inside=True)}
    for name, dtype, bits in (
        ("attention/o_proj", "nvfp4", 4.5), ("attention/q_b_proj", "bf16", 16.0), ("attention/q_a_proj", "bf16", 16.0),
        ("experts/down_proj", "nvfp4", 4.5), ("shared/down_proj", "nvfp4", 4.5), ("router", "bf16", 16.0),
    ):  # fmt: skip
        assert kernels[name].dtype == dtype, name
        assert kernels[name].weight_bits == pytest.approx(bits, rel=1e-3), name


def test_encoders_answer_in_one_pass() -> None:
    bert = load_model("bert-base-uncased")
    result = estimate(serve_job_with(model=bert, cluster=H100, input_tokens=128, output_tokens=1, concurrency=8))
    assert result.tpot_s is None
    assert result.requests_per_s > 100


@pytest.mark.parametrize(
    ("change", "says"),
    [({"input_tokens": 10**7}, "exceeds the context"), ({"layout": ServingLayout(pp=64)}, "more than the 32 layers")],
)
def test_jobs_that_cannot_be(change: dict[str, object], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        estimate(replace(JOB, **change))  # type: ignore[arg-type]


def test_caches_that_grow_hold_more_sequences_than_reserved_ones() -> None:
    def most(engine: str, **how: object) -> int:
        job = replace(JOB, engine=FACTS.engine(engine), concurrency=None, input_tokens=500, output_tokens=8000, **how)  # type: ignore[arg-type]
        return estimate(job).max_concurrency

    one = (500 + 8000) / (500 + 4000)
    assert most("vllm") == pytest.approx(one * most("vllm", static=True), rel=0.05)
    assert most("tensorrt-llm") == most("tensorrt-llm", static=True)


def test_a_prompt_in_pieces_takes_a_step_for_each() -> None:
    whole, pieces = (
        estimate(replace(JOB, static=True, concurrency=1, prefill_tokens=n)).ttft_s.value for n in (1000, 1)
    )
    one = runner(replace(JOB, prefill_tokens=1)).step(StepLoad(prefill_tokens=1, prefill_context=1000), ONE).seconds
    assert pieces > 50 * whole
    assert pieces == pytest.approx(1000 * float(one), rel=0.05)


def test_kernels_in_a_chain_are_no_slower_and_no_faster_than_their_work() -> None:
    load = StepLoad(decode_batch=8, decode_context=1000)
    hidden = replace(MACHINE, engine=replace(MACHINE.engine, hidden_frac=1.0))
    alone = replace(MACHINE, engine=replace(MACHINE.engine, hidden_frac=0.0))
    for a, b in zip(
        *(m.kernels_of(LLAMA.stacks[0].kinds[0].items, load, ONE, inside=True) for m in (hidden, alone)), strict=True
    ):
        assert max(a.timing.compute_s, a.timing.memory_s) <= a.timing.seconds <= b.timing.seconds


def test_an_emulated_cache_format_costs_time_on_devices_without_its_units() -> None:
    a100 = cluster(FACTS.accelerator("A100-SXM-80"))
    load = StepLoad(decode_batch=64, decode_context=1500)
    for place, slower in ((a100, True), (H100, False)):
        machine = runner(replace(JOB, cluster=place))
        eight = replace(machine, kv_dtype=FACTS.cache_format("fp8")).step(load, ONE).seconds
        assert (eight > machine.step(load, ONE).seconds) == slower
        assert (
            replace(machine, kv_dtype=FACTS.cache_format("int8")).step(load, ONE).seconds
            < machine.step(load, ONE).seconds
        )


def test_engines_that_know_no_groups_read_the_cache_for_each_head() -> None:
    load = StepLoad(decode_batch=64, decode_context=4000)
    old = replace(MACHINE, engine=replace(MACHINE.engine, grouped_decode=False))
    attend = [
        k for k in old.kernels_of(LLAMA.stacks[0].kinds[0].items, load, ONE, inside=True) if k.work.kind == "attention"
    ]
    heads = [
        k
        for k in MACHINE.kernels_of(LLAMA.stacks[0].kinds[0].items, load, ONE, inside=True)
        if k.work.kind == "attention"
    ]
    assert attend[0].work.kv_elems == pytest.approx(4 * heads[0].work.kv_elems)  # 32 heads share 8


def test_further_stages_lose_a_share_of_the_step() -> None:
    layout = ServingLayout(pp=4)
    lossless = replace(MACHINE, engine=replace(MACHINE.engine, stage_loss=0.0))
    lossy = replace(MACHINE, engine=replace(MACHINE.engine, stage_loss=0.1))
    ratio = (
        closed_loop(lossy, layout, 64.0, 128, 500).decode.seconds
        / closed_loop(lossless, layout, 64.0, 128, 500).decode.seconds
    )
    assert float(ratio) == pytest.approx(1.3)


def test_files_of_llama_cpp_quantise_the_head() -> None:
    """Q6_K of the head is 6.5625 bits, and reading it is part of every step."""
    assert head_weight_bits(LLAMA, "Q4_K_M") == pytest.approx(6.5625)
    assert head_weight_bits(LLAMA, "fp8") == 16.0
    small = runner(replace(JOB, engine=FACTS.engine("llama.cpp"), weights=FACTS.weight_format("Q4_K_M")))
    load = StepLoad(decode_batch=1, decode_context=100)
    assert small.step(load, ONE).seconds < replace(small, head_bits=16.0).step(load, ONE).seconds


def test_engines_own_kernels_draw_no_more_than_a_core_can() -> None:
    """Reading 16-bit weights at `core_bytes_per_cycle` from every core is a floor of the step of llama.cpp."""
    machine = runner(replace(JOB, engine=FACTS.engine("llama.cpp")))
    chip = FACTS.accelerator("H100-SXM-80")
    assert chip.num_sms is not None
    assert chip.boost_clock_hz is not None
    drawn = machine.engine.core_bytes_per_cycle * chip.num_sms * chip.boost_clock_hz
    step = machine.step(StepLoad(decode_batch=1, decode_context=1), ONE)
    assert float(step.seconds) > (16.06e9 - 128256 * 4096 * 2) / drawn


def test_processors_are_no_port_of_old_kernels() -> None:
    """llama.cpp was written for processors: before 2025 they drew as much of their memory as since."""
    host = cluster(FACTS.accelerator("Xeon Platinum 8480+"), gpus_per_node=1)
    card = cluster(FACTS.accelerator("MI250-GCD"), gpus_per_node=1)
    drawn = {}
    for placed in (host, card):
        for engine in ("llama.cpp-2024", "llama.cpp"):
            machine = runner(replace(JOB, cluster=placed, engine=FACTS.engine(engine)))
            drawn[placed is host, engine] = machine.own_rates.value["dram_frac"]
    assert drawn[True, "llama.cpp-2024"] == drawn[True, "llama.cpp"]
    assert drawn[False, "llama.cpp-2024"] < 0.7 * drawn[False, "llama.cpp"]


def test_ports_of_old_kernels_are_slower_and_pass_prompts_on_one_device_at_a_time() -> None:
    card = cluster(FACTS.accelerator("MI250-GCD"), gpus_per_node=4)
    job = replace(JOB, cluster=card, static=True, concurrency=1, prefill_tokens=1, layout=ServingLayout(pp=4))
    old, new = (estimate(replace(job, engine=FACTS.engine(e))) for e in ("llama.cpp-2024", "llama.cpp"))
    assert old.ttft_s.value > 3.5 * new.ttft_s.value  # no pipeline, and slower kernels


def test_a_user_alone_waits_for_nobody() -> None:
    """No other prompt interrupts his answer, no step of others runs when his request comes; his own tokens are read."""
    steady = closed_loop(MACHINE, ONE, 1.0, 6000, 200)
    assert float(steady.tpot_s) == pytest.approx(float(steady.decode.seconds))
    host_s = MACHINE.engine.request_s + 6000 * MACHINE.engine.front_token_s
    assert float(steady.ttft_s) == pytest.approx(host_s + float(steady.mixed.seconds))
    two = closed_loop(MACHINE, ONE, 2.0, 6000, 200)
    assert float(two.tpot_s) > float(two.decode.seconds)


@pytest.mark.parametrize("mixes", [True, False])
@pytest.mark.parametrize("outputs", [2, 8, 64, 512])
def test_a_user_alone_reads_his_prompt_in_the_same_time_whatever_the_answer(outputs: int, mixes: bool) -> None:
    """Eight pieces of 2,048 tokens, and as many tokens of an answer or fewer: while he reads, nobody decodes."""
    chunked = replace(MACHINE, engine=replace(MACHINE.engine, prefill_tokens=2048, mixes=mixes))
    steady = closed_loop(chunked, ONE, 1.0, 16384, outputs)
    step = chunked.step(StepLoad(prefill_tokens=2048, prefill_context=(16384 + 2048) / 2, prompts=1), ONE)
    host_s = chunked.engine.request_s + 16384 * chunked.engine.front_token_s
    assert float(steady.ttft_s) == pytest.approx(host_s + 8 * float(step.seconds), rel=1e-6)


@pytest.mark.parametrize("outputs", [3, 7, 100, 200, 256])
def test_a_prompt_of_whole_tiles_has_no_tile_more(outputs: int) -> None:
    """1,024 tokens are eight tiles of 128, not nine, whatever share of the steps reads prompts."""
    steady = closed_loop(MACHINE, ONE, 1.0, 1024, outputs)
    step = MACHINE.step(StepLoad(prefill_tokens=1024, prefill_context=1024, prompts=1), ONE)
    assert float(steady.mixed.seconds) == pytest.approx(float(step.seconds), rel=1e-12)


def test_the_last_piece_of_a_prompt_takes_what_its_tokens_do() -> None:
    """3,072 tokens in steps of 2,048: two steps, and one and a half times what a full piece adds to one."""
    chunked = replace(MACHINE, engine=replace(MACHINE.engine, prefill_tokens=2048))
    steady = closed_loop(chunked, ONE, 1.0, 3072, 200)
    host_s = chunked.engine.request_s + 3072 * chunked.engine.front_token_s
    by_hand_s = 2 * float(steady.decode.seconds) + 1.5 * float(steady.mixed.seconds - steady.decode.seconds)
    assert float(steady.ttft_s) == pytest.approx(host_s + by_hand_s)


def test_a_request_waits_for_the_steps_that_are_planned_without_it() -> None:
    """An engine that has planned the next step when a request comes lets it wait for one step more."""
    eager, planned = (replace(MACHINE, engine=replace(MACHINE.engine, plans_ahead=ahead)) for ahead in (False, True))
    less, more = (closed_loop(m, ONE, 64.0, 200, 400) for m in (eager, planned))
    busy = 64 * float(more.added_s) / (400 * float(more.tpot_s))  # then a prompt waits for prompts, not for a plan
    assert float(more.ttft_s) - float(less.ttft_s) == pytest.approx((1 - busy) * float(more.tpot_s), rel=0.03)


def test_first_tokens_are_kept_until_the_next_prompts_are_launched() -> None:
    """Each kernel of a prompt takes the host 1 ms to launch, more than the device needs: a first token that another
    prompt follows goes out a launch later. In the first of ten rounds 63 of 64 prompts are followed, each in a step of
    its own, then as many as there are steps with prompts. A prompt that takes the device longer than two launches
    keeps nobody waiting, nor does one that shares its step with sequences that decode."""
    row: dict[str, Any] = {
        "prompt_graphs": False, "piecewise": False, "mixes": False, "prompt_graph_tokens": 0, "prefill_tokens": 1000,
        "layer_s": 0.0, "step_s": 0.0, "sequence_s": 0.0, "compiled_launch_frac": 1.0, "launch_s": 1e-3,
    }  # fmt: skip
    at_once, late = (
        replace(MACHINE, engine=replace(MACHINE.engine, tokens_after_launch=after, **row)) for after in (False, True)
    )
    one = prompt(LLAMA, 1000)
    alone = at_once.step(StepLoad(prefill_tokens=1000, prefill_context=1000), ONE)
    launch_s = 1e-3 * float(alone.launches)
    assert float(alone.seconds) == pytest.approx(launch_s)
    assert float(launch_wait_s(late, ONE, one, alone.seconds)) == pytest.approx(launch_s)
    assert float(launch_wait_s(late, ONE, one, 1.25 * launch_s)) == pytest.approx(0.75 * launch_s)
    assert float(launch_wait_s(late, ONE, one, 2.5 * launch_s)) == 0.0
    for never in (at_once, replace(late, engine=replace(late.engine, mixes=True))):
        assert float(launch_wait_s(never, ONE, one, alone.seconds)) == 0.0
    less, more = (closed_loop(machine, ONE, 64.0, 1000, 4000) for machine in (at_once, late))
    followed = (63 / 64 + 9 * 63 / 64 * float(less.prefill_share)) / 10
    assert float(more.ttft_s - less.ttft_s) == pytest.approx(followed * launch_s, rel=1e-6)
    assert float(more.tpot_s - less.tpot_s) == pytest.approx(-followed * launch_s / 3999, rel=1e-6)
    assert more.requests_per_s == less.requests_per_s
    arriving = np.array([[20 / (4000 * float(less.decode.seconds))]])  # for 20 that decode
    curves = [SteadyCurves.up_to(machine, ONE, 64.0, 1000, 4000).at(arriving) for machine in (at_once, late)]
    waits_s = curves[1].percentile("mean").ttft_s - curves[0].percentile("mean").ttft_s
    followed = (1 - np.exp(-np.asarray(curves[0].steady.batch))) * curves[0].steady.prefill_share
    assert np.all((followed > 0) & (followed < 0.2))
    assert waits_s == pytest.approx(followed * launch_s, rel=1e-6)


def test_prompts_in_steps_of_their_own_keep_every_answer_waiting() -> None:
    """Each of three others sends a prompt while a user is answered, and nobody decodes in its step."""
    apart = replace(MACHINE, engine=replace(MACHINE.engine, mixes=False))
    steady = closed_loop(apart, ONE, 4.0, 1000, 2000)
    prompt_s = float(apart.step(StepLoad(prefill_tokens=1000, prefill_context=1000, prompts=1), ONE).seconds)
    assert 1999 * float(steady.tpot_s - steady.decode.seconds) == pytest.approx(3 * prompt_s, rel=0.02)


def test_pieces_of_a_prompt_see_together_what_the_whole_sees() -> None:
    """Attention of four pieces of a long prompt: as many operations as that of the prompt in one step."""
    chunked = replace(MACHINE, engine=replace(MACHINE.engine, prefill_tokens=8192))
    whole = replace(MACHINE, engine=replace(MACHINE.engine, prefill_tokens=0))
    pieces, one = (closed_loop(m, ONE, 1.0, 32_768, 2) for m in (chunked, whole))
    head = 2.0 * LLAMA.vocab * 4096
    flops = [float(s.mixed.flops - s.decode.flops) for s in (pieces, one)]
    assert 4 * (flops[0] - head) == pytest.approx(flops[1] - head, rel=0.001)
