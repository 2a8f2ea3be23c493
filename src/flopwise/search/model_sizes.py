"""How much memory models of every size take in each format, and the largest that one device trains or serves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any

from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.facts.models.catalog import typical_model
from flopwise.ops.tensors import parameters
from flopwise.pictures import MOST_BARS, BarPicture
from flopwise.results import FactRows
from flopwise.serving.memory import ServingLayout, serving_memory
from flopwise.serving.spec import ServingSpec
from flopwise.training.layout import Layout, Recipe
from flopwise.training.memory import step_memory
from flopwise.training.spec import TrainingSpec
from flopwise.values import dataclass

TOKENS = 2048
"""Of the one sequence that is trained on, or served."""
TRAINED: Mapping[str, TrainingSpec] = {
    "train FP32": TrainingSpec(precision="fp32", recompute="full"),
    "train 16 bits": TrainingSpec(recompute="full"),
    "8-bit AdamW": TrainingSpec(recompute="full", optimizer="adamw-8bit"),
    "LoRA 16 bits": TrainingSpec(recompute="full", lora=16),
    "QLoRA INT4": TrainingSpec(recompute="full", lora=16, qlora=True),
}
"""Ways to train on one device: all weights with AdamW, then adapters of rank 16 over frozen weights."""
SERVED: Mapping[str, ServingSpec] = {
    "serve FP32": ServingSpec(weights="fp32"),
    "serve FP16": ServingSpec(weights="fp16"),
    "serve INT8": ServingSpec(weights="int8"),
    "serve INT4": ServingSpec(weights="awq"),
}
SIZES = (
    6e7, 1.25e8, 3.5e8, 1e9, 2e9, 3e9, 7e9, 1.3e10, 2e10, 3.4e10, 7e10, 1.3e11, 1.75e11, 3e11, 4.05e11, 7e11, 1e12,
)  # fmt: skip
"""Parameters of the models whose memory is computed; between two of them it is taken as a power of the size."""
CONDITIONS = (
    f"a typical Llama-like decoder; one sequence of {TOKENS:,} tokens; training with full recompute, serving by vLLM "
    "with its default share of the device"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestModels:
    """Parameters of the largest model that one device holds in each way; None where not even the smallest fits."""

    gpu: str
    hbm_bytes: int
    parameters: dict[str, float | None]


def memory_by_size(facts: Facts, sizes: Iterable[float] = SIZES) -> dict[float, dict[str, float]]:
    """Bytes on one device of typical models of about these sizes, trained and served in each way, by their parameters.

    Source: the memory models of training and serving. Assumes: `CONDITIONS`.
    """
    rows: dict[float, dict[str, float]] = {}
    recipes = {name: spec.recipe(TOKENS, 1, facts, None) for name, spec in TRAINED.items()}
    software = {name: tuple(spec.software(facts).items()) for name, spec in SERVED.items()}
    for size in sizes:
        model = _model_of_size(size)
        row = rows[float(parameters(model))] = {}
        row |= {name: _trained_bytes(size, recipes[name], spec.layout(model)) for name, spec in TRAINED.items()}
        row |= {name: _served_bytes(size, spec.layout(), software[name]) for name, spec in SERVED.items()}
    return rows


# Each assessment of a fleet asks for all sizes again, and few facts change what they take: kept by the inputs.
_KEPT = len(SIZES) * (len(TRAINED) + len(SERVED)) * 2


@cache
def _model_of_size(size: float) -> Model:
    return typical_model(f"{size / 1e6:.0f}M", size)


@lru_cache(maxsize=_KEPT)
def _trained_bytes(size: float, recipe: Recipe, layout: Layout) -> float:
    return float(step_memory(_model_of_size(size), recipe, layout).total_bytes)


@lru_cache(maxsize=_KEPT)
def _served_bytes(size: float, layout: ServingLayout, software: tuple[tuple[str, Any], ...]) -> float:
    return float(serving_memory(_model_of_size(size), layout, context=TOKENS, **dict(software)).total_bytes)


def largest_models(
    devices: Iterable[Accelerator], facts: Facts, table: Mapping[float, Mapping[str, float]] | None = None
) -> FactRows[LargestModels]:
    """The largest model that each device trains and serves alone; `table`: `memory_by_size`, where it is there already.

    Source: `memory_by_size`; an engine takes at most its share of a device. Assumes: as that.
    """
    table, engine = table or memory_by_size(facts), ServingSpec().software(facts)
    least = _model_of_size(SIZES[0])
    rows = []
    for device in devices:
        usable = serving_memory(least, context=TOKENS, hbm_bytes=device.hbm_bytes, **engine).usable_bytes
        room = dict.fromkeys(TRAINED, float(device.hbm_bytes)) | dict.fromkeys(SERVED, float(usable))
        largest = {
            name: _largest({size: row[name] for size, row in table.items()}, most) for name, most in room.items()
        }
        rows.append(LargestModels(gpu=device.name, hbm_bytes=device.hbm_bytes, parameters=largest))
    return FactRows(rows, "devices", _picture)


def _largest(memory: Mapping[float, float], most: float) -> float | None:
    """The size whose memory is `most`, two digits of it, rounded down; the largest known where more would fit."""
    points = sorted(memory.items())
    if points[0][1] > most:
        return None
    for (size, low_bytes), (larger, high_bytes) in pairwise(points):
        if high_bytes > most:
            share = math.log(most / low_bytes) / math.log(high_bytes / low_bytes)
            size_between = size * math.exp(share * math.log(larger / size))
            unit = 10.0 ** (math.floor(math.log10(size_between)) - 1)
            return math.floor(size_between / unit * (1 + 1e-12)) * unit
    return points[-1][0]


def _picture(rows: FactRows[LargestModels]) -> BarPicture:
    """The largest model that each device serves in 16 bits, the largest first."""
    served = [(row.gpu, (row.parameters["serve FP16"] or 0.0) / 1e9) for row in rows]
    largest = sorted(served, key=lambda item: -item[1])[:MOST_BARS]
    return BarPicture(title=rows.title, unit="billion parameters served in 16 bits", rows=largest)
