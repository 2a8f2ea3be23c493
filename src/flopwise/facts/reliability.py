"""How often machines fail or are taken away: published records of large runs, and of spot capacity.

What a record says is kept as published (failures in so many days on so many GPUs, a share of instances a month); rates
follow from it. Of spot capacity every provider has a rate: its accelerator's, else that of all of its machines, else
the one assumed of those who publish none. None of these is zero, for a rate of zero is a price that is too good.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from flopwise import units
from flopwise.data import DATA
from flopwise.errors import UnknownNameError, fold
from flopwise.facts import tables

FAILURES, SPOT = "failures.csv", "spot.csv"
ANY = "any"
PERIODS_S = {"hour": units.HOUR_S, "day": units.DAY_S, "month": 365.25 / 12 * units.DAY_S}
_share = tables.number(units.parse_count, "a share above 0 and below 1", high=0.999999, zero=True)
_ORIGIN: dict[str, tables.Reader] = {
    "source": tables.text,
    "date": tables.date,
    "confidence": tables.confidence,
    "notes": tables.text,
}
FAILURE_COLUMNS: dict[str, tables.Reader] = {
    "name": tables.text,
    "aliases": tables.text,
    "gpus": tables.count,
    "days": tables.positive,
    "failures": tables.positive,
    "accelerator": tables.text,
    **_ORIGIN,
}
SPOT_COLUMNS: dict[str, tables.Reader] = {
    "provider": tables.text,
    "accelerator": tables.text,
    "least_frac": _share,
    "most_frac": _share,
    "period": tables.choice(*PERIODS_S),
    **_ORIGIN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRecord:
    """Interruptions of jobs on `gpus` accelerators in `days` days."""

    name: str
    gpus: int
    days: float
    failures: float
    source: str
    date: str
    confidence: str = "medium"
    aliases: str = ""
    accelerator: str = ""
    notes: str = ""

    @property
    def mtbf_gpu_s(self) -> float:
        """Mean time between failures of one accelerator with its share of the machine around it, in s."""
        return self.gpus * self.days * units.DAY_S / self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotRecord:
    """The share of a provider's spot instances that it takes back within a period; accelerator None: of all kinds.

    `provider` ANY: what is assumed of those who publish no rate.
    """

    provider: str
    least_frac: float
    most_frac: float
    period: str
    source: str
    date: str
    confidence: str = "medium"
    accelerator: str | None = None
    notes: str = ""

    @property
    def interruptions_per_s(self) -> float:
        """Rate of one instance, from the middle of the published range: -ln(1 - share) / period."""
        return -math.log1p(-(self.least_frac + self.most_frac) / 2) / PERIODS_S[self.period]

    @property
    def share(self) -> str:
        """What is taken for granted."""
        each = "an hour" if self.period == "hour" else f"a {self.period}"
        return f"{100 * self.least_frac:.0f} to {100 * self.most_frac:.0f} % of instances are taken back {each}"

    @property
    def text(self) -> str:
        """The same, and how sure it is."""
        return f"{self.share} ({self.source}, {self.date}, {self.confidence} confidence)"


def failure_records(folder: Path | None = None) -> Mapping[str, FailureRecord]:
    """All records of failures by name, those in `folder` laid over the shipped ones.

    Raises:
        SpecError: a row is wrong; names file, row and column.
    """
    return {name: record for where in _places(folder, FAILURES) for name, record in _failures(where).items()}


def failure_record(name: str, folder: Path | None = None) -> FailureRecord:
    """The record of that name.

    Raises:
        UnknownNameError: there is none; names the nearest.
    """
    held = failure_records(folder)
    for record in reversed(list(held.values())):
        if fold(name) in {fold(spelling) for spelling in (record.name, *record.aliases.split(";")) if spelling}:
            return record
    raise UnknownNameError("record of failures", name, held, f"allowed: {', '.join(held)}")


def spot_records(folder: Path | None = None) -> tuple[SpotRecord, ...]:
    """All records of spot interruptions; one in `folder` replaces the shipped one of its provider and accelerator.

    Raises:
        SpecError: a row is wrong; names file, row and column.
    """
    held = {
        (r.provider, r.accelerator): r
        for where in _places(folder, SPOT)
        for r in _spot(where, where.stat().st_mtime_ns)
    }
    return tuple(held.values())


def spot_record(provider: str, accelerator: str, folder: Path | None = None) -> SpotRecord:
    """The record of this provider's accelerator, else of all of its machines, else what is assumed of any provider."""
    held = [r for r in spot_records(folder) if r.provider in (provider, ANY) and r.accelerator in (accelerator, None)]
    return max(held, key=lambda r: (r.provider != ANY, r.accelerator is not None))


def _places(folder: Path | None, file: str) -> list[Path]:
    own = [folder / file] if folder is not None and (folder / file).is_file() else []
    return [DATA / file, *own]


def _failures(path: Path) -> dict[str, FailureRecord]:
    rows = tables.read_table(path, FAILURE_COLUMNS, keys=("name", "gpus", "days", "failures", "source", "date"))
    return {row.values["name"]: FailureRecord(**row.values) for row in rows}


@lru_cache(maxsize=8)
def _spot(path: Path, changed: int) -> list[SpotRecord]:
    """The rows of a file as it was when it was `changed`: plans ask for them often."""
    del changed
    keys = ("provider", "least_frac", "most_frac", "period", "source", "date")
    found = []
    for row in tables.read_table(path, SPOT_COLUMNS, keys=keys):
        least, most = row.values["least_frac"], row.values["most_frac"]
        if least > most or not most:
            raise row.error("most_frac", most, "allowed: above 0, and no less than least_frac")
        found.append(SpotRecord(**row.values))
    return found
