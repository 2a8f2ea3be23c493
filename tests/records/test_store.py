"""The store of runs, on SQLite and on PostgreSQL alike."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from recorded import run_named

from flopwise.errors import SpecError, UnknownNameError
from flopwise.records.model import Event, Expectation, ExpectedFigure, Sample
from flopwise.records.store import open_store

NAN, INF = math.nan, math.inf


def test_a_run_reads_back_as_it_was_written(where: str) -> None:
    figure = ExpectedFigure(metric="step_s", value=0.5, low=0.4, high=0.7)
    expected = Expectation(figures={"step_s": figure}, terms={"compute": 0.4, "data": 0.1}, question="q", version="1")
    run = run_named(
        "first", model="Llama-3.1-8B", gpus=8, gpu="H100", host="node-1", price_usd_per_hour=20.5, budget_usd=100.0,
        software={"torch": "2.13.0"}, settings={"tp": 2, "precision": "bf16", "more": [1, None]}, expected=expected,
    )  # fmt: skip
    store = open_store(where)
    assert store.add_run(run)
    assert open_store(where).run(run.run_id) == run
    assert not store.add_run(run)  # a writer that was cut off tries again
    assert len(store.runs()) == 1


def test_text_that_a_database_refuses_is_made_fit(where: str) -> None:
    store = open_store(where)
    run = run_named("a\0b\ud800", settings={"x": "\0\ud800", "y": NAN, "z": {1, 2}})
    store.add_run(run)
    store.append(run.run_id, [Sample("loss", 1.0, 2.0, device="gpu\0")], [Event(1.0, "k\0", "t" * 100_000)])
    assert store.runs()[0].name == "ab?"
    assert math.isnan(store.runs()[0].settings["y"])  # type: ignore[arg-type]
    assert set(store.summaries(run.run_id)) == {("loss", "gpu")}
    assert len(store.events(run.run_id)[0].text) == 20_000


def test_samples_read_back_in_their_order_with_nan_and_infinities(where: str) -> None:
    store, run = open_store(where), run_named("nan")
    store.add_run(run)
    store.append(run.run_id, [Sample("loss", 10.0, 3.0, 1), Sample("loss", 11.0, NAN, 2), Sample("loss", 12.0, -INF)])
    store.append(run.run_id, [Sample("loss", 9.0, INF, 4), Sample("step_s", 9.0, 0.1, device="0")])
    columns = store.samples(run.run_id, "loss")
    assert columns.at_s.tolist() == [10.0, 11.0, 12.0, 9.0]  # the clock was set back: the order stays
    assert columns.step.tolist() == [1, 2, -1, 4]
    np.testing.assert_array_equal(columns.value, [3.0, NAN, -INF, INF])
    assert store.samples(run.run_id, "step_s", "0").value.tolist() == [0.1]
    assert store.samples(run.run_id, "step_s").value.size == 0
    assert store.samples(run.run_id, "mfu_frac").step.size == 0


def test_summaries_are_those_of_all_samples_however_they_come(where: str) -> None:
    store, one, two = open_store(where), run_named("one"), run_named("two")
    values = [4.0, -2.0, NAN, 7.0, INF, 1.0]
    for run, width in ((one, 6), (two, 2)):
        store.add_run(run)
        for start in range(0, 6, width):
            part = values[start : start + width]
            store.append(run.run_id, [Sample("loss", 1.0 + start + i, v) for i, v in enumerate(part)])
    first, second = store.summaries(one.run_id)["loss", ""], store.summaries(two.run_id)["loss", ""]
    assert first == second
    # of 4, -2, 7 and 1, by hand
    assert (first.count, first.not_finite, first.total, first.low, first.high) == (4, 2, 10.0, -2.0, 7.0)
    assert (first.mean, first.last, first.last_at_s) == (2.5, 1.0, 6.0)
    assert {*store.all_summaries([one.run_id, two.run_id])} == {one.run_id, two.run_id}


def test_a_metric_that_was_never_finite_has_a_summary_without_figures(where: str) -> None:
    store, run = open_store(where), run_named("diverged")
    store.add_run(run)
    store.append(run.run_id, [Sample("loss", 1.0, NAN), Sample("loss", 2.0, NAN)])
    summary = store.summaries(run.run_id)["loss", ""]
    assert (summary.count, summary.not_finite) == (0, 2)
    assert all(map(math.isnan, (summary.mean, summary.low, summary.high, summary.last)))
    store.append(run.run_id, [Sample("loss", 3.0, 5.0)])
    assert (store.summaries(run.run_id)["loss", ""].low, store.summaries(run.run_id)["loss", ""].high) == (5.0, 5.0)


def test_a_counter_that_begins_anew_goes_on_from_there(where: str) -> None:
    """100 -> 250, a restart at 30 -> 80, then a wrapped counter below zero: 250 + 80 + 0, and on to 5 is 5 more."""
    store, run = open_store(where), run_named("counter")
    store.add_run(run)
    for values in ([100.0, 250.0], [30.0], [80.0, -7.0, 5.0]):
        store.append(run.run_id, [Sample("energy_joules", 1.0, v) for v in values])
    summary = store.summaries(run.run_id)["energy_joules", ""]
    assert summary.total == 250.0 + 80.0 + 12.0
    assert summary.last == 5.0


def test_a_batch_that_is_sent_again_is_written_once(where: str) -> None:
    store, run = open_store(where), run_named("twice")
    store.add_run(run)
    for number in (1, 1, 2, 2, 1):
        store.append(run.run_id, [Sample("loss", 1.0, float(number))], [Event(1.0, "k", "t")], batch=("w", number))
    assert store.samples(run.run_id, "loss").value.tolist() == [1.0, 2.0]
    assert len(store.events(run.run_id)) == 2


def test_thinned_samples_keep_means_and_extremes(where: str) -> None:
    store, run = open_store(where), run_named("long")
    store.add_run(run)
    store.append(run.run_id, [Sample("loss", float(i), float(i % 10), i) for i in range(1000)])
    columns = store.samples(run.run_id, "loss", most=100)  # ten of 0..9 in each
    assert columns.value.tolist() == [4.5] * 100
    assert (set(columns.low), set(columns.high)) == ({0.0}, {9.0})
    assert columns.at_s[:2].tolist() == [4.5, 14.5]
    assert columns.step[-1] == 999
    whole = store.samples(run.run_id, "loss", most=1000)
    assert whole.value.size == 1000
    np.testing.assert_array_equal(whole.low, whole.value)


def test_runs_are_found_by_id_its_beginning_or_name(where: str) -> None:
    store = open_store(where)
    a, b = (
        run_named("same", run_id="abcd1" + 27 * "0", at_s=1.0),
        run_named("same", run_id="abcd2" + 27 * "0", at_s=2.0),
    )
    for run in (a, b):
        store.add_run(run)
    assert store.run("same") == b  # the latest
    assert store.run("ABCD1") == a
    assert store.run(a.run_id) == a
    with pytest.raises(SpecError, match="abcd2000, abcd1000; give more digits"):
        store.run("abcd")
    with pytest.raises(UnknownNameError, match="same"):
        store.run("sane")
    for bad in ("", "%", "abc", "____", "\0", "zzzz"):
        with pytest.raises(UnknownNameError):
            store.run(bad)


def test_runs_are_listed_by_what_they_are(where: str) -> None:
    store = open_store(where)
    old = run_named("old", at_s=100.0, model="meta-llama/Llama-3.1-8B")
    new = run_named("new", at_s=200.0, task="serve", model="gpt2%")
    for run in (old, new):
        store.add_run(run)
    store.set_status(old.run_id, "failed", 150.0)
    assert [run.name for run in store.runs()] == ["new", "old"]
    for filters, names in (
        ({"task": "serve"}, ["new"]), ({"model": "llama"}, ["old"]), ({"model": "%"}, ["new"]),
        ({"status": "failed"}, ["old"]), ({"since_s": 150.0}, ["new"]), ({"task": "serve", "model": "llama"}, []),
    ):  # fmt: skip
        assert [run.name for run in store.runs(**filters)] == names, filters


def test_a_run_ends_no_earlier_than_it_began(where: str) -> None:
    store, run = open_store(where), run_named("clock", at_s=500.0)
    store.add_run(run)
    store.append(run.run_id, [Sample("loss", 700.0, 1.0)])
    store.append(run.run_id, [], [Event(600.0, "k", "t")])
    store.set_status(run.run_id, "finished", 400.0)
    ended = store.run(run.run_id)
    assert (ended.status, ended.ended_at_s, ended.last_at_s) == ("finished", 500.0, 700.0)


def test_a_deleted_run_is_gone_and_takes_no_more(where: str) -> None:
    store, run, other = open_store(where), run_named("gone"), run_named("stays")
    for one in (run, other):
        store.add_run(one)
        store.append(one.run_id, [Sample("loss", 1.0, 2.0)], [Event(1.0, "k", "t")], batch=(one.run_id, 1))
    store.delete(run.run_id)
    assert [one.name for one in store.runs()] == ["stays"]
    assert store.summaries(run.run_id) == {}
    assert store.events(run.run_id) == []
    assert store.samples(other.run_id, "loss").value.tolist() == [2.0]
    for call in (store.delete, store.append, lambda i: store.set_status(i, "failed", 1.0)):
        with pytest.raises(UnknownNameError):
            call(run.run_id)


def test_all_or_nothing_of_a_batch_is_written(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store, run = open_store(where), run_named("half")
    store.add_run(run)
    monkeypatch.setattr("flopwise.records.store._event_row", lambda *_: {"run_number": 1})
    with pytest.raises(Exception, match=r"(?i)null"):
        store.append(run.run_id, [Sample("loss", 1.0, 2.0)], [Event(1.0, "k", "t")], batch=("w", 1))
    assert store.summaries(run.run_id) == {}
    assert store.samples(run.run_id, "loss").value.size == 0


def test_the_default_place_is_the_users_or_what_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLOPWISE_RUNS", str(tmp_path / "deep" / "er" / "runs.db"))
    assert open_store().place == str(tmp_path / "deep" / "er" / "runs.db")
    monkeypatch.delenv("FLOPWISE_RUNS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    assert open_store().place == str(tmp_path / "home" / "flopwise" / "runs.db")


def test_whole_numbers_are_samples_too(where: str) -> None:
    store, run = open_store(where), run_named("whole")
    store.add_run(run)
    store.append(run.run_id, [Sample("step_s", 1.0, 60), Sample("step_s", 2.0, 30)])
    summary = store.summaries(run.run_id)[("step_s", "")]
    assert (summary.low, summary.high, summary.total, summary.count) == (30.0, 60.0, 90.0, 2)
