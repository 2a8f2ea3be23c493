"""`flopwise explain`: where figures come from, and what would move them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from flopwise.cli import options, questions
from flopwise.cli.render import Screen, heading, pairs, table

if TYPE_CHECKING:
    from flopwise.api.explain import Explanation
    from flopwise.api.sensitivity import Sensitivity

QUESTIONS = ("train", "serve", "memory")


@click.command(
    "explain",
    cls=options.Command,
    examples=(
        "flopwise explain train Llama-3.1-8B --gpu h100 --gpus 8",
        "flopwise explain serve Llama-3.1-8B --gpu l40s --weights fp8 --json",
        "flopwise explain memory Llama-3.1-8B --gpu h100 --dp 8 --fsdp",
    ),
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True},
)
@click.argument("question", type=click.Choice(QUESTIONS))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--depth", type=options.Whole(high=100), help="How far down the tree is drawn (default: all of it).")
def command(*, question: str, arguments: tuple[str, ...], depth: int | None) -> None:
    """Where each figure comes from, and what would move it.

    QUESTION is train, serve or memory; ARGUMENTS are those of that command. Prints the tree of formulas, facts,
    calibrations and assumptions behind every figure, and the effect of single changes on the headline figures.
    """
    found = _asked(question, arguments)
    options.answer(lambda: document(found), lambda paper: lines(found, depth, paper))


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
