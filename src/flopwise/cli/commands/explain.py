"""`flopwise explain`: where figures come from, and what would move them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.views import explain as view
from flopwise.cost.spec import MachineSpec
from flopwise.errors import SpecError
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FLAG, choice, whole
from flopwise.serving.spec import ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec

QUESTIONS = ("train", "serve", "memory")
NOT_EXPLAINED = ("compare", "weak", "sweep")
"""Options of other commands that ask for many answers."""


@click.command(
    "explain",
    cls=options.Command,
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
@add("--depth", whole(high=100), "How far down the tree is drawn (default: all of it).")
def command(*, question: str, arguments: tuple[str, ...], depth: int | None) -> None:
    """Where each figure comes from, and what would move it.

    QUESTION is train, serve or memory; ARGUMENTS are those of that command. Prints the tree of formulas, facts,
    calibrations and assumptions behind every figure, and the effect of single changes on the headline figures.
    Any other first word is a MODEL, whose shapes are judged on a GPU: with the options below.
    """
    if question in QUESTIONS:
        explain(question, arguments, depth)
        return
    if arguments and not arguments[0].startswith("-") and depth is None:
        allowed = f"{', '.join(QUESTIONS)}, or a MODEL"
        raise SpecError(f"nothing to explain by the name {question[:40]!r}; allowed: {allowed}")
    options.refuse(["depth"], "goes with train, serve and memory")
    _forward(shapes, [question, *arguments])


@options.command(
    "explain",
    "flopwise explain gpt2-xl --gpu a100-80gb --batch 8 --seq 1024",
    "flopwise explain Llama-3.1-70B --gpu h100 --tp 8 --precision fp8 --stack megatron --json",
    "flopwise explain Qwen3-30B-A3B --gpu h100 --task serve --batch 64 --seq 4096",
)
@options.argument("model")
@declared(MachineSpec, "gpu gpus_per_node", section="")
@add("--task", choice("train", "serve"), "A micro-batch forward and backward, or a decoding step.", default="train")
@declared(SharedSpec, "tp ep batch", section="")
@declared(DataSpec, "seq", section="")
@declared(TrainingSpec, "precision stack attention", section="Training")
@add("--offload", FLAG, "The optimizer stands in host memory.", default=False, section="Training")
@declared(ServingSpec, "weights kv_dtype engine", section="Serving")
@declared(SourceSpec)
def shapes(*, model: str, gpu: str | None, gpus_per_node: int | None, **given: Any) -> None:
    """What a kernel engineer would say of a model's shapes on a GPU, with the computed gain of each change.

    Prints every operation of a pass on one rank (dimensions, intensity, bound, how full the last wave is), then what to
    change, sorted by what it saves. --batch is 1 in training and 32 in serving where it is not given.
    """
    from flopwise.api.shapes import advise
    from flopwise.cli.views import shapes as shapes_view

    said = options.given(click.get_current_context())
    machines = MachineSpec(gpu=gpu, gpus_per_node=gpus_per_node)
    found = advise(model, machines=machines, **{name: value for name, value in given.items() if name in said})
    options.answer(lambda: shapes_view.document(found), lambda paper: shapes_view.lines(found, paper))


command.forms = (shapes,)


def _forward(other: options.Command, arguments: list[str]) -> None:
    """Run another command on what stands after `explain`."""
    here = click.get_current_context()
    wants_json = here.meta.get("flopwise.json")
    with other.make_context("explain", arguments, parent=here.parent) as context:
        context.meta["flopwise.json"] = wants_json or context.meta.get("flopwise.json")
        other.invoke(context)


def explain(question: str, arguments: tuple[str, ...], depth: int | None) -> None:
    """Explain the answer to another command's question, whose options are parsed as it parses them."""
    from flopwise.api.explain import explanation

    module = import_module(f"flopwise.cli.commands.{question}")
    here = click.get_current_context()
    wants_json = here.meta.get("flopwise.json")
    with module.command.make_context(question, list(arguments), parent=here) as context:
        here.meta["flopwise.json"] = wants_json
        options.refuse(NOT_EXPLAINED, "has no single answer that could be explained; leave it out")
        given = {name: value for name, value in context.params.items() if name not in ("explain", *NOT_EXPLAINED)}
        found = explanation(module.question(**given))
    options.answer(lambda: view.document(found), lambda paper: view.lines(found, depth, paper))
