"""Layers whose weights stand in the host's memory: brought to the device each step, or computed by the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.fabric import pcie_bytes_per_s
from flopwise.facts.formats import WeightFormat
from flopwise.ops.columns import distinct
from flopwise.ops.types import Floats
from flopwise.ops.weights import layer_prefix_bytes

if TYPE_CHECKING:
    from flopwise.cost.rates import Rates
    from flopwise.facts.architecture import Model
    from flopwise.serving.iteration import StepTime
    from flopwise.serving.memory import ServingLayout

STREAM_TOKENS = 32
"""From so many tokens in a step llama.cpp copies weights to the device instead of computing on the host (GGML_CUDA,
`min_batch_size` of its pull request 6083)."""


def layer_bytes(model: Model, weights: WeightFormat, layout: ServingLayout) -> Floats:
    """Bytes of the layers' weights on one GPU, without embedding, head and towers; shape of the layout.

    Source: `flopwise.ops.weights`. Assumes: layers are spread evenly over pipeline stages.
    """
    (tp, ep, inner), index = distinct(layout.tp, layout.ep, layout.expert_tp)
    prefix = layer_prefix_bytes(model, weights, tp, ep, expert_tp=inner)
    held: Floats = prefix[-1, index] / np.asarray(layout.pp)
    return held


def stream(step: StepTime, frac: float, weight_bytes: Floats, rates: Rates, *, prefetched: bool = True) -> StepTime:
    """A step in which `frac` of the layers bring their weights, `weight_bytes` a GPU, over the link to the host.

    Resident layers take their time; the others as long as they compute or as their weights are under way, whichever
    is longer, or one after the other without prefetching.

    Source: Sheng et al. 2023 (arXiv:2303.06865) section 4.1: of loading and computing a layer the slower counts; vLLM,
    --cpu-offload-gb, and accelerate read alike.
    Assumes: pinned memory; all weights of such a layer travel, those of experts that nobody chose too; each GPU has
    its lanes for itself.
    Raises: MissingFactError: the link to the host is not known.
    """
    moved_s = frac * weight_bytes / pcie_bytes_per_s(rates)
    own_s = frac * step.seconds
    added_s = np.maximum(moved_s - own_s, 0.0) if prefetched else moved_s
    floor_s = frac * weight_bytes / (rates.pcie_bytes_per_s or np.inf)
    return step._replace(
        seconds=step.seconds + added_s,
        communication_s=step.communication_s + added_s,
        floor_s=np.maximum(step.floor_s, floor_s),
    )


def on_host(step: StepTime, host: StepTime, frac: float, hops_s: Floats) -> StepTime:
    """A step whose last layers the host computes: `host` is what it would take for all of them.

    `hops_s`: activations to the host and back.

    Source: llama.cpp, --n-gpu-layers: device and host work one after the other.
    Assumes: layers are alike.
    """
    mixed = [(1.0 - frac) * a + frac * b for a, b in zip(step, host, strict=True)]
    both = type(step)(*mixed)
    return both._replace(seconds=both.seconds + hops_s, communication_s=both.communication_s + hops_s)
