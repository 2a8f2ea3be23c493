"""`watch`: what a job does now, what bounds it, and which limits it crosses."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from flopwise.keywords import takes
from flopwise.options import take
from flopwise.telemetry.spec import WatchSpec
from flopwise.telemetry.watcher import Watcher, WatchStatus


@takes(WatchSpec)
def watch(**options: Any) -> WatchStatus:
    """Take one status of a job: its bound, its progress against the plan, and its cost.

    Reads this machine's GPUs, a Prometheus server (`prometheus=URL`) or a recorded run (`run=NAME`).

    Raises:
        SpecError: no source, or options that cannot be; says what to install or to give.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> flopwise.watch(run=one.run.run_id).source
        'run ...'
    """
    watcher = watcher_of(**options)
    try:
        return watcher.look()
    finally:
        watcher.close()


@takes(WatchSpec)
def watch_live(**options: Any) -> Iterator[WatchStatus]:
    """A status for each reading of a job, for as long as the source has some.

    Raises:
        SpecError: as `watch`.

    Examples:
        >>> import flopwise
        >>> (one,) = flopwise.import_runs("examples/vllm-bench-serve.json", gpu="h100")
        >>> next(flopwise.watch_live(run=one.run.run_id)).source
        'run ...'
    """
    watcher = watcher_of(**options)
    try:
        yield from watcher.looks()
        while watcher.live:
            time.sleep(watcher.interval_s)
            yield from watcher.looks()
    finally:
        watcher.close()


def watcher_of(**options: Any) -> Watcher:
    """The watcher that reads the source and diagnoses it. Raises SpecError as `watch`."""
    (spec,) = take(options, WatchSpec)
    plan = None
    if spec.plan is not None:
        from flopwise.search.answer import read_plan

        plan = read_plan(spec.plan)
    return Watcher.of(spec, plan)
