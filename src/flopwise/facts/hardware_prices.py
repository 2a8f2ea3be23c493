"""What accelerators cost to buy: cards and whole servers, USD, dated; consumer, workstation and data-centre grade."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flopwise.facts import book, tables

FILE = "onprem.csv"
UNITS, GRADES = ("card", "server"), ("datacentre", "workstation", "consumer")
COLUMNS: dict[str, tables.Reader] = {
    "accelerator": tables.text,
    "unit": tables.choice(*UNITS),
    "grade": tables.choice(*GRADES),
    "count": tables.count,
    "usd": book.usd,
    "least_usd": book.usd,
    "most_usd": book.usd,
    **book.ORIGIN,
}
KEYS = ("accelerator", "unit", "grade", "count", "usd", "source", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwarePrice:
    """Price of a `unit` (a card without its host, or a whole server) that holds `count` accelerators."""

    accelerator: str  # canonical name
    unit: str
    grade: str
    count: int
    usd: float
    source: str
    date: str
    least_usd: float | None = None
    most_usd: float | None = None
    confidence: str = "medium"
    notes: str = ""


def hardware_prices(folder: Path | None = None) -> tuple[HardwarePrice, ...]:
    """All prices; a row in `folder` replaces the shipped one of its accelerator and unit.

    Raises:
        SpecError: a row is wrong, or its range does not hold its price.
    """
    held: dict[tuple[str, str], HardwarePrice] = {}
    for row in book.rows(FILE, COLUMNS, KEYS, folder):
        price = HardwarePrice(**row.values)
        if not (price.least_usd or price.usd) <= price.usd <= (price.most_usd or price.usd):
            raise row.error("usd", price.usd, "allowed: from least_usd to most_usd")
        held[price.accelerator, price.unit] = price
    return tuple(held.values())


def hardware_price(accelerator: str, folder: Path | None = None) -> HardwarePrice | None:
    """The price of an accelerator by its canonical name: of a whole server where one is known, else of the card."""
    found = [price for price in hardware_prices(folder) if price.accelerator == accelerator]
    return max(found, key=lambda price: price.unit == "server", default=None)
