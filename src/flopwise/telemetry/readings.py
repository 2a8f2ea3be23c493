"""A reading of devices, job and host at one time: measures with their units and served names."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import field

from flopwise.errors import FlopwiseError
from flopwise.records.metrics import counter_growth
from flopwise.values import dataclass

Values = Mapping[str, float]
"""Values by the names of MEASURES; unknown ones are missing."""
WHOLE_JOB = ""
"""Used instead of a device for measures of the whole job."""


@dataclass(frozen=True, slots=True)
class WatchMeasure:
    """A quantity of a device, the job or the host; `served`: its Prometheus metric after `flopwise_watch_`."""

    name: str
    of: str  # device, job or host
    served: str
    meaning: str


_DEVICE = (
    ("busy_frac", "utilization_ratio", "share of the time in which a kernel runs"),
    ("sm_active_frac", "sm_active_ratio", "share of cycles in which a multiprocessor has work"),
    ("tensor_active_frac", "tensor_active_ratio", "share of cycles in which tensor cores work"),
    ("memory_active_frac", "memory_active_ratio", "share of cycles in which the memory interface moves data"),
    ("memory_busy_frac", "memory_busy_ratio", "share of the time in which memory is read or written"),
    ("memory_used_bytes", "memory_used_bytes", "memory in use"),
    ("memory_total_bytes", "memory_total_bytes", "memory of the device"),
    ("temperature_c", "temperature_celsius", "temperature"),
    ("temperature_limit_c", "temperature_limit_celsius", "maximum operating temperature"),
    ("memory_temperature_c", "memory_temperature_celsius", "temperature of the memory"),
    ("memory_temperature_limit_c", "memory_temperature_limit_celsius", "its maximum operating temperature"),
    ("power_w", "power_watts", "power draw"),
    ("power_limit_w", "power_limit_watts", "power limit that is enforced"),
    ("sm_clock_hz", "sm_clock_hertz", "clock of the multiprocessors"),
    ("max_clock_hz", "max_sm_clock_hertz", "maximum clock of the multiprocessors"),
    ("throttle_bits", "throttle_reasons", "reasons for throttling, as NVML's bits"),
    ("pcie_bytes_per_s", "pcie_bytes_per_second", "traffic over PCIe, both directions"),
    ("pcie_limit_bytes_per_s", "pcie_limit_bytes_per_second", "bandwidth of the PCIe link, both directions"),
    ("nvlink_bytes_per_s", "nvlink_bytes_per_second", "traffic over NVLink, both directions"),
    ("nvlink_limit_bytes_per_s", "nvlink_limit_bytes_per_second", "bandwidth of NVLink, both directions"),
    ("xid", "last_xid", "number of the last Xid error; 0: none"),
    ("ecc_errors", "uncorrected_ecc_errors", "uncorrected memory errors since the driver started"),
)
_JOB = (
    ("tokens_per_s", "tokens_per_second", "tokens trained on, or input and output tokens"),
    ("output_tokens_per_s", "output_tokens_per_second", "tokens generated"),
    ("tokens", "tokens", "tokens since the run began"),
    ("requests_per_s", "requests_per_second", "requests answered"),
    ("requests_running", "requests_running", "requests in the running batch"),
    ("requests_waiting", "requests_waiting", "requests in the queue"),
    ("cache_frac", "cache_usage_ratio", "share of the KV cache in use"),
    ("preemptions_per_s", "preemptions_per_second", "requests preempted because the cache was full"),
    *(
        (f"{name}_p{percent}_s", f"{served}_p{percent}_seconds", f"{meaning}, {percent}th percentile")
        for name, served, meaning in (
            ("ttft", "time_to_first_token", "time to first token"), ("tpot", "time_per_token", "time per output token"),
            ("latency", "latency", "time of a whole request"),
        )
        for percent in (50, 95, 99)
    ),
    ("step_s", "step_seconds", "time of an optimizer step"),
    ("data_wait_frac", "data_wait_ratio", "share of a step in which the loop waited for data"),
    ("mfu_frac", "mfu_ratio", "model FLOPs utilisation"),
    ("loss", "loss", "training loss"),
    ("cost_usd", "recorded_cost_dollars", "cost so far, as the run recorded it"),
    ("eta_s", "eta_seconds", "time until the end, as the run recorded it"),
    ("checkpoint_age_s", "checkpoint_age_seconds", "time since the last checkpoint"),
)  # fmt: skip
_HOST = (
    ("cpu_busy_frac", "cpu_busy_ratio", "share of the processors' time in which they work"),
    ("cpu_wait_frac", "cpu_io_wait_ratio", "share of the processors' time in which they wait for storage"),
    ("disk_busy_frac", "disk_busy_ratio", "share of the time in which the busiest disk works"),
)
MEASURES = {
    name: WatchMeasure(name, of, f"{of}_{served}", meaning)
    for of, rows in (("device", _DEVICE), ("job", _JOB), ("host", _HOST))
    for name, served, meaning in rows
}  # fmt: skip
PROFILING = ("sm_active_frac", "tensor_active_frac", "memory_active_frac")
"""Measures that come from profiling counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchReading:
    """All values of a source at one time."""

    at_s: float  # seconds since 1970
    devices: Mapping[str, Values] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)  # of the devices' models
    lost: frozenset[str] = frozenset()  # devices that answered before and no longer do
    job: Values = field(default_factory=dict)
    host: Values = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # failed readings, with reasons


class SourceLostError(FlopwiseError):
    """A source does not answer at present; it may answer later."""


class CounterRate:
    """Rate of a counter over its samples of the last `window_s`.

    A counter that falls was reset, and its value is its growth since then. A sample that is not later than the last one
    is ignored, so that a clock that is set back gives no negative rate; if it is set back by more than the window, the
    samples are discarded.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._points: deque[tuple[float, float]] = deque()  # time, growth since the first
        self._last = 0.0

    def add(self, at_s: float, total: float) -> None:
        """Add a sample."""
        if not math.isfinite(total):
            return
        if self._points and at_s < self._points[-1][0] - self.window_s:
            self._points.clear()
        if not self._points:
            self._points.append((at_s, 0.0))
        elif at_s > self._points[-1][0]:
            self._points.append((at_s, self._points[-1][1] + counter_growth(self._last, total)))
        else:
            return
        self._last = total
        while len(self._points) > 2 and self._points[1][0] <= at_s - self.window_s:
            self._points.popleft()

    @property
    def per_s(self) -> float | None:
        """Growth per second; None before the second sample."""
        if len(self._points) < 2:
            return None
        (begin_s, before), (end_s, after) = self._points[0], self._points[-1]
        return (after - before) / (end_s - begin_s)

    @property
    def last_at_s(self) -> float | None:
        """Time of the last sample."""
        return self._points[-1][0] if self._points else None
