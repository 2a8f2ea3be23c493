"""What libraries keep beyond a model's states and activations, each counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flopwise.facts.architecture import Model
from flopwise.facts.models.config import model_from_config
from flopwise.ops.tensors import parameters
from flopwise.training.layout import Layout, Lora
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
