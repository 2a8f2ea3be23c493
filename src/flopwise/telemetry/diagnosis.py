"""Diagnosis of what bounds a job: the first rule of a table whose conditions hold over the last minutes.

Shares of cycles (profiling counters) come from DCGM or GPM; rules that do not use them are marked as less certain.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Literal

from flopwise.facts.device_limits import POWER_LIMIT, THROTTLE_BITS
from flopwise.telemetry.history import Window
from flopwise.telemetry.readings import PROFILING
from flopwise.units import format_number, format_percent
from flopwise.values import dataclass

Bound = Literal[
    "compute", "memory bandwidth", "communication", "data loading", "host", "throttling", "memory pressure", "idle",
    "unknown",
]  # fmt: skip
BOUNDS: tuple[Bound, ...] = (
    "compute", "memory bandwidth", "communication", "data loading", "host", "throttling", "memory pressure",
)  # fmt: skip
OWN_BOUNDS = ("compute", "memory bandwidth")
"""Bounds of a device at its own limits: nothing is wrong."""
LEAST_S = 60.0
"""Readings of fewer seconds do not cover a whole step: the diagnosis is uncertain."""
DCGM = "NVIDIA DCGM User Guide, Feature Overview, Profiling Metrics (read 2026-11-22)"
NVML = "NVIDIA NVML API Reference, nvmlUtilization_t and clocks event reasons (read 2026-11-22)"
VLLM = "vLLM documentation, Optimization and Tuning: Preemption (read 2026-11-22)"
NODE = "Prometheus node_exporter, collectors cpu and diskstats; B. Gregg, The USE Method"
OWN = "flopwise: rule of thumb"
HARD_BITS = sum(THROTTLE_BITS)


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of a measure with a threshold, and the source of the threshold."""

    measure: str
    sign: str  # ">=" or "<"
    threshold: float
    source: str

    def value(self, window: Window) -> float | None:
        """Value of the measure; None if it is not known."""
        reader = SPECIAL.get(self.measure)
        return reader(window) if reader else window.value(self.measure)

    def holds(self, value: float) -> bool:
        """True if a value fulfils the condition."""
        return value >= self.threshold if self.sign == ">=" else value < self.threshold


SPECIAL: dict[str, Callable[[Window], float | None]] = {
    "busy_mean_frac": lambda window: window.mean("busy_frac"),
    "throttled_frac": lambda window: window.share(HARD_BITS),
    "num_devices": lambda window: float(len(window.readings[-1].devices)),
    "disk_or_wait_frac": lambda window: _most(window.value("cpu_wait_frac"), window.value("disk_busy_frac")),
    "link_frac": lambda window: _most(window.value("nvlink_frac"), window.value("pcie_frac")),
}
"""Measures that are not medians."""


def _most(*values: float | None) -> float | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class BoundRule:
    """A bound and its conditions; `certain`: no other bound has the same readings."""

    bound: Bound
    name: str
    conditions: tuple[Condition, ...]
    certain: bool = True


def _rule(bound: Bound, name: str, *conditions: tuple[str, str, float, str], certain: bool = True) -> BoundRule:
    return BoundRule(bound, name, tuple(Condition(*one) for one in conditions), certain)


BUSY = ("busy_mean_frac", ">=", 0.70, NVML)
STARVED = ("busy_mean_frac", "<", 0.70, NVML)
RULES = (
    _rule("idle", "no work is running", ("busy_mean_frac", "<", 0.02, NVML)),
    _rule("throttling", "heat or a hardware limit lowers the clocks", ("throttled_frac", ">=", 0.5, NVML)),
    _rule("throttling", "power is at its limit, and clocks are far below their maximum",
          ("power_frac", ">=", POWER_LIMIT, NVML), ("clock_frac", "<", 0.75, OWN)),
    _rule("throttling", "the device is hot, and clocks are far below their maximum",
          ("temperature_limit_frac", ">=", 0.98, NVML), ("clock_frac", "<", 0.85, OWN)),
    _rule("throttling", "the device is hot, and clocks are far below their maximum", ("temperature_c", ">=", 86.0, OWN),
          ("clock_frac", "<", 0.75, OWN), certain=False),
    _rule("memory pressure", "the KV cache is full, and requests are preempted",
          ("preemptions_per_s", ">=", 0.02, VLLM), ("cache_frac", ">=", 0.90, VLLM)),
    _rule("memory pressure", "the KV cache is full, and requests are waiting", ("cache_frac", ">=", 0.95, VLLM),
          ("requests_waiting", ">=", 1.0, VLLM)),
    _rule("memory pressure", "device memory is full, and pages move over PCIe", ("memory_frac", ">=", 0.97, OWN),
          ("pcie_frac", ">=", 0.30, OWN), ("tensor_active_frac", "<", 0.40, OWN)),
    _rule("data loading", "the training loop waits for its next batch", ("data_wait_frac", ">=", 0.10, OWN)),
    _rule("data loading", "devices wait for storage", STARVED, ("disk_or_wait_frac", ">=", 0.20, NODE)),
    _rule("host", "devices wait for the processors of the host", STARVED, ("cpu_busy_frac", ">=", 0.90, NODE)),
    _rule("host", "devices wait, but processors and storage have room: one thread or kernel launches limit them",
          STARVED, ("cpu_busy_frac", "<", 0.90, NODE), ("disk_or_wait_frac", "<", 0.20, NODE), certain=False),
    _rule("host", "devices wait although requests are running", STARVED,
          ("requests_running", ">=", 1.0, OWN), certain=False),
    _rule("communication", "links are busy while tensor cores and memory are not", BUSY,
          ("num_devices", ">=", 2, OWN), ("link_frac", ">=", 0.20, OWN), ("tensor_active_frac", "<", 0.40, DCGM),
          ("memory_active_frac", "<", 0.50, DCGM)),
    _rule("memory bandwidth", "memory bandwidth is near what kernels achieve", BUSY,
          ("memory_active_frac", ">=", 0.60, DCGM)),
    _rule("compute", "tensor cores are near what kernels achieve", BUSY, ("tensor_active_frac", ">=", 0.40, DCGM)),
    _rule("compute", "multiprocessors are busy, but tensor cores are not used", BUSY,
          ("sm_active_frac", ">=", 0.80, DCGM), ("memory_active_frac", "<", 0.50, DCGM),
          ("tensor_active_frac", "<", 0.40, DCGM), certain=False),
    _rule("communication", "devices are busy at low power: they wait for one another", BUSY,
          ("num_devices", ">=", 2, OWN), ("sm_active_frac", ">=", 0.50, DCGM), ("tensor_active_frac", "<", 0.25, DCGM),
          ("memory_active_frac", "<", 0.40, DCGM), ("power_frac", "<", 0.60, OWN), certain=False),
    _rule("host", "kernels run all the time but use few multiprocessors: they are small and run one after another",
          BUSY, ("sm_active_frac", "<", 0.50, DCGM), ("memory_active_frac", "<", 0.40, DCGM)),
    _rule("memory bandwidth", "memory is read or written most of the time", BUSY,
          ("memory_busy_frac", ">=", 0.60, NVML), certain=False),
    _rule("compute", "the device is busy at high power, its memory is not", BUSY, ("power_frac", ">=", 0.70, OWN),
          ("memory_busy_frac", "<", 0.60, NVML), certain=False),
    _rule("communication", "several devices are busy at low power: they wait for one another", BUSY,
          ("num_devices", ">=", 2, OWN), ("power_frac", "<", 0.55, OWN), ("memory_busy_frac", "<", 0.40, NVML),
          certain=False),
    _rule("host", "the device is busy at low power: small kernels run one after another", BUSY,
          ("power_frac", "<", 0.45, OWN), ("memory_busy_frac", "<", 0.40, NVML), certain=False),
    _rule("data loading", "devices wait for storage or for the host; no measurement distinguishes them", STARVED,
          certain=False),
)  # fmt: skip
"""Rules in order of evaluation; a rule with an unknown measure does not hold."""
LEVERS: dict[Bound, tuple[str, str]] = {
    "compute": (
        "use a lower precision (fp8), less recompute, or more devices",
        "use a lower precision, or add a replica",
    ),
    "memory bandwidth": (
        "use a fused optimizer and fused kernels, or a larger micro-batch",
        "use quantised weights and cache, a larger running batch, or a device with more bandwidth",
    ),
    "communication": (
        "limit tensor parallelism to a node, use a larger micro-batch or more accumulation, overlap, a faster network",
        "use less tensor parallelism and more replicas",
    ),
    "data loading": (
        "use more loader workers and prefetch, larger files, or data on local disks (`flopwise io`)",
        "prefetch inputs, and cache repeated ones",
    ),
    "host": (
        "use torch.compile or CUDA graphs, a larger micro-batch, and no .item() or logging within a step",
        "use CUDA graphs, more processors for the engine, and separate processes for tokenisation",
    ),
    "throttling": (
        "check cooling, fans and airflow, and the power limit (nvidia-smi -q -d POWER), or use another machine",
        "check cooling, fans and airflow, and the power limit (nvidia-smi -q -d POWER), or use another machine",
    ),
    "memory pressure": (
        "use a smaller micro-batch, more recompute or a higher ZeRO stage (`flopwise memory`)",
        "use a smaller batch, a quantised cache or shorter contexts, or add a replica",
    ),
    "idle": ("start the job, or release the machine", "send it traffic, or release the machine"),
    "unknown": ("", ""),
}
"""Remedies for each bound, in training and in serving."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The bound of a job, the evidence, and a remedy.

    `healthy`: the job is at plan, or, without a plan, bound only by the devices' own rates; None if neither is known.
    """

    bound: Bound
    summary: str
    certain: bool
    evidence: tuple[str, ...] = ()
    lever: str = ""
    healthy: bool | None = None
    at_plan: bool | None = None
    missing: str = ""  # readings that would make it certain

    @classmethod
    def of(cls, window: Window, *, serves: bool, at_plan: bool | None, layout: str = "") -> Diagnosis:
        """The diagnosis of a window; `layout`: that of the plan, for the remedy."""
        if all(not reading.devices and not reading.job for reading in window.readings):
            return cls(bound="unknown", summary="there are no measurements", certain=False)
        for rule in RULES:
            values = list(takewhile(_holds, ((condition, condition.value(window)) for condition in rule.conditions)))
            if len(values) == len(rule.conditions):
                if rule.bound == "idle" and at_plan:
                    continue
                evidence = tuple(_evidence(c, v) for c, v in values if v is not None)
                return _rule_diagnosis(rule, window, evidence, serves=serves, at_plan=at_plan, layout=layout)
        healthy = at_plan if at_plan is not None else None
        summary = "healthy, at plan" if at_plan else "no bound stands out"
        return cls(
            bound="unknown", summary=summary, certain=False, healthy=healthy, at_plan=at_plan, missing=_missing(window)
        )


def _holds(measured: tuple[Condition, float | None]) -> bool:
    condition, value = measured
    return value is not None and condition.holds(value)


def _rule_diagnosis(
    rule: BoundRule, window: Window, evidence: tuple[str, ...], *, serves: bool, at_plan: bool | None, layout: str
) -> Diagnosis:
    lever = LEVERS[rule.bound][serves]
    if layout and lever:
        lever += f"; planned: {layout}"
    short = window.seconds < LEAST_S
    missing = "" if rule.certain else _missing(window)
    if short:
        missing = "; ".join(part for part in (missing, f"only {window.seconds:.0f} s of readings so far") if part)
    healthy = at_plan if at_plan is not None else (True if rule.bound in OWN_BOUNDS else rule.bound == "idle" and None)
    summary = f"healthy, at plan; bound by {rule.bound}: {rule.name}" if at_plan else f"{rule.bound}: {rule.name}"
    return Diagnosis(
        bound=rule.bound, summary=summary, certain=rule.certain and not short, evidence=evidence, lever=lever,
        healthy=healthy, at_plan=at_plan, missing=missing,
    )  # fmt: skip


def _missing(window: Window) -> str:
    if not window.readings[-1].devices:
        return (
            "no device is read, so that what its units do is not known: a run on a CPU records its steps and data "
            "waits alone; on GPUs give --prometheus with dcgm-exporter, or watch on their machine"
        )
    absent = [name for name in PROFILING if window.value(name) is None]
    if absent:
        return (
            "profiling counters are missing (DCGM_FI_PROF_SM_ACTIVE, PIPE_TENSOR_ACTIVE, DRAM_ACTIVE): configure "
            "dcgm-exporter with the counters of `flopwise export prometheus-scrape`"
        )
    if window.value("cpu_busy_frac") is None:
        return (
            "processors and disks are not measured: scrape node_exporter, or record data waits with flopwise.callbacks"
        )
    return "profile one step to be certain"


def _evidence(condition: Condition, value: float) -> str:
    name = condition.measure
    words = name.removesuffix("_frac").replace("_per_s", " a second").replace("_mean", "").replace("_", " ")
    shares = name.endswith("_frac")
    shown, limit = (format_percent(v, 0) if shares else f"{format_number(v)}" for v in (value, condition.threshold))
    return f"{words} {shown} ({'at least' if condition.sign == '>=' else 'below'} {limit})"
