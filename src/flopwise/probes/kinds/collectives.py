"""Messages between the local devices: NCCL between GPUs, gloo between processes on a CPU.

Bytes are those of the whole result; the rate is the bus bandwidth, as in NCCL's tests: in an all-reduce every link
carries 2 (n-1)/n of the bytes, in an all-gather (n-1)/n.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import IO, cast

from flopwise.probes.backend import Bench, NothingToMeasureError
from flopwise.probes.timing import Stopwatch, Task
from flopwise.probes.torch_backend import TorchBackend

SIZES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 26)
QUICK_SIZES = (1 << 16, 1 << 24)
CARD_SIZES = (1 << 12, 1 << 20, 1 << 24, 1 << 28, 1 << 30)
MOST_PROCESSES = 4
"""Maximum number of processes on a CPU; more would share its cores."""
START_S = 60.0
"""Time limit for all processes to load PyTorch and to connect, in seconds."""
ANSWER_S = 30.0
"""Time limit for an operation beyond its measuring time, in seconds."""


class Ranks:
    """A group of processes that exchange messages on request."""

    def __init__(self, library: str, ranks: int) -> None:
        """`library` of messages: nccl or gloo."""
        self._library, self._ranks = library, ranks
        self._folder = tempfile.TemporaryDirectory(prefix="flopwise-probe-")
        self._processes = list[subprocess.Popen[str]]()
        self._answers = SimpleQueue[str]()
        self._fault = ""

    def samples(self, operation: str, nbytes: int, watch: Stopwatch) -> list[float]:
        """Seconds of each repetition, measured in the first process.

        Raises: RuntimeError: the processes could not be started, or one has ended.
        """
        request = json.dumps({"operation": operation, "bytes": nbytes, "seconds": watch.seconds})
        patience_s = max(min(watch.seconds + ANSWER_S, watch.end - watch.clock()), watch.seconds)
        seconds: list[float] = json.loads(self._answer(request, patience_s))
        return seconds

    def _answer(self, line: str, seconds: float) -> str:
        """The answer of the first process to a line; after a fault all calls raise it. Raises RuntimeError."""
        try:
            if not self._fault:
                stdin = cast("IO[str]", self._processes[0].stdin)
                stdin.write(line + "\n")
                stdin.flush()
                if answer := self._answers.get(timeout=seconds):
                    return answer
                self._fault = self._reason("a process ended")
        except Empty:
            self._fault = self._reason("no answer in time")
        except OSError as fault:
            self._fault = self._reason(str(fault))
        self.close()
        raise RuntimeError(self._fault)

    def close(self) -> None:
        """End the processes and remove their files."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
        self._processes = []
        self._folder.cleanup()

    def start(self, seconds: float) -> None:
        """Start the processes and wait up to `seconds` until they are connected; a failure is raised later."""
        with suppress(RuntimeError):
            try:
                self._start()
            except OSError as fault:
                self._fault = self._reason(str(fault))
            self._answer("", seconds)

    def _start(self) -> None:
        place = Path(self._folder.name)
        own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if sys.platform == "linux":
            own["GLOO_SOCKET_IFNAME"] = "lo"
        source = str(Path(__file__).parents[3])
        paths = os.pathsep.join(p for p in (source, os.environ.get("PYTHONPATH", "")) if p)
        for rank in range(self._ranks):
            words = [self._library, str(rank), str(self._ranks), str(place / "meeting")]
            with (place / f"{rank}.log").open("w", encoding="utf-8") as log:
                self._processes.append(
                    subprocess.Popen(  # noqa: S603 - this interpreter, with words of our own
                        [sys.executable, "-m", "flopwise.probes.rank", *words], text=True, stderr=log,
                        stdin=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        env={**os.environ, **own, "PYTHONPATH": paths},
                    )
                )  # fmt: skip
        Thread(target=_pass_lines, args=(self._processes[0].stdout, self._answers), daemon=True).start()

    def _reason(self, fault: str) -> str:
        """The fault, with the last line of a process's log."""
        for log in sorted(Path(self._folder.name).glob("*.log")):
            with suppress(OSError):
                if lines := log.read_text(encoding="utf-8", errors="replace").strip().splitlines():
                    fault = lines[-1][:200]
        return f"messages between {self._ranks} processes by {self._library}: {fault}"


def _pass_lines(stream: IO[str], lines: SimpleQueue[str]) -> None:
    """Queue each line, and an empty one at the end."""
    with suppress(ValueError, OSError):  # closed while it was read
        for line in stream:
            lines.put(line)
    lines.put("")


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """All-reduce and all-gather by size."""
    backend = bench.backend
    if not isinstance(backend, TorchBackend):
        raise NothingToMeasureError("collectives need PyTorch")
    card = backend.device.kind in {"cuda", "rocm"}
    if not card and (backend.device.kind == "mps" or sys.platform == "win32"):
        raise NothingToMeasureError("there is only one device")
    ranks = len(backend.peers()) + 1 if card else max(2, min(MOST_PROCESSES, backend.device.threads or 1))
    if ranks < 2:
        raise NothingToMeasureError("there is only one GPU")
    group = Ranks("nccl" if card else "gloo", ranks)
    sizes = QUICK_SIZES if bench.quick else CARD_SIZES if card else SIZES
    group.start(min(START_S, bench.left_s))
    try:
        yield [
            Task(
                name=name, unit="B/s", work=share * (ranks - 1) / ranks * nbytes, dtype="fp32",
                shape={"bytes": nbytes, "ranks": ranks}, needs_bytes=2.0 * nbytes,
                timer=partial(group.samples, name, nbytes), note="" if card else "processes of one machine, by gloo",
            )
            for name, share in (("all_reduce", 2), ("all_gather", 1))
            for nbytes in sizes
        ]  # fmt: skip
    finally:
        group.close()
