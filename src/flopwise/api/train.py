"""How fast does it train: one step and the whole run on given accelerators, laid out as given or as best."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.memory import MemoryAnswer, layout_text, of_training, recipe_text
from flopwise.cost.spec import MachineSpec
from flopwise.errors import InfeasibleError, SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import said, take
from flopwise.training.spec import DataSpec, ReadsSpec, RunConditionsSpec, TrainingSpec

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.job import Conditions
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.rules import TokenRules
    from flopwise.training.storage import Reads


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainAnswer:
    """The estimate, its memory, and what stands beside it."""

    estimate: TrainEstimate
    memory: MemoryAnswer
    fits: bool
    laid_out: str  # who chose the layout
    quick: tuple[QuickFormula, ...]
    rules: TokenRules | None  # of the tokens and the batch
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]


def train(
    model: Model | str,
    *,
    gpus: int = 1,
    data: DataSpec | None = None,
    spec: TrainingSpec | None = None,
    machines: MachineSpec | None = None,
    conditions: RunConditionsSpec | None = None,
    reads: ReadsSpec | None = None,
    facts: Path | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **keywords: Any,
) -> TrainAnswer:
    """Training `model` on `gpus` accelerators: sequences of `seq` tokens, `global_batch` a step.

    The run is `tokens` long, or `samples` sequences, each `epochs` times. Further keywords are options: of `DataSpec`
    (`seq="8k", tokens="1T" ...`), `TrainingSpec` (`tp=8, zero=1, recompute="full" ...`), `MachineSpec` (`gpu="h100",
    provider="aws" ...`), `RunConditionsSpec` (`spares=2 ...`) and `ReadsSpec` (`storage="nfs" ...`). Without any degree
    the best layout that fits is looked for. A layout that doesn't fit is estimated all the same: `fits` says so.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.
    """
    from flopwise.training.routing import check_skew

    data, spec, machines, conditions, reads = take(
        keywords, data or DataSpec(), spec or TrainingSpec(), machines or MachineSpec(),
        conditions or RunConditionsSpec(), reads or ReadsSpec(),
    )  # fmt: skip
    source = SourceSpec(facts=facts, assume_family=assume_family, offline=offline)
    found, known = source.layered(model), source.known
    cluster = machines.cluster(gpus, known)
    seq_len = data.seq_len(found)
    batch, batch_note = data.batch(seq_len, gpus, spec.micro_batch)
    recipe = spec.on(cluster.accelerator, known).recipe(seq_len, batch, known, data.documents(seq_len))
    check_skew(found, recipe)
    layout, laid_out = _layout(found, recipe, cluster, spec, gpus)
    storage = reads.reads(found, known)
    sample_tokens = seq_len if recipe.documents is None else recipe.documents.mean
    tokens = data.run_tokens(sample_tokens)
    if tokens is None and (named := said(conditions)):
        names = ", ".join(name.replace("_", " ") for name in named)
        raise SpecError(f"{names}: of a whole run; give its length, too (--tokens or --samples)")
    if tokens is not None and tokens < batch * sample_tokens:
        one = f"{batch * sample_tokens:,.0f} of one step (global batch {batch:,} x {sample_tokens:,.0f})"
        raise SpecError(f"a run of {tokens:,.0f} tokens is shorter than the {one}; give a smaller global batch")
    met, notes = conditions.conditions(cluster, known)
    notes = (*batch_note, *notes, *(conditions.write_assumptions if tokens is not None else ()))
    notes += () if data.seq is not None else (f"sequences of {seq_len:,} tokens: none were given",)
    return answered(
        found, recipe, layout, cluster, known, tokens, laid_out=laid_out, notes=notes, reads=storage, conditions=met
    )


def _layout(model: Model, recipe: Recipe, cluster: Cluster, spec: TrainingSpec, gpus: int) -> tuple[Layout, str]:
    """The layout as said, or the best one, and who chose it."""
    if spec.says_layout:
        return spec.layout(model, int(recipe.seq_len), gpus), "given"
    spec.layout(model, int(recipe.seq_len))  # refuses what cannot be
    return best_layout(model, recipe, cluster, gpus, recompute=spec.recompute, micro_batch=spec.micro_batch)


def best_layout(
    model: Model, recipe: Recipe, cluster: Cluster, gpus: int, *, recompute: str | None, micro_batch: int | None
) -> tuple[Layout, str]:
    """The fastest layout that surely fits, or where none does the likeliest to fit; and how it was found.

    Raises:
        InfeasibleError: the global batch does not divide over the GPUs in any layout.
    """
    from flopwise.search.layout_search import fastest_layout
    from flopwise.training.layout import RECOMPUTE
    from flopwise.training.memory import FITS_WITH, memory_band, step_memory
    from flopwise.units import format_percent

    mode = None if recompute is None else RECOMPUTE.index(recompute)
    found = fastest_layout(model, recipe, cluster, gpus, recompute=mode, micro_batch=micro_batch)
    if found is None:
        batch, unit = int(recipe.global_batch), gpus * (micro_batch or 1)
        if micro_batch and batch % micro_batch:
            raise InfeasibleError(f"micro-batch {micro_batch} does not divide the global batch of {batch:,} sequences")
        each = f" in micro-batches of {micro_batch}" if micro_batch else ""
        asked = f"a global batch of {batch:,} sequences{each}"
        raise InfeasibleError(f"no layout of {gpus:,} GPUs divides {asked}; give a multiple of {unit:,}")
    layout, tried, fitting = found
    if fitting:
        wanted = f"with a probability of {format_percent(FITS_WITH, 0)} or more"
        return layout, f"fastest of {tried:,} layouts, {fitting:,} of which fit {wanted}"
    memory = step_memory(model, recipe, layout, device_kind=cluster.accelerator.kind)
    capacity = float(cluster.accelerator.hbm_bytes)
    if float(memory.total_bytes) > capacity:
        return layout, f"least memory of {tried:,} layouts, none of which fits"
    band = memory_band(recipe, cluster.accelerator.calibration)
    odds = float(band.probability_at_most(float(memory.total_bytes), capacity))
    least = f"none of which fits with a probability of {format_percent(FITS_WITH, 0)}"
    return layout, f"likeliest to fit of {tried:,} layouts, with {format_percent(odds, 0)}, {least}"


def answered(
    model: Model,
    recipe: Recipe,
    layout: Layout,
    cluster: Cluster,
    facts: Facts,
    tokens: float | None,
    *,
    laid_out: str = "given",
    notes: tuple[str, ...] = (),
    reads: Reads | None = None,
    conditions: Conditions | None = None,
) -> TrainAnswer:
    """The answer for one layout."""
    from flopwise.training.estimate import estimate
    from flopwise.training.job import DEFAULT_CONDITIONS, TrainJob
    from flopwise.training.rules import step_rules, token_rules
    from flopwise.units import format_percent, format_price

    job = TrainJob(
        model=model,
        recipe=recipe,
        layout=layout,
        cluster=cluster,
        tokens=tokens,
        reads=reads,
        conditions=conditions or DEFAULT_CONDITIONS,
    )
    found = estimate(job)
    held = of_training(model, recipe, layout, cluster.accelerator, facts)
    node = f"{cluster.gpus_per_node} a node, {cluster.fabric.link_kind} inside"
    return TrainAnswer(
        estimate=found,
        memory=held,
        fits=bool(held.fits),
        laid_out=laid_out,
        quick=(*step_rules(found), *held.quick),
        rules=token_rules(job),
        settings=(
            ("accelerators", f"{found.num_gpus:,} x {cluster.accelerator.name}, {node}"),
            ("layout", f"{layout_text(layout)} ({laid_out})"),
            ("micro-batch", f"{int(layout.micro_batch):,} x {int(recipe.seq_len):,} tokens"),
            ("global batch", f"{int(recipe.global_batch):,} sequences"),
            ("recipe", recipe_text(recipe)),
            ("stack", recipe.stack.name),
            *((("tokens dropped", format_percent(found.dropped_frac)),) if found.dropped_frac is not None else ()),
            *((("storage", reads.text),) if reads is not None else ()),
            ("price", format_price(cluster.usd_per_gpu_hour, cluster.price_source)),
        ),
        assumptions=tuple(
            dict.fromkeys(
                (*notes, *recipe.stack.unsupported_note(cluster.accelerator), *found.assumptions, *held.assumptions)
            )
        ),
    )
