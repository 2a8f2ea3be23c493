"""Files are read no further than allowed, and written whole or not at all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.files import read_at_most, read_limited, remove_stale, write_whole

FLOPWISE = [sys.executable, "-m", "flopwise"]


def flopwise(*args: str, to: str = "") -> subprocess.CompletedProcess[str]:
    """The command, its output redirected by a shell where `to` says so."""
    command = ["/bin/sh", "-c", f'"$@" {to}', "sh", *FLOPWISE, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_more_than_allowed_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 100)
    assert read_at_most(file, 100) == b"x" * 100
    assert len(read_at_most(file, 10)) == 11
    for special in (tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"a folder|a pipe or device"):
            read_at_most(special, 10)


def test_what_a_person_names_is_read_or_refused_with_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 1000)
    assert read_limited(file, 1000, too_large="not it") == b"x" * 1000
    with pytest.raises(SpecError, match=r"a: larger than 999 bytes; not it$"):
        read_limited(file, 999, too_large="not it")
    with pytest.raises(SpecError, match=r"b: cannot be read \(No such file or directory\); give another$"):
        read_limited(tmp_path / "b", 1, remedy="; give another", too_large="not it")


def test_an_old_file_stays_where_the_new_one_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    write_whole(file, b"old")

    def refuse(part: Path) -> None:
        assert part.read_bytes() == b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(SpecError, match=r"plan\.json: cannot be written \(No space left on device\)"):
        write_whole(file, b"new", refuse)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    assert file.read_bytes() == b"old"


def test_a_link_stays_a_link_and_rights_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "plan.json", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o640)
    link.symlink_to(file)
    write_whole(link, b"new")
    assert link.is_symlink()
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o640)


def test_what_a_killed_run_left_goes_with_the_next(tmp_path: Path) -> None:
    old, fresh, folder = tmp_path / ".a.1.part", tmp_path / ".a.2.part", tmp_path / ".report-x"
    (folder / "new").mkdir(parents=True)
    (folder / "new" / "report.md").write_text("x")
    for path in (old, fresh):
        path.write_text("x")
    for path in (old, folder):
        os.utime(path, (time.time() - 7200,) * 2)
    write_whole(tmp_path / "a", b"x")
    assert not old.exists()
    assert fresh.exists(), "another run may still write it"
    remove_stale(tmp_path, ".report-*")
    assert not folder.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
def test_a_full_disk_and_a_closed_output_are_plain_errors() -> None:
    full = flopwise("gpus", to="> /dev/full")
    assert full.returncode == 2
    assert full.stderr == "error: the answer cannot be written: No space left on device\n"
    closed = flopwise("gpus", to=">&-")
    assert closed.returncode == 2
    assert closed.stderr == "error: standard output is closed: the answer cannot be written\n"


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="no such device here")
def test_pipes_and_devices_are_no_files_to_read(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "fleet.yaml"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    zero = tmp_path / "zero.yaml"
    zero.symlink_to("/dev/zero")
    for args in (
        ["assess", str(link)], ["assess", str(zero)], ["plan", str(zero)], ["plan", "--from", str(pipe)],
        ["plan", "--from", "/dev/zero"], ["calibrate", str(pipe), "--name", "x"], ["runs", "import", str(pipe)],
        ["runs", "list", "--store", str(link)],
    ):  # fmt: skip
        told = flopwise(*args)
        assert told.returncode == 2, args
        assert re.search("a pipe or device, not a file|is no file; give a CSV file", told.stderr), args


def test_too_large_numbers_are_plain_errors() -> None:
    told = flopwise("train", "gpt2", "--gpu", "h100", "--global-batch-tokens", "1e24")
    assert told.returncode == 2
    assert "--global-batch-tokens: 1e24 is out of range" in told.stderr


@pytest.mark.parametrize("option", ["--budget", "--deadline"])
def test_so_are_too_small_ones(option: str) -> None:
    told = flopwise("plan", "gpt2", "--task", "pretrain", "--tokens", "1M", "--gpu", "l4", option, "1e-300")
    assert told.returncode == 2
    assert told.stderr.startswith(f"error: {option}: 1e-300 is out of range; allowed: above 0, up to ")


def test_a_place_without_any_temporary_folder_can_simulate(tmp_path: Path) -> None:
    """As in a container that is read-only: no home, no cache, no temporary folder."""
    code = (
        "import tempfile\n"
        "def none(*_): raise FileNotFoundError(2, 'No usable temporary directory found')\n"
        "tempfile.gettempdir = none\n"
        "from flopwise.serving.sim import machine_code\n"
        "assert machine_code.cache_folder() is None\n"
        "assert callable(machine_code.core())\n"
    )
    blocked = tmp_path / "file"
    blocked.write_text("")
    env = {**os.environ, "NUMBA_CACHE_DIR": str(blocked), "XDG_CACHE_HOME": str(blocked)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == 0, ran.stderr
