"""A plan while it is made: its parts, and a log of what was rejected on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from flopwise.search.answer import Candidate, Floor, Lever, Rejection, TargetCost


class RejectionLog:
    """Counts what a search rejects by reason, with one example each."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, reason: str, count: int, example: str = "", *, unit: str = "layouts") -> None:
        """Count `count` more of `unit` (layouts, offers, machines) for `reason`; the first example stays."""
        if count > 0:
            before, kept = self._rows.get((reason, unit), (0, ""))
            self._rows[reason, unit] = (before + int(count), kept or example)

    def rows(self) -> list[Rejection]:
        """All reasons, the most frequent first."""
        ordered = sorted(self._rows.items(), key=lambda item: -item[1][0])
        return [Rejection(reason, count, example, unit) for (reason, unit), (count, example) in ordered]


@dataclass(slots=True)
class PlanDraft:
    """Filled by `plan_training` and `plan_serving`; its fields are those of `Plan`."""

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
    ruled_out: RejectionLog = field(default_factory=RejectionLog)
    evaluated: int = 0
