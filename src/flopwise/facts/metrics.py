"""What is measured of machines, engines and runs, under which names: exporters of Prometheus metrics."""

from __future__ import annotations

from typing import Literal

from flopwise.facts.tables import Confidence, Count, Day, FactTable, Positive, SourcedRow
from flopwise.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRecord(SourcedRow):
    """The name of a quantity at an exporter; its value times `scale` is in base units.

    `buckets`: upper ends of a histogram's, empty where they are not known. `labels`: matchers of the series meant.
    """

    exporter: str
    meaning: str
    metric: str
    kind: Literal["gauge", "counter", "histogram"]
    scale: Positive = 1.0
    labels: str = ""
    buckets: tuple[str, ...] = ()

    @property
    def bounds(self) -> tuple[float, ...]:
        """The upper ends as numbers."""
        return tuple(float(end) for end in self.buckets)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerMetric:
    """The name of a quantity of `metrics.csv` in versions of an exporter before `before_version`."""

    exporter: str
    meaning: str
    former: str
    before_version: str
    source: str
    date: Day
    confidence: Confidence = "medium"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterRecord:
    """The port and path of an exporter; `vendor`, `kind`: of the accelerators it measures, empty for others."""

    name: str
    vendor: str
    port: Count
    path: str
    source: str
    date: Day
    kind: str = ""
    apart: bool = False  # an engine's metrics stand on a port of their own
    device: str = ""  # the label that tells the devices of a machine apart; empty where all are one
    confidence: Confidence = "medium"
    notes: str = ""  # what it takes to have it listen


METRICS = FactTable(
    file="metrics.csv", meaning="the metric that an exporter of Prometheus metrics uses for a quantity",
    row=MetricRecord,
    key=("exporter", "meaning"),
)  # fmt: skip
FORMER_METRICS = FactTable(
    file="former_metrics.csv", meaning="the name that older versions of such an exporter used", row=FormerMetric,
    key=("exporter", "meaning", "former"),
)  # fmt: skip
EXPORTERS = FactTable(
    file="exporters.csv", meaning="where such an exporter listens", row=ExporterRecord, key=("name",),
)  # fmt: skip
