"""`flopwise runs delete`: runs that are no longer wanted."""

from __future__ import annotations

import sys

import click

from flopwise.cli import options
from flopwise.cli.options import add, flags, usage_error
from flopwise.cli.render import plain_text
from flopwise.cli.runs.lines import runs_line
from flopwise.options import FLAG, name
from flopwise.records.spec import StoreSpec
from flopwise.units import format_items


@options.command(
    "delete", "flopwise runs delete pretrain-tiny --yes", "flopwise runs delete pretrain-tiny serve-tiny --yes"
)
@options.argument("runs", name("run", 4096), nargs=-1)
@add("--yes", FLAG, "Delete without asking.", default=False)
@flags(StoreSpec)
def command(*, runs: tuple[str, ...], yes: bool, store: str | None) -> None:
    """Delete runs with all recorded data.

    RUNS are ids, their first digits, or names. On a terminal it asks for confirmation, elsewhere it requires --yes.
    Later runs reuse the space.
    """
    from flopwise.records.runs import delete_runs, recorded_run

    chosen = {(one := recorded_run(run, store=store).run).run_id: one for run in runs}
    if not yes:
        if not sys.stdin.isatty():
            raise usage_error("there is no terminal to confirm on: --yes deletes without asking")
        for one in chosen.values():
            click.echo(plain_text(f"{one.run_id}  {one.name}  {one.task}  {one.model or ''}"), err=True)
        click.confirm(f"Delete {format_items(len(chosen), 'run')} for good?", abort=True, err=True)
    deleted = delete_runs(list(chosen), store=store)
    rest = {"The runs that are left": runs_line("list", store=store)}
    options.answer({"deleted": deleted}, lambda *_: [f"Deleted {', '.join(deleted)}."], further=rest)
