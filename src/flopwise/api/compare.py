"""How do single ways of spreading a job scale: data, ZeRO, FSDP, tensor, pipeline, context and hybrid layouts."""

from __future__ import annotations

from typing import Any

from flopwise.cost.cluster import Cluster
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.spec import DatedSourceSpec
from flopwise.keywords import takes
from flopwise.options import DEGREE, take
from flopwise.search.scaling import ScalingComparison
from flopwise.training.estimate import TrainEstimate
from flopwise.training.layout import Recipe
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAnswer:
    """Throughput of a job on more and more accelerators, for each kind of parallelism alone and for all layouts."""

    model: Model
    cluster: Cluster
    recipe: Recipe
    num_gpus: int
    comparison: ScalingComparison
    fastest: TrainEstimate | None  # a step of the fastest layout on all accelerators; None where none fits
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]


@takes(DataSpec, TrainingSpec, MachineSpec, DatedSourceSpec, gpus=DEGREE)
def compare(model: Model | str, *, gpus: int | None = None, weak: bool = False, **options: Any) -> CompareAnswer:
    """Scaling of each way of spreading `model` on 1, 2, 4 ... `gpus` accelerators.

    Strong scaling keeps the global batch whatever the GPUs; `weak` keeps its share for each GPU. `options` are those of
    `DataSpec`, `TrainingSpec` (of the recipe), `MachineSpec` and `DatedSourceSpec`, or whole specs.

    Raises:
        SpecError: a value or a name that cannot be, or a layout, which is what is compared.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    from flopwise.facts.models.positions import check_length
    from flopwise.search.scaling import comparison
    from flopwise.training.estimate import estimate
    from flopwise.training.job import TrainJob
    from flopwise.training.on_device import recipe_on

    data, spec, machines, source = take(options, DataSpec, TrainingSpec, MachineSpec, DatedSourceSpec)
    if spec.says_layout or spec.expert_tp is not None or spec.recompute_mode() is not None:
        raise SpecError("a comparison goes through all layouts: leave out degrees, ZeRO, recompute and offloading")
    gpus = machines.num_gpus(gpus)
    if gpus < 2:
        raise SpecError(f"{gpus} accelerator leaves nothing to compare; give 2 or more (--gpus)")
    architecture, cluster = source.model_with_layers(model), machines.cluster(gpus, source.catalog)
    seq_len = data.seq_len(architecture, tunes=spec.tunes)
    batch, notes = data.batch(architecture, seq_len, tunes=spec.tunes, unit=gpus * (spec.micro_batch or 1))
    wanted = spec.recipe(seq_len, batch, source.catalog, data.documents(seq_len))
    recipe, device_notes = recipe_on(wanted, cluster.accelerator)
    kept = f"{batch / gpus:,.4g} sequences per accelerator" if weak else f"{batch:,} sequences per step at every size"
    scaling = comparison(architecture, recipe, cluster, gpus, weak=weak, micro_batch=spec.micro_batch)
    layout = None if (point := scaling.fastest(gpus)) is None else point.layout
    job = None if layout is None else TrainJob(model=architecture, recipe=recipe, layout=layout, cluster=cluster)
    notes = (*notes, *device_notes, *architecture.assumptions, *check_length(architecture, seq_len))
    return CompareAnswer(
        model=architecture, cluster=cluster, recipe=recipe, num_gpus=gpus, comparison=scaling,
        fastest=None if job is None else estimate(job),
        settings=(
            ("accelerators", f"{cluster.accelerator.name}, {cluster.gpus_per_node} per node"),
            ("global batch", f"{kept}, of {seq_len:,} tokens"), ("recipe", recipe.text), ("stack", recipe.stack.name),
        ),
        assumptions=tuple(dict.fromkeys((*notes, *cluster.assumptions))),
    )  # fmt: skip
