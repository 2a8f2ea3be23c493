"""What training answers of a network that is known by its samples, and the memory of its step as an answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from flopwise.cost.convolutions import ELEM_BYTES
from flopwise.cost.intervals import error_band
from flopwise.cost.memory_answer import MemoryAnswer, Remedy, fit_figures
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.results import attributes, entries, interval, notes, without_values
from flopwise.training.answer import StepAnswer
from flopwise.training.memory import memory_class
from flopwise.training.sampled import SampledEstimate, SampledJob
from flopwise.training.sampled_memory import PARAMETER_BYTES, SampledRecipe, sampled_memory
from flopwise.units import format_count, format_interval, format_items, format_number, format_percent, format_price
from flopwise.values import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SampledMemoryAnswer(MemoryAnswer):
    """The memory of a step; `fits` is None where activations are not counted and the rest would fit."""

    explained: ClassVar[bool] = False
    recipe: SampledRecipe


def sampled_memory_answer(
    recipe: SampledRecipe,
    device: Accelerator | None,
    num_gpus: int,
    facts: Facts,
    settings: tuple[tuple[str, str], ...],
) -> SampledMemoryAnswer | None:  # fmt: skip
    """The memory of one step against `device`; None where the parameters are not known."""
    kind = "gpu" if device is None else device.kind
    memory, model = sampled_memory(recipe, kind), recipe.work.model
    if memory is None or model is None:
        return None
    band = error_band(memory_class(recipe.stack, "full", {}), facts.calibration)
    capacity, total = None if device is None else float(device.hbm_bytes), memory.total_bytes
    figures = fit_figures(total, band, device, capacity, memory.assumptions, floor=memory.floor_bytes)
    fits = None if capacity is None else total <= capacity
    if fits and not memory.counts_activations:
        fits, figures["fits_probability"] = None, None
    remedies = [] if fits is not False or capacity is None else _remedies(recipe, total, capacity, kind)
    return SampledMemoryAnswer(
        **figures, model=model, num_gpus=num_gpus, task="train", facts=facts,
        items=tuple((name, size) for name, size in memory.items.items() if size), worst_rank="every rank", fits=fits,
        quick=(), settings=settings, recipe=recipe, remedies=tuple(remedies),
    )  # fmt: skip


def _remedies(recipe: SampledRecipe, total: float, capacity: float, kind: str) -> list[Remedy]:
    """The largest smaller batch that fits, and products in 16 bits; where neither does, what saves most."""

    def remedies(change: str, other: SampledRecipe) -> Iterator[Remedy]:
        memory = sampled_memory(other, kind)
        if memory is not None and memory.counts_activations:
            left = memory.total_bytes
            fits, items = left <= capacity, tuple(memory.items.items())
            yield Remedy(change=change, saves_bytes=total - left, total_bytes=left, fits=fits, items=items)

    halves = [recipe.batch // 2**times for times in range(1, recipe.batch.bit_length())]
    changes = [
        one
        for batch in halves
        for one in remedies(f"a batch of {batch:,} on each device", replace(recipe, batch=batch))
    ]
    enough = [one for one in changes if one.fits][:1]
    if ELEM_BYTES[recipe.precision] == PARAMETER_BYTES:
        narrow = list(remedies("mixed precision (--precision fp16 or bf16)", replace(recipe, precision="fp16")))
        changes += narrow
        enough += [one for one in narrow if one.fits]
    return enough or sorted(changes, key=lambda one: -one.saves_bytes)[:1]


def recipe_settings(recipe: SampledRecipe, micro_steps: int = 1) -> tuple[tuple[str, str], ...]:
    """The recipe of one device, as answers show it."""
    added = f", gradients of {micro_steps} passes added up" if micro_steps > 1 else ""
    return (
        ("sample", recipe.work.sample),
        ("batch", f"{recipe.batch:,} on each device{added}"),
        ("recipe", f"{recipe.precision}, {recipe.optimizer.name}"),
    )


def job_settings(job: SampledJob) -> tuple[tuple[str, str], ...]:
    """The settings of an answer."""
    cluster = job.cluster
    node = f"{cluster.gpus_per_node} per node, {cluster.fabric.link_kind} inside"
    return (
        ("accelerators", f"{job.num_gpus:,} x {cluster.accelerator.name}, {node}"),
        ("layout", f"dp {job.num_gpus:,}" if job.num_gpus > 1 else "1 GPU"),
        *recipe_settings(job.recipe, job.micro_steps),
        ("global batch", format_items(job.global_batch, "sample")),
        ("price", format_price(cluster.usd_per_gpu_hour, cluster.price_source)),
    )


def format_samples(value: float) -> str:
    """Samples a second: whole ones from a hundred on."""
    return f"{value:,.0f}" if value >= 100 else f"{format_number(value)}"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SampledTrainAnswer(StepAnswer):
    """The estimate and its memory; `fits` and `memory` are None where activations or parameters are not known."""

    explained: ClassVar[bool] = False
    estimate: SampledEstimate
    memory: SampledMemoryAnswer | None

    @classmethod
    def of(cls, job: SampledJob, facts: Facts, assumptions: tuple[str, ...], epochs: float = 1.0) -> Self:
        """The answer for one job, which goes `epochs` times through its data. Raises: as `SampledEstimate.of`."""
        estimate = SampledEstimate.of(job, facts)
        shown, run = job_settings(job), estimate.run
        memory = sampled_memory_answer(job.recipe, job.cluster.accelerator, job.num_gpus, facts, shown)
        millions = (job.samples or 0.0) / 1e6
        unknown = ("its parameters are not known, so neither is its memory",)
        billed = () if run is None else run.bill_notes(job.cluster, job.num_gpus)
        noted = (*assumptions, *billed, *estimate.assumptions, *(unknown if memory is None else memory.assumptions))
        return cls(
            estimate=estimate, memory=memory, fits=None if memory is None else memory.fits,
            unit_usd={} if run is None else run.unit_usd(epochs, million_samples=millions),
            settings=shown, assumptions=tuple(dict.fromkeys(noted)),
        )  # fmt: skip

    @property
    def verdict(self) -> str:
        """The answer in a sentence: speed and what the run takes, or that it does not fit."""
        estimate = self.estimate
        if self.fits is False and self.memory is not None:
            return self.memory.verdict
        gpus, run = estimate.job.num_gpus, estimate.run
        where = f"{gpus:,} x {estimate.job.cluster.accelerator.name}"
        ends = format_interval(estimate.low * gpus, estimate.high * gpus, format_samples)
        text = f"{where} train{'s' * (gpus == 1)} {format_samples(estimate.samples_per_s)} samples/s {ends}"
        text += "" if estimate.mfu_frac is None else f", MFU {format_percent(estimate.mfu_frac)}"
        text += f"{f', bound by {estimate.bound}' if estimate.bound else ''}."
        if run is None:
            return text
        return f"{text} {run.sentence(f'{format_count(estimate.job.samples or 0.0)} samples', estimate.band)}"

    def document(self) -> dict[str, Any]:
        """The training estimate as the JSON that scripts rely on. What cannot run has no speed."""
        estimate, job, run = self.estimate, self.estimate.job, self.estimate.run
        names = "step_s samples_per_s samples_per_s_per_gpu low high lower_bound_s upper_bound_s mfu_frac bound"
        speed = {
            **attributes(estimate, f"{names} efficiency_frac rate_origin=rate.origin"),
            "breakdown": entries(estimate.breakdown, "seconds"),
            "run": None if run is None else {"samples": job.samples, **run.document(self.unit_usd, estimate.band)},
            "interval": interval(estimate.band),
        }
        return {
            **attributes(estimate, "model=job.recipe.work.name gpu=job.cluster.accelerator.name job.num_gpus"),
            **(speed if self.can_run else without_values(speed)),
            "precision": estimate.rate.precision,
            "memory": None if self.memory is None else self.memory.document(),
            "fits": self.fits,
            **attributes(
                job, "recipe.batch micro_steps global_batch optimizer=recipe.optimizer.name cluster.usd_per_gpu_hour"
            ),
            "price_source": job.cluster.price_source or None,
            **notes(self),
        }
