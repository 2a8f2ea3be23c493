"""What a kernel engineer would say of a model's shapes on a device: `flopwise.advise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import BATCH, CONTEXT, DEGREE, OptionError, take

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
    from flopwise.shapes.answer import shape_answer
    from flopwise.shapes.clocks import DecodeClock, TrainingClock
    from flopwise.training.spec import DataSpec, TrainingSpec

    of_training = {"precision": precision, "stack": stack, "attention": attention}
    of_serving = {"weights": weights, "kv_dtype": kv_dtype, "engine": engine}
    others: dict[str, dict[str, Any]] = {"train": of_serving, "serve": {**of_training, "ep": ep}}
    others["serve"]["offload"] = offload or None
    if task not in others:
        raise SpecError(f"unknown task {str(task)[:40]!r}; allowed: {', '.join(others)}")
    for name, value in others[task].items():
        if value is not None:
            raise OptionError(name, f"does not go with --task {task}")
    for name, size in {"tp": tp, "batch": batch, "seq": seq, "ep": ep}.items():
        if size is not None and size < 1:
            raise SpecError(f"{name} {size}; give 1 or more")
    (training,) = take({"offload": offload}, TrainingSpec)
    if foreign := sorted({*training.offload} - {"optimizer"}):
        raise OptionError("offload", f"a review of shapes has the optimizer alone, not {', '.join(foreign)}")
    machines, source = take(options, MachineSpec, SourceSpec)
    architecture, facts = source.model_with_layers(model), source.catalog
    cluster, tokens = machines.cluster(tp, facts), DataSpec(seq=seq).seq_len(architecture)
    if task == "serve":
        return shape_answer(DecodeClock.of(architecture, cluster, facts, tp=tp, batch=batch, seq=tokens, **of_serving))
    return shape_answer(
        TrainingClock.of(
            architecture,
            cluster,
            facts,
            tp=tp,
            ep=ep or 1,
            batch=batch,
            seq=tokens,
            offload=bool(training.offload),
            **of_training,
        )
    )
