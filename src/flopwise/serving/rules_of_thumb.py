"""Rules of thumb of serving beside the estimate: weights over memory, weights over bandwidth."""

from __future__ import annotations

from typing import Any

import numpy as np

from flopwise.cost.quick import QuickFormula, quick_gpus
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.formats import WeightFormat
from flopwise.ops.degrees import heads_and_experts
from flopwise.ops.tensors import parameters
from flopwise.ops.weights import weight_bytes
from flopwise.serving.job import ServeEstimate
from flopwise.serving.memory import ServingLayout, serving_memory


def capacity_rules(
    model: Model, device: Accelerator | None, context: int, *, weights: WeightFormat, **how: Any
) -> tuple[QuickFormula, ...]:
    """Weights over memory against the GPUs that it takes; `how` as `serving_memory`."""
    if device is None:
        return ()
    count = parameters(model)
    width = float(weight_bytes(model, weights)) / max(1, count)
    rule = QuickFormula(
        name="GPUs", formula="parameters x bytes / memory", unit="GPUs",
        value=max(1.0, float(quick_gpus(count, width, device.hbm_bytes, training=False))),
        estimate=_fewest_gpus(model, device, context, weights=weights, **how),
    )  # fmt: skip
    return (rule,)


def token_rules(estimate: ServeEstimate) -> tuple[QuickFormula, ...]:
    """Time a token: the weights read once at the datasheet's bandwidth.

    Source: rule of thumb (memory roofline of decoding). Assumes: no cache, no messages, no overhead.
    """
    job = estimate.job
    if estimate.tpot_s is None:
        return ()
    each = float(weight_bytes(job.model, job.weights)) / estimate.num_gpus / job.cluster.accelerator.hbm_bytes_per_s
    formula = "weights / memory bandwidth"
    return (QuickFormula(name="time per token", formula=formula, unit="s", value=each, estimate=estimate.tpot_s.value),)


def _fewest_gpus(model: Model, device: Accelerator, context: int, **how: Any) -> float | None:
    """The fewest GPUs whose memory holds the weights and one sequence: tp of powers of two, then pipeline stages."""
    heads, _ = heads_and_experts(model)
    degrees = [t for t in (1, 2, 4, 8, 16) if (heads or t) % t == 0]
    stages = [p for p in (1, 2, 4, 8, 16) if p <= model.stacks[0].num_layers]
    tp, pp = (a.ravel() for a in np.meshgrid(degrees, stages))
    memory = serving_memory(model, ServingLayout(tp=tp, pp=pp), context=context, hbm_bytes=device.hbm_bytes, **how)
    fits = np.broadcast_to(np.asarray(memory.max_concurrency), tp.shape) >= 1
    return float((tp * pp)[fits].min()) if fits.any() else None
