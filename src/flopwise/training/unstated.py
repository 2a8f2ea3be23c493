"""What nobody stated of a training job: the estimate at the ends of what people do, and what each input widens."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from flopwise.errors import FlopwiseError
from flopwise.training.estimate import TrainEstimate, UnstatedInput, check, single_parts, single_table, training_band
from flopwise.training.layout import TARGET_SETS
from flopwise.training.stages import cuts_alike

if TYPE_CHECKING:
    from flopwise.facts.software import TrainingStack
    from flopwise.training.job import TrainJob


SEEN_BELOW = 0.995
"""An input that leaves as much of the speed is not worth a word."""


MICRO_BATCHES = (1, 2, 4)
"""Sequences of a micro-batch that people run."""
LORA_ENDS = ((8, "qv"), (64, "all-linear"))
"""Rank and targets of small and of large adapters."""
SLOW_NETWORK = 0.5
"""Of a network between nodes, where nobody says which: a generation older has half its rate (NDR 400, HDR 200)."""


def other_jobs(
    job: TrainJob, unsaid: Collection[str], stacks: Sequence[TrainingStack] = ()
) -> dict[str, list[TrainJob]]:
    """By input that nobody stated, the job as other people would run it; `stacks`: those that they have.

    Source: published runs (benchmarks/truth/training.csv) for the ends. Assumes: a batch is rounded up to whole
    micro-batches.
    """
    layout, recipe, layers = job.layout, job.recipe, job.model.stacks[0].num_layers
    stages = int(layout.pp)
    others: dict[str, list[TrainJob]] = {}

    def laid_out(**fields: int) -> TrainJob:
        changed = replace(layout, **fields)  # type: ignore[arg-type]  # fields by name
        replicas = int(changed.dp) * int(changed.micro_batch)
        batch = math.ceil(int(recipe.global_batch) / replicas) * replicas
        return replace(job, layout=changed, recipe=replace(recipe, global_batch=batch))

    if "micro-batch" in unsaid:
        others["micro-batch"] = [laid_out(micro_batch=size) for size in MICRO_BATCHES]
    if "recompute" in unsaid:
        others["recompute"] = [laid_out(recompute=mode) for mode in (0, 1)]
    if "interleave" in unsaid and stages > 1:
        deepest = max((v for v in range(2, layers // stages + 2) if cuts_alike(layers, stages, v)), default=1)
        others["interleave"] = [laid_out(interleave=chunks) for chunks in (1, deepest)]
    if "sharding" in unsaid and int(layout.dp) > 1:
        others["sharding"] = [laid_out(zero=stage) for stage in (0, 1, 3) if stage <= recipe.stack.zero]
    if "adapters" in unsaid and recipe.lora is not None:
        others["adapters"] = [
            replace(job, recipe=replace(recipe, lora=replace(recipe.lora, rank=rank, targets=TARGET_SETS[targets])))
            for rank, targets in LORA_ENDS
        ]
    if "stack" in unsaid:
        others["stack"] = [replace(job, recipe=replace(recipe, stack=stack)) for stack in stacks]
    if "network" in unsaid and int(layout.num_gpus) > job.cluster.gpus_per_node:
        *inside, between = job.cluster.fabric.levels
        slow = (*inside, replace(between, bytes_per_s=SLOW_NETWORK * between.bytes_per_s))
        cluster = replace(job.cluster, fabric=replace(job.cluster.fabric, levels=slow))
        others["network"] = [replace(job, cluster=cluster)]
    return others


def unstated_inputs(found: TrainEstimate, others: Mapping[str, Sequence[TrainJob]]) -> tuple[UnstatedInput, ...]:
    """The inputs that are assumed in an estimate; `others`: by input, the same job as other people run it.

    Source: the same formulas. Assumes: inputs change the speed independently; what cannot run, nobody runs.
    """
    inputs = []
    for name, jobs in others.items():
        rates = [1.0, *(rate / found.tokens_per_s_per_gpu for job in jobs if (rate := _rate(job)) is not None)]
        inputs.append(UnstatedInput(name=name, low=min(rates), high=max(rates)))
    return tuple(inputs)


def with_unstated_inputs(found: TrainEstimate, inputs: Sequence[UnstatedInput]) -> TrainEstimate:
    """The estimate with an interval that holds what inputs that nobody stated may be; says which they are.

    Source: `ErrorBand.between`. Assumes: as `unstated_inputs`.
    """
    if not inputs:
        return found
    band = training_band(found.job, complete=False)
    for one in inputs:
        band = band.between(one.low, one.high)
    low, high = band.interval(found.tokens_per_s_per_gpu)
    notes = tuple(one.text for one in inputs if one.low < SEEN_BELOW or one.high > 1.0 / SEEN_BELOW)
    slower = found.band.low / band.low
    return replace(
        found, band=band, low=float(low), high=float(high), assumptions=(*found.assumptions, *notes),
        unstated=tuple(inputs), upper_bound_s=found.upper_bound_s * slower,
    )  # fmt: skip


def _rate(job: TrainJob) -> float | None:
    """Tokens a second and device of a job; None where it cannot run."""
    try:
        check(job)
    except FlopwiseError:
        return None
    table = single_table(job)
    step_s = sum(single_parts(table, job.layout).values())
    return float(job.recipe.global_batch) * float(table.seq_tokens[0]) / step_s / int(job.layout.num_gpus)
