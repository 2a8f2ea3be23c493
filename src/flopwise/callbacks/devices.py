"""The accelerators of a run that is going on: which they are, their memory, and the energy that they took."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from flopwise.cost.energy import DEFAULT_POWER
from flopwise.errors import FlopwiseError
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.probes.machine import cpu_name, usable_cores
from flopwise.records.metrics import counter_growth
from flopwise.values import dataclass, replace

RAPL = Path("/sys/class/powercap")
STATUS = Path("/proc/self/status")


def torch_cuda() -> Any | None:
    """`torch.cuda` where the program uses it: torch is loaded, and there is a device."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_available() else None


def resident_peak_bytes() -> float:
    """Most memory that this process has held: of the kernel's own count, since `exec` where it is told."""
    with contextlib.suppress(OSError):
        peak = re.search(r"^VmHWM:\s+(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
        if peak:
            return float(peak[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * unit


def _resident_bytes() -> float | None:
    """Memory that this process holds now; None where the system does not say."""
    with contextlib.suppress(OSError):
        line = re.search(r"^VmRSS:\s+(\d+) kB", STATUS.read_text(encoding="ascii"), re.MULTILINE)
        if line:
            return float(line[1]) * 1024
    return None


def _untrained_bytes(subject: Any) -> float | None:
    """Memory that this process holds now beside a module: its interpreter, libraries and data.

    None for what is no module, as nothing tells what of the memory is the model's then.
    """
    resident = _resident_bytes()
    if resident is None or not hasattr(subject, "parameters") or not hasattr(subject, "buffers"):
        return None
    tensors = [*subject.parameters(), *subject.buffers()]
    tensors += [one.grad for one in tensors if getattr(one, "grad", None) is not None]
    return max(resident - float(sum(one.numel() * one.element_size() for one in tensors)), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevices:
    """The devices that this process computes on: `count`, kind, name, and the catalog row if one is known."""

    kind: str  # cuda or cpu
    name: str
    count: int
    accelerator: Accelerator | None
    notes: tuple[str, ...] = ()
    untrained_bytes: float | None = None  # of a CPU, what its process held before it trained, the model apart

    def memory(self) -> Iterator[tuple[str, dict[str, float]]]:
        """(device, its metrics of memory): what the allocator counted, or the resident set of the process."""
        cuda = torch_cuda() if self.kind == "cuda" else None
        if cuda is None:
            before = {} if self.untrained_bytes is None else {"untrained_memory_bytes": self.untrained_bytes}
            yield "cpu", {"peak_memory_bytes": resident_peak_bytes(), **before}
            return
        for index in range(cuda.device_count()):
            peak = float(cuda.max_memory_allocated(index))
            if peak:  # others are those of other ranks
                reserved = float(cuda.max_memory_reserved(index))
                yield f"cuda:{index}", {"peak_memory_bytes": peak, "reserved_memory_bytes": reserved}

    def peak_flops_per_s(self, precision: str) -> float | None:
        """Datasheet rate of one device; None where it is not known."""
        if self.accelerator is None:
            return None
        from flopwise.cost.rates import rates  # noqa: PLC0415 - only where it is needed

        with contextlib.suppress(FlopwiseError):
            return rates(self.accelerator).peak_flops_per_s(precision)
        return None

    @classmethod
    def of(cls, facts: Facts, gpu: str | None = None, subject: Any = None) -> Self:
        """The devices of this process; `gpu`: what they are, where their own name is not to be taken.

        `subject`: what is going to be trained on them.

        Raises: SpecError: no such accelerator.
        """
        found = cls._of(facts, gpu)
        return found if found.kind != "cpu" else replace(found, untrained_bytes=_untrained_bytes(subject))

    @classmethod
    def _of(cls, facts: Facts, gpu: str | None) -> Self:
        cuda = torch_cuda()
        if gpu is not None:
            chip = facts.with_custom((gpu,)).resolve(gpu).accelerator
            count = 1 if cuda is None else int(cuda.device_count())
            return cls(kind="cpu" if cuda is None else "cuda", name=chip.name, count=count, accelerator=chip)
        name = cpu_name() if cuda is None else str(cuda.get_device_name(0))
        try:
            chip = facts.resolve(name).accelerator
        except FlopwiseError:
            note = f"{name} is not in the catalog, so that its datasheet rate and price are not known (gpu=, peak=)"
            kind, count = ("cpu", 1) if cuda is None else ("cuda", int(cuda.device_count()))
            return cls(kind=kind, name=name, count=count, accelerator=None, notes=(note,))
        if cuda is not None:
            return cls(kind="cuda", name=chip.name, count=int(cuda.device_count()), accelerator=chip)
        cores = usable_cores()
        share = min(1.0, cores / chip.num_sms) if chip.num_sms else 1.0
        note = f"{cores} of the {chip.num_sms} cores of {chip.name}: its rates are scaled to that share"
        return cls(kind="cpu", name=chip.name, count=1, accelerator=chip.partition(share), notes=(note,))


class EnergyMeter:
    """Joules that all accelerators of a run took since the meter was made, and how they are known."""

    basis: str

    def joules(self) -> float:
        """Joules so far; never less than the last time."""
        raise NotImplementedError

    @staticmethod
    def of(devices: LocalDevices, gpus: int, watts: float | None = None) -> EnergyMeter | None:
        """The best meter that this machine has: NVML's counter, NVML's power, RAPL, else the power limit x time.

        None where not even the power limit is known. Devices of other machines count as those of this one do.
        """
        local = min(gpus, int(os.environ.get("LOCAL_WORLD_SIZE") or devices.count), devices.count)
        meter = _nvml_meter(local, gpus) if devices.kind == "cuda" else _rapl_meter(gpus)
        limit = None if devices.accelerator is None else devices.accelerator.tdp_w
        if meter is not None or (watts is None and limit is None):
            return meter
        drawn = watts if watts is not None else DEFAULT_POWER.compute * float(limit or 0.0)
        how = "as given" if watts is not None else f"{DEFAULT_POWER.compute:.0%} of the power limit of {devices.name}"
        basis = f"energy: an estimate, {drawn:,.0f} W ({how}) x {gpus} x time; no counter can be read here"
        return PowerMeter(lambda: drawn, basis, scale=gpus)


class CounterMeter(EnergyMeter):
    """Joules from counters of devices that only grow, until a driver is loaded anew or a register is full."""

    def __init__(self, read: Callable[[], list[float]], basis: str, *, scale: float = 1.0, wrap: float = 0.0) -> None:
        """`read`: joules of each device; `wrap`: joules at which a counter starts again from nothing."""
        self._read, self._scale, self._wrap = read, scale, wrap
        self._last, self._sum, self.basis = read(), 0.0, basis

    def joules(self) -> float:
        """Sum of what each counter grew; one that fell has started again, or is left out where nothing tells how."""
        now = self._read()
        for before, value in zip(self._last, now, strict=True):
            self._sum += counter_growth(before, value, self._wrap)
        self._last = now
        return self._sum * self._scale


class PowerMeter(EnergyMeter):
    """Joules from watts that are read now and then, each held until the next."""

    def __init__(self, watts: Callable[[], float], basis: str, *, scale: float = 1.0) -> None:
        """`watts`: what the devices draw now."""
        self._watts, self._scale, self.basis = watts, scale, basis
        self._at, self._sum, self._last = time.perf_counter(), 0.0, watts()

    def joules(self) -> float:
        """The sum of watts x seconds."""
        now, drawn = time.perf_counter(), self._watts()
        self._sum += (drawn + self._last) / 2 * (now - self._at)
        self._at, self._last = now, drawn
        return self._sum * self._scale


def _nvml_meter(local: int, gpus: int) -> EnergyMeter | None:
    """NVML's counters of the first `local` devices that this process sees; None where NVML says nothing."""
    try:
        import pynvml  # noqa: PLC0415 - where a GPU is there

        pynvml.nvmlInit()
        handles = [_nvml_handle(pynvml, index) for index in range(local)]
    except Exception:  # noqa: BLE001 - a driver that is broken is none
        return None
    whose = f"of {local} GPUs" + ("" if gpus == local else f", times {gpus / local:g}")

    def counters() -> list[float]:
        return [pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3 for handle in handles]

    def power() -> float:
        return float(sum(pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3 for handle in handles))

    with contextlib.suppress(Exception):  # devices before Volta have no counter
        return CounterMeter(counters, f"energy: NVML's counter {whose}", scale=gpus / local)
    with contextlib.suppress(Exception):
        return PowerMeter(power, f"energy: NVML's power readings over time, {whose}", scale=gpus / local)
    return None


def _nvml_handle(pynvml: Any, index: int) -> Any:
    """NVML's handle of a device that this process calls `index`: by its UUID, as NVML counts those of the machine."""
    cuda = torch_cuda()
    uuid = None if cuda is None else getattr(cuda.get_device_properties(index), "uuid", None)
    if uuid is not None:
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    visible = [part for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part]
    named = visible[index] if index < len(visible) else str(index)
    if named.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(named))
    return pynvml.nvmlDeviceGetHandleByUUID(named)


def _rapl_meter(gpus: int) -> EnergyMeter | None:
    """RAPL's counters of the sockets; None where they cannot be read, which takes rights that few have."""
    try:
        tops = sorted(path for path in RAPL.glob("intel-rapl:*") if path.name.count(":") == 1)
        zones = [zone for zone in tops if (zone / "name").read_text(encoding="ascii").startswith("package")]
        hosts = -(-gpus // int(os.environ.get("LOCAL_WORLD_SIZE") or 1))  # processes of one machine share its sockets
        wrap = min(float((zone / "max_energy_range_uj").read_text(encoding="ascii")) for zone in zones) / 1e6

        def counters() -> list[float]:
            return [float((zone / "energy_uj").read_text(encoding="ascii")) / 1e6 for zone in zones]

        basis = f"energy: RAPL's counter of {len(zones)} sockets, for all processes"
        return CounterMeter(counters, basis + ("" if hosts == 1 else f", times {hosts}"), scale=hosts, wrap=wrap)
    except (OSError, ValueError):
        return None
