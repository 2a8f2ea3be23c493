"""The calibrated constants of kernels and messages, with what is known of them beforehand.

Most have a value for each family of devices or kind of link, and one for all others: the geometric mean of the families'.
"""

# ruff: noqa: E501 - tables read better in one line a row
from __future__ import annotations

from flopwise.fitting.robust import Constant

FAMILIES = ("ampere", "hopper", "blackwell", "blackwell-rtx")
EIGHT_BIT = ("hopper", "blackwell", "blackwell-rtx")
FOUR_BIT = ("blackwell", "blackwell-rtx")
LINKS = ("nvlink3", "nvlink4", "nvlink5", "pcie")
ALL = "any"


def _each(
    name: str, prior: float, low: float, high: float, scopes: tuple[str, ...] = FAMILIES, *, shared: bool = True
) -> tuple[Constant, ...]:
    """A value for each of `scopes` and, if `shared`, one for everybody else."""
    return tuple(Constant(name, (scope,), prior, low, high) for scope in (*scopes, *((ALL,) if shared else ())))


def _only(name: str, prior: float, low: float, high: float, scopes: tuple[str, ...]) -> tuple[Constant, ...]:
    """A value for each of `scopes` alone."""
    return _each(name, prior, low, high, scopes, shared=False)


def _one(name: str, prior: float, low: float, high: float) -> tuple[Constant, ...]:
    """One value for all."""
    return _each(name, prior, low, high, ())


GROUPS: tuple[tuple[Constant, ...], ...] = (
    _each("matmul_frac.bf16", 0.8, 0.3, 1.0),
    _each("matmul_frac.fp8", 0.7, 0.2, 1.0, EIGHT_BIT),
    _each("matmul_frac.fp8_block", 0.6, 0.2, 1.0, EIGHT_BIT),
    _each("matmul_frac.nvfp4", 0.5, 0.2, 1.0, FOUR_BIT),
    _only("matmul_frac.int8", 0.8, 0.2, 1.0, ("ampere",)),
    _each("dram_frac", 0.85, 0.5, 0.96),
    _each("kernel_s", 3e-6, 5e-7, 3e-5),
    _each("attention_frac", 0.6, 0.2, 1.0),
    _only("attention_frac", 0.8, 0.2, 1.0, ("blackwell-ultra",)),  # twice the exponentials of Blackwell
    _each("attention_s", 8e-6, 1e-6, 5e-5),
    _each("decode_s", 8e-6, 1e-6, 5e-5),
    _one("tile_knee", 10.0, 1.0, 60.0),
    _one("tile_fill_s", 3e-7, 1e-9, 5e-6),
    _one("wave_tail", 0.4, 0.02, 1.0),
    _one("wave_tail.scaled", 0.8, 0.02, 1.0),
    _one("overlap_loss", 0.2, 0.0, 1.0),
    _one("overlap_loss.attention", 0.2, 0.0, 1.0),
    _only("wrapper_passes.attention_prefill", 2.0, 0.05, 8.0, ("trtllm",)),
    _one("core_bytes_per_s", 6e10, 5e9, 3e11),
    _each("l2_speedup", 2.0, 1.0, 6.0),
    _one("unpack_frac", 0.85, 0.3, 1.0),
    _one("quantise_kernels", 1.0, 0.2, 6.0),
    _one("pointwise_frac", 0.7, 0.2, 1.0),
    _one("grouped_unpack_frac", 0.6, 0.2, 1.0),
    _one("grouped_s", 1e-5, 1e-6, 6e-5),
    _one("attention_tail", 0.8, 0.02, 1.0),
    _one("attention_block_s", 1e-6, 1e-8, 1e-5),
    _one("decode_frac", 0.95, 0.4, 1.0),
    _each("decode_block_s", 1e-6, 1e-8, 2e-5),
    _one("latent_prefill_frac", 0.5, 0.1, 1.0),
    _each("latent_decode_frac", 0.5, 0.1, 1.0, ("ampere", "hopper", "blackwell")),
    _only("latent_tail", 0.9, 0.5, 1.0, ("ampere",)),
    _one("grouped_passes", 1.0, 0.05, 30.0),
    _one("latent_block_s", 3e-6, 1e-8, 3e-5),
    _each("link_launch_s", 1e-5, 1e-6, 6e-5, LINKS),
    _each("link_hop_s", 2.5e-6, 1e-7, 3e-5, ("nvlink", "pcie")),
    _only("link_frac", 0.4, 0.1, 1.0, ("pcie",)),
    _one("link_exchange", 0.8, 0.4, 1.5),
    _each("link_ramp", 2.0, 0.01, 8.0, LINKS),
    _one("link_fill_at", 1.0, 0.1, 6.0),
    _each("link_direct_s", 4e-6, 1e-6, 2e-5, ("nvlink", "pcie")),
    _one("link_direct_frac", 0.8, 0.3, 1.2),
    _only("wrapper_s.scaled", 6e-6, 1e-7, 5e-5, ("trtllm",)),
    _only("wrapper_s.unpacked", 6e-6, 1e-7, 5e-5, ("trtllm",)),
    _only("wrapper_s.attention_prefill", 6e-6, 1e-7, 5e-5, ("trtllm",)),
    _only("wrapper_passes.moe", 2.0, 0.05, 20.0, ("cutlass", "deepgemm")),
    _only("wrapper_ratio.moe", 1.5, 1.0, 6.0, ("sglang_fused_moe_triton", "moe_torch_flow_triton_fp8_block", "marlin")),
    _only("host_s.block", 1e-4, 1e-6, 5e-4, ("deepgemmfp8blockscaledmmkernel", "flashinferfp8blockscaledmmkernel")),
    _only("host_s.unpacked", 3e-5, 1e-6, 5e-4, ("sglang",)),
    _only("host_s.mla", 2e-4, 1e-6, 5e-4, ("vllm",)),
    _only("wrapper_passes.mla_cast", 2.0, 0.5, 8.0, ("flash_attention",)),
    _only("host_s.allreduce", 2e-5, 1e-6, 5e-4, ("eager",)),
)
CONSTANTS = tuple(constant for group in GROUPS for constant in group)
