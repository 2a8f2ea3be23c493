"""Assessments and checks are results: a sentence, a document that is theirs, a table and a picture."""

from __future__ import annotations

import json

import msgspec
from small import answer

from flopwise.fleet.assessment import Assessment
from flopwise.pictures import BarPicture
from flopwise.report.write import to_json
from flopwise.units import format_usd


def small_answer() -> Assessment:
    return answer().assessment


def test_the_sentence_says_what_runs_for_how_much_and_where() -> None:
    cost = small_answer().usd_per_month
    said = small_answer().verdict
    assert said.startswith(f"{small_answer().name}: all {len(small_answer().workloads)} workloads run for ")
    assert format_usd(cost.total if cost.expected is None else cost.expected) in said
    assert f"(80 % interval: {format_usd(cost.low)} to {format_usd(cost.high)})" in said
    one = msgspec.structs.replace(small_answer(), workloads=small_answer().workloads[:1])
    assert f"{small_answer().name}: the workload runs for " in one.verdict


def test_the_sentence_names_what_nothing_runs() -> None:
    failed = msgspec.structs.replace(small_answer().workloads[0], feasible=False)
    found = msgspec.structs.replace(small_answer(), workloads=[failed, *small_answer().workloads[1:]])
    count = len(small_answer().workloads)
    assert f"no machine runs {failed.name}; the other {count - 1} of {count} workloads run for" in found.verdict


def test_shares_of_providers_are_of_the_bill() -> None:
    cost = msgspec.structs.replace(
        small_answer().usd_per_month, total=200.0, by_provider={"aws": 50.0, "gcp": 150.0, "oci": 0.0}
    )
    assert msgspec.structs.replace(small_answer(), usd_per_month=cost).verdict.endswith(": gcp 75 %, aws 25 %.")


def test_the_file_is_the_document() -> None:
    assert json.loads(to_json(small_answer())) == small_answer().to_dict()
    assert small_answer().to_dict()["verdict"] == small_answer().verdict
    frame = small_answer().to_frame()
    assert list(frame["usd_per_month"]) == [row.usd_per_month for row in small_answer().allocation]
    picture = small_answer().picture()
    assert isinstance(picture, BarPicture)
    assert dict(picture.rows) == small_answer().usd_per_month.by_workload
    assert [size for _, size in picture.rows] == sorted(small_answer().usd_per_month.by_workload.values(), reverse=True)
    assert repr(small_answer()) == f"<Assessment> {small_answer().verdict}"
