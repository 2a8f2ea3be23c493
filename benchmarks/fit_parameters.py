"""What `fit_kernels.py` may move, within which bounds, and what it must not: values from public figures."""

from __future__ import annotations

from dataclasses import dataclass

from flopwise.facts.calibration import Parameter

FAMILIES = ("ampere", "hopper", "blackwell", "blackwell-rtx")
EIGHT_BIT = ("hopper", "blackwell", "blackwell-rtx")
FOUR_BIT = ("blackwell", "blackwell-rtx")


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter to fit: one value per scope, and (if shared) one for everybody else."""

    name: str
    start: float
    low: float
    high: float
    unit: str
    meaning: str
    scopes: tuple[str, ...] = ()
    shared: bool = True


def _each(
    name: str, start: float, low: float, high: float, unit: str, meaning: str, scopes: tuple[str, ...] = FAMILIES
) -> Knob:
    return Knob(name, start, low, high, unit, meaning, scopes)


KNOBS = (
    _each("matmul_frac.bf16", 0.8, 0.3, 1.0, "fraction of peak", "Sustained rate of 16-bit matrix products inside full tiles."),
    _each("matmul_frac.fp8", 0.7, 0.2, 1.0, "fraction of peak", "The same for fp8 with one scale per tensor or row.", EIGHT_BIT),
    _each("matmul_frac.fp8_block", 0.6, 0.2, 1.0, "fraction of peak", "The same for fp8 with a scale per block of 128.", EIGHT_BIT),
    _each("matmul_frac.nvfp4", 0.5, 0.2, 1.0, "fraction of peak", "The same for 4-bit floats with block scales.", FOUR_BIT),
    _each("matmul_frac.int8", 0.8, 0.2, 1.0, "fraction of peak", "The same for int8.", ("ampere",)),
    _each("dram_frac", 0.85, 0.5, 1.0, "fraction of bandwidth", "Sustained DRAM bandwidth of long reads."),
    _each("kernel_s", 3e-6, 5e-7, 3e-5, "s", "Fixed time of a kernel launched from a graph: launch, fill and drain."),
    _each("attention_frac", 0.6, 0.2, 1.0, "fraction of bf16 peak", "Sustained rate of flash attention inside full blocks."),
    _each("attention_s", 8e-6, 1e-6, 5e-5, "s", "Fixed time of an attention call in prefill, with its small companions."),
    _each("decode_s", 8e-6, 1e-6, 5e-5, "s", "Fixed time of an attention call in decoding, splits combined."),
    Knob("tile_knee", 10.0, 1.0, 60.0, "elements", "Operations per loaded element at which a tile reaches half its rate."),
    Knob("wave_tail", 0.4, 0.02, 1.0, "fraction", "Share of an incomplete wave that is lost (1: no split-K): 16-bit libraries."),
    Knob("wave_tail.scaled", 0.8, 0.02, 1.0, "fraction", "The same in kernels for scaled or unpacked formats."),
    Knob("overlap_loss", 0.2, 0.0, 1.0, "fraction", "Share of the shorter of computing and moving that is not hidden."),
    Knob("core_draw", 2.0, 1.0, 8.0, "ratio", "DRAM bandwidth that one core can draw over its even share."),
    Knob("l2_speedup", 2.0, 1.0, 6.0, "ratio", "L2 bandwidth over sustained DRAM bandwidth, operands warm."),
    Knob("l2_usable", 0.8, 0.2, 1.5, "fraction of L2", "Largest set of operands that stays in L2 between runs."),
    Knob("unpack_frac", 0.85, 0.3, 1.0, "ratio", "Rate with weights unpacked on the fly over the plain rate."),
    Knob("quantise_kernels", 1.0, 0.2, 6.0, "kernels", "Fixed times that quantising the activations adds."),
    Knob("pointwise_frac", 0.7, 0.2, 1.0, "ratio", "Bandwidth of kernels that only stream, over dram_frac."),
    Knob("grouped_frac", 0.8, 0.2, 1.0, "ratio", "Rate of grouped products over plain ones."),
    Knob("grouped_read_frac", 0.8, 0.2, 1.0, "ratio", "Bandwidth of reading experts' weights over dram_frac."),
    Knob("grouped_s", 1e-5, 1e-6, 6e-5, "s", "Fixed time of a grouped product with its share of routing and permuting."),
    Knob("attention_tail", 0.8, 0.02, 1.0, "fraction", "Share of an incomplete wave of attention blocks that is lost."),
    Knob("attention_block_s", 1e-6, 1e-8, 1e-5, "s", "Fixed time of each block of queries on its core."),
    Knob("decode_frac", 0.95, 0.4, 1.0, "ratio", "Bandwidth of streaming the cache over dram_frac."),
    Knob("decode_block_s", 1e-6, 1e-8, 2e-5, "s", "Fixed time of each (sequence, KV head) on its core in decoding."),
    Knob("latent_prefill_frac", 0.5, 0.1, 1.0, "fraction of bf16 peak", "Sustained rate of MLA prefill with unfolded heads."),
    Knob("latent_decode_frac", 0.5, 0.1, 1.0, "fraction of bf16 peak", "Sustained rate of MLA decoding on the latent."),
    Knob("link_launch_s", 1e-5, 1e-6, 6e-5, "s", "Fixed time of a library collective.", ("nvlink3", "nvlink4", "nvlink5", "pcie")),
    Knob("link_hop_s", 3e-6, 1e-7, 3e-5, "s", "Time of each of the log2(n) steps of a collective.", ("nvlink", "pcie")),
    Knob("link_frac", 0.7, 0.1, 1.0, "fraction of link", "Share of the link that large messages reach.",
         ("nvlink3", "nvlink4", "nvlink5", "pcie", "network")),
    Knob("link_ramp", 0.7, 0.01, 5.0, "weight", "Weight of sqrt(fixed x transfer time): how slowly the rate rises with size."),
    Knob("link_direct_s", 4e-6, 1e-6, 2e-5, "s", "Fixed time of an all-reduce kernel that reads its peers' memory (0: none).",
         ("nvlink", "pcie")),
    Knob("link_multicast", 1.1, 1.0, 1.5, "ratio", "Gain of an all-reduce over more than four when the switch adds up.",
         ("nvlink4", "nvlink5")),
)  # fmt: skip


def _fixed(
    name: str, scope: str, value: float, unit: str, meaning: str, source: str, date: str = "2026-11-21"
) -> Parameter:
    return Parameter(
        name=name,
        scope=scope,
        value=value,
        unit=unit,
        meaning=meaning,
        fitted_on="public figures",
        source=source,
        date=date,
    )


FIXED: tuple[Parameter, ...] = (
    _fixed("misaligned_frac", "any", 0.6, "ratio", "Rate of a product whose rows are not aligned to 16 bytes.",
           "NVIDIA Deep Learning Performance Guide, matrix multiplication background, tensor core requirements (read off a figure)"),
    _fixed("eager_s", "any", 6e-6, "s", "Host time to launch one kernel without a graph.",
           "PyTorch eager launch overhead, commonly 4-10 us"),
    _fixed("conv_frac", "any", 0.7, "ratio", "Rate of convolutions over matrix products.", "assumed: implicit GEMM"),
    _fixed("recurrence_frac", "any", 0.4, "ratio", "Rate of state-space scans over matrix products.",
           "Mamba-2 paper (arXiv 2405.21060) figure 10: SSD at roughly half of FlashAttention-2's rate"),
    _fixed("link_default_bytes_per_s", "any", 25e9, "bytes/s", "Network per device where none is known.", "200 Gbit/s a device: HDR InfiniBand"),
)  # fmt: skip
