"""Prices that the user imported: files of offers in a folder of their own, laid over the shipped ones.

Each is a table like `instances.csv`, named NAME.csv; where two have an offer, the one imported last holds. The folder
is what FLOPWISE_PRICES names, else `flopwise/prices` in the user's data folder; `flopwise.price_import` writes to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from flopwise.errors import SpecError

PRICES_VARIABLE = "FLOPWISE_PRICES"
ENDING = ".csv"
Stamp = tuple[str, int, int]
"""Path, time of change in ns, size of an imported file."""


def user_folder(variable: str, name: str, environ: Mapping[str, str] | None = None) -> str:
    """The folder that an environment variable names, else `flopwise/NAME` in the user's data folder."""
    env = os.environ if environ is None else environ
    named = env.get(variable)
    if named:
        return os.path.abspath(os.path.expanduser(named))  # noqa: PTH100, PTH111 - pathlib raises where there is no home
    base = env.get("XDG_DATA_HOME") or (env.get("LOCALAPPDATA") if os.name == "nt" else None)
    return os.path.join(base or os.path.expanduser("~/.local/share"), "flopwise", name)  # noqa: PTH111, PTH118


def prices_folder(environ: Mapping[str, str] | None = None) -> str:
    """The path of the folder of imported prices; it need not exist."""
    return user_folder(PRICES_VARIABLE, "prices", environ)


def stamps(folder: str | None = None) -> tuple[Stamp, ...]:
    """The imported files, oldest first; none without a folder: one look at the disk."""
    place = prices_folder() if folder is None else folder
    if not os.path.isdir(place):  # noqa: PTH112 - on the way of every command: no Path is built for it
        return ()
    try:
        files = [entry for entry in os.scandir(place) if entry.name.endswith(ENDING) and entry.is_file()]
        states = [(entry.path, (state := entry.stat()).st_mtime_ns, state.st_size) for entry in files]
    except OSError as fault:
        raise SpecError(f"folder of prices {place[:200]!r} cannot be read ({fault.strerror or fault})") from None
    return tuple(sorted(states, key=lambda stamp: (stamp[1], stamp[0])))
