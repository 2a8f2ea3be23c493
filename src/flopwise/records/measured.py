"""Measured figures of a run, one per metric: medians of the steady steps, means over requests, peaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from flopwise.records.metrics import METRICS
from flopwise.records.model import Event, Expectation, MetricSummary, Run
from flopwise.records.steady import Statistic, SteadySteps, level, steady
from flopwise.values import dataclass, replace

if TYPE_CHECKING:
    from flopwise.records.store import SampleColumns, Store

MOST_SAMPLES = 50_000
"""Maximum number of samples per metric; longer series are downsampled to means of neighbours."""
OF_REQUESTS = ("ttft_s", "itl_s", "e2e_s", "ttfb_s")
"""Metrics with one sample per request: `serve` estimates their mean over requests."""
PEAKS = ("peak_memory_bytes", "reserved_memory_bytes", "used_memory_bytes")
"""Metrics of which the maximum over devices is used."""
OF_RUNS = ("eta_s", "plan_deviation_frac", "loss", "eval_loss", "learning_rate", "loss_scale", "grad_norm")
"""Metrics that change during a run by design: they have no steady level; for losses the last value is used."""
LOSSES = ("loss", "eval_loss")
SAME_BATCH_FRAC = 0.1
"""Relative difference of a step's tokens from the plan, as by padding, up to which the batch counts as equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run and its figures; the expected step time is scaled to the measured tokens per step."""

    run: Run
    levels: Mapping[str, Statistic]  # by metric
    totals: Mapping[str, float]  # of cumulative metrics, by metric
    highest: Mapping[str, float]  # over all devices, by metric
    steady: SteadySteps | None  # of the step times
    series: Mapping[str, SampleColumns]  # of the whole run by metric, for charts
    events: Sequence[Event]
    derived: tuple[str, ...] = ()  # metrics computed from others
    batch_ratio: float = 1.0  # measured over planned tokens per step, by which the expected step time was scaled

    @property
    def trains(self) -> bool:
        """True if it is a training run."""
        return self.run.task != "serve"

    def statistic(self, metric: str) -> Statistic | None:
        """The figure of a metric, or the total of a cumulative one; None if it was not measured."""
        total = self.totals.get(metric)
        if total is None:
            return self.levels.get(metric)
        return Statistic(value=total, error=None, count=1, statistic="total")

    def value(self, metric: str) -> float | None:
        """The figure as a number."""
        statistic = self.statistic(metric)
        return None if statistic is None else statistic.value


def run_figures(store: Store, run: Run) -> Measured:
    """The measured figures of a run in a store."""
    summaries, events = store.summaries(run.run_id), store.events(run.run_id)
    names = dict.fromkeys(metric for metric, _ in summaries)
    series = {name: store.samples(run.run_id, name, most=MOST_SAMPLES) for name in names if (name, "") in summaries}
    steps = series.get("step_s")
    steady_steps = (
        None if steps is None else steady(steps.step, steps.at_s, steps.value, _with_evaluations(events, series))
    )
    kept = None if steady_steps is None or steps is None else steps.step[steady_steps.kept]
    levels, totals, highest = dict[str, Statistic](), dict[str, float](), dict[str, float]()
    for name in names:
        mine = [s for (metric, _), s in summaries.items() if metric == name and s.count]
        if not mine:
            continue
        highest[name] = max(s.high for s in mine)
        if METRICS[name].cumulative:
            totals[name] = sum(s.total for s in mine)
        elif (one := _level(name, mine, series.get(name), steady_steps, kept, store, run)) is not None:
            levels[name] = one
    if (trained := _trained_peak(levels)) is not None:
        levels["peak_memory_bytes"] = trained
    ratio = _batch_ratio(run, {**levels, **_derived_levels(run, levels)})
    if run.expected is not None and ratio != 1.0:
        run = replace(run, expected=_of_a_step(run.expected, ratio))
    derived = _derived_levels(run, levels)
    return Measured(
        run=run, levels={**levels, **derived}, totals=totals, highest=highest, steady=steady_steps, series=series,
        events=tuple(events), derived=tuple(derived), batch_ratio=ratio,
    )  # fmt: skip


def _batch_ratio(run: Run, levels: Mapping[str, Statistic]) -> float:
    """Measured over planned tokens per step; 1 if they are about equal, or not known."""
    figures = {} if run.expected is None else run.expected.figures
    names = {"step_s", "tokens_per_s"}
    if run.task == "serve" or not names <= levels.keys() or not names <= figures.keys():
        return 1.0
    planned = figures["step_s"].value * figures["tokens_per_s"].value
    ratio = levels["step_s"].value * levels["tokens_per_s"].value / planned if planned else 0.0
    return ratio if ratio > 0 and abs(ratio - 1.0) > SAME_BATCH_FRAC else 1.0


def _of_a_step(expected: Expectation, ratio: float) -> Expectation:
    """The estimate for a step with `ratio` times the tokens: at the same throughput, times the same factor."""
    step = expected.figures["step_s"]
    scaled = replace(step, value=ratio * step.value, low=ratio * step.low, high=ratio * step.high)
    return replace(
        expected, figures={**expected.figures, "step_s": scaled},
        terms={name: ratio * seconds for name, seconds in expected.terms.items()},
    )  # fmt: skip


def _level(
    name: str, mine: Sequence[MetricSummary], columns: SampleColumns | None, steady_steps: SteadySteps | None,
    kept: NDArray[np.int64] | None, store: Store, run: Run,
) -> Statistic | None:  # fmt: skip
    """The figure of a metric: over steady steps, over all requests, the maximum for peaks, the mean over devices."""
    if name in PEAKS:
        return Statistic(
            value=max(s.high for s in mine), error=None, count=sum(s.count for s in mine), statistic="peak"
        )
    if name in OF_RUNS:
        last = mine[0].last if name in LOSSES else float("nan")
        finite = np.isfinite(last)
        return Statistic(value=last, error=None, count=mine[0].count, statistic="last") if finite else None
    if name == "step_s" and steady_steps is not None:
        return steady_steps.level
    if columns is None:
        each = [level(store.samples(run.run_id, name, s.device, most=MOST_SAMPLES).value) for s in mine]
        values = [one.value for one in each if one is not None]
        count = sum(s.count for s in mine)
        return Statistic(value=float(np.mean(values)), error=None, count=count, statistic="median") if values else None
    values_of = columns.value
    if kept is not None and name not in OF_REQUESTS:
        here = np.isin(columns.step, kept) & (columns.step >= 0)
        values_of = values_of[here] if here.any() else values_of
    return level(values_of, "mean" if name in OF_REQUESTS else "median")


def _trained_peak(levels: Mapping[str, Statistic]) -> Statistic | None:
    """The peak of a CPU's process without what it held before it trained; None where that was not recorded.

    Assumes: what was held before is held at the peak.
    """
    peak, before = levels.get("peak_memory_bytes"), levels.get("untrained_memory_bytes")
    return None if peak is None or before is None else replace(peak, value=max(peak.value - before.value, 0.0))


def _with_evaluations(events: Sequence[Event], series: Mapping[str, SampleColumns]) -> list[Event]:
    """The events, with an evaluation added wherever an evaluation loss was logged."""
    logged = series.get("eval_loss")
    if logged is None:
        return list(events)
    marks = zip(logged.at_s, logged.step, strict=True)
    return [*events, *(Event(float(at), "evaluation", "", int(step) if step >= 0 else None) for at, step in marks)]


def _derived_levels(run: Run, levels: Mapping[str, Statistic]) -> dict[str, Statistic]:
    """Throughput and MFU of a training run that were not measured.

    Throughput follows from sequence length and batch, MFU from that of the plan: the same FLOPs in the measured time.

    Source: arithmetic. Assumes: every sequence is full; the run computes what was planned.
    """
    step, seq, batch = levels.get("step_s"), run.settings.get("seq"), run.settings.get("global_batch")
    figures = {} if run.expected is None else run.expected.figures
    each_s = dict[str, float]()  # per step: tokens, or seconds at full utilisation
    if run.task == "serve" or step is None:
        return {}
    if isinstance(seq, int | float) and isinstance(batch, int | float):
        each_s["tokens_per_s"] = float(seq * batch)
    if {"mfu_frac", "step_s"} <= figures.keys():
        each_s["mfu_frac"] = figures["mfu_frac"].value * figures["step_s"].value
    error = None if step.error is None else step.error / step.value
    return {
        name: Statistic(
            value=worth / step.value, error=None if error is None else worth / step.value * error, count=step.count,
            statistic=step.statistic,
        )
        for name, worth in each_s.items()
        if name not in levels
    }  # fmt: skip
