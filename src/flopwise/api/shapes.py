"""What a kernel engineer would say of a model's shapes on a device: `flopwise.advise`."""

from __future__ import annotations

from typing import Any, Literal

from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import ModelName, SourceSpec
from flopwise.keywords import takes
from flopwise.options import take
from flopwise.shapes.answer import ShapeAnswer
from flopwise.shapes.spec import ShapeSpec


@takes(ShapeSpec, MachineSpec, SourceSpec)
def advise(model: ModelName, *, task: Literal["train", "serve"] = "train", **options: Any) -> ShapeAnswer:
    """Judge the shapes of a model on an accelerator, and list changes that would make it faster.

    In training there are `batch` sequences of `seq` tokens, in serving as many in the cache.

    Args:
        task: "train" or "serve".

    Raises:
        SpecError: a value cannot be, or does not go with the task.
        MissingFactError: only published figures of the model are known, or the device lacks a rate.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.advise("gpt2-xl", gpu="a100-80gb", batch=8)
        >>> 0 < answer.memory_bound_frac < 1
        True
    """
    spec, machines, source = take({"task": task, **options}, ShapeSpec, MachineSpec, SourceSpec)
    architecture, facts = source.model_with_layers(model), source.catalog
    return ShapeAnswer.of(spec.clock(architecture, machines.cluster(spec.tp or 1, facts), facts))
