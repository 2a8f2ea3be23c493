"""What the system says of a processor, and the peak that follows from it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flopwise.facts.catalog import load_facts
from flopwise.probes import machine
from flopwise.probes.file import ProbedDevice
from flopwise.probes.measure import catalog_spelling, with_datasheet

CPUINFO = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: {family}
model name\t: {name}
cpu MHz\t\t: 2600.000
siblings\t: {siblings}
cpu cores\t: 8
flags\t\t: {flags}

processor\t: 1
model name\t: other
"""
AVX2 = "fpu sse sse2 avx avx2 fma"
AVX512 = f"{AVX2} avx512f avx512_vnni"


def _cpu(path: Path, monkeypatch: pytest.MonkeyPatch, threads: int = 8, **said: str) -> ProbedDevice:
    said = {"family": "26", "name": "AMD EPYC", "siblings": "8", "flags": AVX2} | said
    (path / "cpuinfo").write_text(CPUINFO.format(**said))
    monkeypatch.setattr(machine, "CPUINFO", path / "cpuinfo")
    monkeypatch.setattr(machine, "CPUS", path / "cpu")
    monkeypatch.setattr(machine, "usable_threads", lambda: int(said["siblings"]))
    return machine.cpu_device(threads)


@pytest.mark.parametrize(
    ("flags", "family", "per_cycle"),
    [
        (f"{AVX512} avx512_bf16 amx_bf16", "6", {"fp32": 64, "bf16": 1024, "int8": 2048, "fp64": 32}),
        (f"{AVX512} avx512_bf16", "26", {"fp32": 64, "bf16": 128, "int8": 256, "fp64": 32}),
        (f"{AVX512} avx512_bf16", "25", {"fp32": 32, "bf16": 64, "int8": 128, "fp64": 16}),  # halves of 512 bits
        (AVX512, "6", {"fp32": 64, "int8": 256, "fp64": 32}),
        (AVX2, "25", {"fp32": 32, "fp64": 16}),  # two units x 8 lanes x 2
        ("sse2 avx", "6", {"fp32": 16, "fp64": 8}),
        ("asimd neon", "", {}),
    ],
)
def test_the_peak_is_cores_times_clock_times_flop_a_cycle(
    flags: str, family: str, per_cycle: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _cpu(tmp_path, monkeypatch, flags=flags, family=family)
    assert found.peak_flops_per_s == {dtype: 8 * 2.6e9 * flop for dtype, flop in per_cycle.items()}
    assert found.peak_source == ("computed: 8 cores x 2.60 GHz x FLOP a cycle" if per_cycle else None)
    assert (found.name, found.cores, found.threads) == ("AMD EPYC", 8, 8)


def test_two_threads_of_a_core_have_one_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _cpu(tmp_path, monkeypatch, threads=16, siblings="16").cores == 8
    assert _cpu(tmp_path, monkeypatch, threads=3, siblings="16").cores == 3


def test_clock_and_caches_are_read_where_the_system_says_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, (level, kind, size) in enumerate(
        [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K"), ("3", "Unified", "32M")]
    ):
        place = tmp_path / "cpu" / "cpu0" / "cache" / f"index{index}"
        place.mkdir(parents=True)
        for name, text in {"level": level, "type": kind, "size": size}.items():
            (place / name).write_text(text)
    (tmp_path / "cpu" / "cpu0" / "cpufreq").mkdir()
    (tmp_path / "cpu" / "cpu0" / "cpufreq" / "cpuinfo_max_freq").write_text("4100000\n")
    found = _cpu(tmp_path, monkeypatch)
    assert found.cache_bytes == {"L1": 48 << 10, "L2": 1 << 20, "L3": 32 << 20}
    assert found.clock_hz == 4.1e9
    assert found.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_a_silent_system_leaves_the_peak_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CPUINFO", "CPUS", "MEMINFO", "CGROUP"):
        monkeypatch.setattr(machine, name, tmp_path / "none")
    found = machine.cpu_device(2)
    assert (found.peak_flops_per_s, found.peak_source, found.clock_hz) == ({}, None, None)
    assert machine.free_ram_bytes() == float("inf")


def test_free_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 64 kB\nMemAvailable:   1048576 kB\n")
    assert machine.free_ram_bytes() == 1 << 30
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("1048576\n")
    assert machine.free_ram_bytes() == 1 << 30
    (tmp_path / "memory.max").write_text("3145728\n")
    assert machine.free_ram_bytes() == 2 << 20


@pytest.mark.parametrize(
    ("said", "row"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-SXM-80"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("AMD Instinct MI300X", "MI300X"),
        ("AMD EPYC 9R14 96-Core Processor", "EPYC 9R14"),
        ("Intel(R) Xeon(R) Platinum 8488C", "Xeon Platinum 8488C"),
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "Xeon Platinum 8375C"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "Ryzen 9 7950X"),
    ],
)
def test_a_driver_s_name_is_found_in_the_catalog(said: str, row: str) -> None:
    assert load_facts().resolve(catalog_spelling(said)).accelerator.name == row


def test_the_datasheet_of_a_gpu_and_the_share_of_a_processor() -> None:
    facts = load_facts()
    card = with_datasheet(ProbedDevice(id="cuda:0", kind="cuda", name="NVIDIA H100 80GB HBM3"), facts)
    assert (card.accelerator, card.peak_flops_per_s["bf16"]) == ("H100-SXM-80", 989.4e12)
    assert card.memory_bytes_per_s == 3.352e12 or card.memory_bytes_per_s == pytest.approx(3.35e12, rel=0.01)
    part = with_datasheet(
        ProbedDevice(id="cpu", kind="cpu", name="AMD EPYC 9R14 96-Core Processor", cores=8, threads=8), facts
    )
    # 96 cores: 5,683.2 GFLOP/s in fp64 and 460.8 GB/s
    assert part.peak_flops_per_s["fp64"] == pytest.approx(5.6832e12 * 8 / 96)
    assert part.memory_bytes_per_s == pytest.approx(460.8e9 * 8 / 96)
    assert "8 of its 96 cores" in (part.peak_source or "")


def test_a_processor_does_not_get_the_datasheet_of_its_graphics() -> None:
    chip = ProbedDevice(id="cpu", kind="cpu", name="Apple M3 Max", cores=8)
    assert with_datasheet(chip, load_facts()) == chip
    unknown = ProbedDevice(id="cpu", kind="cpu", name="AMD EPYC", cores=8)
    assert with_datasheet(unknown, load_facts()) == unknown
