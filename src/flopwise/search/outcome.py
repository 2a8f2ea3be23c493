"""What a search fills in as it goes: the parts of a `Plan` before they are put together."""

from __future__ import annotations

from dataclasses import dataclass, field

from flopwise.search.answer import Candidate, Lever
from flopwise.search.ruled import RuledOut


@dataclass(slots=True)
class Answer:
    """Filled by `plan_training` and `plan_serving`, read by `plan`."""

    plans: list[Candidate] = field(default_factory=list)
    front: list[Candidate] = field(default_factory=list)
    misses: list[Candidate] = field(default_factory=list)
    levers: list[Lever] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    ruled_out: RuledOut = field(default_factory=RuledOut)
    evaluated: int = 0
