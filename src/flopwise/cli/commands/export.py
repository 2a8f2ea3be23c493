"""`flopwise export`: a plan as the files of other tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.cli import options
from flopwise.cli.options import add, flags, usage_error
from flopwise.cli.parts import bullets
from flopwise.cli.render import Screen, heading, table, verdict
from flopwise.exports.spec import ExportSettings
from flopwise.facts.spec import SourceSpec
from flopwise.options import FILE, FLAG, whole
from flopwise.results import plain
from flopwise.units import format_items
from flopwise.values import dataclass

if TYPE_CHECKING:
    from flopwise.exports.exported import Exported
    from flopwise.exports.targets import Target
    from flopwise.search.answer import Plan


@options.command("export", "flopwise export --list")
@options.argument("target", required=False)
@options.argument("plan", FILE, required=False)
@add("-o --output-folder", FILE, "Write the files into this folder.")
@add("--list", FLAG, "List the targets and what each can express.", field="listed", default=False)
@add("--rank", whole(high=10**6), "Rank of the plan's candidate to export.", default=1)
@options.force_flag
@flags(ExportSettings)
@flags(SourceSpec, "facts calibration")
def command(
    *, target: str | None, plan: Path | None, output_folder: Path | None, listed: bool, rank: int, force: bool,
    facts: Path | None, calibration: str | None, **settings: Any,
) -> None:  # fmt: skip
    """Files of other tools that deploy a plan.

    PLAN is a file of `flopwise plan -o`, one of the plans/ of a report, or the folder of a report (`assess -o`).
    Options give what a plan does not contain (names, images, paths, secrets); a missing value is a placeholder in the
    files and is listed at the end: flopwise export kubernetes plan.json -o deploy --namespace chat
    """
    from flopwise.api.export import export
    from flopwise.exports.exported import write_export
    from flopwise.exports.targets import export_targets

    if listed:
        options.answer(
            export_targets(), _targets, lambda rows: [_target_document(row) for row in rows],
            further={"The files of one": "flopwise export TARGET PLAN.json -o FOLDER"},
        )  # fmt: skip
        return
    if target is None or plan is None or output_folder is None:
        raise usage_error("give a target, a plan file or a report's folder, and -o FOLDER; --list shows the targets")
    answer = export(target, plan, rank=rank, facts=facts, calibration=calibration, **options.values(settings))
    write_export(answer, output_folder, force=force)
    options.answer(FolderExport(answer, output_folder), FolderExport.blocks, FolderExport.document)


def _target_document(row: Target) -> dict[str, Any]:
    return {
        "name": row.name, "for": [*row.tasks], "summary": row.summary, "expresses": row.expresses,
        "files": [*row.files], "validator": row.validator, "version": row.version,
    }  # fmt: skip


def _targets(rows: Sequence[Target], paper: Screen) -> Iterator[str]:
    headers = ("target", "what", "for", "can express", "checked with")
    cells = [(r.name, r.summary, ", ".join(r.tasks), r.expresses, f"{r.validator} ({r.version})") for r in rows]
    yield verdict(f"{len(rows)} targets: tools whose files flopwise writes from a plan.", paper)
    yield table(headers, cells, paper, spare=("checked with", "for"))


@dataclass(frozen=True, slots=True)
class FolderExport:
    """An export with the folder that its files are in."""

    exported: Exported
    folder: Path

    def document(self) -> dict[str, Any]:
        """The files, the commands that apply them, and values to fill in, as JSON has them."""
        one = self.exported
        return {
            "target": one.target, "folder": str(self.folder), "files": [*one.files], "apply": [*one.apply],
            "to_fill": [plain(row) for row in one.to_fill], "assumptions": [*one.assumptions],
        }  # fmt: skip

    def blocks(self, paper: Screen) -> Iterator[str]:
        """Text blocks: the files written, the values to fill in, and the commands that apply them."""
        one = self.exported
        count = format_items(len(one.files), "file")
        yield heading(f"{one.target}: {count} in {self.folder}", paper)
        yield "\n".join(f"  {path}" for path in one.files)
        if one.assumptions:
            yield bullets("Assumed:", one.assumptions)
        if one.to_fill:
            rows = [(fill.option, fill.meaning, fill.text, _places(fill.files)) for fill in one.to_fill]
            yield "To fill in, by these options of `flopwise export` or in the files:\n" + table(
                ("option", "what", "placeholder", "in"), rows, paper
            )
        if one.apply:
            yield bullets(f"Then, in {self.folder}:", one.apply)


def _places(files: Sequence[str]) -> str:
    """The first files with a placeholder, and the number of further ones."""
    return ", ".join(files[:2]) + (f" and {len(files) - 2} more" if len(files) > 2 else "")


def folder_exports(plan: Plan | Path, folders: Mapping[str, Path], *, force: bool, **places: Any) -> list[FolderExport]:
    """A plan, or the report in a folder, as the files of several targets, each in its folder: all or none are made."""
    from flopwise.api.export import export
    from flopwise.exports.exported import write_export

    exports = [FolderExport(export(target, plan, **places), folder) for target, folder in folders.items()]
    for one in exports:
        write_export(one.exported, one.folder, force=force)
    return exports
