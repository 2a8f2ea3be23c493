"""Figures and names as people read them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flopwise.report.pages import cut_short, plain, width
from flopwise.report.words import between, change_text, digits, enumeration, hours, sentence, share, usd


@given(st.text(max_size=80))
def test_plain_text_can_stand_in_any_file(text: str) -> None:
    shown = plain(text)
    shown.encode("utf-8")
    assert not [c for c in shown if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"}]
    assert not set(shown) & set("\u202e\u202d\u2066\u2067\u200f")
    assert plain(shown) == shown


@given(st.text(max_size=60), st.integers(2, 40))
def test_short_names_are_short(text: str, most: int) -> None:
    shown = cut_short(text, most)
    assert width(shown) <= max(most, 1)
    assert shown == text or shown.endswith("…")


@pytest.mark.parametrize(
    ("told", "is_"),
    [
        (usd(99.999), "$100"), (usd(0.1), "$0.10"), (usd(-1234.5), "-$1,234"), (between(5.0, 5.001), "fixed"),
        (between(None, 1.0), "-"), (hours(1.294), "1.3"), (hours(0.25), "0.25"), (hours(36.9), "37"),
        (hours(730.0), "730"), (digits(1044.3), "1,044"), (digits(6_008_116), "6.01 M"), (digits(0.654), "0.654"),
        (share(1, 20), "5.0 %"), (share(64, 100), "64 %"), (share(1, 0), "-"), (change_text(-104.2), "-$104"),
        (change_text(0.001), "no change"), (sentence("of it. And more"), "Of it. And more."), (enumeration(["a"]), "a"),
        (enumeration(["a", "b"]), "a and b"), (enumeration(["a", "b", "c", "d"]), "a, b, c and 1 more"),
        (cut_short("日本語のモデル", 7), "日本語…"),
    ],
)  # fmt: skip
def test_how_things_are_written(told: str, is_: str) -> None:
    assert told == is_
