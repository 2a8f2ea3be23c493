"""A Prometheus server as a source of readings: devices, engines, runs and hosts, by the names in data/metrics.csv."""

from __future__ import annotations

import json
import re
import time
import urllib.error
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError
from flopwise.pages import http_address, page_bytes, shown_address
from flopwise.records.histograms import histogram
from flopwise.telemetry.readings import CounterRate, SourceLostError, WatchReading
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.facts.metrics import MetricRecord

DEVICE_MEANINGS = {
    "busy": "busy_frac", "sm_active": "sm_active_frac", "tensor_active": "tensor_active_frac",
    "memory_active": "memory_active_frac", "memory_busy": "memory_busy_frac", "memory_used": "memory_used_bytes",
    "temperature": "temperature_c", "temperature_limit": "temperature_limit_c",
    "memory_temperature": "memory_temperature_c", "memory_temperature_limit": "memory_temperature_limit_c",
    "power": "power_w", "power_limit": "power_limit_w", "clock": "sm_clock_hz", "throttle_reasons": "throttle_bits",
    "xid": "xid", "ecc": "ecc_errors", "pcie_sent": "pcie_bytes_per_s", "pcie_received": "pcie_bytes_per_s",
    "nvlink_sent": "nvlink_bytes_per_s", "nvlink_received": "nvlink_bytes_per_s",
}  # fmt: skip
"""Measures of a device; two meanings of one measure are added."""
JOB_MEANINGS = {
    "waiting": "requests_waiting", "running": "requests_running", "cache": "cache_frac",
    "preemptions": "preemptions_per_s", "requests": "requests_per_s", "output_tokens": "output_tokens_per_s",
    "input_tokens": "tokens_per_s",
}  # fmt: skip
LATENCIES = ("ttft", "tpot", "latency")
MEANINGS = {
    *DEVICE_MEANINGS,
    *JOB_MEANINGS,
    *LATENCIES,
    "memory_free",
    "checkpoint_time",
    "idle",
    "io_wait",
    "disk_busy",
}
"""All meanings that are read."""
DEVICES = ("dcgm", "amd", "neuron")
"""Exporters of devices."""
PERCENTS = (50, 95, 99)
RATE_WINDOW_S = 120.0
"""Window for rates of counters in live views: eight scrapes at the usual 15 s."""
LATENCY_WINDOW_S = 300.0
STALE_S = 75.0
"""Age beyond which a sample is ignored: five scrapes at the usual 15 s, or three of a slower exporter."""
TIMEOUT_S = 10.0
MOST_BYTES = 256_000_000
LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MATCHER = re.compile(r'([a-z_]+)="([^"]*)"')


@dataclass(slots=True)
class _SampledSeries:
    """One series: its labels, its last sample, and its rate."""

    record: MetricRecord
    labels: Mapping[str, str]
    rate: CounterRate
    pending: list[tuple[float, float]] = field(default_factory=list)
    last_s: float = float("-inf")  # time of the last sample, including pending ones
    at_s: float = float("-inf")
    value: float = 0.0
    space_s: float = 15.0

    def advance(self, until_s: float) -> None:
        """Process the pending samples up to a time."""
        while self.pending and self.pending[0][0] <= until_s:
            at_s, value = self.pending.pop(0)
            if self.at_s > 0:
                self.space_s = at_s - self.at_s
            self.at_s, self.value = at_s, value
            self.rate.add(at_s, value)

    def fresh(self, at_s: float) -> bool:
        return at_s - self.at_s <= max(STALE_S, 3 * min(self.space_s, 300.0))


class PrometheusSource:
    """Raw samples since the last call, which show counter resets and missed scrapes."""

    live = True

    def __init__(self, url: str, matches: Sequence[str], interval_s: float, history_s: float) -> None:
        """`matches`: LABEL=VALUE pairs of every series. `history_s`: period of the first call.

        Raises: SpecError: an invalid address or matcher.
        """
        if "://" not in url:
            raise SpecError("--prometheus: give the server's address, such as http://localhost:9090")
        self._url = http_address(url, "--prometheus").partition("?")[0].rstrip("/") + "/api/v1/query"
        self.title = f"Prometheus at {shown_address(url).partition('?')[0].rstrip('/')}"
        self._records = _records()
        wanted = "|".join(re.escape(name) for name in sorted(self._records))
        self._selector = "{" + ",".join([f'__name__=~"{_label_text(wanted)}"', *map(_matcher, matches)]) + "}"
        self._interval_s, self._history_s = interval_s, history_s
        self._next_s: float | None = None
        self._series: dict[tuple[Any, ...], _SampledSeries] = {}
        self._devices: dict[str, float] = {}  # when each was last seen

    def readings(self) -> list[WatchReading]:
        """A reading for each interval since the last call. Raises SourceLostError if the server does not answer."""
        now = time.time()
        if self._next_s is None or not now - self._history_s - 1 <= self._next_s <= now + self._interval_s:
            self._next_s = now - self._history_s  # the first call, or the clock was set
        overlap = max((s.space_s for s in self._series.values()), default=0.0) + 2 * STALE_S
        self._add(self._samples(now, now - self._next_s + overlap))
        rows: list[WatchReading] = []
        while self._next_s <= now:
            reading = self._reading(self._next_s)
            if reading is not None:
                rows.append(reading)
            self._next_s += self._interval_s
        return rows

    def close(self) -> None:
        """Nothing is kept open."""

    def _samples(self, now: float, span_s: float) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        form = {"query": f"{self._selector}[{max(1, round(span_s))}s]", "time": f"{now:.3f}"}
        try:
            data = json.loads(page_bytes(self._url, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES, form=form))
            result = [(dict(row["metric"]), _values(row)) for row in data["data"]["result"]]
        except urllib.error.HTTPError as error:
            why = f"it answers {error.code} {error.reason}"
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = getattr(error, "reason", None) or error
            why = str(reason) if isinstance(error, OSError) else "its answer is not in Prometheus' format"
        else:
            return result
        raise SourceLostError(f"{self.title} does not answer: {why}")

    def _add(self, result: Sequence[tuple[dict[str, str], list[tuple[float, float]]]]) -> None:
        for labels, values in result:
            metric = labels.pop("__name__", "")
            for record in self._records.get(metric, ()):
                if any(labels.get(name) != value for name, value in MATCHER.findall(record.labels)):
                    continue
                key = (record.exporter, record.meaning, tuple(sorted(labels.items())))
                series = self._series.get(key)
                if series is None:
                    window = LATENCY_WINDOW_S if record.kind == "histogram" else RATE_WINDOW_S
                    series = self._series[key] = _SampledSeries(record, labels, CounterRate(window))
                for at_s, value in values:
                    if at_s > series.last_s and value - value == 0:  # neither NaN nor infinite
                        series.pending.append((at_s, value))
                        series.last_s = at_s

    def _reading(self, at_s: float) -> WatchReading | None:
        for series in self._series.values():
            series.advance(at_s)
        fresh = [series for series in self._series.values() if series.fresh(at_s)]
        if not fresh:
            return None
        devices: dict[str, dict[str, float]] = defaultdict(dict)
        names: dict[str, str] = {}
        for series in fresh:
            if series.record.exporter in DEVICES:
                device = _device(series.labels)
                names[device] = series.labels.get("modelName", "")
                _add_device(devices[device], series)
        for values in devices.values():
            free = values.pop("memory_free_bytes", None)
            if free is not None and "memory_used_bytes" in values:
                values["memory_total_bytes"] = values["memory_used_bytes"] + free
        self._devices |= dict.fromkeys(devices, at_s)
        hosts = {device.rpartition("/")[0] for device in devices}
        lost = {d for d in self._devices if d not in devices and d.rpartition("/")[0] in hosts}
        return WatchReading(
            at_s=at_s, devices=dict(devices), names=names, lost=frozenset(lost), job=dict(_job(fresh, at_s)),
            host=dict(_host([series for series in fresh if series.record.exporter == "node"])),
        )  # fmt: skip


def _records() -> dict[str, list[MetricRecord]]:
    """Metric records by the name of their series."""
    from flopwise.facts.catalog import load_facts  # noqa: PLC0415 - where a server is read

    records: dict[str, list[MetricRecord]] = defaultdict(list)
    for record in load_facts(None).metric_records:
        if record.meaning not in MEANINGS:
            continue
        records[f"{record.metric}_bucket" if record.kind == "histogram" else record.metric].append(record)
    return records


def _label_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _values(row: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Times and values of a series. Raises ValueError, TypeError: not a series."""
    return [(float(at_s), float(text)) for at_s, text in row.get("values", ())]


def _matcher(text: str) -> str:
    label, equals, value = text.partition("=")
    if not equals or not LABEL.fullmatch(label.strip()):
        raise SpecError(f"--match: {text[:60]!r} is not LABEL=VALUE, such as workload=chat")
    return f'{label.strip()}="{_label_text(value.strip())}"'


def _device(labels: Mapping[str, str]) -> str:
    """Name of a device: host, number and slice."""
    host = labels.get("Hostname") or labels.get("instance", "").rpartition(":")[0] or labels.get("instance", "")
    number = labels.get("gpu") or labels.get("gpu_id") or labels.get("neuroncore") or "0"
    part = labels.get("GPU_I_ID", "")
    return f"{host}/{number}{'.' + part if part else ''}"


def _add_device(values: dict[str, float], series: _SampledSeries) -> None:
    record = series.record
    scaled = series.value * record.scale
    if record.meaning == "memory_free":
        values["memory_free_bytes"] = scaled
    elif record.meaning in DEVICE_MEANINGS:
        name = DEVICE_MEANINGS[record.meaning]
        if record.meaning.startswith(("pcie", "nvlink")):
            values[name] = values.get(name, 0.0) + scaled
        elif not name.endswith("limit_c") or scaled > 0:  # 0: there is no such sensor
            values[name] = scaled


def _job(series: Sequence[_SampledSeries], at_s: float) -> Iterator[tuple[str, float]]:
    """Measures of all engines and runs together; a counter needs two samples."""
    by_meaning: dict[str, list[float]] = defaultdict(list)
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for one in (one for one in series if one.record.exporter not in (*DEVICES, "node")):
        record, rate = one.record, one.rate.per_s
        if record.kind == "histogram":
            if rate is not None and "le" in one.labels:
                buckets[record.meaning][float(one.labels["le"])] += rate
        elif record.kind == "gauge":
            by_meaning[record.meaning].append(one.value * record.scale)
        elif rate is not None:
            by_meaning[record.meaning].append(rate * record.scale)
        if record.exporter == "run" and record.meaning == "input_tokens":
            yield "tokens", one.value
    if "checkpoint_time" in by_meaning:
        yield "checkpoint_age_s", at_s - max(by_meaning["checkpoint_time"])
    job = {JOB_MEANINGS[m]: max(v) if m == "cache" else sum(v) for m, v in by_meaning.items() if m in JOB_MEANINGS}
    if "output_tokens" in by_meaning and "input_tokens" in by_meaning:
        job["tokens_per_s"] += job["output_tokens_per_s"]
    yield from job.items()
    for meaning, counts in buckets.items():
        latencies = histogram([*counts.items()], 0.0, 0.0)
        values = ((percent, latencies.quantile(percent / 100)) for percent in PERCENTS)
        yield from ((f"{meaning}_p{percent}_s", bound.value) for percent, bound in values if bound is not None)


def _host(series: Sequence[_SampledSeries]) -> Iterator[tuple[str, float]]:
    """Mean shares of the processors' time, and the share of the busiest disk."""
    rates: dict[str, list[float]] = defaultdict(list)
    for one in series:
        if one.record.kind == "counter" and one.rate.per_s is not None:
            rates[one.record.meaning].append(one.rate.per_s)
    idle, wait, disks = (rates.get(name, []) for name in ("idle", "io_wait", "disk_busy"))
    if idle:
        waiting = sum(wait) / len(wait) if wait else 0.0
        yield "cpu_busy_frac", min(1.0, max(0.0, 1 - sum(idle) / len(idle) - waiting))
        yield "cpu_wait_frac", waiting
    if disks:
        yield "disk_busy_frac", min(1.0, max(disks))
