"""`plan`: from a workload to ranked ways of running it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes
from flopwise.search.answer import Listeners, Plan
from flopwise.search.plan import plan as search_plan
from flopwise.search.porting import with_ports
from flopwise.search.spec import WORKLOAD_FILE
from flopwise.search.workload import Resolved
from flopwise.search.workload_file import workload_of


@takes(*WORKLOAD_FILE.specs)
def plan(
    source: str | Path | dict[str, Any] | Resolved, *, model: str | None = None, task: str | None = None,
    facts: str | Path | None = None, calibration: str | None = None, assume_family: str | None = None,
    advance: Callable[[int, int], None] | None = None, on_compile: Callable[[], None] | None = None,
    on_first: Callable[[Plan], None] | None = None, on_ranked: Callable[[Plan], None] | None = None, **options: Any,
) -> Plan:  # fmt: skip
    """Rank the ways of running a workload over all offers: machines, layout, time, cost, energy.

    Costs are in US dollars: of the run in training and batch, of a month for a service. Where nothing meets the
    targets `plans` is empty and `misses` has the nearest.

    Args:
        source: a model with the workload in keywords, a workload file, plain data with its keys, or a workload
            already read.
        model: instead of that of a file.
        task: pretrain, finetune, serve, batch or encode.
        on_first: called with the plans of a few kinds of machines that may cost least, before the others are searched,
            where the search takes long.
        on_ranked: called with the plans as they are ranked, before their front, changes and ports are computed.

    Raises:
        SpecError, UnknownNameError: something in the workload is wrong.
        InfeasibleError: the constraints leave no offer at all.

    Examples:
        >>> import flopwise
        >>> plan = flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="a100-80gb", max_gpus=1)
        >>> print(plan.plans[0].gpu, plan.plans[0].num_gpus)
        A100-... 1
    """
    stated = {name: value for name, value in {"model": model, "task": task}.items() if value is not None}
    workload, known = workload_of(source, options | stated), load_facts(facts, calibration)
    listeners = Listeners(advance=advance, on_compile=on_compile, on_first=on_first, on_ranked=on_ranked)
    answer = search_plan(workload, known, listeners, assume_family=assume_family)
    return answer if assume_family is not None else with_ports(answer, workload, known)
