"""Rules of thumb of training beside the estimate: six times the weights, 16 bytes a parameter, 6 N D."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flopwise.cost.quick import QuickFormula, quick_gpus
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.ops.degrees import heads_and_experts
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import active_parameters, parameters
from flopwise.training.estimate import TrainEstimate, counted_batch, counted_passes
from flopwise.training.layout import Layout, Recipe, shard_ranks
from flopwise.training.memory import step_memory

MOST_DOUBLINGS = 16
"""Of GPUs that are looked at."""


def memory_rules(
    model: Model, recipe: Recipe, layout: Layout, total_bytes: float, device: Accelerator | None
) -> tuple[QuickFormula, ...]:
    """16 bytes a parameter against the memory of a GPU, and six times the weights against the GPUs that it takes.

    Source: Rajbhandari et al. 2019 (arXiv:1910.02054) section 3 and figure 1 for the 16 bytes: 2 of weights and of
    gradients, 12 of Adam's states, as far as the ZeRO stage leaves them whole.
    """
    count = parameters(model)
    share = 1.0 / int(shard_ranks(layout.shard, int(layout.dp) * int(layout.cp)))
    whole = {0: 16.0, 1: 4.0 + 12.0 * share, 2: 2.0 + 14.0 * share, 3: 16.0 * share}[int(layout.zero)]
    states = QuickFormula(
        name="16 bytes a parameter", formula="16 x parameters, sharded as ZeRO shards them", unit="B",
        value=count / (int(layout.tp) * int(layout.pp)) * whole, estimate=total_bytes,
    )  # fmt: skip
    if device is None:
        return (states,)
    gpus = QuickFormula(
        name="GPUs", formula="parameters x bytes / memory x 6", unit="GPUs",
        value=max(1.0, float(quick_gpus(count, recipe.elem_bytes, device.hbm_bytes, training=True))),
        estimate=_fewest_gpus(model, recipe, layout, device),
    )  # fmt: skip
    return states, gpus


def step_rules(estimate: TrainEstimate) -> tuple[QuickFormula, ...]:
    """6 N D: FLOP to train N parameters on D tokens.

    Source: Kaplan et al. 2020 (arXiv:2001.08361) section 2.1. Assumes: attention is negligible.
    """
    job = estimate.job
    batch, seq = counted_batch(job)
    tokens = job.recipe.useful_tokens if job.tokens is None else job.tokens
    flops = counted_passes(job) * float(causal_forward_flops(job.model, batch, seq))
    rule = QuickFormula(
        name="6 N D",
        formula="6 x active parameters x tokens" + (" of a step" if job.tokens is None else ""),
        unit="FLOP",
        value=float(6.0 * active_parameters(job.model) * tokens),
        estimate=flops * tokens / job.recipe.useful_tokens,
    )
    return (rule,)


def _fewest_gpus(model: Model, recipe: Recipe, layout: Layout, device: Accelerator) -> float | None:
    """The smallest power of two of GPUs on which this recipe fits, fully sharded, tp up to 8; None beyond 65,536."""
    heads, _ = heads_and_experts(model)
    degrees = [t for t in (1, 2, 4, 8) if (heads or 8) % t == 0]
    tp, gpus = (a.ravel() for a in np.meshgrid(degrees, 2 ** np.arange(MOST_DOUBLINGS + 1)))
    whole = gpus % tp == 0
    tp, gpus = tp[whole], gpus[whole]
    dp = gpus // tp
    column = layout.with_degrees(dp=dp, tp=tp, pp=1, cp=1, ep=1, shard=0, interleave=1, zero=np.where(dp > 1, 3, 0))
    batch = replace(recipe, global_batch=dp * int(layout.micro_batch))
    fits = np.asarray(step_memory(model, batch, column, device_kind=device.kind).total_bytes) <= device.hbm_bytes
    return float(gpus[fits].min()) if fits.any() else None
