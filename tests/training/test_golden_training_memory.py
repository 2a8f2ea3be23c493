"""Every item of training memory by hand: bytes of each tensor, from the papers and the frameworks' own accounts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from lossless import FFN, HEADS, KV, LAYERS, MATRICES, MODEL, NORMS, PARAMS, VOCAB, WIDTH, job
from test_golden_training_step import EXPERT_FFN, EXPERTS, MIXTURE, TOP_K

from flopwise.training.frozen import Frozen
from flopwise.training.goodput import checkpoint_bytes
from flopwise.training.layer_sums import MemoryTable
from flopwise.training.layout import GradSync, Layout, Lora, Recipe
from flopwise.training.memory import Memory, step_memory
from named import FACTS, changed, recipe_with

SEQ, BATCH = 4096, 32
MEGATRON = recipe_with(seq_len=SEQ, global_batch=BATCH, stack="megatron-te")
FSDP = recipe_with(seq_len=SEQ, global_batch=BATCH, stack="fsdp-compile")
FREE, CONTEXT = FACTS.stack("megatron-te").fragmentation_frac, FACTS.stack("megatron-te").context_bytes

# Tensors of a layer that fused kernels keep for the backward pass, elements a token: input of the first norm, its
# output (read by q, k and v), q and k after rope, v, attention's result, the residual, the second norm's output, gate
# and up, and their product; two bytes each, and attention's log-sum-exp in fp32 (FlashAttention-2, section 3.1.1).
LAYER = SEQ * (2 * (WIDTH + WIDTH + (WIDTH + KV) + KV + WIDTH + WIDTH + WIDTH + 3 * FFN) + 4 * HEADS)
ENDS = SEQ * 2 * (2 * WIDTH)  # inputs of the final norm and of the head
ENTRY = SEQ * 2 * WIDTH  # a layer's input alone
WIDER = SEQ * 2 * WIDTH  # by which fp32 makes the input of a norm, or of a layer, larger (autocast)
BETWEEN = 2 * SEQ * 2 * FFN  # gradients in and out of the widest operation, 16 bits


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def memory(recipe: Recipe = MEGATRON, **layout: Any) -> Memory:
    return step_memory(MODEL, recipe, Layout(**layout))


def allocated(found: Memory, moment: str) -> float:
    """Bytes of tensors at one moment: without what the allocator reserves beyond them, and the driver's context."""
    return (float(found.moments[moment]) - CONTEXT) / (1 + FREE)


@pytest.mark.parametrize(("zero", "shares"), [(0, (1, 1, 1)), (1, (1, 1, 8)), (2, (1, 8, 8)), (3, (8, 8, 8))])
def test_states_under_zero(zero: int, shares: tuple[int, int, int]) -> None:
    """Rajbhandari 2020, section 5: 2 bytes of weights, gradients, and 12 of fp32 weight, momentum and variance.

    Stage 1 shards the last, stage 2 gradients too, stage 3 weights too; Megatron's main gradients have 4 bytes.
    """
    found = memory(dp=8, zero=zero).items
    weights, gradients, states = shares
    assert found["weights"] == exactly(2 * PARAMS / weights)
    assert found["gradients"] == exactly(4 * PARAMS / gradients)
    assert found["master weights"] == exactly(4 * PARAMS / states)
    assert found["optimizer states"] == exactly(8 * PARAMS / states)


def test_states_of_fsdp_and_of_groups() -> None:
    """FSDP keeps fp32 shards and no copy; HSDP shards within a group of 8 of 32 (Zhao 2023, section 3.2)."""
    for layout in ({"dp": 8}, {"dp": 32, "shard": 8}):
        found = memory(FSDP, zero=3, **layout).items
        assert found["weights"] == exactly(4 * PARAMS / 8)
        assert found["optimizer states"] == exactly(8 * PARAMS / 8)
        assert found["master weights"] == 0
    assert memory(FSDP, dp=8, zero=3).items["gradients"] == exactly(4 * PARAMS / 8)


def test_states_by_width_and_optimizer() -> None:
    found = memory(changed(MEGATRON, optimizer="sgd-momentum", grad_dtype="bf16", master_weights=False)).items
    assert (found["optimizer states"], found["gradients"], found["master weights"]) == (
        exactly(4 * PARAMS),
        exactly(2 * PARAMS),
        0,
    )
    eight_bits = memory(changed(MEGATRON, optimizer="adamw-8bit")).items["optimizer states"]
    assert eight_bits == exactly(2 * (1 + 4 / 256) * PARAMS)  # an fp32 scale for 256 states (Dettmers 2021)
    halves = memory(replace(MEGATRON, states_dtype="bf16")).items["optimizer states"]
    assert halves == exactly(4 * PARAMS)


def test_tensor_and_expert_shards() -> None:
    """Products and tables are cut by tp, norms are not; experts lie on ep of the dp ranks, which share the rest."""
    cut = LAYERS * (MATRICES / 4 + NORMS) + WIDTH + 2 * VOCAB * WIDTH / 4
    assert memory(tp=4).items["weights"] == exactly(2 * cut)
    dense = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KV + NORMS + WIDTH * EXPERTS) + WIDTH + 2 * VOCAB * WIDTH
    experts = LAYERS * EXPERTS * 3 * WIDTH * EXPERT_FFN
    found = step_memory(MIXTURE, MEGATRON, Layout(dp=8, ep=4, zero=1)).items
    assert found["weights"] == exactly(2 * (dense + experts / 4))
    assert found["optimizer states"] == exactly(8 * (dense / 8 + experts / 4 / 2))


def test_activations() -> None:
    """Everything; without the scores, of which flash attention keeps a row's statistic; each layer's input alone."""
    kept = [float(memory(recompute=mode).items["activations"]) for mode in range(3)]
    assert kept[0] == exactly(LAYERS * LAYER + ENDS)
    assert kept[1] == exactly(LAYERS * (LAYER - SEQ * 4 * HEADS) + ENDS)
    assert kept[2] == exactly(LAYERS * ENTRY + ENDS)
    assert memory(micro_batch=4).items["activations"] == exactly(4 * kept[0])
    assert memory(cp=4).items["activations"] == exactly(kept[0] / 4)
    half = memory(recompute=2, recompute_every=2).items["activations"]
    assert half == exactly(LAYERS / 2 * (LAYER + ENTRY) + ENDS)
    first = memory(recompute=2, recompute_first=3).items["activations"]
    assert first == exactly(5 * LAYER + 3 * ENTRY + ENDS)
    operations = memory(changed(FSDP, stack="fsdp-te"), recompute=1).items["activations"]
    # torchtitan: of the seven products the first, third, fifth and seventh; the compiler drops sums' summands, the
    # fourth and the last: q, v, gate; the layer's input and attention's result
    of_16_bits = LAYERS * SEQ * 2 * (WIDTH + KV + FFN + WIDTH + WIDTH) + ENDS
    assert operations == exactly(of_16_bits + (LAYERS + 1) * WIDER)  # one device, no gathered weights
    gathered = memory(changed(FSDP, stack="fsdp-te"), dp=8, zero=3, recompute=1).items["activations"]
    assert gathered == exactly(of_16_bits)


def test_activations_under_autocast() -> None:
    """PyTorch, Automatic Mixed Precision: tables, norms and sums of fp32 operands stay fp32, products cast inputs.

    A compiled layer so keeps the inputs of its two norms in fp32, and one 16-bit copy of what each puts out; a layer
    that is computed again keeps its own input. Where ZeRO 3 gathers weights in 16 bits, nothing is fp32.
    """
    for zero, wider in ((0, 1), (1, 1), (3, 0)):
        found = [float(memory(FSDP, dp=8, zero=zero, recompute=mode).items["activations"]) for mode in (0, 2)]
        assert found[0] == exactly(LAYERS * LAYER + ENDS + wider * (2 * LAYERS + 1) * WIDER)
        assert found[1] == exactly(LAYERS * ENTRY + ENDS + wider * (LAYERS + 1) * WIDER)
    again = memory(FSDP, recompute=2)
    inputs = LAYERS * ENTRY + ENDS + (LAYERS + 1) * WIDER
    start = (12 + 4 + 2) * PARAMS + inputs + BETWEEN + LAYER + 2 * WIDER  # states, gradients and 16-bit copies
    assert allocated(again, "start of the backward pass") == exactly(start)
    for recipe in (replace(FSDP, weights_dtype="bf16"), replace(FSDP, precision="fp32"), changed(FSDP, stack="xla")):
        per_element = recipe.elem_bytes / 2
        kept = float(memory(recipe, recompute=2).items["activations"])
        assert kept == exactly(per_element * (LAYERS * ENTRY + ENDS))
    # q, k and v copy their input each, gate and up theirs; a norm keeps its fp32 input and what it multiplies by its
    # weights; without autocast it keeps an fp32 copy of its input beside a 16-bit one of what it multiplies
    trainer = changed(FSDP, stack="hf-trainer")
    alone, gathered = (float(memory(trainer, dp=8, zero=zero).items["activations"]) for zero in (0, 3))
    copies, norms = SEQ * 2 * ((3 - 1) + (2 - 1)) * WIDTH, 2 * SEQ * 2 * WIDTH
    assert alone - gathered == exactly(LAYERS * (copies + norms) + WIDER)


def test_activations_on_tensor_ranks() -> None:
    """Korthikanti 2022, section 4.2.2: all of it is cut by tp; the head's input is gathered.

    Without sequence parallelism norms, residuals and inputs of products stay whole: 10 of 34 s b h there.
    """
    tp = 4
    cut = memory(tp=tp).items["activations"]
    assert cut == exactly(LAYERS * LAYER / tp + ENDS / 2 / tp + ENDS / 2)
    whole = memory(tp=tp, sequence_parallel=False).items["activations"]
    not_cut = SEQ * 2 * 4 * WIDTH  # inputs of both norms, what they put out
    assert whole == exactly(LAYERS * (not_cut + (LAYER - not_cut) / tp) + ENDS)


def test_activations_in_flight() -> None:
    """1F1B: the first of p stages keeps p micro-batches (Narayanan 2021, section 2.2), of its layers alone.

    With v chunks 2 (p - 1) + (v - 1) p + 1 warm-up passes of 1/v of its layers each (Megatron-LM's schedule).
    """
    assert memory(pp=4).items["activations"] == exactly(4 * LAYERS / 4 * LAYER)
    interleaved = memory(pp=4, interleave=2).items["activations"]
    assert interleaved == exactly((2 * 3 + 4 + 1) / 2 * LAYERS / 4 * LAYER)
    few = memory(replace(MEGATRON, global_batch=2), pp=4)
    assert few.items["activations"] == exactly(2 * LAYERS / 4 * LAYER)
    gpipe = memory(changed(FSDP, stack="fsdp-te"), pp=4, schedule=1)
    held = float(gpipe.items["activations"])
    layer, ends = LAYER + 2 * WIDER, ENDS + WIDER
    assert held == exactly(BATCH * LAYERS / 4 * layer + (BATCH * ends if gpipe.worst_stage == 2 else 0))


def test_logits_and_loss() -> None:
    """Megatron: bf16 logits, their fp32 copy and a 16-bit gradient: 8 bytes an entry of the rank's vocabulary."""
    assert memory().items["logits and loss"] == exactly(8 * SEQ * VOCAB)
    assert memory(tp=4).items["logits and loss"] == exactly(8 * SEQ * VOCAB / 4)
    assert memory(micro_batch=2, cp=4).items["logits and loss"] == exactly(2 * 8 * SEQ / 4 * VOCAB)
    chunks = memory(replace(MEGATRON, loss_chunks=3)).items["logits and loss"]
    assert chunks == exactly((2 + 6 / 3) * SEQ * VOCAB)  # the logits stay, the rest comes piece by piece
    assert memory(FSDP).items["logits and loss"] == exactly(12 * SEQ * VOCAB)
    for fused in ("fsdp-2023", "xla"):  # flash-attn's loss kernel, XLA's fusions: 16-bit logits and their gradients
        assert memory(changed(FSDP, stack=fused)).items["logits and loss"] == exactly((2 + 2) * SEQ * VOCAB)
    assert memory(FSDP, tp=4).items["logits and loss"] == exactly((12 + 8) * SEQ * VOCAB / 4)


def test_gathered_layers() -> None:
    """FSDP 2: four layers and the root in 16 bits; in the backward pass gradients of one and of the head."""
    unit, root = MATRICES + NORMS, 2 * VOCAB * WIDTH
    found = memory(FSDP, dp=8, zero=3)
    stand = PARAMS / 8 * (4 + 8)
    gradients, kept, logits = 4 * PARAMS / 8, LAYERS * LAYER + ENDS, 12 * SEQ * VOCAB
    gathered = 2 * (4 * unit + root + WIDTH)
    assert found.items["gathered layers"] == exactly(gathered)
    assert allocated(found, "loss") == exactly(stand + gradients + kept + logits + gathered)
    head = VOCAB * WIDTH + WIDTH
    start = stand + gradients + kept + BETWEEN + gathered + 2 * (unit + head)
    assert allocated(found, "start of the backward pass") == exactly(start)
    end = stand + gradients + BETWEEN + gathered + 2 * (unit + root + WIDTH)
    assert allocated(found, "end of the backward pass") == exactly(end)
    assert allocated(found, "optimizer step") == exactly(stand + gradients)


def test_the_moments_of_a_step() -> None:
    """What comes and goes beside states: logits; then gradients between operations, and a layer computed again."""
    stand = 18 * PARAMS
    for mode, kept in ((0, LAYERS * LAYER + ENDS), (2, LAYERS * ENTRY + ENDS)):
        found = memory(recompute=mode)
        working = BETWEEN + (LAYER if mode else 0)
        assert allocated(found, "loss") == exactly(stand + kept + 8 * SEQ * VOCAB)
        assert allocated(found, "start of the backward pass") == exactly(stand + kept + working)
        assert allocated(found, "end of the backward pass") == exactly(stand + working)
        assert allocated(found, "optimizer step") == exactly(stand)
    most = max(allocated(found, moment) for moment in found.moments)
    assert found.allocated_bytes == exactly(most)
    assert found.items["allocator"] == exactly(FREE * most)
    assert found.items["driver context and communicators"] == CONTEXT == 1.5e9
    assert found.total_bytes == exactly(1.12 * most + 1.5e9)
    bare = step_memory(MODEL, MEGATRON, Layout(), device_kind="tpu")
    assert bare.total_bytes == bare.allocated_bytes


def test_gradients_that_do_not_last() -> None:
    """PyTorch's appear as activations go, if one micro-batch makes the step; in the update each is freed at once."""
    found = memory(replace(FSDP, global_batch=1))
    copies = 2 * PARAMS
    kept = LAYERS * (LAYER + 2 * WIDER) + ENDS + WIDER
    assert allocated(found, "loss") == exactly(12 * PARAMS + copies + kept + 12 * SEQ * VOCAB)
    assert allocated(found, "end of the backward pass") == exactly(16 * PARAMS + copies + BETWEEN)
    at_once = memory(replace(MEGATRON, optimizer_in_backward=True))
    assert allocated(at_once, "optimizer step") == exactly(14 * PARAMS + 4 * PARAMS / LAYERS)


def test_gradients_that_wait_for_a_round() -> None:
    """Of two chunks of eight they stand whole; each rank of four holds a quarter of what is reduced."""
    pipe = {"dp": 4, "pp": 4, "zero": 2, "interleave": 8}
    each, round_, last = (memory(replace(MEGATRON, grad_sync=when), **pipe).items["gradients"] for when in WHEN)
    assert round_ == exactly(max(2 / 8 * float(last), float(each)))
    assert each == exactly(float(last) / 4)


WHEN: tuple[GradSync, ...] = ("each", "round", "last")


def test_copies_buckets_and_temporaries() -> None:
    """Autocast keeps 16-bit copies of fp32 weights; BF16_Optimizer a state's copy in its step, and buckets of 3 GB."""
    assert memory(FSDP, dp=8, zero=1).items["16-bit copies of weights"] == exactly(2 * PARAMS)
    at_rest = memory(FSDP, dp=8, zero=2).items  # SHARD_GRAD_OP: fp32 weights sharded, 16-bit ones gathered
    assert at_rest["16-bit copies of weights"] == 0
    assert at_rest["weights"] == exactly(4 * PARAMS / 8)
    assert at_rest["gathered layers"] == exactly(2 * PARAMS)
    row = changed(MEGATRON, stack="megatron-deepspeed")
    found = memory(row, dp=8, zero=1)
    assert found.items["communication buffers"] == 3e9
    context = FACTS.stack("megatron-deepspeed").context_bytes
    step = (float(found.moments["optimizer step"]) - context) / (
        1 + FACTS.stack("megatron-deepspeed").fragmentation_frac
    )
    # bf16 weights, bf16 gradients with their fp32 sum, 12 bytes of states and one more fp32 tensor, sharded
    assert step == exactly(PARAMS * (2 + 2 + 4 + (12 + 4) / 8) + 3e9)


def test_host_memory() -> None:
    found = memory(dp=8, zero=1, offload_optimizer=True)
    assert found.host_bytes == exactly(12 * PARAMS / 8)
    assert found.items["optimizer states"] == found.items["master weights"] == 0
    weights = memory(FSDP, dp=8, zero=3, offload_parameters=True, offload_optimizer=True)
    assert weights.host_bytes == exactly((4 + 4 + 8) * PARAMS / 8)
    assert weights.items["weights"] == weights.items["gradients"] == 0
    kept = memory(offload_activations=True)
    assert kept.host_bytes == exactly((LAYERS - 2) * LAYER)  # two layers' stay as buffers (Transformer Engine)
    assert kept.items["activations"] == exactly(2 * LAYER + ENDS)


RANK = 16
ADAPTERS = LAYERS * RANK * ((WIDTH + WIDTH) + (WIDTH + KV))
"""Both matrices beside q and v (Hu et al. 2021, section 4.1)."""


def test_adapters() -> None:
    """A frozen bf16 base without gradients or states; fp32 adapters with both."""
    lora = replace(MEGATRON, lora=Lora(rank=RANK, targets=("q", "v")))
    found = memory(lora).items
    assert found["weights"] == exactly(2 * PARAMS + 4 * ADAPTERS)
    assert found["gradients"] == exactly(4 * ADAPTERS)
    assert found["optimizer states"] == exactly(8 * ADAPTERS)
    assert found["master weights"] == 0
    assert checkpoint_bytes(MemoryTable(MODEL, lora)) == exactly((4 + 8) * ADAPTERS)
    # QLoRA in bitsandbytes: four bits and an fp32 scale of 64 weights; tables and norms in 16
    quantised = memory(replace(lora, lora=replace(lora.lora, base=FACTS.weight_format("nf4")))).items["weights"]  # type: ignore[type-var]
    packed = LAYERS * MATRICES * (4 + 32 / 64) / 8
    rest = 2 * (LAYERS * NORMS + WIDTH + 2 * VOCAB * WIDTH)
    assert quantised == exactly(packed + rest + 4 * ADAPTERS)


def test_a_frozen_tower_is_on_the_first_stage_alone() -> None:
    """Qwen2.5-VL-7B (its config.json): 27 of 28 layers and the head on the second stage, which has no vision tower."""
    width, ffn, kv, vocab, rank = 3584, 18944, 4 * 128, 152064, 8
    lora = replace(MEGATRON, lora=Lora(rank=rank, targets=("q",)))
    vision = FACTS.model("Qwen2.5-VL-7B")
    layer = 2 * width**2 + width + 2 * (width + 1) * kv + 3 * width * ffn + 2 * width  # biases of q, k and v; norms
    second = step_memory(vision, lora, Layout(pp=2, stage_layers=(1, 27))).items["weights"]
    assert second == exactly(2 * (27 * layer + width + vocab * width) + 4 * 27 * rank * 2 * width)
    seen, inner, joined = 1280, 3420, 4 * 1280  # four neighbouring patches make a token
    block = 4 * seen**2 + 4 * seen + 3 * seen * inner + 2 * inner + seen + 2 * seen
    merger = seen + joined**2 + joined + joined * width + width
    tower = 32 * block + 3 * 2 * 14**2 * seen + merger  # patches of two frames
    first = step_memory(vision, lora, Layout(pp=2, stage_layers=(27, 1))).items["weights"]
    assert first == exactly(2 * (27 * layer + vocab * width + tower) + 4 * 27 * rank * 2 * width)


def test_frozen_layers() -> None:
    """Four of eight layers and the embedding frozen: weights without gradients or states, and no activations."""
    found = memory(replace(MEGATRON, frozen=Frozen(first=4, embedding=True))).items
    trained = 4 * (MATRICES + NORMS) + WIDTH + VOCAB * WIDTH
    assert found["weights"] == exactly(2 * PARAMS)
    assert found["gradients"] == exactly(4 * trained)
    assert found["optimizer states"] == exactly(8 * trained)
    assert found["activations"] == exactly(4 * LAYER + ENDS)


def test_mixture_of_experts() -> None:
    """A routed copy keeps its row of the input, gate and up, and their product, weighted; the router fp32 scores."""
    found = step_memory(MIXTURE, MEGATRON, Layout()).items["activations"]
    dense, routed = LAYER - SEQ * 2 * 3 * FFN, TOP_K * (WIDTH + 3 * EXPERT_FFN)
    assert found == exactly(LAYERS * (dense + SEQ * (2 * routed + 4 * EXPERTS)) + ENDS)


def test_checkpoint() -> None:
    """Weights, master weights and states once: 2 + 4 + 8 bytes (Megatron), 4 + 8 (FSDP)."""
    assert checkpoint_bytes(MemoryTable(MODEL, MEGATRON)) == exactly(14 * PARAMS)
    assert checkpoint_bytes(MemoryTable(MODEL, FSDP)) == exactly(12 * PARAMS)
    assert checkpoint_bytes(MemoryTable(MODEL, job({"optimizer": "sgd"}).recipe)) == exactly(6 * PARAMS)
