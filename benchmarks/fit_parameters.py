"""What `fit_kernels.py` may move, within which bounds, and what it must not: values from public figures."""

# ruff: noqa: E501 - tables read better in one line a row
from __future__ import annotations

from dataclasses import dataclass

from flopwise.facts.calibration import Parameter

FAMILIES = ("ampere", "hopper", "blackwell", "blackwell-rtx")
EIGHT_BIT = ("hopper", "blackwell", "blackwell-rtx")
FOUR_BIT = ("blackwell", "blackwell-rtx")
LINKS = ("nvlink3", "nvlink4", "nvlink5", "pcie")


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
    _each("matmul_frac.bf16", 0.8, 0.3, 1.0, "fraction of peak", "Sustained rate of 16-bit matrix products in the largest tiles."),
    _each("matmul_frac.fp8", 0.7, 0.2, 1.0, "fraction of peak", "The same for fp8 with one scale per tensor or row.", EIGHT_BIT),
    _each("matmul_frac.fp8_block", 0.6, 0.2, 1.0, "fraction of peak", "The same for fp8 with a scale per block of 128.", EIGHT_BIT),
    _each("matmul_frac.nvfp4", 0.5, 0.2, 1.0, "fraction of peak", "The same for 4-bit floats with block scales.", FOUR_BIT),
    Knob("matmul_frac.int8", 0.8, 0.2, 1.0, "fraction of peak", "The same for int8.", ("ampere",), shared=False),
    _each("dram_frac", 0.85, 0.5, 0.96, "fraction of bandwidth", "Sustained DRAM bandwidth of long reads."),
    _each("kernel_s", 3e-6, 5e-7, 3e-5, "s", "Fixed time of a kernel launched from a graph: launch, fill and drain."),
    _each("attention_frac", 0.6, 0.2, 1.0, "fraction of bf16 peak", "Sustained rate of flash attention inside full blocks."),
    Knob("attention_frac", 0.8, 0.2, 1.0, "fraction of bf16 peak", "Sustained rate of flash attention inside full blocks.",
         ("blackwell-ultra",), shared=False),  # twice the exponentials of Blackwell
    _each("attention_s", 8e-6, 1e-6, 5e-5, "s", "Fixed time of an attention call in prefill, with its small companions."),
    _each("decode_s", 8e-6, 1e-6, 5e-5, "s", "Fixed time of an attention call in decoding, splits combined."),
    Knob("tile_knee", 10.0, 1.0, 60.0, "elements", "Operations per loaded element at which a tile reaches half its rate."),
    Knob("tile_fill_s", 3e-7, 1e-9, 5e-6, "s", "Time to fill the pipeline of a 128 x 128 tile and store its result."),
    Knob("wave_tail", 0.4, 0.02, 1.0, "fraction", "Share of an incomplete wave that is lost (1: no split-K): 16-bit libraries."),
    Knob("wave_tail.scaled", 0.8, 0.02, 1.0, "fraction", "The same in kernels for scaled or unpacked formats."),
    Knob("overlap_loss", 0.2, 0.0, 1.0, "fraction", "Share of the shorter of computing and moving that is not hidden."),
    Knob("overlap_loss.attention", 0.2, 0.0, 1.0, "fraction", "The same in attention of many queries."),
    Knob("wrapper_passes.attention_prefill", 2.0, 0.05, 8.0, "passes", "Passes over queries, keys and values before attention.",
         ("trtllm",), shared=False),
    Knob("core_bytes_per_s", 6e10, 5e9, 3e11, "bytes/s", "What one core can draw from memory: bytes under way over latency."),
    Knob("l2_speedup", 2.0, 1.0, 6.0, "ratio", "L2 bandwidth over sustained DRAM bandwidth, operands warm."),
    Knob("unpack_frac", 0.85, 0.3, 1.0, "ratio", "Rate with weights unpacked on the fly over the plain rate."),
    Knob("quantise_kernels", 1.0, 0.2, 6.0, "kernels", "Fixed times that quantising the activations adds."),
    Knob("pointwise_frac", 0.7, 0.2, 1.0, "ratio", "Bandwidth of kernels that only stream, over dram_frac."),
    Knob("grouped_unpack_frac", 0.6, 0.2, 1.0, "ratio", "Rate of grouped products with weights unpacked on the fly over the plain rate."),
    Knob("grouped_s", 1e-5, 1e-6, 6e-5, "s", "Fixed time of a grouped product with its share of routing and permuting."),
    Knob("attention_tail", 0.8, 0.02, 1.0, "fraction", "Share of an incomplete wave of attention blocks that is lost."),
    Knob("attention_block_s", 1e-6, 1e-8, 1e-5, "s", "Fixed time of each block of queries on its core."),
    Knob("decode_frac", 0.95, 0.4, 1.0, "ratio", "Bandwidth of streaming the cache over dram_frac."),
    _each("decode_block_s", 1e-6, 1e-8, 2e-5, "s", "Fixed time of each (sequence, KV head) on its core in decoding."),
    Knob("latent_prefill_frac", 0.5, 0.1, 1.0, "fraction of bf16 peak", "Sustained rate of MLA prefill with unfolded heads."),
    _each("latent_decode_frac", 0.5, 0.1, 1.0, "fraction of bf16 peak", "Sustained rate of MLA decoding on the latent.",
          ("ampere", "hopper", "blackwell")),
    Knob("latent_tail", 0.9, 0.5, 1.0, "fraction", "Share of an incomplete wave that is lost in MLA decoding (0: the cache is split).",
         ("ampere",), shared=False),
    Knob("grouped_passes", 1.0, 0.05, 30.0, "passes", "Extra passes over rows in and out of experts: gathering, scattering."),
    Knob("latent_block_s", 3e-6, 1e-8, 3e-5, "s", "Fixed time of each sequence on its core in MLA decoding."),
    Knob("link_launch_s", 1e-5, 1e-6, 6e-5, "s", "Fixed time of a library collective.", LINKS),
    Knob("link_hop_s", 2.5e-6, 1e-7, 3e-5, "s", "Time of each step of a collective in two passes.", ("nvlink", "pcie")),
    Knob("link_frac", 0.4, 0.1, 1.0, "fraction of link", "Share of the link that large messages reach.", ("pcie",), shared=False),
    Knob("link_exchange", 0.8, 0.4, 1.5, "ratio", "Factor of link_frac in all-to-all."),
    Knob("link_ramp", 2.0, 0.01, 8.0, "ratio", "Time to fill the pipeline of a long message, in fixed times.", LINKS),
    Knob("link_fill_at", 1.0, 0.1, 6.0, "ratio", "Transfer time at which half of that is reached, in fixed times."),
    Knob("link_direct_s", 4e-6, 1e-6, 2e-5, "s", "Fixed time of an all-reduce kernel that reads its peers' memory.",
         ("nvlink", "pcie")),
    Knob("link_direct_frac", 0.8, 0.3, 1.2, "ratio", "Factor of link_frac in such a kernel."),
    Knob("wrapper_s.scaled", 6e-6, 1e-7, 5e-5, "s", "Time that separate kernels for scales add to a quantised product.",
         ("trtllm",), shared=False),
    Knob("wrapper_s.unpacked", 6e-6, 1e-7, 5e-5, "s", "Time that a plugin adds to a product with packed weights.",
         ("trtllm",), shared=False),
    Knob("wrapper_s.attention_prefill", 6e-6, 1e-7, 5e-5, "s", "Time of splitting, rotating and caching inside the call.",
         ("trtllm",), shared=False),
    Knob("wrapper_passes.moe", 2.0, 0.05, 20.0, "passes", "Passes over the rows of all experts that sorting them before the products adds.",
         ("cutlass", "deepgemm"), shared=False),
    Knob("wrapper_ratio.moe", 1.5, 1.0, 6.0, "ratio", "Time of computing in grouped products over that of native kernels.",
         ("triton", "marlin"), shared=False),
    Knob("host_s.block", 1e-4, 1e-6, 5e-4, "s", "Host time of a call measured without a graph.",
         ("deepgemmfp8blockscaledmmkernel", "flashinferfp8blockscaledmmkernel"), shared=False),
    Knob("host_s.unpacked", 3e-5, 1e-6, 5e-4, "s", "The same for packed weights.", ("sglang",), shared=False),
    Knob("host_s.mla", 2e-4, 1e-6, 5e-4, "s", "The same for MLA attention.", ("vllm",), shared=False),
    Knob("wrapper_passes.mla_cast", 2.0, 0.5, 8.0, "passes", "Time of casting an 8-bit cache to 16 bits first, in passes over it.",
         ("flash_attention",), shared=False),
    Knob("host_s.allreduce", 2e-5, 1e-6, 5e-4, "s", "The same for an all-reduce kernel.", ("eager",), shared=False),
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


_READ = "Sustained DRAM bandwidth of long reads."
_RATE = "Sustained rate of 16-bit matrix products in the largest tiles."
_FIXED_TIME = "Fixed time of a kernel launched from a graph: launch, fill and drain."
_MAMF = "ml-engineering, maximum achievable matmul FLOPS table (2026-08): {}"
_FRAC, _BAND = "fraction of peak", "fraction of bandwidth"

FIXED: tuple[Parameter, ...] = (
    _fixed("misaligned_frac", "any", 0.6, "ratio", "Rate of a product whose rows are not aligned to 16 bytes.",
           "NVIDIA Deep Learning Performance Guide, tensor core requirements (read off a figure)"),
    _fixed("eager_s", "any", 6e-6, "s", "Host time to launch one kernel without a graph.",
           "PyTorch eager launch overhead, commonly 4-10 us"),
    _fixed("latent_tail", "any", 0.0, "fraction",
           "Share of an incomplete wave that is lost in MLA decoding (0: the cache is split).",
           "FlashMLA (deepseek-ai/FlashMLA): a scheduler splits sequences over all cores"),
    _fixed("grouped_frac", "any", 1.0, "ratio", "Rate of grouped products over plain ones.",
           "freed in the fit of the published experts it goes to its bound, 1: tiles, fixed times and passes say the rest"),
    _fixed("conv_frac", "any", 0.7, "ratio", "Rate of convolutions over matrix products.", "assumed: implicit GEMM"),
    _fixed("recurrence_frac", "any", 0.4, "ratio", "Rate of state-space scans over matrix products.",
           "Mamba-2 (arXiv 2405.21060) figure 10: about half the rate of FlashAttention-2"),
    _fixed("link_default_bytes_per_s", "any", 25e9, "bytes/s", "Network per device where none is known.",
           "HDR InfiniBand, 200 Gbit/s a device"),
    _fixed("link_default_bytes_per_s", "ampere", 2.5e10, "bytes/s", "Network per device where none is known.",
           "NVIDIA DGX A100 data sheet: 8 x HDR 200 Gbit/s for 8 GPUs"),
    _fixed("link_default_bytes_per_s", "blackwell", 5e10, "bytes/s", "Network per device where none is known.",
           "NVIDIA DGX B200 and GB200 NVL72 data sheets: NDR 400 Gbit/s a GPU"),
    _fixed("link_default_bytes_per_s", "cdna3", 5e10, "bytes/s", "Network per device where none is known.",
           "AMD Instinct MI300X cluster reference design: 8 x 400 Gbit/s for 8 GPUs"),
    _fixed("link_default_bytes_per_s", "hopper", 5e10, "bytes/s", "Network per device where none is known.",
           "NVIDIA DGX H100 data sheet: 8 x NDR 400 Gbit/s for 8 GPUs"),
    _fixed("link_default_bytes_per_s", "volta", 1.25e10, "bytes/s", "Network per device where none is known.",
           "NVIDIA DGX-2 data sheet: 8 x EDR 100 Gbit/s for 16 GPUs, DGX-1V 4 for 8; 100 Gbit/s a device at best"),
    _fixed("link_frac", "nvlink3", 0.71, "fraction of link", "Share of the link that large messages reach.",
           "NCCL all-reduce bus bandwidth at the largest sizes: 209 and 215 of 300 GB/s over 4 and 8"),
    _fixed("link_frac", "nvlink4", 0.76, "fraction of link", "Share of the link that large messages reach.",
           "NCCL all-reduce bus bandwidth at the largest sizes: 341 of 450 GB/s over 4"),
    _fixed("link_frac", "nvlink5", 0.67, "fraction of link", "Share of the link that large messages reach.",
           "NCCL all-reduce bus bandwidth at the largest sizes: 611 of 900 GB/s over 4"),
    _fixed("link_frac", "any", 0.7, "fraction of link", "Share of the link that large messages reach.", "as NVLink"),
    _fixed("link_pair", "any", 1.0, "ratio", "Factor of link_frac in a group of two.", "no difference where none was measured"),
    _fixed("link_pair", "nvlink", 0.88, "ratio", "Factor of link_frac in a group of two.",
           "NCCL all-reduce bus bandwidth over 2 against 4: A100 188/209, H100 305/341, B200 515/611 GB/s"),
    _fixed("link_multicast", "nvlink4", 0.81, "ratio", "Rate of an all-reduce that the switch adds up, over link_frac (0: it does not).",
           "NCCL all-reduce bus bandwidth over 8: 430 of 450 GB/s"),
    _fixed("link_multicast", "nvlink5", 0.7, "ratio", "Rate of an all-reduce that the switch adds up, over link_frac (0: it does not).",
           "NCCL all-reduce bus bandwidth over 8: 653 of 900 GB/s"),
    _fixed("link_frac", "network", 0.8, "fraction of link", "Share of the link that large messages reach.",
           "nccl-tests as published for InfiniBand (0.85-0.92) and EFA (0.7-0.8) clusters; middle"),
    _fixed("link_frac", "ib", 0.88, "fraction of link", "Share of the link that large messages reach.",
           "nccl-tests as published for 8 x NDR H100 nodes: about 350-370 of 400 GB/s"),
    _fixed("link_frac", "efa", 0.75, "fraction of link", "Share of the link that large messages reach.",
           "nccl-tests as published for p4d and p5 instances"),
    _fixed("link_frac", "ethernet", 0.7, "fraction of link", "Share of the link that large messages reach.", "assumed: TCP or untuned RoCE"),
    _fixed("link_launch_s", "network", 2e-5, "s", "Fixed time of a library collective.",
           "nccl-tests, small messages between two nodes: 25-35 us"),
    _fixed("link_hop_s", "network", 6e-6, "s", "Time of each step of a collective in two passes.",
           "RDMA with GPU memory: 3-5 us one way, plus a proxy thread"),
    _fixed("link_direct_s", "network", 0.0, "s", "Fixed time of an all-reduce kernel that reads its peers' memory.",
           "none: peers' memory is not mapped between nodes"),
    _fixed("link_multicast", "any", 0.0, "ratio", "Rate of an all-reduce that the switch adds up, over link_frac (0: it does not).", "NVLink SHARP came with the third-generation NVSwitch (Hopper)"),
    _fixed("matmul_frac.bf16", "volta", 0.75, _FRAC, _RATE, "cuBLAS on V100: 90-95 of 125 TFLOP/s, widely published"),
    _fixed("matmul_frac.bf16", "turing", 0.5, _FRAC, _RATE, "Jia et al. 2019 (arXiv 1903.07486): T4 throttles under its 70 W (recalled)"),
    _fixed("matmul_frac.bf16", "cdna2", 0.77, _FRAC, _RATE, _MAMF.format("MI250X 147 of 191.5 per die (recalled)")),
    _fixed("matmul_frac.bf16", "cdna3", 0.56, _FRAC, _RATE, _MAMF.format("MI300X 668 and MI325X 785 of 1307 TFLOP/s")),
    _fixed("matmul_frac.bf16", "cdna4", 0.63, _FRAC, _RATE, _MAMF.format("MI355X 1565 of 2517 TFLOP/s")),
    _fixed("matmul_frac.bf16", "gaudi2", 0.97, _FRAC, _RATE, _MAMF.format("Gaudi2 419 of 432 TFLOP/s")),
    _fixed("matmul_frac.bf16", "gaudi3", 0.75, _FRAC, _RATE, _MAMF.format("Gaudi3 1243 of 1677 TFLOP/s")),
    _fixed("matmul_frac.bf16", "google", 0.85, _FRAC, _RATE, "MaxText: 0.6-0.7 of peak over whole training steps on v5e and v5p, so more in its products"),
    _fixed("matmul_frac.bf16", "aws", 0.65, _FRAC, _RATE, "Neuron SDK's published training runs: 0.4-0.5 of peak over whole steps (recalled)"),
    _fixed("matmul_frac.bf16", "soc", 0.75, _FRAC, _RATE, "llama.cpp prompt processing on Apple GPUs against fp32/fp16 peaks (recalled)"),
    _fixed("matmul_frac.bf16", "cpu", 0.5, _FRAC, _RATE, "oneDNN with AMX on 4th-generation Xeon: about half the peak at all-core clocks"),
    _fixed("matmul_frac.fp8", "cdna3", 0.5, _FRAC, "The same for fp8 with one scale per tensor or row.", "hipBLASLt on MI300X, published 1.2-1.4 PFLOP/s of 2.6"),
    _fixed("matmul_frac.int8", "any", 0.75, _FRAC, "The same for int8.", "as fp8: no int8 measurements beyond Ampere"),
    _fixed("matmul_frac.int8", "cpu", 0.5, _FRAC, "The same for int8.", "as bf16"),
    _fixed("dram_frac", "amd", 0.8, _BAND, _READ, "BabelStream on MI300X: 4.0-4.3 of 5.3 TB/s"),
    _fixed("dram_frac", "soc", 0.85, _BAND, _READ, "llama.cpp token generation on Apple chips against their bandwidth"),
    _fixed("dram_frac", "cpu", 0.75, _BAND, _READ, "STREAM triad on server CPUs: 0.7-0.85 of the modules' rate"),
    _fixed("kernel_s", "tpu", 2e-6, "s", _FIXED_TIME, "assumed: compiled programs, no launches from the host"),
    _fixed("kernel_s", "amd", 7e-6, "s", _FIXED_TIME, "HIP graphs, published launch latencies of 6-10 us"),
    _fixed("kernel_s", "cpu", 5e-6, "s", _FIXED_TIME, "a parallel region over all cores: 2-10 us"),
    _fixed("attention_frac", "amd", 0.35, "fraction of bf16 peak", "Sustained rate of flash attention inside full blocks.",
           "Composable Kernel flash attention on MI300X: 400-500 of 1307 TFLOP/s, published"),
    _fixed("attention_frac", "cpu", 0.25, "fraction of bf16 peak", "Sustained rate of flash attention inside full blocks.", "assumed: half of the products' rate"),
)  # fmt: skip
