"""The CPU and its memory, as described by the system, and the peak rate of its vector units."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from flopwise.probes.file import ProbedDevice

CPUINFO = Path("/proc/cpuinfo")
CPUS = Path("/sys/devices/system/cpu")
MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")

FLOP_PER_CYCLE = (
    # flags that all must be there, CPU family or None, FLOP a cycle and core by dtype; the first that fits holds
    ({"amx_bf16", "avx512f"}, None, {"fp64": 32, "fp32": 64, "bf16": 1024, "int8": 2048}),
    ({"avx512_bf16"}, "25", {"fp64": 16, "fp32": 32, "bf16": 64, "int8": 128}),  # AMD Zen 4: 256-bit units
    ({"avx512_bf16"}, None, {"fp64": 32, "fp32": 64, "bf16": 128, "int8": 256}),
    ({"avx512_vnni"}, None, {"fp64": 32, "fp32": 64, "int8": 256}),
    ({"avx512f"}, None, {"fp64": 32, "fp32": 64}),
    ({"avx2", "fma"}, None, {"fp64": 16, "fp32": 32}),
    ({"avx"}, None, {"fp64": 8, "fp32": 16}),
    ({"sse2"}, None, {"fp64": 4, "fp32": 8}),
)
"""Two units for fused multiplications and additions (before FMA one adds and one multiplies) of the widest registers.

Source: Intel, Xeon Scalable processors technical overview (two AVX-512 units, AMX tiles of 1,024 bf16 operations);
AMD, Zen 4 and Zen 5 software optimization guides (256-bit units, 512-bit units in server parts); as accelerators.csv.
Assumes: a server or desktop part with both units; Arm processors are not in it: their flags do not tell the width.
"""


def cpu_device(threads: int) -> ProbedDevice:
    """The CPU with `threads` used threads; its peak is computed if the system provides clock and flags."""
    info, cores = _cpu_info(), min(threads, usable_cores())
    clock, cycle = _clock_hz(info), _flop_per_cycle(info)
    source = None if clock is None or not cycle else f"computed: {cores} cores x {clock / 1e9:.2f} GHz x FLOP a cycle"
    return ProbedDevice(
        id="cpu", kind="cpu", name=cpu_name(), memory_bytes=_ram_bytes(), threads=threads, cores=cores,
        clock_hz=clock, cache_bytes=_cache_bytes(), peak_source=source,
        peak_flops_per_s={dtype: cores * (clock or 0.0) * flop for dtype, flop in cycle.items()} if source else {},
    )  # fmt: skip


def _cpu_info() -> Mapping[str, str]:
    """Entries of /proc/cpuinfo for the first processor; empty if there are none."""
    try:
        first = CPUINFO.read_text(encoding="utf-8", errors="replace").split("\n\n", 1)[0]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def cpu_name() -> str:
    """The name that the CPU reports."""
    info = _cpu_info()
    if platform.system() == "Darwin":
        with suppress(OSError):
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "Apple"  # noqa: S603 - no word is a user's
    return info.get("model name") or info.get("Model") or platform.processor() or platform.machine() or "CPU"


def usable_threads() -> int:
    """Logical processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def usable_cores() -> int:
    """Cores that this process may use; two threads of a core are one."""
    info = _cpu_info()
    return max(1, usable_threads() // _threads_per_core(info))


def _clock_hz(info: Mapping[str, str]) -> float | None:
    """The maximum clock, else the present one; a virtual machine may report far less than the real clock."""
    try:
        return float((CPUS / "cpu0/cpufreq/cpuinfo_max_freq").read_text(encoding="ascii")) * 1e3
    except (OSError, ValueError):
        pass
    try:
        return float(info["cpu MHz"]) * 1e6
    except (KeyError, ValueError):
        return None


def _threads_per_core(info: Mapping[str, str]) -> int:
    """Logical processors of one core."""
    try:
        return max(1, int(info["siblings"]) // int(info["cpu cores"]))
    except (KeyError, ValueError, ZeroDivisionError):
        return 1


def _flop_per_cycle(info: Mapping[str, str]) -> Mapping[str, int]:
    """FLOP per core and cycle, by dtype; empty if the flags do not determine it."""
    flags, of = set(info.get("flags", "").split()), info.get("cpu family", "")
    return next((rates for needed, family, rates in FLOP_PER_CYCLE if needed <= flags and family in (None, of)), {})


def _cache_bytes() -> dict[str, int]:
    """Sizes of the first processor's data caches by level: L1, L2, L3."""
    sizes = dict[str, int]()
    for place in sorted((CPUS / "cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((place / n).read_text(encoding="ascii").strip() for n in ("level", "type", "size"))
            if kind != "Instruction":
                sizes[f"L{level}"] = int(size.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(size[-1], 0)
        except (OSError, ValueError):
            continue
    return sizes


def _ram_bytes() -> int | None:
    """Memory of the machine, in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def free_ram_bytes() -> float:
    """Memory available without swapping, within the limit of a container; infinite if it is not known."""
    free = float("inf")
    try:
        words = dict(line.split(":", 1) for line in MEMINFO.read_text(encoding="ascii").splitlines())
        free = float(words["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        pass
    try:
        limit = float((CGROUP / "memory.max").read_text(encoding="ascii"))
        free = min(free, limit - float((CGROUP / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no limit: "max"
        pass
    return free
