from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flopwise.cost.precisions import TRAINING_PRECISIONS
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts.architecture import Model
from flopwise.facts.models.catalog import load_model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.tensors import parameters
from flopwise.search.plan_training import alike_in_memory
from flopwise.training.adapters import trainable_parameters
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import TARGET_SETS, Layout, Lora
from flopwise.training.memory import Memory, allocated_and_host, reported_bytes, step_memory
from named import FACTS, lora_with, recipe_with, training_remedies


def llama(width: int, layers: int, heads: int, kv_heads: int, hidden: int, vocab: int, **more: Any) -> Model:
    config = {
        "model_type": "llama", "hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "intermediate_size": hidden, "vocab_size": vocab, "tie_word_embeddings": False,
        **more,
    }  # fmt: skip
    return model_from_config(config, name="llama-like")


def gpt(width: int, layers: int, heads: int, vocab: int = 51200, positions: int = 2048) -> Model:
    config = {
        "model_type": "gpt2", "n_embd": width, "n_layer": layers, "n_head": heads, "vocab_size": vocab,
        "n_positions": positions,
    }  # fmt: skip
    return model_from_config(config, name="gpt-like")


LLAMA_2_7B = llama(4096, 32, 32, 32, 11008, 32000)
LLAMA_31_8B = llama(4096, 32, 32, 8, 14336, 128256)
STATES = ("weights", "gradients", "master weights", "optimizer states")


def reported(table: MemoryTable, layout: Layout, device_kind: str = "gpu") -> Any:
    return np.asarray(reported_bytes(allocated_and_host(table, layout)[0], table.software, device_kind))


def states(memory: Memory) -> float:
    return sum(float(memory.items[name]) for name in STATES)


@pytest.mark.parametrize(("zero", "published_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_model_states_are_those_of_the_zero_paper(zero: int, published_gb: float) -> None:
    # Rajbhandari et al. 2020, figure 1: 7.5 B parameters on 64 GPUs
    recipe = recipe_with(seq_len=128, global_batch=128, stack="deepspeed-zero3")
    memory = step_memory(LLAMA_31_8B, recipe, Layout(dp=64, zero=zero, recompute=2))
    scaled = states(memory) * 7.5e9 / parameters(LLAMA_31_8B)
    assert scaled / 1e9 == pytest.approx(published_gb, rel=0.02)


def test_sixteen_bytes_a_parameter_without_zero() -> None:
    recipe = recipe_with(seq_len=128, global_batch=2, stack="deepspeed-zero3")
    memory = step_memory(LLAMA_2_7B, recipe, Layout(recompute=2))
    assert states(memory) == pytest.approx(16 * parameters(LLAMA_2_7B))


def test_layers_that_share_weights_hold_them_once() -> None:
    config = {"model_type": "albert", "vocab_size": 30000, "embedding_size": 128, "num_attention_heads": 12}
    sizes = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    albert = model_from_config({**config, **sizes}, name="albert-base-v2")
    recipe = recipe_with(seq_len=128, global_batch=2, stack="deepspeed-zero3")
    memory = step_memory(albert, recipe, Layout(recompute=2))
    assert states(memory) == pytest.approx(16 * parameters(albert))
    lora = lora_with(rank=8, targets=("q",))
    assert trainable_parameters(albert, lora) == 8 * (768 + 768)


def test_1_2_billion_parameters_fill_40_gb_without_zero() -> None:
    # DeepSpeed's figure for data parallelism alone: 1.2 B parameters on a 40 GB GPU, that is up to 32 bytes a parameter
    model = gpt(1536, 39, 16)
    assert parameters(model) == pytest.approx(1.2e9, rel=0.03)
    recipe = recipe_with(seq_len=1024, global_batch=64, stack="hf-trainer")
    memory = step_memory(model, recipe, Layout(dp=8, micro_batch=2))
    assert 25 < float(memory.total_bytes) / parameters(model) < 34
    assert float(step_memory(gpt(1920, 40, 20), recipe, Layout(dp=8, micro_batch=2)).total_bytes) > 42e9


@pytest.mark.parametrize(
    ("sequence_parallel", "recompute", "factor"),
    [  # Korthikanti et al. 2022, table 2: bytes a layer over s b h, for h 6144, a 64, s 2048, t 8
        (False, 0, 10 + 24 / 8 + 5 * 64 * 2048 / (6144 * 8)),
        (True, 0, 34 / 8 + 5 * 64 * 2048 / (6144 * 8)),
        (True, 1, 34 / 8),
        (False, 2, 2.0),
    ],
)
def test_activations_are_those_of_korthikanti(sequence_parallel: bool, recompute: int, factor: float) -> None:
    model, seq, batch, width, layers = gpt(6144, 48, 64), 2048, 4, 6144, 48
    recipe = recipe_with(seq_len=seq, global_batch=batch, stack="megatron-2021", attention="eager", precision="fp16")
    layout = Layout(tp=8, micro_batch=batch, recompute=recompute, sequence_parallel=sequence_parallel)
    table = MemoryTable(model, recipe)
    sums, index = table.sums(layout)
    kept = sums.activations[recompute, layers, int(index)] * batch
    assert kept == pytest.approx(seq * batch * width * layers * factor, rel=0.01)


def test_pipeline_keeps_as_many_micro_batches_as_stages() -> None:
    recipe = recipe_with(seq_len=2048, global_batch=64, stack="megatron-te")
    flat = step_memory(LLAMA_2_7B, recipe, Layout())
    deep = step_memory(LLAMA_2_7B, recipe, Layout(pp=4))
    # the first of 4 stages has a quarter of the layers and four micro-batches in flight
    assert deep.worst_rank == "first pipeline stage"
    per_layer = float(deep.items["activations"]) / 8 / 4
    assert float(flat.items["activations"]) / 32 == pytest.approx(per_layer, rel=0.02)
    # interleaving: 1 + (p - 1) / (p v) (Korthikanti et al. 2022, section 4.2.3)
    turned = step_memory(LLAMA_2_7B, recipe, Layout(pp=4, interleave=2))
    assert float(turned.items["activations"]) == pytest.approx(float(deep.items["activations"]) * (1 + 3 / 8), rel=0.02)


@pytest.mark.parametrize(
    ("model", "rank", "targets", "published"),
    [  # torchtune and litgpt print these
        (LLAMA_2_7B, 8, ("q", "v"), 4_194_304),
        (llama(3072, 28, 24, 8, 8192, 128256, head_dim=128), 32, ("q", "v"), 9_175_040),
        (llama(3072, 28, 24, 8, 8192, 128256, head_dim=128), 64, ("q", "v"), 18_350_080),
    ],
)
def test_adapters_have_the_published_number_of_parameters(
    model: Model, rank: int, targets: tuple[str, ...], published: int
) -> None:
    assert trainable_parameters(model, lora_with(rank=rank, targets=targets)) == published


def test_adapters_on_all_linear_layers_count_every_projection() -> None:
    lora = lora_with(rank=16, targets=TARGET_SETS["all-linear"])
    per_layer = 16 * (4 * (4096 + 4096) + 3 * (4096 + 11008))
    assert trainable_parameters(LLAMA_2_7B, lora) == 32 * per_layer


def test_qlora_needs_less_than_lora_needs_less_than_full() -> None:
    def total(lora: Lora | None) -> float:
        recipe = recipe_with(seq_len=1024, stack="hf-trainer", lora=lora)
        return float(step_memory(LLAMA_2_7B, recipe, Layout(recompute=2)).total_bytes)

    assert total(lora_with(base="nf4")) < total(lora_with()) - 8e9 < total(None) - 8e9


def test_offload_moves_bytes_to_the_host() -> None:
    recipe = recipe_with(seq_len=1024, global_batch=16, stack="fsdp-eager")
    here = step_memory(LLAMA_2_7B, recipe, Layout(dp=8, zero=3, recompute=2))
    away = step_memory(LLAMA_2_7B, recipe, Layout(dp=8, zero=3, recompute=2, offload_optimizer=True))
    assert float(away.host_bytes) == pytest.approx(parameters(LLAMA_2_7B))  # 8 bytes a parameter over 8 GPUs
    assert float(away.total_bytes) < float(here.total_bytes) - 0.9 * float(away.host_bytes)
    first_keeps_most = Layout(pp=4, zero=0, offload_activations=True)
    whole = step_memory(LLAMA_2_7B, recipe, first_keeps_most)
    of_search = allocated_and_host(MemoryTable(LLAMA_2_7B, recipe), first_keeps_most)
    assert of_search == (float(whole.allocated_bytes), float(whole.host_bytes))


layouts = st.fixed_dictionaries(
    {
        "dp": st.sampled_from([1, 2, 8, 64]),
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 3, 4, 8, 12]),
        "cp": st.sampled_from([1, 2]),
        "ep": st.just(1),
        "zero": st.integers(0, 3),
        "micro_batch": st.sampled_from([1, 2, 4]),
        "interleave": st.sampled_from([1, 2]),
        "recompute": st.integers(0, 2),
    }
)
MIXTRAL = model_from_config(
    {
        "model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 13, "num_attention_heads": 8,
        "num_key_value_heads": 4, "intermediate_size": 1024, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    name="mixture",
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(layouts, min_size=1, max_size=6),
    stack=st.sampled_from(["megatron-te", "fsdp-eager", "hf-trainer", "litgpt"]),
    lora=st.sampled_from([None, lora_with(base="nf4")]),
)
def test_a_column_of_layouts_is_the_same_as_one_by_one(
    rows: list[dict[str, int]], stack: str, lora: Lora | None
) -> None:
    recipe = recipe_with(seq_len=512, global_batch=64, stack=stack, lora=lora)
    table = MemoryTable(MIXTRAL, recipe)
    column = Layout(**{name: np.array([r[name] for r in rows]) for name in rows[0]})  # type: ignore[arg-type]
    many = step_memory(MIXTRAL, recipe, column, table=table)
    fast = reported(table, column)
    walked = MemoryTable(MIXTRAL, recipe)
    tp, ep, cp = (a.ravel() for a in np.meshgrid([1, 2, 4, 8], [1], [1, 2]))
    walked.prepare(tp, ep, cp)
    assert np.array_equal(reported(walked, column), fast)
    bare = reported(table, column, "tpu")
    assert np.asarray(many.total_bytes) == pytest.approx(sum(np.asarray(v) for v in many.items.values()), rel=1e-9)
    for i in range(len(rows)):
        one = step_memory(MIXTRAL, recipe, column.at(i))
        assert np.asarray(many.total_bytes)[i] == pytest.approx(float(one.total_bytes), rel=1e-9)
        assert fast[i] == pytest.approx(float(one.total_bytes), rel=1e-9)
        without = step_memory(MIXTRAL, recipe, column.at(i), device_kind="tpu")
        assert bare[i] == pytest.approx(float(without.total_bytes), rel=1e-9)
        assert float(without.total_bytes) == float(without.allocated_bytes) < float(one.total_bytes)


@settings(max_examples=25, deadline=None)
@given(row=layouts)
def test_more_sharding_and_recompute_never_need_more_states(row: dict[str, int]) -> None:
    recipe = recipe_with(seq_len=512, global_batch=256, stack="megatron-te")
    base = Layout(**row)  # type: ignore[arg-type]

    def size(**changes: int) -> float:
        return float(step_memory(LLAMA_31_8B, recipe, Layout(**(row | changes))).items["optimizer states"])  # type: ignore[arg-type]

    assert size(zero=3) <= size(zero=0) * (1 + 1e-12)
    assert size(dp=2 * int(base.dp), zero=1) <= size(zero=1) * (1 + 1e-12)
    assert size(tp=2 * int(base.tp)) <= size() * (1 + 1e-12)


def test_mixture_of_experts_shards_experts_over_ep() -> None:
    recipe = recipe_with(seq_len=512, global_batch=64, stack="megatron-te")
    whole = step_memory(MIXTRAL, recipe, Layout(dp=8))
    spread = step_memory(MIXTRAL, recipe, Layout(dp=8, ep=8))
    experts = 13 * 8 * 3 * 512 * 1024
    assert float(whole.items["weights"]) - float(spread.items["weights"]) == pytest.approx(2 * experts * 7 / 8)


def test_the_halves_of_a_gated_product_are_two_tensors() -> None:
    """Mixtral's experts of 1,024 and Phi-3's fused product: as Llama's, whose gate and up are products of their own."""
    recipe, ep = recipe_with(seq_len=512, global_batch=64, stack="megatron-te"), Layout(dp=8, ep=8)
    routed, _ = MemoryTable(MIXTRAL, recipe).sums(ep)
    assert float(routed.gradient_peak[0]) == 2 * 2 * 512 * (2 * 1024)  # two tensors, 2 bytes, top 2 of 512 tokens
    phi = load_model("Phi-3-mini-4k")
    fused, _ = MemoryTable(phi, recipe).sums(Layout())
    assert 8192 < 3 * phi.stacks[0].width < 2 * 8192  # half of the fused product, of queries, keys and values, of both
    assert float(fused.gradient_peak[0]) == 2 * 2 * 512 * (3 * phi.stacks[0].width)  # queries, keys, values together


def test_remedies_save_what_they_say_and_come_fitting_first() -> None:
    recipe, layout = recipe_with(seq_len=8192, global_batch=16), Layout(dp=8, zero=3, micro_batch=2)
    now = float(step_memory(LLAMA_31_8B, recipe, layout).total_bytes)
    found = training_remedies(LLAMA_31_8B, recipe, layout, 85e9)
    assert found
    assert all(r.saves_bytes == pytest.approx(now - r.total_bytes) for r in found)
    assert [r.fits for r in found] == sorted((r.fits for r in found), reverse=True)
    full = float(step_memory(LLAMA_31_8B, recipe, Layout(dp=8, zero=3, micro_batch=2, recompute=2)).total_bytes)
    named = {r.change: r for r in found}
    assert named["recompute full"].total_bytes == pytest.approx(full)


def test_wrong_names_say_what_is_allowed() -> None:
    with pytest.raises(UnknownNameError, match="adamw"):
        step_memory(LLAMA_2_7B, recipe_with(seq_len=128, optimizer="adamww"), Layout())
    with pytest.raises(UnknownNameError, match="fsdp"):
        step_memory(LLAMA_2_7B, recipe_with(seq_len=128, stack="fsdpp"), Layout())
    with pytest.raises(SpecError, match="all-linear"):
        lora_with(targets=("qq",))


def test_fp8_inputs_take_less_than_bf16_where_the_stack_keeps_them() -> None:
    def kept(stack: str, precision: Any) -> float:
        recipe = recipe_with(seq_len=4096, global_batch=8, stack=stack, precision=precision)
        return float(step_memory(LLAMA_2_7B, recipe, Layout(tp=2)).items["activations"])

    # inputs of q, k, v, of gate and up, and of down: a byte less for each of their elements
    saved = 32 * 4096 * (4096 + 4096 + 11008) / 2
    assert kept("megatron-te", "bf16") - kept("megatron-te", "fp8") == pytest.approx(saved, rel=1e-6)
    assert kept("fsdp-compile", "bf16") == kept("fsdp-compile", "fp8")


def test_recipes_alike_in_memory_take_the_same_of_it() -> None:
    """Of every stack, precision and kernel of attention, with whole types and adapters; few of them differ."""
    model, layout = load_model("Mixtral-8x7B"), Layout(dp=2, tp=2, zero=2, micro_batch=2, recompute=np.array([0, 1, 2]))
    taken = dict[Any, Any]()
    for stack in FACTS.stacks.values():
        kernels = [stack, replace(stack, attention_kernel="fa1")]
        for precision in TRAINING_PRECISIONS:
            for row, attention, lora in product(kernels, ("flash", "sdpa", "eager"), (None, lora_with(rank=8))):
                recipe = recipe_with(seq_len=512, global_batch=4, stack=row, attention=attention, lora=lora)
                recipe = replace(recipe, precision=precision)
                found = np.asarray(step_memory(model, recipe, layout).total_bytes).tolist()
                assert taken.setdefault(alike_in_memory(recipe), found) == found, (stack.name, precision, attention)
    assert len(taken) < len(FACTS.stacks) * len(TRAINING_PRECISIONS) * 2  # of six times as many
    plain = recipe_with(seq_len=512, global_batch=4)
    assert alike_in_memory(plain) == alike_in_memory(replace(plain, precision="fp8"))
    assert alike_in_memory(plain) != alike_in_memory(replace(plain, precision="fp32"))


def test_adapters_that_scale_results_keep_them() -> None:
    # a layer of Llama 2 7B gives 4 x 4096 + 2 x 11008 + 4096 results a token
    def activations(lora: Lora) -> float:
        recipe = recipe_with(seq_len=1024, stack="litgpt", lora=lora)
        return float(step_memory(LLAMA_2_7B, recipe, Layout()).items["activations"])

    more = activations(lora_with(scales_outputs=True)) - activations(lora_with())
    assert more == pytest.approx(2 * 1024 * 32 * (5 * 4096 + 2 * 11008))
    assert activations(lora_with(method="dora")) - activations(lora_with()) == pytest.approx(
        2 * 1024 * 32 * 2 * (2 * 4096)
    )


def test_putting_weights_into_four_bits_is_the_peak_of_torchtune_in_2024() -> None:
    # torchtune's QLoRA tutorial of 2024: 9.13 GB reserved at most while Llama 2 7B is loaded, 9.29 GB in training.
    # The search holds 16 levels against each element: differences and absolute values, 16 x 2 x 2 bytes, and inputs.
    recipe = recipe_with(seq_len=512, stack="torchtune-2024", lora=lora_with(base="nf4"))
    memory = step_memory(LLAMA_2_7B, recipe, Layout(recompute=2))
    assert float(memory.reserved_bytes) == pytest.approx(9.13e9, rel=0.12)
    assert float(memory.items["weights while loading"]) == pytest.approx(72 * 4096 * 11008, rel=0.02)
    later = step_memory(LLAMA_2_7B, replace(recipe, stack=FACTS.stack("torchtune-eager")), Layout(recompute=2))
    assert float(later.total_bytes) < float(memory.total_bytes) - 2e9


def test_a_loss_over_a_cut_vocabulary_makes_copies_of_its_part() -> None:
    def loss(tp: int, stack: str) -> float:
        recipe = recipe_with(seq_len=8192, global_batch=8, stack=stack)
        return float(step_memory(LLAMA_31_8B, recipe, Layout(tp=tp, recompute=2)).items["logits and loss"])

    assert loss(8, "fsdp-compile") == pytest.approx(loss(1, "fsdp-compile") / 8 * (12 + 8) / 12)
    assert loss(8, "megatron-te") == pytest.approx(loss(1, "megatron-te") / 8)


def test_losses_that_are_made_with_their_product_keep_no_logits() -> None:
    """Liger's and cut cross entropy's logits exist for one piece (arXiv 2410.10989, 2411.09009), torchtune's whole."""
    tokens, words, thin = 65_536, 128_256, llama(256, 1, 2, 2, 256, 128_256)

    def loss(stack: str, chunks: int) -> float:
        recipe = replace(recipe_with(seq_len=8192, global_batch=8, stack=stack), loss_chunks=chunks)
        return float(step_memory(thin, recipe, Layout(micro_batch=8, recompute=2)).items["logits and loss"])

    for stack in ("hf-trainer-liger", "axolotl"):
        whole = FACTS.stack(stack).loss_bytes * tokens * words
        assert loss(stack, 1) == pytest.approx(whole)
        assert loss(stack, 8) == pytest.approx(whole / 8)
    assert loss("torchtune-eager", 8) > 6 * tokens * words


@pytest.mark.parametrize(
    ("stack", "resident", "sharded"),
    [
        ("megatron-te", 2 + 4, 4 + 8),  # bf16 weights, fp32 sums of gradients; fp32 weights and states
        ("nemo", 2 + 2, 4 + 8),  # grad_reduce_in_fp32 off
        ("axolotl", 2 + 2 + 4, 0),  # all of it in bf16, and no optimizer that shards
    ],
)
def test_bytes_of_a_parameter(stack: str, resident: int, sharded: int) -> None:
    """As megatron/training/arguments.py, Megatron-Bridge's scripts/performance and axolotl's loader have them."""
    recipe, ranks = recipe_with(seq_len=128, global_batch=8, stack=stack), 8
    held = step_memory(LLAMA_2_7B, recipe, Layout(dp=ranks, zero=1 if sharded else 0))
    lasting = ("weights", "master weights", "optimizer states")
    found = sum(float(held.items[name]) for name in lasting)
    weights = parameters(LLAMA_2_7B)
    gradients = {"megatron-te": 4, "nemo": 2, "axolotl": 2}[stack]
    assert found == pytest.approx(weights * (resident - gradients + sharded / ranks), rel=1e-6)
    assert {"bf16": 2, "fp32": 4, "compute": 2}[FACTS.stack(stack).grad_dtype] == gradients


@pytest.mark.parametrize("width_layers", [(2048, 24), (4096, 32)])
def test_frozen_weights_stay_gathered_where_the_software_loads_them_whole(width_layers: tuple[int, int]) -> None:
    width, layers = width_layers
    model = llama(width, layers, width // 128, width // 128, 4 * width, 32000)
    recipe = recipe_with(seq_len=256, global_batch=2, stack="litgpt-2023", lora=lora_with())
    held = step_memory(model, recipe, Layout(dp=2, zero=3, recompute=2))
    whole = 2.0 * parameters(model)
    assert 1.5 * whole < float(held.allocated_bytes) < 1.8 * whole  # a shard, all weights, gradients of two layers
    full = step_memory(model, replace(recipe, stack=FACTS.stack("hf-trainer")), Layout(dp=2, zero=3, recompute=2))
    assert float(full.allocated_bytes) < 1.0 * whole


def test_the_moment_of_the_peak_is_told_and_is_the_largest() -> None:
    for micro_batch, moment in ((1, "optimizer step"), (16, "loss")):
        model = load_model("Llama-3.2-1B")
        recipe = recipe_with(seq_len=2048 if micro_batch > 1 else 128, global_batch=micro_batch, stack="hf-trainer")
        held = step_memory(model, recipe, Layout(micro_batch=micro_batch))
        assert max(held.moments.values()) == pytest.approx(float(held.total_bytes))
        assert held.peak == moment


def test_devices_without_a_driver_context_hold_tensors_only() -> None:
    recipe = recipe_with(seq_len=2048, global_batch=1)
    gpu, tpu = (step_memory(load_model("Llama-3.2-1B"), recipe, Layout(), device_kind=kind) for kind in ("gpu", "tpu"))
    assert tpu.total_bytes == tpu.allocated_bytes == gpu.allocated_bytes
    assert gpu.total_bytes > gpu.allocated_bytes


@pytest.mark.parametrize(("pp", "kinds"), [(1, 0), (2, 2), (5, 3)])
def test_the_fullest_of_the_stages_is_what_a_step_needs(pp: int, kinds: int) -> None:
    """Five stages of 32 layers: six in each, and seven in those of the middle, which are left over."""
    model, recipe = load_model("Llama-3.1-8B"), recipe_with(seq_len=4096, global_batch=64)
    found = step_memory(model, recipe, Layout(pp=pp, dp=2, micro_batch=1))
    assert len(found.stages) == kinds
    if not kinds:
        return
    totals = [sum(items.values()) for _, items in found.stages]
    assert max(totals) == pytest.approx(float(found.total_bytes), rel=1e-12)
    name, items = found.stages[int(np.argmax(totals))]
    assert name == found.worst_rank
    assert items == pytest.approx({name: float(size) for name, size in found.items.items() if size})
    head = model.vocab * model.stacks[0].width
    weights = [items["weights"] / 4 for _, items in found.stages]  # fp32 master copies
    layer = (parameters(model) - 2 * head) / 32
    layers = {2: [16, 16], 5: [6, 7, 6]}[pp]
    ends = [head, *([0] if kinds == 3 else []), head]
    for count, end, own in zip(layers, ends, weights, strict=True):
        assert own == pytest.approx(count * layer + end, rel=1e-3)


def test_gradients_of_deepspeed_s_first_stages_come_as_the_inputs_of_layers_go() -> None:
    """stage_1_and_2.py reduces `param.grad` and lets it go after the step: none lies beside the inputs of all layers.

    40 inputs of 48 x 1024 x 5120 elements of 2 bytes, and the norm's and the head's beside them, in an allocator that
    adds 12 %; a second micro-batch finds the gradients of the first.
    """
    model, row = load_model("CodeLlama-13B"), FACTS.stack("deepspeed-zero2")
    assert not row.lasting_gradients
    assert FACTS.stack("deepspeed-zero3").lasting_gradients  # partitions are kept in one buffer

    def needs(*, lasting: bool, passes: int = 1) -> float:
        recipe = recipe_with(
            seq_len=1024, global_batch=384 * passes, stack="deepspeed-zero2", optimizer="adamw", attention="eager"
        )
        recipe = replace(recipe, stack=replace(row, lasting_gradients=lasting))
        layout = Layout(dp=8, zero=1, micro_batch=48, recompute=2)
        return float(step_memory(model, recipe, layout, device_kind="gpu").total_bytes)

    inputs = 42 * 48 * 1024 * 5120 * 2
    assert needs(lasting=True) - needs(lasting=False) == pytest.approx(1.12 * inputs, rel=1e-3)
    assert needs(lasting=True, passes=2) == needs(lasting=False, passes=2)
