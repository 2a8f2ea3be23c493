"""Readings of this machine: its devices through NVML, its processors and disks from Linux."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.telemetry.readings import CounterRate, SourceLostError, WatchReading

GONE = {"NVMLError_GpuIsLost", "NVMLError_ResetRequired", "NVMLError_NotFound", "NVMLError_GpuNotFound"}
NEVER = {"NVMLError_NotSupported", "NVMLError_FunctionNotFound", "NVMLError_NoPermission"}
"""Errors after which a call is not repeated."""
DRIVER = {"NVMLError_Uninitialized", "NVMLError_DriverNotLoaded", "NVMLError_LibRmVersionMismatch"}
"""The driver was unloaded or replaced: NVML has to be started again."""
GPM = {"sm_active_frac": "SM_UTIL", "tensor_active_frac": "ANY_TENSOR_UTIL", "memory_active_frac": "DRAM_BW_UTIL"}
"""Metrics of GPU performance monitoring, in %: Hopper and later.

Source: NVML API reference, GPM enums, read 2026-11-22.
"""
GPM_SPACE_S = 0.1
"""Minimum time between two samples of GPM, in seconds (NVML API reference, nvmlGpmSampleGet)."""
LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bandwidth of a PCIe lane by generation, one direction. Source: PCI-SIG, PCI Express base specifications."""
RATE_WINDOW_S = 10.0
ALL_LINKS = 2**32 - 1


class NvmlSource:
    """NVML through nvidia-ml-py. Each call may fail separately: missing values are left out with a note."""

    title = "NVML"
    live = True

    def __init__(self, nvml: Any = None, proc: Path = Path("/proc")) -> None:
        """Start NVML; `nvml` replaces the module, `proc` the folder of Linux's counters.

        Raises: SpecError: there is no driver, or no device; the message says what to install.
        """
        if nvml is None:
            import pynvml  # noqa: PLC0415 - only where devices of this machine are read

            nvml = pynvml
        self._nvml, self._host = nvml, HostMeter(proc)
        self._never: set[tuple[str, str]] = set()
        self._uuids: dict[str, str] = {}  # by the name that is shown
        self._rates: dict[str, CounterRate] = {}
        self._gpm: dict[str, Any] = {}
        self._xids: dict[str, float] = {}
        self._events: Any = None
        try:
            nvml.nvmlInit()
            self._started = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            raise SpecError(_absence(error)) from None
        if not count:
            raise SpecError(_absence("the driver finds no GPU"))

    def readings(self) -> list[WatchReading]:
        """One reading of the present state. Raises SourceLostError if the driver does not answer."""
        nvml, notes = self._nvml, list[str]()
        devices: dict[str, dict[str, float]] = {}
        names: dict[str, str] = {}
        lost: set[str] = set()
        try:
            if not self._started:
                nvml.nvmlInit()
                self._started = True
            count = nvml.nvmlDeviceGetCount()
        except nvml.NVMLError as error:
            self._stop()
            raise SourceLostError(f"the NVIDIA driver does not answer ({error})") from None
        self._drain_events()
        for index in range(count):
            try:
                handle = nvml.nvmlDeviceGetHandleByIndex(index)
                device = self._device_name(handle, index)
                devices[device] = dict(self._values(handle, device, notes))
                names[device] = _text(self._call(device, "name", notes, partial(nvml.nvmlDeviceGetName, handle)))
            except nvml.NVMLError as error:
                if type(error).__name__ in DRIVER:
                    self._stop()
                    raise SourceLostError(f"the NVIDIA driver does not answer ({error})") from None
                lost.add(str(index))
                devices.pop(str(index), None)
                notes.append(f"GPU {index}: {error}")
        lost |= set(self._uuids) - set(devices)
        for device in lost:
            self._gpm.pop(device, None)
        return [
            WatchReading(
                at_s=time.time(), devices=devices, names=names, lost=frozenset(lost), host=self._host.values(),
                notes=tuple(notes),
            )
        ]  # fmt: skip

    def close(self) -> None:
        """Shut NVML down."""
        self._stop()

    def _stop(self) -> None:
        if self._started:
            self._started, self._events = False, None
            self._gpm.clear()
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError:
                return

    def _device_name(self, handle: Any, index: int) -> str:
        """The index of a device when it was first seen, which does not change when another device disappears."""
        uuid = _text(self._nvml.nvmlDeviceGetUUID(handle))
        known = next((name for name, other in self._uuids.items() if other == uuid), None)
        if known is not None:
            return known
        name = str(index) if str(index) not in self._uuids else f"{index} ({uuid[-8:]})"
        self._uuids[name] = uuid
        self._register_events(handle)
        return name

    def _call(self, device: str, what: str, notes: list[str], call: Callable[[], Any]) -> Any:
        """The answer of a call; None if it fails. Raises errors that mean the loss of the device or the driver."""
        if (device, what) in self._never:
            return None
        try:
            return call()
        except self._nvml.NVMLError as error:
            kind = type(error).__name__
            if kind in GONE | DRIVER:
                raise
            if kind in NEVER:
                self._never.add((device, what))
            notes.append(f"GPU {device}: no {what} ({error})")
            return None

    def _values(self, handle: Any, device: str, notes: list[str]) -> Iterator[tuple[str, float]]:
        nvml = self._nvml

        def call(what: str, function: str, *arguments: Any) -> Any:
            return self._call(device, what, notes, lambda: getattr(nvml, function)(handle, *arguments))

        if (used := call("utilisation", "nvmlDeviceGetUtilizationRates")) is not None:
            yield "busy_frac", used.gpu / 100
            yield "memory_busy_frac", used.memory / 100
        if (memory := call("memory", "nvmlDeviceGetMemoryInfo")) is not None:
            yield "memory_used_bytes", float(memory.used)
            yield "memory_total_bytes", float(memory.total)
        sm, core = nvml.NVML_CLOCK_SM, nvml.NVML_TEMPERATURE_GPU
        simple = (
            ("temperature_c", 1.0, "nvmlDeviceGetTemperature", core),
            ("temperature_limit_c", 1.0, "nvmlDeviceGetTemperatureThreshold", nvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX),
            ("power_w", 1e-3, "nvmlDeviceGetPowerUsage"),
            ("power_limit_w", 1e-3, "nvmlDeviceGetEnforcedPowerLimit"),
            ("sm_clock_hz", 1e6, "nvmlDeviceGetClockInfo", sm),
            ("max_clock_hz", 1e6, "nvmlDeviceGetMaxClockInfo", sm),
            ("throttle_bits", 1.0, "nvmlDeviceGetCurrentClocksEventReasons"),
            ("ecc_errors", 1.0, "nvmlDeviceGetTotalEccErrors", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
             nvml.NVML_VOLATILE_ECC),
        )  # fmt: skip
        for name, scale, function, *arguments in simple:
            if (value := call(name.rpartition("_")[0].replace("_", " "), function, *arguments)) is not None:
                yield name, scale * value
        yield from self._links(device, call)
        yield from self._profile(handle, device, notes)
        yield "xid", self._xids.get(self._uuids[device], 0.0)

    def _links(self, device: str, call: Callable[..., Any]) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        counters = (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
        pcie = [call("PCIe traffic", "nvmlDeviceGetPcieThroughput", one) for one in counters]
        if None not in pcie:
            yield "pcie_bytes_per_s", 1e3 * sum(pcie)
        generation = call("PCIe generation", "nvmlDeviceGetMaxPcieLinkGeneration")
        width = call("PCIe width", "nvmlDeviceGetMaxPcieLinkWidth")
        if generation in LANE_BYTES_PER_S and width:
            yield "pcie_limit_bytes_per_s", 2 * width * LANE_BYTES_PER_S[generation]
        fields = [nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX]
        link_values = call("NVLink traffic", "nvmlDeviceGetFieldValues", [(one, ALL_LINKS) for one in fields])
        if link_values is not None and all(value.nvmlReturn == nvml.NVML_SUCCESS for value in link_values):
            rate = self._rates.setdefault(self._uuids[device], CounterRate(RATE_WINDOW_S))
            rate.add(time.time(), 1024.0 * sum(value.value.ullVal for value in link_values))
            if rate.per_s is not None:
                yield "nvlink_bytes_per_s", rate.per_s

    def _profile(self, handle: Any, device: str, notes: list[str]) -> Iterator[tuple[str, float]]:
        """Shares of cycles between the previous and this sample of GPM; the first call takes two samples."""
        nvml = self._nvml
        if (device, "profiling counters") in self._never:
            return
        support = self._call(device, "profiling counters", notes, lambda: nvml.nvmlGpmQueryDeviceSupport(handle))
        if support is None:
            return
        if not support.isSupportedDevice:
            self._never.add((device, "profiling counters"))
            return

        def sample() -> Any:
            return nvml.nvmlGpmSampleGet(handle, nvml.nvmlGpmSampleAlloc())

        before = self._gpm.pop(device, None)
        if before is None:
            before = self._call(device, "profiling counters", notes, sample)
            time.sleep(GPM_SPACE_S)
        after = self._call(device, "profiling counters", notes, sample)
        if before is not None and after is not None:
            self._gpm[device] = after
            yield from self._shares(device, before, after, notes)

    def _shares(self, device: str, before: Any, after: Any, notes: list[str]) -> Iterator[tuple[str, float]]:
        nvml = self._nvml
        query = nvml.c_nvmlGpmMetricsGet_t()
        query.version, query.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        query.sample1, query.sample2 = before, after
        for place, name in enumerate(GPM.values()):
            query.metrics[place].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        got = self._call(device, "profiling counters", notes, lambda: nvml.nvmlGpmMetricsGet(query))
        self._call(device, "profiling counters", notes, lambda: nvml.nvmlGpmSampleFree(before))
        for place, measure in enumerate(GPM if got is not None else ()):
            if got.metrics[place].nvmlReturn == nvml.NVML_SUCCESS:
                yield measure, got.metrics[place].value / 100

    def _register_events(self, handle: Any) -> None:
        """Register for Xid errors; some devices and users have no permission."""
        nvml = self._nvml
        try:
            if self._events is None:
                self._events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._events)
        except nvml.NVMLError:
            return

    def _drain_events(self) -> None:
        nvml = self._nvml
        for _ in range(1000 if self._events is not None else 0):
            try:
                event = nvml.nvmlEventSetWait_v2(self._events, 0)
                self._xids[_text(nvml.nvmlDeviceGetUUID(event.device))] = float(event.eventData)
            except nvml.NVMLError:  # no event is left, or its device is gone
                return


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value or "")


def _absence(why: object) -> str:
    return (
        f"no NVIDIA GPU can be read on this machine ({why}). With a GPU: install NVIDIA's driver "
        "(https://www.nvidia.com/drivers) until `nvidia-smi` lists it, and in a container pass the devices in "
        "(NVIDIA Container Toolkit). Machines elsewhere: install dcgm-exporter and Prometheus there, and give "
        "--prometheus URL. A recorded run: --run RUN (`flopwise runs list`)"
    )


class HostMeter:
    """Utilisation of processors and disks between two readings; empty if Linux does not provide it."""

    def __init__(self, proc: Path) -> None:
        """`proc`: the folder of Linux's counters."""
        self._proc = proc
        self._before: tuple[float, list[float], dict[str, float]] | None = None

    def values(self) -> Mapping[str, float]:
        """Shares since the last reading."""
        try:
            processors = [float(part) for part in (self._proc / "stat").read_text().splitlines()[0].split()[1:9]]
            rows = [line.split() for line in (self._proc / "diskstats").read_text().splitlines()]
            disks = {row[2]: float(row[12]) / 1e3 for row in rows if not row[2].startswith(("loop", "ram"))}
        except (OSError, ValueError, IndexError):
            return {}
        now, before = time.monotonic(), self._before
        self._before = now, processors, disks
        if before is None or now - before[0] < 0.05:
            return {}
        spent = [after - earlier for after, earlier in zip(processors, before[1], strict=False)]
        whole = sum(spent)
        if whole <= 0 or min(spent) < 0:
            return {}
        busy = [(disks[name] - before[2][name]) / (now - before[0]) for name in disks if name in before[2]]
        fractions = {"cpu_busy_frac": 1 - (spent[3] + spent[4]) / whole, "cpu_wait_frac": spent[4] / whole}
        return fractions | ({"disk_busy_frac": min(1.0, max(busy))} if busy and min(busy) >= 0 else {})
