"""`plan`: from a workload to ranked ways of running it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flopwise.errors import SpecError, nearest_hint
from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes
from flopwise.options import options_of
from flopwise.search.answer import Plan
from flopwise.search.plan import plan as search_plan
from flopwise.search.porting import ports
from flopwise.search.spec import WORKLOAD_FILE
from flopwise.search.workload import Resolved, as_in_file, one_as_several
from flopwise.search.workload_file import parse_workload, read_text, workload_from

Advance = Callable[[int, int], None]


def workload(source: str | Path | dict[str, Any], changes: dict[str, Any] | None = None) -> Resolved:
    """A workload from a YAML or JSON file, or from plain data with the same keys, with `changes` laid over it.

    Raises:
        SpecError: what is wrong, and where.
    """
    if isinstance(source, dict):
        return workload_from({**source, **(changes or {})})
    return parse_workload(read_text(source), str(source), changes)


@takes(*WORKLOAD_FILE.specs)
def plan(
    source: str | Path | dict[str, Any] | Resolved,
    *,
    model: str | None = None,
    task: str | None = None,
    facts: str | Path | None = None,
    calibration: str | None = None,
    assume_family: str | None = None,
    advance: Advance | None = None,
    on_compile: Callable[[], None] | None = None,
    on_first: Callable[[Plan], None] | None = None,
    on_ranked: Callable[[Plan], None] | None = None,
    **options: Any,
) -> Plan:
    """Rank the ways of running a workload over all offers: machines, layout, time, cost, energy.

    Costs are in US dollars: of the run in training and batch, of a month for a service. Where nothing meets the
    targets `plans` is empty and `misses` has the nearest.

    Args:
        source: a model with the workload in keywords, a workload file, plain data with its keys, or a workload
            already read.
        model: instead of that of a file.
        task: pretrain, finetune, serve, batch or encode.
        facts: folder of rows that override the shipped ones.
        calibration: name of a profile that `flopwise calibrate` made.
        assume_family: read an unknown model_type as this known family.
        advance: called with (units of work done, units in all) as it goes.
        on_compile: called before the simulator is compiled for the first time.
        on_first: called with the plans of a few kinds of machines that may cost least, before the others are searched,
            where the search takes long.
        on_ranked: called with the plans as they are ranked, before their front, changes and ports are computed.
        **options: options of the command line by name, or whole specs.

    Raises:
        SpecError, UnknownNameError: something in the workload is wrong.
        InfeasibleError: the constraints leave no offer at all.

    Examples:
        >>> import flopwise
        >>> plan = flopwise.plan("gpt2", task="pretrain", tokens="10M", gpu="a100-80gb", max_gpus=1)
        >>> print(plan.plans[0].gpu, plan.plans[0].num_gpus)
        A100-... 1
    """
    from flopwise.search.answer import Listeners

    options |= {name: value for name, value in {"model": model, "task": task}.items() if value is not None}
    wanted = _workload(source, options) if isinstance(source, str | Path | dict) or options else source
    known = load_facts(facts, calibration)
    listeners = Listeners(advance=advance, on_compile=on_compile, on_first=on_first, on_ranked=on_ranked)
    answer = search_plan(wanted, known, listeners, assume_family=assume_family)
    if not answer.plans or assume_family is not None:
        return answer
    return msgspec.structs.replace(answer, if_you_port=ports(wanted, known, answer.plans[0].cost_usd))


FILES = (".yaml", ".yml", ".json")


def _workload(source: str | Path | dict[str, Any] | Resolved, options: dict[str, Any]) -> Resolved:
    """The workload of a file or of data with `options` laid over it, or of a model by its name."""
    if not isinstance(source, str | Path | dict):
        raise SpecError(f"{', '.join(options)}: the workload is read already; give its file, or a model")
    known = {"lora", "qlora", *(name for spec in WORKLOAD_FILE.specs for name in options_of(spec))}
    for name in options.keys() - known:
        raise SpecError(f"unknown argument {name!r}{nearest_hint(name, known)}")
    named = one_as_several(options, *WORKLOAD_FILE.specs)
    changes = as_in_file(named)
    if isinstance(source, dict) or str(source).lower().endswith(FILES):
        return workload(source, changes)
    return workload({"model": str(source), **changes})
