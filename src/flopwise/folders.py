"""Files below a folder of the user, written all together or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from flopwise.errors import SpecError
from flopwise.files import remove_stale

WAITING = ".flopwise-"
"""Prefix of the folder in which files are written before they are moved to their places."""


def check_folder(folder: Path | str) -> None:
    """Check that files can be written there, before they are computed.

    Raises: SpecError: the folder is a file, or it or what it would stand in takes no files.
    """
    goal = Path(folder)
    try:
        is_file = goal.exists() and not goal.is_dir()
        there = next(above for above in (goal.absolute(), *goal.absolute().parents) if above.exists())
        for place in () if is_file else (there, goal.parent):
            if place.exists():
                tempfile.TemporaryDirectory(dir=place, prefix=WAITING).cleanup()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{str(goal)[:200]}: cannot be written ({why})") from None
    if is_file:
        raise SpecError(f"{goal} is a file; a folder is needed")


def write_folder(
    folder: Path | str, files: Mapping[str, bytes], *, stale: Callable[[Path], Iterable[str]] = lambda _: (),
    programs: Iterable[str] = (), replace: bool = True,
) -> list[Path]:  # fmt: skip
    """Write files by their paths below a folder, `/` between names, all of them or none; their places.

    They are made beside the folder and moved into it at the end. `stale`: files of an earlier time that go. `programs`:
    files that can be run. Other files in the folder stay; with `replace` False none of `files` may stand there.

    Raises: SpecError: the folder is a file or cannot be written to, or a file stands there.
    """
    goal = Path(folder)
    for name in files:
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name or "\0" in name:
            raise SpecError(f"{name[:200]!r} is not a path below a folder")
    check_folder(goal)
    if not replace and (there := [name for name in files if os.path.lexists(goal / name)]):
        named = f"{goal / there[0]} and {len(there) - 1} more are" if len(there) > 1 else f"{goal / there[0]} is"
        raise SpecError(f"{named} there already; --force replaces what is there")
    made_for_it = [above for above in goal.parents if not above.exists()]
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(goal.parent, f"{WAITING}*")
        with tempfile.TemporaryDirectory(dir=goal.parent, prefix=WAITING) as waiting:
            fresh, old = Path(waiting) / "new", Path(waiting) / "old"
            for name, data in files.items():
                place = fresh / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            for name in programs:
                (fresh / name).chmod(0o755)
            _exchange(goal, fresh, old, list(files), list(stale(goal)))
    except OSError as error:
        raise SpecError(f"{goal}: cannot be written ({error.strerror or error})") from None
    finally:
        if not goal.exists():
            for above in made_for_it:
                with contextlib.suppress(OSError):
                    above.rmdir()
    return [goal / name for name in files]


def _exchange(goal: Path, fresh: Path, old: Path, names: Sequence[str], stale: Sequence[str]) -> None:
    """Move `names` from `fresh` into `goal` over what stands there, which `old` keeps; all, or as it was before.

    Each file is replaced at once: a run that is killed here leaves the old or the new one, never none. Folders that
    lead elsewhere are not followed.
    """
    kept, placed, made = list[str](), list[str](), list[Path]()
    try:
        for name in dict.fromkeys([*stale, *names]):
            _make_folders(goal, name, made)
            if _is_file(goal / name):
                (old / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(goal / name, old / name, follow_symlinks=False)
                kept.append(name)
        for name in names:
            placed.append(name)
            (fresh / name).replace(goal / name)
        for name in set(stale) - set(names):
            placed.append(name)
            (goal / name).unlink(missing_ok=True)
    except BaseException:  # an interruption by the user, too
        for name in placed:
            if name in kept:
                (old / name).replace(goal / name)
            else:
                (goal / name).unlink(missing_ok=True)
        raise
    finally:
        emptied = {goal, *made, *((goal / name).parent for name in stale)}
        for folder in sorted(emptied, key=lambda place: -len(place.parts)):
            with contextlib.suppress(OSError):
                if not folder.is_symlink() and not any(folder.iterdir()):
                    folder.rmdir()


def _make_folders(goal: Path, name: str, made: list[Path]) -> None:
    """Make the folders of a file below `goal`, and note those that were not there. Raises NotADirectoryError."""
    place = goal
    for part in ("", *PurePosixPath(name).parts[:-1]):
        place = place / part
        if place.is_symlink() and place != goal:
            raise NotADirectoryError(errno.ENOTDIR, f"{place} leads elsewhere", str(place))
        if not place.exists():
            place.mkdir()
            made.append(place)


def _is_file(path: Path) -> bool:
    """True if something stands there that can be replaced. Raises: IsADirectoryError: a folder does."""
    if path.is_dir() and not path.is_symlink():
        raise IsADirectoryError(errno.EISDIR, f"{path.name} is a folder")
    return path.exists() or path.is_symlink()
