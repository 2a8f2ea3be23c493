"""What things cost besides instances (hosted models, machines to buy, storage, traffic), and how instances are billed.

Units: s, USD, byte. What nobody has written down is None: never a made-up zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

from flopwise import units
from flopwise.facts import tables
from flopwise.facts.accelerators import GRADES
from flopwise.facts.tables import Count, FactTable, Row, SourcedRow, Usd, UsdFromZero, WholeBytes
from flopwise.values import dataclass

VolumeKind = Literal["storage", "egress", "inter_zone"]
VOLUME_KINDS: tuple[VolumeKind, ...] = ("storage", "egress", "inter_zone")
_seconds = tables.number(units.parse_seconds, "seconds above 0, up to a day", high=units.DAY_S)
_gigabytes = tables.number(units.parse_count, "gigabytes from 0", high=1e12, zero=True)


def _tiers(cell: str) -> tuple[tuple[float, float], ...]:
    """`0:1;0.25:0.8`: from which share of the month on, which share of the price is paid.

    Raises: ValueError: not of that form, not rising, or not falling in price.
    """
    allowed = "allowed: from:share pairs such as 0:1;0.25:0.8, the first from 0, shares of the price above 0 that fall"
    try:
        pairs = [tuple(float(part) for part in pair.split(":")) for pair in cell.split(";")]
        tiers = tuple((start, share) for start, share in pairs)
    except ValueError:
        raise ValueError(allowed) from None
    starts, shares = [start for start, _ in tiers], [share for _, share in tiers]
    rising = starts[0] == 0 and all(a < b < 1 for a, b in itertools.pairwise(starts))
    falling = shares[0] <= 1 and all(a >= b > 0 for a, b in itertools.pairwise(shares))
    if not (rising and falling and shares[-1] > 0):
        raise ValueError(allowed)
    return tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseTerms(SourcedRow):
    """The billing terms of instances whose names match the pattern `instances`.

    `sustained_tiers`: (share of the month, share of the price paid for hours beyond it); None: no such discount.
    """

    provider: str
    instances: str
    billing_unit_s: float
    minimum_s: float
    sustained_tiers: tuple[tuple[float, float], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeTier(SourcedRow):
    """One tier of a provider's price for a month's bytes of one kind."""

    provider: str
    kind: VolumeKind
    from_gb: float
    usd_per_gb: UsdFromZero
    gb_bytes: WholeBytes  # of the gigabytes that the provider bills in


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumePrice(SourcedRow):
    """A provider's monthly price of bytes of one kind; `tiers`: (from this byte on, USD for a byte)."""

    provider: str
    kind: str
    tiers: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedPrice(SourcedRow):
    """One hosted model at one provider, USD for a million tokens.

    `model`: its name in the catalog, None of a closed one; `name`: the provider's.
    """

    provider: str
    name: str
    input_usd_per_mtok: UsdFromZero
    output_usd_per_mtok: Usd
    model: str | None = None
    cached_usd_per_mtok: UsdFromZero | None = None  # of prompt tokens that the provider still holds
    regions: str | None = None  # where it is answered, as the region of an offer; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwarePrice(SourcedRow):
    """Price of a `unit` (a card without its host, or a whole server) that holds `count` accelerators."""

    accelerator: str  # canonical name
    unit: Literal["card", "server"]
    grade: str
    count: Count
    usd: Usd
    least_usd: Usd | None = None
    most_usd: Usd | None = None


def _check_rising(row: Row, tier: VolumeTier, before: Sequence[VolumeTier]) -> None:
    same = [t.from_gb for t in before if (t.provider, t.kind) == (tier.provider, tier.kind)]
    if tier.from_gb <= same[-1] if same else tier.from_gb != 0:
        raise row.error("from_gb", tier.from_gb, "allowed: tiers of a provider from 0 on, rising")


def _check_range(row: Row, price: HardwarePrice, _: Sequence[HardwarePrice]) -> None:
    if not (price.least_usd or price.usd) <= price.usd <= (price.most_usd or price.usd):
        raise row.error("usd", price.usd, "allowed: from least_usd to most_usd, which may be unknown")


TERMS = FactTable(
    file="purchase_terms.csv", meaning="how instances are billed: unit and minimum time, sustained-use discounts",
    row=PurchaseTerms, key=("provider", "instances"),
    readers={"billing_unit_s": _seconds, "minimum_s": _seconds, "sustained_tiers": _tiers},
)  # fmt: skip
VOLUMES = FactTable(
    file="storage_prices.csv", meaning="a price tier of storage, egress or traffic between zones",
    row=VolumeTier, key=("provider", "kind", "from_gb"), group=("provider", "kind"), check=_check_rising,
    readers={"kind": tables.choice(*VOLUME_KINDS), "from_gb": _gigabytes},
)  # fmt: skip
HOSTED = FactTable(
    file="api_prices.csv", meaning="a hosted model: USD for a million tokens in and out; `regions` where it answers",
    row=HostedPrice, key=("provider", "name"),
)  # fmt: skip
HARDWARE = FactTable(
    file="onprem.csv", meaning="the purchase price of an accelerator, or of a server with several",
    row=HardwarePrice, key=("accelerator", "unit"), check=_check_range,
    readers={"grade": tables.choice(*GRADES)},
)  # fmt: skip


def volume_prices(rows: Iterable[VolumeTier]) -> dict[tuple[str, str], VolumePrice]:
    """The prices that tiers make, by provider and kind; each price's tiers begin at 0 and rise."""
    tiers: dict[tuple[str, str], list[VolumeTier]] = {}
    for tier in rows:
        tiers.setdefault((tier.provider, tier.kind), []).append(tier)
    return {
        (provider, kind): VolumePrice(
            provider=provider,
            kind=kind,
            tiers=tuple((t.from_gb * t.gb_bytes, t.usd_per_gb / t.gb_bytes) for t in pairs),
            source=pairs[0].source,
            date=pairs[0].date,
            confidence=pairs[0].confidence,
            notes=pairs[0].notes,
        )
        for (provider, kind), pairs in tiers.items()
    }
