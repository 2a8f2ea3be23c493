"""What a kernel engineer would say of a model's shapes on a device: `flopwise.advise`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from flopwise.cost.spec import MachineSpec
from flopwise.errors import MissingFactError, SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.keywords import takes
from flopwise.options import BATCH, CONTEXT, DEGREE, OptionError, take

if TYPE_CHECKING:
    from flopwise.facts.architecture import Model
    from flopwise.shapes.answer import ShapeAnswer

DEFAULT_BATCH = {"train": 1, "serve": 32}
"""Sequences of a pass where none are given."""


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
    offload: bool = False,
    weights: str | None = None,
    kv_dtype: str | None = None,
    engine: str | None = None,
    **options: Any,
) -> ShapeAnswer:
    """Judge the shapes of a model on an accelerator, and say which changes would be faster.

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
        offload: keep the optimizer in host memory.
        weights: weight format, in serving.
        kv_dtype: format of the KV cache, in serving.
        engine: serving engine.
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError: a value cannot be, or does not go with the task.
        MissingFactError: only published figures of the model are known, or the device lacks a rate.

    Examples:
        >>> import flopwise
        >>> found = flopwise.advise("gpt2-xl", gpu="a100-80gb", batch=8)
        >>> 0 < found.memory_bound_frac < 1
        True
    """
    from flopwise.facts import defaults
    from flopwise.ops.degrees import check_expert_parallel
    from flopwise.shapes.answer import shape_answer
    from flopwise.shapes.clocks import COMPARED, DecodeClock, TrainingClock
    from flopwise.training.on_device import recipe_on
    from flopwise.training.spec import DataSpec, TrainingSpec

    if task not in DEFAULT_BATCH:
        raise SpecError(f"unknown task {str(task)[:40]!r}; allowed: {', '.join(DEFAULT_BATCH)}")
    of_training = {"precision": precision, "stack": stack, "attention": attention, "ep": ep, "offload": offload or None}
    of_serving = {"weights": weights, "kv_dtype": kv_dtype, "engine": engine}
    for name, value in (of_serving if task == "train" else of_training).items():
        if value is not None:
            raise OptionError(name, f"does not go with --task {task}")
    for name, size in {"tp": tp, "batch": batch, "seq": seq, "ep": ep}.items():
        if size is not None and size < 1:
            raise SpecError(f"{name} {size}; give 1 or more")
    machines, source = take(options, MachineSpec, SourceSpec)
    found, facts = source.model_with_layers(model), source.catalog
    cluster, tokens = machines.cluster(tp, facts), DataSpec(seq=seq).seq_len(found)
    sequences = DEFAULT_BATCH[task] if batch is None else batch
    if task == "train":
        check_expert_parallel(found, ep or 1)
        spec = TrainingSpec(precision=precision or "bf16", stack=stack, attention=attention)
        recipe, _ = recipe_on(spec.recipe(tokens, sequences, facts), cluster.accelerator)
        return shape_answer(
            TrainingClock(
                model=found, recipe=recipe, cluster=cluster, tp=tp, ep=ep or 1,
                batch=sequences, offload=offload, compared=tuple(map(facts.stack, COMPARED)),
            )
        )  # fmt: skip
    if found.kind not in ("decoder", "encoder-decoder", "vision-text"):
        raise MissingFactError(
            f"{found.name} does not generate tokens: there is no decoding to advise on; --task train"
        )
    return shape_answer(
        DecodeClock(
            model=found, cluster=cluster, weights=facts.weight_format(weights or defaults.WEIGHTS),
            kv_dtype=facts.cache_format(kv_dtype or defaults.CACHE), engine=facts.engine(engine or defaults.ENGINE),
            tp=tp, batch=sequences, seq=tokens,
        )
    )  # fmt: skip
