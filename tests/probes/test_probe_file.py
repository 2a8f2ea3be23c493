from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flopwise.errors import SpecError
from flopwise.probes.file import Measurement, Probe, ProbedDevice

PROBE = Probe(
    date="2026-11-22T10:00:00+00:00", host="here", system="Linux 6.1", flopwise="0.2.0", versions={"numpy": "2.3"},
    backend="torch", quick=True,
    devices=(ProbedDevice(id="cpu", kind="cpu", name="AMD EPYC", threads=2, cache_bytes={"L3": 32 << 20}),),
    measurements=(
        Measurement(
            name="matmul", device="cpu", unit="FLOP/s", dtype="fp32", shape={"m": 512, "n": 512, "k": 512},
            work=2.0 * 512**3, value=1e11, best=1.2e11, low=0.9e11, high=1.1e11, seconds=2.0 * 512**3 / 1e11, repeats=9,
        ),
        Measurement(
            name="matmul", device="cpu", unit="FLOP/s", dtype="bf16", shape={"m": 8, "n": 8, "k": 8}, value=2e11,
        ),
        Measurement(name="launch_queued", device="cpu", unit="s", shape={}, value=3e-6),
        Measurement(name="launch_queued", device="cpu", unit="s", shape={"x": 1}, value=2e-6),
        Measurement(name="disk_read", device="cpu", unit="B/s", shape={"bytes": 4096}, failure="no permission"),
    ),
)  # fmt: skip


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    PROBE.write(tmp_path / "a" / "probe.json")
    assert Probe.from_file(tmp_path / "a" / "probe.json") == PROBE


def test_the_best_is_the_highest_rate_and_the_shortest_time() -> None:
    assert PROBE.best("matmul", "cpu") == 2e11
    assert PROBE.best("matmul", "cpu", "fp32") == 1e11
    assert PROBE.best("launch_queued", "cpu") == 2e-6
    assert PROBE.best("disk_read", "cpu") is None
    assert PROBE.device("cpu").threads == 2
    with pytest.raises(SpecError, match="it has cpu"):
        PROBE.device("cuda:0")


def _changed(path: Path, **parts: Any) -> Path:
    PROBE.write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return path


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"format": "other"}, "not a probe's file"),
        ({"version": 2}, "written by a newer flopwise"),
        ({"devices": "none"}, r"damaged.*Expected `array`, got `str` - at `\$.devices`"),
        ({"devices": []}, "its device 'cpu' is not among the devices"),
        ({"date": "yesterday"}, "'yesterday' is not a date"),
        ({"measurements": [{"name": "matmul"}]}, "damaged"),
    ],
)
def test_a_damaged_or_newer_file_is_refused(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Probe.from_file(_changed(tmp_path / "p.json", **parts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": -1.0}, "not positive and finite"),
        ({"best": 0.0}, "not positive and finite"),
        ({"value": None}, "neither a value nor a failure, or both"),
        ({"failure": "both"}, "neither a value nor a failure, or both"),
        ({"work": -2.0}, "its work"),
    ],
)
def test_figures_that_no_machine_has_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    first, *others = PROBE.measurements
    replace(PROBE, measurements=(replace(first, **change), *others)).write(tmp_path / "p.json")
    with pytest.raises(SpecError, match=message):
        Probe.from_file(tmp_path / "p.json")


def test_what_is_no_file_of_a_probe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        Probe.from_file(tmp_path / "none.json")
    with pytest.raises(SpecError, match="cannot be read"):
        Probe.from_file(tmp_path)
    whole = tmp_path / "whole.json"
    PROBE.write(whole)
    cut = tmp_path / "cut.json"
    for data in (whole.read_bytes()[:-200], b"", b"\xff\xfe", b"[" * 100_000):
        cut.write_bytes(data)
        with pytest.raises(SpecError, match=r"cut.json: damaged"):
            Probe.from_file(cut)


def test_sizes_that_readers_divide_by_are_needed(tmp_path: Path) -> None:
    product = PROBE.measurements[0]
    for shape in ({}, {"m": 512, "n": 512, "k": 0}):
        replace(PROBE, measurements=(replace(product, shape=shape),)).write(tmp_path / "probe.json")
        with pytest.raises(SpecError, match="its shape needs m, n, k"):
            Probe.from_file(tmp_path / "probe.json")
    replace(PROBE, devices=(replace(PROBE.devices[0], name=" "),)).write(tmp_path / "probe.json")
    with pytest.raises(SpecError, match="has no name"):
        Probe.from_file(tmp_path / "probe.json")
