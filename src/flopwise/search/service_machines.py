"""Machines of a planned service where more or less is asked of them, or where they do more or less than planned."""

from __future__ import annotations

import numpy as np

from flopwise.ops.types import Array, Floats, Ints
from flopwise.search.answer import Candidate
from flopwise.search.deployments import PREFILL_BUSY


def replica_machines(candidate: Candidate) -> int:
    """Machines that one replica takes together; 1 where a machine holds one replica or several."""
    if "replicas" not in candidate.layout:
        return 1
    return int(machines_each(_replica_gpus(candidate), _machine_gpus(candidate)))


def machines_each(gpus: Ints, inside: Ints) -> Ints:
    """Machines that a replica of so many devices takes where each has `inside`, 1 at least; broadcasts."""
    return np.maximum(1, -(-gpus // inside))


def filled_frac(candidate: Candidate) -> float:
    """Share of a service's machines that its load takes; 1 where that is not known."""
    layout, busy = candidate.layout, candidate.figures.get("busy_frac")
    if busy is None or "replicas" not in layout:
        return 1.0
    each, inside = _replica_gpus(candidate), _machine_gpus(candidate)
    return min(1.0, float(loaded_frac(layout["replicas"], busy, each, inside, candidate.num_instances)))


def loaded_frac(replicas: Floats, busy_frac: Floats, gpus: Ints, inside: Ints, machines: Floats) -> Floats:
    """Share of `machines`, each of so many devices `inside`, that the load of replicas of `gpus` takes; broadcasts.

    Replicas count as full at `PREFILL_BUSY`; devices of a machine that hold no replica are free.
    """
    full = replicas * np.minimum(1.0, busy_frac / PREFILL_BUSY)
    packed = full / np.maximum(inside // gpus, 1)
    share: Floats = np.where(gpus > inside, full * machines_each(gpus, inside), packed) / machines
    return share


def _replica_gpus(candidate: Candidate) -> int:
    """Devices of one replica, with those that read its prompts."""
    layout = candidate.layout
    return int(layout["tp"] * layout["pp"] * layout["dp"] + layout.get("prefill_gpus", 0))


def _machine_gpus(candidate: Candidate) -> int:
    return max(1, candidate.num_gpus // candidate.num_instances)


def machines_needed(count: Floats, filled: Floats, unit: Ints, times: Floats) -> Array:
    """Machines that `times` the load needs where `count` are planned of which it takes the share `filled`; broadcasts.

    More load first fills what is free; less frees whole replicas, each of `unit` machines.

    Assumes: planned machines beyond what the load takes are there for latency, so less load frees them in proportion.
    """
    load = np.asarray(times, dtype=float)

    def whole(share: Floats) -> Array:
        return np.asarray(unit * np.ceil(np.round(count * share / unit, 6)))

    least = np.where(whole(filled) >= count, filled, 1.0)
    more = np.maximum(count, whole(load * filled))
    less = np.minimum(count, np.maximum(unit, whole(load * least)))
    return np.where(load >= 1, more, less)
