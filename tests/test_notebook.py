"""The notebook of examples runs from its first cell to its last, and its calls have the types that the stub says."""

from __future__ import annotations

import ast
import doctest
import inspect
import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise.changes.format_fit import FitAnswer
from flopwise.search.answer import Plan
from setup_beside import CACHE, wait_for_setup

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "questions.ipynb"


def _cells() -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def _docstring_examples() -> Iterator[str]:
    """A function of each public function's example."""
    for name in flopwise.__all__:
        public = getattr(flopwise, name)
        if inspect.isroutine(public):
            lines = [one.source for one in doctest.DocTestParser().get_examples(inspect.getdoc(public) or "")]
            yield f"def example_{name}() -> None:\n" + textwrap.indent("".join(lines), "    ")


def test_every_cell_runs() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    pytest.importorskip("pandas")
    matplotlib.use("Agg")
    names: dict[str, Any] = {}
    shown = []
    for text in _cells():
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102 - the project's own notebook
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), "cell", "eval"), names))  # noqa: S307 - as above
    assert isinstance(names["fits"], FitAnswer)
    assert isinstance(names["plan"], Plan)
    assert all(value is not None for value in shown[:-1])
    assert sum(hasattr(value, "get_xlabel") for value in shown) == 3
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_its_types_are_those_of_the_stub(checker: str, tmp_path: Path) -> None:
    place = tmp_path
    if checker == "mypy":  # each run at the same place, so that mypy's cache does not grow
        place = ROOT / "build" / "notebook-types"
        place.mkdir(parents=True, exist_ok=True)
    right, wrong = place / "right.py", place / "wrong.py"
    right.write_text("\n".join(_cells()), encoding="utf-8")
    examples = place / "examples.py"  # they read what an answer has there, though it may be None in others
    examples.write_text("\n".join(_docstring_examples()), encoding="utf-8")
    mistakes = 'import flopwise\nflopwise.train("gpt2", gpu=8)\nflopwise.plan("gpt2", tsk="serve")\n'
    mistakes += 'flopwise.export("vllm", "plan.json", nam="x")\nflopwise.observe(load=3)\n'
    wrong.write_text(mistakes, encoding="utf-8")
    if checker == "mypy":
        wait_for_setup()  # `make types`, whose cache has the types of the package
        # what it checks besides is what `make types` does: of fewer files the cache says less
        folder, arguments = ROOT, ["--cache-dir", str(CACHE / "mypy"), "src", "tests", "benchmarks"]
    else:
        folder, arguments = tmp_path, ["--level", "error", "--pythonpath", sys.executable]
        settings = {"typeCheckingMode": "standard", "extraPaths": [str(Path(flopwise.__file__).parents[1])]}
        (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", checker, *arguments, str(right), str(examples), str(wrong)],
        capture_output=True, text=True, check=False, cwd=folder, timeout=600,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    errors = [line for line in done.stdout.splitlines() if re.search(r"\berror:", line)]
    unexpected = [line for line in errors if "wrong.py:" not in line]
    optional = "union-attr" if checker == "mypy" else "reportOptional"
    assert [line for line in unexpected if "examples.py:" not in line or optional not in line] == []
    assert any("wrong.py:2" in line and "gpu" in line for line in errors), errors
    assert any("wrong.py:3" in line and "tsk" in line for line in errors), errors
    assert any("wrong.py:4" in line and "nam" in line for line in errors), errors
    assert any("wrong.py:5" in line and "load" in line for line in errors), errors
