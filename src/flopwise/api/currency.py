"""`amounts_in`: text in euros or another currency; figures stay US dollars."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path


def amounts_in(currency: str, *, facts: str | Path | None = None) -> AbstractContextManager[None]:
    """A context in which verdicts, tables and reports show amounts in `currency`.

    `currency`: "EUR" at the rate of a day that `facts` know, "EUR=1.08" at so many US dollars for one. Attributes and
    `to_dict` stay US dollars; what is said may then be in the currency as well (`budget="500 EUR"`).

    Raises:
        UnknownNameError: no rate is known of it.
        SpecError: a rate that cannot be.

    Examples:
        >>> import flopwise
        >>> with flopwise.amounts_in("EUR=1.25"):
        ...     print(flopwise.serve("Llama-3.1-8B", gpu="l4", price=1).settings[-1])
        ('price', '€0.80 per accelerator and hour (given)')
    """
    from flopwise.facts import currencies
    from flopwise.facts.catalog import load_facts

    return currencies.amounts_in(currency, load_facts(facts).currencies)
