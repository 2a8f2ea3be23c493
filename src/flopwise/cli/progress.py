"""Progress on a terminal, for work that takes longer than a glance; silent everywhere else."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self, TextIO

import click

from flopwise.cli.render import plain_text, screen

SHOWN_AFTER_S = 0.15
"""Delay of the progress line after the start of the work; with the start of the process it appears within 0.3 s."""
REDRAWN_AFTER_S = 0.1
Report = Callable[[str, float, float | None, str], None]
LISTENER: ContextVar[Report | None] = ContextVar("flopwise.progress", default=None)
"""Function that receives progress instead of the terminal: what is done, how much, of how much, and a note."""
FIRST_PLANS: ContextVar[Callable[[Any], None] | None] = ContextVar("flopwise.first_plans", default=None)
"""Function that receives the plans of a few machines before the others are searched."""
RANKING: ContextVar[Callable[[Any], None] | None] = ContextVar("flopwise.ranking", default=None)
"""Function that receives the ranked plans of a search before the rest of the answer is computed."""
_OPEN: list[Progress] = []
"""The line that the terminal may show, if any."""


class Progress:
    """`with Progress("searching") as progress: progress(done, total)`: one line on stderr, erased at the end.

    It shows on a terminal only, and only once the work has taken `SHOWN_AFTER_S`, whether it reports by then or not.
    One that starts within another takes its place.
    """

    def __init__(self, what: str, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._clock = what, clock
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self.due_s = clock() + SHOWN_AFTER_S
        self._drawn = False
        self._has_timer = False

    def __enter__(self) -> Self:
        """Itself: it is called to report."""
        for before in [*_OPEN]:
            self.due_s = min(self.due_s, before.due_s)
            before.end()
        if self._live:
            _OPEN.append(self)
            self._start_timer()
        return self

    def __call__(self, done: float, total: float | None = None, note: str = "") -> None:
        """Report that `done` (of `total`) units of work are through."""
        listener = LISTENER.get()
        if not (self._live or listener) or self._clock() < self.due_s:
            return
        self.due_s = self._clock() + REDRAWN_AFTER_S
        if listener is not None:
            listener(self._what, done, total, note)
            return
        share = f"{100 * min(done / total, 1.0):3.0f} %" if total else f"{done:,.0f}"
        self._draw(f"{self._what} {share} {note}")

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Erase the line."""
        self.end()

    def end(self) -> None:
        """Erase the line for good."""
        if self._has_timer:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._has_timer = False
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
        self._live = self._drawn = False
        if self in _OPEN:
            _OPEN.remove(self)

    def _draw(self, text: str) -> None:
        paper = screen(self._stream)
        line = plain_text(text.rstrip())[: (paper.width or 80) - 1]
        self._stream.write(f"\r\x1b[K{paper.spell(line)}")
        self._stream.flush()
        self._drawn = True

    def _start_timer(self) -> None:
        """Have the line drawn when it is due. A signal does it: beside a thread, no process could be forked safely."""
        main = threading.current_thread() is threading.main_thread()
        if not main or not hasattr(signal, "setitimer") or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
            return
        signal.signal(signal.SIGALRM, self._begin)
        signal.setitimer(signal.ITIMER_REAL, max(self.due_s - self._clock(), 1e-3))
        self._has_timer = True

    def _begin(self, *_: Any) -> None:
        if self._live and not self._drawn:
            self._draw(f"{self._what} ...")


def clear() -> None:
    """Erase the progress line, if one is shown, before other text is written."""
    for line in [*_OPEN]:
        line.end()


def note(text: str) -> None:
    """Write a note to stderr."""
    clear()
    click.echo(screen(sys.stderr).wrap(f"note: {text}"), err=True)


def announce_compilation() -> None:
    """Tell a listener, or a terminal, why the first simulation takes seconds; silent everywhere else."""
    from flopwise.serving.sim.machine_code import cache_folder

    kept = cache_folder() is not None
    when = "once after each update" if kept else "at each start, as no folder can be written (set NUMBA_CACHE_DIR)"
    text = f"compiling the simulator; {when}"
    if (listener := LISTENER.get()) is not None:
        listener(text, 0.0, None, "")
    elif sys.stderr.isatty():
        clear()
        sys.stderr.write(f"\r\x1b[K{screen(sys.stderr).spell(text)}\n")
        sys.stderr.flush()
