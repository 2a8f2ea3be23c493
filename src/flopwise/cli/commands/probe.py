"""`flopwise probe`: what this machine sustains."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import add, flags
from flopwise.cli.parts import bullets
from flopwise.cli.render import Screen, heading, table
from flopwise.facts.spec import SourceSpec
from flopwise.options import FILE
from flopwise.probes.file import Measurement, Probe, ProbedDevice
from flopwise.probes.spec import ProbeSpec

MAIN_DTYPES = ("bf16", "fp16", "fp32")
"""The first of these that was measured is that of the roofline."""
ANSWER_DTYPES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp64")


@options.command(
    "probe", "flopwise probe --quick --only launch", "flopwise probe --quick --only memory --device cpu --json"
)
@flags(ProbeSpec)
@add("-o --output", FILE, "Write the measurements into this file, for `flopwise calibrate`.")
@flags(SourceSpec, "facts")
def command(*, output: Path | None, **given: Any) -> None:
    """Measured rates of this machine: products, memory, attention, messages, disk, launches.

    Every operation is warmed up and repeated; the figure is the median, the spread goes from the 10th to the 90th
    percentile. It uses PyTorch on CUDA, ROCm, Apple GPUs and the CPU, or NumPy without PyTorch. Failures are listed
    with their reason. A full probe takes up to two minutes and needs an otherwise quiet machine.
    """
    from flopwise.api.probe import probe
    from flopwise.folders import check_folder

    if output is not None:
        if output.is_dir():
            raise options.usage_error(f"--output {output}: a folder; give the name of a file")
        check_folder(output.absolute().parent)
    with _progress_bar() as progress:
        answer = probe(progress, **options.values(given))
    if output is not None:
        answer.write(output)
    keep = "probe.json" if output is None else str(output)
    line = shlex.join(["flopwise", "calibrate", keep, "--name", "here"])
    further = {"Estimates for this machine" + (", with -o probe.json" if output is None else ""): line}
    options.answer(answer, lambda it, paper: _report(it, paper, output), further=further)


@contextmanager
def _progress_bar() -> Iterator[Callable[[float, float, str], object] | None]:
    """A bar on the terminal, gone at the end; None where errors go elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        bar = shown.add_task("starting", total=None)
        yield lambda done, total, what: shown.update(bar, completed=done, total=total, description=what)


def _report(probe: Probe, paper: Screen, output: Path | None) -> Iterator[str]:
    """The answer, then the tables."""
    yield "\n".join(heading(_headline(probe, device), paper) for device in probe.devices)
    if probe.notes:
        yield bullets("Notes", probe.notes)
    yield _comparison(probe, paper)
    for device in probe.devices:
        yield _roofline(probe, device, paper)
        yield from _tables(probe, device, paper)
    yield from _loops(probe)
    yield _failures(probe, paper)
    origin = f"{probe.backend} {probe.versions.get(probe.backend, '')}, {probe.system}, {probe.date}"
    yield f"measured in {units.format_seconds(probe.seconds)} ({origin})" + (f"; written to {output}" if output else "")


def _headline(probe: Probe, device: ProbedDevice) -> str:
    """The device in one sentence: its best rates, and their share of what it should reach."""
    parts = [
        f"{units.format_rate(rate, 'FLOP/s')} in {dtype}{_share(rate, _peak(device, dtype))}"
        for dtype in ANSWER_DTYPES
        if (rate := probe.best("matmul", device.id, dtype))
    ]
    if bandwidth := _bandwidth(probe, device):
        parts.append(f"{units.format_rate(bandwidth)} of memory{_share(bandwidth, device.memory_bytes_per_s)}")
    if launch := probe.best("launch_queued", device.id):
        parts.append(f"{units.format_seconds(launch)} per operation")
    if read := probe.best("disk_read", device.id):
        parts.append(f"{units.format_rate(read)} from the disk")
    count = device.threads or 1
    threads = f", {units.format_items(count, 'thread')}" if device.kind == "cpu" else ""
    peak = f" (%: of the peak, {device.peak_source})" if any("%" in part for part in parts) else ""
    return f"{device.name}{threads}: {', '.join(parts) or 'see below'}{peak}"


def _peak(device: ProbedDevice, dtype: str) -> float | None:
    """The datasheet rate of the device; fp64 products run on its matrix units where it has such."""
    return device.peak_flops_per_s.get("fp64_tensor" if dtype == "fp64" else dtype, device.peak_flops_per_s.get(dtype))


def _share(rate: float, peak: float | None) -> str:
    return f" ({units.format_percent(rate / peak, 0)})" if peak else ""


def _bandwidth(probe: Probe, device: ProbedDevice) -> float | None:
    """The best of copying, reading and writing the largest working set."""
    bandwidths = [(one, value) for one, value in _values(probe, device) if one.name.startswith("memory_")]
    largest = max((one.shape["bytes"] for one, _ in bandwidths), default=0)
    return max((value for one, value in bandwidths if one.shape["bytes"] == largest), default=None)


def _values(probe: Probe, device: ProbedDevice) -> list[tuple[Measurement, float]]:
    return [(one, one.value) for one in probe.measurements if one.device == device.id and one.value is not None]


def _comparison(probe: Probe, paper: Screen) -> str:
    """The devices side by side; empty for one."""
    if len(probe.devices) < 2:
        return ""
    first, last = probe.devices[0], probe.devices[-1]
    names: list[tuple[str, str | None, str]] = [("matmul", dtype, f"product in {dtype}") for dtype in ANSWER_DTYPES]
    names += [("attention_prefill", d, f"attention in {d}") for d in MAIN_DTYPES]
    names += [("memory_copy", None, "copy"), ("memory_read", None, "read"), ("elementwise", "fp32", "elementwise")]
    rows = []
    for name, dtype, title in names:
        here, there = probe.best(name, first.id, dtype), probe.best(name, last.id, dtype)
        if here and there:
            unit = next(one.unit for one in probe.measurements if one.name == name)
            rates = (units.format_rate(here, unit), units.format_rate(there, unit))
            rows.append((title, *rates, f"{here / there:,.1f} x"))
    return table(["best of", f">{first.id}", f">{last.id}", ">ratio"], rows, paper) if rows else ""


def _roofline(probe: Probe, device: ProbedDevice, paper: Screen) -> str:
    """Rate over FLOP a byte: what was measured under its roof, and the roof of the datasheet."""
    from flopwise.cli.charts import Axis, Series, chart

    bandwidth = _bandwidth(probe, device)
    dtype = next((d for d in MAIN_DTYPES if probe.best("matmul", device.id, d)), None)
    if bandwidth is None or dtype is None:
        return ""
    best = probe.best("matmul", device.id, dtype) or 0.0
    points = sorted(_intensities(probe, device, dtype))
    ends = (min(0.25, points[0][0]), max(4 * best / bandwidth, points[-1][0]))

    def roof(rate: float, moved: float) -> list[tuple[float, float]]:
        return [(x, min(rate, x * moved)) for x in sorted({ends[0], rate / moved, ends[1]})]

    series = []
    peak = _peak(device, dtype)
    if peak and device.memory_bytes_per_s:
        series.append(Series("datasheet", roof(peak, device.memory_bytes_per_s), mark="○", line=True))
    elif peak:
        series.append(Series("computed peak", [(x, peak) for x in (peak / bandwidth, ends[1])], mark="○", line=True))
    series.append(Series("measured roof", roof(best, bandwidth), line=True))
    series.append(Series(f"products in {dtype}", points, mark="●"))
    drawn = chart(
        series,
        Axis("FLOP a byte", log=True),
        Axis("FLOP/s", lambda value: units.format_rate(value, "FLOP/s"), log=True),
        paper,
    )
    return f"{heading(f'Roofline of {device.name}', paper)}\n{drawn}"


def _intensities(probe: Probe, device: ProbedDevice, dtype: str) -> Iterator[tuple[float, float]]:
    """FLOP a byte and FLOP/s of each product; its bytes are both operands and the result, once."""
    from flopwise.probes.backend import ELEMENT_BYTES

    for one, value in probe.values("matmul", device.id, dtype):
        m, n, k = (one.shape[size] for size in "mnk")
        yield one.work / (ELEMENT_BYTES[dtype] * (m * k + k * n + m * n)), value


def _tables(probe: Probe, device: ProbedDevice, paper: Screen) -> Iterator[str]:
    """The measurements of a device, kind by kind."""
    measurements = _values(probe, device)
    where = f" of {device.name}" if len(probe.devices) > 1 else ""

    def pivot(title: str, first: str, prefix: str, column: Callable[[Measurement], str]) -> Iterator[str]:
        chosen = [(one, value) for one, value in measurements if one.name.startswith(prefix)]
        if chosen:
            yield heading(f"{title}{where}", paper)
            yield _pivot(first, chosen, column, paper)

    yield from pivot("Matrix products", "m x n x k", "matmul", lambda one: one.dtype or "")
    yield from pivot("Weights read by few rows", "m x n x k", "weights_read", lambda one: one.dtype or "")
    yield from pivot("Memory by working set", "bytes", "memory_", lambda one: one.name.removeprefix("memory_"))
    yield from pivot("Attention", "pass", "attention_", lambda one: one.dtype or "")
    shown = ("matmul", "weights_", "memory_", "attention_", "loop_")
    rest = [pair for pair in measurements if not pair[0].name.startswith(shown)]
    if rest:
        yield heading(f"Other operations{where}", paper)
        rows = [
            (f"{one.name.replace('_', ' ')}{_label(one)}", *(_rate(one, v) for v in (value, one.best)), *_end(one))
            for one, value in rest
        ]
        yield table(["operation", ">median", ">best", ">spread", "note"], rows, paper, spare=["note"])


def _pivot(
    first: str, measurements: Sequence[tuple[Measurement, float]], column: Callable[[Measurement], str], paper: Screen
) -> str:
    """One row a shape, one column of medians for each of `column`, and the widest spread of the row."""
    titles = list(dict.fromkeys(column(one) for one, _ in measurements))
    rows: dict[str, dict[str, tuple[Measurement, float]]] = {}
    for one, value in measurements:
        what = one.name.removeprefix("attention_") if one.name.startswith("attention_") else ""
        rows.setdefault(f"{what}{_label(one)}".strip(), {})[column(one)] = (one, value)
    cells = [
        (name, *(_rate(*row[t]) if t in row else None for t in titles), _spread([one for one, _ in row.values()]))
        for name, row in rows.items()
    ]
    return table([first, *(f">{title}" for title in titles), ">spread"], cells, paper)


def _end(one: Measurement) -> tuple[str, str]:
    return _spread([one]), one.note


def _label(one: Measurement) -> str:
    """The shape of an operation, with a blank before it."""
    shape = dict(one.shape)
    if "m" in shape:
        return f" {shape['m']} x {shape['n']} x {shape['k']}"
    words = [units.format_bytes(shape.pop("bytes"))] if "bytes" in shape else []
    shape.pop("passes", None)
    if "pinned" in shape:
        words.append("pinned" if shape.pop("pinned") else "pageable")
    if "heads" in shape:
        heads, kv_heads = shape.pop("heads"), shape.pop("kv_heads")
        words.append(f"{shape.pop('batch')} x {shape.pop('seq')}, {heads}/{kv_heads} heads of {shape.pop('dim')}")
    return "".join(f" {word}" for word in (*words, *(f"{name} {size:,}" for name, size in shape.items())))


def _rate(one: Measurement, value: float | None) -> str | None:
    if value is None:
        return None
    return units.format_seconds(value) if one.unit == "s" else units.format_rate(value, one.unit)


def _spread(several: Sequence[Measurement]) -> str:
    """The widest 10th to 90th percentile, as shares of the median."""
    ends = [
        (one.low / one.value - 1, one.high / one.value - 1) for one in several if one.value and one.low and one.high
    ]
    if not ends:
        return ""
    low, high = max(ends, key=lambda pair: pair[1] - pair[0])
    return f"{100 * low:+.0f} to {100 * high:+.0f} %"


def _loops(probe: Probe) -> Iterator[str]:
    """The gain of vectorised code, in a sentence for each size."""
    pairs: dict[int, dict[str, Measurement]] = {}
    for one in probe.measurements:
        if one.name.startswith("loop_") and one.value:
            pairs.setdefault(one.shape["n"], {})[one.name] = one
    lines = []
    for n, both in pairs.items():
        if len(both) == 2:
            naive, fast = both["loop_naive"], both["loop_vectorised"]
            took = [2.0 * n**3 / (one.value or 1.0) for one in (naive, fast)]
            scaled = f" ({naive.note})" if naive.note else ""
            lines.append(
                f"{n} x {n} matrices: {units.format_seconds(took[0])} in Python's own loops{scaled}, "
                f"{units.format_seconds(took[1])} by the library: {_times(took[0] / took[1])} as fast"
            )
    if lines:
        yield bullets("Naive loops against vectorised code", lines)


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def _failures(probe: Probe, paper: Screen) -> str:
    """The measurements that failed, by reason."""
    reasons = dict[tuple[str, str, str], int]()
    for one in probe.measurements:
        if one.failure is not None:
            slow = one.failure.partition(" takes about ")[0] + " takes too long" * (" takes about " in one.failure)
            key = (one.device, one.name.replace("_", " "), slow)
            reasons[key] = reasons.get(key, 0) + 1
    rows = [(device, name, count, why) for (device, name, why), count in reasons.items()]
    return table(["device", "not measured", ">count", "why"], rows, paper) if rows else ""
