"""Where the figures of an answer come from, and what would move them, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cli.views import parts

if TYPE_CHECKING:
    from flopwise.api.explain import Explanation
    from flopwise.changes.effects import Sensitivity


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
    yield parts.tree([found.figure], paper, depth=depth)
    yield heading("What would move it: each figure after the change, over what it is", paper)
    yield _effects(found.sensitivities, paper)
    yield parts.assumption_list(found.answer.assumptions)


def _effects(changes: tuple[Sensitivity, ...], paper: Screen) -> str:
    """One row a change, the largest effect first."""
    names = list(dict.fromkeys(name for change in changes for name in change.effects))
    rows = [(c.change, *(_percent(c.effects.get(name)) for name in names), c.note) for c in changes]
    return table(["change", *(f">{name}" for name in names), "note"], rows, paper) if rows else "Nothing."


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * (ratio - 1):+.1f} %"
