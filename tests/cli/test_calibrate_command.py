"""`flopwise calibrate` and `--calibration` as people run them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

from flopwise import cli
from flopwise.cli.app import app
from flopwise.facts.catalog import load_facts
from flopwise.facts.profiles import profiles_folder
from flopwise.records.model import Run, Sample
from flopwise.records.store import open_store
from probed_cpu import NAME, cpu_probe, cpu_rows, write_rows

TRAIN = ("train", "100M", "--precision", "fp32", "--seq", "128", "--global-batch", "4", "--stack", "hf-trainer-2026")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, err = run(capsys, *words, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def probed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    cpu_probe().write(tmp_path / "mycpu.json")
    assert run(capsys, "calibrate", str(tmp_path / "mycpu.json"))[0] == 0
    return tmp_path


def test_a_probed_cpu_can_be_asked_about_and_the_answer_names_its_profile(
    probed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probed.exists()
    found = answer(capsys, *TRAIN, "--gpu", "here", "--calibration", "mycpu")
    assert found["step_s"] > 0
    assert any("'mycpu'" in line and "kernel_s" in line for line in found["assumptions"])
    assert {"launch", "optimizer"} <= {line["name"] for line in found["breakdown"]}
    same = answer(capsys, *TRAIN, "--gpu", NAME, "--calibration", "mycpu")
    assert same["step_s"] == found["step_s"]
    code, _, err = run(capsys, *TRAIN, "--gpu", NAME)  # without the profile there is no such device
    assert code == 2
    assert "unknown accelerator" in err


def test_runs_teach_a_profile_and_the_wide_interval_narrows(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = cpu_rows(load_facts(None, "mycpu"), {"matmul_frac.bf16": 0.7}, noise=0.03)
    file = str(write_rows(probed / "runs.csv", rows))
    told = answer(capsys, "calibrate", file, "--calibration", "mycpu", "--name", "learned")
    [errors] = told["errors"]
    assert errors["median_after"] < 0.5 * errors["median_before"]
    assert errors["median_left_out"] < 0.5 * errors["median_before"]
    [moved] = [c for c in told["constants"] if c["name"] == "matmul_frac.bf16"]
    assert (moved["before"], moved["rows"]) == (1.0, 12)
    assert 0.6 < moved["after"] < 0.8
    before, after = (answer(capsys, *TRAIN, "--gpu", "here", "--calibration", n) for n in ("mycpu", "learned"))
    assert after["step_s"] > 1.2 * before["step_s"]
    assert after["high"] / after["low"] < before["high"] / before["low"]
    backtest = answer(capsys, "backtest", "training", file, "--calibration", "learned")
    assert backtest["summary"]["median_abs_error"] == pytest.approx(errors["median_after"], rel=0.05)


def test_rows_that_runs_export_writes_teach_as_the_runs_do(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store()
    settings = {"global_batch": 4, "micro_batch": 4, "precision": "fp32", "stack": "hf-trainer-2026"}
    for number, seq in enumerate((64, 128, 256)):
        run_ = Run(
            run_id=f"{number + 1:032x}", name=f"run-{seq}", task="pretrain", started_at_s=1e9, model="100M",
            gpu="Test CPU 9000", gpus=1, settings=settings | {"seq": seq},
        )  # fmt: skip
        store.add_run(run_)
        steps = enumerate([60.0, *[seq / 8] * 20])
        store.append(run_.run_id, [Sample("step_s", 1e9 + n, s, n) for n, s in steps])
    file = str(probed / "rows.csv")
    code, _, err = run(capsys, "runs", "export", "run-64", "run-128", "run-256", "--rows", "training", "-o", file)
    assert code == 0, err
    of_file = answer(capsys, "calibrate", file, "--calibration", "mycpu", "--name", "a", "--dry-run")
    of_runs = answer(capsys, "calibrate", "run-64", "run-128", "run-256", "--calibration", "mycpu", "--dry-run")
    assert of_file["errors"][0]["rows"] == 3
    assert of_file["errors"] == of_runs["errors"]
    assert of_file["constants"] == of_runs["constants"]
    assert of_file["errors"][0]["median_after"] < of_file["errors"][0]["median_before"]


def test_a_config_beside_the_rows_is_their_model(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model of no catalog, once by the path beside the file: as the same model in a folder of facts would be."""
    config = {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "vocab_size": 1024,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    }  # fmt: skip
    (probed / "ours").mkdir()
    (probed / "ours" / "config.json").write_text(json.dumps(config))
    shape = "gpu,gpus,seq_len,micro_batch,global_batch,precision,software,tokens_per_s_per_gpu"
    values = "Test CPU 9000 (probed),1,128,4,4,fp32,hf-trainer-2026,4000"
    header, row = f"id,model,config,{shape}", f"r,tiny,{{}},{values}"
    (probed / "own.csv").write_text(f"{header}\n{row.format('ours/config.json')}\n")
    found = answer(capsys, "backtest", "training", str(probed / "own.csv"), "--calibration", "mycpu")
    assert found["summary"]["median_abs_error"] > 0
    told = answer(capsys, "calibrate", str(probed / "own.csv"), "--calibration", "mycpu", "--name", "own", "--dry-run")
    assert (told["errors"][0]["rows"], told["skipped"]) == (1, [])
    (probed / "own.csv").write_text(f"{header}\n{row.format('gone/config.json')}\n")
    code, _, err = run(capsys, "calibrate", str(probed / "own.csv"), "--calibration", "mycpu", "--dry-run")
    assert code == 2
    assert "nothing to calibrate with" in err


def test_profiles_are_listed_shown_and_removed(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [p["name"] for p in answer(capsys, "calibrate", "--list")] == ["mycpu"]
    shown = answer(capsys, "calibrate", "--show", "mycpu")
    assert shown["devices"] == [NAME]
    assert shown["files"] == [str(probed / "mycpu.json")]
    assert NAME in run(capsys, "calibrate", "--show", "mycpu")[1]
    assert run(capsys, "calibrate", "--remove", "mycpu")[0] == 0
    assert not (profiles_folder() / "mycpu").exists()
    said = run(capsys, "calibrate", "--list")[1].strip()
    assert said == "No calibration profiles; estimates use the shipped constants."
    code, _, err = run(capsys, *TRAIN, "--gpu", "here", "--calibration", "mycpu")
    assert code == 2
    assert "calibration profile 'mycpu'" in err


def test_a_dry_run_writes_nothing_and_a_name_is_not_taken_twice(
    probed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(probed / "mycpu.json")
    assert run(capsys, "calibrate", file, "--name", "other", "--dry-run")[0] == 0
    assert [p["name"] for p in answer(capsys, "calibrate", "--list")] == ["mycpu"]
    with monkeypatch.context() as patched:
        patched.setattr("flopwise.fitting.profile.MadeProfile.of", None)  # nothing is fitted for a name that is taken
        code, _, err = run(capsys, "calibrate", file)
    assert code == 2
    assert "is there already; --force replaces it" in err
    assert run(capsys, "calibrate", file, "--force")[0] == 0


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("a,b\n1,2\n", "x.csv", "its columns are those of no kind of measurement"),
        ("", "x.csv", "is empty"),
        ("{", "x.json", "damaged, or not a probe's file"),
        ('{"format": "other"}', "x.json", "not a probe's file"),
        ("model,gpu,gpus,seq_len,tokens_per_s_per_gpu\n7B,nope,1,128,10\n", "x.csv", "nothing to calibrate with"),
    ],
)
def test_bad_files_are_named(
    text: str, name: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    code, out, err = run(capsys, "calibrate", str(tmp_path / name))
    assert (code, out) == (2, "")
    assert expected in err
    assert not profiles_folder().exists()


@pytest.mark.parametrize(
    "words", [(), ("--list", "--show", "x"), ("nofile.csv", "--list"), ("--list", "--name", "x"), ("--show", "../x")]
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "calibrate", *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


@pytest.mark.parametrize("name", ["../up", "a/b", "", "-x", "a b"])
def test_a_profile_has_a_plain_name(name: str, probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "calibrate", str(probed / "mycpu.json"), "--name", name)
    assert code == 2
    assert "name" in err or "letters" in err


def test_a_damaged_profile_is_told_not_used(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert probed.exists()
    (profiles_folder() / "mycpu" / "calibration" / "measured.json").write_text("[{}]", encoding="utf-8")
    code, _, err = run(capsys, *TRAIN, "--gpu", "here", "--calibration", "mycpu")
    assert code == 2
    assert "measured.json, entry 1" in err
    (profiles_folder() / "mycpu" / "profile.json").write_text("{", encoding="utf-8")
    assert run(capsys, "calibrate", "--list")[0] == 2


def test_a_recorded_run_teaches_as_its_row_would(probed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = open_store()
    settings = {"seq": 128, "global_batch": 4, "micro_batch": 4, "precision": "fp32", "stack": "hf-trainer-2026"}
    run_ = Run(
        run_id="ab" * 16, name="evening", task="pretrain", started_at_s=1e9, model="100M", gpu="Test CPU 9000", gpus=1,
        settings=settings,
    )  # fmt: skip
    store.add_run(run_)
    steps = enumerate([60.0, *[4.0] * 20])  # the first warms up; 4 x 128 tokens in each other
    store.append(run_.run_id, [Sample("step_s", 1e9 + n, s, n) for n, s in steps])
    told = answer(capsys, "calibrate", "evening", "--calibration", "mycpu", "--name", "taught")
    [errors] = told["errors"]
    assert (errors["rows"], told["skipped"]) == (1, [])
    assert errors["median_after"] < errors["median_before"]
    taught = answer(capsys, *TRAIN, "--gpu", "here", "--calibration", "taught")["step_s"]
    untaught = answer(capsys, *TRAIN, "--gpu", "here", "--calibration", "mycpu")["step_s"]
    assert min(untaught, 4.0) < taught < max(untaught, 4.0)  # towards what was measured, and not all of the way
    assert errors["interval"] is None  # one run does not tell how wrong the next estimate is
    code, _, err = run(capsys, "calibrate", "morning", "--calibration", "mycpu")
    assert code == 2
    assert "morning" in err
    bare = replace(run_, run_id="cd" * 16, settings={})
    store.add_run(bare)
    code, _, err = run(capsys, "calibrate", "cdcd", "--calibration", "mycpu")
    assert code == 2
    assert "its throughput is not known" in err
    assert probed.exists()


def test_every_command_that_estimates_takes_a_profile() -> None:
    facts_only = {"instances", "models", "prices", "probe", "observe"}  # what these say rests on no constant
    with click.Context(app) as context:
        for name in app.list_commands(context):
            command = app.get_command(context, name)
            assert command is not None
            flags = {flag for param in command.params for flag in param.opts}
            if "--facts" in flags:
                assert ("--calibration" in flags) == (name not in facts_only), name
