"""A measurement file that is broken is refused with what is wrong and where; what is good comes through unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.facts.rows import each_row

NEEDED = ("model", "gpu")


def _file(folder: Path, content: bytes) -> Path:
    path = folder / "rows.csv"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b" \n\n", "empty"),
        (b"model,gpu\n", "no rows"),
        (b"model\nx\n", "lacks the column gpu"),
        (b"a,b\n1,2\n", "lacks the columns model, gpu"),
        (b"model,gpu,gpu\nx,y,z\n", "more than once"),
        (b"model,gpu\nx\n", "line 2: 1 cells under a header of 2"),
        (b"model,gpu\nx,y,z\n", "line 2: 3 cells"),
        (b'model,gpu\nx,"y\n', "broken CSV"),
        (b"model,gpu\nx,\0\n", "binary"),
        (bytes(range(1, 256)) * 3, "not UTF-8"),
        ("model,gpu\ncafé,y\n".encode("latin-1"), "not UTF-8"),
        (b"model,gpu\nx," + b"y" * 200_000 + b"\n", "broken CSV"),
    ],
)
def test_what_is_broken_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(SpecError) as failure:
        list(each_row(_file(tmp_path, content), NEEDED))
    assert said in str(failure.value)


@pytest.mark.parametrize("name", ["missing.csv", ".", "a" * 5000, "nul\0byte"])
def test_a_path_that_is_no_file_is_bad_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpecError):
        list(each_row(tmp_path / name, NEEDED))


def test_quotes_blank_lines_byte_order_mark_and_spaces_are_read(tmp_path: Path) -> None:
    content = '\ufeffid , model,gpu\r\n1,"a, b", H100 \r\n\r\n,c,\r\n'.encode()
    assert list(each_row(_file(tmp_path, content), NEEDED)) == [
        {"id": "1", "model": "a, b", "gpu": "H100"},
        {"id": "line 4", "model": "c", "gpu": ""},
    ]
