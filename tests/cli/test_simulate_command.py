"""`flopwise simulate` of replicas that come and go, queues and cached answers: one answer in table and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from flopwise import cli

Say = Callable[[str], tuple[str, dict[str, Any]]]
TRAFFIC = "simulate Llama-3.1-8B --gpu l4 --rate 6 --requests 400 --input 512 --output 32"
SIMULATED = {"ttft_s", "tpot_s", "itl_s", "e2e_s", "completed", "dropped", "replica_hours", "cost_usd", "goodput_per_s"}


def _finite(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Say:
    def go(line: str) -> tuple[str, dict[str, Any]]:
        assert cli.main(line.split()) == 0, capsys.readouterr().err
        shown = capsys.readouterr().out
        assert cli.main([*line.split(), "--json"]) == 0
        return shown, json.loads(capsys.readouterr().out, parse_constant=_finite)

    return go


def test_an_autoscaler_is_held_against_fixed_numbers(said: Say) -> None:
    line = (
        f"{TRAFFIC} --autoscale concurrency --target 8 --max-replicas 4 --cold-start 10s --tick 5s --ttft 1s --vertical"
    )
    shown, found = said(line)
    assert found.keys() >= SIMULATED
    held = found["autoscale"]
    names = [row["name"] for row in held["provisions"]]
    assert names == ["autoscaler", "fixed, for the peak", "fixed, as many on average"]
    assert all(name in shown for name in names)
    assert held["provisions"][0]["replica_hours"] == found["replica_hours"]
    assert held["provisions"][0]["cost_usd"] == found["cost_usd"]
    assert held["rule"]["target"] == 8
    assert held["cold_starts"] > 0
    line_ = held["timeline"]
    assert len({len(column) for column in line_.values()}) == 1
    assert max(line_["ready"]) <= held["most_replicas"] <= 4
    assert sum(held["arrivals"]["requests_per_s"]) > 0
    assert [row["tp"] for row in found["vertical"]] == [1, 2, 4]
    assert "The same accelerators as replicas of other sizes" in shown


def test_a_queue_has_its_odds_and_its_histogram(said: Say) -> None:
    shown, found = said(
        "simulate Llama-3.1-8B --gpu h100 --queue 1M --workers 4 --deadline 4h --provider aws --fallback 2 --trials 100"
    )
    assert "met with" in shown
    assert "fell back" in shown
    assert list(found["completion_s"]) == ["p50", "p90", "p95", "p99"]
    assert 0 <= found["deadline_probability"] <= 1
    assert sum(found["histogram"]["trials"]) == 100
    assert len(found["histogram"]["edges_s"]) == len(found["histogram"]["trials"]) + 1
    assert {row["workers"] for row in found["sweep"]} >= {2, 4, 8}
    assert found["cost_usd"]["mean"] < found["on_demand"]["mean_cost_usd"]


def test_prices_that_are_not_known_are_no_zero(said: Say) -> None:
    shown, found = said("simulate Llama-3.1-8B --gpu tpu-v5e --tp 4 --queue 10k --spot-interruptions 0 --trials 20")
    assert found["cost_usd"] is None or found["cost_usd"]["mean"] > 0
    assert "$0.00" not in shown


def test_a_cache_reports_hits_beside_theory(said: Say) -> None:
    shown, found = said(f"{TRAFFIC} --response-cache 50 --distinct 80 --repeated 70% --ttft 1s --cache-price 0.01")
    report = found["response_cache"]
    assert found["completed"] == 400
    assert report["hits"] == round(400 * report["hit_frac"]) > 0
    assert 0 < report["long_run_hit_frac"] < 0.7
    assert report["fewest_replicas"] <= report["fewest_replicas_without"]
    assert report["cost_usd"] > 0
    assert "Cache of answers" in shown


def test_scaling_to_zero_wakes_for_who_comes(said: Say) -> None:
    _, found = said(
        "simulate Llama-3.1-8B --gpu l4 --rate 1/min --requests 8 --arrivals uniform --input 64 --output 8 "
        "--autoscale concurrency --min-replicas 0 --cold-start 20s --cool-down 0 --tick 5s"
    )
    assert found["autoscale"]["cold_starts"] == 8
    assert found["ttft_s"]["p50"] > 20
    assert found["autoscale"]["mean_replicas"] < 0.6


@pytest.mark.parametrize(("ttft", "tpot", "code"), [("p95=5s", "p99=1s", 0), ("p95=5s", "p99=1ms", 1)])
def test_a_limit_at_a_percentile_is_held_or_missed(
    capsys: pytest.CaptureFixture[str], ttft: str, tpot: str, code: int
) -> None:
    line = f"{TRAFFIC.replace('400', '40')} --ttft {ttft} --tpot {tpot}"
    assert cli.main([*line.split(), "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    first, second = found["targets"]
    assert first == {
        "latency": "ttft", "percentile": "p95", "limit_s": 5.0, "measured_s": found["ttft_s"]["p95"], "holds": True
    }  # fmt: skip
    assert (second["measured_s"], second["holds"]) == (found["tpot_s"]["p99"], code == 0)
    assert found["verdict"].startswith("Meets TTFT p95 of 5.00 s: ")
    assert ("Misses TPOT p99 of 1.00 ms: " in found["verdict"]) == (code == 1)
    assert cli.main([*line.split(), "--ttft", "mean=1s"]) == 2
    assert "--ttft: allowed in a simulation: p50, p90, p95, p99" in capsys.readouterr().err
