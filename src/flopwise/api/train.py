"""How fast does it train: one step and the whole run on given accelerators, laid out as given or as best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flopwise.api.memory import MemoryAnswer, layout_text, of_training
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.options import changed_options, take
from flopwise.training.spec import DataSpec, ReadsSpec, RunConditionsSpec, TrainingSpec

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster
    from flopwise.cost.quick import QuickFormula
    from flopwise.facts.architecture import Model
    from flopwise.facts.catalog import Facts
    from flopwise.training.estimate import TrainEstimate
    from flopwise.training.job import TrainJob
    from flopwise.training.layout import Layout, Recipe
    from flopwise.training.rules import TokenRules


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
    start_s: float | None = None  # paid before the first step of a run, beside its time and cost

    @property
    def start_usd(self) -> float | None:
        """What the start costs; None where a price or the run is not known."""
        run = self.estimate.run
        if run is None or run.cost_usd is None or self.start_s is None:
            return None
        return run.cost_usd * self.start_s / run.seconds


def train(model: Model | str, *, gpus: int = 1, **options: Any) -> TrainAnswer:
    """Training `model` on `gpus` accelerators: sequences of `seq` tokens, `global_batch` a step.

    The run is `tokens` long, or `samples` sequences, each `epochs` times. `options` are those of `DataSpec` (`seq="8k",
    tokens="1T" ...`), `TrainingSpec` (`tp=8, zero=1, recompute="full" ...`), `MachineSpec` (`gpu="h100", provider="aws"
    ...`), `RunConditionsSpec` (`spares=2 ...`), `ReadsSpec` (`storage="nfs" ...`) and `SourceSpec`, or whole specs.
    Without any degree the best layout that fits is looked for. A layout that doesn't fit is estimated all the same:
    `fits` says so.

    Raises:
        SpecError: a value or a name that cannot be; says what is allowed.
        MissingFactError: a fact that the answer needs is not known.
        InfeasibleError: no offer satisfies what was asked, or the GPUs cannot be used at all.
    """
    from flopwise.training.job import TrainJob
    from flopwise.training.routing import check_skew

    data, spec, machines, run, reads, source = take(
        options, DataSpec, TrainingSpec, MachineSpec, RunConditionsSpec, ReadsSpec, SourceSpec
    )
    found, facts = source.model_with_layers(model), source.catalog
    cluster = machines.cluster(gpus, facts)
    seq_len = data.seq_len(found)
    batch, batch_note = data.batch(seq_len, gpus, spec.micro_batch)
    recipe = spec.on(cluster.accelerator, facts).recipe(seq_len, batch, facts, data.documents(seq_len))
    check_skew(found, recipe)
    layout, laid_out = _layout(found, recipe, cluster, spec, gpus)
    storage, tokens = reads.reads(found, facts), _run_tokens(data, recipe, run)
    conditions, notes = run.conditions(cluster, facts)
    notes = (*batch_note, *notes, *(run.write_assumptions if tokens is not None else ()))
    notes += () if data.seq is not None else (f"sequences of {seq_len:,} tokens: none were given",)
    job = TrainJob(
        model=found, recipe=recipe, layout=layout, cluster=cluster, tokens=tokens, reads=storage, conditions=conditions
    )
    return _answer(job, facts, laid_out, notes)


def _layout(model: Model, recipe: Recipe, cluster: Cluster, spec: TrainingSpec, gpus: int) -> tuple[Layout, str]:
    """The layout as said, or the best one, and who chose it."""
    if spec.says_layout:
        return spec.layout(model, int(recipe.seq_len), gpus), "given"
    from flopwise.search.layout_search import best_layout

    spec.layout(model, int(recipe.seq_len))  # refuses what cannot be
    return best_layout(model, recipe, cluster, gpus, recompute=spec.recompute, micro_batch=spec.micro_batch)


def _run_tokens(data: DataSpec, recipe: Recipe, run: RunConditionsSpec) -> float | None:
    """Tokens of the whole run; None where its length is not given.

    Raises:
        SpecError: conditions of a run without a length, or a run that is shorter than a step.
    """
    sample_tokens = int(recipe.seq_len) if recipe.documents is None else recipe.documents.mean
    tokens, batch = data.run_tokens(sample_tokens), int(recipe.global_batch)
    if tokens is None and (named := changed_options(run)):
        names = ", ".join(name.replace("_", " ") for name in named)
        raise SpecError(f"{names}: of a whole run; give its length, too (--tokens or --samples)")
    if tokens is not None and tokens < batch * sample_tokens:
        one = f"{batch * sample_tokens:,.0f} of one step (global batch {batch:,} x {sample_tokens:,.0f})"
        raise SpecError(f"a run of {tokens:,.0f} tokens is shorter than the {one}; give a smaller global batch")
    return tokens


def _answer(job: TrainJob, facts: Facts, laid_out: str, notes: tuple[str, ...]) -> TrainAnswer:
    """The answer for one job."""
    from flopwise.training.estimate import estimate
    from flopwise.training.rules import step_rules, token_rules
    from flopwise.training.start import training_start_s
    from flopwise.units import format_percent, format_price

    result, recipe, layout, cluster = estimate(job), job.recipe, job.layout, job.cluster
    memory = of_training(job.model, recipe, layout, cluster.accelerator, facts)
    node = f"{cluster.gpus_per_node} a node, {cluster.fabric.link_kind} inside"
    machines = -(-result.num_gpus // max(1, cluster.gpus_per_node))
    start_s = None if job.tokens is None else float(
        training_start_s(
            job.model, recipe.stack.name, job.tokens, machines, facts, pretrained=recipe.lora is not None
        )
    )  # fmt: skip
    dropped, stack_notes = result.dropped_frac, recipe.stack.unsupported_note(cluster.accelerator)
    return TrainAnswer(
        estimate=result,
        start_s=start_s,
        memory=memory,
        fits=bool(memory.fits),
        laid_out=laid_out,
        quick=(*step_rules(result), *memory.quick),
        rules=token_rules(job),
        settings=(
            ("accelerators", f"{result.num_gpus:,} x {cluster.accelerator.name}, {node}"),
            ("layout", f"{layout_text(layout)} ({laid_out})"),
            ("micro-batch", f"{int(layout.micro_batch):,} x {int(recipe.seq_len):,} tokens"),
            ("global batch", f"{int(recipe.global_batch):,} sequences"),
            ("recipe", recipe.text),
            ("stack", recipe.stack.name),
            *((("tokens dropped", format_percent(dropped)),) if dropped is not None else ()),
            *((("storage", job.reads.text),) if job.reads is not None else ()),
            ("price", format_price(cluster.usd_per_gpu_hour, cluster.price_source)),
        ),
        assumptions=tuple(dict.fromkeys((*notes, *stack_notes, *result.assumptions, *memory.assumptions))),
    )
