"""One reading of an engine's metrics: its page of Prometheus text as the quantities that data/metrics.csv names."""

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
"""Gauges that are shares of a device, of which several replicas' mean is taken; others are counts."""

Series = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Samples of a page by their names: (labels, value)."""
Page = Callable[[str], str]
"""What reads the text at an address."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine said at one time, by meaning; several replicas behind one page are summed."""

    at_s: float
    numbers: Mapping[str, float] = field(default_factory=dict)  # gauges and counters
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    started_s: float | None = None  # when the process began, by its own clock


@dataclass(frozen=True, slots=True)
class Growth:
    """What an engine's counters and histograms grew by between two readings."""

    begin_s: float
    end_s: float
    numbers: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    restarted: bool  # the engine began anew in between: what it counted before that is not known

    def count(self, name: str) -> float:
        """Growth of a counter, or observations of a histogram; 0 where there is none."""
        return self.histograms[name].count if name in self.histograms else self.numbers.get(name, 0.0)


def growth(before: Reading, now: Reading, counters: frozenset[str]) -> Growth:
    """What was counted between two readings of one engine; `counters`: the numbers that only grow.

    An engine that has another start time, or a counter of which fell, has begun anew: all that it counts since then.
    A counter that was not there has counted nothing: some appear with their first event.
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
    """Engines that can be observed: exporters that know of requests in a batch."""
    return list(dict.fromkeys(record.exporter for record in facts.metric_records if record.meaning == "running"))


def page_text(url: str) -> str:
    """A page by HTTP.

    Raises:
        OSError: it cannot be had.
    """
    body = page_bytes(url, timeout_s=TIMEOUT_S, most_bytes=MOST_BYTES, headers={"Accept": "text/plain"})
    return body.decode("utf-8", "replace")


def page_urls(url: str, facts: Facts) -> list[str]:
    """Where an engine at `url` may have its metrics: the address itself where it names a page, else known paths.

    Raises:
        SpecError: no address of HTTP.
    """
    address = http_address(url, "the engine")
    parts = urlsplit(address)
    if parts.path.strip("/") and parts.path.strip("/") != "v1":
        return [address]
    known = engines(facts)
    paths = dict.fromkeys(e.path for e in facts.exporters if e.name in known)
    return [urlunsplit(parts._replace(path=path, query="", fragment="")) for path in paths]


def engine_page(urls: Sequence[str], facts: Facts, page: Page = page_text) -> tuple[str, str, Series]:
    """(address, engine, its metrics) of the first page that an engine has its metrics on.

    Raises:
        SpecError: none answers, or none with the metrics of an engine that is known; says why of each.
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
    raise SpecError(f"no metrics: {'; '.join(missing)}. Is the engine up, and are its metrics switched on?")


def counters_of(engine: str, facts: Facts) -> frozenset[str]:
    """The numbers of an engine that only grow."""
    return frozenset(r.meaning for r in facts.metric_records if r.exporter == engine and r.kind == "counter")


def page_series(text: str) -> Series:
    """All samples of a page.

    Raises:
        SpecError: the page is not Prometheus text; says the line.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only where metrics are read

    found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append((sample.labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as fault:
        raise SpecError(f"the page is not Prometheus text ({str(fault)[:120]})") from None
    return found


def engine_of(series: Series, facts: Facts) -> str:
    """The engine whose metrics stand on the page: the one most of whose names are there.

    Raises:
        SpecError: none that is known; says what stands there instead.
    """
    known = engines(facts)
    names = {engine: _present(engine, series, facts) for engine in known}
    best = max(known, key=lambda engine: names[engine])
    if not names[best]:
        others = sorted({name.partition("_")[0].partition(":")[0] for name in series})[:6]
        seen = f"its metrics begin with: {', '.join(others)}" if others else "the page holds no metrics"
        raise SpecError(
            f"no engine that can be observed ({seen}); known are {', '.join(known)}. Is it the engine's own address, "
            f"and are its metrics switched on (SGLang: --enable-metrics, llama.cpp: --metrics)?"
        )
    return best


def _present(engine: str, series: Series, facts: Facts) -> int:
    records = [record for record in facts.metric_records if record.exporter == engine]
    return sum(any(_stands(name, series) for name in _names(record, facts)) for record in records)


def _stands(name: str, series: Series) -> bool:
    return name in series or f"{name}_bucket" in series or f"{name}_count" in series


def _names(record: MetricRecord, facts: Facts) -> list[str]:
    """Today's name, then those of older versions; the parser calls every counter `_total`, whatever the page does."""
    key = (record.exporter, record.meaning)
    names = [record.metric, *(f.former for f in facts.former_metrics if (f.exporter, f.meaning) == key)]
    return [*names, *(f"{name}_total" for name in names if record.kind == "counter")]


def older_than(series: Series, engine: str, facts: Facts) -> str | None:
    """The oldest version of the engine that no longer uses a name that stands on its page; None: all are today's."""
    today = {record.meaning: record.metric for record in facts.metric_records if record.exporter == engine}
    versions = [
        former.before_version
        for former in facts.former_metrics
        if former.exporter == engine and _stands(former.former, series) and not _stands(today[former.meaning], series)
    ]
    return min(versions, key=lambda version: [int(part) for part in version.split(".")], default=None)


def reading(series: Series, engine: str, at_s: float, facts: Facts) -> Reading:
    """The quantities of an engine's page; what is not there, or no number, is left out."""
    numbers: dict[str, float] = {}
    histograms: dict[str, Histogram] = {}
    for record in facts.metric_records:
        if record.exporter != engine:
            continue
        name = next((n for n in _names(record, facts) if _stands(n, series)), None)
        if name is None:
            continue
        if record.kind == "histogram":
            found = _histogram(name, series)
            if found is not None:
                histograms[record.meaning] = found
            continue
        values = [value for _, value in series.get(name, ()) if math.isfinite(value) and value >= 0]
        if values:
            mean = record.meaning in SHARES
            numbers[record.meaning] = sum(values) * record.scale / (len(values) if mean else 1)
    began = [value for _, value in series.get("process_start_time_seconds", ()) if math.isfinite(value)]
    return Reading(at_s, numbers, histograms, max(began, default=None))


def _histogram(name: str, series: Series) -> Histogram | None:
    """All series of a histogram together; None where it has no buckets that can be read."""
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
