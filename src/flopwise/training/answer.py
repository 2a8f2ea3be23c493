"""What training answers: the estimate of a job with its memory, settings and rules of thumb beside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from flopwise.cost.memory_answer import MemoryAnswer
from flopwise.cost.quick import QuickFormula
from flopwise.facts.catalog import Facts
from flopwise.ops.flops import causal_forward_flops
from flopwise.ops.tensors import active_parameters
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Kind
from flopwise.results import Result, attributes, entries, interval, notes, without_values
from flopwise.training.corpus import Corpus
from flopwise.training.estimate import TrainEstimate, counted_batch, counted_passes, estimate
from flopwise.training.job import TrainJob
from flopwise.training.memory_answer import TrainingMemoryAnswer, layout_text, memory_answer
from flopwise.training.network import LinkNeed, network_needs
from flopwise.training.rules import TokenRules
from flopwise.training.schedules import NAMES
from flopwise.training.unstated import open_inputs, with_unstated_inputs
from flopwise.units import format_count, format_interval, format_items, format_percent, format_price
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.training.sampled import SampledEstimate


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class StepAnswer(Result):
    """The parts that all answers of training share: a step, the run of such steps, and the fit in memory."""

    table = "breakdown"
    estimate: TrainEstimate | SampledEstimate
    memory: MemoryAnswer | None
    fits: bool | None
    unit_usd: dict[str, float]  # of the run: an hour, a million tokens or samples, an epoch, a step
    settings: tuple[tuple[str, str], ...]
    assumptions: tuple[str, ...]
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of settings that were not given, by name

    @property
    def can_run(self) -> bool:
        """False where memory certainly does not hold it: there are no figures of its speed to show."""
        return self.memory is None or self.memory.can_run

    def picture(self) -> Picture:
        """The parts of a step; none of what cannot run."""
        parts = self.estimate.breakdown if self.can_run else ()
        rows = [(name.replace("_", " "), seconds) for name, seconds in parts if seconds > 0]
        return BarPicture(title=self.verdict, unit="seconds of a step", rows=rows)

    def run_ends(self) -> dict[str, float | None]:
        """The ends of the 80 % intervals of time, cost and energy, which go with the throughput."""
        run = self.estimate.run
        return {} if run is None else run.ends(self.estimate.band)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainAnswer(StepAnswer):
    """The estimate, its memory, and what stands beside it."""

    estimate: TrainEstimate
    memory: TrainingMemoryAnswer
    fits: bool
    laid_out: str  # who chose the layout
    quick: tuple[QuickFormula, ...]
    rules: TokenRules | None  # of the tokens and the batch
    network: tuple[LinkNeed, ...]  # bytes of a step over each kind of link, and the rates that they ask for
    corpus: Corpus | None = None  # what is gone through, as files; None where the run's length is not given
    corpus_storage: tuple[float, str] | None = None  # USD a month of its ids and text, and at whose price, where known

    @property
    def verdict(self) -> str:
        """The answer in a sentence: speed and what the run takes, or that it does not fit."""
        found, run = self.estimate, self.estimate.run
        if not self.fits:
            return self.memory.verdict
        low, high = found.low * found.num_gpus, found.high * found.num_gpus
        where, speed = (
            f"{found.num_gpus:,} x {found.job.cluster.accelerator.name}",
            f"{found.tokens_per_s:,.0f} tokens/s",
        )
        text = f"{where} train{'s' * (found.num_gpus == 1)} {speed} {format_interval(low, high, '{:,.0f}'.format)}"
        text += f", MFU {format_percent(found.mfu_frac)}, bound by {found.bound}."
        if run is None:
            return text
        return f"{text} {run.sentence(f'{format_count(found.job.tokens or 0.0)} tokens', found.band)}"

    def document(self) -> dict[str, Any]:
        """The training estimate as the JSON that scripts rely on. What cannot run has no speed."""
        estimate, job = self.estimate, self.estimate.job
        speed, bands = self._speed_document(), {"interval": interval(estimate.band)}
        if not self.can_run:
            speed, bands = without_values(speed), without_values(bands)
        degrees = attributes(job.layout, "dp tp pp cp ep zero shard micro_batch interleave recompute recompute_every")
        layout = {name: int(value) for name, value in degrees.items()}
        layout |= attributes(job.layout, "recompute_first stage_layers")
        return {
            **attributes(estimate, "model=job.model.name gpu=job.cluster.accelerator.name num_gpus"),
            **speed,
            "memory": self.memory.document(),
            "fits": self.fits,
            "layout": layout | {"schedule": NAMES[int(job.layout.schedule)]},
            **attributes(self, "laid_out seq_len=estimate.job.recipe.seq_len"),
            **attributes(job, "recipe.global_batch cluster.usd_per_gpu_hour"),
            "price_source": job.cluster.price_source or None,
            **bands,
            "unstated": [asdict(one) for one in estimate.unstated],
            "quick": [rule.document() for rule in self.quick],
            **notes(self),
        }

    def _speed_document(self) -> dict[str, Any]:
        """The step and its parts, rates, bounds, what links have to carry, and the run."""
        names = (
            "step_s tokens_per_s useful_tokens_per_s tokens_per_s_per_gpu low high lower_bound_s upper_bound_s "
            "mfu_frac mfu_full_attention_frac hfu_frac bound dropped_frac"
        )
        return {
            **attributes(self.estimate, names),
            "breakdown": entries(self.estimate.breakdown, "seconds"),
            "network": [asdict(need) for need in self.network],
            "run": self.run_document(),
        }

    def run_document(self) -> dict[str, Any] | None:
        """The run as JSON; nothing without a length."""
        run, rules = self.estimate.run, self.rules
        if run is None:
            return None
        return {
            "tokens": self.estimate.job.tokens,
            **run.document(self.unit_usd, self.estimate.band),
            "corpus": None
            if self.corpus is None
            else attributes(self.corpus, "tokens id_bytes ids_bytes text_bytes")
            | {"usd_per_month": None if self.corpus_storage is None else self.corpus_storage[0]},
            **attributes(self, "rules.compute_optimal_tokens rules.critical_batch_tokens"),
            "notes": [] if rules is None else rules.notes,
        }


def train_answer(
    job: TrainJob,
    facts: Facts,
    laid_out: str,
    notes: tuple[str, ...],
    epochs: float = 1.0,
    open_settings: Collection[str] = (),
    on_gpus: Sequence[TrainJob] = (),
) -> TrainAnswer:
    """The answer for one job, laid out by whom `laid_out` says, which goes `epochs` times through its data.

    `notes`: what was assumed of the job; `open_settings`: its inputs that nobody stated, as `other_jobs` names them;
    `on_gpus`: the jobs that the same question has on the best measured GPUs, where it has one there.
    """
    result = estimate(job)
    if open_settings:
        result = with_unstated_inputs(result, open_inputs(result, open_settings, facts, on_gpus))
    recipe, layout, cluster = job.recipe, job.layout, job.cluster
    memory = memory_answer(
        job.model, recipe, layout, cluster.accelerator, facts, open_settings=open_settings,
        on_gpus=[(one.layout, one.recipe) for one in on_gpus],
    )  # fmt: skip
    several = cluster.gpus_per_node > 1  # what joins devices of a node is of no account where each has one
    node = f"{cluster.gpus_per_node} per node" + f", {cluster.fabric.link_kind} inside" * several
    millions, run = (job.tokens or 0.0) / 1e6, result.run
    dropped, stack_notes = result.dropped_frac, recipe.stack.unsupported_note(cluster.accelerator)
    billed = () if run is None else run.bill_notes(cluster, result.num_gpus)
    return TrainAnswer(
        estimate=result,
        memory=memory,
        fits=bool(memory.fits),
        laid_out=laid_out,
        quick=(_step_rule(result), *memory.quick),
        rules=TokenRules.of(job),
        network=network_needs(result.step),
        unit_usd={} if run is None else run.unit_usd(epochs, million_tokens=millions),
        settings=(
            ("accelerators", f"{result.num_gpus:,} x {cluster.accelerator.name}, {node}"),
            ("layout", f"{layout_text(layout)} ({laid_out})"),
            ("micro-batch", f"{int(layout.micro_batch):,} x {int(recipe.seq_len):,} tokens"),
            ("global batch", format_items(int(recipe.global_batch), "sequence")),
            ("recipe", recipe.text),
            ("stack", recipe.stack.name),
            *((("tokens dropped", format_percent(dropped)),) if dropped is not None else ()),
            *((("storage", job.reads.text),) if job.reads is not None else ()),
            ("price", format_price(cluster.usd_per_gpu_hour, cluster.price_source)),
        ),
        assumptions=tuple(dict.fromkeys((*notes, *billed, *stack_notes, *result.assumptions, *memory.assumptions))),
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
