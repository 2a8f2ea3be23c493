"""Runs as files: everything that was recorded goes out, and comes back."""

from __future__ import annotations

import csv
import io
import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from recorded import run_named

from flopwise.errors import SpecError
from flopwise.records.exports import write_lines, write_tables
from flopwise.records.imports.imported import import_export
from flopwise.records.model import Event, Expectation, ExpectedFigure, Run, Sample
from flopwise.records.store import Store, open_store


def _filled(where: str | Path) -> tuple[Store, Run]:
    figure = ExpectedFigure(metric="step_s", value=0.5, low=0.4, high=math.inf)
    expected = Expectation(figures={"step_s": figure}, terms={"compute": 0.4}, question="q", version="1")
    run = run_named("out", settings={"tp": 2, "lr": math.nan}, software={"torch": "2"}, expected=expected, gpus=8)
    store = open_store(where)
    store.add_run(run)
    values = [float(i) for i in range(25_000)]
    values[7], values[8], values[9] = math.nan, math.inf, -math.inf
    store.append(run.run_id, [Sample("loss", 1.0 + i, v, i if i % 2 else None) for i, v in enumerate(values)])
    store.append(
        run.run_id, [Sample("power_w", 2.0, 3.0, device="gpu 0")], [Event(1.0, "note", 'a "b"\nc', 4, "gpu 0")]
    )
    store.set_status(run.run_id, "failed", run.started_at_s + 60)
    return store, store.run(run.run_id)


def test_json_lines_come_back_whole(where: str, tmp_path: Path) -> None:
    store, run = _filled(where)
    write_lines(store, store.runs(), file := tmp_path / "runs.jsonl")
    for line in file.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # every reader of JSON takes it
    other = open_store(tmp_path / "other.db")
    [one] = import_export(other, file)
    assert (one.run.run_id, one.new) == (run.run_id, True)
    for name in ("expected", "software", "status", "ended_at_s", "gpus", "name"):
        assert getattr(other.run("out"), name) == getattr(run, name), name
    assert other.events(run.run_id) == store.events(run.run_id)
    assert other.summaries(run.run_id) == store.summaries(run.run_id)
    for metric, device in store.summaries(run.run_id):
        before, after = store.samples(run.run_id, metric, device), other.samples(run.run_id, metric, device)
        for name in ("at_s", "step", "value"):
            np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    assert [again.new for again in import_export(other, file)] == [False]  # it is there already
    assert other.summaries(run.run_id) == store.summaries(run.run_id)


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (1, '{"format": "other"}', "line 1: not an export of runs"),
        (1, '{"format": "flopwise-runs", "version": 2}', "line 1: version 2"),
        (1, "[1]", "line 1: not an export of runs"),
        (2, '{"event": {}}', "line 2: samples before any run"),
        (2, '{"run": {"run_id": 5}}', "line 2"),
        (3, "not json", "line 3"),
        (3, '{"samples": {"metric": "nothing", "device": "", "at_s": [1], "step": [1], "value": [1]}}', "line 3"),
        (3, '{"samples": {"metric": "loss", "device": "", "at_s": [1, 2], "step": [1], "value": [1]}}', "line 3"),
        (3, '{"samples": 7}', "line 3"),
        (3, "7", "line 3"),
    ],
)
def test_a_broken_file_is_refused_and_nothing_is_imported(line: int, text: str, message: str, tmp_path: Path) -> None:
    store, _ = _filled(tmp_path / "runs.db")
    write_lines(store, store.runs(), file := tmp_path / "runs.jsonl")
    lines = file.read_text().splitlines()
    lines[line - 1] = text
    file.write_text("\n".join(lines))
    other = open_store(tmp_path / "other.db")
    with pytest.raises(SpecError, match=message):
        list(import_export(other, file))
    assert other.runs() == []


def test_an_import_that_is_killed_leaves_nothing_and_the_next_one_is_whole(where: str, tmp_path: Path) -> None:
    store, run = _filled(tmp_path / "filled.db")
    write_lines(store, store.runs(), file := tmp_path / "runs.jsonl")
    code = f"""
import os, signal
from pathlib import Path
from flopwise.records import store as stores
from flopwise.records.imports.imported import import_export
whole, calls = stores._append_samples, []
def killed(*arguments):
    calls.append(1)
    if len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    whole(*arguments)
stores._append_samples, stores.BATCH = killed, 1000
list(import_export(stores.open_store({where!r}), Path({str(file)!r})))
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    other = open_store(where)
    assert other.runs() == []
    assert [one.run.run_id for one in import_export(other, file) if one.new] == [run.run_id]
    assert other.summaries(run.run_id) == store.summaries(run.run_id)
    assert (other.run("out").status, other.run("out").ended_at_s) == (run.status, run.ended_at_s)


def test_tables_hold_the_same(tmp_path: Path) -> None:
    store, run = _filled(tmp_path / "runs.db")
    write_tables(store, store.runs(), tmp_path / "tables")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "tables").iterdir()}
    rows = {name: list(csv.DictReader(io.StringIO(text, newline=""))) for name, text in texts.items()}
    assert {name: len(found) for name, found in rows.items()} == {
        "runs.csv": 1, "summaries.csv": 2, "samples.csv": 25_001, "events.csv": 1,
    }  # fmt: skip
    assert rows["runs.csv"][0]["run_id"] == run.run_id
    assert [row["value"] for row in rows["samples.csv"][6:10]] == ["6.0", "nan", "inf", "-inf"]
    assert rows["events.csv"][0]["text"] == 'a "b"\nc'
