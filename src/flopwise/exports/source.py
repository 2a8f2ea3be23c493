"""The files of a target from what a user names: a plan, its file, or the report of an assessment."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flopwise.errors import SpecError
from flopwise.exports.deployment import Deployment
from flopwise.exports.exported import Exported
from flopwise.exports.fleet import FleetDeployment
from flopwise.exports.spec import ExportSettings
from flopwise.exports.targets import exported_assessment, exported_plan
from flopwise.facts.catalog import Facts
from flopwise.fleet.assessment import ASSESSMENT_FILE, read_assessment
from flopwise.search.answer import Plan, read_plan

if TYPE_CHECKING:
    from flopwise.fleet.assessment import Assessment


def exported_source(
    target: str, source: Plan | Assessment | str | Path, rank: int, facts: Facts, settings: ExportSettings
) -> Exported:
    """The files of the candidate `rank` of a plan, or of an assessment in the folder of its report.

    Raises:
        SpecError: no such plan, target or candidate.
        InfeasibleError: the target cannot express the plan; says why.
    """
    if isinstance(source, str | Path) and not (Path(source).is_dir() or Path(source).name == ASSESSMENT_FILE):
        source = read_plan(source)
    if isinstance(source, Plan):
        return exported_plan(target, Deployment.of_rank(source, rank, facts, settings))
    if not isinstance(source, str | Path):
        raise SpecError("an assessment is exported from the folder of its report, where its plans are; give its path")
    assessment, folder = read_assessment(source), Path(source) if Path(source).is_dir() else Path(source).parent
    plans = {w.name: read_plan(folder / w.plan_file) for w in assessment.workloads if w.plan_file}
    return exported_assessment(target, FleetDeployment.of(assessment, plans, facts, settings))
