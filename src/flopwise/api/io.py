"""What training asks of storage: read bandwidth by bytes per FLOP, against what kinds of storage deliver."""

from __future__ import annotations

from typing import Any

from flopwise.cost.cluster import Cluster
from flopwise.cost.spec import MachineSpec
from flopwise.facts.architecture import Model
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import DEGREE, take
from flopwise.storage.bandwidth import EstimatedRate, StorageAnswer
from flopwise.storage.spec import SampleSpec, StorageRequest
from flopwise.training.samples import SampledWorkload


@takes(SampleSpec, StorageRequest, MachineSpec, SourceSpec, gpus=DEGREE)
def io(model: Model | str | None = None, *, gpus: int | None = None, **options: Any) -> StorageAnswer:
    """Storage bandwidth that training needs, and which storage keeps up.

    The achieved rate is our estimate, unless `efficiency` or `achieved_flops_per_s` is given. Bandwidths are in
    bytes/s.

    Args:
        model: a benchmark workload (cosmoflow, deepcam, resnet50, unet3d, tiramisu, bert), any model, or None with
            `flops_per_sample` and `sample_bytes`.
        gpus: number of accelerators (default: one whole node).
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.io("resnet50", gpu="a100", gpus=64)
        >>> answer.num_nodes
        8
    """
    from flopwise.storage.bandwidth import storage_answer

    sample, request, machines, source = take(options, SampleSpec, StorageRequest, MachineSpec, SourceSpec)
    sample.check()
    request.check()

    def training_rate(work: SampledWorkload, cluster: Cluster, number: int) -> EstimatedRate:
        return _training_rate(work, cluster, machines, number, sample, source)

    return storage_answer(model, sample, request, machines, source, gpus, training_rate)


def _training_rate(
    work: SampledWorkload, cluster: Cluster, machines: MachineSpec, gpus: int, sample: SampleSpec, source: SourceSpec
) -> EstimatedRate:
    """The rate by the training estimate on the best layout, the band of its error and what was assumed."""
    from flopwise.api.train import train_layers
    from flopwise.training.run_spec import RunConditionsSpec
    from flopwise.training.sample_rate import DeviceRate
    from flopwise.training.spec import DataSpec, ReadsSpec, TrainingSpec

    assert work.model is not None
    assert work.tokens is not None
    dtype = sample.precision or work.precision or "bf16"
    dtype = "fp32" if dtype == "tf32" else dtype
    batch = sample.batch * gpus if sample.batch is not None else None
    answer = train_layers(
        work.model, gpus, DataSpec(seq=work.tokens, global_batch=batch), TrainingSpec(precision=dtype), machines,
        RunConditionsSpec(), ReadsSpec(), source,
    )  # fmt: skip
    step = answer.estimate
    rate = DeviceRate(
        samples_per_s=step.tokens_per_s_per_gpu / work.tokens, peak_flops_per_s=cluster.rates.peak_flops_per_s(dtype),
        precision=cluster.rates.peak_dtype(dtype), origin="training estimate", parts=step.breakdown,
        batch=int(step.job.recipe.global_batch),
    )  # fmt: skip
    fits = () if answer.fits else (f"the {answer.laid_out} does not fit the memory: a run would fail",)
    return rate, step.band, (*fits, f"layout: {answer.laid_out}; see `flopwise train`")
