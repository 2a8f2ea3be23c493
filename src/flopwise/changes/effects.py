"""What single changes do: bytes that they save, and headline figures over what they were."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from flopwise.cost.memory_answer import Remedy
from flopwise.errors import FlopwiseError
from flopwise.ops.types import Floats
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.cost.cluster import Cluster

NUDGE = 1.1
"""Rates are raised by this factor."""
Headline = dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One change, and each headline figure after it over the figure before; None where either is unknown or 0."""

    change: str
    effects: dict[str, float | None]
    note: str = ""

    @property
    def size(self) -> float:
        """The largest relative effect on any figure."""
        return max((abs(math.log(e)) for e in self.effects.values() if e), default=0.0)


MemoryAfter = tuple[Mapping[str, Floats], float, bool]
"""Memory after a change: its items, their sum, and whether it fits."""


def ranked_remedies(
    now_bytes: float, changes: Iterable[tuple[str, Callable[[], MemoryAfter]]],
    slower: Mapping[str, float] | None = None,
) -> list[Remedy]:  # fmt: skip
    """The changes that save memory: those that fit first, then by what they save.

    Each change is a name and a call that gives the memory after it; one that raises an error of ours is no remedy.
    `slower`: `Remedy.slower_frac` of those that have one, by name.
    """
    prices = slower or {}
    saving = []
    for change, memory_after in changes:
        try:
            after, total, fits = memory_after()
        except FlopwiseError:  # a model without a projection to adapt, say
            continue
        if total < now_bytes:
            items = tuple((name, float(np.ravel(size)[0])) for name, size in after.items())
            saving.append(
                Remedy(
                    change=change,
                    saves_bytes=now_bytes - total,
                    total_bytes=total,
                    fits=fits,
                    items=items,
                    slower_frac=prices.get(change),
                )
            )
    return sorted(saving, key=lambda remedy: (not remedy.fits, -remedy.saves_bytes))


def ranked_sensitivities(
    base: Headline, changes: Iterable[tuple[str, Callable[[], tuple[Headline, str]]]]
) -> tuple[Sensitivity, ...]:
    """The effect of each change that the question itself would accept, the largest first.

    Each change is a name and a call that gives the headline after it and a note.
    """
    effects = []
    for change, headline_after in changes:
        try:
            after, note = headline_after()
        except FlopwiseError:
            continue
        ratios = {name: _ratio(after[name], base[name]) for name in base}
        effects.append(Sensitivity(change=change, effects=ratios, note=note))
    return tuple(sorted(effects, key=lambda sensitivity: -sensitivity.size))


def faster_clusters(cluster: Cluster, num_gpus: int) -> Iterator[tuple[str, Cluster]]:
    """The cluster with each rate that the job can feel raised by a tenth."""
    rates, fabric = cluster.rates, cluster.fabric

    def with_value(key: str, factor: float) -> Cluster:
        value = {name: v * factor if name.startswith(key) else v for name, v in rates.value.items()}
        return replace(cluster, rates=replace(rates, value=value))

    def with_level(index: int) -> Cluster:
        levels = list(fabric.levels)
        levels[index] = replace(levels[index], bytes_per_s=levels[index].bytes_per_s * NUDGE)
        return replace(cluster, fabric=replace(fabric, levels=tuple(levels)))

    peak = {name: rate * NUDGE for name, rate in rates.peak.items()}
    yield "peak compute +10 %", replace(cluster, rates=replace(rates, peak=peak))
    faster = replace(rates, hbm_bytes_per_s=rates.hbm_bytes_per_s * NUDGE)
    yield "memory bandwidth +10 %", replace(cluster, rates=faster)
    yield "achieved share of matrix products +10 %", with_value("matmul_frac", NUDGE)
    yield "fixed time of a kernel -9 %", with_value("kernel_s", 1 / NUDGE)
    if num_gpus > 1:
        yield f"{fabric.link_kind} bandwidth +10 %", with_level(0)
    if num_gpus > fabric.domain:
        yield "network bandwidth +10 %", with_level(len(fabric.levels) - 1)


def _ratio(after: float | None, before: float | None) -> float | None:
    return None if not after or not before else after / before
