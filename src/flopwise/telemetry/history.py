"""The readings of the last minutes and their statistics."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from statistics import fmean, median

from flopwise.telemetry.readings import Values, WatchReading

MOST_GAP_S = 180.0
"""Maximum gap between two readings of one history, in seconds."""


class History:
    """Readings of the last `span_s`, sorted by time."""

    def __init__(self, span_s: float) -> None:
        self.span_s = span_s
        self.readings: deque[WatchReading] = deque()
        self.xids: dict[str, float] = {}  # last Xid of each device
        self.new_xids: dict[str, tuple[float, float]] = {}  # time and number of the last new Xid of each device

    def add(self, reading: WatchReading) -> bool:
        """Add a reading; False if it is ignored because it is not later than the last one.

        A clock that is set back by more than a few minutes, or forward by hours, starts a new history.
        """
        if self.readings:
            passed_s = reading.at_s - self.readings[-1].at_s
            if passed_s < -MOST_GAP_S or passed_s > self.span_s:
                self.readings.clear()
                self.xids, self.new_xids = {}, {}
            elif passed_s <= 0:
                return False
        self.readings.append(reading)
        self._note_xids(reading)
        while self.readings[0].at_s < reading.at_s - self.span_s:
            self.readings.popleft()
        return True

    def _note_xids(self, reading: WatchReading) -> None:
        for device, values in reading.devices.items():
            xid = values.get("xid")
            if xid is None:
                continue
            if xid and self.xids.get(device, xid) != xid:
                self.new_xids[device] = reading.at_s, xid
            self.xids[device] = xid

    @property
    def latest(self) -> WatchReading:
        """The last reading."""
        return self.readings[-1]

    def window(self, seconds: float) -> Window:
        """Readings of the last `seconds`."""
        begin = self.latest.at_s - seconds
        return Window([reading for reading in self.readings if reading.at_s >= begin])


def over(values: Values, part: str, whole: str) -> float | None:
    """One measure divided by another; None if either is not known."""
    if part not in values or not values.get(whole):
        return None
    return values[part] / values[whole]


DERIVED = {
    "memory_frac": ("memory_used_bytes", "memory_total_bytes"), "power_frac": ("power_w", "power_limit_w"),
    "clock_frac": ("sm_clock_hz", "max_clock_hz"), "pcie_frac": ("pcie_bytes_per_s", "pcie_limit_bytes_per_s"),
    "nvlink_frac": ("nvlink_bytes_per_s", "nvlink_limit_bytes_per_s"),
    "temperature_limit_frac": ("temperature_c", "temperature_limit_c"),
}  # fmt: skip
"""Shares of a capacity or a limit: (measure, capacity)."""


class Window:
    """Readings and their medians, which a checkpoint or a short pause does not change."""

    def __init__(self, readings: list[WatchReading]) -> None:
        """`readings`: at least one."""
        self.readings = readings
        self._medians: dict[str, float | None] = {}
        self._means: dict[str, float | None] = {}
        devices = [values for reading in readings for values in reading.devices.values()]
        self._devices = devices
        self._known = frozenset[str]().union(*devices)  # most measures are those of other sources
        self._others = [part for reading in readings for part in (reading.job, reading.host) if part]
        self._known_of_others = frozenset[str]().union(*self._others)

    @property
    def seconds(self) -> float:
        """Time from the first to the last reading."""
        return self.readings[-1].at_s - self.readings[0].at_s

    def device_values(self, name: str) -> Iterator[float]:
        """Values of a measure, or of a share in DERIVED, for each device in each reading."""
        parts = DERIVED.get(name, (name,))
        if self._known.issuperset(parts):
            for values in self._devices:
                values_of = over(values, *DERIVED[name]) if name in DERIVED else values.get(name)
                if values_of is not None:
                    yield values_of

    def value(self, name: str) -> float | None:
        """Median over readings and devices, or over readings of the job or host; None if it is not known."""
        if name in self._medians:
            return self._medians[name]
        values = list(self.device_values(name))
        if name in self._known_of_others:
            values += [part[name] for part in self._others if name in part]
        self._medians[name] = median(values) if values else None
        return self._medians[name]

    def mean(self, name: str) -> float | None:
        """Mean over readings and devices, for measures that vary within a step; None if it is not known."""
        if name not in self._means:
            values = list(self.device_values(name))
            self._means[name] = fmean(values) if values else None
        return self._means[name]

    def share(self, mask: int) -> float | None:
        """Share of device readings in which a throttle reason of `mask` is set."""
        values = list(self.device_values("throttle_bits"))
        return fmean(bool(int(value) & mask) for value in values) if values else None
