"""Files below a folder are written all together or not at all, and nowhere else."""

from __future__ import annotations

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
