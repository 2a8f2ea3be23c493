"""Files as runs of a store: once each, with what is expected of them, and nothing half written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.errors import SpecError, UnknownNameError
from flopwise.records import store as stores
from flopwise.records.explanation import explanation
from flopwise.records.imports.imported import import_runs
from flopwise.records.measured import run_figures
from flopwise.records.rows import rows_of
from flopwise.records.store import open_store

EXAMPLES = Path(__file__).parents[3] / "examples"
HOW: dict[str, Any] = {"model": "Llama-3.2-1B", "gpu": "a100-80gb", "gpus": 2, "seq": 2048, "global_batch": 64}


def trainer_state(folder: Path, *, step_s: float = 4.0) -> Path:
    lines = [
        {"step": 10 * n, "loss": 3.0 - 0.01 * n, "train_runtime": 10 * n * step_s, "num_input_tokens_seen": 1310720 * n}
        for n in range(1, 31)
    ]
    state = {"log_history": lines, "global_step": 300, "max_steps": 300, "train_batch_size": 4}
    folder.mkdir(exist_ok=True)
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder / "trainer_state.json"


def test_an_imported_training_run_from_file_to_backtest(tmp_path: Path) -> None:
    file, where = trainer_state(tmp_path / "llama"), tmp_path / "runs.db"
    how = HOW | {"gpu": "h100-sxm", "stack": "fsdp-compile"}  # what is left open would widen what is expected
    [done] = import_runs(file, store=where, **how)
    assert (done.run.name, done.run.source, done.run.status, done.new) == ("llama", "trainer-state", "finished", True)
    assert done.run.settings == {"micro_batch": 4, "seq": 2048, "global_batch": 64, "stack": "fsdp-compile"}
    # what is expected is what `train` says of the same options
    answer = flopwise.train(micro_batch=4, **how)
    assert done.run.expected is not None
    assert done.run.expected.figures["step_s"].value == pytest.approx(answer.estimate.step_s)
    assert done.run.expected.question.startswith("flopwise train Llama-3.2-1B --gpu h100-sxm --seq 2048")
    store = open_store(where)
    found = run_figures(store, store.run("llama"))
    assert found.value("step_s") == pytest.approx(4.0)
    assert explanation(found).verdict.startswith("Slower than the plan: a step takes 4.00 s")
    (tmp_path / "rows.csv").write_text(rows_of([found], "training").csv)
    [prediction] = flopwise.backtest("training", tmp_path / "rows.csv").predictions
    assert prediction.measured == pytest.approx(2048 * 64 / 4.0 / 2)
    assert prediction.predicted is not None


def test_an_imported_serving_run_is_held_against_serve(tmp_path: Path) -> None:
    where = tmp_path / "runs.db"
    file = EXAMPLES / "vllm-bench-serve.json"
    [done] = import_runs(file, store=where, model="Llama-3.2-1B", gpu="l4", weights="bf16")
    answer = flopwise.serve(
        "Llama-3.2-1B", gpu="l4", weights="bf16", input_tokens=12, output_tokens=16, concurrency=4, requests=24
    ).estimate
    assert done.run.task == "serve"
    assert done.run.expected is not None
    figures = done.run.expected.figures
    assert figures["ttft_s"].value == pytest.approx(answer.ttft_s.value)
    assert answer.tpot_s is not None
    assert (figures["itl_s"].low, figures["itl_s"].high) == pytest.approx((answer.tpot_s.low, answer.tpot_s.high))
    assert sum(done.run.expected.terms.values()) == pytest.approx(answer.e2e_s)
    store = open_store(where)
    why = explanation(run_figures(store, store.run(done.run.run_id)))
    assert [term.name for term in why.terms] == ["first token", "further tokens"]


def test_the_same_content_is_imported_once_whatever_its_name(tmp_path: Path) -> None:
    file, where = trainer_state(tmp_path / "a"), tmp_path / "runs.db"
    [first] = import_runs(file, store=where)
    (tmp_path / "copy.json").write_bytes(file.read_bytes())
    [second] = import_runs(tmp_path / "copy.json", store=where, name="other")
    assert (first.new, second.new) == (True, False)
    assert second.run.name == "a"
    store = open_store(where)
    assert len(store.runs()) == 1
    count = store.summaries(first.run.run_id)["loss", ""].count
    [again] = import_runs(file, store=where, replace=True, name="better")
    assert again.new
    assert store.run(first.run.run_id).name == "better"
    assert store.summaries(first.run.run_id)["loss", ""].count == count
    with pytest.raises(SpecError, match="have the same content"):
        import_runs(file, tmp_path / "copy.json", store=where)


def test_an_import_that_was_broken_off_wrote_nothing_and_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, where = trainer_state(tmp_path / "a"), tmp_path / "runs.db"
    monkeypatch.setattr(stores, "BATCH", 20)
    store = open_store(where)
    whole, calls = stores._append_samples, list[int]()

    def breaking(*arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise SpecError("the disk is full")
        whole(*arguments)

    monkeypatch.setattr(stores, "_append_samples", breaking)
    with pytest.raises(SpecError, match="disk is full"):
        import_runs(file, store=where)
    assert store.runs() == []
    [done] = import_runs(file, store=where)
    assert done.new
    [run] = store.runs()
    assert run.status == "finished"
    assert {key[0]: one.count for key, one in store.summaries(run.run_id).items()} == {
        "loss": 30, "step_s": 29, "tokens": 30,
    }  # fmt: skip


def test_what_cannot_be_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    file, where = trainer_state(tmp_path / "a"), tmp_path / "runs.db"
    with pytest.raises(SpecError, match="concurrency: of serving"):
        import_runs(file, store=where, concurrency=4)
    with pytest.raises(UnknownNameError):
        import_runs(file, store=where, **HOW | {"gpu": "h1000"})
    with pytest.raises(SpecError, match="no file to import"):
        import_runs(store=where)
    (tmp_path / "odd.csv").write_text("key,value,timestamp,step\naccuracy,1,1700000000,1\n")
    with pytest.raises(SpecError, match="no metric has a known name \\(accuracy\\)"):
        import_runs(file, tmp_path / "odd.csv", store=where)
    assert not where.exists()


def test_without_a_model_nothing_is_expected_and_that_is_said(tmp_path: Path) -> None:
    file = trainer_state(tmp_path / "a")
    [done] = import_runs(file, store=tmp_path / "runs.db", gpu="h100")
    assert done.run.expected is None
    assert "nothing is expected of the run without model" in done.notes
    served = tmp_path / "served.json"
    served.write_text((EXAMPLES / "vllm-bench-serve.json").read_text().replace("tiny-llama", "a-net-of-ours"))
    [done] = import_runs(served, store=tmp_path / "runs.db", gpu="h100")  # the file names a model that nobody knows
    assert done.run.expected is None
    assert any("nothing is expected of the run: " in note for note in done.notes)


def test_metrics_by_their_names_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text(
        "key,value,timestamp,step\ncross entropy,2.5,1700000000000,1\nmillis,1500,1700000000000,1\n"
    )
    mapping = ("loss=cross entropy", "step_s=millis*0.001")
    [done] = import_runs(tmp_path / "metrics.csv", store=tmp_path / "runs.db", metric=mapping)
    store = open_store(tmp_path / "runs.db")
    assert store.summaries(done.run.run_id)["step_s", ""].last == 1.5
    assert store.summaries(done.run.run_id)["loss", ""].last == 2.5
    with pytest.raises(SpecError, match="not a mapping; write METRIC=NAME"):
        import_runs(tmp_path / "metrics.csv", store=tmp_path / "runs.db", metric=("loss",))
