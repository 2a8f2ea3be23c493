"""Machines on which nothing is lost, so that a line of a step is the arithmetic of its paper: for golden tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flopwise.cost.cluster import Cluster, cluster
from flopwise.cost.fabric import UNBOUNDED, Fabric, Level
from flopwise.cost.kernels import TILES
from flopwise.facts.catalog import load_facts
from flopwise.facts.models.config import model_from_config
from flopwise.training.estimate import estimate
from flopwise.training.job import TrainJob
from flopwise.training.layout import Layout
from named import recipe_with

H100 = load_facts().accelerator("H100-SXM-80")
PEAK = H100.peak["bf16"]  # FLOP/s, datasheet
HBM = float(H100.hbm_bytes_per_s)  # bytes/s, datasheet
NVLINK = float(H100.link_bytes_per_s or 0)  # bytes/s one way, datasheet
NETWORK = 50e9  # bytes/s of a GPU, as stated for the cluster below
NODE = 8

LOSSLESS = {
    "dram_frac": 1.0, "pointwise_frac": 1.0, "l2_speedup": 1.0, "matmul_frac.bf16": 1.0, "attention_frac": 1.0,
    "latent_prefill_frac": 1.0, "train_attention_frac.fa2": 1.0, "train_attention_frac.cudnn": 1.0,
    "train_attention_first": 1.0, "train_attention_late": 1.0,
    "train_joules_per_flop": 1e-30, "train_contention": 0.0, "misaligned_frac": 1.0,
    "overlap_loss": 0.0, "overlap_loss.attention": 0.0, "kernel_s": 0.0, "attention_s": 0.0, "attention_block_s": 0.0,
    "attention_tail": 0.0, "wave_tail": 0.0, "wave_tail.scaled": 0.0, "tile_knee": 0.0, "tile_fill_s": 0.0,
    "train_grouped_frac.split": 1.0, "train_permute_passes.exchange": 0.0, "grouped_s": 0.0, "grouped_frac": 1.0,
    "train_grouped_frac.fused": 1.0, "train_permute_passes.node": 0.0, "core_bytes_per_s": 1e30,
    "matmul_frac.fp8": 1.0, "train_scaled_frac": 1.0, "train_scaled_power": 0.0, "quantise_kernels": 0.0,
}  # fmt: skip
"""Calibrated shares as one, calibrated losses as nothing."""


def link(kind: str, size: int, bytes_per_s: float, launch_s: float) -> Level:
    """A link at its datasheet rate, without latency: NCCL's ring formulas hold as they stand."""
    return Level(
        kind=kind, size=size, bytes_per_s=bytes_per_s, launch_s=launch_s, hop_s=0.0, frac=1.0, ramp=0.0, fill_at=1.0,
        direct_s=float("inf"), direct_frac=1.0, pair=1.0, exchange=1.0, multicast=0.0,
    )  # fmt: skip


def machine(*, node: int = NODE, network: float = NETWORK, launch_s: float = 0.0, **rates: float) -> Cluster:
    """Nodes of eight H100 at datasheet rates: NVLink inside, `network` between them; `node` 1: the network alone.

    `launch_s`: fixed time of a message; `rates`: calibrated values other than those of LOSSLESS.
    """
    plain = cluster(H100, gpus_per_node=NODE, network_bytes_per_s_per_gpu=network, usd_per_gpu_hour=2.0)
    levels = (link("nvlink", node, NVLINK, launch_s), link("network", UNBOUNDED, network, launch_s))
    lossless = replace(plain.rates, value={**plain.rates.value, **LOSSLESS, **rates})
    return replace(plain, rates=lossless, fabric=Fabric(levels=levels[node == 1 :]))


WIDTH, FFN, HEADS, KV_HEADS, HEAD, VOCAB, LAYERS = 4096, 16384, 32, 8, 128, 32768, 8
"""Sizes of MODEL: multiples of 256, so that every product is whole tiles."""
KV = KV_HEADS * HEAD
SHAPE = {
    "model_type": "llama", "hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB,
    "max_position_embeddings": 131072, "tie_word_embeddings": False,
}  # fmt: skip
MODEL = model_from_config(SHAPE, name="golden")
MATRICES = 2 * WIDTH * WIDTH + 2 * WIDTH * KV + 3 * WIDTH * FFN
"""Weights of one layer's products: q and o, k and v, gate, up and down."""
NORMS = 2 * WIDTH
PARAMS = LAYERS * (MATRICES + NORMS) + WIDTH + 2 * VOCAB * WIDTH
"""Layers, final norm, embedding and head."""


def job(recipe: dict[str, Any] | None = None, cluster: Cluster | None = None, **layout: Any) -> TrainJob:
    """MODEL under Megatron, 32 sequences of 4,096 tokens a step."""
    given = {"seq_len": 4096, "global_batch": 32, "stack": "megatron-te", **(recipe or {})}
    return TrainJob(model=MODEL, recipe=recipe_with(**given), layout=Layout(**layout), cluster=cluster or machine())


def lines(asked: TrainJob) -> dict[str, float]:
    """The step's breakdown."""
    return dict(estimate(asked).breakdown)


assert all(HEAD % 32 == 0 and n % max(t) == 0 for n in (WIDTH, FFN, KV, VOCAB) for t in TILES)
