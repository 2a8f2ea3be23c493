"""Does it fit: memory per GPU with its interval, against what the device has, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from flopwise.cost.intervals import ErrorBand
from flopwise.cost.quick import QuickFormula
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.provenance import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change: what to do, what it saves on the fullest GPU, what is left, and whether that fits."""

    change: str
    saves_bytes: float
    total_bytes: float
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryAnswer:
    """Bytes per GPU on the fullest rank; `low_bytes` to `high_bytes` is its 10-90 % interval. None where not known.

    Source: the memory model of the task. Assumes: as there; see `assumptions`.
    """

    model: Model
    task: str
    per_gpu_bytes: float
    low_bytes: float
    high_bytes: float
    items: tuple[tuple[str, float], ...]
    worst_rank: str
    host_bytes: float = 0.0  # offloaded, per GPU
    accelerator: Accelerator | None
    capacity_bytes: float | None
    usable_bytes: float | None  # what the engine takes of it at most; the whole device in training
    fits: bool | None
    fits_probability: float | None
    remedies: tuple[Remedy, ...] = ()  # those that suffice first, then by what they save
    band: ErrorBand
    facts: Facts  # what the answer stands on
    quick: tuple[QuickFormula, ...]
    settings: tuple[tuple[str, str], ...]  # what was asked, and what was assumed where it was not
    assumptions: tuple[str, ...]
    moments: tuple[tuple[str, float], ...] = ()  # training: bytes at each moment of a step, the fullest first
    kv_capacity_tokens: float | None = None
    max_concurrency: float | None = None
    max_whole_contexts: float | None = None
    kinds: Mapping[str, Kind] = field(default_factory=dict)  # of settings that were not given, by name

    @property
    def margin_bytes(self) -> float | None:
        """What is left of what may be used; negative when it does not fit."""
        return None if self.usable_bytes is None else self.usable_bytes - self.per_gpu_bytes


def fit_figures(
    total: float,
    band: ErrorBand,
    device: Accelerator | None,
    usable: float | None,
    assumptions: tuple[str, ...],
    *,
    floor: float,
) -> dict[str, Any]:
    """Fields of a `MemoryAnswer`: `total` bytes with their interval, against `usable` bytes of `device`.

    `floor`: bytes that are counted exactly (weights, states, cache), less than which nothing takes.

    Source: `ErrorBand`. Assumes: as there.
    """
    low, high = band.interval(total, floor=floor)
    if not band.rows:
        assumptions += (f"the interval is provisional: no measurements stand behind {band.name} yet",)
    return {
        "per_gpu_bytes": total, "low_bytes": float(low), "high_bytes": float(high), "band": band,
        "accelerator": device, "capacity_bytes": None if device is None else float(device.hbm_bytes),
        "usable_bytes": usable, "assumptions": assumptions,
        "fits_probability": None if usable is None else float(band.probability_at_most(total, usable, floor=floor)),
    }  # fmt: skip
