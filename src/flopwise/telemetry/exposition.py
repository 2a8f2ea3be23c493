"""The status of `watch` as Prometheus metrics with stable names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise.errors import SpecError
from flopwise.telemetry.diagnosis import BOUNDS
from flopwise.telemetry.readings import MEASURES
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.telemetry.watcher import WatchStatus

PREFIX = "flopwise_watch_"


@dataclass(frozen=True, slots=True)
class ServedMetric:
    """A served gauge with its labels and meaning."""

    name: str
    labels: tuple[str, ...]
    meaning: str


_OF = {"device": ("device", "name"), "job": (), "host": ()}
_MEASURED = {m.name: ServedMetric(f"{PREFIX}{m.served}", _OF[m.of], m.meaning) for m in MEASURES.values()}
_MORE = {
    name: ServedMetric(f"{PREFIX}{name}", labels, meaning)
    for name, labels, meaning in (
        ("device_up", ("device", "name"), "1: the device answers; 0: it no longer answers"),
        ("source_up", ("source",), "1: the source of readings answers"),
        ("last_reading_timestamp_seconds", (), "time of the last reading"),
        ("bound", ("bound",), "1: this is the bound of the job"),
        ("bound_certain", (), "1: no other bound explains the readings"),
        ("healthy", (), "1: as planned, or bound only by the devices' own rates; no sample if unknown"),
        ("plan", ("measure", "end"), "expected value of a measure: value, low and high"),
        ("alert_firing", ("alert", "device", "severity"), "1: this alert fires"),
        ("alert_threshold", ("alert",), "threshold of the alert"),
        ("cost_dollars_per_hour", (), "price of all machines"),
        ("cost_dollars", (), "cost so far"),
        ("day_cost_dollars", (), "cost of the last 24 hours"),
        ("budget_dollars", (), "budget of the job"),
        ("projected_cost_dollars", (), "projected cost of the whole job at its present rate"),
        ("projected_end_timestamp_seconds", (), "projected end of the job at its present rate"),
        ("done_ratio", (), "share of the job's tokens processed so far"),
    )
}
SERVED = (*_MEASURED.values(), *_MORE.values())
"""All metrics in the order of the page; docs/questions/watch.md lists them."""


def served_values(status: WatchStatus) -> Iterator[tuple[ServedMetric, tuple[str, ...], float]]:
    """(metric, values of its labels, value) of a status; unknown values are not served."""
    reading, diagnosis = status.reading, status.diagnosis
    for device, values in reading.devices.items():
        labels = (device, reading.names.get(device, ""))
        yield _MORE["device_up"], labels, 1.0
        yield from ((_MEASURED[name], labels, value) for name, value in values.items())
    for device in sorted(reading.lost):
        yield _MORE["device_up"], (device, reading.names.get(device, "")), 0.0
    yield from ((_MEASURED[name], (), value) for name, value in (*reading.job.items(), *reading.host.items()))
    yield _MORE["source_up"], (status.source,), float(not status.source_lost)
    for bound in BOUNDS:
        yield _MORE["bound"], (bound,), float(diagnosis.bound == bound)
    yield _MORE["bound_certain"], (), float(diagnosis.certain)
    if diagnosis.healthy is not None:
        yield _MORE["healthy"], (), float(diagnosis.healthy)
    for name, ends in status.expected.figures.items():
        for end, value in zip(("value", "low", "high"), ends, strict=True):
            yield _MORE["plan"], (name, end), value
    yield from _served_alerts(status)
    yield from _served_money(status)


def _served_alerts(status: WatchStatus) -> Iterator[tuple[ServedMetric, tuple[str, ...], float]]:
    firing = {(change.limit.name, change.device) for change in status.firing}
    for limit in status.expected.limits:
        yield _MORE["alert_threshold"], (limit.name,), limit.threshold
        for device in sorted({device for name, device in firing if name == limit.name} or {""}):
            yield _MORE["alert_firing"], (limit.name, device, limit.severity), float((limit.name, device) in firing)


def _served_money(status: WatchStatus) -> Iterator[tuple[ServedMetric, tuple[str, ...], float]]:
    spend = status.spend
    for name, number in (
        ("last_reading_timestamp_seconds", status.reading.at_s), ("cost_dollars_per_hour", spend.usd_per_hour),
        ("cost_dollars", spend.total_usd), ("day_cost_dollars", spend.day_usd),
        ("budget_dollars", status.expected.budget_usd), ("projected_cost_dollars", spend.projected_usd),
        ("projected_end_timestamp_seconds", spend.ends_at_s), ("done_ratio", spend.done_frac),
    ):  # fmt: skip
        if number is not None:
            yield _MORE[name], (), number


class MetricsPage:
    """A page of metrics with the last status."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        """Serve at http://HOST:PORT/metrics from a thread. Raises SpecError: the port is in use or not permitted."""
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - only where it is served

        self.status: WatchStatus | None = None
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise SpecError(f"--serve: {host}:{port} cannot be served ({error.strerror or error})") from None
        self.port = int(self._server.server_address[1])

    def collect(self) -> Iterator[Any]:
        """The metrics of the last status, as prometheus-client requires them."""
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - same

        if self.status is None:
            return
        families = {
            metric.name: GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels) for metric in SERVED
        }
        for metric, labels, value in served_values(self.status):
            families[metric.name].add_metric(labels, value)
        yield from (family for family in families.values() if family.samples)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)
