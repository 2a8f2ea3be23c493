"""NVML that plays recorded values, with its own errors: calls that are not supported, devices and drivers that go."""

# ruff: noqa: N802 - the names are those of NVML
from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml

MIB = 2**20


class FakeDevice:
    """One GPU: `values` by the name of the function that gives them; an exception there is raised."""

    def __init__(self, uuid: str, **changes: Any) -> None:
        self.uuid, self.lost = uuid, False
        self.gpm: tuple[float, float, float] | None = None
        self.nvlink_kib = 0
        self.values: dict[str, Any] = {
            "nvmlDeviceGetName": b"NVIDIA H100 80GB HBM3",
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=99, memory=38),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=62_000 * MIB, total=81_559 * MIB),
            "nvmlDeviceGetTemperature": 64, "nvmlDeviceGetTemperatureThreshold": 87,
            "nvmlDeviceGetPowerUsage": 630_500, "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetClockInfo": 1755, "nvmlDeviceGetMaxClockInfo": 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": 4, "nvmlDeviceGetTotalEccErrors": 0,
            "nvmlDeviceGetPcieThroughput": 1_000_000, "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
        } | changes  # fmt: skip


class FakeNvml:
    """Stands in for the module pynvml: its constants and errors are the real ones."""

    def __init__(self, *devices: FakeDevice) -> None:
        self.devices = list(devices)
        self.driver: type[Exception] | None = None
        self.started = 0
        self.events: list[tuple[FakeDevice, int]] = []
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return lambda handle, *_: self._value(handle, name)
        return getattr(pynvml, name)

    def _value(self, device: FakeDevice, name: str) -> Any:
        self.calls.append(name)
        self._check(device)
        value = device.values[name]
        if isinstance(value, type) and issubclass(value, Exception):
            raise value
        return value

    def _check(self, device: FakeDevice | None = None) -> None:
        if self.driver is not None:
            raise self.driver
        if device is not None and device.lost:
            raise pynvml.NVMLError_GpuIsLost

    def nvmlInit(self) -> None:
        self._check()
        self.started += 1

    def nvmlShutdown(self) -> None:
        self._check()

    def nvmlDeviceGetCount(self) -> int:
        self._check()
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeDevice:
        self._check(self.devices[index])
        return self.devices[index]

    def nvmlDeviceGetUUID(self, device: FakeDevice) -> str:
        self._check(device)
        return device.uuid

    def nvmlDeviceGetFieldValues(self, device: FakeDevice, fields: list[Any]) -> list[Any]:
        self._check(device)
        value = SimpleNamespace(ullVal=device.nvlink_kib // len(fields))
        return [SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=value) for _ in fields]

    def nvmlEventSetCreate(self) -> str:
        return "events"

    def nvmlDeviceRegisterEvents(self, device: FakeDevice, *_: Any) -> None:
        self._check(device)

    def nvmlEventSetWait_v2(self, *_: Any) -> Any:
        if not self.events:
            raise pynvml.NVMLError_Timeout
        device, xid = self.events.pop(0)
        return SimpleNamespace(device=device, eventData=xid)

    def nvmlGpmQueryDeviceSupport(self, device: FakeDevice) -> Any:
        if device.gpm is None:
            raise pynvml.NVMLError_NotSupported
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> dict[str, Any]:
        return {}

    def nvmlGpmSampleGet(self, device: FakeDevice, sample: dict[str, Any]) -> dict[str, Any]:
        self._check(device)
        sample["device"] = device
        return sample

    def nvmlGpmSampleFree(self, sample: dict[str, Any]) -> None:
        sample.clear()

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        return SimpleNamespace(metrics=[SimpleNamespace() for _ in range(8)])

    def nvmlGpmMetricsGet(self, asked: Any) -> Any:
        wanted = [pynvml.NVML_GPM_METRIC_SM_UTIL, pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
                  pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL]  # fmt: skip
        for place in range(asked.numMetrics):
            metric = asked.metrics[place]
            metric.nvmlReturn = pynvml.NVML_SUCCESS
            metric.value = asked.sample1["device"].gpm[wanted.index(metric.metricId)]
        return asked


Change = Callable[[FakeNvml], None]
