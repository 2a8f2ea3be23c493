"""Disk, messages and loops: what is done is what is said."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from fake_device import FakeDevice

from flopwise.probes.backend import Bench
from flopwise.probes.file import Measurement
from flopwise.probes.kinds import collectives, disk, loops
from flopwise.probes.measure import ProbeRunner
from flopwise.probes.numpy_backend import NumpyBackend
from flopwise.probes.timing import Stopwatch

WRITE, READ, REQUEST_S = 2.0e9, 3.0e9, 1e-3


def _disk(
    folder: Path, device: FakeDevice, monkeypatch: pytest.MonkeyPatch, moved: list[tuple[str, int]]
) -> tuple[tuple[Measurement, ...], tuple[str, ...]]:
    """Measured while time passes by the bytes that really go to the file and come from it."""
    write, read, lock = os.pwrite, os.preadv, Lock()

    def note(what: str, size: int, rate: float) -> None:
        with lock:
            device.time[0] += REQUEST_S if size == disk.BLOCK else size / rate
            moved.append((what, size))

    def pwrite(handle: int, data: Any, place: int) -> int:
        note("write", len(data), WRITE)
        return write(handle, data, place)

    def preadv(handle: int, targets: list[Any], place: int) -> int:
        done = read(handle, targets, place)
        assert done == len(targets[0])
        assert any(targets[0][:64])  # what was written, not a hole
        note("read", done, READ)
        return done

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(disk, "QUICK_SIZE", 2 * disk.CHUNK)
    runner = ProbeRunner(folder, quick=True, progress=lambda *_: None, clock=device.clock)
    probe = runner.probe([device], device, ["disk"])
    return probe.measurements, probe.notes


def test_disk_rates_are_the_bytes_of_the_file_over_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[tuple[str, int]] = []
    found, _ = _disk(tmp_path, FakeDevice(), monkeypatch, moved)
    assert [one.name for one in found] == [
        "disk_write", "disk_read", "disk_random_read", "disk_random_read", "disk_random_write", "disk_random_write",
    ]  # fmt: skip
    for one in found:
        rate = disk.BLOCK / REQUEST_S if "random" in one.name else WRITE if "write" in one.name else READ
        assert one.value == pytest.approx(rate), one
        assert one.note
    assert {size for _, size in moved} == {disk.CHUNK, disk.BLOCK}
    assert found[2].work == 4096 * 16
    assert found[3].work == 4096 * 16 * 16  # of 16 threads
    assert list(tmp_path.iterdir()) == []


def test_the_page_cache_is_dropped_where_it_cannot_be_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def refuse(path: Any, flags: int, *more: Any, **rest: Any) -> int:
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "Invalid argument")
        return opened(path, flags, *more, **rest)

    monkeypatch.setattr(os, "open", refuse)
    found, _ = _disk(tmp_path, FakeDevice(), monkeypatch, [])
    assert all("page cache dropped before it is read" in one.note for one in found)
    monkeypatch.delattr(os, "posix_fadvise")
    found, _ = _disk(tmp_path, FakeDevice(), monkeypatch, [])
    assert all("page cache included" in one.note for one in found)


def test_a_folder_that_takes_no_file_is_the_reason_of_each_entry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    found, _ = _disk(tmp_path, FakeDevice(), monkeypatch, [])
    assert {one.failure for one in found} == {f"{tmp_path}: a file cannot be created there (Permission denied)"}


def test_a_disk_that_fills_up_is_a_reason_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    runner = ProbeRunner(tmp_path, quick=True, progress=lambda *_: None)
    found = runner.probe([FakeDevice()], FakeDevice(), ["disk"]).measurements
    assert {one.failure for one in found} == {"No space left on device"}
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("usage", (), {"free": 100 << 20}))
    moved: list[tuple[str, int]] = []
    found, notes = _disk(tmp_path, FakeDevice(), monkeypatch, moved)
    assert (found, moved) == ((), [])
    assert f"disk: not measured, {tmp_path}: only 100 MiB are free, and a probe uses at most a tenth" in notes
    missing, notes = _disk(tmp_path / "none", FakeDevice(), monkeypatch, [])
    assert missing == ()


def test_file_systems_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "mounts")
    (tmp_path / "mounts").write_text(f"/dev/a / ext4 rw 0 0\nnone {tmp_path.resolve()} tmpfs rw 0 0\n")
    scratch = disk.Scratch(tmp_path, 2 * disk.CHUNK)
    scratch.close()
    assert scratch.note.startswith("tmpfs, which is memory, not a disk, ")
    assert [path.name for path in tmp_path.iterdir()] == ["mounts"]


def _timed(seconds: Callable[[int], float]) -> Callable[..., list[float]]:
    return lambda _self, _operation, nbytes, _watch: [seconds(nbytes)] * 3


def test_the_rate_of_a_message_is_that_of_the_bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "TorchBackend", FakeDevice)
    monkeypatch.setattr(collectives.Ranks, "start", lambda *_: None)
    monkeypatch.setattr(collectives.Ranks, "samples", _timed(lambda nbytes: nbytes / 1e9))
    device = FakeDevice(kind="cpu")
    device.device = type(device.device)(id="cpu", kind="cpu", name="x", threads=4)
    found = (
        ProbeRunner(tmp_path, quick=True, progress=lambda *_: None)
        .probe([device], device, ["collectives"])
        .measurements
    )
    # of 4 processes: twice three quarters of the bytes pass each link in an all-reduce, three quarters in an all-gather
    assert {(one.name, one.value) for one in found} == {("all_reduce", 1.5e9), ("all_gather", 0.75e9)}
    assert {one.shape["ranks"] for one in found} == {4}


def test_processes_that_do_not_start_are_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho 'RuntimeError: no network here' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    ranks = collectives.Ranks("gloo", 2)
    ranks.start(60.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"between 2 processes by gloo: RuntimeError: no network here"):
            ranks.samples("all_reduce", 4096, Stopwatch(lambda: 0.0, lambda: None, 0.1))
    ranks.close()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    ranks = collectives.Ranks("gloo", 2)
    ranks.start(60.0)
    with pytest.raises(RuntimeError, match="No such file"):
        ranks.samples("all_reduce", 4096, Stopwatch(lambda: 0.0, lambda: None, 0.1))
    ranks.close()


@pytest.mark.parametrize(("n", "entries"), [(6, 36), (6, 8), (6, 3)])
def test_the_naive_loops_make_the_product(n: int, entries: int) -> None:
    made = [value for row in loops._naive(n, entries)() for value in row]  # type: ignore[attr-defined]
    places = np.arange(n * n).reshape(n, n)
    assert made == pytest.approx((np.sin(places) @ np.cos(places)).ravel()[:entries])
    assert len(made) == entries


def test_the_part_of_a_large_product_is_said(tmp_path: Path) -> None:
    with loops.tasks(Bench(FakeDevice(), quick=True, folder=tmp_path)) as tasks:
        by_size = {(task.name, task.shape["n"]): task for task in tasks}
    assert by_size["loop_naive", 32].work == by_size["loop_vectorised", 32].work == 2 * 32**3
    large = by_size["loop_naive", 1024]
    assert large.work == 2 * 1024 * 256  # 256 entries of the result, 1,024 products each
    assert large.note == "measured on 256 of 1,048,576 entries of the result and scaled up"
    assert by_size["loop_vectorised", 1024].work == 2 * 1024**3


def test_numpy_does_the_operations_that_are_counted() -> None:
    backend = NumpyBackend(None)
    try:
        assert backend.matmul(3, 5, 7, "fp64")().shape == (3, 5)  # type: ignore[attr-defined]
        for what in ("copy", "read", "write"):
            for size in (1 << 12, 1 << 22):
                backend.memory(what, size)()
        from flopwise.probes.backend import AttentionShape

        shape = AttentionShape(2, 4, 2, 6, 8)
        out: Any = backend.attention(shape, "prefill", "fp32")()
        assert out.shape == (2, 2, 2 * 6, 8)
        first = out.reshape(2, 4, 6, 8)[:, :, 0]  # the first token sees itself alone: the value that it carries
        values = backend._random(2, 2, 6, 8)[:, :, 0]
        np.testing.assert_allclose(first, np.repeat(values, 2, axis=1), rtol=1e-5)
        decoded: Any = backend.attention(shape, "decode", "fp32")()
        assert decoded.shape == (2, 2, 2, 8)
        assert backend.small_operation(5, backward=False)()[0] == 5  # type: ignore[index]
        assert backend.elementwise(512, backward=False)().shape == (2, 256)  # type: ignore[attr-defined]
    finally:
        backend.close()
