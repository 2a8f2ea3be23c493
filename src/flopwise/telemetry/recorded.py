"""A recorded run as a source of readings: its samples so far, and new ones while it is running."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.errors import FlopwiseError
from flopwise.telemetry.readings import WHOLE_JOB, SourceLostError, WatchReading

if TYPE_CHECKING:
    from flopwise.records.model import Run
    from flopwise.records.store import Store

DEVICE_MEASURES = {
    "utilization_frac": "busy_frac", "tensor_active_frac": "tensor_active_frac", "used_memory_bytes":
    "memory_used_bytes", "memory_active_frac": "memory_active_frac", "temperature_c": "temperature_c",
    "power_w": "power_w", "sm_clock_hz": "sm_clock_hz", "pcie_bytes_per_s": "pcie_bytes_per_s",
    "nvlink_bytes_per_s": "nvlink_bytes_per_s",
}  # fmt: skip
"""Measures of a device by their metrics in the store."""
JOB_MEASURES = {
    **{name: name for name in (
        "tokens_per_s", "tokens", "requests_per_s", "requests_running", "requests_waiting", "cache_frac", "step_s",
        "mfu_frac", "loss", "cost_usd", "eta_s", "data_wait_s")},
    "ttft_s": "ttft_p95_s", "itl_s": "tpot_p95_s", "e2e_s": "latency_p95_s",
}  # fmt: skip
"""Measures of the job by their metrics in the store; for latencies the 95th percentile of the last samples."""
LATENCY_SAMPLES = 200
FIRST_SAMPLES = 1000
"""Samples per series that are read first of a running run; eight times as many until they cover the period."""
STALE_S = 900.0
"""A run without new samples for this time has ended, whatever its status."""


class RunSource:
    """The samples of a run as readings, one for each `interval_s` with samples."""

    def __init__(self, store: Store, run: Run, interval_s: float, *, live: bool, back_s: float) -> None:
        """`live`: read new samples until the run ends, from `back_s` before now on; else all samples at once."""
        self._store, self.run, self._interval_s, self.live = store, run, interval_s, live
        self.title = f"run {run.name}"
        self._since_s = time.time() - back_s if live else -math.inf
        self._num_seen: dict[tuple[str, str], int] = {}
        self._state: dict[str, dict[str, float]] = defaultdict(dict)
        self._latencies: dict[str, list[float]] = defaultdict(list)

    @classmethod
    def of(cls, where: str | Path | None, key: str, interval_s: float, back_s: float) -> RunSource:
        """A run of a store by its id, the first digits of its id, or its name; live while it is running.

        Raises: SpecError: no such store or run.
        """
        from flopwise.records.store import open_store  # noqa: PLC0415 - SQLAlchemy is slow to import

        store = open_store(where, create=False)
        run = store.run(key)
        last_s = run.started_at_s if run.last_at_s is None else run.last_at_s
        live = run.status == "running" and time.time() - last_s < STALE_S
        return cls(store, run, interval_s, live=live, back_s=back_s)

    def readings(self) -> list[WatchReading]:
        """Readings from the samples since the last call. Raises SourceLostError if the store does not answer."""
        try:
            if self.live:  # read before the samples, which are complete if the run has ended
                self.run = self._store.run(self.run.run_id)
            points = sorted(self._points(), key=lambda point: point[0])
            self.live = self.live and self.run.status == "running"
        except FlopwiseError as error:
            raise SourceLostError(f"the store of runs does not answer: {error}") from None
        readings: list[WatchReading] = []
        for place, (at_s, metric, device, value) in enumerate(points):
            self._take(metric, device, value)
            last = place + 1 == len(points)
            if last or (at_s >= self._since_s and points[place + 1][0] // self._interval_s != at_s // self._interval_s):
                readings.append(self._reading(at_s))
        return readings

    def close(self) -> None:
        """Nothing is kept open."""

    def _points(self) -> Iterator[tuple[float, str, str, float]]:
        for key, summary in self._store.summaries(self.run.run_id).items():
            size, (metric, device) = summary.count + summary.not_finite, key
            if (metric in JOB_MEASURES or metric in DEVICE_MEASURES) and size > self._num_seen.get(key, 0):
                for at_s, _, value in self._new_samples(key, size):
                    if value is not None and value == value:  # noqa: PLR0124 - NaN
                        yield at_s, metric, device, value

    def _new_samples(self, key: tuple[str, str], size: int) -> list[tuple[Any, ...]]:
        """The samples since the last call; on the first call for a running run, those of the period."""
        seen, width = self._num_seen.get(key), FIRST_SAMPLES
        while True:
            start = seen if seen is not None else max(0, size - width) if self.live else 0
            rows = self._store.sample_rows(self.run.run_id, *key, start=start)
            if seen is not None or not start or rows[0][0] <= self._since_s:
                self._num_seen[key] = start + len(rows)
                return rows
            width *= 8

    def _take(self, metric: str, device: str, value: float) -> None:
        if device != WHOLE_JOB and metric in DEVICE_MEASURES:
            self._state[device][DEVICE_MEASURES[metric]] = value
            return
        name = JOB_MEASURES.get(metric)
        if name is None:
            self._state["0"][DEVICE_MEASURES[metric]] = value  # of the only device
        elif name.endswith("_p95_s"):
            recent = self._latencies[name]
            recent.append(value)
            del recent[:-LATENCY_SAMPLES]
            self._state[WHOLE_JOB][name] = sorted(recent)[max(0, -(-95 * len(recent) // 100) - 1)]
        else:
            self._state[WHOLE_JOB][name] = value

    def _reading(self, at_s: float) -> WatchReading:
        job = dict(self._state.get(WHOLE_JOB, {}))
        wait, step = job.pop("data_wait_s", None), job.get("step_s")
        if wait is not None and step:
            job["data_wait_frac"] = wait / step
        names = {device: self.run.gpu or "" for device in self._state if device != WHOLE_JOB}
        return WatchReading(
            at_s=at_s, job=job, names=names,
            devices={device: dict(values) for device, values in self._state.items() if device != WHOLE_JOB},
        )  # fmt: skip
