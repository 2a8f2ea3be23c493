"""How long any piece of work takes at least: compute against memory, for given FLOP and bytes or for a model's pass."""

from __future__ import annotations

from typing import Any, Self

from flopwise.cost.cluster import Cluster
from flopwise.cost.energy import device_watts, facility_joules
from flopwise.cost.money import num_instances, run_usd
from flopwise.cost.precisions import PRECISIONS
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.architecture import Model
from flopwise.ops.flops import backward_flops, causal_forward_flops, operations
from flopwise.pictures import Picture, PointPicture
from flopwise.results import Result, attributes
from flopwise.units import format_percent, format_price, format_seconds
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineWork:
    """The work: FLOP, bytes moved, and what it is; with `partial` the traffic of activations is not known."""

    flops: float
    nbytes: float
    what: str = "work"
    samples: int | None = None
    partial: bool = False
    assumptions: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, model: Model | None, batch: int, tokens: int, *, training: bool, flops: float | None, nbytes: float | None
    ) -> Self:
        """The work that is given as FLOP and bytes, or a pass of a model: see `of_pass`.

        Source: as given, or `of_pass`. Assumes: as there.
        Raises: SpecError: neither a model nor FLOP or bytes are given, or both.
        """
        if model is not None and (flops is not None or nbytes is not None):
            raise SpecError("both a model and FLOP or bytes are given; give one of them")
        if model is not None:
            return cls.of_pass(model, batch, tokens, training=training)
        if flops is None and nbytes is None:
            raise SpecError("no work is given; give --flops and --bytes, or a MODEL")
        return cls(flops=flops or 0.0, nbytes=nbytes or 0.0)

    @classmethod
    def of_pass(cls, model: Model, batch: int, tokens: int, *, training: bool) -> Self:
        """One pass of a model over `batch` samples, of `tokens` where it has layers; forward, or a training step.

        Source: the layers, operation by operation; without layers the published FLOP of a sample.
        Assumes: a training step moves thrice the bytes of a forward pass; without layers, weights of 2 bytes move.
        Raises: MissingFactError: neither layers nor published figures are known.
        """
        passes = "training step" if training else "forward pass"
        if model.stacks:
            nbytes = sum(float(o.bytes) for o in operations(model, batch, tokens))
            flops = float(causal_forward_flops(model, batch, tokens))
            what = f"{passes} of {model.name} over {batch:,} x {tokens:,} tokens"
            if not training:
                return cls(flops=flops, nbytes=nbytes, what=what, samples=batch)
            flops += float(backward_flops(model, batch, tokens))
            notes = ("operations moved thrice the bytes of the forward pass",)
            return cls(flops=flops, nbytes=3 * nbytes, what=what, samples=batch, assumptions=notes)
        published = model.published
        if published is None:
            raise MissingFactError(f"{model.name}: neither layers nor published figures are known")
        flops_each = published.training_flops_per_sample if training else published.forward_flops_per_sample
        if flops_each is None:
            raise MissingFactError(f"{model.name}: the FLOP are not known of its {passes}; give --flops and --bytes")
        nbytes = (published.sample_bytes or 0.0) * batch + (published.parameters or 0) * 2.0 * (3 if training else 1)
        known = f"bytes: samples of {published.sample} and weights of 2 bytes; activations are not known and left out"
        unknown = f"{model.name}: the size of a sample is not known; only weights are moved"
        return cls(
            flops=flops_each * batch,
            nbytes=nbytes,
            what=f"{passes} of {model.name} over {batch:,} samples ({published.sample})",
            samples=batch,
            partial=True,
            assumptions=(known, unknown) if published.sample_bytes is None else (known,),
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class RooflineAnswer(Result):
    """Seconds of the whole work on all accelerators together; None where a price or a power limit is not known.

    `lower_bound_s` is at datasheet rates; `compute_s`, `memory_s` and `seconds` at the achieved fractions. With
    `partial` the traffic of activations is not known and left out: the time is the least, and what follows from it is
    a limit, no estimate; `cost_usd`, `energy_joules` and `samples_per_s` are then None.

    Source: `RooflineAnswer.of`. Assumes: as there.
    """

    what: str
    flops: float
    bytes: float
    dtype: str
    num_gpus: int
    cluster: Cluster
    compute_efficiency_frac: float
    memory_efficiency_frac: float
    efficiency_source: str
    compute_s: float
    memory_s: float
    seconds: float
    lower_bound_s: float
    bound: str
    intensity_flops_per_byte: float | None
    ridge_flops_per_byte: float
    utilisation_frac: float  # of the datasheet's peak
    bandwidth_frac: float  # of the datasheet's memory bandwidth
    cost_usd: float | None
    energy_joules: float | None
    samples: int | None
    samples_per_s: float | None
    partial: bool
    cost_usd_at_least: float | None
    energy_joules_at_least: float | None
    samples_per_s_at_most: float | None
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]

    @classmethod
    def of(
        cls, work: RooflineWork, cluster: Cluster, num_gpus: int, dtype: str, efficiency: float | None = None
    ) -> RooflineAnswer:
        """The time of the work on `num_gpus` devices, its bound, cost and energy.

        `efficiency`: achieved fraction of the datasheet's rates, for both; None: as calibrated on large kernels.

        Source: roofline model (Williams et al. 2009). Assumes: the work divides evenly; computing and memory overlap.
        Raises: SpecError: the work is nothing. MissingFactError: the accelerator has no such rate.
        """
        chip, bandwidth = cluster.accelerator, float(cluster.rates.hbm_bytes_per_s)
        peak, fractions, notes = _rates(cluster, dtype)
        for_compute, for_memory = fractions if efficiency is None else (efficiency, efficiency)
        compute_s = work.flops / (peak * for_compute * num_gpus)
        memory_s = work.nbytes / (bandwidth * for_memory * num_gpus)
        seconds = max(compute_s, memory_s)
        if seconds <= 0:
            raise SpecError("the work is empty: it has neither FLOP nor bytes")
        cost, energy = _usd_and_joules(cluster, num_gpus, seconds, in_compute=compute_s >= memory_s)
        rate, partial = None if work.samples is None else work.samples / seconds, work.partial
        even = ("the work divides evenly over the accelerators",) if num_gpus > 1 else ()
        price = format_price(cluster.usd_per_gpu_hour, cluster.price_source)
        settings = (("accelerators", f"{num_gpus:,} x {chip.name}"), ("price", price))
        return RooflineAnswer(
            what=work.what, flops=work.flops, bytes=work.nbytes, dtype=dtype, num_gpus=num_gpus, cluster=cluster,
            compute_efficiency_frac=for_compute, memory_efficiency_frac=for_memory,
            efficiency_source="calibrated on large kernels" if efficiency is None else "given", compute_s=compute_s,
            memory_s=memory_s, seconds=seconds,
            lower_bound_s=max(work.flops / (peak * num_gpus), work.nbytes / (bandwidth * num_gpus)),
            bound="compute" if compute_s >= memory_s else "memory bandwidth",
            intensity_flops_per_byte=work.flops / work.nbytes if work.nbytes else None,
            ridge_flops_per_byte=peak * for_compute / (bandwidth * for_memory),
            utilisation_frac=work.flops / (peak * num_gpus * seconds),
            bandwidth_frac=work.nbytes / (bandwidth * num_gpus * seconds), cost_usd=None if partial else cost,
            energy_joules=None if partial else energy, samples=work.samples, samples_per_s=None if partial else rate,
            partial=partial, cost_usd_at_least=cost if partial else None,
            energy_joules_at_least=energy if partial else None, samples_per_s_at_most=rate if partial else None,
            settings=settings,
            assumptions=(*work.assumptions, *(notes if efficiency is None else ()), *cluster.assumptions, *even),
        )  # fmt: skip

    @property
    def verdict(self) -> str:
        """The answer in a sentence: how long, and what it is bound by."""
        limit, time = "at least " if self.partial else "", format_seconds(self.seconds)
        where = f"{self.num_gpus:,} x {self.cluster.accelerator.name}"
        if not self.partial:
            where += f" (at least {format_seconds(self.lower_bound_s)} at datasheet rates)"
        used = f"{format_percent(self.utilisation_frac)} of peak compute"
        moved = f"{format_percent(self.bandwidth_frac)} of memory bandwidth"
        return f"{limit.capitalize()}{time} on {where}, bound by {self.bound}: {used}, {moved}."

    def picture(self) -> Picture:
        """The roof of the accelerators together, and the work below it. SpecError without bytes or without FLOP."""
        here = self.intensity_flops_per_byte
        if not here or not self.utilisation_frac:
            raise SpecError("a roofline needs both operations and bytes; give them, or a model")
        achieved, ridge = self.flops / self.seconds, self.ridge_flops_per_byte
        peak = achieved / self.utilisation_frac
        across = (min(here, ridge) / 30, ridge, max(here, ridge) * 30)
        roof = [(x, peak * min(1.0, x / ridge)) for x in across]
        series = {self.what: [(here, achieved)], "datasheet": roof}
        return PointPicture(
            title=self.verdict, x="FLOP a byte", y="FLOP/s", series=series, lines=("datasheet",), log=True,
        )  # fmt: skip

    def document(self) -> dict[str, Any]:
        """The answer by key."""
        names = (name for name in self.__dataclass_fields__ if name not in {"cluster", "settings"})
        return {
            "gpu": self.cluster.accelerator.name,
            **attributes(self, " ".join(names)),
            "price_source": self.cluster.price_source or None,
            "settings": dict(self.settings),
        }


def _rates(cluster: Cluster, dtype: str) -> tuple[float, tuple[float, float], list[str]]:
    """Peak FLOP/s, calibrated fractions of compute and memory bandwidth, and what was assumed."""
    rates, notes = cluster.rates, []
    if dtype in PRECISIONS:
        peak = rates.peak_flops_per_s(dtype)
        matmul_frac = rates.matmul_flops_per_s(dtype) / peak
    else:
        peak, matmul_frac = cluster.accelerator.peak_flops_per_s(dtype), rates.value["matmul_frac.bf16"]
        notes.append(f"{dtype}: the achieved fraction of 16-bit products is used instead")
    substitution = rates.substitution_note(dtype)
    if substitution is not None:
        notes.append(substitution)
    return peak, (matmul_frac, rates.read_bytes_per_s / rates.hbm_bytes_per_s), notes


def _usd_and_joules(
    cluster: Cluster, num_gpus: int, seconds: float, *, in_compute: bool
) -> tuple[float | None, float | None]:
    """(USD, J) of keeping `num_gpus` busy with compute or with memory; None where not known."""
    cost, energy, chip = None, None, cluster.accelerator
    if cluster.usd_per_gpu_hour is not None:
        machines = float(num_instances(num_gpus, cluster.gpus_per_node))
        cost = float(run_usd(seconds, cluster.usd_per_gpu_hour * machines * cluster.gpus_per_node))
    if chip.tdp_w is not None:
        watts = device_watts(chip.tdp_w, float(in_compute), float(not in_compute), 0.0)
        energy = float(facility_joules(chip, num_gpus, watts, seconds))
    return cost, energy
