"""`flopwise assess`: the GPU strategy of a whole platform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from flopwise.cli import options
from flopwise.cli.progress import Progress


@options.command(
    "assess",
    "flopwise assess examples/textnlp.yaml -o build/textnlp-report",
)
@click.argument("fleet", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the report into this folder.")
@click.option(
    "--compare",
    "old",
    type=click.Path(path_type=Path),
    help="Say what changed since an earlier report (folder or JSON).",
)
@click.option(
    "--scenarios", type=options.WHOLE_OR_ZERO, default=1000, show_default=True,
    help="Draws of demand, prices and interruptions.",
)  # fmt: skip
@click.option("--seed", type=options.WHOLE_OR_ZERO, default=0, help="Of the draws.")
@options.facts_option
def command(**given: Any) -> None:
    """The GPU strategy of a platform: many workloads, one bill.

    FLEET is a YAML file of workloads and policies (docs/questions/fleet.md). With -o a folder gets report.html,
    report.md, assessment.json and the plan of each workload. The exit code is 1 where a workload, or the policies
    together, cannot be met.
    """
    from flopwise.api.assess import assess_with_plans
    from flopwise.cli.views import assess as view
    from flopwise.report.write import check_folder, linked, read_assessment, write_report

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
        found = linked(found, answer.plans)
        written = write_report(found, given["output"], plans=answer.plans, before=before)
    options.answer(lambda: view.document(found), lambda paper: view.blocks(found, paper, written, before))
    if not all(w.feasible for w in found.workloads):
        click.get_current_context().exit(1)
