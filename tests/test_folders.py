"""Files below a folder are written all together or not at all, and nowhere else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flopwise import folders
from flopwise.errors import SpecError
from flopwise.folders import check_folder, write_folder

FILES = {"a.txt": b"new a", "below/deep/b.sh": b"new b"}


def _there(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_files_stand_in_their_folders_and_programs_can_be_run(tmp_path: Path) -> None:
    written = write_folder(tmp_path / "x" / "out", FILES, programs=["below/deep/b.sh"])
    assert _there(tmp_path) == {f"x/out/{name}": data for name, data in FILES.items()}
    assert [path.stat().st_mode & 0o111 for path in written] == [0, 0o111]


def test_files_that_are_there_stay_unless_they_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"old")
    with pytest.raises(SpecError, match=r"a\.txt is there already; --force"):
        write_folder(tmp_path, FILES, replace=False)
    assert _there(tmp_path) == {"a.txt": b"old"}
    (tmp_path / "other").write_bytes(b"mine")
    write_folder(tmp_path, FILES)
    with pytest.raises(SpecError, match=r"a\.txt and 1 more are there already"):
        write_folder(tmp_path, FILES, replace=False)
    assert _there(tmp_path) == {**FILES, "other": b"mine"}


@pytest.mark.parametrize("name", ["../a", "/etc/a", "below/../../a", "", "a\\b", "a\0b"])
def test_a_path_cannot_leave_the_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not a path below a folder"):
        write_folder(tmp_path / "out", {"good": b"", name: b"x"})
    assert not list(tmp_path.iterdir())


def test_a_link_inside_the_folder_is_not_followed(tmp_path: Path) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "below").symlink_to(outside)
    with pytest.raises(SpecError, match="leads elsewhere"):
        write_folder(out, FILES)
    assert not list(outside.iterdir())
    assert sorted(path.name for path in out.iterdir()) == ["below"]
    (out / "below").unlink()
    (outside / "kept").write_bytes(b"kept")
    (out / "a.txt").symlink_to(outside / "kept")
    write_folder(out, FILES)
    assert (outside / "kept").read_bytes() == b"kept"
    assert (out / "a.txt").read_bytes() == b"new a"


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"old")
    (tmp_path / "below" / "deep" / "b.sh").mkdir(parents=True)
    with pytest.raises(SpecError, match="a folder"):
        write_folder(tmp_path, FILES)
    assert _there(tmp_path) == {"a.txt": b"old"}


def test_an_interruption_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"old")
    real, moved = Path.replace, list[Path]()

    def interrupted(self: Path, target: Path) -> Path:
        moved.append(target)
        if len(moved) == 2:
            raise KeyboardInterrupt
        return real(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path, FILES)
    assert _there(tmp_path) == {"a.txt": b"old"}
    assert not (tmp_path / "below").exists()


def test_files_of_an_earlier_time_go(tmp_path: Path) -> None:
    write_folder(tmp_path / "out", {"plans/1": b"1", "plans/2": b"2", "keep": b""})
    write_folder(tmp_path / "out", {"plans/2": b"3"}, stale=lambda _: ["plans/1", "plans/2"])
    assert _there(tmp_path / "out") == {"plans/2": b"3", "keep": b""}
    write_folder(tmp_path / "out", {}, stale=lambda _: ["plans/2"])
    assert not (tmp_path / "out" / "plans").exists()
    assert not list(tmp_path.glob(f"{folders.WAITING}*"))


def test_a_file_in_the_place_of_a_folder_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    with pytest.raises(SpecError) as told:
        check_folder(tmp_path / "taken")
    assert str(told.value) == f"{tmp_path / 'taken'} is a file; a folder is needed"


KILLED = '''
import itertools, os, shutil, signal, sys
from pathlib import Path

from flopwise.folders import write_folder

names, root = ("a.txt", "below/deep/b.sh", "report.html"), Path(sys.argv[1])
steps = 0


def killed_at(last, call):
    """The call, in whose place the process is killed once `last` steps are done."""
    def wrapped(*args, **more):
        global steps
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **more)
    return wrapped


for last in itertools.count(1):
    folder = root / str(last) / "out"
    write_folder(folder, {**{name: b"old" for name in names}, "plans/1": b"old", "mine": b"old"})
    child = os.fork()
    if not child:
        for name in ("replace", "unlink", "write_bytes", "mkdir", "rmdir"):
            setattr(Path, name, killed_at(last, getattr(Path, name)))
        for owner, name in ((shutil, "copy2"), (os, "rmdir"), (os, "unlink")):
            setattr(owner, name, killed_at(last, getattr(owner, name)))
        write_folder(folder, {name: b"new" for name in names}, stale=lambda _: ["plans/1"])
        os._exit(0)
    if not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        break
print(last)
'''


def test_a_kill_at_any_step_leaves_every_file_old_or_new_and_the_next_run_clears_up(tmp_path: Path) -> None:
    """Killed before each of its calls that change files; what it leaves is cleared once that is an hour old."""
    script = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, check=True)
    steps = int(done.stdout)
    assert steps > 15
    names, mixed, left = {"a.txt", "below/deep/b.sh", "report.html"}, 0, 0
    for step in range(1, steps):
        folder = tmp_path / str(step) / "out"
        found = _there(folder)
        assert found.keys() - {"plans/1"} == {*names, "mine"}, step
        assert {found[name] for name in names} <= {b"old", b"new"}
        assert found["mine"] == b"old"
        mixed += len({found[name] for name in names}) == 2
        for place in folder.parent.glob(f"{folders.WAITING}*"):
            os.utime(place, (0, 0))
            left += 1
        write_folder(folder, dict.fromkeys(names, b"newer"), stale=lambda _: ["plans/1"])
        assert _there(tmp_path / str(step)) == {**{f"out/{name}": b"newer" for name in names}, "out/mine": b"old"}
    assert mixed > 0, "no kill came between two files"
    assert left > 5
