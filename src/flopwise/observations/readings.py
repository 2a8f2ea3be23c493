"""A reading of an engine's metrics: its page of Prometheus text as the quantities of data/metrics.csv."""

from __future__ import annotations

import math
import urllib.error
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from urllib.parse import urlsplit, urlunsplit

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.metrics import MetricRecord
from flopwise.pages import http_address, page_bytes, shown_address
from flopwise.records.histograms import Histogram, histogram
from flopwise.values import dataclass

TIMEOUT_S = 5.0
MOST_BYTES = 64 * 2**20
"""Of one page."""
SHARES = frozenset({"cache"})
"""Gauges that are shares of a device: several replicas are averaged. Other gauges are counts and are summed."""

Series = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Samples of a page by their names: (labels, value)."""
Page = Callable[[str], str]
"""A function that reads the text at an address."""


@dataclass(frozen=True, slots=True)
class Reading:
    """An engine's metrics at one time, by meaning; several replicas on one page are summed."""

    at_s: float
    numbers: Mapping[str, float] = field(default_factory=dict)  # gauges and counters
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    started_s: float | None = None  # when the process began, by its own clock


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth of an engine's counters and histograms between two readings."""

    begin_s: float
    end_s: float
    numbers: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    restarted: bool  # the engine restarted in between: its counts just before that are not known

    def count(self, name: str) -> float:
        """Growth of a counter, or observations of a histogram; 0 where there is none."""
        return self.histograms[name].count if name in self.histograms else self.numbers.get(name, 0.0)


def growth(before: Reading, now: Reading, counters: frozenset[str]) -> Growth:
    """The growth between two readings of one engine; `counters`: the numbers that only grow.

    A different start time, or a counter that fell, shows a restart: the growth is then the count since the restart.
    A counter that was absent counts from zero: some appear with their first event.
    """
    counts = {name: one.count for name, one in now.histograms.items()}
    counts |= {name: value for name, value in now.numbers.items() if name in counters}
    old = {**before.numbers, **{name: one.count for name, one in before.histograms.items()}}
    later = before.started_s is not None and now.started_s is not None and now.started_s > before.started_s + 1
    restarted = later or any(value < old[name] for name, value in counts.items() if name in old)
    known = Reading(before.at_s) if restarted else before
    return Growth(
        before.at_s, now.at_s, {n: now.numbers[n] - known.numbers.get(n, 0.0) for n in counters & {*now.numbers}},
        {n: h.since(known.histograms[n]) if n in known.histograms else h for n, h in now.histograms.items()}, restarted,
    )  # fmt: skip


def engines(facts: Facts) -> list[str]:
    """Engines that can be observed: exporters with a metric of running requests."""
    return list(dict.fromkeys(record.exporter for record in facts.metric_records if record.meaning == "running"))


def page_text(url: str) -> str:
    """The text of a page, by HTTP. Raises OSError: the page cannot be read."""
    body = page_bytes(url, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES, headers={"Accept": "text/plain"})
    return body.decode("utf-8", "replace")


def page_urls(url: str, facts: Facts) -> list[str]:
    """Addresses at which an engine at `url` may serve metrics: `url` itself if it names a page, else known paths.

    Raises: SpecError: not an HTTP address.
    """
    address = http_address(url, "the engine")
    parts = urlsplit(address)
    if parts.path.strip("/") and parts.path.strip("/") != "v1":
        return [address]
    known = engines(facts)
    paths = dict.fromkeys(e.path for e in facts.exporters if e.name in known)
    return [urlunsplit(parts._replace(path=path, query="", fragment="")) for path in paths]


def engine_page(urls: Sequence[str], facts: Facts, page: Page = page_text) -> tuple[str, str, Series]:
    """(address, engine, metrics) of the first page with the metrics of a known engine.

    Raises: SpecError: no page answers, or none has the metrics of a known engine; gives the reason for each.
    """
    missing, strange = list[str](), list[str]()
    for url in urls:
        shown = shown_address(url)
        try:
            series = page_series(page(url))
            return url, engine_of(series, facts), series
        except urllib.error.HTTPError as fault:
            missing.append(f"{shown} answers {fault.code}")
        except OSError as fault:
            reason = getattr(fault, "reason", None) or fault.strerror or fault
            missing.append(f"{shown} cannot be reached ({reason})")
        except SpecError as fault:
            strange.append(f"{shown}: {fault}")
    if strange:
        raise SpecError("; ".join(strange))
    raise SpecError(f"no metrics: {'; '.join(missing)}. Check that the engine is running with metrics enabled")


def counters_of(engine: str, facts: Facts) -> frozenset[str]:
    """The metrics of an engine that are counters."""
    return frozenset(r.meaning for r in facts.metric_records if r.exporter == engine and r.kind == "counter")


def page_series(text: str) -> Series:
    """All samples of a page. Raises SpecError: the page is not Prometheus text; names the line."""
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only where metrics are read

    series: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series[sample.name].append((sample.labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as fault:
        raise SpecError(f"the page is not Prometheus text ({str(fault)[:120]})") from None
    return series


def engine_of(series: Series, facts: Facts) -> str:
    """The engine whose metrics are on the page: the one with the most metric names on it.

    Raises: SpecError: no known engine; names the metrics that are on the page instead.
    """
    known = engines(facts)
    names = {engine: _present(engine, series, facts) for engine in known}
    best = max(known, key=lambda engine: names[engine])
    if not names[best]:
        others = sorted({name.partition("_")[0].partition(":")[0] for name in series})[:6]
        seen = f"its metrics begin with: {', '.join(others)}" if others else "the page holds no metrics"
        raise SpecError(
            f"no known engine ({seen}); known: {', '.join(known)}. Give the address of the engine itself, and enable "
            f"its metrics (SGLang: --enable-metrics, llama.cpp: --metrics)"
        )
    return best


def _present(engine: str, series: Series, facts: Facts) -> int:
    records = [record for record in facts.metric_records if record.exporter == engine]
    return sum(any(_stands(name, series) for name in _names(record, facts)) for record in records)


def _stands(name: str, series: Series) -> bool:
    return name in series or f"{name}_bucket" in series or f"{name}_count" in series


def _names(record: MetricRecord, facts: Facts) -> list[str]:
    """The current name, then those of older versions; the parser appends `_total` to every counter."""
    key = (record.exporter, record.meaning)
    names = [record.metric, *(f.former for f in facts.former_metrics if (f.exporter, f.meaning) == key)]
    return [*names, *(f"{name}_total" for name in names if record.kind == "counter")]


def older_than(series: Series, engine: str, facts: Facts) -> str | None:
    """The oldest version of the engine that no longer uses a name on the page; None: all names are current."""
    today = {record.meaning: record.metric for record in facts.metric_records if record.exporter == engine}
    versions = [
        former.before_version
        for former in facts.former_metrics
        if former.exporter == engine and _stands(former.former, series) and not _stands(today[former.meaning], series)
    ]
    return min(versions, key=lambda version: [int(part) for part in version.split(".")], default=None)


def reading(series: Series, engine: str, at_s: float, facts: Facts) -> Reading:
    """The quantities on an engine's page; missing values, and those that are not numbers, are left out."""
    numbers: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    for record in facts.metric_records:
        if record.exporter != engine:
            continue
        name = next((n for n in _names(record, facts) if _stands(n, series)), None)
        if name is None:
            continue
        if record.kind == "histogram":
            buckets = _histogram(name, series)
            if buckets is not None:
                histograms[record.meaning] = buckets
            continue
        values = [value for _, value in series.get(name, ()) if math.isfinite(value) and value >= 0]
        if values:
            mean = record.meaning in SHARES
            numbers[record.meaning] = sum(values) * record.scale / (len(values) if mean else 1)
    began = [value for _, value in series.get("process_start_time_seconds", ()) if math.isfinite(value)]
    return Reading(at_s, numbers, histograms, max(began, default=None))


def _histogram(name: str, series: Series) -> Histogram | None:
    """The sum of all series of a histogram; None where no buckets can be read."""
    buckets: dict[float, float] = defaultdict(float)
    for labels, value in series.get(f"{name}_bucket", ()):
        try:
            buckets[float(labels.get("le", "nan"))] += value
        except ValueError:
            continue
    sums, counts = (sum(value for _, value in series.get(f"{name}_{part}", ())) for part in ("sum", "count"))
    if not buckets and not counts:
        return None
    if any(math.isnan(end) for end in buckets) or not math.isfinite(sums):
        return None
    return histogram(list(buckets.items()), sums, counts)
