"""What a report says of each workload of a real, small assessment: machines, layout, and what to expect of them."""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

import pytest

from flopwise.report.blocks import Bars, Link, Table, Text
from flopwise.report.content import document
from flopwise.report.pages import html, markdown
from flopwise.report.workloads import expected_figures, layout, performance, recommendations
from flopwise.report.write import with_plan_files
from flopwise.units import format_seconds

sys.path.insert(0, str(Path(__file__).parents[1] / "fleet"))
from samples import assessment, workload
from small import answer

SERVING_ROWS = Path(__file__).parents[2] / "benchmarks" / "truth" / "serving.csv"


def test_every_planned_workload_says_what_to_expect() -> None:
    """A column of dashes stood here while the figures were in the assessment."""
    found = answer().assessment
    (table,) = [b for b in recommendations(found) if isinstance(b, Table)]
    at = next(n for n, head in enumerate(table.headers) if head.startswith("expected"))
    told = {str(row[0]): str(row[at]) for row in table.rows}
    assert told.pop("desks") == "-"
    assert set(told) == {"chat", "tune", "nightly"}
    assert "p95 latency" in told["chat"]
    assert "requests/s" in told["chat"]
    assert "one run" in told["tune"]
    assert "tokens/s" in told["tune"]
    assert "one run" in told["nightly"]
    assert all("(" in text and " to " in text for text in told.values()), "intervals"


def test_figures_of_the_table_are_those_of_the_assessment() -> None:
    found = answer().assessment
    tables = [b for b in expected_figures(found) if isinstance(b, Table) and b.headers[0] in {"run", "service"}]
    rows = {str(row[0]): row for table in tables for row in table.rows}
    for name in ("tune", "nightly"):
        w = next(w for w in found.workloads if w.name == name)
        run = w.best["figures"]["run_s"]
        assert rows[name][1] == format_seconds(run["value"])
        assert rows[name][2] == f"{format_seconds(run['low'])} to {format_seconds(run['high'])}"
        assert rows[name][3] == format_seconds(w.best["figures"]["start_s"])
        assert rows[name][4] == format_seconds(w.targets["run_s"]["value"])
    chat = next(w for w in found.workloads if w.name == "chat")
    assert rows["chat"][2] == format_seconds(chat.best["figures"]["latency_s"]["value"])
    assert rows["chat"][4] == "1.00 s"


def test_the_picture_has_the_share_of_each_target() -> None:
    found = answer().assessment
    (picture,) = [b for b in expected_figures(found) if isinstance(b, Bars)]
    assert picture.mark == 100.0
    for bar in picture.bars:
        w = next(w for w in found.workloads if bar.name.startswith(w.name))
        key = "latency_s" if w.name == "chat" else "run_s"
        assert bar.value == pytest.approx(100 * w.best["figures"][key]["value"] / w.targets[key]["value"])
        assert bar.low is not None
        assert bar.high is not None
        assert bar.low <= bar.value <= bar.high


def test_plans_are_linked_from_both_documents() -> None:
    found = with_plan_files(answer().assessment, answer().plans)
    assert [w.plan_file for w in found.workloads] == [
        "plans/001-chat.json", "plans/002-tune.json", "plans/003-nightly.json", None,
    ]  # fmt: skip
    assert 'href="plans/002-tune.html"' in html(document(found))
    assert "(plans/002-tune.html)" in markdown(document(found))
    (table,) = [b for b in recommendations(answer().assessment) if isinstance(b, Table)]
    assert not [cell for row in table.rows for cell in row if isinstance(cell, Link)], "nothing written, nothing linked"


def test_no_figure_is_left_raw() -> None:
    """Numbers of ten digits and powers of ten are what a program writes for itself."""
    text = markdown(document(answer().assessment)).split("### Sources of these prices")[0]
    assert not re.findall(r"\d{8,}|\de[+-]\d\d|\d\.\d{6,}", text.replace(",", ""))


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"dp": 8, "tp": 1, "pp": 1, "zero": 1, "micro_batch": 2, "global_batch": 512, "seq_len": 2048,
          "precision": "bf16", "recompute": "none", "stack": "x", "schedule": "1f1b"},
         "dp 8, ZeRO 1; micro-batch 2 of 512 x 2048 tokens; bf16; x"),
        ({"dp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "global_batch": 4, "seq_len": 8, "precision": "fp16",
          "recompute": "full"}, "one device; micro-batch 1 of 4 x 8 tokens; fp16; recompute full"),
        ({"dp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "global_batch": 4, "seq_len": 8, "precision": "fp16",
          "recompute": "full", "recompute_every": 1, "recompute_first": 3},
         "one device; micro-batch 1 of 4 x 8 tokens; fp16; recompute full of first 3"),
        ({"dp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "global_batch": 4, "seq_len": 8, "precision": "fp16",
          "recompute": "full", "recompute_every": 4},
         "one device; micro-batch 1 of 4 x 8 tokens; fp16; recompute full/4"),
        ({"tp": 4, "pp": 1, "dp": 1, "replicas": 3, "max_batch": 64, "weights": "fp8", "kv_dtype": "bf16",
          "engine": "vllm"}, "3 replicas of tp 4; up to 64 at once; fp8 weights, bf16 cache; vllm"),
        ({}, "-"),
    ],
)  # fmt: skip
def test_layouts_in_a_few_words(held: dict[str, object], told: str) -> None:
    assert layout(held) == told


def test_a_workload_without_figures_says_nothing() -> None:
    desks = next(w for w in answer().assessment.workloads if w.name == "desks")
    assert performance(desks) == "-"


def test_what_no_measurement_stands_behind_is_said() -> None:
    """How the interval of whole answers comes about always; an architecture where none of its runs was measured."""
    plain = workload()
    unseen = "no measured run of this kind on this architecture (x)"
    bare = workload("staging", best=plain.best | {"gpu": "T4", "evidence": unseen})
    texts = [b.text for b in expected_figures(assessment(workloads=[plain, bare])) if isinstance(b, Text)]
    assert "computed from those of TTFT and TPOT" in texts[0]
    with SERVING_ROWS.open(encoding="utf-8") as rows:
        assert sum(bool(row["latency_s"].strip()) for row in csv.DictReader(rows)) > 500
    assert len([text for text in texts if "staging (T4)" in text and "chat" not in text]) == 1
    assert answer().assessment.workloads[0].best["evidence"]
