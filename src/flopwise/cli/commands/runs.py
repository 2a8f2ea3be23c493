"""`flopwise runs`: recorded runs. A command of the group is a file in `cli/runs/` and a line here."""

from __future__ import annotations

from flopwise.cli.options import QuestionGroup

SECTIONS = {
    "Commands": {
        "list": "Recorded runs, latest first.",
        "show": "Measured figures of a run beside the expected ones.",
        "compare": "Runs against each other and against their plans.",
        "import": "Files of other tools as runs, with what is expected of them.",
        "export": "Runs as files: JSON lines that can be imported, or CSV.",
        "delete": "Delete runs with all that was recorded of them.",
    }
}

command = QuestionGroup(
    "runs",
    sections=SECTIONS,
    home="flopwise.cli.runs.{}_runs",
    examples=("flopwise runs list --since 7d", "flopwise runs list --task pretrain --json"),
    help="""Recorded runs: measured figures beside the expected ones.

    They are kept in a file of yours, or on a PostgreSQL server of a team: --store of each command, else FLOPWISE_RUNS,
    else runs.db in your data folder. A RUN is an id, its first digits (four or more), or a name: the latest of it.
    Without a command: list.
    """,
)
