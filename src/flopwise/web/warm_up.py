"""The simulator is compiled once after each update, which takes seconds: for who opened a page, before it is needed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

from flopwise.web.pool import process_environment
from flopwise.web.questions import Question

LINE = ("simulate", "Llama-3.1-8B", "--gpu", "h100", "--rate", "1", "--duration", "5s", "--json")
"""A question that compiles what services are played with; questions that need the code meanwhile wait for it."""
SIMULATION = Question("simulate", LINE, {})
"""The same, for processes that then load what is compiled."""
NICE = 10


class SimulatorWarmUp:
    """A process of low priority that has the simulator compiled; nothing where it is already."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._started = asyncio.Event()

    def begin(self) -> None:
        """Start the warm-up, once."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-P", "-m", "flopwise", *LINE, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
                env=process_environment(),
            )  # fmt: skip
        except OSError:  # nothing is compiled ahead
            return
        finally:
            self._started.set()
        with contextlib.suppress(AttributeError, OSError):  # not everywhere, or ended already
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
        await self._process.wait()

    async def end(self) -> None:
        """Return once it has ended; not before it began."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def close(self) -> None:
        """End the process; not while it starts, which asyncio does not stop."""
        if self._task is None:
            return
        await self._started.wait()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await asyncio.wait([self._task])
