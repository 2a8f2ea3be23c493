"""Writing what is recorded of a program that goes on, whatever becomes of the store."""

from __future__ import annotations

import warnings
from functools import partialmethod
from pathlib import Path
from typing import Any

from flopwise.records.model import Run


class SafeWriter:
    """The writer of a run, of which no call raises: one that fails ends the recording with a warning."""

    def __init__(self, store: str | Path | None, run: Run, what: str) -> None:
        """`what` is not recorded (`this run is`) where the store cannot be written."""
        self._writer: Any = None
        try:
            from flopwise.records.writer import Writer  # noqa: PLC0415 - a database's libraries, once a run begins

            self._writer = Writer(store, run)
        except Exception as error:  # noqa: BLE001 - no store is worth a run
            warnings.warn(f"flopwise: {what} not recorded: {error}", RuntimeWarning, stacklevel=4)

    @property
    def is_open(self) -> bool:
        """True if what is written arrives."""
        return self._writer is not None

    def _safely(self, method: str, *args: Any, **named: Any) -> None:
        if self._writer is not None:
            try:
                getattr(self._writer, method)(*args, **named)
            except Exception as error:  # noqa: BLE001 - no store is worth a run
                self._writer = None
                warnings.warn(f"flopwise: recording ends here: {error}", RuntimeWarning, stacklevel=4)

    add = partialmethod(_safely, "add")
    event = partialmethod(_safely, "event")
    flush = partialmethod(_safely, "flush")
    end = partialmethod(_safely, "end")
