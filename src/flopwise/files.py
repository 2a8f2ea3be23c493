"""Files of the user: read no further than allowed, and written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from flopwise.errors import SpecError

PART = ".part"
STALE_S = 3600.0
"""Age from which a temporary file or folder is the leftover of a killed run."""


def read_at_most(path: Path | str, most: int) -> bytes:
    """The bytes of a regular file, or the first `most` + 1 of them: more than allowed is read no further.

    Raises: OSError: it cannot be read, or is a pipe, a device or a folder.
    """
    file = Path(path)
    mode = file.stat().st_mode
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "a folder" if stat.S_ISDIR(mode) else "a pipe or device, not a file", str(file))
    with file.open("rb") as stream:
        return stream.read(most + 1)


def read_limited(path: Path | str, most: int, *, remedy: str = "", too_large: str) -> bytes:
    """The bytes of a file that a person names, no more than `most`; messages end in `remedy`, or in `too_large`.

    Raises: SpecError: it cannot be read, or is larger.
    """
    try:
        data = read_at_most(path, most)
    except OSError as fault:
        raise SpecError(f"{path}: cannot be read ({fault.strerror or fault}){remedy}") from None
    if len(data) > most:
        raise SpecError(f"{path}: larger than {most:,} bytes; {too_large}")
    return data


def write_whole(path: Path | str, data: bytes, check: Callable[[Path], object] | None = None) -> None:
    """Write a file, its folder made where there is none: all of it on the disk, or the old one stays.

    `check` is given the new file before it takes the old one's place, and may raise. What is no regular file (a pipe,
    `/dev/stdout`) is written in place; a link keeps pointing where it does.

    Raises: SpecError: it cannot be written.
    """
    goal = Path(os.path.realpath(path))
    part = goal.with_name(f".{goal.name[:100]}.{os.urandom(4).hex()}{PART}")
    try:
        if goal.exists() and not goal.is_file():
            goal.write_bytes(data)
            return
        goal.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(goal.parent, f".{goal.name[:100]}.*{PART}")
        try:
            with part.open("xb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            if check is not None:
                check(part)
            if goal.exists():
                part.chmod(stat.S_IMODE(goal.stat().st_mode))
            part.replace(goal)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
    except SpecError:
        raise
    except (OSError, ValueError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise SpecError(f"{str(path)[:200]}: cannot be written ({why})") from None


def remove_stale(folder: Path, pattern: str) -> None:
    """Delete what a killed run left in a folder: files, and folders of files, that are older than an hour."""
    for place in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - place.lstat().st_mtime < STALE_S:
                continue
            if place.is_dir() and not place.is_symlink():
                for inner in sorted(place.rglob("*"), reverse=True):
                    inner.rmdir() if inner.is_dir() and not inner.is_symlink() else inner.unlink()
                place.rmdir()
            else:
                place.unlink()
