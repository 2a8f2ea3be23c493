"""Which published loads of servers the fit sees, and what it makes of runs with an end."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fit_serving as serving
from flopwise.backtests.serving import predict_row
from flopwise.facts.catalog import load_facts

FACTS = load_facts()
ROW = {
    "id": "a run", "study": "a study", "mode": "serving_concurrency", "model": "Llama-3.1-8B", "gpu": "H100-SXM-80",
    "gpus": "1", "tp": "1", "engine": "vLLM", "engine_version": "0.24.0", "weights": "bf16", "input_tokens": "1000",
    "output_tokens": "300", "lengths": "uniform 0-1", "concurrency": "16", "requests": "80", "tpot_s": "0.009",
    "ttft_s": "0.1", "output_tokens_per_s": "1500",
}  # fmt: skip


def test_a_closed_loop_with_an_end_is_what_its_simulation_makes_of_the_steady_state() -> None:
    [load] = serving.loads([ROW], FACTS)
    steady = serving.load_quantities(load, load.machine)
    run = {p.quantity: p.predicted for p in predict_row(ROW, FACTS)}
    for quantity in ("tpot_s", "ttft_s", "output_tokens_per_s"):
        assert steady[quantity] * load.ends[quantity] == pytest.approx(run[quantity], rel=1e-9)
        assert load.ends[quantity] != 1.0
    slower = replace(load.machine, engine=replace(load.machine.engine, step_s=load.machine.engine.step_s + 1e-3))
    assert serving.load_quantities(load, slower)["tpot_s"] == pytest.approx(steady["tpot_s"] + 1e-3, rel=0.05)


def test_few_requests_a_user_and_rates_of_arrivals_judge_the_fit_alone() -> None:
    assert serving.loads([ROW | {"requests": "63"}], FACTS) == []
    rate = ROW | {"mode": "serving_qps", "arrivals_per_s": "2", "concurrency": ""}
    assert serving.loads([rate], FACTS) == []
    [steady] = serving.loads([ROW | {"requests": ""}], FACTS)
    assert steady.ends == {}


def test_times_to_a_first_token_of_sglang_are_no_part_of_the_fit() -> None:
    [load] = serving.loads([ROW | {"engine": "SGLang", "engine_version": "0.5.12"}], FACTS)
    assert set(load.measured) == {"tpot_s", "output_tokens_per_s"}
