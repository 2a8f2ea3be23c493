"""How long any piece of work takes at least: compute against memory, for given FLOP and bytes or for a model's pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.api.machines import Machines, loaded
from flopwise.api.train import price_text
from flopwise.errors import MissingFactError, SpecError

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineAnswer:
    """Seconds of the whole work on all accelerators together; None where a price or a power limit is not known.

    `lower_bound_s` is at datasheet rates; `compute_s`, `memory_s` and `seconds` at the achieved fractions. With
    `partial` the traffic of activations is not known and left out: the time is the least, and what follows from it is
    a limit, no estimate; `cost_usd`, `energy_joules` and `samples_per_s` are then None.
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


def roofline(
    model: Model | str | None = None,
    *,
    flops: float | None = None,
    bytes: float | None = None,  # noqa: A002 - the word of the command line
    gpu: str | None = None,
    dtype: str = "bf16",
    efficiency: float | None = None,
    gpus: int = 1,
    batch: int = 1,
    seq: int | None = None,
    training: bool = False,
    machines: Machines | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
) -> RooflineAnswer:
    """Time of `flops` operations that move `bytes`, or of one pass of `model` over `batch` samples, on `gpus` devices.

    `efficiency` is the achieved fraction of the datasheet's rates, for both; without it the calibrated fractions hold.

    Raises:
        SpecError: neither work nor model is given, or both, or a value cannot be.
        MissingFactError: the accelerator has no such rate, or nobody published the model's figures.
    """
    place = machines or Machines(gpu=gpu, facts=facts)
    if model is not None and (flops is not None or bytes is not None):
        raise SpecError("a model and its own FLOP or bytes are both given; give one of them")
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SpecError(f"efficiency {efficiency} is out of range; allowed: above 0, up to 1")
    if batch < 1:
        raise SpecError(f"batch {batch}; give 1 or more")
    notes: tuple[str, ...] = ()
    what, samples, nbytes, partial = "work", None, bytes, False
    if model is not None:
        found = loaded(model, assume_family=assume_family, offline=offline, facts=place.facts)
        flops, nbytes, what, notes = _pass_of(found, batch, seq, training=training)
        samples, partial = batch, not found.stacks
    if flops is None and nbytes is None:
        raise SpecError("nothing to do is given; give --flops and --bytes, or a MODEL")
    cluster = place.cluster(gpus)
    work = _Piece(flops=flops or 0.0, nbytes=nbytes or 0.0, dtype=dtype, what=what, samples=samples, partial=partial)
    return _answered(work, cluster, efficiency, gpus, notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """What is to be done."""

    flops: float
    nbytes: float
    dtype: str
    what: str
    samples: int | None
    partial: bool


def _pass_of(model: Model, batch: int, seq: int | None, *, training: bool) -> tuple[float, float, str, tuple[str, ...]]:
    """(FLOP, bytes, what it is, what was assumed) of one pass over `batch` samples."""
    passes = "training step" if training else "forward pass"
    if model.stacks:
        from flopwise.api.memory import default_seq
        from flopwise.ops.flops import backward_flops, causal_forward_flops, operations

        tokens = default_seq(model, seq)
        moved = sum(float(o.bytes) for o in operations(model, batch, tokens))
        flops = float(causal_forward_flops(model, batch, tokens))
        if training:
            flops, moved = flops + float(backward_flops(model, batch, tokens)), 3 * moved
        note = ("operations moved thrice the bytes of the forward pass",) if training else ()
        return flops, moved, f"{passes} of {model.name} over {batch:,} x {tokens:,} tokens", note
    held = model.published
    if held is None:
        raise MissingFactError(f"{model.name}: neither layers nor published figures are known")
    flops_each = held.training_flops_per_sample if training else held.forward_flops_per_sample
    if flops_each is None:
        raise MissingFactError(
            f"{model.name}: nobody has written down the FLOP of its {passes}; give --flops and --bytes"
        )
    moved = (held.sample_bytes or 0.0) * batch + (held.parameters or 0) * 2.0 * (3 if training else 1)
    notes = [f"bytes: samples of {held.sample} and weights of 2 bytes; activations are not known and left out"]
    if held.sample_bytes is None:
        notes.append(f"{model.name}: the size of a sample is not known; only weights are moved")
    return flops_each * batch, moved, f"{passes} of {model.name} over {batch:,} samples ({held.sample})", tuple(notes)


def _answered(
    work: _Piece, cluster: Cluster, efficiency: float | None, gpus: int, notes: tuple[str, ...]
) -> RooflineAnswer:
    chip, bandwidth = cluster.accelerator, float(cluster.rates.hbm_bytes_per_s)
    peak, calibrated, told = _rates(work, cluster)
    for_compute, for_memory = calibrated if efficiency is None else (efficiency, efficiency)
    notes += () if efficiency is not None else told
    compute_s = work.flops / (peak * for_compute * gpus)
    memory_s = work.nbytes / (bandwidth * for_memory * gpus)
    seconds = max(compute_s, memory_s)
    if seconds <= 0:
        raise SpecError("the work is nothing: neither FLOP nor bytes")
    cost, energy = _paid(cluster, gpus, seconds, in_compute=compute_s >= memory_s)
    given = efficiency is not None
    rate, sure = None if work.samples is None else work.samples / seconds, not work.partial
    even = ("the work divides evenly over the accelerators",) if gpus > 1 else ()
    return RooflineAnswer(
        what=work.what,
        flops=work.flops,
        bytes=work.nbytes,
        dtype=work.dtype,
        num_gpus=gpus,
        cluster=cluster,
        compute_efficiency_frac=for_compute,
        memory_efficiency_frac=for_memory,
        efficiency_source="given" if given else "calibrated on large kernels",
        compute_s=compute_s,
        memory_s=memory_s,
        seconds=seconds,
        lower_bound_s=max(work.flops / (peak * gpus), work.nbytes / (bandwidth * gpus)),
        bound="compute" if compute_s >= memory_s else "memory bandwidth",
        intensity_flops_per_byte=work.flops / work.nbytes if work.nbytes else None,
        ridge_flops_per_byte=peak * for_compute / (bandwidth * for_memory),
        utilisation_frac=work.flops / (peak * gpus * seconds),
        bandwidth_frac=work.nbytes / (bandwidth * gpus * seconds),
        cost_usd=cost if sure else None,
        energy_joules=energy if sure else None,
        samples=work.samples,
        samples_per_s=rate if sure else None,
        partial=work.partial,
        cost_usd_at_least=cost if work.partial else None,
        energy_joules_at_least=energy if work.partial else None,
        samples_per_s_at_most=rate if work.partial else None,
        settings=(("accelerators", f"{gpus:,} x {chip.name}"), ("price", price_text(cluster))),
        assumptions=(*notes, *cluster.assumptions, *even),
    )


def _rates(work: _Piece, cluster: Cluster) -> tuple[float, tuple[float, float], tuple[str, ...]]:
    """Peak FLOP/s, calibrated fractions of compute and memory bandwidth, and what was assumed."""
    from flopwise.cost.rates import PRECISIONS
    from flopwise.serving.precision import substituted

    rates = cluster.rates
    told: tuple[str, ...] = ()
    if work.dtype in PRECISIONS:
        peak = rates.peak_flops_per_s(work.dtype)
        matmul_frac = rates.matmul_flops_per_s(work.dtype) / peak
    else:
        peak, matmul_frac = cluster.accelerator.peak_flops_per_s(work.dtype), rates.value["matmul_frac.bf16"]
        told = (f"{work.dtype}: the achieved fraction of 16-bit products stands in",)
    instead = substituted(work.dtype, rates)
    told = told if instead is None else (*told, instead)
    return peak, (matmul_frac, rates.read_bytes_per_s / rates.hbm_bytes_per_s), told


def _paid(cluster: Cluster, gpus: int, seconds: float, *, in_compute: bool) -> tuple[float | None, float | None]:
    """(USD, J) of keeping `gpus` busy with compute or with memory; None where not known."""
    from flopwise.cost.energy import device_watts, facility_joules
    from flopwise.cost.money import num_instances, run_usd

    cost, energy, chip = None, None, cluster.accelerator
    if cluster.usd_per_gpu_hour is not None:
        machines = float(num_instances(gpus, cluster.gpus_per_node))
        cost = float(run_usd(seconds, cluster.usd_per_gpu_hour * machines * cluster.gpus_per_node))
    if chip.tdp_w is not None:
        watts = device_watts(chip.tdp_w, float(in_compute), float(not in_compute), 0.0)
        energy = float(facility_joules(chip, gpus, watts, seconds))
    return cost, energy
