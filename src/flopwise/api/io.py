"""What training asks of storage: read bandwidth by bytes per FLOP, against what kinds of storage deliver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flopwise.cost.spec import USUAL_NODE, MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.options import take
from flopwise.storage.spec import SampleSpec, StorageRequest

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.intervals import ErrorBand
    from flopwise.facts.architecture import Model
    from flopwise.storage.bandwidth import StorageAnswer
    from flopwise.storage.samples import DeviceRate, SampledWorkload


def io(model: Model | str | None = None, *, gpus: int | None = None, **options: Any) -> StorageAnswer:
    """Storage bandwidth that training `model` needs, on `gpus` accelerators (one whole node where not given).

    `model` is a benchmark workload (`cosmoflow`, `deepcam`, `resnet50`, `unet3d`, `tiramisu`, `bert`), any model, or
    None with `flops_per_sample` and `sample_bytes`. The achieved rate is our estimate, unless `efficiency` (a share of
    the peak of `precision`) or `achieved_flops_per_s` of a device is given. `options` are those of `SampleSpec`,
    `StorageRequest`, `MachineSpec` and `SourceSpec`, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
    """
    from flopwise.storage.bandwidth import storage_answer
    from flopwise.storage.samples import rate_and_band, sampled_workload

    sample, request, machines, source = take(options, SampleSpec, StorageRequest, MachineSpec, SourceSpec)
    sample.check()
    request.check()
    facts, work = source.catalog, sampled_workload(model, sample, source)
    number = gpus if gpus is not None else machines.cluster(USUAL_NODE, facts).gpus_per_node
    cluster = machines.cluster(number, facts)
    if not sample.rate_given and work.model is not None and work.model.stacks:
        rate, band, notes = _training_rate(work, cluster, machines, number, sample, source)
    else:
        rate, band, notes = rate_and_band(work, cluster, facts, number, sample)
    return storage_answer(request, work, cluster, number, rate, band, notes, facts)


def _training_rate(
    work: SampledWorkload, cluster: Cluster, machines: MachineSpec, gpus: int, sample: SampleSpec, source: SourceSpec
) -> tuple[DeviceRate, ErrorBand | None, tuple[str, ...]]:
    """The rate by the training estimate on the best layout, the band of its error and what was assumed."""
    from flopwise.api.train import train
    from flopwise.storage.samples import DeviceRate

    assert work.model is not None
    assert work.tokens is not None
    dtype = sample.precision or work.precision or "bf16"
    dtype = "fp32" if dtype == "tf32" else dtype
    batch = sample.batch * gpus if sample.batch is not None else None
    answer = train(
        work.model, gpus=gpus, seq=work.tokens, global_batch=batch, precision=dtype, machines=machines,
        facts=source.facts,
    )  # fmt: skip
    step = answer.estimate
    rate = DeviceRate(
        samples_per_s=step.tokens_per_s_per_gpu / work.tokens, peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
        precision=cluster.rates.peak_dtype(dtype), origin="training estimate", parts=step.breakdown,
        batch=int(step.job.recipe.global_batch),
    )  # fmt: skip
    fits = () if answer.fits else (f"the {answer.laid_out} does not fit the memory: a run would fail",)
    return rate, step.band, (*fits, f"layout: {answer.laid_out}; see `flopwise train`")
