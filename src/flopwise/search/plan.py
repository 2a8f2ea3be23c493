"""One workload, planned: the search behind `flopwise plan`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.architecture import Model
from flopwise.facts.catalog import Facts
from flopwise.ops.columns import keep_freed_memory
from flopwise.search.answer import Plan, PlanDraft
from flopwise.search.workload import Resolved

Advance = Callable[[int, int], None]
SHOWN = 10
"""Plans of whose devices there is something to say."""
TRAINING = ("pretrain", "finetune")


def check(workload: Resolved, facts: Facts) -> None:
    """Refuse what no machine could run: in milliseconds, where a search takes seconds.

    Raises:
        SpecError, UnknownNameError: as `plan`, but for what the machines and constraints have to do with.
    """
    model = _model(workload, facts)
    if workload.task in TRAINING:
        from flopwise.search.plan_training import check_training  # noqa: PLC0415 - half of the code is enough for each

        check_training(workload, model, facts)
    else:
        from flopwise.search.plan_serving import check_serving  # noqa: PLC0415 - as above

        check_serving(workload, model, facts)


def _model(workload: Resolved, facts: Facts, assume_family: str | None = None) -> Model:
    model = facts.model(workload.model, assume_family=assume_family)
    if not model.stacks:
        raise SpecError(f"model: {model.name} has published figures only, no layers; use `flopwise roofline` for it")
    return model


def plan(
    workload: Resolved,
    facts: Facts,
    advance: Advance | None = None,
    *,
    assume_family: str | None = None,
    alone: bool = True,
    on_compile: Callable[[], None] | None = None,
) -> Plan:
    """Plan `workload` over the offers of `facts`; `advance(done, whole)` is called as it goes.

    A workload that nothing satisfies gives a plan without candidates, whose `misses` are the nearest. Where it is not
    `alone` but one of a fleet, the plan has neither front nor levers, and `misses` that are cheaper than the best.
    `on_compile` is called before the simulator is compiled for the first time, which takes seconds.

    Raises:
        SpecError, UnknownNameError: something in the workload is wrong.
        InfeasibleError: the constraints leave no offer at all.
    """
    started = time.perf_counter()
    keep_freed_memory()
    model = _model(workload, facts, assume_family)
    draft: PlanDraft
    if workload.task in TRAINING:
        from flopwise.search.plan_training import plan_training  # noqa: PLC0415 - half of the code is enough for each

        draft = plan_training(workload, model, facts, advance, alone=alone)
    else:
        from flopwise.search.plan_serving import plan_serving  # noqa: PLC0415 - as above

        draft = plan_serving(workload, model, facts, advance, alone=alone, on_compile=on_compile)
    parts: dict[str, Any] = {part.name: getattr(draft, part.name) for part in fields(draft)} | {
        "ruled_out": draft.ruled_out.rows(),
        "assumptions": [*model.notes, *draft.assumptions, *facts.grade_remarks(one.gpu for one in draft.plans[:SHOWN])],
    }
    return Plan(
        workload=dict(workload.written),
        task=workload.task,
        objective=workload.objective,
        elapsed_s=time.perf_counter() - started,
        **parts,
    )
