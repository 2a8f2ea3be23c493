"""The job that is asked about, of a network that is known by its samples: batches, recipe and run."""

from __future__ import annotations

from dataclasses import replace

from flopwise.cost.convolutions import usable_precision
from flopwise.cost.money import num_instances
from flopwise.cost.rates import Rates
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.options import OptionError, Spec, changed_options
from flopwise.training.job import Conditions
from flopwise.training.sampled import SampledJob, SampledRecipe, sampled_memory
from flopwise.training.samples import REFERENCE_STACK, SampledWorkload
from flopwise.training.spec import DataSpec, RunConditionsSpec, TrainingSpec
from flopwise.training.start import before_steps_s

TF32 = "tf32"
"""What runs in other formats where a device lacks it: `usable_precision`."""
SAID_OF_SAMPLES = {"samples", "epochs", "global_batch", "micro_batch", "dp", "precision", "optimizer", "stack"}
"""What can be said of training a network without layers of tokens, beside its machines and its run."""


def refuse_options_of_tokens(work: SampledWorkload, *specs: Spec) -> None:
    """Refuse what is said of a network without layers of tokens and means nothing to it.

    Raises:
        SpecError: names it.
    """
    said = {name for spec in specs for name in changed_options(spec)}
    if wrong := sorted(said - SAID_OF_SAMPLES):
        names = ", ".join(name.replace("_", " ") for name in wrong)
        more = "; what storage it needs `flopwise io` says" if {"storage", "storage_bandwidth"} & said else ""
        raise SpecError(f"{names}: of models with layers of tokens; {work.name} is trained by whole samples{more}")


def sampled_recipe(
    work: SampledWorkload, spec: TrainingSpec, facts: Facts, rates: Rates | None
) -> tuple[SampledRecipe, tuple[str, ...]]:
    """What a device does with one sample, and what was assumed; `rates`: of the device, None where none is named.

    Raises:
        SpecError: options that mean nothing to such networks, or a choice that does not exist.
    """
    precision = spec.precision
    if "precision" not in changed_options(spec) and work.precision is not None:
        runs = rates is None or work.precision in rates.peak or work.precision == TF32
        precision = work.precision if runs else precision
    recipe = SampledRecipe(
        work=work, batch=1, precision=precision if rates is None else usable_precision(rates, precision),
        optimizer=facts.optimizer(spec.optimizer), stack=facts.stack(spec.stack or REFERENCE_STACK),
    )  # fmt: skip
    return recipe, work.notes


def sampled_job(
    work: SampledWorkload, data: DataSpec, spec: TrainingSpec, machines: MachineSpec, run: RunConditionsSpec,
    facts: Facts, gpus: int | None,
) -> tuple[SampledJob, tuple[str, ...]]:  # fmt: skip
    """The job, and what was assumed of it.

    Raises:
        SpecError: batches that do not divide, a run without a length, or a choice that does not exist.
    """
    number = machines.num_gpus(gpus)
    cluster = machines.cluster(number, facts)
    if spec.dp not in (None, number):
        raise OptionError("dp", f"{spec.dp}; {work.name} has a replica on each of the {number:,} devices")
    recipe, notes = sampled_recipe(work, spec, facts, cluster.rates)
    job, batch_note = _with_batches(SampledJob(recipe=recipe, cluster=cluster, num_gpus=number), data, spec)
    if data.samples is None and (named := [*changed_options(run), *(["epochs"] if data.epochs != 1 else [])]):
        raise SpecError(f"{', '.join(n.replace('_', ' ') for n in named)}: of a whole run; give its length (--samples)")
    conditions, run_notes = run.conditions(cluster, facts)
    if data.samples is not None:
        conditions = _with_start(conditions, job, data.samples, facts)
        job, run_notes = replace(job, samples=data.samples * data.epochs), (*run_notes, *run.write_assumptions)
    return replace(job, conditions=conditions), (*batch_note, *notes, *run_notes, *cluster.assumptions)


def usual_batch(recipe: SampledRecipe, device: Accelerator | None) -> tuple[SampledRecipe, str]:
    """The recipe with the batch of the reference, as far as the device's memory goes, and why it is that one."""
    usual = recipe.work.batch or 1
    halves = [replace(recipe, batch=usual // 2**times) for times in range(usual.bit_length())]
    chosen = next((one for one in halves if device is None or _fits(one, device)), halves[-1])
    why = "as the reference trains it" if chosen.batch == usual else f"the most that fits of the reference's {usual:,}"
    return chosen, f"batches of {chosen.batch:,} on each device, {why} (--micro-batch)"


def _fits(recipe: SampledRecipe, device: Accelerator) -> bool:
    """Whether a step is not known to need more memory than the device has."""
    memory = sampled_memory(recipe, device.kind)
    return memory is None or memory.total_bytes <= device.hbm_bytes


def _with_batches(job: SampledJob, data: DataSpec, spec: TrainingSpec) -> tuple[SampledJob, tuple[str, ...]]:
    """The job with its batches: as given; else the reference's on each device, as far as memory goes."""
    micro, whole, device = spec.micro_batch, data.global_batch, job.cluster.accelerator
    if whole is None:
        if micro is not None:
            return replace(job, recipe=replace(job.recipe, batch=micro)), ()
        recipe, note = usual_batch(job.recipe, device)
        return replace(job, recipe=recipe), (note,)
    each, rest = divmod(whole, job.num_gpus)
    if rest or not each:
        raise OptionError("global_batch", f"{whole:,} does not divide over {job.num_gpus:,} devices")
    if micro is not None and each % micro:
        raise OptionError("micro_batch", f"{micro:,} does not divide the {each:,} samples of a device and step")
    parts = [replace(job.recipe, batch=micro or each // n) for n in range(1, each + 1) if each % n == 0]
    recipe = next((one for one in parts if micro or _fits(one, device)), parts[-1])
    return replace(job, recipe=recipe, micro_steps=each // recipe.batch), ()


def _with_start(conditions: Conditions, job: SampledJob, samples: float, facts: Facts) -> Conditions:
    """The conditions with what is paid before the first step, of an epoch of `samples`."""
    cluster, work, offer = job.cluster, job.recipe.work, job.cluster.offer
    machines, nbytes = (
        num_instances(job.num_gpus, max(1, cluster.gpus_per_node)),
        work.record_bytes or work.sample_bytes,
    )
    layers = len(work.layers or ())
    start_s = before_steps_s(job.recipe.stack.name, layers, samples * nbytes, machines, facts)
    terms = None if offer is None else facts.terms_of(offer.provider, offer.instance)
    return replace(conditions, start_s=float(start_s), terms=terms)
