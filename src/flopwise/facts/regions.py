"""What is known of a provider and its regions: the carbon of a kilowatt-hour, attestations and services.

Carbon is kg of CO2 equivalent for each kWh. Tags are attestations (hipaa, fedramp ...) and services to integrate with
(sagemaker, vertex ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from flopwise import units
from flopwise.errors import UnknownNameError
from flopwise.facts import tables
from flopwise.facts.tables import FactTable

ANY = "any"


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRecord:
    """Average of a year of the grid that feeds a region; `pue` of the provider's buildings there, None: not known."""

    provider: str
    region: str
    kg_per_kwh: float
    source: str
    date: str
    pue: float | None = None
    confidence: str = "medium"
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRecord:
    """An attestation or a service that a provider has."""

    provider: str
    tag: str
    source: str
    date: str
    confidence: str = "medium"
    notes: str = ""


GRIDS = FactTable(
    file="carbon.csv", meaning="the carbon of a kWh in a region, and the building's PUE", row=GridRecord,
    key=("provider", "region"),
    readers={
        "kg_per_kwh": tables.number(units.parse_count, "kg of CO2 for a kWh, from 0 to 3", high=3.0, zero=True),
        "pue": tables.number(
            units.parse_count, "a power usage effectiveness from 1 to 3", low=1.0, high=3.0, zero=True
        ),
    },
)  # fmt: skip
TAGS = FactTable(
    file="compliance.csv", meaning="an attestation or service that a provider has", row=TagRecord,
    key=("provider", "tag"),
)  # fmt: skip


def grid_of(grids: Iterable[GridRecord], provider: str, region: str) -> GridRecord:
    """The record of a provider's region, else of a pattern that fits, else the average of the world.

    The most particular wins: the provider's own before `any`, a longer pattern before a shorter one.
    """
    fitting = [
        g for g in grids if g.provider in (provider, ANY) and fnmatchcase(region.lower(), g.region.lower())
    ]  # fmt: skip
    return max(reversed(fitting), key=lambda g: (g.provider == provider, len(g.region)))


def providers_by_tag(records: Iterable[TagRecord]) -> dict[str, frozenset[str]]:
    """Which providers have each tag."""
    found: dict[str, set[str]] = {}
    for record in records:
        found.setdefault(record.tag.lower(), set()).add(record.provider)
    return {tag: frozenset(providers) for tag, providers in found.items()}


def providers_with(tags: Mapping[str, frozenset[str]], wanted: Iterable[str]) -> frozenset[str] | None:
    """Providers that have every tag `wanted`; None: nothing is asked, all do.

    Raises:
        UnknownNameError: no provider is known to have such a tag; names the nearest.
    """
    found = None
    for tag in wanted:
        providers = tags.get(tag.strip().lower())
        if providers is None:
            raise UnknownNameError("tag", tag, tags, "`compliance.csv` in a facts folder adds tags")
        found = providers if found is None else found & providers
    return found
