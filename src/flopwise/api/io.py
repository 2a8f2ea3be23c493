"""What training asks of storage: read bandwidth by bytes per FLOP, against what kinds of storage deliver."""

from __future__ import annotations

from typing import Any

from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.keywords import takes
from flopwise.options import DEGREE, take
from flopwise.search.training_question import training_rate
from flopwise.storage.bandwidth import StorageAnswer, storage_answer
from flopwise.storage.spec import SampleSpec, StorageRequest


@takes(SampleSpec, StorageRequest, MachineSpec, SourceSpec, gpus=DEGREE)
def io(model: ModelName | None = None, *, gpus: int | None = None, **options: Any) -> StorageAnswer:
    """Storage bandwidth that training needs, and which storage keeps up.

    The achieved rate is our estimate, unless `efficiency` or `achieved_flops_per_s` is given. Bandwidths are in
    bytes/s.

    Args:
        model: a benchmark workload (cosmoflow, deepcam, resnet50, unet3d, tiramisu, bert), any model, or None with
            `flops_per_sample` and `sample_bytes`.
        gpus: number of accelerators (default: one whole node).

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.io("resnet50", gpu="a100", gpus=64)
        >>> answer.num_nodes
        8
    """
    sample, request, machines, source = take(options, SampleSpec, StorageRequest, MachineSpec, SourceSpec)
    sample.check()
    request.check()
    return storage_answer(model, sample, request, machines, source, gpus, training_rate)
