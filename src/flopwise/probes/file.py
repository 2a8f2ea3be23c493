"""The results of a probe as plain data, and its JSON file.

SI units throughout: FLOP/s (for int8, operations per second), B/s, s. The `id` of a device is `cpu`, `cuda:0` or `mps`.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from flopwise.errors import SpecError
from flopwise.files import read_at_most, write_whole
from flopwise.values import dataclass

FORMAT, VERSION = "flopwise-probe", 1
LARGEST_FILE = 16 << 20
Unit = Literal["FLOP/s", "B/s", "s"]
FIGURES = ("value", "best", "low", "high", "seconds")
"""Figures of a measurement that must be above 0 if they are known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One operation on one device, repeated; a rate is the work of one repetition over its time.

    `name` and the integers of its `shape`:
        matmul              m, n, k: an (m, k) by a (k, n) matrix
        weights_read        m, n, k, weights: that many (k, n) matrices in turn, more than caches hold; B/s of these
        memory_copy, memory_read, memory_write   bytes: the working set
        attention_prefill   batch, heads, kv_heads, seq, dim; causal, FLOP of unmasked pairs
        attention_training  the same with its backward pass
        attention_decode    batch, heads, kv_heads, seq, dim: one new token each, B/s of keys and values
        elementwise         elements, passes: norm, activation, product and sum; B/s of their inputs and outputs
        elementwise_training  the same with its backward pass
        launch_queued, launch_waited, launch_autograd   s: per small operation queued, synchronous, and with autograd
                            (the backward pass is an operation of its own)
        host_to_device, device_to_host   bytes, pinned (0 or 1)
        device_to_device    bytes, peer: the index of the device that receives
        all_reduce, all_gather   bytes, ranks; bus bandwidth: 2 (n-1)/n and (n-1)/n of the bytes
        disk_write, disk_read                  bytes: of one sequential request
        disk_random_write, disk_random_read    bytes, depth: of one request, requests at once
        loop_naive, loop_vectorised   n: an (n, n) by (n, n) matrix in plain Python loops, and by the library
    """

    name: str
    device: str
    unit: Unit
    shape: Mapping[str, int]
    dtype: str | None = None  # as the catalog writes it: fp32, tf32, bf16, int8 ...
    work: float = 0.0  # FLOP or bytes of one repetition; operations where the unit is s
    value: float | None = None  # at the median repetition; None where it failed
    best: float | None = None  # the fastest repetition
    low: float | None = None  # 10th and 90th percentile of the value: low <= value <= high
    high: float | None = None
    seconds: float | None = None  # median of a repetition
    repeats: int = 0
    involuntary_switches: int | None = None  # involuntary context switches
    others_frac: float | None = None  # share of all cores that other processes and virtual machines used meanwhile
    note: str = ""  # a source of uncertainty: includes the page cache, scaled from a part ...
    failure: str | None = None  # reason for a missing value


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedDevice:
    """A measured device, as described by its driver and the system."""

    id: str
    kind: Literal["cpu", "cuda", "rocm", "mps"]
    name: str  # as reported by the driver
    accelerator: str | None = None  # the row of the catalog with its datasheet
    memory_bytes: int | None = None
    threads: int | None = None  # used threads of a CPU
    cores: int | None = None  # used cores of a CPU (a core may have two threads); multiprocessors of a GPU
    clock_hz: float | None = None
    cache_bytes: Mapping[str, int] = field(default_factory=dict)  # "L1", "L2", "L3" of a CPU
    driver: str | None = None
    peak_flops_per_s: Mapping[str, float] = field(default_factory=dict)  # by dtype: the datasheet's, or computed
    memory_bytes_per_s: float | None = None  # the datasheet's
    peak_source: str | None = None  # source of both


@dataclass(frozen=True, slots=True)
class _Head:
    """The header that identifies a probe's file and its version."""

    format: str = ""
    version: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The results of one probe of one machine."""

    format: str = FORMAT
    version: int = VERSION
    date: str  # ISO 8601 with its zone
    host: str
    system: str  # operating system and its release
    flopwise: str  # version of flopwise
    versions: Mapping[str, str]  # python, numpy, torch, cuda ...
    backend: Literal["torch", "numpy"]
    quick: bool
    devices: tuple[ProbedDevice, ...]
    measurements: tuple[Measurement, ...]
    seconds: float = 0.0  # duration of the probe
    notes: tuple[str, ...] = ()  # a busy machine, kinds that could not be measured

    @classmethod
    def from_file(cls, path: Path | str) -> Probe:
        """Read the file of a probe.

        Raises: SpecError: there is no such file, or it is damaged, not a probe, or of a newer version.
        """
        import msgspec  # noqa: PLC0415 - as in `write`

        where = str(path)[:200]
        try:
            data = read_at_most(path, LARGEST_FILE)
        except (OSError, ValueError) as fault:
            raise SpecError(f"{where}: cannot be read ({getattr(fault, 'strerror', None) or fault})") from None
        if len(data) > LARGEST_FILE:
            raise SpecError(f"{where}: larger than a probe can be ({LARGEST_FILE >> 20} MiB)")
        try:
            head = msgspec.json.decode(data, type=_Head)
            if head.format != FORMAT:
                raise SpecError(f"{where}: not a probe's file; `flopwise probe -o FILE` writes one")
            if head.version > VERSION:
                raise SpecError(
                    f"{where}: written by a newer flopwise: the file has version {head.version}, this flopwise reads "
                    f"{VERSION}; update flopwise"
                )
            probe: Probe = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as fault:
            raise SpecError(f"{where}: damaged, or not a probe's file ({str(fault)[:200]}); measure again") from None
        _check(probe, where)
        return probe

    def write(self, path: Path | str) -> None:
        """Write the file; on failure an existing file is kept. Raises SpecError: the file cannot be written."""
        import msgspec  # noqa: PLC0415 - not needed for the types

        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    def device(self, identity: str) -> ProbedDevice:
        """The device with this `id`. Raises SpecError: the device was not measured."""
        for one in self.devices:
            if one.id == identity:
                return one
        raise SpecError(f"device {identity!r} is not in the probe; it has {', '.join(d.id for d in self.devices)}")

    def values(self, name: str, device: str, dtype: str | None = None) -> Iterator[tuple[Measurement, float]]:
        """Successful measurements with this name and their values; optionally of one dtype."""
        for one in self.measurements:
            if (one.name, one.device) == (name, device) and dtype in (None, one.dtype) and one.value is not None:
                yield one, one.value

    def best(self, name: str, device: str, dtype: str | None = None) -> float | None:
        """The best rate, or the shortest time, among the medians; None if nothing was measured."""
        values = [(value, one.unit) for one, value in self.values(name, device, dtype)]
        if not values:
            return None
        return (min if values[0][1] == "s" else max)(value for value, _ in values)


_SIZES = {"matmul": ("m", "n", "k"), "weights_read": ("m", "n", "k", "weights"), "attention": ("seq",)}
"""Required keys of a measurement's shape, by the beginning of its name; readers divide by these sizes."""


def _check(probe: Probe, where: str) -> None:
    """Refuse impossible results. Raises SpecError."""
    known = {device.id for device in probe.devices}
    if any(not device.name.strip() for device in probe.devices):
        raise SpecError(f"{where}: a device has no name")
    try:
        dt.datetime.fromisoformat(probe.date)
    except ValueError:
        raise SpecError(f"{where}: {probe.date[:40]!r} is not a date such as 2026-11-22T10:00:00+00:00") from None
    for number, one in enumerate(probe.measurements):
        at = f"{where}: measurements.{number} ({one.name[:40]})"
        if one.device not in known:
            raise SpecError(f"{at}: its device {one.device[:40]!r} is not among the devices")
        if (one.value is None) == (one.failure is None):
            raise SpecError(f"{at}: has neither a value nor a failure, or both")
        figures = [getattr(one, name) for name in FIGURES]
        if any(figure is not None and not (math.isfinite(figure) and figure > 0) for figure in figures):
            raise SpecError(f"{at}: a figure is not positive and finite")
        needed = next((keys for start, keys in _SIZES.items() if one.name.startswith(start)), ())
        if one.value is not None and any(one.shape.get(key, 0) < 1 for key in needed):
            raise SpecError(f"{at}: its shape needs {', '.join(needed)}, each at least 1")
        if not (math.isfinite(one.work) and one.work >= 0):
            raise SpecError(f"{at}: its work is negative or not finite")
