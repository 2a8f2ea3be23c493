"""What each technique of serving adds and saves, by hand: prefixes, eviction, drafts, two pools, layers on the host."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from plain_machine import (
    BYTES_PER_S,
    CHIP,
    ENGINE,
    FFN,
    LAUNCH_S,
    LAYERS,
    LINK_BYTES_PER_S,
    NETWORK_BYTES_PER_S,
    PLAIN,
    TOKEN_BYTES,
    VOCAB,
    WIDTH,
    decode_attention_s,
    plain_cluster,
    plain_job,
    product_s,
    step_s,
)

import flopwise
from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.answer import percentiles
from flopwise.serving.estimate import estimate
from flopwise.serving.iteration import StepLoad
from flopwise.serving.job import PLAIN as PLAIN_TECHNIQUES
from flopwise.serving.job import Offload, ServeEstimate, ServeJob, Speculation, Techniques
from flopwise.serving.memory import ServingLayout
from flopwise.serving.sim.engine import replica
from flopwise.serving.spec import TechniqueRequest
from flopwise.serving.techniques import resolve_techniques, runner

INPUT, OUTPUT = 1024, 256
HALF_WAY = INPUT + OUTPUT / 2
PCIE_BYTES_PER_S = 63e9
PINNED = 12 / 15.75
"""CUDA C++ Best Practices Guide: 12 of 15.75 GB/s from pinned memory."""
LAYER_BYTES = LAYERS * (2 * WIDTH * (32 + 8) * 128 + 3 * WIDTH * FFN + 2 * WIDTH) * 2


def job(how: Techniques, **changes: object) -> ServeJob:
    return plain_job(**({"concurrency": 1, "techniques": how} | changes))


def tpot_s(found: ServeEstimate) -> float:
    assert found.tpot_s is not None
    return found.tpot_s.value


# ---- prefixes and eviction


@pytest.mark.parametrize(
    ("how", "cached"), [(Techniques(hit_frac=0.5), 512), (Techniques(shared_tokens=1000), 992)]
)  # whole blocks of 16
def test_a_prefix_in_the_cache_is_seen_and_not_computed(how: Techniques, cached: int) -> None:
    found = estimate(job(how))
    first_s = step_s(chunk=INPUT - cached, seen=INPUT)
    assert found.ttft_s.value == pytest.approx(ENGINE.request_s + first_s, rel=1e-9)
    assert tpot_s(found) == pytest.approx(step_s(1, HALF_WAY), rel=1e-9)


def test_what_is_evicted_is_not_read() -> None:
    assert tpot_s(estimate(job(Techniques(kept_frac=0.25)))) == pytest.approx(step_s(1, 0.25 * HALF_WAY), rel=1e-9)


# ---- drafts


def verified_s(batch: float, proposals: int, context: float) -> float:
    """A step that verifies: all proposals and one token more of each sequence go through."""
    rows = batch * (proposals + 1)
    products_s = (
        product_s(rows, 6144, WIDTH)
        + product_s(rows, WIDTH, WIDTH)
        + product_s(rows, 2 * FFN, WIDTH)
        + product_s(rows, WIDTH, FFN)
    )
    layers_s = LAYERS * (products_s + decode_attention_s(batch, context, tokens=proposals + 1))
    host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + batch * ENGINE.sequence_s
    return layers_s + product_s(rows, VOCAB, WIDTH) + host_s


def drafted_s(context: float) -> float:
    """A step of Llama-3.2-1B for one sequence: 16 layers of 2,048 with 8,192 inside, 32 heads of 64 in 8 groups."""
    width, ffn, layers, query, shared = 2048, 8192, 16, 2048, 512
    weights = layers * (width * (2 * query + 2 * shared) + 3 * width * ffn) + width * VOCAB
    rows = layers * (2 * width + 2 * query + 2 * shared + 2 * width + 3 * ffn) + width + VOCAB
    cache = layers * (2 * shared * context + 2 * query)
    return 2 * (weights + rows + cache) / BYTES_PER_S + layers * ENGINE.layer_s


def accepted(odds: float, proposals: int) -> float:
    """Leviathan et al. 2023 (arXiv:2211.17192): a token comes for each proposal before the first refusal, and one."""
    return sum(odds**place for place in range(proposals + 1))


def test_proposals_looked_up_cost_their_verification() -> None:
    found = estimate(job(Techniques(speculation=Speculation(name="ngram", tokens=4, acceptance=0.6))))
    round_s = verified_s(1, 4, HALF_WAY + 4)
    assert tpot_s(found) == pytest.approx(round_s / accepted(0.6, 4), rel=1e-9)


def test_a_draft_runs_once_a_proposal_and_reads_the_prompt_once() -> None:
    how = Speculation(name="1B", tokens=3, acceptance=0.8, draft=load_model("Llama-3.2-1B"))
    found = estimate(job(Techniques(speculation=how)))
    round_s = verified_s(1, 3, HALF_WAY + 3) + 3 * drafted_s(HALF_WAY + 3)
    assert tpot_s(found) == pytest.approx(round_s / accepted(0.8, 3), rel=1e-9)
    flops = 2 * INPUT * 16 * (2048 * 5120 + 3 * 2048 * 8192) + 16 * 4 * 2048 * INPUT * (INPUT / 2 + 64.5)
    read_s = flops / CHIP.peak["bf16"] + 2 * 2048 * VOCAB / BYTES_PER_S + 16 * ENGINE.layer_s
    alone = estimate(job(Techniques(speculation=replace(how, draft=None))))
    added_s = found.ttft_s.value - alone.ttft_s.value
    assert added_s == pytest.approx(read_s + 3 * drafted_s(HALF_WAY + 3), rel=0.03)


# ---- two pools


def test_a_prompt_elsewhere_waits_for_its_pool_and_for_its_cache() -> None:
    """DistServe (arXiv:2401.09670): M/D/1 before the prefill pool, the cache over the link, decoding on its own."""
    per_s = 10.0
    found = estimate(job(Techniques(prefill_gpus=1), concurrency=None, arrivals_per_s=per_s))
    alone_s = step_s(chunk=INPUT, seen=INPUT)
    each_s = min(alone_s, step_s(chunk=8192, seen=INPUT, prompts=8) / 8)
    transfer_s = LAUNCH_S + INPUT * TOKEN_BYTES / LINK_BYTES_PER_S
    rho = per_s * each_s
    queue_s = rho * each_s / (2 * (1 - rho))
    batch = 1.0
    for _ in range(200):  # Little's law: as many decode as arrive while one answer takes
        batch = per_s * OUTPUT * step_s(batch, HALF_WAY)
    assert found.ttft_s.value == pytest.approx(ENGINE.request_s + alone_s + transfer_s + queue_s, rel=1e-3)
    assert tpot_s(found) == pytest.approx(step_s(batch, HALF_WAY), rel=1e-3)
    assert found.concurrency == pytest.approx(batch, rel=1e-2)
    assert found.requests_per_s == pytest.approx(per_s, rel=1e-9)
    assert found.prefill_frac == 0.5


def test_attention_replicas_share_the_prompt_pool_and_the_arrivals() -> None:
    """Two that decode ten answers a second each, with one of two devices that read prompts: as one with its own."""
    per_s = 20.0
    found = estimate(
        job(Techniques(prefill_gpus=2), layout=ServingLayout(dp=2), concurrency=None, arrivals_per_s=per_s)
    )
    alone_s = step_s(chunk=INPUT, seen=INPUT)
    each_s = min(alone_s, step_s(chunk=8192, seen=INPUT, prompts=8) / 8)
    rho = per_s / 2 * each_s
    queue_s = rho * each_s / (2 * (1 - rho))
    batch = 1.0
    for _ in range(200):
        batch = per_s / 2 * OUTPUT * step_s(batch, HALF_WAY)
    transfer_s = LAUNCH_S + INPUT * TOKEN_BYTES / LINK_BYTES_PER_S
    assert found.ttft_s.value == pytest.approx(ENGINE.request_s + alone_s + transfer_s + queue_s, rel=1e-3)
    assert tpot_s(found) == pytest.approx(step_s(batch, HALF_WAY), rel=1e-3)
    assert found.requests_per_s == pytest.approx(per_s, rel=1e-9)


def test_pools_in_different_nodes_are_joined_by_the_network() -> None:
    """Eight ranks hand over an eighth of the cache each: at a tenth of 50 GB/s nine times as long more."""
    slow = replace(PLAIN.fabric.levels[1], bytes_per_s=NETWORK_BYTES_PER_S / 10)
    slower = replace(PLAIN, fabric=replace(PLAIN.fabric, levels=(PLAIN.fabric.levels[0], slow)))
    near, far = (
        estimate(job(Techniques(prefill_gpus=8), layout=ServingLayout(tp=8), cluster=place))
        for place in (PLAIN, slower)
    )
    later_s = far.ttft_s.value - near.ttft_s.value
    assert later_s == pytest.approx(9 * INPUT * TOKEN_BYTES / 8 / NETWORK_BYTES_PER_S, rel=1e-3)


def test_users_are_in_one_pool_or_the_other() -> None:
    """Little's law over both: users = rate x (time before decoding) + those that decode."""
    users = 24
    found = estimate(job(Techniques(prefill_gpus=1), concurrency=users))
    whole_s = found.ttft_s.value + 255 * tpot_s(found)
    assert found.requests_per_s * whole_s == pytest.approx(users, rel=0.01)
    assert tpot_s(found) == pytest.approx(step_s(found.concurrency, HALF_WAY), rel=1e-3)


def test_tails_of_two_pools_are_those_of_their_queue() -> None:
    """A share rho of prompts waits, exponentially: W / rho x ln(rho / odds) (Kingman 1962), at one server."""
    per_s = 20.0
    asked = job(Techniques(prefill_gpus=1), concurrency=None, arrivals_per_s=per_s)
    sustained, seen = percentiles(asked, 500.0, asked.arrivals_per_s or 0.0, ("mean", "p90"))
    each_s = min(step_s(chunk=INPUT, seen=INPUT), step_s(chunk=8192, seen=INPUT, prompts=8) / 8)
    rho = per_s * each_s
    mean_s = rho * each_s / (2 * (1 - rho))
    waited_s = mean_s / rho * math.log(rho / 0.1)
    assert rho > 0.1
    assert float(seen["p90"].ttft_s - seen["mean"].ttft_s) == pytest.approx(waited_s - mean_s, rel=1e-6)
    assert sustained == pytest.approx(min(1 / each_s, 500 / (OUTPUT * step_s(500, HALF_WAY))), rel=1e-9)


def test_the_rule_of_thumb_for_a_token_is_of_the_devices_that_decode() -> None:
    """8.03 B parameters in 16 bits, half of them read by each of two H100s at 3.35 TB/s; four more read prompts."""
    answer = flopwise.serve("Llama-3.1-8B", gpu="h100", tp=2, prefill_gpus=4)
    assert answer.num_gpus == 6
    (rule,) = (one for one in answer.quick if one.name == "time per token")
    assert rule.value == pytest.approx(8.03e9 * 2 / 2 / 3.35e12, rel=1e-3)


# ---- layers on the host


@pytest.mark.parametrize(
    ("gpus", "tp", "needed"),
    [
        (2, 2, None),  # 127 of 192 GiB
        (4, 2, "255 GiB"),  # both replicas are on one machine
        (16, 2, "255 GiB"),  # eight replicas are on four
        (8, 8, None),  # a replica's eight ranks are on two machines, each of which holds half
    ],
)
def test_a_machine_holds_what_its_own_devices_keep_there(gpus: int, tp: int, needed: str | None) -> None:
    """Llama-3.3-70B's 80 layers in 16 bits, a replica: 2 x 80 x (2 x 8192^2 + 2 x 8192 x 1024 + 3 x 8192 x 28672)."""
    replica_bytes = 2 * 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    assert replica_bytes / 2**30 == pytest.approx(127.5, rel=1e-3)
    answer = flopwise.serve("Llama-3.3-70B", instance="g6.12xlarge", gpus=gpus, tp=tp, offload_weights=1.0, rate=0.01)
    told = [text for text in answer.assumptions if text.startswith("g6.12xlarge has ")]
    expected = f"g6.12xlarge has 192 GiB of memory: the {needed} of offloaded weights do not fit"
    assert told == ([] if needed is None else [expected])


def test_streamed_layers_come_over_pcie_behind_the_others() -> None:
    """FlexGen (arXiv:2303.06865): of loading and computing a layer the slower counts."""
    found = estimate(job(Techniques(offload=Offload(frac=0.5))))
    whole_s = step_s(1, HALF_WAY)
    loading_s = 0.5 * LAYER_BYTES / (0.76 * PCIE_BYTES_PER_S)
    assert tpot_s(found) == pytest.approx(0.5 * whole_s + loading_s, rel=1e-6)
    assert pytest.approx(PINNED, rel=0.01) == 0.76
    assert found.tpot_s is not None
    assert found.tpot_s.bound == pytest.approx(0.5 * LAYER_BYTES / PCIE_BYTES_PER_S, rel=1e-6)


def test_layers_on_the_host_run_there_and_their_rows_travel() -> None:
    """llama.cpp: a quarter of the layers at a tenth of the bandwidth; activations go there and back over PCIe."""
    host = replace(PLAIN.rates, hbm_bytes_per_s=BYTES_PER_S / 10)
    machine = runner(job(Techniques(offload=Offload(frac=0.25, host=host))))
    found = float(np.asarray(machine.step(StepLoad(decode_batch=2, decode_context=500), ServingLayout()).seconds))
    on_device_s = step_s(2, 500)
    head_s = product_s(2, VOCAB, WIDTH)
    layers_s = step_s(2, 500, host_s=0.0) - head_s
    on_host_s = 10 * layers_s + LAYERS * ENGINE.layer_s
    travel_s = 2 * 2 * WIDTH * 2 / (0.76 * PCIE_BYTES_PER_S)
    assert found == pytest.approx(0.75 * on_device_s + 0.25 * on_host_s + travel_s, rel=1e-6)


def test_from_32_tokens_a_step_the_device_computes_what_the_host_holds() -> None:
    host = replace(PLAIN.rates, hbm_bytes_per_s=BYTES_PER_S / 10)
    machine = runner(job(Techniques(offload=Offload(frac=0.25, host=host))))
    found = float(np.asarray(machine.step(StepLoad(decode_batch=32, decode_context=500), ServingLayout()).seconds))
    loading_s = 0.25 * LAYER_BYTES / (0.76 * PCIE_BYTES_PER_S)  # not prefetched: it stands before the computing
    assert found == pytest.approx(step_s(32, 500) + loading_s, rel=1e-6)


# ---- images and grammars


def test_an_image_is_encoded_once_beside_the_tokens_that_it_makes() -> None:
    """Qwen2-VL (arXiv:2409.12191): 1,024 x 1,024 pixels are 73 x 73 patches of 14; 32 layers of width 1,280 with a
    fourfold MLP and attention over all of them; four patches make a token through 5,120 x 5,120 and 5,120 x 3,584."""
    patches, tokens, width = 73 * 73, 73 * 73 // 4, 1280
    layers = 32 * (patches * 2 * (4 + 8) * width**2 + 4 * patches**2 * width)
    merger = tokens * 2 * (5120 * 5120 + 5120 * 3584)
    flops = layers + merger + patches * 2 * (3 * 2 * 14 * 14) * width
    model = load_model("Qwen2-VL-7B")
    two = plain_job(model=model, input_tokens=4096, concurrency=1, techniques=Techniques(images=2, image_tokens=tokens))
    load = StepLoad(prefill_tokens=4096, prefill_context=4096)
    text = runner(replace(two, techniques=PLAIN_TECHNIQUES)).step(load, ServingLayout())
    found = runner(two).step(load, ServingLayout())
    assert float(found.flops - text.flops) == pytest.approx(2 * flops, rel=0.01)
    half = replace(load, prefill_tokens=1024, prefill_context=1024)  # a piece of the prompt: half of an image
    piece, plain = (runner(j).step(half, ServingLayout()) for j in (two, replace(two, techniques=PLAIN_TECHNIQUES)))
    assert float(piece.flops - plain.flops) == pytest.approx(flops / 2, rel=0.01)
    small = replace(two, techniques=Techniques(images=2, image_tokens=tokens // 4))
    less = float(runner(small).step(load, ServingLayout()).flops - text.flops)
    assert less == pytest.approx(2 * (layers / 4 - 32 * 3 / 16 * 4 * patches**2 * width + merger / 4), rel=0.02)
    decode = StepLoad(decode_batch=8, decode_context=4096)
    assert float(runner(two).step(decode, ServingLayout()).seconds) == pytest.approx(
        float(runner(replace(two, techniques=PLAIN_TECHNIQUES)).step(decode, ServingLayout()).seconds)
    )
    whole, bare = estimate(two), estimate(replace(two, techniques=PLAIN_TECHNIQUES))
    assert whole.ttft_s.value - bare.ttft_s.value == pytest.approx(float(found.seconds - text.seconds), rel=0.02)


def test_images_need_a_tower_and_room() -> None:
    with pytest.raises(SpecError, match="leave no room for text in prompts of 1,024"):
        estimate(plain_job(model=load_model("Qwen2-VL-7B"), techniques=Techniques(images=1, image_tokens=1332)))
    with pytest.raises(SpecError, match="no image tower"):
        resolve_techniques(TechniqueRequest(images=1), plain_job(), load_facts(), load_model)
    given = resolve_techniques(
        TechniqueRequest(images=2), plain_job(model=load_model("Qwen2-VL-7B")), load_facts(), load_model
    )
    assert (given.images, given.image_tokens) == (2, 73 * 73 // 4)


def test_a_prompt_of_unknown_length_has_its_usual_text_beside_its_images() -> None:
    """An image of Qwen2-VL-7B is 73 x 73 // 4 = 1,332 tokens; the usual text is 1,024."""
    alone = flopwise.serve("Qwen2-VL-7B", gpu="h100", images=1)
    assert alone.estimate.job.input_tokens == 1024 + 1332
    two = flopwise.serve("Qwen2-VL-7B", gpu="h100", images=2, image_tokens=100)
    assert two.estimate.job.input_tokens == 1024 + 2 * 100
    assert flopwise.serve("Qwen2-VL-7B", gpu="h100", images=1, input=3000).estimate.job.input_tokens == 3000
    run = flopwise.simulate("Qwen2-VL-7B", gpu="h100", images=1, users=1)
    assert set(run.simulated.trace.prompt) == {1024 + 1332}
    plan = flopwise.plan("Qwen2-VL-7B", task="serve", rate=1, gpu="h100", images=1, max_gpus=1, simulate=False)
    assert "--input 2356 " in plan.plans[0].reproduce


def test_masks_of_grammars_are_filled_while_the_device_runs() -> None:
    """Half of 64 sequences: 32 masks of 1 ms outlast the step, 32 of 1 us do not; setting tokens aside moves fp32
    logits twice and a bit for each of the vocabulary. A schema is compiled before a first token, of half of them."""
    load = StepLoad(decode_batch=64, decode_context=HALF_WAY)
    plain = plain_job(cluster=plain_cluster(pointwise_frac=1.0), concurrency=64)
    base = runner(plain)
    applied_s = 32 * VOCAB * (4 + 4 + 1 / 8) / BYTES_PER_S
    step = float(base.step(load, ServingLayout()).seconds)
    for mask_s in (1e-3, 1e-6):
        machine = runner(replace(plain, techniques=Techniques(structured_frac=0.5, mask_s=mask_s)))
        expected = max(step, 32 * mask_s) + applied_s
        assert float(machine.step(load, ServingLayout()).seconds) == pytest.approx(expected, rel=1e-9)
        assert machine.engine.request_s - base.engine.request_s == pytest.approx(0.5 * 1.6e-3)
    slow = replace(plain, techniques=Techniques(structured_frac=1.0, mask_s=1e-3))
    cost = replica(slow).cost
    simulated = cost.seconds(batch=64, cached=round(64 * HALF_WAY))
    assert simulated == pytest.approx(0.064 + 2 * applied_s, rel=0.02)
