"""What a search fills in as it goes: the parts of a `Plan` before they are put together."""

from __future__ import annotations

from dataclasses import dataclass, field

from flopwise.search.answer import Candidate, Floor, Lever, TargetCost
from flopwise.search.ruled import RuledOut


@dataclass(slots=True)
class Answer:
    """Filled by `plan_training` and `plan_serving`, read by `plan`."""

    plans: list[Candidate] = field(default_factory=list)
    front: list[Candidate] = field(default_factory=list)
    misses: list[Candidate] = field(default_factory=list)
    fronts: dict[str, list[Candidate]] = field(default_factory=dict)
    demoted: list[Candidate] = field(default_factory=list)
    target_costs: list[TargetCost] = field(default_factory=list)
    floors: list[Floor] = field(default_factory=list)
    simulated: int = 0
    levers: list[Lever] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)
    ruled_out: RuledOut = field(default_factory=RuledOut)
    evaluated: int = 0
