"""Stores that are refused: damaged, foreign, newer, out of reach, for reading only. They stay as they are."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy
from recorded import run_named

from databases import PostgresServer
from flopwise import cli
from flopwise.errors import SpecError
from flopwise.records import schema
from flopwise.records.database import address_text, store_address
from flopwise.records.model import Sample
from flopwise.records.store import open_store

ROOT = Path(__file__).parent.parent.parent


def _filled(path: Path, samples: int = 20_000) -> Path:
    store, run = open_store(path), run_named("first")
    store.add_run(run)
    store.append(run.run_id, [Sample("loss", float(i), 1.0, i) for i in range(samples)])
    return path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def _text_file(path: Path) -> None:
    path.write_text("model: gpt2\n" * 50)


def _few_bytes(path: Path) -> None:
    path.write_text("x")


def _cut(path: Path) -> None:
    _filled(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 3])


def _holed(path: Path) -> None:
    """Every page but the first is overwritten."""
    _filled(path)
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))


def _holed_head(path: Path) -> None:
    _filled(path)
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 2000)


@pytest.mark.parametrize("damage", [_garbage, _text_file, _few_bytes, _cut, _holed, _holed_head])
def test_a_damaged_file_is_refused_and_stays_byte_for_byte(
    damage: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "runs.db"
    damage(path)
    before, names = path.read_bytes(), _names(tmp_path)
    for argv in (["list"], ["show", "first"], ["delete", "first", "--yes"]):
        assert cli.main(["runs", *argv, "--store", str(path)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert "sqlite3 recovered.db" in err
        assert "move the file away" in err
        assert err.count("\n") == 1
    with pytest.raises(SpecError, match="damaged"):
        open_store(path)
    assert path.read_bytes() == before
    assert _names(tmp_path) == names


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="sqlite3, the program, is not installed")
def test_what_the_message_says_recovers_what_can_be_read(tmp_path: Path) -> None:
    path, after = _filled(tmp_path / "runs.db"), tmp_path / "recovered.db"
    with path.open("r+b") as file:  # a page of samples, far behind
        file.seek(path.stat().st_size // 4096 // 2 * 4096)
        file.write(b"\0" * 4096)
    with pytest.raises(SpecError, match="damaged") as refusal:
        open_store(path).samples(open_store(path).runs()[0].run_id, "loss")
    said = re.search(r"`(sqlite3 .*? \| sqlite3 recovered.db)`", str(refusal.value))
    assert said is not None
    subprocess.run(said[1], shell=True, check=True, cwd=tmp_path, capture_output=True)  # noqa: S602 - as people do
    [run] = open_store(after).runs()
    assert 5_000 < open_store(after).samples(run.run_id, "loss").value.size < 20_000
    open_store(after).append(run.run_id, [Sample("loss", 1.0, 2.0)])  # and it goes on


def _sqlite_tables(where: str) -> None:
    with sqlite3.connect(where) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()


def _postgres_tables(where: str) -> None:
    engine = sqlalchemy.create_engine(where.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE customers (name TEXT)")
    engine.dispose()


def test_a_database_of_something_else_is_refused(where: str) -> None:
    (_postgres_tables if "://" in where else _sqlite_tables)(where)
    before = Path(where).read_bytes() if "://" not in where else b""
    with pytest.raises(SpecError, match=r"tables of another program \(customers\).*of its own"):
        open_store(where)
    if before:
        assert Path(where).read_bytes() == before


def test_a_newer_store_is_refused(where: str) -> None:
    with open_store(where)._database.transaction() as connection:
        connection.exec_driver_sql("UPDATE flopwise_revision SET version_num = '0999'")
    before = Path(where).read_bytes() if "://" not in where else b""
    with pytest.raises(SpecError, match=r"newer flopwise .*0999.*Update flopwise"):
        open_store(where)
    if before:
        assert Path(where).read_bytes() == before


def test_the_migrations_make_the_tables_of_the_schema(where: str) -> None:
    """Alembic itself compares; and the list of revisions is that of the files."""
    from alembic.autogenerate import compare_metadata
    from alembic.config import Config
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    store = open_store(where)
    with store._database.connection() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE})
        assert compare_metadata(context, schema.metadata) == []
    config = Config()
    config.set_main_option("script_location", str(ROOT / "src" / "flopwise" / "records" / "migrations"))
    scripts = ScriptDirectory.from_config(config)
    assert [script.revision for script in scripts.walk_revisions()][::-1] == list(schema.REVISIONS)


def test_an_upgrade_that_fails_leaves_nothing(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SpecError("broken migration")

    with monkeypatch.context() as now:
        now.setattr("alembic.command.upgrade", broken)
        with pytest.raises(SpecError, match="broken migration"):
            open_store(where)
    assert open_store(where).runs() == []


def test_a_server_that_is_not_there_is_said_without_the_password() -> None:
    with pytest.raises(SpecError, match="cannot be used") as refusal:
        open_store("postgresql://someone:hunter2@127.0.0.1:1/runs?sslpassword=hunter3")
    assert "hunter" not in str(refusal.value)
    assert "someone:***@127.0.0.1:1/runs" in str(refusal.value)


def test_a_wrong_password_is_said_without_it(postgres: PostgresServer) -> None:
    with pytest.raises(SpecError) as refusal:
        open_store(postgres.url.replace("@", ":hunter2@").replace("/postgres", "/no-such-database"))
    assert "no-such-database" in str(refusal.value)
    assert "hunter" not in str(refusal.value)


def test_addresses_hide_secrets_and_other_databases_are_refused(tmp_path: Path) -> None:
    url = "postgres://u:geheim@h:5/d?password=geheim&sslmode=require"
    assert address_text(store_address(url)) == "postgresql://u:***@h:5/d?sslmode=require"
    assert store_address(f"sqlite:///{tmp_path}/a.db") == tmp_path / "a.db"
    assert store_address("~/a.db") == Path.home() / "a.db"
    for bad in ("mysql://u:geheim@h/d", "http://geheim", "sqlite://"):
        with pytest.raises(SpecError, match="allowed") as refusal:
            store_address(bad)
        assert "geheim" not in str(refusal.value)


def test_a_folder_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a folder"):
        open_store(tmp_path)
    with pytest.raises(SpecError, match="there is no store of runs"):
        open_store(tmp_path / "none.db", create=False)
    (tmp_path / "empty.db").touch()
    with pytest.raises(SpecError, match="there is no store of runs"):  # nobody who only reads makes one of it
        open_store(tmp_path / "empty.db", create=False)
    assert (tmp_path / "empty.db").read_bytes() == b""
    (tmp_path / "empty.db").unlink()
    (tmp_path / "file").write_text("x")
    with pytest.raises(SpecError, match=r"cannot be (created|used)"):
        open_store(tmp_path / "file" / "runs.db")
    assert _names(tmp_path) == ["file"]


READ = """
import os, sys
from flopwise.errors import SpecError
from flopwise.records.store import open_store
open_store({warm!r}).runs()  # all modules are loaded: the other user may not read them
if os.geteuid() == 0:
    os.setgid({gid}); os.setuid({uid})
[run] = open_store({path!r}, create=False).runs()
print(run.name)
store = open_store({path!r})
for call in (lambda: store.delete(run.run_id), lambda: open_store({other!r}), lambda: open_store({closed!r})):
    try:
        call()
    except SpecError as refusal:
        print(refusal)
"""


def test_a_folder_for_reading_only_is_read_and_not_written_and_a_closed_one_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "readonly"
    folder.mkdir()
    path = _filled(folder / "runs.db", 10)
    for above in (tmp_path, *tmp_path.parents[:3]):
        if above.owner() == Path.home().owner() and above != Path("/tmp"):  # noqa: S108 - not a file of ours
            above.chmod(0o755)
    path.chmod(0o444)
    folder.chmod(0o555)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    if os.geteuid():
        closed.chmod(0)
    nobody = pwd.getpwnam("nobody")
    code = READ.format(
        path=str(path), other=str(folder / "new.db"), closed=str(closed / "runs.db"), warm=str(tmp_path / "w.db"),
        uid=nobody.pw_uid, gid=nobody.pw_gid,
    )  # fmt: skip
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    folder.chmod(0o755)
    closed.chmod(0o755)
    assert ended.returncode == 0, ended.stderr
    name, deleting, making, reaching = ended.stdout.splitlines()
    assert name == "first"
    assert "read-only" in deleting
    assert "--store or FLOPWISE_RUNS" in making
    assert "permission denied for one of its folders; give another path by --store or FLOPWISE_RUNS" in reaching
    assert _names(folder) == ["runs.db"]
