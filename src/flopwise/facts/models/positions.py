"""How long a sequence a model takes: learned positions end, others can be stretched."""

from __future__ import annotations

from flopwise.errors import SpecError
from flopwise.facts.architecture import Embedding, Model

STRETCH = 16
"""Multiple of its context that is allowed for a model without learned positions."""


def learned_positions(model: Model) -> int | None:
    """Rows of the first stack's table of positions; None where positions are computed or relative."""
    tables = (i for i in model.stacks[0].before if isinstance(i, Embedding) and i.position)
    table = next(tables, None)
    return None if table is None else min(table.rows, model.max_position or table.rows)


def _is_fixed(model: Model) -> bool:
    return bool(model.stacks) and model.stacks[0].tokens_per_sample is not None


def usual_length(model: Model) -> int | None:
    """The length of sequences that a model is made for; None: any, or images fix it."""
    return None if _is_fixed(model) else model.max_position


def longest(model: Model) -> int | None:
    """The longest sequence allowed; None: any, or images fix it."""
    if _is_fixed(model):
        return None
    learned = learned_positions(model)
    if learned is not None or not model.max_position:
        return learned
    return STRETCH * model.max_position


def check_length(model: Model, tokens: int, *, what: str = "a sequence") -> tuple[str, ...]:
    """Assumptions for `tokens` tokens beyond the length of the model; empty within it, and where images fix the length.

    Raises: SpecError: learned positions end before, or it is more than `STRETCH` times as long.
    """
    most, made = longest(model), usual_length(model)
    if most is not None and tokens > most:
        reason = "its learned positions end there" if learned_positions(model) else f"{made:,} tokens x {STRETCH}"
        raise SpecError(
            f"{what} of {tokens:,} tokens exceeds the context of {model.name}, made for {made or most:,} ({reason}); "
            f"shorten it to {most:,} or less"
        )
    if made and tokens > made:
        return (f"{what} of {tokens:,} tokens is longer than the {made:,} that {model.name} is made for",)
    return ()
