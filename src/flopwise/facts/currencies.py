"""What amounts may be shown in: US dollars, and others at the rates of one day, as rows of data/currencies.csv."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from flopwise import units
from flopwise.errors import SpecError, UnknownNameError
from flopwise.facts import tables
from flopwise.facts.tables import Day, FactTable
from flopwise.units import Currency
from flopwise.values import dataclass

DOLLAR = "USD"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrencyRecord:
    """A currency, and its amount for one euro on a day."""

    name: str  # ISO 4217
    symbol: str  # before an amount; the name and a blank where there is none of its own
    per_euro: float
    source: str
    date: Day


CURRENCIES = FactTable(
    file="currencies.csv", meaning="a currency and its rate to the euro", row=CurrencyRecord, key=("name",),
    readers={"per_euro": tables.number(units.parse_count, "units for one euro, above 0")},
)  # fmt: skip


@contextmanager
def amounts_in(text: str, known: Mapping[str, CurrencyRecord]) -> Iterator[None]:
    """Text shows amounts in the currency that `text` names, as long as the context lasts. Raises as `currency`."""
    token = units.CURRENCY.set(currency(text, known))
    try:
        yield
    finally:
        units.CURRENCY.reset(token)


def currency(text: str, known: Mapping[str, CurrencyRecord]) -> Currency:
    """The currency that `text` names: `EUR` at the rate of `known`, `EUR=1.08` at so many US dollars for one.

    Source: European Central Bank, euro foreign exchange reference rates: units for one euro; two currencies are
    compared by their rates of the same day.

    Raises: UnknownNameError: nothing is known of it. SpecError: a rate that cannot be.
    """
    name, equals, rate = text.strip().partition("=")
    name = name.strip().upper()
    row = known.get(name)
    if row is None:
        raise UnknownNameError("currency", name, known, f"allowed: {', '.join(known)}")
    if name == DOLLAR:
        if equals:
            raise SpecError(
                f"currency {text!r}: US dollars take no rate; give another currency with its rate, EUR=1.08"
            )
        return Currency(name, row.symbol)
    if equals:
        try:
            usd = float(rate)
        except ValueError:
            raise SpecError(
                f"currency {text[:40]!r}: {rate[:20]!r} is not a rate; write US dollars for one, such as {name}=1.08"
            ) from None
        if not 0 < usd < 1e6:
            raise SpecError(f"currency {text!r}: {usd:g} US dollars for one is out of range; allowed: above 0 to 1e6")
        return Currency(name, _before(row.symbol), 1 / usd, f"1 {name} = {usd:.6g} USD, as given")
    per_usd = row.per_euro / known[DOLLAR].per_euro
    return Currency(name, _before(row.symbol), per_usd, f"1 {name} = {1 / per_usd:.5g} USD ({row.source}, {row.date})")


def _before(symbol: str) -> str:
    """The symbol before an amount; a name is followed by a no-break space."""
    return f"{symbol}\N{NO-BREAK SPACE}" if symbol.isalpha() else symbol
