"""`flopwise assess` on the screen and in a folder, with an assessment made by hand: the engine is tested elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flopwise import cli
from flopwise.cli.commands.assess import blocks
from flopwise.cli.render import Screen
from flopwise.fleet import assess, read
from flopwise.fleet.assess import Assessed

sys.path.insert(0, str(Path(__file__).parents[1] / "report"))
from samples import assessment, workload


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    def made(*_given: Any, **_how: Any) -> Any:
        return Assessed(assessment=assessment(), plans={})

    monkeypatch.setattr(assess, "assess", made)
    monkeypatch.setattr(read, "load_fleet", lambda path: path)
    return str(tmp_path / "fleet.yaml")


def test_the_screen_has_the_bill_and_where_the_report_lies(
    fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["assess", fleet, "-o", str(tmp_path / "report")]) == 0
    shown = capsys.readouterr().out
    for part in ("$1,200 a month", "2 x aws g6.xlarge", "75.0 % of it used", "margin 3 GiB", "$4,120", "report.html"):
        assert part in shown
    assert (tmp_path / "report" / "report.md").read_text().startswith("# GPU strategy: platform")


def test_json_has_the_keys_that_scripts_rely_on(fleet: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["assess", fleet, "--json"]) == 0
    plain = json.loads(capsys.readouterr().out)
    assert {"workloads", "allocation", "usd_per_month", "savings", "risks", "optimality_gap"} <= set(plain)
    assert {"workload", "provider", "instance", "purchase", "count", "usd_per_month"} <= set(plain["allocation"][0])
    assert {"total", "low", "high", "by_provider", "by_environment"} <= set(plain["usd_per_month"])


def test_what_changed_is_shown(fleet: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["assess", fleet, "-o", str(tmp_path / "old")]) == 0
    capsys.readouterr()
    assert cli.main(["assess", fleet, "--compare", str(tmp_path / "old" / "assessment.json")]) == 0
    assert "no change" in capsys.readouterr().out
    assert cli.main(["assess", fleet, "--compare", str(tmp_path / "old")]) == 0, "the folder of a report does as well"
    (tmp_path / "none.json").write_text('{"version": 7}')
    assert cli.main(["assess", fleet, "--compare", str(tmp_path / "none.json")]) == 2
    assert "of a newer flopwise" in capsys.readouterr().err


def test_a_workload_that_nothing_runs_is_a_warning() -> None:
    found = assessment(workloads=[workload(feasible=False, reasons=["no GPU is large enough"])])
    assert any("no machine runs chat: no GPU is large enough" in block for block in blocks(found, Screen()))


def test_a_budget_that_is_too_low_is_exit_1_with_all_of_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    floor = "a month costs at least $1,200 under these policies; the budget is $1,000"
    beyond = Assessed(assessment=assessment(warnings=[floor], budget_per_month=1000.0), plans={})
    monkeypatch.setattr(assess, "assess", lambda *_given, **_how: beyond)
    monkeypatch.setattr(read, "load_fleet", lambda path: path)
    assert cli.main(["assess", str(tmp_path / "fleet.yaml"), "-o", str(tmp_path / "report")]) == 1
    shown = capsys.readouterr().out
    assert f"WARNING: {floor}" in shown
    assert "above the budget of $1,000" in shown.split("\n", 1)[0]
    assert "2 x aws g6.xlarge" in shown
    report = (tmp_path / "report" / "report.md").read_text().replace("\\", "")
    assert f"A{floor[1:]}." in report


def test_bad_files_are_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["assess", str(tmp_path / "missing.yaml")]) == 2
    (tmp_path / "x.yaml").write_text("name: x\nworkloads: []\n")
    assert cli.main(["assess", str(tmp_path / "x.yaml"), "-o", str(tmp_path / "r")]) == 2
    assert "x.yaml:2" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()
