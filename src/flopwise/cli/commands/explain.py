"""`flopwise explain`: where figures come from, and what would move them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from flopwise.cli import options, questions
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.api.explain import Explanation
    from flopwise.changes.effects import Sensitivity

QUESTIONS = ("train", "serve", "memory")


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
@click.argument("question", type=options.Name("question"), metavar="QUESTION|MODEL")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--depth", type=options.Whole(high=100), help="How far down the tree is drawn (default: all of it).")
def command(*, question: str, arguments: tuple[str, ...], depth: int | None) -> None:
    """Where each figure comes from, and what would move it.

    QUESTION is train, serve or memory; ARGUMENTS are those of that command. Prints the tree of formulas, facts,
    calibrations and assumptions behind every figure, and the effect of single changes on the headline figures.
    Any other first word is a MODEL, whose shapes are judged on a GPU: with the options below.
    """
    if question not in QUESTIONS:
        if arguments and not arguments[0].startswith("-") and depth is None:
            raise SpecError(
                f"nothing to explain by the name {question[:40]!r}; allowed: {', '.join(QUESTIONS)}, or a MODEL"
            )
        if depth is not None:
            raise click.UsageError("--depth goes with train, serve and memory", click.get_current_context())
        judge(question, arguments)
        return
    found = _asked(question, arguments)
    options.answer(lambda: document(found), lambda paper: lines(found, depth, paper))


@options.command(
    "explain",
    "flopwise explain gpt2-xl --gpu a100-80gb --batch 8 --seq 1024",
    "flopwise explain Llama-3.1-70B --gpu h100 --tp 8 --precision fp8 --stack megatron --json",
    "flopwise explain Qwen3-30B-A3B --gpu h100 --task serve --batch 64 --seq 4096",
)
@options.model_argument
@options.gpu_option
@click.option(
    "--task",
    type=options.Choice(["train", "serve"]),
    default="train",
    show_default=True,
    help="A micro-batch forward and backward, or a decoding step.",
)
@click.option("--tp", type=options.DEGREE, default=1, show_default=True, help="Tensor-parallel degree.")
@click.option("--ep", type=options.DEGREE, help="Training: expert-parallel degree.")
@click.option("--batch", type=options.BATCH, help="Sequences of a pass (default: 1 in training, 32 in serving).")
@click.option("--seq", type=options.TOKENS, help="Tokens of a sequence; in serving those cached.")
@click.option(
    "--precision",
    type=options.Choice(["bf16", "fp16", "fp8", "fp8_rowwise", "fp8_block", "mxfp8", "nvfp4", "fp32"]),
    help="Training: of the matrix products (default: bf16).",
)
@click.option("--stack", type=options.Name("stack"), help="Training: software: fsdp-compile, megatron, hf ...")
@click.option(
    "--attention", type=options.Choice(["flash", "sdpa", "eager"]), help="Training: attention (default: flash)."
)
@click.option("--offload", is_flag=True, help="Training: the optimizer stands in host memory.")
@click.option("--weights", type=options.Name("format"), help="Serving: format of the weights (default: bf16).")
@click.option("--kv-dtype", type=options.Name("dtype"), help="Serving: of the key-value cache (default: bf16).")
@click.option("--engine", type=options.Name("engine"), help="Serving: engine (default: vllm).")
@click.option("--gpus-per-node", type=options.DEGREE, help="Accelerators of a node.")
@questions.model_options
def shapes(**given: Any) -> None:
    """What a kernel engineer would say of a model's shapes on a GPU, with the computed gain of each change.

    Prints every operation of a pass on one rank (dimensions, intensity, bound, how full the last wave is), then what to
    change, sorted by what it saves.
    """
    from flopwise.api.machines import Machines
    from flopwise.api.shapes import advise
    from flopwise.cli.views import shapes as view

    place = Machines(gpu=given.pop("gpu"), gpus_per_node=given.pop("gpus_per_node"), facts=given["facts"])
    found = advise(given.pop("model"), machines=place, **given)
    options.answer(lambda: view.document(found), lambda paper: view.lines(found, paper))


command.forms = (shapes,)


def judge(model: str, arguments: tuple[str, ...]) -> None:
    """Run the shapes command on what stands after `explain`."""
    here = click.get_current_context()
    wants_json = here.meta.get("flopwise.json")
    with shapes.make_context("explain", [model, *arguments], parent=here.parent) as context:
        context.meta["flopwise.json"] = wants_json or context.meta.get("flopwise.json")
        shapes.invoke(context)


def _asked(question: str, arguments: tuple[str, ...]) -> Explanation:
    """The explained answer to the other command's question, whose options are parsed as it parses them."""
    from flopwise.api.explain import explained

    module = import_module(f"flopwise.cli.commands.{question}")
    here = click.get_current_context()
    wants_json = here.meta.get("flopwise.json")
    context = module.command.make_context(question, list(arguments), parent=here)
    here.meta["flopwise.json"] = wants_json
    given = {name: value for name, value in context.params.items() if name != "explain"}
    check = getattr(module, "check", None)
    if check is not None:
        check(given, context)
    return explained(module.question(**given))


def document(found: Explanation) -> dict[str, Any]:
    """The explanation as JSON."""
    from flopwise.provenance import assumptions, to_json

    return {
        "provenance": to_json(found.figure),
        "assumptions": [*assumptions(found.figure), *found.answer.assumptions],
        "sensitivities": [{"change": s.change, "effects": s.effects, "note": s.note} for s in found.sensitivities],
    }


def lines(found: Explanation, depth: int | None, paper: Screen) -> Iterator[str]:
    """The explanation as people read it."""
    yield heading("What was asked", paper)
    yield pairs(found.answer.settings, paper)
    yield questions.tree([found.figure], paper, depth=depth)
    yield heading("What would move it: each figure after the change, over what it is", paper)
    yield _effects(found.sensitivities, paper)
    yield questions.assumption_list(found.answer.assumptions)


def _effects(changes: tuple[Sensitivity, ...], paper: Screen) -> str:
    """One row a change, the largest effect first."""
    names = list(dict.fromkeys(name for change in changes for name in change.effects))
    rows = [(c.change, *(_percent(c.effects.get(name)) for name in names), c.note) for c in changes]
    return table(["change", *(f">{name}" for name in names), "note"], rows, paper) if rows else "Nothing."


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * (ratio - 1):+.1f} %"
