from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import flopwise
from flopwise.cli.app import COMMANDS

ROWS = "id,model,format,bytes\nbert,bert-base-uncased,bf16,218964480\n"


NOT_PYTHON = ("web", "completion")
"""Commands that are no questions: the server of all of them, and what a shell is told."""


def test_every_question_is_a_function_of_the_same_name() -> None:
    for name in (name for section in COMMANDS.values() for name in section if name not in NOT_PYTHON):
        assert name in flopwise.__all__, f"flopwise.{name} is missing: add it to flopwise/__init__.py"
        assert callable(getattr(flopwise, name)), name


def test_no_subpackage_has_the_name_of_a_public_function() -> None:
    """Importing a subpackage sets its name on `flopwise`, over whatever stood there."""
    assert flopwise.__file__
    folders = {path.parent.name for path in Path(flopwise.__file__).parent.glob("*/__init__.py")}
    modules = {path.stem for path in Path(flopwise.__file__).parent.glob("*.py")}
    assert not (folders | modules) & set(flopwise.__all__)


@pytest.mark.parametrize(
    "lines",
    [
        "import flopwise; f = flopwise.backtest; import flopwise.backtests.run",
        "import flopwise.backtests.run; import flopwise; f = flopwise.backtest",
        "from flopwise.backtests import kinds; from flopwise import backtest as f",
    ],
)
def test_backtest_is_the_function_in_either_order_of_imports(lines: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text(ROWS, encoding="utf-8")
    code = f"{lines}; done = f('weights', {str(file)!r}); print(done.kind.name, len(done.predictions))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["weights", "1"]


def test_every_public_name_is_found_where_it_is_said_to_be() -> None:
    for name in flopwise.__all__:
        value = getattr(flopwise, name)
        home = getattr(value, "__module__", "flopwise")
        assert home.startswith("flopwise") or name == "__version__"
        assert getattr(import_module(home), name) is value
