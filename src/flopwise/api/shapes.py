"""What a kernel engineer would say of a model's shapes on a device: `flopwise.advise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import BATCH, CONTEXT, DEGREE, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.facts.architecture import Model
    from flopwise.shapes.answer import ShapeAnswer


@takes(MachineSpec, SourceSpec, tp=DEGREE, batch=BATCH, seq=CONTEXT, ep=DEGREE)
def advise(
    model: Model | str,
    *,
    task: Literal["train", "serve"] = "train",
    tp: int = 1,
    batch: int | None = None,
    seq: int | None = None,
    ep: int | None = None,
    precision: str | None = None,
    stack: str | None = None,
    attention: str | None = None,
    offload: Sequence[str] | str = (),
    weights: str | None = None,
    kv_dtype: str | None = None,
    engine: str | None = None,
    **options: Any,
) -> ShapeAnswer:
    """Judge the shapes of a model on an accelerator, and list changes that would make it faster.

    In training there are `batch` sequences of `seq` tokens, in serving as many in the cache.

    Args:
        model: a catalog name, a hub id, a folder, a config.json, a size such as "7B", or a `Model`.
        task: "train" or "serve".
        tp: tensor-parallel degree.
        batch: sequences.
        seq: tokens of each.
        ep: expert-parallel degree, in training.
        precision: format of the products, in training.
        stack: training software.
        attention: its implementation, in training.
        offload: "optimizer" keeps it in host memory; the review has nothing else that moves there.
        weights: weight format, in serving.
        kv_dtype: format of the KV cache, in serving.
        engine: serving engine.
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: a value cannot be, or does not go with the task.
        MissingFactError: only published figures of the model are known, or the device lacks a rate.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.advise("gpt2-xl", gpu="a100-80gb", batch=8)
        >>> 0 < answer.memory_bound_frac < 1
        True
    """
    from flopwise.shapes.answer import ShapeAnswer
    from flopwise.shapes.request import ShapeRequest

    request = ShapeRequest(
        task=task, tp=tp, batch=batch, seq=seq, ep=ep, precision=precision, stack=stack, attention=attention,
        offload=offload or None, weights=weights, kv_dtype=kv_dtype, engine=engine,
    )  # fmt: skip
    machines, source = take(options, MachineSpec, SourceSpec)
    architecture, facts = source.model_with_layers(model), source.catalog
    return ShapeAnswer.of(request.clock(architecture, machines.cluster(tp, facts), facts))
