"""Does it fit: memory per GPU of training or serving, item by item, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.keywords import takes
from flopwise.options import BATCH, CONTEXT, defaults_of, take
from flopwise.serving.spec import ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec


@takes(DataSpec, TrainingSpec, ServingSpec, DatedSourceSpec, grad_accum=BATCH, concurrency=BATCH, context=CONTEXT)
def memory(
    model: ModelName, *, task: Literal["train", "serve"] | None = None, gpu: str | None = None,
    grad_accum: int | None = None, concurrency: int | None = None, context: int | None = None, **options: Any,
) -> MemoryAnswer:  # fmt: skip
    """Memory per accelerator of a training step, or of serving, item by item in bytes.

    Without a `task`, options of serving alone, such as `context`, mean serving; else it is training. Of several
    accelerators (`gpu="8xh100"`) without a degree, training shards everything over all of them (FSDP) and serving
    is one replica over all of them.

    Args:
        task: "train" or "serve".
        gpu: what it has to fit: "h100", "2xa100-80gb".
        grad_accum: micro-batches of a training step; None: one, or as many as a pipeline has stages.
        concurrency: sequences in the cache at once, in serving.
        context: tokens of each of them: 32768 or "32k".

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: only published figures of the model are known.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.memory("Llama-3.1-8B", gpu="h100", context="8k", weights="fp8")
        >>> print(answer.fits, answer.task)
        True serve
    """
    if task is None:
        task = "serve" if concurrency or context or _of_serving(options) else "train"
    if task not in ("train", "serve"):
        raise SpecError(f"unknown task {task!r}; allowed: train, serve")
    machines = MachineSpec(gpu=gpu)
    if task == "train":
        from flopwise.changes import training_memory

        data, training, source = take(options, DataSpec, TrainingSpec, DatedSourceSpec)
        return training_memory.answer_of(model, data, training, machines, source, grad_accum)
    from flopwise.changes import serving_memory

    deployment, source = take(options, ServingSpec, DatedSourceSpec)
    return serving_memory.answer_of(model, deployment, machines, source, concurrency or 1, context)


def _of_serving(options: Mapping[str, Any]) -> bool:
    """True if any of the options is one of serving alone."""
    of_training = {name for spec in (DataSpec, TrainingSpec, DatedSourceSpec) for name in defaults_of(spec)}
    further = {name: value for name, value in options.items() if name not in of_training and value is not None}
    if not further:
        return False

    return any(name in defaults_of(ServingSpec) or isinstance(value, ServingSpec) for name, value in further.items())
