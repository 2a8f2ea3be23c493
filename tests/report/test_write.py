"""A report's folder holds all of a report or what was there before, and nothing of an older one beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flopwise.errors import SpecError
from flopwise.fleet.assessment import read_assessment
from flopwise.report import write
from flopwise.report.write import plan_file, write_report
from flopwise.search.answer import Plan

sys.path.insert(0, str(Path(__file__).parent))
from samples import assessment, workload


def plan(name: str) -> Plan:
    return Plan(
        workload={"name": name}, task="serve", objective="cost", plans=[], front=[], misses=[], ruled_out=[], levers=[],
        assumptions=[], evaluated=0, elapsed_s=0.0,
    )  # fmt: skip


def held(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_plans_are_written_linked_and_deleted_with_their_report(tmp_path: Path) -> None:
    names = ["a b", "../c", "a b"[::-1]]
    found = assessment(workloads=[workload(n) for n in names])
    write_report(found, tmp_path, plans={n: plan(n) for n in names})
    files = read_assessment(tmp_path).workloads
    assert [w.plan_file for w in files] == ["plans/001-a-b.json", "plans/002-c.json", "plans/003-b-a.json"]
    for w in files:
        assert Plan.from_json((tmp_path / str(w.plan_file)).read_bytes()).workload == {"name": w.name}
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "plans" / "mine.json").write_text("{}")
    write_report(assessment(), tmp_path, plans={"chat": plan("chat")})
    assert set(held(tmp_path)) == {
        "report.html", "report.md", "assessment.json", "plans/001-chat.json", "plans/001-chat.html",
        "plans/mine.json", "notes.txt",
    }  # fmt: skip


def test_more_than_999_plans_go_as_well(tmp_path: Path) -> None:
    (tmp_path / "plans").mkdir()
    old = tmp_path / plan_file("x", 1234)
    old.write_text("{}")
    write_report(assessment(), tmp_path)
    assert not old.exists()
    assert not (tmp_path / "plans").exists(), "an empty folder is left by no report"


def test_a_failure_half_way_puts_everything_back(tmp_path: Path) -> None:
    write_report(assessment("before"), tmp_path / "report", plans={"chat": plan("chat")})
    before = held(tmp_path / "report")
    real, moves = Path.replace, []

    def fails(self: Path, target: Path) -> Path:
        moves.append(self)
        if len(moves) == 3:  # two of the new are there
            raise OSError(28, "No space left on device")
        return real(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        with pytest.raises(SpecError, match=r"cannot be written.*No space"):
            write_report(assessment("after"), tmp_path / "report", plans={"chat": plan("chat")})
    assert held(tmp_path / "report") == before
    assert [p.name for p in tmp_path.iterdir()] == ["report"]


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "report" / "report.html").mkdir(parents=True)
    with pytest.raises(SpecError, match=r"cannot be written.*report\.html is a folder"):
        write_report(assessment(), tmp_path / "report")
    assert [p.name for p in (tmp_path / "report").iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not an assessment"),
        ("[]", "not an assessment"),
        ("{}", "not an assessment.*missing required field"),
        ('{"version": 99}', "format 99, of a newer flopwise"),
        ('{"version": "x"}', "not an assessment"),
        ("\xff\xfe", "not an assessment"),
        ("[" * 100_000, "not an assessment"),
    ],
)
def test_what_is_no_assessment_says_so(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(SpecError, match=told):
        read_assessment(path)


def test_assessments_of_before_are_read(tmp_path: Path) -> None:
    """Fields that came later have defaults; those that went are left aside."""
    plain = json.loads(write.to_json(assessment()))
    for name in ("forecast", "version"):
        plain.pop(name)
    for row in plain["workloads"]:
        row.pop("targets")
    for row in plain["savings"]:
        row.pop("counted")
    plain["of_a_later_day"] = 1
    (tmp_path / "assessment.json").write_text(json.dumps(plain))
    assert read_assessment(tmp_path).usd_per_month == assessment().usd_per_month
