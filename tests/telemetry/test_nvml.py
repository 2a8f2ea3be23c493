"""NVML as a source: every value by hand, every error on its own, devices and drivers that go and come."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
from fake_nvml import FakeDevice, FakeNvml

from flopwise.errors import SpecError
from flopwise.telemetry.expected import Expected
from flopwise.telemetry.nvml import HostMeter, NvmlSource
from flopwise.telemetry.readings import MEASURES, SourceLostError
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import Watcher

NOWHERE = Path("/nonexistent")


def source(*devices: FakeDevice) -> tuple[NvmlSource, FakeNvml]:
    nvml = FakeNvml(*devices)
    return NvmlSource(nvml, NOWHERE), nvml


def test_a_reading_is_in_base_units() -> None:
    device = FakeDevice("GPU-a")
    device.gpm = (88.0, 47.0, 36.0)
    source_, _ = source(device)
    (reading,) = source_.readings()
    values = reading.devices["0"]
    assert values == pytest.approx(
        {
            "busy_frac": 0.99, "memory_busy_frac": 0.38, "memory_used_bytes": 62_000 * 2**20,
            "memory_total_bytes": 81_559 * 2**20, "temperature_c": 64, "temperature_limit_c": 87, "power_w": 630.5,
            "power_limit_w": 700, "sm_clock_hz": 1.755e9, "max_clock_hz": 1.98e9, "throttle_bits": 4, "ecc_errors": 0,
            "pcie_bytes_per_s": 2e9, "pcie_limit_bytes_per_s": 2 * 16 * 3.938e9, "sm_active_frac": 0.88,
            "tensor_active_frac": 0.47, "memory_active_frac": 0.36, "xid": 0,
        }
    )  # fmt: skip
    assert set(values) <= set(MEASURES)
    assert reading.names == {"0": "NVIDIA H100 80GB HBM3"}
    assert reading.notes == ()


def test_nvlink_is_the_growth_of_its_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("flopwise.telemetry.nvml.time", SimpleNamespace(time=lambda: clock[0], sleep=lambda _: None))
    device = FakeDevice("GPU-a")
    source_, _ = source(device)
    assert "nvlink_bytes_per_s" not in source_.readings()[0].devices["0"]
    clock[0], device.nvlink_kib = 102.0, 2 * 50_000_000
    assert source_.readings()[0].devices["0"]["nvlink_bytes_per_s"] == pytest.approx(50e6 * 1024)
    clock[0], device.nvlink_kib = 104.0, 2_000
    assert source_.readings()[0].devices["0"]["nvlink_bytes_per_s"] >= 0, "the driver began anew"


def test_what_a_device_does_not_support_is_left_out_said_and_not_asked_again() -> None:
    device = FakeDevice(
        "GPU-a",
        nvmlDeviceGetPowerUsage=pynvml.NVMLError_NotSupported,
        nvmlDeviceGetTemperature=pynvml.NVMLError_Unknown,
    )
    source_, nvml = source(device)
    (reading,) = source_.readings()
    assert "power_w" not in reading.devices["0"]
    assert "temperature_c" not in reading.devices["0"]
    assert reading.devices["0"]["busy_frac"] == 0.99
    assert any("no power" in note for note in reading.notes)
    nvml.calls.clear()
    source_.readings()
    assert "nvmlDeviceGetPowerUsage" not in nvml.calls
    assert "nvmlDeviceGetTemperature" in nvml.calls, "an error that may pass"


def test_a_gpu_that_falls_off_the_bus_is_lost_and_alerts() -> None:
    first, second = FakeDevice("GPU-a"), FakeDevice("GPU-b")
    source_, nvml = source(first, second)
    spec = WatchSpec()
    watcher = Watcher(source_, Expected.of(spec, None, None), spec)
    at_s = [1000.0]

    def step() -> set[str]:
        (reading,) = source_.readings()
        object.__setattr__(reading, "at_s", at_s[0])
        at_s[0] += 5.0
        (status,) = watcher.take(reading)
        return {f"{c.limit.name}:{c.device}" for c in status.changes if c.firing}

    assert step() == set()
    nvml.events.append((second, 79))
    assert step() == {"XidHardwareError:1", "XidError:1"}
    second.lost = True
    assert [step() for _ in range(6)] == [set()] * 6
    assert step() == {"DeviceLost:1"}
    nvml.devices.remove(second)  # the driver took it out
    second.lost = False
    assert [step() for _ in range(6)] == [set()] * 6, "one episode"
    assert source_.readings()[0].lost == {"1"}
    nvml.devices.append(second)
    (reading,) = source_.readings()
    assert reading.lost == set()
    assert set(reading.devices) == {"0", "1"}, "by the name that it had"


def test_the_first_gpu_may_go_and_the_others_keep_their_names() -> None:
    first, second = FakeDevice("GPU-a"), FakeDevice("GPU-b")
    source_, nvml = source(first, second)
    source_.readings()
    nvml.devices.remove(first)
    (reading,) = source_.readings()
    assert set(reading.devices) == {"1"}
    assert reading.lost == {"0"}


def test_a_driver_that_is_restarted_is_waited_for() -> None:
    source_, nvml = source(FakeDevice("GPU-a"))
    source_.readings()
    nvml.driver = pynvml.NVMLError_DriverNotLoaded
    for _ in range(2):
        with pytest.raises(SourceLostError, match="driver does not answer"):
            source_.readings()
    nvml.driver = None
    assert source_.readings()[0].devices["0"]["busy_frac"] == 0.99
    assert nvml.started == 2


@pytest.mark.parametrize("error", [pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded])
def test_without_a_driver_it_is_said_what_to_install(error: type[Exception]) -> None:
    nvml = FakeNvml()
    nvml.driver = error
    with pytest.raises(SpecError, match=r"nvidia-smi.*--prometheus.*--run"):
        NvmlSource(nvml, NOWHERE)
    with pytest.raises(SpecError, match="finds no GPU"):
        NvmlSource(FakeNvml(), NOWHERE)


def test_processors_and_disks_are_shares_of_the_time_between_two_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [10.0]
    monkeypatch.setattr("flopwise.telemetry.nvml.time", SimpleNamespace(monotonic=lambda: clock[0]))

    def counters(user: int, idle: int, wait: int, disk_ms: int) -> None:
        (tmp_path / "stat").write_text(f"cpu  {user} 0 0 {idle} {wait} 0 0 0 0 0\n")
        (tmp_path / "diskstats").write_text(f"259 0 nvme0n1 1 0 8 1 1 0 8 1 0 {disk_ms} 2 0 0\n7 0 loop0 1\n"[:-13])

    meter = HostMeter(tmp_path)
    counters(100, 800, 100, 0)
    assert meter.values() == {}
    clock[0] = 12.0
    counters(160, 820, 120, 1500)
    assert meter.values() == pytest.approx({"cpu_busy_frac": 0.6, "cpu_wait_frac": 0.2, "disk_busy_frac": 0.75})
    assert HostMeter(NOWHERE).values() == {}
