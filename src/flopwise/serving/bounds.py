"""What a kernel's time goes to: computing, moving bytes, or being launched.

A tile that a few rows leave half empty, or a weight that is unpacked for one token, takes time for the weights that
pass through it and not for the operations asked for. So what decides is intensity: the operations at the rate that the
kernels sustain in full tiles against the bytes at the rate that memory sustains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from flopwise.ops.types import Floats

if TYPE_CHECKING:
    from flopwise.cost.kernels import Timing
    from flopwise.cost.rates import Rates
    from flopwise.ops.work import Work


class Parts(NamedTuple):
    """Seconds of one kernel; their sum is its time."""

    compute_s: Floats
    memory_s: Floats
    launch_s: Floats


def kernel_parts(rates: Rates, work: Work, dtype: str, timing: Timing) -> Parts:
    """What `timing` divides into: its fixed time is the launch, the rest goes to what bounds the kernel.

    Source: roofline model (Williams 2009) at sustained rates.
    Assumes: beyond the longer of computing and moving, up to one fixed time is launching, filling and draining.
    """
    slack_s = np.maximum(timing.seconds - np.maximum(timing.compute_s, timing.memory_s), 0.0)
    launch_s = np.minimum(slack_s, _fixed_s(rates, work))
    rest_s = timing.seconds - launch_s
    computing = _useful_s(rates, work, dtype, timing) >= timing.memory_s
    return Parts(np.where(computing, rest_s, 0.0), np.where(computing, 0.0, rest_s), launch_s)


def _fixed_s(rates: Rates, work: Work) -> float:
    if work.kind == "grouped":
        return rates.value["grouped_s"]
    if work.kind == "attention":
        return rates.value["attention_s" if np.any(np.asarray(work.query) > 1) else "decode_s"]
    return rates.value["kernel_s"]


def _useful_s(rates: Rates, work: Work, dtype: str, timing: Timing) -> Floats:
    """Seconds of the operations asked for, in full tiles."""
    if work.kind in {"matmul", "grouped"}:
        return work.causal_flops / rates.matmul_flops_per_s(dtype)
    if work.kind == "attention":
        return work.causal_flops / (rates.peak_flops_per_s("bf16") * rates.value["attention_frac"])
    return timing.compute_s
