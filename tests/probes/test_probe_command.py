"""`flopwise probe` on the real processor, short."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flopwise
from flopwise import cli
from flopwise.api import probe as api
from flopwise.errors import InfeasibleError
from flopwise.probes import measure
from flopwise.probes.file import Probe
from flopwise.probes.kinds import KINDS
from flopwise.probes.measure import with_datasheet


@pytest.fixture
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)


@pytest.mark.usefixtures("_no_torch")
def test_the_processor_through_numpy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "QUICK_MOST_S", 6.0)  # what a busy machine needs to come to products in fp32
    file = tmp_path / "probe.json"
    line = ["probe", "--quick", "--only", "matmul", "--only", "memory", "--only", "launch", "--only", "loops"]
    assert cli.main([*line, "-o", str(file)]) == 0
    out = capsys.readouterr().out
    first, *rest = out.splitlines()
    found = Probe.from_file(file)
    assert found.backend == "numpy"
    assert first.startswith(f"{found.devices[0].name}, ")
    assert " in fp32" in first
    assert " of memory" in first
    for words in ("measured through NumPy", "Matrix products", "Roofline of ", "by the library:", f"written to {file}"):
        assert any(words in line for line in rest), words
    assert {one.name for one in found.measurements} >= {"matmul", "memory_copy", "launch_queued", "loop_naive"}
    assert not any(one.failure and "left out" not in one.failure for one in found.measurements)


@pytest.mark.usefixtures("_no_torch")
def test_json_is_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "probe.json"
    assert cli.main(["probe", "--quick", "--only", "launch", "--json", "-o", str(file)]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(file.read_text())


@pytest.mark.usefixtures("_no_torch")
def test_what_cannot_be_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line, message in (
        (["--device", "cuda:0"], 'PyTorch is not installed, and only it reaches a GPU: pip install "flopwise[torch]"'),
        (["--only", "matmull"], "'matmull' is not one of launch, matmul"),
        (["--threads", "0"], "--threads"),
        (["-o", str(tmp_path)], "a folder; give the name of a file"),
        (["--threads", "1", "--only", "launch"], "the number of threads cannot be set after NumPy is loaded"),
    ):
        assert cli.main(["probe", "--quick", *line]) == 2, line
        assert message in capsys.readouterr().err


@pytest.mark.usefixtures("_no_torch")
def test_nothing_to_measure_is_no_answer(tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError, match="nothing could be measured") as caught:
        flopwise.probe(only=["transfers"], quick=True, disk=tmp_path)
    reason = "transfers between host and devices: not measured, there are no transfers between a CPU and its own memory"
    assert reason in caught.value.reasons


def test_a_place_that_takes_no_file_is_said_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "_backends", lambda _: pytest.fail("measured"))
    (tmp_path / "file").write_text("")
    assert cli.main(["probe", "-o", str(tmp_path / "file" / "probe.json")]) == 2
    assert "is a file; a folder is needed" in capsys.readouterr().err


def test_threads_are_chosen_before_numpy_is_loaded() -> None:
    code = "import sys; sys.modules['torch'] = None; from flopwise import cli; sys.exit(cli.main(sys.argv[1:]))"
    line = ["probe", "--quick", "--only", "launch", "--threads", "1", "--json"]
    done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["devices"][0]["threads"] == 1


def _report(probe: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(api, "probe", lambda *_, **__: probe)
    assert cli.main(["probe"]) == 0
    return capsys.readouterr().out


def test_a_card_beside_the_processor(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from fake_device import FakeDevice

    from flopwise.facts.catalog import load_facts
    from flopwise.probes.measure import ProbeRunner

    card = FakeDevice()
    beside = FakeDevice(20.0, kind="cpu", beside=card)
    names = [name for name, kind in KINDS.items() if kind.scope == "device"]
    found = ProbeRunner(Path(), quick=True, progress=lambda *_: None, clock=card.clock).probe(
        [card, beside], beside, names
    )
    sheet = with_datasheet(found.devices[0], load_facts())
    lost = replace(found.measurements[0], value=None, best=None, low=None, high=None, failure="CUDA error: lost")
    found = replace(found, devices=(sheet, found.devices[1]), measurements=(lost, *found.measurements[1:]))
    out = _report(found, capsys, monkeypatch)
    first, second = out.splitlines()[:2]
    assert first.startswith("NVIDIA H100 80GB HBM3: 4.00 TFLOP/s in bf16 (0 %)") or "in bf16" in first
    assert "datasheet of H100-SXM-80" in first
    assert ", 2 threads: " in second
    assert "20.0 x" in out  # the card over the processor
    assert "○ datasheet" in out
    assert "1.14 GB/s" not in out
    assert "CUDA error: lost" in out
    assert "host to device 1.00 MiB pinned" in out
    assert out.count("Roofline of ") == 2
