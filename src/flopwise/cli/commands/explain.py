"""`flopwise explain`: where figures come from, and what would move them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from flopwise import units
from flopwise.cli import options, parts
from flopwise.cli.options import add, flags
from flopwise.cli.render import Screen, heading, known_text, pairs, table, tree
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError, nearest_names
from flopwise.facts.spec import SourceSpec
from flopwise.options import choice, options_of, whole
from flopwise.shapes.spec import ShapeSpec
from flopwise.units import format_number

if TYPE_CHECKING:
    from flopwise.changes.effects import Sensitivity
    from flopwise.changes.explanation import Explanation
    from flopwise.shapes.answer import ShapeAnswer
    from flopwise.shapes.kernels import KernelShape
    from flopwise.shapes.rules import Advice

QUESTIONS = ("train", "serve", "memory")
NOT_EXPLAINED = ("compare", "weak", "sweep", "web")
"""Options of other commands that ask for many answers, or for a page."""


@click.command(
    "explain",
    cls=options.QuestionCommand,
    examples=(
        "flopwise explain gpt2-xl --gpu a100-80gb --batch 8",
        "flopwise explain train Llama-3.1-8B --gpu h100 --gpus 8",
        "flopwise explain serve Llama-3.1-8B --gpu l40s --weights fp8 --json",
        "flopwise explain memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp",
    ),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@options.argument("question", metavar="QUESTION|MODEL")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@add("--depth", whole(high=100), "Levels of the tree to draw (default: all).")
def command(*, question: str, arguments: tuple[str, ...], depth: int | None) -> None:
    """Origin of every figure, and the changes that affect it most.

    QUESTION is train, serve or memory; ARGUMENTS are those of that command. Prints the tree of formulas, facts,
    calibrations and assumptions behind every figure, and the effect of single changes on the main figures. Any other
    first word is a MODEL, whose shapes are reviewed on a GPU with the options below.
    """
    if question in QUESTIONS:
        explain(question, arguments, depth)
        return
    if arguments and not arguments[0].startswith("-") and depth is None:
        near = "".join(f"; nearest: {name}" for name in nearest_names(question, QUESTIONS, limit=1))
        allowed = f"{', '.join(QUESTIONS)}, or a MODEL{_own_tree(question)}"
        raise SpecError(f"nothing to explain by the name {question[:40]!r}{near}; allowed: {allowed}")
    options.refuse(["depth"], "goes with train, serve and memory")
    _forward(shapes, [question, *arguments])


def _own_tree(name: str) -> str:
    """That the command of that name shows its own tree, where it does."""
    context = click.get_current_context()
    group = context.find_root().command
    named = group.get_command(context, name) if isinstance(group, click.Group) else None
    shows = named is not None and any(one.name == "explain" for one in named.params)
    return f". `flopwise {name} ... --explain` shows where its figures come from" if shows else ""


@options.command(
    "explain",
    "flopwise explain gpt2-xl --gpu a100-80gb --batch 8 --seq 1024",
    "flopwise explain Llama-3.1-70B --gpu h100 --tp 8 --precision fp8 --stack megatron --json",
    "flopwise explain Qwen3-30B-A3B --gpu h100 --task serve --batch 64 --seq 4096",
    work="explaining",
)
@options.argument("model")
@flags(MachineSpec, "gpu gpus_per_node", section="")
@add(
    "--task",
    choice("train", "serve"),
    "Training: a micro-batch forward and backward. Serving: a step of an engine.",
    default="train",
)
@flags(ShapeSpec)
@flags(SourceSpec)
@options.explain_flag
def shapes(*, model: str, gpu: str | None, gpus_per_node: int | None, explain: bool, **given: Any) -> None:
    """Review of a model's shapes on a GPU, with the computed gain of each change.

    Prints every operation of a pass on one rank (dimensions, intensity, bound, share of the last wave), then what to
    change, largest gain first. The default --batch is 1 in training and 32 in serving.
    """
    from flopwise.api.shapes import advise
    from flopwise.shapes.answer import ShapeAnswer

    options.ignore_settings(but=("gpu", "gpus_per_node", "facts", "calibration", "currency"))
    spellings = options.spellings(click.get_current_context())
    machines = MachineSpec(gpu=gpu, gpus_per_node=gpus_per_node)
    advice = advise(model, machines=machines, **{name: value for name, value in given.items() if name in spellings})
    options.answer(
        advice, shape_lines, figure=ShapeAnswer.figure if explain else None, further=_whole(model, machines, given)
    )


command.forms = (shapes,)
KEPT = {
    "train": {"tp": "--tp", "ep": "--ep", "seq": "--seq", "batch": "--micro-batch", "precision": "--precision",
              "stack": "--stack", "attention": "--attention", "offload": "--offload"},
    "serve": {"tp": "--tp", "ep": "--ep", "seq": "--input", "batch": "--concurrency", "weights": "--weights",
              "kv_dtype": "--kv-dtype", "engine": "--engine"},
}  # fmt: skip
"""Options of a pass that the whole step, or the service, keeps, and how these spell them."""


def _whole(model: str, machines: MachineSpec, given: Mapping[str, Any]) -> dict[str, str]:
    """The line of the step, or the service, that the pass is part of."""
    if not machines.gpu:
        return {}
    stated, task = options.spellings(click.get_current_context()), given["task"]
    ranks = (given["tp"] or 1) * (given["ep"] or 1)
    count = machines.counted or 1
    if count % ranks:
        count = ranks
    words = ["flopwise", task, model, "--gpu", f"{count}x{machines.gpu}" if count > 1 else machines.gpu]
    for name, spelled in KEPT[task].items():
        if name in stated:
            words += [spelled, *options_of(ShapeSpec)[name].arguments(given[name])[1:]]
    return {"The whole step" if task == "train" else "The whole service": shlex.join(words)}


def _forward(other: options.QuestionCommand, arguments: list[str]) -> None:
    """Run another command on what stands after `explain`."""
    here = click.get_current_context()
    with other.make_context("explain", arguments, parent=here.parent) as context:
        context.meta["flopwise.form"] = here.meta.get("flopwise.form") or context.meta.get("flopwise.form")
        other.invoke(context)


def explain(question: str, arguments: tuple[str, ...], depth: int | None) -> None:
    """Explain the answer to another command's question, whose options are parsed as it parses them."""
    from flopwise.changes.explanation import explanation

    module = import_module(f"flopwise.cli.commands.{question}")
    here = click.get_current_context()
    with module.command.make_context(question, list(arguments), parent=here) as context:
        options.refuse(NOT_EXPLAINED, "has no single answer that could be explained; leave it out")
        given = {name: value for name, value in context.params.items() if name not in ("explain", *NOT_EXPLAINED)}
        answer = explanation(module.question(**given))
    answering = {"The answer itself": shlex.join(["flopwise", question, *arguments])}
    options.answer(answer, lambda one, paper: lines(one, depth, paper), further=answering)


def lines(answer: Explanation, depth: int | None, paper: Screen) -> Iterator[str]:
    """The explanation as people read it."""
    yield heading("The question", paper)
    yield pairs(answer.answer.settings, paper)
    yield heading("Where the figures come from", paper)
    yield tree(answer.figure, paper, depth=depth)
    yield heading("Effect of single changes on each figure", paper)
    yield _effects(answer.sensitivities, paper)
    yield parts.assumption_list(answer.answer.assumptions)


def _effects(changes: tuple[Sensitivity, ...], paper: Screen) -> str:
    """One row a change, the largest effect first; a figure that nothing is known of has no column."""
    named = (name for change in changes for name, ratio in change.effects.items() if ratio is not None)
    names = sorted(set(named), key=list(changes[0].effects).index) if changes else []
    change = partial(units.format_change, digits=1)
    rows = [(c.change, *(known_text(c.effects.get(name), change) for name in names), c.note) for c in changes]
    return table(["change", *(f">{name}" for name in names), "note"], rows, paper) if rows else "Nothing."


SMALL = 0.003
"""Share of the pass below which an operation is not drawn."""


def shape_lines(answer: ShapeAnswer, paper: Screen) -> Iterator[str]:
    """The answer as people read it."""
    clock = answer.clock
    yield heading(f"Shapes of {clock.model.name} on {clock.cluster.accelerator.name}", paper)
    cache = answer.l2_ridge_flops_per_byte
    ridge = f"{answer.ridge_flops_per_byte:,.0f} FLOP/byte of {clock.dtype} from memory"
    yield pairs(
        [
            *answer.settings,
            ("time", f"{units.format_seconds(answer.pass_s)} (kernels {units.format_seconds(answer.kernels_s)})"),
            ("memory-bound", f"{units.format_percent(answer.memory_bound_frac)} of the pass"),
            ("ridge", ridge + (f", {cache:,.0f} from L2" if cache is not None else "")),
        ],
        paper,
    )
    yield heading("Operations on one rank, longest first", paper)
    yield _operations(answer, paper)
    if answer.advice:
        yield heading("What to change, largest gain first (each change alone, gain per pass)", paper)
        yield _advice(answer.advice, paper)
    else:
        yield "Nothing to change: no single change of shape saves 0.5 % of the pass."
    yield "\n".join(["Fine as it is", *(f"  - {f.what}: {f.why}" for f in answer.fine)])
    yield parts.assumption_list(answer.assumptions)


def _operations(answer: ShapeAnswer, paper: Screen) -> str:
    rows = sorted(answer.operations, key=lambda o: -o.share_frac)
    drawn = [o for o in rows if o.share_frac >= SMALL]
    head = ["operation", ">x", ">m", ">n", ">k", ">FLOP/B", "bound", ">achieved", ">waves", ">last", ">share"]
    text = table(head, map(_cells, drawn), paper, spare=(">x", ">last", ">waves", "bound", ">achieved"))
    rest = sum(o.share_frac for o in rows) - sum(o.share_frac for o in drawn)
    if len(drawn) < len(rows):
        text += f"\n{len(rows) - len(drawn)} smaller ones take {units.format_percent(rest)} in total."
    return text


def _cells(o: KernelShape) -> tuple[Any, ...]:
    m, n, k = (None if v is None else f"{v:,.0f}" for v in (o.m, o.n, o.k))
    if o.kind == "grouped" and o.m is not None:
        m = f"{o.groups:,.0f} x {format_number(o.m / o.groups)}"
    waves = None if o.tiling is None else f"{o.tiling.waves:,.2f}"
    last = None if o.tiling is None else f"{100 * o.tiling.last_wave_frac:.0f} %"
    intensity = f"{o.intensity_flops_per_byte:,.0f}" if o.intensity_flops_per_byte >= 1 else None
    achieved, share = units.format_percent(o.achieved_frac, 0), units.format_percent(o.share_frac)
    return (o.name, o.layers, m, n, k, intensity, o.bound, achieved, waves, last, share)


def _advice(advice: tuple[Advice, ...], paper: Screen) -> str:
    rows = [
        (a.what, a.now, a.better, units.format_seconds(a.gain_s), units.format_percent(a.gain_frac),
         ("MUST: " if a.needed else "") + a.why)
        for a in advice
    ]  # fmt: skip
    return table(["what", "now", "better", ">saves", ">of the pass", "why"], rows, paper)
