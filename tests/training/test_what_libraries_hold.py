"""What libraries keep beyond a model's states and activations, each counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from flopwise.facts.architecture import Model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.tensors import parameters
from flopwise.training.layout import ALL_TARGETS, Layout, Lora
from flopwise.training.memory import Memory, step_memory
from named import FACTS, lora_with, recipe_with

WIDTH, LAYERS, SEQ, BATCH = 1024, 8, 2048, 4
INPUT = BATCH * SEQ * WIDTH * 2  # bytes of what one layer reads, in 16 bits
LORA, QLORA = lora_with(rank=8), lora_with(rank=8, base="nf4")
END = "end of the backward pass"


def llama(vocab: int) -> Model:
    config = {
        "model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": 8,
        "num_key_value_heads": 8, "intermediate_size": 2816, "vocab_size": vocab, "tie_word_embeddings": False,
    }  # fmt: skip
    return model_from_config(config, name="llama-like")


def held(stack: str, zero: int, lora: Lora | None = LORA, recompute: int = 2, **how: str | None) -> Memory:
    recipe = recipe_with(seq_len=SEQ, global_batch=2 * BATCH, stack=stack, lora=lora, **how)
    return step_memory(llama(1000), recipe, Layout(dp=2, zero=zero, micro_batch=BATCH, recompute=recompute))


def difference(one: Memory, other: Memory, moment: str) -> float:
    """Bytes of tensors that `one` has beyond `other`: their context cancels out, the allocator reserves 12 % more."""
    return (float(one.moments[moment]) - float(other.moments[moment])) / 1.12


def test_fsdp_holds_what_recomputed_layers_with_frozen_weights_read() -> None:
    """Eight inputs, and the gradients of six: two more are in the working set."""
    more = difference(held("hf-trainer", 3), held("hf-trainer-2026", 3), END)
    assert more == pytest.approx((8 + 6) * INPUT)


@pytest.mark.parametrize(("zero", "lora", "recompute"), [(0, LORA, 2), (2, LORA, 2), (3, None, 2), (3, LORA, 0)])
def test_nothing_is_held_without_frozen_shards_or_recompute(zero: int, lora: Lora | None, recompute: int) -> None:
    reentrant, plain = (held(stack, zero, lora, recompute) for stack in ("hf-trainer", "hf-trainer-2026"))
    assert reentrant.moments[END] == pytest.approx(plain.moments[END])


@pytest.mark.parametrize(("zero", "copies"), [(0, 2), (3, 1)])
def test_norms_in_fp32_beside_4_bit_weights_make_what_layers_read_fp32(zero: int, copies: int) -> None:
    """A sharded model is not prepared so, nor is one whose other weights are said to be in 16 bits."""
    wide, narrow = (held("hf-trainer", zero, QLORA, weights_dtype=kind) for kind in ("fp32", "bf16"))
    kept = [float(memory.items["activations"]) for memory in (wide, narrow)]
    assert kept[0] - kept[1] == pytest.approx(LAYERS * INPUT * (copies - 1))


def test_what_stands_beside_4_bit_weights_is_in_the_type_that_it_is_said_to_be_in() -> None:
    """Embedding, head and the norms: 4 bytes an element as PEFT prepares them, 2 where all weights are in bf16."""
    wide, narrow = (held("hf-trainer", 0, QLORA, weights_dtype=kind) for kind in (None, "bf16"))
    ends = 2 * 1000 * WIDTH + WIDTH
    assert float(wide.items["weights"]) - float(narrow.items["weights"]) == pytest.approx(2 * ends)


@pytest.mark.parametrize(("stack", "entry"), [("torchtune-eager", 6 + 6 / 8), ("torchtune-compile", 2 + 10 / 8)])
def test_pieces_of_a_loss_leave_their_log_probabilities_where_nothing_fuses_them(stack: str, entry: float) -> None:
    """Of 12 bytes an entry: 16-bit logits and fp32 log-probabilities stay, compiled the logits alone; 8 pieces."""
    recipe = recipe_with(seq_len=SEQ, global_batch=BATCH, stack=stack, lora=LORA)
    memory = step_memory(llama(200_000), recipe, Layout(micro_batch=BATCH, recompute=2))
    assert memory.items["logits and loss"] == pytest.approx(BATCH * SEQ * 200_000 * entry)


@pytest.mark.parametrize(("stack", "dp", "zero", "copies"), [
    ("litgpt", 2, 0, 1), ("litgpt", 1, 0, 0), ("litgpt", 2, 3, 0), ("megatron-te", 2, 0, 0),
])  # fmt: skip
def test_buckets_of_replicas_hold_all_gradients_once_more(stack: str, dp: int, zero: int, copies: int) -> None:
    """PyTorch's DDP copies 16-bit gradients; Megatron-Core adds them up in its buffer."""
    model, recipe = llama(1000), recipe_with(seq_len=SEQ, global_batch=2 * BATCH, stack=stack)
    memory = step_memory(model, recipe, Layout(dp=dp, zero=zero, micro_batch=BATCH))
    assert memory.items.get("communication buffers", 0.0) == pytest.approx(copies * 2 * parameters(model))


def test_fsdp_loads_a_model_unit_by_unit() -> None:
    """Llama 2 70B in bf16 over 16 GPUs: no rank has its 138 GB at once, old FSDP or new.

    Weights of 2 bytes and states of 4 stand, 25.9 GB; in the step gradients and foreach's copies of a state add 17.2.
    """
    model = FACTS.model("Llama-2-70B")
    stack = replace(FACTS.stack("hf-trainer-2023"), frozen_stay_gathered=True)
    recipe = recipe_with(
        seq_len=512, global_batch=16, weights_dtype="bf16", grad_dtype="bf16", states_dtype="bf16", stack=stack
    )
    memory = step_memory(model, recipe, Layout(dp=16, zero=3, recompute=2))
    for moment, a_parameter in (("loading", 6), ("optimizer step", 10)):
        tensors = (float(memory.moments[moment]) - 1e9) / 1.12
        assert tensors == pytest.approx(68_976_648_192 * a_parameter / 16)
    assert memory.peak == "optimizer step"


def test_axolotl_casts_ends_and_norms_back_to_16_bits() -> None:
    """Two tables of 1,000 rows and the last norm take 2 bytes less each, what eight layers read half as much."""
    plain, axolotl = (held(stack, 0, QLORA) for stack in ("hf-trainer", "axolotl"))
    ends = 2 * 1000 * WIDTH + WIDTH
    assert plain.items["weights"] - axolotl.items["weights"] == pytest.approx(2 * ends)
    less = difference(plain, axolotl, "start of the backward pass")
    assert less == pytest.approx(LAYERS * INPUT + 2 * ends)


def test_no_logits_stay_of_a_loss_that_trl_or_liger_compute_in_pieces() -> None:
    """A piece's logits with their copies, 12 bytes an entry; TRL computes each under a checkpoint."""
    vocab, pieces = 100_000, 16
    recipe = recipe_with(seq_len=SEQ, global_batch=BATCH, stack="hf-trainer", loss_chunks=pieces)
    memory = step_memory(llama(vocab), recipe, Layout(micro_batch=BATCH, recompute=2))
    whole = step_memory(llama(vocab), replace(recipe, loss_chunks=1), Layout(micro_batch=BATCH, recompute=2))
    entry = BATCH * SEQ * vocab
    assert float(whole.items["logits and loss"]) == pytest.approx(12 * entry)
    assert difference(whole, memory, "loss") == pytest.approx(12 * entry * (1 - 1 / pieces))


def test_llmq_holds_what_its_allocator_prints() -> None:
    """Its README's run of Qwen2.5-0.5B: 942 MiB of each of Adam's states and of gradients; logits in 16 bits."""
    model = FACTS.model("Qwen2.5-0.5B")
    recipe = recipe_with(seq_len=1024, global_batch=64, stack="llmq", weights_dtype="bf16", precision="bf16")
    memory = step_memory(model, recipe, Layout(micro_batch=8))
    mib = {name: float(size) / 2**20 for name, size in memory.items.items()}
    assert mib["optimizer states"] == pytest.approx(2 * 942, abs=2)
    assert mib["gradients"] == pytest.approx(942, abs=1)
    assert mib["master weights"] == mib["allocator"] == 0
    assert mib["logits and loss"] == pytest.approx(8 * 1024 * 151_936 * 2 / 2**20)


def kernels_spare(moment: str, recompute: int = 0, **adapters: Any) -> float:
    """Bytes that kernels for an MLP with its adapters spare at a moment."""
    stack = replace(FACTS.stack("unsloth"), fused_adapters=False)
    lora = replace(lora_with(rank=8, targets=ALL_TARGETS), **adapters)
    model, layout = llama(1000), Layout(micro_batch=BATCH, recompute=recompute)
    recipe = recipe_with(seq_len=SEQ, global_batch=BATCH, stack="unsloth", lora=lora)
    plain, joined = (step_memory(model, replace(recipe, stack=s), layout) for s in (stack, recipe.stack))
    return (float(plain.moments[moment]) - float(joined.moments[moment])) / 1.08


HALF = BATCH * SEQ * 2816 * 2  # bytes of either half of the MLP, and of the activated tensor


def test_kernels_of_an_mlp_with_its_adapters_keep_no_activated_tensor() -> None:
    """Of what PEFT's modules keep around each down projection, its input goes, in eight layers.

    The gradients of both halves are written over them: that of the activated tensor is the only new one, not two.
    """
    assert kernels_spare("start of the backward pass") == pytest.approx((LAYERS + 1) * HALF)
    assert kernels_spare("start of the backward pass", recompute=2) == pytest.approx((1 + 1) * HALF)


@pytest.mark.parametrize("adapters", [{"dropout": True}, {"method": "dora"}, {"targets": ("q", "v", "gate", "up")}])
def test_adapters_that_such_kernels_do_not_take_are_peft_s_modules(adapters: dict[str, Any]) -> None:
    assert kernels_spare("start of the backward pass", **adapters) == 0


def test_a_layer_of_llama_under_axolotl_and_liger_holds_what_was_counted_by_hand() -> None:
    """Llama 3.2 1B, in tensors of width 2,048 in 16 bits, one a token, while one layer is computed again.

    Its input 1, the first norm's result 1, queries 1, keys and values 1/4 each, attention's result 1, the sum before
    the MLP 1 and its norm 1, both halves 4 and 4: 14.5; the gradient of the activated tensor 4. Seven results of rank
    16 are 7/128, the sums of 32 heads in fp32 1/32. axolotl's pull request 3800 reads 35.6 of them a token with the
    inputs of 16 layers, where the tensors here are 16 + 2 + 18.6.
    """
    model, tokens = FACTS.model("Llama-3.2-1B"), 32_768
    lora = lora_with(rank=16, targets=ALL_TARGETS)
    recipe = recipe_with(seq_len=tokens, global_batch=1, stack="axolotl-liger", lora=lora, loss_chunks=32)
    memory = step_memory(model, recipe, Layout(micro_batch=1, recompute=2))
    unit = tokens * 2048 * 2
    assert float(memory.items["working set of one layer"]) / unit == pytest.approx(14.5 + 4 + 7 / 128 + 1 / 32)


def test_megatron_keeps_no_results_of_experts() -> None:
    """TEGroupedMLP multiplies by the router's weights before the second product, whose result no gradient then reads.

    Qwen3-30B-A3B: 48 layers x 4,096 tokens x 8 experts x 2,048 channels in 16 bits are 6.44 GB.
    """
    model, layout = FACTS.model("Qwen3-30B-A3B"), Layout(dp=16, ep=16, zero=1)
    first = recipe_with(seq_len=4096, global_batch=16, stack="megatron-te")
    after = replace(first, stack=replace(first.stack, weighted_first=False))
    kept = [float(step_memory(model, recipe, layout).items["activations"]) for recipe in (after, first)]
    assert kept[0] - kept[1] == pytest.approx(48 * 4096 * 8 * 2048 * 2)
    assert not FACTS.stack("megatron-2021").weighted_first


def test_axolotl_keeps_its_shards_beside_weights_that_stay_gathered() -> None:
    """FSDP2 with reshard_after_forward off, on two GPUs: half of each weight, and all of them until gradients are made.

    Gemma 4 26B-A4B in bf16 with rows of 16,384 tokens: 25.8 GB, 51.6 and AdamW's 51.6, and what layers keep.
    """
    model = FACTS.model("Gemma-4-26B-A4B")
    recipe = recipe_with(seq_len=16_384, global_batch=2, stack="axolotl-liger")
    memory = step_memory(model, recipe, Layout(dp=2, zero=2, recompute=0))
    whole = 2.0 * parameters(model)
    assert memory.items["weights"] == pytest.approx(whole / 2)
    assert memory.items["optimizer states"] == pytest.approx(whole)
    # The towers of vision stay out of the units that FSDP2 gathers.
    assert memory.items["gathered layers"] == pytest.approx(whole, rel=0.05)
