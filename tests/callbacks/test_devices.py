"""Clocks, memory and energy of accelerators that are not there: what PyTorch and NVML say is played."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from flopwise.callbacks import devices as module
from flopwise.callbacks.devices import CounterMeter, EnergyMeter, LocalDevices, PowerMeter
from flopwise.callbacks.recorder import StepClock, _number_soon
from flopwise.facts.catalog import load_facts
from flopwise.probes import machine


class FakeEvent:
    """An event on the time line of a GPU, which passes it when the test says so."""

    now_ms = 0.0
    waited = 0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at_ms, self.passed = 0.0, False

    def record(self) -> None:
        self.at_ms = FakeEvent.now_ms

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        FakeEvent.waited += 1

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.at_ms - self.at_ms


class FakeCuda:
    """torch.cuda with two devices."""

    Event = FakeEvent

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 2

    @staticmethod
    def get_device_name(_: int) -> str:
        return "NVIDIA H100 80GB HBM3"

    @staticmethod
    def get_device_properties(index: int) -> Any:
        return types.SimpleNamespace(uuid=f"uuid-{index}")

    @staticmethod
    def max_memory_allocated(index: int) -> int:
        return [7_000_000_000, 0][index]

    @staticmethod
    def max_memory_reserved(_: int) -> int:
        return 8_000_000_000


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> type[FakeCuda]:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=FakeCuda))
    monkeypatch.setattr(FakeEvent, "waited", 0)
    return FakeCuda


def nvml(monkeypatch: pytest.MonkeyPatch, energies: list[list[float]] | None, watts: float | None = 500.0) -> list[str]:
    """A fake NVML that plays the mJ of each reading; the handles that were asked for."""
    asked: list[str] = []
    readings = iter(energies or [])
    fake: Any = types.ModuleType("pynvml")
    current: list[list[float]] = [[]]

    class NVMLError(Exception):
        pass

    def handle(uuid: str) -> int:
        asked.append(uuid)
        return len(asked) - 1

    def energy(index: int) -> float:
        if energies is None:
            raise NVMLError("not supported")
        if index == 0:
            current[0] = next(readings)
        return current[0][index]

    def power(_: int) -> float:
        if watts is None:
            raise NVMLError("not supported")
        return watts * 1e3

    fake.nvmlInit = lambda: None
    fake.nvmlDeviceGetHandleByUUID = handle
    fake.nvmlDeviceGetTotalEnergyConsumption = energy
    fake.nvmlDeviceGetPowerUsage = power
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return asked


@pytest.mark.usefixtures("cuda")
def test_steps_on_a_gpu_are_read_once_it_has_passed_them_and_nothing_waits() -> None:
    FakeEvent.now_ms = 0.0
    clock: StepClock[str] = StepClock()
    for name, at_ms in (("one", 50.0), ("two", 120.0)):
        FakeEvent.now_ms = at_ms
        clock.end_step(name)
    assert list(clock.timed_steps()) == []
    clock._waiting[0][1].passed = True
    assert list(clock.timed_steps()) == [(0.05, "one")]
    assert FakeEvent.waited == 0
    assert list(clock.timed_steps(wait=True)) == [(0.07, "two")]
    assert FakeEvent.waited == 1
    FakeEvent.now_ms = 500.0
    clock.restart()  # an evaluation went on
    FakeEvent.now_ms = 560.0
    clock.end_step("three")
    assert list(clock.timed_steps(wait=True)) == [(0.06, "three")]


def test_a_scalar_on_a_gpu_is_copied_without_waiting() -> None:
    class Scalar:
        is_cuda = True
        asked: Any = None

        def detach(self) -> Scalar:
            return self

        def to(self, where: str, *, non_blocking: bool) -> str:
            Scalar.asked = where, non_blocking
            return "a copy on its way"

    assert _number_soon(Scalar()) == "a copy on its way"
    assert Scalar.asked == ("cpu", True)
    assert [_number_soon(value) for value in (None, 3, 2.5)] == [None, 3, 2.5]


@pytest.mark.usefixtures("cuda")
def test_memory_of_the_devices_that_this_rank_uses() -> None:
    found = LocalDevices.of(load_facts())
    assert (found.kind, found.name, found.count) == ("cuda", "H100-SXM-80", 2)
    assert list(found.memory()) == [("cuda:0", {"peak_memory_bytes": 7e9, "reserved_memory_bytes": 8e9})]
    assert found.peak_flops_per_s("bf16") == pytest.approx(989.4e12, rel=0.001)


@pytest.mark.usefixtures("cuda")
def test_energy_is_nvmls_counter_of_all_gpus_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = nvml(monkeypatch, [[1e6, 2e6], [3e6, 2.5e6], [3.5e6, 100.0]])
    meter = EnergyMeter.of(LocalDevices.of(load_facts()), gpus=8)
    assert meter is not None
    assert asked == ["GPU-uuid-0", "GPU-uuid-1"]
    assert meter.basis == "energy: NVML's counter of 2 GPUs, times 4"
    assert meter.joules() == pytest.approx(4 * (2000 + 500))
    # the second fell, as after a driver was loaded anew: it counts from nothing
    assert meter.joules() == pytest.approx(4 * (2000 + 500 + 500 + 0.1))


@pytest.mark.usefixtures("cuda")
def test_without_a_counter_power_is_read_over_time(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml(monkeypatch, None, 400.0)
    meter = EnergyMeter.of(LocalDevices.of(load_facts()), gpus=2)
    assert isinstance(meter, PowerMeter)
    assert "power readings" in meter.basis
    meter._at -= 10.0
    assert meter.joules() == pytest.approx(2 * 400 * 10, rel=0.01)


@pytest.mark.usefixtures("cuda")
def test_without_nvml_energy_is_an_estimate_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    meter = EnergyMeter.of(LocalDevices.of(load_facts()), gpus=2)
    assert meter is not None
    assert meter.basis.startswith("energy: an estimate, 665 W (95% of the power limit of H100-SXM-80)")  # of 700 W
    assert isinstance(meter, PowerMeter)
    meter._at -= 10.0
    assert meter.joules() == pytest.approx(2 * 665 * 10, rel=0.01)


def test_a_counter_that_is_full_starts_again_from_nothing() -> None:
    readings = iter([[90.0], [95.0], [5.0]])
    meter = CounterMeter(lambda: next(readings), "", wrap=100.0)
    assert (meter.joules(), meter.joules()) == (5.0, 15.0)


def test_rapl_is_read_where_it_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RAPL", tmp_path)
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of the socket
    whole = tmp_path / "intel-rapl:1"  # the platform, the socket in it
    whole.mkdir()
    for one, name in ((zone, "package-0"), (whole, "psys")):
        (one / "name").write_text(f"{name}\n")
    (whole / "max_energy_range_uj").write_text("262143328850\n")
    (whole / "energy_uj").write_text("9000000\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    (zone / "energy_uj").write_text("1000000\n")
    cpu = LocalDevices(kind="cpu", name="a CPU", count=1, accelerator=None)
    meter = EnergyMeter.of(cpu, gpus=1)
    assert meter is not None
    (zone / "energy_uj").write_text("4500000\n")
    assert (meter.joules(), meter.basis) == (3.5, "energy: RAPL's counter of 1 sockets, for all processes")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    shared = EnergyMeter.of(cpu, gpus=2)  # two processes of this machine: its sockets count once
    assert shared is not None
    (zone / "energy_uj").write_text("5500000\n")
    assert shared.joules() == 1.0
    (zone / "energy_uj").unlink()
    assert EnergyMeter.of(cpu, gpus=1) is None


def test_a_cpu_counts_in_the_share_of_its_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("model name\t: AMD EPYC 9R14\nsiblings\t: 4\ncpu cores\t: 2\n")
    monkeypatch.setattr(machine, "CPUINFO", info)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = LocalDevices.of(load_facts())
    whole = load_facts().accelerators["EPYC 9R14"]
    assert found.name == "EPYC 9R14"
    assert found.peak_flops_per_s("bf16") == pytest.approx(whole.peak["bf16"] * 2 / 96)
    assert found.notes[0].startswith("2 of the 96 cores")
