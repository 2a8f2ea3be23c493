"""What a shell offers at the press of Tab for a value: models, accelerators, instances, providers ..."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flopwise.facts.catalog import Facts

NAMES: dict[str, Callable[[Facts], Iterable[str]]] = {
    "model": lambda facts: facts.models.names,
    "gpu": lambda facts: facts.accelerators,
    "vendor": lambda facts: (a.vendor for a in facts.accelerators.values()),
    "instance": lambda facts: (offer.instance for offer in facts.offers),
    "provider": lambda facts: (offer.provider for offer in facts.offers),
    "region": lambda facts: (offer.region for offer in facts.offers),
    "engine": lambda facts: facts.engines,
    "stack": lambda facts: facts.stacks,
    "format": lambda facts: facts.weight_formats,
    "currency": lambda facts: facts.currencies,
}
"""Names by what an option's help calls its value, or by the name of an argument."""
