"""How fast does it train: one step and the whole run on given accelerators, laid out as given or as best."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.api.machines import Machines, described, loaded
from flopwise.api.memory import MemoryAnswer, default_seq, layout_text, of_training, overridden, recipe_text
from flopwise.api.recipes import Method
from flopwise.api.rules import step_rules
from flopwise.api.runs import Surroundings, run_tokens
from flopwise.errors import InfeasibleError, SpecError
from flopwise.training.spec import batch_of_tokens

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.architecture import Model
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.run import Conditions
    from flopwise.training.storage import Reads
    from flopwise.training.token_rules import TokenRules

BATCH_TOKENS = 2**22
"""Tokens of a step that large runs seldom exceed."""
SEQUENCES_PER_GPU = 16
"""Sequences of a step for each GPU where none are given."""


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
    gpu: str | None = None,
    gpus: int = 1,
    seq: int | None = None,
    global_batch: int | None = None,
    global_batch_tokens: float | None = None,
    tokens: float | None = None,
    samples: float | None = None,
    epochs: float | None = None,
    machines: Machines | None = None,
    how: Method | None = None,
    around: Surroundings | None = None,
    storage: str | None = None,
    storage_bytes_per_s: float | None = None,
    token_bytes: float | None = None,
    facts: Path | str | None = None,
    assume_family: str | None = None,
    offline: bool = False,
    **said: Any,
) -> TrainAnswer:
    """Training `model` on `gpus` accelerators: sequences of `seq` tokens, `global_batch` a step.

    The run is `tokens` long, or `samples` sequences, each `epochs` times. Further keywords are fields of `Method`
    (`tp=8, zero=1, recompute="full" ...`), `Machines` (`provider="aws" ...`) or `Surroundings` (`spares=2 ...`).
    Without any degree the best layout that fits is looked for. A layout that doesn't fit is estimated all the same:
    `fits` says so.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.
    """
    from flopwise.facts.catalog import load_facts
    from flopwise.training.routing import check_skew

    place = overridden(machines or Machines(gpu=gpu, facts=facts), fields_of(Machines, said))
    run = overridden(around or Surroundings(), fields_of(Surroundings, said))
    others = fields_of(Machines, said) | fields_of(Surroundings, said)
    method = overridden(how or Method(), {k: v for k, v in said.items() if k not in others})
    found = described(loaded(model, assume_family=assume_family, offline=offline, facts=place.facts))
    cluster = place.cluster(gpus)
    seq_len = default_seq(found, seq)
    batch, batch_note = step_batch(global_batch, global_batch_tokens, seq_len, gpus, method)
    recipe = method.on(cluster.accelerator).recipe(seq_len, batch)
    check_skew(found, recipe)
    layout, laid_out = _layout(found, recipe, cluster, method, gpus)
    reads = reads_of(found, storage, storage_bytes_per_s, token_bytes, place)
    of_sample = seq_len if recipe.documents is None else recipe.documents.mean
    length = run_tokens(tokens, samples, epochs, of_sample, run)
    if length is not None and length < batch * of_sample:
        one = f"{batch * of_sample:,.0f} of one step (global batch {batch:,} x {of_sample:,.0f})"
        raise SpecError(f"a run of {length:,.0f} tokens is shorter than the {one}; give a smaller global batch")
    conditions, told = run.conditions(cluster, load_facts(place.facts).folder)
    told = (*told, *(run.writes_assumed if length is not None else ()))
    notes = (*batch_note, *told, *(() if seq is not None else (f"sequences of {seq_len:,} tokens: none were given",)))
    return answered(
        found, recipe, layout, cluster, length, laid_out=laid_out, notes=notes, reads=reads, conditions=conditions
    )


def fields_of(kind: type, said: dict[str, Any]) -> dict[str, Any]:
    """Those keywords that are fields of `kind`."""
    known = {field.name for field in fields(kind)}
    return {name: value for name, value in said.items() if name in known}


def step_batch(
    sequences: int | None, tokens: float | None, seq_len: int, gpus: int, how: Method
) -> tuple[int, tuple[str, ...]]:
    """Sequences a step, and what was assumed."""
    if sequences is not None and tokens is not None:
        raise SpecError("the global batch is given in sequences and in tokens; give one of them")
    if tokens is not None:
        rounded = batch_of_tokens(tokens, seq_len)
        near = () if rounded * seq_len == tokens else (f"global batch rounded to {rounded:,} sequences",)
        return rounded, near
    if sequences is not None:
        return sequences, ()
    unit = gpus * (how.micro_batch or 1)
    each = max(1, min(SEQUENCES_PER_GPU, BATCH_TOKENS // (seq_len * unit)))
    return unit * each, (f"global batch of {unit * each:,} sequences: none was given",)


def _layout(model: Model, recipe: Recipe, cluster: Cluster, how: Method, gpus: int) -> tuple[Layout, str]:
    """The layout as said, or the best one, and who chose it."""
    if how.laid_out:
        return how.layout(model, int(recipe.seq_len), gpus), "given"
    how.layout(model, int(recipe.seq_len))  # refuses what cannot be
    return best_layout(model, recipe, cluster, gpus, recompute=how.recompute, micro_batch=how.micro_batch)


def reads_of(
    model: Model, kind: str | None, bytes_per_s: float | None, token_bytes: float | None, place: Machines
) -> Reads | None:
    """Where training reads from; None where nothing is said of it.

    Raises:
        UnknownNameError: there is no such kind of storage.
        SpecError: a figure is not above 0, or two say the same.
    """
    if kind is None and bytes_per_s is None:
        if token_bytes is not None:
            raise SpecError("the bytes of a token are given, but no storage that they are read from")
        return None
    from flopwise.facts.catalog import load_facts
    from flopwise.training.storage import Reads, stored_token_bytes

    for what, value in (("storage bandwidth", bytes_per_s), ("bytes of a token", token_bytes)):
        if value is not None and not 0 < value < float("inf"):
            raise SpecError(f"{what} {value}; give a finite number above 0")
    if kind is not None and bytes_per_s is not None:
        raise SpecError("a kind of storage and its bandwidth are both given; give one of them")
    each = token_bytes or stored_token_bytes(model)
    if bytes_per_s is not None:
        return Reads(storage="given", bytes_per_s=bytes_per_s, token_bytes=each)
    from flopwise.facts.storage import storage

    row = storage(kind or "", load_facts(place.facts).folder)
    return Reads(storage=row.name, bytes_per_s=row.read_bytes_per_s, token_bytes=each, origin=row.source, date=row.date)


def best_layout(
    model: Model, recipe: Recipe, cluster: Cluster, gpus: int, *, recompute: str | None, micro_batch: int | None
) -> tuple[Layout, str]:
    """The fastest layout that fits, or where none does the one that needs the least memory; and how it was found.

    Raises:
        InfeasibleError: the global batch does not divide over the GPUs in any layout.
    """
    from flopwise.search.training import fastest
    from flopwise.training.layout import RECOMPUTE

    mode = None if recompute is None else RECOMPUTE.index(recompute)
    found = fastest(model, recipe, cluster, gpus, recompute=mode, micro_batch=micro_batch)
    if found is None:
        batch, unit = int(recipe.global_batch), gpus * (micro_batch or 1)
        if micro_batch and batch % micro_batch:
            raise InfeasibleError(f"micro-batch {micro_batch} does not divide the global batch of {batch:,} sequences")
        each = f" in micro-batches of {micro_batch}" if micro_batch else ""
        asked = f"a global batch of {batch:,} sequences{each}"
        raise InfeasibleError(f"no layout of {gpus:,} GPUs divides {asked}; give a multiple of {unit:,}")
    layout, tried, fitting = found
    if not fitting:
        return layout, f"least memory of {tried:,} layouts, none of which fits"
    return layout, f"fastest of {tried:,} layouts, {fitting:,} of which fit"


def answered(
    model: Model,
    recipe: Recipe,
    layout: Layout,
    cluster: Cluster,
    tokens: float | None,
    *,
    laid_out: str = "given",
    notes: tuple[str, ...] = (),
    reads: Reads | None = None,
    conditions: Conditions | None = None,
) -> TrainAnswer:
    """The answer for one layout."""
    from flopwise.facts.platforms import unsupported_note
    from flopwise.training.estimate import TrainJob, estimate
    from flopwise.training.run import DEFAULT_CONDITIONS
    from flopwise.training.token_rules import token_rules
    from flopwise.units import format_percent

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
    held = of_training(model, recipe, layout, cluster.accelerator)
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
            ("stack", recipe.stack),
            *((("tokens dropped", format_percent(found.dropped_frac)),) if found.dropped_frac is not None else ()),
            *((("storage", reads.text),) if reads is not None else ()),
            ("price", price_text(cluster)),
        ),
        assumptions=tuple(
            dict.fromkeys(
                (*notes, *unsupported_note(recipe.stack, cluster.accelerator), *found.assumptions, *held.assumptions)
            )
        ),
    )


def price_text(cluster: Cluster) -> str:
    """The price for one accelerator and hour with its origin and date."""
    from flopwise.units import format_usd

    if cluster.usd_per_gpu_hour is None:
        return "unknown"
    return f"{format_usd(cluster.usd_per_gpu_hour)} per accelerator and hour ({cluster.price_source})"
