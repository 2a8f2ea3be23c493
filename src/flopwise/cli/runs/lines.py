"""Next commands on the store of an answer about recorded runs."""

from __future__ import annotations

import shlex

SHORT_ID = 8
"""Digits of a run's id that are shown."""


def runs_line(*words: str, store: str | None) -> str:
    """`flopwise runs` with `words`, on the same store; a password in its address is hidden."""
    from flopwise.records.database import address_text, store_address

    where = [] if store is None else ["--store", address_text(store_address(store))]
    return shlex.join(["flopwise", "runs", *words, *where])
