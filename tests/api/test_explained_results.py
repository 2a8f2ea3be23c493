"""Explanations, shapes and backtests as results: a short repr, the document of --json, a table and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import flopwise
from flopwise import cli
from flopwise.pictures import BarPicture, PointPicture

TRUTH = Path(__file__).parents[2] / "benchmarks" / "truth" / "io.csv"


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    """What a command prints with --json."""
    capsys.readouterr()
    assert cli.main([*words, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_an_explanation_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    found = flopwise.explain("train", "Llama-3.1-8B", gpu="h100", gpus=8, fsdp=True)
    assert len(repr(found)) < 1_000
    assert repr(found).startswith("<Explanation> 8 x H100-SXM-80 train ")
    line = ("explain", "train", "Llama-3.1-8B", "--gpu", "h100", "--gpus", "8", "--fsdp")
    assert found.to_dict() == printed(capsys, *line)
    name = next(iter(found.sensitivities[0].effects))
    picture, effect = found.picture(), found.sensitivities[0].effects[name]
    assert isinstance(picture, BarPicture)
    assert effect is not None
    assert picture.rows[0][1] == pytest.approx(100 * (effect - 1))
    assert f"% change of {name}" == picture.unit
    assert "<table>" in found._repr_html_()


def test_shapes_are_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    found = flopwise.advise("gpt2-xl", gpu="a100-80gb", batch=8)
    assert len(repr(found)) < 1_000
    assert found.to_dict() == printed(capsys, "explain", "gpt2-xl", "--gpu", "a100-80gb", "--batch", "8")
    picture = found.picture()
    assert isinstance(picture, BarPicture)
    shares = [share for _, share in picture.rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) <= 100
    assert "<table>" in found._repr_html_()


def test_a_backtest_is_a_result(capsys: pytest.CaptureFixture[str]) -> None:
    found = flopwise.backtest("io", TRUTH)
    assert len(repr(found)) < 1_000
    assert found.to_dict() == printed(capsys, "backtest", "io", str(TRUTH))
    picture = found.picture()
    assert isinstance(picture, PointPicture)
    points = [point for series in picture.series.values() for point in series]
    assert sorted(points) == sorted((p.measured, p.predicted) for p in found.predictions)
    cli.main(["backtest", "io", str(TRUTH)])
    assert capsys.readouterr().out.split("\n\n")[0].replace("\n", " ") == found.verdict
