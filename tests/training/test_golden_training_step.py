"""Every line of a training step by hand: the arithmetic of the paper or framework at datasheet rates, no losses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import pytest
from lossless import (
    FFN,
    H100,
    HBM,
    HEAD,
    HEADS,
    KV,
    LAYERS,
    MATRICES,
    NETWORK,
    NVLINK,
    PARAMS,
    PEAK,
    SHAPE,
    VOCAB,
    WIDTH,
    job,
    lines,
    machine,
)

from flopwise.facts.models.config import model_from_config
from flopwise.training.estimate import estimate, single_table
from flopwise.training.job import TrainJob
from flopwise.training.layout import ALL_TARGETS, Layout
from flopwise.training.schedules import schedule_code
from flopwise.training.step_table import EXPERT_LAUNCH_S
from flopwise.training.storage import Reads
from named import FACTS, lora_with, recipe_with

SEQ, BATCH, BF16 = 4096, 32, 2
SUMS = 4  # bytes of gradients on their way under Megatron-LM: --bf16 reduces them in fp32 (arguments.py)
MEGATRON, FSDP = FACTS.stack("megatron-te"), FACTS.stack("fsdp-compile")
LIGHT = MEGATRON.pointwise_traffic / HBM  # s a byte of norms and elementwise operations

# One sequence through one layer of MODEL, in s. Products: 2 FLOP a weight and token (Kaplan 2020, section 2.1).
PRODUCTS = 2 * SEQ * MATRICES / PEAK
# Causal attention: query i sees i keys, and blocks of 128 queries half a block more (FlashAttention-2, section 3.1);
# 4 FLOP a pair and element of a head.
ATTENTION = 4 * HEADS * HEAD * SEQ * ((SEQ + 1) / 2 + 64) / PEAK
# Bytes of 16-bit tensors read and written a token: rope on q and k; SwiGLU reads gate and up, writes their product; a
# residual with its norm reads both summands and the sum, writes sum and norm, twice a layer; weights of norms once.
ROPE, GLU = 2 * (WIDTH + KV) * BF16, (2 * FFN + FFN) * BF16
RESIDUAL, NORM_WEIGHT = (3 * WIDTH + 2 * WIDTH) * BF16, WIDTH * BF16
FORWARD = PRODUCTS + ATTENTION + LIGHT * (SEQ * (ROPE + GLU + 2 * RESIDUAL) + 2 * NORM_WEIGHT)
# Backward: two products for each (Kaplan), attention 2.5 times its forward FLOP at 0.8 of its rate (FlashAttention-2),
# and elementwise operations read what came in and the gradient of what went out, and write one of what came in.
ROPE_BACK, GLU_BACK = 3 * (WIDTH + KV) * BF16, (3 * FFN + 2 * FFN) * BF16
RESIDUAL_BACK = (5 * WIDTH + 3 * WIDTH) * BF16
BACKWARD = 2 * PRODUCTS + 2.5 * ATTENTION / 0.8
BACKWARD += LIGHT * (SEQ * (ROPE_BACK + GLU_BACK + 2 * RESIDUAL_BACK) + 2 * NORM_WEIGHT)
# Before the layers: rows of the table read, the hidden state written; backward the other way round.
EMBEDDING = 2 * SEQ * WIDTH * BF16 / HBM
# After them: the final norm, the head, and the loss, which reads or writes 8 bytes an entry of the logits each way.
LOSS = SEQ * VOCAB * MEGATRON.loss_bytes / HBM
HEAD_FORWARD = LIGHT * (SEQ * 2 * WIDTH + WIDTH) * BF16 + 2 * SEQ * VOCAB * WIDTH / PEAK + LOSS
HEAD_BACKWARD = LIGHT * (SEQ * 3 * WIDTH + WIDTH) * BF16 + 4 * SEQ * VOCAB * WIDTH / PEAK + LOSS


def exactly(value: float) -> Any:
    return pytest.approx(value, rel=1e-6)


def test_compute() -> None:
    found = lines(job())
    assert found["forward"] == exactly(BATCH * (LAYERS * FORWARD + EMBEDDING + HEAD_FORWARD))
    assert found["backward"] == exactly(BATCH * (LAYERS * BACKWARD + EMBEDDING + HEAD_BACKWARD))
    idle = {"tensor_parallel", "context_parallel", "expert_parallel", "pipeline_bubble", "pipeline_p2p"}
    assert all(found[name] == 0.0 for name in idle | {"data_parallel", "recompute", "launch", "stage_imbalance"})


def test_two_sequences_at_a_time() -> None:
    """Half as many micro-batches of twice the tokens; weights of norms are read half as often."""
    found = lines(job(micro_batch=2))
    layers = LAYERS * (2 * FORWARD - LIGHT * 2 * NORM_WEIGHT)
    ends = 2 * (EMBEDDING + HEAD_FORWARD) - LIGHT * NORM_WEIGHT
    assert found["forward"] == exactly(BATCH / 2 * (layers + ends))


def test_gradients_added_in_a_kernel_of_their_own() -> None:
    """`main_grad.add_` of Megatron in 2021: fp16 gradients: the sum read and written, the new one read: 6 bytes."""
    recipe = {"stack": "megatron-2021", "precision": "fp16"}
    weights = (LAYERS * MATRICES + VOCAB * WIDTH) * 6 / HBM
    logits = 2 * SEQ * VOCAB * 10 / HBM - 2 * LOSS  # 10 bytes an entry, not 8
    assert lines(job(recipe))["backward"] == exactly(
        BATCH * (LAYERS * BACKWARD + EMBEDDING + HEAD_BACKWARD + weights + logits / 2)
    )


@pytest.mark.parametrize("stack", ["fsdp-compile", "torchtune-compile"])
def test_a_compiled_loss_moves_16_bit_logits_alone(stack: str) -> None:
    """Inductor's kernels (PyTorch pull request 127011) keep what they cast in registers: 8 bytes an entry, not 24.

    Forward the 16-bit logits are read twice, for the greatest and for the sum of exponentials; backward they are read
    once more and their 16-bit gradients written. A step takes half in each pass, which moves 4 bytes an entry.
    """
    row = FACTS.stack(stack)
    compiled, eager = (
        lines(job({"stack": replace(row, loss_traffic_bytes=each)})) for each in (row.loss_traffic_bytes, None)
    )
    for name in ("forward", "backward"):
        assert eager[name] - compiled[name] == exactly(BATCH * SEQ * VOCAB * (12 - (2 + 2)) / HBM)


@pytest.mark.parametrize("recompute", [0, 2])
def test_tensor_parallel_messages(recompute: int) -> None:
    """Two all-reduces a layer and pass (Shoeybi 2019, section 3), each 2 (n - 1) / n of the hidden state on a ring.

    As reduce-scatter and all-gather under sequence parallelism (Korthikanti 2022, section 4.2.2) they are as long, but
    twice as many. The stack hides a share of these alone (Megatron-LM, arguments.py: --tp-comm-overlap needs
    --sequence-parallel). Full recompute repeats those of the forward pass.
    """
    tp, launch_s, passes = 4, 1e-5, 3 if recompute else 2
    hidden = SEQ * WIDTH * BF16
    ring_s = 2 * (tp - 1) / tp * hidden / NVLINK
    for sequence_parallel, launches in ((False, 1), (True, 2)):
        found = lines(
            job(cluster=machine(launch_s=launch_s), tp=tp, recompute=recompute, sequence_parallel=sequence_parallel)
        )
        shown = (1 - MEGATRON.tp_overlap * sequence_parallel) * (ring_s + launches * launch_s)
        assert found["tensor_parallel"] == exactly(BATCH * LAYERS * passes * 2 * shown)


def test_a_stack_hides_messages_of_sequence_parallelism_alone_where_it_says_so() -> None:
    """The fitted share may be nothing: here it is a quarter, of the stack that says so and of one that does not."""
    for stack, without in ((MEGATRON, 0.0), (FSDP, 0.25)):
        hiding = replace(stack, tp_overlap=0.25)
        assert hiding.tp_hidden(sequence_parallel=True) == 0.25
        assert hiding.tp_hidden(sequence_parallel=False) == without


CP, SLOW = 4, 1e9
"""Ranks that share a sequence, and bytes/s of a network on which nothing hides behind attention altogether."""


def context_parallel_s(messages: Literal["ring", "gather", "all-to-all"], tp: int = 1, recompute: int = 0) -> float:
    """The line of one micro-batch and layer on a stack that sends its keys and values so."""
    asked = job(cluster=machine(node=1, network=SLOW), cp=CP, tp=tp, recompute=recompute)
    stack = replace(asked.recipe.stack, context_messages=messages)
    return lines(replace(asked, recipe=replace(asked.recipe, stack=stack)))["context_parallel"] / BATCH / LAYERS


@pytest.mark.parametrize("tp", [1, 2])
def test_context_parallel_ring(tp: int) -> None:
    """cp - 1 times a rank's keys and values go to its neighbour, behind one of cp pieces of attention (Liu 2023, 3).

    Backward, their gradients go with them. Each further piece is added to the sum: 16 bits and fp32 read, fp32 written.
    """
    keys_and_values = SEQ / CP * 2 * KV / tp * BF16
    # the mask lets through as much on every rank (zigzag); blocks of 128 queries add half a block each
    piece = ATTENTION / CP / tp / CP
    forward = keys_and_values / SLOW - piece + SEQ / CP * WIDTH / tp * (BF16 + 4 + 4) / HBM
    backward = 2 * keys_and_values / SLOW - 2.5 * piece / 0.8
    assert min(keys_and_values / SLOW - piece, backward) > 0
    assert context_parallel_s("ring", tp) == exactly((CP - 1) * (forward + backward))
    assert context_parallel_s("ring", tp, recompute=2) == exactly((CP - 1) * (2 * forward + backward))


@pytest.mark.parametrize("tp", [1, 2])
def test_context_parallel_gathers(tp: int) -> None:
    """All keys and values come, for both passes, and the sum of their gradients goes (Llama 3, section 3.3.2)."""
    others = (CP - 1) * SEQ / CP * 2 * KV / tp * BF16 / SLOW
    assert context_parallel_s("gather", tp) == exactly(3 * others)


def test_context_parallel_exchanges_of_heads() -> None:
    """Queries, keys and values of a rank's tokens for those of its heads, and outputs back (Jacobs 2023, 3.1)."""
    sent = (CP - 1) / CP * SEQ / CP * 2 * (WIDTH + KV) * BF16 / SLOW
    assert context_parallel_s("all-to-all") == exactly(2 * sent)


EXPERTS, TOP_K, EXPERT_FFN = 16, 2, 4096
MIXTURE = model_from_config(
    {
        **SHAPE, "model_type": "mixtral", "intermediate_size": EXPERT_FFN, "num_local_experts": EXPERTS,
        "num_experts_per_tok": TOP_K,
    },
    name="golden mixture",
)  # fmt: skip


def mixture_job(recipe: dict[str, Any] | None = None, cluster: Any = None, **layout: Any) -> TrainJob:
    given = {"seq_len": SEQ, "global_batch": BATCH, "stack": "megatron-te", **(recipe or {})}
    return TrainJob(model=MIXTURE, recipe=recipe_with(**given), layout=Layout(**layout), cluster=cluster or machine())


def test_expert_messages() -> None:
    """Dispatch and combine: two all-to-alls a layer and pass of each token's copies, (ep - 1) / ep of them sent.

    Lepikhin et al. 2020 (GShard), section 3.2; the stack hides a share.
    """
    ep = 8
    found = lines(mixture_job(dp=ep, ep=ep))
    copies = SEQ * TOP_K * WIDTH * BF16
    once = (ep - 1) / ep * copies / NVLINK * (1 - MEGATRON.ep_overlap)
    assert found["expert_parallel"] == exactly(BATCH / ep * LAYERS * 2 * 2 * once)
    narrow = lines(mixture_job({"stack": "megatron-te", "precision": "fp8"}, dp=ep, ep=ep))["expert_parallel"]
    assert narrow == exactly(found["expert_parallel"])  # this stack sends 16 bits whatever the precision


LATENT = 1024
LATENT_MIXTURE = model_from_config(
    {
        "model_type": "nemotron_h", "hidden_size": WIDTH, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 128, "vocab_size": VOCAB, "layers_block_type": ["attention", "moe"] * 4, "intermediate_size": 4096,
        "n_routed_experts": EXPERTS, "num_experts_per_tok": TOP_K, "moe_intermediate_size": EXPERT_FFN,
        "moe_latent_size": LATENT, "num_nextn_predict_layers": 1, "num_hidden_layers": 8,
    },
    name="golden latent mixture",
)  # fmt: skip


def test_latent_experts_are_sent_tokens_in_their_own_width() -> None:
    """LatentMoE: what goes to the experts and comes back is as wide as they are, once to each rank with DeepEP."""
    ep, made = 8, mixture_job(dp=8, ep=8)
    once = (ep - 1) / ep * SEQ * LATENT * BF16 / NVLINK * (1 - MEGATRON.ep_overlap)
    plain = lines(replace(made, model=LATENT_MIXTURE))["expert_parallel"]
    assert plain == exactly(BATCH / ep * 4 * 2 * 2 * TOP_K * once)
    direct = replace(made.recipe, stack=replace(made.recipe.stack, dispatch="node"))
    reached = ep * (1 - (1 - 1 / ep) ** TOP_K)
    sent = lines(replace(made, model=LATENT_MIXTURE, recipe=direct))["expert_parallel"]
    assert sent == exactly(BATCH / ep * 4 * 2 * 2 * reached * once)


def test_layers_for_multi_token_prediction_are_trained_where_a_stack_does() -> None:
    """DeepSeek-V3 (arXiv:2412.19437) section 2.2: projection of two widths, the layer, and the head and loss again.

    Nemotron 3 predicts two tokens, each by a layer of attention and one of experts.
    """
    made = replace(mixture_job(), model=LATENT_MIXTURE)
    stack = replace(made.recipe.stack, trains_predictors=True)
    with_them = replace(made, recipe=replace(made.recipe, stack=stack))
    assert (made.model.stacks[0].num_layers, made.model.stacks[0].output_heads) == (8, 1)
    assert (with_them.model.stacks[0].num_layers, with_them.model.stacks[0].output_heads) == (8 + 2 * 2, 3)
    found, more = lines(made)["forward"], lines(with_them)["forward"]
    pair = (found / BATCH - EMBEDDING - HEAD_FORWARD) / 4
    joined = 2 * LIGHT * (2 * SEQ * WIDTH + WIDTH) * BF16 + 2 * SEQ * 2 * WIDTH * WIDTH / PEAK
    head = 2 * SEQ * VOCAB * WIDTH / PEAK + LOSS
    assert more - found == exactly(BATCH * 2 * (joined + pair + head))
    tuned = replace(with_them.recipe, lora=lora_with(rank=16, targets=("q", "v")))
    assert replace(made, recipe=tuned).model.stacks[0].num_layers == 8  # adapters are of the model alone


def test_expert_products() -> None:
    """`TOP_K` experts a token: 2 FLOP a weight and token of three products each (Fedus 2021, section 2)."""
    found = lines(mixture_job())
    attention = 2 * SEQ * (2 * WIDTH * WIDTH + 2 * WIDTH * KV) / PEAK + ATTENTION
    routed = 2 * SEQ * TOP_K * 3 * WIDTH * EXPERT_FFN / PEAK
    # memory-bound: the router's product, its softmax; each copy through SwiGLU; results read and written weighted
    router = (SEQ * (WIDTH + EXPERTS) + WIDTH * EXPERTS) * BF16 / HBM
    light = ROPE + 2 * EXPERTS * BF16 + TOP_K * 3 * EXPERT_FFN * BF16 + 2 * RESIDUAL + 2 * TOP_K * WIDTH * BF16
    layer = attention + routed + router + LIGHT * (SEQ * light + 2 * NORM_WEIGHT)
    assert found["forward"] == exactly(BATCH * (LAYERS * layer + EMBEDDING + HEAD_FORWARD))
    # gradients of experts: products fused with adding to the fp32 sum, which all experts read and write, 8 bytes a
    # weight (Megatron, gradient_accumulation_fusion): more than computing takes
    inputs = SEQ * TOP_K * (WIDTH + 2 * EXPERT_FFN + EXPERT_FFN + WIDTH) * BF16
    sums = (inputs + EXPERTS * 3 * WIDTH * EXPERT_FFN * 8) / HBM
    assert sums > routed
    back = 2 * (attention - ATTENTION) + 2.5 * ATTENTION / 0.8 + routed + sums
    back += router
    router_sum = (SEQ * (WIDTH + EXPERTS) * BF16 + WIDTH * EXPERTS * 8) / HBM
    light = (
        ROPE_BACK + 3 * EXPERTS * BF16 + TOP_K * 5 * EXPERT_FFN * BF16 + 2 * RESIDUAL_BACK + 3 * TOP_K * WIDTH * BF16
    )
    back += router_sum + LIGHT * (SEQ * light + 2 * NORM_WEIGHT)
    assert found["backward"] == exactly(BATCH * (LAYERS * back + EMBEDDING + HEAD_BACKWARD))


def stages_s() -> list[float]:
    """Forward and backward pass of one sequence on each of four stages of two layers."""
    whole = 2 * (FORWARD + BACKWARD)
    return [whole + 2 * EMBEDDING, whole, whole, whole + HEAD_FORWARD + HEAD_BACKWARD]


@pytest.mark.parametrize("interleave", [1, 2])
def test_pipeline_bubble(interleave: int) -> None:
    """1F1B: (p - 1)(f + b) / v (Narayanan 2021, section 2.2): what the busiest, the last, waits for the others."""
    found = lines(job(pp=4, interleave=interleave))
    each = stages_s()
    assert found["pipeline_bubble"] == exactly(sum(each[:-1]) / interleave)
    assert found["stage_imbalance"] == exactly(BATCH * (each[-1] - sum(each) / 4))
    assert found["forward"] + found["backward"] == exactly(BATCH * sum(each) / 4)


def test_zero_bubble_fills_it_with_gradients_of_weights() -> None:
    """ZB-H1: (p - 1)(T_F + T_B - T_W) with T_B of both halves: two weight gradients less (Qi 2023, table 1)."""
    found = lines(job({"stack": "megatron-deepspeed"}, pp=4, schedule=schedule_code("zero-bubble")))
    plain = lines(job({"stack": "megatron-deepspeed"}, pp=4))
    # this stack adds gradients in a kernel of its own: 10 bytes a weight (fp32 sum read and written, bf16 one read)
    weights = PRODUCTS + MATRICES * 10 / HBM
    assert plain["pipeline_bubble"] - found["pipeline_bubble"] == exactly(2 * 3 * 2 * weights)


def test_messages_between_stages() -> None:
    """Activations forward and gradients back at every boundary of every chunk, while the pipeline fills too.

    m v + p - 1 hops each way on the critical path (Narayanan 2021, section 2.2); with the scatter/gather of section
    4.1 each tensor rank sends its share. DeepSpeed sends gradients back whole.
    """
    hidden, pp = SEQ * WIDTH * BF16, 4
    assert lines(job(pp=pp))["pipeline_p2p"] == exactly(2 * hidden / NVLINK * (BATCH + pp - 1))
    early = {"stack": "megatron-2021"}
    assert lines(job(early, pp=pp, interleave=2))["pipeline_p2p"] == exactly(2 * hidden / NVLINK * (2 * BATCH + pp - 1))
    across = lines(job(pp=pp, tp=4, dp=2))["pipeline_p2p"]  # neighbours are eight GPUs apart: over the network
    assert across == exactly(2 * hidden / 4 / NETWORK * (BATCH / 2 + pp - 1))
    over = lines(job(pp=pp, tp=4, dp=1))["pipeline_p2p"]  # the second stage hands on to the next node
    assert over == exactly(2 * hidden / 4 / NETWORK * (BATCH + pp - 1))
    whole = lines(job({"stack": "megatron-deepspeed"}, pp=pp, tp=4, dp=2))["pipeline_p2p"]
    assert whole == exactly((1 / 4 + 1) * hidden / NETWORK * (BATCH / 2 + pp - 1))


def test_messages_that_hide_beside_other_chunks() -> None:
    """With virtual stages only those show that fill and drain the pipeline: p - 1, and p for each further chunk.

    NVIDIA NeMo documentation, Communication Overlap; what is longer than a chunk's passes shows anyway.
    """
    hidden, pp, chunks = SEQ * WIDTH * BF16, 4, 2
    fill = pp - 1 + (chunks - 1) * pp
    assert lines(job(pp=pp, interleave=chunks))["pipeline_p2p"] == exactly(2 * hidden / NVLINK * fill)
    slow = machine(node=1, network=SLOW)
    both, sent = 2 * hidden / SLOW, chunks * BATCH + pp - 1
    found = lines(job(cluster=slow, pp=pp, interleave=chunks))
    busiest = single_table(job(cluster=slow, pp=pp)).stage_parts[:2, 0, 0, 0].sum() / chunks
    assert both > busiest
    assert found["pipeline_p2p"] == exactly(fill * both + (sent - fill) * (both - busiest))


SLOW = 1e9
"""A network so slow that compute hides little: bytes/s of a GPU."""


def passes_s(sequences: float) -> tuple[float, float]:
    """Forward and backward pass of so many sequences."""
    forward = LAYERS * FORWARD + EMBEDDING + HEAD_FORWARD
    return sequences * forward, sequences * (LAYERS * BACKWARD + EMBEDDING + HEAD_BACKWARD)


def test_gradient_all_reduce() -> None:
    """2 (n - 1) / n of the gradients, once a step, behind the last backward pass but for the first layers'."""
    dp = 8
    hides = MEGATRON.dp_overlap * passes_s(1)[1]
    message = 2 * (dp - 1) / dp * PARAMS * SUMS / SLOW
    found = lines(job(cluster=machine(node=1, network=SLOW), dp=dp))["data_parallel"]
    assert found == exactly(message - hides)
    fast = 2 * (dp - 1) / dp * PARAMS * SUMS / NVLINK
    assert fast < hides
    assert lines(job(dp=dp))["data_parallel"] == exactly(fast / LAYERS)  # one layer's share never hides
    contention = 0.25  # what hides slows what it hides behind by as much of its own length
    slowed = lines(job(cluster=machine(train_contention=contention), dp=dp))["data_parallel"]
    assert slowed == exactly(fast / LAYERS + contention * fast * (1 - 1 / LAYERS))


def test_the_upper_bound_hides_nothing() -> None:
    """The whole message and every launch beside the step's other lines, at the slow end of the measured errors."""
    dp = 8
    found = estimate(job(cluster=machine(node=1, network=SLOW), dp=dp))
    message = 2 * (dp - 1) / dp * PARAMS * SUMS / SLOW
    others = found.step_s - dict(found.breakdown)["data_parallel"]
    launches = BATCH / dp * 3 * (LAYERS * 14 + 1 + 2) * MEGATRON.launch_s  # as in `test_host_launches`
    assert found.upper_bound_s * found.band.low == exactly(others + message + launches)


def test_the_upper_bound_hides_nothing_beside_other_passes() -> None:
    """Neither experts' messages nor sends between stages: as on software that runs them alone."""
    beside = mixture_job({"stack": "nemo"}, machine(node=1, network=SLOW), dp=2, ep=2, pp=2, interleave=2)
    stack = replace(beside.recipe.stack, pairs_network=False, hides_hops=False)
    alone = replace(beside, recipe=replace(beside.recipe, stack=stack))
    hidden, open_ = estimate(beside), estimate(alone)
    assert hidden.step_s < open_.step_s
    assert hidden.upper_bound_s == exactly(open_.upper_bound_s)


def test_the_upper_bound_hides_no_hops_of_paired_passes() -> None:
    """DualPipe sends beside other passes; alone, every hop takes its time."""
    made = job(pp=4, schedule=schedule_code("dualpipe"), cluster=machine(node=1, network=SLOW))
    found = estimate(made)
    others = found.step_s - sum(dict(found.breakdown)[name] for name in ("pipeline_p2p", "stragglers"))
    hops, fill = BATCH, 3
    sent = 2 * SEQ * WIDTH * BF16 / SLOW * (hops + fill)
    assert found.upper_bound_s * found.band.low > others + sent


def test_the_upper_bound_hides_no_ring() -> None:
    """Forward a rank sends its keys and values on, backward them and their gradients, each after a piece of attention.

    Liu et al. 2023 (arXiv:2310.01889), section 3.
    """
    cp = 8
    found = estimate(job(cp=cp))
    sent = BATCH * LAYERS * 3 * (cp - 1) * SEQ / cp * 2 * KV * BF16 / NVLINK
    launches = BATCH * 3 * (LAYERS * 14 + 1 + 2) * MEGATRON.launch_s
    assert sent > 0.05 * found.step_s
    assert found.upper_bound_s * found.band.low == pytest.approx(found.step_s + sent + launches, rel=1e-3)


def test_the_upper_bound_hides_no_copies_to_the_host() -> None:
    """Inputs of all layers but two, kept by full recompute, go down and up again; HBM is read and written for it."""
    offloads: dict[str, Any] = {"dp": 8, "zero": 1, "recompute": 2}
    plain = estimate(job(**offloads))
    moved = estimate(job(**offloads, offload_activations=True))
    kept = BATCH / 8 * (LAYERS - 2) * SEQ * WIDTH * BF16
    copies = 2 * kept / PCIE + 2 * kept / HBM
    assert moved.upper_bound_s * moved.band.low == exactly(plain.upper_bound_s * plain.band.low + copies)


def test_gradients_of_experts() -> None:
    """Ranks with the same experts, dp / ep of them, reduce those; all reduce the rest (Megatron-LM)."""
    dp, ep = 8, 4
    found = lines(mixture_job(cluster=machine(node=1, network=SLOW), dp=dp, ep=ep))
    dense = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KV + 2 * WIDTH + WIDTH * EXPERTS) + WIDTH + 2 * VOCAB * WIDTH
    experts = LAYERS * EXPERTS * 3 * WIDTH * EXPERT_FFN / ep
    message = (2 * (dp - 1) / dp * dense + 2 * (1 / 2) * experts) * SUMS / SLOW
    assert found["data_parallel"] == exactly(message - MEGATRON.dp_overlap * found["backward"] / (BATCH / dp))


def test_recipes_of_nvidia_reduce_gradients_in_sixteen_bits() -> None:
    """Half the bytes of what Megatron-LM sends (Megatron-Bridge, scripts/performance: grad_reduce_in_fp32 off)."""
    dp, slow = 8, machine(node=1, network=SLOW)
    message = 2 * (dp - 1) / dp * PARAMS * BF16 / SLOW
    found = lines(job({"stack": "nemo"}, slow, dp=dp))
    assert found["data_parallel"] == exactly(message - MEGATRON.dp_overlap * found["backward"] / (BATCH / dp))


def test_gradients_of_other_widths() -> None:
    """FSDP reduces the fp32 gradients that it keeps; bf16 ones take half as long."""
    dp = 8
    cluster = machine(node=1, network=SLOW)
    found = [
        lines(job({"stack": "fsdp-compile", "grad_dtype": dtype}, cluster, dp=dp))["data_parallel"]
        for dtype in ("fp32", "bf16")
    ]
    assert found[0] - found[1] == exactly(2 * (dp - 1) / dp * PARAMS * (4 - 2) / SLOW)


@pytest.mark.parametrize("zero", [1, 2])
def test_sharded_states(zero: int) -> None:
    """ZeRO 1 and 2: gradients are scattered behind the backward, weights gathered behind the next forward pass.

    (n - 1) / n of each (Rajbhandari 2020, section 7.1), sums in fp32 and weights in bf16 under Megatron; stage 2
    scatters at every micro-batch (DeepSpeed, stage_1_and_2.py).
    """
    dp = 8
    sums, weights = ((dp - 1) / dp * PARAMS * each / SLOW for each in (SUMS, BF16))
    forward, backward = passes_s(1)
    found = lines(job(cluster=machine(node=1, network=SLOW), dp=dp, zero=zero))["data_parallel"]
    reductions = 1 if zero == 1 else BATCH / dp
    scattered = reductions * (sums - MEGATRON.dp_overlap * backward)
    assert found == exactly(scattered + weights - MEGATRON.dp_overlap * forward)


def test_gradients_of_a_round_are_scattered_together() -> None:
    """A stage runs as many micro-batches of a chunk in a row as there are stages: BATCH / pp rounds, not BATCH."""
    pp, dp = 4, 2
    slow = machine(node=1, network=SLOW)

    def scattered(when: Literal["each", "round", "last"]) -> float:
        return lines(job({"grad_sync": when}, slow, dp=dp, pp=pp, interleave=2, zero=2))["data_parallel"]

    micros, once = BATCH / dp, scattered("last")
    each = (scattered("each") - once) / (micros - 1)
    assert each > 0
    assert scattered("round") - once == exactly((micros / pp - 1) * each)


def test_weights_that_are_sharded_between_steps_alone() -> None:
    """FSDP's SHARD_GRAD_OP: 2-byte weights gathered once, 4-byte gradients scattered, every micro-batch."""
    dp, micros = 8, BATCH / 8
    share = (dp - 1) / dp * PARAMS / SLOW
    found = lines(job({"stack": "fsdp-te"}, machine(node=1, network=SLOW), dp=dp, zero=2))
    plain = lines(job({"stack": "fsdp-te"}))
    compute = (plain["forward"] + plain["backward"]) / BATCH
    assert found["data_parallel"] == exactly(micros * (share * (2 + 4) - FSDP.dp_overlap * compute))


def test_sharded_weights() -> None:
    """ZeRO 3, FSDP: weights are gathered for forward and again for backward, gradients scattered, every micro-batch.

    Rajbhandari 2020, section 7.2.2: three times (n - 1) / n; here 2-byte weights and 4-byte gradients.
    """
    dp, micros = 8, BATCH / 8
    share = (dp - 1) / dp * PARAMS / SLOW
    cluster = machine(node=1, network=SLOW)
    found = lines(job({"stack": "fsdp-te"}, cluster, dp=dp, zero=3))
    plain = lines(job({"stack": "fsdp-te"}, cluster))
    compute = (plain["forward"] + plain["backward"]) / BATCH
    assert found["data_parallel"] == exactly(micros * (share * (2 + 2 + 4) - FSDP.dp_overlap * compute))


def test_hybrid_sharding() -> None:
    """HSDP: groups of eight gather and scatter over NVLink; gradients of a share are added up over the network.

    Zhao et al. 2023 (PyTorch FSDP), section 3.2.2: all-reduce of 1/F of the gradients among W/F ranks.
    """
    dp, group, micros = 32, 8, BATCH / 32
    found = lines(job({"stack": "fsdp-te"}, machine(network=SLOW), dp=dp, zero=3, shard=group))["data_parallel"]
    inside = (group - 1) / group * PARAMS / NVLINK
    across = 2 * (dp / group - 1) / (dp / group) * PARAMS / group * 4 / SLOW
    plain = lines(job({"stack": "fsdp-te"}))
    forward, backward = plain["forward"] / BATCH, plain["backward"] / BATCH
    assert 2 * inside < FSDP.dp_overlap * forward  # all hides but one layer's share
    assert (2 + 4) * inside < FSDP.dp_overlap * backward
    shown = micros * inside * (2 + 2 + 4) / LAYERS + across - FSDP.dp_overlap * backward
    assert found == exactly(shown)


@pytest.mark.parametrize(
    ("optimizer", "stack_name", "moved"),
    [  # bytes a parameter: states read and written, gradient read, fp32 weight read and written, 16-bit copy written
        ("adamw", "megatron-te", 2 * 8 + 4 + 8 + 2),
        ("sgd", "megatron-te", 4 + 8 + 2),
        ("sgd-momentum", "megatron-te", 2 * 4 + 4 + 8 + 2),
        ("lion", "megatron-te", 2 * 4 + 4 + 8 + 2),
        ("adamw-8bit", "megatron-te", 2 * (2 + 2 * 4 / 256) + 4 + 8 + 2),  # two 8-bit states, fp32 scales of 256
        ("adamw", "fsdp-te", 2 * 8 + 4 + 8 + 2),
        ("adamw", "fsdp-compile", 2.9 * (2 * 8 + 4 + 8 + 2)),  # separate kernels stream the tensors 2.9 times
    ],
)
def test_optimizer_step(optimizer: str, stack_name: str, moved: float) -> None:
    recipe = {"optimizer": optimizer, "stack": stack_name}
    assert lines(job(recipe))["optimizer"] == exactly(PARAMS * moved / HBM)
    assert lines(job(recipe, dp=8, tp=2, zero=1))["optimizer"] == pytest.approx(PARAMS / 16 * moved / HBM, rel=1e-4)


@pytest.mark.parametrize(
    ("types", "moved"),
    [  # as above, in the types that the recipe asks for over those of the stack (all fp32)
        ({"states_dtype": "bf16"}, 2 * (2 * 2) + 4 + 2 * 4 + 2),
        ({"states_dtype": "bf16", "weights_dtype": "bf16", "grad_dtype": "bf16"}, 2 * (2 * 2) + 2 + 2 * 2),
        ({"weights_dtype": "bf16", "master_weights": True}, 2 * 8 + 4 + 2 * 4 + 2),
        ({"precision": "fp32"}, 2 * 8 + 4 + 2 * 4),  # no narrower copy
    ],
)
def test_optimizer_step_in_types_of_the_recipe(types: dict[str, Any], moved: float) -> None:
    assert lines(job({"stack": "fsdp-te"} | types))["optimizer"] == exactly(PARAMS * moved / HBM)


def test_optimizer_step_of_adapters() -> None:
    """AdamW on matrices of rank 16 in fp32: states, gradient and weight are theirs, not the base's; a 16-bit copy."""
    lora = {"lora": lora_with(rank=16, targets=("q", "v")), "stack": "fsdp-te"}
    trained = LAYERS * 16 * ((WIDTH + WIDTH) + (WIDTH + KV))
    assert lines(job(lora))["optimizer"] == exactly(trained * (2 * 8 + 4 + 2 * 4 + 2) / HBM)
    narrow = {"lora": lora_with(rank=16, targets=("q", "v"), adapter_dtype="bf16"), "stack": "fsdp-te"}
    assert lines(job(narrow))["optimizer"] == exactly(trained * (2 * 4 + 2 + 2 * 2) / HBM)


def test_host_launches() -> None:
    """One launch an operation forward and two backward; only what is longer than the device's work shows."""
    found = lines(job({"seq_len": 256, "global_batch": 4, "stack": "fsdp-eager"}, tp=4))
    # norm, q, k, v, rope, attention, o, residual, norm, gate, up, activation, down, residual; embedding; norm and head
    host_s = 3 * (LAYERS * 14 + 1 + 2) * FACTS.stack("fsdp-eager").launch_s
    busy = found["forward"] + found["backward"] + found["tensor_parallel"]
    assert found["launch"] == exactly(4 * host_s - busy)
    few = mixture_job({"seq_len": 256, "global_batch": 4}, tp=4)
    found = lines(few)
    # for the MLP's four a router, its softmax, experts' two products, activation and sum; and routing (2603.07685)
    host_s = 3 * (LAYERS * 16 + 1 + 2) * MEGATRON.launch_s + LAYERS * MEGATRON.routing_s
    busy = found["forward"] + found["backward"] + found["tensor_parallel"]
    # both products of each expert are kernels of their own, forward and twice backward
    each_s = 3 * LAYERS * 2 * EXPERTS * EXPERT_LAUNCH_S
    # and each layer's forward pass waits for the counts, however busy the device is
    counts_s = LAYERS * MEGATRON.counts_s
    assert found["launch"] == exactly(4 * (host_s + each_s + counts_s) - busy)
    long = lines(mixture_job({"seq_len": 65536, "global_batch": 4}, tp=4))
    assert long["forward"] > 4 * (host_s + each_s)
    assert long["launch"] == exactly(4 * counts_s)
    twice = lines(mixture_job({"seq_len": 65536, "global_batch": 4}, tp=4, recompute=2))
    assert twice["launch"] == exactly(4 * counts_s * (1 + twice["recompute"] / twice["forward"]))
    # of experts with a capacity all shapes are known beforehand: neither counts nor single launches keep the host
    known = lines(mixture_job({"seq_len": 256, "global_batch": 4, "capacity_factor": 1.0}, tp=4))
    assert known["launch"] == 0.0


def test_what_runs_again_is_launched_again_and_adapters_are_launched() -> None:
    """torch.utils.checkpoint runs the forward functions twice: a third of the launches, without embedding and head."""
    short = {"seq_len": 256, "global_batch": 4, "stack": "fsdp-eager"}
    once, found = lines(job(short, tp=4)), lines(job(short, tp=4, recompute=2))
    busy = sum(found[name] for name in ("forward", "backward", "recompute", "tensor_parallel"))
    again = found["recompute"] / found["forward"]
    assert 0.8 < again < 1
    host_s = (LAYERS * 14 + 1 + 2) * FACTS.stack("fsdp-eager").launch_s * (3 + again)
    assert found["launch"] == exactly(4 * host_s - busy)
    # two matrices beside each of seven projections; embedding, norm and head have no backward pass worth a launch
    adapted = lines(job({**short, "lora": lora_with(rank=8, targets=ALL_TARGETS)}, tp=4))
    busy = sum(adapted[name] for name in ("forward", "backward", "tensor_parallel"))
    launches = (adapted["launch"] + busy) / 4 / FACTS.stack("fsdp-eager").launch_s
    plain = (once["launch"] + sum(once[name] for name in ("forward", "backward", "tensor_parallel"))) / 4
    assert launches - plain / FACTS.stack("fsdp-eager").launch_s == pytest.approx(3 * LAYERS * 14, abs=6)


def test_recompute() -> None:
    """Full: every layer's forward pass once more. Selective: attention alone (Korthikanti 2022, section 5)."""
    assert lines(job(recompute=2))["recompute"] == exactly(BATCH * LAYERS * FORWARD)
    assert lines(job(recompute=1))["recompute"] == exactly(BATCH * LAYERS * ATTENTION)
    # torchtitan (section 2.1.2): elementwise operations and every other product
    light = FORWARD - PRODUCTS - ATTENTION
    operations = lines(job({"stack": "fsdp-te"}, recompute=1))["recompute"]
    assert operations == exactly(BATCH * LAYERS * (light + PRODUCTS / 2))
    assert lines(job(recompute=2, recompute_every=2))["recompute"] == exactly(BATCH * LAYERS / 2 * FORWARD)


PCIE = 0.76 * float(H100.pcie_bytes_per_s or 0)
"""Bytes/s one way of the datasheet, of which pinned copies reach 12 / 15.75 (CUDA best practices guide)."""


def test_states_in_host_memory() -> None:
    """The host updates at 110 GB/s for eight GPUs (ZeRO-Offload, table 4: 1e9 parameters in 0.25 s); 30 bytes each.

    4-byte gradients go down behind the last backward pass, 2-byte weights come up behind the update.
    """
    dp = 8
    found = lines(job(dp=dp, zero=1, offload_optimizer=True))
    update = PARAMS / dp * 30 * 8 / 110e9
    assert found["optimizer"] == exactly(update)
    backward = passes_s(1)[1]
    down, up = PARAMS / dp * 4 / PCIE, PARAMS / dp * 2 / PCIE
    assert found["offload"] == pytest.approx(max(0.0, down - backward) + max(0.0, up - update), abs=1e-12)
    alone = lines(job({"global_batch": 1}, offload_optimizer=True))
    assert alone["offload"] == exactly(max(0.0, PARAMS * 4 / PCIE - backward))


def test_weights_in_host_memory() -> None:
    """ZeRO-Infinity, section 5.1: each rank's 2-byte shard comes up for both passes of every micro-batch."""
    short = {"seq_len": 256, "global_batch": 8, "stack": "fsdp-te"}
    found = lines(job(short, dp=8, zero=3, offload_parameters=True))
    plain = lines(job(short, dp=8, zero=3))
    up = PARAMS / 8 * 2 / PCIE
    assert found["offload"] == exactly(max(0.0, up - plain["forward"]) + max(0.0, up - plain["backward"]))
    assert up > plain["forward"]


def test_activations_in_host_memory() -> None:
    """All but two layers' go down in the forward pass and come back in the backward one, beside computing.

    Transformer Engine, CPU offloading: each byte is read and written once on the device as well.
    """
    layer = SEQ * (2 * (6 * WIDTH + 2 * KV + 3 * FFN) + 4 * HEADS)  # as in test_golden_memory.py
    moved = (LAYERS - 2) * layer
    found = lines(job(offload_activations=True))
    forward, backward = passes_s(1)
    shown = max(0.0, moved / PCIE - forward) + max(0.0, moved / PCIE - backward)
    assert shown > 0
    assert found["offload"] == exactly(BATCH * (shown + 2 * moved / HBM))


def test_eight_bit_products() -> None:
    """Products at the fp8 rate; inputs quantised, and every operand and result cast in a share of a pass.

    Transformer Engine user guide: operands are cast in both directions; the share is the stack's.
    """
    found = lines(job({"precision": "fp8"}))
    peak = H100.peak["fp8"]
    passes = MEGATRON.cast_passes * (2 + 1)
    layer = 2 * SEQ * MATRICES / peak
    for inputs, outputs in ((WIDTH, WIDTH + 2 * KV), (WIDTH, WIDTH), (WIDTH, 2 * FFN), (FFN, WIDTH)):
        layer += SEQ * inputs * (2 + 1) / HBM + passes * (SEQ * inputs + inputs * outputs + SEQ * outputs) / HBM
    plain = lines(job())["forward"]
    assert found["forward"] == exactly(plain + BATCH * LAYERS * (layer - PRODUCTS))


def test_four_bit_base() -> None:
    """QLoRA, section 3: each product first reads its packed weight, 4 bits and an fp32 scale for 64, writes 16 bits."""
    lora = {base: {"lora": lora_with(rank=16, base=base)} for base in ("bf16", "nf4")}
    plain, packed = (lines(job(recipe)) for recipe in lora.values())
    unpacking = BATCH * LAYERS * MATRICES * ((4 + 32 / 64) / 8 + 2 * 2) / HBM
    for name in ("forward", "backward"):  # backward there are gradients of inputs alone
        assert packed[name] - plain[name] == pytest.approx(unpacking, rel=1e-6)


def test_tokens_sent_in_eight_bits() -> None:
    """DeepSeek-V3 report, section 3.3.3: dispatched in 8 bits, combined in 16: three quarters of the bytes."""
    name = "hai-llm"
    assert FACTS.stack(name).fp8_dispatch
    wide, narrow = (
        lines(mixture_job({"stack": name, "precision": precision}, dp=8, ep=8))["expert_parallel"]
        for precision in ("bf16", "fp8")
    )
    assert narrow == exactly(wide * (1 + 2) / (2 + 2))


def test_reading_the_data() -> None:
    """Records of a step over what storage delivers to all nodes that read, less all else, which hides it."""
    asked = job(dp=16)
    other = sum(lines(asked).values())
    rate = BATCH * SEQ * 4.0 / (2 * 10 * other)  # two nodes read for ten times as long as everything else takes
    reads = Reads(storage="nfs", bytes_per_s=rate, token_bytes=4.0)
    found = estimate(
        TrainJob(model=asked.model, recipe=asked.recipe, layout=asked.layout, cluster=asked.cluster, reads=reads)
    )
    assert dict(found.breakdown)["storage_io"] == exactly(9 * other)
    shared = replace(found.job, reads=replace(reads, total_bytes_per_s=rate))  # the two nodes get what one can take
    assert dict(estimate(shared).breakdown)["storage_io"] == exactly(19 * other)


def test_messages_of_zero_3_are_slow_between_nodes_alone() -> None:
    """Narayanan et al. 2021 (section 5.2): what ZeRO 3 loses, it loses between nodes; a share of 1/4 takes 4 times."""
    for dp, times in ((8, 1.0), (16, 4.0)):
        asked = job({"stack": "deepspeed-zero3"}, dp=dp, zero=3)
        alone = replace(asked.recipe.stack, dp_overlap=0.0, tp_overlap=0.0, ep_overlap=0.0)
        plain, slow = (
            replace(asked, recipe=replace(asked.recipe, stack=replace(alone, message_frac=frac)))
            for frac in (1.0, 0.25)
        )
        assert lines(slow)["data_parallel"] == exactly(times * lines(plain)["data_parallel"])
        assert lines(plain)["data_parallel"] > 0
