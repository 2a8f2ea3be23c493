"""What providers have: attestations (hipaa, fedramp ...) and services to integrate with (sagemaker, vertex ...)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from flopwise.errors import UnknownNameError
from flopwise.facts import book, tables

FILE = "compliance.csv"
COLUMNS: dict[str, tables.Reader] = {"provider": tables.text, "tag": tables.text, **book.ORIGIN}
KEYS = ("provider", "tag", "source", "date")


def tags(folder: Path | None = None) -> dict[str, frozenset[str]]:
    """Which providers have each tag; rows in `folder` add to the shipped ones.

    Raises:
        SpecError: a row is wrong.
    """
    held: dict[str, set[str]] = {}
    for row in book.rows(FILE, COLUMNS, KEYS, folder):
        held.setdefault(row.values["tag"].lower(), set()).add(row.values["provider"])
    return {tag: frozenset(providers) for tag, providers in held.items()}


def providers_with(wanted: Iterable[str], folder: Path | None = None) -> frozenset[str] | None:
    """Providers that have every tag `wanted`; None: nothing is asked, all do.

    Raises:
        UnknownNameError: no provider is known to have such a tag; names the nearest.
    """
    held, found = tags(folder), None
    for tag in wanted:
        whose = held.get(tag.strip().lower())
        if whose is None:
            raise UnknownNameError("tag", tag, held, "`compliance.csv` in a facts folder adds tags")
        found = whose if found is None else found & whose
    return found
