from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import NARROWEST, Screen, bars, cell, heading, pairs, plain_text, screen, table, tree, write
from flopwise.provenance import fact, term

PIPE = Screen()
NARROW = Screen(width=50)
PLAIN = Screen(unicode=False)
COLOR = Screen(width=80, color=True)


def test_columns_align_and_numbers_stand_right() -> None:
    text = table(
        ["name", ">memory", "fits"], [("weights", "14.9 GiB", True), ("gradients, bf16", "7.5 GiB", None)], PIPE
    )
    assert text.splitlines() == [
        "name               memory  fits",
        "───────────────  ────────  ────",
        "weights          14.9 GiB  yes",
        "gradients, bf16   7.5 GiB  -",
    ]


def test_a_narrow_terminal_leaves_spare_columns_out_first() -> None:
    rows = [("a name of some length", 1.0, 22222222.0, 3.0, "what it is")]
    heads, spare = ("name", ">one", ">two", ">three", "what"), (">two", "what")
    assert len(table(heads, rows, PIPE, spare=spare).splitlines()[0].split()) == 5
    assert table(heads, rows, NARROW, spare=spare).splitlines()[0].split() == ["name", "one", "three", "what"]
    shown = table(heads, rows, Screen(width=34), spare=spare).splitlines()
    assert shown[0].split() == ["name", "one", "three"]
    assert "a name of some length" in shown[2]


def test_a_narrow_terminal_cuts_text_but_never_numbers() -> None:
    rows = [("a very long name of an instance type of some cloud", "us-east-1", "$12,345.67")]
    lines = table(["instance", "region", ">price"], rows, NARROW).splitlines()
    assert max(map(len, lines)) <= 50
    assert "…" in lines[2]
    assert lines[2].endswith("$12,345.67")
    assert rows[0][0] in table(["instance", "region", ">price"], rows, PIPE)


@given(
    st.lists(st.tuples(st.text(max_size=20), st.integers(), st.floats()), max_size=6),
    st.integers(3 * NARROWEST + 4, 120),
    st.booleans(),
)
@example(rows=[("", 0, 1.34e154), ("", -(10**13), 0.0)], width=40, unicode=True)
@example(rows=[("naïve ≥ ± → text", 10**4000, -1.34e-154)], width=28, unicode=False)
def test_every_line_of_a_table_fits_and_no_control_character_passes(
    rows: list[tuple[str, int, float]], width: int, unicode: bool
) -> None:
    to = Screen(width=width, unicode=unicode)
    lines = to.spell(table(["what", ">n", ">x"], rows, to)).split("\n")
    assert len(lines) == len(rows) + 2
    assert max(map(len, lines)) <= width
    assert all(
        c.isprintable() or c in "\u2028\u2029\xa0\u3000" or c.isspace() or ord(c) > 0x7F for s in lines for c in s
    )


def test_numbers_that_do_not_fit_are_in_scientific_form_and_titles_are_cut_before_them() -> None:
    rows = [("text", 123_456_789_012, 1.5, "$1,234,567,890,123.45")]
    heads = ("what", ">a long title", ">another long title", ">cost")
    for width, numbers in (
        (62, ["123,456,789,012", "1.5", "$1,234,567,890,123.45"]),
        (44, ["1.235e+11", "1.5", "$1.235e+12"]),
    ):
        lines = table(heads, rows, Screen(width=width)).splitlines()
        assert max(map(len, lines)) <= width
        assert lines[2].split() == ["text", *numbers]
    assert "a long title" in table(heads, rows, Screen(width=80))


def test_a_table_is_at_least_so_wide_that_every_column_shows_something() -> None:
    lines = table([f">number {i}" for i in range(6)], [[-1.234e-300] * 6], Screen(width=40)).splitlines()
    assert {len(line) for line in lines} == {6 * NARROWEST + 5 * 2}
    assert lines[2].split() == ["-1e-300"] * 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (12345, "12,345"),
        (0.123456, "0.1235"),
        ("a\x1b[0m", "a?[0m"),
    ],
)
def test_cells(value: object, text: str) -> None:
    assert cell(value) == text


def test_bars_are_proportional_and_small_parts_are_seen() -> None:
    lines = bars(
        [("weights", 100.0, "100 GiB"), ("cache", 50.0, "50 GiB"), ("rest", 0.01, "0 GiB"), ("none", 0.0, "0")], PIPE
    )
    full, half, small, none = lines.splitlines()
    assert full == f"weights  100 GiB  {'█' * 30}"
    assert half.count("█") == 15
    assert small.endswith("▏")
    assert none.endswith("0")
    assert bars([("weights", 2.0, "2"), ("rest", 1.0, "1")], PLAIN).splitlines()[1].endswith(" " + "#" * 15)
    assert bars([("nothing", 0.0, "0 B")], PIPE) == "nothing  0 B"


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert COLOR.paint("x", "red") == "\x1b[31mx\x1b[0m"
    assert PIPE.paint("x", "red") == "x"
    assert "\x1b[1m" in heading("x", COLOR)
    assert not screen(io.StringIO()).color
    assert screen(io.StringIO()).width is None
    monkeypatch.setenv("NO_COLOR", "1")
    assert not screen().color


def test_without_utf8_everything_is_ascii() -> None:
    text = table(["what", ">n"], [("12.3 µs ± 1", 3), ("naïve", 4)], PLAIN)
    assert PLAIN.spell(text).isascii()
    assert "12.3 us +- 1" in PLAIN.spell(text)


def test_pairs_align_their_values() -> None:
    assert pairs([("a", 1), ("long", None)], PIPE) == "a     1\nlong  -"


def test_blocks_are_set_apart(capsys: pytest.CaptureFixture[str]) -> None:
    write("one", "", "two", to=PIPE)
    assert capsys.readouterr().out == "one\n\ntwo\n"


@given(st.text())
def test_plain_text_is_one_printable_line(text: str) -> None:
    told = plain_text(text)
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", told)
    assert len(told) == len(text)


def test_a_tree_is_wrapped_and_holds_no_control_character() -> None:
    peak = fact("peak", 989.4e12, "FLOP/s", source="a datasheet with\x1b[31m a rather long title, page 12")
    figure = term("time", 1.0, "s", "work / peak", peak)
    lines = tree(figure, NARROW).split("\n")
    assert max(map(len, lines)) <= 50
    assert len(lines) > 2
    assert "\x1b" not in "".join(lines)
    assert tree(figure, PLAIN).isascii()
    assert tree(figure, PIPE).count("\n") == 1


POINTS = [(1.0, 100.0), (10.0, 50.0), (100.0, 10.0)]


def test_a_chart_puts_the_ends_where_they_belong() -> None:
    text = chart([Series("front", POINTS, "●", line=True)], Axis("days"), Axis("cost", "${:,.0f}".format), PIPE, rows=9)
    lines = text.splitlines()
    assert lines[0] == "cost"
    assert lines[1].startswith("$100 │●")
    assert lines[5].startswith(" $55 │")
    assert lines[9].startswith(" $10 │")
    assert lines[9].endswith("●")
    assert lines[11].split() == ["1", "50.5", "100"]
    assert "● front" in lines[12]


def test_a_logarithmic_axis_spreads_decades_evenly() -> None:
    points = [(1.0, 1.0), (10.0, 2.0), (100.0, 3.0)]
    text = chart([Series("", points, "o")], Axis("x", log=True), Axis("y"), Screen(unicode=False), rows=5)
    places = [line.index("o") for line in text.splitlines()[1:6] if "o" in line]
    assert places[0] - places[1] == pytest.approx(places[1] - places[2], abs=1)


def test_ascii_charts_hold_no_other_character() -> None:
    text = chart([Series("all", POINTS), Series("front", POINTS, "●", line=True)], Axis("x"), Axis("y"), PLAIN)
    assert PLAIN.spell(text).isascii()
    assert "*" in text


@given(
    st.lists(st.tuples(st.floats(), st.floats()), max_size=8),
    st.booleans(),
    st.booleans(),
    st.sampled_from([PIPE, NARROW, PLAIN, COLOR]),
)
def test_any_points_make_a_chart_or_none(points: list[tuple[float, float]], log: bool, line: bool, to: Screen) -> None:
    text = chart([Series("s", points, "●", line=line)], Axis("x", log=log), Axis("y", log=log), to, rows=6)
    if text:
        assert len(text.splitlines()) == 10
