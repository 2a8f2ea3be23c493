"""`flopwise runs import`: files of other tools as runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flopwise.cli import options
from flopwise.cli.options import flags
from flopwise.cli.parts import bullets
from flopwise.cli.render import Screen, table, verdict
from flopwise.cli.runs.lines import SHORT_ID, runs_line
from flopwise.cost.spec import MachineSpec
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FILE
from flopwise.records.imports.spec import ImportSpec
from flopwise.records.spec import StoreSpec
from flopwise.results import attributes
from flopwise.serving.spec import RequestSpec, ServingSpec
from flopwise.training.spec import DataSpec, TrainingSpec
from flopwise.units import format_items

if TYPE_CHECKING:
    from flopwise.records.imports.imported import ImportedRun

DEGREES = "tp pp ep dp"
"""Of training and of serving alike."""


@options.command(
    "import",
    "flopwise runs import examples/vllm-bench-serve.json --model Llama-3.2-1B --gpu l4",
    "flopwise runs import examples/vllm-bench-serve.json --name load-test --format vllm-bench --json",
    work="importing runs",
)
@options.argument("files", FILE, nargs=-1)
@flags(ImportSpec)
@flags(StoreSpec)
@flags(MachineSpec, "gpu", section="")
@flags(SharedSpec, "gpus")
@flags(MachineSpec, without="gpu")
@flags(DataSpec)
@flags(TrainingSpec)
@flags(RequestSpec)
@flags(ServingSpec, without=DEGREES)
@flags(SourceSpec)
def command(*, files: tuple[Path, ...], store: str | None, **given: Any) -> None:
    """Import runs from files of other tools, with their estimates.

    FILES are trainer_state.json of Hugging Face, event files of TensorBoard (or a folder of them), CSV exports of
    Weights & Biases (history or chart) and MLflow (metric histories), results of vllm bench serve, guidellm, genai-perf
    and AIPerf, and files of `flopwise runs export`. Options of `train` or `serve` give what the files do not contain;
    with model and accelerator the run is compared with its estimate (`flopwise runs show`). The same content is
    imported once.
    """
    from flopwise.records.imports.imported import import_runs

    spellings = options.spellings(click.get_current_context())
    values = {name: value for name, value in given.items() if name in spellings}
    imported = import_runs(*files, store=store, **values)
    further = {}
    if imported:
        further = {"A run against its estimate": runs_line("show", imported[0].run.run_id[:SHORT_ID], store=store)}
    options.answer(imported, _lines, document, further=further)


def document(imported: Sequence[ImportedRun]) -> list[dict[str, Any]]:
    """The imported runs as JSON."""
    paths = (
        "run.run_id run.name run.task source=run.source path new samples metrics left_out notes run.model run.gpu "
        "run.gpus run.settings run.expected"
    )
    return [attributes(one, paths) for one in imported]


def _lines(imported: Sequence[ImportedRun], paper: Screen) -> Iterator[str]:
    new, samples = sum(one.new for one in imported), sum(one.samples for one in imported if one.new)
    old = len(imported) - new
    known = f"; {old:,} {'was' if old == 1 else 'were'} in the store already" if old else ""
    yield verdict(f"{format_items(new, 'run')} imported with {samples:,} samples{known}.", paper)
    rows = [
        (one.run.run_id[:SHORT_ID], one.run.name, one.run.source, one.samples, ", ".join(one.metrics),
         "imported" if one.new else "in the store already")
        for one in imported
    ]  # fmt: skip
    yield table(["run", "name", "format", ">samples", "metrics", "result"], rows, paper)
    several = len(imported) > 1
    for one in imported:
        lines = [
            *one.notes,
            *([f"not imported, as flopwise has no such metrics: {', '.join(one.left_out)}"] if one.left_out else []),
        ]
        if not one.new:
            lines = ["its content is in the store already, so nothing was written; --replace imports it again"]
        if lines:
            yield bullets(f"{one.run.name}:" if several else "Notes:", lines)
