"""`flopwise check`: the verdict is the exit code, and the text says what the JSON holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flopwise import cli
from flopwise.report.words import usd
from flopwise.units import format_usd

FLEET = """
name: Ours
policies: {providers: {aws: 100%}}
workloads:
  - name: classifier
    task: encode
    model: bert-base-uncased
    traffic: {requests_per_s: 200, input_tokens: 128}
    targets: {latency: {p95: 500ms}}
    existing: [{instance: g4dn.xlarge, count: COUNT}]
"""


@pytest.mark.parametrize(("count", "code"), [(2, 0), (1, 1)])
def test_the_exit_code_says_whether_all_holds(
    count: int, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "fleet.yaml"
    rate = 200 if count == 2 else 3000
    file.write_text(FLEET.replace("COUNT", str(count)).replace("200,", f"{rate},"), encoding="utf-8")
    assert cli.main(["check", str(file), "--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["holds"] is (code == 0)
    assert cli.main(["check", str(file)]) == code
    text = capsys.readouterr().out
    bill = f"{format_usd(found['usd_per_month'])} a month"
    assert text.startswith(f"Ours: {1 - code} of 1 set-ups meet their targets and policies, {bill}")
    assert found["verdict"] in " ".join(text.split())
    for change in found["workloads"][0]["changes"]:
        assert change["how"] in text
    for reason in found["workloads"][0]["reasons"]:
        assert reason in text


def test_a_fleet_that_says_nothing_of_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.split("    existing", maxsplit=1)[0], encoding="utf-8")
    assert cli.main(["check", str(file)]) == 2
    assert "--existing FILE.csv" in capsys.readouterr().err


def test_a_judgement_is_written_as_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same figures in three files; an assessment in the same folder stays."""
    file, folder = tmp_path / "fleet.yaml", tmp_path / "out"
    file.write_text(FLEET.replace("COUNT", "1").replace("200,", "3000,"), encoding="utf-8")
    plan = folder / "plans" / "001-old.json"
    plan.parent.mkdir(parents=True)
    plan.write_text("{}", encoding="utf-8")
    assert cli.main(["check", str(file), "-o", str(folder), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert json.loads((folder / "check.json").read_text(encoding="utf-8")) == found
    assert plan.exists()
    text = (folder / "report.md").read_text(encoding="utf-8")
    page = (folder / "report.html").read_text(encoding="utf-8")
    (workload,) = found["workloads"]
    for written in (text.replace("\\", ""), page):
        assert usd(found["usd_per_month"]) in written
        assert "0 of 1 set-ups meet their targets and policies" in written
        for change in workload["changes"]:
            assert usd(change["usd_per_month"]) in written
    assert "1 x aws g4dn.xlarge" in text
    assert workload["reasons"][0].split(",")[0][:30] in text.replace("\\", "")
    assert cli.main(["check", str(file), "-o", str(file)]) == 2
    assert "is a file" in capsys.readouterr().err


def test_a_table_alone_is_refused_with_where_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "have.csv").write_text("name,instance,count,hours\napi,g4dn.xlarge,3,730\n", encoding="utf-8")
    assert cli.main(["check", str(tmp_path / "have.csv")]) == 2
    assert "a table of machines goes with --existing" in capsys.readouterr().err
