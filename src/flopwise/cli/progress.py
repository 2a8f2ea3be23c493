"""Progress on a terminal, for work that takes longer than a glance; silent everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Self, TextIO

from flopwise.cli.render import plain_text, screen

SHOWN_AFTER_S = 0.5
REDRAWN_AFTER_S = 0.1
Report = Callable[[str, float, float | None, str], None]
LISTENER: ContextVar[Report | None] = ContextVar("flopwise.progress", default=None)
"""Who is told of progress instead of the terminal: what is done, how much of it, of how much, and a note."""


class Progress:
    """`with Progress("searching") as progress: progress(done, total)`: one line on stderr, erased at the end.

    It shows on a terminal only, and only once the work has taken half a second.
    """

    def __init__(self, what: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the watch; nothing is drawn yet."""
        self._what, self._clock = what, clock
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._due_s = clock() + SHOWN_AFTER_S
        self._drawn = False

    def __enter__(self) -> Self:
        """Itself: it is called to report."""
        return self

    def __call__(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report that `done` (of `total`) units of work are through."""
        listener = LISTENER.get()
        if not (self._live or listener) or self._clock() < self._due_s:
            return
        self._due_s = self._clock() + REDRAWN_AFTER_S
        if listener is not None:
            listener(self._what, done, total, note)
            return
        share = f"{100 * min(done / total, 1.0):3.0f} %" if total else f"{done:,.0f}"
        paper = screen(self._stream)
        line = plain_text(f"{self._what} {share} {note}".rstrip())[: (paper.width or 80) - 1]
        self._stream.write(f"\r\x1b[K{paper.spell(line)}")
        self._stream.flush()
        self._drawn = True

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Erase the line."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def announce_compilation() -> None:
    """Say on a terminal why the first simulation takes seconds; silent everywhere else."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{screen(sys.stderr).spell('compiling the simulator; once after each update')}\n")
        sys.stderr.flush()
