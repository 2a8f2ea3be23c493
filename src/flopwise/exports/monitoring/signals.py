"""Measured quantities as PromQL, each with series that produce a given value, for tests of rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from flopwise.exports.deployment import DECODE, PREFILL
from flopwise.facts.accelerators import Accelerator
from flopwise.facts.catalog import Facts
from flopwise.facts.metrics import ExporterRecord, MetricRecord
from flopwise.facts.tables import ANY
from flopwise.values import dataclass

WINDOW = "5m"
"""Window of rates: 5 samples at an interval of a minute, so that a missing one does not matter."""
EVAL_MINUTES = 30
"""Time of a test's evaluation: after the window of every rate and the duration of every alert."""
SAMPLES = EVAL_MINUTES
"""Samples of a test's series after the first, one a minute."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
OF_PREFILL = ("input_tokens",)
"""Meanings that servers for prompts report; of two pools, those that answer report the others."""
OF_BOTH = ("waiting", "cache")
"""Meanings that count in both pools."""
IN_TURN = ("ttft", "latency")
"""Latencies of which each pool sees its own part, where a router asks one after the other."""

Series = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A quantity of one workload: its expression, and series that produce a value.

    `labels`: of its samples besides `workload`, with the values in the test's series. `value_of`: the value that a
    test's series produce if they cannot produce it exactly, such as within the bucket of a histogram.
    """

    expr: str
    series: Callable[[float], Series]
    labels: Mapping[str, str]
    value_of: Callable[[float], float] = float


def number_text(value: float) -> str:
    """A number for PromQL, rules and tests, without an exponent where that is readable."""
    if value == 0 or not 1e-6 <= abs(value) < 1e15:
        return f"{value:.12g}"
    text = f"{value:.{max(0, 11 - math.floor(math.log10(abs(value))))}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def selector(metric: str, matchers: Mapping[str, str], more: str = "") -> str:
    """`metric{label="value"}`; values are names, which need no escapes."""
    inside = [f'{label}="{value}"' for label, value in matchers.items()]
    return f"{metric}{{{','.join([*inside, more] if more else inside)}}}"


def constant_series(value: float) -> str:
    """A constant gauge."""
    return f"{number_text(value)}+0x{SAMPLES}"


def counter_series(per_second: float) -> str:
    """A counter with a constant rate."""
    return f"0+{number_text(60 * per_second)}x{SAMPLES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Meters:
    """The metrics of one workload: for each meaning, that of its first exporter with it."""

    name: str  # of the workload
    exporters: tuple[ExporterRecord, ...]
    facts: Facts
    pools: tuple[str, ...] = ()  # of an engine: the label `pool` of the series of separate servers for prompts

    @classmethod
    def of(
        cls, name: str, facts: Facts, accelerator: Accelerator, software: str = "", pools: tuple[str, ...] = ()
    ) -> Meters:
        """The metrics of a workload on a kind of device with `software`: an engine, or "run" for training."""
        exporters = [e for e in facts.exporters if e.kind == accelerator.kind and e.vendor in (accelerator.vendor, ANY)]
        exporters += [e for e in facts.exporters if software and e.name == software]
        return cls(name=name, exporters=tuple(exporters), facts=facts, pools=pools)

    @property
    def device(self) -> ExporterRecord | None:
        """The exporter of the devices; None if none is known."""
        return next((e for e in self.exporters if e.kind), None)

    @property
    def software(self) -> ExporterRecord | None:
        """The exporter of the engine, or of the run."""
        return next((e for e in self.exporters if not e.kind), None)

    def record(self, meaning: str) -> MetricRecord | None:
        """The metric with a meaning; None if no exporter has it."""
        names = {e.name for e in self.exporters}
        return next((m for m in self.facts.metric_records if m.exporter in names and m.meaning == meaning), None)

    def matchers(self, record: MetricRecord, pool: str = "") -> dict[str, str]:
        """Labels of a test's series of a metric; `pool`: other than the one that its meaning is read from."""
        device = next(e.device for e in self.exporters if e.name == record.exporter)
        extra = {device: "0"} if device else {}
        if of_pool := pool or self._pool(record) or (self._by_pool(record) and DECODE):
            extra["pool"] = of_pool
        return {"workload": self.name, "instance": f"machine-1:{self._port(record)}", **extra}

    def _by_pool(self, record: MetricRecord) -> bool:
        """True if the series of a metric have the label `pool`."""
        return bool(self.pools) and not next(e.kind for e in self.exporters if e.name == record.exporter)

    def _pool(self, record: MetricRecord) -> str:
        """The pool that a metric is read from; empty: all servers."""
        if not self._by_pool(record) or record.meaning in OF_BOTH:
            return ""
        return PREFILL if record.meaning in OF_PREFILL else DECODE

    @property
    def asks_in_turn(self) -> bool:
        """True if a router asks the pools one after the other, so that each sees a part of a request's time.

        Source: the routers of both engines: vllm-router sends a request to a server for prompts and then to another;
        SGLang's gateway sends it to both at once, and the server that answers waits for the cache.
        """
        return bool(self.pools) and self.software is not None and self.software.name == "vllm"

    def _port(self, record: MetricRecord) -> int:
        return next(e.port for e in self.exporters if e.name == record.exporter)

    def select(self, record: MetricRecord, suffix: str = "", pool: str = "") -> str:
        """All of the workload's series of a metric, of the pool that its meaning is read from, or of `pool`."""
        of_pool = pool or self._pool(record)
        matchers = {"workload": self.name} | ({"pool": of_pool} if of_pool else {})
        return selector(f"{record.metric}{suffix}", matchers, record.labels)

    def sample(self, record: MetricRecord, suffix: str = "", **labels: str) -> str:
        """One series of a metric, for a test."""
        return selector(
            f"{record.metric}{suffix}", self.matchers(record, labels.get("pool", "")) | labels, record.labels
        )

    def gauge(self, meaning: str, how: str = "avg", *, each: bool = False) -> Signal | None:
        """A gauge over all machines, or of `each` device."""
        record = self.record(meaning)
        if record is None:
            return None
        kept = {k: v for k, v in self.matchers(record).items() if k not in {"workload", "pool"}} if each else {}
        of = ", ".join(["workload", *kept])
        return Signal(
            expr=times(f"{how} by ({of}) ({self.select(record)})", record.scale), labels=kept,
            series=lambda value: {self.sample(record): constant_series(value / record.scale)},
        )  # fmt: skip

    def rate(self, meaning: str) -> Signal | None:
        """The rate of a counter, over all machines."""
        record = self.record(meaning)
        if record is None:
            return None
        return Signal(
            expr=times(f"sum by (workload) (rate({self.select(record)}[{WINDOW}]))", record.scale), labels={},
            series=lambda value: {self.sample(record): counter_series(value / record.scale)},
        )  # fmt: skip

    def quantile(self, meaning: str, percentile: str) -> Signal | None:
        """A percentile of a histogram.

        Where each pool sees its own part of a latency, the sum of both percentiles, which is that of the whole or more.
        """
        record, share = self.record(meaning), PERCENTILES[percentile]
        if record is None:
            return None
        pools = self.pools if self.asks_in_turn and meaning in IN_TURN else ("",)

        def ends(value: float) -> tuple[float, ...]:
            return record.bounds or (value / 2, value, 2 * value)

        def series(value: float) -> Series:
            """All requests in the bucket of `value`."""
            counts = {str(end): float(value <= end) for end in ends(value)} | {"+Inf": 1.0}
            made = {self.sample(record, "_bucket", le=end): counter_series(n) for end, n in counts.items()}
            if len(pools) == 1:
                return made
            at_once = dict.fromkeys(counts, 1.0)  # of the other pool: in the first bucket
            other = {"pool": next(pool for pool in pools if pool != DECODE)}
            return made | {
                self.sample(record, "_bucket", le=end, **other): counter_series(n) for end, n in at_once.items()
            }

        def value_of(value: float) -> float:
            return part_of(value) + (share * ends(value)[0] if len(pools) > 1 else 0.0)

        def part_of(value: float) -> float:
            place = next((n for n, end in enumerate(ends(value)) if value <= end), None)
            if place is None:
                return ends(value)[-1]
            low = ends(value)[place - 1] if place else 0.0
            return low + share * (ends(value)[place] - low)

        rates = (self.select(record, "_bucket", pool) for pool in pools)
        parts = (f"histogram_quantile({share}, sum by (workload, le) (rate({one}[{WINDOW}])))" for one in rates)
        return Signal(expr=" + ".join(parts), labels={}, series=series, value_of=value_of)


def times(expr: str, factor: float) -> str:
    """An expression times a number."""
    return expr if factor == 1 else f"{expr} * {number_text(factor)}"
