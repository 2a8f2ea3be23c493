"""`amounts_in`: text in euros or another currency; figures stay US dollars."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from flopwise.facts import currencies
from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes


@takes()
def amounts_in(currency: str, *, facts: str | Path | None = None) -> AbstractContextManager[None]:
    """Show amounts in another currency within a `with` block: in verdicts, tables and reports.

    Attributes and `to_dict` stay in US dollars; arguments may name the currency as well (`budget="500 EUR"`).

    Args:
        currency: "EUR" at the dated rate that the facts have, or "EUR=1.08" at 1.08 US dollars for one.

    Raises:
        UnknownNameError: no rate is known of it.
        SpecError: a rate that cannot be.

    Examples:
        >>> import flopwise
        >>> with flopwise.amounts_in("EUR=1.25"):
        ...     print(flopwise.serve("Llama-3.1-8B", gpu="l4", price=1).settings[-1])
        ('price', '€0.80 per accelerator-hour (given)')
    """
    return currencies.amounts_in(currency, load_facts(facts).currencies)
