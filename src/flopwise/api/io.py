"""What training asks of storage: read bandwidth by bytes per FLOP, against what kinds of storage deliver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.machines import USUAL_NODE, Machines, loaded
from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.storage.bandwidth import StorageAnswer, StorageRequest
    from flopwise.storage.samples import DeviceRate, SampledWorkload


def io(
    model: Model | str | None = None,
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    seq: int | None = None,
    batch: int | None = None,
    precision: str | None = None,
    flops_per_sample: float | None = None,
    sample_bytes: float | None = None,
    token_bytes: float | None = None,
    efficiency: float | None = None,
    achieved_flops_per_s: float | None = None,
    reading: StorageRequest | None = None,
    machines: Machines | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **said: Any,
) -> StorageAnswer:
    """Storage bandwidth that training `model` needs, on `gpus` accelerators (one whole node where not given).

    `model` is a benchmark workload (`cosmoflow`, `deepcam`, `resnet50`, `unet3d`, `tiramisu`, `bert`), any model, or
    None with `flops_per_sample` and `sample_bytes`. The achieved rate is our estimate, unless `efficiency` (a share of
    the peak of `precision`) or `achieved_flops_per_s` of a device is given. Further keywords are fields of
    `StorageRequest`.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.api.memory import overridden
    from flopwise.facts.catalog import load_facts
    from flopwise.storage.bandwidth import StorageRequest, storage_answer
    from flopwise.storage.samples import rate_and_band

    request = overridden(reading or StorageRequest(), said)
    request.check()
    place = machines or Machines(gpu=gpu, facts=facts)
    figures = {"flops_per_sample": flops_per_sample, "sample_bytes": sample_bytes}
    if efficiency is not None and not 0 < efficiency <= 1:
        raise SpecError(f"efficiency {efficiency} is out of range; allowed: above 0, up to 1")
    if achieved_flops_per_s is not None and not 0 < achieved_flops_per_s < float("inf"):
        raise SpecError(f"achieved rate {achieved_flops_per_s}; give FLOP/s of one device, above 0")
    if efficiency is not None and achieved_flops_per_s is not None:
        raise SpecError("an efficiency and an achieved rate are both given; give one of them")
    work = _workload(model, figures, seq, token_bytes, {
        "assume_family": assume_family, "offline": offline, "facts": place.facts,
    })  # fmt: skip
    number = gpus if gpus is not None else place.cluster(USUAL_NODE).gpus_per_node
    cluster = place.cluster(number)
    if achieved_flops_per_s is None and efficiency is None and work.model is not None and work.model.stacks:
        rate, band, notes = _training_rate(work, work.model, cluster, place, number, batch, precision)
    else:
        rate, band, notes = rate_and_band(
            work, cluster, number, batch=batch, precision=precision, efficiency=efficiency,
            achieved_flops_per_s=achieved_flops_per_s,
        )  # fmt: skip
    return storage_answer(request, work, cluster, number, rate, band, notes, load_facts(place.facts).folder)


def _workload(
    model: Model | str | None,
    figures: dict[str, float | None],
    seq: int | None,
    token_bytes: float | None,
    source: dict[str, Any],
) -> SampledWorkload:
    """The workload of that name, or of that model, with the user's own FLOP and bytes of a sample laid over it."""
    from flopwise.api.memory import default_seq
    from flopwise.facts.samples import sample
    from flopwise.storage.samples import given_workload, with_figures, workload_of_model, workload_of_sample

    row = sample(model) if isinstance(model, str) else None
    if model is None:
        return given_workload("workload", "given by the user", figures)
    found = loaded(model if row is None else row.model, **source)
    if row is not None:
        return with_figures(workload_of_sample(row, found, seq=seq), **figures)
    if not found.stacks and None not in figures.values():
        return given_workload(found.name, "given", figures)
    length = default_seq(found, seq) if found.stacks else None
    return with_figures(workload_of_model(found, seq=length, token_bytes=token_bytes), **figures)


def _training_rate(
    work: SampledWorkload,
    model: Model,
    cluster: Cluster,
    place: Machines,
    gpus: int,
    batch: int | None,
    precision: str | None,
) -> tuple[DeviceRate, ErrorBand | None, tuple[str, ...]]:
    """The rate by the training estimate on the best layout, the band of its error and what was assumed."""
    from flopwise.api.train import train
    from flopwise.storage.samples import DeviceRate

    assert work.tokens is not None
    dtype = precision or work.precision or "bf16"
    dtype = "fp32" if dtype == "tf32" else dtype
    sequences = batch * gpus if batch is not None else None
    answer = train(model, gpus=gpus, seq=work.tokens, global_batch=sequences, precision=dtype, machines=place)
    step = answer.estimate
    rate = DeviceRate(
        samples_per_s=step.tokens_per_s_per_gpu / work.tokens,
        peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
        precision=cluster.rates.peak_dtype(dtype),
        origin="training estimate",
        batch=int(step.job.recipe.global_batch),
        parts=step.breakdown,
    )
    fits = () if answer.fits else (f"the {answer.laid_out} does not fit the memory: a run would fail",)
    return rate, step.band, (*fits, f"layout: {answer.laid_out}; see `flopwise train`")
