"""`flopwise runs show`: what was measured in a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.jsonout import attributes
from flopwise.cli.options import flags
from flopwise.cli.parts import price
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cli.runs.list_runs import document as run_document
from flopwise.cli.runs.list_runs import moment, state
from flopwise.records.metrics import METRICS
from flopwise.records.spec import StoreSpec

if TYPE_CHECKING:
    from flopwise.records.model import ExpectedFigure, RecordedRun

MOST_EVENTS = 20
FORMS = {
    "s": units.format_seconds, "bytes": units.format_bytes, "J": units.format_joules, "USD": price,
}  # fmt: skip


@options.command("show", "flopwise runs show pretrain-tiny", "flopwise runs show serve-tiny --json")
@options.argument("run")
@flags(StoreSpec)
def command(*, run: str, store: str | None) -> None:
    """What was measured in a run, beside what was expected.

    RUN is an id, its first digits (four or more), or a name: the latest run of it. Each metric with its mean, range and
    last value; the expected figure with its 80 % interval, and whether the mean lies in it; then what happened.
    """
    from flopwise.api.runs import recorded_run

    options.answer(recorded_run(run, store=store), _blocks, document)


def document(found: RecordedRun) -> dict[str, Any]:
    """The run as JSON."""
    expected = found.run.expected
    return run_document(found) | {
        "software": found.run.software,
        "settings": found.run.settings,
        "expected": expected,
        "summaries": [
            attributes(one, "metric device count not_finite mean total low high last last_at_s")
            | {"unit": METRICS[one.metric].unit}
            for one in found.summaries.values()
        ],
        "events": list(found.events),
    }


def _blocks(found: RecordedRun, paper: Screen) -> Iterator[str]:
    run = found.run
    yield heading(f"Run {run.name} ({run.run_id})", paper)
    machines = " x ".join(str(part) for part in (run.gpus, run.gpu) if part is not None)
    took = None if found.seconds is None else units.format_seconds(found.seconds)
    facts = [
            ("task", run.task), ("model", run.model), ("machines", machines), ("host", run.host),
            ("status", state(found)), ("began", moment(run.started_at_s)), ("ended", moment(run.ended_at_s)),
            ("took", took), ("price an hour", price(run.price_usd_per_hour)), ("budget", price(run.budget_usd)),
            ("source", run.source), *((f"setting {name}", value) for name, value in run.settings.items()),
            *((name, version) for name, version in run.software.items()),
        ]  # fmt: skip
    yield pairs([(name, value) for name, value in facts if value not in (None, "")], paper)
    yield heading("Measured", paper)
    heads = ("metric", "device", "unit", ">samples", ">mean or total", ">low", ">high", ">last", ">not finite")
    rows = [
        (s.metric, s.device, METRICS[s.metric].unit, s.count + s.not_finite,
         s.total if METRICS[s.metric].cumulative else s.mean, s.low, s.high, s.last, s.not_finite or None)
        for s in found.summaries.values()
    ]  # fmt: skip
    yield table(heads, rows, paper, spare=(">not finite", ">samples", ">low")) if rows else "Nothing was measured."
    if run.expected is not None and run.expected.figures:
        yield heading("Expected when it began, beside what it did", paper)
        against = [_against(found, figure) for figure in run.expected.figures.values()]
        yield table(["metric", ">expected", ">low", ">high", ">measured", ">off by", ""], against, paper)
        yield f"Expected by flopwise {run.expected.version}: {run.expected.question}"
    yield from _events(found, paper)


def _against(found: RecordedRun, figure: ExpectedFigure) -> tuple[Any, ...]:
    form = FORMS.get(METRICS[figure.metric].unit, lambda value: f"{value:,.4g}")
    measured = found.figure(figure.metric)
    shown = [form(value) for value in (figure.value, figure.low, figure.high)]
    if measured is None:
        return (figure.metric, *shown, None, None, "not measured")
    off = f"{100 * (measured / figure.value - 1):+.1f} %" if figure.value else None
    verdict = "below" if measured < figure.low else "above" if measured > figure.high else "in the interval"
    return (figure.metric, *shown, form(measured), off, verdict)


def _events(found: RecordedRun, paper: Screen) -> Iterator[str]:
    if not found.events:
        return
    yield heading("What happened", paper)
    rows = [(moment(one.at_s), one.step, one.kind, one.device, one.text) for one in found.events[-MOST_EVENTS:]]
    yield table(["when", ">step", "what", "device", "text"], rows, paper)
    if len(found.events) > MOST_EVENTS:
        yield f"{len(found.events) - MOST_EVENTS:,} earlier ones are in --json."
