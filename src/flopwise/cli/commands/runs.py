"""`flopwise runs`: recorded runs. A command of the group is a file in `cli/runs/` and a line here."""

from __future__ import annotations

from flopwise.cli.options import QuestionGroup

SECTIONS = {
    "Commands": {
        "list": "Recorded runs, latest first.",
        "show": "A run compared with its estimate.",
        "compare": "Runs compared with each other and with their estimates.",
        "import": "Import runs from files of other tools, with their estimates.",
        "export": "Export runs to files: JSON lines that can be imported, or CSV.",
        "delete": "Delete runs with all recorded data.",
    }
}

command = QuestionGroup(
    "runs",
    sections=SECTIONS,
    home="flopwise.cli.runs.{}_runs",
    examples=("flopwise runs list --since 7d", "flopwise runs list --task pretrain --json"),
    help="""Recorded runs, compared with their estimates.

    They are stored in a file, or in the PostgreSQL server of a team: --store of each command, else FLOPWISE_RUNS,
    else runs.db in your data folder. A RUN is an id, its first digits (four or more), or a name (the latest run of that
    name). The default command is list.
    """,
)
