"""Every item of a serving GPU's memory by hand, what fits beside them, and how long a replica takes to start."""

from __future__ import annotations

from dataclasses import replace
from math import floor

import numpy as np
import pytest
from plain_machine import CHIP, DIM, ENGINE, FFN, KV_HEADS, LAYERS, LLAMA, TOKEN_BYTES, VOCAB, WIDTH, plain_job

from flopwise.facts.models.catalog import load_model
from flopwise.serving.job import Offload, Speculation, Techniques
from flopwise.serving.memory import ServingLayout, ServingMemory, prefill_workspace_bytes
from flopwise.serving.startup import cold_start
from flopwise.serving.techniques import host_bytes, memory_changes
from named import FACTS, serving_memory

LAYER = 2 * WIDTH * (32 + KV_HEADS) * DIM + 3 * WIDTH * FFN
"""Elements of the matrices of one layer."""
EMBEDDING = VOCAB * WIDTH
PARAMETERS = LAYERS * (LAYER + 2 * WIDTH) + 2 * EMBEDDING + WIDTH
HBM = CHIP.hbm_bytes
TOKEN_ACTIVATIONS = (2 * FFN + 2 * WIDTH) * 2
"""Largest tensors that stand at once in a layer, 16 bits: gate and up, the residual and what is normalised."""
LOGITS = VOCAB * 6
"""Of a sequence: in 16 bits, and in fp32 for sampling."""
PROMPTS = ENGINE.prefill_tokens * TOKEN_ACTIVATIONS
"""vLLM runs a whole chunk before it allocates the cache, whatever comes later, and then samples from its results."""
SAMPLED = VOCAB * 14
"""Of a sequence in that run: logits in 16 bits and in fp32, their probabilities in fp32 and the noise to draw with."""
RESULTS = ENGINE.prefill_tokens * WIDTH * 2


def held(layout: ServingLayout | None = None, **how: object) -> ServingMemory:
    how = {"context": 4096, "concurrency": 16, "hbm_bytes": HBM} | how
    return serving_memory(LLAMA, layout, **how)


def items(layout: ServingLayout | None = None, **how: object) -> dict[str, float]:
    return {name: float(size) for name, size in held(layout, **how).items.items()}


def test_each_item_of_a_whole_model() -> None:
    found = items()
    assert found == {
        "weights": pytest.approx(2 * PARAMETERS),
        "KV cache": pytest.approx(16 * 4096 * TOKEN_BYTES),
        "activations and workspace": pytest.approx(ENGINE.workspace_bytes + max(PROMPTS, RESULTS + 16 * SAMPLED)),
        "captured graphs": ENGINE.graph_bytes,
        "driver context and communicators": ENGINE.context_bytes,
    }
    assert float(held().total_bytes) == pytest.approx(sum(found.values()))


def test_activations_of_short_work_are_those_of_its_tokens() -> None:
    """One prompt of 100 tokens is less than a chunk, where none is run beforehand."""
    row = FACTS.engine("sglang")
    found = items(context=100, concurrency=1, engine="sglang")["activations and workspace"]
    assert found == pytest.approx(row.workspace_bytes + 100 * TOKEN_ACTIVATIONS + LOGITS)
    assert items(prefill_tokens=512, engine="sglang")["activations and workspace"] == pytest.approx(
        row.workspace_bytes + 512 * TOKEN_ACTIVATIONS + 16 * LOGITS
    )


def test_vllm_leaves_room_for_its_largest_step() -> None:
    """A whole chunk's, or its sampler's for as many sequences as it is started for; a step has a token of each."""
    found = items(context=100, concurrency=1)["activations and workspace"]
    assert found == pytest.approx(ENGINE.workspace_bytes + PROMPTS)
    many = items(context=100, concurrency=1, max_batch=1024)["activations and workspace"]
    assert many == pytest.approx(ENGINE.workspace_bytes + RESULTS + 1024 * SAMPLED)
    most = items(context=100, concurrency=1, max_batch=10**6)["activations and workspace"]
    assert most == pytest.approx(ENGINE.workspace_bytes + RESULTS + ENGINE.prefill_tokens * SAMPLED)
    sorting = VOCAB * (2 + 1.25e9 / (256 * 131_072))  # vLLM pull request 32558, beside logits in 16 bits
    older = items(context=100, concurrency=1, max_batch=1024, engine="vllm-2025")["activations and workspace"]
    assert older == pytest.approx(ENGINE.workspace_bytes + RESULTS + 1024 * sorting, rel=0.01)


def test_what_vllm_logs_of_the_cache() -> None:
    """GiB left of 0.9 of an H100's 79.2: issue 21348 (tp 4, 1,024 sequences), pull request 10511 (256 sequences)."""
    mixture = serving_memory(
        load_model("Qwen3-235B-A22B"), ServingLayout(tp=4), context=32_768, max_batch=1024, hbm_bytes=HBM,
        weights="fp8", engine="vllm-2025",
    )  # fmt: skip
    assert float(mixture.kv_budget_bytes) / 2**30 == pytest.approx(8.11, abs=0.2)  # 15.5 without its sampler
    llama = serving_memory(
        load_model("Llama-3-8B"), context=8192, max_batch=256, hbm_bytes=HBM, engine="vllm-v0", prefill_tokens=8192
    )
    assert float(llama.kv_budget_bytes) / 2**30 == pytest.approx(53.29 + 1.79 - 0.6, abs=0.5)  # non-torch memory


def test_communicators_of_several_gpus_stand_beside_the_context() -> None:
    """1.79 GiB more on each of two H100s than on one (vLLM pull request 10511), if a switch adds up what they send."""
    name, known = "driver context and communicators", FACTS.engine("tensorrt-llm")
    for gpu, communicators in (("H100-SXM-80", 1.79), ("B200", 1.79), ("RTX PRO 6000 Blackwell Server", 0.0)):
        row = known.on(FACTS.accelerator(gpu))
        for layout, several in (
            (ServingLayout(), False), (ServingLayout(tp=2), True), (ServingLayout(dp=8, ep=8), True),
            (ServingLayout(pp=2), True),
        ):  # fmt: skip
            found = float(items(layout, engine=row)[name])
            assert (found - row.context_bytes) / 2**30 == pytest.approx(several * communicators, abs=0.01)
    column = serving_memory(LLAMA, ServingLayout(tp=np.array([1, 2])), context=4096, engine="vllm-2025").items[name]
    assert np.diff(np.asarray(column)) == pytest.approx(FACTS.engine("vllm-2025").communicator_bytes)
    assert items(ServingLayout(tp=2))[name] == ENGINE.context_bytes  # later releases of vLLM


def test_a_vision_tower_stands_beside_the_weights_of_its_checkpoint() -> None:
    """Llama-4-Scout on the hub has 108,641,793,536 parameters, its layers for text 107,769,861,120: 871.9 million more.

    By hand: 34 layers of 1,408, 4 x 1,408^2 + 2 x 1,408 x 5,632 each, 808.8 million; 23.1 and 16.8 of the adapter
    (5,632 to 4,096, and once more), 21.0 of the projector; the rest are patches, positions, norms and biases.
    """
    model, tower = load_model("Llama-4-Scout"), 108_641_793_536 - 107_769_861_120
    layers = 34 * (4 * 1408**2 + 2 * 1408 * 5632)
    assert layers + 5632 * 4096 + 4096**2 + 4096 * 5120 == pytest.approx(tower, rel=0.01)
    for engine, layout, cut in (("vllm", ServingLayout(), 1), ("tensorrt-llm", ServingLayout(tp=4), 4)):
        found = serving_memory(model, layout, context=1024, engine=engine)
        assert float(found.items["vision tower"]) == pytest.approx(2 * tower / cut)
        assert float(found.total_bytes) == pytest.approx(sum(map(float, found.items.values())))
        assert found.exact_bytes >= 2 * tower / cut
    assert "vision tower" not in serving_memory(model, context=1024, engine="llama.cpp").items
    assert "vision tower" not in serving_memory(LLAMA, context=1024).items


def test_experts_in_mxfp4_are_padded_to_whole_tiles() -> None:
    """gpt-oss-120b takes 65.97 GiB of an H100 under vLLM (its issue 23278): 2,880 are 3,072 inputs and 2,944 inside."""
    model = load_model("gpt-oss-120b")
    padded, plain = (
        float(serving_memory(model, context=1024, weights="mxfp4", engine=name).items["weights"])
        for name in ("vllm", "tensorrt-llm")
    )
    experts = 36 * 128 * 3 * 2880 * 2880 * 4.25 / 8
    assert padded - plain == pytest.approx(experts * (3072 * 2944 / 2880**2 - 1), rel=0.01)
    assert padded / 2**30 == pytest.approx(65.97, abs=0.1)
    halved = float(serving_memory(model, ServingLayout(tp=2), context=1024, weights="mxfp4").items["weights"])
    thinner = 3072 * 1536 / (2880 * 1440)  # 1,440 of each rank are 1,536
    assert halved == pytest.approx((plain - experts + experts * thinner) / 2, rel=0.01)


def test_rows_of_experts_in_mxfp4_are_activated_before_they_are_kept() -> None:
    """gpt-oss-120b: each of a token's four experts has 2,880 elements inside and 2,880 that come out, in 16 bits.

    Mixtral's two have 2 x 14,336 that the first product makes, and 14,336 that the last one reads.
    """
    for name, rows, width in (("gpt-oss-120b", 4 * (2880 + 2880), 2880), ("Mixtral-8x7B", 2 * 3 * 14_336, 4096)):
        found = float(np.asarray(prefill_workspace_bytes(load_model(name), 8192, 0, ServingLayout())))
        assert found == pytest.approx(8192 * 2 * (rows + 2 * width), rel=1e-9)


def test_graphs_of_older_engines_are_beside_their_share_of_the_card() -> None:
    row = FACTS.engine("vllm-2025")
    taken = 2 * PARAMETERS + row.context_bytes + row.workspace_bytes + PROMPTS
    found = held(concurrency=None, engine="vllm-2025", max_batch=8)
    assert float(found.kv_budget_bytes) == pytest.approx(0.9 * HBM - taken)
    assert float(found.usable_bytes) == pytest.approx(0.9 * HBM + row.graph_bytes)
    full = held(concurrency=None, engine="vllm-2025", memory_frac=1.0)
    assert float(full.usable_bytes) == pytest.approx(HBM)


def test_growing_caches_hold_half_of_an_answer_and_reserved_ones_all() -> None:
    """4,096 tokens, of which 1,024 are the answer: 3,584 on average, in blocks of 16; TensorRT-LLM reserves."""
    assert items(answer=1024)["KV cache"] == pytest.approx(16 * 3584 * TOKEN_BYTES)
    assert items(answer=1024, engine="tensorrt-llm")["KV cache"] == pytest.approx(16 * 4096 * TOKEN_BYTES)
    assert items(context=4001)["KV cache"] == pytest.approx(16 * 4016 * TOKEN_BYTES)


def test_ranks_and_stages_divide_weights_and_cache() -> None:
    """Matrices and heads over tp, norms on every rank; stages hold whole layers, the ends one table each."""
    two = items(ServingLayout(tp=2))
    norms = (2 * LAYERS + 1) * WIDTH
    assert two["weights"] == pytest.approx(2 * ((PARAMETERS - norms) / 2 + norms))
    assert two["KV cache"] == pytest.approx(16 * 4096 * TOKEN_BYTES / 2)
    inner = ENGINE.prefill_tokens * (2 * FFN / 2 + 2 * WIDTH) * 2
    assert two["activations and workspace"] == pytest.approx(ENGINE.workspace_bytes + inner)
    four = items(ServingLayout(pp=4))
    assert four["weights"] == pytest.approx(2 * (LAYERS / 4 * (LAYER + 2 * WIDTH) + EMBEDDING + WIDTH))
    assert four["KV cache"] == pytest.approx(16 * 4096 * TOKEN_BYTES / 4)


@pytest.mark.parametrize(
    ("name", "bits"),
    # AWQ: 4 bits, a 16-bit scale and a 4-bit zero for 128; nvfp4: an 8-bit scale for 16; fp8: a scale a row
    [("fp8", 8), ("awq", 4 + 20 / 128), ("nvfp4", 4 + 8 / 16), ("fp16", 16), ("fp32", 32)],
)
def test_formats_take_their_bits_inside_the_layers(name: str, bits: float) -> None:
    outside = 32 if name == "fp32" else 16
    expected = LAYERS * LAYER * bits / 8 + (PARAMETERS - LAYERS * LAYER) * outside / 8
    assert items(weights=name)["weights"] == pytest.approx(expected, rel=2e-3)


def test_replicas_that_share_experts_gather_their_tokens() -> None:
    """DeepSeek-V3 on eight replicas: of 65,536 tokens of a step 32,768 at once, four for each of a replica's own 8,192.

    A token takes 8 rows of 7,168 elements, as wide as what the last product makes, and of the 2,048 that it reads, 16
    bits each; beside them the gathered tokens, and a layer's input and output of the replica's own. One replica has no
    more tokens than its own: 8 x 9,216 elements each, more than the 57,344 of its projections of queries and keys.
    """
    model = load_model("DeepSeek-V3")
    for layout, gathered, beside in ((ServingLayout(dp=8, ep=8), 4, 4), (ServingLayout(), 1, 0)):
        found = serving_memory(model, layout, context=1024, concurrency=1, weights="fp8-block")
        rows = 8192 * gathered * 8 * (7168 + 2048) * 2
        tokens = 8192 * (beside + 2) * 7168 * 2
        own = FACTS.engine("vllm").workspace_bytes
        assert float(found.items["activations and workspace"]) == pytest.approx(own + rows + tokens, rel=1e-9)
    sent = serving_memory(model, ServingLayout(dp=32, ep=32), context=1024, concurrency=1, weights="fp8-block")
    one = serving_memory(model, context=1024, concurrency=1, weights="fp8-block")
    name = "activations and workspace"
    assert float(sent.items[name]) == pytest.approx(float(one.items[name]), rel=1e-9)  # by kernels, to their experts
    outside = serving_memory(model, context=8192, concurrency=1, weights="fp8-block", engine="sglang")
    plain = 8192 * 2 * (32_768 + 24_576 + 2 * 7168) + 129_280 * 6 + FACTS.engine("sglang").workspace_bytes
    assert float(outside.items[name]) == pytest.approx(plain, rel=1e-9)  # its share is of weights and cache


def test_experts_are_spread_and_attention_is_not() -> None:
    """Mixtral-8x7B on 4 attention replicas: 8 experts of 3 x 4096 x 14336 over 4 ranks."""
    found = serving_memory(load_model("Mixtral-8x7B"), ServingLayout(dp=4, ep=4), context=1024)
    layer = 2 * WIDTH * (32 + KV_HEADS) * DIM + 8 * WIDTH + 2 * 3 * WIDTH * FFN + 2 * WIDTH
    assert float(found.items["weights"]) == pytest.approx(2 * (32 * layer + 2 * 32_000 * WIDTH + WIDTH))


# ---- kinds of cache


@pytest.mark.parametrize(
    ("model", "dtype", "token_bytes"),
    [
        ("Llama-2-7B", "bf16", 2 * 32 * 32 * 128 * 2),  # all heads
        ("Llama-3.1-70B", "bf16", 2 * 80 * 8 * 128 * 2),  # 8 groups
        ("Llama-3.1-8B", "fp8", 2 * 32 * 8 * 128),
        ("DeepSeek-V3", "bf16", 61 * (512 + 64) * 2),  # one latent (arXiv:2405.04434, table 1)
    ],
)
def test_each_token_takes_its_keys_and_values(model: str, dtype: str, token_bytes: int) -> None:
    found = serving_memory(load_model(model), context=8192, concurrency=3, kv_dtype=dtype)
    assert float(found.items["KV cache"]) == pytest.approx(3 * 8192 * token_bytes)


def test_windowed_layers_hold_their_window() -> None:
    """gpt-oss-120b: 18 layers hold 8,192 tokens and 18 hold 128; engines that do not exploit windows hold all."""
    model, token = load_model("gpt-oss-120b"), 2 * 8 * 64 * 2
    found = serving_memory(model, context=8192)
    assert float(found.items["KV cache"]) == pytest.approx(18 * (8192 + 128) * token)
    whole = serving_memory(model, context=8192, engine="vllm-v0")
    assert float(whole.items["KV cache"]) == pytest.approx(36 * 8192 * token)


# ---- what fits


def test_vllm_gives_the_cache_what_its_share_of_the_card_leaves() -> None:
    """0.92 of the card, less weights, graphs, context and the largest step; the sampler's grows with sequences."""
    found = held(concurrency=None, answer=1024)
    standing = 2 * PARAMETERS + ENGINE.graph_bytes + ENGINE.context_bytes + ENGINE.workspace_bytes
    room = 0.92 * HBM - standing
    assert found.max_whole_contexts == floor((room - PROMPTS) / (4096 * TOKEN_BYTES))
    assert found.max_concurrency == floor((room - PROMPTS) / (3584 * TOKEN_BYTES))
    assert float(found.kv_budget_bytes) == pytest.approx(room - PROMPTS)
    assert found.kv_capacity_tokens == floor((room - PROMPTS) / TOKEN_BYTES)
    short = held(concurrency=None, context=512)
    assert short.max_concurrency == floor((room - RESULTS) / (512 * TOKEN_BYTES + SAMPLED))
    assert float(found.usable_bytes) == pytest.approx(0.92 * HBM)


def test_tensorrt_gives_the_cache_a_share_of_what_loading_leaves() -> None:
    row = FACTS.engine("tensorrt-llm")
    found = held(concurrency=None, engine="tensorrt-llm", max_batch=10_000)
    standing = 2 * PARAMETERS + row.graph_bytes + row.context_bytes + row.workspace_bytes
    left = HBM - standing - row.prefill_tokens * TOKEN_ACTIVATIONS
    most = floor(left / (4096 * TOKEN_BYTES / 0.9 + LOGITS))
    assert found.max_concurrency == most
    assert float(found.kv_budget_bytes) == pytest.approx(0.9 * (left - most * LOGITS))


def test_llama_cpp_takes_all_there_is() -> None:
    row = FACTS.engine("llama.cpp")
    found = held(concurrency=None, engine="llama.cpp", context=16_384)
    room = HBM - 2 * PARAMETERS - row.context_bytes - row.workspace_bytes - row.prefill_tokens * TOKEN_ACTIVATIONS
    assert found.max_concurrency == floor(room / (16_384 * TOKEN_BYTES + LOGITS))
    assert float(found.usable_bytes) == HBM


def test_a_share_that_is_asked_for_and_a_largest_batch() -> None:
    standing = 2 * PARAMETERS + ENGINE.graph_bytes + ENGINE.context_bytes + ENGINE.workspace_bytes
    room = 0.5 * HBM - standing - PROMPTS
    assert held(concurrency=None, memory_frac=0.5).max_concurrency == floor(room / (4096 * TOKEN_BYTES))
    assert held(concurrency=None, max_batch=7).max_concurrency == 7
    assert held(concurrency=None, context=128).max_concurrency == ENGINE.max_batch


# ---- techniques


def changed(how: Techniques) -> dict[str, float]:
    job = plain_job(techniques=how, input_tokens=3072, output_tokens=1024)
    return items(answer=1024, changes=memory_changes(job))


def test_a_shared_prefix_is_held_once() -> None:
    found = changed(Techniques(shared_tokens=1000))  # 62 whole blocks
    assert found["shared prefix"] == pytest.approx(992 * TOKEN_BYTES)
    assert found["KV cache"] == pytest.approx(16 * (3584 - 992) * TOKEN_BYTES)


def test_eviction_keeps_its_share_in_whole_blocks() -> None:
    assert changed(Techniques(kept_frac=0.3))["KV cache"] == pytest.approx(16 * 1088 * TOKEN_BYTES)  # 1,075.2


def test_offloaded_layers_leave_and_their_cache_with_those_the_host_computes() -> None:
    streamed = changed(Techniques(offload=Offload(frac=0.5)))
    layers = 2 * LAYERS * (LAYER + 2 * WIDTH)
    assert streamed["weights"] == pytest.approx(2 * PARAMETERS - 0.5 * layers)
    assert streamed["KV cache"] == pytest.approx(16 * 3584 * TOKEN_BYTES)
    computed = changed(Techniques(offload=Offload(frac=0.25, host=plain_job().cluster.rates)))
    assert computed["KV cache"] == pytest.approx(0.75 * 16 * 3584 * TOKEN_BYTES)
    job = plain_job(techniques=Techniques(offload=Offload(frac=0.5)), layout=ServingLayout(tp=2))
    assert host_bytes(job) == pytest.approx(0.5 * layers, rel=1e-3)  # norms on both ranks


def test_a_draft_brings_its_weights_and_a_cache_as_long() -> None:
    """Llama-3.2-1B: 16 layers, 8 heads of 64; the head is its embedding."""
    how = Speculation(name="1B", tokens=4, acceptance=0.7, draft=load_model("Llama-3.2-1B"))
    found = changed(Techniques(speculation=how))
    weights = 16 * (2048 * 5120 + 3 * 2048 * 8192 + 2 * 2048) + 2048 * VOCAB + 2048
    assert found["draft weights"] == pytest.approx(2 * weights)
    assert found["KV cache"] == pytest.approx(16 * 3584 * (TOKEN_BYTES + 2 * 16 * 8 * 64 * 2))


# ---- starts


def test_a_cold_start_is_its_parts() -> None:
    """14.96 GiB from a drive by one loader; compiling and capturing go by layers, and stages compile at once."""
    row, drive = FACTS.engine("vllm"), FACTS.storage("nvme")
    found = dict(cold_start(plain_job(), drive, image_bytes=8e9, image_bytes_per_s=2e8).parts)
    assert found["image"] == 40.0
    assert found["process and imports"] == row.bootstrap_s
    assert found["weights"] == pytest.approx(2 * PARAMETERS / min(row.loader_bytes_per_s, drive.read_bytes_per_s))
    assert found["compilation"] == pytest.approx(LAYERS * row.compile_s_per_layer)
    assert found["graphs"] == pytest.approx(LAYERS * row.capture_s_per_layer)
    assert found["profiling and warm-up"] == row.warmup_s
    whole = cold_start(plain_job(), drive)
    assert whole.seconds == pytest.approx(sum(found.values()) - 40.0)
    halved = dict(cold_start(plain_job(layout=ServingLayout(pp=2)), drive).parts)
    assert halved["compilation"] == pytest.approx(LAYERS / 2 * row.compile_s_per_layer)
    assert halved["graphs"] == pytest.approx(LAYERS / 2 * row.capture_s_per_layer)


def test_weights_in_memory_wait_for_the_copy_to_the_device() -> None:
    """PCIe 5.0 x16: 63 GB/s, of which copies from pinned memory reach 0.76 (12 of 15.75, CUDA Best Practices)."""
    found = cold_start(plain_job(), replace(FACTS.storage("page-cache"), read_bytes_per_s=1e12))
    assert found.weights_bound == "link to the device"
    assert dict(found.parts)["weights"] == pytest.approx(2 * PARAMETERS / (0.76 * 63e9), rel=1e-9)


def test_ranks_read_together_and_nodes_their_part() -> None:
    drive = FACTS.storage("ebs-gp3")
    one, two = (
        cold_start(plain_job(layout=layout), drive) for layout in (ServingLayout(tp=8), ServingLayout(tp=8, pp=2))
    )
    assert dict(one.parts)["weights"] == pytest.approx(2 * PARAMETERS / drive.read_bytes_per_s)
    assert dict(two.parts)["weights"] == pytest.approx(PARAMETERS / drive.read_bytes_per_s)
    both = plain_job(layout=ServingLayout(tp=4), techniques=Techniques(prefill_gpus=4))
    assert cold_start(both, drive).read_bytes == pytest.approx(4 * PARAMETERS)  # two pools, two copies
    loaders = dict(cold_start(plain_job(layout=ServingLayout(tp=4)), FACTS.storage("nvme-gen5")).parts)
    assert loaders["weights"] == pytest.approx(2 * PARAMETERS / (4 * FACTS.engine("vllm").loader_bytes_per_s))


def test_an_object_store_is_read_over_sixteen_connections() -> None:
    job = plain_job(cluster=replace(plain_job().cluster, gpus_per_node=8), layout=ServingLayout(tp=8))
    store = FACTS.storage("s3-connection")
    assert store.scope == "connection"
    found = dict(cold_start(job, store).parts)["weights"]
    assert found == pytest.approx(2 * PARAMETERS / (16 * store.read_bytes_per_s))


def test_what_a_default_keeps_more_is_noted_where_it_counts() -> None:
    """1,024 sequences x 151,936 x 39 bytes are 5.65 GiB of an H100, beside those of the 4 that run."""
    model = load_model("Qwen3-32B")
    found = serving_memory(model, context=4096, concurrency=4, hbm_bytes=HBM, weights="fp8", engine="vllm-2025")
    assert any("for 1,024, its default" in text for text in found.assumptions)
    stated = serving_memory(model, context=4096, concurrency=4, hbm_bytes=HBM, engine="vllm-2025", max_batch=64)
    assert not any("its default" in text for text in stated.assumptions)
    assert not any("its default" in text for text in held(concurrency=4).assumptions)  # 1.8 GB of 80
