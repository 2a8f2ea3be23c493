"""Prices behind the fleet's figures: what volumes cost and what electricity emits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flopwise.facts.price_book import VOLUME_KINDS, VolumeKind
from flopwise.fleet.carbon import JOULES_PER_KWH, footprint
from flopwise.fleet.own import OwnOffer
from flopwise.fleet.pricing import volume_usd

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts
    from flopwise.facts.offers import Offer
    from flopwise.fleet.file import Placed


@dataclass(frozen=True, slots=True, kw_only=True)
class VolumeBill:
    """A month of what a workload stores and sends, all of it with one provider; USD, and where the prices are from."""

    storage: float = 0.0
    traffic: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def usd(self) -> float:
        """Both."""
        return self.storage + self.traffic


@dataclass(frozen=True, slots=True)
class _Rate:
    usd_per_byte: float
    note: str


def carbon_kg(kwh: float, provider: str, region: str, facts: Facts) -> float:
    """What electricity at the meter emits in a region, in kg of CO2 equivalent.

    Source and assumptions: `flopwise.fleet.carbon.footprint`.
    """
    return footprint(kwh * JOULES_PER_KWH, provider, region, facts).kg


def carbon_of(kwh: float | None, offer: Offer, facts: Facts) -> float | None:
    """The same of an offer, whose own electricity may be known; None where the electricity is not."""
    if kwh is None:
        return None
    if isinstance(offer, OwnOffer) and offer.machines.kg_per_kwh is not None:
        return kwh * offer.machines.kg_per_kwh
    return carbon_kg(kwh, offer.provider, offer.region, facts)


def volume_bills(
    placed: Sequence[Placed], providers: Sequence[Mapping[str, bool]], facts: Facts
) -> dict[tuple[int, str], VolumeBill]:
    """What each workload's volumes cost with each of its `providers` (each with whether it is a cloud).

    Source: arithmetic on `data/storage_prices.csv`.
    Assumes: prices in tiers are paid at their average over the volumes of the whole fleet, as if one provider had them
    all; where a cloud's price is not known, the dearest that is known among the fleet's counts; what is kept on own
    machines, or sent to an API, is in their price.
    """
    clouds = sorted({name for held in providers for name, cloud in held.items() if cloud})
    rates: dict[VolumeKind, dict[str, _Rate]] = {}
    for kind in VOLUME_KINDS:
        total = sum(_nbytes(p, kind) for p in placed)
        rates[kind] = _rates(kind, total, clouds, facts) if total else {}
    found: dict[tuple[int, str], VolumeBill] = {}
    for number, (own, held) in enumerate(zip(placed, providers, strict=True)):
        kinds = [kind for kind in VOLUME_KINDS if _nbytes(own, kind)]
        for name in held if kinds else ():
            usd, notes = dict.fromkeys(VOLUME_KINDS, 0.0), list[str]()
            for kind in kinds:
                rate = rates[kind].get(name, _Rate(0.0, f"{_said(kind)} of {name}: taken to be in its price"))
                usd[kind] = rate.usd_per_byte * _nbytes(own, kind)
                notes.append(rate.note)
            moved = usd["egress"] + usd["inter_zone"]
            found[number, name] = VolumeBill(storage=usd["storage"], traffic=moved, notes=tuple(notes))
    return found


def _nbytes(placed: Placed, kind: VolumeKind) -> float:
    return {"storage": placed.storage_bytes, "egress": placed.egress_bytes, "inter_zone": placed.inter_zone_bytes}[kind]


def _said(kind: VolumeKind) -> str:
    return kind.replace("_", " ")


def _rates(kind: VolumeKind, total: float, clouds: Sequence[str], facts: Facts) -> dict[str, _Rate]:
    known, rates = {name: volume_usd(name, kind, total, facts) for name in clouds}, dict[str, _Rate]()
    for name, held in known.items():
        if held is not None:
            rates[name] = _Rate(held[0] / total, f"{_said(kind)} of {name}: {held[1].source}, {held[1].date}")
    dearest = max(rates, key=lambda name: rates[name].usd_per_byte, default=None)
    for name in clouds:
        if name in rates:
            continue
        unknown = f"what {name} takes for {_said(kind)} is not known"
        if dearest is None:
            rates[name] = _Rate(0.0, f"{unknown}; not counted")
        else:
            usd = rates[dearest].usd_per_byte
            rates[name] = _Rate(usd, f"{unknown}; counted as {dearest} takes it, ${usd * 1e9:.3g} a GB on average")
    return rates
