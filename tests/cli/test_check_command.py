"""`flopwise check`: the verdict is the exit code, and the text says what the JSON holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flopwise import cli
from flopwise.report.words import usd

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
    assert f"{1 - code} of 1 set-ups hold, {usd(found['usd_per_month'])} a month" in text
    for change in found["workloads"][0]["changes"]:
        assert change["how"] in text
    for reason in found["workloads"][0]["reasons"]:
        assert reason in text


def test_a_fleet_that_says_nothing_of_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET.split("    existing", maxsplit=1)[0], encoding="utf-8")
    assert cli.main(["check", str(file)]) == 2
    assert "--existing FILE.csv" in capsys.readouterr().err
