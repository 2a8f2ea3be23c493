"""`flopwise runs list`: one line a run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from flopwise import units
from flopwise.cli import options
from flopwise.cli.options import flags
from flopwise.cli.render import Screen, table, verdict
from flopwise.cli.runs.lines import SHORT_ID, runs_line
from flopwise.records.spec import RunFilter, StoreSpec
from flopwise.results import attributes

if TYPE_CHECKING:
    from flopwise.records.model import RecordedRun

SILENT_S = 300.0
"""From when on nothing heard of a run that goes on is worth a word."""
RUN_KEYS = (
    "run.run_id run.name run.task run.status run.source run.model run.gpu run.gpus run.host run.started_at_s "
    "run.ended_at_s run.last_at_s seconds run.price_usd_per_hour run.budget_usd"
)


@options.command(
    "list", "flopwise runs list", "flopwise runs list --task pretrain --since 30d --status finished",
    "flopwise runs list --json",
)  # fmt: skip
@flags(RunFilter)
@flags(StoreSpec)
@options.web_flag
def command(*, store: str | None, web: bool, **which: str | None) -> None:
    """Recorded runs, latest first.

    Rates are means over the run, loss and cost the last value; a cost that was not recorded is that of the
    run's time. A run that was killed stays `running`; the table then shows the time since its last sample.
    """
    from flopwise.records.runs import runs

    if web:
        from flopwise.cli.commands.web import run_server

        options.refuse(which, "the page lists all runs; filter them there")
        run_server("runs")
        return
    rows = runs(store=store, **options.values(which))
    shown = {"Runs from files of other tools": runs_line("import", "FILE", store=store)}
    if rows:
        shown = {"A run against its estimate": runs_line("show", rows[0].run.run_id[:SHORT_ID], store=store)}
    options.answer(rows, _lines, lambda all_of: [document(one) for one in all_of], further=shown)


def document(one: RecordedRun) -> dict[str, Any]:
    """A run as JSON: itself, and each metric in one number."""
    return attributes(one, RUN_KEYS) | {"metrics": one.figures}


def moment(at_s: float | None) -> str | None:
    """A time as people read it, in their own zone."""
    if at_s is None:
        return None
    try:
        return dt.datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):
        return f"{at_s:.0f} s"


def state(one: RecordedRun) -> str:
    """The status; of a running one with the time since its last sign of life."""
    heard_s = one.run.started_at_s if one.run.last_at_s is None else one.run.last_at_s
    silent_s = dt.datetime.now(tz=dt.UTC).timestamp() - heard_s
    if one.run.status != "running" or silent_s < SILENT_S:
        return one.run.status
    return f"running, no samples for {units.format_seconds(silent_s)}"


def last(one: RecordedRun, metric: str) -> float | None:
    """The last value of a metric; None where it was not measured."""
    return next((summary.last for (name, _), summary in one.summaries.items() if name == metric), None)


def _lines(rows: Sequence[RecordedRun], paper: Screen) -> Iterator[str]:
    if not rows:
        yield verdict("No recorded run matches. `flopwise.callbacks` records runs as they go.", paper)
        return
    running = sum(one.run.status == "running" for one in rows)
    count = "1 recorded run" if len(rows) == 1 else f"{len(rows):,} recorded runs"
    yield verdict(f"{count}, {running:,} of them running; the latest is {rows[0].run.name}.", paper)
    heads = (
        "run", "name", "task", "model", "machines", "began", ">took", "status", ">tokens/s", ">MFU", ">loss", ">cost",
    )  # fmt: skip
    spare = ("task", "machines", ">cost", ">MFU", ">took")
    yield table(heads, [_cells(one) for one in rows], paper, spare=spare)


def _cells(one: RecordedRun) -> tuple[Any, ...]:
    run, figures = one.run, one.figures
    mfu, rate = figures.get("mfu_frac"), figures.get("tokens_per_s")
    machines = " x ".join(str(part) for part in (run.gpus, run.gpu) if part is not None)
    took = None if one.seconds is None else units.format_seconds(one.seconds)
    return (
        run.run_id[:SHORT_ID], run.name, run.task, run.model, machines, moment(run.started_at_s), took, state(one),
        None if rate is None else units.format_count(rate), None if mfu is None else units.format_percent(mfu),
        last(one, "loss"), units.format_cost(figures.get("cost_usd")),
    )  # fmt: skip
