"""What an accelerator sustains for hours of training, beside what its kernels reach alone at locked clocks.

Two effects. Matrix units at full rate draw more than the power limit allows, so the clock drops until the mean power
of all kernels fits. And a training stack calls other attention and grouped kernels than those of inference libraries
that `rates` is fitted to.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.kernels import EVEN, STREAMS
from flopwise.cost.precisions import PRECISIONS, SIXTEEN_BIT
from flopwise.cost.rates import MEASURED_POWER, Rates
from flopwise.values import kept_by_identity, replace

if TYPE_CHECKING:
    from flopwise.facts.software import TrainingStack
    from flopwise.ops.types import Floats

RATES_OF_PRODUCTS = "matmul_frac."
FULL_RATE = "matmul_frac.bf16"
PLAIN_RATES = (FULL_RATE, "matmul_frac.fp32")
"""Rates of products whose operands nothing scales."""
BANDWIDTH = "dram_frac"
POWER = "full_rate_power"
"""What `training_rates` adds to a device's figures: `full_rate_power`."""
ATTENTION = {
    "fa1": ("train_attention_frac.fa2", "train_attention_first"),
    "fa2": ("train_attention_frac.fa2",),
    "cudnn": ("train_attention_frac.cudnn",),
    "cudnn-2026": ("train_attention_frac.cudnn", "train_attention_late"),
    "sdpa": ("train_attention_frac.fa2",),
}
"""Parameters whose product is the rate of each stack's attention kernel; where PyTorch takes another on a device, the
recipe there says so (`training.on_device`)."""
FUSED_FORMATS = {
    "split": frozenset[str](),
    "fused": frozenset(name for name, row in PRECISIONS.items() if row.grouped == "fused"),
    "fused-fp8": frozenset(name for name, row in PRECISIONS.items() if row.grouped),
    "batched": frozenset(PRECISIONS),
    "ragged": frozenset[str](),
    "masked": frozenset[str](),
}
"""Formats that each kind of grouped kernel multiplies in one piece."""
PERMUTE_PASSES = "permute_passes"
"""What `training_rates` adds: passes over the rows that experts are sent, as wide as they are sent, in kernels of their
own; and over what they send back."""
SPLIT_STREAMS = 4.0
"""Streams over which Transformer Engine deals out a layer's experts, a product each: its
`nvte_multi_stream_cublas_gemm`."""
SCAN_RATE = 0.5
"""Rate of a state-space scan's kernels over FlashAttention-2's: Mamba-2 (arXiv 2405.21060) figure 10. Both are made of
Ampere's instructions, and so lag behind on what came later."""
BACKWARD_RATE = 0.8
"""Rate of flash attention backward over forward: 0.75 to 0.87 in FlashAttention-2 (arXiv 2307.08691) figures 4 to 6 and
FlashAttention-3 (arXiv 2407.08608) figures 5 and 6."""

EFFICIENT_LARGEST = 128
"""Dimension up to which PyTorch's memory-efficient attention keeps the sum of a block of queries in registers."""
EFFICIENT_RATE = 0.5
"""Forward rate of PyTorch's memory-efficient attention over FlashAttention-2's where heads are larger, whose sums cross
memory for each block of keys: heads of 512 reach 85 TFLOP/s on an RTX 4090 and 58 on an L20 of 165 and 120 (xlite-dev,
ffpa-attn, README, 2025)."""
EFFICIENT_BACKWARD = 0.47
"""Rate of its backward pass over the forward one there: 2.5 times the operations take 5.3 times as long (100.2 and
19.0 ms, 8,192 tokens, heads of 512; xlite-dev/ffpa-attn, pull request 137, 2026)."""
MEMORY_POWER = "memory_power_frac"
"""Parameter: power of kernels that wait for memory, at the boost clock, over what a device's own limit leaves beside
its idle draw."""
PRODUCTS_POWER_FRAC = 0.9
"""Least power of matrix products over the limit that a device is made for: of 0.8 to 1 it keeps the prompt rates of an
RTX 5090 at 400 of 575 W (0.84) and of an RTX 3090 at 250 of 350 W (0.86), club-3090's docs/HARDWARE.md (2026)."""
CLOCK_ROUNDS = 5
"""Steps of `clock_frac` to its fixed point, which each brings closer by the share of kernels that wait for memory."""


def full_rate_power(rates: Rates) -> float:
    """Power of the matrix units at their peak rate over the limit less the idle draw; 0 if unknown.

    Lower precisions do as many more operations as each of them takes less, so one figure serves all. Under a limit
    below the one that the device is made for, at least `PRODUCTS_POWER_FRAC` of that one.

    Source: datasheets; energies and idle draw calibrated. Assumes: energy goes with operations, zeros or not.
    """
    peak = next((rates.peak[d] for d in SIXTEEN_BIT if d in rates.peak), None)
    if not rates.tdp_w or peak is None:
        return 0.0
    left = rates.tdp_w * (1.0 - rates.value["train_idle_frac"])
    least = PRODUCTS_POWER_FRAC * rates.made_for_w / rates.tdp_w if rates.made_for_w else 0.0
    return max(least, peak * rates.value["train_joules_per_flop"] / left)


def clock_frac(
    power: Floats, exponent: Floats, peak_s: Floats, clocked_s: Floats, other_s: Floats, memory_power: Floats
) -> Floats:
    """Share of the boost clock at which the mean power of some kernels fits the limit; broadcasts.

    `power`: as `full_rate_power`. `peak_s`: seconds of all operations at the peak rate; `clocked_s`: what the kernels
    that compute take at the boost clock; `other_s`: what those take that wait for memory, which draw `memory_power` of
    what the limit leaves. Where the limit is exceeded, clock and voltage fall together: power of the matrix units falls
    as the clock to the power of 1 / `exponent`, and they take longer, which spreads it over more time.

    Source: dynamic power is C V^2 f (Weste and Harris, CMOS VLSI Design, chapter 5); NVIDIA's software power cap
    lowers clocks to keep the mean power below the limit (nvidia-smi manual, clocks_event_reasons.sw_power_cap).
    Assumes: the mean is over many layers; memory keeps its clock.
    """
    spread_s = np.maximum(0.0, 1.0 - memory_power) * other_s
    drawn_s = np.maximum(power * peak_s, 1e-300)
    clock: Floats = 1.0
    for _ in range(CLOCK_ROUNDS):
        clock = np.minimum(1.0, ((spread_s * clock + clocked_s) / drawn_s) ** exponent)
    return clock


def products_clock_frac(rates: Rates, power: float | None = None) -> float:
    """`clock_frac` of matrix products alone, one after the other; `power`: by default the device's `full_rate_power`.

    Source and assumptions: as there.
    """
    drawn, exponent = full_rate_power(rates) if power is None else power, rates.value["train_clock_exponent"]
    return float(clock_frac(drawn, exponent, rates.value[FULL_RATE], 1.0, 0.0, 0.0))


def own_limit_frac(rates: Rates) -> float:
    """Clock that products keep under the limit that a device is made for, over that of the one they were measured on.

    1 where it is no lower: that rate is the one of kernels alone. An A10 has the matrix units of an RTX A6000 and half
    its power.

    Source: the best large 16-bit product over the datasheet's peak (mag-/gpu_benchmark, README): 0.94 on an L40, but
    0.77 on an RTX 6000 Ada; 0.80 on an H100 SXM, but 0.66 on H100 PCIe and 0.58 on H100 NVL; 0.86 and 0.82 on A100 SXM
    and PCIe; 0.85 on an RTX A5000; 0.74 on an L40S (zzc0721/torch-performance-test-data); 0.61 on an RTX A6000
    (fanghostt/transformers-benchmarks, README). This: 1.00, 0.71; 0.83, 0.61, 0.62; 0.81, 0.77; 0.69; 0.80; 0.66.
    Assumes: a server that reads prompts is at its limit.
    """
    measured = rates.value[MEASURED_POWER]
    made = replace(rates, tdp_w=rates.made_for_w or rates.tdp_w, made_for_w=None)
    return min(1.0, products_clock_frac(made) / products_clock_frac(rates, measured)) if measured else 1.0


def bandwidth_frac(rates: Rates) -> float:
    """Bandwidth of kernels that wait for memory under a power limit, over that of the device as made; 1 without one.

    Cores issue the loads, so the clock that fits the limit is felt before memory waits for power. Down to half of the
    power that such kernels draw at the boost clock (`MEMORY_POWER`) the rate is 1 - 1.3 (1 - power)^3; below that it
    follows the power.

    Source: an RTX PRO 6000 at 300 to 600 W under one stream of vLLM draws 511 W and keeps 0.87, 0.95 and 0.99 at 300,
    350 and 400 W (Light-Heart-Labs, MMBT hardware-tests, 2026-04-29). Assumes: the limit holds all the time.
    """
    if rates.made_for_w is None or not rates.tdp_w:
        return 1.0
    idle_w = rates.made_for_w * rates.value["train_idle_frac"]
    drawn_w = (rates.made_for_w - idle_w) * rates.value[MEMORY_POWER]

    def reached_frac(watts: float) -> float:
        power = min(1.0, (watts - idle_w) / drawn_w)
        return min(1.0 - 1.3 * (1.0 - power) ** 3, 5.0 / 3.0 * power)

    return reached_frac(rates.tdp_w) / reached_frac(rates.made_for_w)


LIMITED = (RATES_OF_PRODUCTS, "attention_frac", "latent_prefill_frac")
"""Rates of matrix units in serving, which follow the clock."""


@kept_by_identity(512)
def limited_rates(rates: Rates) -> Rates:
    """`rates` of kernels alone, as they are under a power limit; unchanged where that costs nothing.

    Source: `own_limit_frac`; `products_clock_frac` under a limit that was set, over that of the device as made;
    `bandwidth_frac`. Assumes: memory keeps its clock.
    """
    frac = own_limit_frac(rates)
    if rates.made_for_w is not None:
        made = replace(rates, tdp_w=rates.made_for_w, made_for_w=None)
        frac *= products_clock_frac(rates) / products_clock_frac(made)
    elif frac == 1.0:
        return rates
    slower = {name: value * frac for name, value in rates.value.items() if name.startswith(LIMITED)}
    slower[BANDWIDTH] = rates.value[BANDWIDTH] * bandwidth_frac(rates)
    return replace(rates, value={**rates.value, **slower})


def grouped_kernel(software: TrainingStack, dtype: str) -> str:
    """The name of the stack's kernel for experts in `dtype`: "fused" where it supports the format, else "split".

    XLA's "ragged" one serves all, as do plain products of "masked" buffers (`flopwise.training.on_device`).

    Source: Megatron-Bridge 0.5 release notes and cuDNN frontend documentation (fused grouped products: MXFP8, NVFP4);
    DeepGEMM's README (fp8 with scales of blocks, grouped).
    Assumes: other formats go expert by expert through the plain library; one fused kernel is as good as the other.
    """
    if software.grouped_kernel in {"ragged", "masked"}:
        return software.grouped_kernel
    return "fused" if dtype in FUSED_FORMATS[software.grouped_kernel] else "split"


def permute_kind(software: TrainingStack) -> str:
    """The way of rows into their experts' order: "ragged" as XLA sorts them, else beside a plain "exchange", or "node".

    Source: Megatron-Core, `token_dispatcher.py`: its all-to-all dispatcher permutes before the exchange and sorts
    chunks after it; flexible ones (DeepEP, HybridEP) permute once. Assumes: other stacks do as the first; who sends a
    token once to a device permutes there, as flexible ones do.
    """
    if software.grouped_kernel == "ragged":
        return "ragged"
    return "exchange" if software.dispatch == "expert" else "node"


def scaled_headroom(rates: Rates) -> float:
    """Rate of 8- and 4-bit products over that on the devices on which they were measured, whose power limits them.

    1 where they are not known to be limited. A limit that was set is `limited_rates`'.

    Source: large products on B200 (aiconfigurator) reach 2.5 to 2.8 of 4.5 PFLOP/s in 8 bits and 3.7 of 9 in 4, where
    16 bits reach 1.7 of 2.25. Assumes: clock and voltage fall together, as in `clock_frac`.
    """
    measured, peak, made_for_w = (
        rates.value["train_scaled_power"],
        rates.peak.get("fp8"),
        rates.made_for_w or rates.tdp_w,
    )
    if not measured or not peak or not made_for_w:
        return 1.0
    return float((made_for_w / peak / measured) ** rates.value["train_clock_exponent"])


def efficient_attention(rates: Rates, head_dim: int) -> tuple[float, float]:
    """(forward rate of PyTorch's memory-efficient attention over that of the stack's kernel, backward over forward).

    `rates`: `training_rates`.

    Source: `EFFICIENT_RATE`, `EFFICIENT_BACKWARD`; a dense mask over 8,192 tokens, 16 heads of 256, takes 72 ms forward
    and backward on an H200 (verl-project/verl, pull request 7131, 2026), by this 58.
    Assumes: heads of up to `EFFICIENT_LARGEST` are as fast as with FlashAttention-1; a mask costs nothing.
    """
    value = rates.value
    large = head_dim > EFFICIENT_LARGEST
    flash = prod(value[name] for name in ATTENTION["fa2" if large else "fa1"])
    rate, backward = (EFFICIENT_RATE, EFFICIENT_BACKWARD) if large else (1.0, BACKWARD_RATE)
    return rate * flash / value["attention_frac"], backward


def training_rates(rates: Rates, software: TrainingStack, dtype: str = "bf16") -> Rates:
    """`rates` at the boost clock as a training stack has them under a recipe in `dtype`.

    What the clock falls by depends on what runs: `clock_frac` of it, with `POWER`.

    Source: data/calibration/training.json. Assumes: attention runs in the stack's kernel; rows reach a product of
    experts in its order.
    """
    value = rates.value
    library = value["train_library_frac"] if software.library_products else 1.0
    scaled = value["train_scaled_frac"] * library * scaled_headroom(rates)
    changed = {n: frac * scaled for n, frac in value.items() if n.startswith(RATES_OF_PRODUCTS)}
    changed |= {name: value[name] * library for name in PLAIN_RATES}
    flash = prod(value[name] for name in ATTENTION[software.attention_kernel])
    grouped = grouped_kernel(software, dtype)
    latent = value["latent_prefill_frac"] / value["attention_frac"]
    changed |= {
        POWER: full_rate_power(rates),
        BANDWIDTH: value[BANDWIDTH] * bandwidth_frac(rates),
        "attention_frac": flash,
        "latent_prefill_frac": flash * min(1.0, latent),
        "grouped_frac": 1.0 if grouped == "masked" else value[f"train_grouped_frac.{grouped}"],
        "grouped_passes": 0.0,
        EVEN: 1.0,
        PERMUTE_PASSES: 0.0 if grouped == "masked" else value[f"train_permute_passes.{permute_kind(software)}"],
    }
    scan = SCAN_RATE * prod(value[name] for name in ATTENTION["fa2"]) / value[FULL_RATE]
    changed["recurrence_frac"] = min(value["recurrence_frac"], scan)
    if grouped == "split":
        changed[STREAMS] = SPLIT_STREAMS
    return replace(rates, value={**value, **changed})
