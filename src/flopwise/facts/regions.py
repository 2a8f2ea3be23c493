"""What is known of a provider and its regions: the carbon of a kilowatt-hour, attestations and services.

Carbon is kg of CO2 equivalent for each kWh. Tags are attestations (hipaa, fedramp ...) and services to integrate with
(sagemaker, vertex ...).
"""

from __future__ import annotations

from flopwise import units
from flopwise.facts import tables
from flopwise.facts.tables import FactTable, SourcedRow
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GridRecord(SourcedRow):
    """Average of a year of the grid that feeds a region; `pue` of the provider's buildings there, None: not known."""

    provider: str
    region: str
    kg_per_kwh: float
    pue: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagRecord(SourcedRow):
    """An attestation or a service that a provider has."""

    provider: str
    tag: str


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
