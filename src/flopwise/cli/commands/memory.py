"""`flopwise memory`: does it fit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import click

from flopwise.cli import options, parts
from flopwise.cli.on_page import on_page
from flopwise.cli.options import add, flags
from flopwise.cli.parts import figure_of
from flopwise.cli.render import Screen, heading, pairs
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import DatedSourceSpec
from flopwise.options import BATCH, CONTEXT, choice, defaults_of, options_of
from flopwise.serving.spec import DEFAULT_OUTPUT, RequestSpec, ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec

if TYPE_CHECKING:
    from flopwise.cost.memory_answer import MemoryAnswer

DATA = "seq packing mean_length length_spread lengths"
TASKS = {
    "train": {*DATA.split(), "grad_accum", *options_of(TrainingSpec)},
    "serve": {"concurrency", "context", *options_of(ServingSpec)},
}
"""The options of each task."""


@options.command(
    "memory",
    "flopwise memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp --seq 8192",
    "flopwise memory Llama-3.1-8B --gpu a100-80gb --weights fp8 --concurrency 64 --context 8192",
    most_used="gpu task weights context concurrency seq micro_batch lora qlora tp pp fsdp",
)
@options.argument("model")
@add(
    "--task", choice("train", "serve"),
    "Task that uses the memory (default: serve with options of serving alone, such as --context; else train).",
)  # fmt: skip
@flags(MachineSpec, "gpu", section="")
@flags(TrainingSpec, "micro_batch", flags=("--micro-batch", "--batch"), section="")
@flags(DataSpec, "seq", section="")
@add("--grad-accum", BATCH, "Micro-batches of a step (default: one, or as many as a pipeline has stages).")
@flags(TrainingSpec, without="micro_batch")
@flags(DataSpec, "packing mean_length length_spread lengths")
@flags(ServingSpec, without="tp pp ep dp")
@flags(RequestSpec, "concurrency", section="Formats and engine", help="Sequences in the cache at once (default: 1).")
@add("--context", CONTEXT, "Tokens of each sequence in the cache: 32k (32,768).", section="Formats and engine")
@flags(DatedSourceSpec)
@options.explain_flag
@on_page("estimate")
def command(*, explain: bool, **given: Any) -> None:
    """Memory per accelerator, item by item, and what would make it fit.

    Figures are for the fullest rank. In training --batch is the micro-batch; in serving there are --concurrency
    sequences of --context tokens. The exit code is 0 whether it fits or not; see `fits` in --json.
    """
    answer = question(**given)
    further = _further(**given, explains=hasattr(answer, "layout"))
    options.answer(answer, lines, figure=figure_of if explain else None, further=further)


def _further(*, model: str, task: Literal["train", "serve"] | None, explains: bool, **given: Any) -> dict[str, str]:
    """The lines that go deeper, by what they answer; without a device nothing can be timed.

    `explains`: whether `explain` knows the model.
    """
    lines = {"What each change would do": options.command_line("explain", "memory")} if explains else {}
    if given["gpu"] is None:
        return lines
    if _task(task) == "train":
        if task is None:
            serving = shlex.join(["flopwise", "memory", model, "--gpu", given["gpu"], "--task", "serve"])
            lines = {"The memory of serving instead": serving, **lines}
        specs: tuple[type, ...] = (TrainingSpec, DataSpec, DatedSourceSpec)
        extra = []
    else:
        specs, extra = (ServingSpec, DatedSourceSpec), _load(given["concurrency"], given["context"])
    words = ["flopwise", _task(task), model, "--gpu", given["gpu"]]
    for spec in specs:
        for name, declared in options_of(spec).items():
            if given.get(name) != defaults_of(spec)[name]:
                words += declared.arguments(given.get(name))
    return {"How fast it is, and what it costs": shlex.join([*words, *extra]), **lines}


def _load(concurrency: int | None, context: int | None) -> list[str]:
    """The options of `serve` for this number of sequences and tokens in the cache."""
    load = [] if concurrency is None else ["--concurrency", str(concurrency)]
    if context is None or context <= 2 * DEFAULT_OUTPUT:
        return load
    return [*load, "--input", str(context - DEFAULT_OUTPUT), "--output", str(DEFAULT_OUTPUT)]


def _task(given: Literal["train", "serve"] | None) -> Literal["train", "serve"]:
    """The task that is given, or that the options of the command line mean."""
    spellings = options.spellings(click.get_current_context()).keys()
    return given or ("serve" if spellings & (TASKS["serve"] - TASKS["train"]) else "train")


def question(*, model: str, task: Literal["train", "serve"] | None, **given: Any) -> Any:
    """The answer to the parameters of this command."""
    from flopwise.api.memory import memory

    task = _task(task)
    mine = TASKS[task]
    options.refuse({name for names in TASKS.values() for name in names - mine}, f"does not go with --task {task}")
    others = {name for names in TASKS.values() for name in names} - mine
    return memory(model, task=task, **options.values({n: v for n, v in given.items() if n not in others}))


def lines(answer: MemoryAnswer, paper: Screen) -> Iterator[str]:
    """The memory as text."""
    doing = "training" if answer.task == "train" else "serving"
    where = "" if answer.accelerator is None else f" on {answer.accelerator.name}"
    yield heading(f"Memory per accelerator: {doing} {answer.model.name}{where}", paper)
    fullest = "any (all ranks need the same)" if answer.worst_rank == "every rank" else answer.worst_rank
    yield pairs([*answer.settings, ("fullest rank", fullest)], paper)
    yield from parts.memory_items(answer, paper)
    yield parts.quick_table(answer.quick, paper)
    yield parts.assumption_list(answer.assumptions)
