"""Every key of a fleet file as a page, from the options that read it: `python docs/generate.py` writes it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flopwise.fleet import spec
from flopwise.fleet.spec import JOB_FILE
from flopwise.options import NEEDED, FileFormat, Option, defaults_of, options_of

PAGE = Path(__file__).parent / "fleet-file.md"
HEAD = """# Every key of a fleet file

A fleet is YAML (or JSON). Quantities take units (`2TB`, `500ms`, `$20k`, `40%`); an unknown key, value or name is
refused with its line and the nearest one. What it is for: [a whole platform](questions/fleet.md); for editors there is
the [JSON Schema](fleet.schema.json).
"""
BEFORE, AFTER = (
    ((spec.Fleet, "The file"), (spec.Hours, "`environments.NAME`, and `hours` of a workload"),
     (spec.Policies, "`policies`"), (spec.Quota, "`policies.quotas`, each"), (spec.Backup, "`policies.backup`"),
     (spec.MonthSpreads, "`policies.scenarios`")),
    ((spec.Workstations, "`machines`"), (spec.Volumes, "`volumes`"), (spec.Scaling, "`autoscale`"),
     (spec.ExistingMachines, "`existing`, each"), (spec.OwnMachines, "`own_machines`, each"),
     (spec.SiteFigures, "`own_machines`: `site`")),
)  # fmt: skip
Row = tuple[str, str, str, str]


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for title, text, rows in sections():
        parts += [f"## {title}\n", f"{text}\n", "| key | value | unless given | |", "|---|---|---|---|"]
        parts += ["| `{}` | {} | {} | {} |".format(*row).replace("  ", " ") for row in rows]
        parts.append("")
    return "\n".join(parts)


def sections() -> Iterator[tuple[str, str, list[Row]]]:
    """(title, what it is, keys) of each part of the file."""
    for one, title in BEFORE:
        yield title, inspect.getdoc(one) or "", list(_rows(FileFormat((one,)), ""))
    yield "`workloads`, each", inspect.getdoc(spec.Job) or "", list(_rows(JOB_FILE, ""))
    for name, text in JOB_FILE.sections.items():
        yield f"`{name}`", text, list(_rows(JOB_FILE, name))
    for one, title in AFTER:
        yield title, inspect.getdoc(one) or "", list(_rows(FileFormat((one,)), ""))


def _rows(form: FileFormat, section: str) -> Iterator[Row]:
    """The keys of a section, or of the mapping itself."""
    defaults = {o.key: defaults_of(s)[n] for s in form.specs for n, o in options_of(s).items()}
    for key in form.keys[section]:
        if not section and key in form.sections:
            yield key, "below", "", form.sections[key].replace("|", "\\|")
            continue
        declared = form.options[f"{section}.{key}" if section else key]
        yield key, _words(declared), _default(defaults[declared.key]), declared.help.replace("|", "\\|")


def _words(declared: Option) -> str:
    return declared.words.replace("|", "\\|")


def _default(value: Any) -> str:
    if value is NEEDED:
        return "needed"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str | int) else ""
