"""`flopwise prices` as people run it."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flopwise import cli
from flopwise.facts.catalog import load_facts

FILE = """\
instance_name,location,price,cpu,memory,gpu_count,gpu_name,gpu_memory,spot
p5.48xlarge,us-east-1,{},192,2048,8,H100,80,False
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = cli.main(list(words))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def price() -> float | None:
    [offer] = load_facts().offers_for(provider="aws", instance="p5.48xlarge", region="us-east-1")[:1]
    return offer.on_demand_usd_per_hour


def test_an_import_lasts_until_it_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aws.csv").write_text(FILE.format(50), encoding="utf-8")
    code, out, _ = run(capsys, "prices", "import", str(tmp_path / "aws.csv"), "--date", "2026-11-02", "--json")
    made = json.loads(out)
    assert (code, made["offers"], made["changed"], made["price_dates"]) == (0, 1, 1, ["2026-11-02"] * 2)
    assert price() == 50
    code, out, _ = run(capsys, "prices", "list", "--json")
    assert [held["name"] for held in json.loads(out)] == ["aws"]
    code, out, _ = run(capsys, "prices")
    assert "Imported" in out
    assert run(capsys, "prices", "remove", "aws")[0] == 0
    assert price() == 55.04
    assert run(capsys, "prices", "list")[1].startswith("No imported prices; estimates use the shipped ones.")


def test_a_broken_import_says_where_and_leaves_what_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aws.csv").write_text(FILE.format(50), encoding="utf-8")
    assert run(capsys, "prices", "import", str(tmp_path / "aws.csv"))[0] == 0
    (tmp_path / "aws.csv").write_text(FILE.format(-1), encoding="utf-8")
    code, out, err = run(capsys, "prices", "import", str(tmp_path / "aws.csv"))
    assert (code, out) == (2, "")
    assert "aws.csv, row 2, column price: got '-1'; allowed: US dollars per hour above 0" in err
    assert price() == 50


def test_without_gpuhunt_a_refresh_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", None)
    code, out, err = run(capsys, "prices", "refresh")
    assert (code, out) == (1, "")
    assert "gpuhunt is not installed: pip install 'flopwise[prices]'" in err
    assert "Traceback" not in err


def hunting(items: list[Any]) -> ModuleType:
    """A stand-in for gpuhunt: a catalog that holds `items`, or fails where they are an exception."""

    class Catalog:
        def __init__(self, **_: Any) -> None:
            pass

        def load(self) -> None:
            if items and isinstance(items[0], Exception):
                logging.getLogger("gpuhunt.inside").error("Failed to load a catalog", exc_info=items[0])
                raise items[0]
            logging.getLogger("gpuhunt.inside").error("Failed to load the oci catalog")

        def query(self, **_: Any) -> list[Any]:
            return items

    module = ModuleType("gpuhunt")
    module.Catalog = Catalog  # type: ignore[attr-defined]
    return module


def item(**changes: Any) -> SimpleNamespace:
    known = {
        "provider": "lambdalabs", "instance_name": "gpu_8x_h100_sxm5", "location": "us-east-1", "price": 24.0,
        "cpu": 208, "memory": 1800.0, "gpu_count": 8, "gpu_name": "H100", "gpu_memory": 80.0, "spot": False,
    }  # fmt: skip
    return SimpleNamespace(**{**known, **changes})


def test_a_refresh_is_an_import(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        item(),
        item(price=0.0, location="x"),
        item(gpu_name="H1000X", instance_name="y"),
        item(price=12.0, spot=True),
    ]
    monkeypatch.setitem(sys.modules, "gpuhunt", hunting(items))
    code, out, _ = run(capsys, "prices", "refresh", "--json")
    made = json.loads(out)
    assert (code, made["name"], made["offers"]) == (0, "gpuhunt", 1)
    assert made["skipped"] == {"unknown accelerator H1000X": 1, "Failed to load the oci catalog": 1}
    [offer] = [o for o in load_facts().offers if o.key == ("lambda", "gpu_8x_h100_sxm5", "us-east-1")]
    assert (offer.on_demand_usd_per_hour, offer.spot_usd_per_hour, offer.source) == (24.0, 12.0, "gpuhunt")


@pytest.mark.parametrize("items", [[OSError("no route to host")], [], [item(price=-1)]])
def test_a_refresh_that_brings_nothing_changes_nothing(
    items: list[Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gpuhunt", hunting(items))
    code, out, err = run(capsys, "prices", "refresh")
    assert (code, out) == (1, "")
    assert "refreshed" in err
    assert "Traceback" not in err
    assert run(capsys, "prices", "list")[1].startswith("No imported prices")


def test_ages_are_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "prices", "age", "--max-age", "1", "--json")
    made = json.loads(out)
    assert code == 0
    assert {row["provider"] for row in made["providers"]} >= {"aws", "gcp", "azure"}
    assert made["most_days"] == 1
    assert all(row["stale"] > 0 for row in made["providers"])
    book = {row["provider"]: row for row in made["book"]}
    assert set(book) == {
        "hosted models", "storage and traffic", "machines to buy", "spot prices", "reserved prices",
        "spot interruptions",
    }  # fmt: skip
    assert book["hosted models"]["offers"] == len(load_facts().hosted_prices)
    assert book["machines to buy"]["oldest"] == min(price.date for price in load_facts().hardware_prices)


def test_a_plan_on_old_prices_says_so_beside_its_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "aws.csv").write_text(FILE.format(50), encoding="utf-8")
    run(capsys, "prices", "import", str(tmp_path / "aws.csv"), "--date", "2019-01-01")
    plan = ("plan", "Llama-3.1-8B", "--task", "finetune", "--lora", "16", "--tokens", "1M", "--instance", "p5.48xlarge")
    code, out, err = run(capsys, *plan, "--region", "us-east-1", "--json")
    assert code == 0
    json.loads(out)
    assert "note: the price of aws p5.48xlarge in us-east-1 is" in err
    assert "days old (2019-01-01)" in err


def test_an_import_takes_no_day_to_come_and_remarks_on_odd_prices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "aws.csv"
    file.write_text(FILE.format(0.001), encoding="utf-8")
    code, out, err = run(capsys, "prices", "import", str(file), "--date", "2999-01-01")
    assert (code, out) == (2, "")
    assert "--date: 2999-01-01 lies ahead; allowed: days up to" in err
    code, out, err = run(capsys, "prices", "import", str(file), "--json")
    assert code == 0
    assert "note: aws p5.48xlarge in us-east-1, on demand: $0.001 an hour, known is $55.04" in err
    assert len(json.loads(out)["notes"]) == 1


def test_a_file_called_like_nobody_needs_its_provider_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "sky.csv").write_text(FILE.format(50), encoding="utf-8")
    code, out, err = run(capsys, "prices", "import", str(tmp_path / "sky.csv"))
    assert (code, out) == (2, "")
    assert "'sky' is not a known name of a provider" in err
    code, _, err = run(capsys, "prices", "import", str(tmp_path / "sky.csv"), "--provider", "sky")
    assert code == 0
    assert "note: sky is a new provider" in err
    assert run(capsys, "prices", "import", str(tmp_path / "sky.csv"), "--provider", "aws")[0] == 0


def test_own_prices_say_how_old_what_they_rest_on_is(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "prices", "own", "--json")
    assert code == 0
    oldest = min(row["price_date"] for row in json.loads(out))
    assert "note: the price of " in err
    assert " to buy is " in err
    assert f"days old ({oldest})" in err
