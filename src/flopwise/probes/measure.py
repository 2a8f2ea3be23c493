"""Running a probe: kinds and devices, time limits, and handling of failures."""

from __future__ import annotations

import datetime as dt
import math
import platform
import re
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import field
from importlib import import_module
from pathlib import Path
from typing import Any

import flopwise
from flopwise import units
from flopwise.errors import InfeasibleError, SpecError, UnknownNameError
from flopwise.facts.catalog import Facts
from flopwise.probes.backend import Backend, Bench, NothingToMeasureError
from flopwise.probes.file import Measurement, Probe, ProbedDevice
from flopwise.probes.kinds import KINDS
from flopwise.probes.load import BUSY_FRAC, Load
from flopwise.probes.numpy_backend import NumpyBackend
from flopwise.probes.spec import ProbeSpec
from flopwise.probes.timing import LEAST, Stopwatch, Task, TooLongError
from flopwise.probes.torch_backend import INSTALL, TorchBackend, device_names
from flopwise.values import dataclass, replace

Progress = Callable[[float, float, str], object]
"""Elapsed and total seconds of measuring, and the present measurement."""
ROUNDS = 2
"""Number of rounds over a device's operations in a full probe: a disturbance may affect only one of them."""
MOST_S, QUICK_MOST_S = 73.0, 12.5
"""Total measuring time, in seconds; several devices share it."""
LIMIT_S, QUICK_LIMIT_S = 110.0, 17.0
"""Time limit of a probe, including loading its library: kinds that take longer leave less for later ones."""
LEAST_S, QUICK_LEAST_S = 20.0, 4.0
"""Minimum measuring time, even if the library took long to load, as on an overloaded machine."""
OVERHEAD = 1.5
"""Total time of an operation, including making its data, over its measuring time."""
OVERRUN = 1.2
"""Expected time of a kind over its allotted time, since slow operations are still repeated a few times."""
LATEST = 1.6
"""Multiple of its allotted time after which the rest of a kind is left out."""
MOST_MEMORY_FRAC = 0.5
"""Share of the device's free memory that an operation may take."""
ALIKE = 64
"""Ratio of work up to which the rate of one operation predicts the time of another."""
REASON = 300
"""Maximum length of a reason, in characters."""

NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")

Key = tuple[str, str | None, tuple[tuple[str, int], ...]]


@dataclass(slots=True)
class _Repeats:
    """The measurements of one operation so far."""

    task: Task
    samples: list[float] = field(default_factory=list)
    failure: str | None = None
    slow_s: float = math.inf  # time of a repetition that was too slow to be measured further
    others_frac: float | None = None
    switches: int | None = None


@dataclass(slots=True)
class ProbeRunner:
    """Measures devices one after the other; `clock`: in seconds, `loading_s`: time to load the library."""

    folder: Path
    quick: bool
    progress: Progress
    clock: Callable[[], float] = time.perf_counter
    loading_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    through_s: float = 0.0
    total_s: float = 0.0
    _scale: float = 1.0
    _end: float = math.inf  # by the clock

    def probe(self, backends: Sequence[Backend], machine: Backend, names: Sequence[str]) -> Probe:
        """Measure the kinds in `names` on each of `backends`, and kinds of the whole machine on `machine`."""
        began, before = self.clock(), Load.now()
        for backend in backends:
            self._check_alive(backend)  # its library loads parts of itself with the first operation
        self.loading_s += self.clock() - began
        plan = list(self._plan(backends, machine, names))
        whole_s = sum(self._seconds(name) for _, name in plan)
        self.total_s = min(whole_s, QUICK_MOST_S if self.quick else MOST_S)
        self._scale = self.total_s / whole_s if plan else 1.0
        limit_s, least_s = (QUICK_LIMIT_S, QUICK_LEAST_S) if self.quick else (LIMIT_S, LEAST_S)
        self._end = self.clock() + max(limit_s - self.loading_s, least_s)
        measurements: dict[str, list[Measurement]] = defaultdict(list)
        unmeasured = dict[str, str]()
        for number, (backend, name) in enumerate(plan):
            try:
                measurements[backend.device.id] += self._measurements(backend, name, self._share_frac(plan[number:]))
                unmeasured.pop(name, None)
            except NothingToMeasureError as reason:
                if not any(name == other for _, other in plan[: plan.index((backend, name))]):
                    unmeasured[name] = f"{KINDS[name].title}: not measured, {reason}"
        self.notes += unmeasured.values()
        self._note_load(before, [one for several in measurements.values() for one in several])
        every = {backend.device.id: backend for backend in (*backends, machine)}
        with_results = [backend for identity, backend in every.items() if measurements[identity]]
        return Probe(
            date=dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"), host=socket.gethostname(),
            system=f"{platform.system()} {platform.release()}", flopwise=flopwise.__version__,
            versions=dict(machine.versions), backend=machine.library, quick=self.quick,
            devices=tuple(backend.device for backend in with_results),
            measurements=tuple(one for backend in with_results for one in measurements[backend.device.id]),
            seconds=self.clock() - began, notes=tuple(self.notes),
        )  # fmt: skip

    def _plan(
        self, backends: Sequence[Backend], machine: Backend, names: Sequence[str]
    ) -> Iterator[tuple[Backend, str]]:
        """The backend for messages: that of the GPUs if there are any."""
        for name in names:
            if KINDS[name].scope == "device":
                yield from ((backend, name) for backend in backends)
            else:
                yield backends[0] if name == "collectives" else machine, name

    def _seconds(self, name: str) -> float:
        return (KINDS[name].quick_s if self.quick else KINDS[name].seconds) * self._scale

    def _share_frac(self, plan: Sequence[tuple[Backend, str]]) -> float:
        """The share of its time that is left for the rest of the plan, 0 to 1."""
        starts_s = sum(KINDS[name].start_s for _, name in plan)
        left_s = self._end - self.clock() - starts_s
        return min(max(left_s / (OVERRUN * sum(self._seconds(name) for _, name in plan)), 0.0), 1.0)

    def _measurements(self, backend: Backend, name: str, share_frac: float) -> list[Measurement]:
        """Measure all operations of one kind on one device, in a share of the kind's time."""
        kind, usual_s = KINDS[name], self._seconds(name)
        allotted = share_frac * usual_s
        rounds = 1 if self.quick or kind.scope == "machine" else ROUNDS
        series = dict[Key, _Repeats]()
        left_s = self._end - self.clock()
        if left_s <= 0:
            raise NothingToMeasureError("the time limit of the probe is used up")
        with kind.tasks(Bench(backend, self.quick, self.folder, left_s)) as tasks:
            if not tasks:
                raise NothingToMeasureError("this device does not support it")
            each_s = allotted / (len(tasks) * rounds * OVERHEAD)
            begun = self.clock()  # the processes of messages have been started
            watch = Stopwatch(self.clock, backend.wait, each_s, self._end)
            for number in range(rounds * len(tasks)):
                task = tasks[number % len(tasks)]
                one = series.setdefault((task.name, task.dtype, tuple(sorted(task.shape.items()))), _Repeats(task))
                share = number / (rounds * len(tasks))
                self.progress(self.through_s + usual_s * share, self.total_s, f"{backend.device.id}: {kind.title}")
                late = self.clock() > min(begun + LATEST * allotted, self._end)
                if one.failure is None and not (late and one.samples):
                    self._add(one, backend, watch, list(series.values()), late=late)
        self.through_s += usual_s
        return [_measurement(one, backend.device.id) for one in series.values()]

    def _add(self, one: _Repeats, backend: Backend, watch: Stopwatch, others: list[_Repeats], *, late: bool) -> None:
        """Measure an operation once more, or record the reason of a failure."""
        task, before = one.task, Load.now()
        try:
            _check_memory(task, backend.free_bytes())
            watch.check(math.inf if late else _expected_s(task, others))
            one.samples += task.samples(watch)
        except TooLongError as reason:
            one.failure, one.slow_s = str(reason) if not one.samples else None, reason.seconds
        except Exception as fault:  # noqa: BLE001 - a driver may raise anything: that entry fails, the others go on
            one.failure = _reason(fault)
            one.samples.clear()
            self._check_alive(backend)
        finally:
            with suppress(Exception):  # of a device that is gone
                backend.release()
        load = Load.now() - before
        if load.others_frac is not None and task.timer is None:  # the processes of messages are no others
            one.others_frac = max(one.others_frac or 0.0, load.others_frac)
        if load.switches is not None:
            one.switches = (one.switches or 0) + load.switches

    def _check_alive(self, backend: Backend) -> None:
        """Add a note if the device no longer answers, since later operations on it fail, too."""
        try:
            backend.small_operation(1, backward=backend.trains)()
            backend.wait()
        except Exception as fault:  # noqa: BLE001 - as above
            note = f"{backend.device.id} stopped answering ({_reason(fault)}); later figures are missing"
            if not any(line.startswith(f"{backend.device.id} stopped") for line in self.notes):
                self.notes.append(note)

    def _note_load(self, before: Load, measured: Sequence[Measurement]) -> None:
        """Notes on other load before and during the probe."""
        disturbed = [one for one in measured if (one.others_frac or 0.0) > BUSY_FRAC]
        if before.waiting_per_core is not None and before.waiting_per_core > 0.5:
            self.notes.append(
                f"the machine was busy before the probe: {before.waiting_per_core:.1f} processes per core were "
                "ready to run in the minute before; figures may be too low"
            )
        if disturbed:
            most = max(one.others_frac or 0.0 for one in disturbed)
            self.notes.append(
                f"{len(disturbed)} of {len(measured)} figures were measured while other processes used more than "
                f"{units.format_percent(BUSY_FRAC, 0)} of the cores (at most {units.format_percent(most, 0)}): they "
                "may be too low; measure again on a quiet machine"
            )


def _measurement(one: _Repeats, device: str) -> Measurement:
    """The figure of an operation (median, fastest, 10th and 90th percentile), or its failure."""
    task = one.task
    what = Measurement(
        name=task.name, device=device, unit=task.unit, shape=task.shape, dtype=task.dtype, work=task.work,
        note=task.note, involuntary_switches=one.switches, others_frac=one.others_frac,
    )  # fmt: skip
    if len(one.samples) < LEAST:
        return replace(what, failure=one.failure or "left out", note="")
    cuts = statistics.quantiles(one.samples, n=10, method="inclusive")
    middle = statistics.median(one.samples)
    times = (middle, min(one.samples), cuts[0], cuts[8])
    if task.unit == "s":
        value, best, low, high = (seconds / task.work for seconds in times)
    else:
        value, best, high, low = (task.work / seconds for seconds in times)
    return replace(what, value=value, best=best, low=low, high=high, seconds=middle, repeats=len(one.samples))


def _check_memory(task: Task, free: float) -> None:
    """Raises: MemoryError: the operation needs more than a share of what is free."""
    if task.needs_bytes > MOST_MEMORY_FRAC * free:
        raise MemoryError(
            f"needs {units.format_bytes(task.needs_bytes)} of memory, and {units.format_bytes(free)} are free "
            f"(a probe takes at most {units.format_percent(MOST_MEMORY_FRAC, 0)} of it)"
        )


def _expected_s(task: Task, others: list[_Repeats]) -> float:
    """Expected time of a repetition, from the best rate of the same operation in similar shapes; 0 if unknown."""
    if task.unit == "s":
        return 0.0
    alike = [o for o in others if (o.task.name, o.task.dtype) == (task.name, task.dtype)]
    alike = [o for o in alike if o.task.work >= task.work / ALIKE]  # tiny ones have a fixed time
    rate = max((o.task.work / min(o.samples or [o.slow_s]) for o in alike), default=0.0)
    return task.work / rate if rate else 0.0


def _reason(fault: Exception) -> str:
    """A fault in one line; errors of memory begin with "out of memory"."""
    text = " ".join(str(fault).split())[:REASON] or type(fault).__name__
    if (
        isinstance(fault, MemoryError)
        or any(words in text.lower() for words in NO_MEMORY)
        or "OutOfMemory" in type(fault).__name__
    ):
        return f"out of memory: {text}"
    if isinstance(fault, OSError):
        return (fault.strerror or text)[:REASON]
    return text


def probe(spec: ProbeSpec, facts: Facts, progress: Progress) -> Probe:
    """Measure the operations of `spec` on its devices; rates of datasheets are those of the catalog.

    Raises:
        SpecError: there is no such device.
        InfeasibleError: nothing could be measured.
    """
    begun = time.perf_counter()
    backends, machine, notes = _backends(spec)
    runner = ProbeRunner(
        spec.disk or Path.cwd(), spec.quick, progress, notes=notes, loading_s=time.perf_counter() - begun
    )
    try:
        made = runner.probe(backends, machine, [name for name in KINDS if not spec.only or name in spec.only])
    finally:
        for backend in (*backends, machine):
            backend.close()
    if all(one.value is None for one in made.measurements):
        reasons = [f"{one.name} on {one.device}: {one.failure}" for one in made.measurements]
        raise InfeasibleError("nothing could be measured", dict.fromkeys([*reasons, *made.notes]))
    return replace(made, devices=tuple(with_datasheet(one, facts) for one in made.devices))


def _backends(spec: ProbeSpec) -> tuple[list[Backend], Backend, list[str]]:
    """The devices to be measured, the processor, and what is to be said of the choice. Raises SpecError."""
    try:
        torch: Any = import_module("torch")
    except (ImportError, OSError):  # not installed, or without the libraries that it needs
        torch = None
    if torch is not None:
        usable = device_names(torch)
        names = spec.device or ((usable[0], "cpu") if len(usable) > 1 else ("cpu",))
        backends: list[Backend] = [TorchBackend(torch, name, spec.threads) for name in dict.fromkeys(names)]
        machine = next((one for one in backends if one.device.id == "cpu"), None)
        return backends, machine or TorchBackend(torch, "cpu", spec.threads), []
    if strange := [name for name in spec.device if name != "cpu"]:
        raise SpecError(f"device {strange[0][:40]!r}: PyTorch is not installed, and only it reaches a GPU: {INSTALL}")
    only = NumpyBackend(spec.threads)
    return [only], only, [f"measured through NumPy, in fp32 and fp64; PyTorch measures more: {INSTALL}"]


def catalog_spelling(name: str) -> str:
    """The name of a device as the catalog writes it: no trade marks, cores, graphics or clock."""
    name = re.sub(r"\((R|TM|r|tm)\)", "", name)
    name = re.sub(r"\s*(@.*|\d+-Core Processor.*|with Radeon.*)$", "", name)
    return " ".join(word for word in name.split() if word not in {"CPU", "Processor"})


def with_datasheet(device: ProbedDevice, facts: Facts) -> ProbedDevice:
    """The device with the rates of its row in the catalog; of a processor, those of the cores that were used."""
    try:
        chip = facts.resolve(catalog_spelling(device.name)).accelerator
    except UnknownNameError:
        return device
    if (chip.kind == "cpu") != (device.kind == "cpu") or (device.kind == "cpu" and chip.num_sms is None):
        return device
    share = (device.cores or 1) / (chip.num_sms or 1) if device.kind == "cpu" else 1.0
    part = f", {device.cores} of its {chip.num_sms:.0f} cores" if device.kind == "cpu" else ""
    return replace(
        device, accelerator=chip.name, peak_flops_per_s={dtype: rate * share for dtype, rate in chip.peak.items()},
        memory_bytes_per_s=chip.hbm_bytes_per_s * share, peak_source=f"datasheet of {chip.name}{part} ({chip.source})",
    )  # fmt: skip
