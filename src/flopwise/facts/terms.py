"""How providers bill: units of time, discounts for machines that stay on, storage and traffic by volume.

Units: s, USD, byte. What nobody has written down is None: never a made-up zero.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Literal

from flopwise import units
from flopwise.facts import book, tables

TERMS, VOLUMES = "purchase_terms.csv", "storage_prices.csv"
Kind = Literal["storage", "egress", "inter_zone"]
KINDS: tuple[Kind, ...] = ("storage", "egress", "inter_zone")
_seconds = tables.number(units.parse_seconds, "seconds above 0, up to a day", high=units.DAY_S)
_gigabytes = tables.number(units.parse_count, "gigabytes from 0", high=1e12, zero=True)


def _tiers(cell: str) -> tuple[tuple[float, float], ...]:
    """`0:1;0.25:0.8`: from which share of the month on, which share of the price is paid.

    Raises:
        ValueError: not of that form, not rising, or not falling in price.
    """
    allowed = "allowed: from:share pairs such as 0:1;0.25:0.8, the first from 0, shares of the price above 0 that fall"
    try:
        pairs = [tuple(float(part) for part in pair.split(":")) for pair in cell.split(";")]
        found = tuple((start, share) for start, share in pairs)
    except ValueError:
        raise ValueError(allowed) from None
    starts, shares = [start for start, _ in found], [share for _, share in found]
    rising = starts[0] == 0 and all(a < b < 1 for a, b in itertools.pairwise(starts))
    falling = shares[0] <= 1 and all(a >= b > 0 for a, b in itertools.pairwise(shares))
    if not (rising and falling and shares[-1] > 0):
        raise ValueError(allowed)
    return found


TERMS_COLUMNS: dict[str, tables.Reader] = {
    "provider": tables.text,
    "instances": tables.text,
    "billing_unit_s": _seconds,
    "minimum_s": _seconds,
    "sustained_tiers": _tiers,
    **book.ORIGIN,
}
VOLUME_COLUMNS: dict[str, tables.Reader] = {
    "provider": tables.text,
    "kind": tables.choice(*KINDS),
    "from_gb": _gigabytes,
    "usd_per_gb": book.usd_or_nothing,
    "gb_bytes": tables.whole_bytes,
    **book.ORIGIN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseTerms:
    """How instances whose names match the pattern `instances` are billed.

    `sustained_tiers`: (share of the month, share of the price paid for hours beyond it); None: no such discount.
    """

    provider: str
    instances: str
    billing_unit_s: float
    minimum_s: float
    source: str
    date: str
    sustained_tiers: tuple[tuple[float, float], ...] | None = None
    confidence: str = "medium"
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePrice:
    """What a provider takes for a month's bytes of one kind; `tiers`: (from this byte on, USD for a byte)."""

    provider: str
    kind: str
    tiers: tuple[tuple[float, float], ...]
    source: str
    date: str
    confidence: str = "medium"
    notes: str = ""


def purchase_terms(provider: str, instance: str, folder: Path | None = None) -> PurchaseTerms | None:
    """The terms of the longest pattern that fits the instance; None where nobody wrote them down.

    Raises:
        SpecError: a row is wrong.
    """
    return _terms(provider, instance, folder, book.stamp(TERMS, folder))


@lru_cache(maxsize=4096)
def _terms(provider: str, instance: str, folder: Path | None, state: book.Stamp) -> PurchaseTerms | None:
    del state
    keys = ("provider", "instances", "billing_unit_s", "minimum_s", "source", "date")
    best: PurchaseTerms | None = None
    for row in book.rows(TERMS, TERMS_COLUMNS, keys, folder):
        pattern = row.values["instances"]
        fits = row.values["provider"] == provider and fnmatchcase(instance.lower(), pattern.lower())
        if fits and (best is None or len(pattern) >= len(best.instances)):
            best = PurchaseTerms(**row.values)
    return best


def volume_price(provider: str, kind: Kind, folder: Path | None = None) -> VolumePrice | None:
    """What the provider takes for `kind`; rows in `folder` for it replace all of the shipped ones. None: not known.

    Raises:
        SpecError: a row is wrong, or the tiers do not begin at 0 and rise.
    """
    return _volume(provider, kind, folder, book.stamp(VOLUMES, folder))


@lru_cache(maxsize=256)
def _volume(provider: str, kind: Kind, folder: Path | None, state: book.Stamp) -> VolumePrice | None:
    del state
    keys = ("provider", "kind", "from_gb", "usd_per_gb", "gb_bytes", "source", "date")
    by_file: dict[str, list[tables.Row]] = {}
    for row in book.rows(VOLUMES, VOLUME_COLUMNS, keys, folder):
        if (row.values["provider"], row.values["kind"]) == (provider, kind):
            by_file.setdefault(row.file, []).append(row)
    if not by_file:
        return None
    found = list(by_file.values())[-1]
    starts = [row.values["from_gb"] for row in found]
    for row, before in zip(found, [None, *starts], strict=False):
        if (before is None and row.values["from_gb"] != 0) or (before is not None and row.values["from_gb"] <= before):
            raise row.error("from_gb", row.values["from_gb"], "allowed: tiers of a provider from 0 on, rising")
    first = found[0].values
    tiers = tuple(
        (r.values["from_gb"] * r.values["gb_bytes"], r.values["usd_per_gb"] / r.values["gb_bytes"]) for r in found
    )
    origin = {name: first[name] for name in book.ORIGIN if name in first}
    return VolumePrice(provider=provider, kind=kind, tiers=tiers, **origin)


def volume_prices(folder: Path | None = None) -> tuple[VolumePrice, ...]:
    """All of them, by provider and kind.

    Raises:
        SpecError: as `volume_price`.
    """
    keys = ("provider", "kind", "from_gb", "usd_per_gb", "gb_bytes", "source", "date")
    rows = book.rows(VOLUMES, VOLUME_COLUMNS, keys, folder)
    named = dict.fromkeys((row.values["provider"], row.values["kind"]) for row in rows)
    found = (volume_price(provider, kind, folder) for provider, kind in named)
    return tuple(price for price in found if price is not None)
