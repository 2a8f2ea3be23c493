"""`gpus`, `instances` and `models`: the keys that scripts rely on, and what a person reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flopwise import cli

GPT2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
Ask = Callable[..., str]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(GPT2))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOPWISE_FACTS", raising=False)

    def go(*argv: str) -> str:
        assert cli.main(argv) == 0
        return capsys.readouterr().out

    return go


def test_gpus_json_holds_every_fact_with_source_date_and_confidence(ask: Ask) -> None:
    rows = json.loads(ask("gpus", "--json"))
    assert len(rows) >= 78 + 6
    assert all(row["source"] and row["date"] and row["confidence"] in {"high", "medium", "low"} for row in rows)
    assert all(row["hbm_bytes"] > 0 for row in rows)
    assert sum(row["kind"] == "cpu" for row in rows) >= 6
    one: dict[str, Any] = json.loads(ask("gpus", "H100-SXM-80GB", "--json"))
    assert one["name"] == "H100-SXM-80"
    assert one["peak"]["bf16"] == pytest.approx(989.4e12, rel=1e-3)


def test_an_unknown_fact_is_null_never_zero(ask: Ask) -> None:
    t4 = json.loads(ask("gpus", "T4", "--json"))
    assert t4["link_bytes_per_s"] is None
    assert "fp8" not in t4["peak"]
    assert " - " in ask("gpus", "--vendor", "NVIDIA")


def test_instances_json_has_one_object_a_row(ask: Ask) -> None:
    rows = json.loads(ask("instances", "--provider", "aws", "--gpu", "h100", "--json"))
    assert rows
    for row in rows:
        assert row["accelerator"] == "H100-SXM-80"
        assert row["source"]
        assert row["price_date"]
        assert row["on_demand_usd_per_hour"] is None or row["on_demand_usd_per_hour"] > 0


def test_no_offer_is_said_and_is_an_answer(ask: Ask) -> None:
    assert ask("instances", "--gpu", "h100", "--max-price", "0.01") == "No offer fits all of these.\n"
    assert json.loads(ask("instances", "--gpu", "h100", "--max-price", "0.01", "--json")) == []


def test_models_json_holds_the_contract(ask: Ask) -> None:
    bare = json.loads(ask("models", "./mine", "--json"))
    assert (bare["name"], bare["model_type"], bare["parameters"]) == ("mine", "gpt2", 124_439_808)
    assert "forward_flops" not in bare
    shaped = json.loads(ask("models", "mine/config.json", "--batch", "1", "--seq", "1k", "--json"))
    assert {"forward_flops", "backward_flops", "causal_forward_flops", "operations"} <= shaped.keys()
    assert shaped["causal_forward_flops"] < shaped["forward_flops"] < shaped["backward_flops"]
    assert {"name", "flops", "bytes"} <= shaped["operations"][0].keys()
    assert type(shaped["parameters"]) is int


def test_the_catalog_is_listed_and_filtered(ask: Ask) -> None:
    rows = json.loads(ask("models", "--json"))
    assert len(rows) >= 213
    named = {row["name"]: row for row in rows}
    assert len(named) == len(rows)
    assert all(row["model_type"] and row["kind"] for row in rows)
    llamas = json.loads(ask("models", "--family", "LLAMA", "--json"))
    assert {row["model_type"] for row in llamas} == {"llama"}
    assert 0 < len(llamas) < len(rows)
    assert llamas[0]["name"] in ask("models", "--family", "llama")


def test_a_person_reads_the_exact_count_and_the_table(ask: Ask) -> None:
    text = ask("models", "./mine", "--seq", "128")
    assert "124,439,808" in text
    assert "A pass over 1 x 128 tokens" in text
    assert "as PyTorch counts" in text


def test_a_facts_folder_adds_rows_and_overrides_them(ask: Ask, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "accelerators.csv").write_text(
        "name,vendor,architecture,kind,hbm_bytes,hbm_bytes_per_s,source,date\n"
        "X9,me,Next,gpu,1TB,9TB/s,our lab,2026-01-01\n"
    )
    one = json.loads(ask("gpus", "x9", "--facts", "own", "--json"))
    assert (one["hbm_bytes"], one["source"]) == (1e12, "our lab")
    assert "X9" not in ask("gpus")
