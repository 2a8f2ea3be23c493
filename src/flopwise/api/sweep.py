"""`sweep`: many workloads, each planned over all offers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from flopwise.errors import SpecError
from flopwise.facts.catalog import load_facts
from flopwise.keywords import takes
from flopwise.search.sweep import Sweep, SweptWorkload, plan_sweep, points


@takes()
def sweep(
    source: str | Path | dict[str, Any] | list[dict[str, Any]] | list[SweptWorkload], *, engine: str = "inline",
    address: str | None = None, workers: int | None = None, facts: str | Path | None = None,
    calibration: str | None = None, assume_family: str | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> Sweep:  # fmt: skip
    """Plan every workload of a sweep; the plans are the same with every engine.

    A workload that nothing can satisfy has no plan but reasons.

    Args:
        source: a file, plain data with the same keys, or points read before.
        engine: "inline", "processes" or "ray".
        address: of the Ray cluster.
        workers: processes (default: all cores).

    Raises:
        SpecError: something in the file is wrong, Ray is not installed, or no cluster answers.

    Examples:
        >>> import flopwise
        >>> job = {"model": "gpt2", "task": "pretrain", "data": {"tokens": "10M"}, "constraints": {"gpus": ["l4"]}}
        >>> flopwise.sweep([{"name": "small", **job}]).num_planned
        1
    """
    ready = isinstance(source, list) and source and all(isinstance(p, SweptWorkload) for p in source)
    workloads: Any = source if ready else points(source)
    if workloads is None:
        raise SpecError("a single workload is not a sweep: it has neither `sweep` nor `workloads`; plan it with `plan`")
    return plan_sweep(
        workloads, load_facts(facts, calibration), engine=engine, assume_family=assume_family,
        workers=workers, address=address, advance=advance,
    )  # fmt: skip
