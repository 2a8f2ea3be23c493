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
    from flopwise.exports.source import exported_source

    (own,) = take(settings, ExportSettings)
    return exported_source(target, plan, rank, load_facts(facts, calibration), own)
