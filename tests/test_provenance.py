from __future__ import annotations

import json

import pytest

from flopwise.cli.render import render_tree
from flopwise.provenance import (
    Figure,
    assumption,
    assumptions,
    calibration,
    fact,
    format_value,
    setting,
    term,
    to_json,
    walk,
)

PEAK = fact("peak", 989.4e12, "FLOP/s", source="NVIDIA H100 datasheet", date="2026-11-20", confidence="high")
SUSTAINED = calibration("sustained share", 0.71, "frac", fitted_on="kernels, 120 rows", source="kernels.csv")
WORK = setting("work", 1e15, "FLOP")
TIME = term("compute time", 1e15 / (989.4e12 * 0.71), "s", "work / (peak x sustained share)", WORK, PEAK, SUSTAINED)


def test_the_tree_names_formula_source_fit_and_what_was_given() -> None:
    assert render_tree(TIME).splitlines() == [
        "compute time = work / (peak x sustained share): 1.42 s",
        "├── work: 1.00 PFLOP  [given]",
        "├── peak: 989 TFLOP/s  [NVIDIA H100 datasheet; 2026-11-20; high confidence]",
        "└── sustained share: 71.0 %  [fitted on kernels, 120 rows; kernels.csv]",
    ]


def test_nested_figures_hang_under_their_own_branch() -> None:
    total = term("step", 2.8, "s", "2 x compute time", TIME, assumption("overlap", 0.0, "frac", "no overlap is known"))
    lines = render_tree(total).splitlines()
    assert lines[1] == "├── compute time = work / (peak x sustained share): 1.42 s"
    assert lines[2].startswith("│   ├── work")
    assert lines[-1] == "└── overlap: 0.0 %  [assumed: no overlap is known]"


def test_a_figure_used_twice_is_drawn_once() -> None:
    twice = term("sum", 2.8, "s", "a + b", TIME, TIME)
    text = render_tree(twice)
    assert text.count("NVIDIA H100 datasheet") == 1
    assert text.splitlines()[-1] == "└── compute time = work / (peak x sustained share): 1.42 s  (see above)"
    assert [f.name for f in walk(twice)] == ["sum", "compute time", "work", "peak", "sustained share"]


def test_depth_width_and_ascii() -> None:
    assert render_tree(TIME, depth=0).count("\n") == 0
    assert render_tree(TIME, ascii_only=True).isascii()
    wrapped = render_tree(TIME, width=44).splitlines()
    assert max(map(len, wrapped)) <= 44
    assert any(line.startswith("│   ") for line in wrapped)
    assert " ".join(wrapped).count("datasheet") == 1


def test_json_holds_the_tree_and_an_unknown_value() -> None:
    plain = json.loads(json.dumps(to_json(TIME)))
    assert plain["inputs"][1] == {
        "name": "peak",
        "value": 989.4e12,
        "unit": "FLOP/s",
        "source": "NVIDIA H100 datasheet",
        "kind": "fact",
        "date": "2026-11-20",
        "confidence": "high",
    }
    assert to_json(setting("price", None, "USD/h"))["value"] is None


def test_assumptions_below_a_figure_are_sentences_each_once() -> None:
    overlap = assumption("overlap", 0.5, "frac", "typical of Megatron")
    both = term("step", 1.0, "s", "a", term("a", 1.0, "s", "f(overlap)", overlap), overlap)
    assert assumptions(both) == ("overlap: typical of Megatron",)
    assert assumptions(TIME) == ()


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (setting("n", 1234), "1,234"),
        (setting("n", 8.03e9), "8.03 B"),
        (setting("x", 0.123456), "0.1235"),
        (setting("x", None, "s"), "unknown"),
        (setting("dtype", "bf16"), "bf16"),
        (setting("memory", 2**30, "B"), "1.00 GiB"),
        (setting("price", 2.5, "USD/h"), "$2.50/h"),
        (setting("power", 700.0, "W"), "700 W"),
        (setting("rate", 12.0, "tokens/s"), "12 tokens/s"),
    ],
)
def test_values_are_written_as_people_read_them(figure: Figure, text: str) -> None:
    assert format_value(figure) == text


@pytest.mark.parametrize(
    ("kind", "lacks"),
    [("derived", "formula"), ("fact", "source"), ("calibration", "fitted_on and source"), ("assumption", "note")],
)
def test_a_figure_without_its_origin_is_our_bug(kind: str, lacks: str) -> None:
    with pytest.raises(ValueError, match=lacks):
        Figure("x", 1.0, kind=kind)  # type: ignore[arg-type]


def test_array_scalars_become_plain_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert type(setting("x", numpy.float64(1.5)).value) is float
    assert type(setting("n", numpy.int64(3)).value) is int


def test_a_long_source_is_written_out_once_and_then_numbered() -> None:
    page = "the vendor's documentation of its engine, the chapter on memory and the one on start-up times"
    parts = [fact(name, 1.0, "s", source=page, date="", confidence="") for name in ("import", "load", "warm-up")]
    short = [fact(name, 1.0, "s", source="a paper", date="", confidence="") for name in ("boot", "stop")]
    lines = render_tree(term("start", 5.0, "s", "sum", *parts, *short)).splitlines()
    assert [line[line.index("[") :] for line in lines[1:]] == [
        f"[source 1: {page}]", "[source 1]", "[source 1]", "[a paper]", "[a paper]",
    ]  # fmt: skip
    assert "source 1" not in render_tree(parts[0])
