"""Does it fit: memory per GPU with its interval, against what the device has, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from flopwise.cost.intervals import ErrorBand
from flopwise.cost.quick import QuickFormula
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.pictures import BarPicture, Picture
from flopwise.provenance import Kind
from flopwise.results import Result, attributes, entries, interval, notes
from flopwise.units import GIB, format_alternatives, format_chance, format_gib, format_interval, format_times
from flopwise.values import dataclass

LEAST_CHANCE = 0.001
"""Probability to fit below which a job certainly does not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change: its name, the bytes it saves on the fullest GPU, the bytes left, and whether these fit.

    `slower_frac`: the price of a change that the device does by software: the time that it adds to a step which decodes
    as many sequences as were asked for, over the time without it; None: it has no such price.
    """

    change: str
    saves_bytes: float
    total_bytes: float
    fits: bool
    items: tuple[tuple[str, float], ...] = ()  # what is left, item by item
    slower_frac: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MemoryAnswer(Result):
    """Bytes per GPU on the fullest rank; `low_bytes` to `high_bytes` is its 10-90 % interval. None where not known.

    Source: the memory model of the task. Assumes: as there; see `assumptions`.
    """

    table = "items"
    model: Model
    task: str
    num_gpus: int  # of all ranks
    per_gpu_bytes: float
    low_bytes: float
    high_bytes: float
    items: tuple[tuple[str, float], ...]
    worst_rank: str
    stages: tuple[tuple[str, tuple[tuple[str, float], ...]], ...] = ()  # training: items of each pipeline stage
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

    def picture(self) -> Picture:
        """The items beside the usable memory of the device, as a picture."""
        usable = None if self.usable_bytes is None else ("may be used", self.usable_bytes / GIB)
        rows = [(name, nbytes / GIB) for name, nbytes in self.items if nbytes] + [("total", self.per_gpu_bytes / GIB)]
        return BarPicture(title=self.verdict, unit="GiB", rows=rows, limit=usable)

    @property
    def can_run(self) -> bool:
        """False where it certainly does not fit: less than one such job in a thousand would run."""
        return self.fits is not False or self.fits_probability is None or self.fits_probability >= LEAST_CHANCE

    @property
    def margin_bytes(self) -> float | None:
        """Usable memory minus memory needed, in bytes; negative where it does not fit."""
        return None if self.usable_bytes is None else self.usable_bytes - self.per_gpu_bytes

    @property
    def capacity_ends(self) -> tuple[float, float]:
        """The least and the most that the cache holds, over the estimate; no cache in training."""
        return 1.0, 1.0

    @property
    def room(self) -> str:
        """The number of sequences that fit, as a sentence; empty in training."""
        return ""

    @property
    def more_gpus(self) -> str:
        """The fewest accelerators that hold what is asked, and their layout; empty where none are known."""
        return ""

    @property
    def odds_note(self) -> str:
        """The share of unstated inputs in the chance that it runs, in words; empty in serving."""
        return ""

    @property
    def verdict(self) -> str:
        """The answer in a sentence: fit, its probability, and the changes that make it fit."""
        gib, usable, chance = format_gib, self.usable_bytes, self.fits_probability
        if self.accelerator is not None and usable is not None and self.fits is None:
            rest = f"{gib(self.per_gpu_bytes)} of {gib(usable)}"
            return (
                f"Weights, gradients and states take {rest}; activations are not known, so neither is whether it fits."
            )
        if self.accelerator is None or usable is None or chance is None:
            ends = format_interval(self.low_bytes, self.high_bytes, gib)
            what = "Training" if self.task == "train" else "Serving"
            size = f"{gib(self.per_gpu_bytes)} per accelerator {ends}"
            return f"{what} takes {size}. Name a device (--gpu) to see whether it fits."
        where = f"{self.num_gpus:,} x {self.accelerator.name}" + " in training" * (self.task == "train")
        each = f"{gib(self.per_gpu_bytes)} of {gib(usable)}" + " each" * (self.num_gpus > 1)
        odds = f"{format_chance(chance)} chance that it runs{self.odds_note}"
        if self.fits:
            return f"Fits {where}: {each}, {odds}.{self.room}"
        fitting = sorted((one for one in self.remedies if one.fits), key=lambda one: one.slower_frac is not None)
        enough = [one.change + _price_text(one) for one in fitting][:3]
        if (self.task == "train" or not enough) and (more := self.more_gpus):
            enough.append(more)
        mend = f"It would fit with {format_alternatives(enough)}." if enough else "No single change makes it fit."
        return f"Does not fit {where}: {each}, {odds}. {mend}"

    def document(self) -> dict[str, Any]:
        """The memory as the JSON that scripts rely on."""
        return {
            **attributes(self, "model=model.name task gpu=accelerator.name per_gpu_bytes low_bytes high_bytes"),
            "items": entries(self.items, "bytes"),
            "worst_rank": self.worst_rank,
            "stages": [
                {"name": name, "bytes": sum(size for _, size in items), "items": entries(items, "bytes")}
                for name, items in self.stages
            ],
            "moments": entries(self.moments, "bytes"),
            **attributes(self, "host_bytes capacity_bytes usable_bytes margin_bytes fits fits_probability"),
            "remedies": [attributes(remedy, "change saves_bytes fits slower_frac") for remedy in self.remedies],
            "interval": interval(self.band),
            **attributes(self, "kv_capacity_tokens max_concurrency max_whole_contexts"),
            "quick": [rule.document() for rule in self.quick],
            **notes(self),
        }


def _price_text(remedy: Remedy) -> str:
    """The price of a change, in words; empty without one."""
    return "" if remedy.slower_frac is None else f" (each token takes {format_times(1 + remedy.slower_frac)} as long)"


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
