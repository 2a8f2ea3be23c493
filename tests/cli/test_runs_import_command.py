"""`flopwise runs import`, `compare`, and what `show` and `export` say of imported runs, as people run them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flopwise import cli

ROOT = Path(__file__).parent.parent.parent
BENCH = str(ROOT / "examples" / "vllm-bench-serve.json")
GUIDE = str(ROOT / "tests" / "records" / "imports" / "samples" / "guidellm-benchmarks.json")
PLAN = ("--model", "Llama-3.2-1B", "--gpu", "l4")


@pytest.fixture(autouse=True)
def _store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOPWISE_RUNS", str(tmp_path / "runs.db"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_from_a_file_to_a_backtest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "runs", "import", BENCH, GUIDE, *PLAN, "--json")
    assert code == 0
    first, second = json.loads(out)
    assert (first["source"], second["source"]) == ("vllm-bench", "guidellm")
    assert first["settings"]["concurrency"] == 4
    assert first["expected"]["question"].startswith("flopwise serve Llama-3.2-1B --gpu l4")
    code, out, _ = run(capsys, "runs", "show", "vllm-bench-serve", "-o", str(tmp_path / "run.html"))
    assert code == 0
    assert out.splitlines()[0].startswith("Faster than the plan: a request takes")
    assert "further tokens" in out
    assert (tmp_path / "run.html").read_text().startswith("<!doctype html>")
    code, out, _ = run(capsys, "runs", "show", "vllm-bench-serve", "--json")
    shown = json.loads(out)
    assert shown["verdict"].startswith("Faster than the plan")
    assert [term["name"] for term in shown["terms"]] == ["first token", "further tokens"]
    code, out, _ = run(capsys, "runs", "compare", "vllm-bench-serve", "guidellm-benchmarks", "--json")
    found = json.loads(out)
    assert [one["name"] for one in found["runs"]] == ["vllm-bench-serve", "guidellm-benchmarks"]
    assert found["settings"]["input_tokens"] == ["12", "14"]
    code, out, _ = run(capsys, "runs", "compare", "vllm-bench-serve", "guidellm-benchmarks")
    assert (code, out.splitlines()[0]) == (0, "2 runs, against vllm-bench-serve")
    rows = tmp_path / "rows.csv"
    code, out, _ = run(capsys, "runs", "export", "--rows", "serving", "-o", str(rows))
    assert (code, out.splitlines()[0]) == (0, f"Wrote 2 rows of serving: {rows}")
    code, out, _ = run(capsys, "backtest", "serving", str(rows), "--json")
    assert json.loads(out)["summary"]["predicted_rows"] == 6


def test_tokens_a_second_and_cost_of_an_imported_run_follow_from_its_tokens_time_and_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """40 steps of 1,024 tokens, 15 s each, on eight accelerators of $3: 68.3 tokens/s, and a sixth of $24."""
    lines = [f"{n},{1_764_000_000 + 15 * n},{3 - n / 100},{1024 * n}" for n in range(41)]
    file = tmp_path / "history.csv"
    file.write_text("\n".join(["_step,_timestamp,train/loss,train/num_input_tokens_seen", *lines]) + "\n", "utf-8")
    assert run(capsys, "runs", "import", str(file), "--model", "gpt2", "--gpu", "8xh100", "--price", "3")[0] == 0
    (found,) = json.loads(run(capsys, "runs", "list", "--json")[1])
    assert found["metrics"]["tokens_per_s"] == pytest.approx(40 * 1024 / 600)
    assert found["metrics"]["cost_usd"] == pytest.approx(8 * 3 * 600 / 3600)
    row = run(capsys, "runs", "list")[1]
    assert "$4.00" in row
    assert "68.3" in row


def test_the_same_file_twice_and_an_export_into_another_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "runs", "import", BENCH, *PLAN)
    code, out, _ = run(capsys, "runs", "import", BENCH)
    assert code == 0
    assert "--replace imports it again" in out
    file, other = str(tmp_path / "run.jsonl"), str(tmp_path / "other.db")
    assert run(capsys, "runs", "export", "vllm-bench-serve", "-o", file)[0] == 0
    code, out, _ = run(capsys, "runs", "import", file, "--store", other, "--json")
    [moved] = json.loads(out)
    assert (moved["new"], moved["run_id"]) == (True, json.loads(run(capsys, "runs", "list", "--json")[1])[0]["run_id"])
    assert not json.loads(run(capsys, "runs", "import", file, "--store", other, "--json")[1])[0]["new"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("import",), "Missing argument 'FILES...'"), (("import", "nothing.csv"), "no such file"),
        (("import", BENCH, "--seq", "8k"), "--seq: of training;"),
        (("import", BENCH, "--format", "wandb"), "not in the format"),
        (("import", BENCH, *PLAN[:2], "--gpu", "h1000"), "h1000"),
        (("import", BENCH, "--metric", "loss"), "is not a mapping"),
        (("import", BENCH, "--metric", "speed=x"), "speed"),
        (("import", BENCH, "--model", "nobody-7b", "--gpu", "l4"), "nobody"),
        (("compare",), "Missing argument"), (("export", "-o", "x"), "no run is given"),
        (("export", "--rows", "serving", "--format", "csv", "-o", "x"), "leave it out"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_writes_nothing(
    words: tuple[str, ...], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, "runs", *words)
    assert (code, out) == (2, "")
    assert reason in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "runs.db").exists()


def test_one_run_has_nothing_to_be_compared_with(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "runs", "import", BENCH)
    code, _, err = run(capsys, "runs", "compare", "vllm-bench-serve", "vllm-bench-serve")
    assert code == 2
    assert "one run cannot be compared" in err
    code, _, err = run(capsys, "runs", "export", "--rows", "training", "-o", "x")
    assert (code, "it is a serving run" in err) == (2, True)
