"""Sequential and random writing and reading of a disk, bypassing the page cache where the system allows it.

In a temporary file of limited size, which is always removed at the end: where possible it never has a name.
"""

from __future__ import annotations

import errno
import mmap
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from flopwise.probes.backend import Bench, NothingToMeasureError
from flopwise.probes.timing import Run, Task
from flopwise.values import replace

CHUNK = 16 << 20
BLOCK = 4096
SIZE, QUICK_SIZE = 1 << 30, 256 << 20
FREE_FRAC = 0.1
"""Share of the free space that the file may take."""
FILL_S, QUICK_FILL_S = 6.0, 1.0
"""Time limit for writing the file on a slow disk, in seconds."""
DEPTH = 16
BATCH = 16
"""Random requests per thread and repetition."""
MOUNTS = Path("/proc/self/mounts")


class Scratch:
    """An unnamed file in a folder, which bypasses the page cache where possible."""

    def __init__(self, folder: Path, size: int, fill_s: float = FILL_S) -> None:
        """A fault is raised on first use; `fill_s`: time limit for writing the file before it is read."""
        self._fill_s = fill_s
        self._size, self._filled, self._next = size // CHUNK * CHUNK, 0, 0
        self._handle, self._fault, self.note, self._drops = -1, "", "", False
        self._path: Path | None = None
        self._chunk = mmap.mmap(-1, CHUNK)
        self._chunk.write(os.urandom(CHUNK))
        self._draw = random.Random(0)  # noqa: S311 - places on a disk
        self._pool = ThreadPoolExecutor(DEPTH)
        try:
            self._open(folder)
        except OSError as fault:
            self._fault = f"{folder}: a file cannot be created there ({fault.strerror or fault})"

    def _open(self, folder: Path) -> None:
        handle, name = tempfile.mkstemp(prefix=".flopwise-probe-", dir=folder)
        self._handle, self._path = handle, Path(name)
        direct = getattr(os, "O_DIRECT", 0)
        how = "page cache included"
        if direct:
            with suppress(OSError):
                past = os.open(name, os.O_RDWR | direct)
                os.close(handle)
                self._handle, how = past, "past the page cache"
        if how == "page cache included" and sys.platform == "darwin":
            import fcntl  # noqa: PLC0415 - not on every system

            fcntl.fcntl(self._handle, fcntl.F_NOCACHE, 1)
            how = "past the page cache"
        self._drops = how == "page cache included" and hasattr(os, "posix_fadvise")
        if self._drops:
            how = "page cache dropped before it is read"
        if os.name == "posix":
            self._path.unlink()
            self._path = None
        kind = _file_system(folder)
        memory = ", which is memory, not a disk" if kind in {"tmpfs", "ramfs"} else ""
        self.note = f"{kind}{memory}, {how}" if kind else how

    def close(self) -> None:
        """Remove the file."""
        self._pool.shutdown()
        if self._handle >= 0:
            os.close(self._handle)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def row_writer(self) -> Run:
        """A function that writes the next chunk and waits until it is on the disk."""
        self._check()

        def run() -> None:
            _whole(os.pwrite, self._handle, self._chunk, self._next)
            _sync(self._handle)
            self._filled = max(self._filled, self._next + CHUNK)
            self._next = (self._next + CHUNK) % self._size

        return run

    def row_reader(self) -> Run:
        """A function that reads the next chunk."""
        self._fill()
        target, place = mmap.mmap(-1, CHUNK), 0

        def run() -> None:
            nonlocal place
            self._drop(place, CHUNK)
            _whole(_pread, self._handle, target, place)
            place = (place + CHUNK) % self._filled

        return run

    def random_run(self, what: str, depth: int) -> Run:
        """A function that runs BATCH requests in each of `depth` threads."""
        self._fill()
        blocks = [mmap.mmap(-1, BLOCK) for _ in range(depth)]
        for block in blocks:
            block.write(os.urandom(BLOCK))
        act = os.pwrite if what == "write" else _pread

        def requests(block: mmap.mmap) -> None:
            for _ in range(BATCH):
                place = self._draw.randrange(self._filled // BLOCK) * BLOCK
                if what == "read":
                    self._drop(place, BLOCK)
                _whole(act, self._handle, block, place)

        def run() -> None:
            if depth == 1:
                requests(blocks[0])
            else:
                list(self._pool.map(requests, blocks))
            if what == "write":
                _sync(self._handle)

        return run

    def _check(self) -> None:
        if self._fault:
            raise OSError(errno.EACCES, self._fault)

    def _fill(self) -> None:
        """Write the file, or as much as the time allows: blocks that were never written are not read from disk."""
        self._check()
        write, end = self.row_writer(), time.monotonic() + self._fill_s
        while self._filled < self._size and (time.monotonic() < end or not self._filled):
            self._next = self._filled
            write()

    def _drop(self, place: int, length: int) -> None:
        if self._drops:
            os.posix_fadvise(self._handle, place, length, os.POSIX_FADV_DONTNEED)


def _pread(handle: int, target: mmap.mmap, place: int) -> int:
    return os.preadv(handle, [target], place)


def _whole(act: Callable[[int, mmap.mmap, int], int], handle: int, data: mmap.mmap, place: int) -> None:
    if act(handle, data, place) != len(data):
        raise OSError(errno.EIO, "a request was not completed; check that the disk is not full")


def _sync(handle: int) -> None:
    getattr(os, "fdatasync", os.fsync)(handle)


def _file_system(folder: Path) -> str:
    """The type of a folder's file system; empty if it is not known."""
    kinds = dict[str, str]()
    with suppress(OSError):
        for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
            _, place, kind, *_ = line.split(" ")
            kinds[place] = kind
    whole = folder.resolve()
    return next((kinds[str(above)] for above in (whole, *whole.parents) if str(above) in kinds), "")


@contextmanager
def tasks(bench: Bench) -> Iterator[list[Task]]:
    """Sequential access with large requests, random access with small ones, one and several at once."""
    if not hasattr(os, "preadv"):
        raise NothingToMeasureError("this system cannot read a file at an offset")
    try:
        free = shutil.disk_usage(bench.folder).free
    except OSError as fault:
        raise NothingToMeasureError(f"{bench.folder}: {fault.strerror or fault}") from None
    size = int(min(QUICK_SIZE if bench.quick else SIZE, FREE_FRAC * free))
    if size < 2 * CHUNK:
        raise NothingToMeasureError(f"{bench.folder}: only {free >> 20} MiB are free, and a probe uses at most a tenth")
    scratch = Scratch(bench.folder, size, min(QUICK_FILL_S if bench.quick else FILL_S, bench.left_s))
    try:
        rows = [
            Task(name="disk_write", unit="B/s", work=CHUNK, shape={"bytes": CHUNK}, prepare=scratch.row_writer),
            Task(name="disk_read", unit="B/s", work=CHUNK, shape={"bytes": CHUNK}, prepare=scratch.row_reader),
        ]
        rows += [
            Task(
                name=f"disk_random_{what}", unit="B/s", work=float(BLOCK * BATCH * depth),
                shape={"bytes": BLOCK, "depth": depth}, prepare=partial(scratch.random_run, what, depth),
            )
            for what in ("read", "write")
            for depth in (1, DEPTH)
        ]  # fmt: skip
        yield [replace(task, note=scratch.note) for task in rows]
    finally:
        scratch.close()
