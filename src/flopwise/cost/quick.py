"""The formulas that people know by heart, to stand beside the real estimate with how far off they are."""

from __future__ import annotations

from dataclasses import dataclass

from flopwise.ops.types import Floats, Ints

TRAINING_FACTOR = 6
"""Memory of training over that of the weights alone, in the rule of thumb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuickFormula:
    """What a rule of thumb says, and what the estimate says of the same thing; None where that is not known.

    Source: definition. Assumes: both speak of the same quantity in the same unit.
    """

    name: str
    formula: str
    unit: str
    value: float
    estimate: float | None

    @property
    def error_frac(self) -> float | None:
        """How far the rule is off: value / estimate - 1."""
        return None if not self.estimate else self.value / self.estimate - 1.0


def quick_gpus(parameters: Floats, elem_bytes: Floats, hbm_bytes: Floats, *, training: bool) -> Floats:
    """GPUs whose memory holds the weights, six times over for training; not rounded; broadcasts.

    Source: rule of thumb. Assumes: everything else grows with the weights.
    """
    return parameters * elem_bytes * (TRAINING_FACTOR if training else 1) / hbm_bytes


def quick_training_flops(parameters: Floats, tokens: Floats) -> Floats:
    """6 N D: FLOP to train `parameters` on `tokens`; broadcasts.

    Source: Kaplan et al. 2020 (arXiv:2001.08361) section 2.1. Assumes: attention is negligible.
    """
    return 6.0 * parameters * tokens


def quick_state_bytes(parameters: Floats, dp: Ints, model_ranks: Ints, zero: int) -> Floats:
    """16 bytes a parameter on one GPU, sharded as ZeRO shards them; broadcasts.

    Source: Rajbhandari et al. 2019 (arXiv:1910.02054) section 3 and figure 1.
    Assumes: nothing but weights, gradients and Adam's states.
    """
    share = 1.0 / dp
    kept = {0: 16.0, 1: 4.0 + 12.0 * share, 2: 2.0 + 14.0 * share, 3: 16.0 * share}[zero]
    return parameters / model_ranks * kept


def quick_decode_s(weight_bytes: Floats, num_gpus: Ints, hbm_bytes_per_s: Floats) -> Floats:
    """Seconds a token: the weights read once at the datasheet's bandwidth; broadcasts.

    Source: rule of thumb (memory roofline of decoding). Assumes: no cache, no messages, no overhead.
    """
    return weight_bytes / num_gpus / hbm_bytes_per_s
