"""A device, links and an engine without calibration, and what a step of Llama-3.1-8B takes on them, worked out by hand.

Kernels run at datasheet rates, start at once and hide what they can, so that a kernel takes the longer of operations
over FLOP/s and bytes over bytes/s (Williams 2009). Nothing below calls a formula of the package.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from flopwise.cost.cluster import Cluster, cluster
from flopwise.cost.fabric import Fabric, Level
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.catalog import load_model
from flopwise.serving.iteration import Runner
from flopwise.serving.job import ServeJob, Techniques
from flopwise.serving.techniques import runner
from named import serve_job_with

CHIP = load_facts().accelerator("H100-SXM-80")
BYTES_PER_S = CHIP.hbm_bytes_per_s
FLOPS_PER_S, FP8_PER_S, INT8_PER_S = (CHIP.peak[name] for name in ("bf16", "fp8", "int8"))
LINK_BYTES_PER_S, NETWORK_BYTES_PER_S = 450e9, 50e9
LAUNCH_S = 5e-6
"""Fixed time of a message on either link."""

_ONE = ("dram_frac", "pointwise_frac", "decode_frac", "unpack_frac", "grouped_unpack_frac", "grouped_frac",
        "attention_frac", "latent_prefill_frac", "latent_decode_frac", "misaligned_frac", "l2_speedup")  # fmt: skip
_NOTHING = ("kernel_s", "attention_s", "decode_s", "grouped_s", "tile_knee", "tile_fill_s", "wave_tail",
            "wave_tail.scaled", "overlap_loss", "overlap_loss.attention", "attention_tail", "attention_block_s",
            "decode_block_s", "latent_tail", "latent_block_s", "quantise_kernels", "grouped_passes",
            "chained_frac")  # fmt: skip


def _level(kind: str, size: int, bytes_per_s: float) -> Level:
    return Level(
        kind=kind, size=size, bytes_per_s=bytes_per_s, launch_s=LAUNCH_S, hop_s=0.0, frac=1.0, ramp=0.0, fill_at=1.0,
        direct_s=math.inf, direct_frac=1.0, pair=1.0, exchange=1.0, multicast=0.0,
    )  # fmt: skip


def plain_cluster(**values: float) -> Cluster:
    """H100s at datasheet rates; `values`: calibrated parameters that a test wants otherwise.

    Norms, gathers and elementwise operations take no time unless a test gives `pointwise_frac`. One core and no vector
    units: tiles of 16 rows are the smallest, and waves have no rest.
    """
    real = cluster(CHIP, gpus_per_node=8, usd_per_gpu_hour=2.0)
    value = dict(real.rates.value) | dict.fromkeys(_ONE, 1.0) | dict.fromkeys(_NOTHING, 0.0)
    value |= {name: 1.0 for name in value if name.startswith("matmul_frac.")}
    value |= {"pointwise_frac": 1e12, "core_bytes_per_s": 1e15} | values
    peak = {name: rate for name, rate in real.rates.peak.items() if not name.startswith(("fp32", "fp64"))}
    rates = replace(real.rates, value=value, peak=peak, num_sms=1.0)
    links = Fabric(levels=(_level("nvlink4", 8, LINK_BYTES_PER_S), _level("network", 2**40, NETWORK_BYTES_PER_S)))
    return replace(real, rates=rates, fabric=links)


PLAIN = plain_cluster()
LLAMA = load_model("Llama-3.1-8B")
ENGINE = replace(
    load_facts().engine("vllm"), front_s=0.0, front_token_s=0.0, stream_s=0.0,
    prompt_graph_tokens=0, piecewise=False, compiled_launch_frac=1.0,
)  # fmt: skip
"""Its front end takes no time unless a test gives it some."""
LAYERS, WIDTH, FFN, VOCAB, HEADS, KV_HEADS, DIM = 32, 4096, 14336, 128256, 32, 8, 128
"""Llama-3.1-8B (arXiv:2407.21783, table 3)."""
TOKEN_BYTES = 2 * LAYERS * KV_HEADS * DIM * 2
"""Keys and values of one token in 16 bits."""


def plain_job(**changes: Any) -> ServeJob:
    """Llama-3.1-8B on one plain H100; experts of other models are balanced."""
    asked: dict[str, Any] = {"model": LLAMA, "cluster": PLAIN, "engine": ENGINE}
    asked["techniques"] = Techniques(expert_skew=1.0)
    asked |= {"input_tokens": 1024, "output_tokens": 256}
    return serve_job_with(**(asked | changes))


def plain_runner(job: ServeJob | None = None, **changes: Any) -> Runner:
    """The runner of a job, with other columns of the engine's row where `changes` says so."""
    machine = runner(job or plain_job())
    return replace(machine, engine=replace(machine.engine, **changes))


def product_s(m: float, n: float, k: float, weight_bytes: float = 2.0, rate: float = FLOPS_PER_S) -> float:
    """2 m n k operations, rows in tiles of 16; weights, and 16-bit inputs and results, cross memory once."""
    return max(2 * 16 * math.ceil(m / 16) * n * k / rate, (2 * m * k + weight_bytes * n * k + 2 * m * n) / BYTES_PER_S)


def decode_attention_s(batch: float, context: float, tp: int = 1, kv_bytes: float = 2.0, tokens: int = 1) -> float:
    """One layer: scores and sums of all query heads, 4 H D operations a cached token; the sequence's own cache is read
    once, queries come in and results go out."""
    heads, kv_heads = HEADS / tp, KV_HEADS / tp
    flops = 4 * batch * tokens * context * heads * DIM
    moved = batch * context * 2 * kv_heads * DIM * kv_bytes + batch * tokens * heads * 2 * DIM * 2
    return max(flops / FLOPS_PER_S, moved / BYTES_PER_S)


def prefill_attention_s(tokens: float, context: float, prompts: float = 1.0, tp: int = 1) -> float:
    """One layer of FlashAttention-2 over `tokens` new tokens of each of `prompts` prompts, the last of which sees
    `context`: blocks of 128 queries, each with the mean number of keys and half a block on the diagonal, if so many
    are there."""
    keys = min((context - tokens) + (tokens + 1) / 2 + 64, context)
    flops = 4 * prompts * 128 * math.ceil(tokens / 128) * keys * HEADS / tp * DIM
    moved = prompts * (tokens * HEADS * 2 * DIM * 2 + context * KV_HEADS * 2 * DIM * 2) / tp
    return max(flops / FLOPS_PER_S, moved / BYTES_PER_S)


def step_s(
    batch: float = 0,
    context: float = 0,
    chunk: float = 0,
    seen: float = 0,
    *,
    prompts: float = 1.0,
    tp: int = 1,
    pp: int = 1,
    host_s: float | None = None,
) -> float:
    """A step that decodes `batch` sequences with `context` tokens cached each, and reads `chunk` tokens of `prompts`
    prompts, the last token of which sees `seen`."""
    rows = batch + chunk
    layer_s = (
        product_s(rows, (HEADS + 2 * KV_HEADS) * DIM / tp, WIDTH)
        + product_s(rows, WIDTH, HEADS * DIM / tp)
        + product_s(rows, 2 * FFN / tp, WIDTH)
        + product_s(rows, WIDTH, FFN / tp)
    )
    if batch:
        layer_s += decode_attention_s(batch, context, tp)
    if chunk:
        layer_s += prefill_attention_s(chunk / prompts, seen, prompts, tp)
    if tp > 1:  # two ring all-reduces a layer (Megatron-LM, arXiv:1909.08053)
        layer_s += 2 * (LAUNCH_S + 2 * (tp - 1) / tp * rows * WIDTH * 2 / LINK_BYTES_PER_S)
    hops_s = (pp - 1) * (LAUNCH_S + rows * WIDTH * 2 / tp / LINK_BYTES_PER_S)
    head_s = product_s(batch + min(chunk, prompts if chunk else 0), VOCAB / tp, WIDTH)
    if host_s is None:
        host_s = ENGINE.step_s + LAYERS * ENGINE.layer_s + batch * ENGINE.sequence_s
    return LAYERS * layer_s + hops_s + head_s + host_s
