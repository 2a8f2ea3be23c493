"""`flopwise train`: how fast does it train."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from math import expm1
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, parts
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.on_page import on_page
from flopwise.cli.options import add, flags
from flopwise.cli.parts import figure_of, memory_items
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DatedSourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FLAG, options_of
from flopwise.results import attributes, notes
from flopwise.training.run_spec import RunConditionsSpec
from flopwise.training.spec import DataSpec, ReadsSpec, TrainingSpec
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.search.scaling import CompareAnswer, ScalingPoint
    from flopwise.training.answer import TrainAnswer
    from flopwise.training.run import StepRun
    from flopwise.training.sampled_answer import SampledTrainAnswer

OF_RUNS = ("tokens", "samples", "epochs", *options_of(ReadsSpec), *options_of(RunConditionsSpec), "explain")
"""Options that mean nothing to --compare."""


@options.command(
    "train",
    "flopwise train Llama-3.1-8B --gpu h100 --gpus 64 --seq 8192 --tokens 1T",
    "flopwise train Llama-3.1-8B --gpu a100-80gb --gpus 16 --tp 2 --zero 1 --global-batch 256 --provider aws --json",
    "flopwise train Llama-3.1-8B --gpu l40s --qlora --seq 2048 --tokens 50M --explain",
    "flopwise train Llama-3.1-8B --gpu h100 --gpus 256 --seq 8192 --global-batch 512 --compare",
    most_used="gpu gpus tokens seq global_batch precision lora qlora dp tp pp zero fsdp",
)
@options.argument("model")
@flags(MachineSpec, "gpu", section="")
@flags(SharedSpec, "gpus")
@add("--compare", FLAG, "Show how data, ZeRO, FSDP, tensor, pipeline ... layouts scale, instead.", default=False)
@add("--weak", FLAG, "With --compare: the global batch grows with the accelerators.", default=False)
@flags(DataSpec)
@flags(ReadsSpec)
@flags(TrainingSpec)
@flags(RunConditionsSpec)
@flags(MachineSpec, without="gpu")
@flags(DatedSourceSpec)
@options.explain_flag
@on_page("estimate")
def command(*, model: str, compare: bool, weak: bool, explain: bool, **given: Any) -> None:
    """Step time, throughput, utilisation, memory, and the run's cost.

    Without --dp, --tp, --pp, --cp, --ep, --zero, --fsdp, --shard, --stage-layers the fastest layout that fits is used;
    any other option of a layout holds in all that are tried. A layout that does not fit is still estimated, unless it
    certainly cannot run; the exit code is then 1.
    """
    if compare:
        from flopwise.api.compare import compare as compared

        options.refuse(OF_RUNS, "does not go with --compare, which covers steps in all layouts; leave it out")
        values = options.values(given, DataSpec, TrainingSpec, MachineSpec, DatedSourceSpec)
        comparison = compared(model, gpus=given["gpus"], weak=weak, **values)
        further = _scaling_further(comparison)
        options.answer(comparison, scaling_lines, scaling_document, verdict=scaling_verdict, further=further)
        return
    if weak:
        raise options.usage_error("--weak sets how --compare scales the batch; give --compare, too")
    answer = question(model=model, **given)
    text: Callable[[Any, Screen], Iterator[str]] = lines
    further = {"What each change would do": options.command_line("explain", "train")}
    if _is_sampled(answer):
        text, further = sample_lines, {"What it reads": shlex.join(_reads_words(answer, model))}
    options.answer(answer, text, figure=figure_of if explain else None, further=further)
    if answer.fits is False:
        click.get_current_context().exit(1)


def question(*, model: str, **given: Any) -> Any:
    """The answer to the parameters of this command."""
    from flopwise.api.train import train

    return train(model, **options.values(given))


MARKS = {
    "data": "D", "zero-1": "Z", "fsdp": "F", "tensor": "T", "pipeline": "P", "context": "C", "expert": "E",
    "hybrid": "H",
}  # fmt: skip
"""What the scaling of each way of spreading a job is drawn with."""


def lines(answer: TrainAnswer, paper: Screen) -> Iterator[str]:
    """The training estimate as people read it."""
    estimate, job = answer.estimate, answer.estimate.job
    yield heading(f"Training {job.model.name} on {estimate.num_gpus:,} x {job.cluster.accelerator.name}", paper)
    yield from _warnings(answer, "this layout", paper)
    yield pairs(answer.settings, paper)
    if answer.can_run:
        yield pairs(_speed_rows(answer), paper)
        yield heading(f"One step: {units.format_seconds(estimate.step_s)}, bound by {estimate.bound}", paper)
        yield parts.shares(estimate.breakdown, units.format_seconds, paper)
    if answer.network and answer.can_run:
        yield heading("Network bandwidth needed per accelerator, in one direction", paper)
        yield table(*parts.network_table([asdict(need) for need in answer.network]), paper)
    yield heading("Memory per accelerator", paper)
    yield from memory_items(answer.memory, paper)
    if answer.can_run:
        yield from _run_lines(answer, paper)
    yield parts.quick_table(answer.quick, paper)
    yield parts.assumption_list(answer.assumptions)


def _warnings(answer: TrainAnswer | SampledTrainAnswer, what: str, paper: Screen) -> Iterator[str]:
    """The warning of what does not fit, and whether the figures below are of it."""
    if answer.fits is False:
        rest = "; the figures are of a run that would fail." if answer.can_run else ": there is no speed to show."
        yield paper.paint(f"WARNING: {what} does not fit the memory{rest}", "red")


def _speed_rows(answer: TrainAnswer) -> list[tuple[str, Any]]:
    estimate, percent = answer.estimate, units.format_percent
    least, most = units.format_seconds(estimate.lower_bound_s), units.format_seconds(estimate.upper_bound_s)
    ends = f"(80 % interval: {estimate.low:,.0f} to {estimate.high:,.0f}; {estimate.band.evidence})"
    useful = ""
    if estimate.job.recipe.documents is not None:
        share = percent(estimate.useful_tokens_per_s / estimate.tokens_per_s)
        useful = f", of them {estimate.useful_tokens_per_s:,.0f} of documents ({share})"
    causal, full = percent(estimate.mfu_frac), percent(estimate.mfu_full_attention_frac)
    return [
        ("step", f"{units.format_seconds(estimate.step_s)} (bounds: {least} to {most})"),
        ("throughput", f"{estimate.tokens_per_s:,.0f} tokens/s{useful}"),
        ("per accelerator", f"{estimate.tokens_per_s_per_gpu:,.0f} tokens/s {ends}"),
        ("MFU", f"{causal} (causal attention counted half); {full} (attention in full)"),
        ("HFU", f"{percent(estimate.hfu_frac)} (recomputed operations included)"),
    ]


def _is_sampled(answer: Any) -> bool:
    """True if the answer is of a network that is known by its samples, not of a model with token layers."""
    from flopwise.training.answer import TrainAnswer  # which is there; the other would have to be imported

    return not isinstance(answer, TrainAnswer)


def _reads_words(answer: SampledTrainAnswer, model: str) -> list[str]:
    """The line that says what storage the same training needs."""
    job = answer.estimate.job
    return ["flopwise", "io", model, "--gpu", job.cluster.accelerator.name, "--gpus", str(job.num_gpus)]


def sample_lines(answer: SampledTrainAnswer, paper: Screen) -> Iterator[str]:
    """The training estimate of a network that is known by its samples, as people read it."""
    estimate, job = answer.estimate, answer.estimate.job
    yield heading(f"Training {job.recipe.work.name} on {job.num_gpus:,} x {job.cluster.accelerator.name}", paper)
    yield from _warnings(answer, "this", paper)
    yield pairs(answer.settings, paper)
    if answer.can_run:
        yield from _sample_speed(answer, paper)
    if answer.memory is not None:
        yield heading("Memory per accelerator", paper)
        yield from memory_items(answer.memory, paper)
    if estimate.run is not None and answer.can_run:
        samples = units.format_count(job.samples or 0.0)
        yield heading(f"The run: {samples} samples in {estimate.run.steps:,.0f} steps", paper)
        yield pairs(_run_rows(estimate.run, answer.run_ends(), answer.unit_usd), paper)
        yield parts.shares(estimate.run.breakdown, units.format_seconds, paper)
    yield parts.assumption_list(answer.assumptions)


def _sample_speed(answer: SampledTrainAnswer, paper: Screen) -> Iterator[str]:
    """The rates and the step of a network that is known by its samples."""
    estimate, job, seconds = answer.estimate, answer.estimate.job, units.format_seconds
    from flopwise.training.sampled_answer import format_samples as rate

    ends = f"(80 % interval: {rate(estimate.low)} to {rate(estimate.high)}; {estimate.band.evidence})"
    bounds = f"(bounds: {seconds(estimate.lower_bound_s)} to {seconds(estimate.upper_bound_s)})"
    origin = {"layers": "timed layer by layer", "published share": "the share of the peak of published runs"}
    rows = [
        ("step", f"{seconds(estimate.step_s)} {bounds}"),
        ("throughput", f"{rate(estimate.samples_per_s)} samples/s, {origin[estimate.rate.origin]}"),
        ("per accelerator", f"{rate(estimate.samples_per_s_per_gpu)} samples/s {ends}"),
        ("MFU", None if estimate.mfu_frac is None else units.format_percent(estimate.mfu_frac)),
    ]
    if job.num_gpus > 1:
        rows.append(
            (
                "scaling",
                f"{units.format_percent(estimate.efficiency_frac)} of {job.num_gpus:,} independent accelerators",
            )
        )
    yield pairs(rows, paper)
    bound = f", bound by {estimate.bound}" if estimate.bound else ""
    yield heading(f"One step: {seconds(estimate.step_s)}{bound}", paper)
    yield parts.shares(estimate.breakdown, seconds, paper)


def _run_lines(answer: TrainAnswer, paper: Screen) -> Iterator[str]:
    """The run as people read it; nothing without a length."""
    run = answer.estimate.run
    if run is None:
        return
    yield heading(
        f"The run: {units.format_count(answer.estimate.job.tokens or 0.0)} tokens in {run.steps:,.0f} steps", paper
    )
    yield pairs(_run_rows(run, answer.run_ends(), answer.unit_usd, _corpus_text(answer)), paper)
    yield parts.shares(run.breakdown, units.format_seconds, paper)
    if answer.rules is not None:
        yield "\n".join(f"  - {note}" for note in answer.rules.notes)


def _run_rows(
    run: StepRun, ends: Mapping[str, float | None], unit_usd: Mapping[str, float], corpus: str | None = None
) -> list[tuple[str, Any]]:
    """Time, money and energy of a run, with their intervals, and what interrupts it."""
    seconds = units.format_seconds
    size, write, every = (
        units.format_bytes(run.checkpoint_bytes), seconds(run.checkpoint_write_s), seconds(run.checkpoint_interval_s)
    )  # fmt: skip
    saved = f"{size} every {every}, written in {write} at {units.format_rate(run.checkpoint_bytes_per_s)}"

    def with_ends(name: str, text: Callable[[Any], str | None]) -> str | None:
        """A figure of the run with its interval; nothing where it is not known."""
        value, low, high = getattr(run, name), ends[f"{name}_low"], ends[f"{name}_high"]
        return None if value is None else f"{text(value)} (80 % interval: {text(low)} to {text(high)})"

    each = "; ".join(f"{units.format_cost(usd)} per {name.replace('_', ' ')}" for name, usd in unit_usd.items())
    return [
        ("time", with_ends("seconds", seconds)),
        (
            "accelerator-hours",
            f"{run.gpu_hours:,.0f}" if run.gpu_hours >= 100 else format_number(run.gpu_hours),
        ),
        ("goodput", f"{units.format_percent(run.goodput_frac)} of the time makes progress"),
        ("interruptions", _interruptions(run)),
        ("checkpoint", saved if run.checkpoint_bytes else None),
        *([("corpus", corpus)] if corpus else []),
        ("cost", with_ends("cost_usd", units.format_cost)),
        *([("unit costs", each)] if each else []),
        ("start", _start(run)),
        ("energy", with_ends("energy_joules", parts.energy)),
    ]


def _interruptions(run: StepRun) -> str:
    """The expected number of interruptions, or the chance of one where that is less than one."""
    expected = run.interruptions
    every = f"one every {units.format_seconds(run.mtbf_s)}"
    if expected >= 1:
        return f"{format_number(expected)} expected, {every}"
    chance = -expm1(-expected)
    return f"{units.format_percent(chance) if chance >= 0.001 else 'under 0.1 %'} chance of one; {every}"


def _start(run: StepRun) -> str:
    """The time and cost before the first step."""
    usd = "" if run.start_usd is None else f"; {units.format_cost(run.start_usd)} of the cost"
    return f"{units.format_seconds(run.start_s)} before the first step (boot, image, weights, data, compilation){usd}"


def _corpus_text(answer: TrainAnswer) -> str | None:
    corpus, price = answer.corpus, answer.corpus_storage
    if corpus is None:
        return None
    cost = "" if price is None else f"; {units.format_usd(price[0])} a month in object storage ({price[1]})"
    return f"{units.format_count(corpus.tokens)} tokens: {corpus.text}{cost}"


def scaling_document(answer: CompareAnswer) -> dict[str, Any]:
    """The scaling of each way of spreading a job as the JSON that scripts rely on."""
    comparison = answer.comparison
    return {
        **attributes(answer, "model=model.name gpu=cluster.accelerator.name num_gpus recipe.seq_len"),
        "global_batch": int(answer.recipe.global_batch),
        "scaling": "weak" if comparison.weak else "strong",
        "reference": None if comparison.reference is None else _point(comparison.reference),
        "points": [_point(point) for point in comparison.points],
        "bends": [attributes(bend, "strategy num_gpus") | {"reason": bend.reason or None} for bend in comparison.bends],
        **notes(answer),
    }


def _point(point: ScalingPoint) -> dict[str, Any]:
    from flopwise.training.layout import COLUMNS

    layout = None if point.layout is None else attributes(point.layout, " ".join(COLUMNS))
    return attributes(point, " ".join(point.__slots__)) | {"layout": layout, "reason": point.reason or None}


def _scaling_further(answer: CompareAnswer) -> dict[str, str]:
    """The command of the fastest layout, or of what would make the job fit."""
    line = options.command_line("train", without=("--compare", "--weak"))
    if answer.fastest is None:
        return {"What would make it fit": line}
    from flopwise.search.reproduce import layout_options

    layout = dict(layout_options(answer.fastest.job.layout.settings))
    if "micro_batch" in options.spellings(click.get_current_context()):  # no layout has another one
        del layout["micro_batch"]
    declared = options_of(TrainingSpec)
    arguments = [word for name, value in layout.items() for word in declared[name].arguments(value)]
    return {"A step of the fastest layout": shlex.join([*shlex.split(line), *arguments])}


def scaling_verdict(answer: CompareAnswer) -> str:
    """The fastest layout on all accelerators, or the least memory that a layout takes, in a sentence."""
    from flopwise.training.memory_answer import layout_text

    where, found = f"{answer.num_gpus:,} x {answer.cluster.accelerator.name}", answer.fastest
    best = answer.comparison.fastest(answer.num_gpus)
    if found is None or best is None:
        return f"{answer.model.name} does not fit {where} in any layout{_least_memory(answer)}."
    low, high = found.low * answer.num_gpus, found.high * answer.num_gpus
    speed = f"{found.tokens_per_s:,.0f} tokens/s {units.format_interval(low, high, '{:,.0f}'.format)}"
    kept = "" if best.efficiency_frac is None else f", {units.format_percent(best.efficiency_frac)} of linear scaling"
    return f"The fastest layout on {where} ({best.strategy}) is {layout_text(found.job.layout)}: {speed}{kept}."


def _least_memory(answer: CompareAnswer) -> str:
    """The memory of the layout that takes least on all accelerators, against that of one; empty if none is possible."""
    points = [point for point in answer.comparison.points if point.num_gpus == answer.num_gpus]
    least = min((point.memory_bytes for point in points if point.memory_bytes is not None), default=None)
    if least is None:
        return ""
    return f": {units.format_gib(least)} of {units.format_gib(answer.cluster.accelerator.hbm_bytes)} each at least"


def scaling_lines(answer: CompareAnswer, paper: Screen) -> Iterator[str]:
    """The scaling as text: table, chart, and the bend of each scheme."""
    from flopwise.search.scaling import BENT_FRAC, MEANINGS

    comparison = answer.comparison
    kind = "Weak" if comparison.weak else "Strong"
    yield heading(f"{kind} scaling of {answer.model.name} up to {answer.num_gpus:,} accelerators", paper)
    yield pairs(answer.settings, paper)
    shown = [bend.strategy for bend in comparison.bends]
    if comparison.reference is None:
        yield "No layout fits the memory on any of these numbers of accelerators."
    else:
        on = comparison.reference.num_gpus
        yield f"Throughput per accelerator, relative to the best layout on the fewest that fit the job ({on:,}):"
    points = {(point.num_gpus, point.strategy): point for point in comparison.points}
    counts = sorted({count for count, _ in points})
    rows = [[f"{count:,}", *(_efficiency(points.get((count, name))) for name in shown)] for count in counts]
    yield table([">GPUs", *(f">{name}" for name in shown)], rows, paper)
    share = Axis("throughput per accelerator, relative to the reference", lambda v: f"{100 * v:.0f} %")
    yield chart(_curves(answer, shown), Axis("accelerators", "{:,.0f}".format, log=True), share, paper)
    bends = [
        (b.strategy, MEANINGS[b.strategy], "-" if b.num_gpus is None else f"{b.num_gpus:,}", b.reason)
        for b in comparison.bends
    ]
    yield f"Where each kind of parallelism falls below {100 * BENT_FRAC:.0f} %, and why:"
    yield table(["parallelism", "what grows", ">from GPUs", "reason"], bends, paper)
    yield parts.assumption_list(answer.assumptions)


def _efficiency(point: ScalingPoint | None) -> str:
    """Efficiency of a point, or why there is none."""
    if point is None or point.layout is None:
        return "-"
    if not point.fits:
        return "no fit"
    return "-" if point.efficiency_frac is None else units.format_percent(point.efficiency_frac)


def _curves(answer: CompareAnswer, shown: list[str]) -> list[Series]:
    """One line for each way, the hybrid last, over the others."""
    curves = []
    for name in shown:
        mine = [p for p in answer.comparison.points if p.strategy == name and p.efficiency_frac is not None]
        points = [(float(p.num_gpus), float(p.efficiency_frac or 0.0)) for p in mine]
        if points:
            curves.append(Series(name, points, mark=MARKS[name], line=True))
    return curves
