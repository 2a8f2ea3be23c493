"""What failures and checkpoints leave of a long run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flopwise.ops.types import Floats
from flopwise.units import HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often a job is interrupted and what an interruption costs.

    Sources: mtbf: Llama 3 (arXiv:2407.21783) section 3.3.4, 419 unexpected interruptions in 54 days on 16,384 GPUs;
    restart: detection, rescheduling and warm-up of the same order as that section's automated restarts; write: 1 GB/s
    a GPU is what parallel file systems sustain for sharded checkpoints (DeepSpeed FastPersist, arXiv:2406.13768,
    section 5).
    """

    mtbf_gpu_s: float = 16384 * 54 * 24 * HOUR_S / 419
    restart_s: float = 600.0
    write_bytes_per_s_per_gpu: float = 1e9


DEFAULT_RELIABILITY = Reliability()


def checkpoint_interval_s(write_s: Floats, mtbf_s: Floats) -> Floats:
    """Interval between checkpoints that loses least, in s; broadcasts.

    sqrt(2 write mtbf).

    Source: Young 1974 (doi:10.1145/361147.361115); Daly 2006 (doi:10.1016/j.future.2004.11.016) equation 37, first
    order.
    Assumes: the write is short against the time between failures.
    """
    return np.sqrt(2.0 * write_s * mtbf_s)


def goodput_frac(
    num_gpus: Floats, checkpoint_bytes_per_gpu: Floats, reliability: Reliability = DEFAULT_RELIABILITY
) -> Floats:
    """Share of the wall time that makes progress, between 0 and 1; broadcasts.

    Overheads: one write each interval, half an interval of lost work and one restart each failure.

    Source: as `checkpoint_interval_s`.
    Assumes: failures are independent; training waits while a checkpoint is written.
    """
    mtbf_s = reliability.mtbf_gpu_s / num_gpus
    write_s = np.maximum(checkpoint_bytes_per_gpu / reliability.write_bytes_per_s_per_gpu, 1e-3)
    interval_s = checkpoint_interval_s(write_s, mtbf_s)
    lost = write_s / interval_s + (interval_s / 2 + reliability.restart_s) / mtbf_s
    return 1.0 / (1.0 + lost)
