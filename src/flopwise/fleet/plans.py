"""The plan of each workload as its file holds it: the way that was chosen first, then what else was considered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flopwise.fleet.candidates import Carried
    from flopwise.fleet.results import Chosen
    from flopwise.search.answer import Candidate, Plan

KEPT_IN_ALL, MOST, LEAST = 3000, 20, 3
"""Candidates in the files of a whole fleet, at most and at least in one file: a thousand workloads stay a few MB."""


def plans_of(chosen: Sequence[Chosen]) -> dict[str, Plan]:
    """By workload; none for machines that people work on."""
    most = min(MOST, max(LEAST, KEPT_IN_ALL // max(1, len(chosen))))
    return {held.item.placed.name: plan_of(held, held.item.plan, most) for held in chosen if held.item.plan is not None}


def plan_of(held: Chosen, whole: Plan, most: int) -> Plan:
    """`whole` with what the fleet took as the first candidates, then the cheapest others by the fleet's own bill."""
    taken = {id(w.candidate): w.candidate for w, _ in sorted(held.parts, key=lambda p: p[0] is not held.way)}
    others = [w.candidate for w in held.item.ways if id(w.candidate) not in taken]
    kept = [*taken.values(), *_varied(others)[: max(0, most - len(taken))]]
    first = len(taken)
    told = (
        f"the first {'candidate is' if first == 1 else f'{first} candidates are'} what the fleet takes; then come "
        f"{len(kept) - first:,} of {len(others):,} others, by what a month of them costs in the fleet"
    )
    return msgspec.structs.replace(
        whole,
        plans=[msgspec.structs.replace(c, rank=n) for n, c in enumerate(kept, start=1)],
        front=whole.front[:most],
        fronts={},
        demoted=[],
        misses=whole.misses[:LEAST],
        assumptions=[told, *_deadline(held.item), *whole.assumptions],
    )


def _varied(others: Sequence[Candidate]) -> list[Candidate]:
    """One of each kind of machine, bought one way: a list of twenty regions of the same would tell nothing."""
    seen: set[tuple[str, str, str]] = set()
    kept = []
    for found in others:
        key = (found.provider, found.instance, found.purchase)
        if key not in seen:
            seen.add(key)
            kept.append(found)
    return kept


def _deadline(item: Carried) -> list[str]:
    wanted = item.wanted
    if wanted is None or wanted.deadline_s is None or not item.placed.ends:
        return []
    return [f"each run ends within its window of {wanted.deadline_s / 3600:,.1f} h"]
