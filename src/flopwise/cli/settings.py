"""`flopwise.toml`: values of options that hold where the command line says nothing, for a person and for a project.

    [defaults]              # every command that has the option
    provider = ["aws", "gcp"]
    region = "eu-*"
    facts = "facts"         # a path counts from the folder of the file

    [plan]                  # one command
    purchase = "reserved_1y"

The user's own file is read first, then that of the project: the nearest one from the working folder upwards. It sets
what things cost and where they run, never what a command writes, sends or starts: a folder that someone sent is safe to
work in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import field
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError, nearest_hint
from flopwise.values import dataclass

NAME = "flopwise.toml"
VARIABLE = "FLOPWISE_CONFIG"
"""Names the one file that is read; empty: none is."""
GENERAL = "defaults"
MOST_BYTES = 100_000
SETTABLE = (
    "calibration", "currency", "engine", "facts", "gpu", "gpus-per-node", "include-retired", "kv-dtype", "marketplace",
    "network", "offline", "precision", "price", "provider", "purchase", "region", "scenarios", "software", "stack",
    "storage", "units", "weights",
)  # fmt: skip
"""The options that a file may say."""
FACTS = "facts"
"""A folder; where FLOPWISE_FACTS names one, that holds."""


@dataclass(frozen=True, slots=True)
class FileSetting:
    """The value of an option, with its file and table."""

    value: Any
    file: str
    table: str

    @property
    def where(self) -> str:
        """The place, for a message."""
        return f"{self.file}: [{self.table}]"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all files, by table and option."""

    tables: Mapping[str, Mapping[str, FileSetting]] = field(default_factory=dict)

    def of(self, command: str) -> dict[str, FileSetting]:
        """The settings of a command by option, its own over the general ones."""
        return {**self.tables.get(GENERAL, {}), **self.tables.get(command, {})}


FIXED: ContextVar[Settings | None] = ContextVar("settings", default=None)
"""Settings that were read before, in a process whose working folder is not that of the person who asks."""


def read_settings(commands: Sequence[str], environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of the user and of the project; those of `FIXED` in their place where there are some.

    `commands`: names of tables besides `defaults`.

    Raises: SpecError: a file is not TOML, or says what none can; names the file and the key.
    """
    if (fixed := FIXED.get()) is not None:
        return fixed
    env = os.environ if environ is None else environ
    tables: dict[str, dict[str, FileSetting]] = {}
    for path in _files(env):
        for table, values in _tables(path, commands):
            tables[table] = {**tables.get(table, {}), **values}
    if env.get("FLOPWISE_FACTS"):
        tables = {table: {n: s for n, s in values.items() if n != FACTS} for table, values in tables.items()}
    return Settings(tables)


def _files(env: Mapping[str, str]) -> Iterator[Path]:
    """The files that are there, the user's first."""
    if VARIABLE in env:
        if env[VARIABLE]:
            yield Path(env[VARIABLE])
        return
    home = env.get("XDG_CONFIG_HOME") or (env.get("APPDATA") if os.name == "nt" else None)
    home = home or os.path.expanduser("~/.config")  # noqa: PTH111 - pathlib raises where there is no home
    own = os.path.join(home, "flopwise", NAME)  # noqa: PTH118 - on the way of every command: no Path is built for it
    if os.path.isfile(own):  # noqa: PTH113
        yield Path(own)
    try:
        folder = os.getcwd()  # noqa: PTH109
    except OSError:  # removed meanwhile
        return
    while True:
        path = os.path.join(folder, NAME)  # noqa: PTH118
        if os.path.isfile(path) and path != own:  # noqa: PTH113
            yield Path(path)
            return
        above = os.path.dirname(folder)  # noqa: PTH120
        if above == folder:
            return
        folder = above


def _tables(path: Path, commands: Sequence[str]) -> Iterator[tuple[str, dict[str, FileSetting]]]:
    """The tables of a file, checked."""
    import tomllib

    from flopwise.files import read_limited

    data = read_limited(path, MOST_BYTES, too_large="not a file of settings")
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{path}: not TOML: {' '.join(str(error).split())}") from None
    for table, values in document.items():
        if not isinstance(values, dict):
            raise SpecError(f"{path}: {table[:60]} stands outside of a table; write it below [{GENERAL}]")
        if table not in (GENERAL, *commands):
            raise SpecError(f"{path}: unknown table [{table[:60]}]{nearest_hint(table, (GENERAL, *commands))}")
        options = {name.replace("_", "-"): value for name, value in values.items()}
        yield table, {option: _setting(path, table, option, value) for option, value in options.items()}


def _setting(path: Path, table: str, option: str, value: object) -> FileSetting:
    """The setting of an option; a path counts from the file's folder."""
    where = f"{path}: [{table}] {option[:60]}"
    if option not in SETTABLE:
        raise SpecError(f"{where}: not an option that a settings file may set{nearest_hint(option, SETTABLE)}")
    if not isinstance(value, str | int | float) and not (
        isinstance(value, list) and all(isinstance(one, str | int | float) for one in value)
    ):
        raise SpecError(f"{where}: give text, a number, true or false, or a list of these")
    if option == FACTS and isinstance(value, str):
        value = str(path.parent / Path(value).expanduser())
    return FileSetting(value, str(path), table)
