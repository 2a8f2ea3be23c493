"""How do single ways of spreading a job scale: data, ZeRO, FSDP, tensor, pipeline, context and hybrid layouts."""

from __future__ import annotations

from typing import Any

from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DatedSourceSpec, ModelName
from flopwise.keywords import takes
from flopwise.options import DEGREE, take
from flopwise.search.scaling import CompareAnswer
from flopwise.training.spec import DataSpec, TrainingSpec

COMPARED = (DataSpec, TrainingSpec, MachineSpec, DatedSourceSpec)


@takes(*COMPARED, gpus=DEGREE)
def compare(model: ModelName, *, gpus: int | None = None, weak: bool = False, **options: Any) -> CompareAnswer:
    """Scaling of each way of spreading `model` on 1, 2, 4 ... `gpus` accelerators.

    Strong scaling keeps the global batch whatever the GPUs; `weak` keeps its share for each GPU. `options` are those of
    `DataSpec`, `TrainingSpec` (of the recipe), `MachineSpec` and `DatedSourceSpec`, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be, or a layout, which is what is compared.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    return CompareAnswer.of(model, gpus, *take(options, *COMPARED), weak=weak)
