"""A run, or several runs side by side, as a document: verdict, figures with intervals, terms, charts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from flopwise.files import write_whole
from flopwise.records.comparison import Comparison, Contrast
from flopwise.records.explanation import MetricOutcome, RunExplanation, explanation
from flopwise.records.measured import Measured
from flopwise.records.metrics import METRICS
from flopwise.records.model import ExpectedFigure
from flopwise.report.blocks import Bar, Bars, Block, Bullets, Curve, Curves, Document, Points, Section, Table, Text
from flopwise.report.pages import html
from flopwise.units import format_bytes, format_number, format_percent, format_seconds, format_usd

CHARTS = (
    "step_s", "loss", "tokens_per_s", "data_wait_s", "grad_norm", "mfu_frac", "ttft_s", "itl_s", "e2e_s",
    "requests_running", "requests_waiting",
)  # fmt: skip
"""Metrics that are drawn if they were measured, in this order."""
MOST_POINTS = 400
FOOTER = "Measured figures are medians of the steady steps or means over requests; intervals are 80 % intervals."


def figure_text(metric: str, value: float) -> str:
    """A figure with its unit, as text."""
    unit = METRICS[metric].unit if metric in METRICS else ""
    if unit == "s":
        return format_seconds(value)
    if unit == "bytes":
        return format_bytes(value)
    if unit == "USD":
        return format_usd(value)
    if metric.endswith("_frac"):
        return format_percent(value)
    return f"{value:,.0f} {unit}".rstrip() if abs(value) >= 1000 else f"{format_number(value, 4)} {unit}".rstrip()


def write_page(file: str | Path, subject: Measured | Comparison, why: RunExplanation | None = None) -> None:
    """Write the page of a run with its explanation, or of several runs; whole, or not at all.

    Raises: SpecError: the file cannot be written.
    """
    if isinstance(subject, Comparison):
        made = _comparison_document(subject)
    else:
        made = _run_document(subject, explanation(subject) if why is None else why)
    write_whole(file, html(made).encode("utf-8", "replace"))


def _run_document(measured: Measured, why: RunExplanation) -> Document:
    """The page of one run."""
    run = measured.run
    sections = [
        Section("Verdict", (Text(why.verdict, strong=True), *_causes(why))),
        Section("Measured and expected", tuple(_figures(why))),
        Section("Where the time goes", tuple(_terms(why))),
        Section("Over the run", tuple(_charts([measured]))),
        Section("The run", tuple(_facts(measured))),
        Section("How this was determined", (Bullets(why.notes),) if why.notes else ()),
    ]
    machines = " x ".join(str(part) for part in (run.gpus, run.gpu) if part is not None)
    return Document(
        title=f"Run {run.name}", subtitle=", ".join(part for part in (run.task, run.model, machines) if part),
        sections=[section for section in sections if section.blocks], footer=FOOTER,
    )  # fmt: skip


def _comparison_document(comparison: Comparison) -> Document:
    """The page of several runs."""
    names = [one.run.name for one in comparison.runs]
    settings = Table(["setting", *names], [(name, *row) for name, row in comparison.settings.items()])
    sections = [
        Section("Figures", (Table(contrast_heads(names), [contrast_cells(c) for c in comparison.contrasts]),)),
        Section("Settings that differ", (settings,) if settings.rows else (Text("No known differences."),)),
        Section("Over the runs", tuple(_charts(comparison.runs))),
    ]
    return Document(title="Runs compared", subtitle=", ".join(names), sections=sections, footer=FOOTER)


def contrast_heads(names: Sequence[str]) -> list[str]:
    """Table headers for several runs: the first, and the others with their differences."""
    return ["metric", f">{names[0]}", *(head for name in names[1:] for head in (f">{name}", ">against the first"))]


def contrast_cells(one: Contrast) -> tuple[str, ...]:
    """A metric of several runs, with the relative difference to the first and whether it exceeds noise."""
    cells = [one.metric]
    for place, level in enumerate(one.levels):
        text = "-" if level is None else figure_text(one.metric, level.value)
        planned = one.planned[place]
        cells.append(text if planned is None else f"{text} ({signed_percent(planned)} from the plan)")
        if place:
            cells.append(difference_text(one, place))
    return tuple(cells)


def difference_text(one: Contrast, place: int) -> str:
    """The relative difference of a run from the first, and whether it exceeds noise."""
    against, sure, better = one.against[place], one.sure[place], one.better[place]
    if against is None:
        return "-"
    known = {None: "", False: ", within the noise", True: ", better" if better else ", worse"}[sure]
    losses = one.metric in {"loss", "eval_loss", "learning_rate", "grad_norm", "loss_scale"}
    return signed_percent(against) + ("" if losses else known)


def signed_percent(fraction: float) -> str:
    """A relative difference: `+12.3 %`."""
    return f"{100 * fraction:+.1f} %"


def outcome_cells(one: MetricOutcome) -> tuple[str, ...]:
    """A metric: measured figure and noise, estimate and interval, and where the measured figure lies."""
    taken, planned = one.measured, one.expected
    noise = None if taken is None else taken.interval
    return (
        one.metric,
        "-" if taken is None else figure_text(one.metric, taken.value),
        "-"
        if noise is None or taken is None or not taken.value
        else f"± {format_percent((noise[1] / taken.value) - 1)}",
        "-" if planned is None else figure_text(one.metric, planned.value),
        "-"
        if planned is None
        else f"{figure_text(one.metric, planned.low)} to {figure_text(one.metric, planned.high)}",
        "-" if one.difference is None else signed_percent(one.difference),
        one.place or ("not measured" if taken is None else ""),
    )


OUTCOME_HEADS = ["metric", ">measured", ">noise", ">expected", ">80 % interval", ">difference", "place"]


def _figures(why: RunExplanation) -> Iterator[Block]:
    outcomes = [
        one for one in why.outcomes if one.measured is not None and one.expected is not None and one.expected.value
    ]
    bars = []
    for one in outcomes:
        assert one.measured is not None and one.expected is not None  # noqa: PT018 - of types
        ratio, low, high = (v / one.expected.value for v in (one.measured.value, one.expected.low, one.expected.high))
        bars.append(Bar(one.metric, ratio, format_percent(ratio, 0), low, high, f"{low:.0%} to {high:.0%}"))
    if bars:
        yield Bars("Measured over expected, with the 80 % interval", bars, 1.0, "as expected")
    yield Table(OUTCOME_HEADS, [outcome_cells(one) for one in why.outcomes])


def _terms(why: RunExplanation) -> Iterator[Block]:
    if not why.terms:
        return
    bars = [(t.name, t.expected_s, "expected") for t in why.terms] + [
        (t.name, t.measured_s, "measured") for t in why.terms
    ]
    order = sorted(range(len(bars)), key=lambda place: place % len(why.terms))
    named = [Bar(f"{bars[p][2]}: {bars[p][0]}", bars[p][1], format_seconds(bars[p][1])) for p in order]
    yield Bars("Expected and measured seconds of each term", named)
    rows = [
        (t.name, format_seconds(t.expected_s), format_seconds(t.measured_s), _longer(t.difference_s), t.basis)
        for t in why.terms
    ]
    yield Table(["term", ">expected", ">measured", ">difference", "basis"], rows)


def _longer(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"


def _causes(why: RunExplanation) -> Iterator[Block]:
    if why.causes:
        yield Points([(f"{one.name}.", f"{one.evidence}: {one.lever}.") for one in why.causes])


def _facts(measured: Measured) -> Iterator[Block]:
    run = measured.run
    rows = [(name, str(value)) for name, value in (*run.settings.items(), *run.software.items())]
    if rows:
        yield Table(["setting", "value"], rows)
    if run.expected is not None:
        yield Text(f"Expected by flopwise {run.expected.version}: {run.expected.question}")
    if measured.events:
        shown = [(e.kind, "-" if e.step is None else f"{e.step:,}", e.text) for e in measured.events[:50]]
        note = (
            ""
            if len(measured.events) <= len(shown)
            else f"{len(measured.events) - len(shown):,} more are in the store."
        )
        yield Table(["event", ">step", "what"], shown, note)


def _charts(runs: Sequence[Measured]) -> Iterator[Block]:
    """A chart per metric, over steps if there are any, else over time since the beginning."""
    for metric in CHARTS:
        curves = [Curve(one.run.name, chart_points(one, metric)) for one in runs if metric in one.series]
        curves = [curve for curve in curves if len(curve.points) > 1]
        if not curves:
            continue
        xs, ys = ([point[axis] for curve in curves for point in curve.points] for axis in (0, 1))
        figures = {one.run.expected.figures.get(metric) for one in runs if one.run.expected is not None}
        yield Curves(
            f"{metric}{' by step' if metric not in {'ttft_s', 'itl_s', 'e2e_s'} else ' by request'}", curves,
            x_ticks=[(x, f"{x:,.0f}") for x in np.linspace(min(xs), max(xs), 5)],
            y_ticks=[(y, figure_text(metric, float(y))) for y in np.linspace(min([0.0, *ys]), max(ys), 4)],
            band=_band(figures, max(ys)) if len(runs) == 1 else None,
        )  # fmt: skip


def _band(figures: set[ExpectedFigure | None], most: float) -> tuple[float, float] | None:
    """The expected interval of a single run, over the range of the chart."""
    one = next(iter(figures), None)
    return None if one is None or one.low > most else (one.low, min(one.high, most))


def chart_points(one: Measured, metric: str) -> list[tuple[float, float]]:
    """Points of a metric for a chart, downsampled to medians: over steps, else over seconds since the beginning."""
    columns = one.series.get(metric)
    if columns is None:
        return []
    fine = np.isfinite(columns.value)
    step, value = columns.step[fine], columns.value[fine]
    x = step.astype(float) if step.size and (step >= 0).all() else columns.at_s[fine] - one.run.started_at_s
    order = np.argsort(x, kind="stable")
    width = -(-value.size // MOST_POINTS) or 1
    parts = [order[start : start + width] for start in range(0, value.size, width)]
    return [(float(np.mean(x[part])), float(np.median(value[part]))) for part in parts]
