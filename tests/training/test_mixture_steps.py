"""What experts add to a training step: their messages, their gradients, and two published runs that no fit has seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from flopwise.cost.cluster import cluster
from flopwise.cost.collectives import all_to_all_s, groups_reached
from flopwise.cost.kernels import STREAMS, grouped_matmul_s
from flopwise.cost.sustained import grouped_kernel, training_rates
from flopwise.errors import SpecError
from flopwise.facts.architecture import Experts, Model
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.facts.software import TrainingStack
from flopwise.ops.backward import backward_works
from flopwise.ops.saved import Setting, trace_items
from flopwise.ops.shapes import Shape, Split
from flopwise.ops.work import item_work
from flopwise.options import OptionError
from flopwise.search.layout_search import layout_search
from flopwise.training.blocks import BlockKernel, added_grad_bytes, kernels_of, recomputed_modules
from flopwise.training.estimate import TrainEstimate, estimate, single_table
from flopwise.training.job import TrainJob
from flopwise.training.layer_sums import FINE, kept_bytes
from flopwise.training.layout import Layout
from flopwise.training.memory import step_memory
from flopwise.training.on_device import recipe_on
from flopwise.training.schedules import schedule_code
from flopwise.training.spec import TrainingSpec
from flopwise.training.step_table import block_contexts
from named import FACTS, recipe_with, train_answer

H800 = cluster(load_facts().accelerator("H800-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)


def drawn(parts: int, copies: int, pools: int, top: int, tries: int = 20_000) -> float:
    """Groups with a copy, on average over random draws: `copies` of 64 ranks, those of `top` of `pools` pools alone."""
    ranks, random = 64, np.random.default_rng(7)
    each, total = ranks // pools, 0
    for _ in range(tries):
        chosen = random.permutation(pools)[:top]
        rank = chosen[random.integers(top, size=copies)] * each + random.integers(each, size=copies)
        total += len(set((rank * parts // ranks).tolist()))
    return total / tries


@pytest.mark.parametrize(("parts", "copies", "pools", "top"), [
    (8, 8, 1, 1), (8, 8, 8, 4), (8, 6, 8, 3), (4, 8, 8, 4), (16, 8, 8, 4), (64, 8, 8, 4), (2, 8, 8, 2), (8, 1, 8, 4),
    (1, 8, 8, 4),
])  # fmt: skip
def test_groups_with_a_copy_are_as_many_as_random_draws_find(parts: int, copies: int, pools: int, top: int) -> None:
    assert float(groups_reached(float(parts), copies, pools, top)) == pytest.approx(
        drawn(parts, copies, pools, top), rel=0.03
    )


def test_a_limit_on_groups_only_ever_saves_crossings() -> None:
    for ranks, top in product((16, 32, 64), (1, 2, 4)):
        free = float(all_to_all_s(H800.fabric, 1e8, ranks, copies=8))
        limited = float(all_to_all_s(H800.fabric, 1e8, ranks, copies=8, pools=8, top_pools=top))
        assert limited <= free * (1 + 1e-9)
    model = load_model("DeepSeek-V3")
    experts = next(i for kind in model.stacks[0].kinds for i in kind.items if isinstance(i, Experts))
    assert (experts.groups, experts.top_groups) == (8, 4)
    others = load_model("Qwen3-30B-A3B").stacks[0].kinds[0].items
    assert {(i.groups, i.top_groups) for i in others if isinstance(i, Experts)} == {(1, 1)}


def deepseek(
    name: str, *, batch: int, gpus: int, precision: Any, schedule: str, stack: str = "hai-llm", **layout: int
) -> TrainEstimate:
    shape: dict[str, Any] = {"dp": gpus // layout["pp"], "zero": 1, "recompute": 1, **layout}
    recipe = recipe_with(seq_len=4096, global_batch=batch, precision=precision, stack=stack)
    found = Layout(schedule=schedule_code(schedule), **shape)
    return estimate(TrainJob(model=load_model(name), recipe=recipe, layout=found, cluster=H800))


V2 = {
    "batch": 9216, "gpus": 1024, "precision": "bf16", "schedule": "zero-bubble", "pp": 16, "ep": 8,
    "stack": "hai-llm-2024",
}  # fmt: skip
"""DeepSeek-V2 (arXiv 2405.04434) sections 2.4 and 3.1: 172.8 k H800-hours a trillion tokens; attention of 3.1.3."""
V3 = {"batch": 15360, "gpus": 2048, "precision": "fp8_block", "schedule": "dualpipe", "pp": 16, "ep": 64}
"""DeepSeek-V3 (arXiv 2412.19437) sections 1, 3 and 4.2: 180 k H800-hours a trillion tokens."""


DEEPSEEK = [("DeepSeek-V2", 172.8e3, V2), ("DeepSeek-V3", 180e3, V3)]


@pytest.mark.parametrize(("name", "hours", "options"), DEEPSEEK)
def test_published_runs_on_h800(name: str, hours: float, options: dict[str, Any]) -> None:
    found = deepseek(name, **options)
    assert found.tokens_per_s_per_gpu == pytest.approx(1e12 / (hours * 3600), rel=0.12)


@pytest.mark.parametrize(("name", "hours", "options"), DEEPSEEK)
def test_published_runs_on_h800_are_in_the_interval_and_fit(name: str, hours: float, options: dict[str, Any]) -> None:
    found = deepseek(name, **options)
    assert found.low < 1e12 / (hours * 3600) < found.high
    assert float(found.memory.total_bytes) < 1.05 * 80 * 2**30  # they ran


def test_tokens_sent_in_eight_bits_take_three_quarters_of_the_wires() -> None:
    shape: dict[str, Any] = {"batch": 4096, "gpus": 512, "schedule": "1f1b", "pp": 8, "ep": 64}
    wide, narrow = (deepseek("DeepSeek-V3", precision=p, **shape) for p in ("bf16", "fp8"))
    lines = [dict(found.breakdown)["expert_parallel"] for found in (wide, narrow)]
    assert lines[1] == pytest.approx(0.75 * lines[0], rel=0.05)
    assert not FACTS.stack("in-house").fp8_dispatch


def test_gradients_of_experts_have_the_operations_of_their_products_and_their_own_shapes() -> None:
    kind = load_model("Qwen3-30B-A3B").stacks[0].kinds[0]
    item = next(i for i in kind.items if isinstance(i, Experts) and i.shard == "column")
    work = item_work(item, Shape(batch=8, query=4096, context=4096), Split(ep=8))
    assert work is not None
    forward = 2.0 * float(np.asarray(work.m)) * float(np.asarray(work.n)) * float(np.asarray(work.k))
    for one in backward_works([work], trainable="all"):
        m, n, k = (float(np.asarray(x)) for x in (one.m, one.n, one.k))
        assert 2.0 * m * n * k == pytest.approx(forward)
        if one.name.endswith("/wgrad"):
            held = float(np.asarray(work.touched))
            assert (m, n) == pytest.approx((item.inputs * held, item.outputs))  # as many gradients as weights
            assert k == pytest.approx(float(np.asarray(work.m)) / held)  # summed over an expert's own rows


def test_bytes_of_adding_gradients_by_hand() -> None:
    def added(stack: str, precision: str = "bf16") -> float:
        return added_grad_bytes(recipe_with(seq_len=4096, stack=stack, precision=precision))

    assert added("megatron-te") == 4 + 4 - 2, "read and written in fp32, not written in bf16"
    assert added("megatron-deepspeed") == 2 + 4 + 4
    assert added("megatron-deepspeed", "fp16") == 2 + 2 + 2
    assert added("fsdp-compile") == 0


def test_small_micro_batches_pay_for_adding_gradients() -> None:
    """As many tokens in more micro-batches: each adds all gradients again."""
    model, machine = load_model("Llama-3.1-8B"), cluster(load_facts().accelerator("H100-SXM-80"))
    ratios = []
    for micro in (1, 8):
        recipe = recipe_with(seq_len=1024, global_batch=64, stack="megatron-te")
        job = TrainJob(model=model, recipe=recipe, layout=Layout(micro_batch=micro), cluster=machine)
        plain = replace(job, recipe=replace(recipe, stack=FACTS.stack("fsdp-te")))
        adding, without = (dict(estimate(one).breakdown)["backward"] for one in (job, plain))
        ratios.append(adding / without)
    assert ratios[0] > ratios[1] >= 1.0


def test_fine_recompute_keeps_what_its_report_says() -> None:
    """DeepSeek-V3, section 3.2.3: no norms, no queries, keys and values, no activations; 8 bits for experts' inputs."""
    model = load_model("DeepSeek-V3")
    layer, width = model.stacks[0].kinds[-1], model.stacks[0].width
    whole = {
        k: float(v)
        for k, v in trace_items(layer.items, Setting(shape=Shape(batch=1, query=1, context=1)), width).kept.items()
    }
    given = Setting(shape=Shape(batch=1, query=1, context=1))
    kept = float(kept_bytes(layer, width, given, modules=FINE))
    gone = sum(whole[f"attention/attend/{x}"] for x in "qkv") + whole["experts/act"] + whole["experts/down_proj"]
    assert kept < sum(whole.values()) - gone
    narrow = float(kept_bytes(layer, width, given, modules=FINE, eight_bits=True))
    experts = whole["experts/gate_up_proj/permuted"] + whole["experts/gate_up_proj"]
    assert kept - narrow == pytest.approx(experts / 2)
    options: dict[str, Any] = {**V3, "schedule": "1f1b"}
    none, fine, full = (deepseek("DeepSeek-V3", **options, recompute=mode) for mode in range(3))
    held = [float(found.memory.items["activations"]) for found in (none, fine, full)]
    again = [dict(found.breakdown)["recompute"] for found in (none, fine, full)]
    assert held[0] > 2 * held[1] > 4 * held[2]
    assert again[0] == 0 < again[1] < 0.4 * again[2]


def test_head_and_embedding_are_never_computed_again() -> None:
    """Full recompute is that of layers: the head, a fifth of the model's products here, runs once."""
    machine = cluster(load_facts().accelerator("H100-SXM-80"))
    recipe = recipe_with(seq_len=2048, global_batch=4, stack="megatron-te")
    none, full = (
        dict(estimate(TrainJob(model=load_model("Llama-3.2-1B"), recipe=recipe, layout=one, cluster=machine)).breakdown)
        for one in (Layout(), Layout(recompute=2))
    )
    assert none["recompute"] == 0
    assert 0.5 * full["forward"] < full["recompute"] < 0.85 * full["forward"]


def test_products_of_single_experts_fill_the_device_as_many_at_once_as_there_are_streams() -> None:
    """Kernels of their own: 64 experts in 16 turns of four streams; in one kernel all tiles share the last wave."""
    rates = training_rates(H800.rates, FACTS.stack("megatron-te"), "bf16")
    rows, width, inter, experts = 64 * 128.0, 2048.0, 768.0, 64.0
    split = grouped_matmul_s(rates, rows, inter, width, experts)
    four = grouped_matmul_s(rates, rows / 16, inter, width, 4.0)
    assert split.compute_s == pytest.approx(16 * four.compute_s)
    together = replace(rates, value={n: v for n, v in rates.value.items() if n != STREAMS})
    assert split.compute_s > grouped_matmul_s(together, rows, inter, width, experts).compute_s
    wide = grouped_matmul_s(rates, 16 * 8192.0, 8192.0, 4096.0, 16.0)  # waves without end: streams no longer matter
    whole = grouped_matmul_s(together, 16 * 8192.0, 8192.0, 4096.0, 16.0)
    assert wide.compute_s == pytest.approx(whole.compute_s, rel=0.05)


GB300 = cluster(FACTS.accelerator("GB300"), gpus_per_node=8)


def recipe_step(model: str, precision: str, stack: TrainingStack, **layout: int) -> TrainEstimate:
    recipe = replace(recipe_with(seq_len=4096, global_batch=512, precision=precision, stack="nemo"), stack=stack)
    shape: dict[str, Any] = {"dp": 8, "ep": 8, "zero": 1, "micro_batch": 4, **layout}
    return estimate(TrainJob(model=load_model(model), recipe=recipe, layout=Layout(**shape), cluster=GB300))


def test_recorded_steps_of_fused_experts_wait_for_no_host_and_hide_their_messages() -> None:
    """Megatron-Bridge pull requests 3983, 4249 and 4606, in MXFP8; in 16 bits nothing changes, nor for ungated experts.

    Of 16 micro-batches 15 have a pass beside them; a hidden message still slows that by its contention.
    """
    fused = FACTS.stack("nemo-2026")
    plain = replace(fused, fused_experts=False)
    for name, precision in (("Qwen3-30B-A3B", "bf16"), ("Nemotron-3-Nano-30B-A3B", "mxfp8")):
        assert recipe_step(name, precision, fused).step_s == recipe_step(name, precision, plain).step_s
    short = [dict(recipe_step("Qwen3-30B-A3B", "mxfp8", one, micro_batch=1).breakdown) for one in (plain, fused)]
    assert short[0]["launch"] > 0.2 * sum(short[0].values())
    assert short[1]["launch"] == 0.0
    before, after = (dict(recipe_step("Qwen3-30B-A3B", "mxfp8", one).breakdown) for one in (plain, fused))
    alone = dict(recipe_step("Qwen3-30B-A3B", "mxfp8", replace(plain, ep_overlap=0.0)).breakdown)["expert_parallel"]
    contention = GB300.rates.value["train_contention"]
    shown = (1 - fused.ep_overlap) * alone
    assert before["expert_parallel"] == pytest.approx(shown)
    assert after["expert_parallel"] == pytest.approx(shown / 16 + contention * alone * 15 / 16)


def test_messages_between_nodes_run_beside_other_passes_where_stages_have_several_chunks() -> None:
    """NVIDIA's recipes of DeepSeek-V3 on B200: two chunks and 32 ranks of experts over four nodes, April 2026.

    128 micro-batches over 2 chunks are 256 passes, of which 2 x 7 + 8 + 1 fill the pipeline; what hides still slows the
    passes beside it by its contention. One chunk a stage, or the experts of one node: nothing hides.
    """
    b200 = cluster(FACTS.accelerator("B200"), gpus_per_node=8, network_bytes_per_s_per_gpu=100e9)
    stack, model = FACTS.stack("nemo"), load_model("DeepSeek-V3")
    sent = {}
    for paired, ep, chunks in product((True, False), (8, 32), (1, 2)):
        recipe = recipe_with(
            seq_len=4096, global_batch=4096, precision="mxfp8", stack=replace(stack, pairs_network=paired)
        )
        layout = Layout(dp=32, pp=8, ep=ep, zero=1, interleave=chunks)
        found = estimate(TrainJob(model=model, recipe=recipe, layout=layout, cluster=b200))
        sent[paired, ep, chunks] = dict(found.breakdown)["expert_parallel"]
    for ep, chunks in ((8, 1), (8, 2), (32, 1)):
        assert sent[True, ep, chunks] == sent[False, ep, chunks] > 0
    contention, beside = b200.rates.value["train_contention"], 1 - (2 * 7 + 8 + 1) / 256
    assert sent[True, 32, 2] == pytest.approx(sent[False, 32, 2] * (1 - beside * (1 - contention)), rel=0.02)


def test_experts_without_a_gate_are_multiplied_one_by_one() -> None:
    """cuDNN's fused grouped products end in a gated activation, which Nemotron 3's squared ReLU is not."""
    fused = recipe_with(seq_len=4096, global_batch=64, precision="mxfp8", stack=FACTS.stack("nemo-2026"))
    jobs = {
        name: TrainJob(model=load_model(name), recipe=fused, layout=Layout(dp=8, ep=8, zero=1), cluster=GB300)
        for name in ("Nemotron-3-Nano-30B-A3B", "Qwen3-30B-A3B")
    }
    kinds = {name: grouped_kernel(job.recipe.stack, job.recipe.precision) for name, job in jobs.items()}
    assert kinds == {"Nemotron-3-Nano-30B-A3B": "split", "Qwen3-30B-A3B": "fused"}
    assert jobs["Qwen3-30B-A3B"].recipe is fused
    space = layout_search(load_model("Nemotron-3-Nano-30B-A3B"), fused, most=8)
    assert space.recipe == jobs["Nemotron-3-Nano-30B-A3B"].recipe


def test_activation_of_fused_experts_is_part_of_their_product() -> None:
    """Qwen3-30B-A3B: forward two halves of 768 read and one written for each of 8 experts of a token, in 16 bits."""
    fused = FACTS.stack("nemo-2026")
    plain = replace(fused, fused_experts=False)
    lines = [dict(recipe_step("Qwen3-30B-A3B", "mxfp8", one).breakdown) for one in (plain, fused)]
    tokens = 512 * 4096 / 8
    moved = 48 * tokens * 8 * (2 * 768 + 768) * 2 * fused.pointwise_traffic
    saved = [lines[0][name] - lines[1][name] for name in ("forward", "backward")]
    rate = GB300.rates.value["dram_frac"] * GB300.rates.value["pointwise_frac"] * 8e12
    assert saved[0] == pytest.approx(moved / rate, rel=0.05)
    assert saved[1] == pytest.approx(5 / 3 * saved[0], rel=0.1)  # three read, the halves' gradients written
    biased = [dict(recipe_step("gpt-oss-120b", "mxfp8", one).breakdown)["forward"] for one in (plain, fused)]
    assert biased[0] == biased[1]  # the fused kernel has no biases


def test_a_plain_all_to_all_sends_a_token_to_every_expert_and_node_dispatch_to_every_node() -> None:
    """Of eight experts on 64 ranks over eight nodes, copies to one node share the crossing: DeepEP's README."""
    stack = replace(FACTS.stack("nemo"), ep_overlap=0.0)  # the wires alone
    lines = []
    for software in (stack, replace(stack, dispatch="expert")):
        recipe = recipe_with(seq_len=4096, global_batch=64, stack=software)
        layout = Layout(dp=64, ep=64, zero=1)
        found = estimate(TrainJob(model=load_model("Qwen3-30B-A3B"), recipe=recipe, layout=layout, cluster=H800))
        lines.append(dict(found.breakdown)["expert_parallel"])
    sent = [float(all_to_all_s(H800.fabric, 1e9, 64, copies=copies)) for copies in (8, 1)]
    assert lines[1] / lines[0] == pytest.approx(sent[1] / sent[0], rel=0.02)
    assert lines[1] > 1.2 * lines[0]


@pytest.mark.parametrize(("ranks", "pools", "top"), [(8, 8, 3), (64, 1, 1)])
def test_a_token_that_is_sent_once_to_a_device_shares_its_copies_there(ranks: int, pools: int, top: int) -> None:
    """DeepSeek-V2 report, section 2.2.2: by the devices that a token's six experts cover, three at most.

    In one node that is what goes to each node's ranks; between nodes copies for ranks of one do not share the network.
    """
    model, plain = load_model("DeepSeek-V2"), replace(FACTS.stack("hai-llm-2024"), ep_overlap=0.0)
    if pools == 1:
        model = load_model("Qwen3-30B-A3B")
    copies, lines = (6 if pools > 1 else 8), {}
    for way in ("expert", "device", "node"):
        recipe = recipe_with(seq_len=4096, global_batch=64, stack=replace(plain, dispatch=way))
        job = TrainJob(model=model, recipe=recipe, layout=Layout(dp=64, ep=ranks, zero=1), cluster=H800)
        lines[way] = dict(estimate(job).breakdown)["expert_parallel"]
    assert lines["device"] / lines["expert"] == pytest.approx(drawn(ranks, copies, pools, top) / copies, rel=0.03)
    if ranks == 8:
        assert lines["device"] == pytest.approx(lines["node"])
    else:
        assert lines["device"] > 1.2 * lines["node"]


def test_attention_sinks_without_a_fused_kernel_write_their_scores() -> None:
    """GPT-OSS: the softmax has a column of its own, which kernels without it leave to eager attention."""
    stack = FACTS.stack("fsdp-eager")
    assert not stack.fused_sinks
    forward = []
    for software in (stack, replace(stack, fused_sinks=True)):
        for name in ("GPT-OSS-20B", "Qwen3-30B-A3B"):
            recipe = recipe_with(seq_len=4096, global_batch=64, stack=software)
            job = TrainJob(model=load_model(name), recipe=recipe, layout=Layout(dp=8, ep=8, zero=3), cluster=H800)
            forward.append(dict(estimate(job).breakdown)["forward"])
    assert forward[0] > 1.05 * forward[2]  # with sinks
    assert forward[1] == forward[3]  # without


@pytest.mark.parametrize("stack", ["hf-trainer-2026", "axolotl"])
def test_sinks_cost_no_scores_where_transformers_has_a_kernel_for_them(stack: str) -> None:
    """GPT-OSS of 24 layers and 64 heads at 65,536 tokens: a layer's scores alone are 64 x 65,536^2 x 24 bytes, 6.6 TB.

    Half of the layers have a window. At 3.35 TB/s the scores of the other twelve take 24 s, forward.
    """
    seconds = []
    for software in (FACTS.stack(stack), replace(FACTS.stack(stack), fused_sinks=False)):
        recipe = recipe_with(seq_len=65_536, global_batch=8, stack=software)
        job = TrainJob(model=load_model("GPT-OSS-20B"), recipe=recipe, layout=Layout(dp=8, zero=3), cluster=H800)
        seconds.append(dict(estimate(job).breakdown)["forward"])
    assert seconds[1] - seconds[0] > 10.0
    assert seconds[0] < 5.0


def test_megatron_hides_what_its_options_are_set_to_hide() -> None:
    """All that NVIDIA's recipes turn on, replicas' messages alone as people run it, nothing with its defaults."""
    plain, usual, tuned = (FACTS.stack(name) for name in ("megatron-plain", "megatron-te", "nemo"))
    assert (plain.tp_overlap, plain.ep_overlap, plain.dp_overlap, plain.dispatch) == (0.0, 0.0, 0.0, "expert")
    assert (usual.tp_overlap, usual.ep_overlap, usual.dispatch) == (0.0, 0.0, "expert")
    assert usual.dp_overlap > 0
    assert min(tuned.tp_overlap, tuned.dp_overlap) > 0
    assert (tuned.ep_overlap, tuned.pairs_network) == (0.0, True)
    assert tuned.dispatch == "node"
    found = []
    for software in (plain, usual, tuned):
        recipe = recipe_with(seq_len=4096, global_batch=64, stack=software)
        layout = Layout(dp=16, tp=4, zero=1, micro_batch=1)
        job = TrainJob(model=load_model("Llama-3.1-8B"), recipe=recipe, layout=layout, cluster=H800)
        found.append(estimate(job))
    assert found[0].step_s > 1.02 * found[1].step_s
    assert found[1].step_s > 1.05 * found[2].step_s


UPCYCLED = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_key_value_heads": 8}
FOLDED: dict[str, tuple[Model, dict[str, int]]] = {
    "Mixtral-8x22B": (load_model("Mixtral-8x22B"), {"tp": 2, "pp": 8, "ep": 8, "interleave": 7}),
    "Qwen2-57B-A14B": (load_model("Qwen2-57B-A14B"), {"tp": 2, "pp": 4, "ep": 4, "interleave": 7}),
    "Llama3-8x70B": (
        model_from_config(
            UPCYCLED | {
                "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
                "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 128256,
            },
            name="Llama3-8x70B",
        ),
        {"tp": 8, "pp": 16, "ep": 8, "interleave": 5},
    ),
    "Mixtral-8x22B-G8T8": (
        model_from_config(
            UPCYCLED | {
                "hidden_size": 6144, "intermediate_size": 2048, "num_hidden_layers": 56, "num_attention_heads": 48,
                "num_local_experts": 64, "num_experts_per_tok": 8, "vocab_size": 32768,
            },
            name="Mixtral-8x22B-G8T8",
        ),
        {"tp": 4, "pp": 8, "ep": 8, "interleave": 7},
    ),
}  # fmt: skip
"""Models of arXiv 2504.14960 (section 4.1: two are upcycled, of one two experts a token are assumed), with the mapping
of table 3 whose experts lie over tensor ranks, too, and the deepest interleave."""


@pytest.mark.parametrize(("model", "gpus", "batch", "mfu"), [
    ("Mixtral-8x22B", 128, 256, 0.493), ("Qwen2-57B-A14B", 64, 256, 0.390), ("Llama3-8x70B", 256, 256, 0.416),
    ("Mixtral-8x22B-G8T8", 128, 256, 0.288),
    ("Mixtral-8x22B", 128, 1024, 0.522), ("Mixtral-8x22B", 256, 1024, 0.507), ("Mixtral-8x22B", 512, 1024, 0.489),
    ("Mixtral-8x22B", 1024, 1024, 0.449), ("Qwen2-57B-A14B", 64, 1024, 0.399), ("Qwen2-57B-A14B", 128, 1024, 0.397),
    ("Qwen2-57B-A14B", 256, 1024, 0.381), ("Qwen2-57B-A14B", 512, 1024, 0.366),
    ("Qwen2-57B-A14B", 1024, 1024, 0.334), ("Llama3-8x70B", 512, 1024, 0.427), ("Llama3-8x70B", 1024, 1024, 0.415),
    ("Mixtral-8x22B-G8T8", 128, 1024, 0.300), ("Mixtral-8x22B-G8T8", 256, 1024, 0.293),
    ("Mixtral-8x22B-G8T8", 512, 1024, 0.267), ("Mixtral-8x22B-G8T8", 1024, 1024, 0.255),
])  # fmt: skip
def test_published_mixtures_on_h100(model: str, gpus: int, batch: int, mfu: float) -> None:
    """Within 20 % of arXiv 2504.14960, tables 3 and 4, which count attention in full; no row of the fit knows these.

    Sections 4.2 and 4.3: a capacity of one mean load, 4,096 tokens; batches of 256, of 1,024 where GPUs are scaled.
    """
    described, layout = FOLDED[model]
    shape: dict[str, Any] = {"dp": gpus // (layout["tp"] * layout["pp"]), "zero": 1, **layout}
    recipe = recipe_with(seq_len=4096, global_batch=batch, stack="megatron-te")
    recipe = replace(recipe, ranks_per_expert=1, capacity_factor=1.0)
    h100 = cluster(load_facts().accelerator("H100-SXM-80"), gpus_per_node=8, network_bytes_per_s_per_gpu=50e9)
    found = estimate(TrainJob(model=described, recipe=recipe, layout=Layout(**shape), cluster=h100))
    assert found.mfu_full_attention_frac == pytest.approx(mfu, rel=0.2)


MIXTRAL = load_model("Mixtral-8x22B")
"""56 layers, 8 experts of 3 x 6,144 x 16,384, two of them for a token; 48 heads and 8 key-value heads of 128."""


def one_layer(stack: str, tokens: int, *, ranks_per_expert: int | None = None, **degrees: Any) -> dict[str, float]:
    """Seconds of the step's lines, of one micro-batch of `tokens` without a pipeline, on one node."""
    recipe = recipe_with(seq_len=tokens, global_batch=degrees.get("dp", 1), stack=stack)
    recipe = replace(recipe, ranks_per_expert=ranks_per_expert)
    job = TrainJob(model=MIXTRAL, recipe=recipe, layout=Layout(zero=1, **degrees), cluster=H800)
    return dict(estimate(job).breakdown)


def test_whole_experts_take_their_ranks_from_tensor_groups_too() -> None:
    """arXiv 2504.14960: tp 2 x dp 4 holds ep 8; an expert that tp cuts would need dp 8."""
    folded = one_layer("megatron-te", 4096, tp=2, dp=4, ep=8)
    assert folded["expert_parallel"] > 0
    with pytest.raises(SpecError, match="ep 8 does not divide dp x cp = 4"):
        one_layer("megatron-te", 4096, ranks_per_expert=2, tp=2, dp=4, ep=8)
    with pytest.raises(SpecError, match="ep 16 does not divide tp x dp x cp = 8"):
        one_layer("megatron-te", 4096, tp=2, dp=4, ep=16)
    with pytest.raises(SpecError, match="expert tp 3 does not divide tp 8"):
        one_layer("megatron-te", 4096, ranks_per_expert=3, tp=8, dp=1)
    with pytest.raises(SpecError, match="expert tp 4 does not divide tp 2"):
        one_layer("megatron-te", 4096, ranks_per_expert=4, tp=2, dp=4)


def test_tensor_groups_of_whole_experts_send_half_of_the_layer_s_messages() -> None:
    """One row-parallel product is left of two: what attention sends is all."""
    cut, whole = (one_layer("megatron-te", 4096, ranks_per_expert=n, tp=2, dp=4, ep=4) for n in (2, 1))
    assert whole["tensor_parallel"] == pytest.approx(0.5 * cut["tensor_parallel"], rel=1e-9)


def test_whole_experts_compute_what_their_rank_brings() -> None:
    """Rows of an expert's product: tokens x top k x ranks / experts, of 1/tp of the tokens where experts are whole.

    By hand, 4,096 tokens, top 2 of 8 experts, tp 2, ep 4: cut, a rank has 2 experts of half the width and the tokens of
    4 ranks, 8,192 rows in all; whole, 2 experts of all the width and half of these tokens, 4,096 rows.
    """
    experts = next(i for k in MIXTRAL.stacks[0].kinds for i in k.items if isinstance(i, Experts) and i.shard == "row")
    shape = Shape(batch=1, query=4096, context=4096)
    for expert_tp, rows, width in ((2, 8192, 8192), (1, 4096, 16384)):
        work = item_work(experts, shape, Split(tp=2, ep=4, expert_tp=expert_tp))
        assert work is not None
        assert (work.m, work.groups, work.k, work.n) == (rows, 2, width, 6144)
        assert work.flops == 2 * rows * width * 6144


def test_ranks_with_the_same_experts_share_their_states() -> None:
    """tp 2 x dp 4 and ep 8: each expert is once in the group, so that ZeRO 1 shards nothing of it.

    By hand of Mixtral 8x22B's 56 layers: a rank holds one expert of 3 x 6,144 x 16,384, 16.9e9 weights, its fp32
    gradients whole; cut by tp with ep 4, half of two experts, as many. States: 12 bytes a weight over the ranks with
    the same experts: one, and one again (dp 4 / ep 4).
    """
    sizes = []
    for ep, ranks_per_expert in ((8, 1), (4, 2), (4, 1)):
        recipe = replace(recipe_with(seq_len=4096, stack="megatron-te"), ranks_per_expert=ranks_per_expert)
        sizes.append(step_memory(MIXTRAL, recipe, Layout(tp=2, dp=4, ep=ep, zero=1)).items)
    expert = 56 * 3 * 6144 * 16384
    weights = [dict(items)["weights"] for items in sizes]
    assert weights[0] == pytest.approx(weights[1], rel=1e-6)
    assert weights[2] - weights[0] == pytest.approx(2 * expert, rel=1e-6)  # two whole experts a rank
    states = [dict(items)["optimizer states"] for items in sizes]
    assert states[0] == pytest.approx(states[1], rel=1e-6)
    assert states[2] == pytest.approx(states[0], rel=1e-6)  # twice the experts, two ranks for each


def test_named_modules_run_again_alone() -> None:
    """Megatron-Core's `recompute_modules`: a whole layer of experts runs and sends its tokens once more.

    By hand: forward, backward and the messages of two passes become three of each experts' part; attention, whose
    kernels and results stay, adds nothing.
    """
    layer, width = MIXTRAL.stacks[0].kinds[0], 6144
    plain = recipe_with(seq_len=4096, global_batch=8, stack="megatron-te")
    layout = Layout(dp=8, ep=8, zero=1)
    none, attention, moe = (
        estimate(TrainJob(model=MIXTRAL, recipe=replace(plain, modules=modules), cluster=H800,
                          layout=replace(layout, recompute=1 if modules else 0)))
        for modules in ((), ("core_attn",), ("moe",))
    )  # fmt: skip
    lines = [dict(found.breakdown) for found in (none, attention, moe)]
    assert lines[0]["recompute"] == 0
    assert lines[2]["expert_parallel"] == pytest.approx(1.5 * lines[0]["expert_parallel"], rel=1e-9)
    assert lines[1]["expert_parallel"] == pytest.approx(lines[0]["expert_parallel"], rel=1e-9)
    again = [line["recompute"] for line in lines]
    assert 0 < again[1] < again[2] < lines[0]["forward"]
    given = Setting(shape=Shape(batch=1, query=4096, context=4096), split=Split(), elem_bytes=2.0)
    whole, without = (float(kept_bytes(layer, width, given, modules=m)) for m in ((), ("moe",)))
    kept = {key for item in layer.items if item.name.startswith(("router", "experts/")) for key in [item.name]}
    trace = trace_items(layer.items, given, width)
    experts = sum(float(n) for key, n in trace.kept.items() if key.startswith(tuple(kept)))
    assert experts > 0.5 * whole
    assert whole - without == pytest.approx(experts, rel=1e-12)


@pytest.mark.parametrize(
    ("modules", "kept", "again"),
    [
        # of 4,096 wide layers with 1,024 wide keys and values and 14,336 wide feed-forward parts; 2 bytes an entry:
        # input, two norms, q, k, v, attention's result, its residual, gate, up and activation
        ((), 4096 * 6 + 2 * 1024 + 3 * 14336, 0),
        (("mlp",), 4096 * 6 + 2 * 1024, 3 * 4096 * 14336),
        (("attn_proj",), 4096 * 4 + 3 * 14336, 4096 * (2 * 4096 + 2 * 1024)),
        (("layernorm", "activation", "mlp", "attn_proj"), 4096 * 2, 4096 * (2 * 4096 + 2 * 1024) + 3 * 4096 * 14336),
    ],
)
def test_dense_parts_run_again_by_name(modules: tuple[str, ...], kept: int, again: int) -> None:
    """By hand, of Llama-3.1-8B: what a layer keeps of a token, and the weights whose products run once more."""
    model = load_model("Llama-3.1-8B")
    layer, seq = model.stacks[0].kinds[0], 2048
    given = Setting(shape=Shape(batch=1, query=seq, context=seq), split=Split(), elem_bytes=2.0, implementation="fused")
    logsumexp = 4 * 32
    found = float(kept_bytes(layer, 4096, given, modules=modules)) / seq
    assert found == pytest.approx(2 * kept + logsumexp, rel=1e-12)
    recipe = recipe_with(seq_len=seq, global_batch=8, stack="megatron-te")
    table = single_table(TrainJob(model=model, recipe=recipe, cluster=H800, layout=Layout(dp=8)))
    shape = recipe.shape(model, table.inner.micro_batch)
    context = block_contexts(model, recipe, table.rates, H800.fabric, table.inner, shape)[0]
    named = [k for k in kernels_of(layer.items, context, in_layers=True) if k.forward and k.modules & set(modules)]
    products = sum(float(np.ravel(k.work.flops)[0]) for k in named if k.work.kind == "matmul")
    assert products == pytest.approx(2.0 * seq * again, rel=1e-12)


def test_a_compiled_step_leaves_out_a_product_whose_result_nobody_reads() -> None:
    items = load_model("Llama-3.1-8B").stacks[0].items
    down, up = (next(i for i in items if i.name == f"mlp/{n}_proj") for n in ("down", "up"))
    assert "mlp" in recomputed_modules([down], compiled=False)
    assert "mlp" not in recomputed_modules([down], compiled=True)
    assert "mlp" in recomputed_modules([up], compiled=True)


def test_modules_go_with_selective_recompute() -> None:
    spec = TrainingSpec(recompute_modules=("moe",))
    assert int(spec.layout(MIXTRAL).recompute) == 1
    assert spec.recipe(4096, 8, load_facts(), None).modules == ("moe",)
    with pytest.raises(OptionError, match="selective recompute only"):
        TrainingSpec(recompute_modules=("moe",), recompute="full").layout(MIXTRAL)


@pytest.mark.parametrize("degrees", [{"dp": 8, "ep": 8, "zero": 3}, {}], ids=["given", "searched"])
def test_the_answer_recomputes_the_named_modules(degrees: dict[str, Any]) -> None:
    """Whoever says the layout, and though the stack by itself recomputes nothing."""
    asked: dict[str, Any] = {"gpu": "h200", "gpus": 8, "stack": "megatron-te", "global_batch": 8, "seq": 2048}
    found = train_answer("Mixtral-8x7B", **asked, **degrees, recompute_modules=["core_attn"]).estimate
    assert found.job.layout.recompute == 1
    assert dict(found.breakdown)["recompute"] > 0


def test_modules_and_expert_degrees_of_parts_that_a_model_lacks_are_refused() -> None:
    dense = load_model("Llama-3.1-8B")
    for spec, message in (
        (TrainingSpec(recompute_modules=("moe",)), "moe: .* has no experts"),
        (TrainingSpec(recompute_modules=("mla_up_proj",)), "has no latent attention"),
        (TrainingSpec(expert_tp=1, tp=2), "has no experts"),
    ):
        with pytest.raises(OptionError, match=message):
            spec.layout(dense)


def block_of_experts(stack: str, capacity: float | None = None) -> tuple[list[BlockKernel], Any]:
    """Kernels of a layer of Mixtral-8x7B with 2 sequences of 4,096 tokens on a v6e, and the rates that they run at."""
    model, chip = load_model("Mixtral-8x7B"), FACTS.accelerator("TPU v6e")
    wanted = recipe_with(seq_len=4096, global_batch=2, stack=stack, capacity_factor=capacity)
    recipe = recipe_on(wanted, chip)[0]
    job = TrainJob(model=model, recipe=recipe, layout=Layout(micro_batch=2), cluster=cluster(chip))
    table = single_table(job)
    shape = recipe.shape(model, table.inner.micro_batch)
    context = block_contexts(model, recipe, table.rates, job.cluster.fabric, table.inner, shape)[0]  # evenly routed
    items = model.stacks[0].kinds[0].items
    return list(kernels_of(items, context, in_layers=True)), table.rates


def test_rows_are_permuted_as_wide_as_they_are_sent() -> None:
    """On either side of the experts, forward and backward, so many passes of 2 x 4,096 x 2 copies of 4,096 elements.

    The 14,336 wide rows between the two products lie in the experts' order already.
    """
    kernels, rates = block_of_experts("xla")
    moved = {k.work.name: k for k in kernels if "permute" in k.work.name}
    sides = ("gate_up_proj/permute", "down_proj/unpermute")
    assert set(moved) == {f"experts/{side}{suffix}" for side in sides for suffix in ("", "/grad")}
    passes = rates.value["train_permute_passes.ragged"]
    nbytes = passes * 2 * (2 * 4096 * 2) * 4096
    for name, kernel in moved.items():
        assert kernel.forward != name.endswith("/grad")
        bytes_s = nbytes / (rates.read_bytes_per_s * rates.value["pointwise_frac"])
        assert float(np.ravel(kernel.seconds)[0]) == pytest.approx(bytes_s, rel=0.02)


def test_experts_with_a_capacity_are_plain_products_of_even_buffers_under_xla() -> None:
    """GShard's masks (arXiv 2006.16668, algorithm 2): a sequence has 1.25 x 2 x 4,096 = 10,240 places in all experts.

    Five products of 8,192 tokens x 10,240 places x 4,096 wide: rows in and out, and backward the gradients of both
    and of the combination's weights. The experts' own products are as fast as any other of their size.
    """
    kernels, rates = block_of_experts("xla", 1.25)
    masks = [k.work for k in kernels if "permute" in k.work.name and k.work.kind == "matmul"]
    assert [w.name.endswith("/grad") for w in masks].count(False) == 2
    assert len(masks) == 5
    assert {float(np.ravel(w.flops)[0]) for w in masks} == {2.0 * (2 * 4096) * (4096 * 2 * 1.25) * 4096}
    assert rates.value["grouped_frac"] == 1.0
    down = next(k for k in kernels if k.work.name == "experts/down_proj")
    rate = float(np.ravel(down.work.flops / down.seconds)[0]) / rates.peak["bf16"]
    assert rate > 0.9 * rates.value["matmul_frac.bf16"]
    dropless = next(k for k in block_of_experts("xla")[0] if k.work.name == "experts/down_proj")
    assert float(np.ravel(dropless.seconds)[0]) > 1.1 * float(np.ravel(down.seconds)[0])


def test_experts_with_a_capacity_keep_their_kernel_where_it_is_not_xla_s() -> None:
    stack = FACTS.stack("megatron-te")
    recipe = recipe_with(seq_len=4096, stack="megatron-te", capacity_factor=1.25)
    assert recipe_on(recipe, FACTS.accelerator("H100-SXM-80"))[0].stack == stack


def test_llama_4_runs_every_expert_where_its_modules_are_those_of_transformers() -> None:
    """Each of 48 layers multiplies a token by 16 experts of 3 x 5,120 x 8,192 weights, not by one of them.

    Source: transformers, Llama4TextMoe; operations of its modules: tests/ops/test_random_configurations.py. Frameworks
    with layers of their own run the one expert that a token is sent to.
    """
    llama = load_model("Llama-4-Scout")

    def trained(stack: str, model: Model = llama) -> TrainEstimate:
        recipe = recipe_with(seq_len=4096, global_batch=8, stack=stack, precision="bf16")
        return estimate(TrainJob(model=model, recipe=recipe, cluster=H800, layout=Layout(dp=8, zero=3)))

    every, routed = trained("hf-trainer"), trained("hf-trainer", replace(llama, model_type=""))
    more_flops = 2 * 4096 * 48 * 15 * 3 * 5120 * 8192  # of a rank's sequence, forward
    forward = [dict(found.breakdown)["forward"] for found in (every, routed)]
    assert forward[0] - forward[1] > more_flops / H800.rates.peak["bf16"]
    assert forward[0] - forward[1] < 3 * more_flops / H800.rates.peak["bf16"]
    assert every.mfu_frac < routed.mfu_frac  # what is multiplied by zero is of no use
    note = "each token goes through every expert"
    assert any(note in text for text in every.assumptions)
    for other in (routed, trained("fsdp-compile"), trained("torchtitan"), trained("megatron-te")):
        assert not any(note in text for text in other.assumptions)
        assert dict(other.breakdown)["forward"] < 0.6 * forward[0]
