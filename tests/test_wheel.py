"""The built wheel in a clean virtual environment: the console script is there, and so are the data files."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "flopwise"


def _run(*argv: str | Path, cwd: Path, **env: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k != "FLOPWISE_FACTS"}
    ended = subprocess.run(list(argv), cwd=cwd, env=clean | env, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"{argv}: {ended.stdout}{ended.stderr}"
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean_bin(wheel: Path) -> Path:
    """The scripts of a new environment with the wheel in it; the dependencies are those of this environment."""
    home = wheel.parent / "venv"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    if importlib.util.find_spec("pip"):
        install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    else:
        uv = shutil.which("uv")
        assert uv is not None, "neither pip nor uv installs the wheel"
        install = [uv, "pip", "install", "--python", str(python)]
    _run(*install, "--no-deps", "--no-index", wheel, cwd=wheel.parent)
    [site] = home.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return home / "bin"


def test_the_wheel_holds_every_module_data_file_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    ours = {
        f"flopwise/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert ours <= held
    assert {name for name in ours if name.startswith("flopwise/data/") and name.endswith(".csv")}
    assert "flopwise/py.typed" in held
    assert any(name.endswith("licenses/LICENSE") for name in held)
    assert all(name.startswith(("flopwise/", "flopwise-")) for name in held)


def test_the_console_script_answers_from_the_shipped_data(clean_bin: Path, tmp_path: Path) -> None:
    gpus = json.loads(_run(clean_bin / "flopwise", "gpus", "--json", cwd=tmp_path))
    assert {"T4", "H100-SXM-80"} <= {row["name"] for row in gpus}
    assert len(json.loads(_run(clean_bin / "flopwise", "instances", "--json", cwd=tmp_path))) > 400
    where = _run(clean_bin / "python", "-c", "import flopwise; print(flopwise.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(clean_bin.parent)


def test_version_is_that_of_the_distribution(clean_bin: Path, tmp_path: Path) -> None:
    ask = "from importlib.metadata import version; print(version('flopwise'))"
    distributed = _run(clean_bin / "python", "-c", ask, cwd=tmp_path).strip()
    assert _run(clean_bin / "flopwise", "--version", cwd=tmp_path) == f"flopwise {distributed}\n"
