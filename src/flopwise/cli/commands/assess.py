"""`flopwise assess`: the GPU strategy of a whole platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flopwise.cli import options
from flopwise.cli.options import add, declared
from flopwise.cli.progress import Progress
from flopwise.facts.spec import SourceSpec
from flopwise.ops.spec import SharedSpec
from flopwise.options import FILE, WHOLE_OR_ZERO


@options.command(
    "assess",
    "flopwise assess examples/textnlp.yaml -o build/textnlp-report",
)
@options.argument("fleet", FILE)
@add("-o --output", FILE, "Write the report into this folder.")
@add("--compare", FILE, "Say what changed since an earlier report (folder or JSON).", field="old")
@add("--scenarios", WHOLE_OR_ZERO, "Draws of demand, prices and interruptions.", default=1000)
@declared(SharedSpec, "seed")
@declared(SourceSpec, "facts")
def command(**given: Any) -> None:
    """The GPU strategy of a platform: many workloads, one bill.

    FLEET is a YAML file of workloads and policies (docs/questions/fleet.md). With -o a folder gets report.html,
    report.md, assessment.json and the plan of each workload. The exit code is 1 where a workload, or the policies
    together, cannot be met.
    """
    from flopwise.api.assess import assess_with_plans
    from flopwise.cli.views import assess as view
    from flopwise.report.write import check_folder, read_assessment, with_plan_files, write_report

    if given["output"] is not None:
        check_folder(given["output"])
    before = None if given["old"] is None else read_assessment(given["old"])
    with Progress("assessing") as progress:
        answer = assess_with_plans(
            given["fleet"],
            facts=given["facts"],
            scenarios=given["scenarios"],
            seed=given["seed"],
            advance=lambda what, done, whole: progress(done, whole, what),
        )
    found, written = answer.assessment, list[Path]()
    if given["output"] is not None:
        found = with_plan_files(found, answer.plans)
        written = write_report(found, given["output"], plans=answer.plans, before=before)
    options.answer(lambda: view.document(found), lambda paper: view.blocks(found, paper, written, before))
    if not all(w.feasible for w in found.workloads):
        click.get_current_context().exit(1)
