"""Records by their names, for tests: formulas take records, a test names them (`recipe_with(stack="fsdp-compile")`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import flopwise
from flopwise.changes import serving as serving_changes
from flopwise.changes import training as training_changes
from flopwise.cost.memory_answer import Remedy
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import load_facts
from flopwise.facts.software import Engine
from flopwise.ops import weights as ops_weights
from flopwise.ops.saved import Trace
from flopwise.serving import disaggregated, memory, precision, techniques
from flopwise.serving.job import ServeJob
from flopwise.training.answer import TrainAnswer
from flopwise.training.layout import Layout, Lora, Recipe

Record = TypeVar("Record", Recipe, ServeJob)
FACTS = load_facts()
"""The shipped facts, before any test sets the environment."""
FOUND_BY: dict[str, Callable[[str], Any]] = {
    "stack": FACTS.stack,
    "optimizer": FACTS.optimizer,
    "engine": FACTS.engine,
    "weights": FACTS.weight_format,
    "base": FACTS.weight_format,
    "kv_dtype": FACTS.cache_format,
}


def train_answer(model: Model | str, **options: Any) -> TrainAnswer:
    """The answer of `train` for a model with token layers."""
    answer = flopwise.train(model, **options)
    assert isinstance(answer, TrainAnswer)
    return answer


def cpu_bytes(trace: Trace, elem_bytes: float) -> float:
    """What PyTorch's CPU code keeps: dropout masks and statistics of layer norms in the activations' own dtype."""
    scale = {"mask": elem_bytes, "dropout_mask": elem_bytes, "statistics": elem_bytes / 4}
    return sum(float(size) * scale.get(key.rpartition("/")[2], 1.0) for key, size in trace.kept.items())


def records(how: dict[str, Any]) -> dict[str, Any]:
    """`how` with records in the place of names."""
    return {k: FOUND_BY[k](v) if k in FOUND_BY and isinstance(v, str) else v for k, v in how.items()}


def changed(record: Record, **how: Any) -> Record:
    """`dataclasses.replace`, with records by their names."""
    return replace(record, **records(how))


def recipe_with(**how: Any) -> Recipe:
    """A recipe on compiled FSDP with AdamW unless `how` says otherwise."""
    return Recipe(**records({"stack": "fsdp-compile", "optimizer": "adamw"} | how))


def lora_with(**how: Any) -> Lora:
    """Adapters; `base` by name."""
    return Lora(**records(how))


def serve_job_with(**how: Any) -> ServeJob:
    """A job on vLLM unless `how` says otherwise."""
    return ServeJob(**records({"engine": "vllm"} | how))


def serving_memory(model: Model, layout: memory.ServingLayout | None = None, **how: Any) -> memory.ServingMemory:
    """`flopwise.serving.memory.serving_memory` on vLLM unless `how` says otherwise."""
    return memory.serving_memory(model, layout, **records({"engine": "vllm"} | how))


def max_concurrency(model: Model, context: Any, hbm_bytes: Any, **how: Any) -> Any:
    """Sequences of `context` tokens that run at once on vLLM."""
    return serving_memory(model, context=context, hbm_bytes=hbm_bytes, **how).max_concurrency


def kv_capacity_tokens(model: Model, context: Any, hbm_bytes: Any, **how: Any) -> Any:
    """Tokens that the cache of vLLM holds, in sequences of `context`."""
    return serving_memory(model, context=context, hbm_bytes=hbm_bytes, **how).kv_capacity_tokens


def serving_remedies(model: Model, layout: memory.ServingLayout, **how: Any) -> list[Remedy]:
    """`flopwise.changes.serving.remedies` on vLLM."""
    return serving_changes.remedies(model, layout, FACTS, **records({"engine": "vllm"} | how))


def runnable_formats(
    model: Model, engine: str, rates: Any, names: Sequence[str] = serving_changes.WEIGHTS
) -> list[str]:
    """The names that `flopwise.changes.serving.runnable_formats` leaves of `names`."""
    forms = tuple(map(FACTS.weight_format, names))
    return [form.name for form in serving_changes.runnable_formats(model, FACTS.engine(engine), rates, forms)]


def training_remedies(
    model: Model, recipe: Recipe, layout: Layout, capacity_bytes: float | None = None
) -> list[Remedy]:
    """`flopwise.changes.training.remedies`."""
    setup = training_changes.TrainingSetup(model, recipe, layout, FACTS)
    return training_changes.remedies(setup, capacity_bytes)


def _in_format(function: Callable[..., Any], place: int = 1, find: Callable[[str], Any] = FACTS.weight_format) -> Any:
    """A function that takes the name of a format where `function` takes its record."""

    @wraps(function)
    def named(*given: Any, **how: Any) -> Any:
        return function(*given[:place], find(given[place]), *given[place + 1 :], **how)

    return named


weight_bytes = _in_format(ops_weights.weight_bytes)
weight_groups = _in_format(ops_weights.weight_groups)
layer_prefix_bytes = _in_format(ops_weights.layer_prefix_bytes)
end_bytes = _in_format(ops_weights.end_bytes)
weights_per_gpu = _in_format(memory.weights_per_gpu)
layer_bytes = _in_format(techniques.layer_bytes)
product_path = _in_format(precision.product_path)
layer_weight_bits = _in_format(precision.layer_weight_bits)
head_weight_bits = _in_format(precision.head_weight_bits)
transfer_bytes = _in_format(disaggregated.transfer_bytes, 2, FACTS.cache_format)


def engines() -> list[Engine]:
    """Every engine that is shipped."""
    return list(FACTS.engines.values())
