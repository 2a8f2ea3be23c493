"""`export`: from a plan or an assessment to the files of other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flopwise.exports.spec import ExportSettings
from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes
from flopwise.options import take, whole

if TYPE_CHECKING:
    from flopwise.exports.exported import Exported
    from flopwise.fleet.assessment import Assessment
    from flopwise.search.answer import Plan


@takes(ExportSettings, rank=whole(high=10**6))
def export(
    target: str, plan: Plan | Assessment | str | Path, *, rank: int = 1, facts: str | Path | None = None,
    calibration: str | None = None, **settings: Any,
) -> Exported:  # fmt: skip
    """The files that deploy a plan with another tool; `write_export` writes them.

    Names, images, places and references to secrets that are not given are placeholders in the files, which `to_fill`
    lists.

    Args:
        target: a name of `export_targets`.
        plan: a plan, its file, an assessment, or the folder of a report.
        rank: which candidate of a plan, from 1.

    Raises:
        SpecError: no such plan, target, candidate or setting.
        InfeasibleError: the target cannot express the plan; says why.

    Examples:
        >>> import flopwise
        >>> plan = flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="a100-80gb", max_gpus=1)
        >>> sorted(flopwise.export("torchrun", plan).files)
        [...'run.sh'...]
    """
    from flopwise.errors import SpecError
    from flopwise.exports.deployment import Deployment
    from flopwise.exports.fleet import FleetDeployment
    from flopwise.exports.targets import exported_assessment, exported_plan
    from flopwise.fleet.assessment import ASSESSMENT_FILE, read_assessment
    from flopwise.search.answer import Plan, read_plan

    (own,), known = take(settings, ExportSettings), load_facts(facts, calibration)
    if isinstance(plan, str | Path) and not (Path(plan).is_dir() or Path(plan).name == ASSESSMENT_FILE):
        plan = read_plan(plan)
    if isinstance(plan, Plan):
        return exported_plan(target, Deployment.of_rank(plan, rank, known, own))
    if not isinstance(plan, str | Path):
        raise SpecError("an assessment is exported from the folder of its report, where its plans are; give its path")
    assessment, folder = read_assessment(plan), Path(plan) if Path(plan).is_dir() else Path(plan).parent
    plans = {w.name: read_plan(folder / w.plan_file) for w in assessment.workloads if w.plan_file}
    return exported_assessment(target, FleetDeployment.of(assessment, plans, known, own))
