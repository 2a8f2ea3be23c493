"""`plan`: from a workload to ranked ways of running it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from flopwise.errors import SpecError, nearest_hint
from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes
from flopwise.options import options_of
from flopwise.search.answer import Listeners, Plan
from flopwise.search.plan import plan as search_plan
from flopwise.search.porting import ports
from flopwise.search.spec import WORKLOAD_FILE
from flopwise.search.workload import Resolved, as_in_file, one_as_several
from flopwise.search.workload_file import read_workload

FILES = (".yaml", ".yml", ".json")


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
    workload, known = _workload(source, options | stated), load_facts(facts, calibration)
    listeners = Listeners(advance=advance, on_compile=on_compile, on_first=on_first, on_ranked=on_ranked)
    answer = search_plan(workload, known, listeners, assume_family=assume_family)
    if assume_family is not None or not answer.plans:
        return answer
    return msgspec.structs.replace(answer, if_you_port=ports(workload, known, answer.plans[0].cost_usd))


def _workload(source: str | Path | Mapping[str, Any] | Resolved, options: Mapping[str, Any]) -> Resolved:
    """The workload of a file, of data or of a model by its name, with `options`, by their names, laid over it.

    Raises: SpecError: no such option, options of a workload that is read already, or as `read_workload`.
    """
    if isinstance(source, Resolved):
        if options:
            raise SpecError(f"{', '.join(options)}: the workload is read already; give its file, or a model")
        return source
    known = {"lora", "qlora", *(name for spec in WORKLOAD_FILE.specs for name in options_of(spec))}
    for name in options.keys() - known:
        raise SpecError(f"unknown argument {name!r}{nearest_hint(name, known)}")
    changes = as_in_file(one_as_several(options, *WORKLOAD_FILE.specs))
    if isinstance(source, Mapping) or str(source).lower().endswith(FILES):
        return read_workload(source, changes)
    return read_workload({"model": str(source), **changes})
