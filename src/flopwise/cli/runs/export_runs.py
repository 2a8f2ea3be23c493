"""`flopwise runs export`: runs as files."""

from __future__ import annotations

from pathlib import Path

from flopwise.cli import options
from flopwise.cli.options import add, flags
from flopwise.options import FILE, choice, name
from flopwise.records.spec import StoreSpec


@options.command(
    "export",
    "flopwise runs export pretrain-tiny -o build/run.jsonl",
    "flopwise runs export pretrain-tiny serve-tiny --format csv -o build/tables",
)
@options.argument("runs", name("run", 4096), nargs=-1)
@add("-o --output", FILE, "File of JSON lines, or the folder of the tables.", required=True)
@add("--format", choice("jsonl", "csv"), "JSON lines, or tables of CSV in a folder.", field="form", default="jsonl")
@flags(StoreSpec)
def command(*, runs: tuple[str, ...], output: Path, form: str, store: str | None) -> None:
    """Runs as files: JSON lines that can be imported, or CSV.

    RUNS are ids, their first digits, or names. Everything that was recorded of them is written, whole or not at all;
    `flopwise runs import` reads the JSON lines into any store.
    """
    from flopwise.api.runs import export_runs

    found = export_runs(runs, output, form=form, store=store)
    samples = sum(one.count + one.not_finite for run in found for one in run.summaries.values())
    done = {"output": str(output), "runs": [run.run.run_id for run in found], "samples": samples}
    options.answer(done, lambda *_: [f"Wrote {len(found)} run{'s' * (len(found) != 1)}, {samples:,} samples: {output}"])
