"""What training asks of storage: read bandwidth by bytes per FLOP, against what kinds of storage deliver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.cost.spec import USUAL_NODE, MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.options import take
from flopwise.storage.spec import SampleSpec, StorageRequest
from flopwise.training.spec import DataSpec

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.storage.bandwidth import StorageAnswer
    from flopwise.storage.samples import DeviceRate, SampledWorkload


def io(
    model: Model | str | None = None,
    *,
    gpus: int | None = None,
    sample: SampleSpec | None = None,
    reading: StorageRequest | None = None,
    machines: MachineSpec | None = None,
    facts: Path | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **keywords: Any,
) -> StorageAnswer:
    """Storage bandwidth that training `model` needs, on `gpus` accelerators (one whole node where not given).

    `model` is a benchmark workload (`cosmoflow`, `deepcam`, `resnet50`, `unet3d`, `tiramisu`, `bert`), any model, or
    None with `flops_per_sample` and `sample_bytes`. The achieved rate is our estimate, unless `efficiency` (a share of
    the peak of `precision`) or `achieved_flops_per_s` of a device is given. Further keywords are options of
    `SampleSpec`, `StorageRequest` and `MachineSpec`.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.storage.bandwidth import storage_answer
    from flopwise.storage.samples import rate_and_band

    sample, request, machines = take(
        keywords, sample or SampleSpec(), reading or StorageRequest(), machines or MachineSpec()
    )
    sample.check()
    request.check()
    source = SourceSpec(facts=facts, assume_family=assume_family, offline=offline)
    work = _workload(model, sample, source)
    number = gpus if gpus is not None else machines.cluster(USUAL_NODE, source.known).gpus_per_node
    cluster = machines.cluster(number, source.known)
    given = sample.achieved_flops_per_s is not None or sample.efficiency is not None
    if not given and work.model is not None and work.model.stacks:
        rate, band, notes = _training_rate(work, work.model, cluster, machines, number, sample, source)
    else:
        rate, band, notes = rate_and_band(
            work, cluster, source.known, number, batch=sample.batch, precision=sample.precision,
            efficiency=sample.efficiency, achieved_flops_per_s=sample.achieved_flops_per_s,
        )  # fmt: skip
    return storage_answer(request, work, cluster, number, rate, band, notes, source.known)


def _workload(model: Model | str | None, given: SampleSpec, source: SourceSpec) -> SampledWorkload:
    """The workload of that name, or of that model, with the user's own FLOP and bytes of a sample laid over it."""
    from flopwise.storage.samples import given_workload, with_figures, workload_of_model, workload_of_sample

    figures = {"flops_per_sample": given.flops_per_sample, "sample_bytes": given.sample_bytes}
    row = source.known.sample(model) if isinstance(model, str) else None
    if model is None:
        return given_workload("workload", "given by the user", figures)
    found = source.model(model if row is None else row.model)
    if row is not None:
        return with_figures(workload_of_sample(row, found, source.known, seq=given.seq), **figures)
    if not found.stacks and None not in figures.values():
        return given_workload(found.name, "given", figures)
    length = DataSpec(seq=given.seq).seq_len(found) if found.stacks else None
    return with_figures(workload_of_model(found, source.known, seq=length, token_bytes=given.token_bytes), **figures)


def _training_rate(
    work: SampledWorkload,
    model: Model,
    cluster: Cluster,
    machines: MachineSpec,
    gpus: int,
    sample: SampleSpec,
    source: SourceSpec,
) -> tuple[DeviceRate, ErrorBand | None, tuple[str, ...]]:
    """The rate by the training estimate on the best layout, the band of its error and what was assumed."""
    from flopwise.api.train import train
    from flopwise.storage.samples import DeviceRate

    assert work.tokens is not None
    dtype = sample.precision or work.precision or "bf16"
    dtype = "fp32" if dtype == "tf32" else dtype
    batch = sample.batch * gpus if sample.batch is not None else None
    answer = train(
        model, gpus=gpus, seq=work.tokens, global_batch=batch, precision=dtype, machines=machines, facts=source.facts
    )
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
