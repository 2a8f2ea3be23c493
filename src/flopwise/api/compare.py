"""How do single ways of spreading a job scale: data, ZeRO, FSDP, tensor, pipeline, context and hybrid layouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.memory import recipe_text
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import take
from flopwise.training.spec import DataSpec, TrainingSpec

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.facts.architecture import Model
    from flopwise.search.scaling import ScalingComparison
    from flopwise.training.layout import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareAnswer:
    """The comparison and what it is of."""

    model: Model
    cluster: Cluster
    recipe: Recipe
    num_gpus: int
    comparison: ScalingComparison
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]


def compare(
    model: Model | str,
    *,
    gpus: int = 1,
    weak: bool = False,
    data: DataSpec | None = None,
    spec: TrainingSpec | None = None,
    machines: MachineSpec | None = None,
    facts: Path | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **keywords: Any,
) -> CompareAnswer:
    """Scaling of each way of spreading `model` on 1, 2, 4 ... `gpus` accelerators.

    Strong scaling keeps the global batch whatever the GPUs; `weak` keeps its share for each GPU. Further keywords are
    options of `DataSpec`, `TrainingSpec` (of the recipe) and `MachineSpec`.

    Raises:
        SpecError: a value or a name that cannot be, or a layout, which is what is compared.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    from flopwise.facts.models.positions import check_length
    from flopwise.search.scaling import comparison

    data, spec, machines = take(keywords, data or DataSpec(), spec or TrainingSpec(), machines or MachineSpec())
    if spec.says_layout or spec.recompute is not None:
        raise SpecError("a comparison goes through all layouts: leave out degrees, ZeRO, recompute and offloading")
    if gpus < 2:
        raise SpecError(f"{gpus} accelerator leaves nothing to compare; give 2 or more (--gpus)")
    source = SourceSpec(facts=facts, assume_family=assume_family, offline=offline)
    found, cluster = source.layered(model), machines.cluster(gpus, source.known)
    seq_len = data.seq_len(found)
    batch, note = data.batch(seq_len, gpus, spec.micro_batch)
    recipe = spec.recipe(seq_len, batch, source.known, data.documents(seq_len))
    made = comparison(found, recipe, cluster, gpus, weak=weak, micro_batch=spec.micro_batch)
    kept = f"{batch / gpus:,.4g} sequences for each accelerator" if weak else f"{batch:,} sequences a step, always"
    return CompareAnswer(
        model=found,
        cluster=cluster,
        recipe=recipe,
        num_gpus=gpus,
        comparison=made,
        settings=(
            ("accelerators", f"{cluster.accelerator.name}, {cluster.gpus_per_node} a node"),
            ("global batch", f"{kept}, of {seq_len:,} tokens"),
            ("recipe", recipe_text(recipe)),
            ("stack", recipe.stack.name),
        ),
        assumptions=tuple(dict.fromkeys((*note, *found.notes, *check_length(found, seq_len), *cluster.assumptions))),
    )
