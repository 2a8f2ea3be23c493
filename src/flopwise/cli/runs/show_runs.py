"""`flopwise runs show`: what was measured in a run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.charts import Axis, Series, chart
from flopwise.cli.options import flags
from flopwise.cli.parts import bullets
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cli.runs.lines import SHORT_ID, runs_line
from flopwise.cli.runs.list_runs import document as run_document
from flopwise.cli.runs.list_runs import moment, state
from flopwise.records.metrics import METRICS
from flopwise.records.spec import StoreSpec
from flopwise.results import attributes

if TYPE_CHECKING:
    from flopwise.records.explanation import ExplainedRun
    from flopwise.records.model import RecordedRun

MOST_EVENTS = 20
DRAWN = ("step_s", "loss", "ttft_s", "e2e_s")
"""Metrics of which a chart is drawn."""


@options.command(
    "show", "flopwise runs show pretrain-tiny", "flopwise runs show serve-tiny --json",
    "flopwise runs show pretrain-tiny -o build/run.html", work="comparing the run",
)  # fmt: skip
@options.argument("run")
@options.page_flag
@flags(StoreSpec)
@options.web_flag
def command(*, run: str, output: Path | None, store: str | None, web: bool) -> None:
    """A run compared with its estimate.

    RUN is an id, its first digits (four or more), or a name (the latest run of that name). The first line says whether
    it is on plan. The answer then has the terms of a step or a request, likely causes with remedies, and each figure
    with its estimate and 80 % interval: medians of the steady steps, means over requests. At the end are all recorded
    metrics, with their mean over the whole run, and events.
    """
    from flopwise.records.reports import explain_run
    from flopwise.records.runs import recorded_run

    if web:
        from flopwise.cli.commands.web import run_server

        run_server("runs")
        return
    run_record = recorded_run(run, store=store)
    why = explain_run(run_record.run.run_id, store=store, page=output)
    options.answer(
        run_record,
        lambda record, paper: _blocks(record, why, paper),
        lambda record: document(record) | _explained_document(why),
        further=_further(run_record, store),
    )


def _further(recorded: RecordedRun, store: str | None) -> dict[str, str]:
    """The command of the run's estimate, or the one that writes all its samples."""
    if recorded.run.expected is not None:
        return {f"Its estimate, by flopwise {recorded.run.expected.version}": recorded.run.expected.question}
    short = recorded.run.run_id[:SHORT_ID]
    return {"All its samples, as a file": runs_line("export", short, "-o", f"{short}.jsonl", store=store)}


def document(recorded: RecordedRun) -> dict[str, Any]:
    """The run as JSON."""
    expected = recorded.run.expected
    return run_document(recorded) | {
        "software": recorded.run.software,
        "settings": recorded.run.settings,
        "expected": expected,
        "summaries": [
            attributes(one, "metric device count not_finite mean total low high last last_at_s")
            | {"unit": METRICS[one.metric].unit}
            for one in recorded.summaries.values()
        ],
        "events": list(recorded.events),
    }


def _blocks(recorded: RecordedRun, why: ExplainedRun, paper: Screen) -> Iterator[str]:
    run = recorded.run
    yield from _explained_blocks(why, paper)
    yield heading(f"Run {run.name} ({run.run_id})", paper)
    machines = " x ".join(str(part) for part in (run.gpus, run.gpu) if part is not None)
    took = None if recorded.seconds is None else units.format_seconds(recorded.seconds)
    facts = [
            ("task", run.task), ("model", run.model), ("machines", machines), ("host", run.host),
            ("status", state(recorded)), ("began", moment(run.started_at_s)), ("ended", moment(run.ended_at_s)),
            ("took", took), ("price an hour", units.format_cost(run.price_usd_per_hour)),
            ("budget", units.format_cost(run.budget_usd)),
            ("source", run.source), *((f"setting {name}", value) for name, value in run.settings.items()),
            *((name, version) for name, version in run.software.items()),
        ]  # fmt: skip
    yield pairs([(name, value) for name, value in facts if value not in (None, "")], paper)
    yield heading("Recorded", paper)
    heads = ("metric", "device", "unit", ">samples", ">mean or total", ">low", ">high", ">last", ">not finite")
    rows = [
        (s.metric, s.device, METRICS[s.metric].unit, s.count + s.not_finite,
         s.total if METRICS[s.metric].cumulative else s.mean, s.low, s.high, s.last, s.not_finite or None)
        for s in recorded.summaries.values()
    ]  # fmt: skip
    yield table(heads, rows, paper, spare=(">not finite", ">samples", ">low")) if rows else "Nothing was measured."
    yield from _events(recorded, paper)


def _events(recorded: RecordedRun, paper: Screen) -> Iterator[str]:
    if not recorded.events:
        return
    yield heading("Events", paper)
    rows = [(moment(one.at_s), one.step, one.kind, one.device, one.text) for one in recorded.events[-MOST_EVENTS:]]
    yield table(["when", ">step", "what", "device", "text"], rows, paper)
    if len(recorded.events) > MOST_EVENTS:
        yield f"{len(recorded.events) - MOST_EVENTS:,} earlier ones are in --json."


def _explained_document(explained: ExplainedRun) -> dict[str, Any]:
    """The explanation as JSON; `series`: metrics over the run, thinned out to medians, by step, request or second."""
    from flopwise.records.page import chart_points

    why, steady = explained.explanation, explained.measured.steady
    return {
        "verdict": why.verdict,
        "figures": [
            attributes(
                one,
                "metric measured=measured.value noise=measured.interval statistic=measured.statistic "
                "count=measured.count expected=expected.value low=expected.low high=expected.high difference place "
                "derived",
            )
            for one in why.outcomes
        ],
        "terms": [attributes(one, "name expected_s measured_s difference_s basis") for one in why.terms],
        "series": {name: points for name in DRAWN if len(points := chart_points(explained.measured, name)) > 1},
        "causes": list(why.causes),
        "steady": None
        if steady is None
        else attributes(steady, "warm_up_lines warm_up_s whole_s") | {"pauses": list(steady.pauses)},
        "notes": list(why.notes),
    }


def _explained_blocks(explained: ExplainedRun, paper: Screen) -> Iterator[str]:
    """The verdict and its reasons."""
    from flopwise.records.page import OUTCOME_HEADS, chart_points, figure_text, outcome_cells

    why = explained.explanation
    yield heading(why.verdict, paper)
    if why.terms:
        whole = sum(term.expected_s for term in why.terms)
        rows = [
            (t.name, units.format_seconds(t.expected_s), units.format_seconds(t.measured_s),
             units.format_change(t.difference_s / whole + 1, 1), t.basis)
            for t in why.terms
        ]  # fmt: skip
        yield heading(f"Where the time of a {'step' if explained.measured.trains else 'request'} goes", paper)
        yield table(["term", ">expected", ">measured", ">of the total", "basis"], rows, paper)
    if why.causes:
        yield bullets("Likely causes", [f"{c.name}: {c.evidence}; {c.lever}" for c in why.causes])
    yield heading("Steady figures" if explained.measured.trains else "Figures", paper)
    yield table(OUTCOME_HEADS, [outcome_cells(one) for one in why.outcomes], paper)
    for metric in DRAWN:
        points = chart_points(explained.measured, metric)
        if len(points) > 1:
            yield heading(f"{metric} over the run", paper)
            axis = Axis(metric, partial(figure_text, metric))
            across = Axis("step" if explained.measured.trains else "request")
            yield chart([Series(metric, points, line=True)], across, axis, paper, rows=8)
    if why.notes:
        yield bullets("How this was found", why.notes)
