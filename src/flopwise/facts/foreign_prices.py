"""Prices as others write them, line by line: gpuhunt's CSV and SkyPilot's catalog CSV.

SkyPilot's catalog of Google has machines and what is attached to them apart: the price of an `a3-highgpu-8g` there is
that of its processors and memory alone, and eight H100 have a line of their own without an instance type. Both are
added up here, zone by zone; a machine whose accelerators have no price in its zone is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError, nearest_names
from flopwise.facts import tables
from flopwise.facts.rows import each_row

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer

GPUHUNT = ("instance_name", "location", "price", "gpu_count", "gpu_name", "spot")
SKYPILOT = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice")
PROVIDERS = {"lambdalabs": "lambda", "vastai": "vast", "cudocompute": "cudo", "do": "digitalocean"}
"""What they call providers that have another name here."""
SKYPILOT_NAMES = {"A100": "A100 40GB", "H100-MEGA": "H100", "A100-80GB-SXM": "A100 SXM 80GB"}
"""Names that stand for another accelerator there than here, where the memory is not told."""
ATTACHED = {
    "a2-highgpu": "A100", "a2-megagpu": "A100", "a2-ultragpu": "A100-80GB", "a3-highgpu": "H100",
    "a3-megagpu": "H100-MEGA", "a3-ultragpu": "H200", "a4-highgpu": "B200", "g2-standard": "L4",
    "g4-standard": "RTXPRO6000",
}  # fmt: skip
"""What SkyPilot's catalog of Google calls the accelerators of a series (sky/catalog/gcp_catalog.py)."""
NO_PRICE = 700.0
"""What stands for the price of a TPU there that is not known."""
GIB = 2**30
_FORM = re.compile(r"pcie|nvl(?!\d)|sxm", re.IGNORECASE)
_MEMORY = re.compile(r"'SizeInMiB':\s*([0-9.]+)")
_ZONE = re.compile(r"^([a-z]+-[a-z]+\d+)-[a-z]$")
_whole = tables.whole(lambda value, _: float(str(value)), "a whole number from 0 to 1,000,000", low=0, high=10**6)
_gpus = tables.number(lambda value, _: float(str(value)), "a number of GPUs from 0 to 100,000", high=1e5, zero=True)
_size = tables.number(lambda value, _: float(str(value)), "gigabytes above 0", high=1e7)
_usd = tables.usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """One line of a foreign file; None: it does not say. `file` and `line` name it in messages."""

    provider: str
    instance: str
    region: str
    gpu: str | None
    gpus: float  # below 1: a part of one
    gpu_gib: float | None = None
    form: str = ""  # pcie, sxm or nvl, where that is told
    vcpus: int | None = None
    ram_gib: float | None = None
    on_demand: float | None = None
    spot: float | None = None
    file: str = "prices"
    line: int = 0


def gpuhunt_quotes(path: Path, provider: str | None, facts: Facts, skipped: Counter[str]) -> Iterator[Quote]:
    """Quotes of gpuhunt's layout: a line is one price, on demand or spot.

    Raises:
        SpecError: with file, row and column.
    """
    known = {offer.provider for offer in facts.offers}
    for at in (Line(path, row) for row in each_row(path, GPUHUNT)):
        spot = at.cell("spot").lower()
        if spot not in ("true", "false"):
            raise at.error("spot", at.cell("spot"), "allowed: True, False")
        usd = at.read("price", _usd)
        if usd is None:
            skipped["no price"] += 1
            continue
        whose = provider_of(path, at.cell("provider") or provider, known)
        yield Quote(
            provider=whose, instance=at.text("instance_name"), region=region(whose, at.text("location")),
            gpu=at.cell("gpu_name") or None,
            gpus=at.read("gpu_count", _gpus) or 0, gpu_gib=at.read("gpu_memory", _size),
            form=form_of(at.cell("instance_name")), vcpus=at.read("cpu", _whole), ram_gib=at.read("memory", _size),
            file=str(path), line=at.line, **{"spot" if spot == "true" else "on_demand": usd},
        )  # fmt: skip


def skypilot_quotes(path: Path, provider: str | None, facts: Facts, skipped: Counter[str]) -> Iterator[Quote]:
    """Quotes of SkyPilot's layout: a line has both prices of a zone or region.

    Raises:
        SpecError: with file, row and column.
    """
    whose = provider_of(path, provider, {offer.provider for offer in facts.offers})
    types: dict[str, Offer] = {offer.instance: offer for offer in facts.offers if offer.provider == whose}
    parts = _Parts(Line(path, row) for row in (each_row(path, SKYPILOT) if whose == "gcp" else ()))
    for at in (Line(path, row) for row in each_row(path, SKYPILOT)):
        instance = at.cell("InstanceType") or (
            at.cell("AcceleratorName") if at.cell("AcceleratorName") in types else ""
        )
        usd, spot = _skypilot_prices(at, slice_of_tpu=not at.cell("InstanceType"))
        if not instance:
            skipped["no instance type"] += not parts.has(at)
        elif usd is None and spot is None:
            skipped["no price"] += 1
        elif whose != "gcp" or at.cell("AcceleratorName"):
            yield _skypilot_quote(at, whose, instance, usd, spot)
        else:
            hosted = [one for one in types.values() if _machine(one.instance) == instance]
            bare = not hosted or any(facts.accelerators[one.accelerator].kind == "cpu" for one in hosted)
            if bare:
                yield _skypilot_quote(at, whose, instance, usd, spot)
                continue
            found = {one.instance: both for one in hosted if (both := parts.added(at, one, usd, spot)) is not None}
            skipped["a machine whose accelerators have no price in its zone"] += not found
            for name, (whole, whole_spot) in found.items():
                yield _skypilot_quote(at, whose, name, whole, whole_spot)
    skipped["the price of an accelerator that no known machine in its zone has"] += parts.unused
    for reason in [reason for reason, count in skipped.items() if not count]:
        del skipped[reason]


def _skypilot_prices(at: Line, *, slice_of_tpu: bool) -> tuple[float | None, float | None]:
    """(on demand, spot); a spot price of 0 is how some catalogs there say that there is none."""
    usd = at.read("Price", _usd)
    spot = None if re.fullmatch(r"0*\.?0*", at.cell("SpotPrice")) else at.read("SpotPrice", _usd)
    if slice_of_tpu and at.cell("AcceleratorName").startswith("tpu-"):
        usd, spot = (None if price == NO_PRICE else price for price in (usd, spot))
    return usd, spot


def _skypilot_quote(at: Line, whose: str, instance: str, usd: float | None, spot: float | None) -> Quote:
    told = _MEMORY.search(at.cell("GpuInfo"))
    size = float(told[1]) if told else 0.0
    gib = (size / 1024 if size >= 1000 else size) or None  # in GiB in RunPod's, whatever the name says
    name = at.cell("AcceleratorName")
    return Quote(
        provider=whose, instance=instance, region=region(whose, at.text("Region")),
        gpu=(name if gib else SKYPILOT_NAMES.get(name, name)) or None, gpus=at.read("AcceleratorCount", _gpus) or 0,
        gpu_gib=gib, form=form_of(at.cell("GpuInfo")) or form_of(at.cell("InstanceType")), vcpus=at.vcpus("vCPUs"),
        ram_gib=at.read("MemoryGiB", _size), on_demand=usd, spot=spot, file=at.file, line=at.line,
    )  # fmt: skip


def form_of(text: str) -> str:
    """How a card is built, where a name says so."""
    found = _FORM.search(text)
    return found[0].lower() if found else ""


def _machine(instance: str) -> str:
    """The machine type of one of our instances: `n1-standard-4` of `n1-standard-4+1xT4`."""
    return instance.split("+", 1)[0]


class _Parts:
    """The lines of a catalog that price accelerators alone, by name there, number and zone."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._held = {
            key: [at.read("Price", _usd), at.read("SpotPrice", _usd)]
            for at in lines
            if (key := self._key(at)) is not None
        }
        self._used: set[tuple[str, float, str]] = set()

    @property
    def unused(self) -> int:
        """How many were added to no machine."""
        return len(self._held) - len(self._used)

    @staticmethod
    def _key(at: Line) -> tuple[str, float, str] | None:
        name = at.cell("AcceleratorName")
        if at.cell("InstanceType") or not name or name.startswith("tpu-"):
            return None
        return name, at.read("AcceleratorCount", _gpus) or 0.0, at.zone

    def has(self, at: Line) -> bool:
        """Whether the line is one of them."""
        return self._key(at) in self._held

    def added(
        self, at: Line, known: Offer, usd: float | None, spot: float | None
    ) -> tuple[float | None, float | None] | None:
        """Both prices of a machine with its accelerators; None where they have none in its zone."""
        series = known.instance.rsplit("-", 1)[0]
        name = ATTACHED.get(series) or known.accelerator.split("-", 1)[0]
        key = (name, float(known.count), at.zone)
        if key not in self._held:
            return None
        self._used.add(key)
        more_usd, more_spot = self._held[key]
        both = (
            None if usd is None or more_usd is None else usd + more_usd,
            None if spot is None or more_spot is None else spot + more_spot,
        )
        return None if both == (None, None) else both


class Line:
    """A line of a foreign file, whose cells are read with its place in every message."""

    def __init__(self, path: Path, row: Mapping[str, str]) -> None:
        self._row, self.file = row, str(path)
        self.line = int(row["id"].removeprefix("line ")) if row["id"].startswith("line ") else 0
        self._place = tables.Row({}, str(path), self.line)

    def error(self, column: str, given: object, allowed: str) -> SpecError:
        """As `tables.Row.error`."""
        return self._place.error(column, given, allowed)

    @property
    def zone(self) -> str:
        """Where it is sold, as closely as it says."""
        return self.cell("AvailabilityZone") or self.text("Region")

    def cell(self, column: str) -> str:
        """A cell as it stands, empty where there is no such column."""
        return self._row.get(column, "")

    def text(self, column: str) -> str:
        """A cell that must be filled."""
        if not self._row[column]:
            raise self.error(column, "", "it must be filled")
        return self._row[column]

    def read(self, column: str, reader: tables.Reader) -> Any:
        """A cell's value, None where it is empty or not there."""
        cell = self._row.get(column, "")
        if not cell:
            return None
        try:
            return reader(cell)
        except (ValueError, OverflowError) as fault:
            reason = str(fault)
            allowed = reason[reason.rfind("allowed: ") :] if "allowed: " in reason else "that is no number"
            raise self.error(column, cell, allowed) from None

    def vcpus(self, column: str) -> int | None:
        """Whole vCPUs; clouds that sell parts of one (0.5) say so with a fraction, which is then left out."""
        found = self.read(column, tables.positive)
        return int(found) if found is not None and found == int(found) else None


def provider_of(path: Path, given: str | None, known: Collection[str]) -> str:
    """Whose prices a file has: as given, else its own name, else its folder's (SkyPilot's aws/vms.csv).

    A provider that is `given`, by a column of the file or the user, may be a new one; a file's name must be known.

    Raises:
        SpecError: it is no name of a provider, or a file is called like none that is known.
    """
    place = path.parent.name if path.stem.lower() in ("vms", "instances") else path.stem
    name = (given or place).strip().lower()
    name = PROVIDERS.get(name, name)
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name) or (not given and name not in {*known, *PROVIDERS.values()}):
        near = nearest_names(name, [*sorted(known), *PROVIDERS])
        hint = f" (nearest: {', '.join(near)})" if near else ""
        raise SpecError(
            f"{path}: whose prices are these? {name[:40]!r} is no provider{'' if given else ' that is known'}{hint}; "
            "give --provider, such as aws, or any name for a new one"
        )
    return name


def region(provider: str, place: str) -> str:
    """The region of a place, which for Google may be a zone."""
    zone = _ZONE.fullmatch(place) if provider == "gcp" else None
    return zone[1] if zone else place
