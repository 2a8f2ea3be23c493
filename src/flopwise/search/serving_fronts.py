"""Fronts of cost against latency over all that was estimated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from flopwise.search.pareto import pareto_front

if TYPE_CHECKING:
    from flopwise.search.answer import Candidate
    from flopwise.search.serving_option import Option
    from flopwise.search.workload import Resolved


def front(options: Sequence[Option]) -> list[Candidate]:
    """Cost against the time of a request, or of the job: all that max_gpus allows."""
    return _candidates(options, _front(options, "seconds", None))


def fronts(options: Sequence[Option], workload: Resolved) -> dict[str, list[Candidate]]:
    """Cost against TTFT and against TPOT, each among what meets the other targets with the asked confidence."""
    return {
        name: _candidates(options, _front(options, f"{name}_s", others)) for name, others in _others(workload).items()
    }


def front_nodes(options: Sequence[Option], workload: Resolved) -> set[int]:
    """The identities of the nodes that have a point on one of the fronts."""
    columns: dict[str, Resolved | None] = {f"{name}_s": others for name, others in _others(workload).items()}
    every = [_front(options, column, others) for column, others in {**columns, "seconds": None}.items()]
    return {id(options[owner].node) for points in every for owner, _ in points}


def _others(workload: Resolved) -> dict[str, Resolved]:
    """For each latency with a front, the targets that are held beside it."""
    return {name: msgspec.structs.replace(workload, **{name: None}) for name in ("ttft", "tpot")}


def _front(options: Sequence[Option], column: str, others: Resolved | None) -> list[tuple[int, int]]:
    """(option, row) of the whole front, cheapest first; `others`: the targets that are held beside."""
    costs, times, owners, rows = [], [], [], []
    for index, option in enumerate(options):
        if others is None:
            fits = np.flatnonzero(option.instances * option.node.count <= option.workload.max_gpus)
        else:
            fits = np.flatnonzero(option.allowed(option.odds(others)))
        values = option.seconds if column == "seconds" else getattr(option.found, column)
        cost, seconds = option.cost_usd[fits], values[fits]
        own = pareto_front(cost, seconds)
        costs.append(cost[own])
        times.append(seconds[own])
        rows.append(fits[own])
        owners.append(np.full(own.size, index))
    if not options:
        return []
    picked = pareto_front(np.concatenate(costs), np.concatenate(times))
    all_rows, all_owners = np.concatenate(rows), np.concatenate(owners)
    return list(zip(all_owners[picked].tolist(), all_rows[picked].tolist(), strict=True))


def _candidates(options: Sequence[Option], points: list[tuple[int, int]]) -> list[Candidate]:
    return [options[i].candidate(row, options[i].odds(), n) for n, (i, row) in enumerate(points, start=1)]
