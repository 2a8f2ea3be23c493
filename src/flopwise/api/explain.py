"""`explain`: the provenance of an answer, and the effect of single changes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

from flopwise.errors import SpecError

if TYPE_CHECKING:
    from flopwise.changes.explanation import Explanation
    from flopwise.facts.architecture import Model
    from flopwise.shapes.answer import ShapeAnswer

QUESTIONS = ("train", "serve", "memory")


@overload
def explain(kind: Literal["train", "serve", "memory"], *args: Any, **options: Any) -> Explanation: ...
@overload
def explain(kind: str | Model, **options: Any) -> ShapeAnswer: ...
def explain(kind: str | Model, *args: Any, **options: Any) -> Explanation | ShapeAnswer:
    """Explain an answer: the tree behind each figure, and the effect of each single change.

    Any other first word is a model, whose shapes are judged: `explain("gpt2-xl", gpu="a100-80gb")` is
    `advise("gpt2-xl", gpu="a100-80gb")`.

    Args:
        kind: "train", "serve" or "memory", or a model.
        args: positional arguments of the function of that name.
        options: its keywords.

    Raises:
        SpecError: no such question; otherwise as the question.

    Examples:
        >>> import flopwise
        >>> answer = flopwise.explain("train", "Llama-3.1-8B", gpu="h100", gpus=8)
        >>> print(answer.figure.name, len(answer.sensitivities) > 5)
        estimate True
    """
    if isinstance(kind, str) and kind in QUESTIONS:
        question = getattr(import_module(f"flopwise.api.{kind}"), kind)
        from flopwise.changes.explanation import explanation

        return explanation(question(*args, **options))
    if args:
        allowed = f"{', '.join(QUESTIONS)}, or a model with keywords"
        raise SpecError(f"nothing to explain by the name {str(kind)[:40]!r}; allowed: {allowed}")
    from flopwise.api.shapes import advise

    return advise(kind, **options)
