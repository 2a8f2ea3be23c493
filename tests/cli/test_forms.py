"""`--csv`, `--markdown` and the errors of `--json`: an answer in other forms than text for people."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_inputs import BASES, GOOD_FILES, Case, commands

from flopwise import cli
from flopwise.cli.output import write_document
from flopwise.results import records

Run = Callable[[str], tuple[int, str, str]]
ANSWERED = [name for name in commands() if name not in ("probe", "web", "completion")]
LINE = "train Llama-3.1-8B --gpu h100 --gpus 8 --seq 4096 --tokens 1B --fsdp"


def _answer(name: str, form: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    argv = (*BASES[name], form)
    Case("", argv, GOOD_FILES).write(folder)
    assert cli.main(argv) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ANSWERED)
def test_a_table_has_the_rows_of_the_document(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = _answer(name, "--csv", tmp_path, capsys)
    rows = list(csv.reader(io.StringIO(out)))
    if not rows:  # nothing is recorded
        assert name == "runs"
        return
    assert len(rows) > 1
    assert len(set(rows[0])) == len(rows[0])
    assert {len(row) for row in rows} == {len(rows[0])}


def test_cells_are_the_figures_of_the_document(run: Run) -> None:
    document, sheet = run(f"{LINE} --json")[1], run(f"{LINE} --csv")[1]
    parts = json.loads(document)["breakdown"]
    assert [(row["name"], float(row["seconds"])) for row in csv.DictReader(io.StringIO(sheet))] == [
        (part["name"], part["seconds"]) for part in parts
    ]


def test_objects_are_columns_and_text_is_no_formula(capsys: pytest.CaptureFixture[str]) -> None:
    layout: dict[str, Any] = {"tp": 2, "said": None}
    rows: list[dict[str, Any]] = [
        {"name": "=1+1", "layout": layout, "why": ["a", "b"], "on": True},
        {"name": "a,b", "layout": {"tp": 4}, "parts": [{"n": 1}], "low": -1.5},
    ]
    write_document(rows, table=True)
    assert capsys.readouterr().out.splitlines() == [
        "name,layout.tp,layout.said,why,on,parts,low",
        "'=1+1,2,,a; b,true,,",
        '"a,b",4,,,,"[{""n"": 1}]",-1.5',
    ]
    write_document([], table=True)
    assert capsys.readouterr().out == ""


def test_the_main_table_is_the_named_one_or_the_first() -> None:
    document = {"verdict": "fits", "seconds": 2.0, "notes": ["a"], "items": [{"n": 1}], "others": [{"n": 2}]}
    assert records(document) == [{"n": 1}]
    assert records(document, "others") == [{"n": 2}]
    assert records(document, None) == [{"name": "seconds", "value": 2.0}]
    assert records([1, {"n": 2}]) == [{"value": 1}, {"n": 2}]


@pytest.mark.parametrize("name", ANSWERED)
def test_a_page_of_markdown_has_whole_tables_and_closed_drawings(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    out = _answer(name, "--markdown", tmp_path, capsys)
    drawn, columns = False, 0
    for line in out.splitlines():
        if line.startswith("```"):
            drawn = not drawn
        elif not drawn and line.startswith("| "):
            cells = line.replace("\\|", "").count("|")
            assert columns in (0, cells), line
            columns = cells
            continue
        else:
            assert drawn or not any(c in line for c in "█│─"), line
        columns = 0
    assert not drawn


def test_markdown_is_the_answer_of_the_text(run: Run) -> None:
    text, page = run(LINE)[1], run(f"{LINE} --markdown")[1]
    assert page.splitlines()[0] == f"### {text.splitlines()[0]}"
    assert "| layout | " in page
    assert "--markdown" not in page, "the line that goes deeper is asked as text"


@pytest.mark.parametrize(
    ("line", "code", "part"),
    [
        ("train nosuch --gpu h100 --json", 2, "unknown model 'nosuch'"),
        ("train Llama-3.1-8B --gup h100 --json", 2, "No such option '--gup'"),
        ("nosuch --json", 2, "No such command 'nosuch'"),
        ("--json nosuch", 2, "No such option '--json'"),
    ],
)
def test_an_error_is_a_document_where_json_is_asked(run: Run, line: str, code: int, part: str) -> None:
    ended, out, err = run(line)
    error = json.loads(out)["error"]
    assert (ended, error["exit_code"], error["kind"]) == (code, code, "error")
    assert part in error["message"]
    assert err == f"error: {error['message']}\n"


def test_what_is_not_feasible_has_one_document(run: Run) -> None:
    code, out, _ = run("simulate Llama-3.1-70B --gpu l4 --rate 1 --requests 5 --json")
    assert code == 1
    assert json.loads(out)["feasible"] is False


def test_an_answer_has_one_form(run: Run) -> None:
    code, out, err = run("gpus --csv --markdown")
    assert (code, out) == (2, "")
    assert "--csv and --markdown" in err
    assert run("explain train Llama-3.1-8B --gpu h100 --csv")[1].startswith("change,")
