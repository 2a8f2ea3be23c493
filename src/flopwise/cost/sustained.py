"""What an accelerator sustains for hours of training, beside what its kernels reach alone at locked clocks.

Two effects. Matrix units at full rate draw more than the power limit allows, so the clock drops until they fit. And a
training stack calls other attention and grouped kernels than those of inference libraries that `rates` is fitted to.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from flopwise.cost.kernels import STREAMS
from flopwise.cost.precisions import PRECISIONS, SIXTEEN_BIT
from flopwise.cost.rates import Rates

if TYPE_CHECKING:
    from flopwise.facts.software import TrainingStack

RATES_OF_PRODUCTS = "matmul_frac."
FULL_RATE = "matmul_frac.bf16"
ATTENTION = {
    "fa1": ("train_attention_frac.fa2", "train_attention_first"),
    "fa2": ("train_attention_frac.fa2",),
    "cudnn": ("train_attention_frac.cudnn",),
}
"""Parameters whose product is the rate of each stack's attention kernel."""
FUSED_FORMATS = {
    "split": frozenset[str](),
    "fused": frozenset(name for name, row in PRECISIONS.items() if row.grouped == "fused"),
    "fused-fp8": frozenset(name for name, row in PRECISIONS.items() if row.grouped),
    "batched": frozenset(PRECISIONS),
    "ragged": frozenset[str](),
}
"""Formats that each kind of grouped kernel multiplies in one piece."""
SPLIT_STREAMS = 4.0
"""Streams over which Transformer Engine deals out a layer's experts, a product each: its
`nvte_multi_stream_cublas_gemm`."""
SCAN_RATE = 0.5
"""Rate of a state-space scan's kernels over FlashAttention-2's: Mamba-2 (arXiv 2405.21060) figure 10. Both are made of
Ampere's instructions, and so lag behind on what came later."""
BACKWARD_RATE = 0.8
"""Rate of flash attention backward over forward: 0.75 to 0.87 in FlashAttention-2 (arXiv 2307.08691) figures 4 to 6 and
FlashAttention-3 (arXiv 2407.08608) figures 5 and 6."""


def clock_frac(rates: Rates) -> float:
    """Share of its boost clock that the device keeps under matrix products; 1 where the limit is not known.

    At full rate the device draws what it draws idle, and an energy for each operation. Where that is more than the
    limit, clock and voltage fall together: power falls as a power of the clock. Lower precisions do as many more
    operations as each of them takes less, so one figure serves all.

    Source: dynamic power is C V^2 f (Weste and Harris, CMOS VLSI Design, chapter 5); energies calibrated.
    Assumes: every watt over the idle draw goes to the matrix units.
    """
    peak = next((rates.peak[d] for d in SIXTEEN_BIT if d in rates.peak), None)
    if not rates.tdp_w or peak is None:
        return 1.0
    left = rates.tdp_w * (1.0 - rates.value["train_idle_frac"])
    drawn = peak * rates.value["train_joules_per_flop"]
    return float(min(1.0, (left / drawn) ** rates.value["train_clock_exponent"]))


LIMITED = (RATES_OF_PRODUCTS, "attention_frac", "latent_prefill_frac")
"""Rates of matrix units in serving, which follow the clock."""


def limited_rates(rates: Rates) -> Rates:
    """`rates` of kernels alone, as they are under a power limit; unchanged where there is none.

    Source: `clock_frac` under the limit, over that of the device as it is made, with which kernels were measured.
    Assumes: memory keeps its clock; kernels that wait for memory stay within the limit.
    """
    if rates.made_for_w is None:
        return rates
    frac = clock_frac(rates) / clock_frac(replace(rates, tdp_w=rates.made_for_w))
    slower = {name: value * frac for name, value in rates.value.items() if name.startswith(LIMITED)}
    return replace(rates, value={**rates.value, **slower})


def grouped_kernel(software: TrainingStack, dtype: str) -> str:
    """Which of the stack's kernels multiplies experts in `dtype`: "fused" ones serve some formats only, else "split".

    XLA's "ragged" one serves all.

    Source: Megatron-Bridge 0.5 release notes and cuDNN frontend documentation (fused grouped products: MXFP8, NVFP4);
    DeepGEMM's README (fp8 with scales of blocks, grouped).
    Assumes: other formats go expert by expert through the plain library; one fused kernel is as good as the other.
    """
    if software.grouped_kernel == "ragged":
        return software.grouped_kernel
    return "fused" if dtype in FUSED_FORMATS[software.grouped_kernel] else "split"


def training_rates(rates: Rates, software: TrainingStack, dtype: str = "bf16") -> Rates:
    """`rates` as a training stack sustains them under a recipe in `dtype`.

    Source: data/calibration/training.json. Assumes: attention runs in the stack's kernel; memory keeps its clock.
    """
    clock, value = clock_frac(rates), rates.value
    changed = {name: frac * clock for name, frac in value.items() if name.startswith(RATES_OF_PRODUCTS)}
    for name in changed:
        if name != FULL_RATE:
            changed[name] *= value["train_scaled_frac"]
    flash = clock * prod(value[name] for name in ATTENTION[software.attention_kernel])
    grouped = grouped_kernel(software, dtype)
    latent = value["latent_prefill_frac"] / value["attention_frac"]
    changed |= {
        "attention_frac": flash,
        "latent_prefill_frac": flash * min(1.0, latent),
        "grouped_frac": value[f"train_grouped_frac.{grouped}"],
        "grouped_passes": value[f"train_grouped_passes.{grouped}"],
    }
    scan = SCAN_RATE * prod(value[name] for name in ATTENTION["fa2"]) / value[FULL_RATE]
    changed["recurrence_frac"] = min(value["recurrence_frac"], scan)
    if grouped == "split":
        changed[STREAMS] = SPLIT_STREAMS
    return replace(rates, value={**value, **changed})
