"""The database of a store of runs: its location, and how it is opened, created, migrated or refused."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError
from sqlalchemy.pool import NullPool

from flopwise.errors import SpecError
from flopwise.files import read_at_most
from flopwise.records.schema import REVISIONS, VERSION_TABLE

RUNS_VARIABLE = "FLOPWISE_RUNS"
FILE_NAME = "runs.db"
MOST_WAIT_S = 30.0
"""How long a writer waits for other writers."""
MAGIC = b"SQLite format 3\0"
SECRET = ("password", "sslpassword", "passfile", "sslkey")
POSTGRES = {"postgresql", "postgres", "postgresql+psycopg"}
NETWORK = {
    "connect_timeout": 5, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 20_000, "application_name": "flopwise",
}  # fmt: skip
"""Options of libpq that detect a lost server within seconds instead of hours."""
_MAKING = threading.Lock()  # Alembic keeps the migration that runs in a global


def store_address(where: str | Path | None, environ: Mapping[str, str] | None = None) -> Path | URL:
    """The file or server that `where` names; None: that of FLOPWISE_RUNS, else the file in the user's data folder.

    Raises: SpecError: a URL of another kind of database, or an invalid URL.
    """
    named = where if where is not None else (os.environ if environ is None else environ).get(RUNS_VARIABLE)
    if not named:
        from platformdirs import user_data_path  # noqa: PLC0415 - a named store does without

        return user_data_path("flopwise", appauthor=False) / FILE_NAME
    if isinstance(named, Path) or "://" not in named:
        if "\0" in str(named):
            raise SpecError("the path of a store holds no NUL character")
        return Path(os.path.expanduser(named))  # noqa: PTH111 - pathlib raises where there is no home
    try:
        url = make_url(named)
    except (ArgumentError, ValueError):  # its message would show the password
        raise SpecError("the store's URL is invalid; allowed: postgresql://USER@HOST:PORT/DATABASE, a path") from None
    if url.drivername == "sqlite" and url.database and not url.query:
        return Path(url.database)
    if url.drivername not in POSTGRES:
        raise SpecError(
            f"a store cannot be a {url.drivername!r}; allowed: the path of an SQLite file, postgresql://..."
        )
    return url.set(drivername="postgresql+psycopg")


def address_text(address: Path | URL) -> str:
    """The address without secrets, for messages."""
    if isinstance(address, Path):
        return str(address)
    shown = address.set(drivername="postgresql", query={k: v for k, v in address.query.items() if k not in SECRET})
    return shown.render_as_string(hide_password=True)


class Database:
    """A database with the tables of this version: an SQLite file, or a database of a PostgreSQL server."""

    def __init__(self, where: str | Path | None, *, create: bool) -> None:
        """Open it; `create`: create it if it does not exist. Older tables are migrated.

        Raises: SpecError: it does not exist, is damaged, foreign or newer, or cannot be reached or written.
        """
        self.address = store_address(where)
        self.place = address_text(self.address)
        if isinstance(self.address, Path):
            self._engine = _sqlite(self.address, create=create)
        else:
            if find_spec("psycopg") is None:
                raise SpecError(f'{self.place} needs psycopg: pip install "flopwise[postgres]"')
            arguments = {name: value for name, value in NETWORK.items() if name not in self.address.query}
            self._engine = create_engine(self.address, poolclass=NullPool, connect_args=arguments)
        with self.connection() as connection:
            revision = _revision(connection, self.place)
        if revision != REVISIONS[-1]:
            with self._faults():
                self._upgrade()

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """A connection for reading. Raises SpecError if the database fails."""
        with self._faults(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """A transaction for writing; in SQLite it locks before it reads. Raises SpecError if the database fails."""
        writing = self._engine.execution_options(flopwise_writes=True)
        with self._faults(), writing.begin() as connection:
            yield connection

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Raise database errors as SpecError, except those of invalid values, which are our own bugs."""
        try:
            yield
        except (IntegrityError, DataError):
            raise
        except DBAPIError as fault:
            raise SpecError(_fault_text(self.address, fault.orig)) from None
        except sqlite3.Error as fault:
            raise SpecError(_fault_text(self.address, fault)) from None

    def _upgrade(self) -> None:
        """Run missing migrations, all or none, in one process at a time."""
        from alembic import command  # noqa: PLC0415 - a store that is up to date does without
        from alembic.config import Config  # noqa: PLC0415 - same

        config = Config()
        config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
        if isinstance(self.address, Path):
            _log_ahead(self._engine)
        with _MAKING, self.transaction() as connection:
            if not isinstance(self.address, Path):
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('flopwise'))"))
            if _revision(connection, self.place) != REVISIONS[-1]:  # another process may have been first
                config.attributes["connection"] = connection
                command.upgrade(config, "head")


def _fault_text(address: Path | URL, fault: BaseException | None) -> str:
    """The failure and its remedy; without the SQL, whose values may be secrets."""
    place, why = address_text(address), " ".join(str(fault).split())[:300]
    if not isinstance(address, Path):
        return f"{place} cannot be used ({why}); check that the server is running and that the user owns the database"
    code = (getattr(fault, "sqlite_errorcode", None) or sqlite3.SQLITE_NOTADB) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return (
            f"{place} is damaged, or is not a store of runs ({why}); it was not changed. To recover its readable part: "
            f"`sqlite3 {place} .dump | sed 's/^ROLLBACK.*/COMMIT;/' | sqlite3 recovered.db` (or .recover, which reads "
            f"more, if your sqlite3 has it), then --store recovered.db. Or restore a backup, or move the file away: "
            f"the next run creates a new one"
        )
    do = {
        sqlite3.SQLITE_FULL: "free some space, or give another path by --store or FLOPWISE_RUNS",
        sqlite3.SQLITE_READONLY: "it is read-only: give another path by --store or FLOPWISE_RUNS",
        sqlite3.SQLITE_BUSY: "another process has locked the database; try again",
    }.get(code, "check that the folder exists and is writable, or give another path by --store or FLOPWISE_RUNS")
    return f"{place} cannot be used ({why}); {do}"


def _sqlite(path: Path, *, create: bool) -> Engine:
    """An engine that opens a new connection for each transaction, so that no connection outlives a fork."""
    try:
        is_empty = path.is_file() and path.stat().st_size == 0
        is_folder, exists = path.is_dir(), path.exists() and (create or not is_empty)
    except PermissionError:
        raise SpecError(
            f"{path} cannot be reached: permission denied for one of its folders; "
            f"give another path by --store or {RUNS_VARIABLE}"
        ) from None
    if is_folder:
        raise SpecError(f"{path} is a folder; give a file, such as {path / FILE_NAME}")
    if not exists:
        if not create:
            raise SpecError(f"there is no store of runs at {path}; recording a run creates it")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise SpecError(
                f"{path.parent} cannot be created ({fault.strerror or fault}); give another path by {RUNS_VARIABLE}"
            ) from None
    elif not _may_be_sqlite(path):
        raise SpecError(_fault_text(path, sqlite3.DatabaseError("its first bytes are not SQLite's")))
    mode = "rwc" if create else "rw"
    if exists and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        log = path.with_name(f"{path.name}-wal")
        mode = "ro" if log.exists() and log.stat().st_size else "ro&immutable=1"
    uri = f"file:{quote(str(path.absolute()))}?mode={mode}"

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, timeout=MOST_WAIT_S, isolation_level=None)

    engine = create_engine("sqlite+pysqlite://", creator=connect, poolclass=NullPool)
    event.listen(engine, "connect", _set_up)
    event.listen(engine, "begin", _begin)
    return engine


def _may_be_sqlite(path: Path) -> bool:
    """True if a file begins with SQLite's header or is empty; SQLite itself accepts any file of a few bytes."""
    try:
        return read_at_most(path, len(MAGIC) - 1) in (MAGIC, b"")
    except OSError as fault:
        raise SpecError(f"{path} cannot be read ({fault.strerror or fault})") from None


def _set_up(connection: Any, _record: object) -> None:
    connection.execute(
        "PRAGMA synchronous=NORMAL"
    )  # with a write-ahead log the database stays consistent if the process is killed


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get("flopwise_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _revision(connection: Connection, place: str) -> str | None:
    """The revision of the tables; None for an empty database. Raises SpecError: it is foreign or newer."""
    tables = inspect(connection).get_table_names()
    if VERSION_TABLE not in tables:
        if not tables:
            return None
        named = ", ".join(sorted(tables)[:4])
        raise SpecError(
            f"{place} has tables of another program ({named}); it was not changed. A store needs a file or a database "
            f"of its own: give it by --store or {RUNS_VARIABLE}"
        )
    revision = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - our own name
    if revision is not None and revision not in REVISIONS:
        raise SpecError(
            f"{place} was written by a newer flopwise (its revision is {str(revision)[:40]}, this version knows those "
            f"up to {REVISIONS[-1]}); it was not changed. Update flopwise, or give another store by --store or "
            f"{RUNS_VARIABLE}"
        )
    return revision


def _log_ahead(engine: Engine) -> None:
    """Allow reading while another process writes (a setting of the file), unless the file system refuses it."""
    until = time.monotonic() + MOST_WAIT_S
    while True:
        raw = engine.raw_connection()
        try:
            raw.cursor().execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as fault:  # SQLite does not always wait here while others open the file
            if "locked" not in str(fault) or time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            return
        finally:
            raw.close()
