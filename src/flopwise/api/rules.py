"""Rules of thumb beside the real estimate, with what the estimate says of the same thing."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.accelerators import Accelerator
    from flopwise.facts.architecture import Model
    from flopwise.serving.result import ServeEstimate
    from flopwise.serving.spec import ServingSpec
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.layout import Layout, Recipe


def training_rules(
    model: Model, recipe: Recipe, layout: Layout, total: float, chip: Accelerator | None
) -> tuple[QuickFormula, ...]:
    """16 bytes a parameter against the memory of a GPU, and six times the weights against the GPUs that it takes."""
    from flopwise.cost.quick import QuickFormula, quick_gpus, quick_state_bytes
    from flopwise.ops.tensors import parameters
    from flopwise.training.layout import shard_ranks

    count = parameters(model)
    ranks = int(layout.tp) * int(layout.pp)
    sharers = int(shard_ranks(layout.shard, int(layout.dp) * int(layout.cp)))
    states = quick_state_bytes(count, sharers, ranks, int(layout.zero))
    rules = [
        QuickFormula(
            name="16 bytes a parameter", formula="16 x parameters, sharded as ZeRO shards them", unit="B",
            value=float(states), estimate=total,
        )
    ]  # fmt: skip
    if chip is not None:
        width = 4.0 if recipe.precision == "fp32" else 2.0
        value = float(quick_gpus(count, width, chip.hbm_bytes, training=True))
        rules.append(
            QuickFormula(
                name="GPUs", formula="parameters x bytes / memory x 6", unit="GPUs", value=max(1.0, value),
                estimate=fewest_gpus(model, recipe, layout, chip),
            )
        )  # fmt: skip
    return tuple(rules)


def fewest_gpus(model: Model, recipe: Recipe, layout: Layout, chip: Accelerator) -> float | None:
    """The smallest power of two of GPUs on which this recipe fits, fully sharded, tp up to 8; None beyond 65,536."""
    import numpy as np

    from flopwise.ops.degrees import heads_and_experts
    from flopwise.training.memory import step_memory

    heads, _ = heads_and_experts(model)
    degrees = [t for t in (1, 2, 4, 8) if (heads or 8) % t == 0]
    tp, gpus = (a.ravel() for a in np.meshgrid(degrees, 2 ** np.arange(17)))
    keep = gpus % tp == 0
    tp, gpus = tp[keep], gpus[keep]
    dp = gpus // tp
    column = layout.with_degrees(dp=dp, tp=tp, pp=1, cp=1, ep=1, shard=0, interleave=1, zero=np.where(dp > 1, 3, 0))
    batch = replace(recipe, global_batch=dp * int(layout.micro_batch))
    fits = np.asarray(step_memory(model, batch, column, device_kind=chip.kind).total_bytes) <= chip.hbm_bytes
    return float(gpus[fits].min()) if fits.any() else None


def serving_rules(model: Model, spec: ServingSpec, chip: Accelerator | None, context: int) -> tuple[QuickFormula, ...]:
    """Weights over memory against the GPUs that it takes."""
    from flopwise.cost.quick import QuickFormula, quick_gpus
    from flopwise.ops.tensors import parameters
    from flopwise.ops.weights import weight_bytes

    if chip is None:
        return ()
    count = parameters(model)
    width = float(weight_bytes(model, spec.weights or "bf16")) / max(1, count)
    return (
        QuickFormula(
            name="GPUs", formula="parameters x bytes / memory", unit="GPUs",
            value=max(1.0, float(quick_gpus(count, width, chip.hbm_bytes, training=False))),
            estimate=fewest_serving_gpus(model, spec, chip, context),
        ),
    )  # fmt: skip


def fewest_serving_gpus(model: Model, spec: ServingSpec, chip: Accelerator, context: int) -> float | None:
    """The fewest GPUs whose memory holds the weights and one sequence: tp of powers of two, then pipeline stages."""
    import numpy as np

    from flopwise.ops.degrees import heads_and_experts
    from flopwise.serving.memory import ServingLayout, serving_memory

    heads, _ = heads_and_experts(model)
    degrees = [t for t in (1, 2, 4, 8, 16) if (heads or t) % t == 0]
    stages = [p for p in (1, 2, 4, 8, 16) if p <= model.stacks[0].num_layers]
    tp, pp = (a.ravel() for a in np.meshgrid(degrees, stages))
    held = serving_memory(
        model, ServingLayout(tp=tp, pp=pp), context=context, hbm_bytes=chip.hbm_bytes, weights=spec.weights or "bf16",
        kv_dtype=spec.kv_dtype or "bf16", engine_name=spec.engine, memory_frac=spec.memory_fraction,
    )  # fmt: skip
    fits = np.broadcast_to(np.asarray(held.max_concurrency), tp.shape) >= 1
    return float((tp * pp)[fits].min()) if fits.any() else None


def step_rules(found: TrainEstimate) -> tuple[QuickFormula, ...]:
    """6 N D."""
    from flopwise.cost.quick import QuickFormula, quick_training_flops
    from flopwise.ops.flops import causal_forward_flops
    from flopwise.ops.tensors import active_parameters
    from flopwise.training.estimate import counted_batch, counted_passes

    job = found.job
    batch, seq = counted_batch(job)
    count = job.recipe.useful_tokens if job.tokens is None else job.tokens
    passes = counted_passes(job)
    real = passes * float(causal_forward_flops(job.model, batch, seq)) * count / job.recipe.useful_tokens
    flops = QuickFormula(
        name="6 N D",
        formula="6 x active parameters x tokens" + (" of a step" if job.tokens is None else ""),
        unit="FLOP",
        value=float(quick_training_flops(active_parameters(job.model), count)),
        estimate=real,
    )
    return (flops,)


def token_rules(found: ServeEstimate) -> tuple[QuickFormula, ...]:
    """Time a token: weights over bandwidth."""
    from flopwise.cost.quick import QuickFormula, quick_decode_s
    from flopwise.ops.weights import weight_bytes

    job = found.job
    if found.tpot_s is None:
        return ()
    size = float(weight_bytes(job.model, job.weights))
    value = float(quick_decode_s(size, found.num_gpus, job.cluster.accelerator.hbm_bytes_per_s))
    return (
        QuickFormula(
            name="time per token",
            formula="weights / memory bandwidth",
            unit="s",
            value=value,
            estimate=found.tpot_s.value,
        ),
    )
