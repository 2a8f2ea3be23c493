"""SkyPilot's catalog CSV: a line has both prices of a zone or region.

Its catalog of Google has machines and what is attached to them apart: the price of an `a3-highgpu-8g` there is that of
its processors and memory alone, and eight H100 have a line of their own without an instance type. Both are added up
here, zone by zone; a machine whose accelerators have no price in its zone is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from flopwise.facts import tables
from flopwise.facts.catalog import Facts
from flopwise.facts.offers import Offer
from flopwise.facts.rows import each_row
from flopwise.price_import.quotes import Line, Quote, form_of, gibibytes, num_gpus, provider_of, region_of

COLUMNS = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "Region", "SpotPrice")
NAMES = {"A100": "A100 40GB", "H100-MEGA": "H100", "A100-80GB-SXM": "A100 SXM 80GB"}
"""Names of accelerators that differ between the catalogs if the memory is not stated."""
ATTACHED = {
    "a2-highgpu": "A100", "a2-megagpu": "A100", "a2-ultragpu": "A100-80GB", "a3-highgpu": "H100",
    "a3-megagpu": "H100-MEGA", "a3-ultragpu": "H200", "a4-highgpu": "B200", "g2-standard": "L4",
    "g4-standard": "RTXPRO6000",
}  # fmt: skip
"""What SkyPilot's catalog of Google calls the accelerators of a series (sky/catalog/gcp_catalog.py)."""
NO_PRICE = 700.0
"""Placeholder price of a TPU whose price is not known."""
_MEMORY = re.compile(r"'SizeInMiB':\s*([0-9.]+)")
_usd = tables.usd_per_hour


def quotes(path: Path, provider: str | None, facts: Facts, skipped: Counter[str]) -> Iterator[Quote]:
    """The prices of a file; lines that are none are counted in `skipped` by their reason.

    Raises: SpecError: with file, row and column.
    """
    whose = provider_of(path, provider, {offer.provider for offer in facts.offers})
    types: dict[str, Offer] = {offer.instance: offer for offer in facts.offers if offer.provider == whose}
    parts = _PricedParts(Line(path, row) for row in (each_row(path, COLUMNS) if whose == "gcp" else ()))
    for at in (Line(path, row) for row in each_row(path, COLUMNS)):
        instance = at.cell("InstanceType") or (
            at.cell("AcceleratorName") if at.cell("AcceleratorName") in types else ""
        )
        usd, spot = _prices(at, slice_of_tpu=not at.cell("InstanceType"))
        if not instance:
            skipped["no instance type"] += not parts.has(at)
        elif usd is None and spot is None:
            skipped["no price"] += 1
        elif whose != "gcp" or at.cell("AcceleratorName"):
            yield _quote(at, whose, instance, usd, spot)
        else:
            hosts = [one for one in types.values() if _machine(one.instance) == instance]
            bare = not hosts or any(facts.accelerators[one.accelerator].kind == "cpu" for one in hosts)
            if bare:
                yield _quote(at, whose, instance, usd, spot)
                continue
            sums = {
                one.instance: both for one in hosts if (both := parts.machine_prices(at, one, usd, spot)) is not None
            }
            skipped["a machine whose accelerators have no price in its zone"] += not sums
            for name, (sum_usd, sum_spot) in sums.items():
                yield _quote(at, whose, name, sum_usd, sum_spot)
    skipped["the price of an accelerator that no known machine in its zone has"] += parts.num_unused
    for reason in [reason for reason, count in skipped.items() if not count]:
        del skipped[reason]


def _prices(at: Line, *, slice_of_tpu: bool) -> tuple[float | None, float | None]:
    """(on demand, spot); a spot price of 0 is how some catalogs there say that there is none."""
    usd = at.value("Price", _usd)
    spot = None if re.fullmatch(r"0*\.?0*", at.cell("SpotPrice")) else at.value("SpotPrice", _usd)
    if slice_of_tpu and at.cell("AcceleratorName").startswith("tpu-"):
        usd, spot = (None if price == NO_PRICE else price for price in (usd, spot))
    return usd, spot


def _quote(at: Line, whose: str, instance: str, usd: float | None, spot: float | None) -> Quote:
    memory = _MEMORY.search(at.cell("GpuInfo"))
    size = float(memory[1]) if memory else 0.0
    gib = (size / 1024 if size >= 1000 else size) or None  # in GiB in RunPod's, whatever the name says
    name = at.cell("AcceleratorName")
    vcpus = at.value("vCPUs", tables.positive)
    return Quote(
        provider=whose, instance=instance, region=region_of(whose, at.text("Region")),
        gpu=(name if gib else NAMES.get(name, name)) or None, gpus=at.value("AcceleratorCount", num_gpus) or 0,
        gpu_gib=gib, form=form_of(at.cell("GpuInfo")) or form_of(at.cell("InstanceType")),
        vcpus=int(vcpus) if vcpus is not None and vcpus == int(vcpus) else None,  # clouds sell parts of one, too
        ram_gib=at.value("MemoryGiB", gibibytes), on_demand=usd, spot=spot, file=at.file, line=at.line,
    )  # fmt: skip


def _machine(instance: str) -> str:
    """The machine type of one of our instances: `n1-standard-4` of `n1-standard-4+1xT4`."""
    return instance.split("+", 1)[0]


def _zone(at: Line) -> str:
    """The zone of the offer, as closely as it is named."""
    return at.cell("AvailabilityZone") or at.text("Region")


class _PricedParts:
    """The lines of a catalog that price accelerators alone, by name there, number and zone."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self._prices = {
            key: [at.value("Price", _usd), at.value("SpotPrice", _usd)]
            for at in lines
            if (key := self._key(at)) is not None
        }
        self._used: set[tuple[str, float, str]] = set()

    @property
    def num_unused(self) -> int:
        """The number of lines that were added to no machine."""
        return len(self._prices) - len(self._used)

    @staticmethod
    def _key(at: Line) -> tuple[str, float, str] | None:
        name = at.cell("AcceleratorName")
        if at.cell("InstanceType") or not name or name.startswith("tpu-"):
            return None
        return name, at.value("AcceleratorCount", num_gpus) or 0.0, _zone(at)

    def has(self, at: Line) -> bool:
        """True if the line is one of them."""
        return self._key(at) in self._prices

    def machine_prices(
        self, at: Line, known: Offer, usd: float | None, spot: float | None
    ) -> tuple[float | None, float | None] | None:
        """Both prices of a machine with its accelerators; None where they have none in its zone."""
        series = known.instance.rsplit("-", 1)[0]
        name = ATTACHED.get(series) or known.accelerator.split("-", 1)[0]
        key = (name, float(known.count), _zone(at))
        if key not in self._prices:
            return None
        self._used.add(key)
        more_usd, more_spot = self._prices[key]
        both = (
            None if usd is None or more_usd is None else usd + more_usd,
            None if spot is None or more_spot is None else spot + more_spot,
        )
        return None if both == (None, None) else both
