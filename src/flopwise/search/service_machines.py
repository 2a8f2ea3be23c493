"""Machines of a planned service where more or less is asked of them, or where they do more or less than planned."""

from __future__ import annotations

import numpy as np

from flopwise.ops.types import Array
from flopwise.search.answer import Candidate
from flopwise.search.deployments import PREFILL_BUSY


def replica_machines(candidate: Candidate) -> int:
    """Machines that one replica takes together; 1 where a machine holds one replica or several."""
    if "replicas" not in candidate.layout:
        return 1
    return max(1, -(-_replica_gpus(candidate) // _machine_gpus(candidate)))


def filled_frac(candidate: Candidate) -> float:
    """Share of a service's machines that its load takes; 1 where that is not known.

    Replicas count as full at `PREFILL_BUSY`; devices of a machine that hold no replica are free.
    """
    layout, busy = candidate.layout, candidate.figures.get("busy_frac")
    if busy is None or "replicas" not in layout:
        return 1.0
    full = layout["replicas"] * min(1.0, busy / PREFILL_BUSY)
    each, inside = _replica_gpus(candidate), _machine_gpus(candidate)
    machines = full * replica_machines(candidate) if each > inside else full / (inside // each)
    return float(machines / candidate.num_instances)


def _replica_gpus(candidate: Candidate) -> int:
    return int(candidate.layout["tp"] * candidate.layout["pp"] * candidate.layout["dp"])


def _machine_gpus(candidate: Candidate) -> int:
    return max(1, candidate.num_gpus // candidate.num_instances)


def machines_needed(count: int, filled: float, unit: int, times: float | Array) -> Array:
    """Machines that `times` the load needs where `count` are planned of which it takes the share `filled`.

    More load first fills what is free; less frees whole replicas. `times` may be of any shape.

    Assumes: planned machines beyond what the load takes are there for latency, so less load frees them in proportion.
    """
    load = np.asarray(times, dtype=float)

    def whole(share: Array) -> Array:
        return np.asarray(unit * np.ceil(np.round(count * share / unit, 6)))

    least = filled if float(whole(np.asarray(filled))) >= count else 1.0
    more = np.maximum(count, whole(load * filled))
    less = np.minimum(count, np.maximum(unit, whole(load * least)))
    return np.where(load >= 1, more, less)
