"""`flopwise runs export`: runs as files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.cli import options
from flopwise.cli.options import add, flags, usage_error
from flopwise.cli.parts import bullets
from flopwise.options import FILE, choice, name
from flopwise.records.spec import StoreSpec
from flopwise.units import format_items

if TYPE_CHECKING:
    from flopwise.records.rows import RunRows


@options.command(
    "export",
    "flopwise runs export pretrain-tiny -o build/run.jsonl",
    "flopwise runs export pretrain-tiny serve-tiny --format csv -o build/tables",
)
@options.argument("runs", name("run", 4096), nargs=-1, required=False)
@add("-o --output", FILE, "File of JSON lines, or the folder of the tables.", required=True)
@add("--format", choice("jsonl", "csv"), "JSON lines, or tables of CSV in a folder.", field="form", default="jsonl")
@add(
    "--rows",
    choice("training", "memory", "serving"),
    "Write one row per run instead, in the columns of `flopwise backtest`; without RUNS, all runs that have them.",
)
@flags(StoreSpec)
def command(*, runs: tuple[str, ...], output: Path, form: str, rows: str | None, store: str | None) -> None:
    """Export runs to files: JSON lines that can be imported, or CSV.

    RUNS are ids, their first digits, or names. All recorded data are written, whole or not at all; `flopwise runs
    import` reads the JSON lines into any store.
    """
    from flopwise.records.reports import run_rows
    from flopwise.records.runs import export_runs

    if rows is None and not runs:
        raise usage_error("no run is given; `flopwise runs list` shows them")
    if rows is not None:
        options.refuse(("form",), "does not go with --rows, which write CSV; leave it out")
        line = shlex.join(["flopwise", "backtest", rows, str(output)])
        options.answer(
            run_rows(runs, rows, store=store, file=output), lambda done, _: _rows(done, output),
            further={"The estimates of these rows": line},
        )  # fmt: skip
        return
    paths = export_runs(runs, output, form=form, store=store)
    samples = sum(one.count + one.not_finite for run in paths for one in run.summaries.values())
    done = {"output": str(output), "runs": [run.run.run_id for run in paths], "samples": samples}
    text = f"Wrote {format_items(len(paths), 'run')}, {samples:,} samples: {output}"
    line = shlex.join(["flopwise", "runs", "import", str(output), "--store", "STORE"])
    options.answer(done, lambda *_: [text], further={"The same in another store": line} if form == "jsonl" else None)


def _rows(done: RunRows, output: Path) -> Iterator[str]:
    yield f"Wrote {format_items(len(done.rows), 'row')} of {done.kind}: {output}"
    if done.missing:
        yield bullets("Runs left out", done.missing)
