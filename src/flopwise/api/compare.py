"""How do single ways of spreading a job scale: data, ZeRO, FSDP, tensor, pipeline, context and hybrid layouts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.machines import Machines, described, loaded
from flopwise.api.memory import default_seq, overridden, recipe_text
from flopwise.api.recipes import Method, check_length
from flopwise.api.train import fields_of, step_batch
from flopwise.errors import SpecError

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
    gpu: str | None = None,
    gpus: int = 1,
    seq: int | None = None,
    global_batch: int | None = None,
    global_batch_tokens: float | None = None,
    weak: bool = False,
    machines: Machines | None = None,
    how: Method | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **said: Any,
) -> CompareAnswer:
    """Scaling of each way of spreading `model` on 1, 2, 4 ... `gpus` accelerators.

    Strong scaling keeps the global batch whatever the GPUs; `weak` keeps its share for each GPU. Further keywords are
    fields of `Method` (of the recipe) or `Machines`.

    Raises:
        SpecError: a value or a name that cannot be, or a layout, which is what is compared.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked.
    """
    from flopwise.search.scaling import comparison

    place = overridden(machines or Machines(gpu=gpu, facts=facts), fields_of(Machines, said))
    method = overridden(how or Method(), {k: v for k, v in said.items() if k not in fields_of(Machines, said)})
    if method.laid_out or method.recompute is not None:
        raise SpecError("a comparison goes through all layouts: leave out degrees, ZeRO, recompute and offloading")
    if gpus < 2:
        raise SpecError(f"{gpus} accelerator leaves nothing to compare; give 2 or more (--gpus)")
    found = described(loaded(model, assume_family=assume_family, offline=offline, facts=place.facts))
    cluster = place.cluster(gpus)
    seq_len = default_seq(found, seq)
    batch, note = step_batch(global_batch, global_batch_tokens, seq_len, gpus, method)
    recipe = method.recipe(seq_len, batch, place.known_facts)
    made = comparison(found, recipe, cluster, gpus, weak=weak, micro_batch=method.micro_batch)
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
