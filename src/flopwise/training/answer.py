"""What training answers: the estimate of a job with its memory, settings and rules of thumb beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from flopwise.cost.money import unit_usd
from flopwise.cost.quick import QuickFormula
from flopwise.facts import defaults
from flopwise.facts.catalog import Facts
from flopwise.facts.software import PARALLELISM
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import active_parameters
from flopwise.provenance import Kind
from flopwise.training.corpus import Corpus
from flopwise.training.estimate import TrainEstimate, counted_batch, counted_passes, estimate
from flopwise.training.job import TrainJob
from flopwise.training.memory_answer import TrainingMemoryAnswer, layout_text, memory_answer
from flopwise.training.network import LinkNeed, network_needs
from flopwise.training.rules import TokenRules, token_rules
from flopwise.training.unstated import other_jobs, unstated_inputs, with_unstated_inputs
from flopwise.units import HOUR_S, format_percent, format_price


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainAnswer:
    """The estimate, its memory, and what stands beside it."""

    estimate: TrainEstimate
    memory: TrainingMemoryAnswer
    fits: bool
    laid_out: str  # who chose the layout
    quick: tuple[QuickFormula, ...]
    rules: TokenRules | None  # of the tokens and the batch
    network: tuple[LinkNeed, ...]  # bytes of a step over each kind of link, and the rates that they ask for
    unit_usd: dict[str, float]  # of the run: an hour, a million tokens, an epoch, a step
    corpus: Corpus | None = None  # what is gone through, as files; None where the run's length is not given
    corpus_storage: tuple[float, str] | None = None  # USD a month of its ids and text, and at whose price, where known
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of settings that were not given, by name


def train_answer(
    job: TrainJob,
    facts: Facts,
    laid_out: str,
    notes: tuple[str, ...],
    epochs: float = 1.0,
    unsaid: Collection[str] = (),
) -> TrainAnswer:
    """The answer for one job, laid out by whom `laid_out` says, which goes `epochs` times through its data.

    `notes`: what was assumed of the job; `unsaid`: its inputs that nobody stated, as `other_jobs` names them.
    """
    result = estimate(job)
    if unsaid:
        usual = defaults.USUAL_STACKS if job.recipe.lora is None else defaults.USUAL_ADAPTER_STACKS
        degrees = {name: int(getattr(job.layout, name)) for name in PARALLELISM}
        stacks = [
            stack
            for stack in map(facts.stack, usual)
            if stack.runs_on(job.cluster.accelerator) and not stack.missing(degrees)
        ]
        result = with_unstated_inputs(result, unstated_inputs(result, other_jobs(job, unsaid, stacks)))
    recipe, layout, cluster = job.recipe, job.layout, job.cluster
    memory = memory_answer(job.model, recipe, layout, cluster.accelerator, facts)
    node = f"{cluster.gpus_per_node} a node, {cluster.fabric.link_kind} inside"
    run, costs = result.run, dict[str, float]()
    if run is not None:
        amounts = {
            "hour": (run.start_s + run.seconds) / HOUR_S,
            "million_tokens": run.tokens / 1e6,
            "epoch": epochs,
            "step": run.steps,
        }
        costs = unit_usd(run.cost_usd, amounts)
    dropped, stack_notes = result.dropped_frac, recipe.stack.unsupported_note(cluster.accelerator)
    return TrainAnswer(
        estimate=result,
        memory=memory,
        fits=bool(memory.fits),
        laid_out=laid_out,
        quick=(_step_rule(result), *memory.quick),
        rules=token_rules(job),
        network=network_needs(result),
        unit_usd=costs,
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


def _step_rule(estimate: TrainEstimate) -> QuickFormula:
    """6 N D: FLOP to train N parameters on D tokens.

    Source: Kaplan et al. 2020 (arXiv:2001.08361) section 2.1. Assumes: attention is negligible.
    """
    job = estimate.job
    batch, seq = counted_batch(job)
    tokens = job.recipe.useful_tokens if job.tokens is None else job.tokens
    flops = counted_passes(job) * float(causal_forward_flops(job.model, batch, seq))
    return QuickFormula(
        name="6 N D",
        formula="6 x active parameters x tokens" + (" of a step" if job.tokens is None else ""),
        unit="FLOP",
        value=float(6.0 * active_parameters(job.model) * tokens),
        estimate=flops * tokens / job.recipe.useful_tokens,
    )
