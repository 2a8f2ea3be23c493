"""`flopwise runs show`: what was measured in a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.jsonout import attributes
from flopwise.cli.options import add, flags
from flopwise.cli.parts import price
from flopwise.cli.render import Screen, heading, pairs, table
from flopwise.cli.runs.explained import explained_blocks, explained_document
from flopwise.cli.runs.list_runs import document as run_document
from flopwise.cli.runs.list_runs import moment, state
from flopwise.options import FILE
from flopwise.records.metrics import METRICS
from flopwise.records.spec import StoreSpec

if TYPE_CHECKING:
    from flopwise.api.run_reports import ExplainedRun
    from flopwise.records.model import RecordedRun

MOST_EVENTS = 20


@options.command(
    "show", "flopwise runs show pretrain-tiny", "flopwise runs show serve-tiny --json",
    "flopwise runs show pretrain-tiny -o build/run.html",
)  # fmt: skip
@options.argument("run")
@add("-o --output", FILE, "Write it as one HTML page, too.")
@flags(StoreSpec)
def command(*, run: str, output: Path | None, store: str | None) -> None:
    """What was measured in a run, beside what was expected.

    RUN is an id, its first digits (four or more), or a name: the latest run of it. First whether it is on plan; then
    where the time of a step or a request goes, by term, as far as it was measured; likely causes with what can be done;
    each figure beside the expected one with its 80 % interval: medians of the steady steps, means of requests. Last all
    that was recorded: each metric with its mean over the whole run, and what happened.
    """
    from flopwise.api.run_reports import explain_run
    from flopwise.api.runs import recorded_run

    found = recorded_run(run, store=store)
    why = explain_run(found.run.run_id, store=store, page=output)
    options.answer(
        found, lambda held, paper: _blocks(held, why, paper), lambda held: document(held) | explained_document(why)
    )


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


def _blocks(found: RecordedRun, why: ExplainedRun, paper: Screen) -> Iterator[str]:
    run = found.run
    yield from explained_blocks(why, paper)
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
    yield heading("Recorded", paper)
    heads = ("metric", "device", "unit", ">samples", ">mean or total", ">low", ">high", ">last", ">not finite")
    rows = [
        (s.metric, s.device, METRICS[s.metric].unit, s.count + s.not_finite,
         s.total if METRICS[s.metric].cumulative else s.mean, s.low, s.high, s.last, s.not_finite or None)
        for s in found.summaries.values()
    ]  # fmt: skip
    yield table(heads, rows, paper, spare=(">not finite", ">samples", ">low")) if rows else "Nothing was measured."
    if run.expected is not None:
        yield f"Expected by flopwise {run.expected.version}: {run.expected.question}"
    yield from _events(found, paper)


def _events(found: RecordedRun, paper: Screen) -> Iterator[str]:
    if not found.events:
        return
    yield heading("What happened", paper)
    rows = [(moment(one.at_s), one.step, one.kind, one.device, one.text) for one in found.events[-MOST_EVENTS:]]
    yield table(["when", ">step", "what", "device", "text"], rows, paper)
    if len(found.events) > MOST_EVENTS:
        yield f"{len(found.events) - MOST_EVENTS:,} earlier ones are in --json."
