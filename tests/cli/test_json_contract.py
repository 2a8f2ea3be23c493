"""`--json`: one document on stdout and nothing else, with the keys that scripts rely on, and every number finite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import pytest
from bad_inputs import BASES, GOOD_FILES, Case, commands

from flopwise import cli

INTERVALS = ("ttft_s", "tpot_s", "output_tokens_per_s", "output_tokens_per_s_per_gpu")
MEMORY = {"per_gpu_bytes", "low_bytes", "high_bytes", "items", "capacity_bytes", "fits", "remedies"}
KEYS: dict[str, set[str]] = {
    "models": {"name", "model_type", "parameters", "active_parameters"},
    "memory": MEMORY,
    "train": {
        "step_s", "tokens_per_s", "tokens_per_s_per_gpu", "low", "high", "lower_bound_s", "upper_bound_s", "mfu_frac",
        "hfu_frac", "bound", "breakdown", "memory", "run",
    },
    "serve": {
        *INTERVALS, *(f"{name}_low" for name in INTERVALS), *(f"{name}_high" for name in INTERVALS),
        "max_concurrency", "kv_capacity_tokens", "bound", "usd_per_million_output_tokens",
    },
    "fit": {"verdict", "gpu", "num_gpus", "context", "output_tokens", "formats"},
    "simulate": {
        "ttft_s", "tpot_s", "itl_s", "e2e_s", "completed", "dropped", "preemptions", "output_tokens_per_s",
        "goodput_per_s", "replica_hours", "cost_usd",
    },
    "plan": {"plans", "ruled_out", "evaluated", "elapsed_s"},
    "check": {"holds", "workloads", "reasons", "usd_per_month", "idle_usd_per_month", "proposed_usd_per_month"},
    "export": {"target", "folder", "files", "apply", "to_fill", "assumptions"},
    "compare": {"ways", "break_even", "cheapest", "months", "tokens_per_month", "assumptions"},
    "io": {"bytes_per_flop", "read_bytes_per_s_per_gpu", "read_bytes_per_s_per_node", "read_bytes_per_s_total"},
    "backtest": {"kind", "rows", "summary"},
    "observe": {"engine", "ttft", "itl", "e2e", "requests", "queue_s", "running", "cache_frac", "cached_frac", "notes"},
}  # fmt: skip
INSIDE: dict[tuple[str, str], set[str]] = {
    ("memory", "items"): {"name", "bytes"},
    ("memory", "remedies"): {"change", "saves_bytes", "slower_frac"},
    ("train", "breakdown"): {"name", "seconds"},
    ("train", "run"): {
        "seconds", "gpu_hours", "goodput_frac", "cost_usd", "start_s", "start_usd", "start_joules",
        "unit_usd", "energy_joules",
        "tokens", "steps", "breakdown",
        "seconds_low", "seconds_high", "cost_usd_low", "cost_usd_high", "energy_joules_low", "energy_joules_high",
        "checkpoint_bytes", "checkpoint_bytes_per_s", "checkpoint_write_s", "checkpoint_interval_s", "mtbf_s",
        "interruptions", "notes", "corpus", "compute_optimal_tokens", "critical_batch_tokens",
    },
    ("train", "memory"): MEMORY,
    ("fit", "formats"): {
        "weights", "fits", "fits_probability", "longest_context", "most_requests", "tokens_per_s",
        "usd_per_million_output_tokens", "quality",
    },
    **{("simulate", name): {"p50", "p90", "p95", "p99"} for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s")},
    ("observe", "ttft"): {"source", "count", "mean", "p50", "p90", "p95", "p99", "low", "high"},
    ("plan", "plans"): {
        "rank", "provider", "region", "instance", "num_instances", "gpu", "num_gpus", "purchase", "layout", "seconds",
        "usd_per_hour", "cost_usd", "energy_joules", "meets",
    },
    ("plan", "ruled_out"): {"reason", "count", "example"},
    ("backtest", "rows"): {"id", "measured", "predicted", "low", "high", "unit", "error", "skipped", "quantity"},
    ("backtest", "summary"): {
        "rows", "predicted_rows", "skipped_rows", "median_abs_error", "p90_abs_error", "bias", "coverage",
    },
}  # fmt: skip


def _not_json(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def document(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOPWISE_FACTS", raising=False)
    argv = (*BASES[request.param], "--json")
    Case("", argv, GOOD_FILES).write(tmp_path)
    code = cli.main(argv)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    return json.loads(out, parse_constant=_not_json)


@pytest.mark.parametrize("document", commands(), indirect=True)
def test_every_command_answers_with_one_document(document: Any) -> None:
    assert isinstance(document, dict | list)


@pytest.mark.parametrize(("document", "name"), [(n, n) for n in KEYS if n in commands()], indirect=["document"])
def test_the_keys_that_scripts_rely_on(document: dict[str, Any], name: str) -> None:
    assert KEYS[name] <= document.keys()
    for (command, key), keys in INSIDE.items():
        held = document[key] if command == name else None
        for one in held if isinstance(held, list) else [held] if held is not None else []:
            assert keys <= one.keys(), f"{key} lacks {keys - one.keys()}"


@pytest.mark.parametrize("document", [n for n in ("train",) if n in commands()], indirect=True)
def test_a_training_estimate_lies_between_its_bounds(document: dict[str, Any]) -> None:
    assert document["lower_bound_s"] <= document["step_s"] <= document["upper_bound_s"]
    assert document["low"] <= document["tokens_per_s_per_gpu"] <= document["high"]
    assert 0 < document["mfu_frac"] <= document["hfu_frac"] < 1
    assert sum(part["bytes"] for part in document["memory"]["items"]) == pytest.approx(
        document["memory"]["per_gpu_bytes"], rel=1e-6
    )


def test_a_run_and_a_comparison_have_their_keys(capsys: pytest.CaptureFixture[str]) -> None:
    line = "train Llama-3.1-8B --gpu h100 --gpus 8 --seq 2048 --json"
    assert cli.main([*line.split(), "--tokens", "1B", "--fsdp"]) == 0
    run = json.loads(capsys.readouterr().out, parse_constant=_not_json)["run"]
    assert INSIDE["train", "run"] == run.keys()
    assert sum(part["seconds"] for part in run["breakdown"]) == pytest.approx(run["seconds"])
    assert cli.main([*line.split(), "--compare"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=_not_json)
    assert {"scaling", "reference", "points", "bends", "num_gpus", "global_batch", "assumptions"} <= found.keys()
    assert {
        "strategy", "num_gpus", "fits", "layout", "step_s", "efficiency_frac", "samples_per_s", "reason", "memory_bytes"
    } <= found["points"][0].keys()  # fmt: skip


@pytest.mark.parametrize("document", [n for n in ("serve",) if n in commands()], indirect=True)
def test_a_serving_estimate_lies_in_its_interval(document: dict[str, Any]) -> None:
    for name in INTERVALS:
        assert document[f"{name}_low"] <= document[name] <= document[f"{name}_high"]


@pytest.mark.parametrize("document", [n for n in ("plan",) if n in commands()], indirect=True)
def test_plans_are_ranked_and_probabilities_are_shares(document: dict[str, Any]) -> None:
    assert [plan["rank"] for plan in document["plans"]] == list(range(1, len(document["plans"]) + 1))
    assert document["plans"]
    for plan in document["plans"]:
        assert plan["meets"]
        assert all(0 <= probability <= 1 for probability in plan["meets"].values())
        assert plan["num_gpus"] >= 1
