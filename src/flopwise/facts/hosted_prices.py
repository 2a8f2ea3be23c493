"""What hosted models cost: USD for a million tokens in and out, by provider and model, dated."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flopwise.errors import UnknownNameError, fold
from flopwise.facts import book, tables

FILE = "api_prices.csv"
COLUMNS: dict[str, tables.Reader] = {
    "provider": tables.text,
    "model": tables.text,
    "name": tables.text,
    "input_usd_per_mtok": book.usd_or_nothing,
    "output_usd_per_mtok": book.usd,
    "cached_usd_per_mtok": book.usd_or_nothing,
    "regions": tables.text,
    **book.ORIGIN,
}
KEYS = ("provider", "name", "input_usd_per_mtok", "output_usd_per_mtok", "source", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedPrice:
    """One model at one provider. `model`: its name in the catalog, None of a closed one; `name`: the provider's."""

    provider: str
    name: str
    input_usd_per_mtok: float
    output_usd_per_mtok: float
    source: str
    date: str
    model: str | None = None
    cached_usd_per_mtok: float | None = None  # of prompt tokens that the provider still holds
    regions: str | None = None  # where it is answered, as the region of an offer; None: not known
    confidence: str = "medium"
    notes: str = ""


def hosted_prices(folder: Path | None = None) -> tuple[HostedPrice, ...]:
    """All hosted models; a row in `folder` replaces the shipped one of its provider and name.

    Raises:
        SpecError: a row is wrong.
    """
    held = {(r.values["provider"], r.values["name"]): r for r in book.rows(FILE, COLUMNS, KEYS, folder)}
    return tuple(HostedPrice(**row.values) for row in held.values())


def hosted_for(model: str, folder: Path | None = None) -> tuple[HostedPrice, ...]:
    """Who hosts a model, by its catalog name or the provider's own name for it, cheapest output first.

    Empty where nobody's price is known.
    """
    wanted = fold(model)
    found = [p for p in hosted_prices(folder) if wanted in {fold(p.name), fold(p.model or p.name)}]
    return tuple(sorted(found, key=lambda p: (p.output_usd_per_mtok, p.input_usd_per_mtok, p.provider)))


def hosted_price(provider: str, model: str, folder: Path | None = None) -> HostedPrice:
    """The price of one model at one provider.

    Raises:
        UnknownNameError: the provider does not host it, as far as is known; names who does, or what it hosts.
    """
    for price in hosted_for(model, folder):
        if price.provider == provider.lower():
            return price
    whole = hosted_prices(folder)
    known = [f"{p.provider} {p.model or p.name}" for p in whole]
    raise UnknownNameError("hosted model", f"{provider} {model}", known)
