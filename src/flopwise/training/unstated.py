"""What nobody stated of a training job: the estimate at the ends of what people do, and what each input widens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from flopwise.cost.cluster import cluster
from flopwise.cost.intervals import OTHER_SOFTWARE
from flopwise.errors import FlopwiseError
from flopwise.training.alternatives import BEST_MEASURED, UnstatedInput, measured_recipe, other_settings, usual_stacks
from flopwise.training.estimate import TimedStep, TrainEstimate, timed_step, training_band
from flopwise.values import replace

if TYPE_CHECKING:
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.catalog import Facts
    from flopwise.facts.software import TrainingStack
    from flopwise.training.job import TrainJob
    from flopwise.training.layout import Layout


SLOW_NETWORK = 0.5
"""Of a network between nodes, where nobody says which: a generation older has half its rate (NDR 400, HDR 200)."""


def other_jobs(
    job: TrainJob, open_settings: Collection[str], stacks: Sequence[TrainingStack] = ()
) -> dict[str, list[TrainJob]]:
    """By input that nobody stated, the job as other people would run it; `stacks`: those that they have.

    Source and assumptions: `other_settings`; the network of a generation ago.
    """
    settings = other_settings(job.layout, job.recipe, job.model, open_settings, stacks)
    others = {
        name: [replace(job, layout=layout, recipe=recipe) for layout, recipe in ends] for name, ends in settings.items()
    }
    if "network" in open_settings and int(job.layout.num_gpus) > job.cluster.gpus_per_node:
        *inside, between = job.cluster.fabric.levels
        slow = (*inside, replace(between, bytes_per_s=SLOW_NETWORK * between.bytes_per_s))
        cluster = replace(job.cluster, fabric=replace(job.cluster.fabric, levels=slow))
        others["network"] = [replace(job, cluster=cluster)]
    return others


def unstated_inputs(
    found: TrainEstimate | TimedStep, others: Mapping[str, Sequence[TrainJob]]
) -> tuple[UnstatedInput, ...]:
    """The inputs that are assumed in an estimate; `others`: by input, the same job as other people run it.

    Source: the same formulas. Assumes: inputs change the speed independently; what cannot run, nobody runs.
    """
    inputs = []
    for name, jobs in others.items():
        rates = [1.0, *(one.tokens_per_s_per_gpu / found.tokens_per_s_per_gpu for one in map(_step, jobs) if one)]
        inputs.append(UnstatedInput(name=name, low=min(rates), high=max(rates)))
    return tuple(inputs)


def open_jobs(job: TrainJob, open_settings: Collection[str], facts: Facts) -> dict[str, list[TrainJob]]:
    """The job as other people run it on the same device, whichever of `open_settings` they have otherwise: by input.

    Source and assumptions: `other_jobs`, `usual_stacks`.
    """
    return other_jobs(job, open_settings, usual_stacks(job.layout, job.recipe, job.cluster.accelerator, facts))


def open_inputs(
    found: TrainEstimate | TimedStep, open_settings: Collection[str], facts: Facts, on_gpus: Sequence[TrainJob] = ()
) -> tuple[UnstatedInput, ...]:
    """The inputs of `open_settings` that are assumed of a job whose step was found.

    On devices with software of their own, of which few runs are measured, each counts for no less than it would on the
    same number of the best measured GPUs, in the same layout, with as small micro-batches as a smaller memory leads to,
    in stages as people have them there, and in `on_gpus`, the jobs that the same question has there.

    Source and assumptions: as `unstated_inputs`.
    """
    if not open_settings:
        return ()
    job, device = found.job, found.job.cluster.accelerator
    inputs = unstated_inputs(found, open_jobs(job, open_settings, facts))
    measured = measured_recipe(job.recipe, device, facts)
    if measured is None:
        return inputs
    nodes = cluster(facts.accelerator(BEST_MEASURED[0]), gpus_per_node=job.cluster.gpus_per_node)
    layouts = job.layout, replace(job.layout, micro_batch=1), _in_stages(job.layout)
    alike = [replace(job, recipe=measured, cluster=nodes, layout=layout) for layout in layouts]
    for one in (*alike, *on_gpus):
        if (step := _step(one)) is None:
            continue
        there = {each.name: each for each in unstated_inputs(step, open_jobs(one, open_settings, facts))}
        inputs = tuple(each.no_surer_than(there.get(each.name, each)) for each in inputs)
    return inputs


STAGES = 4
"""Stages of a pipeline on GPUs: few, of those that people have (the median of 266 runs with one in
benchmarks/truth/training.csv is 8)."""


def _in_stages(layout: Layout) -> Layout:
    """The layout with its replicas cut into stages of a pipeline, as without FSDP; itself if they cannot be."""
    if int(layout.pp) > 1 or int(layout.dp) % STAGES:
        return layout
    return replace(
        layout, dp=int(layout.dp) // STAGES, pp=STAGES, zero=min(int(layout.zero), 1), shard=0, micro_batch=1
    )


def open_band(job: TrainJob, inputs: Sequence[UnstatedInput], *, num_gpus: int | None = None) -> ErrorBand:
    """The error band of a job of which `inputs` are not stated; `num_gpus`: as `training_band` takes it.

    Errors of runs whose inputs are not all stated are measured beside what those may be. Where none could be anything
    else all that matters is stated, and on devices with software of their own, of which no such run is measured, the
    wider of both errors counts.

    Source: `ErrorBand.between`. Assumes: as `unstated_inputs`.
    """
    complete = training_band(job, num_gpus=num_gpus)
    if not inputs:
        return complete
    band = complete
    if any(one.matters for one in inputs):
        band = training_band(job, complete=False, num_gpus=num_gpus)
    if job.cluster.accelerator.kind in OTHER_SOFTWARE:
        band = replace(band.no_surer_than([complete], band.family), family_rows=band.family_rows)
    for one in inputs:
        band = band.between(one.low, one.high)
    return band


def with_unstated_inputs(found: TrainEstimate, inputs: Sequence[UnstatedInput]) -> TrainEstimate:
    """The estimate with an interval that holds what inputs that nobody stated may be; says which they are.

    Source and assumptions: `open_band`.
    """
    if not inputs:
        return found
    band = open_band(found.job, inputs).up_to(found.step_s / found.lower_bound_s)
    low, high = band.interval(found.tokens_per_s_per_gpu)
    notes = tuple(one.text("speed") for one in inputs if one.matters)
    slower = found.band.low / band.low
    return replace(
        found, band=band, low=float(low), high=float(high), assumptions=(*found.assumptions, *notes),
        unstated=tuple(inputs), upper_bound_s=found.upper_bound_s * slower,
    )  # fmt: skip


def _step(job: TrainJob) -> TimedStep | None:
    """The step of a job; None where it cannot run. What reading takes is left out."""
    try:
        return timed_step(replace(job, reads=None))
    except FlopwiseError:
        return None
