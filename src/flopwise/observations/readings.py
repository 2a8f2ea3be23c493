"""One reading of an engine's metrics: its page of Prometheus text as the quantities that data/metrics.csv names."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flopwise.errors import SpecError
from flopwise.facts.catalog import Facts
from flopwise.facts.metrics import MetricRecord
from flopwise.observations.histograms import Histogram, histogram

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp")
"""Engines that can be observed: exporters of data/metrics.csv."""
SHARES = frozenset({"cache"})
"""Gauges that are shares of a device, of which several replicas' mean is taken; others are counts."""

Series = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Samples of a page by their names: (labels, value)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an engine said at one time, by meaning; several replicas behind one page are summed."""

    at_s: float
    numbers: Mapping[str, float] = field(default_factory=dict)  # gauges and counters
    histograms: Mapping[str, Histogram] = field(default_factory=dict)
    started_s: float | None = None  # when the process began, by its own clock


def page_series(text: str) -> Series:
    """All samples of a page.

    Raises:
        SpecError: the page is no Prometheus text; says the line.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415 - only where metrics are read

    found: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name].append((sample.labels, float(sample.value)))
    except (ValueError, KeyError, IndexError) as fault:
        raise SpecError(f"the page is no Prometheus text ({str(fault)[:120]})") from None
    return found


def engine_of(series: Series, facts: Facts) -> str:
    """The engine whose metrics stand on the page: the one most of whose names are there.

    Raises:
        SpecError: none that is known; says what stands there instead.
    """
    names = {engine: _present(engine, series, facts) for engine in ENGINES}
    best = max(ENGINES, key=lambda engine: names[engine])
    if not names[best]:
        others = sorted({name.partition("_")[0].partition(":")[0] for name in series})[:6]
        seen = f"its metrics begin with: {', '.join(others)}" if others else "the page holds no metrics"
        raise SpecError(
            f"no engine that can be observed ({seen}); known are {', '.join(ENGINES)}. Is it the engine's own address, "
            f"and are its metrics switched on (SGLang: --enable-metrics, llama.cpp: --metrics)?"
        )
    return best


def _present(engine: str, series: Series, facts: Facts) -> int:
    records = [record for record in facts.metric_records if record.exporter == engine]
    return sum(any(_stands(name, series) for name in _names(record, facts)) for record in records)


def _stands(name: str, series: Series) -> bool:
    return name in series or f"{name}_bucket" in series or f"{name}_count" in series


def _names(record: MetricRecord, facts: Facts) -> list[str]:
    """Today's name, then those of older versions."""
    key = (record.exporter, record.meaning)
    return [record.metric, *(f.former for f in facts.former_metrics if (f.exporter, f.meaning) == key)]


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
