"""Choices that cannot matter in a large allocation: others of the same provider, bought alike, are cheaper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from flopwise.units import HOURS_PER_MONTH

if TYPE_CHECKING:
    from flopwise.fleet.allocate import Choice
    from flopwise.fleet.file import Cap, Rules

LARGE = 600
"""Choices from which some are left out: below, all are weighed."""
KEPT = 3
"""Of each workload, provider, purchase and set of quotas: the cheapest."""


def undominated(choices: Sequence[Choice], rules: Rules, kept: int = KEPT) -> list[Choice]:
    """The choices worth weighing, in their order; all of them in a small allocation.

    Kept of each group: the cheapest, the one with most and the one with fewest instances among those within a tenth of
    it (what is split fits better in small parts, a quota holds more of few), and of the reserved machines that several
    workloads may share the kinds that serve them all best.

    Assumes: no policy is met by paying more for the same provider, purchase and quotas.
    """
    if len(choices) < LARGE:
        return list(choices)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, choice in enumerate(choices):
        groups[choice.workload, choice.provider, choice.purchase, _quotas(choice, rules.caps)].append(number)
    whole = [c.instances * (c.usd_each + rules.carbon_usd_per_kg * c.kg_each) for c in choices]
    shared = [
        w * min(1.0, c.busy_hours / HOURS_PER_MONTH) if c.pooled else w for w, c in zip(whole, choices, strict=True)
    ]
    keep: set[int] = set()
    for numbers in groups.values():
        ordered = sorted(numbers, key=whole.__getitem__)
        keep.update(ordered[:kept])
        close = [n for n in ordered if whole[n] <= 1.1 * whole[ordered[0]]]
        keep.add(max(close, key=lambda n: choices[n].instances))
        keep.add(min(close, key=lambda n: choices[n].instances))
    keep.update(_in_pools(choices, shared))
    return [choices[n] for n in sorted(keep)]


def _in_pools(choices: Sequence[Choice], shared: Sequence[float]) -> list[int]:
    """Choices of the reserved machines on which all workloads together would cost least, each paying for its hours.

    A workload that a kind of machine has no choice for counts as on its cheapest choice of all.
    """
    best: dict[int, float] = {}
    on: dict[tuple[str, str, str, str], dict[int, tuple[float, int]]] = defaultdict(dict)
    for n, choice in enumerate(choices):
        best[choice.workload] = min(shared[n], best.get(choice.workload, shared[n]))
        if choice.pooled and choice.busy_hours < PART_TIME:
            held = on[choice.machine].get(choice.workload)
            if held is None or shared[n] < held[0]:
                on[choice.machine][choice.workload] = (shared[n], n)
    saved = {
        machine: sum(min(0.0, usd - 2 * best[workload]) for workload, (usd, _) in rows.items())
        for machine, rows in on.items()
    }
    return [n for machine in sorted(saved, key=saved.__getitem__)[:SHARED] for _, n in on[machine].values()]


SHARED = 6
"""Kinds of reserved machines that every workload may share."""
PART_TIME = 600.0
"""Busy hours a month beyond which a machine has little left to share."""


def _quotas(choice: Choice, caps: Sequence[Cap]) -> tuple[int, ...]:
    """The quotas that count the choice."""
    return tuple(
        n
        for n, cap in enumerate(caps)
        if (cap.provider is None or fnmatchcase(choice.provider.lower(), cap.provider.lower()))
        and (cap.instance is None or fnmatchcase(choice.instance.lower(), cap.instance.lower()))
    )
