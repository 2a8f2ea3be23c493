"""The databases that a store is tested on: an SQLite file, and a real PostgreSQL server on a free port."""

from __future__ import annotations

import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy

from setup_beside import wait_for_setup

UNPRIVILEGED = "nobody"


class PostgresServer:
    """PostgreSQL's own programs on a folder of its own; as an unprivileged user where the tests run as root."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._data = programs, folder / "data"
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None
        if self._user:
            account = pwd.getpwnam(self._user)
            os.chown(folder, account.pw_uid, account.pw_gid)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        owner = getpass.getuser() if self._user is None else self._user
        self.url = f"postgresql://{owner}@127.0.0.1:{self.port}/postgres"
        self._run("initdb", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-D", self._data)
        settings = (
            f"port = {self.port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = ''\nfsync = off\n"
            "max_connections = 60\n"
        )
        self._run("sh", "-c", f'cat >> "{self._data}/postgresql.conf"', text=settings)

    def _run(self, program: str, *arguments: object, text: str = "") -> None:
        own = self._programs / program
        ended = subprocess.run(
            [str(own) if own.exists() else program, *map(str, arguments)], user=self._user, group=None, input=text,
            cwd="/", text=True, capture_output=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{program}: {ended.stdout}{ended.stderr}"

    def start(self) -> None:
        self._run("pg_ctl", "-D", self._data, "-l", self._data / "log", "-w", "start")

    def stop(self) -> None:
        """At once: whoever is connected is cut off."""
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    wait_for_setup()
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parent.parent.name))
    program = shutil.which("initdb") or (str(found[-1]) if found else None)
    if program is None:
        assert os.environ.get("CI") != "true", "PostgreSQL's initdb is missing: make programs"
        pytest.skip("PostgreSQL's initdb is missing: make programs")
    folder = Path(tempfile.mkdtemp(prefix="flopwise-postgres-"))
    try:
        server = PostgresServer(Path(program).parent, folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database of the server."""
    name = f"flopwise_{abs(hash(request.node.nodeid)):x}"
    url = postgres.url.replace("postgresql:", "postgresql+psycopg:")
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)  # a test may restart the server
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield f"{postgres.url.rpartition('/')[0]}/{name}"
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address where no store is yet."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    url: str = request.getfixturevalue("database")
    return url
