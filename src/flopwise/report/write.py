"""A report in a folder: all of its files, or none."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from flopwise.errors import SpecError
from flopwise.files import read_at_most, remove_stale
from flopwise.fleet.assessment import FORMAT, Assessment
from flopwise.report.blocks import Document
from flopwise.report.content import document
from flopwise.report.pages import html, markdown
from flopwise.search.answer import Plan
from flopwise.search.answer import to_json as plan_json

JSON, PLANS = "assessment.json", "plans"
PLAN_NAME = re.compile(r"\d{3,}-[a-z0-9-]+\.json")
MOST_BYTES = 200_000_000
WAITING = ".report-"
"""How the folder begins in which a report is made."""


def to_json(assessment: Assessment) -> bytes:
    """The assessment as one JSON document, indented."""
    return msgspec.json.format(msgspec.json.encode(assessment), indent=2) + b"\n"


def _text(text: str) -> bytes:
    return text.encode("utf-8", errors="replace")


TARGETS: dict[str, Callable[[Assessment, Document], bytes]] = {
    "report.html": lambda _, made: html(made).encode("utf-8", errors="replace"),
    "report.md": lambda _, made: markdown(made).encode("utf-8", errors="replace"),
    JSON: lambda assessment, _: to_json(assessment),
}
"""What is written of an assessment and of the document that people read: a file of each name, by its function."""


def plan_file(name: str, number: int) -> str:
    """The file of a workload's plan: its name with nothing in it that could lead elsewhere, and its number."""
    safe = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    return f"{PLANS}/{number:03d}-{safe or 'workload'}.json"


class _Version(msgspec.Struct):
    version: int = 0


def read_assessment(path: Path | str) -> Assessment:
    """An assessment that `write_report` wrote; `path` is its file, or the folder of the report.

    Raises: SpecError: the file cannot be read or is no assessment.
    """
    file = Path(path)
    file = file / JSON if file.is_dir() else file
    try:
        data = read_at_most(file, MOST_BYTES)
    except OSError as error:
        raise SpecError(f"{file}: cannot be read ({error.strerror or error}); give an {JSON} of a report") from None
    if len(data) > MOST_BYTES:
        raise SpecError(f"{file}: larger than {MOST_BYTES:,} bytes; not an assessment")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > FORMAT:
            raise SpecError(
                f"{file}: assessment format {version}, of a newer flopwise; this one reads format {FORMAT}: "
                "upgrade it, or assess the old fleet again"
            )
        return msgspec.json.decode(data, type=Assessment)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SpecError(f"{file}: not an assessment ({str(error)[:160]}); give an {JSON} of a report") from None


def with_plan_files(assessment: Assessment, plans: Mapping[str, Plan]) -> Assessment:
    """The assessment with the file of each workload that has a plan."""
    rows = [
        msgspec.structs.replace(w, plan_file=plan_file(w.name, number) if w.name in plans else None)
        for number, w in enumerate(assessment.workloads, start=1)
    ]
    return msgspec.structs.replace(assessment, workloads=rows)


def write_report(
    assessment: Assessment, folder: Path | str, *, plans: Mapping[str, Plan] | None = None,
    before: Assessment | None = None,
) -> list[Path]:  # fmt: skip
    """Write report.html, report.md, assessment.json and the `plans` by their workloads; returns what was written.

    The files are made beside the folder and moved into it at the end, so that a failure leaves nothing half done.
    Plans of an earlier report go; other files in the folder stay.

    Raises: SpecError: the folder is a file, or cannot be written to.
    """
    goal, given = Path(folder), plans or {}
    check_folder(goal)
    assessment = with_plan_files(assessment, given)
    made = document(assessment, before)
    files = {name: export(assessment, made) for name, export in TARGETS.items()}
    files |= {w.plan_file: plan_json(given[w.name]) + b"\n" for w in assessment.workloads if w.plan_file}
    made_for_it = [above for above in goal.parents if not above.exists()]
    try:
        goal.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(goal.parent, f"{WAITING}*")
        with tempfile.TemporaryDirectory(dir=goal.parent, prefix=WAITING) as waiting:
            fresh, old = Path(waiting) / "new", Path(waiting) / "old"
            for name, data in files.items():
                place = fresh / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            _exchange(goal, fresh, old, list(files))
    except OSError as error:
        raise SpecError(f"{goal}: cannot be written ({error.strerror or error})") from None
    finally:
        if not goal.exists():
            for above in made_for_it:
                with contextlib.suppress(OSError):
                    above.rmdir()
    return [goal / name for name in files]


def check_folder(folder: Path | str) -> None:
    """Whether a report can be written there: asked before an assessment takes its time.

    Raises: SpecError: the folder is a file, or it or what it would stand in takes no files.
    """
    goal = Path(folder)
    try:
        if goal.exists() and not goal.is_dir():
            raise SpecError(f"{goal} is a file; a report needs a folder")
        there = next(above for above in (goal.absolute(), *goal.absolute().parents) if above.exists())
        for place in (there, goal.parent):
            if place.exists():
                tempfile.TemporaryDirectory(dir=place, prefix=WAITING).cleanup()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SpecError(f"{str(goal)[:200]}: cannot be written ({why})") from None


def _exchange(goal: Path, fresh: Path, old: Path, names: Sequence[str]) -> None:
    """Move `names` from `fresh` into `goal` over what stands there, which `old` keeps; all, or as it was before.

    Each file is replaced at once: a run that is killed here leaves the old or the new one, never none.
    """
    kept, placed = list[str](), list[str]()
    try:
        (goal / PLANS).mkdir(parents=True, exist_ok=True)
        (old / PLANS).mkdir(parents=True)
        stale = [f"{PLANS}/{p.name}" for p in (goal / PLANS).iterdir() if PLAN_NAME.fullmatch(p.name)]
        for name in dict.fromkeys([*stale, *names]):
            if _is_file(goal / name):
                shutil.copy2(goal / name, old / name, follow_symlinks=False)
                kept.append(name)
        for name in names:
            placed.append(name)
            (fresh / name).replace(goal / name)
        for name in set(stale) - set(names):
            placed.append(name)
            (goal / name).unlink()
    except BaseException:  # an interruption by the user, too
        for name in placed:
            if name in kept:
                (old / name).replace(goal / name)
            else:
                (goal / name).unlink(missing_ok=True)
        raise
    finally:
        for folder in (goal / PLANS, goal):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _is_file(path: Path) -> bool:
    """Whether something stands there that can be replaced. Raises: IsADirectoryError: a folder does."""
    if path.is_dir():
        raise IsADirectoryError(21, f"{path.name} is a folder")
    return path.exists() or path.is_symlink()
