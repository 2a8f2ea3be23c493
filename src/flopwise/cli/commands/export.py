"""`flopwise export`: a plan as the files of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.cli import options
from flopwise.cli.options import add, flags, usage_error
from flopwise.cli.parts import bullets
from flopwise.cli.render import Screen, heading, table
from flopwise.export.spec import ExportSettings
from flopwise.facts.spec import SourceSpec
from flopwise.options import FILE, FLAG, whole

if TYPE_CHECKING:
    from flopwise.api.export import TargetInfo
    from flopwise.export.exported import Exported


@options.command(
    "export",
    "flopwise export --list",
    "flopwise export kubernetes plan.json -o deploy --namespace chat",
)
@options.argument("target", required=False)
@options.argument("plan", FILE, required=False)
@add("-o --output-folder", FILE, "Write the files into this folder.")
@add("--list", FLAG, "The targets with what each can express.", field="listed", default=False)
@add("--rank", whole(high=10**6), "The candidate of the plan.", default=1)
@add("--force", FLAG, "Replace files that are there.", default=False)
@flags(ExportSettings)
@flags(SourceSpec, "facts")
def command(
    *, target: str | None, plan: Path | None, output_folder: Path | None, listed: bool, rank: int, force: bool,
    facts: Path | None, **settings: Any,
) -> None:  # fmt: skip
    """Files of other tools that deploy a plan.

    PLAN is a file of `flopwise plan -o`, one of the plans/ of a report, or the folder of a report (`assess -o`). What a
    plan cannot know (names, images, places, secrets) is said by options; a placeholder stands for what is left out, and
    is listed at the end.
    """
    from flopwise.api import export as api

    if listed:
        options.answer(api.export_targets(), _targets, lambda rows: [_target_document(row) for row in rows])
        return
    if target is None or plan is None or output_folder is None:
        raise usage_error("give a target, a plan file or a report's folder, and -o FOLDER; --list shows the targets")
    answer = api.export(target, plan, rank=rank, facts=facts, **options.values(settings))
    written = api.write_export(answer, output_folder, force=force)
    options.answer(answer, lambda one, paper: blocks(one, output_folder, paper), lambda one: document(one, written))


def _target_document(row: TargetInfo) -> dict[str, Any]:
    return {
        "name": row.name, "for": [*row.tasks], "summary": row.summary, "expresses": row.expresses,
        "files": [*row.files], "validator": row.validator, "version": row.version,
    }  # fmt: skip


def _targets(rows: Sequence[TargetInfo], paper: Screen) -> Iterator[str]:
    headers = ("target", "what", "for", "can express", "checked with")
    cells = [(r.name, r.summary, ", ".join(r.tasks), r.expresses, f"{r.validator} ({r.version})") for r in rows]
    yield table(headers, cells, paper)


def document(answer: Exported, written: Sequence[Path]) -> dict[str, Any]:
    """The JSON of an export: its files, how they are applied, and what is left to fill in."""
    return {
        "target": answer.target, "files": [str(path) for path in written], "apply": [*answer.apply],
        "to_fill": [*answer.to_fill], "assumptions": [*answer.assumptions],
    }  # fmt: skip


def blocks(answer: Exported, folder: Path, paper: Screen) -> Iterator[str]:
    """What was written, what is to be filled in, and the commands that apply it."""
    yield heading(f"{answer.target}: {len(answer.files)} files in {folder}", paper)
    yield "\n".join(f"  {path}" for path in answer.files)
    if answer.assumptions:
        yield bullets("Assumed:", answer.assumptions)
    if answer.to_fill:
        rows = [(one.option, one.meaning, one.text, ", ".join(one.files)) for one in answer.to_fill]
        yield "To fill in, by these options or in the files:\n" + table(
            ("option", "what", "stands as", "in"), rows, paper
        )
    if answer.apply:
        yield bullets(f"Then, in {folder}:", answer.apply)
