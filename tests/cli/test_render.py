from __future__ import annotations

import contextlib
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.render import Screen, bars, cell, heading, pairs, plain_text, screen, table, tree, verdict, write
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


def test_a_narrow_terminal_wraps_text_and_titles_and_cuts_nothing() -> None:
    rows = [("a long name of an instance type of some cloud", "us-east-1", "$12,345.67")]
    heads = ["instance", "region", ">price of a month"]
    assert table(heads, rows, NARROW).splitlines() == [
        "instance               region     price of a month",
        "─────────────────────  ─────────  ────────────────",
        "a long name of an      us-east-1        $12,345.67",
        "instance type of some",
        "cloud",
    ]
    assert table(heads, rows, Screen(width=38)).splitlines()[:4] == [
        "instance       region       price of a",
        "                                 month",
        "─────────────  ─────────  ────────────",
        "a long name    us-east-1    $12,345.67",
    ]
    assert rows[0][0] in table(heads, rows, PIPE)


def test_a_table_too_wide_even_so_is_a_record_a_row() -> None:
    rows = [(1, "g6e.24xlarge-with-a-long-name", "$1,234,567.00", None), (2, "p5", "$2.00", "yes")]
    text = table(["#", "instance", ">a month", "spot"], rows, Screen(width=38))
    assert text.split("\n\n") == [
        "#         1\ninstance  g6e.24xlarge-with-a-long-\n          name\na month   $1,234,567.00",
        "#         2\ninstance  p5\na month   $2.00\nspot      yes",
    ]


@given(
    st.lists(st.tuples(st.text(max_size=20), st.integers(), st.floats()), max_size=6),
    st.integers(16, 120),
    st.booleans(),
)
@example(rows=[("", 0, 1.34e154), ("", -(10**13), 0.0)], width=40, unicode=True)
@example(rows=[("naïve ≥ ± → text", 10**4000, -1.34e-154)], width=28, unicode=False)
def test_every_line_of_a_table_fits_and_no_control_character_passes(
    rows: list[tuple[str, int, float]], width: int, unicode: bool
) -> None:
    to = Screen(width=width, unicode=unicode)
    text = to.spell(table(["what", ">n", ">x"], rows, to))
    assert max(map(len, text.split("\n"))) <= width
    assert all(
        c.isprintable() or c in "\u2028\u2029\xa0\u3000" or c.isspace() or ord(c) > 0x7F for c in text.replace("\n", "")
    )
    if any("─" in line for line in text.split("\n")):
        return
    whole = "".join(text.split())
    assert all("".join(to.spell(cell(row[1])).split()) in whole for row in rows), "nothing is cut"


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


def test_values_and_prose_are_wrapped_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    to = Screen(width=30)
    assert pairs([("a", "one two three four five six seven")], to) == "a  one two three four five six\n   seven"
    line = "flopwise serve Llama-3.1-8B --gpu h100 --concurrency 64"
    write(
        "  - a sentence that is longer than the screen",
        line,
        "\x1b[1ma heading that is far too long for it\x1b[0m",
        to=to,
    )
    shown = capsys.readouterr().out.split("\n\n")
    assert shown[0] == "  - a sentence that is longer\n    than the screen"
    assert shown[1] == line
    assert shown[2] == "\x1b[1ma heading that is far too long\x1b[0m\n\x1b[1mfor it\x1b[0m\n"


def test_names_and_options_are_not_split_at_their_hyphens(capsys: pytest.CaptureFixture[str]) -> None:
    to, source = Screen(width=40), "read from the list of api-evangelist plans-pricing.yml, see --max-model-len"
    write(pairs([("price", source)], to), source, to=to)
    words = capsys.readouterr().out.split()
    assert [word for word in words if "-" in word] == ["api-evangelist", "plans-pricing.yml,", "--max-model-len"] * 2


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


@given(
    st.lists(st.tuples(st.text("abc ", max_size=20), st.text("xyz ", max_size=200)), min_size=1, max_size=4),
    st.integers(40, 120),
)
def test_colour_changes_no_line(rows: list[tuple[str, str]], width: int) -> None:
    """What a terminal shows in colour is what it shows without: codes take no columns."""
    shown = []
    for color in (False, True):
        paper = Screen(width=width, color=color)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            write(pairs(rows, paper), heading("a verdict " * 20, paper), to=paper)
        shown.append(re.sub(r"\x1b\[\d+m", "", out.getvalue()))
    assert [line.rstrip() for line in shown[0].splitlines()] == [line.rstrip() for line in shown[1].splitlines()]


def test_a_cell_that_would_be_tall_makes_records_of_the_rows() -> None:
    rows = [("gaudi", "PyTorch with a bridge " * 12), ("xla", "JAX")]
    text = table(["software", "what has to be ported"], rows, Screen(width=40))
    assert text.count("software  ") == 2
    assert "─" not in text
    assert "─" in table(["software", "what has to be ported"], rows, Screen(width=120))


def test_what_is_good_is_green_what_is_bad_is_red_and_widths_stay() -> None:
    rows = [("bf16", False, False), ("fp8", True, True)]
    plain = table(["weights", "fits", "spot"], rows, Screen(width=80))
    shown = table(["weights", "fits", "spot"], rows, Screen(width=80, color=True))
    assert "\x1b[31mno\x1b[0m" in shown
    assert "\x1b[32myes\x1b[0m" in shown
    assert shown.count("\x1b[3") == 2  # `spot` is neither good nor bad
    assert re.sub(r"\x1b\[\d+m", "", shown) == plain
    assert verdict("Does not fit 1 x L4: much", Screen(color=True)).startswith("\x1b[31m")
    assert verdict("Fits 1 x L4", Screen(color=True)).startswith("\x1b[1m")


def test_a_cell_is_never_broken_at_a_hyphen_of_a_name() -> None:
    """Names are copied from tables into the next command."""
    rows = [("1 x nebius gpu-rtx6000_1gpu-24vcpu-218gb", "1 x RTX PRO 6000 Blackwell", "some words of text " * 3)]
    text = table(["machines", "GPUs", "note"], rows, Screen(width=80))
    assert "gpu-rtx6000_1gpu-24vcpu-218gb" in text
