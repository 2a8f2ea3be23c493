"""A count of what a search ruled out, by reason, with one example each."""

from __future__ import annotations

from flopwise.search.answer import Ruled


class RuledOut:
    """Collects reasons while a search runs."""

    def __init__(self) -> None:
        """Start empty."""
        self._rows: dict[tuple[str, str], tuple[int, str]] = {}

    def add(self, reason: str, count: int, example: str = "", *, unit: str = "layouts") -> None:
        """Count `count` more of `unit` (layouts, offers, machines) for `reason`; the first example stays."""
        if count > 0:
            before, kept = self._rows.get((reason, unit), (0, ""))
            self._rows[reason, unit] = (before + int(count), kept or example)

    def rows(self) -> list[Ruled]:
        """All reasons, the most frequent first."""
        ordered = sorted(self._rows.items(), key=lambda item: -item[1][0])
        return [Ruled(reason, count, example, unit) for (reason, unit), (count, example) in ordered]
