"""Gradients and weights that stay whole under ZeRO, and quantised bases, by hand from the frameworks' sources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lossless import FFN, HEADS, KV, LAYERS, MATRICES, MODEL, NORMS, PARAMS, VOCAB, WIDTH

from flopwise.training.layout import Layout, Lora, Recipe
from flopwise.training.memory import Memory, step_memory
from flopwise.training.stage_memory import STALE
from named import FACTS, changed, lora_with, recipe_with

SEQ, BATCH, DP = 4096, 32, 8
UNIT = MATRICES + NORMS
TITAN = recipe_with(seq_len=SEQ, global_batch=BATCH, stack="fsdp-compile")


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def memory(recipe: Recipe, **layout: Any) -> Memory:
    return step_memory(MODEL, recipe, Layout(**{"dp": DP, "zero": 3} | layout))


def gradients(stack: str, *, micro_batches: int = 4, **how: Any) -> float:
    recipe = recipe_with(seq_len=SEQ, global_batch=micro_batches * DP, stack=stack, **how)
    return float(memory(recipe).items["gradients"])


def test_pipelines_of_fsdp_keep_weights_gathered_and_gradients_whole() -> None:
    """torchtitan reshards nothing after a forward pass of a pipeline; stage.py reduces at the last micro-batch.

    The first of four stages: two layers and the embedding; fp32 shards and states, weights in 16 bits, whole fp32
    gradients, and a layer's 16-bit gradient before it is added.
    """
    found = memory(TITAN, pp=4, recompute=2)
    last = LAYERS / 4 * UNIT + VOCAB * WIDTH + WIDTH
    assert found.worst_stage == 2  # with the logits
    assert found.peak == "start of the backward pass"
    assert found.items["weights"] == exactly(4 * last / DP)
    assert found.items["gradients"] == exactly(4 * last)
    own = 2 * (UNIT + VOCAB * WIDTH + WIDTH)  # 16-bit gradients of a layer and of the head
    assert found.items["gathered layers"] == exactly(2 * last + own)
    spare, context = TITAN.stack.fragmentation_frac, TITAN.stack.context_bytes
    end = (float(found.moments["end of the backward pass"]) - context) / (1 + spare)
    between, again = 2 * SEQ * 2 * FFN, SEQ * (2 * (WIDTH * 6 + 2 * KV + WIDTH - WIDTH + 3 * FFN) + 4 * HEADS)
    assert end == exactly(12 * last / DP + 4 * last + 2 * last + own + between + again)


def test_pipelines_without_accumulation_and_of_others() -> None:
    """One micro-batch leaves nothing to wait for; MaxText gathers and reduces each time; the option has its way."""
    assert memory(replace(TITAN, global_batch=DP), pp=2).items["gradients"] != exactly(4 * PARAMS / 2)
    last = LAYERS / 4 * UNIT + VOCAB * WIDTH + WIDTH
    maxtext = memory(changed(TITAN, stack="xla"), pp=4, recompute=2)
    assert maxtext.items["gathered layers"] == exactly(2 * 2 * UNIT)  # one, and a layer's gradient
    each = memory(replace(TITAN, grad_sync="each"), pp=4, recompute=2)
    assert each.items["gradients"] == exactly(4 * last / DP)
    assert each.items["gathered layers"] == exactly(2 * last + 2 * (UNIT + VOCAB * WIDTH + WIDTH))


def test_reductions_of_a_step_in_pipelines_and_without() -> None:
    """torchtitan reduces after every micro-batch, in pipelines at the last (stage.py).

    In rounds of as many micro-batches as there are stages (Narayanan et al. 2021, section 2.2) a step has 16 / 4.
    """
    assert float(TITAN.reductions(3, 1, 16)) == 16
    assert float(TITAN.reductions(3, 4, 16)) == 1
    rounds = replace(TITAN, grad_sync="round")
    assert float(rounds.reductions(3, 4, 16)) == 4
    assert float(rounds.reductions(3, 1, 16)) == 1


def test_who_accumulates_whole_gradients() -> None:
    """Fabric's no_backward_sync and accelerate's no_sync do, in FSDP 1's 16 bits; torchtune, DeepSpeed, torchtitan not.

    One micro-batch a step has nothing to accumulate.
    """
    assert gradients("litgpt") == exactly(2 * PARAMS)
    assert gradients("hf-trainer") == exactly(2 * PARAMS)
    assert gradients("hf-trainer", micro_batches=1) == 0  # they appear as activations go
    for stack, width in (("torchtune-eager", 2), ("deepspeed-zero3", 2), ("fsdp-compile", 4)):
        assert gradients(stack) == exactly(width * PARAMS / DP)
        whole = gradients(stack, grad_sync="last")
        assert whole == exactly(width * PARAMS)
    assert gradients("hf-trainer", grad_sync="each") == exactly(4 * PARAMS / DP)


def test_llama_405b_in_pipelines_of_fsdp() -> None:
    """16 layers of 3.19e9 parameters over tp 8 a rank: shards and Adam 9.6 GB, weights 12.8, gradients 25.5, inputs 15.

    Those of 7 micro-batches in flight on a stage of 16 layers, or 8 on the first, of 15 and the embedding: 64 to 70 GB
    of tensors, 71 to 78 reserved.
    """
    recipe = recipe_with(seq_len=8192, global_batch=8 * 4 * 8, precision="fp8")
    layout = Layout(dp=8, tp=8, pp=8, zero=3, micro_batch=4, recompute=2)
    found = step_memory(FACTS.model("Llama-3.1-405B"), recipe, layout)
    assert 64e9 < float(found.allocated_bytes) < 70e9
    assert 71e9 < float(found.reserved_bytes) < 78e9


RANK = 16
ADAPTERS = LAYERS * RANK * ((WIDTH + WIDTH) + (WIDTH + KV))
PACKED = MATRICES * (4 + 8 / 64 + 32 / (64 * 256)) / 8  # nf4, an 8-bit scale of 64, an fp32 one of 256 scales
ENDS = 2 * (2 * VOCAB * WIDTH + WIDTH)


def adapted(stack: str, **lora: Any) -> Recipe:
    adapters = lora_with(**{"rank": RANK, "targets": ("q", "v"), "base": "nf4-dq"} | lora)
    return recipe_with(seq_len=SEQ, stack=stack, lora=adapters)


def test_quantised_bases_are_gathered_as_they_are_stored() -> None:
    """FSDP-QLoRA: packed weights are the parameters; a product makes the widest in 16 bits (gate, up, down)."""
    found = memory(adapted("torchtune-eager"), recompute=2)
    layer = PACKED + 2 * NORMS
    assert found.items["weights"] == exactly((LAYERS * layer + ENDS) / DP + 4 * ADAPTERS / DP)
    assert found.items["gathered layers"] == exactly(2 * layer + ENDS)
    assert found.items["dequantised weight"] == exactly(2 * WIDTH * FFN)


def test_encoders_of_quantised_bases_are_gathered_layer_by_layer() -> None:
    """FSDP wraps every T5Block: embedding in fp32 and two blocks of the decoder stand whole, never the encoder.

    A block of T5-large's decoder: q, k, v, o of both attentions, two matrices of 1,024 x 4,096, three norms. The
    bias of positions (32 x 16) is its first layer's.
    """
    layout = Layout(dp=8, zero=3, recompute=2)
    found = step_memory(FACTS.model("T5-large"), replace(adapted("hf-trainer"), seq_len=256), layout)
    block = (8 * 1024**2 + 2 * 1024 * 4096) * PACKED / MATRICES + 2 * 3 * 1024
    assert found.items["gathered layers"] == pytest.approx(4 * 32_128 * 1024 + 2 * block, rel=1e-4)


def test_heads_and_ends_of_quantised_bases() -> None:
    """Fabric quantises the head, which then is the widest weight; PEFT casts what bitsandbytes leaves to fp32."""
    lit = step_memory(MODEL, adapted("litgpt"), Layout()).items
    head = VOCAB * WIDTH * (4 + 8 / 64 + 32 / (64 * 256)) / 8
    assert lit["weights"] == exactly(LAYERS * (PACKED + 2 * NORMS) + 2 * (VOCAB * WIDTH + WIDTH) + head + 4 * ADAPTERS)
    assert lit["dequantised weight"] == exactly(2 * (VOCAB * WIDTH + WIDTH))
    peft = step_memory(MODEL, adapted("hf-trainer"), Layout()).items
    assert peft["weights"] == exactly(LAYERS * (PACKED + 2 * NORMS) + 2 * ENDS + 4 * ADAPTERS)
    gptq = step_memory(MODEL, adapted("hf-trainer", base="gptq"), Layout()).items["weights"]
    groups = (2 + 4 / 8) / 128  # a 16-bit scale and a 4-bit zero of 128 weights, and 4 bytes an input
    inputs = 4 * (6 * WIDTH + FFN)
    assert gptq == exactly(LAYERS * (MATRICES * (0.5 + groups) + inputs + 2 * NORMS) + ENDS + 4 * ADAPTERS)


def test_inputs_of_quantised_products_by_version() -> None:
    """bitsandbytes kept the input of every 4-bit product until 0.43.1 (pull request 1270).

    Those of o and down are what attention and the activation put out; q, k and v share one, gate and up another.
    """
    kept = [
        float(step_memory(MODEL, adapted(stack, targets=("q",)), Layout()).items["activations"])
        for stack in ("litgpt", "litgpt-2023")
    ]
    assert kept[1] - kept[0] >= LAYERS * SEQ * 2 * (WIDTH + FFN)


def test_dropout_of_adapters() -> None:
    """A dropped-out copy and a byte's mask an adapter, in place of the input; one for q and v together in litgpt."""
    plain, dropped, joint = (
        float(step_memory(MODEL, adapted(stack, dropout=drop), Layout()).items["activations"])
        for stack, drop in (("torchtune-eager", False), ("torchtune-eager", True), ("litgpt", True))
    )
    assert dropped - plain == exactly(LAYERS * SEQ * WIDTH * (2 * (2 + 1) - 2))
    assert dropped - joint == exactly(LAYERS * SEQ * WIDTH * (2 + 1))
    # beside a 4-bit product that keeps its input they are two tensors
    both, single = (
        float(step_memory(MODEL, adapted("litgpt-2023", dropout=drop), Layout()).items["activations"])
        for drop in (True, False)
    )
    assert both - single == exactly(LAYERS * SEQ * WIDTH * (2 + 1))


def test_loss_in_16_bits_alone() -> None:
    """Logits, log-probabilities and both gradients, two bytes each; autocast and modules that cast have fp32 copies."""
    lora = Lora(rank=RANK, targets=("q", "v"))
    for stack, width in (("litgpt", 8), ("deepspeed-zero3", 8), ("hf-trainer", 12)):
        recipe = recipe_with(seq_len=SEQ, stack=stack, lora=lora)
        assert step_memory(MODEL, recipe, Layout()).items["logits and loss"] == exactly(width * SEQ * VOCAB)
    autocast = replace(recipe_with(seq_len=SEQ, stack="litgpt"), weights_dtype="fp32")
    assert step_memory(MODEL, autocast, Layout()).items["logits and loss"] == exactly(12 * SEQ * VOCAB)


def test_lengths_that_vary_leave_blocks_behind() -> None:
    """Half of a micro-batch's tensors again; reserved, not allocated (GMLake, arXiv:2401.08156)."""
    full = recipe_with(seq_len=SEQ, stack="hf-trainer", lora=Lora(rank=RANK, targets=("q", "v")))
    padded, same = (step_memory(MODEL, r, Layout()) for r in (replace(full, lengths_vary=True), full))
    tensors = float(same.items["activations"]) + float(same.items["logits and loss"])
    assert padded.items[STALE] == exactly(tensors / 2)
    assert padded.allocated_bytes == exactly(float(same.allocated_bytes))
    assert padded.total_bytes > same.total_bytes


@pytest.mark.parametrize(("name", "gathered", "widest"), [
    ("Qwen2.5-0.5B", 494032768, 151937 * 896), ("Llama-3.1-8B", 1e9, 128257 * 4096),
    ("Llama-3.1-405B", 128257 * 16384, 128257 * 16384),
])  # fmt: skip
def test_deepspeed_gathers_modules_up_to_what_may_live(name: str, gathered: float, widest: int) -> None:
    """stage3_max_live_parameters is 1e9: of a small model all weights, of a wide one its head, which is more.

    At the start of the backward pass the head, its norm with it, has a gradient; others are in the bucket of messages.
    """
    recipe = recipe_with(seq_len=128, global_batch=8, stack="deepspeed-zero3")
    found = step_memory(FACTS.model(name), recipe, Layout(dp=8, zero=3, recompute=2))
    assert found.peak in {"start of the backward pass", "end of the backward pass"}
    assert found.items["gathered layers"] == pytest.approx(2 * (gathered + widest), rel=1e-9)
