"""Every public function documents its arguments, and its examples run."""

from __future__ import annotations

import doctest
import inspect
import re
from pathlib import Path

import pytest

import flopwise

ROOT = Path(__file__).parents[2]
FUNCTIONS = sorted(name for name in flopwise.__all__ if inspect.isroutine(getattr(flopwise, name)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_argument_is_documented(name: str) -> None:
    function = getattr(flopwise, name)
    text = inspect.getdoc(function) or ""
    _, _, said = text.partition("Args:\n")
    for argument in inspect.signature(function).parameters:
        assert re.search(rf"^    {argument}(?: \(or [\w, ]+\))?: ", said, re.MULTILINE), argument
    assert text.count("Args:\n") <= 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for variable, place in {"RUNS": "runs.db", "CALIBRATIONS": "calibrations", "PRICES": "prices"}.items():
        monkeypatch.setenv(f"FLOPWISE_{variable}", str(tmp_path / place))
    found = doctest.DocTestFinder(recurse=False).find(getattr(flopwise, name), name, globs={})
    (examples,) = (one for one in found if one.examples)
    shown: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(examples, out=shown.append)
    assert runner.failures == 0, "".join(shown)
