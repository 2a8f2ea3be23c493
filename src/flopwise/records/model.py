"""A recorded run as plain data: its settings, estimate and measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal

from flopwise.records.metrics import METRICS
from flopwise.units import HOUR_S
from flopwise.values import dataclass

RunStatus = Literal["running", "finished", "stopped", "failed"]
"""`stopped`: ended early by its budget or by a person; a run that was killed stays `running`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedFigure:
    """The estimate of a metric with its 80 % interval, in the unit of the metric."""

    metric: str
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The estimate of a run at its beginning: figures, and the terms of a step or a request."""

    figures: Mapping[str, ExpectedFigure]  # by metric
    terms: Mapping[str, float]  # seconds of a step or of a request, by term; they add up to the total
    question: str  # the command that gives the same estimate
    version: str  # of flopwise


def ranged_figures(ranges: Mapping[str, tuple[float, float, float]]) -> dict[str, ExpectedFigure]:
    """Figures of an estimate by metric, from (value, low, high) of each."""
    return {
        name: ExpectedFigure(metric=name, value=float(value), low=float(low), high=float(high))
        for name, (value, low, high) in ranges.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training or serving run, recorded or imported."""

    run_id: str  # 32 hexadecimal digits
    name: str
    task: Literal["pretrain", "finetune", "serve"]
    started_at_s: float  # seconds since 1970
    ended_at_s: float | None = None
    last_at_s: float | None = None  # of its latest sample or event; the store fills it in
    status: RunStatus = "running"
    source: str = "recorded"  # or the format that it was imported from
    model: str | None = None
    gpu: str | None = None
    gpus: int | None = None
    host: str | None = None
    software: Mapping[str, str] = field(default_factory=dict)  # version by package
    settings: Mapping[str, object] = field(default_factory=dict)  # options of `train` or `serve`, by their keywords
    price_usd_per_hour: float | None = None  # of all its accelerators
    budget_usd: float | None = None
    expected: Expectation | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value of a metric; `device` if it belongs to one accelerator."""

    metric: str
    at_s: float  # seconds since 1970
    value: float
    step: int | None = None
    device: str = ""

    def __post_init__(self) -> None:
        assert self.metric in METRICS, self.metric


@dataclass(frozen=True, slots=True)
class Event:
    """A single event: a skipped step, a throttled clock, a budget reached, an error of a device."""

    at_s: float
    kind: str
    text: str
    step: int | None = None
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """Summary of all samples of a metric, updated while they are written, so that lists need not read samples.

    `low`, `high` and `total` are of the `count` finite samples, and NaN if there are none. The `total` of a cumulative
    metric is its growth, where a counter that falls was reset.
    """

    metric: str
    count: int
    total: float
    low: float
    high: float
    last: float  # in the order in which they were written; may be NaN or infinite
    last_at_s: float
    device: str = ""
    not_finite: int = 0  # samples that are NaN or infinite

    @property
    def mean(self) -> float:
        """Mean over the finite samples, in the unit of the metric; NaN where there is none."""
        return self.total / self.count if self.count else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """A run with summaries of its samples, by metric and device, and its events."""

    run: Run
    summaries: Mapping[tuple[str, str], MetricSummary]
    events: Sequence[Event] = ()

    def figure(self, metric: str) -> float | None:
        """The metric as one number over all devices: the mean, or a counter's growth; None without samples."""
        summaries = [one for (name, _), one in self.summaries.items() if name == metric and one.count]
        total = sum(one.total for one in summaries)
        if not summaries:
            return None
        return total if METRICS[metric].cumulative else total / sum(one.count for one in summaries)

    @property
    def figures(self) -> dict[str, float | None]:
        """Each metric as one number; tokens/s and cost that were not recorded follow from tokens, time and price."""
        found = {metric: self.figure(metric) for metric, _ in self.summaries}
        tokens, usd_per_hour = found.get("tokens"), self.run.price_usd_per_hour
        if self.seconds:
            if tokens is not None:
                found.setdefault("tokens_per_s", tokens / self.seconds)
            if usd_per_hour is not None:
                found.setdefault("cost_usd", usd_per_hour * self.seconds / HOUR_S)
        return found

    @property
    def seconds(self) -> float | None:
        """Duration of the run, or until its latest sample, in seconds; None without samples."""
        until_s = self.run.last_at_s if self.run.ended_at_s is None else self.run.ended_at_s
        return None if until_s is None else max(until_s - self.run.started_at_s, 0.0)
